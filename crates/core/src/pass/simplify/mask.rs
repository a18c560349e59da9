//! Masks of attention that are known beforehand. One that lets everything through is dropped. One that lets
//! each query see the keys up to its own position is what `is_causal` says. Models build both from positions,
//! at every step.

use super::constants::Constants;
use crate::dtype::DType;
use crate::expr::Expr;
use crate::graph::{Graph, Node};
use crate::ops::attention::attention::{ATTENTION, ATTENTION_BACKWARD};

/// Drops a known mask of bools from an attention node or its gradient, if it can be said without; whether it
/// did.
pub(super) fn drop_known(graph: &Graph, constants: &Constants, node: &mut Node) -> bool {
    // Positions of mask and query; the key follows the query.
    let (at, query) = if node.op == &ATTENTION {
        (3, 0)
    } else if node.op == &ATTENTION_BACKWARD {
        (6, 1)
    } else {
        return false;
    };
    let Some(Some(mask)) = node.inputs.get(at).copied() else { return false };
    let ty = graph.ty(mask);
    if ty.dtype != DType::Bool {
        return false;
    }
    if constants.literal(mask) != Some(Expr::Bool(true)) {
        // The scores' own sizes: a mask that is broadcast along queries or keys is not causal.
        let length = |i: usize| node.inputs[i].map(|v| graph.ty(v).shape[2]);
        let &[.., l, s] = &ty.shape[..] else { return false };
        let causal = |(i, &x): (usize, &i64)| (x != 0) == (i % s <= i / s % l);
        let known = constants.elements(mask).is_some_and(|t| t.ints().iter().enumerate().all(causal));
        if !known || (Some(l), Some(s)) != (length(query), length(query + 1)) {
            return false;
        }
        node.attrs.set("is_causal", true);
    }
    node.inputs[at] = None;
    true
}
