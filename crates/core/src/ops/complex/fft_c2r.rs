//! Fourier transform to real numbers.

use super::fft_r2c::FFT_R2C;
use super::scale_middle::scale_middle;
use super::transform::{Complex, along, complex, conjugate};
use super::{Transform, half, pairs};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::shape::Shape;
use crate::tensor::{Tensor, TensorType};

/// The transform back of pairs along each of `dim`, to a real signal of `last_dim_size` elements along the
/// last of them. Of that dimension the first `n/2 + 1` frequencies are given; the others count as their
/// conjugates, and imaginary parts of those that are their own conjugates do not count.
pub static FFT_C2R: OpDef = OpDef {
    name: "_fft_c2r",
    schemas: &["_fft_c2r(Tensor self, int[] dim, int normalization, SymInt last_dim_size) -> Tensor"],
    infer: |cx| Ok(vec![TensorType::new(cx.dtype(0)?, c2r(cx)?.signal)]),
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        // A frequency that stands for its conjugate too counts twice.
        let g = cx.grad(0)?;
        let (dims, mode) = (cx.args().ints("dim")?.to_vec(), cx.args().int("normalization")?);
        let attrs = Attrs::new().with("dim", dims).with("normalization", mode).with("onesided", true);
        let made = cx.one(&FFT_R2C, &[g], attrs)?;
        let t = cx.of(c2r)?;
        let last = t.last()?;
        let dx = scale_middle(cx, made, last, t.signal[last], 2.0)?;
        cx.set(0, dx)
    }),
    precision: Precision::Full,
    cost: Cost::Custom(|cx, _| c2r(cx).map_or(0.0, |t| t.flops() / 2.0)),
    body: Body::Kernel(|cx, inputs, outs| {
        let t = c2r(cx)?;
        let last = t.last()?;
        let given = Shape::new(pairs(cx)?.1);
        let mut data = complex(inputs[0].expect("typed").floats());
        t.dims[..t.dims.len() - 1].iter().for_each(|&d| along(&mut data, &given, d, false));
        let whole = Shape::from(t.signal.clone());
        let mut full: Vec<Complex> = Vec::with_capacity(whole.numel());
        let (_, n, after) = whole.around(last);
        for lane in data.chunks((half(n) * after).max(1)) {
            let at = |k: usize, a: usize| lane[k * after + a];
            for (k, a) in (0..n).flat_map(|k| (0..after).map(move |a| (k, a))) {
                full.push(match k {
                    k if k == (n - k) % n => [at(k, a)[0], 0.0],
                    k if k < half(n) => at(k, a),
                    k => conjugate(at(n - k, a)),
                });
            }
        }
        along(&mut full, &whole, last, false);
        let real = full.iter().map(|x| x[0] * t.scale).collect();
        Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), real)])
    }),
    cases: || {
        let case = |name, shape: &[usize], dim: &[i64], mode: i64, n: i64| {
            Case::new(name).f(shape).attr("dim", dim).attr("normalization", mode).attr("last_dim_size", n)
        };
        vec![
            case("even", &[2, 4, 2], &[1], 2, 6),
            case("odd", &[2, 3, 2], &[-1], 1, 5),
            case("first", &[3, 2, 2], &[0], 0, 4),
            case("two, the first in halves", &[3, 3, 2, 2], &[1, 0], 1, 5),
            case("one element", &[3, 1, 2], &[1], 0, 1),
            case("two elements", &[3, 2, 2], &[1], 0, 2),
            case("empty", &[0, 3, 2], &[1], 0, 4),
        ]
    },
};

/// The transform.
///
/// # Errors
/// `DType`, `Shape`, `Size`, `Attribute`: the operands do not fit.
pub fn c2r(cx: &OpCx) -> Result<Transform> {
    let (x, sizes) = pairs(cx)?;
    let n = cx.size("last_dim_size")?;
    let t = Transform::of(cx, sizes, Some(n))?;
    let last = t.last()?;
    ensure!(half(n) == sizes[last], Shape, "{n} real numbers have {} frequencies, {x} has not", half(n));
    Ok(t)
}
