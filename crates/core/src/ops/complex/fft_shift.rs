//! The frequency 0 moved to the middle, and back.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::movement::roll::ROLL_DIMS;
use crate::ops::pointwise::same;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};

/// Elements moved by half the size of each of `dim` (absent: all), rounded down.
pub static FFT_FFTSHIFT: OpDef = OpDef {
    name: "fft_fftshift",
    schemas: &["fft_fftshift(Tensor self, int[1]? dim=None) -> Tensor"],
    infer: |cx| {
        dims(cx)?;
        same(cx)
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| rolled(b, cx, inputs, |n| n / 2)),
    cases,
};

/// The same, rounded up.
pub static FFT_IFFTSHIFT: OpDef = OpDef {
    name: "fft_ifftshift",
    schemas: &["fft_ifftshift(Tensor self, int[1]? dim=None) -> Tensor"],
    infer: |cx| {
        dims(cx)?;
        same(cx)
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| rolled(b, cx, inputs, |n| n.div_ceil(2))),
    cases,
};

fn cases() -> Vec<Case> {
    vec![
        Case::new("all").f(&[3, 4]),
        Case::new("last").f(&[2, 5]).attr("dim", [-1]),
        Case::new("scalar").f(&[]),
    ]
}

fn dims(cx: &OpCx) -> Result<Vec<usize>> {
    let dims = cx.dims("dim", cx.shape(0)?.rank())?;
    ensure!(dims.len() <= super::MOST, Unsupported, "a shift of {} dimensions at once", dims.len());
    Ok(dims)
}

fn rolled(
    b: &mut Builder,
    cx: &OpCx,
    inputs: &[Option<ValueId>],
    half: fn(usize) -> usize,
) -> Result<Vec<ValueId>> {
    let (x, dims) = (required(inputs, 0)?, dims(cx)?);
    if dims.is_empty() {
        return Ok(vec![x]);
    }
    let shape = cx.shape(0)?;
    let shifts: Vec<i64> = dims.iter().map(|&d| half(shape[d]) as i64).collect();
    let dims: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
    b.apply(&ROLL_DIMS, &[Some(x)], Attrs::new().with("shifts", shifts).with("dims", dims))
}
