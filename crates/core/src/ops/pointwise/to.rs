//! Conversion of dtype.

use super::saturated;
use crate::attr::Attr;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::expr::Expr;
use crate::graph::{Graph, Node};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// `self` converted to `dtype` (absent: unchanged); device, layout, copy and memory format do not matter
/// here. With `saturate`, which passes set for what a model states as a constant, a finite number that
/// overflows a 16-bit dtype is its largest.
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
    body: Body::Pointwise(|cx| {
        let dtype = cx.opt_dtype("dtype")?.unwrap_or(cx.dtype(0)?);
        let x = match cx.attrs.get("saturate") {
            Some(Attr::Bool(true)) if cx.dtype(0)?.is_float() => saturated(Expr::Input(0), dtype),
            _ => Expr::Input(0),
        };
        Ok(vec![x.cast(dtype)])
    }),
    cases: || {
        let to = |name| Case::new(name).f(&[3]).attr("dtype", DType::F64);
        vec![to("same dtype"), to("saturating").attr("saturate", true)]
    },
};

/// True for a conversion that changes nothing here, and that precision levels may give a meaning: f32 to f32,
/// as an export has a model's `.float()` and `.to(x.dtype)`.
pub fn is_idle(graph: &Graph, node: &Node) -> bool {
    let same = |op: &OpDef| *op == TO || *op == super::type_as::TYPE_AS;
    match node.inputs.first() {
        Some(&Some(x)) if same(node.op) => graph.ty(x).dtype == graph.ty(node.outputs[0]).dtype,
        _ => false,
    }
}

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    let t = cx.ty(0)?;
    Ok(vec![TensorType::new(cx.opt_dtype("dtype")?.unwrap_or(t.dtype), t.shape.clone())])
}
