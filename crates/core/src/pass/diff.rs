//! Reverse-mode differentiation: appends the backward nodes and names a gradient for every trainable parameter.
//!
//! Gradients of a value used several times are added in the reverse order of its uses, so the result does not depend on
//! anything but the graph. There is no silent zero: a parameter without a gradient is reported with a reason.

use crate::diagnostic::{Code, Error, Result};
use crate::ensure;
use crate::graph::{Builder, Graph, InputRole, OutputRole, Phase, ValueId};
use crate::ops::{Body, Derivative, GradCx};

/// A trainable parameter that gets no gradient, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct NoGradient {
    /// Its name.
    pub parameter: String,
    /// Why.
    pub reason: String,
}

/// A differentiated graph.
#[derive(Debug)]
pub struct Differentiated {
    /// Forward and backward; gradients are outputs of role `Gradient`, named `grad.<parameter>`.
    pub graph: Graph,
    /// Parameters without one.
    pub missing: Vec<NoGradient>,
}

/// Differentiates output `loss` (a scalar float) with respect to every trainable parameter.
///
/// # Errors
/// `Gradient` if the loss is not a float scalar, or an operator on the way has no derivative here.
pub fn differentiate(graph: Graph, loss: ValueId) -> Result<Differentiated> {
    let wanted: Vec<ValueId> = graph
        .inputs
        .iter()
        .filter(|i| matches!(i.role, InputRole::Parameter { trainable: true, .. }))
        .map(|i| i.value)
        .collect();
    let ty = graph.ty(loss).clone();
    ensure!(ty.dtype.is_float() && ty.shape.numel() == 1, Gradient, "the loss must be one float, it is {ty}");
    let mut b = Builder::extend(graph);
    b.phase = Phase::Backward;
    let seed = b.full(&ty, 1.0)?;
    let grads = gradients(&mut b, &[(loss, seed)], &wanted)?;
    let mut missing = Vec::new();
    for (v, grad) in wanted.into_iter().zip(grads) {
        let at = b.graph().input_index(v).expect("a parameter is an input");
        let name = b.graph().inputs[at].name.clone();
        match grad {
            Some(g) => b.output(format!("grad.{name}"), g, OutputRole::Gradient(v)),
            None => missing.push(NoGradient { reason: why_none(b.graph(), v), parameter: name }),
        }
    }
    Ok(Differentiated { graph: b.finish(), missing })
}

/// Appends nodes that compute the gradients of `wanted`, given `seeds` (value, its gradient). `None` where no path leads.
pub fn gradients(
    b: &mut Builder,
    seeds: &[(ValueId, ValueId)],
    wanted: &[ValueId],
) -> Result<Vec<Option<ValueId>>> {
    let forward = b.graph().nodes.len();
    // needs[v]: v depends on something wanted through differentiable operators.
    let mut needs = vec![false; b.graph().values.len()];
    wanted.iter().for_each(|v| needs[v.0 as usize] = true);
    for node in &b.graph().nodes {
        let stops = matches!(node.op.derivative, Derivative::NotDifferentiable(_));
        if !stops && node.operands().any(|v| needs[v.0 as usize]) {
            for &v in &node.outputs {
                needs[v.0 as usize] = b.graph().ty(v).dtype.is_float();
            }
        }
    }
    let mut grads: Vec<Option<ValueId>> = vec![None; needs.len()];
    for &(v, g) in seeds {
        accumulate(b, &mut grads, v, g)?;
    }
    for n in (0..forward).rev() {
        let node = &b.graph().nodes[n];
        if !node.outputs.iter().any(|v| grads[v.0 as usize].is_some()) {
            continue;
        }
        let wants: Vec<bool> = node.inputs.iter().map(|v| v.is_some_and(|v| needs[v.0 as usize])).collect();
        if !wants.iter().any(|&w| w) {
            continue;
        }
        let rule = match (node.op.derivative, node.op.body) {
            (Derivative::NotDifferentiable(_), _) => continue,
            (Derivative::Rule(rule), _) => rule,
            (Derivative::ByDecomposition, Body::Decompose(_)) => {
                return Err(Error::new(Code::Graph, "decompose before differentiating").in_op(node.op.name));
            }
            (Derivative::ByDecomposition, _) => {
                let e = Error::new(
                    Code::Gradient,
                    "its derivative is that of its decomposition, but it has none",
                );
                return Err(e.in_op(node.op.name).at(b.graph().origin(node)));
            }
        };
        let node = node.clone();
        let cotangents: Vec<_> = node.outputs.iter().map(|v| grads[v.0 as usize]).collect();
        b.origin = node.origin;
        let mut cx = GradCx::new(b, &node, &cotangents, &wants);
        let result = rule(&mut cx);
        let found = std::mem::take(&mut cx.grads);
        result.map_err(|e| e.in_op(node.op.name).at(b.graph().origin(&node)))?;
        for (v, g) in node.inputs.iter().zip(found) {
            if let (Some(v), Some(g)) = (v, g) {
                accumulate(b, &mut grads, *v, g)?;
            }
        }
    }
    Ok(wanted.iter().map(|v| grads[v.0 as usize]).collect())
}

fn accumulate(b: &mut Builder, grads: &mut [Option<ValueId>], v: ValueId, g: ValueId) -> Result<()> {
    let slot = &mut grads[v.0 as usize];
    *slot = Some(match *slot {
        Some(before) => b.add(before, g)?,
        None => g,
    });
    Ok(())
}

/// Why no gradient reaches an input.
fn why_none(graph: &Graph, v: ValueId) -> String {
    let Some(user) = graph.nodes.iter().find(|n| n.operands().any(|o| o == v)) else {
        return "the model never uses it".into();
    };
    let stop = graph.nodes.iter().find(|n| {
        matches!(n.op.derivative, Derivative::NotDifferentiable(_)) && n.operands().any(|o| o == v)
    });
    match stop.map(|n| (n, n.op.derivative)) {
        Some((n, Derivative::NotDifferentiable(why))) => {
            format!(
                "it is used by {}, through which no gradient flows: {why} ({})",
                n.op.name,
                graph.origin(n)
            )
        }
        _ => format!(
            "no differentiable path leads from it to the loss; it is first used at {}",
            graph.origin(user)
        ),
    }
}
