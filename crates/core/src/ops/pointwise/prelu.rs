//! Rectified linear unit with a learned slope: He et al. 2015.

use super::{NO_SECOND, promoted};
use crate::diagnostic::Result;
use crate::ensure;
use crate::expr::{float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};

/// `x` above 0, `weight · x` below and at 0; one weight for each channel (dimension 1), or one for all.
pub static PRELU: OpDef = OpDef {
    name: "prelu",
    schemas: &["prelu(Tensor self, Tensor weight) -> Tensor"],
    infer: |cx| {
        weight_shape(cx)?;
        let x = cx.ty(0)?;
        ensure!(
            x.dtype.is_float() && x.dtype == cx.dtype(1)?,
            DType,
            "it takes floats alike, got {}",
            cx.list_types()
        );
        Ok(vec![x.clone()])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::PerOutput(2),
    body: Body::Decompose(|b, cx, inputs| {
        let weight = b.reshape(required(inputs, 1)?, &weight_shape(cx)?)?;
        b.apply(&PRELU_KERNEL, &[inputs[0], Some(weight)], Default::default())
    }),
    cases: || {
        vec![
            Case::new("channels").distinct(&[2, 3, 2]).f(&[3]),
            Case::new("one weight").distinct(&[5]).f(&[1]),
            Case::new("scalar").distinct(&[]).f(&[]),
        ]
    },
};

/// [`PRELU`] with the weight in a shape that broadcasts.
pub static PRELU_KERNEL: OpDef = OpDef {
    name: "_prelu_kernel",
    schemas: &["_prelu_kernel(Tensor self, Tensor weight) -> Tensor"],
    infer: |cx| {
        let out = promoted(cx)?;
        ensure!(out[0].dtype.is_float(), DType, "it takes floats, got {}", cx.list_types());
        ensure!(out[0].shape == *cx.shape(0)?, Shape, "the weight does not broadcast: {}", cx.list_types());
        ensure!(cx.dtype(0)? == cx.dtype(1)?, DType, "two dtypes: {}", cx.list_types());
        Ok(out)
    },
    derivative: Derivative::Rule(|cx| {
        let (g, x, w) = (cx.grad(0)?, cx.x(0)?, cx.x(1)?);
        let grads = cx.apply(&PRELU_KERNEL_BACKWARD, &[Some(g), Some(x), Some(w)], Default::default())?;
        cx.set(0, grads[0])?;
        cx.set(1, grads[1])
    }),
    precision: Precision::Low,
    cost: Cost::PerOutput(2),
    body: Body::Pointwise(|_| {
        let (x, w) = (input(0), input(1));
        Ok(vec![x.clone().gt(float(0.0)).select(x.clone(), w * x)])
    }),
    cases: || vec![Case::new("channels").distinct(&[2, 3]).f(&[1, 3])],
};

/// Gradients of [`PRELU_KERNEL`] by both inputs, the weight's not yet summed: `(grad_output, self, weight)`.
pub static PRELU_KERNEL_BACKWARD: OpDef = OpDef {
    name: "_prelu_kernel_backward",
    schemas: &["_prelu_kernel_backward(Tensor grad_output, Tensor self, Tensor weight) -> (Tensor, Tensor)"],
    infer: |cx| {
        let out = promoted(cx)?;
        ensure!(out[0].dtype.is_float(), DType, "it takes floats, got {}", cx.list_types());
        Ok(vec![out[0].clone(), out[0].clone()])
    },
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerOutput(4),
    body: Body::Pointwise(|cx| {
        let dtype = cx.result_type(&[]);
        let (g, x, w) = (input(0).cast(dtype), input(1).cast(dtype), input(2).cast(dtype));
        let above = x.clone().gt(float(0.0));
        Ok(vec![above.clone().select(g.clone(), w * g.clone()), above.select(float(0.0), x * g)])
    }),
    cases: || vec![Case::new("channels").f(&[2, 3]).distinct(&[2, 3]).f(&[1, 3])],
};

fn weight_shape(cx: &OpCx) -> Result<Vec<usize>> {
    let (x, w) = (cx.shape(0)?, cx.shape(1)?);
    let channels = if x.rank() < 2 { 1 } else { x[1] };
    ensure!(
        w.rank() <= 1 && (w.numel() == 1 || w.numel() == channels),
        Shape,
        "{w} weights for {channels} channels"
    );
    let mut shape = vec![1; x.rank()];
    if x.rank() >= 2 {
        shape[1] = w.numel();
    }
    Ok(shape)
}
