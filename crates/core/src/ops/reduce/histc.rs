//! Histogram.

use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::tensor::{Tensor, TensorType};

/// Counts, in the input's dtype, of elements in `bins` equal parts of `[min, max]`; elements outside, and
/// NaN, are not counted. With `min` = `max` the range is the data's; an empty range is widened by 1 on both
/// sides.
pub static HISTC: OpDef = OpDef {
    name: "histc",
    schemas: &["histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor"],
    infer: |cx| {
        let bins = cx.size("bins")?;
        ensure!(bins > 0, Attribute, "`bins` must be positive");
        ensure!(cx.dtype(0)?.is_float(), DType, "a histogram of {} needs floats", cx.ty(0)?);
        let ordered = cx.float("max")? >= cx.float("min")?;
        ensure!(ordered, Attribute, "`max` must not be less than `min`");
        Ok(vec![TensorType::new(cx.dtype(0)?, [bins])])
    },
    derivative: Derivative::NotDifferentiable("counts do not change with small changes of the input"),
    precision: Precision::Same,
    cost: Cost::PerInput(2),
    body: Body::Kernel(reference),
    cases: || {
        let case = |name| Case::new(name).f(&[3, 4]).attr("bins", 5);
        vec![
            case("given").attr("min", -1).attr("max", 1.5),
            case("of the data").attr("min", 0).attr("max", 0),
        ]
    },
};

fn reference(cx: &OpCx, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let x = inputs[0].expect("typed").floats();
    let (bins, mut low, mut high) = (cx.size("bins")?, cx.float("min")?, cx.float("max")?);
    if low == high && !x.is_empty() {
        low = x.iter().copied().fold(f64::INFINITY, f64::min);
        high = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    }
    if low == high {
        (low, high) = (low - 1.0, high + 1.0);
    }
    ensure!(
        low.is_finite() && high.is_finite(),
        Value,
        "the histogram's range [{low}, {high}] is not finite"
    );
    let mut counts = vec![0.0; bins];
    for &x in x.iter().filter(|x| (low..=high).contains(*x)) {
        // The last bin contains its upper end.
        let bin = ((x - low) / (high - low) * bins as f64) as usize;
        counts[bin.min(bins - 1)] += 1.0;
    }
    Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), counts)])
}
