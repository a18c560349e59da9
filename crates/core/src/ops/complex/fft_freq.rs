//! Frequencies of a transform's results.

use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::expr::{Expr, float};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// Frequencies of a transform of `n` samples with spacing `d`: `0, 1, …, ⌈n/2⌉ - 1, -⌊n/2⌋, …, -1`, each
/// times `1/(n d)`.
pub static FFT_FFTFREQ: OpDef = OpDef {
    name: "fft_fftfreq",
    schemas: &[
        "fft_fftfreq(int n, float d=1.0, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ],
    infer: |cx| infer(cx, |n| n),
    derivative: Derivative::NotDifferentiable("it has no tensor input"),
    precision: Precision::Same,
    cost: Cost::PerOutput(2),
    body: Body::Pointwise(|cx| {
        let (n, k) = (cx.int("n")?, || Expr::Coord(0));
        let negative = k().ge(Expr::Int(n - n / 2));
        frequencies(cx, negative.select(k() - Expr::Int(n), k()))
    }),
    cases: || vec![case("even", 6), case("odd", 5), case("one", 1)],
};

/// The first `n/2 + 1` of them, none negative.
pub static FFT_RFFTFREQ: OpDef = OpDef {
    name: "fft_rfftfreq",
    schemas: &[
        "fft_rfftfreq(int n, float d=1.0, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ],
    infer: |cx| infer(cx, super::half),
    derivative: Derivative::NotDifferentiable("it has no tensor input"),
    precision: Precision::Same,
    cost: Cost::PerOutput(2),
    body: Body::Pointwise(|cx| frequencies(cx, Expr::Coord(0))),
    cases: || vec![case("even", 6), case("odd", 5)],
};

fn infer(cx: &OpCx, count: fn(usize) -> usize) -> Result<Vec<TensorType>> {
    let n = cx.size("n")?;
    ensure!(n > 0 && n <= 1 << 53, Attribute, "a transform of {n} samples");
    cx.opt_float("d")?;
    let dtype = cx.opt_dtype("dtype")?.unwrap_or(DType::F32);
    ensure!(dtype.is_float(), DType, "frequencies are floats, got {dtype}");
    Ok(vec![TensorType::new(dtype, [count(n)])])
}

/// `k / (n d)` for an integer `k`.
fn frequencies(cx: &OpCx, k: Expr) -> Result<Vec<Expr>> {
    let spacing = cx.int("n")? as f64 * cx.opt_float("d")?.unwrap_or(1.0);
    let dtype = infer(cx, |n| n)?[0].dtype;
    Ok(vec![(k.cast(DType::F64) * float(1.0 / spacing)).cast(dtype)])
}

fn case(name: &'static str, n: i64) -> Case {
    Case::new(name).attr("n", n).attr("d", 0.5).attr("dtype", DType::F64)
}
