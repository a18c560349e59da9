//! Affine map by a weight matrix.

use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::shape::Shape;
use crate::tensor::{Tensor, TensorType};

/// `input · weightᵀ + bias`: `[..., k]`, `[n, k]`, `[n]` (optional) to `[..., n]`. A weight `[k]` without
/// bias gives `[...]`. The sum and the bias are added in f32 or wider, then rounded once.
pub static LINEAR: OpDef = OpDef {
    name: "linear",
    schemas: &["linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"],
    infer: |cx| {
        let d = Dims::of(cx)?;
        Ok(vec![TensorType::new(cx.dtype(0)?, d.out)])
    },
    derivative: Derivative::Rule(gradient),
    precision: Precision::Low,
    cost: Cost::Custom(|cx, out| {
        let k = cx.shape(0).ok().and_then(|s| s.last().copied()).unwrap_or(1);
        2.0 * k as f64 * out[0].shape.numel() as f64
    }),
    body: Body::Kernel(reference),
    cases: || {
        vec![
            Case::new("bias").f(&[2, 3, 4]).f(&[5, 4]).f(&[5]),
            Case::new("no bias").f(&[3, 4]).f(&[2, 4]).none(),
            Case::new("one sample").f(&[4]).f(&[3, 4]).f(&[3]),
            Case::new("weight vector").f(&[3, 4]).f(&[4]).none(),
            Case::new("k is 0").f(&[3, 0]).f(&[2, 0]).f(&[2]),
        ]
    },
};

/// The matrix product a `linear` node stands for: `[m, k] × [n, k]ᵀ`.
#[derive(Debug)]
pub struct Dims {
    /// Rows: all leading dimensions of the input, flattened.
    pub m: usize,
    /// Summed dimension.
    pub k: usize,
    /// Output features.
    pub n: usize,
    /// Shape of the result.
    pub out: Shape,
}

impl Dims {
    /// The dimensions of a `linear` node.
    pub fn of(cx: &OpCx) -> Result<Dims> {
        let (x, w) = (cx.ty(0)?, cx.ty(1)?);
        let one = x.dtype.is_float() && cx.present().all(|t| t.dtype == x.dtype);
        ensure!(one, DType, "linear of {} needs one floating-point dtype", cx.list_types());
        ensure!(x.shape.rank() > 0, Shape, "linear of a scalar: {}", cx.list_types());
        ensure!(matches!(w.shape.rank(), 1 | 2), Shape, "the weight must be [out, in] or [in], it is {w}");
        let (k, lead) = (x.shape[x.shape.rank() - 1], &x.shape[..x.shape.rank() - 1]);
        ensure!(w.shape[w.shape.rank() - 1] == k, Shape, "inner sizes differ in {}", cx.list_types());
        let mut out = lead.to_vec();
        if w.shape.rank() == 2 {
            out.push(w.shape[0]);
        }
        let n = if w.shape.rank() == 2 { w.shape[0] } else { 1 };
        if let Some(b) = cx.opt(2) {
            ensure!(
                w.shape.rank() == 2 && b.shape[..] == [n],
                Shape,
                "the bias {b} does not fit the weight {w}"
            );
        }
        Ok(Dims { m: lead.iter().product(), k, n, out: out.into() })
    }
}

fn reference(cx: &OpCx, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let d = Dims::of(cx)?;
    let (x, w) = (inputs[0].expect("typed").floats(), inputs[1].expect("typed").floats());
    let bias = inputs.get(2).copied().flatten().map(Tensor::floats);
    let mut out = Vec::with_capacity(d.m * d.n);
    // A size of 0 in one dimension leaves the others any size.
    let rows = if d.n == 0 { 0 } else { d.m };
    for i in 0..rows {
        for j in 0..d.n {
            let sum: f64 = (0..d.k).map(|p| x[i * d.k + p] * w[j * d.k + p]).sum();
            out.push(sum + bias.map_or(0.0, |b| b[j]));
        }
    }
    Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), out)])
}

fn gradient(cx: &mut GradCx) -> Result<()> {
    let types = cx.types();
    let d = Dims::of(&OpCx { inputs: types.iter().map(Option::as_ref).collect(), attrs: cx.attrs() })?;
    let shape = |i: usize| types[i].as_ref().expect("typed").shape.clone();
    let g = cx.grad(0)?;
    let g = cx.reshape(g, &[d.m, d.n])?;
    if cx.needs(0) {
        let w = cx.x(1)?;
        let w = cx.reshape(w, &[d.n, d.k])?;
        let dx = cx.matmul(g, w)?;
        let dx = cx.reshape(dx, &shape(0))?;
        cx.set(0, dx)?;
    }
    if cx.needs(1) {
        let (x, gt) = (cx.x(0)?, cx.transpose_last(g)?);
        let x = cx.reshape(x, &[d.m, d.k])?;
        let dw = cx.matmul(gt, x)?;
        let dw = cx.reshape(dw, &shape(1))?;
        cx.set(1, dw)?;
    }
    if cx.needs(2) {
        let db = cx.sum(g, &[0], false)?;
        cx.set(2, db)?;
    }
    Ok(())
}
