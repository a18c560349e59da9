//! A quotient written over a tensor that is given.

use super::div::DIV;
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::tensor::TensorType;

/// `self / other`, broadcast, in the type of `out` (input 2), whose new content it is as well.
pub static DIV_OUT: OpDef = OpDef {
    name: "div_out",
    schemas: &["div.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)"],
    infer: |cx| Ok(vec![result(cx)?; 2]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Widest,
    cost: Cost::PerOutput(1),
    body: Body::Decompose(|b, cx, inputs| {
        let out = result(cx)?;
        let quotient = b.call(&DIV, &[required(inputs, 0)?, required(inputs, 1)?])?;
        let quotient = b.cast(quotient, out.dtype)?;
        Ok(vec![quotient; 2])
    }),
    cases: || {
        let into = |name, shape: &[usize], other: &[usize]| {
            Case::new(name).f(shape).range(other, 0.5, 2.0).f(shape).constant()
        };
        vec![into("broadcast", &[2, 3], &[3]), into("scalar", &[3], &[])]
    },
};

fn result(cx: &OpCx) -> Result<TensorType> {
    let both = OpCx { inputs: vec![Some(cx.ty(0)?), Some(cx.ty(1)?)], attrs: cx.attrs };
    let (shape, out) = (both.broadcast()?, cx.ty(2)?);
    ensure!(out.shape == shape, Shape, "a quotient of shape {shape} cannot be written over {out}");
    ensure!(out.dtype.is_float(), DType, "a quotient is no {}", out.dtype);
    Ok(out.clone())
}
