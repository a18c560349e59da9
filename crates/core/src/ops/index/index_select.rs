//! Whole slices along one dimension, picked or written by a vector of indices.

use super::index_put::INDEX_PUT_IMPL;
use super::index_tensor::INDEX;
use super::integers;
use crate::attr::{Attr, Attrs};
use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, Sample};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{DType, ensure, fail};

/// `self` with dimension `dim` replaced by its indices `index` (a vector or a scalar), none negative.
pub static INDEX_SELECT: OpDef = OpDef {
    name: "index_select",
    schemas: &["index_select(Tensor self, int dim, Tensor index) -> Tensor"],
    infer: |cx| Ok(vec![TensorType::new(cx.dtype(0)?, slices(cx)?)]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| {
        let inputs = along(b, cx, inputs)?;
        let y = b.apply(&INDEX, &inputs, Attrs::new().with("wrap", false))?[0];
        Ok(vec![b.reshape(y, &slices(cx)?)?])
    }),
    cases: || {
        vec![
            Case::new("rows").f(&[3, 2]).index(&[4], 3).attr("dim", 0),
            Case::new("columns").f(&[2, 3]).index(&[2], 3).attr("dim", -1),
            Case::new("scalars").f(&[]).index(&[], 1).attr("dim", 0),
        ]
    },
};

/// `self` with `alpha · source` added to its slices `index` along `dim`, none negative.
pub static INDEX_ADD: OpDef = OpDef {
    name: "index_add",
    schemas: &["index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor"],
    infer: |cx| {
        cx.opt_float("alpha")?;
        written(cx)
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Widest,
    cost: Cost::PerOutput(1),
    body: Body::Decompose(|b, cx, inputs| {
        let source =
            inputs.get(2).copied().flatten().ok_or_else(|| fail!(Attribute, "the source is missing"))?;
        let source = match cx.attrs.get("alpha") {
            None | Some(Attr::Int(1)) => source,
            Some(alpha) => {
                b.one(&crate::ops::pointwise::mul::MUL, &[source], Attrs::new().with("other", alpha.clone()))?
            }
        };
        write(b, cx, inputs, source, Attrs::new().with("accumulate", true).with("wrap", false))
    }),
    cases: || {
        vec![
            Case::new("rows").f(&[3, 2]).index(&[4], 3).f(&[4, 2]).attr("dim", 0).attr("alpha", 1),
            Case::new("scaled").f(&[2, 3]).index(&[2], 3).f(&[2, 2]).attr("dim", -1).attr("alpha", -1.5),
            Case::new("scalars").f(&[]).index(&[], 1).f(&[]).attr("dim", 0).attr("alpha", 1),
        ]
    },
};

/// `self` with its slices `index` along `dim`, none negative, replaced by those of `source`.
pub static INDEX_COPY: OpDef = OpDef {
    name: "index_copy",
    schemas: &["index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor"],
    infer: written,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Widest,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| {
        let source =
            inputs.get(2).copied().flatten().ok_or_else(|| fail!(Attribute, "the source is missing"))?;
        write(b, cx, inputs, source, Attrs::new().with("accumulate", false).with("wrap", false))
    }),
    cases: || vec![Case::new("columns").f(&[2, 3]).arg(DType::I64, &[2], once()).f(&[2, 2]).attr("dim", 1)],
};

/// `self` with its slices `index` along `dim` filled with a number or scalar tensor `value`; negative indices
/// count from the end.
pub static INDEX_FILL: OpDef = OpDef {
    name: "index_fill",
    schemas: &[
        "index_fill.int_Scalar(Tensor self, int dim, Tensor index, Scalar value) -> Tensor",
        "index_fill.int_Tensor(Tensor self, int dim, Tensor index, Tensor value) -> Tensor",
    ],
    infer: |cx| {
        slices(cx)?;
        match cx.opt(2) {
            Some(t) => ensure!(t.shape.rank() == 0, Shape, "the value must be a scalar, got {t}"),
            None => ensure!(cx.float("value").is_ok(), Attribute, "`value` must be a number"),
        }
        Ok(vec![cx.ty(0)?.clone()])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| {
        let dtype = cx.dtype(0)?;
        let value = match inputs.get(2).copied().flatten() {
            Some(v) => b.cast(v, dtype)?,
            None => b.full(&TensorType::new(dtype, []), cx.float("value")?)?,
        };
        write(b, cx, inputs, value, Attrs::new().with("accumulate", false))
    }),
    cases: || {
        vec![
            Case::new("number").f(&[2, 3]).arg(DType::I64, &[2], once()).attr("dim", 1).attr("value", 2.5),
            Case::new("tensor").f(&[3, 2]).arg(DType::I64, &[2], once()).f(&[]).attr("dim", 0),
        ]
    },
};

/// Two indices below 3, no two the same.
fn once() -> Sample {
    Sample::Values(vec![2.0, 0.0])
}

/// Shape of the slices that index input 1 picks along `dim` of input 0.
fn slices(cx: &OpCx) -> Result<Shape> {
    let (x, index) = (cx.shape(0)?, cx.shape(1)?);
    integers(cx, 1)?;
    ensure!(index.rank() <= 1, Shape, "the index must be a vector, got {index}");
    let dim = cx.dim("dim", x.rank())?;
    let mut shape = x.to_vec();
    match shape.get_mut(dim) {
        Some(size) => *size = index.numel(),
        None => ensure!(index.numel() == 1, Shape, "a scalar has one slice, not {index}"),
    }
    Ok(shape.into())
}

/// Type rule of writing `source`, input 2, into slices.
fn written(cx: &OpCx) -> Result<Vec<TensorType>> {
    let (x, source, want) = (cx.ty(0)?, cx.ty(2)?, slices(cx)?);
    // One slice of a vector may be a scalar.
    let fits = source.shape == want || source.shape.rank() == 0 && want.numel() == 1 && want.rank() == 1;
    ensure!(fits && source.dtype == x.dtype, Shape, "source {source} for slices {}{want}", x.dtype);
    Ok(vec![x.clone()])
}

/// The inputs of an indexing along `dim` alone; a scalar counts as a vector of one.
fn along(b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]) -> Result<Vec<Option<ValueId>>> {
    let [Some(x), Some(index), ..] = *inputs else { return Err(fail!(Attribute, "an input is missing")) };
    let (shape, count) = (cx.shape(0)?, cx.shape(1)?.numel());
    let x = if shape.rank() == 0 { b.reshape(x, &[1])? } else { x };
    let mut all = vec![Some(x)];
    all.resize(cx.dim("dim", shape.rank())? + 1, None);
    all.push(Some(b.reshape(index, &[count])?));
    Ok(all)
}

fn write(
    b: &mut Builder,
    cx: &OpCx,
    inputs: &[Option<ValueId>],
    values: ValueId,
    attrs: Attrs,
) -> Result<Vec<ValueId>> {
    let mut inputs = along(b, cx, inputs)?;
    inputs.push(Some(values));
    let y = b.apply(&INDEX_PUT_IMPL, &inputs, attrs)?[0];
    Ok(vec![b.reshape(y, cx.shape(0)?)?])
}
