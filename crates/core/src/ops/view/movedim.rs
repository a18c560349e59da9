//! Dimensions moved to other places.

use super::{inverse, permute_gradient, permuted};
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, View};
use crate::shape::wrap_dim;
use crate::tensor::TensorType;

/// Dimensions `source` go to places `destination`; the others keep their order.
pub static MOVEDIM: OpDef = OpDef {
    name: "movedim",
    schemas: &[
        "movedim.intlist(Tensor(a) self, int[] source, int[] destination) -> Tensor(a)",
        "movedim.int(Tensor(a) self, int source, int destination) -> Tensor(a)",
        "moveaxis.intlist(Tensor(a) self, int[] source, int[] destination) -> Tensor(a)",
        "moveaxis.int(Tensor(a) self, int source, int destination) -> Tensor(a)",
    ],
    infer: |cx| {
        let x = cx.ty(0)?;
        Ok(vec![TensorType::new(x.dtype, order(cx)?.iter().map(|&d| x.shape[d]).collect::<Vec<_>>())])
    },
    derivative: Derivative::Rule(|cx| permute_gradient(cx, order)),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View {
        layout: |cx, l, _| Ok(Some(permuted(l, &order(cx)?))),
        scatter: Some(|b, cx, _, new, _| b.permute(new, &inverse(&order(cx)?))),
    }),
    cases: || {
        vec![
            Case::new("one").f(&[2, 3, 4]).attr("source", 0).attr("destination", -1),
            Case::new("two").f(&[2, 3, 4]).attr("source", [0, 1]).attr("destination", [2, 0]),
        ]
    },
};

/// Which dimension of the input is at each position of the result.
fn order(cx: &OpCx) -> Result<Vec<usize>> {
    let rank = cx.shape(0)?.rank();
    let list = |name: &str| -> Result<Vec<usize>> {
        let given = match cx.opt_ints(name) {
            Ok(Some(v)) => v.to_vec(),
            _ => vec![cx.int(name)?],
        };
        let wrap = |&d: &i64| {
            wrap_dim(d, rank)
                .filter(|&d| d < rank)
                .ok_or_else(|| crate::fail!(Attribute, "`{name}` has {d}, out of range"))
        };
        given.iter().map(wrap).collect()
    };
    let (source, destination) = (list("source")?, list("destination")?);
    ensure!(source.len() == destination.len(), Attribute, "{source:?} cannot be moved to {destination:?}");
    let mut order = vec![None; rank];
    for (&s, &d) in source.iter().zip(&destination) {
        let twice = order[d].is_some() || order.contains(&Some(s));
        ensure!(!twice, Attribute, "a dimension is named twice in {source:?} or {destination:?}");
        order[d] = Some(s);
    }
    let mut rest = (0..rank).filter(|d| !source.contains(d));
    Ok(order.into_iter().map(|o| o.or_else(|| rest.next()).unwrap_or(0)).collect())
}
