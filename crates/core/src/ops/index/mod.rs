//! Operators that read or write at places given by data, and sorting. Every index is checked: one out of
//! range is a `Value` error with its position, never a wrong number.

use crate::diagnostic::Result;
use crate::ops::{OpCx, OpDef};
use crate::tensor::{Data, Tensor};
use crate::{ensure, fail};

operators! {
    check_index: CHECK_INDEX;
    embedding: EMBEDDING;
    embedding_bag: EMBEDDING_BAG;
    embedding_grad: EMBEDDING_DENSE_BACKWARD, EMBEDDING_DENSE_BACKWARD_EX, EMBEDDING_SPARSE_BACKWARD;
    embedding_renorm: EMBEDDING_RENORM;
    gather: GATHER;
    index_put: INDEX_PUT, INDEX_PUT_IMPL;
    index_reduce: INDEX_REDUCE;
    index_select: INDEX_SELECT, INDEX_ADD, INDEX_COPY, INDEX_FILL;
    index_tensor: INDEX;
    isin: ISIN;
    kthvalue: KTHVALUE;
    masked_scatter: MASKED_SCATTER;
    median: MEDIAN, MEDIAN_DIM, EQUAL_ELEMENTS;
    nanmedian: NANMEDIAN, NANMEDIAN_DIM;
    nonzero_static: NONZERO_STATIC;
    one_hot: ONE_HOT, ONE_HOT_ROWS;
    put: PUT;
    quantile: QUANTILE;
    scatter: SCATTER, SCATTER_ADD;
    searchsorted: SEARCHSORTED, BUCKETIZE;
    sort: SORT, ARGSORT, MSORT;
    take: TAKE, TAKE_ALONG_DIM;
    topk: TOPK;
}

impl OpDef {
    /// True if results or gradients follow the order in which equal keys are left, as PyTorch's do where it
    /// leaves them in any: its sort is not stable unless asked, and which of equal elements it selects is not
    /// specified.
    pub fn orders_ties(&self) -> bool {
        let sorts = [&sort::SORT, &sort::ARGSORT, &sort::MSORT, &topk::TOPK, &quantile::QUANTILE];
        let selects = [&kthvalue::KTHVALUE, &median::MEDIAN_DIM, &nanmedian::NANMEDIAN_DIM];
        sorts.contains(&self) || selects.contains(&self)
    }
}

/// Index `i`, found at `position` in its tensor, as one in `0..limit`. Negative ones count from the end if
/// `wrap`.
///
/// # Errors
/// `Value` if it is out of range.
pub fn resolve(i: i64, position: usize, limit: usize, wrap: bool) -> Result<usize> {
    let n = limit as i64;
    let low = if wrap { -n } else { 0 };
    ensure!((low..n).contains(&i), Value, "index {i} at position {position} is outside {low}..{n}");
    Ok(if i < 0 { i + n } else { i } as usize)
}

/// The way out for elements chosen by a mask.
const MASK: &str = ": how many elements a mask selects depends on the data; keep the shape, with `torch.where(mask, x, 0)`, a sum of \
     products with the mask, or targets of `ignore_index` in a loss";

/// Requires input `i` to be an integer tensor.
///
/// # Errors
/// `DType` if it is not.
fn integers(cx: &OpCx, i: usize) -> Result<()> {
    let t = cx.ty(i)?;
    let mask = t.dtype == crate::DType::Bool;
    let way = if mask { MASK } else { "" };
    ensure!(t.dtype.class() == crate::dtype::Class::Int, DType, "an index must be of integers, got {t}{way}");
    Ok(())
}

/// Input `i` of a reference computation.
fn given<'a>(inputs: &[Option<&'a Tensor>], i: usize) -> Result<&'a Tensor> {
    inputs.get(i).copied().flatten().ok_or_else(|| fail!(Attribute, "input {i} is missing"))
}

/// The elements of `x` at `at`.
fn take(x: &Tensor, at: &[usize]) -> Data {
    match &x.data {
        Data::Float(v) => Data::Float(at.iter().map(|&i| v[i]).collect()),
        Data::Int(v) => Data::Int(at.iter().map(|&i| v[i]).collect()),
    }
}
