//! Images resampled to another size, separately along rows and columns.

use super::resample::ResampledAxis;
use crate::diagnostic::Result;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::tensor::{Tensor, TensorType};
use crate::{ensure, fail};

/// `[…, H, W]` to `[…, output_size]` by `mode` (`nearest`, `nearest-exact`, `bilinear`, `bicubic`). Each
/// output is a weighted sum of the inputs that [`ResampledAxis::taps`] names for its row and its column.
pub static UPSAMPLE2D: OpDef = OpDef {
    name: "upsample2d",
    schemas: &[
        "headwater::upsample2d(Tensor self, *, SymInt[2] output_size, str mode, bool align_corners=False, bool antialias=False, float? scales_h=None, float? scales_w=None) -> Tensor",
    ],
    infer: |cx| {
        let x = cx.ty(0)?;
        let (axes, lead) = axes(cx, &x.shape)?;
        ensure!(x.dtype.is_float(), DType, "resampling needs floats, got {x}");
        let shape: Vec<usize> = lead.iter().copied().chain(axes.map(|a| a.output)).collect();
        Ok(vec![TensorType::new(x.dtype, shape)])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, x) = (cx.grad(0)?, cx.x(0)?);
        let attrs = cx.attrs().clone().with("input_size", cx.ty(x).shape.to_ints());
        let dx = cx.one(&UPSAMPLE2D_BACKWARD, &[g], attrs)?;
        cx.set(0, dx)
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(8),
    body: Body::Kernel(|cx, inputs, outs| {
        let x = inputs[0].expect("typed");
        let mut y = vec![0.0; outs[0].shape.numel()];
        products(cx, x.shape(), |i, o, w| y[o] += w * x.floats()[i])?;
        Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), y)])
    }),
    cases: || {
        let case = |name, shape: &[usize], size: [i64; 2]| Case::new(name).f(shape).attr("output_size", size);
        vec![
            case("nearest", &[1, 2, 3, 4], [5, 3]).attr("mode", "nearest"),
            case("nearest, exact, by scale", &[2, 3, 4], [4, 9])
                .attr("mode", "nearest-exact")
                .attr("scales_w", 2.3),
            case("bilinear", &[1, 2, 3, 4], [5, 3]).attr("mode", "bilinear"),
            case("bilinear, corners", &[1, 1, 3, 4], [6, 1])
                .attr("mode", "bilinear")
                .attr("align_corners", true),
            case("bilinear, smoothed", &[1, 1, 5, 6], [2, 8])
                .attr("mode", "bilinear")
                .attr("antialias", true),
            case("bicubic", &[1, 1, 3, 4], [5, 2]).attr("mode", "bicubic"),
            case("bicubic, smoothed", &[1, 1, 6, 5], [3, 5]).attr("mode", "bicubic").attr("antialias", true),
        ]
    },
};

/// Gradient of [`UPSAMPLE2D`]: `(grad_output)` to `input_size`.
pub static UPSAMPLE2D_BACKWARD: OpDef = OpDef {
    name: "upsample2d_backward",
    schemas: &[
        "headwater::upsample2d_backward(Tensor grad_output, *, SymInt[] input_size, SymInt[2] output_size, str mode, bool align_corners=False, bool antialias=False, float? scales_h=None, float? scales_w=None) -> Tensor",
    ],
    infer: |cx| {
        let (g, input) = (cx.ty(0)?, cx.sizes("input_size")?);
        let (axes, lead) = axes(cx, &input)?;
        let want: Vec<usize> = lead.iter().copied().chain(axes.map(|a| a.output)).collect();
        ensure!(g.shape[..] == want[..] && g.dtype.is_float(), Shape, "{g} where resampling gives {want:?}");
        Ok(vec![TensorType::new(g.dtype, input)])
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Full,
    cost: Cost::PerInput(8),
    body: Body::Kernel(|cx, inputs, outs| {
        let g = inputs[0].expect("typed").floats();
        let mut dx = vec![0.0; outs[0].shape.numel()];
        products(cx, &outs[0].shape, |i, o, w| dx[i] += w * g[o])?;
        Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), dx)])
    }),
    cases: || {
        let case =
            |name| Case::new(name).f(&[2, 4, 3]).attr("input_size", [2, 3, 5]).attr("output_size", [4, 3]);
        vec![case("nearest").attr("mode", "nearest"), case("bicubic").attr("mode", "bicubic")]
    },
};

/// Rows and columns, and the dimensions before them.
pub fn axes<'a>(cx: &OpCx, input: &'a [usize]) -> Result<([ResampledAxis; 2], &'a [usize])> {
    let [lead @ .., rows, columns] = input else {
        return Err(fail!(Shape, "images are [..., H, W], got {input:?}"));
    };
    Ok((ResampledAxis::of(cx, [*rows, *columns])?, lead))
}

/// Calls `f(input index, output index, weight)` for every product of the resampling: its definition.
fn products(cx: &OpCx, input: &[usize], mut f: impl FnMut(usize, usize, f64)) -> Result<()> {
    let ([rows, columns], lead) = axes(cx, input)?;
    let planes: usize = lead.iter().product();
    for plane in 0..planes {
        for r in 0..rows.output {
            for c in 0..columns.output {
                let o = (plane * rows.output + r) * columns.output + c;
                for &(y, wy) in &rows.taps(r) {
                    for &(x, wx) in &columns.taps(c) {
                        f((plane * rows.input + y) * columns.input + x, o, wy * wx);
                    }
                }
            }
        }
    }
    Ok(())
}
