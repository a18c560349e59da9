//! Graphs that several tests start from.
#![allow(dead_code)] // Each test file uses its part.

pub mod large;

use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ops::{Case, Derivative, OpDef, Sample};
use headwater_core::pass::differentiate::gradients;
use headwater_core::{Builder, Graph, Registry, Tensor};

/// One operator on one of its cases, with its gradients for a cotangent that is a further input where it has
/// a rule. Numbers for the inputs come with it.
pub fn graph_of(op: &'static OpDef, case: &Case) -> (Graph, Vec<Tensor>) {
    built(op, case, matches!(op.derivative, Derivative::Rule(_)))
}

fn built(op: &'static OpDef, case: &Case, gradient: bool) -> (Graph, Vec<Tensor>) {
    let mut b = Builder::new();
    let named = |e: headwater_core::Error| format!("{} ({}): {e}", op.name, case.name);
    let inputs: Vec<_> = case
        .inputs
        .iter()
        .enumerate()
        .map(|(i, a)| a.as_ref().map(|a| b.input(format!("x{i}"), a.ty.clone(), InputRole::User)))
        .collect();
    let outputs = b.apply(op, &inputs, case.attrs.clone()).map_err(named).unwrap();
    for (i, &v) in outputs.iter().enumerate() {
        b.output(format!("y{i}"), v, OutputRole::User);
    }
    if gradient {
        let ty = b.ty(outputs[0]).clone();
        if ty.dtype.is_float() {
            let g = b.input("g", ty, InputRole::User);
            let float = |a: &headwater_core::ops::case::CaseInput| a.ty.dtype.is_float() && !a.constant;
            let args = case.inputs.iter().zip(&inputs);
            let wanted: Vec<_> =
                args.filter(|(a, _)| a.as_ref().is_some_and(float)).filter_map(|(_, v)| *v).collect();
            b.phase = headwater_core::graph::Phase::Backward;
            let grads = gradients(&mut b, &[(outputs[0], g)], &wanted).map_err(named).unwrap();
            for (v, g) in wanted.into_iter().zip(grads) {
                if let Some(g) = g {
                    b.output(format!("grad.{v}"), g, OutputRole::Gradient(v));
                }
            }
        }
    }
    let graph = b.finish();
    let mut numbers: Vec<Tensor> = case.draw(1).into_iter().flatten().collect();
    for input in &graph.inputs[numbers.len()..] {
        let ty = graph.ty(input.value);
        let cotangent = Case::new("cotangent").arg(ty.dtype, &ty.shape, Sample::Uniform(-1.0, 1.0));
        numbers.extend(cotangent.draw(2).into_iter().flatten());
    }
    (graph, numbers)
}

/// Every operator on every one of its cases: name, graph and inputs.
pub fn graphs_of_all_operators() -> Vec<(String, Graph, Vec<Tensor>)> {
    all_cases().map(|(op, c)| (op, graph_of(op, &c), c.name)).map(named).collect()
}

/// True if one rank can run the graph by itself.
pub fn is_alone(graph: &Graph) -> bool {
    graph.nodes.iter().all(|n| headwater_core::ops::collective::ranks(&n.attrs) == 1)
}

/// The same without gradients.
pub fn forward_graphs_of_all_operators() -> Vec<(String, Graph, Vec<Tensor>)> {
    all_cases().map(|(op, c)| (op, built(op, &c, false), c.name)).map(named).collect()
}

fn named((op, (graph, numbers), case): (&OpDef, (Graph, Vec<Tensor>), &str)) -> (String, Graph, Vec<Tensor>) {
    (format!("{} ({case})", op.name), graph, numbers)
}

fn all_cases() -> impl Iterator<Item = (&'static OpDef, Case)> {
    Registry::standard().operators().into_iter().flat_map(|op| (op.cases)().into_iter().map(move |c| (op, c)))
}

/// True if two tensors have the same type and the same numbers, bit for bit.
pub fn same_bits(a: &Tensor, b: &Tensor) -> bool {
    use headwater_core::tensor::Data;
    a.ty == b.ty
        && match (&a.data, &b.data) {
            (Data::Float(a), Data::Float(b)) => {
                a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits()))
            }
            (a, b) => a == b,
        }
}
