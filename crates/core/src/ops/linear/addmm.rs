//! Matrix products added to something: `beta · self + alpha · product`.

use crate::diagnostic::Result;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// `beta · self + alpha · (a · b)`, `self` broadcast to the product's shape; with `beta` 0, `self` is not
/// read.
pub static ADDMM: OpDef = OpDef {
    name: "addmm",
    schemas: &[
        "addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
        "baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
        "addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
    ],
    infer: |cx| {
        let product = product_shape(cx)?;
        added(cx, product)
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let (x, m1, m2) = operands(inputs)?;
        let bias = b.ty(x).shape.rank() == 1 && b.ty(m2).shape.rank() == 2;
        if bias
            && b.ty(x).shape[0] == b.ty(m2).shape[1]
            && scalar(cx, "beta")? == 1.0
            && scalar(cx, "alpha")? == 1.0
        {
            // A bias row: the linear kernel adds it before rounding.
            let w = b.transpose_last(m2)?;
            return Ok(vec![b.one(&super::linear::LINEAR, &[m1, w, x], crate::Attrs::new())?]);
        }
        let product = b.matmul(m1, m2)?;
        scaled_sum(b, cx, x, product)
    }),
    cases: || {
        vec![
            Case::new("bias row").f(&[4]).f(&[2, 3]).f(&[3, 4]).attr("beta", 1).attr("alpha", 1),
            Case::new("scaled").f(&[2, 1]).f(&[2, 3]).f(&[3, 4]).attr("beta", 0.5).attr("alpha", -2.0),
            Case::new("beta 0").f(&[2, 4]).f(&[2, 3]).f(&[3, 4]).attr("beta", 0).attr("alpha", 1),
            Case::new("batched")
                .f(&[2, 2, 4])
                .f(&[2, 2, 3])
                .f(&[2, 3, 4])
                .attr("beta", 1)
                .attr("alpha", 0.25),
            Case::new("vector").f(&[2]).f(&[2, 3]).f(&[3]).attr("beta", 1).attr("alpha", 1),
        ]
    },
};

/// `beta · self + alpha · Σ_b batch1[b] · batch2[b]`.
pub static ADDBMM: OpDef = OpDef {
    name: "addbmm",
    schemas: &[
        "addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
    ],
    infer: |cx| {
        let product = product_shape(cx)?;
        ensure!(product.rank() == 3, Shape, "addbmm needs batches of matrices, got {}", cx.list_types());
        added(cx, Shape::new(&product[1..]))
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let (x, b1, b2) = operands(inputs)?;
        // The sum over the batch is part of the inner product: [m, batch·k] × [batch·k, n].
        let (s1, s2) = (b.ty(b1).shape.clone(), b.ty(b2).shape.clone());
        let left = b.permute(b1, &[1, 0, 2])?;
        let left = b.reshape(left, &[s1[1], s1[0] * s1[2]])?;
        let right = b.reshape(b2, &[s2[0] * s2[1], s2[2]])?;
        let product = b.matmul(left, right)?;
        scaled_sum(b, cx, x, product)
    }),
    cases: || {
        vec![Case::new("scaled").f(&[2, 4]).f(&[3, 2, 2]).f(&[3, 2, 4]).attr("beta", 0.5).attr("alpha", 2.0)]
    },
};

/// Outer product of vectors: `[m]`, `[n]` to `[m, n]`.
pub static OUTER: OpDef = OpDef {
    name: "outer",
    schemas: &["outer(Tensor self, Tensor vec2) -> Tensor", "ger(Tensor self, Tensor vec2) -> Tensor"],
    infer: |cx| {
        let (a, b) = (cx.shape(0)?, cx.shape(1)?);
        ensure!(a.rank() == 1 && b.rank() == 1, Shape, "outer needs vectors, got {}", cx.list_types());
        Ok(vec![TensorType::new(cx.result_type(&[]), [a[0], b[0]])])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Widest,
    cost: Cost::Free,
    body: Body::Decompose(|b, _, inputs| {
        let (x, y) = (inputs[0].expect("typed"), inputs[1].expect("typed"));
        Ok(vec![outer(b, x, y)?])
    }),
    cases: || vec![Case::new("vectors").f(&[3]).f(&[2])],
};

/// `beta · self + alpha · vec1 ⊗ vec2`.
pub static ADDR: OpDef = OpDef {
    name: "addr",
    schemas: &["addr(Tensor self, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"],
    infer: |cx| {
        let (a, b) = (cx.shape(1)?, cx.shape(2)?);
        ensure!(a.rank() == 1 && b.rank() == 1, Shape, "addr needs vectors, got {}", cx.list_types());
        added(cx, Shape::new(&[a[0], b[0]]))
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let (x, v1, v2) = operands(inputs)?;
        let product = outer(b, v1, v2)?;
        scaled_sum(b, cx, x, product)
    }),
    cases: || vec![Case::new("scaled").f(&[3, 2]).f(&[3]).f(&[2]).attr("beta", 0.5).attr("alpha", 2.0)],
};

fn operands(inputs: &[Option<ValueId>]) -> Result<(ValueId, ValueId, ValueId)> {
    let get = |i: usize| inputs[i].ok_or_else(|| crate::fail!(Attribute, "input {i} is missing"));
    Ok((get(0)?, get(1)?, get(2)?))
}

fn outer(b: &mut Builder, x: ValueId, y: ValueId) -> Result<ValueId> {
    let m = b.ty(x).shape[0];
    let column = b.reshape(x, &[m, 1])?;
    b.mul(column, y)
}

fn scalar(cx: &OpCx, name: &str) -> Result<f64> {
    Ok(cx.opt_float(name)?.unwrap_or(1.0))
}

fn product_shape(cx: &OpCx) -> Result<Shape> {
    let of = OpCx { inputs: vec![cx.opt(1), cx.opt(2)], attrs: cx.attrs };
    Ok(super::matmul::Dims::of(&of)?.out)
}

/// Type of the sum, `self` broadcast to `product`.
fn added(cx: &OpCx, product: Shape) -> Result<Vec<TensorType>> {
    let dtype = cx.dtype(0)?;
    let one = dtype.is_float() && cx.present().all(|t| t.dtype == dtype);
    ensure!(one, DType, "{} must be of one floating-point dtype", cx.list_types());
    let fits = cx.shape(0)?.broadcast(&product).is_some_and(|s| s == product);
    ensure!(fits, Shape, "{} does not broadcast to the product's shape {product}", cx.ty(0)?);
    Ok(vec![TensorType::new(dtype, product)])
}

fn scaled_sum(b: &mut Builder, cx: &OpCx, x: ValueId, product: ValueId) -> Result<Vec<ValueId>> {
    let product = b.scale(product, scalar(cx, "alpha")?)?;
    let beta = scalar(cx, "beta")?;
    if beta == 0.0 {
        return Ok(vec![product]);
    }
    let x = b.scale(x, beta)?;
    Ok(vec![b.add(x, product)?])
}
