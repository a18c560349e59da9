//! Running logarithm of a sum of exponentials.

use super::cumsum::{lanes, scan};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::tensor::{Tensor, TensorType};

/// Element `i` along `dim` is `log Σ exp` of elements `0..=i`.
pub static LOGCUMSUMEXP: OpDef = OpDef {
    name: "logcumsumexp",
    schemas: &["logcumsumexp(Tensor self, int dim) -> Tensor"],
    infer: |cx| {
        let x = cx.ty(0)?;
        cx.dim("dim", x.shape.rank())?;
        ensure!(x.dtype.is_float(), DType, "logcumsumexp needs floats, got {x}");
        Ok(vec![x.clone()])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, x, y, dim) = (cx.grad(0)?, cx.x(0)?, cx.y(0), cx.args().int("dim")?);
        let dx = cx.one(&LOGCUMSUMEXP_BACKWARD, &[g, x, y], Attrs::new().with("dim", dim))?;
        cx.set(0, dx)
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(4),
    body: Body::Kernel(|cx, inputs, outs| {
        let x = inputs[0].expect("typed").floats().to_vec();
        let v = scan(x, &outs[0], cx.dim("dim", outs[0].shape.rank())?, false, log_add);
        Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), v)])
    }),
    cases: || {
        vec![
            Case::new("middle").range(&[2, 3, 2], -50.0, 50.0).attr("dim", 1),
            Case::new("scalar").f(&[]).attr("dim", 0),
        ]
    },
};

/// Gradient of [`LOGCUMSUMEXP`]: `(grad, self, result y)`. With `s[i] = g[i] + exp(y[i] − y[i+1]) · s[i+1]`
/// it is `exp(x[i] − y[i]) · s[i]`: no exponent is positive.
pub static LOGCUMSUMEXP_BACKWARD: OpDef = OpDef {
    name: "logcumsumexp_backward",
    schemas: &[],
    infer: |cx| {
        let x = cx.ty(1)?;
        cx.dim("dim", x.shape.rank())?;
        (0..3).try_for_each(|i| cx.ty(i).and(cx.expect_floats(i, &x.shape)))?;
        Ok(vec![x.clone()])
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Full,
    cost: Cost::PerOutput(8),
    body: Body::Kernel(backward),
    cases: || {
        vec![Case::new("middle").f(&[2, 3, 2]).f(&[2, 3, 2]).range(&[2, 3, 2], 2.0, 4.0).attr("dim", 1)]
    },
};

/// `log(exp a + exp b)`.
fn log_add(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    // Two equal infinities must not be subtracted.
    if low == high && low.is_infinite() { low } else { high + (low - high).exp().ln_1p() }
}

fn backward(cx: &OpCx, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let [g, x, y] = [0, 1, 2].map(|i| inputs[i].expect("typed").floats());
    let mut out = vec![0.0; x.len()];
    for lane in lanes(&outs[0], cx.dim("dim", outs[0].shape.rank())?) {
        let mut after = 0.0;
        for (i, &at) in lane.iter().enumerate().rev() {
            let shrunk = |&next: &usize| if after == 0.0 { 0.0 } else { (y[at] - y[next]).exp() * after };
            after = g[at] + lane.get(i + 1).map_or(0.0, shrunk);
            out[at] = (x[at] - y[at]).exp() * after;
        }
    }
    Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), out)])
}
