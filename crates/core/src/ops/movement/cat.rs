//! Tensors joined along a dimension.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, RegionCopy, Source};
use crate::tensor::TensorType;

/// Concatenation along `dim`. Empty 1-dimensional inputs are skipped, as PyTorch does.
pub static CAT: OpDef = OpDef {
    name: "cat",
    schemas: &[
        "cat(Tensor[] tensors, int dim=0) -> Tensor",
        "concat(Tensor[] tensors, int dim=0) -> Tensor",
        "concatenate(Tensor[] tensors, int dim=0) -> Tensor",
    ],
    infer,
    derivative: Derivative::Rule(gradient),
    precision: Precision::Widest,
    cost: Cost::PerOutput(0),
    body: Body::Copies(|cx, _| {
        let dim = dim(cx)?;
        let mut at = 0;
        let mut copies = Vec::new();
        for (i, t) in cx.present().enumerate().filter(|(_, t)| !skipped(t)) {
            let mut copy = RegionCopy::whole(Source::Input(i), &t.shape);
            copy.start[dim] = at;
            at += t.shape[dim];
            copies.push(copy);
        }
        Ok(copies)
    }),
    cases: || {
        vec![
            Case::new("three").f(&[2, 3]).f(&[2, 1]).f(&[2, 0]).attr("dim", -1),
            Case::new("skips empty").f(&[0]).f(&[2, 3]).attr("dim", 0),
        ]
    },
};

fn skipped(t: &TensorType) -> bool {
    t.shape[..] == [0]
}

fn dim(cx: &OpCx) -> Result<usize> {
    let rank = cx.present().find(|t| !skipped(t)).map_or(1, |t| t.shape.rank());
    if cx.opt_int("dim")?.is_none() { Ok(0) } else { cx.dim("dim", rank) }
}

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    let first = cx.present().find(|t| !skipped(t)).or(cx.present().next());
    let Some(first) = first else { return Err(crate::fail!(Shape, "nothing to concatenate")) };
    let dim = dim(cx)?;
    ensure!(first.shape.rank() > 0, Shape, "scalars cannot be concatenated");
    let mut shape = first.shape.to_vec();
    shape[dim] = 0;
    for t in cx.present().filter(|t| !skipped(t)) {
        let fits =
            t.shape.rank() == shape.len() && (0..shape.len()).all(|d| d == dim || t.shape[d] == shape[d]);
        ensure!(fits, Shape, "cannot concatenate {} along {dim}", cx.list_types());
        shape[dim] += t.shape[dim];
    }
    Ok(vec![TensorType::new(cx.result_type(&[]), shape)])
}

fn gradient(cx: &mut GradCx) -> Result<()> {
    let (g, types) = (cx.grad(0)?, cx.types());
    let dim = dim(&OpCx { inputs: types.iter().map(Option::as_ref).collect(), attrs: cx.attrs() })?;
    let mut at = 0i64;
    for (i, t) in types.iter().enumerate() {
        let Some(t) = t.as_ref().filter(|t| !skipped(t)) else { continue };
        let end = at + t.shape[dim] as i64;
        if cx.needs(i) {
            let attrs =
                Attrs::new().with("dim", dim as i64).with("start", at).with("end", end).with("step", 1);
            let dx = cx.one(&crate::ops::view::slice::SLICE, &[g], attrs)?;
            cx.set(i, dx)?;
        }
        at = end;
    }
    Ok(())
}
