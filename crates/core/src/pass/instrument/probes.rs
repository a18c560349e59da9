//! Probes of the value of each node, and a fault injected at one of them.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, Graph, InputRole, NodeId, OriginId, OutputRole, Phase, ValueId};
use crate::ops::OpDef;
use crate::ops::movement::cat::CAT;
use crate::ops::pointwise::{abs::ABS, where_self::WHERE};
use crate::ops::reduce::amax::AMAX;
use crate::pass::rebuild::{rebuild, same};
use crate::tensor::TensorType;

/// A node that is looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probe {
    /// Its operator.
    pub op: &'static OpDef,
    /// The model's line it comes from.
    pub origin: OriginId,
    /// Part of the step.
    pub phase: Phase,
    /// Dtype of its first float result.
    pub dtype: DType,
    /// True if it follows from the loss scale: a gradient, and no value of the forward pass that the backward
    /// pass computes again.
    pub scaled: bool,
}

/// By value, true if it follows from the loss scale.
pub(super) fn scaled(graph: &Graph, scale: Option<ValueId>) -> Vec<bool> {
    let mut scaled = vec![false; graph.values.len()];
    if let Some(scale) = scale {
        scaled[scale.0 as usize] = true;
    }
    for node in &graph.nodes {
        if node.operands().any(|v| scaled[v.0 as usize]) {
            node.outputs.iter().for_each(|v| scaled[v.0 as usize] = true);
        }
    }
    scaled
}

/// The graph with one result in the place of all it had, f32 `[probes]`. It is the largest magnitude in the
/// first float result of each node that has one, in order; NaN where there is a NaN. It changes no state, and
/// draws the same random numbers. `scale` is the input that is the loss scale, if there is one.
///
/// # Errors
/// Refusals of type rules: none for a legal graph.
pub fn probes(graph: &Graph, scale: Option<ValueId>) -> Result<(Graph, Vec<Probe>)> {
    let (mut probes, mut found, scaled) = (Vec::new(), Vec::new(), scaled(graph, scale));
    let mut probed = rebuild(graph, same, |b, node, operands| {
        let outputs = b.apply(node.op, operands, node.attrs.clone())?;
        let float = outputs.iter().copied().find(|&v| b.ty(v).dtype.is_float() && b.ty(v).shape.numel() > 0);
        if let Some(v) = float {
            let dtype = b.ty(v).dtype;
            let magnitude = b.call(&ABS, &[v])?;
            let largest = b.one(&AMAX, &[magnitude], Attrs::new())?;
            let largest = b.cast(largest, DType::F32)?;
            found.push(b.reshape(largest, &[1])?);
            let scaled = node.outputs.iter().any(|v| scaled[v.0 as usize]);
            probes.push(Probe { op: node.op, origin: node.origin, phase: node.phase, dtype, scaled });
        }
        Ok(outputs)
    })?;
    probed.outputs.clear();
    let mut b = Builder::extend(probed);
    if !found.is_empty() {
        let all = b.one(&CAT, &found, Attrs::new().with("dim", 0))?;
        b.output("probes", all, OutputRole::User);
    }
    Ok((b.finish(), probes))
}

/// The fault at a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every element is inf.
    Inf,
    /// Every element is NaN.
    Nan,
    /// Every element is multiplied by 2⁻⁶⁰, which brings what f16 holds below its range.
    Tiny,
}

/// Name of the input, a bool of role `State`, that makes a fault happen.
pub const FAULT: &str = "fault";

/// The graph with a fault in the first float result of a node, where the input [`FAULT`] is true. A node
/// without such a result is left alone.
///
/// # Errors
/// Refusals of type rules: none for a legal graph.
pub fn inject(graph: &Graph, at: NodeId, fault: Fault) -> Result<Graph> {
    let mut position = 0;
    rebuild(graph, same, |b, node, operands| {
        let mut outputs = b.apply(node.op, operands, node.attrs.clone())?;
        let here = position == at.0;
        position += 1;
        if let (true, Some(v)) = (here, outputs.iter_mut().find(|v| b.ty(**v).dtype.is_float())) {
            *v = faulty(b, *v, fault)?;
        }
        Ok(outputs)
    })
}

fn faulty(b: &mut Builder, v: ValueId, fault: Fault) -> Result<ValueId> {
    let ty = TensorType::new(DType::Bool, [0usize; 0]);
    let on = b.input(FAULT, ty, InputRole::State);
    let choose = |b: &mut Builder, inputs: &[ValueId], attrs: Attrs| b.one(&WHERE, inputs, attrs);
    match fault {
        Fault::Inf => choose(b, &[on, v], Attrs::new().with("self", f64::INFINITY)),
        Fault::Nan => choose(b, &[on, v], Attrs::new().with("self", f64::NAN)),
        Fault::Tiny => {
            let tiny = Attrs::new().with("self", (-60f64).exp2()).with("other", 1.0);
            let factor = choose(b, &[on], tiny)?;
            // The factor is f32, and so is its product with a scalar.
            let product = b.mul(v, factor)?;
            b.cast(product, b.ty(v).dtype)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tensor, reference};

    #[test]
    fn a_fault_shows_first_at_its_node_and_only_when_it_is_on() {
        let mut b = Builder::new();
        let x = b.input("x", TensorType::new(DType::F32, [2]), InputRole::User);
        let y = b.scale(x, 2.0).unwrap();
        let y = b.add(y, x).unwrap();
        let y = b.scale(y, 4.0).unwrap();
        b.output("y", y, OutputRole::User);
        let graph = b.finish();
        for (fault, on, want) in [
            (Fault::Inf, true, [2.0, 3.0, f64::INFINITY, f64::INFINITY]),
            (Fault::Nan, true, [2.0, 3.0, f64::NAN, f64::NAN]),
            (Fault::Tiny, true, [2.0, 3.0, 3.0 * (-60f64).exp2(), 12.0 * (-60f64).exp2()]),
            (Fault::Nan, false, [2.0, 3.0, 3.0, 12.0]),
        ] {
            let (probed, probes) = probes(&inject(&graph, NodeId(1), fault).unwrap(), None).unwrap();
            crate::graph::verify(&probed).unwrap();
            let inputs = [
                Tensor::float(DType::F32, [2], vec![1.0, -0.5]),
                Tensor::int(DType::Bool, [0usize; 0], vec![on as i64]),
            ];
            let seen = reference::run(&probed, &inputs).unwrap()[0].to_f64();
            // Between are those of what the fault is made of.
            let last = seen.len() - 2;
            let named = [seen[0], seen[1], seen[last], seen[last + 1]];
            assert_eq!(probes.len(), seen.len());
            assert_eq!(format!("{named:?}"), format!("{want:?}"), "{fault:?}");
        }
    }
}
