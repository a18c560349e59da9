//! Triangles of matrices.

use crate::diagnostic::Result;
use crate::ensure;
use crate::expr::{Binary, Expr, input};
use crate::ops::pointwise::{number, same};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// The last two dimensions' elements on and below the diagonal `diagonal`, zeros above.
pub static TRIL: OpDef = OpDef {
    name: "tril",
    schemas: &["tril(Tensor self, SymInt diagonal=0) -> Tensor"],
    infer,
    derivative: Derivative::Rule(|cx| gradient(cx, &TRIL)),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| keep(cx, Binary::Le)),
    cases,
};

/// The last two dimensions' elements on and above the diagonal `diagonal`, zeros below.
pub static TRIU: OpDef = OpDef {
    name: "triu",
    schemas: &["triu(Tensor self, SymInt diagonal=0) -> Tensor"],
    infer,
    derivative: Derivative::Rule(|cx| gradient(cx, &TRIU)),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| keep(cx, Binary::Ge)),
    cases,
};

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    ensure!(cx.shape(0)?.rank() >= 2, Shape, "it takes matrices, got {}", cx.ty(0)?);
    same(cx)
}

fn keep(cx: &OpCx, side: Binary) -> Result<Vec<Expr>> {
    let (x, diagonal) = (cx.ty(0)?, cx.opt_int("diagonal")?.unwrap_or(0));
    let rank = x.shape.rank();
    let ahead = Expr::Coord(rank - 1) - Expr::Coord(rank - 2);
    let kept = Expr::Binary(side, Box::new(ahead), Box::new(Expr::Int(diagonal)));
    Ok(vec![kept.select(input(0), number(0.0, x.dtype))])
}

fn gradient(cx: &mut GradCx, op: &'static OpDef) -> Result<()> {
    let (g, attrs) = (cx.grad(0)?, cx.attrs().clone());
    let dx = cx.one(op, &[g], attrs)?;
    cx.set(0, dx)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("main").f(&[3, 4]).attr("diagonal", 0),
        Case::new("batch above").f(&[2, 3, 3]).attr("diagonal", 1),
        Case::new("masks").mask(&[3, 3]).attr("diagonal", -1),
    ]
}
