//! Powers.

use super::{NO_SECOND, operand_or, promoted, tensor};
use crate::attr::Attr;
use crate::diagnostic::Result;
use crate::dtype::{Class, DType};
use crate::ensure;
use crate::expr::{Expr, float};
use crate::ops::create::full::full_of;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// `self` to the power `exponent`, broadcast and promoted; with one input, `exponent` is an attribute.
pub static POW: OpDef = OpDef {
    name: "pow",
    schemas: &[
        "pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor",
        "pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor",
        "pow_.Tensor(Tensor(a!) self, Tensor exponent) -> Tensor(a!)",
        "pow_.Scalar(Tensor(a!) self, Scalar exponent) -> Tensor(a!)",
    ],
    infer: |cx| {
        let dtype = cx.result_type(&["exponent"]);
        ensure!(dtype.class() != Class::Bool, DType, "truth values have no powers");
        let negative = matches!(cx.attrs.get("exponent"), Some(Attr::Int(e)) if *e < 0);
        ensure!(
            dtype.is_float() || !negative,
            Attribute,
            "an integer has no whole negative powers: convert it first"
        );
        Ok(vec![TensorType::new(dtype, cx.broadcast()?)])
    },
    derivative: Derivative::Rule(gradient),
    precision: Precision::Full,
    cost: Cost::PerOutput(10),
    body: Body::Pointwise(|cx| {
        let dtype = cx.result_type(&["exponent"]);
        let (x, e) = (tensor(cx, 0, dtype)?, operand_or(cx, 1, "exponent", dtype)?);
        Ok(vec![power(x, e)])
    }),
    cases: || {
        vec![
            Case::new("tensors").range(&[2, 3], 0.3, 2.0).f(&[3]),
            Case::new("square").f(&[4]).attr("exponent", 2),
            Case::new("cube").f(&[4]).attr("exponent", 3),
            Case::new("zeroth").f(&[4]).attr("exponent", 0),
            Case::new("root").range(&[4], 0.3, 2.0).attr("exponent", 0.5),
            Case::new("inverse root").range(&[4], 0.3, 2.0).attr("exponent", -0.5),
            Case::new("any").range(&[4], 0.3, 2.0).attr("exponent", 1.7),
            Case::new("integers").index(&[4], 9).attr("exponent", 3),
        ]
    },
};

/// A number to the powers `exponent`.
pub static POW_SCALAR: OpDef = OpDef {
    name: "pow_scalar",
    schemas: &["pow.Scalar(Scalar self, Tensor exponent) -> Tensor"],
    infer: |cx| {
        let dtype = cx.result_type(&["self"]);
        ensure!(dtype.class() != Class::Bool, DType, "truth values have no powers");
        Ok(vec![TensorType::new(dtype, cx.shape(0)?.clone())])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerOutput(10),
    body: Body::Decompose(|b, cx, inputs| {
        let base = full_of(b, cx, "self", &TensorType::new(cx.result_type(&["self"]), []))?;
        b.apply(&POW, &[Some(base), inputs[0]], Default::default())
    }),
    cases: || {
        vec![
            Case::new("of two").f(&[4]).attr("self", 2.0),
            Case::new("of zero").range(&[4], 0.5, 2.0).attr("self", 0),
        ]
    },
};

/// Gradient of [`POW`] by `self`: `(grad_output, self, exponent)`, the exponent an attribute if there are two
/// inputs. `g · e · x^(e - 1)`, and 0 where `e` is 0.
pub static POW_BACKWARD_SELF: OpDef = OpDef {
    name: "pow_backward_self",
    schemas: &[
        "headwater::pow_backward_self.Tensor(Tensor grad_output, Tensor self, Tensor exponent) -> Tensor",
        "headwater::pow_backward_self.Scalar(Tensor grad_output, Tensor self, Scalar exponent) -> Tensor",
    ],
    infer: float_result,
    derivative: NO_SECOND,
    precision: Precision::Full,
    cost: Cost::PerOutput(12),
    body: Body::Pointwise(|cx| {
        let dtype = cx.result_type(&[]);
        let (g, x) = (tensor(cx, 0, dtype)?, tensor(cx, 1, dtype)?);
        let e = operand_or(cx, 2, "exponent", dtype)?;
        Ok(vec![match e {
            Expr::Float(0.0) => float(0.0),
            Expr::Float(e) => g * (power(x, float(e - 1.0)) * e),
            e => e.clone().eq(float(0.0)).select(float(0.0), g * (e.clone() * x.pow(e - 1.0))),
        }])
    }),
    cases: || {
        vec![
            Case::new("number").f(&[4]).range(&[4], 0.3, 2.0).attr("exponent", 1.5),
            Case::new("tensor").f(&[4]).range(&[4], 0.3, 2.0).arg(
                DType::F64,
                &[4],
                crate::ops::case::Sample::Values(vec![0.0, 1.0, -2.0, 0.5]),
            ),
        ]
    },
};

/// Gradient of [`POW`] by `exponent`: `(grad_output, self, exponent, output)`. `g · y · ln x`, and 0 where
/// PyTorch says so: a base of 0 with an exponent that is not negative (of 0, any base that is not).
pub static POW_BACKWARD_EXPONENT: OpDef = OpDef {
    name: "pow_backward_exponent",
    schemas: &[
        "headwater::pow_backward_exponent(Tensor grad_output, Tensor self, Tensor exponent, Tensor output) -> Tensor",
    ],
    infer: float_result,
    derivative: NO_SECOND,
    precision: Precision::Full,
    cost: Cost::PerOutput(12),
    body: Body::Pointwise(|cx| {
        let dtype = cx.result_type(&[]);
        let at = |i| tensor(cx, i, dtype);
        let (g, x, e, y) = (at(0)?, at(1)?, at(2)?, at(3)?);
        let flat = x.clone().eq(float(0.0)).and(e.ge(float(0.0)));
        Ok(vec![flat.select(float(0.0), g * (y * x.log()))])
    }),
    cases: || {
        let values = |v: [f64; 4]| crate::ops::case::Sample::Values(v.to_vec());
        vec![
            Case::new("some zero")
                .f(&[4])
                .arg(DType::F64, &[4], values([0.0, 1.0, 2.0, 0.5]))
                .arg(DType::F64, &[4], values([0.0, 1.0, -2.0, 0.5]))
                .arg(DType::F64, &[4], values([1.0, 1.0, 0.25, 0.7])),
        ]
    },
};

/// `x^e`; exponents that are small numbers cost a multiplication or a root, as in PyTorch.
fn power(x: Expr, e: Expr) -> Expr {
    match e {
        Expr::Float(0.0) => float(1.0),
        Expr::Float(1.0) => x,
        Expr::Float(2.0) | Expr::Int(2) => x.clone() * x,
        Expr::Float(3.0) | Expr::Int(3) => x.clone() * x.clone() * x,
        Expr::Float(0.5) => x.sqrt(),
        Expr::Float(-0.5) => x.rsqrt(),
        Expr::Float(-1.0) => x.recip(),
        Expr::Float(-2.0) => (x.clone() * x).recip(),
        e => x.pow(e),
    }
}

/// The exponent may be of integers; the gradient is not.
fn float_result(cx: &OpCx) -> Result<Vec<TensorType>> {
    let out = promoted(cx)?;
    ensure!(out[0].dtype.is_float(), DType, "a gradient is a float, got {}", cx.list_types());
    Ok(out)
}

fn gradient(cx: &mut GradCx) -> Result<()> {
    let (g, x) = (cx.grad(0)?, cx.x(0)?);
    let Some(e) = cx.opt_x(1) else {
        let attrs = cx.attrs().clone();
        let dx = cx.one(&POW_BACKWARD_SELF, &[g, x], attrs)?;
        return cx.set(0, dx);
    };
    if cx.needs(0) {
        let dx = cx.call(&POW_BACKWARD_SELF, &[g, x, e])?;
        cx.set(0, dx)?;
    }
    if cx.needs(1) {
        let y = cx.y(0);
        let de = cx.call(&POW_BACKWARD_EXPONENT, &[g, x, e, y])?;
        cx.set(1, de)?;
    }
    Ok(())
}
