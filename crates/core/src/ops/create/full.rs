//! A tensor of one value.

use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ops::pointwise::number;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// `size` filled with `fill_value`; the dtype is that of the number unless given.
pub static FULL: OpDef = OpDef {
    name: "full",
    schemas: &[
        "full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ],
    infer,
    derivative: Derivative::NotDifferentiable("it has no tensor input"),
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Pointwise(|cx| Ok(vec![number(cx.float("fill_value")?, dtype(cx)?)])),
    cases: || vec![Case::new("threes").attr("size", [2, 3]).attr("fill_value", 3.0).attr("dtype", DType::F64)],
};

fn dtype(cx: &OpCx) -> Result<DType> {
    Ok(match cx.opt_dtype("dtype")? {
        Some(d) => d,
        None => match cx.result_type(&["fill_value"]) {
            d if d.is_float() => DType::F32,
            d => d,
        },
    })
}

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    Ok(vec![TensorType::new(dtype(cx)?, cx.sizes("size")?)])
}
