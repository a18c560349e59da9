//! Gradient of an embedding by its table: dense, added to a gradient, or the rows that are read alone. The
//! core's `ops::index::embedding_grad` says what is computed; this says how, as the kernels of its operators
//! and as [`EmbeddingGrad`] for direct calls.
//!
//! Indices are checked and positions grouped by row (`index`). Then the rows of each segment are summed and
//! every row of the result is written once (`sum`, `vector`). There is no atomic addition anywhere. The order
//! of summation is that of the positions, and the result is the same for every method and number of threads.
//!
//! Error: a sum of `n` rows differs from the exact one by at most `γ(m) Σ|grad|`, `γ(m) = m·u / (1 - m·u)`.
//! There `u` is the unit roundoff of f32 (f64 for f64), `m = n` up to 256 positions and `m = 256 + ⌈n/256⌉`
//! beyond. See Higham, Accuracy and Stability of Numerical Algorithms, section 4.2. Division and scaling add
//! one each, the dtype of the result one rounding of its own.

mod index;
mod operand;
mod sum;
mod vector;

pub use index::Choice;
pub use operand::{Strided, StridedIndices};
pub use vector::{Summed, Table};

use super::grid::{GRAIN, small_rank};
use super::{Args, Kernel, Site};
use crate::element::Float;
use crate::float_dtype;
use crate::pool::{Pool, Shared};
use crate::tier::Tier;
use crate::view::ViewMut;
use headwater_core::diagnostic::Result;
use headwater_core::ops::OpDef;
use headwater_core::ops::index::embedding_grad::{
    EMBEDDING_DENSE_BACKWARD, EMBEDDING_DENSE_BACKWARD_EX, EMBEDDING_SPARSE_BACKWARD, EmbeddingGradOptions,
    EmbeddingGradReport, Overflow,
};
use headwater_core::target::Port;
use headwater_core::{DType, ensure, fail};
use sum::{Out, Sums};
use vector::Finish;

/// The family.
pub static KERNELS: &[Kernel] = &[
    kernel(&EMBEDDING_DENSE_BACKWARD),
    kernel(&EMBEDDING_DENSE_BACKWARD_EX),
    Kernel {
        prepare: |site| {
            let job = EmbeddingGrad::at(site)?;
            Ok(Box::new(move |args| float_dtype!(args.writes[1].dtype(), T => job.run_sparse::<T>(args))))
        },
        ..kernel(&EMBEDDING_SPARSE_BACKWARD)
    },
];

const fn kernel(op: &'static OpDef) -> Kernel {
    Kernel {
        op,
        takes: |site| small_rank(site) && EmbeddingGrad::at(site).is_ok(),
        workspace: |site| EmbeddingGrad::at(site).map_or(0, |job| job.workspace_size()),
        strided: |port| matches!(port, Port::Read(0 | 1)),
        prepare: |site| {
            let job = EmbeddingGrad::at(site)?;
            Ok(Box::new(move |args| float_dtype!(args.writes[0].dtype(), T => job.run_dense::<T>(args))))
        },
    }
}

/// Results of at least so many bytes use non-temporal stores: they would not stay there anyway.
const STREAM: usize = 8 << 20;

/// The gradient of an embedding of a known size, ready to be computed any number of times.
#[derive(Clone, Debug)]
pub struct EmbeddingGrad {
    options: EmbeddingGradOptions,
    positions: usize,
    width: usize,
    /// Sums are of f64.
    double: bool,
    tier: Tier,
    stream: Option<bool>,
}

/// Findings of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The counters.
    pub report: EmbeddingGradReport,
    /// 2-norm of all sums before clipping, if there was a `max_norm`.
    pub norm: Option<f64>,
    /// Rows of the shard that are read.
    pub found: usize,
    /// The method by which positions were grouped.
    pub choice: Choice,
}

impl EmbeddingGrad {
    /// For `positions` rows of gradient of `width` elements of `dtype`.
    ///
    /// # Errors
    /// `DType` if they are not floats, `Unsupported` for more than 2³² - 1 positions or rows of the table.
    /// `Attribute` for options that exclude each other, `Device` if `HEADWATER_TIER` cannot be had.
    pub fn new(options: EmbeddingGradOptions, dtype: DType, positions: usize, width: usize) -> Result<Self> {
        options.check()?;
        ensure!(dtype.is_float(), DType, "gradients are floats, not {dtype}");
        let most = positions.max(options.num_weights);
        ensure!(u32::try_from(most).is_ok(), Unsupported, "{most} positions or rows, at most {}", u32::MAX);
        let (double, tier) = (dtype == DType::F64, Tier::current()?);
        Ok(EmbeddingGrad { options, positions, width, double, tier, stream: None })
    }

    /// The same with the instructions of a tier.
    ///
    /// # Errors
    /// `Device` if this processor has no such instructions.
    pub fn with_tier(self, tier: Tier) -> Result<Self> {
        ensure!(tier <= Tier::detect(), Device, "this processor has no {}", tier.name());
        Ok(EmbeddingGrad { tier, ..self })
    }

    /// The same, with or without non-temporal stores of the results, whatever their size.
    pub fn streaming(self, stream: bool) -> Self {
        EmbeddingGrad { stream: Some(stream), ..self }
    }

    fn at(site: &Site) -> Result<Self> {
        let grad = site.cx.ty(0)?;
        let width = grad.shape.last().copied().ok_or_else(|| fail!(Shape, "rows have a dimension"))?;
        Self::new(EmbeddingGradOptions::of(&site.cx)?, grad.dtype, site.cx.shape(1)?.numel(), width)
    }

    /// The options.
    pub fn options(&self) -> &EmbeddingGradOptions {
        &self.options
    }

    /// Bytes of each part of the workspace: keys, order, rows, starts, sort buffers, long segments, their
    /// chunks' sums, blocks' norms.
    fn areas(&self) -> [usize; 8] {
        let (n, v) = (self.positions, self.options.num_weights);
        let few = 4 * (index::most(n, v) + 1);
        let sort = 8 * index::scratch(self.options.method, n, v);
        let (size, blocks) = match self.double {
            true => (8, sum::most_blocks::<f64>(n, index::most(n, v), self.width)),
            false => (4, sum::most_blocks::<f32>(n, index::most(n, v), self.width)),
        };
        let partial = size * sum::most_chunks(n) * self.width;
        let norms = if self.options.max_norm.is_some() { 8 * blocks } else { 0 };
        [4 * n, 4 * n, few, few, sort, 8 * sum::most_long(n), partial, norms]
    }

    /// Bytes of workspace, exact. No other memory is used.
    pub fn workspace_size(&self) -> usize {
        self.areas().into_iter().map(|bytes| bytes.next_multiple_of(64)).sum()
    }

    /// The gradient of the shard's rows, `out` `[rows, width]`.
    ///
    /// # Errors
    /// `Value` for an index outside the table, unless such are skipped; `Shape` for operands of other sizes.
    /// `Device` for a workspace that is too small or not aligned to 64 bytes.
    pub fn dense<T: Summed>(
        &self,
        pool: &Pool,
        grad: &Strided<T>,
        indices: &StridedIndices,
        out: &mut [T],
        workspace: &mut [u8],
    ) -> Result<Outcome> {
        let out = self.table(out)?;
        // SAFETY: `out` is the shard's rows.
        unsafe { self.run(pool, grad, indices, out, None, workspace) }
    }

    /// Adds the gradient to `out` `[rows, width]`, touching only rows that are read. Each element is rounded
    /// once.
    ///
    /// # Errors
    /// As [`EmbeddingGrad::dense`]; `Attribute` with `max_norm`, which needs all that is summed.
    pub fn accumulate<T: Summed>(
        &self,
        pool: &Pool,
        grad: &Strided<T>,
        indices: &StridedIndices,
        out: &mut [T],
        workspace: &mut [u8],
    ) -> Result<Outcome> {
        ensure!(self.options.max_norm.is_none(), Attribute, "`max_norm` while accumulating");
        let out = self.table(out)?;
        // SAFETY: `out` is the shard's rows.
        unsafe { self.run(pool, grad, indices, Out { into: out.ptr, ..out }, None, workspace) }
    }

    /// The rows of the shard that are read, ascending, and their sums, in the first elements of `rows` and
    /// `values` `[.., width]`. They are as many as [`Outcome::found`] says. The rest is left as it was.
    ///
    /// # Errors
    /// As [`EmbeddingGrad::dense`]; `Value` if more rows are read than the result can hold.
    pub fn sparse<T: Summed>(
        &self,
        pool: &Pool,
        grad: &Strided<T>,
        indices: &StridedIndices,
        rows: &mut [i64],
        values: &mut [T],
        workspace: &mut [u8],
    ) -> Result<Outcome> {
        let fits = rows.len().checked_mul(self.width) == Some(values.len());
        ensure!(fits, Shape, "{} values for {} rows of {}", values.len(), rows.len(), self.width);
        let out = Out { packed: true, ..self.place(values) };
        // SAFETY: `values` has `rows.len()` rows, and no more are written.
        unsafe { self.run(pool, grad, indices, out, Some(rows), workspace) }
    }

    /// The shard's rows, to be written to `out`.
    fn place<T>(&self, out: &mut [T]) -> Out<T> {
        let rows = self.options.rows();
        let (ptr, into) = (Shared(out.as_mut_ptr()), Shared(std::ptr::null_mut()));
        Out { first: rows.start, count: rows.len(), packed: false, ptr, into }
    }

    /// The same, if `out` has as many.
    fn table<T>(&self, out: &mut [T]) -> Result<Out<T>> {
        let rows = self.options.rows().len();
        let fits = rows.checked_mul(self.width) == Some(out.len());
        ensure!(fits, Shape, "a result of {} elements for {rows} rows of {}", out.len(), self.width);
        Ok(self.place(out))
    }

    /// # Safety
    /// `out` has as many rows as it says; packed, as many as `ids`.
    unsafe fn run<T: Summed>(
        &self,
        pool: &Pool,
        grad: &Strided<T>,
        indices: &StridedIndices,
        out: Out<T>,
        ids: Option<&mut [i64]>,
        workspace: &mut [u8],
    ) -> Result<Outcome> {
        let (n, width) = (self.positions, self.width);
        let sizes = (grad.positions(), indices.positions(), grad.width());
        ensure!(
            sizes == (n, n, width),
            Shape,
            "{} rows of {} for {} indices, not {n} of {width}",
            sizes.0,
            sizes.2,
            sizes.1
        );
        ensure!(self.double == T::holds(DType::F64), DType, "gradients of another type than said");
        let (needs, has) = (self.workspace_size(), workspace.len());
        ensure!(has >= needs, Device, "a workspace of {has} bytes, {needs} are needed");
        let aligned = needs == 0 || workspace.as_ptr().align_offset(64) == 0;
        ensure!(aligned, Device, "the workspace is not aligned to 64 bytes");

        let mut rest = workspace;
        let [keys, order, rows, starts, scratch, long, partial, norms] = self.areas().map(|bytes| {
            let (own, others) = std::mem::take(&mut rest).split_at_mut(bytes.next_multiple_of(64));
            rest = others;
            &mut own[..bytes]
        });
        let room = index::Room {
            keys: bytemuck::cast_slice_mut(keys),
            order: bytemuck::cast_slice_mut(order),
            rows: bytemuck::cast_slice_mut(rows),
            starts: bytemuck::cast_slice_mut(starts),
            scratch: bytemuck::cast_slice_mut(scratch),
        };
        let (long, partial): (&mut [[u32; 2]], &mut [T::Wide]) =
            (bytemuck::cast_slice_mut(long), bytemuck::cast_slice_mut(partial));

        let (segments, mut report, choice) = index::bring_together(pool, indices, &self.options, room)?;
        let (own, wide) = T::loops(self.tier);
        let found = sum::chunks(pool, own.0, grad, segments, long, partial);
        let sums = Sums {
            pool,
            loops: own.0,
            wide: wide.0,
            grad,
            segments,
            long: &long[..found],
            partial,
            by_frequency: self.options.scale_grad_by_freq,
        };
        if let Some(ids) = ids {
            let read = &segments.rows[sums.within(out.first, out.count)];
            let (found, room) = (read.len(), ids.len());
            ensure!(
                found <= room,
                Value,
                "{found} rows are read, there is room for {room}: raise `capacity`"
            );
            ids.iter_mut().zip(read).for_each(|(id, &row)| *id = row as i64);
        }
        let norm = self.options.max_norm.map(|_| sums.norm(bytemuck::cast_slice_mut(norms)));
        let factor = norm.map(|n| self.options.clip(n)).filter(|&f| f != 1.0);
        let rows = if out.packed { segments.rows.len() } else { out.count };
        let how = Finish {
            divisor: None,
            factor: factor.map(T::Wide::from_f64),
            saturate: self.options.overflow == Overflow::Saturate,
            stream: self.stream.unwrap_or(rows * width * size_of::<T>() >= STREAM),
        };
        let found = sums.write(out, how, &mut report);
        Ok(Outcome { report, norm, found, choice })
    }

    /// As a step of a plan: to the table, the counters, and the norm, as far as they are outputs.
    fn run_dense<T: Summed>(&self, args: &mut Args) -> Result<()> {
        let (grad, indices) =
            (Strided::<T>::of_view(args.read(0)?, true), StridedIndices::of_view(args.read(1)?)?);
        let into = args.opt(2).map_or(std::ptr::null(), |v| v.slice::<T>().as_ptr());
        let out = Out { into: Shared(into.cast_mut()), ..self.table(args.writes[0].slice_mut::<T>())? };
        // SAFETY: `out` is the shard's rows, and `into`, which is only read then, has the same type by the
        // operator's rule.
        let outcome = unsafe { self.run(args.pool, &grad, &indices, out, None, args.workspace) }?;
        tell(&outcome, &mut args.writes[1..]);
        Ok(())
    }

    /// As a step of a plan: to rows, values, their number, the counters, and the norm.
    fn run_sparse<T: Summed>(&self, args: &mut Args) -> Result<()> {
        let (grad, indices) =
            (Strided::<T>::of_view(args.read(0)?, true), StridedIndices::of_view(args.read(1)?)?);
        let [rows, values, number, rest @ ..] = &mut *args.writes else {
            return Err(fail!(Graph, "four results are written"));
        };
        let (rows, values) = (rows.slice_mut::<i64>(), values.slice_mut::<T>());
        let outcome = self.sparse(args.pool, &grad, &indices, rows, values, args.workspace)?;
        rows[outcome.found..].fill(-1);
        args.pool
            .chunks(&mut values[outcome.found * self.width..], GRAIN, |_, rest| rest.fill(T::from_f64(0.0)));
        number.slice_mut::<i64>()[0] = outcome.found as i64;
        tell(&outcome, rest);
        Ok(())
    }
}

/// Writes the counters and the norm to the outputs that there are.
fn tell(outcome: &Outcome, outputs: &mut [ViewMut]) {
    if let Some(counters) = outputs.get_mut(0) {
        counters.slice_mut::<i64>().copy_from_slice(&outcome.report.counters());
    }
    if let (Some(norm), Some(value)) = (outputs.get_mut(1), outcome.norm) {
        match norm.dtype() {
            DType::F64 => norm.slice_mut::<f64>()[0] = value,
            _ => norm.slice_mut::<f32>()[0] = value as f32,
        }
    }
}
