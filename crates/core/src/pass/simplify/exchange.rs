//! Products whose result is wanted with its last dimensions exchanged: operands are exchanged instead. Models
//! store the matrices of experts transposed, and so their gradients are wanted.

use super::Merged;
use crate::graph::{Graph, Node};
use crate::ops::Body;
use crate::ops::linear::grouped_mm::GROUPED_MM_WEIGHT_BACKWARD;
use crate::shape::Layout;

/// Makes a node that exchanges the last dimensions of a product of groups that product with its operands
/// exchanged; whether it did. The sums have the same terms in the same order.
pub(super) fn exchange(graph: &Graph, made: &Merged, node: &mut Node) -> bool {
    let Body::View(view) = node.op.body else { return false };
    let &[Some(x)] = &node.inputs[..] else { return false };
    let Some(product) = made.maker(x).filter(|n| n.op == &GROUPED_MM_WEIGHT_BACKWARD) else { return false };
    let whole = Layout::contiguous(&graph.ty(x).shape);
    let [d, k, n] = whole.shape[..] else { return false };
    let seen = (view.layout)(&graph.cx(node), &whole, 0).ok().flatten();
    let exchanged = |l: &Layout| {
        l.offset == 0 && l.shape[..] == [d, n, k] && l.strides[..] == [(k * n) as isize, 1, n as isize]
    };
    if node.outputs.len() != 1 || !seen.is_some_and(|l| exchanged(&l)) {
        return false;
    }
    let mut inputs = product.inputs.clone();
    inputs.swap(0, 1);
    (node.op, node.inputs, node.attrs) = (product.op, inputs, product.attrs.clone());
    true
}
