//! Gated linear unit: Dauphin et al. 2017.

use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::tensor::TensorType;

/// The first half along `dim` times the logistic function of the second.
pub static GLU: OpDef = OpDef {
    name: "glu",
    schemas: &["glu(Tensor self, int dim=-1) -> Tensor"],
    infer: |cx| {
        let (dim, half) = halves(cx)?;
        let mut shape = cx.shape(0)?.to_vec();
        shape[dim] = half;
        Ok(vec![TensorType::new(cx.dtype(0)?, shape)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(11),
    body: Body::Decompose(|b, cx, inputs| {
        let (x, (dim, half)) = (required(inputs, 0)?, halves(cx)?);
        let value = b.slice(x, dim, 0, half)?;
        let gate = b.slice(x, dim, half, 2 * half)?;
        let gate = b.call(&super::sigmoid::SIGMOID, &[gate])?;
        Ok(vec![b.mul(value, gate)?])
    }),
    cases: || vec![Case::new("last").f(&[2, 4]), Case::new("first").f(&[4, 3]).attr("dim", 0)],
};

fn halves(cx: &OpCx) -> Result<(usize, usize)> {
    let x = cx.ty(0)?;
    ensure!(x.dtype.is_float() && x.shape.rank() > 0, DType, "it takes floats with dimensions, got {x}");
    let dim = if cx.opt_int("dim")?.is_some() { cx.dim("dim", x.shape.rank())? } else { x.shape.rank() - 1 };
    ensure!(x.shape[dim] % 2 == 0, Shape, "dimension {dim} of {x} has no halves");
    Ok((dim, x.shape[dim] / 2))
}
