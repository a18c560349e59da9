//! Frequencies that stand for their conjugates too.

use super::pairs;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::expr::{Expr, input};
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};

/// Pairs times `factor` at indices `1` to `count` of dimension `dim`.
pub static SCALE_MIDDLE: OpDef = OpDef {
    name: "scale_middle",
    schemas: &[],
    infer: |cx| {
        let (x, sizes) = pairs(cx)?;
        let (dim, count) = (cx.size("dim")?, cx.size("count")?);
        cx.float("factor")?;
        ensure!(
            sizes.get(dim).is_some_and(|&n| count < n),
            Shape,
            "{count} frequencies in dimension {dim} of {x}"
        );
        Ok(vec![x.clone()])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, attrs) = (cx.grad(0)?, cx.attrs().clone());
        let dx = cx.one(&SCALE_MIDDLE, &[g], attrs)?;
        cx.set(0, dx)
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx: &OpCx| {
        let (dim, count) = (cx.size("dim")?, cx.int("count")?);
        let k = || Expr::Coord(dim);
        let middle = k().ge(Expr::Int(1)).and(k().le(Expr::Int(count)));
        Ok(vec![middle.select(input(0) * cx.float("factor")?, input(0))])
    }),
    cases: || {
        let case = |name, shape: &[usize], dim: i64, count: i64| {
            Case::new(name).f(shape).attr("dim", dim).attr("count", count).attr("factor", 2.0)
        };
        vec![case("even", &[2, 4, 2], 1, 2), case("odd", &[3, 2, 2], 0, 2), case("none", &[2, 1, 2], 1, 0)]
    },
};

/// Scales those of the first `n/2 + 1` frequencies of `n` along `dim` that are not their own conjugates.
pub(super) fn scale_middle(
    b: &mut Builder,
    x: ValueId,
    dim: usize,
    n: usize,
    factor: f64,
) -> Result<ValueId> {
    let count = n.saturating_sub(1) / 2;
    let attrs = Attrs::new().with("dim", dim as i64).with("count", count as i64).with("factor", factor);
    b.one(&SCALE_MIDDLE, &[x], attrs)
}
