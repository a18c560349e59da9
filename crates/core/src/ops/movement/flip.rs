//! Elements in reverse order.

use crate::diagnostic::Result;
use crate::ops::pointwise::same;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, RegionCopy, Source};

/// The dimensions `dims` reversed.
pub static FLIP: OpDef = OpDef {
    name: "flip",
    schemas: &["flip(Tensor self, int[] dims) -> Tensor"],
    infer: |cx| {
        dims(cx)?;
        same(cx)
    },
    derivative: Derivative::Rule(|cx| {
        let (g, attrs) = (cx.grad(0)?, cx.attrs().clone());
        let dx = cx.one(&FLIP, &[g], attrs)?;
        cx.set(0, dx)
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Copies(|cx, out| {
        let mut copy = RegionCopy::whole(Source::Input(0), &out.shape);
        for d in dims(cx)? {
            copy.source_start[d] = out.shape[d].saturating_sub(1);
            copy.source_step[d] = -1;
        }
        Ok(vec![copy])
    }),
    cases: || {
        vec![
            Case::new("two of three").f(&[2, 3, 2]).attr("dims", [0, -1]),
            Case::new("empty").f(&[0, 3]).attr("dims", [0]),
            Case::new("none").f(&[2]).attr("dims", Vec::<i64>::new()),
        ]
    },
};

fn dims(cx: &OpCx) -> Result<Vec<usize>> {
    // An empty list names no dimension here, all of them elsewhere.
    if cx.ints("dims")?.is_empty() { Ok(vec![]) } else { cx.dims("dims", cx.shape(0)?.rank()) }
}
