//! Numbers held between bounds.

use super::maximum::MAXIMUM_BACKWARD;
use super::{NO_SECOND, filling, held, number, opt_scalar, overflows, promoted, tensor};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::{Class, DType};
use crate::ensure;
use crate::expr::Expr;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, Sample};
use crate::tensor::TensorType;

/// `min(max(self, min), max)`, broadcast and promoted; bounds are numbers or tensors, either may be absent.
/// NaN stays. The gradient is PyTorch 2.15's: at a bound that is a number it is 0, and a bound that is a
/// tensor takes half of it. PyTorch 2.13 gives all of it to `self` at both.
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

/// Gradient of [`CLAMP`] between numbers: `(grad_output, self)`; `g` where `self` is strictly between them.
pub static CLAMP_BACKWARD: OpDef = OpDef {
    name: "clamp_backward",
    schemas: &[
        "headwater::clamp_backward(Tensor grad_output, Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor",
    ],
    infer: promoted,
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerOutput(3),
    body: Body::Pointwise(|cx| {
        let dtype = cx.result_type(&[]);
        let (mut g, x) = (tensor(cx, 0, dtype)?, tensor(cx, 1, dtype)?);
        if let Some(min) = bound(cx, 2, "min", dtype)? {
            g = x.clone().gt(min).select(g, number(0.0, dtype));
        }
        if let Some(max) = bound(cx, 3, "max", dtype)? {
            g = x.lt(max).select(g, number(0.0, dtype));
        }
        Ok(vec![g])
    }),
    cases: || {
        let at = Sample::Values(vec![-1.0, -0.5, 0.0, 1.0, f64::NAN]);
        let ties = Case::new("ties").f(&[5]).arg(DType::F64, &[5], at).attr("min", -1).attr("max", 1);
        vec![Case::new("numbers").f(&[5]).distinct(&[5]).attr("min", -1).attr("max", 1), ties]
    },
};

/// Gradients of [`CLAMP`] between tensors: `(grad_output, self, min, max)`, by `self`, `min` and `max`.
/// Equals share it. It is all the upper bound's where the bounds cross, and no bound's where the other is
/// NaN.
pub static CLAMP_TENSORS_BACKWARD: OpDef = OpDef {
    name: "clamp_tensors_backward",
    schemas: &[
        "headwater::clamp_tensors_backward(Tensor grad_output, Tensor self, Tensor min, Tensor max) -> (Tensor, Tensor, Tensor)",
    ],
    infer: |cx| {
        let out = promoted(cx)?.remove(0);
        ensure!(out.dtype.is_float(), DType, "a gradient is a float, got {}", cx.list_types());
        Ok(vec![out.clone(), out.clone(), out])
    },
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerOutput(12),
    body: Body::Pointwise(|cx| {
        let dtype = cx.result_type(&[]);
        let [g, x, min, max] =
            [tensor(cx, 0, dtype)?, tensor(cx, 1, dtype)?, tensor(cx, 2, dtype)?, tensor(cx, 3, dtype)?];
        let (below, above) = (x.clone().lt(min.clone()), x.clone().gt(max.clone()));
        let (at_min, at_max) = (x.clone().eq(min.clone()), x.eq(max.clone()));
        let open = min.clone().lt(max.clone());
        let (ordered, crossed) = (min.clone().le(max.clone()), max.lt(min));
        let (half, none) = (|| g.clone() * 0.5, || number(0.0, dtype));
        let shared = at_min.clone().or(at_max.clone()).and(open.clone());
        let own = below.clone().or(above.clone()).select(none(), shared.select(half(), g.clone()));
        let lower = at_min.and(open.clone()).select(half(), none());
        let lower = below.and(ordered.clone()).select(g.clone(), lower);
        let upper = at_max.and(open).select(half(), none());
        let upper = above.and(ordered).or(crossed).select(g.clone(), upper);
        Ok(vec![own, lower, upper])
    }),
    cases: || {
        let numbers = |v: &[f64]| Sample::Values(v.to_vec());
        let ties =
            Case::new("ties").f(&[5]).arg(DType::F64, &[5], numbers(&[-1.0, -0.5, 0.5, 1.0, f64::NAN]));
        let ties = ties.arg(DType::F64, &[5], numbers(&[-0.5, -0.5, 0.5, 0.5, 0.0]));
        vec![
            Case::new("broadcast").f(&[2, 3]).distinct(&[2, 3]).range(&[3], -1.0, 1.0).range(
                &[2, 1],
                -1.0,
                1.0,
            ),
            ties.arg(DType::F64, &[5], numbers(&[0.5, 0.5, 0.5, 0.0, 1.0])),
        ]
    },
};

fn bound(cx: &OpCx, i: usize, name: &str, dtype: DType) -> Result<Option<Expr>> {
    match cx.opt(i) {
        Some(_) => Ok(Some(filling(cx, i, dtype)?)),
        // In the tensor's dtype, as PyTorch compares.
        None => Ok(opt_scalar(cx, name, dtype)?.map(|e| match e {
            e @ Expr::Float(x) if overflows(x, dtype) => held(e, dtype),
            Expr::Float(x) => Expr::Float(dtype.round(x)),
            e => e,
        })),
    }
}

fn gradient(cx: &mut GradCx) -> Result<()> {
    let (g, x, attrs) = (cx.grad(0)?, cx.x(0)?, cx.attrs().clone());
    let grads = match (cx.opt_x(1), cx.opt_x(2)) {
        (None, None) => {
            let dx = cx.one(&CLAMP_BACKWARD, &[g, x], attrs)?;
            return cx.set(0, dx);
        }
        (Some(min), Some(max)) => cx.apply(&CLAMP_TENSORS_BACKWARD, &[g, x, min, max].map(Some), attrs)?,
        // One bound is the larger or the smaller of two.
        (Some(other), None) | (None, Some(other)) => {
            let attrs = Attrs::new().with("largest", cx.opt_x(1).is_some());
            cx.apply(&MAXIMUM_BACKWARD, &[g, x, other].map(Some), attrs)?
        }
    };
    let bounds: Vec<usize> = (0..3).filter(|&i| cx.opt_x(i).is_some()).collect();
    for (i, grad) in bounds.into_iter().zip(grads) {
        cx.set(i, grad)?;
    }
    Ok(())
}
