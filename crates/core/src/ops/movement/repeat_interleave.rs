//! Every element repeated beside itself.

use crate::diagnostic::Result;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// Each index of `dim` `repeats` times in a row; without `dim`, of the flattened tensor.
pub static REPEAT_INTERLEAVE: OpDef = OpDef {
    name: "repeat_interleave",
    schemas: &[
        "repeat_interleave.self_int(Tensor self, SymInt repeats, int? dim=None, *, SymInt? output_size=None) -> Tensor",
    ],
    infer: |cx| {
        let (mut shape, dim, repeats) = plan(cx)?;
        shape[dim] = shape[dim].checked_mul(repeats).ok_or_else(|| fail!(Size, "{repeats} repeats"))?;
        let shape = Shape::from(shape);
        ensure!(shape.checked_numel().is_some(), Size, "{shape} is larger than memory can be");
        let want = cx.opt_int("output_size")?;
        ensure!(
            want.is_none_or(|n| n == shape[dim] as i64),
            Attribute,
            "`output_size` is not {}",
            shape[dim]
        );
        Ok(vec![TensorType::new(cx.dtype(0)?, shape)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| {
        let (shape, dim, repeats) = plan(cx)?;
        let x = b.reshape(required(inputs, 0)?, &shape)?;
        let x = b.unsqueeze(x, dim + 1)?;
        let mut spread = shape.clone();
        spread.insert(dim + 1, repeats);
        let x = b.expand(x, &spread)?;
        let mut joined = shape;
        joined[dim] *= repeats;
        Ok(vec![b.reshape(x, &joined)?])
    }),
    cases: || {
        vec![
            Case::new("middle").f(&[2, 3, 2]).attr("repeats", 2).attr("dim", 1),
            Case::new("flat").f(&[2, 2]).attr("repeats", 3),
            Case::new("none").f(&[2]).attr("repeats", 0).attr("dim", -1),
        ]
    },
};

/// The shape to repeat in, the dimension and the count.
fn plan(cx: &OpCx) -> Result<(Vec<usize>, usize, usize)> {
    let (x, repeats) = (cx.shape(0)?, cx.size("repeats")?);
    match cx.opt_int("dim")? {
        Some(_) if x.rank() > 0 => Ok((x.to_vec(), cx.dim("dim", x.rank())?, repeats)),
        _ => Ok((vec![x.numel()], 0, repeats)),
    }
}
