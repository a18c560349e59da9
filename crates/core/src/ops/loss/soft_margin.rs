//! Logistic loss of two classes, labelled 1 and −1.

use super::{Reduction, pair, pair_type, term_dtype};
use crate::ops::pointwise::log_sigmoid::LOG_SIGMOID;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `ln(1 + e^(−target · self))`, broadcast and reduced; without overflow, where PyTorch gives infinity.
pub static SOFT_MARGIN_LOSS: OpDef = OpDef {
    name: "soft_margin_loss",
    schemas: &["soft_margin_loss(Tensor self, Tensor target, int reduction=1) -> Tensor"],
    infer: pair_type,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(15),
    body: Body::Decompose(|b, cx, inputs| {
        let dtype = term_dtype(cx.result_type(&[]))?;
        let [x, target] = pair(inputs)?;
        let (x, target) = (b.cast(x, dtype)?, b.cast(target, dtype)?);
        let margin = b.mul(target, x)?;
        let terms = b.call(&LOG_SIGMOID, &[margin])?;
        let terms = b.neg(terms)?;
        Reduction::of(cx)?.finish(b, cx, terms)
    }),
    cases: || {
        let case = |name, reduction: i64| {
            Case::new(name).range(&[2, 3], -5.0, 5.0).f(&[3]).attr("reduction", reduction)
        };
        vec![case("each", 0), case("mean", 1), case("sum", 2)]
    },
};
