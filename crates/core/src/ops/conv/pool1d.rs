//! Poolings over one dimension: those over two, with one row.

use super::avg_pool2d::{ADAPTIVE_AVG_POOL2D, AVG_POOL2D};
use super::max_pool2d::{ADAPTIVE_MAX_POOL2D, MAX_POOL2D};
use crate::attr::{Attr, Attrs};
use crate::diagnostic::Result;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// Maximum over sliding windows of the last dimension, and its index.
pub static MAX_POOL1D: OpDef = OpDef {
    name: "max_pool1d_with_indices",
    schemas: &[
        "max_pool1d_with_indices(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=[0], int[1] dilation=[1], bool ceil_mode=False) -> (Tensor, Tensor)",
        "max_pool1d(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=[0], int[1] dilation=[1], bool ceil_mode=False) -> Tensor",
    ],
    infer: |cx| infer(cx, &MAX_POOL2D),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| decompose(b, cx, inputs, &MAX_POOL2D)),
    cases: || vec![Case::new("strided").distinct(&[2, 1, 7]).attr("kernel_size", [3]).attr("stride", [2])],
};

/// Mean over sliding windows of the last dimension.
pub static AVG_POOL1D: OpDef = OpDef {
    name: "avg_pool1d",
    schemas: &[
        "avg_pool1d(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=[0], bool ceil_mode=False, bool count_include_pad=True) -> Tensor",
    ],
    infer: |cx| infer(cx, &AVG_POOL2D),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| decompose(b, cx, inputs, &AVG_POOL2D)),
    cases: || vec![Case::new("padded").f(&[2, 6]).attr("kernel_size", [3]).attr("padding", [1])],
};

/// Mean over `output_size` windows of the last dimension.
pub static ADAPTIVE_AVG_POOL1D: OpDef = OpDef {
    name: "adaptive_avg_pool1d",
    schemas: &["adaptive_avg_pool1d(Tensor self, int[1] output_size) -> Tensor"],
    infer: |cx| infer(cx, &ADAPTIVE_AVG_POOL2D),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| decompose(b, cx, inputs, &ADAPTIVE_AVG_POOL2D)),
    cases: || vec![Case::new("uneven").f(&[2, 1, 5]).attr("output_size", [3])],
};

/// Maximum over `output_size` windows of the last dimension, and its index.
pub static ADAPTIVE_MAX_POOL1D: OpDef = OpDef {
    name: "adaptive_max_pool1d",
    schemas: &["adaptive_max_pool1d(Tensor self, int[1] output_size) -> (Tensor, Tensor)"],
    infer: |cx| infer(cx, &ADAPTIVE_MAX_POOL2D),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| decompose(b, cx, inputs, &ADAPTIVE_MAX_POOL2D)),
    cases: || vec![Case::new("uneven").distinct(&[2, 1, 5]).attr("output_size", [3])],
};

/// `[…, 1, L]` for `[…, L]`.
fn with_row(shape: &Shape) -> Result<Shape> {
    ensure!(matches!(shape.rank(), 2 | 3), Shape, "pooling needs [N, C, L] or [C, L], got {shape}");
    let mut rows = shape.to_vec();
    rows.insert(shape.rank() - 1, 1);
    Ok(rows.into())
}

/// The attributes for one row: a kernel and a window of size 1 there, no padding.
fn row_attrs(cx: &OpCx) -> Result<Attrs> {
    let mut attrs = cx.attrs.clone();
    for (name, first) in
        [("kernel_size", 1), ("stride", 1), ("padding", 0), ("dilation", 1), ("output_size", 1)]
    {
        if let Some(Attr::Ints(v)) = cx.attrs.get(name)
            && let [one] = v[..]
        {
            attrs.set(name, [first, one]);
        }
    }
    Ok(attrs)
}

fn infer(cx: &OpCx, op: &OpDef) -> Result<Vec<TensorType>> {
    let x = TensorType::new(cx.dtype(0)?, with_row(cx.shape(0)?)?);
    let attrs = row_attrs(cx)?;
    let outs = (op.infer)(&OpCx { inputs: vec![Some(&x)], attrs: &attrs })?;
    Ok(outs.into_iter().map(|t| TensorType::new(t.dtype, without_row(&t.shape))).collect())
}

fn without_row(shape: &Shape) -> Shape {
    let mut sizes = shape.to_vec();
    sizes.remove(shape.rank() - 2);
    sizes.into()
}

fn decompose(
    b: &mut Builder,
    cx: &OpCx,
    inputs: &[Option<ValueId>],
    op: &'static OpDef,
) -> Result<Vec<ValueId>> {
    let x = b.reshape(inputs[0].expect("typed"), &with_row(cx.shape(0)?)?)?;
    let outs = b.apply(op, &[Some(x)], row_attrs(cx)?)?;
    let back = |v: ValueId| {
        let shape = without_row(&b.ty(v).shape);
        b.reshape(v, &shape)
    };
    outs.into_iter().map(back).collect()
}
