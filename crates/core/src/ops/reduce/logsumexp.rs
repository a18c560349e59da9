//! Logarithm of a sum of exponentials.

use super::{program, reduced_shape, restore_reduced};
use crate::DType;
use crate::attr::Attrs;
use crate::expr::{float, input};
use crate::ops::pointwise::exp::EXP;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpDef, Precision, Sample};
use crate::row::{Instr, Reduce};
use crate::tensor::TensorType;

/// `log Σ exp(x)` over `dim`, with the largest element taken out so that nothing overflows. Integers count as
/// f32. The gradient is PyTorch's, `g · exp(x − y)`: NaN where every element is −∞, or one is +∞, as −∞ − −∞
/// has no value. Beside elements so large that `y` rounds the logarithm of their number away, such as 1e9 in
/// f32 or 1e17 in f64, each of n equal elements gets `g` in place of `g / n`, as in PyTorch.
pub static LOGSUMEXP: OpDef = OpDef {
    name: "logsumexp",
    schemas: &[
        "logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor",
        "special_logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor",
    ],
    infer: |cx| {
        let x = cx.dtype(0)?;
        let dtype = if x.is_float() { x } else { DType::F32 };
        Ok(vec![TensorType::new(dtype, reduced_shape(cx)?)])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, y, x) = (cx.grad(0)?, cx.y(0), cx.x(0)?);
        let (g, y) = (restore_reduced(cx, g)?, restore_reduced(cx, y)?);
        let share = cx.sub(x, y)?;
        let share = cx.one(&EXP, &[share], Attrs::new())?;
        let dx = cx.mul(share, g)?;
        cx.set(0, dx)
    }),
    precision: Precision::Full,
    cost: Cost::PerInput(4),
    body: Body::Rows(|cx, out| {
        program(cx, out, |b, _, v| {
            let v = if cx.dtype(0)?.is_float() { v } else { b.push(Instr::Cast(out[0].dtype, v)) };
            let max = b.reduce(Reduce::Max, v);
            // An infinite maximum must not be subtracted from itself.
            let max = b.expr(&input(0).is_inf().select(float(0.0), input(0)), &[max]);
            let e = b.expr(&(input(0) - input(1)).exp(), &[v, max]);
            let sum = b.sum(e);
            Ok([b.expr(&(input(0).log() + input(1)), &[sum, max])])
        })
    }),
    cases: || {
        let infinite = Sample::Values(vec![f64::NEG_INFINITY; 3]);
        vec![
            Case::new("last").range(&[2, 3], -90.0, 90.0).attr("dim", [-1]),
            Case::new("two kept").f(&[2, 3, 4]).attr("dim", [0, 2]).attr("keepdim", true),
            Case::new("ints").index(&[2, 3], 9).attr("dim", [1]),
            Case::new("no finite element").arg(DType::F32, &[3], infinite).constant().attr("dim", [0]),
        ]
    },
};
