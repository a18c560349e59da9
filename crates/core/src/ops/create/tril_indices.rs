//! Indices of the triangles of a matrix.

use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::tensor::{Tensor, TensorType};

/// Rows and columns, i64[2, count], of the elements of a `row × col` matrix on and below diagonal `offset`.
pub static TRIL_INDICES: OpDef = OpDef {
    name: "tril_indices",
    schemas: &[
        "tril_indices(int row, int col, int offset=0, *, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ],
    infer: |cx| infer(cx, lower),
    derivative: Derivative::NotDifferentiable("it has no tensor input"),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Kernel(|cx, _, outs| indices(cx, &outs[0], lower)),
    cases: || {
        vec![
            Case::new("wide").attr("row", 3).attr("col", 4).attr("offset", 1),
            Case::new("none").attr("row", 0).attr("col", 3),
        ]
    },
};

/// Rows and columns, i64[2, count], of the elements of a `row × col` matrix on and above diagonal `offset`.
pub static TRIU_INDICES: OpDef = OpDef {
    name: "triu_indices",
    schemas: &[
        "triu_indices(int row, int col, int offset=0, *, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ],
    infer: |cx| infer(cx, upper),
    derivative: Derivative::NotDifferentiable("it has no tensor input"),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Kernel(|cx, _, outs| indices(cx, &outs[0], upper)),
    cases: || vec![Case::new("tall").attr("row", 4).attr("col", 3).attr("offset", -1)],
};

/// The columns of a row that are in the triangle: from, to. `(row, columns, offset)`
type Triangle = fn(i64, i64, i64) -> (i64, i64);

fn lower(row: i64, cols: i64, offset: i64) -> (i64, i64) {
    (0, row.saturating_add(offset).saturating_add(1).clamp(0, cols))
}

fn upper(row: i64, cols: i64, offset: i64) -> (i64, i64) {
    (row.saturating_add(offset).clamp(0, cols), cols)
}

fn infer(cx: &OpCx, triangle: Triangle) -> Result<Vec<TensorType>> {
    let dtype = cx.opt_dtype("dtype")?.unwrap_or(DType::I64);
    ensure!(matches!(dtype, DType::I32 | DType::I64), DType, "indices are i32 or i64, not {dtype}");
    let (rows, cols, offset) = arguments(cx)?;
    // A matrix of more rows than this has no place in memory, and counting them would take for ever.
    ensure!(rows <= 1 << 24 && cols <= 1 << 31, Size, "a triangle of {rows} × {cols}");
    let count: i64 = (0..rows).map(|r| triangle(r, cols, offset)).map(|(from, to)| to - from).sum();
    Ok(vec![TensorType::new(dtype, [2, count as usize])])
}

fn arguments(cx: &OpCx) -> Result<(i64, i64, i64)> {
    Ok((cx.size("row")? as i64, cx.size("col")? as i64, cx.opt_int("offset")?.unwrap_or(0)))
}

fn indices(cx: &OpCx, out: &TensorType, triangle: Triangle) -> Result<Vec<Tensor>> {
    let (rows, cols, offset) = arguments(cx)?;
    let places = || {
        (0..rows).flat_map(move |r| {
            let (from, to) = triangle(r, cols, offset);
            (from..to).map(move |c| (r, c))
        })
    };
    let numbers = places().map(|p| p.0).chain(places().map(|p| p.1)).collect();
    Ok(vec![Tensor::int(out.dtype, out.shape.clone(), numbers)])
}
