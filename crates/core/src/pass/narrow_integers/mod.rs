//! Integer narrowing: i64 computed in i32 by value range analysis, for targets without i64 arithmetic.
//!
//! There i64 is storage alone. A row program reads the low words of its i64 operands, computes in i32, and
//! writes words with their signs extended. The pass proves for each integer that a result depends on that it
//! fits in 32 bits. The proof is from dtypes, sizes, constants, and from the numbers of inputs, which the
//! host checks before a run ([`check_words`]). Sums, differences and products may leave 32 bits if only their
//! low words are used. It states the proof in the programs: each integer operation is followed by a `Cast` to
//! i32 ([`crate::row::RowProgram::computes_in_i64`]). Values keep their types. *Exact*: what it cannot prove
//! is refused, unless it has gone to the host before (`super::host`).
//!
//! An i64 buffer that a step moves, such as a count of batches, is taken to stay below [`BUFFER_LIMIT`]. The
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
use crate::graph::{Graph, InputRole, Node};
use crate::ops::control::fused::{FUSED, encode_types};
use crate::row::RowProgram;
use crate::target::Target;
use crate::tensor::TensorType;
use range::Range;
use std::sync::Arc;

/// Computes the integers of row programs in i32 if the target has no i64 arithmetic; otherwise the graph is
/// returned as it is. For graphs after fusion: each row program is proved by itself.
///
/// # Errors
/// `Unsupported` for a node whose results may depend on more than 32 bits of an integer, with its operator
/// and origin. Refusals of an operator's own program rule.
pub fn narrow_integers(mut graph: Graph, target: &Target) -> Result<Graph> {
    if target.dtypes.arithmetic.contains(DType::I64) {
        return Ok(graph);
    }
    let mut ranges = Ranges::new(&graph);
    for at in 0..graph.nodes.len() {
        let node = &graph.nodes[at];
        let named = |e: crate::diagnostic::Error| e.in_op(node.op.name).at(graph.origin(node));
        if let Some(narrowed) = ranges.node(&graph, node).map_err(named)? {
            let types: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
            let ops = graph.cx(node).opt_str("ops")?.unwrap_or(node.op.name).to_string();
            let inputs = node.operands().map(Some).collect();
            let node = &mut graph.nodes[at];
            node.attrs = Attrs::new()
                .with("outputs", encode_types(&types))
                .with("ops", ops)
                .with("program", Arc::new(narrowed));
            (node.op, node.inputs) = (&FUSED, inputs);
        }
    }
    Ok(graph)
}

/// Ranges of a graph's values, in the order of its nodes.
pub(in crate::pass) struct Ranges(Vec<Range>);

impl Ranges {
    /// The ranges of the inputs.
    pub(in crate::pass) fn new(graph: &Graph) -> Ranges {
        let mut ranges: Vec<Range> = graph.values.iter().map(|v| Range::of(v.ty.dtype)).collect();
        for i in &graph.inputs {
            ranges[i.value.0 as usize] = range::of_input(&i.role, graph.ty(i.value).dtype);
        }
        Ranges(ranges)
    }

    /// Finds those of a node's results, and returns its row program in i32 where its own computes in i64.
    ///
    /// # Errors
    /// As [`narrow_integers`]. Results are then taken to be any numbers of their dtypes.
    pub(in crate::pass) fn node(&mut self, graph: &Graph, node: &Node) -> Result<Option<RowProgram>> {
        let types: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
        let of_types = || types.iter().map(|t| Range::of(t.dtype)).collect();
        let (narrowed, found) = match node.op.row_program(&graph.cx(node), &types)? {
            None => (None, range::of_node(graph, node, &self.0)),
            Some(program) => {
                let reads: Vec<Range> = node.operands().map(|v| self.0[v.0 as usize]).collect();
                let wide = program.computes_in_i64();
                match program::narrow(&program, &reads) {
                    Ok((narrowed, found)) => (wide.then_some(narrowed), found),
                    // It moves numbers of any size, or has none.
                    Err(_) if !wide => (None, of_types()),
                    Err(e) => return Err(e),
                }
            }
        };
        for (v, range) in node.outputs.iter().zip(found) {
            self.0[v.0 as usize] = range;
        }
        Ok(narrowed)
    }

    /// Takes a node's results to be any numbers of their dtypes.
    pub(in crate::pass) fn forget(&mut self, graph: &Graph, node: &Node) {
        node.outputs.iter().for_each(|v| self.0[v.0 as usize] = Range::of(graph.ty(*v).dtype));
    }
}

/// Checks the numbers of a tensor that a target without i64 arithmetic is given. Its i64 must fit in 32 bits,
/// and those of a buffer stay below [`BUFFER_LIMIT`]. Keys of random numbers are any.
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
