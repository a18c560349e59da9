//! LAMB: You et al. 2020 (arXiv:1904.00962), the variant with bias correction. After
//! [`ADAM_MOMENTS`](super::adam_moments) come the norms of each parameter and of its step, the trust ratio
//! from them, and the step.

use super::{applied, taken};
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::expr::{Expr, float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, Sample};
use crate::row::ReduceSpace;
use crate::tensor::TensorType;

/// `(param, exp_avg, exp_avg_sq, bias_correction1, bias_correction2_sqrt)`, spans `[blocks, width]` and
/// scalars, with attributes `eps` and `decay`, to the sums of squares of each block `[blocks]` of `param` and
/// of
///
/// ```text
/// u = (exp_avg / bias_correction1) / (√exp_avg_sq / bias_correction2_sqrt + eps) + decay · param
/// ```
pub static LAMB_NORMS: OpDef = OpDef {
    name: "lamb_norms",
    schemas: &[
        "headwater::lamb_norms(Tensor param, Tensor exp_avg, Tensor exp_avg_sq, Tensor bias_correction1, Tensor bias_correction2_sqrt, *, float eps, float decay) -> (Tensor, Tensor)",
    ],
    infer: |cx| {
        let blocks = spans(cx)?;
        Ok(vec![TensorType::new(cx.dtype(1)?, [blocks]); 2])
    },
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerInput(11),
    body: Body::Rows(|cx, out| {
        let space = ReduceSpace::new(cx.shape(0)?, &[1]);
        let mut b = space.builder();
        let mut regs = Vec::new();
        for i in 0..5 {
            let access = if i < 3 { space.full.clone() } else { crate::row::Access::still(2) };
            regs.push(b.read(cx.dtype(i)?, access));
        }
        for (i, e) in [input(0), direction(cx)?].into_iter().enumerate() {
            let x = b.expr(&e, &regs);
            let square = b.expr(&(input(0) * input(0)), &[x]);
            let sum = b.sum(square);
            b.store(out[i].dtype, space.dropped.clone(), sum);
        }
        Ok(b.finish())
    }),
    cases: || vec![with_corrections(moments("blocks"))],
};

/// `(param_squares, step_squares, lr)`, f64 `[segments]` twice and a scalar, to `lr · ‖param‖ / ‖step‖`, or
/// `lr` where a norm is 0.
pub static LAMB_RATIO: OpDef = OpDef {
    name: "lamb_ratio",
    schemas: &["headwater::lamb_ratio(Tensor param_squares, Tensor step_squares, Tensor lr) -> Tensor"],
    infer: |cx| {
        let same = cx.ty(0)? == cx.ty(1)? && cx.dtype(0)? == DType::F64 && cx.shape(2)?.rank() == 0;
        ensure!(same, Shape, "norms must be f64 of one shape and the rate a scalar, got {}", cx.list_types());
        Ok(vec![cx.ty(0)?.clone()])
    },
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(4),
    body: Body::Pointwise(|_| {
        let (p, u) = (input(0).sqrt(), input(1).sqrt());
        let both = p.clone().gt(float(0.0)).and(u.clone().gt(float(0.0)));
        Ok(vec![input(2) * both.select(p / u, float(1.0))])
    }),
    cases: || {
        let squares = |x: [f64; 3]| Sample::Values(x.to_vec());
        let case = Case::new("zero norms").arg(DType::F64, &[3], squares([4.0, 0.0, 1.0]));
        vec![case.arg(DType::F64, &[3], squares([9.0, 1.0, 0.0])).range(&[], 0.1, 1.0)]
    },
};

/// `(param, exp_avg, exp_avg_sq, bias_correction1, bias_correction2_sqrt, apply, step_size)`, with attributes
/// `eps` and `decay`, to `param − step_size · u`, `u` as in [`LAMB_NORMS`], `step_size` a scalar or one for
/// each block, `[blocks, 1]`.
pub static LAMB_STEP: OpDef = OpDef {
    name: "lamb_step",
    schemas: &[
        "headwater::lamb_step(Tensor param, Tensor exp_avg, Tensor exp_avg_sq, Tensor bias_correction1, Tensor bias_correction2_sqrt, Tensor apply, Tensor step_size, *, float eps, float decay) -> Tensor",
    ],
    infer: |cx| {
        let blocks = spans(cx)?;
        let step = cx.shape(6)?;
        ensure!(
            step.rank() == 0 || step[..] == [blocks, 1],
            Shape,
            "the step size is {step} for {blocks} blocks"
        );
        Ok(vec![cx.ty(0)?.clone()])
    },
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(10),
    body: Body::Pointwise(|cx| {
        let [apply, step_size] = taken(cx, 5)?;
        let p = input(0);
        Ok(applied(&apply, [Some((p.clone() - step_size * direction(cx)?, p))]))
    }),
    cases: || {
        let apply = |x| Sample::Values(vec![x]);
        let case = |name, x| with_corrections(moments(name)).arg(DType::Bool, &[], apply(x));
        vec![case("step", 1.0).range(&[3, 1], 0.01, 0.1), case("skipped", 0.0).range(&[], 0.01, 0.1)]
    },
};

/// `u` of inputs 0 to 4.
fn direction(cx: &OpCx) -> Result<Expr> {
    let [p, m, v, correction1, correction2] = taken(cx, 0)?;
    let u = m / correction1 / (v.sqrt() / correction2 + cx.float("eps")?);
    let decay = cx.float("decay")?;
    Ok(if decay == 0.0 { u } else { u + float(decay) * p })
}

/// Checks inputs 0 to 4 and returns the number of blocks.
fn spans(cx: &OpCx) -> Result<usize> {
    let span = cx.shape(0)?;
    ensure!(span.rank() == 2, Shape, "parameters must be [blocks, width], got {}", cx.ty(0)?);
    for i in 0..5 {
        let t = cx.ty(i)?;
        let fits = if i < 3 { t.shape == *span } else { t.shape.rank() == 0 };
        ensure!(fits && t.dtype.is_float(), Shape, "input {i} is {t}, the parameters are {}", cx.ty(0)?);
    }
    Ok(span[0])
}

fn moments(name: &'static str) -> Case {
    let case = Case::new(name).f(&[3, 4]).f(&[3, 4]).range(&[3, 4], 0.0, 2.0);
    case.attr("eps", 1e-6).attr("decay", 0.1)
}

fn with_corrections(case: Case) -> Case {
    case.range(&[], 0.1, 1.0).range(&[], 0.1, 1.0)
}
