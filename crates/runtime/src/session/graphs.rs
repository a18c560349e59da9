//! The graphs a session compiles, from the model's own.

use super::Training;
use super::program::gradient_name;
use crate::error::{Error, Result};
use crate::layout::BucketLayout;
use crate::optim::{Groups, names};
use headwater_core::graph::{Def, InputRole, OutputRole, Phase};
use headwater_core::pass::precision::{Level, Properties};
use headwater_core::pass::{self, diff::NoGradient};
use headwater_core::{Builder, DType, Graph, TensorType};

/// Forward and backward of a model's graph in the precision asked for, its loss as the only result, and the
/// parameters without a gradient. Not fused yet.
pub(super) fn differentiated(
    graph: &Graph,
    p: &Properties,
    t: &Training,
) -> Result<(Graph, Vec<NoGradient>)> {
    let mut graph = pass::canonical(mixed(graph, p)?)?;
    // Training needs no other result; what only leads to them is not computed.
    let mut first = true;
    graph.outputs.retain(|o| o.role != OutputRole::User || std::mem::take(&mut first));
    let mut b = Builder::extend(pass::narrow(graph)?);
    let loss = b.graph().outputs.iter().find(|o| o.role == OutputRole::User);
    let none = || Error::Model("the model returns nothing; its first output must be the loss".into());
    let loss = loss.ok_or_else(none)?.value;
    let scale = t.scaled.then(|| b.input(names::LOSS_SCALE, names::loss_scale_type(), InputRole::State));
    let d = pass::differentiate_scaled(b.finish(), loss, scale)?;
    let mut graph = pass::decompose(d.graph)?;
    if let Some((node, fault)) = t.fault {
        graph = pass::inject(&graph, node, fault)?;
    }
    Ok((pass::simplify(graph).graph, d.missing))
}

/// A forward graph in the precision asked for.
pub(super) fn mixed(graph: &Graph, p: &Properties) -> Result<Graph> {
    match p.level {
        Level::O0 => Ok(graph.clone()),
        _ => Ok(pass::mixed(graph, p)?.graph),
    }
}

/// The flat layout of a differentiated graph's gradients, in the order in which they are computed.
pub(super) fn layout(graph: &Graph, groups: &mut Groups) -> Result<BucketLayout> {
    let mut found: Vec<_> = graph
        .outputs
        .iter()
        .filter_map(|o| match o.role {
            OutputRole::Gradient(p) => {
                let computed = match graph.value(o.value).def {
                    Def::Node(n, _) => n.0,
                    Def::Input(_) => 0,
                };
                Some((computed, &graph.inputs[graph.input_index(p)?].name, graph.ty(p)))
            }
            _ => None,
        })
        .collect();
    found.sort_by_key(|f| f.0);
    let grouped = found.into_iter().map(|(_, name, ty)| Ok((name.as_str(), ty, groups.of(name, ty)?)));
    Ok(BucketLayout::new(grouped.collect::<Result<Vec<_>>>()?))
}

/// Turns gradients into additions to their sums, in f32 or wider.
pub(super) fn accumulating(graph: Graph) -> Result<Graph> {
    let mut b = Builder::extend(graph);
    b.phase = Phase::Backward;
    for i in 0..b.graph().outputs.len() {
        let output = &b.graph().outputs[i];
        let OutputRole::Gradient(p) = output.role else { continue };
        let (gradient, at) = (output.value, b.graph().input_index(p));
        let at = at.ok_or_else(|| Error::Model("a gradient of no input".into()))?;
        let name = gradient_name(&b.graph().inputs[at].name);
        let ty = b.ty(gradient).clone();
        let wide = if ty.dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let sum = b.input(name, TensorType::new(wide, ty.shape), InputRole::State);
        let gradient = b.cast(gradient, wide)?;
        let new = b.add(sum, gradient)?;
        let output = &mut b.graph_mut().outputs[i];
        (output.value, output.role) = (new, OutputRole::Mutation(sum));
    }
    Ok(b.finish())
}
