//! Rows of a table.

use super::embedding_grad::EMBEDDING_DENSE_BACKWARD;
use super::{given, integers, resolve};
use crate::attr::Attrs;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpDef, Precision};
use crate::tensor::{Tensor, TensorType};

/// `(weight [rows, width], indices)` to `[indices..., width]`. Row `padding_idx` (negative: none) gets no
/// gradient; `scale_grad_by_freq` divides a row's gradient by how often it is read.
pub static EMBEDDING: OpDef = OpDef {
    name: "embedding",
    schemas: &[
        "embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) -> Tensor",
    ],
    infer: |cx| {
        let (w, index) = (cx.ty(0)?, cx.shape(1)?);
        ensure!(
            w.dtype.is_float() && w.shape.rank() == 2,
            Shape,
            "an embedding's table must be floats [rows, width], got {w}"
        );
        integers(cx, 1)?;
        Ok(vec![TensorType::new(w.dtype, [&index[..], &w.shape[1..]].concat())])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, w, index) = (cx.grad(0)?, cx.x(0)?, cx.x(1)?);
        let attrs = Attrs::new()
            .with("num_weights", cx.ty(w).shape[0] as i64)
            .with("padding_idx", cx.args().opt_int("padding_idx")?.unwrap_or(-1))
            .with("scale_grad_by_freq", cx.args().flag("scale_grad_by_freq")?);
        let dw = cx.one(&EMBEDDING_DENSE_BACKWARD, &[g, index], attrs)?;
        cx.set(0, dw)
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Kernel(|cx, inputs, outs| {
        let (w, index) = (given(inputs, 0)?, given(inputs, 1)?.ints());
        let (rows, width) = (cx.shape(0)?[0], cx.shape(0)?[1]);
        let mut out = Vec::with_capacity(outs[0].shape.numel());
        for (at, &i) in index.iter().enumerate() {
            let row = resolve(i, at, rows, false)? * width;
            out.extend_from_slice(&w.floats()[row..row + width]);
        }
        Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), out)])
    }),
    cases: || {
        vec![
            Case::new("plain").f(&[4, 3]).index(&[2, 3], 4).attr("padding_idx", -1),
            Case::new("one").f(&[4, 3]).index(&[], 4).attr("padding_idx", -1),
            Case::new("none").f(&[4, 3]).index(&[0], 4).attr("padding_idx", -1),
        ]
    },
};
