//! A batch to measure on: read from a file, or drawn so that every index is in range.

use crate::core::graph::{Graph, InputRole, ValueId};
use crate::core::ops::Case;
use crate::core::ops::case::Sample;
use crate::core::{Attr, DType, Shape, Tensor, TensorType};
use crate::tensors::TensorFile;
use anyhow::{Result, ensure};
use std::collections::HashMap;

/// Seed of drawn numbers.
const SEED: u64 = 1;

/// One tensor for each input that the user feeds, in order. Those that `file` does not hold are drawn: floats
/// in [-2, 2), integers below the smallest limit that an operator on their way sets.
///
/// # Errors
/// If a tensor of the file has another type than the model's input.
pub fn batch(graph: &Graph, file: Option<&TensorFile>) -> Result<Vec<Tensor>> {
    let limits = limits(graph);
    let users = graph.inputs.iter().filter(|i| i.role == InputRole::User);
    let tensor = |(at, input): (usize, &crate::core::graph::Input)| {
        let ty = graph.ty(input.value);
        match file.and_then(|f| f.tensors.get(&input.name)) {
            Some(t) => {
                ensure!(t.shape() == &ty.shape, "input {} is {}, the model takes {ty}", input.name, t.ty);
                Ok(if t.ty == *ty { t.clone() } else { t.cast(ty.dtype) })
            }
            None => Ok(draw(ty, limits.get(&input.value).copied(), SEED + at as u64)),
        }
    };
    users.enumerate().map(tensor).collect()
}

/// Numbers of a type; integers are below `limit`.
pub fn draw(ty: &TensorType, limit: Option<usize>, seed: u64) -> Tensor {
    let case = match ty.dtype {
        d if d.is_float() => Case::new("").arg(d, &ty.shape, Sample::Uniform(-2.0, 2.0)),
        DType::Bool => Case::new("").mask(&ty.shape),
        d => {
            let limit = limit.unwrap_or(2).max(1) as f64;
            Case::new("").arg(d, &ty.shape, Sample::Uniform(0.0, limit))
        }
    };
    let mut drawn = case.draw(seed);
    drawn.pop().flatten().expect("one input, which is present")
}

/// Exclusive upper limits of integer inputs: rows of the tables they index, classes of the scores they are
/// compared with. Followed through what keeps integers as they are.
fn limits(graph: &Graph) -> HashMap<ValueId, usize> {
    let mut found: HashMap<ValueId, usize> = HashMap::new();
    for node in graph.nodes.iter().rev() {
        let shape = |i: usize| -> Option<&Shape> { Some(&graph.ty((*node.inputs.get(i)?)?).shape) };
        let dim = |i: usize, d: i64| {
            let shape = shape(i)?;
            shape.get(if d < 0 { d + shape.rank() as i64 } else { d } as usize).copied()
        };
        let axis = if let Some(Attr::Int(d)) = node.attrs.get("dim") { *d } else { 0 };
        // Which operand is an index, and its limit.
        let own = match node.op.name {
            "embedding" => Some((1, dim(0, 0))),
            "cross_entropy_loss" | "nll_loss" | "nll_loss_forward" | "nll_loss2d" => {
                let rank = shape(0).map_or(0, Shape::rank);
                Some((1, dim(0, if rank > 1 { 1 } else { 0 })))
            }
            "gather" | "index_select" => Some((1, dim(0, axis))),
            _ => None,
        };
        if let Some((i, Some(limit))) = own
            && let Some(Some(v)) = node.inputs.get(i)
        {
            lower(&mut found, *v, limit);
        }
        // A limit of a result is one of the integers it is made of.
        let below: Option<usize> = node.outputs.iter().filter_map(|v| found.get(v).copied()).min();
        if let Some(limit) = below {
            for v in node.operands().filter(|&v| !graph.ty(v).dtype.is_float()) {
                lower(&mut found, v, limit);
            }
        }
    }
    found
}

fn lower(found: &mut HashMap<ValueId, usize>, v: ValueId, limit: usize) {
    let held = found.entry(v).or_insert(limit);
    *held = limit.min(*held);
}
