//! Margin ranking loss: one of two scores is to be larger by a margin.

use super::{Reduction, term_dtype};
use crate::ops::pointwise::relu::RELU;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, Sample, required};
use crate::tensor::TensorType;

/// `max(0, margin − target · (input1 − input2))`, broadcast and reduced; the target is 1 where the first is
/// to be larger, −1 where the second is.
pub static MARGIN_RANKING_LOSS: OpDef = OpDef {
    name: "margin_ranking_loss",
    schemas: &[
        "margin_ranking_loss(Tensor input1, Tensor input2, Tensor target, float margin=0., int reduction=1) -> Tensor",
    ],
    infer: |cx| {
        (0..3).try_for_each(|i| cx.ty(i).map(|_| ()))?;
        cx.opt_float("margin")?;
        let dtype = cx.result_type(&[]);
        term_dtype(dtype)?;
        Ok(vec![TensorType::new(dtype, Reduction::of(cx)?.shape(&cx.broadcast()?))])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(4),
    body: Body::Decompose(|b, cx, inputs| {
        let dtype = term_dtype(cx.result_type(&[]))?;
        let mut wide = |i: usize| b.cast(required(inputs, i)?, dtype);
        let [x, y, target] = [wide(0)?, wide(1)?, wide(2)?];
        let behind = b.sub(y, x)?;
        let behind = b.mul(target, behind)?;
        let gap = b.shift(behind, cx.opt_float("margin")?.unwrap_or(0.0))?;
        let terms = b.call(&RELU, &[gap])?;
        Reduction::of(cx)?.finish(b, cx, terms)
    }),
    cases: || {
        let case = |name, reduction: i64| {
            let target = Sample::Values(vec![1.0, -1.0, 1.0]);
            let case = Case::new(name).distinct(&[2, 3]).distinct(&[2, 3]);
            case.arg(crate::DType::I64, &[3], target).attr("margin", 0.3).attr("reduction", reduction)
        };
        vec![case("each", 0), case("mean", 1), case("sum", 2)]
    },
};
