//! The evaluation form of a graph exported in training mode. As after `module.eval()`, it has no
//! dropout, no random masks, running statistics instead of the batch's, and mutates nothing. Runs on the
//! graph as imported, before decomposition.

use super::rebuild::{rebuild, same};
use crate::attr::{Attr, Attrs};
use crate::diagnostic::Result;
use crate::graph::{Graph, Node, OutputRole};

/// Rewrites every operator that behaves differently in training, and drops all outputs but the user's.
///
/// Masks that the model draws are their means. That is what `module.eval()` makes of stochastic depth, whose
/// mask is divided by its probability; a mask that is not keeps its mean as a factor, and one that chooses
/// mixes both sides, where the module in evaluation mode may leave it out. Other random numbers, and Python
/// branches on `self.training`, are in the graph as they were traced and stay.
///
/// # Errors
/// Refusals of the type rules: none for an exported model.
pub fn evaluation(graph: &Graph) -> Result<Graph> {
    let mut still = graph.clone();
    super::masks_as_means(&mut still);
    let mut graph = rebuild(&still, same, |b, node, operands| b.apply(node.op, operands, evaluating(node)))?;
    graph.outputs.retain(|o| o.role == OutputRole::User);
    Ok(graph)
}

/// Sets the rate of every dropout to 0, of attention and recurrent layers too, and leaves all else as in
/// training. Batch norm uses the batch's statistics and counts. Values keep their ids. Returns the number of
/// nodes changed.
///
/// Numbers drawn otherwise stay random; those that are masks are `masks_as_means`' subject.
pub fn without_dropout(graph: &mut Graph) -> usize {
    let mut changed = 0;
    for node in &mut graph.nodes {
        let own = node.op.name.contains("dropout").then_some("p");
        for rate in own.into_iter().chain(["dropout_p", "dropout"]) {
            let drops = match node.attrs.get(rate) {
                Some(Attr::Float(p)) => *p != 0.0,
                Some(Attr::Int(p)) => *p != 0,
                _ => false,
            };
            let off = matches!(node.attrs.get("train"), Some(Attr::Bool(false)));
            if drops && !off {
                node.attrs.set(rate, Attr::Float(0.0));
                changed += 1;
            }
        }
    }
    changed
}

/// A node's attributes in evaluation, under the names that all of ATen's operators share.
fn evaluating(node: &Node) -> Attrs {
    let mut attrs = node.attrs.clone();
    // Norms without running statistics use the batch's in evaluation too.
    let has_statistics = node.inputs.get(3).is_some_and(Option::is_some);
    for (name, value) in [
        ("train", Some(Attr::Bool(false))),
        ("dropout_p", Some(Attr::Float(0.0))),
        ("training", has_statistics.then_some(Attr::Bool(false))),
        ("use_input_stats", has_statistics.then_some(Attr::Bool(false))),
    ] {
        if let (Some(_), Some(value)) = (attrs.get(name), value) {
            attrs.set(name, value);
        }
    }
    attrs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::InputRole;
    use crate::ops::norm::batch_norm::BATCH_NORM;
    use crate::ops::random::dropout::DROPOUT;
    use crate::{Builder, DType, Tensor, TensorType, pass, reference};

    #[test]
    fn rates_of_dropout_become_zero_and_ids_stay() {
        let mut b = Builder::new();
        let x = b.input("x", TensorType::new(DType::F64, [4, 5]), InputRole::User);
        let with = |p: f64, train: bool| Attrs::new().with("p", p).with("train", train);
        let on = b.one(&DROPOUT, &[x], with(0.5, true)).unwrap();
        let off = b.one(&DROPOUT, &[on], with(0.5, false)).unwrap();
        let never = b.one(&DROPOUT, &[off], with(0.0, true)).unwrap();
        b.output("y", never, OutputRole::User);
        let mut graph = b.finish();
        assert_eq!((without_dropout(&mut graph), without_dropout(&mut graph)), (1, 0));
        assert_eq!(graph.outputs[0].value, never);
        let graph = pass::simplify(pass::decompose(graph).unwrap()).graph;
        assert_eq!(graph.nodes.len(), 0, "all of it is the identity");
    }

    #[test]
    fn dropout_is_gone_and_running_statistics_are_used() {
        let mut b = Builder::new();
        let input = |b: &mut Builder, name: &str, shape: &[usize], role| {
            b.input(name, TensorType::new(DType::F64, shape), role)
        };
        let x = input(&mut b, "x", &[2, 3], InputRole::User);
        let buffer = InputRole::Buffer { persistent: true };
        let mean = input(&mut b, "mean", &[3], buffer.clone());
        let var = input(&mut b, "var", &[3], buffer);
        let attrs = Attrs::new().with("p", 0.5).with("train", true);
        let dropped = b.one(&DROPOUT, &[x], attrs).unwrap();
        let attrs = Attrs::new().with("training", true).with("momentum", 0.1).with("eps", 0.0);
        let y = b.apply(&BATCH_NORM, &[Some(dropped), None, None, Some(mean), Some(var)], attrs).unwrap();
        b.output("y", y[0], OutputRole::User);
        b.output("mean", y[3], OutputRole::Mutation(mean));
        let graph = evaluation(&b.finish()).unwrap();
        assert_eq!(graph.outputs.len(), 1);
        let graph = pass::simplify(pass::decompose(graph).unwrap()).graph;
        let t = |shape: &[usize], v: &[f64]| Tensor::float(DType::F64, shape, v.to_vec());
        let inputs =
            [t(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), t(&[3], &[1.0, 1.0, 1.0]), t(&[3], &[4.0; 3])];
        let inputs: Vec<Tensor> = graph
            .inputs
            .iter()
            .map(|i| match i.name.as_str() {
                "x" => inputs[0].clone(),
                "mean" => inputs[1].clone(),
                _ => inputs[2].clone(),
            })
            .collect();
        let y = reference::run(&graph, &inputs).unwrap();
        assert_eq!(y[0].floats(), [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]);
    }
}
