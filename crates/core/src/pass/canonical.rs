//! The canonical forward graph, from which training and evaluation are made: in the precision requested, with
//! spelled-out operators recognized and compound ones expanded.

use super::decompose;
use super::precision::{self, Mixed, Properties};
use super::recognize::{recognize, recognize_spelled, share_heads};
use crate::diagnostic::Result;
use crate::graph::Graph;

/// Puts operators in the place of their spelling, then expands those that stand for others.
///
/// # Errors
/// Refusals of a decomposition, with its operator and origin.
pub fn canonical(graph: Graph) -> Result<Graph> {
    decompose(recognize(graph)?.graph)
}

/// Inserts the casts of a precision, see [`precision::apply`].
///
/// Spelled-out operators are recognised first where weights become low. A norm that was exported in f32 has
/// no conversion left that would keep its sums there; the operator sums in f32 in any case. Around the lists'
/// casts operators stay as the model has them, because the lists speak of those. But keys that heads share
/// are cast once, not once for each head.
///
/// # Errors
/// As [`precision::apply`].
pub fn mixed(graph: &Graph, p: &Properties) -> Result<Mixed> {
    let graph = match p.weights {
        true => recognize_spelled(graph.clone())?.graph,
        false => share_heads(graph.clone())?,
    };
    precision::apply(&graph, p)
}
