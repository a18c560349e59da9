//! Fourier transform of complex numbers.

use super::transform::{along, complex, scaled};
use super::{Transform, pairs};
use crate::diagnostic::Result;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// `scale · Σⱼ xⱼ e^(∓2πi jk/n)` of pairs along each of `dim`, forward with the negative sign.
pub static FFT_C2C: OpDef = OpDef {
    name: "_fft_c2c",
    schemas: &["_fft_c2c(Tensor self, SymInt[] dim, int normalization, bool forward) -> Tensor"],
    infer: |cx| {
        c2c(cx)?;
        Ok(vec![cx.ty(0)?.clone()])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        // The transposed matrix of the pairs is that of the conjugate transform.
        let (g, back) = (cx.grad(0)?, !cx.args().flag("forward")?);
        let attrs = cx.attrs().clone().with("forward", back);
        let dx = cx.one(&FFT_C2C, &[g], attrs)?;
        cx.set(0, dx)
    }),
    precision: Precision::Full,
    cost: Cost::Custom(|cx, _| c2c(cx).map_or(0.0, |(t, _)| t.flops())),
    body: Body::Kernel(|cx, inputs, outs| {
        let (t, forward) = c2c(cx)?;
        let shape = Shape::from(t.signal.clone());
        let mut data = complex(inputs[0].expect("typed").floats());
        t.dims.iter().for_each(|&d| along(&mut data, &shape, d, forward));
        Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), scaled(&data, t.scale))])
    }),
    cases: || {
        let case = |name, shape: &[usize], dim: &[i64], mode: i64, forward: bool| {
            Case::new(name).f(shape).attr("dim", dim).attr("normalization", mode).attr("forward", forward)
        };
        vec![
            case("last", &[2, 6, 2], &[1], 0, true),
            case("back", &[2, 5, 2], &[-1], 2, false),
            case("first", &[4, 3, 2], &[0], 1, true),
            case("two", &[3, 2, 4, 2], &[2, 0], 1, false),
            case("one element", &[3, 1, 2], &[1], 0, true),
            case("no dimension", &[3, 2], &[], 0, true),
            case("empty", &[0, 4, 2], &[1], 0, true),
        ]
    },
};

/// The transform, and its direction: true if forward.
///
/// # Errors
/// `DType`, `Shape`, `Attribute`: the operands do not fit.
pub fn c2c(cx: &OpCx) -> Result<(Transform, bool)> {
    Ok((Transform::of(cx, pairs(cx)?.1, None)?, cx.flag("forward")?))
}
