//! Differences of neighbours along a dimension.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, ValueId};
use crate::ops::movement::cat::CAT;
use crate::ops::pointwise::add::ADD;
use crate::ops::view::slice::SLICE;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// `n` times the difference of neighbours along `dim`, after joining `prepend` and `append` (inputs 1 and 2,
/// optional).
pub static DIFF: OpDef = OpDef {
    name: "diff",
    schemas: &["diff(Tensor self, int n=1, int dim=-1, Tensor? prepend=None, Tensor? append=None) -> Tensor"],
    infer: |cx| {
        let (x, (n, dim)) = (cx.ty(0)?, order(cx)?);
        ensure!(x.shape.rank() > 0, Shape, "differences of a scalar");
        ensure!(
            x.dtype != DType::Bool,
            DType,
            "differences of bools are not supported: compare neighbours instead"
        );
        let mut shape = x.shape.to_vec();
        for t in cx.inputs[1..].iter().flatten() {
            let fits =
                t.shape.rank() == shape.len() && (0..shape.len()).all(|d| d == dim || t.shape[d] == shape[d]);
            ensure!(fits && t.dtype == x.dtype, Shape, "{t} cannot be joined to {x} along {dim}");
            shape[dim] += t.shape[dim];
        }
        shape[dim] = shape[dim].saturating_sub(n);
        Ok(vec![TensorType::new(x.dtype, shape)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Decompose(decompose),
    cases: || {
        vec![
            Case::new("last").f(&[2, 4]).none().none().attr("n", 1).attr("dim", -1),
            Case::new("joined").f(&[3, 2]).f(&[1, 2]).f(&[2, 2]).attr("n", 1).attr("dim", 0),
            Case::new("second").index(&[5], 9).none().none().attr("n", 2).attr("dim", 0),
            Case::new("too few").f(&[2]).none().none().attr("n", 3).attr("dim", 0),
        ]
    },
};

/// Each order is three nodes of the graph.
const MAX_ORDER: usize = 4096;

fn order(cx: &OpCx) -> Result<(usize, usize)> {
    let rank = cx.shape(0)?.rank();
    let n = if cx.opt_int("n")?.is_some() { cx.size("n")? } else { 1 };
    ensure!(n <= MAX_ORDER, Size, "differences of order {n}, more than {MAX_ORDER}");
    let dim = if cx.opt_int("dim")?.is_some() { cx.dim("dim", rank)? } else { rank.saturating_sub(1) };
    Ok((n, dim))
}

fn decompose(b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]) -> Result<Vec<ValueId>> {
    let (n, dim) = order(cx)?;
    let x = inputs[0].ok_or_else(|| fail!(Attribute, "input 0 is missing"))?;
    let at = |i: usize| inputs.get(i).copied().flatten();
    let parts: Vec<ValueId> = [at(1), Some(x), at(2)].into_iter().flatten().collect();
    let dim = dim as i64;
    let mut x = if parts.len() > 1 { b.one(&CAT, &parts, Attrs::new().with("dim", dim))? } else { x };
    for _ in 0..n {
        let len = b.ty(x).shape[dim as usize] as i64;
        let part = |b: &mut Builder, start: i64, end: i64| {
            let attrs = Attrs::new().with("dim", dim).with("start", start).with("end", end).with("step", 1);
            b.one(&SLICE, &[x], attrs)
        };
        let (low, high) = (part(b, 0, (len - 1).max(0))?, part(b, 1, len)?);
        x = b.one(&ADD, &[high, low], Attrs::new().with("alpha", -1))?;
    }
    Ok(vec![x])
}
