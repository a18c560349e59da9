//! Cross-entropy of two classes, from probabilities and from logits.

use super::{Reduction, pair, pair_type, term_dtype};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::expr::{Expr, float, input};
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::promoted;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// Why mixed precision refuses probabilities, in apex's words.
const REFUSED: Precision = Precision::Refused(
    "probabilities near 1 cannot be told from 1 in low precision: use binary_cross_entropy_with_logits, which takes what goes into the sigmoid",
);

/// `(input, target, weight?)`: `−w · (t · log x + (1 − t) · log(1 − x))`, the logarithms not below −100, as
/// PyTorch.
pub static BINARY_CROSS_ENTROPY: OpDef = OpDef {
    name: "binary_cross_entropy",
    schemas: &[
        "binary_cross_entropy(Tensor self, Tensor target, Tensor? weight=None, int reduction=1) -> Tensor",
    ],
    infer: |cx| {
        ensure!(cx.shape(0)? == cx.shape(1)?, Shape, "input and target differ: {}", cx.list_types());
        pair_type(cx)
    },
    derivative: Derivative::ByDecomposition,
    precision: REFUSED,
    cost: Cost::PerInput(30),
    body: Body::Decompose(|b, cx, inputs| {
        let dtype = term_dtype(cx.result_type(&[]))?;
        let [x, target] = pair(inputs)?;
        let (x, target) = (b.cast(x, dtype)?, b.cast(target, dtype)?);
        let terms = b.one(&TERMS, &[x, target], Attrs::new())?;
        weighted(b, cx, terms, inputs.get(2).copied().flatten())
    }),
    cases: || {
        let case = |name| Case::new(name).range(&[2, 3], 0.05, 0.95).range(&[2, 3], 0.0, 1.0);
        vec![
            case("mean").none().attr("reduction", 1),
            case("weighted sum").range(&[3], 0.1, 2.0).attr("reduction", 2),
            case("each").none().attr("reduction", 0),
        ]
    },
};

/// `(logits, target, weight?, pos_weight?)`: [`BINARY_CROSS_ENTROPY`] of the logistic function of the logits,
/// where `pos_weight` multiplies the part of the target; nothing overflows.
pub static WITH_LOGITS: OpDef = OpDef {
    name: "binary_cross_entropy_with_logits",
    schemas: &[
        "binary_cross_entropy_with_logits(Tensor self, Tensor target, Tensor? weight=None, Tensor? pos_weight=None, int reduction=1) -> Tensor",
    ],
    infer: pair_type,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(30),
    body: Body::Decompose(|b, cx, inputs| {
        let dtype = term_dtype(cx.result_type(&[]))?;
        let [x, target] = pair(inputs)?;
        let mut terms = vec![b.cast(x, dtype)?, b.cast(target, dtype)?];
        if let Some(p) = inputs.get(3).copied().flatten() {
            terms.push(b.cast(p, dtype)?);
        }
        let terms = b.one(&LOGIT_TERMS, &terms, Attrs::new())?;
        weighted(b, cx, terms, inputs.get(2).copied().flatten())
    }),
    cases: || {
        let case = |name| Case::new(name).range(&[2, 3], -6.0, 6.0).range(&[2, 3], 0.0, 1.0);
        vec![
            case("mean").none().none().attr("reduction", 1),
            case("weights").range(&[2, 1], 0.1, 2.0).range(&[3], 0.5, 2.0).attr("reduction", 2),
            case("each").none().none().attr("reduction", 0),
        ]
    },
};

/// Each `−(t · log x + (1 − t) · log(1 − x))` of `(x, t)`.
pub static TERMS: OpDef = OpDef {
    name: "binary_cross_entropy_terms",
    schemas: &["headwater::binary_cross_entropy_terms(Tensor self, Tensor target) -> Tensor"],
    infer: floats,
    derivative: Derivative::Rule(|cx: &mut GradCx| gradients(cx, &TERMS_BACKWARD)),
    precision: REFUSED,
    cost: Cost::PerOutput(30),
    body: Body::Pointwise(|_| {
        let (x, t) = (input(0), input(1));
        let log = x.clone().log().max(float(-100.0));
        let log_not = (-x).log1p().max(float(-100.0));
        Ok(vec![(t.clone() - 1.0) * log_not - t * log])
    }),
    cases: || vec![Case::new("inside").range(&[5], 0.05, 0.95).range(&[5], 0.0, 1.0)],
};

/// Gradients of [`TERMS`]: `(grad, x, t)` to those of `(x, t)` that `output_mask` names:
/// `g · (x − t) / max(x · (1 − x), 1e−12)` and `g · (log(1 − x) − log x)`, as PyTorch.
pub static TERMS_BACKWARD: OpDef = OpDef {
    name: "binary_cross_entropy_terms_backward",
    schemas: &[
        "headwater::binary_cross_entropy_terms_backward(Tensor grad, Tensor self, Tensor target, *, bool[2] output_mask) -> Tensor[]",
    ],
    infer: masked,
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: REFUSED,
    cost: Cost::PerOutput(10),
    body: Body::Pointwise(|cx| {
        let (g, x, t) = (input(0), input(1), input(2));
        let spread = (x.clone() * (float(1.0) - x.clone())).max(float(1e-12));
        let dx = g.clone() * (x.clone() - t) / spread;
        let dt = g * ((-x.clone()).log1p() - x.log());
        wanted(cx, [dx, dt])
    }),
    cases: || {
        let case = |name| Case::new(name).f(&[5]).range(&[5], 0.05, 0.95).range(&[5], 0.0, 1.0);
        vec![case("both").attr("output_mask", [1, 1]), case("target").attr("output_mask", [0, 1])]
    },
};

/// Each `(1 − t) · x + ((p − 1) · t + 1) · log(1 + exp(−x))` of `(x, t, p?)`, p being 1 if absent.
pub static LOGIT_TERMS: OpDef = OpDef {
    name: "binary_cross_entropy_with_logits_terms",
    schemas: &[
        "headwater::binary_cross_entropy_with_logits_terms(Tensor self, Tensor target, Tensor? pos_weight=None) -> Tensor",
    ],
    infer: floats,
    derivative: Derivative::Rule(|cx: &mut GradCx| gradients(cx, &LOGIT_TERMS_BACKWARD)),
    precision: Precision::Full,
    cost: Cost::PerOutput(30),
    body: Body::Pointwise(|cx| {
        let (x, t) = (input(0), input(1));
        let soft = softplus(-x.clone());
        Ok(vec![(float(1.0) - t) * x + positive(cx, 1, 2) * soft])
    }),
    cases: || {
        let case = |name| Case::new(name).range(&[2, 3], -6.0, 6.0).range(&[2, 3], 0.0, 1.0);
        vec![case("plain"), case("weighted").range(&[3], 0.5, 2.0)]
    },
};

/// Gradients of [`LOGIT_TERMS`]: `(grad, x, t, p?)` to those of `(x, t, p)` that `output_mask` names. With q
/// = (p − 1)·t + 1 and s = log(1 + exp(−x)): `g · (1 − t − q · σ(−x))`, `g · ((p − 1) · s − x)`, `g · t · s`.
pub static LOGIT_TERMS_BACKWARD: OpDef = OpDef {
    name: "binary_cross_entropy_with_logits_terms_backward",
    schemas: &[
        "headwater::binary_cross_entropy_with_logits_terms_backward(Tensor grad, Tensor self, Tensor target, Tensor? pos_weight=None, *, bool[] output_mask) -> Tensor[]",
    ],
    infer: masked,
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Full,
    cost: Cost::PerOutput(40),
    body: Body::Pointwise(|cx| {
        let (g, x, t) = (input(0), input(1), input(2));
        let soft = softplus(-x.clone());
        let dx = float(1.0) - t.clone() - positive(cx, 2, 3) * (-x.clone()).sigmoid();
        let extra = match cx.opt(3) {
            Some(_) => (input(3) - 1.0) * soft.clone() - x,
            None => -x,
        };
        wanted(cx, [g.clone() * dx, g.clone() * extra, g * t * soft])
    }),
    cases: || {
        let case = |name| Case::new(name).f(&[2, 3]).range(&[2, 3], -6.0, 6.0).range(&[2, 3], 0.0, 1.0);
        vec![
            case("plain").attr("output_mask", [1, 0]),
            case("weighted").range(&[3], 0.5, 2.0).attr("output_mask", [1, 1, 1]),
        ]
    },
};

/// `log(1 + exp x)`, without overflow.
fn softplus(x: Expr) -> Expr {
    x.clone().max(float(0.0)) + (-x.abs()).exp().log1p()
}

/// Weight of the logarithm: `(p − 1) · t + 1` with target and `pos_weight` at these inputs, 1 without the
/// latter.
fn positive(cx: &OpCx, target: usize, p: usize) -> Expr {
    match cx.opt(p) {
        Some(_) => (input(p) - 1.0) * input(target) + 1.0,
        None => float(1.0),
    }
}

fn weighted(b: &mut Builder, cx: &OpCx, mut terms: ValueId, weight: Option<ValueId>) -> Result<Vec<ValueId>> {
    if let Some(w) = weight {
        let w = b.cast(w, b.ty(terms).dtype)?;
        terms = b.mul(terms, w)?;
    }
    Reduction::of(cx)?.finish(b, cx, terms)
}

/// Terms: all inputs floats, broadcast and promoted.
fn floats(cx: &OpCx) -> Result<Vec<TensorType>> {
    for t in cx.present() {
        ensure!(t.dtype.is_float(), DType, "floats are needed, got {}", cx.list_types());
    }
    promoted(cx)
}

/// One gradient of the terms' type for each that `output_mask` names.
fn masked(cx: &OpCx) -> Result<Vec<TensorType>> {
    let (ty, mask) = (floats(cx)?.remove(0), cx.ints("output_mask")?);
    let operands = cx.present().count() - 1;
    ensure!(
        mask.len() == operands,
        Attribute,
        "`output_mask` must have {operands} entries, got {}",
        mask.len()
    );
    Ok(mask.iter().filter(|&&m| m != 0).map(|_| ty.clone()).collect())
}

fn wanted<const N: usize>(cx: &OpCx, all: [Expr; N]) -> Result<Vec<Expr>> {
    let mask = cx.ints("output_mask")?.iter().map(|&m| m != 0);
    Ok(all.into_iter().zip(mask).filter_map(|(e, m)| m.then_some(e)).collect())
}

fn gradients(cx: &mut GradCx, op: &'static OpDef) -> Result<()> {
    let g = cx.grad(0)?;
    let inputs: Vec<ValueId> = (0..cx.arity()).filter_map(|i| cx.opt_x(i)).collect();
    let mask: Vec<i64> = (0..inputs.len()).map(|i| cx.needs(i) as i64).collect();
    let wanted: Vec<usize> = (0..inputs.len()).filter(|&i| cx.needs(i)).collect();
    let inputs: Vec<_> = std::iter::once(g).chain(inputs).map(Some).collect();
    let outs = cx.apply(op, &inputs, Attrs::new().with("output_mask", mask))?;
    wanted.into_iter().zip(outs).try_for_each(|(i, g)| cx.set(i, g))
}
