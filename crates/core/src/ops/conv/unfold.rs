//! The patches of an image as columns, and columns summed back into an image: each is the other's gradient.

use super::geometry::{Conv, numbers};
use crate::diagnostic::Result;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::shape::Shape;
use crate::tensor::{Tensor, TensorType};
use crate::{ensure, fail};

/// `[N, C, H, W]` (N may be missing) to `[N, C · kernel, patches]`; zeros where a patch is in the padding.
pub static IM2COL: OpDef = OpDef {
    name: "im2col",
    schemas: &[
        "im2col(Tensor self, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor",
    ],
    infer: |cx| {
        let x = cx.ty(0)?;
        ensure!(x.dtype.is_float(), DType, "patches of {x} are not supported");
        Ok(vec![TensorType::new(x.dtype, columns(&x.shape, &patches(&x.shape, cx)?))])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, x) = (cx.grad(0)?, cx.x(0)?);
        let shape = cx.ty(x).shape.to_ints();
        let attrs = cx.attrs().clone().with("output_size", &shape[shape.len() - 2..]);
        let dx = cx.one(&COL2IM, &[g], attrs)?;
        cx.set(0, dx)
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Kernel(|cx, inputs, outs| {
        let x = inputs[0].expect("typed");
        let mut y = vec![0.0; outs[0].shape.numel()];
        places(&patches(x.shape(), cx)?, |image, column| y[column] = x.floats()[image]);
        Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), y)])
    }),
    cases: || {
        let case = |name, shape: &[usize]| Case::new(name).f(shape).attr("kernel_size", [2, 3]);
        vec![
            case("plain", &[1, 2, 3, 4])
                .attr("dilation", [1, 1])
                .attr("padding", [0, 0])
                .attr("stride", [1, 1]),
            case("strided", &[2, 4, 5])
                .attr("dilation", [2, 1])
                .attr("padding", [1, 1])
                .attr("stride", [1, 2]),
        ]
    },
};

/// `[N, C · kernel, patches]` (N may be missing) to `[N, C, output_size]`.
pub static COL2IM: OpDef = OpDef {
    name: "col2im",
    schemas: &[
        "col2im(Tensor self, SymInt[2] output_size, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor",
    ],
    infer: |cx| {
        let (x, image) = (cx.ty(0)?, image(cx)?);
        let want = columns(&image, &patches(&image, cx)?);
        ensure!(x.dtype.is_float() && x.shape == want, Shape, "{x} where an image {image} gives {want}");
        Ok(vec![TensorType::new(x.dtype, image)])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let g = cx.grad(0)?;
        let mut attrs = cx.attrs().clone();
        attrs.remove("output_size");
        let dx = cx.one(&IM2COL, &[g], attrs)?;
        cx.set(0, dx)
    }),
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Kernel(|cx, inputs, outs| {
        let x = inputs[0].expect("typed").floats();
        let mut y = vec![0.0; outs[0].shape.numel()];
        places(&patches(&outs[0].shape, cx)?, |image, column| y[image] += x[column]);
        Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), y)])
    }),
    cases: || {
        let case =
            Case::new("overlapping").f(&[1, 4, 6]).attr("kernel_size", [2, 2]).attr("dilation", [1, 1]);
        vec![case.attr("padding", [0, 0]).attr("stride", [1, 1]).attr("output_size", [3, 4])]
    },
};

/// The patches of an image, as a convolution that would visit them: every channel its own group.
pub fn patches(image: &Shape, cx: &OpCx) -> Result<Conv> {
    ensure!(
        matches!(image.rank(), 3 | 4),
        Shape,
        "patches are taken from [N, C, H, W] or [C, H, W], not {image}"
    );
    let channels = image[image.rank() - 3];
    let kernel = numbers(cx, "kernel_size", 2, 0, 1)?;
    let weight = [channels, 1, kernel[0], kernel[1]].into();
    let groups = i64::try_from(channels).ok().filter(|&c| c > 0);
    let groups = groups.ok_or_else(|| fail!(Shape, "{image} has no channels"))?;
    let attrs = cx.attrs.clone().with("groups", groups);
    Conv::new(image, &weight, &OpCx { inputs: vec![], attrs: &attrs })
}

fn columns(image: &Shape, c: &Conv) -> Shape {
    let last = [c.groups.saturating_mul(c.kernel_size()), c.output_plane()];
    image[..image.rank() - 3].iter().copied().chain(last).collect()
}

/// The shape of the image that columns are summed into.
fn image(cx: &OpCx) -> Result<Shape> {
    let (x, size) = (cx.shape(0)?, cx.sizes("output_size")?);
    let kernel = numbers(cx, "kernel_size", 2, 0, 1)?;
    let [lead @ .., rows, _] = &x[..] else {
        return Err(fail!(Shape, "columns are [N, C · kernel, patches], not {x}"));
    };
    ensure!(lead.len() <= 1 && size.rank() == 2, Shape, "{x} cannot be summed into an image of {size}");
    let channels = rows / (kernel[0] * kernel[1]);
    Ok(lead.iter().copied().chain([channels]).chain(size.iter().copied()).collect())
}

/// Calls `f(index in the image, index in the columns)` for every element of a patch that is inside the image.
fn places(c: &Conv, mut f: impl FnMut(usize, usize)) {
    let (k, o) = (c.kernel_size(), c.output_plane());
    c.products(|image, weight, out| f(image, (out / o * k + weight % k) * o + out % o));
}
