//! Tensors broadcast against each other.

use crate::diagnostic::Result;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// Vector `i` spread along dimension `i` of the grid of all; with `indexing` `xy` the first two dimensions
/// are exchanged.
pub static MESHGRID: OpDef = OpDef {
    name: "meshgrid",
    schemas: &[
        "meshgrid(Tensor[] tensors) -> Tensor[]",
        "meshgrid.indexing(Tensor[] tensors, *, str indexing) -> Tensor[]",
    ],
    infer: |cx| {
        ensure!(
            cx.present().all(|t| t.shape.rank() <= 1),
            Shape,
            "it takes vectors, got {}",
            cx.list_types()
        );
        let (order, shape) = grid(cx)?;
        ensure!(shape.checked_numel().is_some(), Size, "{shape} is larger than memory can be");
        ensure!(!order.is_empty(), Shape, "a grid of nothing");
        Ok(cx.present().map(|t| TensorType::new(t.dtype, shape.clone())).collect())
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| {
        let (order, shape) = grid(cx)?;
        let spread = |(i, &v): (usize, &crate::ValueId)| {
            let mut own = vec![1; shape.rank()];
            own[order[i]] = shape[order[i]];
            let v = b.reshape(v, &own)?;
            b.expand(v, &shape)
        };
        inputs.iter().flatten().enumerate().map(spread).collect()
    }),
    cases: || {
        vec![
            Case::new("rows first").f(&[2]).f(&[3]).attr("indexing", "ij"),
            Case::new("columns first").f(&[2]).f(&[3]).f(&[]).attr("indexing", "xy"),
        ]
    },
};

/// Every tensor expanded to the shape they broadcast to.
pub static BROADCAST_TENSORS: OpDef = OpDef {
    name: "broadcast_tensors",
    schemas: &["broadcast_tensors(Tensor[] tensors) -> Tensor[]"],
    infer: |cx| {
        let shape = cx.broadcast()?;
        Ok(cx.present().map(|t| TensorType::new(t.dtype, shape.clone())).collect())
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| {
        let shape = cx.broadcast()?;
        inputs.iter().flatten().map(|&v| b.expand(v, &shape)).collect()
    }),
    cases: || vec![Case::new("two").f(&[2, 1]).f(&[3])],
};

/// The dimension of the grid that each tensor runs along, and the grid's shape.
fn grid(cx: &OpCx) -> Result<(Vec<usize>, Shape)> {
    let count = cx.present().count();
    let mut order: Vec<usize> = (0..count).collect();
    match cx.opt_str("indexing")?.unwrap_or("ij") {
        "ij" => {}
        "xy" if count >= 2 => order.swap(0, 1),
        "xy" => {}
        other => return Err(fail!(Attribute, "`indexing` must be ij or xy, got {other}")),
    }
    let mut shape = vec![1; count];
    for (t, &d) in cx.present().zip(&order) {
        shape[d] = t.shape.numel();
    }
    Ok((order, shape.into()))
}
