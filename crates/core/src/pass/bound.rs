//! How far a computed value may be from the true one: first-order probabilistic rounding bounds, derived from
//! the graph.
//!
//! Every node adds the rounding of its result to its dtype and the roundings of its accumulation in the
//! target's accumulator (f64 for f64 data); products add those of the target's [`ProductModel`]. All
//! roundings behave as independent zero-mean errors, so variances add along a path, and the worst path into a
//! value counts. The bound is `λ · √variance`, where `λ = √(2 ln(2F/δ))` makes the chance that any of the
//! graph's `F` operations breaks it less than `δ` (Higham and Mary, "A new approach to probabilistic rounding
//! error analysis", SIAM J. Sci. Comput. 41, 2019, theorem 2.4). Bounds are relative to the norm of a value,
//! or of the terms it is a sum of where these cancel.

use crate::dtype::DType;
use crate::graph::{Graph, Node};
use crate::ops::{Body, Cost, OpCx, Precision};
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
    let mut operations = 1.0;
    for node in &graph.nodes {
        let types: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
        let inherited = node.operands().map(|v| variance[v.0 as usize]).fold(0.0, f64::max);
        let cx = graph.cx(node);
        operations += node.op.cost_of(&cx, &types).0;
        for (&v, ty) in node.outputs.iter().zip(&types) {
            if ty.dtype.is_float() {
                variance[v.0 as usize] = inherited + own_variance(node, target, &cx, ty);
            }
        }
    }
    let lambda = (2.0 * (2.0 * operations / DELTA).ln()).sqrt();
    variance.into_iter().map(|v| lambda * v.sqrt()).collect()
}

/// Variance of the roundings a node makes itself, relative to its result.
fn own_variance(node: &Node, target: &Target, cx: &OpCx, ty: &TensorType) -> f64 {
    let unit = |d: DType| d.epsilon() / 2.0;
    let moves = matches!(node.op.body, Body::View(_) | Body::Copies(_)) || matches!(node.op.cost, Cost::Free);
    if moves {
        // Nothing is computed; a change of dtype alone rounds.
        let same = cx.present().any(|t| t.dtype == ty.dtype);
        return if same { 0.0 } else { unit(ty.dtype).powi(2) };
    }
    // Terms summed into one element: the work done for each element of the result, on average.
    let flops = node.op.cost_of(cx, std::slice::from_ref(ty)).0;
    let terms = (flops / ty.shape.numel().max(1) as f64).max(1.0);
    let operands = cx.present().map(|t| t.dtype).filter(|d| d.is_float()).min_by_key(|d| d.size());
    let multiplies = matches!(node.op.body, Body::Kernel(_)) && node.op.precision == Precision::Low;
    let product = operands.filter(|_| multiplies).and_then(|d| target.product(d));
    let plain = ProductModel::plain(
        ty.dtype,
        if ty.dtype == DType::F64 { DType::F64 } else { target.dtypes.accumulator },
    );
    let p = product.unwrap_or(&plain);
    // Roundings of operands and products differ from term to term: they do not add up as those of the sum do.
    let entering = 2.0 * p.operand.powi(2) + p.product.powi(2);
    unit(ty.dtype).powi(2) + terms * p.accumulator.powi(2) + entering
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Builder;
    use crate::graph::InputRole;

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
}
