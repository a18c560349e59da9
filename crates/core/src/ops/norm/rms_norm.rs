//! Root-mean-square normalisation: Zhang and Sennrich 2019.

use super::{
    affine, backward, gradient_types, normalized, only, output_mask, row_stats, stat_dtype,
    through_statistics,
};
use crate::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::expr::input;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::row::{ReduceSpace, Reg, RowBuilder};
use crate::tensor::TensorType;

/// `x / sqrt(mean(x²) + eps) · weight` over the trailing `normalized_shape`. Without `eps`: the epsilon of
/// the dtype computed in. Outputs: the result in the input's dtype, and the reciprocal root mean square of
/// each row. The latter keeps the normalised dimensions as 1, as PyTorch and CANN (`rstdOut` of
/// `aclnnRmsNorm`) have it. Rounded once, at the end. With the attribute `round` (a dtype) also before the
/// weight, as models do that convert in between.
pub static RMS_NORM: OpDef = OpDef {
    name: "rms_norm",
    schemas: &[
        "rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor",
        "_fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)",
    ],
    infer: |cx| {
        let (x, first) = (cx.ty(0)?, normalized(cx, 0, &[1])?);
        let round = cx.opt_dtype("round")?.unwrap_or(x.dtype);
        ensure!(round.is_float(), Attribute, "`round` must be a float dtype, got {round}");
        Ok(vec![x.clone(), TensorType::new(stat_dtype(x.dtype)?, row_stats(&x.shape, first))])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let also = through_statistics(cx, None, 1)?;
        let (g, x, w) = (cx.grad(0)?, cx.x(0)?, cx.opt_x(1));
        let inputs = [Some(g), Some(x), Some(cx.y(1)), w];
        let mut attrs = Attrs::new().with("normalized_shape", cx.args().ints("normalized_shape")?);
        if let Some(dtype) = cx.args().opt_dtype("round")? {
            attrs.set("round", dtype);
        }
        backward(cx, &RMS_NORM_BACKWARD, &inputs, attrs, 2, also)
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(5),
    body: Body::Rows(|cx, out| {
        let (x, first) = (cx.ty(0)?, normalized(cx, 0, &[])?);
        let space = ReduceSpace::new(&x.shape, &(first..x.shape.rank()).collect::<Vec<_>>());
        let n: usize = space.inner.iter().product();
        let mut b = space.builder();
        let v = b.read(x.dtype, space.full.clone());
        let weight = cx.opt(1).map(|t| b.read(t.dtype, space.trailing(first)));
        let square = b.expr(&(input(0) * input(0)), &[v]);
        let sum = b.sum(square);
        let rstd = b.expr(&(input(0) / n as f64 + eps(cx)?).rsqrt(), &[sum]);
        let y = b.expr(&(input(0) * input(1)), &[v, rstd]);
        let y = rounded(cx, &mut b, y)?;
        let y = affine(&mut b, y, weight, None);
        b.store(out[0].dtype, space.full.clone(), y);
        b.store(out[1].dtype, space.kept.clone(), rstd);
        Ok(b.finish())
    }),
    cases: || {
        let case = |name| Case::new(name).f(&[2, 3, 4]);
        vec![
            case("weight").f(&[4]).attr("normalized_shape", [4]).attr("eps", 1e-6),
            case("two dimensions").none().attr("normalized_shape", [3, 4]).attr("eps", 0.1),
            case("default eps").f(&[4]).attr("normalized_shape", [4]),
        ]
    },
};

/// Gradients of [`RMS_NORM`]: `(grad_out, input, rstd, weight?)` to those of `(input, weight)` that
/// `output_mask` names. With h = x·rstd and n the row length: `dx = rstd · (g·w − h · Σ g·w·h / n)`, `dweight
/// = Σ_rows g·h`, this h rounded as it was before the weight.
pub static RMS_NORM_BACKWARD: OpDef = OpDef {
    name: "_fused_rms_norm_backward",
    schemas: &[],
    infer: |cx| {
        let (x, first) = (cx.shape(1)?, normalized(cx, 1, &[3])?);
        cx.expect_floats(0, x)?;
        cx.expect_floats(2, &row_stats(x, first))?;
        let param = cx.opt(3).map_or(stat_dtype(cx.dtype(1)?)?, |w| w.dtype);
        gradient_types(cx, 2, cx.ty(1)?, TensorType::new(param, &cx.shape(1)?[first..]))
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Full,
    cost: Cost::PerInput(10),
    body: Body::Rows(|cx, out| {
        let (x, first) = (cx.ty(1)?, normalized(cx, 1, &[])?);
        let space = ReduceSpace::new(&x.shape, &(first..x.shape.rank()).collect::<Vec<_>>());
        let n: usize = space.inner.iter().product();
        let mut b = space.builder();
        let g = b.read(cx.dtype(0)?, space.full.clone());
        let v = b.read(x.dtype, space.full.clone());
        let rstd = b.read(cx.dtype(2)?, space.kept.clone());
        let hat = b.expr(&(input(0) * input(1)), &[v, rstd]);
        let gh = b.expr(&(input(0) * input(1)), &[g, hat]);
        let weighed = match rounded(cx, &mut b, hat)? {
            same if same == hat => gh,
            rounded => b.expr(&(input(0) * input(1)), &[g, rounded]),
        };
        let weight = cx.opt(3).map(|t| b.read(t.dtype, space.trailing(first)));
        let mut out = out.iter();
        for i in only(&output_mask(cx, 2)?, 0..2) {
            let Some(ty) = out.next() else { break };
            if i == 0 {
                let (gw, gwh) = (affine(&mut b, g, weight, None), affine(&mut b, gh, weight, None));
                let along = b.sum(gwh);
                let dx = (input(0) - input(1) * (input(2) / n as f64)) * input(3);
                let dx = b.expr(&dx, &[gw, hat, along, rstd]);
                b.store(ty.dtype, space.full.clone(), dx);
            } else {
                b.columns(ty.dtype, space.trailing(first), weighed);
            }
        }
        Ok(b.finish())
    }),
    cases: || {
        let case = |name| Case::new(name).f(&[3, 4]).f(&[3, 4]).range(&[3, 1], 0.5, 2.0);
        let attrs = |c: Case, mask: [i64; 2]| c.attr("normalized_shape", [4]).attr("output_mask", mask);
        vec![attrs(case("both").f(&[4]), [1, 1]), attrs(case("input").none(), [1, 0])]
    },
};

/// Rounds as the attribute `round` asks.
fn rounded(cx: &OpCx, b: &mut RowBuilder, v: Reg) -> Result<Reg> {
    Ok(match cx.opt_dtype("round")? {
        Some(dtype) => b.expr(&input(0).cast(dtype), &[v]),
        None => v,
    })
}

fn eps(cx: &OpCx) -> Result<f64> {
    Ok(cx.opt_float("eps")?.unwrap_or(stat_dtype(cx.dtype(0)?)?.epsilon()))
}
