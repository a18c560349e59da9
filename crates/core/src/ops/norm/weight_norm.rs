//! A weight as direction times length.

use crate::attr::Attrs;
use crate::ops::reduce::vector_norm::VECTOR_NORM;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use crate::shape::wrap_dim;
use crate::{ensure, fail};

/// `v · (g / ‖v‖)` with the norm over all dimensions but `dim`, over all for -1: Salimans and Kingma 2016
/// (arXiv:1602.07868), as `torch.nn.utils.weight_norm` computes it.
pub static WEIGHT_NORM: OpDef = OpDef {
    name: "_weight_norm",
    schemas: &["_weight_norm(Tensor v, Tensor g, int dim=0) -> Tensor"],
    infer: |cx| {
        let (v, g) = (cx.ty(0)?, cx.ty(1)?);
        ensure!(
            v.dtype.is_float() && v.dtype == g.dtype,
            DType,
            "a weight needs one float dtype, got {}",
            cx.list_types()
        );
        let fits = v.shape.broadcast(&g.shape).is_some_and(|s| s == v.shape);
        ensure!(fits, Shape, "lengths {g} do not fit {v}");
        Ok(vec![v.clone()])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerOutput(4),
    body: Body::Decompose(|b, cx, inputs| {
        let (Some(v), Some(g)) = (inputs[0], inputs[1]) else {
            return Err(fail!(Attribute, "an input is missing"));
        };
        let (rank, dim) = (cx.shape(0)?.rank(), cx.opt_int("dim")?.unwrap_or(0));
        let kept = if dim == -1 { None } else { wrap_dim(dim, rank) };
        ensure!(
            dim == -1 || kept.is_some(),
            Attribute,
            "`dim` = {dim} is out of range for {rank} dimensions"
        );
        let dims: Vec<i64> = (0..rank).filter(|&d| Some(d) != kept).map(|d| d as i64).collect();
        let attrs = Attrs::new().with("ord", 2).with("dim", dims).with("keepdim", true);
        let norm = b.one(&VECTOR_NORM, &[v], attrs)?;
        let scale = b.div(g, norm)?;
        Ok(vec![b.mul(v, scale)?])
    }),
    cases: || {
        vec![
            Case::new("rows").f(&[3, 2, 2]).range(&[3, 1, 1], 0.5, 2.0).attr("dim", 0),
            Case::new("last").f(&[3, 2]).range(&[1, 2], 0.5, 2.0).attr("dim", 1),
            Case::new("all").f(&[3, 2]).range(&[], 0.5, 2.0).attr("dim", -1),
        ]
    },
};
