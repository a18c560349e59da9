//! Triplet margin loss: Schroff, Kalenichenko and Philbin 2015, "FaceNet"; Balntas et al. 2016 for the swap.

use super::{Reduction, term_dtype};
use crate::diagnostic::Result;
use crate::ops::pointwise::{maximum::MINIMUM, relu::RELU};
use crate::ops::reduce::pairwise_distance::distance;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// `max(0, d(anchor, positive) − d(anchor, negative) + margin)`, reduced; `d` is the `p`-norm along the last
/// dimension of the difference plus `eps`. With `swap`, the second distance is the smaller one of the
/// negative's to anchor and positive.
pub static TRIPLET_MARGIN_LOSS: OpDef = OpDef {
    name: "triplet_margin_loss",
    schemas: &[
        "triplet_margin_loss(Tensor anchor, Tensor positive, Tensor negative, float margin=1., float p=2., float eps=9.9999999999999995e-07, bool swap=False, int reduction=1) -> Tensor",
    ],
    infer: |cx| {
        let (reduction, terms) = (Reduction::of(cx)?, terms(cx)?);
        Ok(vec![TensorType::new(cx.result_type(&[]), reduction.shape(&terms))])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(10),
    body: Body::Decompose(|b, cx, inputs| {
        terms(cx)?;
        let number = |name: &str, default: f64| Ok(cx.opt_float(name)?.unwrap_or(default));
        let (margin, p, eps) = (number("margin", 1.0)?, number("p", 2.0)?, number("eps", 1e-6)?);
        let dtype = term_dtype(cx.result_type(&[]))?;
        let mut wide = |i: usize| b.cast(required(inputs, i)?, dtype);
        let [anchor, positive, negative] = [wide(0)?, wide(1)?, wide(2)?];
        let near = distance(b, anchor, positive, p, eps, false)?;
        let mut far = distance(b, anchor, negative, p, eps, false)?;
        if cx.flag("swap")? {
            let other = distance(b, positive, negative, p, eps, false)?;
            far = b.call(&MINIMUM, &[far, other])?;
        }
        let gap = b.sub(near, far)?;
        let gap = b.shift(gap, margin)?;
        let terms = b.call(&RELU, &[gap])?;
        Reduction::of(cx)?.finish(b, cx, terms)
    }),
    cases: || {
        let case = |name| Case::new(name).f(&[3, 2]).f(&[3, 2]).f(&[3, 2]).attr("eps", 1e-6);
        vec![
            case("mean").attr("margin", 2.0).attr("p", 2.0),
            case("swapped").attr("margin", 5.0).attr("p", 2.0).attr("swap", true).attr("reduction", 2),
            case("terms").attr("margin", 1.5).attr("p", 3.0).attr("reduction", 0),
        ]
    },
};

/// Shape of the terms: that of the broadcast inputs without the last dimension.
fn terms(cx: &OpCx) -> Result<Shape> {
    (0..3).try_for_each(|i| cx.ty(i).map(|_| ()))?;
    ensure!(cx.present().all(|t| t.dtype.is_float()), DType, "a loss needs floats, got {}", cx.list_types());
    let ranks: Vec<usize> = cx.present().map(|t| t.shape.rank()).collect();
    ensure!(
        ranks.iter().all(|&r| r == ranks[0]),
        Shape,
        "anchor, positive and negative have as many dimensions: {}",
        cx.list_types()
    );
    let shape = cx.broadcast()?;
    let p = cx.opt_float("p")?.unwrap_or(2.0);
    ensure!(p > 0.0 && p.is_finite(), Attribute, "`p` must be positive and finite, got {p}");
    for name in ["margin", "eps"] {
        cx.opt_float(name)?;
    }
    cx.flag("swap")?;
    // The distances of each pair broadcast by themselves.
    let (_, lead) = shape.split_last().ok_or_else(|| fail!(Shape, "distances of scalars"))?;
    Ok(Shape::new(lead))
}
