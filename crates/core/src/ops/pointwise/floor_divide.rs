//! `self // other`.

use super::div::DIV;
use crate::attr::Attrs;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// Quotient rounded down, as [`DIV`] with `rounding_mode` `floor`.
pub static FLOOR_DIVIDE: OpDef = OpDef {
    name: "floor_divide",
    schemas: &[
        "floor_divide(Tensor self, Tensor other) -> Tensor",
        "floor_divide.Scalar(Tensor self, Scalar other) -> Tensor",
        "floor_divide_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)",
    ],
    infer: super::arithmetic,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Decompose(|b, cx, inputs| {
        let mut attrs = Attrs::new().with("rounding_mode", "floor");
        if let Some(other) = cx.attrs.get("other") {
            attrs.set("other", other.clone());
        }
        b.apply(&DIV, inputs, attrs)
    }),
    cases: || {
        vec![
            Case::new("floats").range(&[5], -4.0, 4.0).range(&[5], 0.5, 1.5),
            Case::new("integers").index(&[4], 9).attr("other", -2),
        ]
    },
};
