//! Mean squared and mean absolute error.

use super::{Reduction, pair_type, term_dtype};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::abs::ABS;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};

/// `(input − target)²`, broadcast and reduced.
pub static MSE_LOSS: OpDef = OpDef {
    name: "mse_loss",
    schemas: &["mse_loss(Tensor self, Tensor target, int reduction=1) -> Tensor"],
    infer: pair_type,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(3),
    body: Body::Decompose(|b, cx, inputs| {
        let d = difference(b, cx, inputs)?;
        let terms = b.mul(d, d)?;
        Reduction::of(cx)?.finish(b, cx, terms)
    }),
    cases,
};

/// `|input − target|`, broadcast and reduced.
pub static L1_LOSS: OpDef = OpDef {
    name: "l1_loss",
    schemas: &["l1_loss(Tensor self, Tensor target, int reduction=1) -> Tensor"],
    infer: pair_type,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(3),
    body: Body::Decompose(|b, cx, inputs| {
        let d = difference(b, cx, inputs)?;
        let terms = b.one(&ABS, &[d], Attrs::new())?;
        Reduction::of(cx)?.finish(b, cx, terms)
    }),
    cases,
};

/// Input less target, in the dtype of the terms.
pub(super) fn difference(b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]) -> Result<ValueId> {
    let dtype = term_dtype(cx.result_type(&[]))?;
    let [x, target] = super::pair(inputs)?;
    let (x, target) = (b.cast(x, dtype)?, b.cast(target, dtype)?);
    b.sub(x, target)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("mean").f(&[2, 3]).f(&[2, 3]).attr("reduction", 1),
        Case::new("sum, broadcast").f(&[2, 3]).f(&[3]).attr("reduction", 2),
        Case::new("each").f(&[4]).f(&[4]).attr("reduction", 0),
    ]
}
