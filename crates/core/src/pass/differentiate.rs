//! Reverse-mode differentiation: appends the backward nodes that turn cotangents of some values into
//! gradients of some inputs (a vector-Jacobian product). Training is the case of one scalar, the loss, with
//! cotangent 1 and every trainable parameter requested.
//!
//! Gradients of a value used several times are added in the reverse order of its uses. So the result depends
//! on the graph alone. There is no silent zero: an input without a gradient is reported with a reason.

use crate::diagnostic::{Code, Error, Result};
use crate::graph::{Builder, Graph, Input, InputRole, OutputRole, Phase, ValueId};
use crate::ops::{Body, Derivative, GradCx};
use crate::{ensure, fail};

/// A trainable parameter, or another requested input, that gets no gradient, and why.
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
    /// Forward and backward; gradients are outputs of role `Gradient`, named `grad.<input>`.
    pub graph: Graph,
    /// Requested inputs without one.
    pub missing: Vec<NoGradient>,
    /// Requested inputs with one: the positions of the cotangents that it is made of, ascending.
    pub depends: Vec<(String, Vec<usize>)>,
}

/// Differentiates output `loss` (a scalar float) with respect to every trainable parameter.
///
/// # Errors
/// `Gradient` if the loss is not a float scalar, or an operator on the way has no derivative here.
pub fn differentiate(graph: Graph, loss: ValueId) -> Result<Differentiated> {
    differentiate_scaled(graph, loss, None)
}

/// As [`differentiate`], of the loss times `scale`, a float scalar of the graph: gradients come out
/// multiplied by it.
///
/// # Errors
/// As [`differentiate`].
pub fn differentiate_scaled(graph: Graph, loss: ValueId, scale: Option<ValueId>) -> Result<Differentiated> {
    let trainable = |i: &&Input| matches!(i.role, InputRole::Parameter { trainable: true, .. });
    let wanted: Vec<ValueId> = graph.inputs.iter().filter(trainable).map(|i| i.value).collect();
    let ty = graph.ty(loss).clone();
    ensure!(ty.dtype.is_float() && ty.shape.numel() == 1, Gradient, "the loss must be one float, it is {ty}");
    let forward = graph.nodes.len();
    let mut b = Builder::extend(graph);
    b.phase = Phase::Backward;
    let seed = match scale {
        Some(scale) => {
            let scale = b.cast(scale, ty.dtype)?;
            b.reshape(scale, &ty.shape)?
        }
        None => b.full(&ty, 1.0)?,
    };
    append(b, forward, "loss", &[(loss, seed)], &wanted)
}

/// The vector-Jacobian product: gradients of the inputs `wanted`, given the cotangents of some values as
/// further values of the graph, such as inputs. Each cotangent has its value's type. A value that is listed
/// twice counts with the sum of its cotangents.
///
/// # Errors
/// `Gradient` if a value with a cotangent is not of floats, or is not of its cotangent's type. It is
/// `Gradient` too if a requested value is not an input of the graph, or is requested twice. So it is if an
/// operator on the way has no derivative here.
pub fn vjp(graph: Graph, cotangents: &[(ValueId, ValueId)], wanted: &[ValueId]) -> Result<Differentiated> {
    for &(v, cotangent) in cotangents {
        for v in [v, cotangent] {
            ensure!((v.0 as usize) < graph.values.len(), Gradient, "there is no value {v}");
        }
        let (ty, given) = (graph.ty(v), graph.ty(cotangent));
        ensure!(ty.dtype.is_float(), Gradient, "{v} is {ty}, and only floats have cotangents");
        ensure!(ty == given, Gradient, "{v} is {ty}, its cotangent is {given}: it must have the same type");
    }
    for (i, v) in wanted.iter().enumerate() {
        let input = graph.inputs.iter().any(|input| input.value == *v);
        ensure!(input, Gradient, "{v} is no input of the graph: only inputs get gradients");
        ensure!(!wanted[..i].contains(v), Gradient, "the gradient of {v} is wanted twice");
    }
    let forward = graph.nodes.len();
    let mut b = Builder::extend(graph);
    b.phase = Phase::Backward;
    append(b, forward, "result", cotangents, wanted)
}

/// Appends the gradients of `wanted` as outputs. `forward` is the number of nodes of the forward pass, `end`
/// what reasons call the values with cotangents.
fn append(
    mut b: Builder,
    forward: usize,
    end: &str,
    cotangents: &[(ValueId, ValueId)],
    wanted: &[ValueId],
) -> Result<Differentiated> {
    let Flow { grads, ends } = flow(&mut b, cotangents, wanted)?;
    let reaches = reaching(b.graph(), cotangents.iter().map(|c| c.0));
    let (mut missing, mut depends) = (Vec::new(), Vec::new());
    for ((&v, grad), ends) in wanted.iter().zip(grads).zip(ends) {
        let input = b.graph().input_index(v).ok_or_else(|| fail!(Gradient, "{v} is no input"))?;
        let name = b.graph().inputs[input].name.clone();
        match grad {
            Some(g) => {
                b.output(format!("grad.{name}"), g, OutputRole::Gradient(v));
                depends.push((name, ends));
            }
            None => {
                let reason = why_none(b.graph(), forward, &reaches, end, v);
                missing.push(NoGradient { parameter: name, reason });
            }
        }
    }
    Ok(Differentiated { graph: b.finish(), missing, depends })
}

/// Appends nodes that compute the gradients of `wanted`, given `seeds` (value, its gradient). `None` where no
/// path leads. Walks nodes in order, without recursion: depth costs no stack.
///
/// # Errors
/// `Gradient` or `Graph` if an operator on the way has no derivative here, and what its rule refuses.
pub fn gradients(
    b: &mut Builder,
    seeds: &[(ValueId, ValueId)],
    wanted: &[ValueId],
) -> Result<Vec<Option<ValueId>>> {
    Ok(flow(b, seeds, wanted)?.grads)
}

/// Gradients of requested values, and for each the positions of the seeds that it is made of.
struct Flow {
    grads: Vec<Option<ValueId>>,
    ends: Vec<Vec<usize>>,
}

fn flow(b: &mut Builder, seeds: &[(ValueId, ValueId)], wanted: &[ValueId]) -> Result<Flow> {
    let forward = b.graph().nodes.len();
    // needs[v]: v depends on something requested through differentiable operators.
    let mut needs = vec![false; b.graph().values.len()];
    wanted.iter().for_each(|&v| needs[v.0 as usize] = b.graph().ty(v).dtype.is_float());
    for node in &b.graph().nodes {
        let stops = matches!(node.op.derivative, Derivative::NotDifferentiable(_));
        if !stops && node.operands().any(|v| needs[v.0 as usize]) {
            for &v in &node.outputs {
                needs[v.0 as usize] = b.graph().ty(v).dtype.is_float();
            }
        }
    }
    let mut grads: Vec<Option<ValueId>> = vec![None; needs.len()];
    // Sets of seeds, as bits; without a bit, none.
    let words = seeds.len().div_ceil(64);
    let mut ends: Vec<Vec<u64>> = vec![Vec::new(); needs.len()];
    for (seed, &(v, g)) in seeds.iter().enumerate() {
        accumulate(b, &mut grads, v, g)?;
        let set = &mut ends[v.0 as usize];
        set.resize(words, 0);
        set[seed / 64] |= 1 << (seed % 64);
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
        let mut from = vec![0; words];
        for v in &node.outputs {
            from.iter_mut().zip(&ends[v.0 as usize]).for_each(|(all, own)| *all |= own);
        }
        for (v, g) in node.inputs.iter().zip(found) {
            if let (Some(v), Some(g)) = (v, g) {
                accumulate(b, &mut grads, *v, g)?;
                let set = &mut ends[v.0 as usize];
                set.resize(words, 0);
                set.iter_mut().zip(&from).for_each(|(all, own)| *all |= own);
            }
        }
    }
    let listed = |v: &ValueId| {
        let set = &ends[v.0 as usize];
        (0..seeds.len())
            .filter(|seed| set.get(seed / 64).is_some_and(|word| word >> (seed % 64) & 1 == 1))
            .collect()
    };
    let ends = wanted.iter().map(listed).collect();
    Ok(Flow { grads: wanted.iter().map(|v| grads[v.0 as usize]).collect(), ends })
}

fn accumulate(b: &mut Builder, grads: &mut [Option<ValueId>], v: ValueId, g: ValueId) -> Result<()> {
    let slot = &mut grads[v.0 as usize];
    *slot = Some(match *slot {
        Some(before) => b.add(before, g)?,
        None => g,
    });
    Ok(())
}

/// The values that some of `ends` depend on, through whatever operators.
fn reaching(graph: &Graph, ends: impl Iterator<Item = ValueId>) -> Vec<bool> {
    let mut reaches = vec![false; graph.values.len()];
    ends.for_each(|v| reaches[v.0 as usize] = true);
    for node in graph.nodes.iter().rev() {
        if node.outputs.iter().any(|v| reaches[v.0 as usize]) {
            node.operands().for_each(|v| reaches[v.0 as usize] = true);
        }
    }
    reaches
}

/// The reason why no gradient reaches an input from the first `forward` nodes: where its way to the `end`
/// stops.
fn why_none(graph: &Graph, forward: usize, reaches: &[bool], end: &str, parameter: ValueId) -> String {
    if !graph.ty(parameter).dtype.is_float() {
        return format!("it is {}, and only floats have gradients", graph.ty(parameter));
    }
    // Values with a differentiable way from the parameter.
    let mut from = vec![false; graph.values.len()];
    from[parameter.0 as usize] = true;
    let mut first = None;
    for node in graph.nodes[..forward].iter().filter(|n| n.outputs.iter().any(|v| reaches[v.0 as usize])) {
        if !node.operands().any(|v| from[v.0 as usize]) {
            continue;
        }
        let at = format!("{} ({})", node.op.name, graph.origin(node));
        if let Derivative::NotDifferentiable(why) = node.op.derivative {
            return format!("its way to the {end} ends at {at}: {why}");
        }
        let floats = |v: &&ValueId| graph.ty(**v).dtype.is_float();
        if !node.outputs.iter().any(|v| floats(&v)) {
            return format!("its way to the {end} ends at {at}, whose result is not of floats");
        }
        node.outputs.iter().filter(floats).for_each(|v| from[v.0 as usize] = true);
        first.get_or_insert(at);
    }
    let used = graph.nodes[..forward].iter().find(|n| n.operands().any(|v| v == parameter));
    match (first, used) {
        (Some(at), _) => {
            format!("the {end} does not change with it, by the derivatives of the operators from {at} on")
        }
        (None, Some(user)) => format!(
            "it is used, first by {} ({}), but the {end} does not depend on that",
            user.op.name,
            graph.origin(user)
        ),
        (None, None) => "the model never uses it".into(),
    }
}
