//! The largest input of each window.

use super::window::Pool;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::tensor::{Tensor, TensorType};

/// Maximum over sliding windows, and its index in the input plane (`row · W + column`). The first of equals
/// wins; the last NaN wins over everything, as in PyTorch.
pub static MAX_POOL2D: OpDef = OpDef {
    name: "max_pool2d_with_indices",
    schemas: &[
        "max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)",
        "max_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> Tensor",
    ],
    infer: |cx| outputs(cx, Pool::sliding(cx.shape(0)?, cx)?),
    derivative: Derivative::Rule(gradient),
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Kernel(|cx, inputs, outs| reference(Pool::sliding(cx.shape(0)?, cx)?, inputs, outs)),
    cases: || {
        let pool = |name, shape: &[usize]| Case::new(name).distinct(shape);
        vec![
            pool("plain", &[2, 1, 4, 6]).attr("kernel_size", [2, 3]),
            pool("overlapping, padded", &[1, 2, 4, 5])
                .attr("kernel_size", [3, 3])
                .attr("stride", [1, 2])
                .attr("padding", [1, 1]),
            pool("dilated", &[1, 1, 6, 5])
                .attr("kernel_size", [2, 2])
                .attr("stride", [1, 1])
                .attr("dilation", [3, 2])
                .attr("padding", [1, 0]),
            pool("ceil", &[2, 5, 5])
                .attr("kernel_size", [2, 2])
                .attr("stride", [3, 2])
                .attr("ceil_mode", true),
        ]
    },
};

/// Maximum over as many windows as `output_size` requests.
pub static ADAPTIVE_MAX_POOL2D: OpDef = OpDef {
    name: "adaptive_max_pool2d",
    schemas: &["adaptive_max_pool2d(Tensor self, int[2] output_size) -> (Tensor, Tensor)"],
    infer: |cx| outputs(cx, Pool::adaptive(cx.shape(0)?, cx)?),
    derivative: Derivative::Rule(gradient),
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Kernel(|cx, inputs, outs| reference(Pool::adaptive(cx.shape(0)?, cx)?, inputs, outs)),
    cases: || vec![Case::new("uneven").distinct(&[1, 2, 5, 4]).attr("output_size", [3, 2])],
};

/// Gradient of both: `(grad_output, indices)` to `input_size`; each output's gradient goes to the input at
/// its index.
pub static MAX_POOL2D_BACKWARD: OpDef = OpDef {
    name: "max_pool2d_with_indices_backward",
    schemas: &[
        "headwater::max_pool2d_with_indices_backward(Tensor grad_output, Tensor indices, *, SymInt[] input_size) -> Tensor",
    ],
    infer: |cx| {
        let (g, at, input) = (cx.ty(0)?, cx.ty(1)?, cx.sizes("input_size")?);
        let rank = input.rank();
        let fits = rank >= 2
            && g.dtype.is_float()
            && g.shape.rank() == rank
            && g.shape[..rank - 2] == input[..rank - 2];
        ensure!(
            fits && at.shape == g.shape && at.dtype == DType::I64,
            Shape,
            "{g} and {at} do not fit {input}"
        );
        Ok(vec![TensorType::new(g.dtype, input)])
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Kernel(|_, inputs, outs| {
        let (g, at) = (inputs[0].expect("typed"), inputs[1].expect("typed").ints());
        let rank = outs[0].shape.rank();
        let plane = |s: &[usize]| s[rank - 2] * s[rank - 1];
        let (from, to) = (plane(g.shape()), plane(&outs[0].shape));
        let mut dx = vec![0.0; outs[0].shape.numel()];
        for (i, (&g, &at)) in g.floats().iter().zip(at).enumerate() {
            ensure!((0..to as i64).contains(&at), Value, "index {at} in a plane of {to}");
            dx[i / from * to + at as usize] += g;
        }
        Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), dx)])
    }),
    cases: || {
        vec![Case::new("shared").f(&[1, 2, 2, 3]).index(&[1, 2, 2, 3], 12).attr("input_size", [1, 2, 3, 4])]
    },
};

fn outputs(cx: &OpCx, pool: Pool) -> Result<Vec<TensorType>> {
    let dtype = cx.dtype(0)?;
    ensure!(dtype.is_float(), DType, "max pooling of {} is not supported", cx.ty(0)?);
    Ok(vec![TensorType::new(dtype, pool.out_shape.clone()), TensorType::new(DType::I64, pool.out_shape)])
}

fn reference(pool: Pool, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let x = inputs[0].expect("typed").floats();
    let (mut best, mut at) = (Vec::new(), Vec::new());
    for plane in (0..pool.planes).map(|p| &x[p * pool.input_plane()..]) {
        for (rows, columns) in pool.outputs() {
            let mut covered = pool.covered(rows, columns);
            let mut found = covered.next().expect("windows are not empty");
            for i in covered {
                if plane[i] > plane[found] || plane[i].is_nan() {
                    found = i;
                }
            }
            best.push(plane[found]);
            at.push(found as i64);
        }
    }
    Ok(vec![
        Tensor::float(outs[0].dtype, outs[0].shape.clone(), best),
        Tensor::int(DType::I64, outs[1].shape.clone(), at),
    ])
}

fn gradient(cx: &mut GradCx) -> Result<()> {
    let (g, at, x) = (cx.grad(0)?, cx.y(1), cx.x(0)?);
    let attrs = crate::Attrs::new().with("input_size", cx.ty(x).shape.to_ints());
    let dx = cx.one(&MAX_POOL2D_BACKWARD, &[g, at], attrs)?;
    cx.set(0, dx)
}
