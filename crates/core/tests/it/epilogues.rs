//! Bias gradients in the step of the weight gradient: the same numbers, a step less.

use crate::common::same_bits;
use headwater_core::compile::{Goal, Options, optimize};
use headwater_core::graph::{InputRole, OutputRole, verify};
use headwater_core::ops::linear::matmul_sum::MATMUL_SUM;
use headwater_core::ops::{Body, OpCx, OpDef};
use headwater_core::target::{Operators, Port, Support, Target};
use headwater_core::{Builder, DType, Graph, Tensor, TensorType, ValueId, pass, reference};
use std::sync::Arc;

/// Rows, columns of the gradient, and of what it is multiplied by.
const SIZES: [usize; 3] = [5, 4, 3];

/// Sums of the rows of `g`, and its product with `x`: `gᵀ · x`, or `xᵀ · g` if `right`.
fn gradients(dtype: DType, right: bool, uses: impl FnOnce(&mut Builder, ValueId) -> ValueId) -> Graph {
    let [rows, n, k] = SIZES;
    let mut b = Builder::new();
    let [g, x] = [("g", n), ("x", k)]
        .map(|(name, n)| b.input(name, TensorType::new(dtype, [rows, n]), InputRole::User));
    let sum = b.sum(g, &[0], false).unwrap();
    let sum = uses(&mut b, sum);
    let (left, other) = if right { (x, g) } else { (g, x) };
    let left = b.transpose_last(left).unwrap();
    let product = b.matmul(left, other).unwrap();
    for (name, v) in [("weight", product), ("bias", sum)] {
        b.output(name, v, OutputRole::User);
    }
    b.finish()
}

fn compiled(graph: &Graph, stop_after: &str, target: &Target) -> Graph {
    let options = Options { goal: Goal::Step, stop_after: Some(stop_after), ..Options::default() };
    let made = optimize(graph.clone(), &options, target).unwrap().graph;
    verify(&made).unwrap();
    made
}

fn joined(graph: &Graph) -> Vec<i64> {
    let all = graph.nodes.iter().filter(|n| *n.op == MATMUL_SUM);
    all.map(|n| graph.cx(n).int("of").unwrap()).collect()
}

#[test]
fn a_sum_of_rows_joins_the_product_that_reads_them() {
    let target = Target::default();
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        for right in [false, true] {
            let graph = gradients(dtype, right, |_, sum| sum);
            let (before, after) =
                (compiled(&graph, "recompute", &target), compiled(&graph, "epilogues", &target));
            assert_eq!((joined(&before), joined(&after)), (vec![], vec![i64::from(right)]), "{dtype}");
            let ran = |g: &Graph| g.nodes.iter().filter(|n| !matches!(n.op.body, Body::View(_))).count();
            assert_eq!((ran(&before), ran(&after)), (2, 1), "{dtype}");
            let inputs: Vec<Tensor> = graph
                .inputs
                .iter()
                .map(|i| {
                    let ty = graph.ty(i.value);
                    let number = |i: usize| dtype.round((i * 7919 % 200) as f64 / 100.0 - 1.0);
                    Tensor::float(dtype, ty.shape.clone(), (0..ty.shape.numel()).map(number).collect())
                })
                .collect();
            let [want, got] = [&graph, &after].map(|g| reference::run(g, &inputs).unwrap());
            assert!(want.iter().zip(&got).all(|(a, b)| same_bits(a, b)), "{dtype}");
            let [a, b] = [&before, &after].map(|g| {
                let plan = pass::plan(g, &headwater_core::plan::Bindings::simple(g), &target).unwrap();
                pass::check_plan(&plan).unwrap();
                plan.steps.len()
            });
            assert_eq!((a, b), (2, 1), "{dtype}");
        }
    }
}

/// A device without the operator.
#[derive(Debug)]
struct Without;

impl Operators for Without {
    fn support(&self, op: &OpDef, _: &OpCx, _: &[TensorType]) -> Support {
        if *op == MATMUL_SUM { Support::Reference } else { Support::Native }
    }
    fn workspace(&self, _: &OpDef, _: &OpCx, _: &[TensorType]) -> usize {
        0
    }
    fn strided(&self, _: &OpDef, _: &OpCx, _: &[TensorType], _: Port) -> bool {
        true
    }
}

#[test]
fn a_sum_stays_where_the_target_has_no_such_kernel_or_the_product_comes_too_late() {
    let graph = gradients(DType::F32, false, |_, sum| sum);
    let without = Target::generic(Arc::new(Without));
    assert_eq!(joined(&compiled(&graph, "epilogues", &without)), vec![]);
    // Something reads the sum before the product: a product of its own.
    let early = gradients(DType::F32, false, |b, sum| b.matmul(sum, sum).unwrap());
    assert_eq!(joined(&compiled(&early, "epilogues", &Target::default())), vec![]);
}

#[test]
fn views_of_the_sum_follow_the_product() {
    let graph = gradients(DType::F32, false, |b, sum| b.reshape(sum, &[2, 2]).unwrap());
    let after = compiled(&graph, "epilogues", &Target::default());
    assert_eq!(joined(&after), vec![0]);
}
