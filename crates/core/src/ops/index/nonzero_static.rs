//! Places of what is not zero, as many as requested.

use super::given;
use crate::dtype::DType;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, Sample};
use crate::shape::Shape;
use crate::tensor::{Data, Tensor, TensorType};

/// i64 `[size, rank]`: the indices of elements that are not 0, row-major, and `fill_value` in the rows beyond
/// them.
pub static NONZERO_STATIC: OpDef = OpDef {
    name: "nonzero_static",
    schemas: &["nonzero_static(Tensor self, *, SymInt size, int fill_value=-1) -> Tensor"],
    infer: |cx| {
        let shape = Shape::from([cx.size("size")?, cx.shape(0)?.rank()]);
        ensure!(shape.checked_numel().is_some(), Size, "{shape} is larger than memory can be");
        cx.opt_int("fill_value")?;
        Ok(vec![TensorType::new(DType::I64, shape)])
    },
    derivative: Derivative::NotDifferentiable("an index has no derivative"),
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Kernel(|cx, inputs, outs| {
        let x = given(inputs, 0)?;
        let fill = cx.opt_int("fill_value")?.unwrap_or(-1);
        let set: Vec<usize> = match &x.data {
            Data::Float(v) => (0..v.len()).filter(|&i| v[i] != 0.0).collect(),
            Data::Int(v) => (0..v.len()).filter(|&i| v[i] != 0).collect(),
        };
        let (rank, mut out) = (x.shape().rank(), vec![fill; outs[0].shape.numel()]);
        for (row, at) in out.chunks_exact_mut(rank.max(1)).zip(set) {
            let mut rest = at;
            for (place, &n) in row.iter_mut().zip(&x.shape()[..]).rev() {
                *place = (rest % n) as i64;
                rest /= n;
            }
        }
        Ok(vec![Tensor::int(DType::I64, outs[0].shape.clone(), out)])
    }),
    cases: || {
        let values = Sample::Values(vec![0.0, 1.5, 0.0, -2.0, 0.5, 0.0]);
        vec![
            Case::new("some, filled").arg(DType::F64, &[2, 3], values).attr("size", 4).attr("fill_value", -1),
            Case::new("cut").mask(&[5]).attr("size", 2).attr("fill_value", 9),
            Case::new("none").index(&[0, 2], 2).attr("size", 2).attr("fill_value", 0),
        ]
    },
};
