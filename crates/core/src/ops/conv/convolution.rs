//! Convolution (in truth cross-correlation, as in PyTorch) and its two gradients. The three are closed under
//! differentiation: each one's gradients are the other two, and a transposed convolution is the input
//! gradient.

use super::geometry::Conv;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::graph::ValueId;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::shape::Shape;
use crate::tensor::{Tensor, TensorType};

/// `input [N, C, …]` (N may be missing), `weight [out, C / groups, …]`, `bias [out]` (optional); 1 to 3
/// spatial dimensions. `padding` is a number for each dimension, `"same"` or `"valid"`; or twice as many
/// numbers, those before each dimension and then those after. Sums in f32 or wider, one rounding.
pub static CONVOLUTION: OpDef = OpDef {
    name: "convolution",
    schemas: &[
        "conv1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=[1], SymInt[1] padding=[0], SymInt[1] dilation=[1], SymInt groups=1) -> Tensor",
        "conv1d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=[1], str padding=\"valid\", SymInt[1] dilation=[1], SymInt groups=1) -> Tensor",
        "conv2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=[1, 1], SymInt[2] padding=[0, 0], SymInt[2] dilation=[1, 1], SymInt groups=1) -> Tensor",
        "conv2d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=[1, 1], str padding=\"valid\", SymInt[2] dilation=[1, 1], SymInt groups=1) -> Tensor",
        "conv3d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=[1, 1, 1], SymInt[3] padding=[0, 0, 0], SymInt[3] dilation=[1, 1, 1], SymInt groups=1) -> Tensor",
        "conv3d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=[1, 1, 1], str padding=\"valid\", SymInt[3] dilation=[1, 1, 1], SymInt groups=1) -> Tensor",
    ],
    infer: |cx| {
        let dtype = floats(cx)?;
        let c = forward(cx)?;
        if let Some(b) = cx.opt(2) {
            ensure!(b.shape[..] == [c.groups * c.cout], Shape, "bias {b} for {} channels", c.groups * c.cout);
        }
        Ok(vec![TensorType::new(dtype, c.out_shape)])
    },
    derivative: Derivative::Rule(gradient),
    precision: Precision::Low,
    cost: Cost::Custom(|cx, _| forward(cx).map_or(0.0, |c| c.flops())),
    body: Body::Kernel(|cx, inputs, outs| {
        let c = forward(cx)?;
        let (x, w) = (inputs[0].expect("typed").floats(), inputs[1].expect("typed").floats());
        let mut y = match inputs.get(2).copied().flatten() {
            Some(b) => (0..outs[0].shape.numel())
                .map(|i| b.floats()[i / c.output_plane() % (c.groups * c.cout)])
                .collect(),
            None => vec![0.0; outs[0].shape.numel()],
        };
        c.products(|i, k, o| y[o] += x[i] * w[k]);
        Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), y)])
    }),
    cases: || {
        let conv = |name, x: &[usize], w: &[usize]| Case::new(name).f(x).f(w);
        vec![
            conv("plain", &[2, 2, 3, 4], &[3, 2, 2, 2]).f(&[3]),
            conv("strided and padded", &[1, 2, 5, 4], &[2, 2, 3, 2])
                .none()
                .attr("stride", [2, 1])
                .attr("padding", [1, 1]),
            conv("dilated", &[1, 1, 5, 5], &[1, 1, 2, 2]).f(&[1]).attr("dilation", [2, 3]),
            conv("grouped", &[1, 4, 3, 3], &[6, 2, 2, 2]).f(&[6]).attr("groups", 2),
            conv("depthwise", &[1, 3, 3, 3], &[3, 1, 3, 3]).f(&[3]).attr("groups", 3).attr("padding", [1, 1]),
            conv("without batch", &[2, 3, 3], &[2, 2, 2, 2]).f(&[2]),
            conv("one dimension", &[2, 2, 6], &[3, 2, 3]).f(&[3]).attr("stride", [2]).attr("padding", [2]),
            conv("three dimensions", &[1, 1, 3, 3, 3], &[2, 1, 2, 2, 2]).none().attr("stride", [2, 1, 1]),
            conv("same, even kernel", &[1, 1, 4, 4], &[1, 1, 2, 4])
                .none()
                .attr("padding", "same")
                .attr("dilation", [3, 1]),
            conv("padded on one side", &[1, 2, 4, 5], &[2, 2, 3, 2])
                .f(&[2])
                .attr("stride", [2, 1])
                .attr("padding", [0, 2, 1, 0]),
            conv("valid", &[1, 1, 5], &[1, 1, 2]).none().attr("padding", "valid"),
            conv("no samples", &[0, 1, 4], &[1, 1, 2]).none(),
        ]
    },
};

/// Gradient of a convolution with respect to its input, or a transposed convolution: `(grad_output, weight)`
/// to `input_size`.
pub static CONVOLUTION_INPUT_GRAD: OpDef = OpDef {
    name: "convolution_input_grad",
    schemas: &[
        "headwater::convolution_input_grad(Tensor grad_output, Tensor weight, *, SymInt[] input_size, SymInt[]? stride=None, SymInt[]? padding=None, SymInt[]? dilation=None, SymInt groups=1) -> Tensor",
    ],
    infer: |cx| {
        let (dtype, c) = (floats(cx)?, input_grad(cx)?);
        ensure!(
            *cx.shape(0)? == c.out_shape,
            Shape,
            "{} where the convolution gives {}",
            cx.ty(0)?,
            c.out_shape
        );
        Ok(vec![TensorType::new(dtype, cx.sizes("input_size")?)])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (dx, attrs) = (cx.grad(0)?, own(cx.attrs()));
        if cx.needs(0) {
            let w = cx.x(1)?;
            let g = cx.one(&CONVOLUTION, &[dx, w], attrs.clone())?;
            cx.set(0, g)?;
        }
        if cx.needs(1) {
            let (g, w) = (cx.x(0)?, cx.x(1)?);
            let dw = weight_gradient(cx, g, dx, w, attrs)?;
            cx.set(1, dw)?;
        }
        Ok(())
    }),
    precision: Precision::Low,
    cost: Cost::Custom(|cx, _| input_grad(cx).map_or(0.0, |c| c.flops())),
    body: Body::Kernel(|cx, inputs, outs| {
        let (g, w) = (inputs[0].expect("typed").floats(), inputs[1].expect("typed").floats());
        let mut dx = vec![0.0; outs[0].shape.numel()];
        input_grad(cx)?.products(|i, k, o| dx[i] += g[o] * w[k]);
        Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), dx)])
    }),
    cases: || {
        let case =
            |name, g: &[usize], w: &[usize], x: &[i64]| Case::new(name).f(g).f(w).attr("input_size", x);
        vec![
            case("plain", &[2, 3, 2, 3], &[3, 2, 2, 2], &[2, 2, 3, 4]),
            case("strided, last input unseen", &[1, 1, 2, 2], &[1, 1, 2, 2], &[1, 1, 5, 4])
                .attr("stride", [2, 2]),
            case("grouped, padded", &[1, 4, 4], &[4, 1, 3], &[1, 2, 4])
                .attr("groups", 2)
                .attr("padding", [1]),
        ]
    },
};

/// Gradient of a convolution with respect to its weight: `(grad_output, input)` to `weight_size`.
pub static CONVOLUTION_WEIGHT_GRAD: OpDef = OpDef {
    name: "convolution_weight_grad",
    schemas: &[
        "headwater::convolution_weight_grad(Tensor grad_output, Tensor input, *, SymInt[] weight_size, SymInt[]? stride=None, SymInt[]? padding=None, SymInt[]? dilation=None, SymInt groups=1) -> Tensor",
    ],
    infer: |cx| {
        let (dtype, c) = (floats(cx)?, weight_grad(cx)?);
        ensure!(
            *cx.shape(0)? == c.out_shape,
            Shape,
            "{} where the convolution gives {}",
            cx.ty(0)?,
            c.out_shape
        );
        Ok(vec![TensorType::new(dtype, cx.sizes("weight_size")?)])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (dw, attrs) = (cx.grad(0)?, own(cx.attrs()));
        if cx.needs(0) {
            let x = cx.x(1)?;
            let g = cx.one(&CONVOLUTION, &[x, dw], attrs.clone())?;
            cx.set(0, g)?;
        }
        if cx.needs(1) {
            let (g, x) = (cx.x(0)?, cx.x(1)?);
            let dx = input_gradient(cx, g, dw, x, attrs)?;
            cx.set(1, dx)?;
        }
        Ok(())
    }),
    precision: Precision::Low,
    cost: Cost::Custom(|cx, _| weight_grad(cx).map_or(0.0, |c| c.flops())),
    body: Body::Kernel(|cx, inputs, outs| {
        let (g, x) = (inputs[0].expect("typed").floats(), inputs[1].expect("typed").floats());
        let mut dw = vec![0.0; outs[0].shape.numel()];
        weight_grad(cx)?.products(|i, k, o| dw[k] += g[o] * x[i]);
        Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), dw)])
    }),
    cases: || {
        let case =
            |name, g: &[usize], x: &[usize], w: &[i64]| Case::new(name).f(g).f(x).attr("weight_size", w);
        vec![
            case("plain", &[2, 3, 2, 3], &[2, 2, 3, 4], &[3, 2, 2, 2]),
            case("strided, last input unseen", &[1, 1, 2, 2], &[1, 1, 5, 4], &[1, 1, 2, 2])
                .attr("stride", [2, 2]),
            case("grouped, padded", &[1, 4, 4], &[1, 2, 4], &[4, 1, 3])
                .attr("groups", 2)
                .attr("padding", [1]),
        ]
    },
};

/// The convolution a [`CONVOLUTION`] node computes.
pub fn forward(cx: &OpCx) -> Result<Conv> {
    Conv::new(cx.shape(0)?, cx.shape(1)?, cx)
}

/// The convolution whose input gradient a [`CONVOLUTION_INPUT_GRAD`] node computes.
pub fn input_grad(cx: &OpCx) -> Result<Conv> {
    Conv::new(&cx.sizes("input_size")?, cx.shape(1)?, cx)
}

/// The convolution whose weight gradient a [`CONVOLUTION_WEIGHT_GRAD`] node computes.
pub fn weight_grad(cx: &OpCx) -> Result<Conv> {
    Conv::new(cx.shape(1)?, &cx.sizes("weight_size")?, cx)
}

/// The one dtype of a convolution's operands.
pub fn floats(cx: &OpCx) -> Result<DType> {
    let dtype = cx.dtype(0)?;
    let one = dtype.is_float() && cx.present().all(|t| t.dtype == dtype);
    ensure!(one, DType, "a convolution needs one floating-point dtype, got {}", cx.list_types());
    Ok(dtype)
}

/// The attributes that all three share.
fn own(attrs: &Attrs) -> Attrs {
    let mut attrs = attrs.clone();
    attrs.remove("input_size");
    attrs.remove("weight_size");
    attrs
}

fn input_gradient(cx: &mut GradCx, g: ValueId, w: ValueId, like: ValueId, attrs: Attrs) -> Result<ValueId> {
    let attrs = attrs.with("input_size", cx.ty(like).shape.to_ints());
    cx.one(&CONVOLUTION_INPUT_GRAD, &[g, w], attrs)
}

fn weight_gradient(cx: &mut GradCx, g: ValueId, x: ValueId, like: ValueId, attrs: Attrs) -> Result<ValueId> {
    let attrs = attrs.with("weight_size", cx.ty(like).shape.to_ints());
    cx.one(&CONVOLUTION_WEIGHT_GRAD, &[g, x], attrs)
}

fn gradient(cx: &mut GradCx) -> Result<()> {
    let (g, x, w, attrs) = (cx.grad(0)?, cx.x(0)?, cx.x(1)?, own(cx.attrs()));
    if cx.needs(0) {
        let dx = input_gradient(cx, g, w, x, attrs.clone())?;
        cx.set(0, dx)?;
    }
    if cx.needs(1) {
        let dw = weight_gradient(cx, g, x, w, attrs)?;
        cx.set(1, dw)?;
    }
    if cx.needs(2) {
        let shape: Shape = cx.ty(g).shape.clone();
        let channel = shape.rank() - (cx.ty(w).shape.rank() - 1);
        let others: Vec<usize> = (0..shape.rank()).filter(|&d| d != channel).collect();
        let db = cx.sum(g, &others, false)?;
        cx.set(2, db)?;
    }
    Ok(())
}
