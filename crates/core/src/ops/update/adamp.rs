//! AdamP: Heo et al. 2021 (arXiv:2006.08217): Adam whose step does not lengthen weights that a norm rescales.
//! After [`ADAM_MOMENTS`](super::adam_moments) come the products of each channel's rows, the choice of the
//! projection from them, and the step.

use super::{applied, seen_gradient, taken};
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::expr::{Expr, float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, Sample};
use crate::row::{Access, Reduce, ReduceSpace, RowBuilder};
use crate::tensor::TensorType;

/// `(param, grad, exp_avg, exp_avg_sq, scale, bias_correction2_sqrt)`: one parameter as `[channels, size]`,
/// its gradient and moments, and scalars. Attributes are `eps` and `nesterov` (beta1; absent: none). Results
/// are the sums over each channel `[channels]` of `param²`, `grad²`, `param · grad` and `param · u`, where
///
/// ```text
/// u = exp_avg / (√exp_avg_sq / bias_correction2_sqrt + eps)
/// ```
///
/// with `nesterov · exp_avg + (1 − nesterov) · grad` for `exp_avg` if that attribute is given. `grad` is
/// taken times `scale`.
pub static ADAMP_PRODUCTS: OpDef = OpDef {
    name: "adamp_products",
    schemas: &[
        "headwater::adamp_products(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, Tensor scale, Tensor bias_correction2_sqrt, *, float eps, float? nesterov=None, float? clip_value=None, bool maximize=False) -> (Tensor, Tensor, Tensor, Tensor)",
    ],
    infer: |cx| {
        let rows = matrix(cx, 0..4, 4..6)?;
        Ok(vec![TensorType::new(cx.dtype(2)?, [rows]); 4])
    },
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerInput(16),
    body: Body::Rows(|cx, out| {
        let space = ReduceSpace::new(cx.shape(0)?, &[1]);
        let mut b = space.builder();
        let mut regs = Vec::new();
        for i in 0..6 {
            let access = if i < 4 { space.full.clone() } else { Access::still(2) };
            regs.push(b.read(cx.dtype(i)?, access));
        }
        let [_, _, m, v, scale, correction] = taken(cx, 0)?;
        let g = seen_gradient(cx, input(1), scale)?;
        let u = direction(cx, m, v, g.clone(), correction)?;
        let regs: Vec<_> = [input(0), g, u].iter().map(|e| b.expr(e, &regs)).collect();
        for (o, (x, y)) in out.iter().zip([(0, 0), (1, 1), (0, 1), (0, 2)]) {
            let product = b.expr(&(input(x) * input(y)), &regs);
            let sum = b.sum(product);
            b.store(o.dtype, space.dropped.clone(), sum);
        }
        Ok(b.finish())
    }),
    cases: || {
        let case = |name| Case::new(name).f(&[3, 4]).f(&[3, 4]).f(&[3, 4]).range(&[3, 4], 0.1, 2.0);
        let case = |name| case(name).range(&[], 0.5, 1.0).range(&[], 0.1, 1.0).attr("eps", 1e-8);
        vec![case("plain"), case("nesterov").attr("nesterov", 0.9)]
    },
};

/// The four results of [`ADAMP_PRODUCTS`], `[channels]`, with attributes `size` (elements of a channel),
/// `delta`, `wd_ratio` and `eps`. Results are `c` `[channels]`, where the step is `u − c · param`, and the
/// factor of weight decay (a scalar):
///
/// ```text
/// if max over channels |cos(param, grad)| < delta / √size:     each channel's own projection, and wd_ratio
/// else if |cos(param, grad)| < delta / √(channels · size):     that of all channels together, and wd_ratio
/// else:                                                         0 and 1
/// ```
///
/// A projection is `c = Σ n · u / (‖param‖ + eps)` with `n = param / (‖param‖ + eps)`, sums and norms over
/// the channel or over all.
pub static ADAMP_PROJECTION: OpDef = OpDef {
    name: "adamp_projection",
    schemas: &[
        "headwater::adamp_projection(Tensor pp, Tensor gg, Tensor pg, Tensor pu, *, int size, float delta, float wd_ratio, float eps) -> (Tensor, Tensor)",
    ],
    infer: |cx| {
        let t = cx.ty(0)?;
        let same =
            t.shape.rank() == 1 && t.dtype.is_float() && (1..4).all(|i| cx.ty(i).is_ok_and(|o| o == t));
        ensure!(same, Shape, "expected four vectors of one type, got {}", cx.list_types());
        cx.size("size")?;
        Ok(vec![t.clone(), TensorType::new(t.dtype, [0usize; 0])])
    },
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerInput(30),
    body: Body::Rows(|cx, out| {
        let channels = cx.shape(0)?[0];
        let mut b = RowBuilder::new(&[], &[channels]);
        let regs: Vec<_> =
            (0..4).map(|i| Ok(b.read(cx.dtype(i)?, Access::identity(1)))).collect::<Result<_>>()?;
        let (eps, delta) = (cx.float("eps")?, cx.float("delta")?);
        let size = cx.size("size")? as f64;
        // As torch.nn.functional.cosine_similarity: no norm counts as less than eps.
        let cosine = || {
            let norm = |i| input(i).sqrt().max(float(eps));
            input(2).abs() / (norm(0) * norm(1))
        };
        let projection = || {
            let norm = input(0).sqrt() + eps;
            input(3) / (norm.clone() * norm)
        };
        let each = b.expr(&cosine(), &regs);
        let largest = b.reduce(Reduce::Max, each);
        let sums: Vec<_> = regs.iter().map(|&r| b.sum(r)).collect();
        let together = b.expr(&cosine(), &sums);
        let own = b.expr(&projection(), &regs);
        let common = b.expr(&projection(), &sums);
        let by_channel = b.expr(&input(0).lt(float(delta / size.sqrt())), &[largest]);
        let by_layer = b.expr(&input(0).lt(float(delta / (size * channels as f64).sqrt())), &[together]);
        let regs = [by_channel, by_layer, own, common];
        let chosen = b.expr(&input(0).select(input(2), input(1).select(input(3), float(0.0))), &regs);
        b.store(out[0].dtype, Access::identity(1), chosen);
        let ratio = float(cx.float("wd_ratio")?);
        let factor = b.expr(&input(0).or(input(1)).select(ratio, float(1.0)), &regs);
        b.store(out[1].dtype, Access::still(1), factor);
        Ok(b.finish())
    }),
    cases: || {
        let case = |name, delta| {
            let values = |x: [f64; 3]| Sample::Values(x.to_vec());
            Case::new(name)
                .arg(DType::F64, &[3], values([4.0, 1.0, 2.0]))
                .arg(DType::F64, &[3], values([1.0, 2.0, 3.0]))
                .arg(DType::F64, &[3], values([0.2, -0.1, 0.3]))
                .arg(DType::F64, &[3], values([0.4, 0.5, -0.6]))
                .attr("size", 4)
                .attr("delta", delta)
                .attr("wd_ratio", 0.1)
                .attr("eps", 1e-8)
        };
        vec![case("by channel", 1.0), case("by layer", 0.2), case("none", 0.01)]
    },
};

/// `(param, grad, exp_avg, exp_avg_sq, projection, decay, scale, apply, step_size, bias_correction2_sqrt)`,
/// spans `[blocks, width]` and scalars. `decay`, which multiplies the parameter, is one number a block,
/// `[blocks, 1]`. The result is `decay · param − step_size · (u − projection · param)`, `u` and attributes as
/// in [`ADAMP_PRODUCTS`].
pub static ADAMP_STEP: OpDef = OpDef {
    name: "adamp_step",
    schemas: &[
        "headwater::adamp_step(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, Tensor projection, Tensor decay, Tensor scale, Tensor apply, Tensor step_size, Tensor bias_correction2_sqrt, *, float eps, float? nesterov=None, float? clip_value=None, bool maximize=False) -> Tensor",
    ],
    infer: |cx| {
        let rows = matrix(cx, 0..5, 6..10)?;
        let decay = cx.ty(5)?;
        ensure!(decay.shape[..] == [rows, 1] && decay.dtype.is_float(), Shape, "decay is {decay}");
        Ok(vec![cx.ty(0)?.clone()])
    },
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(16),
    body: Body::Pointwise(|cx| {
        let [p, g, m, v, projection, decay, scale, apply, step_size, correction] = taken(cx, 0)?;
        let g = seen_gradient(cx, g, scale)?;
        let u = direction(cx, m, v, g, correction)? - projection * p.clone();
        Ok(applied(&apply, [Some((decay * p.clone() - step_size * u, p))]))
    }),
    cases: || {
        let case = |name, apply: f64| {
            Case::new(name)
                .f(&[3, 4])
                .f(&[3, 4])
                .f(&[3, 4])
                .range(&[3, 4], 0.1, 2.0)
                .f(&[3, 4])
                .range(&[3, 1], 0.9, 1.0)
                .range(&[], 0.5, 1.0)
                .arg(DType::Bool, &[], Sample::Values(vec![apply]))
                .range(&[], 0.01, 0.1)
                .range(&[], 0.1, 1.0)
                .attr("eps", 1e-8)
        };
        vec![case("step", 1.0), case("nesterov", 1.0).attr("nesterov", 0.9), case("skipped", 0.0)]
    },
};

/// `u` of [`ADAMP_PRODUCTS`].
fn direction(cx: &OpCx, m: Expr, v: Expr, g: Expr, correction: Expr) -> Result<Expr> {
    let m = match cx.opt_float("nesterov")? {
        Some(beta1) => m * beta1 + float(1.0 - beta1) * g,
        None => m,
    };
    Ok(m / (v.sqrt() / correction + cx.float("eps")?))
}

/// Checks that the inputs `spans` are matrices of one shape and `scalars` scalars; returns the number of
/// rows.
fn matrix(cx: &OpCx, spans: std::ops::Range<usize>, scalars: std::ops::Range<usize>) -> Result<usize> {
    let span = cx.shape(0)?;
    let same = spans.clone().all(|i| cx.ty(i).is_ok_and(|t| t.shape == *span && t.dtype.is_float()));
    let still = scalars.clone().all(|i| cx.shape(i).is_ok_and(|s| s.rank() == 0));
    ensure!(
        span.rank() == 2 && same && still,
        Shape,
        "expected matrices of one shape, got {}",
        cx.list_types()
    );
    Ok(span[0])
}
