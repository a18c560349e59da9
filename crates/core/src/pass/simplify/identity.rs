//! Nodes that give an operand back, bit for bit. They are views that change nothing, padding by nothing,
//! casts to the same dtype or through a wider one. So does arithmetic with neutral numbers where it is exact
//! for every float. Such are `x · 1` and `x − 0`, but not `x + 0`, which turns −0 into 0.

use super::Merged;
use super::constants::Constants;
use super::expression::reduce;
use crate::Attr;
use crate::dtype::DType;
use crate::expr::Expr;
use crate::graph::{Graph, Node, ValueId};
use crate::ops::pointwise::to::TO;
use crate::ops::{Body, RegionCopy, Source};
use crate::shape::Layout;

/// The operand that a node's one result equals.
pub(super) fn same_as(graph: &Graph, constants: &Constants, node: &Node) -> Option<ValueId> {
    let [out] = node.outputs[..] else { return None };
    let cx = graph.cx(node);
    let same = match node.op.body {
        Body::View(view) => {
            let x = node.operands().next()?;
            let whole = Layout::contiguous(&graph.ty(x).shape);
            let seen = (view.layout)(&cx, &whole, 0).ok()??;
            // In row-major order from the start: all elements at their own place.
            (seen.shape == whole.shape && seen.offset == 0 && seen.is_contiguous()).then_some(x)?
        }
        Body::Pointwise(body) => {
            let operands: Vec<ValueId> = node.operands().collect();
            let [expr] = &body(&cx).ok()?[..] else { return None };
            match reduce(expr, &|i| constants.literal(operands[i]), &|i| graph.ty(operands[i]).dtype) {
                Expr::Input(i) => operands[i],
                _ => return None,
            }
        }
        Body::Copies(f) => {
            // The last copy covers what was there before.
            let copies = f(&cx, graph.ty(out)).ok()?;
            let last = copies.last()?;
            let Source::Input(i) = last.source else { return None };
            let whole = *last == RegionCopy::whole(last.source, &graph.ty(out).shape);
            node.inputs.get(i).copied().flatten().filter(|_| whole)?
        }
        _ => return None,
    };
    (graph.ty(same) == graph.ty(out)).then_some(same)
}

/// A cast of a cast that lost nothing reads what that cast read.
pub(super) fn shorten_cast(graph: &Graph, made: &Merged, node: &mut Node) {
    let is_cast = |n: &Node| n.op == &TO && matches!(n.attrs.get("dtype"), Some(Attr::DType(_)));
    if !is_cast(node) {
        return;
    }
    let Some(Some(x)) = node.inputs.first().copied() else { return };
    if let Some(inner) = made.maker(x).filter(|n| is_cast(n))
        && let Some(Some(source)) = inner.inputs.first().copied()
        && holds(graph.ty(x).dtype, graph.ty(source).dtype)
    {
        node.inputs[0] = Some(source);
    }
}

/// True if every number of `narrow` is one of `wide`.
fn holds(wide: DType, narrow: DType) -> bool {
    use DType::*;
    match (wide, narrow) {
        (w, n) if w == n => true,
        (F64, F32 | F16 | BF16) | (F32, F16 | BF16) => true,
        (_, Bool) => true,
        (F64, I32 | I16 | I8 | U8) | (F32, I16 | I8 | U8) | (F16 | BF16, I8 | U8) => true,
        (I64, I32 | I16 | I8 | U8) | (I32, I16 | I8 | U8) | (I16, I8 | U8) => true,
        _ => false,
    }
}
