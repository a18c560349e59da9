//! Negative log-likelihood of counts under Poisson distributions.

use super::{Reduction, pair, pair_type, term_dtype};
use crate::attr::Attrs;
use crate::ops::pointwise::{compare::GT, exp::EXP, log::LOG, xlogy::XLOGY};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use std::f64::consts::PI;

/// `(input, target)`: `e^x − t · x` of an input that is a logarithm (`log_input`), else
/// `x − t · ln(x + eps)`. With `full`, Stirling's approximation of `ln t!` is added where t is above 1.
/// Broadcast and reduced.
pub static POISSON_NLL_LOSS: OpDef = OpDef {
    name: "poisson_nll_loss",
    schemas: &[
        "poisson_nll_loss(Tensor input, Tensor target, bool log_input, bool full, float eps, int reduction) -> Tensor",
    ],
    infer: |cx| {
        cx.flag("log_input")?;
        cx.flag("full")?;
        cx.float("eps")?;
        pair_type(cx)
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(20),
    body: Body::Decompose(|b, cx, inputs| {
        let dtype = term_dtype(cx.result_type(&[]))?;
        let [x, t] = pair(inputs)?;
        let (x, t) = (b.cast(x, dtype)?, b.cast(t, dtype)?);
        let (rate, log) = if cx.flag("log_input")? {
            (b.call(&EXP, &[x])?, x)
        } else {
            let shifted = b.shift(x, cx.float("eps")?)?;
            (x, b.call(&LOG, &[shifted])?)
        };
        let expected = b.mul(t, log)?;
        let mut terms = b.sub(rate, expected)?;
        if cx.flag("full")? {
            let main = b.call(&XLOGY, &[t, t])?;
            let main = b.sub(main, t)?;
            let spread = b.scale(t, 2.0 * PI)?;
            let spread = b.call(&LOG, &[spread])?;
            let spread = b.scale(spread, 0.5)?;
            let stirling = b.add(main, spread)?;
            let large = b.one(&GT, &[t], Attrs::new().with("other", 1.0))?;
            let stirling = b.keep_where(large, stirling)?;
            terms = b.add(terms, stirling)?;
        }
        Reduction::of(cx)?.finish(b, cx, terms)
    }),
    cases: || {
        let case = |name| Case::new(name).range(&[2, 3], 0.2, 2.0).range(&[3], 1.5, 4.0).attr("eps", 1e-8);
        vec![
            case("logarithms").attr("log_input", true).attr("full", false).attr("reduction", 1),
            case("rates").attr("log_input", false).attr("full", false).attr("reduction", 0),
            case("full").attr("log_input", true).attr("full", true).attr("reduction", 2),
        ]
    },
};
