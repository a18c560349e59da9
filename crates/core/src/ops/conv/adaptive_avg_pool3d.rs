//! The mean of each of a given number of windows of three dimensions.

use super::avg_pool2d::ADAPTIVE_AVG_POOL2D;
use super::volume::Volume;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, required};

/// Mean over as many windows of `[…, D, H, W]` as `output_size` requests.
pub static ADAPTIVE_AVG_POOL3D: OpDef = OpDef {
    name: "adaptive_avg_pool3d",
    schemas: &[
        "adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor",
        "_adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor",
    ],
    infer: |cx| Volume::of(cx)?.infer(cx.dtype(0)?, &ADAPTIVE_AVG_POOL2D),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let mean = Volume::of(cx)?.pool(b, required(inputs, 0)?, &ADAPTIVE_AVG_POOL2D)?.depth[0];
        let ty = (ADAPTIVE_AVG_POOL3D.infer)(cx)?.remove(0);
        let mean = b.reshape(mean, &ty.shape)?;
        Ok(vec![b.cast(mean, ty.dtype)?])
    }),
    cases: || {
        vec![
            Case::new("one").f(&[1, 2, 2, 3, 2]).attr("output_size", [1, 1, 1]),
            Case::new("uneven").f(&[1, 5, 4, 2]).attr("output_size", [3, 2, 2]),
            Case::new("larger than the input").f(&[1, 1, 2, 1, 3]).attr("output_size", [3, 2, 3]),
        ]
    },
};
