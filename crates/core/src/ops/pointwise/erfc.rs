//! Complementary error function.

use super::erf::gaussian;
use super::{chain, float_like};
use crate::diagnostic::Result;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use crate::tensor::{Tensor, TensorType};

/// `1 - erf(self)`, without cancellation far out.
pub static ERFC: OpDef = OpDef {
    name: "erfc",
    schemas: &["erfc(Tensor self) -> Tensor", "special_erfc(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let e = gaussian(b, x)?;
            let dx = b.mul(g, e)?;
            b.neg(dx)
        })
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(20),
    body: Body::Kernel(|_, inputs, outs| each(inputs, outs, libm::erfc)),
    cases: || vec![Case::new("plain").range(&[7], -3.0, 3.0), Case::new("integers").index(&[3], 3)],
};

/// A function of each number: the reference of special functions that expressions lack.
pub fn each(inputs: &[Option<&Tensor>], outs: &[TensorType], f: impl Fn(f64) -> f64) -> Result<Vec<Tensor>> {
    let x = inputs.first().copied().flatten().ok_or_else(|| crate::fail!(Attribute, "input 0 is missing"))?;
    let y = x.to_f64().into_iter().map(f).collect();
    Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), y)])
}
