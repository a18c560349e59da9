//! Layer normalisation: Ba, Kiros and Hinton 2016.

use super::{
    affine, backward, gradient_types, moments, normalized, only, output_mask, row_stats, stat_dtype,
    through_statistics,
};
use crate::Attrs;
use crate::expr::input;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpDef, Precision};
use crate::row::ReduceSpace;
use crate::tensor::TensorType;

/// `(x − mean) / sqrt(var + eps) · weight + bias` over the trailing `normalized_shape`, variance biased.
/// Outputs: the result in the input's dtype; mean and reciprocal standard deviation of each row.
pub static LAYER_NORM: OpDef = OpDef {
    name: "layer_norm",
    schemas: &[
        "layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1.0000000000000001e-05, bool cudnn_enable=True) -> Tensor",
        "native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)",
    ],
    infer: |cx| {
        let (x, first) = (cx.ty(0)?, normalized(cx, 0, &[1, 2])?);
        let stat = TensorType::new(stat_dtype(x.dtype)?, row_stats(&x.shape, first));
        Ok(vec![x.clone(), stat.clone(), stat])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let also = through_statistics(cx, Some(1), 2)?;
        let (g, x, w) = (cx.grad(0)?, cx.x(0)?, cx.opt_x(1));
        let inputs = [Some(g), Some(x), Some(cx.y(1)), Some(cx.y(2)), w];
        let shape = cx.args().ints("normalized_shape")?;
        backward(cx, &LAYER_NORM_BACKWARD, &inputs, Attrs::new().with("normalized_shape", shape), 3, also)
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(8),
    body: Body::Rows(|cx, out| {
        let (x, first) = (cx.ty(0)?, normalized(cx, 0, &[])?);
        let space = ReduceSpace::new(&x.shape, &(first..x.shape.rank()).collect::<Vec<_>>());
        let mut b = space.builder();
        let v = b.read(x.dtype, space.full.clone());
        let mut param = |i: usize| cx.opt(i).map(|t| b.read(t.dtype, space.trailing(first)));
        let (weight, bias) = (param(1), param(2));
        let [mean, var, centred] = moments(&mut b, v, space.inner.iter().product());
        let rstd = b.expr(&(input(0) + cx.float("eps")?).rsqrt(), &[var]);
        let y = b.expr(&(input(0) * input(1)), &[centred, rstd]);
        let y = affine(&mut b, y, weight, bias);
        b.store(out[0].dtype, space.full.clone(), y);
        b.store(out[1].dtype, space.kept.clone(), mean);
        b.store(out[2].dtype, space.kept.clone(), rstd);
        Ok(b.finish())
    }),
    cases: || {
        let case = |name| Case::new(name).f(&[2, 3, 4]);
        vec![
            case("affine").f(&[4]).f(&[4]).attr("normalized_shape", [4]).attr("eps", 1e-5),
            case("two dimensions").f(&[3, 4]).none().attr("normalized_shape", [3, 4]).attr("eps", 0.1),
            case("bias only").none().f(&[4]).attr("normalized_shape", [4]).attr("eps", 1e-5),
            Case::new("plain row").f(&[5]).none().none().attr("normalized_shape", [5]).attr("eps", 1e-5),
            Case::new("no rows").f(&[0, 4]).f(&[4]).f(&[4]).attr("normalized_shape", [4]).attr("eps", 1e-5),
        ]
    },
};

/// Gradients of [`LAYER_NORM`]: `(grad_out, input, mean, rstd, weight?)` to those of `(input, weight, bias)`
/// that `output_mask` names. With h the normalised input and n its row length: `dx = rstd · (g·w − Σ g·w / n
/// − h · Σ g·w·h / n)`, `dweight = Σ_rows g·h`, `dbias = Σ_rows g`.
pub static LAYER_NORM_BACKWARD: OpDef = OpDef {
    name: "native_layer_norm_backward",
    schemas: &[],
    infer: |cx| {
        let (x, first) = (cx.shape(1)?, normalized(cx, 1, &[4])?);
        cx.expect_floats(0, x)?;
        [2, 3].into_iter().try_for_each(|i| cx.expect_floats(i, &row_stats(x, first)))?;
        let param = cx.opt(4).map_or(stat_dtype(cx.dtype(1)?)?, |w| w.dtype);
        gradient_types(cx, 3, cx.ty(1)?, TensorType::new(param, &cx.shape(1)?[first..]))
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Full,
    cost: Cost::PerInput(14),
    body: Body::Rows(|cx, out| {
        let (x, first) = (cx.ty(1)?, normalized(cx, 1, &[])?);
        let space = ReduceSpace::new(&x.shape, &(first..x.shape.rank()).collect::<Vec<_>>());
        let n: usize = space.inner.iter().product();
        let mut b = space.builder();
        let g = b.read(cx.dtype(0)?, space.full.clone());
        let v = b.read(x.dtype, space.full.clone());
        let mean = b.read(cx.dtype(2)?, space.kept.clone());
        let rstd = b.read(cx.dtype(3)?, space.kept.clone());
        let hat = b.expr(&((input(0) - input(1)) * input(2)), &[v, mean, rstd]);
        let gw = match cx.opt(4) {
            Some(t) => {
                let w = b.read(t.dtype, space.trailing(first));
                b.expr(&(input(0) * input(1)), &[g, w])
            }
            None => g,
        };
        let gh = b.expr(&(input(0) * input(1)), &[g, hat]);
        let mut out = out.iter();
        for i in only(&output_mask(cx, 3)?, 0..3) {
            let Some(ty) = out.next() else { break };
            match i {
                0 => {
                    let sum = b.sum(gw);
                    let product = b.expr(&(input(0) * input(1)), &[gw, hat]);
                    let along = b.sum(product);
                    let mean = (input(1) + input(2) * input(3)) / n as f64;
                    let dx = b.expr(&((input(0) - mean) * input(4)), &[gw, sum, hat, along, rstd]);
                    b.store(ty.dtype, space.full.clone(), dx);
                }
                1 => b.columns(ty.dtype, space.trailing(first), gh),
                _ => b.columns(ty.dtype, space.trailing(first), g),
            }
        }
        Ok(b.finish())
    }),
    cases: || {
        let case = |name| Case::new(name).f(&[3, 4]).f(&[3, 4]).f(&[3, 1]).range(&[3, 1], 0.5, 2.0);
        let attrs = |c: Case, mask: [i64; 3]| c.attr("normalized_shape", [4]).attr("output_mask", mask);
        vec![
            attrs(case("all").f(&[4]), [1, 1, 1]),
            attrs(case("parameters").f(&[4]), [0, 1, 1]),
            attrs(case("input").none(), [1, 0, 0]),
        ]
    },
};
