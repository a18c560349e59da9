//! The factor that unscales gradients and clips their norm.

use crate::dtype::DType;
use crate::expr::{float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// The number that `torch.nn.utils.clip_grad_norm_` adds to the norm before it divides.
const CLIP_EPSILON: f64 = 1e-6;

/// `(sum_of_squares, unscale)`, f64, the latter a scalar, with attribute `max_norm` (absent: no clipping), to
///
/// * the norm of the unscaled gradients, `unscale · √sum_of_squares` (f64),
/// * what to multiply the gradients by, `unscale · min(1, max_norm / (norm + 1e-6))` as `clip_grad_norm_`
///   does (f64),
/// * whether the norm is finite (bool).
pub static GRADIENT_SCALE: OpDef = OpDef {
    name: "gradient_scale",
    schemas: &[
        "headwater::gradient_scale(Tensor sum_of_squares, Tensor unscale, *, float? max_norm=None) -> (Tensor, Tensor, Tensor)",
    ],
    infer: |cx| {
        let fits = cx.dtype(0)? == DType::F64 && *cx.ty(1)? == TensorType::new(DType::F64, [0usize; 0]);
        crate::ensure!(fits, Shape, "expected f64 and an f64 scalar, got {}", cx.list_types());
        let like = |dtype| TensorType::new(dtype, cx.ty(0).expect("seen").shape.clone());
        Ok(vec![like(DType::F64), like(DType::F64), like(DType::Bool)])
    },
    derivative: Derivative::NotDifferentiable("gradients are not differentiated again"),
    precision: Precision::Full,
    cost: Cost::PerOutput(6),
    body: Body::Pointwise(|cx: &OpCx| {
        let (squares, unscale) = (input(0), input(1));
        let norm = squares.sqrt() * unscale.clone();
        let scale = match cx.opt_float("max_norm")? {
            Some(limit) => unscale * (float(limit) / (norm.clone() + CLIP_EPSILON)).min(float(1.0)),
            None => unscale,
        };
        let finite = !(norm.clone().is_nan().or(norm.clone().is_inf()));
        Ok(vec![norm, scale, finite])
    }),
    cases: || {
        let case = |name| Case::new(name).range(&[], 1.0, 9.0).range(&[], 0.1, 1.0);
        vec![case("plain"), case("clipped").attr("max_norm", 0.1)]
    },
};
