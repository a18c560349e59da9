//! The mean of each window.

use super::window::Pool;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::shape::Shape;
use crate::tensor::{Tensor, TensorType};

/// Sum over sliding windows, divided by the window's size: with `count_include_pad` padding counts, what
/// `ceil_mode` adds beyond it does not; `divisor_override` replaces it.
pub static AVG_POOL2D: OpDef = OpDef {
    name: "avg_pool2d",
    schemas: &[
        "avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor",
    ],
    infer: |cx| outputs(cx, Pool::sliding(cx.shape(0)?, cx)?),
    derivative: Derivative::Rule(|cx: &mut GradCx| gradient(cx, &AVG_POOL2D_BACKWARD)),
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Kernel(|cx, inputs, outs| reference(cx, Pool::sliding(cx.shape(0)?, cx)?, inputs, outs)),
    cases: || sliding(|c, shape| c.f(shape)),
};

/// Gradient of [`AVG_POOL2D`]: `(grad_output)` to `input_size`.
pub static AVG_POOL2D_BACKWARD: OpDef = OpDef {
    name: "avg_pool2d_backward",
    schemas: &[
        "headwater::avg_pool2d_backward(Tensor grad_output, *, SymInt[] input_size, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor",
    ],
    infer: |cx| inputs(cx, Pool::sliding),
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Kernel(|cx, inputs, outs| {
        spread(cx, Pool::sliding(&cx.sizes("input_size")?, cx)?, inputs, outs)
    }),
    cases: || sliding_backward(),
};

/// Mean over as many windows as `output_size` requests.
pub static ADAPTIVE_AVG_POOL2D: OpDef = OpDef {
    name: "adaptive_avg_pool2d",
    schemas: &[
        "adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor",
        "_adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor",
    ],
    infer: |cx| outputs(cx, Pool::adaptive(cx.shape(0)?, cx)?),
    derivative: Derivative::Rule(|cx: &mut GradCx| gradient(cx, &ADAPTIVE_AVG_POOL2D_BACKWARD)),
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Kernel(|cx, inputs, outs| reference(cx, Pool::adaptive(cx.shape(0)?, cx)?, inputs, outs)),
    cases: || {
        vec![
            Case::new("one").f(&[2, 2, 3, 4]).attr("output_size", [1, 1]),
            Case::new("uneven").f(&[2, 5, 4]).attr("output_size", [3, 2]),
            Case::new("larger than the input").f(&[1, 1, 2, 3]).attr("output_size", [3, 5]),
        ]
    },
};

/// Gradient of [`ADAPTIVE_AVG_POOL2D`]: `(grad_output)` to `input_size`.
pub static ADAPTIVE_AVG_POOL2D_BACKWARD: OpDef = OpDef {
    name: "_adaptive_avg_pool2d_backward",
    schemas: &[
        "headwater::_adaptive_avg_pool2d_backward(Tensor grad_output, *, SymInt[] input_size, SymInt[2] output_size) -> Tensor",
    ],
    infer: |cx| inputs(cx, Pool::adaptive),
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Kernel(|cx, inputs, outs| {
        spread(cx, Pool::adaptive(&cx.sizes("input_size")?, cx)?, inputs, outs)
    }),
    cases: || {
        vec![Case::new("uneven").f(&[2, 3, 2]).attr("output_size", [3, 2]).attr("input_size", [2, 5, 4])]
    },
};

fn sliding(input: impl Fn(Case, &[usize]) -> Case) -> Vec<Case> {
    let pool = |name, shape: &[usize]| input(Case::new(name), shape);
    vec![
        pool("plain", &[2, 1, 4, 6]).attr("kernel_size", [2, 3]),
        pool("padded", &[1, 2, 4, 5])
            .attr("kernel_size", [3, 2])
            .attr("stride", [1, 2])
            .attr("padding", [1, 1]),
        pool("padding not counted", &[1, 1, 4, 5])
            .attr("kernel_size", [3, 2])
            .attr("stride", [2, 2])
            .attr("padding", [1, 1])
            .attr("count_include_pad", false),
        pool("ceil", &[1, 5, 6])
            .attr("kernel_size", [2, 3])
            .attr("stride", [2, 2])
            .attr("padding", [1, 1])
            .attr("ceil_mode", true),
        pool("divisor", &[1, 1, 4, 4]).attr("kernel_size", [2, 2]).attr("divisor_override", 3),
    ]
}

/// The same as cases of the gradient.
fn sliding_backward() -> Vec<Case> {
    sliding(|c, shape| c.f(shape))
        .into_iter()
        .map(|mut c| {
            let ty = c.inputs[0].as_ref().expect("the one input").ty.clone();
            let cx = OpCx { inputs: vec![Some(&ty)], attrs: &c.attrs };
            let out = Pool::sliding(&ty.shape, &cx).expect("a good case").out_shape;
            c.inputs.clear();
            c.f(&out).attr("input_size", ty.shape.to_ints())
        })
        .collect()
}

fn outputs(cx: &OpCx, pool: Pool) -> Result<Vec<TensorType>> {
    let dtype = cx.dtype(0)?;
    ensure!(dtype.is_float(), DType, "average pooling of {} is not supported", cx.ty(0)?);
    ensure!(cx.opt_int("divisor_override")? != Some(0), Attribute, "`divisor_override` must not be 0");
    Ok(vec![TensorType::new(dtype, pool.out_shape)])
}

fn inputs(cx: &OpCx, pool: fn(&Shape, &OpCx) -> Result<Pool>) -> Result<Vec<TensorType>> {
    let (g, size) = (cx.ty(0)?, cx.sizes("input_size")?);
    let want = pool(&size, cx)?.out_shape;
    ensure!(g.dtype.is_float(), DType, "average pooling needs floats, got {g}");
    ensure!(cx.opt_int("divisor_override")? != Some(0), Attribute, "`divisor_override` must not be 0");
    ensure!(g.shape == want, Shape, "{g} where the pooling gives {want}");
    Ok(vec![TensorType::new(g.dtype, size)])
}

fn reference(cx: &OpCx, pool: Pool, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let x = inputs[0].expect("typed").floats();
    let mut y = Vec::with_capacity(outs[0].shape.numel());
    for plane in (0..pool.planes).map(|p| &x[p * pool.input_plane()..]) {
        for (rows, columns) in pool.outputs() {
            let sum: f64 = pool.covered(rows, columns).map(|i| plane[i]).sum();
            y.push(sum / Pool::divisor(cx, rows, columns)?);
        }
    }
    Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), y)])
}

fn spread(cx: &OpCx, pool: Pool, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let mut g = inputs[0].expect("typed").floats().iter();
    let mut dx = vec![0.0; outs[0].shape.numel()];
    for p in 0..pool.planes {
        let plane = &mut dx[p * pool.input_plane()..];
        for (rows, columns) in pool.outputs() {
            let share = g.next().expect("one for each output") / Pool::divisor(cx, rows, columns)?;
            pool.covered(rows, columns).for_each(|i| plane[i] += share);
        }
    }
    Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), dx)])
}

fn gradient(cx: &mut GradCx, backward: &'static OpDef) -> Result<()> {
    let (g, x) = (cx.grad(0)?, cx.x(0)?);
    let attrs: Attrs = cx.attrs().clone().with("input_size", cx.ty(x).shape.to_ints());
    let dx = cx.one(backward, &[g], attrs)?;
    cx.set(0, dx)
}
