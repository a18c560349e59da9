//! `self / other`, exact or rounded to whole numbers.

use super::{arithmetic, float_arithmetic, operand, zero_gradients};
use crate::diagnostic::Result;
use crate::dtype::Class;

use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::{ensure, fail};

/// Quotient, broadcast and promoted. `rounding_mode` absent: of integers an f32; `trunc` towards zero,
/// `floor` down: of integers an integer. With one input, `other` is an attribute. The gradient of a rounded
/// quotient is zero.
pub static DIV: OpDef = OpDef {
    name: "div",
    schemas: &[
        "div.Tensor(Tensor self, Tensor other) -> Tensor",
        "div.Scalar(Tensor self, Scalar other) -> Tensor",
        "div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor",
        "div.Scalar_mode(Tensor self, Scalar other, *, str? rounding_mode) -> Tensor",
        "divide.Tensor(Tensor self, Tensor other) -> Tensor",
        "divide.Scalar(Tensor self, Scalar other) -> Tensor",
        "divide.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor",
        "divide.Scalar_mode(Tensor self, Scalar other, *, str? rounding_mode) -> Tensor",
        "true_divide.Tensor(Tensor self, Tensor other) -> Tensor",
        "true_divide.Scalar(Tensor self, Scalar other) -> Tensor",
    ],
    infer: |cx| {
        if mode(cx)? == Mode::True {
            return float_arithmetic(cx);
        }
        let out = arithmetic(cx)?;
        ensure!(out[0].dtype.class() != Class::Bool, DType, "truth values are not divided");
        Ok(out)
    },
    derivative: Derivative::Rule(gradient),
    precision: Precision::Widest,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| {
        let mode = mode(cx)?;
        let mut dtype = cx.result_type(&["other"]);
        if mode == Mode::True {
            dtype = super::floating(dtype);
        }
        let (a, b) = (operand(cx, 0, dtype)?, operand(cx, 1, dtype)?);
        Ok(vec![match mode {
            Mode::True => a / b,
            Mode::Floor => a.floor_div(b),
            // Integers divide towards zero already.
            Mode::Trunc if dtype.class() == Class::Int => a / b,
            Mode::Trunc => (a / b).trunc(),
        }])
    }),
    cases: || {
        let two = |name| Case::new(name).range(&[5], -4.0, 4.0).range(&[5], 0.5, 1.5);
        vec![
            Case::new("broadcast").f(&[2, 1]).range(&[3], 0.5, 2.0),
            Case::new("number").f(&[3]).attr("other", -1.5),
            Case::new("integers").index(&[4], 9).attr("other", 2),
            two("rounded down").attr("rounding_mode", "floor"),
            Case::new("towards zero").f(&[5]).attr("other", 0.3).attr("rounding_mode", "trunc"),
        ]
    },
};

#[derive(PartialEq, Clone, Copy)]
enum Mode {
    True,
    Floor,
    Trunc,
}

fn mode(cx: &OpCx) -> Result<Mode> {
    match cx.opt_str("rounding_mode")? {
        None => Ok(Mode::True),
        Some("floor") => Ok(Mode::Floor),
        Some("trunc") => Ok(Mode::Trunc),
        Some(other) => Err(fail!(Attribute, "`rounding_mode` must be floor, trunc or absent, got {other}")),
    }
}

fn gradient(cx: &mut GradCx) -> Result<()> {
    if cx.of(mode)? != Mode::True {
        return zero_gradients(cx);
    }
    let g = cx.grad(0)?;
    if cx.arity() == 1 {
        let attrs = cx.attrs().clone();
        let ga = cx.one(&DIV, &[g], attrs)?;
        return cx.set(0, ga);
    }
    let other = cx.x(1)?;
    let ga = cx.div(g, other)?;
    cx.set(0, ga)?;
    if cx.needs(1) {
        let y = cx.y(0);
        let gb = cx.mul(ga, y)?;
        let gb = cx.neg(gb)?;
        cx.set(1, gb)?;
    }
    Ok(())
}
