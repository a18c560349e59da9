//! Launches that follow each other over a step's operands and scratch memory: operators of several kernels.

use super::launch::{Lowered, LoweredArg, LoweredLaunch, Refusal};
use super::rows;
use super::source::attributed;
use crate::chip::Chip;
use crate::kernel::{Program, Source};
use crate::kernels::{philox_uniform, uniform_blocks};
use headwater_core::expr::Expr;
use headwater_core::plan::{Place, SegmentId, TensorView};
use headwater_core::row::RowProgram;
use headwater_core::{DType, Layout, Shape};
use std::sync::Arc;

/// Scratch memory begins at multiples of it; as many bytes more cover what whole blocks read past an operand.
const ALIGN: u64 = 512;

/// A tensor that launches read or write: an operand, a part of one, or scratch memory.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    /// Address of its element of index 0.
    pub arg: LoweredArg,
    /// Its elements, with the place that the address has in the plan.
    pub view: TensorView,
}

impl Tensor {
    /// An operand that is read.
    pub fn read(operand: usize, view: &TensorView) -> Tensor {
        Tensor { arg: LoweredArg::Read { operand, bytes: 0 }, view: view.clone() }
    }

    /// An operand that is written.
    pub fn write(operand: usize, view: &TensorView) -> Tensor {
        Tensor { arg: LoweredArg::Write { operand, bytes: 0 }, view: view.clone() }
    }

    pub fn dtype(&self) -> DType {
        self.view.dtype
    }

    pub fn shape(&self) -> &Shape {
        &self.view.layout.shape
    }

    fn with(&self, layout: Layout) -> Tensor {
        Tensor { arg: self.arg, view: TensorView { layout, ..self.view.clone() } }
    }

    /// The same elements in the same order under another shape, if the strides allow it.
    pub fn reshaped(&self, shape: &[usize]) -> Option<Tensor> {
        Some(self.with(self.view.layout.reshape(&shape.into())?))
    }

    /// Dimension `i` is dimension `order[i]` of this one.
    pub fn permuted(&self, order: &[usize]) -> Tensor {
        let l = &self.view.layout;
        let shape = order.iter().map(|&d| l.shape[d]).collect();
        let strides = order.iter().map(|&d| l.strides[d]).collect();
        self.with(Layout { shape, strides, offset: l.offset })
    }

    /// The same with its last two dimensions exchanged.
    pub fn transposed(&self) -> Tensor {
        let rank = self.shape().rank();
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(rank - 2, rank - 1);
        self.permuted(&order)
    }

    /// A strided view: per output dimension its size and `(input dimension, step)`; `None` broadcasts. Sizes
    /// keep within the tensor.
    pub fn walked(&self, dims: &[(usize, Option<(usize, usize)>)]) -> Result<Tensor, Refusal> {
        let l = &self.view.layout;
        let stride = |&(_, way): &(usize, Option<(usize, usize)>)| match way {
            None => Some(0),
            Some((dim, times)) => l.strides[dim].checked_mul(isize::try_from(times).ok()?),
        };
        let strides = dims.iter().map(stride).collect::<Option<_>>();
        let strides = strides.ok_or_else(|| Refusal::new("strides beyond 64 bits"))?;
        Ok(self.with(Layout { shape: dims.iter().map(|d| d.0).collect(), strides, offset: l.offset }))
    }

    /// Indices `start` to `start + len` along a dimension.
    pub fn part(&self, dim: usize, start: usize, len: usize) -> Result<Tensor, Refusal> {
        let mut layout = self.view.layout.clone();
        let moved = layout.strides[dim].checked_mul(start as isize).filter(|&m| m >= 0);
        let moved = moved.ok_or_else(|| Refusal::new("an operand that runs backwards"))?;
        layout.offset += moved;
        let mut shape = layout.shape.to_vec();
        shape[dim] = len;
        layout.shape = shape.into();
        let arg = after(self.arg, moved as u64 * self.dtype().size() as u64);
        Ok(Tensor { arg, ..self.with(layout) })
    }
}

/// The address so many bytes after another.
pub(super) fn after(arg: LoweredArg, more: u64) -> LoweredArg {
    match arg {
        LoweredArg::Read { operand, bytes } => LoweredArg::Read { operand, bytes: bytes + more },
        LoweredArg::Write { operand, bytes } => LoweredArg::Write { operand, bytes: bytes + more },
        LoweredArg::Scratch { bytes } => LoweredArg::Scratch { bytes: bytes + more },
        LoweredArg::Constant { bytes } => LoweredArg::Constant { bytes: bytes + more },
        other => other,
    }
}

/// The bytes from one address to another of the same memory, or 0 for equal numbers.
fn apart(a: LoweredArg, b: LoweredArg) -> Option<i64> {
    use LoweredArg::{Constant, Read, Scratch, Write};
    match (a, b) {
        (Read { operand: i, bytes: a }, Read { operand: j, bytes: b })
        | (Write { operand: i, bytes: a }, Write { operand: j, bytes: b }) => {
            (i == j).then_some(b as i64 - a as i64)
        }
        (Scratch { bytes: a }, Scratch { bytes: b }) | (Constant { bytes: a }, Constant { bytes: b }) => {
            Some(b as i64 - a as i64)
        }
        _ => (a == b).then_some(0),
    }
}

/// The address so many bytes on, or back.
fn moved(arg: LoweredArg, by: i64) -> LoweredArg {
    let on = |bytes: u64| bytes.wrapping_add_signed(by);
    match arg {
        LoweredArg::Read { operand, bytes } => LoweredArg::Read { operand, bytes: on(bytes) },
        LoweredArg::Write { operand, bytes } => LoweredArg::Write { operand, bytes: on(bytes) },
        LoweredArg::Scratch { bytes } => LoweredArg::Scratch { bytes: on(bytes) },
        LoweredArg::Constant { bytes } => LoweredArg::Constant { bytes: on(bytes) },
        other => other,
    }
}

/// Launches in order, and the scratch memory that they use.
pub(super) struct Sequence<'a> {
    pub chip: &'a Chip,
    pub source: &'a Source,
    /// True if cores of both kinds can wait for each other, as of [`super::step`].
    pub together: bool,
    reads: &'a [Option<TensorView>],
    writes: &'a [TensorView],
    pub lowered: Lowered,
    /// End of the scratch memory that is taken.
    taken: u64,
}

impl<'a> Sequence<'a> {
    pub fn new(chip: &'a Chip, source: &'a Source) -> Sequence<'a> {
        let lowered = Lowered::default();
        Sequence { chip, source, together: false, reads: &[], writes: &[], lowered, taken: 0 }
    }

    /// The same, over the operands of a step.
    pub fn of(self, reads: &'a [Option<TensorView>], writes: &'a [TensorView]) -> Sequence<'a> {
        Sequence { reads, writes, ..self }
    }

    /// An input of the step.
    pub fn input(&self, i: usize) -> Result<Tensor, Refusal> {
        self.optional(i).ok_or_else(|| Refusal(format!("input {i} is missing")))
    }

    /// An input that may be left out.
    pub fn optional(&self, i: usize) -> Option<Tensor> {
        self.reads.get(i).and_then(Option::as_ref).map(|view| Tensor::read(i, view))
    }

    /// An output of the step.
    pub fn output(&self, i: usize) -> Result<Tensor, Refusal> {
        let view = self.writes.get(i).ok_or_else(|| Refusal(format!("there is no output {i}")))?;
        Ok(Tensor::write(i, view))
    }

    /// All outputs of the step.
    pub fn outputs(&self) -> Vec<Tensor> {
        self.writes.iter().enumerate().map(|(i, view)| Tensor::write(i, view)).collect()
    }

    /// A contiguous tensor in scratch memory. It is live until [`Sequence::release`].
    pub fn scratch(&mut self, dtype: DType, shape: &[usize]) -> Result<Tensor, Refusal> {
        let shape = Shape::new(shape);
        let bytes = shape.checked_numel().and_then(|n| n.checked_mul(dtype.size()));
        let ends = bytes.and_then(|bytes| {
            let start = self.taken.checked_next_multiple_of(ALIGN)?;
            let end = start.checked_add(bytes as u64)?.checked_next_multiple_of(ALIGN)?.checked_add(ALIGN)?;
            Some((start, end))
        });
        let (start, end) = ends
            .filter(|&(_, end)| end <= i64::MAX as u64)
            .ok_or_else(|| Refusal::new(format!("scratch memory for {shape} does not exist")))?;
        self.taken = end;
        self.lowered.scratch = self.lowered.scratch.max(end);
        let place = Place { segment: SegmentId(u32::MAX), offset: start as usize };
        let view = TensorView { place, dtype, layout: Layout::contiguous(&shape) };
        Ok(Tensor { arg: LoweredArg::Scratch { bytes: start }, view })
    }

    /// A contiguous tensor of numbers that devices write once, when a plan is loaded.
    pub fn constant(&mut self, dtype: DType, shape: &[usize], bytes: &[u8]) -> Tensor {
        let all = &mut self.lowered.constants;
        let start = all.len().next_multiple_of(ALIGN as usize);
        all.resize(start, 0);
        all.extend(bytes);
        let place = Place { segment: SegmentId(u32::MAX), offset: 0 };
        let view = TensorView { place, dtype, layout: Layout::contiguous(&shape.into()) };
        Tensor { arg: LoweredArg::Constant { bytes: start as u64 }, view }
    }

    /// A mark to go back to.
    pub fn mark(&self) -> u64 {
        self.taken
    }

    /// Gives back scratch memory that was taken since a mark: later launches may overwrite it.
    pub fn release(&mut self, mark: u64) {
        self.taken = mark;
    }

    /// Runs a row program.
    pub fn rows(
        &mut self,
        program: &RowProgram,
        reads: &[&Tensor],
        writes: &[&Tensor],
    ) -> Result<(), Refusal> {
        let views = |tensors: &[&'_ Tensor]| tensors.iter().map(|t| t.view.clone()).collect::<Vec<_>>();
        let (read_views, write_views) = (views(reads), views(writes));
        let (r, w): (Vec<&TensorView>, Vec<&TensorView>) =
            (read_views.iter().collect(), write_views.iter().collect());
        let made = rows(self.chip, program, &r, &w, self.source)?;
        let inner = self.taken.next_multiple_of(ALIGN);
        for mut launch in made.launches {
            for arg in &mut launch.args {
                *arg = match *arg {
                    LoweredArg::Read { operand, bytes } => after(reads[operand].arg, bytes),
                    LoweredArg::Write { operand, bytes } => after(writes[operand].arg, bytes),
                    LoweredArg::Scratch { bytes } => LoweredArg::Scratch { bytes: inner + bytes },
                    other => other,
                };
            }
            self.lowered.launches.push(launch);
        }
        if made.scratch > 0 {
            self.lowered.scratch = self.lowered.scratch.max(inner + made.scratch + ALIGN);
        }
        Ok(())
    }

    /// Uniform numbers of a stream from a block of four on, into contiguous f32 of any number.
    pub fn uniform(&mut self, key: &Tensor, stream: u32, block: u64, to: &Tensor) -> Result<(), Refusal> {
        let numbers = to.shape().numel() as u64;
        let program = Arc::new(attributed(philox_uniform(self.chip.arch, numbers)?, self.source));
        let first = i64::try_from(block).map_err(|_| Refusal::new("random numbers beyond a stream"))?;
        let args = vec![key.arg, to.arg, LoweredArg::Int(stream.into()), LoweredArg::Int(first)];
        let blocks = uniform_blocks(numbers).min(self.chip.vector_cores);
        self.lowered.launches.push(LoweredLaunch { program, args, blocks });
        Ok(())
    }

    /// Repeats the launches from `second` on, so many times. Each time the arguments' offsets advance by as
    /// much as they do from the launches between `first` and `second`.
    ///
    /// # Errors
    /// Launches that differ in more than their arguments.
    pub fn repeat(&mut self, first: usize, second: usize, times: usize) -> Result<(), Refusal> {
        if times == 0 {
            return Ok(());
        }
        let (before, own) = self.lowered.launches[first..].split_at(second - first);
        // Names distinguish layouts, and so the offsets of operands.
        let alike = |(a, b): (&LoweredLaunch, &LoweredLaunch)| {
            let named = Program { name: a.program.name.clone(), ..(*b.program).clone() };
            *a.program == named && a.blocks == b.blocks
        };
        if before.len() != own.len() || !before.iter().zip(own).all(alike) {
            return Err(Refusal::new("steps that are no repetition"));
        }
        let mut last: Vec<(LoweredLaunch, Vec<i64>)> = Vec::new();
        for (a, b) in before.iter().zip(own) {
            let steps = a.args.iter().zip(&b.args).map(|(a, b)| apart(*a, *b)).collect::<Option<Vec<i64>>>();
            let steps = steps.ok_or_else(|| Refusal::new("steps that are no repetition"))?;
            last.push((b.clone(), steps));
        }
        for _ in 0..times {
            for (launch, steps) in &mut last {
                for (arg, step) in launch.args.iter_mut().zip(steps) {
                    *arg = moved(*arg, *step);
                }
                self.lowered.launches.push(launch.clone());
            }
        }
        Ok(())
    }

    /// Copies a tensor to one of the same shape, rounded to its dtype.
    pub fn copy(&mut self, from: &Tensor, to: &Tensor) -> Result<(), Refusal> {
        self.rows(&RowProgram::copy(from.dtype(), to.dtype(), to.shape()), &[from], &[to])
    }

    /// Writes one number everywhere.
    pub fn fill(&mut self, to: &Tensor, value: f64) -> Result<(), Refusal> {
        let program = RowProgram::pointwise(&[], to.shape(), &[to.dtype()], &[Expr::Float(value)]);
        self.rows(&program, &[], &[to])
    }

    /// A contiguous copy in scratch memory.
    pub fn copied(&mut self, from: &Tensor) -> Result<Tensor, Refusal> {
        let to = self.scratch(from.dtype(), from.shape())?;
        self.copy(from, &to)?;
        Ok(to)
    }

    /// The tensor under another shape, copied into scratch memory if its strides do not allow a view.
    pub fn shaped(&mut self, from: &Tensor, shape: &[usize]) -> Result<Tensor, Refusal> {
        if let Some(same) = from.reshaped(shape) {
            return Ok(same);
        }
        let copy = self.copied(from)?;
        copy.reshaped(shape).ok_or_else(|| Refusal::new("another number of elements"))
    }
}

/// f32 sums of products that are computed sequentially.
pub(super) struct Sum<'a> {
    to: &'a Tensor,
    parts: usize,
    /// Parts so far, and their sum where there are several.
    done: usize,
    sum: Option<Tensor>,
}

impl<'a> Sum<'a> {
    /// A sum of so many parts, rounded once into `to`. Its scratch memory is taken now.
    pub fn new(s: &mut Sequence, to: &'a Tensor, parts: usize) -> Result<Sum<'a>, Refusal> {
        let sum = if parts > 1 { Some(s.scratch(DType::F32, to.shape())?) } else { None };
        Ok(Sum { to, parts, done: 0, sum })
    }

    /// Adds the product of two batches of matrices, to the first rows where it has fewer than the first
    /// product.
    pub fn add(&mut self, s: &mut Sequence, a: &Tensor, b: &Tensor) -> Result<(), Refusal> {
        self.done += 1;
        let Some(sum) = &self.sum else { return s.product(a, b, None, self.to) };
        if self.done == 1 {
            return s.product(a, b, None, sum);
        }
        let mark = s.mark();
        let dim = self.to.shape().rank() - 2;
        let mut shape = self.to.shape().to_vec();
        let all = std::mem::replace(&mut shape[dim], a.shape()[a.shape().rank() - 2]);
        let rows = shape[dim];
        let part = s.scratch(DType::F32, &shape)?;
        s.product(a, b, None, &part)?;
        let last = self.done == self.parts;
        let (own, to) = (sum.part(dim, 0, rows)?, if last { self.to } else { sum }.part(dim, 0, rows)?);
        let inputs = [(DType::F32, &shape[..]), (DType::F32, &shape[..])];
        let added = headwater_core::expr::input(0) + headwater_core::expr::input(1);
        s.rows(&RowProgram::pointwise(&inputs, &shape, &[to.dtype()], &[added]), &[&own, &part], &[&to])?;
        if last && rows < all {
            s.copy(&sum.part(dim, rows, all - rows)?, &self.to.part(dim, rows, all - rows)?)?;
        }
        s.release(mark);
        Ok(())
    }
}
