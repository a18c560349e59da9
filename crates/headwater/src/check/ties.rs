//! Equal keys, whose order PyTorch leaves open.

use super::step::{Given, feed};
use crate::core::compile::{self, Goal, Options};
use crate::core::graph::{Graph, OutputRole};
use crate::core::{Builder, DType, reference};
use crate::golden::Golden;
use crate::model::BoundModel;
use anyhow::Result;

/// The nodes of the forward pass that order equal keys: operator and place.
pub(super) fn found(bound: &BoundModel, golden: &Golden) -> Result<Vec<String>> {
    let mut b = Builder::extend(Graph { outputs: vec![], ..bound.graph.clone() });
    let nodes: Vec<_> = bound.graph.nodes.iter().filter(|n| n.op.orders_ties()).collect();
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
        let rank = keys.shape().rank();
        let dim = node.attrs.iter().find(|(name, _)| *name == "dim");
        let dim = match dim.map(|d| d.1) {
            Some(crate::core::Attr::Int(d)) => d.rem_euclid(rank.max(1) as i64) as usize,
            _ => rank.saturating_sub(1),
        };
        let inner: usize = keys.shape().iter().skip(dim + 1).product();
        let length = keys.shape().get(dim).copied().unwrap_or(1);
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
