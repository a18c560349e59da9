//! Operators that make tensors from numbers alone.

use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ops::OpCx;
use crate::tensor::TensorType;

operators! {
    arange: ARANGE;
    constant: CONSTANT;
    empty: EMPTY, EMPTY_LIKE, NEW_EMPTY;
    eye: EYE;
    full: FULL, FULL_LIKE, NEW_FULL, SCALAR_TENSOR;
    linspace: LINSPACE;
    logspace: LOGSPACE;
    ones: ONES, ONES_LIKE, NEW_ONES;
    tril_indices: TRIL_INDICES, TRIU_INDICES;
    window: HANN_WINDOW, HAMMING_WINDOW, BLACKMAN_WINDOW, BARTLETT_WINDOW;
    zeros: ZEROS, ZEROS_LIKE, NEW_ZEROS;
}

/// Type rule: shape `size`, dtype `dtype` or else the default given.
pub fn sized(cx: &OpCx, default: DType) -> Result<Vec<TensorType>> {
    Ok(vec![TensorType::new(cx.opt_dtype("dtype")?.unwrap_or(default), cx.sizes("size")?)])
}

/// Type rule: shape of `self`, dtype `dtype` or else that of `self`.
pub fn like(cx: &OpCx) -> Result<Vec<TensorType>> {
    let x = cx.ty(0)?;
    Ok(vec![TensorType::new(cx.opt_dtype("dtype")?.unwrap_or(x.dtype), x.shape.clone())])
}

/// Type rule: shape `size`, dtype `dtype` or else that of `self`.
pub fn new(cx: &OpCx) -> Result<Vec<TensorType>> {
    sized(cx, cx.dtype(0)?)
}
