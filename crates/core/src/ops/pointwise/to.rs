//! Conversion of dtype.

use crate::diagnostic::Result;
use crate::expr::Expr;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// `self` converted to `dtype` (absent: unchanged); device, layout, copy and memory format do not matter
/// here.
pub static TO: OpDef = OpDef {
    name: "to",
    schemas: &[
        "to.dtype(Tensor self, ScalarType dtype, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor",
        "to.device(Tensor self, Device device, ScalarType dtype, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor",
        "to.dtype_layout(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor",
        "_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor",
    ],
    infer,
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let g = cx.grad(0)?;
        cx.set(0, g)
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| Ok(vec![Expr::Input(0).cast(cx.opt_dtype("dtype")?.unwrap_or(cx.dtype(0)?))])),
    cases: || vec![Case::new("same dtype").f(&[3]).attr("dtype", crate::dtype::DType::F64)],
};

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    let t = cx.ty(0)?;
    Ok(vec![TensorType::new(cx.opt_dtype("dtype")?.unwrap_or(t.dtype), t.shape.clone())])
}
