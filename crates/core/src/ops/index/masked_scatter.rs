//! Elements where a mask is true replaced by those of a source, in order.

use crate::attr::Attrs;
use crate::ops::pointwise::add::ADD;
use crate::ops::reduce::cumsum::CUMSUM;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, Sample};
use crate::tensor::TensorType;
use crate::{DType, ensure, fail};

/// `self` (broadcast with `mask`) with its masked elements, in row-major order, replaced by the first
/// elements of `source`. A source with fewer elements than the mask has is a `Value` error.
pub static MASKED_SCATTER: OpDef = OpDef {
    name: "masked_scatter",
    schemas: &["masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor"],
    infer: |cx| {
        let (x, mask, source) = (cx.ty(0)?, cx.ty(1)?, cx.ty(2)?);
        ensure!(mask.dtype == DType::Bool, DType, "the mask must be bool, got {mask}");
        ensure!(source.dtype == x.dtype, DType, "the source is {source}, what it goes into is {x}");
        let shape = x.shape.broadcast(&mask.shape);
        let shape = shape.ok_or_else(|| fail!(Shape, "{x} and {mask} do not broadcast"))?;
        Ok(vec![TensorType::new(x.dtype, shape)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| {
        let [Some(x), Some(mask), Some(source)] = inputs[..] else {
            return Err(fail!(Attribute, "an input is missing"));
        };
        let shape = cx.shape(0)?.broadcast(cx.shape(1)?).unwrap_or_default();
        let (x, mask) = (b.expand(x, &shape)?, b.expand(mask, &shape)?);
        // Element k of the masked ones takes element k of the source: k counts the masked ones before it.
        let flat = b.reshape(mask, &[shape.numel()])?;
        let ones = b.cast(flat, DType::I64)?;
        let count = b.one(&CUMSUM, &[ones], Attrs::new().with("dim", 0))?;
        let at = b.one(&ADD, &[count], Attrs::new().with("other", -1))?;
        // The index must be valid even where nothing is taken; where something is, it is checked.
        let at = b.mul(at, ones)?;
        let elements = cx.shape(2)?.numel();
        if elements == 0 {
            // Nothing can be taken: legal only if nothing is masked, which gathering from nothing checks.
            ensure!(shape.numel() == 0, Unsupported, "an empty source");
            return Ok(vec![x]);
        }
        let source = b.reshape(source, &[elements])?;
        let taken = b.one(&super::gather::GATHER, &[source, at], Attrs::new().with("dim", 0))?;
        let taken = b.reshape(taken, &shape)?;
        Ok(vec![b.choose(mask, taken, x)?])
    }),
    cases: || {
        let mask = |values: &[f64]| Sample::Values(values.to_vec());
        vec![
            Case::new("some").f(&[2, 3]).arg(DType::Bool, &[2, 3], mask(&[0., 1., 1., 0., 0., 1.])).f(&[5]),
            Case::new("broadcast mask").f(&[2, 3]).arg(DType::Bool, &[2, 1], mask(&[0., 1.])).f(&[3, 1]),
            Case::new("none").f(&[2]).arg(DType::Bool, &[2], mask(&[0., 0.])).f(&[1]),
        ]
    },
};
