//! Lifting: one float dtype everywhere, integers and numbers as written.

use crate::common::forward_graphs_of_all_operators;
use headwater_core::graph::{Graph, parse, verify};
use headwater_core::pass::upcast;
use headwater_core::{Code, DType, Registry, Tensor, ops, reference};

fn parsed(nodes: &str) -> Graph {
    let graph = parse(&format!("headwater graph 1\n{nodes}\n@0 = \"\""), Registry::standard()).unwrap();
    verify(&graph).unwrap();
    graph
}

/// The types of all values, and the text.
#[track_caller]
fn lifted(nodes: &str, dtype: DType) -> String {
    let graph = upcast(&parsed(nodes), dtype).unwrap();
    verify(&graph).unwrap();
    graph.to_string()
}

#[test]
fn inputs_casts_factories_and_constants_are_lifted() {
    let text = lifted(
        "%0 = parameter \"w\" : bf16[2]
        %1 = user \"i\" : i64[2]
        %2 = to(%0, dtype=f32) : f32[2]
        %3 = full(dtype=f32, fill_value=-3.4028234663852886e38, size=[2]) : f32[2]
        %4 = constant(value=f32[2]{0.10000000149011612, 2.0}) : f32[2]
        %5 = to(%1, dtype=f16) : f16[2]
        %6 = to(%1, dtype=i32) : i32[2]
        %7 = add(%2, %3) : f32[2]
        output \"w\" = %7
        output \"grad\" = %0 gradient of %0",
        DType::F64,
    );
    for line in [
        "%0 = parameter \"w\" : f64[2]",
        "%1 = user \"i\" : i64[2]",
        "%2 = to(%0, dtype=f64) : f64[2]",
        // Numbers stay as written: the mask is still the most negative f32, the constant still 0.1 as f32 has
        // it.
        "%3 = full(dtype=f64, fill_value=-3.4028234663852886e38, size=[2]) : f64[2]",
        "%4 = constant(value=f64[2]{0.10000000149011612, 2.0}) : f64[2]",
        "%5 = to(%1, dtype=f64) : f64[2]",
        "%6 = to(%1, dtype=i32) : i32[2]",
        "%7 = add(%2, %3) : f64[2]",
        "output \"grad\" = %0 gradient of %0",
    ] {
        assert!(text.contains(line), "{line}\nis not in\n{text}");
    }
}

#[test]
fn floats_made_of_integers_are_made_in_that_dtype() {
    // `full` without a dtype, and arithmetic of integers with a float, give the default dtype.
    let text = lifted(
        "%0 = user \"i\" : i64[2]
        %1 = full(fill_value=0.1, size=[2]) : f32[2]
        %2 = mul(%0, other=0.1) : f32[2]
        output \"a\" = %1
        output \"b\" = %2",
        DType::F64,
    );
    assert!(text.contains("full(dtype=f64, fill_value=0.1, size=[2]) : f64[2]"), "{text}");
    assert!(text.contains("mul(%2, other=0.1) : f64[2]"), "{text}");
    let graph = parse(&text, Registry::standard()).unwrap();
    let got = reference::run(&graph, &[Tensor::int(DType::I64, [2], vec![1, 3])]).unwrap();
    assert_eq!(got[1].floats(), [0.1, 0.1 * 3.0]);
}

#[test]
fn what_f16_cannot_hold_becomes_its_largest_number() {
    let graph = parsed(
        "%0 = full(dtype=f32, fill_value=-3.4028234663852886e38, size=[1]) : f32[1]
        output \"mask\" = %0",
    );
    let got = reference::run(&upcast(&graph, DType::F16).unwrap(), &[]).unwrap();
    assert_eq!(got[0], Tensor::float(DType::F16, [1], vec![-65504.0]));
    assert_eq!(upcast(&graph, DType::I64).unwrap_err().code, Code::DType);
}

#[test]
fn every_operator_lifts_to_every_float_dtype() {
    for (name, graph, inputs) in forward_graphs_of_all_operators() {
        // Operators that only passes make come after lifting, and state their own dtypes.
        let ours = |op: &ops::OpDef| op.schemas.iter().all(|s| s.starts_with("headwater::"));
        if graph.nodes.iter().any(|n| n.op.name == "fused") {
            assert_eq!(upcast(&graph, DType::F32).unwrap_err().code, Code::Graph);
        }
        if graph.nodes.iter().any(|n| ours(n.op)) {
            continue;
        }
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let lifted = match upcast(&graph, dtype) {
                // As in PyTorch, decompositions of matrices and quantiles have no form in 16 bits.
                Err(e) if dtype.size() == 2 && e.message.contains("f32 or f64, got") => {
                    continue;
                }
                lifted => lifted.unwrap_or_else(|e| panic!("{name} to {dtype}: {e}")),
            };
            verify(&lifted).unwrap_or_else(|e| panic!("{name} to {dtype}: {e}"));
            for (a, b) in graph.outputs.iter().zip(&lifted.outputs) {
                let (a, b) = (graph.ty(a.value), lifted.ty(b.value));
                assert_eq!((a.dtype.class(), &a.shape), (b.dtype.class(), &b.shape), "{name} to {dtype}");
            }
            // It runs on its inputs in that dtype.
            let cast = |t: &Tensor| if t.dtype().is_float() { t.cast(dtype) } else { t.clone() };
            let inputs: Vec<Tensor> = inputs.iter().map(cast).collect();
            reference::run(&lifted, &inputs).unwrap_or_else(|e| panic!("{name} to {dtype}: {e}"));
        }
    }
}
