//! The largest or smallest elements along a dimension.

use super::given;
use super::sort::{dim, gradient, selected};
use crate::dtype::DType;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use crate::tensor::TensorType;

/// The `k` largest (unless `largest` is false: smallest) elements along `dim` and their i64 indices, always
/// in order; of equal ones the first come first. NaN counts as largest.
pub static TOPK: OpDef = OpDef {
    name: "topk",
    schemas: &[
        "topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)",
    ],
    infer: |cx| {
        let (x, dim, k) = (cx.ty(0)?, dim(cx)?, cx.size("k")?);
        let mut shape = x.shape.to_vec();
        match shape.get_mut(dim) {
            Some(n) => {
                ensure!(k <= *n, Attribute, "`k` is {k} along dimension {dim} of {x}");
                *n = k;
            }
            None => ensure!(k == 1, Attribute, "`k` is {k} for a scalar"),
        }
        Ok(vec![TensorType::new(x.dtype, shape.clone()), TensorType::new(DType::I64, shape)])
    },
    derivative: Derivative::Rule(gradient),
    precision: Precision::Same,
    cost: Cost::PerInput(10),
    body: Body::Kernel(|cx, inputs, outs| {
        let largest = cx.attrs.get("largest").is_none() || cx.flag("largest")?;
        Ok(selected(given(inputs, 0)?, dim(cx)?, cx.size("k")?, largest, outs))
    }),
    cases: || {
        let case = |name| Case::new(name).distinct(&[3, 4]).attr("sorted", true);
        vec![
            case("largest").attr("k", 2).attr("dim", -1).attr("largest", true),
            case("smallest").attr("k", 3).attr("dim", 0).attr("largest", false),
            case("none").attr("k", 0).attr("dim", -1).attr("largest", true),
        ]
    },
};
