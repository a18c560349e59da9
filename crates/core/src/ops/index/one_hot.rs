//! Class indices as rows of zeros with a single one.

use super::check_index::CHECK_INDEX;
use super::integers;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::expr::{Expr, input};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::row::{Access, RowBuilder};
use crate::tensor::TensorType;

/// i64 `[index..., num_classes]`: 1 at each index, 0 elsewhere. The number of classes must be given: taken
/// from the data, the shape would depend on it.
pub static ONE_HOT: OpDef = OpDef {
    name: "one_hot",
    schemas: &["one_hot(Tensor self, int num_classes=-1) -> Tensor"],
    infer: rows,
    derivative: Derivative::NotDifferentiable("an index has no derivative"),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Decompose(|b, cx, inputs| {
        let limit = cx.int("num_classes")?;
        let index = b.apply(&CHECK_INDEX, inputs, Attrs::new().with("limit", limit))?[0];
        Ok(vec![b.one(&ONE_HOT_ROWS, &[index], Attrs::new().with("num_classes", limit))?])
    }),
    cases: || vec![Case::new("matrix").index(&[2, 3], 4).attr("num_classes", 4)],
};

/// [`ONE_HOT`] of indices known to be in range.
pub static ONE_HOT_ROWS: OpDef = OpDef {
    name: "one_hot_rows",
    schemas: &["headwater::one_hot_rows(Tensor self, int num_classes) -> Tensor"],
    infer: rows,
    derivative: Derivative::NotDifferentiable("an index has no derivative"),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Rows(|cx, out| {
        let (index, rank) = (cx.ty(0)?, cx.shape(0)?.rank());
        let mut b = RowBuilder::new(&index.shape, &out[0].shape[rank..]);
        let access = (0..rank).map(|d| Some((d, 1))).chain([None]).collect();
        let v = b.read(index.dtype, Access(access));
        let hit = b.expr(&Expr::Coord(rank).eq(input(0)).cast(DType::I64), &[v]);
        b.store(DType::I64, Access::identity(rank + 1), hit);
        Ok(b.finish())
    }),
    cases: || {
        vec![
            Case::new("vector").index(&[3], 4).attr("num_classes", 4),
            Case::new("scalar").index(&[], 2).attr("num_classes", 2),
        ]
    },
};

fn rows(cx: &OpCx) -> Result<Vec<TensorType>> {
    integers(cx, 0)?;
    let classes = cx.opt_int("num_classes")?.unwrap_or(-1);
    ensure!(
        classes >= 0,
        Unsupported,
        "without `num_classes` the shape of a one-hot tensor depends on the data: give the number of classes"
    );
    Ok(vec![TensorType::new(DType::I64, [&cx.shape(0)?[..], &[classes as usize]].concat())])
}
