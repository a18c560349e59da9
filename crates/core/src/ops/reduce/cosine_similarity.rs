//! Cosine of the angle between vectors.

use super::vector_norm::VECTOR_NORM;
use crate::attr::Attrs;
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::clamp::CLAMP_MIN;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use crate::shape::wrap_dim;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// `Σ x1·x2 / (max(‖x1‖, eps) · max(‖x2‖, eps))` along `dim`, the inputs broadcast.
pub static COSINE_SIMILARITY: OpDef = OpDef {
    name: "cosine_similarity",
    schemas: &["cosine_similarity(Tensor x1, Tensor x2, int dim=1, float eps=1e-08) -> Tensor"],
    infer: |cx| {
        let (shape, dtype) = (cx.broadcast()?, cx.result_type(&[]));
        ensure!(dtype.is_float(), DType, "vectors must be of floats, got {}", cx.list_types());
        let dim = cx.opt_int("dim")?.unwrap_or(1);
        let dim = wrap_dim(dim, shape.rank())
            .ok_or_else(|| fail!(Attribute, "`dim` = {dim} is out of range for {shape}"))?;
        Ok(vec![TensorType::new(
            dtype,
            shape.iter().enumerate().filter(|(d, _)| *d != dim).map(|(_, &n)| n).collect::<Vec<_>>(),
        )])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(6),
    body: Body::Decompose(|b, cx, inputs| {
        let (Some(x), Some(y)) = (inputs[0], inputs[1]) else {
            return Err(fail!(Attribute, "an input is missing"));
        };
        let (shape, dtype) = (cx.broadcast()?, cx.result_type(&[]));
        let dim = wrap_dim(cx.opt_int("dim")?.unwrap_or(1), shape.rank()).unwrap_or(0);
        let eps = cx.opt_float("eps")?.unwrap_or(1e-8);
        let spread = |b: &mut Builder, v: ValueId| {
            let v = b.cast(v, dtype)?;
            b.expand(v, &shape)
        };
        let length = |b: &mut Builder, v: ValueId| {
            let attrs = Attrs::new().with("ord", 2).with("dim", [dim as i64]).with("keepdim", true);
            let norm = b.one(&VECTOR_NORM, &[v], attrs)?;
            b.one(&CLAMP_MIN, &[norm], Attrs::new().with("min", eps))
        };
        let (x, y) = (spread(b, x)?, spread(b, y)?);
        let (nx, ny) = (length(b, x)?, length(b, y)?);
        let (x, y) = (b.div(x, nx)?, b.div(y, ny)?);
        let product = b.mul(x, y)?;
        let dims: &[usize] = if shape.rank() == 0 { &[] } else { &[dim] };
        Ok(vec![b.sum(product, dims, false)?])
    }),
    cases: || {
        vec![
            Case::new("rows").f(&[2, 4]).f(&[2, 4]).attr("dim", 1),
            Case::new("broadcast").f(&[3, 1, 4]).f(&[2, 4]).attr("dim", -1).attr("eps", 1e-6),
        ]
    },
};
