//! Places in sorted boundaries.

use super::given;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::tensor::{Tensor, TensorType};
use crate::{ensure, fail};

/// `(sorted_sequence, values)`: for each value how many of the ascending boundaries are less than it, with
/// `right` (or `side` right) less or equal. The boundaries are a vector, or rows that belong to the rows of
/// the values. i64, or i32 with `out_int32`. Boundaries out of order are not noticed, as in PyTorch.
pub static SEARCHSORTED: OpDef = OpDef {
    name: "searchsorted",
    schemas: &[
        "searchsorted.Tensor(Tensor sorted_sequence, Tensor self, *, bool out_int32=False, bool right=False, str? side=None, Tensor? sorter=None) -> Tensor",
    ],
    infer: |cx| {
        let (edges, values) = (cx.shape(0)?, cx.shape(1)?);
        ensure!(cx.opt(2).is_none(), Unsupported, "a `sorter` is not supported: sort the boundaries");
        right(cx)?;
        let k = edges.rank();
        let fits = k == 1 || k > 1 && k == values.rank() && edges[..k - 1] == values[..k - 1];
        ensure!(fits, Shape, "boundaries {edges} for values {values}");
        let dtype = if cx.flag("out_int32")? { DType::I32 } else { DType::I64 };
        Ok(vec![TensorType::new(dtype, values.clone())])
    },
    derivative: Derivative::NotDifferentiable("an index has no derivative"),
    precision: Precision::Same,
    cost: Cost::PerOutput(10),
    body: Body::Kernel(|cx, inputs, outs| {
        let (edges, values) = (given(inputs, 0)?, given(inputs, 1)?);
        let (n, right) = (edges.shape()[edges.shape().rank() - 1], right(cx)?);
        let per_row =
            if edges.shape().rank() == 1 { usize::MAX } else { values.shape().last().copied().unwrap_or(1) };
        // PyTorch compares in the promoted dtype; all of them fit in f64 but large i64, whose order it keeps
        // nearly.
        let (edges, values) = (edges.to_f64(), values.to_f64());
        let place = |(at, v): (usize, f64)| {
            let row = if per_row == usize::MAX { 0 } else { at / per_row };
            // NaN belongs after everything.
            let before = |e: &f64| v.is_nan() || if right { *e <= v } else { *e < v };
            edges[row * n..][..n].partition_point(before) as i64
        };
        let places = values.into_iter().enumerate().map(place).collect();
        Ok(vec![Tensor::int(outs[0].dtype, outs[0].shape.clone(), places)])
    }),
    cases: || {
        let case = |name| {
            Case::new(name).arg(DType::F64, &[4], crate::ops::Sample::Values(vec![-1.0, 0.0, 0.0, 1.5]))
        };
        vec![
            case("left").f(&[2, 3]).attr("out_int32", false).attr("right", false),
            case("right").index(&[3], 2).attr("out_int32", true).attr("right", true),
        ]
    },
};

/// [`SEARCHSORTED`] with the values first.
pub static BUCKETIZE: OpDef = OpDef {
    name: "bucketize",
    schemas: &[
        "bucketize.Tensor(Tensor self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor",
    ],
    infer: |cx| {
        ensure!(cx.shape(1)?.rank() == 1, Shape, "the boundaries must be a vector, got {}", cx.ty(1)?);
        let dtype = if cx.flag("out_int32")? { DType::I32 } else { DType::I64 };
        Ok(vec![TensorType::new(dtype, cx.shape(0)?.clone())])
    },
    derivative: Derivative::NotDifferentiable("an index has no derivative"),
    precision: Precision::Same,
    cost: Cost::PerOutput(10),
    body: Body::Decompose(|b, cx, inputs| {
        let [x, edges] = *inputs else { return Err(fail!(Attribute, "values and boundaries are needed")) };
        let attrs = Attrs::new().with("out_int32", cx.flag("out_int32")?).with("right", cx.flag("right")?);
        b.apply(&SEARCHSORTED, &[edges, x], attrs)
    }),
    cases: || {
        let edges = crate::ops::Sample::Values(vec![-1.0, 0.0, 1.5]);
        vec![
            Case::new("left")
                .f(&[2, 3])
                .arg(DType::F64, &[3], edges)
                .attr("right", false)
                .attr("out_int32", false),
        ]
    },
};

/// True if equal boundaries come before a value.
///
/// # Errors
/// `Attribute` if `side` is no side.
pub fn right(cx: &OpCx) -> Result<bool> {
    Ok(match cx.opt_str("side")? {
        None => cx.flag("right")?,
        Some("right") => true,
        Some("left") => false,
        Some(other) => return Err(fail!(Attribute, "`side` is {other}, neither left nor right")),
    })
}
