//! Masks of attention that are known beforehand. One that lets everything through is dropped. One that lets
//! each query see the keys up to its own position is what `is_causal` says. Models build both from positions,
//! at every step.

use super::Merged;
use super::constants::Constants;
use crate::dtype::DType;
use crate::expr::Expr;
use crate::graph::{Graph, Node, ValueId};
use crate::ops::Body;
use crate::ops::attention::attention::{ATTENTION, ATTENTION_BACKWARD};
use crate::ops::pointwise::compare::{GE, GT, LE, LT};
use crate::shape::Layout;

/// Drops a known mask of bools from an attention node or its gradient, if it can be said without; whether it
/// did.
pub(super) fn drop_known(graph: &Graph, constants: &Constants, made: &Merged, node: &mut Node) -> bool {
    // Positions of mask and query; the key follows the query.
    let (at, query) = if node.op == &ATTENTION {
        (3, 0)
    } else if node.op == &ATTENTION_BACKWARD {
        (7, 1)
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
        let known = match constants.elements(mask) {
            Some(t) => t.ints().iter().enumerate().all(causal),
            None => compares(graph, constants, made, mask, [l, s]) == Some(true),
        };
        if !known || (Some(l), Some(s)) != (length(query), length(query + 1)) {
            return false;
        }
        node.attrs.set("is_causal", true);
    }
    node.inputs[at] = None;
    true
}

/// True if a mask too large to be known is a comparison of known positions that lets each query see the keys
/// up to its own. Positions of keys ascend, so two comparisons for each query decide.
fn compares(
    graph: &Graph,
    constants: &Constants,
    made: &Merged,
    mut mask: ValueId,
    [l, s]: [usize; 2],
) -> Option<bool> {
    if l * s == 0 {
        return None;
    }
    // Through views of whole matrices.
    let mut node = made.maker(mask)?;
    while let Body::View(view) = node.op.body {
        let at = node.outputs.iter().position(|&v| v == mask)?;
        mask = node.operands().next()?;
        let own = Layout::contiguous(&graph.ty(mask).shape);
        let seen = (view.layout)(&graph.cx(node), &own, at).ok()??;
        let (lead, last) = seen.strides.split_at(seen.shape.rank().checked_sub(2)?);
        let whole = lead.iter().zip(seen.shape.iter()).all(|(x, n)| *n == 1 || x % (l * s) as isize == 0);
        if !own.shape.ends_with(&[l, s]) || last != [s as isize, 1] || seen.offset != 0 || !whole {
            return None;
        }
        node = made.maker(mask)?;
    }
    let [Some(a), Some(b)] = node.inputs[..] else { return None };
    let (key, query, strict) = match node.op {
        op if op == &LE => (a, b, false),
        op if op == &LT => (a, b, true),
        op if op == &GE => (b, a, false),
        op if op == &GT => (b, a, true),
        _ => return None,
    };
    let positions = |v: ValueId, last: [usize; 2]| {
        let ty = graph.ty(v);
        let all = constants.elements(v).filter(|_| ty.shape.ends_with(&last) && !ty.dtype.is_float())?.ints();
        let row = all.get(..last[0] * last[1])?;
        all.chunks(row.len()).all(|other| other == row).then_some(row)
    };
    let (keys, queries) = (positions(key, [1, s])?, positions(query, [l, 1])?);
    let sees = |query: i64, key: i64| if strict { key < query } else { key <= query };
    let own = |(i, &query): (usize, &i64)| {
        sees(query, keys[i.min(s - 1)]) && keys.get(i + 1).is_none_or(|&next| !sees(query, next))
    };
    Some(keys.is_sorted() && queries.iter().enumerate().all(own))
}
