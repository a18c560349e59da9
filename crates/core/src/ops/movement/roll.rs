//! Elements shifted along dimensions, those that leave at one end coming in at the other.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::pointwise::same;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, RegionCopy, Source, required};
use crate::shape::wrap_dim;

/// Shifts by `shifts` along `dims`; without `dims`, of the elements in row-major order.
pub static ROLL: OpDef = OpDef {
    name: "roll",
    schemas: &["roll(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor"],
    infer: |cx| {
        let flat = cx.opt_ints("dims")?.unwrap_or(&[]).is_empty();
        ensure!(!flat || cx.ints("shifts")?.len() == 1, Attribute, "without `dims` there is one shift");
        if !flat {
            shifts(cx)?;
        }
        same(cx)
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| {
        let x = required(inputs, 0)?;
        if !cx.opt_ints("dims")?.unwrap_or(&[]).is_empty() {
            return b.apply(&ROLL_DIMS, inputs, cx.attrs.clone());
        }
        let flat = b.reshape(x, &[cx.shape(0)?.numel()])?;
        let attrs = Attrs::new().with("shifts", cx.ints("shifts")?).with("dims", [0]);
        let rolled = b.one(&ROLL_DIMS, &[flat], attrs)?;
        Ok(vec![b.reshape(rolled, cx.shape(0)?)?])
    }),
    cases: || {
        vec![
            Case::new("two").f(&[3, 4]).attr("shifts", [1, -2]).attr("dims", [0, 1]),
            Case::new("flat").f(&[2, 3]).attr("shifts", [2]).attr("dims", Vec::<i64>::new()),
        ]
    },
};

/// [`ROLL`] with `dims` given: two boxes for each dimension that moves. Its derivative is the roll back.
pub static ROLL_DIMS: OpDef = OpDef {
    name: "roll_dims",
    schemas: &["headwater::roll_dims(Tensor self, int[] shifts, int[] dims) -> Tensor"],
    infer: |cx| {
        shifts(cx)?;
        same(cx)
    },
    derivative: Derivative::Rule(|cx| {
        let g = cx.grad(0)?;
        let back: Vec<i64> = cx.args().ints("shifts")?.iter().map(|s| s.wrapping_neg()).collect();
        let attrs = cx.attrs().clone().with("shifts", back);
        let dx = cx.one(&ROLL_DIMS, &[g], attrs)?;
        cx.set(0, dx)
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Copies(|cx, out| {
        let mut copies = vec![RegionCopy::whole(Source::Input(0), &out.shape)];
        for (d, shift) in shifts(cx)?.into_iter().enumerate().filter(|&(_, s)| s != 0) {
            let n = out.shape[d];
            let halves = |c: RegionCopy| {
                let (mut stays, mut wraps) = (c.clone(), c);
                (stays.start[d], stays.extent[d]) = (shift, n - shift);
                (wraps.source_start[d], wraps.extent[d]) = (n - shift, shift);
                [stays, wraps]
            };
            copies = copies.into_iter().flat_map(halves).collect();
        }
        Ok(copies)
    }),
    cases: || {
        vec![
            Case::new("two").f(&[3, 4]).attr("shifts", [1, -2]).attr("dims", [0, 1]),
            Case::new("one twice, far").f(&[5]).attr("shifts", [7, 4]).attr("dims", [0, -1]),
            Case::new("empty").f(&[0]).attr("shifts", [7]).attr("dims", [0]),
        ]
    },
};

/// The shift of every dimension, non-negative and below its size.
fn shifts(cx: &OpCx) -> Result<Vec<usize>> {
    let (x, shifts, dims) = (cx.shape(0)?, cx.ints("shifts")?, cx.ints("dims")?);
    ensure!(shifts.len() == dims.len(), Attribute, "{} shifts for {} dimensions", shifts.len(), dims.len());
    // Each moving dimension doubles the boxes.
    ensure!(dims.len() <= 8, Unsupported, "a roll of {} dimensions at once", dims.len());
    let mut out = vec![0; x.rank()];
    for (&shift, &d) in shifts.iter().zip(dims) {
        let d = wrap_dim(d, x.rank()).filter(|&d| d < x.rank());
        let d = d.ok_or_else(|| crate::fail!(Attribute, "`dims` = {dims:?} is out of range for {x}"))?;
        let n = (x[d] as i64).max(1);
        // In i128: two sizes of i64 may overflow it in sum.
        out[d] = ((out[d] as i128 + shift.rem_euclid(n) as i128) % n as i128) as usize;
    }
    Ok(out)
}
