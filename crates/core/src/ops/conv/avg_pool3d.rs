//! The mean of each window of three dimensions.

use super::avg_pool2d::AVG_POOL2D;
use super::volume::Volume;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, required};

/// Sum over sliding windows of `[…, D, H, W]`, divided as by [`AVG_POOL2D`].
pub static AVG_POOL3D: OpDef = OpDef {
    name: "avg_pool3d",
    schemas: &[
        "avg_pool3d(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor",
    ],
    infer: |cx| Volume::of(cx)?.infer(cx.dtype(0)?, &AVG_POOL2D),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let mean = Volume::of(cx)?.pool(b, required(inputs, 0)?, &AVG_POOL2D)?.depth[0];
        let ty = (AVG_POOL3D.infer)(cx)?.remove(0);
        let mean = b.reshape(mean, &ty.shape)?;
        Ok(vec![b.cast(mean, ty.dtype)?])
    }),
    cases: || {
        let pool = |name, shape: &[usize]| Case::new(name).f(shape);
        vec![
            pool("plain", &[1, 2, 2, 3, 4]).attr("kernel_size", [2, 3, 2]),
            pool("padding not counted", &[1, 3, 4, 3])
                .attr("kernel_size", [3, 2, 2])
                .attr("stride", [2, 1, 2])
                .attr("padding", [1, 1, 0])
                .attr("count_include_pad", false),
            pool("ceil", &[1, 1, 3, 4, 4])
                .attr("kernel_size", [2, 2, 3])
                .attr("stride", [2, 2, 2])
                .attr("padding", [1, 0, 1])
                .attr("ceil_mode", true),
            pool("divisor", &[1, 1, 2, 2, 4]).attr("kernel_size", [2]).attr("divisor_override", 3),
        ]
    },
};
