//! Attention spelled out: product of queries and keys, scale, mask added, softmax, dropout, product with the
//! values. The products are of rank four, or of three dimensions between reshapes, which is what exported
//! core graphs have.

use super::{Exactness, Replacement, Sought};
use crate::attr::Attrs;
use crate::dtype::DType;
use crate::graph::{Node, ValueId};
use crate::ops::attention::sdpa::SDPA;
use crate::ops::linear::matmul::MATMUL;
use crate::ops::norm::softmax::SOFTMAX;
use crate::ops::pointwise::add::ADD;
use crate::ops::pointwise::div::DIV;
use crate::ops::pointwise::mul::MUL;
use crate::ops::pointwise::to::TO;
use crate::ops::random::dropout::{DROPOUT, NATIVE_DROPOUT};
use crate::ops::view::clone::CLONE;
use crate::ops::{Body, OpDef};
use crate::shape::{Layout, Shape};

/// The operator that may stand for this node, the product with the values or a reshape of it. In f32 and f64
/// alone: in low precision the scores and weights are rounded, which the operator does not do.
pub(super) fn spelled(s: &Sought, node: &Node) -> Option<Replacement> {
    let last = match in_order(s, node) {
        Some(v) if s.once(v) => s.maker(v, &MATMUL)?,
        _ => Some(node).filter(|n| is(n, &MATMUL))?,
    };
    let [weights, value] = Sought::pair(last)?;
    let (weights, dropout) = dropped(s, weights)?;
    let softmax = s.maker(weights, &SOFTMAX)?;
    let scores = Sought::single(softmax)?;
    let ty = s.graph.ty(weights);
    let (rank, dim) = (ty.shape.rank() as i64, s.graph.cx(softmax).int("dim").ok()?);
    if rank < 3 || ![rank - 1, -1].contains(&dim) || s.graph.ty(scores) != ty {
        return None;
    }
    let (scores, mask) = masked(s, inside(s, scores)?)?;
    let (scores, scale) = scaled(s, scores)?;
    let [query, key] = Sought::pair(s.maker(scores, &MATMUL)?)?;
    // All as the softmax has the leading dimensions.
    let (lead, [l, keys]) =
        (&ty.shape[..ty.shape.rank() - 2], [ty.shape[rank as usize - 2], *ty.shape.last()?]);
    let shaped = |v: ValueId, last: [usize; 2]| {
        shaped(s, v, &lead.iter().copied().chain(last).collect()).filter(|&v| s.graph.ty(v).dtype == ty.dtype)
    };
    let (e, ev) = (*s.graph.ty(query).shape.last()?, *s.graph.ty(value).shape.last()?);
    let (query, value) = (shaped(query, [l, e])?, shaped(value, [keys, ev])?);
    let key = transposed(s, shaped(key, [e, keys])?)?;
    let fits = mask.is_none_or(|m| ty.shape.broadcast(&s.graph.ty(m).shape).as_ref() == Some(&ty.shape));
    let wide = matches!(ty.dtype, DType::F32 | DType::F64);
    let mut attrs = Attrs::new().with("scale", scale).with("dropout_p", dropout);
    if mask.is_some() {
        attrs = attrs.with("nan_without_keys", true);
    }
    let inputs = vec![Some(query), Some(key), Some(value), mask];
    let exactness = Exactness::Reordered;
    (fits && wide && e > 0).then_some(Replacement { op: &SDPA, inputs, attrs, exactness })
}

fn is(node: &Node, op: &'static OpDef) -> bool {
    std::ptr::eq(node.op, op)
}

/// The operand of a node whose result has the same elements in the same order, if it is such a node.
fn in_order(s: &Sought, node: &Node) -> Option<ValueId> {
    let ([Some(x)], [y]) = (&node.inputs[..], &node.outputs[..]) else { return None };
    let (from, to) = (s.graph.ty(*x), s.graph.ty(*y));
    let same = match node.op.body {
        Body::View(view) => {
            let seen = (view.layout)(&s.graph.cx(node), &Layout::contiguous(&from.shape), 0).ok()??;
            seen.offset == 0 && seen.is_contiguous() && from.shape.numel() == to.shape.numel()
        }
        _ => is(node, &CLONE) || is(node, &TO) && from == to || is(node, &DROPOUT) && rate(s, node)? == 0.0,
    };
    same.then_some(*x)
}

/// The value from which nodes start that only change shapes. Nobody else may use it on the way.
fn inside(s: &Sought, mut v: ValueId) -> Option<ValueId> {
    loop {
        if !s.once(v) {
            return None;
        }
        match s.graph.producer(v).and_then(|(n, _)| in_order(s, n)) {
            Some(x) => v = x,
            None => return Some(v),
        }
    }
}

/// Share of elements that a dropout drops.
fn rate(s: &Sought, node: &Node) -> Option<f64> {
    let cx = s.graph.cx(node);
    let active = cx.opt_int("train").ok()?.unwrap_or(1) != 0;
    Some(if active { cx.float("p").ok()? } else { 0.0 })
}

/// The weights before dropout, and its share.
fn dropped(s: &Sought, v: ValueId) -> Option<(ValueId, f64)> {
    let v = inside(s, v)?;
    let Some(node) = s.maker(v, &DROPOUT).or_else(|| s.maker(v, &NATIVE_DROPOUT)) else {
        return Some((v, 0.0));
    };
    // Users of the dropout mask need the node itself.
    let kept = node.outputs.get(1).is_none_or(|m| s.uses.get(m.0 as usize) == Some(&0));
    let x = inside(s, Sought::single(node)?)?;
    kept.then_some((x, rate(s, node)?))
}

/// Scores without the mask that is added to them.
fn masked(s: &Sought, v: ValueId) -> Option<(ValueId, Option<ValueId>)> {
    let Some(add) = s.maker(v, &ADD) else { return Some((v, None)) };
    let [a, b] = Sought::pair(add)?;
    if s.graph.cx(add).opt_float("alpha").ok()?.unwrap_or(1.0) != 1.0 {
        return None;
    }
    [(a, b), (b, a)].into_iter().find_map(|(scores, mask)| {
        let full = s.graph.ty(scores) == s.graph.ty(v) && s.graph.ty(mask).dtype == s.graph.ty(v).dtype;
        let scores = inside(s, scores).filter(|_| full)?;
        let (product, _) = scaled(s, scores)?;
        s.maker(product, &MATMUL).map(|_| (scores, Some(mask)))
    })
}

/// The product that scores are, times a number.
fn scaled(s: &Sought, v: ValueId) -> Option<(ValueId, f64)> {
    let (op, times): (_, fn(f64) -> f64) = match (s.maker(v, &MUL), s.maker(v, &DIV)) {
        (Some(node), _) => (node, |x| x),
        (_, Some(node)) => (node, |x| 1.0 / x),
        _ => return Some((v, 1.0)),
    };
    let cx = s.graph.cx(op);
    let plain = cx.opt_str("rounding_mode").ok()?.is_none();
    let factor = cx.opt_float("other").ok()??;
    Some((inside(s, Sought::single(op)?).filter(|_| plain)?, times(factor)))
}

/// The value of this shape that `v` has the elements of, in the same order.
fn shaped(s: &Sought, mut v: ValueId, shape: &Shape) -> Option<ValueId> {
    while s.graph.ty(v).shape != *shape {
        v = in_order(s, s.graph.producer(v)?.0)?;
    }
    Some(v)
}

/// The value of which `v` is the one with its last two dimensions exchanged.
fn transposed(s: &Sought, mut v: ValueId) -> Option<ValueId> {
    let shape = s.graph.ty(v).shape.clone();
    loop {
        let (node, at) = s.graph.producer(v)?;
        if let (Body::View(view), Some(x)) = (node.op.body, node.operands().next()) {
            let own = Layout::contiguous(&s.graph.ty(x).shape);
            let seen = (view.layout)(&s.graph.cx(node), &own, at).ok()??;
            let (mut swapped, rank) = (own.clone(), own.shape.rank());
            let mut dims = own.shape.to_vec();
            if rank == shape.rank() {
                dims.swap(rank - 2, rank - 1);
                swapped.strides.swap(rank - 2, rank - 1);
                swapped.shape = dims.into();
                if seen == swapped {
                    return Some(x);
                }
            }
        }
        // Through copies that leave it as it is.
        v = in_order(s, node).filter(|&x| s.graph.ty(x).shape == shape)?;
    }
}
