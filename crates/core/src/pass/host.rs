//! Host fallback: row programs that a target does not compute, each as an operator that runs through the
//! reference definition on the host ([`ON_HOST`]).
//!
//! Such are programs in f64 where the target has no f64 arithmetic. Where it has no i64, so are those in
//! integers that are not proved to fit in 32 bits (`super::narrow_integers`). Updates have been split into
//! pairs of f32 before (`super::split_wide`). The pass comes before `fuse`: what goes to the host goes there
//! alone, and what is left fuses as ever. *Exact*: the same operator on the same numbers.

use super::narrow_integers::Ranges;
use crate::attr::Attrs;
use crate::diagnostic::{Code, Error, Result};
use crate::dtype::DType;
use crate::graph::{Graph, Node};
use crate::ops::control::fused::encode_types;
use crate::ops::control::on_host::ON_HOST;
use crate::row::RowProgram;
use crate::target::{Support, Target};
use crate::tensor::TensorType;
use std::sync::Arc;

/// Replaces each row program that the target does not compute by [`ON_HOST`]. A graph for a target without a
/// host, or one that computes in every type, is returned as it is.
///
/// # Errors
/// Refusals of an operator's own program rule, with the operator and its origin.
pub fn on_host(mut graph: Graph, target: &Target) -> Result<Graph> {
    if !target.has_host || target.computes_all() {
        return Ok(graph);
    }
    let mut ranges = (!target.dtypes.arithmetic.contains(DType::I64)).then(|| Ranges::new(&graph));
    for at in 0..graph.nodes.len() {
        let node = &graph.nodes[at];
        let named = |e: Error| e.in_op(node.op.name).at(graph.origin(node));
        let types: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
        let program = node.op.row_program(&graph.cx(node), &types).map_err(named)?;
        let narrowed = ranges.as_mut().map_or(Ok(None), |r| r.node(&graph, node));
        let Some(program) = program else { continue };
        let reason = match narrowed {
            Ok(narrowed) => lacks(target, narrowed.as_ref().unwrap_or(&program)),
            Err(e) if e.code == Code::Unsupported => Some(e.message),
            Err(e) => return Err(named(e)),
        };
        let Some(reason) = reason else { continue };
        if let Some(ranges) = &mut ranges {
            ranges.forget(&graph, node);
        }
        let ops = graph.cx(node).opt_str("ops")?.unwrap_or(node.op.name);
        let attrs = Attrs::new()
            .with("outputs", encode_types(&types))
            .with("ops", ops)
            .with("program", Arc::new(program))
            .with("reason", format!("{ops}: {reason}"));
        let inputs = node.operands().map(Some).collect();
        graph.nodes[at] = Node { op: &ON_HOST, inputs, attrs, ..node.clone() };
    }
    Ok(graph)
}

/// The reason why a target does not compute a program.
fn lacks(target: &Target, program: &RowProgram) -> Option<String> {
    match target.program(program) {
        Support::Missing(why) => Some(why),
        Support::Native | Support::Expand | Support::Reference => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Builder, InputRole, OutputRole};
    use crate::ops::pointwise::mul::MUL;
    use crate::pass::{fuse, narrow_integers};
    use crate::reference;
    use crate::target::DTypeSet;
    use crate::tensor::Tensor;

    /// A device without wide types.
    fn narrow(has_host: bool) -> Target {
        let mut target = Target { has_host, ..Target::default() };
        target.dtypes.arithmetic = DTypeSet::of(&[DType::I32, DType::F32]);
        target
    }

    /// `x · scale` in f32, whose numbers f64 scales before; and a product of ids beside a sum of them.
    fn model() -> Graph {
        let mut b = Builder::new();
        let x = b.input("x", TensorType::new(DType::F32, [4]), InputRole::User);
        let ids = b.input("ids", TensorType::new(DType::I64, [4]), InputRole::User);
        let doubled = b.scale(x, 2.0).unwrap();
        let wide = b.cast(doubled, DType::F64).unwrap();
        let wide = b.one(&MUL, &[wide, wide], Attrs::new()).unwrap();
        let low = b.cast(wide, DType::F32).unwrap();
        let back = b.add(low, x).unwrap();
        let square = b.one(&MUL, &[ids, ids], Attrs::new()).unwrap();
        let one = b.input("one", TensorType::new(DType::I32, [4]), InputRole::User);
        let next = b.one(&MUL, &[one, one], Attrs::new()).unwrap();
        for (name, v) in [("back", back), ("square", square), ("next", next)] {
            b.output(name, v, OutputRole::User);
        }
        b.finish()
    }

    #[test]
    fn what_the_target_does_not_compute_runs_alone_and_gives_the_same() {
        let target = narrow(true);
        let graph = model();
        let hosted = on_host(graph.clone(), &target).unwrap();
        let fused = narrow_integers(fuse(hosted, &target).unwrap(), &target).unwrap();
        crate::graph::verify(&fused).unwrap();
        let mut reasons = Vec::new();
        for node in &fused.nodes {
            let types: Vec<TensorType> = node.outputs.iter().map(|&v| fused.ty(v).clone()).collect();
            if node.op.name == ON_HOST.name {
                reasons.push(fused.cx(node).opt_str("reason").unwrap().unwrap().to_string());
            } else {
                assert_eq!(target.support(node.op, &fused.cx(node), &types), Support::Native);
            }
        }
        reasons.sort();
        assert_eq!(
            reasons,
            [
                "mul: a result of integers that may need more than 32 bits",
                "mul: generic has no f64 arithmetic",
                "to: generic has no f64 arithmetic",
                "to: generic has no f64 arithmetic",
            ]
        );
        let inputs = [
            Tensor::float(DType::F32, [4], vec![1.0, -2.5, 0.1f32 as f64, 3e20f32 as f64]),
            Tensor::int(DType::I64, [4], vec![3, -5, i32::MAX as i64, 0]),
            Tensor::int(DType::I32, [4], vec![3, -5, i32::MAX as i64, 0]),
        ];
        assert_eq!(reference::run(&fused, &inputs).unwrap(), reference::run(&graph, &inputs).unwrap());
        // The same again changes nothing.
        assert_eq!(on_host(fused.clone(), &target).unwrap().to_string(), fused.to_string());
    }

    #[test]
    fn other_targets_keep_their_graphs() {
        let all = Target { has_host: true, ..Target::default() };
        for target in [all, narrow(false)] {
            let graph = model();
            assert_eq!(on_host(graph.clone(), &target).unwrap().to_string(), graph.to_string());
        }
        assert_eq!(narrow_integers(model(), &narrow(false)).unwrap_err().code, Code::Unsupported);
    }
}
