//! Rows of a table.

use super::{given, integers, resolve};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::tensor::{Tensor, TensorType};
use std::collections::HashMap;

/// `(weight [rows, width], indices)` to `[indices..., width]`. Row `padding_idx` (negative: none) gets no gradient;
/// `scale_grad_by_freq` divides a row's gradient by how often it is read.
pub static EMBEDDING: OpDef = OpDef {
    name: "embedding",
    schemas: &[
        "embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) -> Tensor",
    ],
    infer: |cx| {
        let (w, index) = (cx.ty(0)?, cx.shape(1)?);
        ensure!(w.dtype.is_float() && w.shape.rank() == 2, Shape, "an embedding's table must be floats [rows, width], got {w}");
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

/// Gradient of [`EMBEDDING`] by its table: `(grad_output, indices)` to `[num_weights, width]`. Sums in f32 or wider, in
/// the order of the indices.
pub static EMBEDDING_DENSE_BACKWARD: OpDef = OpDef {
    name: "embedding_dense_backward",
    schemas: &[
        "embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, bool scale_grad_by_freq) -> Tensor",
    ],
    infer: |cx| {
        let (g, index) = (cx.ty(0)?, cx.shape(1)?);
        integers(cx, 1)?;
        let fits = g.shape.rank() == index.rank() + 1 && g.shape[..index.rank()] == index[..] && g.dtype.is_float();
        ensure!(fits, Shape, "gradient {g} for indices {index}");
        Ok(vec![TensorType::new(g.dtype, [cx.size("num_weights")?, g.shape[index.rank()]])])
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Kernel(backward),
    cases: || {
        let case = |name| Case::new(name).f(&[2, 3, 2]).index(&[2, 3], 4).attr("num_weights", 4);
        vec![
            case("plain").attr("padding_idx", -1).attr("scale_grad_by_freq", false),
            case("padding").attr("padding_idx", 1).attr("scale_grad_by_freq", false),
            case("by frequency").attr("padding_idx", -1).attr("scale_grad_by_freq", true),
        ]
    },
};

fn backward(cx: &OpCx, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let (g, index) = (given(inputs, 0)?.floats(), given(inputs, 1)?.ints());
    let (rows, width) = (outs[0].shape[0], outs[0].shape[1]);
    let padding = cx.opt_int("padding_idx")?.unwrap_or(-1);
    let mut out = vec![0.0; rows * width];
    let mut count = HashMap::new();
    for (at, &i) in index.iter().enumerate() {
        let row = resolve(i, at, rows, false)?;
        if i != padding {
            *count.entry(row).or_insert(0u64) += 1;
            (0..width).for_each(|d| out[row * width + d] += g[at * width + d]);
        }
    }
    if cx.flag("scale_grad_by_freq")? {
        for (row, n) in count {
            out[row * width..][..width].iter_mut().for_each(|x| *x /= n as f64);
        }
    }
    Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), out)])
}
