//! Operators whose PyTorch results are known to be wrong: what it computes is not what its documentation
//! says, or gradients are lost. Each case is stated in the file of its operator, with its source. Headwater
//! computes what is documented, so that a recorded result differs there.

use super::attention::sdpa;
use super::index::{embedding_bag, index_reduce, scatter};
use super::{OpCx, OpDef};
use crate::graph::{Graph, Node};

/// A case of an operator: a sentence on what PyTorch does, if an application may be one.
type Case = fn(&OpCx) -> Option<&'static str>;

/// The cases, by operator.
static CASES: [(&OpDef, Case); 4] = [
    (&embedding_bag::EMBEDDING_BAG, embedding_bag::departs),
    (&index_reduce::INDEX_REDUCE, scatter::departs),
    (&scatter::SCATTER, scatter::departs),
    (&sdpa::SDPA, sdpa::departs),
];

/// The known fault of PyTorch in a node's place, in a sentence, which names the data that it depends on, if
/// any.
pub fn of(graph: &Graph, node: &Node) -> Option<&'static str> {
    let (_, case) = CASES.iter().find(|(op, _)| *op == node.op)?;
    case(&graph.cx(node))
}
