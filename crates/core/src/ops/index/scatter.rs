//! Elements written along a dimension, each at its own index.

use super::gather::{GATHER, fits};
use super::{given, resolve};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::compare::EQ;
use crate::ops::pointwise::logical::LOGICAL_AND;
use crate::ops::pointwise::maximum::MAXIMUM;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::shape::{Layout, Shape};
use crate::tensor::{Data, Tensor, TensorType};
use crate::{ensure, fail};

/// `(self, index, src)`, or `(self, index)` with a number `value` as the source: `self` with
/// `self[.., index[.., i, ..], ..]` along `dim` replaced by, or combined with, `src[.., i, ..]`.
///
/// `reduce`: absent (the last in row-major order wins), `add`/`sum`, `multiply`/`prod`, `mean`, `amax`,
/// `amin`. Without `include_self` (absent: true) the old values at written places do not take part. Sums in
/// f32 or wider, in row-major order.
pub static SCATTER: OpDef = OpDef {
    name: "scatter",
    schemas: &[
        "scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor",
        "scatter.value(Tensor self, int dim, Tensor index, Scalar value) -> Tensor",
        "scatter.reduce(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> Tensor",
        "scatter.value_reduce(Tensor self, int dim, Tensor index, Scalar value, *, str reduce) -> Tensor",
        "scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=True) -> Tensor",
    ],
    infer: |cx| {
        fits(cx, 0)?;
        combine(cx)?;
        source_fits(cx)?;
        Ok(vec![cx.ty(0)?.clone()])
    },
    derivative: Derivative::Rule(gradient),
    precision: Precision::Widest,
    cost: Cost::PerOutput(1),
    body: Body::Kernel(reference),
    cases: || {
        // Each column of the index is a permutation, so that no place is written twice.
        let index = crate::ops::Sample::Values(vec![2.0, 0.0, 0.0, 1.0]);
        let unique = |name| Case::new(name).f(&[3, 2]).arg(DType::I64, &[2, 2], index.clone());
        let many = |name| Case::new(name).f(&[3, 2]).index(&[5, 2], 3).f(&[5, 2]).attr("dim", 0);
        let values = |v: &[f64]| crate::ops::Sample::Values(v.to_vec());
        let zeros = |name| {
            let case = Case::new(name).arg(DType::F64, &[4], values(&[0.0, 2.0, -1.0, 0.5]));
            let case = case.arg(DType::I64, &[6], values(&[0.0, 0.0, 1.0, 1.0, 2.0, 2.0]));
            case.arg(DType::F64, &[6], values(&[2.0, -1.5, 0.0, 3.0, 0.0, 0.0])).attr("dim", 0)
        };
        vec![
            unique("replaced").f(&[2, 2]).attr("dim", 0),
            unique("number").attr("dim", 0).attr("value", 1.5),
            many("added").attr("reduce", "add"),
            many("summed without").attr("reduce", "sum").attr("include_self", false),
            many("averaged").attr("reduce", "mean"),
            many("averaged without").attr("reduce", "mean").attr("include_self", false),
            many("largest").attr("reduce", "amax"),
            many("smallest without").attr("reduce", "amin").attr("include_self", false),
            many("multiplied").attr("reduce", "prod"),
            many("multiplied without").attr("reduce", "prod").attr("include_self", false),
            zeros("multiplied, zeros").attr("reduce", "prod"),
            Case::new("scalar").f(&[]).index(&[], 1).f(&[]).attr("dim", 0),
        ]
    },
};

/// `self` with `src[.., i, ..]` added at `[.., index[.., i, ..], ..]` along `dim`.
pub static SCATTER_ADD: OpDef = OpDef {
    name: "scatter_add",
    schemas: &["scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor"],
    infer: |cx| {
        fits(cx, 0)?;
        source_fits(cx)?;
        Ok(vec![cx.ty(0)?.clone()])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Widest,
    cost: Cost::PerOutput(1),
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        b.apply(&SCATTER, inputs, Attrs::new().with("dim", cx.int("dim")?).with("reduce", "add"))
    }),
    cases: || vec![Case::new("plain").f(&[3, 2]).index(&[5, 2], 3).f(&[5, 2]).attr("dim", 0)],
};

/// The combination of a written value with the old one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Combine {
    /// It replaces it.
    Replace,
    /// Sum.
    Sum,
    /// Product.
    Prod,
    /// Mean of all.
    Mean,
    /// Largest; NaN wins.
    Max,
    /// Smallest; NaN wins.
    Min,
}

/// The attribute `reduce`.
///
/// # Errors
/// `Attribute` if it names nothing known.
pub fn combine(cx: &OpCx) -> Result<Combine> {
    Ok(match cx.opt_str("reduce")? {
        None => Combine::Replace,
        Some("add" | "sum") => Combine::Sum,
        Some("multiply" | "prod") => Combine::Prod,
        Some("mean") => Combine::Mean,
        Some("amax") => Combine::Max,
        Some("amin") => Combine::Min,
        Some(other) => return Err(fail!(Attribute, "`reduce` is {other}")),
    })
}

/// True if old values at written places take part.
///
/// # Errors
/// `Attribute` if the attribute is no bool.
pub fn include_self(cx: &OpCx) -> Result<bool> {
    Ok(cx.attrs.get("include_self").is_none() || cx.flag("include_self")?)
}

/// PyTorch counts `self` among the equal elements though it does not take part:
/// pytorch/pytorch#168358, #169263.
pub fn departs(cx: &OpCx) -> Option<&'static str> {
    let extremum = matches!(combine(cx), Ok(Combine::Max | Combine::Min));
    (extremum && include_self(cx) == Ok(false) && cx.dtype(0).is_ok_and(DType::is_float)).then_some(
        "where an old element of `self` equals the result, PyTorch gives it a share of the gradient, though \
         `include_self=False` leaves it out, and that share is lost",
    )
}

fn source_fits(cx: &OpCx) -> Result<()> {
    let Some(src) = cx.opt(2) else {
        cx.float("value")?;
        return Ok(());
    };
    let (x, index) = (cx.ty(0)?, cx.shape(1)?);
    ensure!(src.dtype == x.dtype, DType, "{src} cannot be written into {x}");
    let fits = index.numel() == 0
        || src.shape.rank().max(1) == index.rank().max(1)
            && (0..index.rank()).all(|d| index[d] <= src.shape.get(d).copied().unwrap_or(1));
    ensure!(fits, Shape, "source {src} is smaller than the index {index}");
    Ok(())
}

/// Row-major offset in a tensor of shape `x` of each element that the index addresses along `dim`.
///
/// # Errors
/// `Value` if an index is out of range.
pub(super) fn places(cx: &OpCx, index: &Tensor, x: &Shape) -> Result<Vec<usize>> {
    let dim = cx.dim("dim", x.rank())?;
    let strides = x.strides();
    let along = strides.get(dim).map_or(1, |&s| s as usize);
    let limit = x.get(dim).copied().unwrap_or(1);
    let mut strides = strides;
    strides.resize(index.shape().rank(), 0);
    if let Some(s) = strides.get_mut(dim) {
        *s = 0;
    }
    let base = Layout { shape: index.shape().clone(), strides, offset: 0 }.offsets();
    let place =
        |(at, (&i, base)): (usize, (&i64, isize))| Ok(base as usize + resolve(i, at, limit, false)? * along);
    index.ints().iter().zip(base).enumerate().map(place).collect()
}

fn reference(cx: &OpCx, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let (x, index) = (given(inputs, 0)?, given(inputs, 1)?);
    let at = places(cx, index, x.shape())?;
    let (how, keep) = (combine(cx)?, include_self(cx)?);
    // The part of the source that the index covers.
    let source = match inputs.get(2).copied().flatten() {
        Some(src) => {
            // A scalar counts as one element along one dimension.
            let mut strides = src.shape().strides();
            strides.resize(index.shape().rank(), 1);
            let l = Layout { shape: index.shape().clone(), strides, offset: 0 };
            let from: Vec<usize> = l.offsets().into_iter().map(|o| o as usize).collect();
            Tensor { ty: TensorType::new(src.dtype(), index.shape().clone()), data: super::take(src, &from) }
        }
        None => Tensor::full(&TensorType::new(x.dtype(), index.shape().clone()), cx.float("value")?),
    };
    Ok(vec![match (&x.data, source.data) {
        (Data::Float(x), Data::Float(v)) => {
            let v = write(
                x,
                &at,
                &v,
                how,
                keep,
                |how, a, b| match how {
                    Combine::Replace => b,
                    Combine::Sum | Combine::Mean => a + b,
                    Combine::Prod => a * b,
                    Combine::Max => {
                        if a.is_nan() || a > b {
                            a
                        } else {
                            b
                        }
                    }
                    Combine::Min => {
                        if a.is_nan() || a < b {
                            a
                        } else {
                            b
                        }
                    }
                },
                |a, n| a / n as f64,
            );
            Tensor::float(outs[0].dtype, outs[0].shape.clone(), v)
        }
        (Data::Int(x), Data::Int(v)) => {
            let v = write(
                x,
                &at,
                &v,
                how,
                keep,
                |how, a, b| match how {
                    Combine::Replace => b,
                    Combine::Sum | Combine::Mean => a.wrapping_add(b),
                    Combine::Prod => a.wrapping_mul(b),
                    Combine::Max => a.max(b),
                    Combine::Min => a.min(b),
                },
                |a, n| a.div_euclid(n as i64),
            );
            Tensor::int(outs[0].dtype, outs[0].shape.clone(), v)
        }
        _ => return Err(fail!(DType, "source and destination are of two classes")),
    }])
}

/// `x` with `values` combined into places `at` sequentially.
fn write<T: Copy>(
    x: &[T],
    at: &[usize],
    values: &[T],
    how: Combine,
    include_self: bool,
    f: impl Fn(Combine, T, T) -> T,
    divide: impl Fn(T, usize) -> T,
) -> Vec<T> {
    let mut out = x.to_vec();
    let mut count = vec![include_self as usize; x.len()];
    for (&at, &v) in at.iter().zip(values) {
        out[at] = if count[at] == 0 { v } else { f(how, out[at], v) };
        count[at] += 1;
    }
    if how == Combine::Mean {
        out.iter_mut().zip(count).filter(|(_, n)| *n > 1).for_each(|(x, n)| *x = divide(*x, n));
    }
    out
}

fn gradient(cx: &mut GradCx) -> Result<()> {
    let (mut g, index) = (cx.grad(0)?, cx.x(1)?);
    let (how, keep) = (combine(&cx.args())?, include_self(&cx.args())?);
    let at = Attrs::new().with("dim", cx.args().int("dim")?);
    let gather = |cx: &mut GradCx, v: ValueId| cx.one(&GATHER, &[v, index], at.clone());
    let (ones, summed) =
        (TensorType::new(cx.ty(g).dtype, cx.ty(index).shape.clone()), at.clone().with("reduce", "sum"));
    // Which values the result consists of, where not of all.
    let (mut own_hit, mut source_hit) = (None, None);
    match how {
        Combine::Replace | Combine::Sum => {}
        Combine::Prod => return product_gradient(cx, g, index, &at, keep),
        Combine::Mean => {
            let ty = cx.ty(g).clone();
            let (start, each) = (cx.full(&ty, keep as i64 as f64)?, cx.full(&ones, 1.0)?);
            let count = cx.one(&SCATTER, &[start, index, each], summed)?;
            let none = cx.full(&ty, 1.0)?;
            let count = cx.one(&MAXIMUM, &[count, none], Attrs::new())?;
            g = cx.div(g, count)?;
        }
        Combine::Max | Combine::Min => {
            // The gradient is shared evenly among all values equal to the result.
            let (x, src, y, dtype) = (cx.x(0)?, cx.x(2)?, cx.y(0), cx.ty(g).dtype);
            let mut own = cx.one(&EQ, &[x, y], Attrs::new())?;
            if !keep {
                own = cx.one(&SCATTER, &[own, index], at.clone().with("value", false))?;
            }
            let there = gather(cx, y)?;
            let theirs = cx.one(&EQ, &[src, there], Attrs::new())?;
            let (own_count, theirs_count) = (cx.cast(own, dtype)?, cx.cast(theirs, dtype)?);
            let count = cx.one(&SCATTER, &[own_count, index, theirs_count], summed)?;
            g = cx.div(g, count)?;
            (own_hit, source_hit) = (Some(own), Some(theirs));
        }
    }
    if cx.needs(0) {
        let dx = match own_hit {
            Some(hit) => cx.keep_where(hit, g)?,
            None if how != Combine::Replace && keep => g,
            None => cx.one(&SCATTER, &[g, index], at.clone().with("value", 0.0))?,
        };
        cx.set(0, dx)?;
    }
    if cx.arity() > 2 && cx.needs(2) {
        let (src, part) = (cx.ty(cx.x(2)?).clone(), cx.ty(index).clone());
        ensure!(src.shape == part.shape, Gradient, "source {src} must have the shape of the index {part}");
        let mut ds = gather(cx, g)?;
        if let Some(hit) = source_hit {
            ds = cx.keep_where(hit, ds)?;
        }
        cx.set(2, ds)?;
    }
    Ok(())
}

/// Gradients of a scatter by products, without a division by 0: an element that is 0 counts as 1 in the
/// product of the others. Where two values of one place are 0 there is nothing to pass on.
fn product_gradient(cx: &mut GradCx, g: ValueId, index: ValueId, at: &Attrs, keep: bool) -> Result<()> {
    let (x, y) = (cx.x(0)?, cx.y(0));
    let zero = |cx: &mut GradCx, v: ValueId| cx.one(&EQ, &[v], Attrs::new().with("other", 0));
    let scattered = at.clone().with("reduce", "prod").with("include_self", keep);
    let source = match cx.opt_x(2) {
        Some(src) => src,
        None => {
            let ty = TensorType::new(cx.ty(x).dtype, cx.ty(index).shape.clone());
            let value = cx.args().float("value")?;
            cx.full(&ty, value)?
        }
    };
    let (whole, part) = (cx.ty(source).clone(), cx.ty(index).clone());
    if cx.needs(0) {
        let dx = if keep {
            let none = zero(cx, x)?;
            let scalar = TensorType::new(cx.ty(x).dtype, []);
            let one = cx.full(&scalar, 1.0)?;
            let filled = cx.choose(none, one, x)?;
            let product = cx.one(&SCATTER, &[filled, index, source], scattered.clone())?;
            let others = cx.div(product, filled)?;
            cx.mul(g, others)?
        } else {
            cx.one(&SCATTER, &[g, index], at.clone().with("value", 0.0))?
        };
        cx.set(0, dx)?;
    }
    if cx.arity() > 2 && cx.needs(2) {
        ensure!(
            whole.shape == part.shape,
            Gradient,
            "source {whole} must have the shape of the index {part}"
        );
        let none = zero(cx, source)?;
        let counted = cx.cast(none, whole.dtype)?;
        let target = TensorType::new(whole.dtype, cx.ty(x).shape.clone());
        let start = cx.full(&target, 0.0)?;
        let zeros = cx.one(&SCATTER, &[start, index, counted], at.clone().with("reduce", "sum"))?;
        let zeros = cx.one(&GATHER, &[zeros, index], at.clone())?;
        let single = cx.one(&EQ, &[zeros], Attrs::new().with("other", 1))?;
        let single = cx.call(&LOGICAL_AND, &[none, single])?;
        let one = cx.full(&TensorType::new(whole.dtype, []), 1.0)?;
        // The only 0 gets the product of the others; beside it, and without one, results are divided.
        let rest = cx.choose(single, one, source)?;
        let product = cx.one(&SCATTER, &[x, index, rest], scattered)?;
        let alone = cx.mul(g, product)?;
        let alone = cx.one(&GATHER, &[alone, index], at.clone())?;
        let result = cx.mul(g, y)?;
        let result = cx.one(&GATHER, &[result, index], at.clone())?;
        let divisor = cx.choose(none, one, source)?;
        let divided = cx.div(result, divisor)?;
        let ds = cx.choose(single, alone, divided)?;
        cx.set(2, ds)?;
    }
    Ok(())
}
