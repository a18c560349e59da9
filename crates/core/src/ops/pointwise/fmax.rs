//! The larger and the smaller of two, of which NaN is neither.

use super::isnan::ISNAN;
use super::maximum::{MAXIMUM, MINIMUM};
use super::promoted;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};

/// The larger of both, broadcast and promoted; of a number and NaN the number. Equals share the gradient.
pub static FMAX: OpDef = OpDef {
    name: "fmax",
    schemas: &["fmax(Tensor self, Tensor other) -> Tensor"],
    infer: promoted,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| chosen(b, cx, inputs, &MAXIMUM)),
    cases,
};

/// The smaller of both, broadcast and promoted; of a number and NaN the number. Equals share the gradient.
pub static FMIN: OpDef = OpDef {
    name: "fmin",
    schemas: &["fmin(Tensor self, Tensor other) -> Tensor"],
    infer: promoted,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| chosen(b, cx, inputs, &MINIMUM)),
    cases,
};

fn chosen(
    b: &mut Builder,
    cx: &OpCx,
    inputs: &[Option<ValueId>],
    best: &'static OpDef,
) -> Result<Vec<ValueId>> {
    let dtype = cx.result_type(&[]);
    let (x, y) = (b.cast(required(inputs, 0)?, dtype)?, b.cast(required(inputs, 1)?, dtype)?);
    if !dtype.is_float() {
        return Ok(vec![b.one(best, &[x, y], Attrs::new())?]);
    }
    // NaN gives way to the other; two of them stay.
    let (no_x, no_y) = (b.call(&ISNAN, &[x])?, b.call(&ISNAN, &[y])?);
    let (of_x, of_y) = (b.choose(no_x, y, x)?, b.choose(no_y, x, y)?);
    Ok(vec![b.one(best, &[of_x, of_y], Attrs::new())?])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("broadcast").range(&[2, 3], -2.0, 2.0).range(&[3], -0.9, 0.8),
        Case::new("integers").index(&[4], 9).index(&[4], 9),
        Case::new("masks").mask(&[4]).mask(&[4]),
    ]
}
