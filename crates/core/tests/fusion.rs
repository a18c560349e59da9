//! Fusion is exact: random graphs give the same bits in the reference before and after.

use headwater_core::graph::{InputRole, OutputRole, Phase, verify};
use headwater_core::ops::{self, OpDef};
use headwater_core::pass::{decompose, differentiate, fuse};
use headwater_core::{Attrs, Builder, DType, Graph, Tensor, TensorType, ValueId, reference};
use proptest::prelude::*;

fn softmax(b: &mut Builder, x: ValueId, dim: i64) -> ValueId {
    b.one(&ops::norm::softmax::SOFTMAX, &[x], Attrs::new().with("dim", dim)).unwrap()
}

fn unary(b: &mut Builder, op: &'static OpDef, x: ValueId) -> ValueId {
    b.one(op, &[x], Attrs::new()).unwrap()
}

/// A graph from a list of choices: each appends an operator on earlier values of shape [3, 4], [4] or [3, 1].
fn build(choices: &[(u8, u8, u8)], dtype: DType) -> Graph {
    let mut b = Builder::new();
    let ty = |shape: &[usize]| TensorType::new(dtype, shape);
    let x = b.parameter("x", dtype, &[3, 4]);
    let mut full = vec![x, b.input("y", ty(&[3, 4]), InputRole::User)];
    let mut small =
        vec![b.input("row", ty(&[4]), InputRole::User), b.input("column", ty(&[3, 1]), InputRole::User)];
    for &(op, i, j) in choices {
        let (a, c) = (full[i as usize % full.len()], full[j as usize % full.len()]);
        let s = small[j as usize % small.len()];
        let new = match op % 9 {
            0 => b.add(a, c).unwrap(),
            1 => b.mul(a, s).unwrap(),
            2 => unary(&mut b, &ops::pointwise::gelu::GELU, a),
            3 => softmax(&mut b, a, (j % 2) as i64),
            4 => {
                let t = b.permute(a, &[1, 0]).unwrap();
                let t = unary(&mut b, &ops::pointwise::gelu::GELU, t);
                b.permute(t, &[1, 0]).unwrap()
            }
            5 => {
                let sum = b.sum(a, &[1], true).unwrap();
                small.push(sum);
                b.add(c, sum).unwrap()
            }
            6 => {
                let sum = b.sum(a, &[0], false).unwrap();
                small.push(sum);
                b.mul(c, sum).unwrap()
            }
            7 => b.scale(a, 0.5).unwrap(),
            _ => {
                let k = b.full(&ty(&[3, 4]), 0.25).unwrap();
                b.add(a, k).unwrap()
            }
        };
        full.push(new);
    }
    let last = *full.last().unwrap();
    let loss = b.sum(last, &[0, 1], false).unwrap();
    b.output("loss", loss, OutputRole::User);
    b.output("last", last, OutputRole::User);
    b.finish()
}

fn inputs(graph: &Graph) -> Vec<Tensor> {
    let number = |i: usize, k: usize| ((i * 31 + k * 17 + 5) % 23) as f64 / 12.0 - 0.9;
    let tensor = |(k, i): (usize, &headwater_core::graph::Input)| {
        let ty = graph.ty(i.value);
        Tensor::float(ty.dtype, ty.shape.clone(), (0..ty.shape.numel()).map(|i| number(i, k)).collect())
    };
    graph.inputs.iter().enumerate().map(tensor).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn fused_graphs_compute_the_same_bits(choices in prop::collection::vec(any::<(u8, u8, u8)>(), 1..14), low in any::<bool>()) {
        let graph = build(&choices, if low { DType::BF16 } else { DType::F32 });
        let loss = graph.outputs[0].value;
        let graph = decompose(differentiate(graph, loss).unwrap().graph).unwrap();
        let fed = inputs(&graph);
        let want = reference::run(&graph, &fed).unwrap();
        let fused = fuse(graph.clone()).unwrap();
        prop_assert!(fused.nodes.len() <= graph.nodes.len());
        let got = reference::run(&fused, &fed).unwrap();
        for ((o, a), b) in graph.outputs.iter().zip(&want).zip(&got) {
            prop_assert_eq!(a.to_bytes(), b.to_bytes(), "{}", o.name);
        }
    }
}

#[test]
fn a_chain_becomes_one_node_and_stores_what_others_need() {
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [2, 8]), InputRole::User);
    let h = unary(&mut b, &ops::pointwise::gelu::GELU, x);
    let h2 = b.scale(h, 2.0).unwrap();
    let y = softmax(&mut b, h2, -1);
    let z = b.mul(y, x).unwrap();
    b.output("h", h, OutputRole::User);
    b.output("z", z, OutputRole::User);
    let fused = fuse(b.finish()).unwrap();
    assert_eq!(fused.nodes.len(), 1);
    assert_eq!(fused.nodes[0].outputs.len(), 2);
}

#[test]
fn narrow_values_are_widened_where_they_are_read() {
    // Logits in bf16 that two programs read in f32: neither stores them in f32.
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::BF16, [3, 4]), InputRole::User);
    let wide = b.cast(x, DType::F32).unwrap();
    let y = b.mul(wide, wide).unwrap();
    let total = b.sum(y, &[0], false).unwrap();
    let scaled = b.mul(wide, total).unwrap();
    b.output("y", scaled, OutputRole::User);
    let graph = b.finish();
    let fused = fuse(graph.clone()).unwrap();
    let types = |g: &Graph| {
        let made = g.nodes.iter().flat_map(|n| &n.outputs).map(|&v| g.ty(v).to_string());
        made.collect::<Vec<_>>()
    };
    assert_eq!(types(&fused), ["f32[4]", "f32[3, 4]"], "{fused}");
    let x = Tensor::float(DType::BF16, [3, 4], (0..12).map(|i| i as f64 / 8.0).collect::<Vec<_>>());
    let run = |g: &Graph| reference::run(g, std::slice::from_ref(&x)).unwrap();
    assert_eq!(run(&graph), run(&fused));
}

#[test]
fn the_gradient_of_a_bias_is_summed_where_what_it_sums_is_made() {
    // The backward pass of a linear layer behind an activation: products first, then the sum over all rows.
    let mut b = Builder::new();
    let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let g = b.input("g", ty(&[2, 3, 4]), InputRole::User);
    let x = b.input("x", ty(&[2, 3, 4]), InputRole::User);
    let w = b.input("w", ty(&[4, 5]), InputRole::User);
    let dy = b.mul(g, x).unwrap();
    let rows = b.reshape(dy, &[6, 4]).unwrap();
    let dx = b.matmul(rows, w).unwrap();
    let bias = b.sum(rows, &[0], false).unwrap();
    b.output("dx", dx, OutputRole::User);
    b.output("bias", bias, OutputRole::User);
    let graph = b.finish();
    let fused = fuse(graph.clone()).unwrap();
    let names: Vec<_> = fused.nodes.iter().map(|n| n.op.name).collect();
    assert_eq!(names, ["fused", "reshape", "matmul"], "{fused}");
    assert_eq!(fused.cx(&fused.nodes[0]).opt_str("ops").unwrap(), Some("mul+sum"));
    let number =
        |k: usize, n: usize| (0..n).map(|i| ((i * 7 + k * 3) % 11) as f64 / 4.0 - 1.0).collect::<Vec<_>>();
    let inputs = [
        Tensor::float(DType::F32, [2, 3, 4], number(0, 24)),
        Tensor::float(DType::F32, [2, 3, 4], number(1, 24)),
        Tensor::float(DType::F32, [4, 5], number(2, 20)),
    ];
    assert_eq!(reference::run(&graph, &inputs).unwrap(), reference::run(&fused, &inputs).unwrap());
}

#[test]
fn sums_of_few_long_rows_stay_apart() {
    let nodes = |rows: usize, cols: usize| {
        let mut b = Builder::new();
        let x = b.input("x", TensorType::new(DType::F32, [rows, cols]), InputRole::User);
        let attrs = Attrs::new().with("dim", -1);
        let y = b.apply(&ops::norm::softmax::SOFTMAX, &[Some(x)], attrs).unwrap()[0];
        let bias = b.sum(y, &[0], false).unwrap();
        b.output("y", y, OutputRole::User);
        b.output("bias", bias, OutputRole::User);
        fuse(b.finish()).unwrap().nodes.len()
    };
    assert_eq!([nodes(4, 4096), nodes(4, 4097), nodes(128, 4097)], [1, 2, 1]);
    assert_eq!([nodes(128, 1 << 18), nodes(128, (1 << 18) + 1)], [1, 2]);
}

#[test]
fn a_sum_of_the_backward_pass_takes_nothing_of_the_forward_pass_along() {
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [3, 4]), InputRole::User);
    let h = unary(&mut b, &ops::pointwise::gelu::GELU, x);
    let w = b.input("w", TensorType::new(DType::F32, [4, 2]), InputRole::User);
    let y = b.matmul(h, w).unwrap();
    b.phase = Phase::Backward;
    let sum = b.sum(h, &[0], false).unwrap();
    b.output("y", y, OutputRole::User);
    b.output("sum", sum, OutputRole::User);
    let graph = b.finish();
    let fused = fuse(graph.clone()).unwrap();
    verify(&fused).unwrap();
    let phases: Vec<_> = fused.nodes.iter().map(|n| n.phase).collect();
    assert_eq!(phases, [Phase::Forward, Phase::Forward, Phase::Backward], "{fused}");
    let inputs = inputs(&graph);
    assert_eq!(reference::run(&graph, &inputs).unwrap(), reference::run(&fused, &inputs).unwrap());
}
