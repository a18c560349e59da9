//! Operators where gradients end: `detach`, and writes while gradients are off.

use crate::attr::Attrs;
use crate::ensure;
use crate::expr::Expr;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpDef, Precision, View};

/// The same tensor, through which no gradient flows.
pub static DETACH: OpDef = OpDef {
    name: "detach",
    schemas: &["detach(Tensor(a) self) -> Tensor(a)"],
    infer: |cx| Ok(vec![cx.ty(0)?.clone()]),
    derivative: Derivative::NotDifferentiable("the model turns gradients off here (`detach` or `no_grad`)"),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View {
        layout: |_, l, _| Ok(Some(l.clone())),
        scatter: Some(|b, _, base, new, _| b.one(&OVERWRITE, &[base, new], Attrs::new())),
    }),
    cases: || vec![Case::new("matrix").f(&[2, 3])],
};

/// `value`, in the place of `self`: what a write while gradients are off leaves. PyTorch does not record such
/// a write, so gradients of the result flow to `self` unchanged, and none flows to `value`.
pub static OVERWRITE: OpDef = OpDef {
    name: "overwrite",
    schemas: &[],
    infer: |cx| {
        let (this, value) = (cx.ty(0)?, cx.ty(1)?);
        ensure!(this == value, Shape, "{this} cannot be overwritten by {value}");
        Ok(vec![this.clone()])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let g = cx.grad(0)?;
        cx.set(0, g)
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Pointwise(|_| Ok(vec![Expr::Input(1)])),
    // In integers: its derivative is by definition not that of its numbers, which central differences would
    // find.
    cases: || vec![Case::new("integers").index(&[2, 3], 9).index(&[2, 3], 9)],
};
