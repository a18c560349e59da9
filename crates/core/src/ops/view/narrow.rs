//! A range of a dimension, by its start and length.

use super::{narrowed, slice_attrs};
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::movement::pad::CONSTANT_PAD_ND;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, View};
use crate::tensor::TensorType;

/// Indices `start..start + length` of `dim`; a negative start counts from the end.
pub static NARROW: OpDef = OpDef {
    name: "narrow",
    schemas: &["narrow(Tensor(a) self, int dim, SymInt start, SymInt length) -> Tensor(a)"],
    infer: |cx| {
        let (x, (dim, _, length)) = (cx.ty(0)?, range(cx)?);
        let mut shape = x.shape.to_vec();
        shape[dim] = length;
        Ok(vec![TensorType::new(x.dtype, shape)])
    },
    derivative: Derivative::Rule(|cx| {
        let g = cx.grad(0)?;
        let ((dim, start, length), shape) =
            cx.of(|of| Ok::<_, crate::Error>((range(of)?, of.shape(0)?.clone())))?;
        let mut pad = vec![0; 2 * (shape.rank() - dim)];
        let at = pad.len() - 2;
        (pad[at], pad[at + 1]) = (start as i64, (shape[dim] - start - length) as i64);
        let dx = cx.one(&CONSTANT_PAD_ND, &[g], crate::Attrs::new().with("pad", pad).with("value", 0.0))?;
        cx.set(0, dx)
    }),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View {
        layout: |cx, l, _| {
            let (dim, start, length) = range(cx)?;
            Ok(Some(narrowed(l, dim, start, length)))
        },
        scatter: Some(|b, cx, base, new, _| {
            let (dim, start, length) = range(cx)?;
            b.one(&super::slice::SLICE_SCATTER, &[base, new], slice_attrs(dim, start, start + length))
        }),
    }),
    cases: || {
        vec![
            Case::new("middle").f(&[2, 5]).attr("dim", 1).attr("start", 1).attr("length", 3),
            Case::new("from the end").f(&[5]).attr("dim", -1).attr("start", -2).attr("length", 2),
            Case::new("nothing").f(&[5]).attr("dim", 0).attr("start", 5).attr("length", 0),
        ]
    },
};

/// Dimension, start and length.
fn range(cx: &OpCx) -> Result<(usize, usize, usize)> {
    let x = cx.shape(0)?;
    ensure!(x.rank() > 0, Shape, "a scalar cannot be narrowed");
    let (dim, start, length) = (cx.dim("dim", x.rank())?, cx.int("start")?, cx.size("length")?);
    let n = x[dim] as i64;
    ensure!((-n..=n).contains(&start), Attribute, "`start` = {start} is out of range for {x}");
    let start = if start < 0 { start + n } else { start } as usize;
    ensure!(length <= x[dim] - start, Attribute, "{length} from {start} do not fit dimension {dim} of {x}");
    Ok((dim, start, length))
}
