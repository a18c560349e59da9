//! Size of gradients, block by block, in one pass over a flat span.

use crate::dtype::DType;
use crate::ensure;
use crate::expr::input;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::row::{Reduce, ReduceSpace};
use crate::tensor::TensorType;

/// Gradient `[blocks, width]` to the sum of squares `[blocks]` and the largest magnitude `[blocks]` of each
/// block, in f32 (f64 for f64). A NaN makes both NaN.
pub static GRADIENT_STATISTICS: OpDef = OpDef {
    name: "gradient_statistics",
    schemas: &["headwater::gradient_statistics(Tensor grad) -> (Tensor, Tensor)"],
    infer: |cx| {
        let g = cx.ty(0)?;
        ensure!(
            g.dtype.is_float() && g.shape.rank() == 2,
            Shape,
            "gradients must be [blocks, width], got {g}"
        );
        let dtype = if g.dtype == DType::F64 { DType::F64 } else { DType::F32 };
        Ok(vec![TensorType::new(dtype, [g.shape[0]]); 2])
    },
    derivative: Derivative::NotDifferentiable("gradients are not differentiated again"),
    precision: Precision::Full,
    cost: Cost::PerInput(3),
    body: Body::Rows(|cx: &OpCx, out| {
        let g = cx.ty(0)?;
        let space = ReduceSpace::new(&g.shape, &[1]);
        let mut b = space.builder();
        let x = b.read(g.dtype, space.full.clone());
        let square = b.expr(&(input(0) * input(0)), &[x]);
        let sum = b.sum(square);
        b.store(out[0].dtype, space.dropped.clone(), sum);
        let magnitude = b.expr(&input(0).abs(), &[x]);
        let largest = b.reduce(Reduce::Max, magnitude);
        b.store(out[1].dtype, space.dropped.clone(), largest);
        Ok(b.finish())
    }),
    cases: || vec![Case::new("blocks").f(&[3, 8])],
};
