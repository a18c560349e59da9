//! Numbers times powers of two.

use super::pow::POW_SCALAR;
use crate::attr::Attrs;
use crate::dtype::DType;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::tensor::TensorType;

/// `self · 2^other`, broadcast and promoted. The power is f32 of integers, as in PyTorch.
pub static LDEXP: OpDef = OpDef {
    name: "ldexp",
    schemas: &["ldexp.Tensor(Tensor self, Tensor other) -> Tensor"],
    infer: |cx| {
        let other = cx.ty(1)?;
        let dtype = if other.dtype.is_float() { other.dtype } else { DType::F32 };
        let power = TensorType::new(dtype, other.shape.clone());
        let both = OpCx { inputs: vec![Some(cx.ty(0)?), Some(&power)], attrs: cx.attrs };
        Ok(vec![TensorType::new(both.result_type(&[]), both.broadcast()?)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Widest,
    cost: Cost::PerOutput(11),
    body: Body::Decompose(|b, _, inputs| {
        let two = Attrs::new().with("self", 2.0);
        let power = b.one(&POW_SCALAR, &[required(inputs, 1)?], two)?;
        Ok(vec![b.mul(required(inputs, 0)?, power)?])
    }),
    cases: || {
        vec![
            Case::new("integers").f(&[2, 3]).index(&[3], 6),
            Case::new("floats").f(&[3]).f(&[]),
            Case::new("of integers").index(&[2], 9).index(&[2], 4),
        ]
    },
};
