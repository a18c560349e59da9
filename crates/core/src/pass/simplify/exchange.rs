//! Products whose result is read with its last dimensions exchanged: operands are exchanged instead. Models
//! store matrices transposed, those of experts and GPT-2's, and so their gradients are read.

use super::Merged;
use crate::attr::Attrs;
use crate::graph::{Graph, Node, Value, ValueId};
use crate::ops::Body;
use crate::ops::linear::grouped_mm::GROUPED_MM_WEIGHT_BACKWARD;
use crate::ops::linear::matmul::MATMUL;
use crate::ops::view::permute::PERMUTE;
use crate::shape::Layout;
use crate::tensor::TensorType;

/// Makes a node that exchanges the last dimensions of a product that product with its operands exchanged: of
/// groups, or of matrices of which the first is exchanged already and nobody reads the product itself
/// (`alone`). `None` if it does not; with it comes a node that exchanges the second matrix, to come before.
/// The sums have the same terms in the same order.
pub(super) fn exchange(
    graph: &mut Graph,
    made: &Merged,
    alone: &dyn Fn(ValueId) -> bool,
    node: &mut Node,
) -> Option<Option<Node>> {
    let &[Some(x)] = &node.inputs[..] else { return None };
    if node.outputs.len() != 1 || !swaps(graph, node) {
        return None;
    }
    let product = made.maker(x)?;
    if product.op == &GROUPED_MM_WEIGHT_BACKWARD {
        let mut inputs = product.inputs.clone();
        inputs.swap(0, 1);
        (node.op, node.inputs, node.attrs) = (product.op, inputs, product.attrs.clone());
        return Some(None);
    }
    let (&[Some(a), Some(b)], true) = (&product.inputs[..], product.op == &MATMUL && alone(x)) else {
        return None;
    };
    let before = made.maker(a).filter(|n| graph.ty(a).shape.rank() == 2 && swaps(graph, n))?;
    let left = before.operands().next()?;
    let &[rows, columns] = &graph.ty(b).shape[..] else { return None };
    let right = ValueId(graph.values.len() as u32);
    let ty = TensorType::new(graph.ty(b).dtype, [columns, rows]);
    let def = graph.value(b).def;
    graph.values.push(Value { ty, def });
    let transposed = Node {
        op: &PERMUTE,
        inputs: vec![Some(b)],
        attrs: Attrs::new().with("dims", [1, 0]),
        outputs: vec![right],
        ..node.clone()
    };
    (node.op, node.inputs, node.attrs) = (product.op, vec![Some(right), Some(left)], product.attrs.clone());
    Some(Some(transposed))
}

/// True if a node shows its operand with the last two dimensions exchanged.
fn swaps(graph: &Graph, node: &Node) -> bool {
    let (Body::View(view), Some(x)) = (node.op.body, node.operands().next()) else { return false };
    let whole = Layout::contiguous(&graph.ty(x).shape);
    let rank = whole.shape.rank();
    if !(2..=3).contains(&rank) {
        return false;
    }
    let mut want = whole.clone();
    let mut shape = whole.shape.to_vec();
    shape.swap(rank - 2, rank - 1);
    want.strides.swap(rank - 2, rank - 1);
    want.shape = shape.into();
    (view.layout)(&graph.cx(node), &whole, 0).ok().flatten().is_some_and(|seen| seen == want)
}
