//! The step from 0 to 1.

use super::{DISCRETE, number, promoted, tensor};
use crate::dtype::Class;
use crate::ensure;
use crate::ops::{Body, Case, Cost, OpDef, Precision};

/// 0 below 0, 1 above, and `values` at 0; NaN stays. As in PyTorch both have one dtype, and no gradient.
pub static HEAVISIDE: OpDef = OpDef {
    name: "heaviside",
    schemas: &["heaviside(Tensor self, Tensor values) -> Tensor"],
    infer: |cx| {
        ensure!(cx.dtype(0)? == cx.dtype(1)?, DType, "one dtype is needed: {}", cx.list_types());
        ensure!(cx.dtype(0)?.class() != Class::Bool, DType, "numbers are needed, got {}", cx.list_types());
        promoted(cx)
    },
    derivative: DISCRETE,
    precision: Precision::Same,
    cost: Cost::PerOutput(3),
    body: Body::Pointwise(|cx| {
        let dtype = cx.dtype(0)?;
        let (x, at) = (tensor(cx, 0, dtype)?, tensor(cx, 1, dtype)?);
        let (zero, one) = (number(0.0, dtype), number(1.0, dtype));
        let step = x.clone().eq(zero.clone()).select(at, x.clone().gt(zero.clone()).select(one, zero));
        Ok(vec![if dtype.is_float() { x.clone().is_nan().select(x, step) } else { step }])
    }),
    cases: || {
        let around = crate::ops::Sample::Values(vec![-2.0, 0.0, f64::NAN, 3.0]);
        vec![
            Case::new("around zero").arg(crate::DType::F64, &[4], around).f(&[]),
            Case::new("integers").index(&[3], 2).index(&[3], 9),
        ]
    },
};
