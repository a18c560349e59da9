//! Hinge embedding loss: distances of pairs that are alike are small, those of others at least a margin.

use super::{Reduction, pair, pair_type, term_dtype};
use crate::attr::Attrs;
use crate::ops::pointwise::{compare::NE, relu::RELU};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, Sample};

/// `(distance, target)`, broadcast: the distance where the target is 1, `max(0, margin − distance)` where it
/// is −1, reduced. Of another target both count.
pub static HINGE_EMBEDDING_LOSS: OpDef = OpDef {
    name: "hinge_embedding_loss",
    schemas: &[
        "hinge_embedding_loss(Tensor self, Tensor target, float margin=1., int reduction=1) -> Tensor",
    ],
    infer: |cx| {
        cx.opt_float("margin")?;
        let mut types = pair_type(cx)?;
        term_dtype(cx.dtype(0)?)?;
        types[0].dtype = cx.dtype(0)?;
        Ok(types)
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(5),
    body: Body::Decompose(|b, cx, inputs| {
        let [x, target] = pair(inputs)?;
        let x = b.cast(x, term_dtype(cx.dtype(0)?)?)?;
        let gap = b.neg(x)?;
        let gap = b.shift(gap, cx.opt_float("margin")?.unwrap_or(1.0))?;
        let gap = b.call(&RELU, &[gap])?;
        let mut unless = |label: i64, term| {
            let chosen = b.one(&NE, &[target], Attrs::new().with("other", label))?;
            b.keep_where(chosen, term)
        };
        let (others, alike) = (unless(1, gap)?, unless(-1, x)?);
        let terms = b.add(others, alike)?;
        let loss = Reduction::of(cx)?.apply(b, terms)?;
        Ok(vec![b.cast(loss, cx.dtype(0)?)?])
    }),
    cases: || {
        let case = |name, reduction: i64| {
            let target = Sample::Values(vec![1.0, -1.0, -1.0]);
            let case = Case::new(name).distinct(&[2, 3]).arg(crate::DType::I64, &[3], target);
            case.attr("margin", 1.25).attr("reduction", reduction)
        };
        vec![case("each", 0), case("mean", 1), case("sum", 2)]
    },
};
