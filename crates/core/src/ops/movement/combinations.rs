//! All choices of elements of a vector.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::create::constant::CONSTANT;
use crate::ops::index::index_select::INDEX_SELECT;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::tensor::{Tensor, TensorType};
use std::sync::Arc;

/// The choices of `r` elements in their order, a row each; with `with_replacement` an element may be chosen
/// again.
pub static COMBINATIONS: OpDef = OpDef {
    name: "combinations",
    schemas: &["combinations(Tensor self, int r=2, bool with_replacement=False) -> Tensor"],
    infer: |cx| {
        let (x, [count, r]) = (cx.ty(0)?, sizes(cx)?);
        let shape = if r == 0 { [0].into() } else { crate::Shape::from([count, r]) };
        Ok(vec![TensorType::new(x.dtype, shape)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let (out, [count, r]) = ((COMBINATIONS.infer)(cx)?.remove(0), sizes(cx)?);
        if count * r == 0 {
            return Ok(vec![b.full(&out, 0.0)?]);
        }
        let (n, again) = (cx.shape(0)?[0] as i64, cx.flag("with_replacement")?);
        let mut chosen: Vec<i64> = (0..r as i64).map(|i| if again { 0 } else { i }).collect();
        let mut index = chosen.clone();
        // The last place that can still rise does; those after it restart.
        let most = |place: usize| if again { n - 1 } else { n - (r - place) as i64 };
        while let Some(place) = (0..r).rev().find(|&p| chosen[p] < most(p)) {
            let next = chosen[place] + 1;
            (place..r).for_each(|p| chosen[p] = next + if again { 0 } else { (p - place) as i64 });
            index.extend(&chosen);
        }
        let index = Arc::new(Tensor::int(DType::I64, [count * r], index));
        let index = b.one(&CONSTANT, &[], Attrs::new().with("value", index))?;
        let y = b.one(&INDEX_SELECT, &[required(inputs, 0)?, index], Attrs::new().with("dim", 0))?;
        Ok(vec![b.reshape(y, &out.shape)?])
    }),
    cases: || {
        vec![
            Case::new("pairs").f(&[4]).attr("r", 2).attr("with_replacement", false),
            Case::new("threes, again").f(&[3]).attr("r", 3).attr("with_replacement", true),
            Case::new("too many").f(&[2]).attr("r", 3).attr("with_replacement", false),
        ]
    },
};

/// The number of choices, and of the elements of each.
fn sizes(cx: &OpCx) -> Result<[usize; 2]> {
    let (x, r) = (cx.ty(0)?, cx.opt_int("r")?.unwrap_or(2));
    ensure!(x.shape.rank() == 1, Shape, "choices of a vector, got {x}");
    ensure!((0..=64).contains(&r), Unsupported, "choices of {r} elements: 0 to 64 are supported");
    let (n, r) = (x.shape[0] as u128, r as u128);
    let among = if cx.flag("with_replacement")? && n > 0 { n + r - 1 } else { n };
    // Each partial product is a binomial coefficient.
    let binomial = (0..r).try_fold(1u128, |c, i| Some(c.checked_mul(among.saturating_sub(i))? / (i + 1)));
    let count = binomial.filter(|&c| c <= 1 << 20);
    ensure!(count.is_some(), Size, "more than a million choices of {r} among {n}");
    Ok([count.unwrap_or(0) as usize, r as usize])
}
