//! Products of groups of rows, each with a matrix of its own: `_grouped_mm` and its gradient by the weight.
//!
//! A first kernel proves that the groups' ends ascend within the rows. The cube's kernel reads them from
//! memory, so that the host learns nothing of the groups: a step is launched whole, whatever tokens each
//! expert has.

use super::indexing::{push, words_of};
use super::launch::{LoweredArg, LoweredLaunch, Refusal};
use super::product::Operand;
use super::sequence::{Sequence, Tensor};
use super::source::attributed;
use crate::chip::Arch;
use crate::kernel::Elem;
use crate::kernels::{CheckIndex, Grouped, Matmul, Matrix, check_index, grouped_matmul};
use headwater_core::DType::{F32, I32, I64};
use headwater_core::expr::{Expr, float, input as x};
use headwater_core::ops::OpCx;
use headwater_core::ops::linear::grouped_mm::Groups;
use headwater_core::row::{Access, Reduce, RowBuilder};
use std::sync::Arc;

/// Numbers of rows below it are exact in f32.
const ROWS: usize = 1 << 24;

/// The launches of a `_grouped_mm` node.
///
/// # Errors
/// Types and shapes that the kernel does not take.
pub fn product(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let groups = Groups::of(cx)?;
    let (operands, offsets) = ([s.input(0)?, s.input(1)?, s.output(0)?], s.input(2)?);
    multiply(s, Grouped::Rows, &groups, &offsets, &operands)
}

/// The launches of a `grouped_mm_weight_backward` node.
///
/// # Errors
/// Types and shapes that the kernel does not take.
pub fn weight_gradient(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let groups = Groups::of(cx)?;
    let (operands, offsets) = ([s.input(0)?.transposed(), s.input(1)?, s.output(0)?], s.input(2)?);
    multiply(s, Grouped::Sums, &groups, &offsets, &operands)
}

/// `c = a · b` in groups. What no group writes is zero.
fn multiply(
    s: &mut Sequence,
    grouped: Grouped,
    groups: &Groups,
    offsets: &Tensor,
    operands: &[Tensor; 3],
) -> Result<(), Refusal> {
    let [a, b, c] = operands;
    let elem = Elem::of(a.dtype()).ok_or_else(|| Refusal(format!("products of {}", a.dtype())))?;
    if s.chip.arch == Arch::P310 && elem == Elem::F32 {
        return Err(Refusal::new("products of groups in f32"));
    }
    if operands.iter().any(|t| t.shape().contains(&0)) {
        return Err(Refusal::new("products of groups without elements"));
    }
    let ends = ends(s, offsets, groups)?;
    s.fill(c, 0.0)?;
    let batch = [groups.groups];
    let own = |t: &Tensor| Operand::new(t, if t.shape().rank() == 3 { &batch[..] } else { &[] });
    let (mut sides, mut args) = (Vec::new(), Vec::new());
    for (i, side) in [a, b].into_iter().enumerate() {
        // Sums run along the rows of a and the columns of b; fractals of f32 are not transposed.
        let along = i == 1;
        let fits = own(side).matrix(along).filter(|x| elem != Elem::F32 || x.transposed == along);
        let side = match fits {
            Some(_) => side.clone(),
            None => s.packed(side, along)?,
        };
        args.push(side.arg);
        sides.push(own(&side));
    }
    sides.push(own(c));
    let matrix = |i: usize, transposed: bool| {
        let found = sides[i].matrix(transposed);
        let found = found.ok_or_else(|| Refusal::new("a product's result that is written with gaps"))?;
        let stride = u64::try_from(sides[i].batch.first().map_or(0, |d| d.1));
        let stride = stride.map_err(|_| Refusal::new("a product of a reversed batch"))?;
        Ok::<_, Refusal>(Matrix { batch: [stride, 0], ..found })
    };
    let shape = Matmul {
        elem,
        out: Elem::of(c.dtype()).ok_or_else(|| Refusal(format!("products in {}", c.dtype())))?,
        m: sides[0].rows.0 as u64,
        n: sides[1].columns.0 as u64,
        k: sides[0].columns.0 as u64,
        batch: [groups.groups as u64, 1],
        a: matrix(0, false)?,
        b: matrix(1, true)?,
        c: matrix(2, false)?,
        bias: false,
    };
    args.extend([ends.arg, c.arg]);
    let program = grouped_matmul(s.chip.arch, &shape, grouped)?;
    let blocks = s.chip.cube_cores;
    s.lowered.launches.push(LoweredLaunch { program: Arc::new(attributed(program, s.source)), args, blocks });
    Ok(())
}

/// The end of each group, i32, proved to ascend up to the number of rows.
fn ends(s: &mut Sequence, given: &Tensor, groups: &Groups) -> Result<Tensor, Refusal> {
    let (count, rows) = (groups.groups, groups.rows);
    if rows >= ROWS {
        return Err(Refusal(format!("groups of {ROWS} rows and more")));
    }
    let mut b = RowBuilder::new(&[count], &[count]);
    let mut reads = Vec::new();
    let mut numbers = Vec::new();
    for access in [Access::dims(&[Some(0), None]), Access::dims(&[None, Some(0)])] {
        numbers.push(match given.dtype() {
            I64 => {
                let words = words_of(given)?;
                let [low, high] = [0, 1].map(|_| b.read(I32, access.clone()));
                reads.extend([words.part(1, 0, 1)?, words.part(1, 1, 1)?]);
                // Numbers of more than 31 bits are outside.
                let inside = x(1).eq(Expr::Int(0)).select(x(0).cast(F32), float(-1.0));
                b.expr(&inside, &[low, high])
            }
            dtype => {
                let number = b.read(dtype, access);
                reads.push(given.clone());
                b.expr(&x(0).cast(F32), &[number])
            }
        });
    }
    let place = |dim: usize| Expr::Coord(dim).cast(F32);
    let earlier = b.expr(&place(1).lt(place(0)).select(x(0), float(0.0)), &[numbers[1]]);
    let before = b.reduce(Reduce::Max, earlier);
    let regs = [numbers[0], before];
    let outside = x(0).lt(x(1)).or(x(0).gt(float(rows as f64)));
    // A wrong end is reported; its group has no rows.
    let judged = outside.clone().select(float(-1.0), x(0)).cast(I32);
    let end = outside.select(x(1).max(float(0.0)).min(float(rows as f64)), x(0)).cast(I32);
    for value in [judged, end] {
        let value = b.expr(&value, &regs);
        b.store(I32, Access::dims(&[Some(0), None]), value);
    }
    let [judged, end, checked] =
        [s.scratch(I32, &[count])?, s.scratch(I32, &[count])?, s.scratch(I32, &[count])?];
    s.rows(&b.finish(), &reads.iter().collect::<Vec<_>>(), &[&judged, &end])?;
    let shape = CheckIndex {
        index: Elem::I32,
        indices: count as u64,
        limit: rows as u64 + 1,
        wrap: false,
        ignored: None,
    };
    let program = check_index(s.chip.arch, &shape)?;
    let args = vec![judged.arg, checked.arg, LoweredArg::Fault { limit: shape.limit }];
    push(s, program, args, shape.reports());
    Ok(end)
}
