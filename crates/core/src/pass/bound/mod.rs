//! Bounds of the distance of a computed value from the true one: first-order probabilistic rounding bounds,
//! derived from the graph.
//!
//! Every node adds the rounding of its result to its dtype and the roundings of its accumulation in the
//! target's accumulator (f64 for f64 data). Products add those of the target's [`ProductModel`]. All
//! roundings behave as independent zero-mean errors, so variances add along a path, and the worst path into a
//! value counts. The bound is `λ · √variance`, where `λ = √(2 ln(2F/δ))` makes the chance that any of the
//! graph's `F` operations breaks it less than `δ`. See Higham and Mary, "A new approach to probabilistic
//! rounding error analysis", SIAM J. Sci. Comput. 41, 2019, theorem 2.4. Bounds are relative to the norm of a
//! value, or of the terms it is a sum of where these cancel. Results that PyTorch itself computes with a
//! larger error have that error too, since they are compared with its own.

mod rounded;
mod spread;
mod writer;

pub use rounded::{ROUNDING, function, magnification, rounded};
pub use spread::{Bound, CHANCE, Spread, alike};

use crate::dtype::DType;
use crate::graph::{Graph, Node};
use crate::ops::pointwise::elu::ELU_BACKWARD;
use crate::ops::pointwise::hardsigmoid::HARDSIGMOID_BACKWARD;
use crate::ops::pointwise::polygamma::POLYGAMMA;
use crate::ops::{Body, Cost, OpCx, Precision};
use crate::row::{Instr, Reduce};
use crate::target::{ProductModel, Target};
use crate::tensor::TensorType;

/// Chance that an honest result breaks its bound.
const DELTA: f64 = 1e-9;

/// Relative error bound of every value, by [`crate::ValueId`]; integers have none (0). `rounded`: the graph's
/// float inputs were rounded to their dtypes from exact ones; otherwise they count as exact.
pub fn error_bounds(graph: &Graph, target: &Target, rounded: bool) -> Vec<f64> {
    let mut variance = vec![0.0f64; graph.values.len()];
    for input in graph.inputs.iter().filter(|_| rounded) {
        variance[input.value.0 as usize] = (graph.ty(input.value).dtype.epsilon() / 2.0).powi(2);
    }
    for node in &graph.nodes {
        let inherited = node.operands().map(|v| variance[v.0 as usize]).fold(0.0, f64::max);
        for &v in &node.outputs {
            let ty = graph.ty(v);
            if ty.dtype.is_float() {
                variance[v.0 as usize] = inherited + Rounding::of(graph, node, target, ty).variance();
            }
        }
    }
    let lambda = confidence(graph);
    variance.into_iter().map(|v| lambda * v.sqrt()).collect()
}

/// `λ = √(2 ln(2F/δ))`: standard deviations that none of the graph's `F` operations exceeds but with a chance
/// of `δ`, 1e-9.
pub fn confidence(graph: &Graph) -> f64 {
    let operations = graph.nodes.iter().map(|node| {
        let types: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
        node.op.cost_of(&graph.cx(node), &types).0
    });
    (2.0 * (2.0 * (1.0 + operations.sum::<f64>()) / DELTA).ln()).sqrt()
}

/// Standard deviations of the roundings a node makes itself, relative to its result.
struct Rounding {
    /// Deviation of storing the result.
    result: f64,
    /// Deviation of summing terms into one element of it.
    sum: f64,
    /// Deviation of the terms: roundings of operands and products, which differ from term to term.
    terms: f64,
    /// Deviation of PyTorch's own result.
    truth: f64,
}

impl Rounding {
    /// Roundings of a node on a target; `ty` is one of its results.
    fn of(graph: &Graph, node: &Node, target: &Target, ty: &TensorType) -> Rounding {
        let dtype = ty.dtype;
        let unit = dtype.epsilon() / 2.0;
        let cx = &graph.cx(node);
        if moves(node) {
            // Nothing is computed; a change of dtype alone rounds.
            let same = cx.present().any(|t| t.dtype == ty.dtype);
            return Rounding { result: if same { 0.0 } else { unit }, sum: 0.0, terms: 0.0, truth: 0.0 };
        }
        let operands = cx.present().map(|t| t.dtype).filter(|d| d.is_float()).min_by_key(|d| d.size());
        let multiplies = matches!(node.op.body, Body::Kernel(_)) && node.op.precision == Precision::Low;
        let product = operands.filter(|_| multiplies).and_then(|d| target.product(d));
        let plain = ProductModel::plain(dtype, accumulator(dtype, target));
        let p = product.unwrap_or(&plain);
        let terms = (2.0 * p.operand.powi(2) + p.product.powi(2)).sqrt();
        let sum = summed(graph, node, ty).sqrt() * p.accumulator;
        Rounding { result: unit, sum, terms, truth: reference_error(cx, node) }
    }

    fn variance(&self) -> f64 {
        [self.result, self.sum, self.terms, self.truth].map(|d| d.powi(2)).iter().sum()
    }
}

/// Relative error of PyTorch's own result in f64, which stands for the true one, where it is more than
/// rounding.
///
/// `hardsigmoid_backward` has 1/6 in f32 and that of `celu` 1/alpha; the series of the trigamma function is
/// cut off. Seen with PyTorch 2.15: 3.0e-8, 4.1e-9 of up to 6.0e-8, and 5e-10.
fn reference_error(cx: &OpCx, node: &Node) -> f64 {
    let float = |name| cx.opt_float(name).ok().flatten().unwrap_or(1.0);
    let unit = DType::F32.epsilon() / 2.0;
    match node.op {
        op if op == &HARDSIGMOID_BACKWARD => unit,
        op if op == &ELU_BACKWARD && float("input_scale") != 1.0 => unit,
        op if op == &POLYGAMMA && cx.int("n") == Ok(1) => 5e-10,
        _ => 0.0,
    }
}

/// The dtype in which a target computes and sums what is of `dtype`.
fn accumulator(dtype: DType, target: &Target) -> DType {
    if dtype == DType::F64 { DType::F64 } else { target.dtypes.accumulator }
}

fn moves(node: &Node) -> bool {
    matches!(node.op.body, Body::View(_) | Body::Copies(_)) || matches!(node.op.cost, Cost::Free)
}

/// Terms that are summed into one element of a result: the work done for each, on average. If its row program
/// makes longer sums, their length counts.
fn summed(graph: &Graph, node: &Node, ty: &TensorType) -> f64 {
    let cx = &graph.cx(node);
    let work = node.op.cost_of(cx, std::slice::from_ref(ty)).0 / ty.shape.numel().max(1) as f64;
    let program = match node.op.body {
        Body::Rows(program) => {
            let all: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
            program(cx, &all).ok()
        }
        _ => None,
    };
    let long = program.map_or(0, |p| {
        let any = |f: fn(&Instr) -> bool, n: usize| if p.body.iter().any(f) { n } else { 0 };
        any(|i| matches!(i, Instr::Reduce(Reduce::Sum, _)), p.cols())
            .max(any(|i| matches!(i, Instr::Columns(..)), p.rows()))
    });
    work.max(long as f64).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::Attrs;
    use crate::graph::{Builder, InputRole};

    #[test]
    fn longer_sums_and_coarser_types_get_wider_bounds() {
        let bound = |dtype, n: usize| {
            let mut b = Builder::new();
            let x = b.input("x", TensorType::new(dtype, [n]), InputRole::User);
            let s = b.sum(x, &[0], false).unwrap();
            error_bounds(b.graph(), &Target::default(), false)[s.0 as usize]
        };
        assert!(bound(DType::F32, 1000) > 5.0 * bound(DType::F32, 10));
        assert!(bound(DType::F64, 1000) < 1e-11);
        assert!(bound(DType::BF16, 10) > DType::BF16.epsilon());
    }

    #[test]
    fn results_that_pytorch_computes_less_exactly_have_its_error() {
        let bound = |op, attrs| {
            let mut b = Builder::new();
            let ty = TensorType::new(DType::F64, [3usize]);
            let [g, x] = ["g", "x"].map(|name| b.input(name, ty.clone(), InputRole::User));
            let y = b.one(op, &[g, x], attrs).unwrap();
            error_bounds(b.graph(), &Target::default(), false)[y.0 as usize]
        };
        let elu = |scale: f64| {
            let attrs = Attrs::new().with("alpha", 0.7).with("scale", 1.0).with("input_scale", scale);
            bound(&ELU_BACKWARD, attrs.with("is_result", false))
        };
        // 1/6 in f32 is off by 2.98e-8, and PyTorch's gradient of `celu` by 0.7 was by 4.1e-9.
        let hard = bound(&HARDSIGMOID_BACKWARD, Attrs::new());
        assert!(hard > 2.98e-8 && hard < 1e-6, "{hard}");
        assert!(elu(1.0 / 0.7) > 4.1e-9 && elu(1.0) < 1e-14);
    }
}
