//! Medians of what is not NaN: of an even number of elements, the lower one of the middle two.

use super::gather::GATHER;
use super::median::{MEDIAN_DIM, shared};
use super::sort::SORT;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::add::ADD;
use crate::ops::pointwise::clamp::CLAMP_MIN;
use crate::ops::pointwise::floor_divide::FLOOR_DIVIDE;
use crate::ops::pointwise::isnan::ISNAN;
use crate::ops::pointwise::logical::LOGICAL_NOT;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, Sample, required};
use crate::tensor::TensorType;

/// The median along `dim` of what is not NaN, and its i64 index; NaN where there is nothing else. The
/// gradient goes to that element alone.
pub static NANMEDIAN_DIM: OpDef = OpDef {
    name: "nanmedian_dim",
    schemas: &["nanmedian.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"],
    infer: |cx| (MEDIAN_DIM.infer)(cx),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerInput(10),
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let types = (MEDIAN_DIM.infer)(cx)?;
        let (x, shape) = (required(inputs, 0)?, cx.shape(0)?);
        let dim = cx.dim("dim", shape.rank())?;
        let x = b.reshape(x, if shape.rank() == 0 { &[1] } else { shape })?;
        let [value, index] = along(b, x, dim)?;
        Ok(vec![b.reshape(value, &types[0].shape)?, b.reshape(index, &types[1].shape)?])
    }),
    cases: || {
        vec![
            Case::new("rows").distinct(&[2, 4]).attr("dim", 1).attr("keepdim", false),
            holes("NaN").attr("dim", 1).attr("keepdim", true),
            Case::new("integers").index(&[5], 99).attr("dim", 0).attr("keepdim", false),
            Case::new("scalar").f(&[]).attr("dim", 0).attr("keepdim", false),
        ]
    },
};

/// The median of all elements that are not NaN. Its gradient is shared evenly among the elements that equal
/// it.
pub static NANMEDIAN: OpDef = OpDef {
    name: "nanmedian",
    schemas: &["nanmedian(Tensor self) -> Tensor"],
    infer: |cx| {
        let x = cx.ty(0)?;
        let line = TensorType::new(x.dtype, [x.shape.numel()]);
        let attrs = Attrs::new().with("dim", 0).with("keepdim", false);
        ensure!(x.shape.numel() > 0, Shape, "no median of nothing in {x}");
        Ok((MEDIAN_DIM.infer)(&OpCx { inputs: vec![Some(&line)], attrs: &attrs })?[..1].to_vec())
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerInput(10),
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let x = b.reshape(required(inputs, 0)?, &[cx.shape(0)?.numel()])?;
        let value = along(b, x, 0)?[0];
        let value = shared(b, x, value)?;
        Ok(vec![b.reshape(value, &[])?])
    }),
    cases: || vec![Case::new("matrix").distinct(&[2, 3]), holes("NaN"), Case::new("scalar").f(&[])],
};

/// Median and index along a dimension of at least one element, which becomes 1.
fn along(b: &mut Builder, x: ValueId, dim: usize) -> Result<[ValueId; 2]> {
    let n = b.ty(x).shape[dim];
    let at = Attrs::new().with("dim", dim as i64);
    let sorted = b.apply(&SORT, &[Some(x)], at.clone().with("descending", false))?[1];
    let index = if b.ty(x).dtype.is_float() {
        // NaN is last in order; the place of the median depends on how many there are.
        let nan = b.call(&ISNAN, &[x])?;
        let counted = b.call(&LOGICAL_NOT, &[nan])?;
        let counted = b.cast(counted, DType::I64)?;
        let count = b.sum(counted, &[dim], true)?;
        let last = b.one(&ADD, &[count], Attrs::new().with("other", -1))?;
        let last = b.one(&CLAMP_MIN, &[last], Attrs::new().with("min", 0))?;
        let middle = b.one(&FLOOR_DIVIDE, &[last], Attrs::new().with("other", 2))?;
        b.one(&GATHER, &[sorted, middle], at.clone())?
    } else {
        let middle = (n - 1) / 2;
        b.slice(sorted, dim, middle, middle + 1)?
    };
    Ok([b.one(&GATHER, &[x, index], at)?, index])
}

fn holes(name: &'static str) -> Case {
    let nan = f64::NAN;
    let values = vec![1.0, nan, -2.0, 0.5, 3.0, nan, nan, nan];
    Case::new(name).arg(DType::F64, &[2, 4], Sample::Values(values)).constant()
}
