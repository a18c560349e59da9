//! Root-mean-square normalisation as Hugging Face's models spell it: `to` f32, `pow` 2, `mean`, `add` eps,
//! `rsqrt`, `mul`, `to`, `mul`. It is found with and without the conversions and the weight, factors in
//! either order.

use super::{Exactness, Replacement, Sought};
use crate::attr::{Attr, Attrs};
use crate::dtype::DType;
use crate::graph::{Node, ValueId};
use crate::ops::OpCx;
use crate::ops::norm::rms_norm::RMS_NORM;
use crate::ops::pointwise::add::ADD;
use crate::ops::pointwise::mul::MUL;
use crate::ops::pointwise::pow::POW;
use crate::ops::pointwise::rsqrt::RSQRT;
use crate::ops::pointwise::square::SQUARE;
use crate::ops::pointwise::to::TO;
use crate::ops::reduce::mean::MEAN;

/// A norm that ends at some value.
struct Norm {
    /// The value that is normalised.
    x: ValueId,
    weight: Option<ValueId>,
    /// Dtype of a rounding before the weight.
    round: Option<DType>,
    eps: f64,
    /// Sizes of the dimensions normalised.
    shape: Vec<i64>,
}

/// The operator that may stand for this node, the last of a spelled-out norm.
pub(super) fn rms_norm(s: &Sought, node: &Node) -> Option<Replacement> {
    let norm = if std::ptr::eq(node.op, &MUL) {
        weighted(s, node).or_else(|| normalized(s, node))
    } else if std::ptr::eq(node.op, &TO) {
        converted(s, node)
    } else {
        None
    }?;
    let mut attrs = Attrs::new().with("normalized_shape", norm.shape).with("eps", norm.eps);
    if let Some(dtype) = norm.round {
        attrs.set("round", dtype);
    }
    let mut inputs = vec![Some(norm.x), norm.weight];
    while inputs.last() == Some(&None) {
        inputs.pop();
    }
    Some(Replacement { op: &RMS_NORM, inputs, attrs, exactness: Exactness::SameAccumulator })
}

/// The norm that a value is, through conversions that change nothing; it must be used nowhere else.
fn norm(s: &Sought, v: ValueId) -> Option<Norm> {
    if !s.once(v) {
        return None;
    }
    let (node, at) = s.graph.producer(v)?;
    let op = |op| at == 0 && std::ptr::eq(node.op, op);
    if op(&TO) {
        converted(s, node)
    } else if op(&RMS_NORM) {
        // The find at an earlier node.
        let cx = s.graph.cx(node);
        Some(Norm {
            x: (*node.inputs.first()?)?,
            weight: node.inputs.get(1).copied().flatten(),
            round: cx.opt_dtype("round").ok()?,
            eps: cx.opt_float("eps").ok()??,
            shape: cx.ints("normalized_shape").ok()?.to_vec(),
        })
    } else {
        None
    }
}

/// `mul(norm, weight)`, in either order.
fn weighted(s: &Sought, node: &Node) -> Option<Norm> {
    let [a, b] = Sought::pair(node)?;
    let out = s.graph.ty(node.outputs[0]);
    [(a, b), (b, a)].into_iter().find_map(|(v, w)| {
        let n = norm(s, v).filter(|n| n.weight.is_none())?;
        let (made, weight) = (s.graph.ty(v), s.graph.ty(w));
        let fits = weight.shape.iter().map(|&d| d as i64).eq(n.shape.iter().copied());
        if !fits || !weight.dtype.is_float() || out != made {
            return None;
        }
        // A conversion before the weight has rounded; that of the operator comes after it.
        let x = s.graph.ty(n.x).dtype;
        let round = (made.dtype == x && x.size() < DType::F32.size()).then_some(x);
        (made.dtype == x).then_some(Norm { weight: Some(w), round, ..n })
    })
}

/// `to(norm, dtype)`: of no effect, or back to the dtype that was widened before.
fn converted(s: &Sought, node: &Node) -> Option<Norm> {
    let v = Sought::single(node)?;
    let n = norm(s, v)?;
    let (from, to) = (s.graph.ty(v).dtype, s.graph.ty(node.outputs[0]).dtype);
    if from == to {
        return Some(n);
    }
    let narrow = widened(s, n.x)?;
    (s.graph.ty(narrow).dtype == to && n.round.is_none()).then_some(Norm { x: narrow, ..n })
}

/// The value of a narrower dtype that `x` is the exact conversion of.
fn widened(s: &Sought, x: ValueId) -> Option<ValueId> {
    let from = Sought::single(s.maker(x, &TO)?)?;
    let (narrow, wide) = (s.graph.ty(from).dtype, s.graph.ty(x).dtype);
    (matches!(narrow, DType::F16 | DType::BF16) && wide == DType::F32).then_some(from)
}

/// `mul(x, rsqrt(mean(x²) + eps))`, in either order, over the last dimensions.
fn normalized(s: &Sought, node: &Node) -> Option<Norm> {
    let [a, b] = Sought::pair(node)?;
    [(a, b), (b, a)].into_iter().find_map(|(x, rstd)| {
        let ty = s.graph.ty(x);
        if !matches!(ty.dtype, DType::F32 | DType::F64) || ty != s.graph.ty(node.outputs[0]) {
            return None;
        }
        let sum = s.maker(Sought::single(s.maker(rstd, &RSQRT)?)?, &ADD)?;
        let cx = s.graph.cx(sum);
        let eps = cx.opt_float("other").ok()??;
        if cx.opt_float("alpha").ok()?.unwrap_or(1.0) != 1.0 {
            return None;
        }
        let mean = s.maker(Sought::single(sum)?, &MEAN)?;
        let first = trailing(&s.graph.cx(mean), ty.shape.rank())?;
        let square = Sought::single(mean)?;
        if squared(s, square)? != x
            || s.graph.ty(square) != ty
            || s.graph.ty(mean.outputs[0]).dtype != ty.dtype
        {
            return None;
        }
        let shape = ty.shape[first..].iter().map(|&d| d as i64).collect();
        // A conversion to the dtype that it has already is none.
        let mut x = x;
        while let Some(from) = s.maker(x, &TO).and_then(Sought::single).filter(|&v| s.graph.ty(v) == ty) {
            x = from;
        }
        Some(Norm { x, weight: None, round: None, eps, shape })
    })
}

/// First of the dimensions a mean is over, if they are the last ones and are kept.
fn trailing(cx: &OpCx, rank: usize) -> Option<usize> {
    let mut dims = cx.dims("dim", rank).ok()?;
    dims.sort_unstable();
    let first = *dims.first()?;
    (cx.flag("keepdim").ok()? && dims.into_iter().eq(first..rank)).then_some(first)
}

/// The value whose square a value is.
fn squared(s: &Sought, v: ValueId) -> Option<ValueId> {
    let (node, _) = s.graph.producer(v)?;
    if std::ptr::eq(node.op, &SQUARE) {
        return Sought::single(node);
    }
    if std::ptr::eq(node.op, &MUL) {
        return Sought::pair(node).filter(|[a, b]| a == b).map(|[a, _]| a);
    }
    let two = matches!(node.attrs.get("exponent"), Some(Attr::Int(2)) | Some(Attr::Float(2.0)));
    (std::ptr::eq(node.op, &POW) && two).then(|| Sought::single(node)).flatten()
}
