//! Weights of rows by their target.

use super::ignore_index;
use crate::dtype::{Class, DType};
use crate::ensure;
use crate::expr::{Expr, float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use crate::row::{Access, RowBuilder, RowProgram};
use crate::tensor::TensorType;

/// `(class indices, class weights?)`: each index's weight, 1 without weights and 0 of `ignore_index`, in
/// `dtype` (f32 if absent). An operator of its own, so that their sum, by which a gradient is divided, waits
/// for nothing of a loss.
pub static TARGET_WEIGHT: OpDef = OpDef {
    name: "target_weight",
    schemas: &[],
    infer: |cx| {
        let target = cx.ty(0)?;
        ensure!(target.dtype.class() == Class::Int, DType, "class indices are integers, got {target}");
        if let Some(w) = cx.opt(1) {
            ensure!(
                w.shape.rank() == 1 && w.dtype.is_float(),
                Shape,
                "class weights must be a vector, got {w}"
            );
        }
        ignore_index(cx)?;
        let dtype = cx.opt_dtype("dtype")?.unwrap_or(DType::F32);
        ensure!(dtype.is_float(), Attribute, "`dtype` is {dtype}, not a float");
        Ok(vec![TensorType::new(dtype, target.shape.clone())])
    },
    derivative: Derivative::NotDifferentiable("class weights are not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(1),
    body: Body::Rows(|cx, out| {
        let (shape, rank) = (&out[0].shape, out[0].shape.rank());
        let kept = input(0).ne(Expr::Int(ignore_index(cx)?));
        let Some(weights) = cx.opt(1) else {
            let weight = kept.select(float(1.0), float(0.0));
            return Ok(RowProgram::pointwise(&[(cx.dtype(0)?, shape)], shape, &[out[0].dtype], &[weight]));
        };
        let mut b = RowBuilder::new(shape, &weights.shape);
        let each = Access((0..rank).map(|d| Some((d, 1))).chain([None]).collect());
        let target = b.read(cx.dtype(0)?, each.clone());
        let along = Access(vec![None; rank].into_iter().chain([Some((0, 1))]).collect());
        let weight = b.read(weights.dtype, along);
        let here = b.expr(&Expr::Coord(rank).eq(input(0)), &[target]);
        let own = b.expr(&input(0).select(input(1), float(0.0)), &[here, weight]);
        let own = b.sum(own);
        let own = b.expr(&kept.select(input(1), float(0.0)), &[target, own]);
        b.store(out[0].dtype, each, own);
        Ok(b.finish())
    }),
    cases: || {
        let of = |c: Case, ignored: i64| c.attr("ignore_index", ignored).attr("dtype", DType::F64);
        vec![
            of(Case::new("plain").index(&[2, 3], 4).none(), 1),
            of(Case::new("weights").index(&[4], 5).range(&[5], 0.1, 2.0).constant(), 2),
            of(Case::new("one sample").index(&[], 5).range(&[5], 0.1, 2.0).constant(), -100),
        ]
    },
};
