//! What happens to gradients after the backward pass: measuring and scaling them, and the optimizers. Every operator here
//! works on flat spans that hold many parameters one after the other, so that a step is one pass over memory.
//!
//! An optimizer reads the parameter, its gradient and its moments, then row scalars: `scale` (what the gradient is
//! multiplied by: unscaling and norm clipping in one), `apply` (false: every output is its input, bit for bit) and its own
//! hyperparameters of the step. It writes the new parameter and moments.

use crate::diagnostic::Result;
use crate::ensure;
use crate::expr::{Expr, float};
use crate::ops::OpCx;
use crate::tensor::TensorType;

operators! {
    adamw: ADAMW;
    gradient_scale: GRADIENT_SCALE;
    gradient_statistics: GRADIENT_STATISTICS;
    sgd: SGD;
}

/// Type rule of an optimizer whose first `states` inputs beside the gradient (input 1) are replaced: the outputs have
/// their types. All are spans of one shape; everything after them is a scalar.
fn span_types(cx: &OpCx, states: &[usize], scalars: std::ops::Range<usize>) -> Result<Vec<TensorType>> {
    let span = cx.shape(0)?;
    for &i in states.iter().chain(&[1]) {
        let t = cx.ty(i)?;
        ensure!(
            t.shape == *span && t.dtype.is_float(),
            Shape,
            "input {i} is {t}, the parameters are {}",
            cx.ty(0)?
        );
    }
    for i in scalars {
        let t = cx.ty(i)?;
        ensure!(t.shape.rank() == 0, Shape, "input {i} must be a scalar, it is {t}");
    }
    states.iter().map(|&i| cx.ty(i).cloned()).collect()
}

/// The gradient an optimizer sees: scaled, then clipped to `±clip_value` if that attribute is given.
fn seen(cx: &OpCx, gradient: Expr, scale: Expr) -> Result<Expr> {
    let g = gradient * scale;
    Ok(match cx.opt_float("clip_value")? {
        Some(limit) => g.max(float(-limit)).min(float(limit)),
        None => g,
    })
}
