//! Recomputation: the same bits, in less memory, by programs that do not sum.

use crate::common::same_bits;
use headwater_core::graph::{InputRole, Node, OutputRole, Phase, verify};
use headwater_core::ops::control::fused::FUSED;
use headwater_core::ops::{self, Body, OpDef};
use headwater_core::pass::{check_plan, decompose, differentiate, fuse, plan, recompute, simplify};
use headwater_core::plan::Bindings;
use headwater_core::row::Instr;
use headwater_core::target::Target;
use headwater_core::{Attrs, Builder, DType, Graph, Tensor, TensorType, ValueId, reference};
use proptest::prelude::*;

fn one(b: &mut Builder, op: &'static OpDef, x: ValueId, attrs: Attrs) -> ValueId {
    b.one(op, &[x], attrs).unwrap()
}

fn linear(b: &mut Builder, name: &str, x: ValueId, out: usize) -> ValueId {
    let (dtype, shape) = (b.ty(x).dtype, b.ty(x).shape.clone());
    let w = b.parameter(name, dtype, &[shape[shape.rank() - 1], out]);
    b.matmul(x, w).unwrap()
}

/// The sum of squares as the loss; forward and backward, fused.
fn differentiated(mut b: Builder, y: ValueId) -> Graph {
    let square = b.mul(y, y).unwrap();
    let dims: Vec<usize> = (0..b.ty(y).shape.rank()).collect();
    let loss = b.sum(square, &dims, false).unwrap();
    b.graph_mut().outputs.insert(
        0,
        headwater_core::graph::Output { value: loss, name: "loss".into(), role: OutputRole::User },
    );
    let graph = decompose(b.finish()).unwrap();
    let loss = graph.outputs[0].value;
    fuse(simplify(decompose(differentiate(graph, loss).unwrap().graph).unwrap()).graph, &Target::default())
        .unwrap()
}

fn feed(graph: &Graph) -> Vec<Tensor> {
    let number = |i: usize, k: usize| ((i * 31 + k * 17 + 5) % 23) as f64 / 12.0 - 0.9;
    let tensor = |(k, i): (usize, &headwater_core::graph::Input)| {
        let ty = graph.ty(i.value);
        match ty.dtype.is_float() {
            true => Tensor::float(
                ty.dtype,
                ty.shape.clone(),
                (0..ty.shape.numel()).map(|i| number(i, k)).collect(),
            ),
            false => Tensor::full(ty, 3.0),
        }
    };
    graph.inputs.iter().enumerate().map(tensor).collect()
}

fn arena(graph: &Graph) -> usize {
    let plan = plan(graph, &Bindings::simple(graph), &Target::default()).unwrap();
    check_plan(&plan).unwrap();
    plan.segments[0].bytes
}

/// Recomputes a fused graph, checks that it still computes the same, and returns it with how many programs
/// were added.
fn checked(graph: &Graph) -> (Graph, usize) {
    let again = recompute(graph.clone(), &Target::default()).unwrap();
    verify(&again).unwrap();
    let fed = feed(graph);
    let want = reference::run(graph, &fed).unwrap();
    let got = reference::run(&again, &fed).unwrap();
    for ((o, a), b) in graph.outputs.iter().zip(&want).zip(&got) {
        assert!(same_bits(a, b), "{}\n{again}", o.name);
    }
    let count = |g: &Graph, what: &dyn Fn(&Node) -> bool| g.nodes.iter().filter(|n| what(n)).count();
    let kernel = |n: &Node| matches!(n.op.body, Body::Kernel(_));
    assert_eq!(count(&again, &kernel), count(graph, &kernel), "a kernel runs twice");
    let forward = |n: &Node| n.phase == Phase::Forward;
    assert!(count(&again, &forward) <= count(graph, &forward), "made in the forward pass");
    let of = |g: &Graph, n: &Node| match n.op.body {
        Body::Rows(program) => {
            let types: Vec<TensorType> = n.outputs.iter().map(|&v| g.ty(v).clone()).collect();
            let sum = |i: &&Instr| matches!(i, Instr::Reduce(..) | Instr::Columns(..));
            program(&g.cx(n), &types).unwrap().body.iter().filter(sum).count()
        }
        _ => 0,
    };
    let sums = |g: &Graph| g.nodes.iter().map(|n| of(g, n)).sum::<usize>();
    assert_eq!(sums(&again), sums(graph), "a sum is made twice\n{again}");
    let rows = |n: &Node| matches!(n.op.body, Body::Pointwise(_) | Body::Rows(_));
    let added = count(&again, &rows).saturating_sub(count(graph, &rows));
    (again, added)
}

const SILU: &OpDef = &ops::pointwise::silu::SILU;

/// Layers of a norm before a gated linear unit, as in Llama.
fn gated(layers: usize, norm: &'static OpDef, dtype: DType) -> Graph {
    let mut b = Builder::new();
    let mut x = b.input("x", TensorType::new(dtype, [2, 8, 16]), InputRole::User);
    for i in 0..layers {
        let w = b.parameter(&format!("norm{i}"), dtype, &[16]);
        let attrs = Attrs::new().with("normalized_shape", [16]).with("eps", 1e-5);
        let inputs = [Some(x), Some(w), None];
        let inputs = if norm.name == "layer_norm" { &inputs[..] } else { &inputs[..2] };
        let h = b.apply(norm, inputs, attrs).unwrap()[0];
        let (gate, up) =
            (linear(&mut b, &format!("gate{i}"), h, 32), linear(&mut b, &format!("up{i}"), h, 32));
        let gate = one(&mut b, SILU, gate, Attrs::new());
        let h = b.mul(gate, up).unwrap();
        let h = linear(&mut b, &format!("down{i}"), h, 16);
        x = b.add(x, h).unwrap();
    }
    differentiated(b, x)
}

#[test]
fn norms_and_gated_units_are_made_again() {
    for norm in [&ops::norm::rms_norm::RMS_NORM, &ops::norm::layer_norm::LAYER_NORM] {
        let graph = gated(4, norm, DType::F64);
        let (again, programs) = checked(&graph);
        // For each layer the norm's result and the gated product, for the weights' gradients. The product is
        // made by the program that makes the gradients of what it is made from; for the norm too much would
        // wait. The part of silu that `up` needs is made where it is used.
        assert_eq!(programs, 4, "{again}");
        // Kept of a layer are three products and the norm's operand; no longer the norm's result, silu and
        // the product.
        let dropped = 4 * (16 * 16 + 2 * 16 * 32) * 8;
        let (kept, again) = (arena(&graph), arena(&again));
        // One layer's share is live while that layer's gradients are computed.
        assert!(again + dropped / 2 <= kept, "{kept} bytes, {again} with recomputation");
    }
}

#[test]
fn weights_are_cast_once() {
    let mut b = Builder::new();
    let mut x = b.input("x", TensorType::new(DType::BF16, [2, 8, 16]), InputRole::User);
    for i in 0..3 {
        // Two weights that are cast and multiplied as one, and one that is cast transposed.
        let pair = [0, 1].map(|k| b.parameter(&format!("pair{i}.{k}"), DType::F32, &[16, 16]));
        let pair = b.one(&ops::movement::cat::CAT, &pair, Attrs::new().with("dim", 1)).unwrap();
        let pair = b.cast(pair, DType::BF16).unwrap();
        let h = b.matmul(x, pair).unwrap();
        let h = one(&mut b, SILU, h, Attrs::new());
        let down = b.parameter(&format!("down{i}"), DType::F32, &[16, 32]);
        let down = b.cast(down, DType::BF16).unwrap();
        let down = b.transpose_last(down).unwrap();
        let h = b.matmul(h, down).unwrap();
        x = b.add(x, h).unwrap();
    }
    let x = b.cast(x, DType::F32).unwrap();
    let graph = differentiated(b, x);
    let (again, _) = checked(&graph);
    let silu =
        |g: &Graph| g.nodes.iter().filter(|n| n.phase != Phase::Forward).flat_map(|n| &n.outputs).count();
    assert!(silu(&again) > silu(&graph), "silu is made again, beside its gradient\n{again}");
    let weight = |g: &Graph, v: ValueId| {
        let ty = g.ty(v);
        ty.dtype == DType::BF16 && ty.shape.numel() == 16 * 32 && ty.shape.rank() == 2
    };
    let casts = |g: &Graph| {
        let made = |n: &&Node| matches!(n.op.body, Body::Pointwise(_) | Body::Rows(_));
        g.nodes.iter().filter(made).flat_map(|n| n.outputs.clone()).filter(|&v| weight(g, v)).count()
    };
    assert_eq!((casts(&graph), casts(&again)), (6, 6), "{again}");
}

#[test]
fn what_is_made_again_belongs_to_the_backward_pass_and_names_its_line() {
    let graph = gated(2, &ops::norm::rms_norm::RMS_NORM, DType::F32);
    let again = recompute(graph.clone(), &Target::default()).unwrap();
    let programs = |g: &Graph| -> Vec<(String, Phase)> {
        g.nodes.iter().filter(|n| n.op == &FUSED).map(|n| (n.attrs.to_string(), n.phase)).collect()
    };
    let had = programs(&graph);
    let new: Vec<_> = programs(&again).into_iter().filter(|p| !had.contains(p)).collect();
    assert!(new.iter().any(|(_, phase)| *phase == Phase::Backward), "{again}");
    for node in &again.nodes {
        let from = |n: &&Node| n.origin == node.origin;
        assert!(graph.nodes.iter().any(|n| from(&n)), "{}", again.origin(node));
    }
}

#[test]
fn batch_norm_and_relu_are_made_again_from_the_kept_sums() {
    let mut b = Builder::new();
    let mut x = b.input("x", TensorType::new(DType::F64, [2, 4, 6, 6]), InputRole::User);
    for i in 0..4 {
        let w = b.parameter(&format!("w{i}"), DType::F64, &[4, 4, 3, 3]);
        let attrs = Attrs::new()
            .with("stride", [1, 1])
            .with("padding", [1, 1])
            .with("dilation", [1, 1])
            .with("groups", 1);
        x = b.apply(&ops::conv::convolution::CONVOLUTION, &[Some(x), Some(w), None], attrs).unwrap()[0];
        let [w, c] = ["weight", "bias"].map(|n| b.parameter(&format!("{n}{i}"), DType::F64, &[4]));
        let [mean, var] = ["mean", "var"].map(|n| {
            let role = InputRole::Buffer { persistent: true };
            b.input(format!("{n}{i}"), TensorType::new(DType::F64, [4]), role)
        });
        let attrs = Attrs::new().with("eps", 1e-5).with("momentum", 0.1);
        let inputs = [x, w, c, mean, var].map(Some);
        let out = b.apply(&ops::norm::batch_norm::BATCH_NORM_TRAIN, &inputs, attrs).unwrap();
        b.output(format!("mean{i}"), out[3], OutputRole::Mutation(mean));
        b.output(format!("var{i}"), out[4], OutputRole::Mutation(var));
        x = one(&mut b, &ops::pointwise::relu::RELU, out[0], Attrs::new());
    }
    let graph = differentiated(b, x);
    let (again, programs) = checked(&graph);
    assert!(programs >= 3, "{again}");
    assert!(arena(&again) < arena(&graph));
}

#[test]
fn dropout_draws_once_and_its_mask_is_kept() {
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F64, [8, 16]), InputRole::User);
    let mut y = x;
    for i in 0..4 {
        let h = linear(&mut b, &format!("in{i}"), y, 64);
        let h = one(&mut b, SILU, h, Attrs::new());
        let dropout = Attrs::new().with("p", 0.5).with("train", true);
        let h = one(&mut b, &ops::random::dropout::DROPOUT, h, dropout);
        y = linear(&mut b, &format!("out{i}"), h, 16);
    }
    let graph = differentiated(b, y);
    let (again, _) = checked(&graph);
    assert!(arena(&again) < arena(&graph));
    let draws = |g: &Graph| g.nodes.iter().filter(|n| n.op.name == "philox_uniform").count();
    assert_eq!((draws(&graph), draws(&again)), (4, 4));
}

#[test]
fn results_are_kept_and_so_is_what_would_take_more_to_make() {
    // A result of the graph is live anyway. A sum of many operands needs them all.
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F64, [8, 16]), InputRole::User);
    let parts: Vec<ValueId> = (0..4).map(|i| linear(&mut b, &format!("w{i}"), x, 16)).collect();
    let sum = parts[1..].iter().fold(parts[0], |a, &p| b.add(a, p).unwrap());
    let y = linear(&mut b, "last", sum, 16);
    let h = one(&mut b, SILU, y, Attrs::new());
    b.output("h", h, OutputRole::User);
    let z = linear(&mut b, "z", h, 16);
    let graph = differentiated(b, z);
    let (again, programs) = checked(&graph);
    assert_eq!((programs, again.to_string()), (0, graph.to_string()));
}

#[test]
fn long_chains_are_cut() {
    // Each link is kept for its own derivative and could be made from the one before.
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F64, [8, 16]), InputRole::User);
    let mut h = linear(&mut b, "in", x, 16);
    for _ in 0..200 {
        h = one(&mut b, &ops::pointwise::tanh::TANH, h, Attrs::new());
        h = one(&mut b, &ops::pointwise::sin::SIN, h, Attrs::new());
    }
    let graph = differentiated(b, h);
    let (again, programs) = checked(&graph);
    assert!(arena(&again) < arena(&graph));
    assert!(programs < 200 * 32, "{programs}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn any_graph_keeps_its_bits(choices in prop::collection::vec(any::<(u8, u8, u8)>(), 1..16)) {
        let mut b = Builder::new();
        let mut all = vec![b.parameter("x", DType::F64, &[4, 4])];
        all.push(b.input("y", TensorType::new(DType::F64, [4, 4]), InputRole::User));
        for &(op, i, j) in &choices {
            let (x, y) = (all[i as usize % all.len()], all[j as usize % all.len()]);
            let new = match op % 9 {
                0 => b.add(x, y).unwrap(),
                1 => b.mul(x, y).unwrap(),
                2 => one(&mut b, &ops::pointwise::gelu::GELU, x, Attrs::new()),
                3 => one(&mut b, &ops::pointwise::relu::RELU, x, Attrs::new()),
                4 => b.transpose_last(x).unwrap(),
                5 => b.matmul(x, y).unwrap(),
                6 => one(&mut b, &ops::norm::softmax::SOFTMAX, x, Attrs::new().with("dim", -1)),
                7 => {
                    let attrs = Attrs::new().with("normalized_shape", [4]).with("eps", 1e-5);
                    b.apply(&ops::norm::layer_norm::LAYER_NORM, &[Some(x), None, None], attrs).unwrap()[0]
                }
                _ => {
                    let flat = b.reshape(x, &[2, 8]).unwrap();
                    let flat = one(&mut b, SILU, flat, Attrs::new());
                    b.reshape(flat, &[4, 4]).unwrap()
                }
            };
            all.push(new);
        }
        let last = *all.last().unwrap();
        checked(&differentiated(b, last));
    }
}
