//! Tensors joined along a new dimension, and the older spellings of joining.

use super::cat::CAT;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// Tensors of one shape joined along a new dimension before `dim`.
pub static STACK: OpDef = OpDef {
    name: "stack",
    schemas: &["stack(Tensor[] tensors, int dim=0) -> Tensor"],
    infer: |cx| {
        let (first, dim) = (cx.shape(0)?, new_dim(cx)?);
        ensure!(cx.present().all(|t| t.shape == *first), Shape, "cannot stack {}", cx.list_types());
        let mut shape = first.to_vec();
        shape.insert(dim, cx.present().count());
        Ok(vec![TensorType::new(cx.result_type(&[]), shape)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Widest,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| {
        let dim = new_dim(cx)?;
        joined(b, inputs, dim, |b, v| b.unsqueeze(v, dim))
    }),
    cases: || {
        vec![
            Case::new("last").f(&[2, 3]).f(&[2, 3]).attr("dim", -1),
            Case::new("scalars").f(&[]).f(&[]).f(&[]).attr("dim", 0),
            Case::new("mixed").f(&[2]).index(&[2], 3).attr("dim", 0),
        ]
    },
};

/// Joined along dimension 1, vectors along dimension 0.
pub static HSTACK: OpDef = OpDef {
    name: "hstack",
    schemas: &["hstack(Tensor[] tensors) -> Tensor"],
    infer: |cx| {
        let dim = (cx.shape(0)?.rank() > 1) as i64;
        infer_joined(cx, dim, |s| at_least(s, 1))
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Widest,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| {
        let dim = (cx.shape(0)?.rank() > 1) as usize;
        joined(b, inputs, dim, |b, v| seen_as(b, v, |s| at_least(s, 1)))
    }),
    cases: || vec![Case::new("matrices").f(&[2, 3]).f(&[2, 1]), Case::new("vectors").f(&[2]).f(&[3])],
};

/// Joined along dimension 0, vectors as rows.
pub static VSTACK: OpDef = OpDef {
    name: "vstack",
    schemas: &["vstack(Tensor[] tensors) -> Tensor", "row_stack(Tensor[] tensors) -> Tensor"],
    infer: |cx| infer_joined(cx, 0, |s| at_least(s, 2)),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Widest,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, _, inputs| joined(b, inputs, 0, |b, v| seen_as(b, v, |s| at_least(s, 2)))),
    cases: || vec![Case::new("vectors").f(&[3]).f(&[3]), Case::new("matrices").f(&[1, 3]).f(&[2, 3])],
};

/// Joined along dimension 2, matrices as layers.
pub static DSTACK: OpDef = OpDef {
    name: "dstack",
    schemas: &["dstack(Tensor[] tensors) -> Tensor"],
    infer: |cx| infer_joined(cx, 2, layers),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Widest,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, _, inputs| joined(b, inputs, 2, |b, v| seen_as(b, v, layers))),
    cases: || vec![Case::new("vectors").f(&[3]).f(&[3]), Case::new("matrices").f(&[2, 3]).f(&[2, 3])],
};

/// Vectors as columns, and matrices, joined along dimension 1.
pub static COLUMN_STACK: OpDef = OpDef {
    name: "column_stack",
    schemas: &["column_stack(Tensor[] tensors) -> Tensor"],
    infer: |cx| infer_joined(cx, 1, columns),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Widest,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, _, inputs| joined(b, inputs, 1, |b, v| seen_as(b, v, columns))),
    cases: || vec![Case::new("vectors").f(&[3]).f(&[3]), Case::new("mixed").f(&[2]).f(&[2, 3])],
};

macro_rules! at_least {
    ($($def:ident $name:literal $view:expr;)*) => {$(
        #[doc = concat!("Each tensor as PyTorch's `", $name, "` shows it: dimensions of size 1 are added.")]
        pub static $def: OpDef = OpDef {
            name: $name,
            schemas: &[
                concat!($name, "(Tensor self) -> Tensor"),
                concat!($name, ".Sequence(Tensor[] tensors) -> Tensor[]"),
            ],
            infer: |cx| Ok(cx.present().map(|t| TensorType::new(t.dtype, $view(&t.shape))).collect()),
            derivative: Derivative::ByDecomposition,
            precision: Precision::Same,
            cost: Cost::Free,
            body: Body::Decompose(|b, _, inputs| inputs.iter().flatten().map(|&v| seen_as(b, v, $view)).collect()),
            cases: || vec![Case::new("scalar").f(&[]), Case::new("several").f(&[2]).f(&[2, 3]).f(&[2, 1, 2])],
        };
    )*};
}

at_least! {
    ATLEAST_1D "atleast_1d" |s: &Shape| at_least(s, 1);
    ATLEAST_2D "atleast_2d" |s: &Shape| at_least(s, 2);
    ATLEAST_3D "atleast_3d" layers;
}

fn new_dim(cx: &OpCx) -> Result<usize> {
    let rank = cx.shape(0)?.rank() + 1;
    if cx.opt_int("dim")?.is_some() { cx.dim("dim", rank) } else { Ok(0) }
}

/// Leading dimensions of size 1 added up to `rank`.
fn at_least(shape: &Shape, rank: usize) -> Shape {
    (shape.rank()..rank).map(|_| 1).chain(shape.iter().copied()).collect()
}

/// Scalars and vectors as columns.
fn columns(shape: &Shape) -> Shape {
    if shape.rank() > 1 { shape.clone() } else { [shape.numel(), 1].into() }
}

/// As PyTorch's `atleast_3d`: a vector is along the middle dimension.
fn layers(shape: &Shape) -> Shape {
    at_least(shape, 2).iter().copied().chain((shape.rank() < 3).then_some(1)).collect()
}

fn infer_joined(cx: &OpCx, dim: i64, view: impl Fn(&Shape) -> Shape) -> Result<Vec<TensorType>> {
    let types: Vec<TensorType> = cx.present().map(|t| TensorType::new(t.dtype, view(&t.shape))).collect();
    let attrs = Attrs::new().with("dim", dim);
    (CAT.infer)(&OpCx { inputs: types.iter().map(Some).collect(), attrs: &attrs })
}

fn seen_as(b: &mut Builder, v: ValueId, view: impl Fn(&Shape) -> Shape) -> Result<ValueId> {
    let shape = view(&b.ty(v).shape);
    b.reshape(v, &shape)
}

fn joined(
    b: &mut Builder,
    inputs: &[Option<ValueId>],
    dim: usize,
    mut view: impl FnMut(&mut Builder, ValueId) -> Result<ValueId>,
) -> Result<Vec<ValueId>> {
    let parts = inputs.iter().flatten().map(|&v| view(b, v)).collect::<Result<Vec<_>>>()?;
    Ok(vec![b.one(&CAT, &parts, Attrs::new().with("dim", dim as i64))?])
}
