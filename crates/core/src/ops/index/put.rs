//! Elements of the flattened tensor written.

use super::index_put::INDEX_PUT_IMPL;
use super::integers;
use crate::attr::Attrs;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, Sample, required};

/// `self` with its elements at `index`, counted row-major, replaced by those of `source`, or increased by
/// them if `accumulate`; negative indices count from the end.
pub static PUT: OpDef = OpDef {
    name: "put",
    schemas: &["put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor"],
    infer: |cx| {
        integers(cx, 1)?;
        let (x, index, source) = (cx.ty(0)?, cx.ty(1)?, cx.ty(2)?);
        let fits = index.shape.numel() == source.shape.numel() && source.dtype == x.dtype;
        ensure!(fits, Shape, "indices {index} and values {source} for {x}");
        ensure!(x.shape.numel() > 0 || index.shape.numel() == 0, Shape, "no elements to write in {x}");
        cx.flag("accumulate")?;
        Ok(vec![x.clone()])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Widest,
    cost: Cost::PerOutput(1),
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let count = [cx.shape(1)?.numel()];
        let flat = b.reshape(required(inputs, 0)?, &[cx.shape(0)?.numel()])?;
        let index = b.reshape(required(inputs, 1)?, &count)?;
        let source = b.reshape(required(inputs, 2)?, &count)?;
        let attrs = Attrs::new().with("accumulate", cx.flag("accumulate")?);
        let y = b.one(&INDEX_PUT_IMPL, &[flat, index, source], attrs)?;
        Ok(vec![b.reshape(y, cx.shape(0)?)?])
    }),
    cases: || {
        let once = Sample::Values(vec![4.0, -6.0, 2.0, 1.0]);
        vec![
            Case::new("replaced")
                .f(&[2, 3])
                .arg(crate::DType::I64, &[2, 2], once)
                .f(&[4])
                .attr("accumulate", false),
            Case::new("added").f(&[2, 3]).index(&[4], 6).f(&[2, 2]).attr("accumulate", true),
        ]
    },
};
