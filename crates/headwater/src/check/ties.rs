//! Equal keys, whose order PyTorch leaves open.

use super::step::{Given, feed};
use crate::core::compile::{self, Goal, Options};
use crate::core::graph::{Graph, Node, OutputRole};
use crate::core::{Attr, Builder, DType, reference};
use crate::golden::Golden;
use crate::model::BoundModel;
use anyhow::Result;

/// The nodes of the forward pass that order equal keys: operator and place.
pub(super) fn found(bound: &BoundModel, golden: &Golden) -> Result<Vec<String>> {
    let mut b = Builder::extend(Graph { outputs: vec![], ..bound.graph.clone() });
    // PyTorch's stable sort leaves equal keys as they are.
    let stable =
        |n: &Node| n.attrs.iter().any(|(name, value)| (name, value) == ("stable", &Attr::Bool(true)));
    let nodes: Vec<_> = bound.graph.nodes.iter().filter(|n| n.op.orders_ties() && !stable(n)).collect();
    for (i, node) in nodes.iter().enumerate() {
        if let Some(keys) = node.inputs.first().copied().flatten() {
            b.output(format!("keys.{i}"), keys, OutputRole::User);
        }
    }
    let options = Options {
        goal: Goal::Forward,
        upcast: Some(DType::F64),
        stop_after: Some("simplify"),
        ..Options::default()
    };
    let target = crate::core::target::Target::default();
    let graph = compile::optimize(b.finish(), &options, &target)?.graph;
    let given = Given { scale: 1.0, rounding: [0.0, 0.0] };
    let keys = reference::run(&graph, &feed(&graph, &graph, bound, golden, given)?)?;
    let mut found = Vec::new();
    for (node, keys) in nodes.iter().zip(keys) {
        let shape = keys.shape();
        let last = shape.rank().saturating_sub(1);
        let attr = |name: &str| node.attrs.iter().find(|a| a.0 == name).map(|a| a.1);
        let dim = match (attr("dim"), node.op.name) {
            (Some(Attr::Int(d)), _) => Some(d.rem_euclid(last as i64 + 1) as usize),
            (_, "quantile") => None,
            (_, "msort") => Some(0),
            _ => Some(last),
        };
        let inner: usize = dim.map_or(1, |d| shape.iter().skip(d + 1).product());
        let length = dim.map_or(shape.numel(), |d| shape.get(d).copied().unwrap_or(1));
        let numbers = keys.to_f64();
        let equal = (0..numbers.len()).filter(|i| (i / inner).is_multiple_of(length)).any(|first| {
            let mut row: Vec<f64> = (0..length).map(|k| numbers[first + k * inner]).collect();
            row.sort_by(f64::total_cmp);
            row.windows(2).any(|w| w[0] == w[1])
        });
        if equal {
            found.push(format!("{} at {}", node.op.name, bound.graph.origin(node)));
        }
    }
    Ok(found)
}
