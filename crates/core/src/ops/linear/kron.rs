//! Kronecker product.

use crate::diagnostic::Result;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// Every element of `self` times `other`, the products in the place of the elements. Missing leading
/// dimensions count as 1.
pub static KRON: OpDef = OpDef {
    name: "kron",
    schemas: &["kron(Tensor self, Tensor other) -> Tensor"],
    infer: |cx| {
        let [x, y] = aligned(cx)?;
        let sizes: Option<Vec<usize>> = x.iter().zip(&y).map(|(x, y)| x.checked_mul(*y)).collect();
        let shape = sizes.map(Shape::from).filter(|s| s.checked_numel().is_some());
        let shape = shape
            .ok_or_else(|| fail!(Size, "the product of {} is larger than memory can be", cx.list_types()))?;
        Ok(vec![TensorType::new(cx.result_type(&[]), shape)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Widest,
    cost: Cost::PerOutput(1),
    body: Body::Decompose(|b, cx, inputs| {
        let [x, y] = aligned(cx)?;
        let outer: Vec<usize> = x.iter().flat_map(|&n| [n, 1]).collect();
        let inner: Vec<usize> = y.iter().flat_map(|&n| [1, n]).collect();
        let (a, c) = (b.reshape(required(inputs, 0)?, &outer)?, b.reshape(required(inputs, 1)?, &inner)?);
        let products = b.mul(a, c)?;
        let shape: Vec<usize> = x.iter().zip(&y).map(|(x, y)| x * y).collect();
        Ok(vec![b.reshape(products, &shape)?])
    }),
    cases: || {
        vec![
            Case::new("matrices").f(&[2, 3]).f(&[3, 2]),
            Case::new("matrix and vector").f(&[2, 2]).f(&[3]),
            Case::new("vector and matrix").f(&[3]).f(&[1, 2]),
            Case::new("integers").index(&[2], 9).index(&[3], 9),
        ]
    },
};

/// Both shapes, of as many dimensions.
fn aligned(cx: &OpCx) -> Result<[Vec<usize>; 2]> {
    let (x, y) = (cx.shape(0)?, cx.shape(1)?);
    let rank = x.rank().max(y.rank());
    ensure!(rank <= 8, Unsupported, "Kronecker products of more than 8 dimensions: {}", cx.list_types());
    Ok([x, y].map(|s| std::iter::repeat_n(1, rank - s.rank()).chain(s.iter().copied()).collect()))
}
