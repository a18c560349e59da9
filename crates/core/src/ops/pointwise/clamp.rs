//! Numbers held between bounds.

use super::{NO_SECOND, number, opt_scalar, promoted, tensor};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::{Class, DType};
use crate::ensure;
use crate::expr::Expr;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// `min(max(self, min), max)`, broadcast and promoted; bounds are numbers or tensors, either may be absent.
/// NaN stays.
pub static CLAMP: OpDef = OpDef {
    name: "clamp",
    schemas: &[
        "clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor",
        "clamp.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor",
        "clip(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor",
        "clip.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor",
    ],
    infer: |cx| {
        let dtype = cx.result_type(&["min", "max"]);
        ensure!(dtype.class() != Class::Bool, DType, "truth values have no bounds");
        Ok(vec![TensorType::new(dtype, cx.broadcast()?)])
    },
    derivative: Derivative::Rule(gradient),
    precision: Precision::Same,
    cost: Cost::PerOutput(2),
    body: Body::Pointwise(|cx| {
        let dtype = cx.result_type(&["min", "max"]);
        let mut y = tensor(cx, 0, dtype)?;
        if let Some(min) = bound(cx, 1, "min", dtype)? {
            y = y.max(min);
        }
        if let Some(max) = bound(cx, 2, "max", dtype)? {
            y = y.min(max);
        }
        Ok(vec![y])
    }),
    cases: || {
        vec![
            Case::new("numbers").distinct(&[3, 3]).attr("min", -1).attr("max", 0.9),
            Case::new("from below").distinct(&[5]).attr("min", 0.1),
            Case::new("tensors").distinct(&[2, 3]).range(&[3], -1.5, -0.5).range(&[2, 1], -0.4, 1.5),
            Case::new("from above").distinct(&[5]).none().range(&[], 0.1, 0.2),
            Case::new("crossed").distinct(&[5]).attr("min", 1).attr("max", -1),
        ]
    },
};

/// [`CLAMP`] from below.
pub static CLAMP_MIN: OpDef = OpDef {
    name: "clamp_min",
    schemas: &[
        "clamp_min(Tensor self, Scalar min) -> Tensor",
        "clamp_min.Tensor(Tensor self, Tensor min) -> Tensor",
    ],
    infer: CLAMP.infer,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Decompose(|b, cx, inputs| b.apply(&CLAMP, inputs, cx.attrs.clone())),
    cases: || {
        vec![Case::new("number").distinct(&[5]).attr("min", 0), Case::new("tensor").distinct(&[5]).f(&[5])]
    },
};

/// [`CLAMP`] from above.
pub static CLAMP_MAX: OpDef = OpDef {
    name: "clamp_max",
    schemas: &[
        "clamp_max(Tensor self, Scalar max) -> Tensor",
        "clamp_max.Tensor(Tensor self, Tensor max) -> Tensor",
    ],
    infer: |cx| {
        let dtype = cx.result_type(&["max"]);
        ensure!(dtype.class() != Class::Bool, DType, "truth values have no bounds");
        Ok(vec![TensorType::new(dtype, cx.broadcast()?)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Decompose(|b, cx, inputs| match inputs {
        [x, max] => b.apply(&CLAMP, &[*x, None, *max], Attrs::new()),
        _ => b.apply(&CLAMP, inputs, cx.attrs.clone()),
    }),
    cases: || {
        vec![Case::new("number").distinct(&[5]).attr("max", 0), Case::new("tensor").distinct(&[5]).f(&[5])]
    },
};

/// Gradient of [`CLAMP`] by `self`: `(grad_output, self, min, max)`; `g` where `self` lies between the bounds
/// or on one.
pub static CLAMP_BACKWARD: OpDef = OpDef {
    name: "clamp_backward",
    schemas: &[
        "headwater::clamp_backward(Tensor grad_output, Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor",
        "headwater::clamp_backward.Tensor(Tensor grad_output, Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor",
    ],
    infer: promoted,
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerOutput(3),
    body: Body::Pointwise(|cx| {
        let dtype = cx.result_type(&[]);
        let (mut g, x) = (tensor(cx, 0, dtype)?, tensor(cx, 1, dtype)?);
        if let Some(min) = bound(cx, 2, "min", dtype)? {
            g = x.clone().ge(min).select(g, number(0.0, dtype));
        }
        if let Some(max) = bound(cx, 3, "max", dtype)? {
            g = x.le(max).select(g, number(0.0, dtype));
        }
        Ok(vec![g])
    }),
    cases: || vec![Case::new("numbers").f(&[5]).distinct(&[5]).attr("min", -1).attr("max", 1)],
};

fn bound(cx: &OpCx, i: usize, name: &str, dtype: DType) -> Result<Option<Expr>> {
    match cx.opt(i) {
        Some(_) => Ok(Some(tensor(cx, i, dtype)?)),
        // In the tensor's dtype, as PyTorch compares.
        None => Ok(opt_scalar(cx, name, dtype)?.map(|e| match e {
            Expr::Float(x) => Expr::Float(dtype.round(x)),
            e => e,
        })),
    }
}

fn gradient(cx: &mut GradCx) -> Result<()> {
    let (g, x, attrs) = (cx.grad(0)?, cx.x(0)?, cx.attrs().clone());
    let (min, max) = (cx.opt_x(1), cx.opt_x(2));
    if cx.needs(0) {
        let inputs: &[_] =
            if min.or(max).is_some() { &[Some(g), Some(x), min, max] } else { &[Some(g), Some(x)] };
        let dx = cx.apply(&CLAMP_BACKWARD, inputs, attrs)?[0];
        cx.set(0, dx)?;
    }
    // A lower bound counts where it is the larger, unless an upper one below it wins.
    if let (Some(min), true) = (min, cx.needs(1)) {
        let below = cx.call(&super::compare::LT, &[x, min])?;
        let mut dmin = cx.keep_where(below, g)?;
        if let Some(max) = max {
            let open = cx.call(&super::compare::LT, &[min, max])?;
            dmin = cx.keep_where(open, dmin)?;
        }
        cx.set(1, dmin)?;
    }
    if let (Some(max), true) = (max, cx.needs(2)) {
        let mut above = cx.call(&super::compare::GT, &[x, max])?;
        if let Some(min) = min {
            let crossed = cx.call(&super::compare::LT, &[max, min])?;
            above = cx.call(&super::logical::LOGICAL_OR, &[above, crossed])?;
        }
        let dmax = cx.keep_where(above, g)?;
        cx.set(2, dmax)?;
    }
    Ok(())
}
