//! NovoGrad: Ginsburg et al. 2019 (arXiv:1905.11286): a second moment for each parameter, that of its
//! gradient's norm.

use super::{applied, seen_gradient, taken};
use crate::dtype::DType;
use crate::ensure;
use crate::expr::{float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, Sample};

/// `(exp_avg_sq, grad_squares, scale, apply, kept, bias_correction2_sqrt)`: a span of one number a parameter
/// `[segments]`, its f64 sums of squares, and scalars. With attribute `eps`, results are a new `exp_avg_sq`
/// and the factor of gradients:
///
/// ```text
/// v = kept · exp_avg_sq + (1 − kept) · scale² · grad_squares
/// factor = 1 / (√v / bias_correction2_sqrt + eps)
/// ```
///
/// `kept` is 0 in the first step and beta2 in all others.
pub static NOVOGRAD_NORM: OpDef = OpDef {
    name: "novograd_norm",
    schemas: &[
        "headwater::novograd_norm(Tensor exp_avg_sq, Tensor grad_squares, Tensor scale, Tensor apply, Tensor kept, Tensor bias_correction2_sqrt, *, float eps) -> (Tensor, Tensor)",
    ],
    infer: |cx| {
        let norms = cx.shape(0)? == cx.shape(1)? && cx.dtype(0)?.is_float() && cx.dtype(1)? == DType::F64;
        let scalars = (2..6).all(|i| cx.shape(i).is_ok_and(|s| s.rank() == 0));
        ensure!(norms && scalars, Shape, "expected a norm for each parameter, got {}", cx.list_types());
        Ok(vec![cx.ty(0)?.clone(); 2])
    },
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(8),
    body: Body::Pointwise(|cx| {
        let [v, squares, scale, apply, kept, correction] = taken(cx, 0)?;
        let norm = squares * scale.clone() * scale;
        let new = kept.clone() * v.clone() + (float(1.0) - kept) * norm;
        let factor = float(1.0) / (new.clone().sqrt() / correction + cx.float("eps")?);
        Ok(vec![apply.select(new, v), factor])
    }),
    cases: || {
        let case = |name, apply: f64, kept| {
            Case::new(name)
                .range(&[3], 0.0, 2.0)
                .range(&[3], 0.0, 2.0)
                .range(&[], 0.5, 1.0)
                .arg(DType::Bool, &[], Sample::Values(vec![apply]))
                .arg(DType::F64, &[], Sample::Values(vec![kept]))
                .range(&[], 0.1, 1.0)
                .attr("eps", 1e-8)
        };
        vec![case("first", 1.0, 0.0), case("step", 1.0, 0.98), case("skipped", 0.0, 0.98)]
    },
};

/// `(param, grad, exp_avg, scale, apply, step_size, factor)`, spans `[blocks, width]`, scalars, and `factor`
/// `[blocks, 1]`, with attributes `beta1`, `gain` and `weight_decay`, to new `param` and `exp_avg`:
///
/// ```text
/// m = beta1 · exp_avg + gain · (factor · scale · grad + weight_decay · param)
/// p = param − step_size · m
/// ```
pub static NOVOGRAD: OpDef = OpDef {
    name: "novograd",
    schemas: &[
        "headwater::novograd(Tensor param, Tensor grad, Tensor exp_avg, Tensor scale, Tensor apply, Tensor step_size, Tensor factor, *, float beta1, float gain, float weight_decay, float? clip_value=None, bool maximize=False) -> (Tensor, Tensor)",
    ],
    infer: |cx| {
        let span = cx.shape(0)?;
        let fits = span.rank() == 2
            && (1..3).all(|i| cx.shape(i).is_ok_and(|s| s == span))
            && (3..6).all(|i| cx.shape(i).is_ok_and(|s| s.rank() == 0))
            && cx.shape(6)?[..] == [span[0], 1];
        ensure!(fits && cx.dtype(0)?.is_float(), Shape, "expected spans of blocks, got {}", cx.list_types());
        Ok(vec![cx.ty(0)?.clone(), cx.ty(2)?.clone()])
    },
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(8),
    body: Body::Pointwise(|cx| {
        let [scale, apply, step_size, factor] = taken(cx, 3)?;
        let (p, m) = (input(0), input(2));
        let mut g = factor * seen_gradient(cx, input(1), scale)?;
        let decay = cx.float("weight_decay")?;
        if decay != 0.0 {
            g = g + float(decay) * p.clone();
        }
        let new_m = m.clone() * cx.float("beta1")? + float(cx.float("gain")?) * g;
        Ok(applied(&apply, [Some((p.clone() - step_size * new_m.clone(), p)), Some((new_m, m))]))
    }),
    cases: || {
        let case = |name, apply: f64| {
            Case::new(name)
                .f(&[3, 4])
                .f(&[3, 4])
                .f(&[3, 4])
                .range(&[], 0.5, 1.0)
                .arg(DType::Bool, &[], Sample::Values(vec![apply]))
                .range(&[], 0.01, 0.1)
                .range(&[3, 1], 0.5, 2.0)
                .attr("beta1", 0.95)
                .attr("gain", 1.0)
                .attr("weight_decay", 0.1)
        };
        vec![case("step", 1.0), case("skipped", 0.0)]
    },
};
