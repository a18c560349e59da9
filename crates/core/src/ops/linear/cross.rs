//! Cross product of vectors of three.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::movement::roll::ROLL_DIMS;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::{Shape, wrap_dim};
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// The cross product along `dim`, the inputs broadcast; `cross` without `dim` takes the first of size 3.
pub static CROSS: OpDef = OpDef {
    name: "cross",
    schemas: &[
        "cross(Tensor self, Tensor other, int? dim=None) -> Tensor",
        "linalg_cross(Tensor self, Tensor other, *, int dim=-1) -> Tensor",
    ],
    infer: |cx| {
        vectors(cx)?;
        Ok(vec![TensorType::new(cx.result_type(&[]), cx.broadcast()?)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Widest,
    cost: Cost::PerOutput(3),
    body: Body::Decompose(|b, cx, inputs| {
        let (dim, dtype) = (vectors(cx)?, cx.result_type(&[]));
        let (x, y) = (b.cast(required(inputs, 0)?, dtype)?, b.cast(required(inputs, 1)?, dtype)?);
        // The element after, and the one after that.
        let [next, last] = [2i64, 1].map(|shift| {
            move |b: &mut Builder, v: ValueId| {
                b.one(&ROLL_DIMS, &[v], Attrs::new().with("shifts", [shift]).with("dims", [dim as i64]))
            }
        });
        let (ahead, behind) = (next(b, x)?, last(b, x)?);
        let (after, before) = (next(b, y)?, last(b, y)?);
        let (left, right) = (b.mul(ahead, before)?, b.mul(behind, after)?);
        Ok(vec![b.sub(left, right)?])
    }),
    cases: || {
        vec![
            Case::new("last").f(&[2, 3]).f(&[2, 3]).attr("dim", -1),
            Case::new("first of size 3").f(&[2, 3, 3]).f(&[1, 3, 3]),
            Case::new("first").f(&[3, 2]).f(&[3, 1]).attr("dim", 0),
        ]
    },
};

/// The dimension of the vectors.
fn vectors(cx: &OpCx) -> Result<usize> {
    let (x, y) = (cx.ty(0)?, cx.ty(1)?);
    let rank = x.shape.rank();
    ensure!(rank == y.shape.rank(), Shape, "{} have not as many dimensions", cx.list_types());
    let three = |s: &Shape| s.iter().position(|&n| n == 3);
    let dim = match cx.opt_int("dim")? {
        Some(d) => wrap_dim(d, rank).filter(|&d| d < rank),
        None => three(&x.shape),
    };
    let fits = dim.filter(|&d| x.shape[d] == 3 && y.shape[d] == 3);
    let numbers = cx.result_type(&[]).class() != crate::dtype::Class::Bool;
    ensure!(numbers, DType, "a cross product is of numbers, got {}", cx.list_types());
    fits.ok_or_else(|| fail!(Shape, "a cross product is of vectors of 3, got {}", cx.list_types()))
}
