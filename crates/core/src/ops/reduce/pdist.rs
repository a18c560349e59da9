//! Distances between the pairs of one set of vectors.

use super::pairwise_distance::distance;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, ValueId};
use crate::ops::create::constant::CONSTANT;
use crate::ops::index::index_select::INDEX_SELECT;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::tensor::{Tensor, TensorType};
use crate::{ensure, fail};
use std::sync::Arc;

/// The `p`-norms of the differences of rows i and j > i of `[N, M]`, the pairs in order: `[N (N − 1) / 2]`.
pub static PDIST: OpDef = OpDef {
    name: "pdist",
    schemas: &["pdist(Tensor self, float p=2) -> Tensor", "_pdist_forward(Tensor self, float p=2) -> Tensor"],
    infer: |cx| Ok(vec![TensorType::new(cx.dtype(0)?, [pairs(cx)?])]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let (x, n, count) = (required(inputs, 0)?, cx.shape(0)?[0] as i64, pairs(cx)?);
        let all = || (0..n).flat_map(move |i| (i + 1..n).map(move |j| (i, j)));
        let rows = |b: &mut Builder, of: Vec<i64>| {
            if of.is_empty() {
                return b.slice(x, 0, 0, 0);
            }
            let index = Arc::new(Tensor::int(DType::I64, [count], of));
            let index = b.one(&CONSTANT, &[], Attrs::new().with("value", index))?;
            b.one(&INDEX_SELECT, &[x, index], Attrs::new().with("dim", 0))
        };
        let first = rows(b, all().map(|p| p.0).collect())?;
        let second = rows(b, all().map(|p| p.1).collect())?;
        Ok(vec![distance(b, first, second, cx.opt_float("p")?.unwrap_or(2.0), 0.0, false)?])
    }),
    cases: || {
        vec![
            Case::new("euclidean").f(&[4, 3]).attr("p", 2.0),
            Case::new("sums").distinct(&[3, 2]).attr("p", 1.0),
            Case::new("one row").f(&[1, 3]).attr("p", 2.0),
        ]
    },
};

/// Number of pairs.
fn pairs(cx: &OpCx) -> Result<usize> {
    let x = cx.ty(0)?;
    ensure!(x.dtype.is_float() && x.shape.rank() == 2, Shape, "rows of floats are needed, got {x}");
    let p = cx.opt_float("p")?.unwrap_or(2.0);
    ensure!(p >= 0.0 && (p.is_finite() || x.shape[1] > 0), Attribute, "`p` = {p} of {x}");
    let n = x.shape[0];
    let count = n.checked_mul(n.saturating_sub(1)).map(|c| c / 2).filter(|&c| c <= 1 << 26);
    count.ok_or_else(|| fail!(Size, "the pairs of {n} rows are more than 2²⁶: take `torch.cdist`"))
}
