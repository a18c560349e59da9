//! Pointwise operators over concatenations, computed part by part: the same bits, and fewer programs.

use headwater_core::graph::{InputRole, OutputRole, verify};
use headwater_core::ops::movement::cat::CAT;
use headwater_core::ops::view::slice::SLICE;
use headwater_core::ops::{self, OpDef};
use headwater_core::pass::{decompose, differentiate, distribute, fuse, plan, simplify};
use headwater_core::plan::{Bindings, Plan};
use headwater_core::target::Target;
use headwater_core::{Attrs, Builder, DType, Graph, Tensor, TensorType, ValueId, reference};
use proptest::prelude::*;

fn slice(b: &mut Builder, x: ValueId, dim: i64, start: i64, end: i64) -> ValueId {
    let range = Attrs::new().with("dim", dim).with("start", start).with("end", end).with("step", 1);
    b.one(&SLICE, &[x], range).unwrap()
}

fn unary(b: &mut Builder, op: &'static OpDef, x: ValueId) -> ValueId {
    b.one(op, &[x], Attrs::new()).unwrap()
}

fn cat(b: &mut Builder, parts: &[ValueId], dim: i64) -> ValueId {
    b.one(&CAT, parts, Attrs::new().with("dim", dim)).unwrap()
}

/// `x · cos + rotate_half(x) · sin`, as Hugging Face's Llama spells it, of `[2, 3, 5, width]`.
fn rotary(b: &mut Builder, x: ValueId, width: usize) -> ValueId {
    let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let cos = b.input("cos", ty(&[5, width]), InputRole::User);
    let sin = b.input("sin", ty(&[5, width]), InputRole::User);
    let half = width as i64 / 2;
    let straight = b.mul(x, cos).unwrap();
    let (low, high) = (slice(b, x, 3, 0, half), slice(b, x, 3, half, i64::MAX));
    let minus = unary(b, &ops::pointwise::neg::NEG, high);
    let turned = cat(b, &[minus, low], -1);
    let turned = b.mul(turned, sin).unwrap();
    b.add(straight, turned).unwrap()
}

fn numbers(graph: &Graph) -> Vec<Tensor> {
    let number = |i: usize, k: usize| ((i * 29 + k * 13 + 7) % 19) as f64 / 8.0 - 1.1;
    let tensor = |(i, input): (usize, &headwater_core::graph::Input)| {
        let ty = graph.ty(input.value).clone();
        Tensor::float(ty.dtype, ty.shape.clone(), (0..ty.shape.numel()).map(|k| number(i, k)).collect())
    };
    graph.inputs.iter().enumerate().map(tensor).collect()
}

/// Checks that a graph keeps its bits, in the reference and as a plan.
fn distributed(graph: &Graph) -> Graph {
    let target = Target::default();
    let graph = simplify(decompose(graph.clone()).unwrap()).graph;
    let done = distribute(graph.clone()).unwrap();
    verify(&done).unwrap();
    let (given, before) = (numbers(&graph), reference::run(&graph, &numbers(&graph)).unwrap());
    let fused = fuse(done.clone(), &target).unwrap();
    verify(&fused).unwrap();
    for after in [&done, &fused] {
        let after = reference::run(after, &given).unwrap();
        assert!(before.iter().zip(&after).all(|(a, b)| crate::common::same_bits(a, b)), "{graph}\n{done}");
    }
    let planned = plan(&fused, &Bindings::simple(&fused), &target).unwrap();
    headwater_core::pass::check_plan(&planned).unwrap();
    done
}

fn steps(graph: &Graph) -> Plan {
    let target = Target::default();
    let fused = fuse(graph.clone(), &target).unwrap();
    plan(&fused, &Bindings::simple(&fused), &target).unwrap()
}

#[test]
fn rotary_embeddings_are_one_program_forward_and_one_backward() {
    let mut b = Builder::new();
    // Kernels make the operand and read the result, as projections and attention do.
    let u = b.input("u", TensorType::new(DType::F32, [2, 3, 5, 6]), InputRole::User);
    let p = b.parameter("p", DType::F32, &[6, 8]);
    let x = b.matmul(u, p).unwrap();
    let y = rotary(&mut b, x, 8);
    let w = b.input("w", TensorType::new(DType::F32, [8, 8]), InputRole::User);
    let y = b.matmul(y, w).unwrap();
    let loss = b.sum(y, &[0, 1, 2, 3], false).unwrap();
    b.output("loss", loss, OutputRole::User);
    let graph = b.finish();
    let forward = distributed(&graph);
    let rows = |plan: &Plan| plan.steps.iter().filter(|s| s.op != "matmul" && s.op != "sum").count();
    // Otherwise: `neg` into its place, a copy of the other half, and one program for the rest.
    let before = steps(&simplify(graph.clone()).graph);
    assert_eq!((rows(&before), rows(&steps(&forward))), (3, 1), "{}", steps(&forward));

    let step = decompose(differentiate(graph, loss).unwrap().graph).unwrap();
    let plan = steps(&distributed(&step));
    // One forward, one backward; `full` makes the gradient of the sum, and `reshape` brings that of p to its
    // place.
    let other = ["matmul", "sum", "full", "reshape"];
    let rows: Vec<_> = plan.steps.iter().map(|s| s.op).filter(|op| !other.contains(op)).collect();
    assert_eq!(rows, ["fused", "fused"], "{plan}");
}

#[test]
fn parts_that_a_kernel_makes_are_written_in_their_places() {
    let mut b = Builder::new();
    let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let (x, w) = (b.input("x", ty(&[4, 6]), InputRole::User), b.input("w", ty(&[6, 3]), InputRole::User));
    let product = b.matmul(x, w).unwrap();
    let other = b.input("other", ty(&[4, 2]), InputRole::User);
    let all = cat(&mut b, &[product, other], 1);
    // Another kernel needs the whole.
    let v = b.input("v", ty(&[5, 2]), InputRole::User);
    let y = b.matmul(all, v).unwrap();
    b.output("y", y, OutputRole::User);
    let done = distributed(&b.finish());
    // The operand that the caller gives is copied.
    assert_eq!(steps(&done).steps.iter().filter(|s| s.op == "cat").count(), 1, "{}", steps(&done));
}

#[test]
fn a_concatenation_that_others_read_stays() {
    let mut b = Builder::new();
    let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let (x, y) = (b.input("x", ty(&[4, 6]), InputRole::User), b.input("y", ty(&[4, 2]), InputRole::User));
    let all = cat(&mut b, &[x, y], 1);
    let double = b.scale(all, 2.0).unwrap();
    let sum = b.sum(all, &[1], false).unwrap();
    b.output("double", double, OutputRole::User);
    b.output("sum", sum, OutputRole::User);
    let graph = b.finish();
    let done = distributed(&graph);
    assert_eq!(done.nodes.iter().filter(|n| *n.op == CAT).count(), 1);
    assert_eq!(done.nodes.len(), graph.nodes.len());
}

/// Concatenations, slices and pointwise operators of values `[3, 4]` and `[3, 8]`, at random.
fn random(choices: &[(u8, u8, u8)]) -> Graph {
    let mut b = Builder::new();
    let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let mut narrow = vec![b.parameter("x", DType::F32, &[3, 4]), b.input("y", ty(&[3, 4]), InputRole::User)];
    let mut wide = vec![b.input("z", ty(&[3, 8]), InputRole::User)];
    let small = [b.input("row", ty(&[8]), InputRole::User), b.input("column", ty(&[3, 1]), InputRole::User)];
    for &(op, i, j) in choices {
        let pick = |all: &[ValueId], i: u8| all[i as usize % all.len()];
        let (a, c) = (pick(&narrow, i), pick(&narrow, j));
        let (d, e) = (pick(&wide, i), pick(&wide, j));
        match op % 10 {
            0 => wide.push(cat(&mut b, &[a, c], -1)),
            1 => wide.push(b.mul(d, pick(&small, j)).unwrap()),
            2 => wide.push(b.add(d, e).unwrap()),
            3 => narrow.push(slice(&mut b, d, 1, 0, 4)),
            4 => narrow.push(slice(&mut b, d, 1, 4, 8)),
            5 => narrow.push(unary(&mut b, &ops::pointwise::neg::NEG, a)),
            6 => wide.push(unary(&mut b, &ops::pointwise::gelu::GELU, d)),
            7 => narrow.push(slice(&mut b, d, 1, i64::from(j % 4), i64::from(j % 4) + 4)),
            8 => narrow.push(b.mul(a, c).unwrap()),
            _ => {
                let (tall, low) = (cat(&mut b, &[d, e], 0), i64::from(j % 3));
                wide.push(slice(&mut b, tall, 0, low, low + 3));
            }
        }
    }
    let (last, other) = (*wide.last().unwrap(), *narrow.last().unwrap());
    let (a, c) = (b.sum(last, &[0, 1], false).unwrap(), b.sum(other, &[0, 1], false).unwrap());
    let loss = b.add(a, c).unwrap();
    b.output("loss", loss, OutputRole::User);
    b.output("last", last, OutputRole::User);
    b.finish()
}

proptest! {
    #[test]
    fn random_graphs_keep_their_bits(choices in prop::collection::vec(any::<(u8, u8, u8)>(), 1..24)) {
        let graph = random(&choices);
        distributed(&graph);
        let loss = graph.outputs[0].value;
        let step = differentiate(graph, loss).unwrap().graph;
        distributed(&decompose(step).unwrap());
    }
}
