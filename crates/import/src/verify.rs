//! Rules for a model's JSON, checked before anything is made of it. Every name is defined once and before its
//! use, every tensor has metadata, the signature fits the graph.

use crate::error::{Result, refuse, shown};
use crate::schema::{Argument, Graph, InputSpec, Model, Node, OutputSpec};
use std::collections::HashSet;

/// Checks a model.
pub(crate) fn model(model: &Model) -> Result<()> {
    let (top, signature) = (&model.graph_module.graph, &model.graph_module.signature);
    graph(top)?;
    if signature.input_specs.len() != top.inputs.len() {
        let (a, b) = (signature.input_specs.len(), top.inputs.len());
        return Err(refuse!(Signature, "the signature names {a} inputs, the graph has {b}"));
    }
    for (spec, input) in signature.input_specs.iter().zip(&top.inputs) {
        input_spec(spec, input)?;
    }
    if signature.output_specs.len() != top.outputs.len() {
        let (a, b) = (signature.output_specs.len(), top.outputs.len());
        return Err(refuse!(Signature, "the signature names {a} outputs, the graph has {b}"));
    }
    for (spec, output) in signature.output_specs.iter().zip(&top.outputs) {
        let same = match spec {
            OutputSpec::UserOutput { arg } => first_name(arg) == first_name(output),
            OutputSpec::LossOutput { arg }
            | OutputSpec::BufferMutation { arg, .. }
            | OutputSpec::GradientToParameter { arg, .. }
            | OutputSpec::GradientToUserInput { arg, .. }
            | OutputSpec::UserInputMutation { arg, .. }
            | OutputSpec::Token { arg }
            | OutputSpec::ParameterMutation { arg, .. } => first_name(output) == Some(&arg.name),
        };
        if !same {
            let name = shown(first_name(output).unwrap_or("a constant"));
            return Err(refuse!(Signature, "output `{name}` of the graph is another one in the signature"));
        }
    }
    Ok(())
}

fn first_name(arg: &Argument) -> Option<&str> {
    let mut first = None;
    arg.names(&mut |n| {
        first.get_or_insert(n);
    });
    first
}

fn input_spec(spec: &InputSpec, input: &Argument) -> Result<()> {
    let wrong =
        |name: &str| refuse!(Signature, "input `{}` of the signature is not that of the graph", shown(name));
    match spec {
        InputSpec::UserInput { arg } if first_name(arg) == first_name(input) => match (arg, input) {
            (Argument::AsTensor(_), Argument::AsTensor(_)) => Ok(()),
            (Argument::AsTensor(t), _) => Err(wrong(&t.name)),
            _ => Ok(()),
        },
        InputSpec::UserInput { arg } => Err(wrong(first_name(arg).unwrap_or("?"))),
        InputSpec::Parameter { arg, .. }
        | InputSpec::Buffer { arg, .. }
        | InputSpec::TensorConstant { arg, .. } => match input {
            Argument::AsTensor(t) if t.name == arg.name => Ok(()),
            _ => Err(wrong(&arg.name)),
        },
        InputSpec::ConstantInput { .. } => Ok(()),
        InputSpec::CustomObj { arg, custom_obj_name } => Err(refuse!(
            Pickle,
            "input `{}` is the custom object `{}`, stored as a pickle, which is never opened",
            shown(&arg.name),
            shown(custom_obj_name)
        )),
        InputSpec::Token { arg } => Err(refuse!(
            Signature,
            "input `{}` is an effect token; export without side effects (printing, custom effects)",
            shown(&arg.name)
        )),
    }
}

fn graph(g: &Graph) -> Result<()> {
    let mut defined: HashSet<&str> = HashSet::with_capacity(g.tensor_values.len());
    for input in &g.inputs {
        define(input, g, &mut defined)?;
    }
    for meta in g.tensor_values.values() {
        // The codes PyTorch has; which of them are supported is decided where a tensor is used.
        if !matches!(meta.dtype, 1..=13 | 28..=35) {
            return Err(refuse!(DType, "a tensor has the unknown dtype code {}", meta.dtype));
        }
        if meta.sizes.len() != meta.strides.len() || meta.sizes.len() > MAX_RANK {
            return Err(refuse!(
                Json,
                "a tensor has {} sizes and {} strides; there must be as many, and at most {MAX_RANK}",
                meta.sizes.len(),
                meta.strides.len()
            ));
        }
    }
    for node in &g.nodes {
        for input in &node.inputs {
            let mut used = Ok(());
            input.arg.names(&mut |n| {
                if used.is_ok() {
                    used = known(n, &defined, node);
                }
            });
            used?;
            if let Argument::AsGraph(sub) = &input.arg {
                graph(&sub.graph)?;
            }
        }
        for output in &node.outputs {
            define(output, g, &mut defined).map_err(|e| e.at(&node.trace.origin(node.label())))?;
        }
    }
    for output in &g.outputs {
        let mut missing = None;
        output.names(&mut |n| {
            if !defined.contains(n) {
                missing.get_or_insert(n);
            }
        });
        if let Some(n) = missing {
            return Err(refuse!(Name, "the graph returns `{}`, which nothing defines", shown(n)));
        }
    }
    Ok(())
}

/// PyTorch allows 64 dimensions.
const MAX_RANK: usize = 64;

fn known(name: &str, defined: &HashSet<&str>, node: &Node) -> Result<()> {
    if defined.contains(name) {
        return Ok(());
    }
    let e =
        refuse!(Name, "`{}` uses `{}`, which nothing before it defines", shown(node.label()), shown(name));
    Err(e.at(&node.trace.origin(node.label())))
}

fn define<'a>(arg: &'a Argument, g: &Graph, defined: &mut HashSet<&'a str>) -> Result<()> {
    let mut result = Ok(());
    let tensors = matches!(
        arg,
        Argument::AsTensor(_)
            | Argument::AsTensors(_)
            | Argument::AsNestedTensors(_)
            | Argument::AsOptionalTensor(_)
            | Argument::AsOptionalTensors(_)
    );
    arg.names(&mut |n| {
        if result.is_err() {
        } else if !defined.insert(n) {
            result = Err(refuse!(Name, "`{}` is defined twice", shown(n)));
        } else if tensors && !g.tensor_values.contains_key(n) {
            result = Err(refuse!(Name, "the tensor `{}` has no metadata", shown(n)));
        }
    });
    result
}
