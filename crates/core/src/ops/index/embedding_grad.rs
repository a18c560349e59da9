//! Gradient of an embedding by its table: `out[v] = Σ grad[i]` over the positions `i` with `indices[i] = v`.
//! ATen's own operator; one with every policy spelled out; and the rows that are read alone, without the
//! table around them.

use super::{given, integers, resolve};
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, Sample};
use crate::shape::Shape;
use crate::tensor::{Tensor, TensorType};
use crate::{ensure, fail};
use std::collections::BTreeMap;
use std::ops::Range;

/// Gradient of [`EMBEDDING`](super::embedding::EMBEDDING) by its table: `(grad_output [..., width], indices)`
/// to `[num_weights, width]`. Sums in f32 or wider, in the order of the indices, rounded once. `grad_output`
/// has a row for each index, in the same order; the leading dimensions may be divided otherwise, as in
/// PyTorch.
pub static EMBEDDING_DENSE_BACKWARD: OpDef = OpDef {
    name: "embedding_dense_backward",
    schemas: &[
        "embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, bool scale_grad_by_freq) -> Tensor",
    ],
    infer: |cx| {
        let (width, _, options) = problem(cx)?;
        Ok(vec![TensorType::new(cx.dtype(0)?, [options.num_weights, width])])
    },
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Kernel(|cx, inputs, outs| Ok(dense(cx, inputs, outs)?.drain(..1).collect())),
    cases: || {
        let case = |name| Case::new(name).f(&[2, 3, 2]).index(&[2, 3], 4).attr("num_weights", 4);
        vec![
            case("plain").attr("padding_idx", -1).attr("scale_grad_by_freq", false),
            case("padding").attr("padding_idx", 1).attr("scale_grad_by_freq", false),
            case("by frequency").attr("padding_idx", -1).attr("scale_grad_by_freq", true),
            Case::new("leading dimensions joined").f(&[2, 3, 2]).index(&[6], 4).attr("num_weights", 4),
            Case::new("no positions").f(&[0, 3]).index(&[0], 4).attr("num_weights", 4),
        ]
    },
};

/// [`EMBEDDING_DENSE_BACKWARD`] with every policy of [`EmbeddingGradOptions`]:
/// `(grad_output, indices, into?)` to the rows of the shard `[rows, width]` and an [`EmbeddingGradReport`] as
/// i64. With `max_norm` the norm before clipping follows, f32 (f64 for f64). With `into` (`[rows, width]`,
/// the gradient so far) the sums are added to it before the one rounding.
pub static EMBEDDING_DENSE_BACKWARD_EX: OpDef = OpDef {
    name: "embedding_dense_backward_ex",
    schemas: &[
        "headwater::embedding_dense_backward_ex(Tensor grad_output, Tensor indices, Tensor? into=None, *, SymInt num_weights, SymInt padding_idx=-1, bool scale_grad_by_freq=False, str overflow='inf', str bad_index='error', int shard=0, int shards=1, float? max_norm=None, str method='auto') -> (Tensor, Tensor, Tensor)",
    ],
    infer: |cx| {
        let (width, _, options) = problem(cx)?;
        let own = TensorType::new(cx.dtype(0)?, [options.rows().len(), width]);
        if let Some(into) = cx.opt(2) {
            ensure!(*into == own, Shape, "`into` must be {own}, got {into}");
            let clip = options.max_norm.is_some();
            ensure!(!clip, Attribute, "`max_norm` with `into`: clip the gradient when all of it is summed");
        }
        let mut outs = vec![own, EmbeddingGradReport::ty()];
        outs.extend(options.max_norm.map(|_| norm_type(outs[0].dtype)));
        Ok(outs)
    },
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Kernel(dense),
    cases: || {
        let case = |name| Case::new(name).f(&[2, 3, 2]).index(&[2, 3], 5).none().attr("num_weights", 5);
        let wild = Sample::Values(vec![4.0, -1.0, 2.0, 5.0, 4.0, -9.0]);
        let large = Sample::Values(vec![60000.0, 1.0, -60000.0, f64::INFINITY, 60000.0, f64::NAN, 0.0, 0.0]);
        let one_row = || {
            let case = Case::new("saturated").arg(DType::F64, &[4, 2], large.clone());
            case.arg(DType::I32, &[4], Sample::Values(vec![1.0, 0.0, 1.0, 2.0])).none().attr("num_weights", 3)
        };
        vec![
            case("plain"),
            case("padding by frequency").attr("padding_idx", 1).attr("scale_grad_by_freq", true),
            Case::new("skipped")
                .f(&[6, 2])
                .arg(DType::I16, &[6], wild)
                .none()
                .attr("num_weights", 5)
                .attr("bad_index", "skip"),
            one_row().attr("overflow", "saturate"),
            Case { name: "overflowing", ..one_row() },
            case("second of three shards").attr("shard", 1).attr("shards", 3),
            case("clipped").attr("max_norm", 0.5),
            case("far below the clip").attr("max_norm", 1e6).attr("shard", 1).attr("shards", 2),
            Case::new("accumulated").f(&[6, 2]).index(&[6], 5).f(&[5, 2]).attr("num_weights", 5),
            Case::new("no table").f(&[0, 2]).index(&[0], 5).none().attr("num_weights", 0),
        ]
    },
};

/// The gradient of the rows that are read, alone: `(grad_output, indices)` to `rows` i64 `[capacity]`
/// ascending, `values` `[capacity, width]`, the number of rows, and an [`EmbeddingGradReport`]. With
/// `max_norm` the norm follows. Beyond the number of rows, `rows` holds -1 and `values` zeros. `capacity`
/// (absent: as many as there can be) is the maximal number of rows; more are a `Value` error.
pub static EMBEDDING_SPARSE_BACKWARD: OpDef = OpDef {
    name: "embedding_sparse_backward",
    schemas: &[
        "headwater::embedding_sparse_backward(Tensor grad_output, Tensor indices, *, SymInt num_weights, SymInt padding_idx=-1, bool scale_grad_by_freq=False, str overflow='inf', str bad_index='error', int shard=0, int shards=1, float? max_norm=None, str method='auto', SymInt? capacity=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    ],
    infer: |cx| {
        let (width, count, options) = problem(cx)?;
        let capacity = match cx.opt_int("capacity")? {
            None => count.min(options.rows().len()),
            Some(_) => cx.size("capacity")?,
        };
        let values = TensorType::new(cx.dtype(0)?, [capacity, width]);
        ensure!(values.shape.checked_numel().is_some(), Size, "{values} is larger than memory can be");
        let (rows, number) = (TensorType::new(DType::I64, [capacity]), TensorType::new(DType::I64, []));
        let norm = options.max_norm.map(|_| norm_type(values.dtype));
        Ok([rows, values, number, EmbeddingGradReport::ty()].into_iter().chain(norm).collect())
    },
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Kernel(sparse),
    cases: || {
        let case = |name| Case::new(name).f(&[2, 3, 2]).index(&[2, 3], 9).attr("num_weights", 9);
        vec![
            case("plain"),
            case("little room").attr("capacity", 7).attr("padding_idx", 3),
            case("shard").attr("shard", 1).attr("shards", 2).attr("scale_grad_by_freq", true),
            case("clipped").attr("max_norm", 0.5),
        ]
    },
};

const NO_SECOND: Derivative = Derivative::NotDifferentiable("second derivatives are not taken");

/// The treatment of a finite sum that the result's dtype cannot hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overflow {
    /// Infinity, as IEEE 754 rounds: a loss scaler must see it.
    Inf,
    /// The largest finite number of its sign. Sums that are not finite stay as they are.
    Saturate,
}

/// The treatment of an index outside the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadIndex {
    /// The operator fails, naming position, value and limit.
    Error,
    /// Its position counts as skipped and adds nothing.
    Skip,
}

/// The method by which positions are grouped by row. Results do not depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// The fastest by measurement.
    Auto,
    /// A counter for each row of the table.
    Direct,
    /// Radix sort of (index, position).
    Radix,
    /// A hash table of the rows that are read.
    Hash,
}

impl Method {
    /// All, by their names.
    pub const NAMES: [(&'static str, Method); 4] = [
        ("auto", Method::Auto),
        ("direct", Method::Direct),
        ("radix", Method::Radix),
        ("hash", Method::Hash),
    ];

    /// Its name, as the attribute `method` takes it.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, m)| *m == self).map_or("auto", |(n, _)| n)
    }
}

/// The attributes of the three operators.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct EmbeddingGradOptions {
    /// Rows of the table.
    pub num_weights: usize,
    /// A row whose positions add nothing; negative: none.
    pub padding_idx: i64,
    /// Each row's sum is divided by the number of its positions.
    pub scale_grad_by_freq: bool,
    /// See [`Overflow`].
    pub overflow: Overflow,
    /// See [`BadIndex`].
    pub bad_index: BadIndex,
    /// Which part of the table is computed, of `shards`: see [`EmbeddingGradOptions::rows`].
    pub shard: usize,
    /// Number of parts; at least 1.
    pub shards: usize,
    /// Scales the sums of the whole table so that their 2-norm is at most this, as
    /// `torch.nn.utils.clip_grad_norm_` does: by `min(1, max_norm / (norm + 1e-6))`. A shard is scaled by the
    /// norm of all shards.
    pub max_norm: Option<f64>,
    /// See [`Method`].
    pub method: Method,
}

impl EmbeddingGradOptions {
    /// ATen's behaviour for a table of so many rows.
    pub const fn new(num_weights: usize) -> Self {
        EmbeddingGradOptions {
            num_weights,
            padding_idx: -1,
            scale_grad_by_freq: false,
            overflow: Overflow::Inf,
            bad_index: BadIndex::Error,
            shard: 0,
            shards: 1,
            max_norm: None,
            method: Method::Auto,
        }
    }

    /// From the attributes of a node; those that are absent have their defaults.
    ///
    /// # Errors
    /// `Attribute` for values outside their range.
    pub fn of(cx: &OpCx) -> Result<Self> {
        fn named<T: Copy>(cx: &OpCx, name: &str, values: &[(&str, T)]) -> Result<T> {
            let text = cx.opt_str(name)?.unwrap_or(values[0].0);
            let known: Vec<_> = values.iter().map(|v| v.0).collect();
            let found = values.iter().find(|v| v.0 == text).map(|v| v.1);
            found.ok_or_else(|| fail!(Attribute, "`{name}` is `{text}`: it may be {}", known.join(", ")))
        }
        let size = |name: &str, default| match cx.opt_int(name)? {
            None => Ok(default),
            Some(_) => cx.size(name),
        };
        let options = EmbeddingGradOptions {
            num_weights: cx.size("num_weights")?,
            padding_idx: cx.opt_int("padding_idx")?.unwrap_or(-1),
            scale_grad_by_freq: cx.flag("scale_grad_by_freq")?,
            overflow: named(cx, "overflow", &[("inf", Overflow::Inf), ("saturate", Overflow::Saturate)])?,
            bad_index: named(cx, "bad_index", &[("error", BadIndex::Error), ("skip", BadIndex::Skip)])?,
            shard: size("shard", 0)?,
            shards: size("shards", 1)?,
            max_norm: cx.opt_float("max_norm")?,
            method: named(cx, "method", &Method::NAMES)?,
        };
        options.check()?;
        Ok(options)
    }

    /// True if the values are consistent.
    ///
    /// # Errors
    /// `Attribute` if they do not.
    pub fn check(&self) -> Result<()> {
        let (k, n) = (self.shard, self.shards);
        ensure!(k < n, Attribute, "`shard` = {k} of `shards` = {n}: shards count from 0");
        let norm = self.max_norm.unwrap_or(0.0);
        ensure!(norm >= 0.0, Attribute, "`max_norm` must not be negative, got {norm}");
        Ok(())
    }

    /// The rows of the shard: `⌊k·V/n⌋..⌊(k+1)·V/n⌋`, so that every row is in exactly one.
    pub fn rows(&self) -> Range<usize> {
        let end = |k: usize| (k as u128 * self.num_weights as u128 / self.shards as u128) as usize;
        end(self.shard)..end(self.shard + 1)
    }

    /// The factor of sums that have this norm. NaN stays NaN.
    pub fn clip(&self, norm: f64) -> f64 {
        let Some(max) = self.max_norm else { return 1.0 };
        let factor = max / (norm + 1e-6);
        if factor > 1.0 { 1.0 } else { factor }
    }
}

/// Counters of what happened: the second output of the dense form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EmbeddingGradReport {
    /// Positions skipped because their index is outside the table.
    pub skipped: u64,
    /// The first of them and its index.
    pub first_skipped: Option<(u64, i64)>,
    /// Finite sums that the result's dtype cannot hold.
    pub overflowed: u64,
    /// Sums that are infinite or NaN.
    pub nonfinite: u64,
    /// Row and column of the first element of either kind, in row-major order.
    pub first: Option<(u64, u64)>,
}

impl EmbeddingGradReport {
    /// Number of counters.
    pub const LEN: usize = 7;

    /// i64 `[7]`: skipped, position of the first skipped, its index, overflowed, not finite, row and column
    /// of the first. A position, row or column is -1 where there is none.
    pub fn ty() -> TensorType {
        TensorType::new(DType::I64, [Self::LEN])
    }

    /// The counters in the order of [`EmbeddingGradReport::ty`].
    pub fn counters(&self) -> [i64; Self::LEN] {
        let (at, index) = self.first_skipped.map_or((-1, 0), |(at, i)| (at as i64, i));
        let (row, column) = self.first.map_or((-1, -1), |(r, c)| (r as i64, c as i64));
        [self.skipped as i64, at, index, self.overflowed as i64, self.nonfinite as i64, row, column]
    }
}

fn norm_type(dtype: DType) -> TensorType {
    TensorType::new(if dtype == DType::F64 { DType::F64 } else { DType::F32 }, [])
}

/// Width, number of positions and options.
fn problem(cx: &OpCx) -> Result<(usize, usize, EmbeddingGradOptions)> {
    let (g, index) = (cx.ty(0)?, cx.shape(1)?);
    integers(cx, 1)?;
    ensure!(
        g.dtype.is_float() && g.shape.rank() > 0,
        DType,
        "the gradient must be floats [..., width], got {g}"
    );
    let (lead, width) = (Shape::new(&g.shape[..g.shape.rank() - 1]), g.shape[g.shape.rank() - 1]);
    let count = index.checked_numel();
    let fits = count.is_some() && lead.checked_numel() == count;
    ensure!(fits, Shape, "gradient {g} for indices {index}: one row for each index");
    let options = EmbeddingGradOptions::of(cx)?;
    let table = Shape::new(&[options.num_weights, width]);
    ensure!(table.checked_numel().is_some(), Size, "the table {table} is larger than memory can be");
    Ok((width, count.unwrap_or(0), options))
}

/// The sums of the shard's rows that are read, in f64; what was skipped; norm of the whole table if it is
/// requested.
fn sums(
    cx: &OpCx,
    inputs: &[Option<&Tensor>],
) -> Result<(BTreeMap<usize, Vec<f64>>, EmbeddingGradReport, Option<f64>)> {
    let (width, _, options) = problem(cx)?;
    let (g, index) = (given(inputs, 0)?.floats(), given(inputs, 1)?.ints());
    let (mut sums, mut report) = (BTreeMap::<usize, (Vec<f64>, u64)>::new(), EmbeddingGradReport::default());
    for (at, &i) in index.iter().enumerate() {
        let row = match resolve(i, at, options.num_weights, false) {
            Err(e) if options.bad_index == BadIndex::Error => return Err(e),
            Err(_) => {
                report.skipped += 1;
                report.first_skipped.get_or_insert((at as u64, i));
                continue;
            }
            Ok(row) => row,
        };
        if i != options.padding_idx {
            let (sum, n) = sums.entry(row).or_insert_with(|| (vec![0.0; width], 0));
            (0..width).for_each(|d| sum[d] += g[at * width + d]);
            *n += 1;
        }
    }
    let divided = |(sum, n): (Vec<f64>, u64)| match options.scale_grad_by_freq {
        true => sum.into_iter().map(|x| x / n as f64).collect(),
        false => sum,
    };
    let mut sums: BTreeMap<usize, Vec<f64>> = sums.into_iter().map(|(row, s)| (row, divided(s))).collect();
    let norm = options.max_norm.map(|_| sums.values().flatten().map(|x| x * x).sum::<f64>().sqrt());
    if let Some(norm) = norm {
        let factor = options.clip(norm);
        sums.values_mut().flatten().for_each(|x| *x *= factor);
    }
    let own = options.rows();
    sums.retain(|row, _| own.contains(row));
    Ok((sums, report, norm))
}

/// Counts what `dtype` cannot hold of a row, and saturates it if asked to.
fn finish(row: usize, sum: &mut [f64], dtype: DType, overflow: Overflow, report: &mut EmbeddingGradReport) {
    for (column, x) in sum.iter_mut().enumerate() {
        if dtype.round(*x).is_finite() {
            continue;
        }
        report.first.get_or_insert((row as u64, column as u64));
        if !x.is_finite() {
            report.nonfinite += 1;
            continue;
        }
        report.overflowed += 1;
        if overflow == Overflow::Saturate {
            *x = dtype.max_value().copysign(*x);
        }
    }
}

fn extras(
    report: &EmbeddingGradReport,
    norm: Option<f64>,
    dtype: DType,
) -> impl Iterator<Item = Tensor> + use<> {
    let ty = norm_type(dtype);
    let norm = norm.map(|n| Tensor::float(ty.dtype, ty.shape, vec![n]));
    [Tensor::int(DType::I64, [EmbeddingGradReport::LEN], report.counters().to_vec())].into_iter().chain(norm)
}

fn dense(cx: &OpCx, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let (sums, mut report, norm) = sums(cx, inputs)?;
    let (options, ty) = (EmbeddingGradOptions::of(cx)?, &outs[0]);
    let into = inputs.get(2).copied().flatten();
    let mut out = into.map_or_else(|| vec![0.0; ty.shape.numel()], |t| t.floats().to_vec());
    for (row, sum) in sums {
        let own = &mut out[(row - options.rows().start) * sum.len()..][..sum.len()];
        own.iter_mut().zip(&sum).for_each(|(o, s)| *o += s);
        finish(row, own, ty.dtype, options.overflow, &mut report);
    }
    let out = Tensor::float(ty.dtype, ty.shape.clone(), out);
    Ok([out].into_iter().chain(extras(&report, norm, ty.dtype)).collect())
}

fn sparse(cx: &OpCx, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let (sums, mut report, norm) = sums(cx, inputs)?;
    let (options, ty, room) = (EmbeddingGradOptions::of(cx)?, &outs[1], outs[0].shape[0]);
    let found = sums.len();
    ensure!(found <= room, Value, "{found} rows are read, there is room for {room}: raise `capacity`");
    let (mut rows, mut values) = (vec![-1; room], vec![0.0; ty.shape.numel()]);
    for (at, (row, mut sum)) in sums.into_iter().enumerate() {
        finish(row, &mut sum, ty.dtype, options.overflow, &mut report);
        rows[at] = row as i64;
        values[at * sum.len()..][..sum.len()].copy_from_slice(&sum);
    }
    let (values, number) = (Tensor::float(ty.dtype, ty.shape.clone(), values), vec![found as i64]);
    let own = [Tensor::int(DType::I64, [room], rows), values, Tensor::int(DType::I64, [], number)];
    Ok(own.into_iter().chain(extras(&report, norm, ty.dtype)).collect())
}
