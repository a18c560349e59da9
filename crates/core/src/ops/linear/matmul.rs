//! Matrix product, batched and broadcast.

use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::shape::{Layout, Shape};
use crate::tensor::{Tensor, TensorType};

/// `[..., m, k] × [..., k, n] → [..., m, n]`; vectors as in NumPy. Sums in f32 or wider.
pub static MATMUL: OpDef = OpDef {
    name: "matmul",
    schemas: &[
        "matmul(Tensor self, Tensor other) -> Tensor",
        "linalg_matmul(Tensor self, Tensor other) -> Tensor",
        "mm(Tensor self, Tensor mat2) -> Tensor",
        "bmm(Tensor self, Tensor mat2) -> Tensor",
        "mv(Tensor self, Tensor vec) -> Tensor",
        "dot(Tensor self, Tensor tensor) -> Tensor",
        "vdot(Tensor self, Tensor other) -> Tensor",
    ],
    infer: |cx| {
        let d = Dims::of(cx)?;
        ensure!(cx.dtype(0)? == cx.dtype(1)?, DType, "matmul of {} needs one dtype", cx.list_types());
        ensure!(cx.dtype(0)?.is_float(), DType, "matmul of {} needs floats", cx.list_types());
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
            Case::new("matrices").f(&[3, 4]).f(&[4, 2]),
            Case::new("broadcast batch").f(&[2, 1, 3, 4]).f(&[5, 4, 2]),
            Case::new("matrix vector").f(&[3, 4]).f(&[4]),
            Case::new("vector matrix batch").f(&[4]).f(&[2, 4, 3]),
            Case::new("dot").f(&[4]).f(&[4]),
            Case::new("k is 0").f(&[3, 0]).f(&[0, 2]),
        ]
    },
};

/// A product with vectors made matrices: `batch × m × k` and `batch × k × n`.
#[derive(Debug)]
pub struct Dims {
    /// Broadcast batch dimensions.
    pub batch: Shape,
    /// Rows.
    pub m: usize,
    /// Summed dimension.
    pub k: usize,
    /// Columns.
    pub n: usize,
    /// Shape of the left operand as matrices.
    pub left: Shape,
    /// Shape of the right operand as matrices.
    pub right: Shape,
    /// Shape of the result, vectors' dimensions dropped.
    pub out: Shape,
}

impl Dims {
    /// The dimensions of a matmul node.
    pub fn of(cx: &OpCx) -> Result<Dims> {
        let (a, b) = (cx.shape(0)?, cx.shape(1)?);
        ensure!(a.rank() > 0 && b.rank() > 0, Shape, "matmul of a scalar: {}", cx.list_types());
        let left: Shape = if a.rank() == 1 { [1, a[0]].into() } else { a.clone() };
        let right: Shape = if b.rank() == 1 { [b[0], 1].into() } else { b.clone() };
        let (la, lb) = (left.rank() - 2, right.rank() - 2);
        let (m, k, n) = (left[la], left[la + 1], right[lb + 1]);
        ensure!(k == right[lb], Shape, "inner sizes differ in {}", cx.list_types());
        let batch = Shape::new(&left[..la]).broadcast(&right[..lb]);
        let Some(batch) = batch else {
            return Err(crate::fail!(Shape, "batches differ in {}", cx.list_types()));
        };
        let mut out = batch.to_vec();
        if a.rank() > 1 {
            out.push(m);
        }
        if b.rank() > 1 {
            out.push(n);
        }
        Ok(Dims { batch, m, k, n, left, right, out: out.into() })
    }
}

fn reference(cx: &OpCx, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let d = Dims::of(cx)?;
    let (a, b) = (inputs[0].expect("typed").floats(), inputs[1].expect("typed").floats());
    // Offsets of each batch's matrix in an operand, broadcast dimensions with stride 0.
    let starts = |shape: &Shape| {
        let l = Layout::contiguous(shape);
        let lead = d.batch.rank() + 2 - shape.rank();
        let strides = (0..d.batch.rank())
            .map(|i| if i < lead || shape[i - lead] == 1 { 0 } else { l.strides[i - lead] })
            .collect();
        Layout { shape: d.batch.clone(), strides, offset: 0 }.offsets()
    };
    let mut out = Vec::with_capacity(outs[0].shape.numel());
    for (sa, sb) in starts(&d.left).into_iter().zip(starts(&d.right)) {
        let rows = if d.n == 0 { 0 } else { d.m };
        for i in 0..rows {
            for j in 0..d.n {
                out.push((0..d.k).map(|p| a[sa as usize + i * d.k + p] * b[sb as usize + p * d.n + j]).sum());
            }
        }
    }
    Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), out)])
}

fn gradient(cx: &mut GradCx) -> Result<()> {
    let types = cx.types();
    let d = Dims::of(&OpCx { inputs: types.iter().map(Option::as_ref).collect(), attrs: cx.attrs() })?;
    let mut full = d.batch.to_vec();
    full.extend([d.m, d.n]);
    let g = cx.grad(0)?;
    let g = cx.reshape(g, &full)?;
    for (i, shape) in [(0, &d.left), (1, &d.right)] {
        if !cx.needs(i) {
            continue;
        }
        let x = cx.x(1 - i)?;
        let other = cx.reshape(x, if i == 0 { &d.right } else { &d.left })?;
        let other = cx.transpose_last(other)?;
        let dx = if i == 0 { cx.matmul(g, other)? } else { cx.matmul(other, g)? };
        let dx = cx.sum_to(dx, shape)?;
        let own = types[i].as_ref().expect("typed").shape.clone();
        let dx = cx.reshape(dx, &own)?;
        cx.set(i, dx)?;
    }
    Ok(())
}
