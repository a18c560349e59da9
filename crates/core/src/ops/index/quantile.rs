//! Quantiles.

use super::index_select::INDEX_SELECT;
use super::sort::SORT;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::{ceil::CEIL, floor::FLOOR, isnan::ISNAN, round::ROUND};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// The quantiles `q` along `dim`, or of all elements. `q` is a number, or input 1: a scalar or a vector,
/// whose dimension comes first in the result. `q · (n − 1)` is a place among the `n` elements in order.
/// Numbers between two are found by `interpolation`: `linear`, `lower`, `higher`, `nearest` or `midpoint`.
/// NaN if one of the elements is.
pub static QUANTILE: OpDef = OpDef {
    name: "quantile",
    schemas: &[
        "quantile(Tensor self, Tensor q, int? dim=None, bool keepdim=False, *, str interpolation=\"linear\") -> Tensor",
        "quantile.scalar(Tensor self, float q, int? dim=None, bool keepdim=False, *, str interpolation=\"linear\") -> Tensor",
    ],
    infer: |cx| {
        let lines = Lines::of(cx)?;
        Ok(vec![TensorType::new(cx.dtype(0)?, lines.result())])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(10),
    body: Body::Decompose(decompose),
    cases: || {
        let case =
            |name, q: f64| Case::new(name).distinct(&[2, 5]).attr("q", q).attr("interpolation", "linear");
        let several = |name, how: &'static str| {
            let q = crate::ops::Sample::Values(vec![0.0, 0.3, 1.0]);
            let case = Case::new(name).distinct(&[4, 2]).arg(DType::F64, &[3], q).constant();
            case.attr("dim", 0).attr("interpolation", how)
        };
        vec![
            case("median", 0.5).attr("dim", 1),
            case("of all, kept", 0.3).attr("keepdim", true),
            case("between", 0.4).attr("dim", -1).attr("interpolation", "midpoint"),
            several("several", "linear"),
            several("lower", "lower"),
            several("higher", "higher"),
            several("nearest", "nearest").attr("keepdim", true),
        ]
    },
};

/// The lines that quantiles are taken of.
struct Lines {
    shape: Vec<usize>,
    /// `None`: all elements are one line.
    dim: Option<usize>,
    keep: bool,
    /// Number of quantiles, if `q` is a vector.
    several: Option<usize>,
}

impl Lines {
    fn of(cx: &OpCx) -> Result<Lines> {
        let x = cx.ty(0)?;
        // As in PyTorch: low precision has no quantiles.
        ensure!(matches!(x.dtype, DType::F32 | DType::F64), DType, "quantiles are of f32 or f64, got {x}");
        let dim = cx.opt_int("dim")?.map(|_| cx.dim("dim", x.shape.rank())).transpose()?;
        let n = dim.map_or(x.shape.numel(), |d| x.shape.get(d).copied().unwrap_or(1));
        ensure!(n > 0, Shape, "no quantiles of nothing in {x}");
        let several = match cx.opt(1) {
            None => {
                let q = cx.float("q")?;
                ensure!((0.0..=1.0).contains(&q), Attribute, "`q` must be between 0 and 1, got {q}");
                None
            }
            Some(q) => {
                ensure!(
                    q.dtype == x.dtype && q.shape.rank() <= 1,
                    Shape,
                    "`q` is a scalar or a vector of {}, got {q}",
                    x.dtype
                );
                q.shape.first().copied()
            }
        };
        let how = cx.opt_str("interpolation")?.unwrap_or("linear");
        let known = ["linear", "lower", "higher", "nearest", "midpoint"].contains(&how);
        ensure!(known, Attribute, "`interpolation` {how:?} is not known");
        let lines = Lines { shape: x.shape.to_vec(), dim, keep: cx.flag("keepdim")?, several };
        ensure!(
            lines.result().checked_numel().is_some(),
            Size,
            "the quantiles are larger than memory can be"
        );
        Ok(lines)
    }

    /// Shape without the dimension, or with 1 in its place.
    fn reduced(&self) -> Vec<usize> {
        let kept = |d: usize| self.dim.is_some_and(|dim| dim != d);
        let dims = (0..self.shape.len()).filter(|&d| self.keep || kept(d));
        dims.map(|d| if kept(d) { self.shape[d] } else { 1 }).collect()
    }

    fn result(&self) -> Shape {
        self.several.into_iter().chain(self.reduced()).collect()
    }
}

fn decompose(b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]) -> Result<Vec<ValueId>> {
    let lines = Lines::of(cx)?;
    let (mut x, dtype) = (required(inputs, 0)?, cx.dtype(0)?);
    // The dimension comes last; `lead` are the others.
    let (n, lead): (usize, Vec<usize>) = match lines.dim.filter(|&d| d < lines.shape.len()) {
        None => (lines.shape.iter().product(), vec![]),
        Some(dim) => {
            let order: Vec<usize> = (0..lines.shape.len()).filter(|&d| d != dim).chain([dim]).collect();
            x = b.permute(x, &order)?;
            let lead = order[..order.len() - 1].iter().map(|&d| lines.shape[d]).collect();
            (lines.shape[dim], lead)
        }
    };
    let rows = lead.iter().product();
    let x = b.reshape(x, &[rows, n])?;
    let sorted = b.one(&SORT, &[x], Attrs::new().with("dim", -1).with("descending", false))?;
    let k = lines.several.unwrap_or(1);
    let q = match inputs.get(1).copied().flatten() {
        Some(q) => b.reshape(q, &[k])?,
        None => b.full(&TensorType::new(dtype, [1]), cx.float("q")?)?,
    };
    let place = b.scale(q, (n - 1) as f64)?;
    let (low, high) = (b.call(&FLOOR, &[place])?, b.call(&CEIL, &[place])?);
    let at = |b: &mut Builder, place: ValueId| {
        let index = b.cast(place, DType::I64)?;
        b.one(&INDEX_SELECT, &[sorted, index], Attrs::new().with("dim", 1))
    };
    let y = match cx.opt_str("interpolation")?.unwrap_or("linear") {
        "lower" => at(b, low)?,
        "higher" => at(b, high)?,
        "nearest" => {
            let nearest = b.call(&ROUND, &[place])?;
            at(b, nearest)?
        }
        how => {
            let (from, to) = (at(b, low)?, at(b, high)?);
            let rise = b.sub(to, from)?;
            let part = match how {
                "midpoint" => b.scale(rise, 0.5)?,
                _ => {
                    let weight = b.sub(place, low)?;
                    b.mul(rise, weight)?
                }
            };
            b.add(from, part)?
        }
    };
    // NaN is last in order.
    let last = b.slice(sorted, 1, n - 1, n)?;
    let nan = b.call(&ISNAN, &[last])?;
    let y = b.choose(nan, last, y)?;
    let y = b.transpose(y, 0, 1)?;
    ensure!(b.ty(y).shape[..] == [k, rows], Graph, "the quantiles are {}", b.ty(y));
    Ok(vec![b.reshape(y, &lines.result())?])
}
