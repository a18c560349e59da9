//! Sums of gradients over ranks: a collective after each bucket, on the axis of ranks that have batches of
//! their own. The sum takes the bucket's place, so that norms and updates read it as they read a bucket of
//! one rank. Its bits are those of recursive halving ([`crate::ranks::halving`]).

use super::key::{Kept, StateKey};
use crate::diagnostic::{Code, Error, Result};
use crate::graph::{Builder, Def, Graph, OutputRole, Phase};
use crate::ops::collective::{all_reduce::ALL_REDUCE, on};
use crate::plan::{Bindings, Place};
use crate::ranks::{DATA, Mesh};

/// Puts a sum over the ranks after every bucket, in the order of their places, whatever the order in which
/// they are completed: all ranks then meet in the same order, even where their programs are of batches of
/// other lengths.
///
/// # Errors
/// `Unsupported` for a sparse gradient. `DType` for gradients that are held in less than f32.
pub fn reduce(graph: Graph, bindings: &Bindings, mesh: &Mesh) -> Result<Graph> {
    let mut buckets: Vec<(Option<Place>, usize)> = Vec::new();
    for (i, o) in graph.outputs.iter().enumerate() {
        match o.role {
            OutputRole::User => continue,
            OutputRole::Gradient(_) | OutputRole::Gradients => {}
            OutputRole::Mutation(v) => {
                let input = graph.input_index(v).map(|at| &graph.inputs[at]);
                match input.and_then(StateKey::of) {
                    Some(StateKey::Part(_, Kept::Gradients)) => {}
                    Some(StateKey::Part(name, Kept::GradientRows)) => {
                        let message = format!(
                            "the gradient of {name} has only the rows that a rank reads: it is not summed over \
                             ranks. Make it dense (--sparse-embeddings none)"
                        );
                        return Err(Error::new(Code::Unsupported, message));
                    }
                    _ => continue,
                }
            }
        }
        buckets.push((bindings.output_place(&graph, i), i));
    }
    buckets.sort_by_key(|(place, i)| (place.map(|p| (p.segment, p.offset)), *i));
    let made = graph.nodes.len();
    let mut b = Builder::extend(graph);
    b.phase = Phase::Backward;
    let mut behind = Vec::with_capacity(buckets.len());
    let mut last = b.graph().nodes.iter().rposition(|n| n.phase == Phase::Forward).unwrap_or(0);
    for (_, i) in buckets {
        let value = b.graph().outputs[i].value;
        if let Def::Node(n, _) = b.graph().value(value).def {
            last = last.max(n.0 as usize);
            // The line of what is summed, not of the bucket that holds it.
            let maker = b.graph().node(n).operands().last().and_then(|v| b.graph().producer(v));
            b.origin = maker.map_or(b.graph().node(n).origin, |(node, _)| node.origin);
        }
        let sum = b.one(&ALL_REDUCE, &[value], on(DATA, mesh.ranks()))?;
        behind.resize(b.graph().nodes.len() - made, last);
        b.graph_mut().outputs[i].value = sum;
    }
    let mut graph = b.finish();
    graph.sort_nodes(|n, _| behind.get(n.wrapping_sub(made)).map_or((n, 0), |after| (*after, 1)));
    Ok(graph)
}
