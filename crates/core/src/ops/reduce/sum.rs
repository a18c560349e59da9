//! Sum over dimensions.

use crate::diagnostic::Result;
use crate::dtype::{Class, DType};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::row::{Instr, ReduceSpace, RowProgram};
use crate::tensor::TensorType;

/// Sum over `dim` (absent or empty: all). Integers and bools sum in i64.
pub static SUM: OpDef = OpDef {
    name: "sum",
    schemas: &[
        "sum(Tensor self, *, ScalarType? dtype=None) -> Tensor",
        "sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    ],
    infer: |cx| {
        let shape = reduced_shape(cx)?;
        Ok(vec![TensorType::new(dtype(cx)?, shape)])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, types) = (cx.grad(0)?, cx.types());
        let of = OpCx { inputs: types.iter().map(Option::as_ref).collect(), attrs: cx.attrs() };
        let dx = expand_reduced(cx, &of, g)?;
        cx.set(0, dx)
    }),
    precision: Precision::Full,
    cost: Cost::PerInput(1),
    body: Body::Rows(|cx, out| {
        let x = cx.ty(0)?;
        let space = ReduceSpace::new(&x.shape, &cx.dims("dim", x.shape.rank())?);
        let mut b = space.builder();
        let r = b.read(x.dtype, space.full.clone());
        let r = if x.dtype.class() == out[0].dtype.class() { r } else { b.push(Instr::Cast(out[0].dtype, r)) };
        let s = b.sum(r);
        let access = if cx.flag("keepdim")? { space.kept.clone() } else { space.dropped.clone() };
        b.store(out[0].dtype, access, s);
        Ok::<RowProgram, _>(b.finish())
    }),
    cases: || {
        vec![
            Case::new("all").f(&[2, 3]),
            Case::new("middle").f(&[2, 3, 4]).attr("dim", [1]),
            Case::new("outer kept").f(&[2, 3, 4]).attr("dim", [0, -1]).attr("keepdim", true),
            Case::new("of nothing").f(&[2, 0]).attr("dim", [1]),
        ]
    },
};

fn dtype(cx: &OpCx) -> Result<DType> {
    let from = cx.dtype(0)?;
    Ok(cx.opt_dtype("dtype")?.unwrap_or(if from.class() == Class::Float { from } else { DType::I64 }))
}

/// Shape after reducing `dim` with `keepdim`.
pub fn reduced_shape(cx: &OpCx) -> Result<Vec<usize>> {
    let x = cx.shape(0)?;
    let (dims, keep) = (cx.dims("dim", x.rank())?, cx.flag("keepdim")?);
    Ok((0..x.rank()).filter(|d| keep || !dims.contains(d)).map(|d| if dims.contains(&d) { 1 } else { x[d] }).collect())
}

/// A reduced value spread again over the shape it was reduced from.
pub fn expand_reduced(cx: &mut GradCx, of: &OpCx, g: crate::graph::ValueId) -> Result<crate::graph::ValueId> {
    let x = of.shape(0)?;
    let dims = of.dims("dim", x.rank())?;
    let kept: Vec<usize> = (0..x.rank()).map(|d| if dims.contains(&d) { 1 } else { x[d] }).collect();
    let g = cx.reshape(g, &kept)?;
    cx.expand(g, x)
}
