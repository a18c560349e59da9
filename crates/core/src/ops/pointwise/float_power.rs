//! Powers in f64.

use super::pow::POW;
use crate::attr::Attrs;
use crate::dtype::DType;
use crate::ops::create::full::full_of;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use crate::tensor::TensorType;

/// `self^exponent`, both converted to f64 first; one of them may be a number.
pub static FLOAT_POWER: OpDef = OpDef {
    name: "float_power",
    schemas: &[
        "float_power.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor",
        "float_power.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor",
        "float_power.Scalar(Scalar self, Tensor exponent) -> Tensor",
    ],
    infer: |cx| {
        let number = ["self", "exponent"].into_iter().find(|n| cx.attrs.get(n).is_some());
        if let Some(name) = number.filter(|_| cx.inputs.len() < 2) {
            cx.float(name)?;
        } else {
            cx.ty(1)?;
        }
        cx.ty(0)?;
        Ok(vec![TensorType::new(DType::F64, cx.broadcast()?)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(10),
    body: Body::Decompose(|b, cx, inputs| {
        let mut parts = Vec::with_capacity(2);
        if cx.attrs.get("self").is_some() {
            parts.push(full_of(b, cx, "self", &TensorType::new(DType::F64, []))?);
        }
        for &x in inputs.iter().flatten() {
            parts.push(b.cast(x, DType::F64)?);
        }
        let attrs = match cx.opt_float("exponent")? {
            Some(e) => Attrs::new().with("exponent", e),
            None => Attrs::new(),
        };
        Ok(vec![b.one(&POW, &parts, attrs)?])
    }),
    cases: || {
        vec![
            Case::new("tensors").range(&[2, 3], 0.3, 2.0).f(&[3]),
            Case::new("square").f(&[4]).attr("exponent", 2),
            Case::new("of two").f(&[4]).attr("self", 2),
            Case::new("integers").index(&[4], 9).attr("exponent", 0.5),
        ]
    },
};
