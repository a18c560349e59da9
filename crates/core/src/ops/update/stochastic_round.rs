//! Stochastic rounding: Croci et al. 2022 (Royal Society Open Science 9). It goes up or down with
//! probabilities that make the expectation exact. So steps smaller than half a unit of a low-precision weight
//! are not all lost.

use crate::dtype::DType;
use crate::ensure;
use crate::expr::{float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, Sample};
use crate::tensor::TensorType;

/// `(x, noise)`, floats of one shape, `noise` uniform in `[0, 1)`, to `x` in the attribute `dtype` (f16 or
/// bf16). It is the nearest number, or the next one on the other side of `x` if `noise` is below `|x −
/// nearest| /
/// |next − nearest|`. What would round to infinity does; NaN stays.
pub static STOCHASTIC_ROUND: OpDef = OpDef {
    name: "stochastic_round",
    schemas: &["headwater::stochastic_round(Tensor x, Tensor noise, *, ScalarType dtype) -> Tensor"],
    infer: |cx| {
        let (x, noise) = (cx.ty(0)?, cx.ty(1)?);
        let floats = x.dtype.is_float() && noise.dtype.is_float();
        ensure!(
            floats && x.shape == noise.shape,
            Shape,
            "expected two of one shape, got {}",
            cx.list_types()
        );
        let to = cx.opt_dtype("dtype")?;
        let Some(to @ (DType::F16 | DType::BF16)) = to else {
            return Err(crate::fail!(DType, "rounds to f16 or bf16"));
        };
        Ok(vec![TensorType::new(to, x.shape.clone())])
    },
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(14),
    body: Body::Pointwise(|cx| {
        // Half a unit in the last place is between half of `unit · |x|` and that; the smallest subnormal
        // number for those.
        let bf16 = cx.opt_dtype("dtype")? == Some(DType::BF16);
        let (to, unit, smallest) = if bf16 {
            (DType::BF16, 2f64.powi(-8), 2f64.powi(-133))
        } else {
            (DType::F16, 2f64.powi(-11), 2f64.powi(-24))
        };
        let near = input(0).cast(to);
        let error = input(0) - near.clone();
        // More than half and less than one and a half units away: what rounds to the neighbour.
        let away = (near.clone().abs() * (1.01 * unit)).max(float(smallest));
        let up = near.clone() + away.clone();
        let down = near.clone() - away;
        let next = error.clone().gt(float(0.0)).select(up, down).cast(to);
        let chance = error.abs() / (next.clone() - near.clone()).abs();
        Ok(vec![input(1).lt(chance).select(next, near)])
    }),
    cases: || {
        let case = |name, dtype: DType, x: [f64; 6], noise: [f64; 6]| {
            let case = Case::new(name).arg(DType::F64, &[6], Sample::Values(x.to_vec()));
            case.arg(DType::F64, &[6], Sample::Values(noise.to_vec())).attr("dtype", dtype)
        };
        let x = [1.0, 1.001953125, -3.00390625, 0.0, 2.0625, -0.251953125];
        vec![
            case("up and down", DType::BF16, x, [0.0, 0.2, 0.3, 0.0, 0.9, 0.1]),
            case("f16", DType::F16, x.map(|x| x * 1.0001), [0.0, 0.2, 0.9, 0.0, 0.9, 0.1]),
        ]
    },
};
