//! Kullback-Leibler divergence.

use super::{Reduction, pair, pair_type, term_dtype};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::expr::{Expr, float, input};
use crate::ops::pointwise::promoted;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// `(input, target)`, the input a log-probability: `t · (log t − x)`, 0 where `t` is 0; with `log_target` the
/// target is a log-probability too. The mean is over all elements.
pub static KL_DIV: OpDef = OpDef {
    name: "kl_div",
    schemas: &["kl_div(Tensor self, Tensor target, int reduction=1, *, bool log_target=False) -> Tensor"],
    infer: |cx| {
        cx.flag("log_target")?;
        pair_type(cx)
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(15),
    body: Body::Decompose(|b, cx, inputs| {
        let dtype = term_dtype(cx.result_type(&[]))?;
        let [x, target] = pair(inputs)?;
        let (x, target) = (b.cast(x, dtype)?, b.cast(target, dtype)?);
        let attrs = Attrs::new().with("log_target", cx.flag("log_target")?);
        let terms = b.one(&TERMS, &[x, target], attrs)?;
        Reduction::of(cx)?.finish(b, cx, terms)
    }),
    cases: || {
        let case = |name| Case::new(name).range(&[2, 3], -3.0, 0.0);
        vec![
            case("mean").range(&[2, 3], 0.1, 1.0).attr("reduction", 1).attr("log_target", false),
            case("sum of logs").range(&[3], -3.0, 0.0).attr("reduction", 2).attr("log_target", true),
            case("each").range(&[2, 3], 0.1, 1.0).attr("reduction", 0).attr("log_target", false),
        ]
    },
};

/// [`KL_DIV`] of each `(x, t)`.
pub static TERMS: OpDef = OpDef {
    name: "kl_div_terms",
    schemas: &["headwater::kl_div_terms(Tensor self, Tensor target, *, bool log_target=False) -> Tensor"],
    infer: floats,
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, x, t, attrs) = (cx.grad(0)?, cx.x(0)?, cx.x(1)?, cx.attrs().clone());
        let inputs = [Some(g), Some(x), Some(t)];
        let outs = cx.apply(&TERMS_BACKWARD, &inputs, attrs)?;
        cx.set(0, outs[0])?;
        cx.set(1, outs[1])
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(15),
    body: Body::Pointwise(|cx| {
        let (x, t) = (input(0), input(1));
        Ok(vec![match cx.flag("log_target")? {
            true => t.clone().exp() * (t - x),
            false => nothing().select(float(0.0), t.clone() * t.clone().log()) - t * x,
        }])
    }),
    cases,
};

/// Gradients of [`TERMS`]: `(grad, x, t)` to those of x and t. With e the target's probability: `−g · e`, and
/// `g · (log t + 1 − x)`, or of a log-probability `g · e · (t − x + 1)`.
pub static TERMS_BACKWARD: OpDef = OpDef {
    name: "kl_div_terms_backward",
    schemas: &[
        "headwater::kl_div_terms_backward(Tensor grad, Tensor self, Tensor target, *, bool log_target=False) -> (Tensor, Tensor)",
    ],
    infer: |cx| Ok([floats(cx)?, floats(cx)?].concat()),
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Full,
    cost: Cost::PerOutput(15),
    body: Body::Pointwise(|cx| {
        let (g, x, t) = (input(0), input(1), input(2));
        Ok(match cx.flag("log_target")? {
            true => {
                let ge = g * t.clone().exp();
                vec![-ge.clone(), ge * (t - x + 1.0)]
            }
            false => vec![-(g.clone() * t.clone()), g * (t.log() + 1.0 - x)],
        })
    }),
    cases: || {
        let case = Case::new("plain").f(&[4]).range(&[4], -3.0, 0.0).range(&[4], 0.1, 1.0);
        vec![case.attr("log_target", false)]
    },
};

/// True if the target is 0, so that it times its logarithm counts as 0.
fn nothing() -> Expr {
    input(1).eq(float(0.0))
}

fn floats(cx: &OpCx) -> Result<Vec<TensorType>> {
    cx.flag("log_target")?;
    for t in cx.present() {
        ensure!(t.dtype.is_float(), DType, "floats are needed, got {}", cx.list_types());
    }
    promoted(cx)
}

fn cases() -> Vec<Case> {
    let case = |name| Case::new(name).range(&[2, 3], -3.0, 0.0);
    vec![
        case("probabilities").range(&[2, 3], 0.1, 1.0).attr("log_target", false),
        case("logarithms").range(&[3], -3.0, 0.0).attr("log_target", true),
    ]
}
