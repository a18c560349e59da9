//! Sensitivity of a training step to low precision, node by node, measured in f64 in one run. Beside each
//! node is a twin that reads its operands rounded to low precision and rounds its results. Outputs are the
//! distance by which the twin is off, and the change of the loss to first order. The latter is through the
//! gradient at the node's result. The choice of a precision for each node is made from these numbers.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::graph::{Builder, Graph, InputRole, Node, OutputRole, Phase, ValueId};
use crate::ops::pointwise::{mul::MUL, sub::SUB, to::TO};
use crate::ops::{Body, Cost};
use crate::pass::differentiate::gradients;
use crate::pass::upcast::{attributes, upcast_with};

/// A graph in f64 that measures another.
#[derive(Debug)]
pub struct Sensitivity {
    /// Forward, backward and twins, all f64 but for the twins' operands. The inputs are those of the measured
    /// graph, in f64; the outputs are the loss, the gradients, then those of the probes.
    pub graph: Graph,
    /// The measured nodes, in order.
    pub probes: Vec<SensitivityProbe>,
}

/// A measured node and the outputs (f64 scalars) that hold its numbers. Several float results share one
/// measurement.
#[derive(Clone, Debug)]
pub struct SensitivityProbe {
    /// Index among the nodes of the graph as it was given.
    pub node: usize,
    /// Outputs with the sum of squares of a result.
    pub size: Vec<usize>,
    /// Outputs with the sum of squares of its twin's difference.
    pub error: Vec<usize>,
    /// Outputs with the change of the loss to first order: gradient times difference. None for results that
    /// the loss does not depend on.
    pub effect: Vec<usize>,
}

/// True if a node rounds: neither moves elements only, nor draws random numbers, nor is about integers.
pub fn rounds(graph: &Graph, node: &Node) -> bool {
    let float = |v: ValueId| graph.ty(v).dtype.is_float();
    let random =
        |v: ValueId| graph.input_index(v).is_some_and(|i| matches!(graph.inputs[i].role, InputRole::Rng));
    !matches!(node.op.body, Body::View(_) | Body::Copies(_))
        && *node.op != TO
        && !matches!(node.op.cost, Cost::Free)
        && node.operands().any(float)
        && !node.operands().any(random)
        && node.outputs.iter().any(|&v| float(v))
}

/// The measuring graph of a decomposed forward graph, whose first `User` output is the loss.
///
/// # Errors
/// `Gradient` if that is no float scalar; what lifting, differentiation and the twins' type rules refuse.
pub fn sensitivity(graph: &Graph, low: DType) -> Result<Sensitivity> {
    struct Twin {
        node: usize,
        /// Result, difference, and the sums of their squares.
        results: Vec<[ValueId; 4]>,
    }
    let (mut twins, mut at) = (Vec::new(), 0);
    let lifted = upcast_with(graph, DType::F64, |b, node, operands, results| {
        let index = at;
        at += 1;
        if !rounds(graph, node) {
            return Ok(());
        }
        let rounded = operands.iter().map(|v| match *v {
            Some(v) if b.ty(v).dtype.is_float() => b.cast(v, low).map(Some),
            other => Ok(other),
        });
        let rounded = rounded.collect::<Result<Vec<_>>>()?;
        let twin = b.apply(node.op, &rounded, attributes(node, low)?)?;
        let mut measured = Vec::new();
        for (&result, &twin) in results.iter().zip(&twin) {
            if b.ty(result).dtype.is_float() {
                // A stash that the operator keeps in f32 is rounded to f32 alone.
                let twin = b.cast(twin, DType::F64)?;
                let difference = b.one(&SUB, &[twin, result], Attrs::new())?;
                let (size, error) = (dot(b, result, result)?, dot(b, difference, difference)?);
                measured.push([result, difference, size, error]);
            }
        }
        twins.push(Twin { node: index, results: measured });
        Ok(())
    })?;
    let loss = lifted.outputs.iter().find(|o| o.role == OutputRole::User).map(|o| o.value);
    let Some(loss) = loss else { return Err(crate::fail!(Gradient, "the model returns nothing")) };
    let ty = lifted.ty(loss).clone();
    ensure!(ty.dtype.is_float() && ty.shape.numel() == 1, Gradient, "the loss must be one float, it is {ty}");
    let parameters: Vec<(ValueId, String)> = lifted
        .inputs
        .iter()
        .filter(|i| matches!(i.role, InputRole::Parameter { trainable: true, .. }))
        .map(|i| (i.value, format!("grad.{}", i.name)))
        .collect();
    let mut b = Builder::extend(Graph { outputs: Vec::new(), ..lifted });
    b.phase = Phase::Backward;
    b.output("loss", loss, OutputRole::User);
    let results = twins.iter().flat_map(|t| t.results.iter().map(|r| r[0]));
    let wanted: Vec<ValueId> = parameters.iter().map(|p| p.0).chain(results).collect();
    let seed = b.full(&ty, 1.0)?;
    let mut found = gradients(&mut b, &[(loss, seed)], &wanted)?.into_iter();
    for ((parameter, name), gradient) in parameters.into_iter().zip(found.by_ref()) {
        if let Some(g) = gradient {
            b.output(name, g, OutputRole::Gradient(parameter));
        }
    }
    let mut probes = Vec::with_capacity(twins.len());
    for twin in twins {
        let mut probe = SensitivityProbe { node: twin.node, size: vec![], error: vec![], effect: vec![] };
        for ([_, difference, size, error], gradient) in twin.results.into_iter().zip(found.by_ref()) {
            let put = |b: &mut Builder, what: &str, v: ValueId| {
                b.output(format!("{what}.{}", twin.node), v, OutputRole::User);
                b.graph().outputs.len() - 1
            };
            probe.size.push(put(&mut b, "size", size));
            probe.error.push(put(&mut b, "error", error));
            if let Some(g) = gradient {
                let effect = dot(&mut b, g, difference)?;
                probe.effect.push(put(&mut b, "effect", effect));
            }
        }
        probes.push(probe);
    }
    Ok(Sensitivity { graph: b.finish(), probes })
}

/// Σ a·b over all elements.
fn dot(b: &mut Builder, x: ValueId, y: ValueId) -> Result<ValueId> {
    let product = b.one(&MUL, &[x, y], Attrs::new())?;
    let all: Vec<usize> = (0..b.ty(product).shape.rank()).collect();
    b.sum(product, &all, false)
}
