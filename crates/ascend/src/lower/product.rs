//! Products of matrices: `matmul` and `linear` by the cube's kernel.
//!
//! Operands are read in place where the kernel can: plain or transposed, any row stride, two dimensions of
//! batch. Others are first copied into scratch memory by a row program, as are f32 operands whose rows do not
//! run along the sums, since the cube transposes 16-bit elements alone. Further dimensions of batch are
//! launches of their own. On 310P, whose cube has no f32, such operands are split into parts of f16
//! (`split`).

use super::launch::{LoweredArg, LoweredLaunch, Refusal};
use super::sequence::{Sequence, Tensor, after};
use super::source::attributed;
use crate::chip::Arch;
use crate::kernel::Elem;
use crate::kernels::{Matmul, Matrix, matmul, matmuls};
use headwater_core::DType;
use headwater_core::axes::{Axis, merge};
use headwater_core::expr::input as x;
use headwater_core::ops::{OpCx, linear};
use headwater_core::row::RowProgram;
use std::sync::Arc;

/// Elements of f16 in 32 bytes.
const BLOCK: usize = 16;

/// Results from which on those in short rows are written as blocks first: three launches more are shorter
/// than as many stores of the scalar unit.
const NARROW: usize = 1024;

/// Most launches of a product with more than two dimensions of batch.
const LAUNCHES: usize = 4096;

/// A matrix or a batch of some in memory, its strides in elements.
#[derive(Clone, Debug)]
pub(super) struct Operand {
    /// Sizes and strides of the batch, as the result has it; stride 0 repeats.
    pub batch: Vec<(usize, isize)>,
    pub rows: (usize, isize),
    pub columns: (usize, isize),
}

impl Operand {
    /// A tensor whose last two dimensions are a matrix, with `batch` dimensions before them.
    pub fn new(tensor: &Tensor, batch: &[usize]) -> Operand {
        let layout = &tensor.view.layout;
        let dims: Vec<(usize, isize)> =
            layout.shape.iter().copied().zip(layout.strides.iter().copied()).collect();
        let (lead, matrix) = dims.split_at(dims.len() - 2);
        let missing = batch.len() - lead.len();
        let repeated = |(i, &size): (usize, &usize)| match i.checked_sub(missing).map(|i| lead[i]) {
            Some((1, _)) | None => (size, 0),
            Some((_, stride)) => (size, stride),
        };
        let batch = batch.iter().enumerate().map(repeated).collect();
        Operand { batch, rows: matrix[0], columns: matrix[1] }
    }

    /// The matrix as the kernel takes it, transposed if `transposed` or the only way; the batch is a separate
    /// argument.
    pub fn matrix(&self, transposed: bool) -> Option<Matrix> {
        let way = |transposed: bool| {
            let (outer, inner) =
                if transposed { (self.columns, self.rows) } else { (self.rows, self.columns) };
            let row = if outer.0 == 1 { inner.0 as u64 } else { u64::try_from(outer.1).ok()? };
            let runs = inner.1 == 1 || inner.0 == 1;
            (runs && row >= inner.0 as u64).then_some(Matrix { transposed, row, batch: [0; 2] })
        };
        way(transposed).or_else(|| way(!transposed))
    }
}

/// The launches of a `matmul` node.
///
/// # Errors
/// Types and shapes that the kernel does not take.
pub fn product(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let dims = linear::matmul::Dims::of(cx)?;
    let a = s.shaped(&s.input(0)?, &dims.left)?;
    let b = s.shaped(&s.input(1)?, &dims.right)?;
    let c = even(&s.output(0)?, &[&dims.batch[..], &[dims.m, dims.n]].concat())?;
    s.product(&a, &b, None, &c)?;
    Ok(())
}

/// The launches of a `linear` node.
///
/// # Errors
/// Types and shapes that the kernel does not take.
pub fn affine(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let dims = linear::linear::Dims::of(cx)?;
    let a = s.shaped(&s.input(0)?, &[dims.m, dims.k])?;
    let b = s.shaped(&s.input(1)?, &[dims.n, dims.k])?.transposed();
    let bias = s.optional(2);
    let c = even(&s.output(0)?, &[dims.m, dims.n])?;
    s.product(&a, &b, bias.as_ref(), &c)?;
    Ok(())
}

/// True for products onto rows of less than a block that are contiguous, where there are enough of them, and
/// sums of a block or more, whose copies are whole ones.
fn narrow(b: &Tensor, c: &Tensor) -> bool {
    let shape = c.shape();
    let (columns, terms) = (shape[shape.rank() - 1], b.shape()[b.shape().rank() - 2]);
    let many = shape.checked_numel().is_some_and(|n| n >= NARROW);
    columns < BLOCK && terms >= BLOCK && c.view.layout.is_contiguous() && many
}

/// An operand with another shape of the same elements in the same order.
pub(super) fn even(tensor: &Tensor, shape: &[usize]) -> Result<Tensor, Refusal> {
    let found = tensor.reshaped(shape);
    found.ok_or_else(|| Refusal::new("an operand of a product whose elements lie at no even distance"))
}

/// True if the kernel reads an operand as it is. Sums run along the rows of a and, `along`, the columns of b;
/// of f32 they have to.
fn fits(side: &Tensor, c: &Tensor, along: bool) -> bool {
    let batch = &c.shape()[..c.shape().rank() - 2];
    let found = Operand::new(side, batch).matrix(along);
    found.is_some_and(|x| side.dtype() != DType::F32 || x.transposed == along)
}

/// A product of operands that the kernel takes as they are.
struct Placed {
    shape: Matmul,
    args: Vec<LoweredArg>,
    /// Sizes of further dimensions of the batch, each with the bytes by which a, b and c advance.
    further: Vec<(usize, [u64; 3])>,
}

impl Placed {
    fn new(sides: [&Tensor; 2], bias: Option<&Tensor>, c: &Tensor) -> Result<Placed, Refusal> {
        let [a, b] = sides;
        let batch = &c.shape()[..c.shape().rank() - 2];
        let args = [a, b].into_iter().chain(bias).chain([c]).map(|t| t.arg).collect();
        let sides = [a, b, c].map(|t| Operand::new(t, batch));
        // Dimensions of the batch, joined where all operands allow it, and each operand's strides in them.
        let dims = merge(
            (0..batch.len())
                .map(|d| Axis { size: batch[d], steps: sides.iter().map(|s| s.batch[d].1).collect() })
                .collect(),
        );
        let strides = |i: usize| -> Result<Vec<u64>, Refusal> {
            let stride = dims.iter().map(|d| u64::try_from(d.steps[i]));
            stride.collect::<Result<_, _>>().map_err(|_| Refusal::new("a product of a reversed batch"))
        };
        let strides = [strides(0)?, strides(1)?, strides(2)?];
        // The largest two dimensions are the kernel's.
        let mut order: Vec<usize> = (0..dims.len()).collect();
        order.sort_by_key(|&d| std::cmp::Reverse(dims[d].size));
        let (own, further) = order.split_at(order.len().min(2));
        let of = |i: usize, d: usize| own.get(d).map_or(0, |&d| strides[i][d]);
        let size = |d: usize| own.get(d).map_or(1, |&d| dims[d].size as u64);
        let matrix = |i: usize, transposed: bool| {
            let found = sides[i].matrix(transposed);
            let found = found.ok_or_else(|| Refusal::new("a product's result that is written with gaps"))?;
            Ok::<_, Refusal>(Matrix { batch: [of(i, 0), of(i, 1)], ..found })
        };
        let shape = Matmul {
            elem: elem(a)?,
            out: elem(c)?,
            m: sides[2].rows.0 as u64,
            n: sides[2].columns.0 as u64,
            k: sides[0].columns.0 as u64,
            batch: [size(0), size(1)],
            a: matrix(0, false)?,
            b: matrix(1, true)?,
            c: matrix(2, false)?,
            bias: bias.is_some(),
        };
        let bytes = [a, b, c].map(|t| t.dtype().size() as u64);
        let step = |d: usize| std::array::from_fn(|i| strides[i][d] * bytes[i]);
        let further = further.iter().map(|&d| (dims[d].size, step(d))).collect();
        Ok(Placed { shape, args, further })
    }

    /// Arguments of each launch.
    fn launches(&self) -> Result<Vec<Vec<LoweredArg>>, Refusal> {
        let count = self.further.iter().try_fold(1usize, |n, d| n.checked_mul(d.0));
        let count = count.filter(|&n| n <= LAUNCHES);
        let count = count.ok_or_else(|| Refusal::new("a product of too many batches"))?;
        let last = self.args.len() - 1;
        let launch = |mut index: usize| {
            let mut args = self.args.clone();
            for &(size, steps) in &self.further {
                let at = (index % size) as u64;
                index /= size;
                for (arg, step) in [0, 1, last].into_iter().zip(steps) {
                    args[arg] = after(args[arg], at * step);
                }
            }
            args
        };
        Ok((0..count).map(launch).collect())
    }
}

fn elem(t: &Tensor) -> Result<Elem, Refusal> {
    Elem::of(t.dtype()).ok_or_else(|| Refusal(format!("products of {}", t.dtype())))
}

impl Sequence<'_> {
    /// `c = a · b`, and a bias for each column: a `[batch…, m, k]`, b `[batch…, k, n]`, c `[batch…, m, n]`.
    /// Dimensions of the batch that an operand lacks, has of size 1 or of stride 0 repeat it. Sums are f32,
    /// rounded once to c's dtype.
    ///
    /// # Errors
    /// Types and shapes that the kernel does not take.
    pub fn product(
        &mut self,
        a: &Tensor,
        b: &Tensor,
        bias: Option<&Tensor>,
        c: &Tensor,
    ) -> Result<(), Refusal> {
        let elem = elem(a)?;
        if c.shape().contains(&0) {
            return Ok(());
        }
        if [a, b].iter().any(|t| t.shape().contains(&0)) {
            // Sums of nothing.
            let Some(bias) = bias else { return self.fill(c, 0.0) };
            let inputs = [(bias.dtype(), &bias.shape()[..])];
            let program = RowProgram::pointwise(&inputs, c.shape(), &[c.dtype()], &[x(0)]);
            return self.rows(&program, &[bias], &[c]);
        }
        if bias.is_some_and(|bias| !bias.view.layout.is_contiguous()) {
            return Err(Refusal::new("a bias that is not contiguous"));
        }
        if self.chip.arch == Arch::P310 && elem == Elem::F32 {
            return self.split_product(a, b, bias, c);
        }
        if self.chip.arch == Arch::P310 && narrow(b, c) {
            return self.narrow_product(a, b, bias, c);
        }
        let mark = self.mark();
        let mut sides = Vec::new();
        for (i, side) in [a, b].into_iter().enumerate() {
            let along = i == 1;
            sides.push(match fits(side, c, along) {
                true => side.clone(),
                false => self.packed(side, along)?,
            });
        }
        let placed = Placed::new([&sides[0], &sides[1]], bias, c)?;
        let program = Arc::new(attributed(matmul(self.chip.arch, &placed.shape)?, self.source));
        for args in placed.launches()? {
            let launch = LoweredLaunch { program: program.clone(), args, blocks: self.chip.cube_cores };
            self.lowered.launches.push(launch);
        }
        self.release(mark);
        Ok(())
    }

    /// Products that do not depend on each other, each `(a, b, c)` of [`Sequence::product`]: one launch where
    /// one kernel takes them as they are.
    ///
    /// # Errors
    /// As of [`Sequence::product`].
    pub fn products(&mut self, all: &[[Tensor; 3]]) -> Result<(), Refusal> {
        if let Some(launch) = self.together(all) {
            self.lowered.launches.push(launch);
            return Ok(());
        }
        all.iter().try_for_each(|[a, b, c]| self.product(a, b, None, c))
    }

    /// The launch of several products, if there is one.
    fn together(&self, all: &[[Tensor; 3]]) -> Option<LoweredLaunch> {
        if all.len() < 2 {
            return None;
        }
        let (mut shapes, mut args) = (Vec::new(), Vec::new());
        for [a, b, c] in all {
            if [a, b, c].iter().any(|t| t.shape().contains(&0)) || !fits(a, c, false) || !fits(b, c, true) {
                return None;
            }
            let placed = Placed::new([a, b], None, c).ok().filter(|p| p.further.is_empty())?;
            shapes.push(placed.shape);
            args.extend(placed.args);
        }
        let program = matmuls(self.chip.arch, &shapes).ok()?;
        let program = Arc::new(attributed(program, self.source));
        Some(LoweredLaunch { program, args, blocks: self.chip.cube_cores })
    }

    /// A product of less than a block of columns on 310P, whose kernel would write them element by element:
    /// padded with columns of zeros, and then a copy.
    fn narrow_product(
        &mut self,
        a: &Tensor,
        b: &Tensor,
        bias: Option<&Tensor>,
        c: &Tensor,
    ) -> Result<(), Refusal> {
        let mark = self.mark();
        let turned = b.transposed();
        let [lead @ .., columns, terms] = &turned.shape()[..] else {
            return Err(Refusal::new("a product of no matrices"));
        };
        let wide = self.scratch(b.dtype(), &[lead, &[BLOCK, *terms]].concat())?;
        self.fill(&wide, 0.0)?;
        self.copy(&turned, &wide.part(lead.len(), 0, *columns)?)?;
        let bias = match bias {
            Some(bias) => {
                let padded = self.scratch(bias.dtype(), &[BLOCK])?;
                self.fill(&padded, 0.0)?;
                self.copy(bias, &padded.part(0, 0, *columns)?)?;
                Some(padded)
            }
            None => None,
        };
        let last = c.shape().rank() - 1;
        let to = self.scratch(c.dtype(), &[&c.shape()[..last], &[BLOCK]].concat())?;
        self.product(a, &wide.transposed(), bias.as_ref(), &to)?;
        self.copy(&to.part(last, 0, *columns)?, c)?;
        self.release(mark);
        Ok(())
    }

    /// A copy of an operand in scratch memory, transposed in the last two dimensions or not, and seen as
    /// before. Matrices that repeat are copied once.
    pub(super) fn packed(&mut self, side: &Tensor, transposed: bool) -> Result<Tensor, Refusal> {
        let layout = &side.view.layout;
        let lead = layout.shape.rank() - 2;
        let once = |d: usize| if d < lead && layout.strides[d] == 0 { 1 } else { layout.shape[d] };
        let dims: Vec<_> = (0..lead + 2).map(|d| (once(d), Some((d, 1)))).collect();
        let from = side.walked(&dims)?;
        let from = if transposed { from.transposed() } else { from };
        let copy = self.copied(&from)?;
        Ok(if transposed { copy.transposed() } else { copy })
    }
}
