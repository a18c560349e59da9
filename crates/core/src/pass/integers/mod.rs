//! Integer narrowing: i64 computed in i32 by value range analysis, for targets without i64 arithmetic.
//!
//! There i64 is storage alone: a row program reads the low words of its i64 operands, computes in i32, and
//! writes words with their signs extended. The pass proves for each integer that a result depends on that it
//! fits in 32 bits: from dtypes, sizes, constants, and from the numbers of inputs, which the host checks
//! before a run ([`check_words`]). Sums, differences and products may leave 32 bits if only their low words
//! are used. It states the proof in the programs: each integer operation is followed by a `Cast` to i32
//! ([`crate::row::RowProgram::computes_in_i64`]). Values keep their types. *Exact*: what it cannot prove is
//! refused.
//!
//! An i64 buffer that a step moves, such as a count of batches, is taken to stay below [`BUFFER_LIMIT`]; the
//! host checks this when it writes and when it reads one. Kernels read i64 operands in their own way.

mod program;
mod range;
#[cfg(test)]
mod tests;

pub use range::BUFFER_LIMIT;

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::{Class, DType};
use crate::ensure;
use crate::graph::{Graph, InputRole};
use crate::ops::control::fused::{FUSED, encode_types};
use crate::target::Target;
use crate::tensor::TensorType;
use range::Range;
use std::sync::Arc;

/// Computes the integers of row programs in i32 if the target has no i64 arithmetic; otherwise the graph is
/// returned as it is. For graphs after fusion: each row program is proved by itself.
///
/// # Errors
/// `Unsupported` for a node whose results may depend on more than 32 bits of an integer, with its operator
/// and origin; what an operator's own program rule refuses.
pub fn narrow_integers(mut graph: Graph, target: &Target) -> Result<Graph> {
    if target.dtypes.arithmetic.contains(DType::I64) {
        return Ok(graph);
    }
    let mut ranges: Vec<Range> = graph.values.iter().map(|v| Range::of(v.ty.dtype)).collect();
    for i in &graph.inputs {
        ranges[i.value.0 as usize] = range::of_input(&i.role, graph.ty(i.value).dtype);
    }
    for at in 0..graph.nodes.len() {
        let node = &graph.nodes[at];
        let types: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
        let named = |e: crate::diagnostic::Error| e.in_op(node.op.name).at(graph.origin(node));
        let found = match node.op.row_program(&graph.cx(node), &types).map_err(named)? {
            None => range::of_node(&graph, node, &ranges),
            Some(program) => {
                let reads: Vec<Range> = node.operands().map(|v| ranges[v.0 as usize]).collect();
                let wide = program.computes_in_i64();
                let (narrowed, found) = match program::narrow(&program, &reads) {
                    // It moves numbers of any size, or has none.
                    Err(_) if !wide => (program, types.iter().map(|t| Range::of(t.dtype)).collect()),
                    other => other.map_err(named)?,
                };
                if wide {
                    let ops = graph.cx(node).opt_str("ops")?.unwrap_or(node.op.name).to_string();
                    let inputs = node.operands().map(Some).collect();
                    let node = &mut graph.nodes[at];
                    node.attrs = Attrs::new()
                        .with("outputs", encode_types(&types))
                        .with("ops", ops)
                        .with("program", Arc::new(narrowed));
                    (node.op, node.inputs) = (&FUSED, inputs);
                }
                found
            }
        };
        for (v, range) in graph.nodes[at].outputs.iter().zip(found) {
            ranges[v.0 as usize] = range;
        }
    }
    Ok(graph)
}

/// Checks the numbers of a tensor that a target without i64 arithmetic is given: i64 must fit in 32 bits, and
/// those of a buffer stay below [`BUFFER_LIMIT`]. Keys of random numbers are any.
///
/// # Errors
/// `Value` with the tensor's name, the element and the number.
pub fn check_words(name: &str, role: &InputRole, ty: &TensorType, bytes: &[u8]) -> Result<()> {
    if ty.dtype.class() != Class::Int {
        return Ok(());
    }
    let range = range::of_input(role, ty.dtype);
    for (i, word) in bytes.chunks_exact(8).enumerate().take_while(|_| ty.dtype == DType::I64) {
        let x = i64::from_le_bytes(word.try_into().unwrap_or_default());
        let inside = range.low <= x as i128 && x as i128 <= range.high;
        ensure!(
            inside,
            Value,
            "{name} has {x} at element {i}; the device computes integers in 32 bits, from {} to {}",
            range.low,
            range.high
        );
    }
    Ok(())
}
