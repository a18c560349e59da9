//! Windows for the analysis of signals: Harris 1978, "On the use of windows for harmonic analysis".

use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::expr::{Expr, float};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::tensor::TensorType;
use std::f64::consts::PI;

macro_rules! window {
    ($(#[$doc:meta])* $static:ident, $name:literal, [$($schema:literal),* $(,)?], $terms:expr, $cases:expr) => {
        $(#[$doc])*
        pub static $static: OpDef = OpDef {
            name: $name,
            schemas: &[$($schema),*],
            infer,
            derivative: Derivative::NotDifferentiable("it has no tensor input"),
            precision: Precision::Same,
            cost: Cost::PerOutput(12),
            body: Body::Pointwise(|cx| window(cx, $terms)),
            cases: || $cases,
        };
    };
}

window!(
    /// Half a cosine's period above zero, `(1 − cos θ) / 2`.
    HANN_WINDOW, "hann_window", [
        "hann_window(int window_length, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        "hann_window.periodic(int window_length, bool periodic, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ],
    |_, x| Ok(raised(x, 0.5, 0.5)), cases()
);

window!(
    /// `alpha − beta · cos θ`, by default 0.54 and 0.46.
    HAMMING_WINDOW, "hamming_window", [
        "hamming_window(int window_length, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        "hamming_window.periodic(int window_length, bool periodic, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        "hamming_window.periodic_alpha(int window_length, bool periodic, float alpha, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        "hamming_window.periodic_alpha_beta(int window_length, bool periodic, float alpha, float beta, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ],
    |cx, x| {
        let (alpha, beta) = (cx.opt_float("alpha")?.unwrap_or(0.54), cx.opt_float("beta")?.unwrap_or(0.46));
        Ok(raised(x, alpha, beta))
    },
    [cases(), vec![case("parameters", 5, true).attr("alpha", 0.6).attr("beta", 0.3)]].concat()
);

window!(
    /// `0.42 − 0.5 · cos θ + 0.08 · cos 2θ`.
    BLACKMAN_WINDOW, "blackman_window", [
        "blackman_window(int window_length, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        "blackman_window.periodic(int window_length, bool periodic, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ],
    |_, x| Ok(raised(x.clone(), 0.42, 0.5) + (x * float(4.0 * PI)).cos() * 0.08), cases()
);

window!(
    /// A triangle, 0 at the first point and, unless periodic, at the last.
    BARTLETT_WINDOW, "bartlett_window", [
        "bartlett_window(int window_length, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        "bartlett_window.periodic(int window_length, bool periodic, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ],
    |_, x| Ok(float(1.0) - (x * float(2.0) + float(-1.0)).abs()), cases()
);

/// `alpha − beta · cos 2πx`.
fn raised(x: Expr, alpha: f64, beta: f64) -> Expr {
    float(alpha) - (x * float(2.0 * PI)).cos() * beta
}

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    let n = cx.size("window_length")?;
    ensure!(n <= 1 << 53, Attribute, "a window of {n} points");
    cx.opt_int("periodic")?;
    for name in ["alpha", "beta"] {
        cx.opt_float(name)?;
    }
    let dtype = cx.opt_dtype("dtype")?.unwrap_or(DType::F32);
    ensure!(dtype.is_float(), DType, "windows are of floats, not {dtype}");
    Ok(vec![TensorType::new(dtype, [n])])
}

/// The window `f` of each point's share of the period, computed in f64. A single point is 1.
fn window(cx: &OpCx, f: impl Fn(&OpCx, Expr) -> Result<Expr>) -> Result<Vec<Expr>> {
    let (n, dtype) = (cx.size("window_length")?, infer(cx)?[0].dtype);
    if n <= 1 {
        return Ok(vec![float(1.0).cast(dtype)]);
    }
    // The period ends with the last point, or one after it.
    let periodic = cx.opt_int("periodic")?.unwrap_or(1) != 0;
    let period = if periodic { n as f64 } else { n as f64 - 1.0 };
    let place = Expr::Coord(0).cast(DType::F64) * float(1.0 / period);
    Ok(vec![f(cx, place)?.cast(dtype)])
}

fn case(name: &'static str, n: i64, periodic: bool) -> Case {
    Case::new(name).attr("window_length", n).attr("periodic", periodic).attr("dtype", DType::F64)
}

fn cases() -> Vec<Case> {
    vec![case("periodic", 6, true), case("symmetric", 5, false), case("one", 1, true), case("none", 0, true)]
}
