//! Membership.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::ops::pointwise::compare::EQ;
use crate::ops::pointwise::logical::LOGICAL_NOT;
use crate::ops::reduce::any::ANY;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// True for each element of input 0 that is one of those of input 1, or the number `test_element`; with
/// `invert` for each that is none.
pub static ISIN: OpDef = OpDef {
    name: "isin",
    schemas: &[
        "isin.Tensor_Tensor(Tensor elements, Tensor test_elements, *, bool assume_unique=False, bool invert=False) -> Tensor",
        "isin.Tensor_Scalar(Tensor elements, Scalar test_element, *, bool assume_unique=False, bool invert=False) -> Tensor",
    ],
    infer: |cx| {
        let pairs = pairs(cx)?;
        ensure!(pairs.checked_numel().is_some(), Size, "{pairs} comparisons do not fit memory");
        if cx.opt(1).is_none() {
            cx.float("test_element")?;
        }
        cx.flag("invert")?;
        Ok(vec![TensorType::new(DType::Bool, cx.shape(0)?.clone())])
    },
    derivative: Derivative::NotDifferentiable("its result is not a real number"),
    precision: Precision::Same,
    cost: Cost::Custom(|cx, _| pairs(cx).map_or(0.0, |s| s.numel() as f64)),
    body: Body::Decompose(|b, cx, inputs| {
        let x = required(inputs, 0)?;
        let found = match inputs.get(1).copied().flatten() {
            None => {
                let number = cx.attrs.get("test_element").cloned();
                let number = number.ok_or_else(|| crate::fail!(Attribute, "`test_element` is missing"))?;
                b.one(&EQ, &[x], Attrs::new().with("other", number))?
            }
            Some(among) => {
                let rank = cx.shape(0)?.rank();
                let x = b.unsqueeze(x, rank)?;
                let among = b.reshape(among, &[cx.shape(1)?.numel()])?;
                let same = b.call(&EQ, &[x, among])?;
                b.one(&ANY, &[same], Attrs::new().with("dim", [rank as i64]).with("keepdim", false))?
            }
        };
        Ok(vec![if cx.flag("invert")? { b.call(&LOGICAL_NOT, &[found])? } else { found }])
    }),
    cases: || {
        vec![
            Case::new("matrix").index(&[2, 3], 6).index(&[2, 2], 6).attr("invert", false),
            Case::new("number, not").index(&[5], 3).attr("test_element", 1).attr("invert", true),
        ]
    },
};

/// Shape of the comparisons.
fn pairs(cx: &OpCx) -> Result<Shape> {
    let among = cx.opt(1).map_or(1, |t| t.shape.numel());
    Ok(Shape::from([&cx.shape(0)?[..], &[among]].concat()))
}
