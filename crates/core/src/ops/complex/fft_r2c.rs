//! Fourier transform of real numbers.

use super::fft_c2c::FFT_C2C;
use super::fft_c2r::FFT_C2R;
use super::scale_middle::scale_middle;
use super::transform::{Complex, along, scaled};
use super::{Transform, half, paired};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::shape::Shape;
use crate::tensor::{Tensor, TensorType};

/// The forward transform of real numbers along each of `dim`, as pairs. With `onesided` only the first
/// `n/2 + 1` frequencies of the last of `dim` are given: a real signal's others are conjugates of these.
pub static FFT_R2C: OpDef = OpDef {
    name: "_fft_r2c",
    schemas: &["_fft_r2c(Tensor self, int[] dim, int normalization, bool onesided) -> Tensor"],
    infer: |cx| {
        let (x, t, onesided) = (cx.ty(0)?, r2c(cx)?, cx.flag("onesided")?);
        let (mut sizes, last) = (t.signal.clone(), t.last()?);
        if onesided {
            sizes[last] = half(sizes[last]);
        }
        Ok(vec![TensorType::new(x.dtype, paired(sizes))])
    },
    derivative: Derivative::Rule(gradient),
    precision: Precision::Full,
    cost: Cost::Custom(|cx, _| r2c(cx).map_or(0.0, |t| t.flops() / 2.0)),
    body: Body::Kernel(|cx, inputs, outs| {
        let t = r2c(cx)?;
        let shape = Shape::from(t.signal.clone());
        let mut data: Vec<Complex> = inputs[0].expect("typed").floats().iter().map(|&x| [x, 0.0]).collect();
        t.dims.iter().for_each(|&d| along(&mut data, &shape, d, true));
        let (_, n, after) = shape.around(t.last()?);
        let kept = if cx.flag("onesided")? { half(n) } else { n };
        let lanes = data.chunks((n * after).max(1));
        let first: Vec<Complex> = lanes.flat_map(|lane| &lane[..kept * after]).copied().collect();
        Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), scaled(&first, t.scale))])
    }),
    cases: || {
        let case = |name, shape: &[usize], dim: &[i64], mode: i64, onesided: bool| {
            Case::new(name).f(shape).attr("dim", dim).attr("normalization", mode).attr("onesided", onesided)
        };
        vec![
            case("even", &[2, 6], &[1], 0, true),
            case("odd", &[2, 5], &[-1], 1, true),
            case("both sides", &[2, 4], &[1], 2, false),
            case("both sides, odd", &[5, 2], &[0], 0, false),
            case("two, the first in halves", &[4, 3, 2], &[1, 0], 1, true),
            case("two, both sides", &[3, 4], &[0, 1], 0, false),
            case("one element", &[3, 1], &[1], 0, true),
            case("two elements", &[3, 2], &[1], 0, true),
            case("empty", &[0, 4], &[1], 0, true),
        ]
    },
};

/// The transform.
///
/// # Errors
/// `DType`, `Shape`, `Attribute`: the operands do not fit.
pub fn r2c(cx: &OpCx) -> Result<Transform> {
    let x = cx.ty(0)?;
    ensure!(x.dtype.is_float(), DType, "a transform is of floats, got {x}");
    let t = Transform::of(cx, &x.shape, None)?;
    t.last()?;
    Ok(t)
}

/// The real part of the transform back of the cotangent, whose missing half is zero: with its conjugates in
/// that half instead, each frequency counts half, but for those that are their own conjugates.
fn gradient(cx: &mut GradCx) -> Result<()> {
    let g = cx.grad(0)?;
    let (dims, mode) = (cx.args().ints("dim")?.to_vec(), cx.args().int("normalization")?);
    let attrs = Attrs::new().with("dim", dims).with("normalization", mode);
    let dx = if cx.args().flag("onesided")? {
        let t = cx.of(r2c)?;
        let n = t.signal[t.last()?];
        let g = scale_middle(cx, g, t.last()?, n, 0.5)?;
        cx.one(&FFT_C2R, &[g], attrs.with("last_dim_size", n as i64))?
    } else {
        let back = cx.one(&FFT_C2C, &[g], attrs.with("forward", false))?;
        let rank = cx.ty(back).shape.rank();
        cx.select(back, rank - 1, 0)?
    };
    cx.set(0, dx)
}
