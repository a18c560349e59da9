//! Fusion is exact: random graphs give the same bits in the reference before and after.

use headwater_core::graph::{InputRole, OutputRole, Phase, verify};
use headwater_core::ops::{self, OpDef};
use headwater_core::pass::{canonical, decompose, differentiate, fuse};
use headwater_core::target::Target;
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
    b.input("target", TensorType::new(DType::I64, [3]), InputRole::User);
    let mut small =
        vec![b.input("row", ty(&[4]), InputRole::User), b.input("column", ty(&[3, 1]), InputRole::User)];
    for &(op, i, j) in choices {
        let (a, c) = (full[i as usize % full.len()], full[j as usize % full.len()]);
        let s = small[j as usize % small.len()];
        let new = match op % 12 {
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
            8 => {
                // A result that leads nowhere: it may wait for whatever is fused.
                let mean = b.sum(a, &[0, 1], false).unwrap();
                let name = format!("side.{}", b.graph().outputs.len());
                b.output(name, mean, OutputRole::User);
                continue;
            }
            9 => {
                // Several results of one program, which its gradient reads.
                let attrs = Attrs::new().with("normalized_shape", [4]).with("eps", 1e-5);
                let norm = &ops::norm::layer_norm::LAYER_NORM;
                b.apply(norm, &[Some(a), None, None], attrs).unwrap()[0]
            }
            10 => {
                // The terms of a loss and their mean.
                let target = b.graph().input("target").unwrap().value;
                let attrs = Attrs::new().with("ignore_index", 1);
                let inputs = [Some(a), Some(target), None];
                let terms =
                    b.apply(&ops::loss::cross_entropy::CROSS_ENTROPY_LOSS, &inputs, attrs).unwrap()[0];
                let name = format!("loss.{}", b.graph().outputs.len());
                b.output(name, terms, OutputRole::User);
                b.add(c, terms).unwrap()
            }
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
        if ty.dtype == DType::I64 {
            return Tensor::int(
                ty.dtype,
                ty.shape.clone(),
                (0..ty.shape.numel() as i64).map(|i| i % 3).collect(),
            );
        }
        Tensor::float(ty.dtype, ty.shape.clone(), (0..ty.shape.numel()).map(|i| number(i, k)).collect())
    };
    graph.inputs.iter().enumerate().map(tensor).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn fused_graphs_compute_the_same_bits(choices in prop::collection::vec(any::<(u8, u8, u8)>(), 1..14), low in any::<bool>()) {
        let graph = build(&choices, if low { DType::BF16 } else { DType::F32 });
        let graph = canonical(graph).unwrap();
        let loss = graph.outputs[graph.outputs.len() - 2].value;
        let graph = decompose(differentiate(graph, loss).unwrap().graph).unwrap();
        let fed = inputs(&graph);
        let want = reference::run(&graph, &fed).unwrap();
        let fused = fuse(graph.clone(), &Target::default()).unwrap();
        verify(&fused).unwrap();
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
    let fused = fuse(b.finish(), &Target::default()).unwrap();
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
    let fused = fuse(graph.clone(), &Target::default()).unwrap();
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
    // The backward pass of a linear layer after an activation: products first, then the sum over all rows.
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
    let fused = fuse(graph.clone(), &Target::default()).unwrap();
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
        fuse(b.finish(), &Target::default()).unwrap().nodes.len()
    };
    assert_eq!([nodes(4, 4096), nodes(4, 4097), nodes(128, 4097)], [1, 2, 1]);
    assert_eq!([nodes(128, 1 << 18), nodes(128, (1 << 18) + 1)], [1, 2]);
}

/// Scores in f32 of a linear layer with a bias, their cross-entropy, and gradients.
fn classifier(rows: usize, classes: usize) -> Graph {
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [rows, 3]), InputRole::User);
    let target = b.input("target", TensorType::new(DType::I64, [rows]), InputRole::User);
    let [w, bias] =
        [vec![classes, 3], vec![classes]].map(|s| b.parameter(&s.len().to_string(), DType::F32, &s));
    let scores = b.call(&ops::linear::linear::LINEAR, &[x, w, bias]).unwrap();
    let inputs = [Some(scores), Some(target), None];
    let loss = b.apply(&ops::loss::cross_entropy::CROSS_ENTROPY_LOSS, &inputs, Attrs::new()).unwrap()[0];
    b.output("loss", loss, OutputRole::User);
    let graph = canonical(b.finish()).unwrap();
    let loss = graph.outputs[0].value;
    decompose(differentiate(graph, loss).unwrap().graph).unwrap()
}

#[test]
fn a_loss_and_its_gradient_are_one_program() {
    let labels = |g: &Graph| {
        let ops = g.nodes.iter().filter_map(|n| match n.attrs.get("ops") {
            Some(headwater_core::Attr::Str(ops)) if ops.contains("cross_entropy") => Some(ops.clone()),
            _ => (n.op.name.contains("cross_entropy")).then(|| n.op.name.to_string()),
        });
        ops.collect::<Vec<_>>()
    };
    let graph = classifier(6, 5);
    let fused = fuse(graph.clone(), &Target::default()).unwrap();
    verify(&fused).unwrap();
    let [one] = &labels(&fused)[..] else { panic!("{fused}") };
    assert!(one.contains("cross_entropy+") && one.ends_with("cross_entropy_backward+sum"), "{one}");
    // The weights of the scores are computed once, and neither maximum nor sum is stored.
    let node = fused.nodes.iter().find(|n| n.inputs.len() > 3 && n.outputs.len() == 3).expect("the program");
    let types: Vec<_> = node.outputs.iter().map(|&v| fused.ty(v).to_string()).collect();
    assert_eq!(types, ["f32[6]", "f32[6, 5]", "f32[5]"], "{fused}");
    let program = node.attrs.get("program").unwrap().to_string();
    assert_eq!(program.matches("ExpNonpos").count(), 1, "{program}");
    let inputs = inputs(&graph);
    assert_eq!(reference::run(&graph, &inputs).unwrap(), reference::run(&fused, &inputs).unwrap());
    // Few long rows are divided, which no program does that sums over them as well.
    let [a, b] = [127, 128]
        .map(|rows| labels(&fuse(classifier(rows, 4097), &Target::default()).unwrap())[0].ends_with("sum"));
    assert_eq!([a, b], [false, true]);
}

#[test]
fn kernels_do_not_wait() {
    // As the loss's mean, the product leads nowhere near the second program; but it would be moved with its
    // operands.
    let waits = |product: bool| {
        let mut b = Builder::new();
        let x = b.input("x", TensorType::new(DType::F32, [3, 3]), InputRole::User);
        let h = unary(&mut b, &ops::pointwise::gelu::GELU, x);
        let side = if product { b.matmul(h, h).unwrap() } else { b.sum(h, &[0, 1], false).unwrap() };
        let y = softmax(&mut b, h, -1);
        b.output("side", side, OutputRole::User);
        b.output("y", y, OutputRole::User);
        let graph = b.finish();
        let fused = fuse(graph.clone(), &Target::default()).unwrap();
        let inputs = inputs(&graph);
        assert_eq!(reference::run(&graph, &inputs).unwrap(), reference::run(&fused, &inputs).unwrap());
        fused.nodes.iter().map(|n| n.outputs.len()).collect::<Vec<_>>()
    };
    assert_eq!(waits(true), [1, 1, 1]);
    assert_eq!(waits(false), [2, 1]);
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
    let fused = fuse(graph.clone(), &Target::default()).unwrap();
    verify(&fused).unwrap();
    let phases: Vec<_> = fused.nodes.iter().map(|n| n.phase).collect();
    assert_eq!(phases, [Phase::Forward, Phase::Forward, Phase::Backward], "{fused}");
    let inputs = inputs(&graph);
    assert_eq!(reference::run(&graph, &inputs).unwrap(), reference::run(&fused, &inputs).unwrap());
}

#[test]
fn batch_norm_in_evaluation_is_one_program_with_what_follows_a_convolution() {
    // A residual block's end: both branches are normalised, added, rectified, and averaged by channel.
    let mut b = Builder::new();
    let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let [x, shortcut] = ["x", "shortcut"].map(|name| b.input(name, ty(&[2, 3, 4, 5]), InputRole::User));
    let [mean, variance] = ["mean", "variance"].map(|name| b.input(name, ty(&[3]), InputRole::User));
    let mut norm = |v: ValueId| {
        let inputs = [Some(v), Some(mean), None, Some(mean), Some(variance)];
        let attrs = Attrs::new().with("eps", 4.0);
        b.apply(&ops::norm::batch_norm::BATCH_NORM_EVAL, &inputs, attrs).unwrap()[0]
    };
    let (x, shortcut) = (norm(x), norm(shortcut));
    let y = b.add(x, shortcut).unwrap();
    let y = unary(&mut b, &ops::pointwise::relu::RELU, y);
    let pooled = b.sum(y, &[2, 3], false).unwrap();
    b.output("y", y, OutputRole::User);
    b.output("pooled", pooled, OutputRole::User);
    let graph = b.finish();
    let fused = fuse(graph.clone(), &Target::default()).unwrap();
    assert_eq!(fused.nodes.len(), 1, "{fused}");
    let inputs = inputs(&graph);
    assert_eq!(reference::run(&graph, &inputs).unwrap(), reference::run(&fused, &inputs).unwrap());
}
