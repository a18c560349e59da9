//! The larger and the smaller of two.

use super::{NO_SECOND, filling, promoted, tensor};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::Class;
use crate::expr::{Binary, Expr, float};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};

/// The larger of both, broadcast and promoted; NaN if either is. Equals share the gradient.
pub static MAXIMUM: OpDef = OpDef {
    name: "maximum",
    schemas: &[
        "maximum(Tensor self, Tensor other) -> Tensor",
        "max.other(Tensor self, Tensor other) -> Tensor",
    ],
    infer: promoted,
    derivative: Derivative::Rule(|cx| gradient(cx, true)),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| body(cx, Binary::Max)),
    cases,
};

/// The smaller of both, broadcast and promoted; NaN if either is. Equals share the gradient.
pub static MINIMUM: OpDef = OpDef {
    name: "minimum",
    schemas: &[
        "minimum(Tensor self, Tensor other) -> Tensor",
        "min.other(Tensor self, Tensor other) -> Tensor",
    ],
    infer: promoted,
    derivative: Derivative::Rule(|cx| gradient(cx, false)),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| body(cx, Binary::Min)),
    cases,
};

/// Gradients of [`MAXIMUM`] (`largest`) or [`MINIMUM`] by both inputs: `(grad_output, self, other)`. All of
/// it to the one that wins, half to each of equals; to both where one is NaN, as in PyTorch.
pub static MAXIMUM_BACKWARD: OpDef = OpDef {
    name: "maximum_backward",
    schemas: &[
        "headwater::maximum_backward(Tensor grad_output, Tensor self, Tensor other, bool largest) -> (Tensor, Tensor)",
    ],
    infer: |cx| {
        let out = promoted(cx)?;
        crate::ensure!(out[0].dtype.is_float(), DType, "a gradient is a float, got {}", cx.list_types());
        Ok(vec![out[0].clone(), out[0].clone()])
    },
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerOutput(4),
    body: Body::Pointwise(|cx| {
        let dtype = cx.result_type(&[]);
        let (g, a, b) = (tensor(cx, 0, dtype)?, filling(cx, 1, dtype)?, filling(cx, 2, dtype)?);
        let share = a.clone().eq(b.clone()).select(g.clone() * 0.5, g);
        let (lost_a, lost_b) = if cx.flag("largest")? {
            (a.clone().lt(b.clone()), b.lt(a))
        } else {
            (a.clone().gt(b.clone()), b.gt(a))
        };
        Ok(vec![lost_a.select(float(0.0), share.clone()), lost_b.select(float(0.0), share)])
    }),
    cases: || {
        let case = |name| Case::new(name).f(&[2, 3]).distinct(&[2, 3]).distinct(&[3]);
        vec![case("largest").attr("largest", true), case("smallest").attr("largest", false)]
    },
};

fn body(cx: &OpCx, op: Binary) -> Result<Vec<Expr>> {
    let dtype = cx.result_type(&[]);
    let (a, b) = (filling(cx, 0, dtype)?, filling(cx, 1, dtype)?);
    Ok(vec![match (dtype.class(), op) {
        (Class::Bool, Binary::Max) => a.or(b),
        (Class::Bool, _) => a.and(b),
        _ => Expr::Binary(op, Box::new(a), Box::new(b)),
    }])
}

fn gradient(cx: &mut GradCx, largest: bool) -> Result<()> {
    let inputs = [Some(cx.grad(0)?), cx.opt_x(0), cx.opt_x(1)];
    let grads = cx.apply(&MAXIMUM_BACKWARD, &inputs, Attrs::new().with("largest", largest))?;
    cx.set(0, grads[0])?;
    cx.set(1, grads[1])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("broadcast").range(&[2, 3], -2.0, 2.0).range(&[3], -0.9, 0.8),
        Case::new("integers").index(&[4], 9).index(&[4], 9),
        Case::new("masks").mask(&[4]).mask(&[4]),
    ]
}
