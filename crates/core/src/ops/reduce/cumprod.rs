//! Running product along a dimension.

use super::cumsum::{lanes, scan};
use super::sum::sum_dtype;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, Sample};
use crate::tensor::{Data, Tensor, TensorType};

/// Element `i` along `dim` is the product of elements `0..=i`. Integers and bools multiply in i64.
pub static CUMPROD: OpDef = OpDef {
    name: "cumprod",
    schemas: &["cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor"],
    infer: |cx| {
        cx.dim("dim", cx.shape(0)?.rank())?;
        Ok(vec![TensorType::new(sum_dtype(cx)?, cx.shape(0)?.clone())])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, x, dim) = (cx.grad(0)?, cx.x(0)?, cx.args().int("dim")?);
        let dx = cx.one(&CUMPROD_BACKWARD, &[g, x], Attrs::new().with("dim", dim))?;
        cx.set(0, dx)
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(1),
    body: Body::Kernel(|cx, inputs, outs| {
        let x = inputs[0].expect("typed").cast(outs[0].dtype);
        let (ty, dim) = (outs[0].clone(), cx.dim("dim", x.shape().rank())?);
        Ok(vec![match x.data {
            Data::Float(v) => {
                Tensor::float(ty.dtype, ty.shape.clone(), scan(v, &ty, dim, false, |a, b| a * b))
            }
            Data::Int(v) => {
                Tensor::int(ty.dtype, ty.shape.clone(), scan(v, &ty, dim, false, i64::wrapping_mul))
            }
        }])
    }),
    cases: || {
        let zero = Sample::Values(vec![2.0, 0.0, -1.5, 3.0]);
        vec![
            Case::new("middle").f(&[2, 3, 2]).attr("dim", 1),
            Case::new("zero").arg(crate::DType::F64, &[4], zero).attr("dim", -1),
            Case::new("ints").index(&[2, 3], 9).attr("dim", 0),
            Case::new("scalar").f(&[]).attr("dim", 0),
        ]
    },
};

/// Gradient of [`CUMPROD`]: `(grad, self)`. With `s[i] = g[i] + x[i+1] · s[i+1]`, element i gets the product
/// of those before it times `s[i]`: no division, so zeros are no exception.
pub static CUMPROD_BACKWARD: OpDef = OpDef {
    name: "cumprod_backward",
    schemas: &[],
    infer: |cx| {
        let x = cx.ty(1)?;
        cx.dim("dim", x.shape.rank())?;
        [0, 1].into_iter().try_for_each(|i| cx.expect_floats(i, &x.shape))?;
        Ok(vec![x.clone()])
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Full,
    cost: Cost::PerOutput(4),
    body: Body::Kernel(backward),
    cases: || vec![Case::new("middle").f(&[2, 3, 2]).f(&[2, 3, 2]).attr("dim", 1)],
};

fn backward(cx: &OpCx, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let (g, x) = (inputs[0].expect("typed").floats(), inputs[1].expect("typed").floats());
    let mut out = vec![0.0; x.len()];
    for lane in lanes(&outs[0], cx.dim("dim", outs[0].shape.rank())?) {
        let mut after = 0.0;
        for (i, &at) in lane.iter().enumerate().rev() {
            after = g[at] + lane.get(i + 1).map_or(0.0, |&next| x[next] * after);
            out[at] = after;
        }
        let mut before = 1.0;
        for &at in &lane {
            out[at] *= before;
            before *= x[at];
        }
    }
    Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), out)])
}
