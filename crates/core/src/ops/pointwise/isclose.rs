//! Numbers that are nearly the same.

use super::{DISCRETE, operand};
use crate::dtype::DType;
use crate::ensure;
use crate::expr::{Expr, float};
use crate::ops::{Body, Case, Cost, OpDef, Precision, Sample};
use crate::tensor::TensorType;

/// True where `|self − other| ≤ atol + rtol · |other|`, or both are equal; with `equal_nan` also where both
/// are NaN.
pub static ISCLOSE: OpDef = OpDef {
    name: "isclose",
    schemas: &[
        "isclose(Tensor self, Tensor other, float rtol=1e-05, float atol=1e-08, bool equal_nan=False) -> Tensor",
    ],
    infer: |cx| {
        let (x, y) = (cx.ty(0)?, cx.ty(1)?);
        ensure!(x.dtype == y.dtype, DType, "numbers of one dtype are compared, got {}", cx.list_types());
        let [rtol, atol] = [cx.float("rtol")?, cx.float("atol")?];
        ensure!(rtol >= 0.0 && atol >= 0.0, Attribute, "tolerances {rtol} and {atol} are not both positive");
        cx.flag("equal_nan")?;
        Ok(vec![TensorType::new(DType::Bool, cx.broadcast()?)])
    },
    derivative: DISCRETE,
    precision: Precision::Same,
    cost: Cost::PerOutput(6),
    body: Body::Pointwise(|cx| {
        let own = cx.dtype(0)?;
        let dtype = if own.is_float() { own } else { DType::F64 };
        let [x, y] = [operand(cx, 0, dtype)?, operand(cx, 1, dtype)?];
        let allowed = y.clone().abs() * cx.float("rtol")? + cx.float("atol")?;
        let apart = (x.clone() - y.clone()).abs();
        // An infinity is near itself alone, which its difference from others does not say.
        let near = apart.clone().le(allowed).and(!apart.is_inf());
        let same = x.clone().eq(y.clone());
        let both = x.is_nan().and(y.clone().is_nan());
        let both = if own.is_float() && cx.flag("equal_nan")? { both } else { Expr::Bool(false) };
        let bounded = y.abs().lt(float(f64::INFINITY));
        Ok(vec![same.or(near.and(bounded)).or(both)])
    }),
    cases: || {
        let inf = f64::INFINITY;
        let values = |v: [f64; 6]| Sample::Values(v.to_vec());
        let case = |name, equal: bool| {
            let case = Case::new(name).arg(DType::F64, &[6], values([1.0, 2.0, inf, inf, f64::NAN, 3.0]));
            let case = case.arg(DType::F64, &[6], values([1.0, 2.1, inf, -inf, f64::NAN, inf]));
            case.attr("rtol", 0.01).attr("atol", 0.001).attr("equal_nan", equal)
        };
        let integers = Case::new("integers").index(&[4], 3).index(&[4], 3);
        vec![
            case("numbers", false),
            case("NaN", true),
            integers.attr("rtol", 0.0).attr("atol", 1.0).attr("equal_nan", false),
        ]
    },
};
