//! Products of matrices: `matmul` and `linear` by the cube's kernel.
//!
//! Operands are taken as they lie where the kernel can: plain or transposed, any row stride, two dimensions of batch.
//! Others are first copied into scratch memory by a row program, as are f32 operands whose rows do not run along the
//! sums, since the cube transposes 16-bit elements alone.

use super::launch::{Arg, Launch, Lowered, Refusal};
use super::rows;
use crate::chip::Chip;
use crate::kernel::{Elem, Source};
use crate::kernels::{Matmul, Matrix, matmul};
use headwater_core::ops::{OpCx, linear};
use headwater_core::plan::{Place, SegmentId, TensorView};
use headwater_core::row::RowProgram;
use headwater_core::{Layout, Shape};
use std::sync::Arc;

/// Scratch memory begins at multiples of it; as many bytes more hold what whole blocks read behind an operand.
const ALIGN: u64 = 512;

/// A matrix or a batch of some in memory, its strides in elements.
#[derive(Clone, Debug)]
struct Operand {
    /// Sizes and strides of the batch, as the result has it; stride 0 repeats.
    batch: Vec<(usize, isize)>,
    rows: (usize, isize),
    columns: (usize, isize),
}

impl Operand {
    /// A view whose last two dimensions are a matrix, with `batch` dimensions before them.
    fn new(view: &TensorView, batch: &[usize]) -> Operand {
        let dims: Vec<(usize, isize)> =
            view.layout.shape.iter().copied().zip(view.layout.strides.iter().copied()).collect();
        let (lead, matrix) = dims.split_at(dims.len() - 2);
        let missing = batch.len() - lead.len();
        let repeated = |(i, &size): (usize, &usize)| match i.checked_sub(missing).map(|i| lead[i]) {
            Some((1, _)) | None => (size, 0),
            Some((_, stride)) => (size, stride),
        };
        let batch = batch.iter().enumerate().map(repeated).collect();
        Operand { batch, rows: matrix[0], columns: matrix[1] }
    }

    /// The matrix as the kernel takes it, transposed if that is wanted or the only way; the batch is given apart.
    fn matrix(&self, transposed: bool) -> Option<Matrix> {
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
pub fn product(
    chip: &Chip,
    cx: &OpCx,
    reads: &[&TensorView],
    write: &TensorView,
    source: &Source,
) -> Result<Lowered, Refusal> {
    let dims = linear::matmul::Dims::of(cx).map_err(|e| Refusal(e.message))?;
    let (m, n) = (dims.m, dims.n);
    let c_shape: Shape = [&dims.batch[..], &[m, n]].concat().as_slice().into();
    let a = reshaped(reads[0], &dims.left)?;
    let b = reshaped(reads[1], &dims.right)?;
    let c = reshaped(write, &c_shape)?;
    lowered(chip, &[a, b], None, &c, &dims.batch, source)
}

/// The launches of a `linear` node.
///
/// # Errors
/// Types and shapes that the kernel does not take.
pub fn affine(
    chip: &Chip,
    cx: &OpCx,
    reads: &[&TensorView],
    write: &TensorView,
    source: &Source,
) -> Result<Lowered, Refusal> {
    let dims = linear::linear::Dims::of(cx).map_err(|e| Refusal(e.message))?;
    let (m, k, n) = (dims.m, dims.k, dims.n);
    let a = reshaped(reads[0], &[m, k].into())?;
    let weight = reshaped(reads[1], &[n, k].into())?;
    let b = TensorView { layout: permuted(&weight.layout), ..weight };
    let c = reshaped(write, &[m, n].into())?;
    if let Some(bias) = reads.get(2)
        && !bias.layout.is_contiguous()
    {
        return Err(Refusal::new("a bias that is not contiguous"));
    }
    lowered(chip, &[a, b], reads.get(2).map(|_| 2), &c, &[], source)
}

/// A view with another shape of the same elements in the same order.
fn reshaped(view: &TensorView, shape: &Shape) -> Result<TensorView, Refusal> {
    let layout = view.layout.reshape(shape);
    let layout = layout.ok_or_else(|| Refusal::new("rows of a product that lie at no even distance"))?;
    Ok(TensorView { layout, ..view.clone() })
}

/// A layout with its last two dimensions exchanged.
fn permuted(layout: &Layout) -> Layout {
    let rank = layout.shape.len();
    let (mut shape, mut strides) = (layout.shape.to_vec(), layout.strides.clone());
    shape.swap(rank - 2, rank - 1);
    strides.swap(rank - 2, rank - 1);
    Layout { shape: shape.into(), strides, offset: layout.offset }
}

fn lowered(
    chip: &Chip,
    operands: &[TensorView; 2],
    bias: Option<usize>,
    c: &TensorView,
    batch: &[usize],
    source: &Source,
) -> Result<Lowered, Refusal> {
    let elem = Elem::of(c.dtype).ok_or_else(|| Refusal(format!("products of {}", c.dtype)))?;
    let mut all = Lowered::default();
    let (mut sides, mut args) = (Vec::new(), Vec::new());
    for (i, view) in operands.iter().enumerate() {
        // Sums run along the rows of a and the columns of b.
        let along = i == 1;
        let own = Operand::new(view, batch);
        let fits = own.matrix(along).filter(|x| elem != Elem::F32 || x.transposed == along);
        match fits {
            Some(_) => {
                sides.push(own);
                args.push(Arg::Read { operand: i, bytes: 0 });
            }
            None => {
                let (packed, start) = copied(chip, view, i, along, &mut all, source)?;
                sides.push(Operand::new(&packed, batch));
                args.push(Arg::Scratch { bytes: start });
            }
        }
    }
    sides.push(Operand::new(c, batch));
    args.extend(bias.map(|operand| Arg::Read { operand, bytes: 0 }));
    args.push(Arg::Write { operand: 0, bytes: 0 });
    let (batch, strides) = merged(&sides)?;
    let matrix = |i: usize, transposed: bool| {
        let found = sides[i].matrix(transposed);
        let found = found.ok_or_else(|| Refusal::new("a product's result that is written with gaps"))?;
        Ok::<_, Refusal>(Matrix { batch: strides[i], ..found })
    };
    let shape = Matmul {
        elem,
        out: elem,
        m: sides[2].rows.0 as u64,
        n: sides[2].columns.0 as u64,
        k: sides[0].columns.0 as u64,
        batch,
        a: matrix(0, false)?,
        b: matrix(1, true)?,
        c: matrix(2, false)?,
        bias: bias.is_some(),
    };
    let program = Arc::new(super::kernel::attributed(matmul(chip.arch, &shape)?, source));
    all.launches.push(Launch { program, args, blocks: chip.cube_cores });
    Ok(all)
}

/// Has an operand copied into scratch memory, transposed in the last two dimensions or not. Its view there, seen as
/// before, and the byte at which it begins.
fn copied(
    chip: &Chip,
    view: &TensorView,
    operand: usize,
    transposed: bool,
    all: &mut Lowered,
    source: &Source,
) -> Result<(TensorView, u64), Refusal> {
    let from = if transposed { permuted(&view.layout) } else { view.layout.clone() };
    let to = Layout::contiguous(&from.shape);
    let program = RowProgram::copy(view.dtype, view.dtype, &from.shape);
    let place = Place { segment: SegmentId(u32::MAX), offset: 0 };
    let read = TensorView { layout: from.clone(), ..view.clone() };
    let write = TensorView { place, dtype: view.dtype, layout: to.clone() };
    let copy = rows(chip, &program, &[&read], &[&write], source)?;
    let start = all.scratch.next_multiple_of(ALIGN);
    let bytes = (from.shape.numel() * view.dtype.size()) as u64;
    let inner = (start + bytes).next_multiple_of(ALIGN) + ALIGN;
    for mut launch in copy.launches {
        for arg in &mut launch.args {
            *arg = match *arg {
                Arg::Read { bytes, .. } => Arg::Read { operand, bytes },
                Arg::Write { bytes, .. } => Arg::Scratch { bytes: start + bytes },
                Arg::Scratch { bytes } => Arg::Scratch { bytes: inner + bytes },
                other => other,
            };
        }
        all.launches.push(launch);
    }
    all.scratch = inner + copy.scratch;
    let layout = if transposed { permuted(&to) } else { to };
    Ok((TensorView { layout, ..write }, start))
}

/// The dimensions of the batch, made two at the most, and each operand's strides in them.
fn merged(sides: &[Operand]) -> Result<([u64; 2], Vec<[u64; 2]>), Refusal> {
    let mut dims: Vec<(usize, Vec<isize>)> = Vec::new();
    for d in 0..sides[0].batch.len() {
        let size = sides[0].batch[d].0;
        let strides: Vec<isize> = sides.iter().map(|s| s.batch[d].1).collect();
        if size == 1 {
            continue;
        }
        match dims.last_mut() {
            Some((before, outer))
                if outer.iter().zip(&strides).all(|(&outer, &inner)| outer == inner * size as isize) =>
            {
                *before *= size;
                *outer = strides;
            }
            _ => dims.push((size, strides)),
        }
    }
    if dims.len() > 2 {
        return Err(Refusal::new("a product with more than two dimensions of batch"));
    }
    while dims.len() < 2 {
        dims.insert(0, (1, vec![0; sides.len()]));
    }
    let negative = || Refusal::new("a product of a reversed batch");
    let strides = (0..sides.len()).map(|i| {
        let stride = |d: usize| u64::try_from(dims[d].1[i]).map_err(|_| negative());
        Ok([stride(0)?, stride(1)?])
    });
    Ok(([dims[0].0 as u64, dims[1].0 as u64], strides.collect::<Result<_, Refusal>>()?))
}
