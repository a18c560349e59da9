//! Rectified linear unit with a random slope: Xu, Wang, Chen and Li 2015.

use super::{draw, transform::UNIFORM_BETWEEN};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::compare::GT;
use crate::ops::pointwise::leaky_relu::LEAKY_RELU;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};

/// `x` above 0; elsewhere `x` times a number between `lower` and `upper`, in training a random one for each
/// element, else their mean.
pub static RRELU: OpDef = OpDef {
    name: "rrelu",
    schemas: &[
        "rrelu(Tensor self, Scalar lower=0.125, Scalar upper=0.3333333333333333, bool training=False, Generator? generator=None) -> Tensor",
    ],
    infer: |cx| {
        slopes(cx)?;
        let x = cx.ty(0)?;
        ensure!(x.dtype.is_float(), DType, "it takes floats, got {x}");
        cx.flag("training")?;
        Ok(vec![x.clone()])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let (x, ty, [lower, upper]) = (required(inputs, 0)?, cx.ty(0)?, slopes(cx)?);
        if !cx.flag("training")? || lower == upper {
            let mean = Attrs::new().with("negative_slope", 0.5 * (lower + upper));
            return Ok(vec![b.one(&LEAKY_RELU, &[x], mean)?]);
        }
        let u = draw(b, &ty.shape, DType::F32)?;
        let attrs = Attrs::new().with("from", lower).with("to", upper).with("dtype", ty.dtype);
        let slope = b.one(&UNIFORM_BETWEEN, &[u], attrs)?;
        let scaled = b.mul(x, slope)?;
        let positive = b.one(&GT, &[x], Attrs::new().with("other", 0))?;
        Ok(vec![b.choose(positive, x, scaled)?])
    }),
    cases: || {
        let case = |name, training: bool| {
            Case::new(name).distinct(&[3, 4]).attr("lower", 0.1).attr("upper", 0.4).attr("training", training)
        };
        vec![case("evaluation", false), case("training", true)]
    },
};

fn slopes(cx: &OpCx) -> Result<[f64; 2]> {
    let (lower, upper) =
        (cx.opt_float("lower")?.unwrap_or(0.125), cx.opt_float("upper")?.unwrap_or(1.0 / 3.0));
    ensure!(lower <= upper && upper.is_finite(), Attribute, "slopes from {lower} to {upper}");
    Ok([lower, upper])
}
