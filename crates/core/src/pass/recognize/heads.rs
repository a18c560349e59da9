//! Keys and values repeated for the query heads that share them, as Hugging Face's `repeat_kv` does.
//! `[B, Hk, S, E]` gets a new dimension, is expanded to `[B, Hk, n, S, E]` and reshaped to
//! `[B, Hk · n, S, E]`. Attention shares heads without that.

use super::{Exactness, Replacement, Sought};
use crate::graph::{Node, ValueId};
use crate::ops::Body;
use crate::ops::attention::sdpa::SDPA;
use crate::ops::view::clone::CLONE;
use crate::shape::Layout;

/// Views between the heads as they are and as they are repeated; models write three to five.
const MAX_VIEWS: usize = 8;

/// Attention on the heads that are shared, in the place of one on their repetition. The same products and
/// sums; what is summed over the heads of the gradient is rounded once, no longer head by head.
pub(super) fn shared(s: &Sought, node: &Node) -> Option<Replacement> {
    if !std::ptr::eq(node.op, &SDPA) || s.graph.cx(node).flag("enable_gqa").ok()? {
        return None;
    }
    let [Some(q), Some(k), Some(v), ..] = node.inputs[..] else { return None };
    let (key, value) = (repeated(s, k)?, repeated(s, v)?);
    let shape = |v: ValueId| &s.graph.ty(v).shape;
    // The query alone gives the number of heads and of samples then.
    let alike = shape(q).rank() == 4 && shape(q)[..2] == shape(k)[..2] && shape(key)[1] == shape(value)[1];
    let mut inputs = node.inputs.clone();
    (inputs[1], inputs[2]) = (Some(key), Some(value));
    let attrs = node.attrs.clone().with("enable_gqa", true);
    alike.then_some(Replacement { op: &SDPA, inputs, attrs, exactness: Exactness::SameAccumulator })
}

/// The value of fewer heads that `v`, of four dimensions, repeats head by head.
fn repeated(s: &Sought, v: ValueId) -> Option<ValueId> {
    let mut views = Vec::new();
    let mut base = v;
    while let Some((node, at)) = s.graph.producer(base).filter(|_| views.len() < MAX_VIEWS) {
        base = node.operands().next()?;
        match node.op.body {
            Body::View(_) => views.push((node, at)),
            _ if std::ptr::eq(node.op, &CLONE) => continue,
            _ => return None,
        }
        if is_repetition(s, base, v, &views) {
            return Some(base);
        }
    }
    None
}

/// True if the views, last first, make of `base` its repetition `v`.
fn is_repetition(s: &Sought, base: ValueId, v: ValueId, views: &[(&Node, usize)]) -> bool {
    let (from, to) = (&s.graph.ty(base).shape, &s.graph.ty(v).shape);
    let ([b, heads, l, e], [b2, many, l2, e2]) = (&from[..], &to[..]) else { return false };
    let fits = (b, l, e) == (b2, l2, e2) && heads < many && *heads > 0 && many.is_multiple_of(*heads);
    if !fits {
        return false;
    }
    let expanded = [*b, *heads, many / heads, *l, *e];
    let own = from.strides();
    let strides = [own[0], own[1], 0, own[2], own[3]];
    let matches = |l: &Layout, shape: &[usize], strides: &[isize]| {
        l.offset == 0
            && l.shape[..] == *shape
            && shape.iter().zip(&l.strides).zip(strides).all(|((n, a), b)| *n == 1 || a == b)
    };
    // Before the heads are merged elements have a place in `base`, afterwards in the copy.
    let (mut layout, mut copied) = (Layout::contiguous(from), false);
    for &(node, at) in views.iter().rev() {
        let Body::View(view) = node.op.body else { return false };
        let Ok(seen) = (view.layout)(&s.graph.cx(node), &layout, at) else { return false };
        layout = match seen {
            Some(seen) => seen,
            None if !copied && matches(&layout, &expanded, &strides) => {
                copied = true;
                Layout::contiguous(&s.graph.ty(node.outputs[at]).shape)
            }
            None => return false,
        };
    }
    match copied {
        true => layout.shape == *to && layout.is_contiguous() && layout.offset == 0,
        // One head is repeated without a copy.
        false => *heads == 1 && matches(&layout, to, &[own[0], 0, own[2], own[3]]),
    }
}
