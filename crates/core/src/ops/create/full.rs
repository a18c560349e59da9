//! Tensors of one value.

use super::{like, new, sized};
use crate::attr::{Attr, Attrs};
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::fail;
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::element;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// `size` filled with `fill_value`; the dtype is that of the number unless given.
pub static FULL: OpDef = OpDef {
    name: "full",
    schemas: &[
        "full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ],
    infer: |cx| sized(cx, number_dtype(cx, "fill_value")),
    derivative: Derivative::NotDifferentiable("it has no tensor input"),
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Pointwise(|cx| {
        let dtype = cx.opt_dtype("dtype")?.unwrap_or(number_dtype(cx, "fill_value"));
        Ok(vec![element(cx, "fill_value", dtype)?])
    }),
    cases: || {
        vec![
            Case::new("threes").attr("size", [2, 3]).attr("fill_value", 3.0).attr("dtype", DType::F64),
            Case::new("a large integer").attr("size", [2]).attr("fill_value", i64::MAX - 1),
        ]
    },
};

/// `fill_value` in the shape and, unless given, the dtype of `self`.
pub static FULL_LIKE: OpDef = OpDef {
    name: "full_like",
    schemas: &[
        "full_like(Tensor self, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
    ],
    infer: like,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, _| Ok(vec![full_of(b, cx, "fill_value", &like(cx)?[0])?])),
    cases: || vec![Case::new("sevens").f(&[2, 3]).attr("fill_value", 7)],
};

/// `size` filled with `fill_value`, unless given in the dtype of `self`.
pub static NEW_FULL: OpDef = OpDef {
    name: "new_full",
    schemas: &[
        "new_full(Tensor self, SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ],
    infer: new,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, _| Ok(vec![full_of(b, cx, "fill_value", &new(cx)?[0])?])),
    cases: || vec![Case::new("sevens").f(&[2]).attr("size", [3]).attr("fill_value", 7)],
};

/// A tensor without dimensions holding `s`; f32 unless a dtype is given, whatever the number.
pub static SCALAR_TENSOR: OpDef = OpDef {
    name: "scalar_tensor",
    schemas: &[
        "scalar_tensor(Scalar s, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ],
    infer: |cx| Ok(vec![TensorType::new(cx.opt_dtype("dtype")?.unwrap_or(DType::F32), [])]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, _| {
        let ty = TensorType::new(cx.opt_dtype("dtype")?.unwrap_or(DType::F32), []);
        Ok(vec![full_of(b, cx, "s", &ty)?])
    }),
    cases: || {
        vec![
            Case::new("an integer").attr("s", 3).attr("dtype", DType::I64),
            Case::new("default").attr("s", 3),
        ]
    },
};

/// Dtype of a tensor made of the number attribute `name`: f32, i64 or bool.
fn number_dtype(cx: &OpCx, name: &str) -> DType {
    match cx.attrs.get(name) {
        Some(Attr::Int(_)) => DType::I64,
        Some(Attr::Bool(_)) => DType::Bool,
        _ => DType::F32,
    }
}

/// A `full` of type `ty` with the number attribute `name`, unchanged.
pub fn full_of(b: &mut Builder, cx: &OpCx, name: &str, ty: &TensorType) -> Result<ValueId> {
    let value = cx.attrs.get(name).ok_or_else(|| fail!(Attribute, "attribute `{name}` is missing"))?;
    let attrs = Attrs::new().with("size", ty.shape.to_ints()).with("dtype", ty.dtype);
    b.one(&FULL, &[], attrs.with("fill_value", value.clone()))
}
