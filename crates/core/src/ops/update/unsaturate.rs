//! Overflow of gradients on devices whose floats saturate ([`crate::target::Target::saturating`]).

use crate::dtype::DType;
use crate::ensure;
use crate::expr::{float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, Sample};
use crate::tensor::TensorType;

/// A float in f32 (f64 for f64), in which the largest number of its dtype of either sign becomes infinite
/// again: there an overflow has saturated, unless the number itself is so large. NaN that became 0 stays it.
pub static UNSATURATE: OpDef = OpDef {
    name: "unsaturate",
    schemas: &["headwater::unsaturate(Tensor self) -> Tensor"],
    infer: |cx| {
        let ty = cx.ty(0)?;
        ensure!(ty.dtype.is_float(), DType, "expected floats, got {ty}");
        let wide = if ty.dtype == DType::F64 { DType::F64 } else { DType::F32 };
        Ok(vec![TensorType::new(wide, ty.shape.clone())])
    },
    derivative: Derivative::NotDifferentiable("gradients are not differentiated again"),
    precision: Precision::Full,
    cost: Cost::PerOutput(4),
    body: Body::Pointwise(|cx| {
        let (x, largest) = (input(0), cx.dtype(0)?.max_value());
        let infinite = |sign: f64| float(sign * f64::INFINITY);
        let below = x.clone().le(float(-largest)).select(infinite(-1.0), x.clone());
        Ok(vec![x.ge(float(largest)).select(infinite(1.0), below)])
    }),
    cases: || {
        let values = vec![1.0, -65504.0, 65504.0, 65472.0, -0.0, -3.5];
        vec![Case::new("largest numbers").arg(DType::F16, &[6], Sample::Values(values))]
    },
};
