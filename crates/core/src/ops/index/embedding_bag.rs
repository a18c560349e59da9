//! Sums, means and largest elements of bags of rows of a table.

use super::embedding::EMBEDDING;
use super::index_select::INDEX_ADD;
use super::integers;
use super::scatter::SCATTER;
use super::searchsorted::SEARCHSORTED;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ops::create::arange::ARANGE;
use crate::ops::pointwise::{add::ADD, clamp::CLAMP_MIN, compare::EQ};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, Sample, required};
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// `(weight [rows, width], indices [n], offsets [bags], per_sample_weights [n]?)` to `[bags, width]`: bag `b`
/// holds the indices from `offsets[b]` to where the next bag begins. `mode` 0 sums the rows of a bag, 1 takes
/// their mean, 2 their largest elements; an empty bag is 0. With `include_last_offset` the last offset ends
/// the last bag. Indices equal to `padding_idx` (negative or absent: none) are in no bag.
///
/// ATen's other results, which only its own backward operator reads, are omitted. Of several largest elements
/// each gets an equal share of the gradient, where PyTorch gives it to the first.
pub static EMBEDDING_BAG: OpDef = OpDef {
    name: "embedding_bag",
    schemas: &[
        "embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False) -> (Tensor, Tensor, Tensor, Tensor)",
        "embedding_bag.padding_idx(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq, int mode, bool sparse, Tensor? per_sample_weights, bool include_last_offset, int? padding_idx) -> (Tensor, Tensor, Tensor, Tensor)",
        "_embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)",
        "_embedding_bag_forward_only(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)",
    ],
    infer: |cx| {
        let (w, bags) = (cx.ty(0)?, bags(cx)?);
        Kind::of(cx)?;
        Ok(vec![TensorType::new(w.dtype, [bags, w.shape[1]])])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Custom(|cx, outs| {
        let n = cx.shape(1).map_or(0, |s| s.numel());
        n as f64 * outs[0].shape.last().copied().unwrap_or(0) as f64
    }),
    body: Body::Decompose(|b, cx, inputs| {
        let (weight, indices, offsets) = (required(inputs, 0)?, required(inputs, 1)?, required(inputs, 2)?);
        let kind = Kind::of(cx)?;
        let (bags, n, width) = (bags(cx)?, cx.shape(1)?[0], cx.shape(0)?[1]);
        let index = TensorType::new(DType::I64, [n]);
        let at = b.one(&ARANGE, &[], Attrs::new().with("end", n as i64))?;
        let begun = b.one(&SEARCHSORTED, &[offsets, at], Attrs::new().with("right", true))?;
        let mut bag = b.one(&ADD, &[begun], Attrs::new().with("other", -1))?;
        if let Some(padding) = cx.opt_int("padding_idx")?.filter(|p| *p >= 0) {
            // A bag after the last takes what is in none.
            let none = b.full(&index, bags as f64)?;
            let padded = b.one(&EQ, &[indices], Attrs::new().with("other", padding))?;
            bag = b.choose(padded, none, bag)?;
        }
        let by_frequency = cx.flag("scale_grad_by_freq")?;
        let attrs = Attrs::new().with("padding_idx", -1).with("scale_grad_by_freq", by_frequency);
        let mut rows = b.one(&EMBEDDING, &[weight, indices], attrs)?;
        if let Some(factors) = inputs.get(3).copied().flatten() {
            let factors = b.unsqueeze(factors, 1)?;
            rows = b.mul(rows, factors)?;
        }
        let dtype = b.ty(rows).dtype;
        let empty = b.full(&TensorType::new(dtype, [bags + 1, width]), 0.0)?;
        let along = |attrs: Attrs| attrs.with("dim", 0);
        let all = match kind {
            Kind::Largest => {
                let bag = b.unsqueeze(bag, 1)?;
                let bag = b.expand(bag, &[n, width])?;
                let attrs = along(Attrs::new()).with("reduce", "amax").with("include_self", false);
                b.one(&SCATTER, &[empty, bag, rows], attrs)?
            }
            Kind::Sum => b.one(&INDEX_ADD, &[empty, bag, rows], along(Attrs::new()))?,
            Kind::Mean => {
                let sum = b.one(&INDEX_ADD, &[empty, bag, rows], along(Attrs::new()))?;
                let none = b.full(&TensorType::new(DType::I64, [bags + 1, 1]), 0.0)?;
                let ones = b.full(&TensorType::new(DType::I64, [n, 1]), 1.0)?;
                let count = b.one(&INDEX_ADD, &[none, bag, ones], along(Attrs::new()))?;
                let count = b.one(&CLAMP_MIN, &[count], Attrs::new().with("min", 1))?;
                b.div(sum, count)?
            }
        };
        Ok(vec![b.slice(all, 0, 0, bags)?])
    }),
    cases: || {
        let index = |values: &[f64]| Sample::Values(values.to_vec());
        let case = |name, indices: &[f64], offsets: &[f64], mode: i64| {
            Case::new(name)
                .distinct(&[5, 3])
                .arg(DType::I64, &[indices.len()], index(indices))
                .arg(DType::I64, &[offsets.len()], index(offsets))
                .attr("mode", mode)
        };
        let some = [4.0, 0.0, 1.0, 1.0, 3.0, 0.0];
        vec![
            case("sums, an empty bag", &some, &[0.0, 2.0, 2.0], 0),
            case("weighted sums", &some, &[0.0, 4.0], 0).f(&[6]),
            case("means without padding", &some, &[0.0, 3.0, 5.0], 1).attr("padding_idx", 0),
            case("largest, offsets with the end", &some, &[0.0, 2.0, 6.0], 2)
                .attr("include_last_offset", true),
            case("bags of nothing", &[], &[0.0, 0.0], 1),
        ]
    },
};

/// Number of bags; checks the operands.
fn bags(cx: &OpCx) -> Result<usize> {
    let (w, indices, offsets) = (cx.ty(0)?, cx.shape(1)?, cx.shape(2)?);
    ensure!(
        w.dtype.is_float() && w.shape.rank() == 2,
        Shape,
        "an embedding's table must be floats [rows, width], got {w}"
    );
    integers(cx, 1)?;
    integers(cx, 2)?;
    let vectors = indices.rank() == 1 && offsets.rank() == 1;
    ensure!(vectors, Shape, "indices and offsets of bags must be vectors: {}", cx.list_types());
    if let Some(factors) = cx.opt(3) {
        ensure!(cx.opt_int("mode")?.unwrap_or(0) == 0, Attribute, "weights of samples need sums: `mode` 0");
        let fits = factors.dtype == w.dtype && factors.shape == *indices;
        ensure!(fits, Shape, "weights of samples are {factors}, for indices {indices} of {w}");
    }
    let last = usize::from(cx.flag("include_last_offset")?);
    let bags = offsets[0].checked_sub(last);
    bags.ok_or_else(|| fail!(Shape, "`include_last_offset` needs an offset, there is none"))
}

/// PyTorch takes what follows the last offset into the last bag, which its documentation says that offset
/// ends: pytorch/pytorch#190062.
pub fn departs(cx: &OpCx) -> Option<&'static str> {
    cx.flag("include_last_offset").is_ok_and(|last| last).then_some(
        "where the last offset is less than the number of indices, PyTorch takes the indices behind it into the last bag, \
         which `include_last_offset=True` ends there",
    )
}

/// The operation over the rows of a bag.
enum Kind {
    Sum,
    Mean,
    Largest,
}

impl Kind {
    fn of(cx: &OpCx) -> Result<Kind> {
        match cx.opt_int("mode")?.unwrap_or(0) {
            0 => Ok(Kind::Sum),
            1 => Ok(Kind::Mean),
            2 => Ok(Kind::Largest),
            other => {
                Err(fail!(Attribute, "`mode` of bags must be 0 (sum), 1 (mean) or 2 (max), got {other}"))
            }
        }
    }
}
