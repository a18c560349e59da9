//! Linear interpolation.

use super::{operand_or, tensor};
use crate::diagnostic::Result;
use crate::ensure;
use crate::expr::float;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpDef, Precision};
use crate::tensor::TensorType;

/// `self + weight · (end - self)`, computed from the nearer end; `weight` is a tensor or a number.
pub static LERP: OpDef = OpDef {
    name: "lerp",
    schemas: &[
        "lerp.Scalar(Tensor self, Tensor end, Scalar weight) -> Tensor",
        "lerp.Tensor(Tensor self, Tensor end, Tensor weight) -> Tensor",
    ],
    infer: |cx| {
        let dtype = cx.dtype(0)?;
        ensure!(
            dtype.is_float() && cx.present().all(|t| t.dtype == dtype),
            DType,
            "it takes floats alike, got {}",
            cx.list_types()
        );
        Ok(vec![TensorType::new(dtype, cx.broadcast()?)])
    },
    derivative: Derivative::Rule(gradient),
    precision: Precision::Same,
    cost: Cost::PerOutput(3),
    body: Body::Pointwise(|cx| {
        let dtype = cx.dtype(0)?;
        let (a, z) = (tensor(cx, 0, dtype)?, tensor(cx, 1, dtype)?);
        let w = operand_or(cx, 2, "weight", dtype)?;
        let way = z.clone() - a.clone();
        let near = w.clone().abs().lt(float(0.5));
        Ok(vec![near.select(a + w.clone() * way.clone(), z - way * (float(1.0) - w))])
    }),
    cases: || {
        vec![
            Case::new("number").f(&[3]).f(&[2, 1]).attr("weight", 0.25),
            Case::new("far number").f(&[3]).f(&[3]).attr("weight", 0.75),
            Case::new("tensor").f(&[3]).f(&[3]).range(&[2, 3], 0.0, 1.0),
        ]
    },
};

fn gradient(cx: &mut GradCx) -> Result<()> {
    let g = cx.grad(0)?;
    let toward = match cx.opt_x(2) {
        Some(w) => cx.mul(g, w)?,
        None => {
            let w = cx.args().float("weight")?;
            cx.scale(g, w)?
        }
    };
    cx.set(1, toward)?;
    if cx.needs(0) {
        let rest = cx.sub(g, toward)?;
        cx.set(0, rest)?;
    }
    if cx.needs(2) {
        let (a, z) = (cx.x(0)?, cx.x(1)?);
        let way = cx.sub(z, a)?;
        let dw = cx.mul(g, way)?;
        cx.set(2, dw)?;
    }
    Ok(())
}
