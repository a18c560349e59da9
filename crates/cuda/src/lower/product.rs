//! Matrix products by cuBLASLt, which stores matrices column by column: a row-major `c = a · b` is `cᵀ = bᵀ ·
//! aᵀ` there.

use super::rows::{rows, span};
use crate::program::{CudaProgram, Matrix, Param, Product, Work};
use headwater_core::ops::{OpCx, linear};
use headwater_core::plan::{Step, TensorView};
use headwater_core::row::RowProgram;
use headwater_core::{DType, Layout, Shape};
use headwater_launch::{Lowered, LoweredArg, LoweredLaunch, Refusal};
use std::sync::Arc;

/// Bytes of workspace that a product is given.
pub const WORKSPACE: u64 = 32 << 20;

/// An operand: its view as `[batch..., rows, columns]`, and its address.
#[derive(Clone)]
struct Side {
    view: TensorView,
    arg: LoweredArg,
}

/// The launches of a `matmul`.
///
/// # Errors
/// Operands that it does not take.
pub(super) fn matmul(cx: &OpCx, step: &Step) -> Result<Lowered<CudaProgram>, Refusal> {
    let dims = linear::matmul::Dims::of(cx).map_err(|e| Refusal(e.message))?;
    let batch = dims.batch.to_vec();
    let shaped = |own: &Shape| [&batch[..], &own[own.rank() - 2..]].concat();
    let a = side(step, 0)?.seen(&dims.left)?.broadcast(&shaped(&dims.left))?;
    let b = side(step, 1)?.seen(&dims.right)?.broadcast(&shaped(&dims.right))?;
    let d = result(step).seen(&[&batch[..], &[dims.m, dims.n]].concat())?;
    multiply((dims.m, dims.n, dims.k), a, b, None, d)
}

/// The launches of a `linear`.
///
/// # Errors
/// Operands that it does not take.
pub(super) fn linear(cx: &OpCx, step: &Step) -> Result<Lowered<CudaProgram>, Refusal> {
    let dims = linear::linear::Dims::of(cx).map_err(|e| Refusal(e.message))?;
    let a = side(step, 0)?.seen(&[dims.m, dims.k])?;
    let b = side(step, 1)?.seen(&[dims.n, dims.k])?.transposed();
    let bias = step.reads.get(2).and_then(Option::as_ref).map(|_| side(step, 2)).transpose()?;
    let d = result(step).seen(&[dims.m, dims.n])?;
    multiply((dims.m, dims.n, dims.k), a, b, bias, d)
}

fn side(step: &Step, operand: usize) -> Result<Side, Refusal> {
    let view = step.reads.get(operand).and_then(Option::as_ref).cloned();
    let view = view.ok_or_else(|| Refusal::new("a product without an operand"))?;
    Ok(Side { view, arg: LoweredArg::Read { operand, bytes: 0 } })
}

fn result(step: &Step) -> Side {
    Side { view: step.writes[0].clone(), arg: LoweredArg::Write { operand: 0, bytes: 0 } }
}

impl Side {
    /// The same elements as another shape, if strides allow it.
    fn seen(mut self, shape: &[usize]) -> Result<Side, Refusal> {
        let layout = self.view.layout.reshape(&Shape::new(shape));
        self.view.layout = layout.ok_or_else(|| Refusal::new("an operand of a product with gaps"))?;
        Ok(self)
    }

    /// With its leading dimensions repeated.
    fn broadcast(mut self, shape: &[usize]) -> Result<Side, Refusal> {
        let own = &self.view.layout;
        let lead = shape.len() - own.shape.rank();
        let strides = (0..shape.len()).map(|d| match d < lead || own.shape[d - lead] != shape[d] {
            true => 0,
            false => own.strides[d - lead],
        });
        self.view.layout = Layout { shape: shape.into(), strides: strides.collect(), offset: own.offset };
        Ok(self)
    }

    fn transposed(mut self) -> Side {
        let rank = self.view.layout.shape.rank();
        let mut shape = self.view.layout.shape.to_vec();
        shape.swap(rank - 2, rank - 1);
        self.view.layout.strides.swap(rank - 2, rank - 1);
        self.view.layout.shape = shape[..].into();
        self
    }

    /// The matrices as the library takes them, if it does: one dimension contiguous, the other with a pitch,
    /// the batch with one step.
    fn matrix(&self) -> Option<Matrix> {
        let layout = &self.view.layout;
        let lead = layout.shape.rank() - 2;
        let (rows, columns) = (layout.shape[lead], layout.shape[lead + 1]);
        let (down, along) = (layout.strides[lead], layout.strides[lead + 1]);
        let pitch = |long: isize, least: usize, count: usize| match count {
            0 | 1 => Some(least.max(1)),
            _ => usize::try_from(long).ok().filter(|&p| p >= least.max(1)),
        };
        let plain = (along == 1 || columns <= 1).then(|| pitch(down, columns, rows)).flatten();
        let turned = (down == 1 || rows <= 1).then(|| pitch(along, rows, columns)).flatten();
        let (transposed, pitch) = plain.map(|p| (false, p)).or(turned.map(|p| (true, p)))?;
        // Dimensions of the batch follow each other with one step.
        let (mut step, mut below): (Option<isize>, usize) = (None, 1);
        for d in (0..lead).rev().filter(|&d| layout.shape[d] != 1) {
            let own = layout.strides[d];
            match step {
                None => step = Some(own),
                Some(step) if own == step * below as isize => {}
                Some(_) => return None,
            }
            below *= layout.shape[d];
        }
        Some(Matrix { transposed, pitch, step: usize::try_from(step.unwrap_or(0)).ok()? })
    }

    /// Bytes that its address is a multiple of, at most 16.
    fn alignment(&self) -> u32 {
        let first = self.view.layout.offset * self.view.dtype.size() as isize;
        1 << (self.view.place.offset as isize + first).trailing_zeros().min(4)
    }

    /// A contiguous copy in scratch memory at a byte, and the launches that make it.
    fn copied(&self, at: u64, lowered: &mut Lowered<CudaProgram>) -> Result<Side, Refusal> {
        let copy = self.scratch(at, lowered);
        self.copy_to(&copy, lowered)?;
        Ok(copy)
    }

    /// Scratch memory at a byte for as many elements, contiguous.
    fn scratch(&self, at: u64, lowered: &mut Lowered<CudaProgram>) -> Side {
        let mut view = self.view.clone();
        view.layout = Layout::contiguous(&self.view.layout.shape);
        view.place.offset = 0;
        lowered.scratch = lowered.scratch.max(at + span(&view));
        Side { view, arg: LoweredArg::Scratch { bytes: at } }
    }

    fn copy_to(&self, to: &Side, lowered: &mut Lowered<CudaProgram>) -> Result<(), Refusal> {
        let (shape, dtype) = (&self.view.layout.shape, self.view.dtype);
        let made = rows("copy", &RowProgram::copy(dtype, dtype, shape), &[&self.view, &to.view])?;
        for mut launch in made.launches {
            launch.args = vec![self.arg, to.arg];
            lowered.launches.push(launch);
        }
        Ok(())
    }
}

fn multiply(
    (m, n, k): (usize, usize, usize),
    a: Side,
    b: Side,
    bias: Option<Side>,
    d: Side,
) -> Result<Lowered<CudaProgram>, Refusal> {
    let (dtype, out) = (a.view.dtype, d.view.dtype);
    let lead = d.view.layout.shape.rank() - 2;
    let batch: usize = d.view.layout.shape[..lead].iter().product();
    if m == 0 || n == 0 || batch == 0 {
        return Ok(Lowered::default());
    }
    if k == 0 {
        return Err(Refusal::new("a product of no terms"));
    }
    let wider = out == DType::F32 && dtype.size() == 2;
    if b.view.dtype != dtype || (out != dtype && !wider) {
        return Err(Refusal::new("a product of different types"));
    }
    if bias.as_ref().is_some_and(|b| b.view.layout.strides[0] != 1 && n > 1) {
        return Err(Refusal::new("a bias that is not contiguous"));
    }
    let mut lowered = Lowered::default();
    let mut at = WORKSPACE;
    lowered.scratch = at;
    let mut taken = |side: Side, lowered: &mut Lowered<CudaProgram>| {
        let side = match side.matrix() {
            Some(_) => side,
            None => {
                let copy = side.copied(at, lowered)?;
                at += span(&copy.view).next_multiple_of(512);
                copy
            }
        };
        let matrix = side.matrix().ok_or_else(|| Refusal::new("matrices that the library does not take"))?;
        Ok::<_, Refusal>((side, matrix))
    };
    let (a, of_a) = taken(a, &mut lowered)?;
    let (b, of_b) = taken(b, &mut lowered)?;
    let taken = |m: &Matrix| !m.transposed && (m.step > 0 || batch == 1);
    let direct = d.matrix().filter(taken);
    // A result that the library does not write in place is copied there.
    let made = match direct {
        Some(_) => d.clone(),
        None => d.scratch(at, &mut lowered),
    };
    let of_d = made.matrix().ok_or_else(|| Refusal::new("a product's result that no matrix holds"))?;
    let (target, d) = (d, made);
    let alignment = [&a, &b, &d].map(|side| side.alignment()).into_iter().min().unwrap_or(1);
    let product =
        Product { dtype, out, m, n, k, batch, a: of_a, b: of_b, d: of_d, bias: bias.is_some(), alignment };
    let param =
        |name: &str, side: &Side, writes| Param { name: name.into(), writes, bytes: span(&side.view) };
    let mut params = vec![param("a", &a, false), param("b", &b, false)];
    let mut args = vec![a.arg, b.arg];
    if let Some(bias) = &bias {
        params.push(param("bias", bias, false));
        args.push(bias.arg);
    }
    params.push(param("d", &d, true));
    args.push(d.arg);
    params.push(Param { name: "workspace".into(), writes: true, bytes: WORKSPACE });
    args.push(LoweredArg::Scratch { bytes: 0 });
    let program = CudaProgram { name: "hw_product".into(), params, work: Work::Product(product) };
    lowered.launches.push(LoweredLaunch { program: Arc::new(program), args, blocks: 1 });
    if direct.is_none() {
        d.copy_to(&target, &mut lowered)?;
    }
    Ok(lowered)
}
