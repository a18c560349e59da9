//! Windows that slide along a dimension.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, View};
use crate::shape::Layout;
use crate::tensor::{Tensor, TensorType};

/// Every window of `size` indices of `dimension`, one each `step`; the windows' content is a new last
/// dimension.
pub static UNFOLD: OpDef = OpDef {
    name: "unfold",
    schemas: &["unfold(Tensor(a) self, int dimension, int size, int step) -> Tensor(a)"],
    infer: |cx| {
        let x = cx.ty(0)?;
        Ok(vec![TensorType::new(
            x.dtype,
            Windows::of(cx, "dimension", &x.shape)?.layout(&Layout::contiguous(&x.shape)).shape,
        )])
    },
    derivative: Derivative::Rule(|cx| {
        let (g, args) = (cx.grad(0)?, cx.args());
        let sizes = cx.of(|of| of.shape(0).map(|s| s.to_ints()))?;
        let attrs = Attrs::new().with("input_sizes", sizes).with("dim", args.int("dimension")?);
        let attrs = attrs.with("size", args.int("size")?).with("step", args.int("step")?);
        let dx = cx.one(&UNFOLD_BACKWARD, &[g], attrs)?;
        cx.set(0, dx)
    }),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View {
        layout: |cx, l, _| Ok(Some(Windows::of(cx, "dimension", &l.shape)?.layout(l))),
        // Windows overlap: one element may be written twice.
        scatter: None,
    }),
    cases: || {
        vec![
            Case::new("overlapping").f(&[2, 7]).attr("dimension", 1).attr("size", 3).attr("step", 2),
            Case::new("first dimension").f(&[5, 2]).attr("dimension", 0).attr("size", 2).attr("step", 3),
            Case::new("scalar").f(&[]).attr("dimension", 0).attr("size", 1).attr("step", 1),
        ]
    },
};

/// Gradient of [`UNFOLD`]: every element of `grad_in` added where it was taken from, in a tensor of
/// `input_sizes`.
pub static UNFOLD_BACKWARD: OpDef = OpDef {
    name: "unfold_backward",
    schemas: &[
        "unfold_backward(Tensor grad_in, SymInt[] input_sizes, int dim, int size, int step) -> Tensor",
    ],
    infer: |cx| {
        let (g, sizes) = (cx.ty(0)?, cx.sizes("input_sizes")?);
        ensure!(g.dtype.is_float(), DType, "a gradient is a float, got {g}");
        let want = Windows::of(cx, "dim", &sizes)?.layout(&Layout::contiguous(&sizes)).shape;
        ensure!(g.shape == want, Shape, "{g} are not the windows of {sizes}, which are {want}");
        Ok(vec![TensorType::new(g.dtype, sizes)])
    },
    derivative: Derivative::Rule(|cx| {
        let (g, args) = (cx.grad(0)?, cx.args());
        let attrs = Attrs::new().with("dimension", args.int("dim")?).with("size", args.int("size")?);
        let dx = cx.one(&UNFOLD, &[g], attrs.with("step", args.int("step")?))?;
        cx.set(0, dx)
    }),
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Kernel(|cx, inputs, outs| {
        let windows = Windows::of(cx, "dim", &outs[0].shape)?;
        Ok(vec![add_through(&windows.layout(&Layout::contiguous(&outs[0].shape)), inputs, &outs[0])?])
    }),
    cases: || {
        vec![
            Case::new("overlapping")
                .f(&[2, 3, 3])
                .attr("input_sizes", [2, 7])
                .attr("dim", 1)
                .attr("size", 3)
                .attr("step", 2),
        ]
    },
};

/// The elements of input 0 added to zeros where `layout` places them.
pub fn add_through(layout: &Layout, inputs: &[Option<&Tensor>], out: &TensorType) -> Result<Tensor> {
    let g = inputs[0].ok_or_else(|| crate::fail!(Attribute, "input 0 is missing"))?;
    let mut sums = vec![0.0; out.shape.numel()];
    for (at, g) in layout.offsets().into_iter().zip(g.floats()) {
        sums[at as usize] += g;
    }
    Ok(Tensor::float(out.dtype, out.shape.clone(), sums))
}

struct Windows {
    /// `None` for a scalar, whose one dimension does not exist in its shape.
    dim: Option<usize>,
    size: usize,
    step: usize,
    count: usize,
}

impl Windows {
    fn of(cx: &OpCx, name: &str, shape: &[usize]) -> Result<Windows> {
        let (dim, size, step) = (cx.dim(name, shape.len())?, cx.size("size")?, cx.size("step")?);
        let dim = (!shape.is_empty()).then_some(dim);
        let n = dim.map_or(1, |d| shape[d]);
        ensure!(step > 0, Attribute, "`step` must be positive");
        ensure!(size <= n, Attribute, "windows of {size} do not fit a dimension of {n}");
        Ok(Windows { dim, size, step, count: (n - size) / step + 1 })
    }

    fn layout(&self, l: &Layout) -> Layout {
        let (mut shape, mut strides) = (l.shape.to_vec(), l.strides.clone());
        let stride = self.dim.map_or(1, |d| strides[d]);
        if let Some(d) = self.dim {
            shape[d] = self.count;
            strides[d] = stride.saturating_mul(self.step as isize);
        }
        shape.push(self.size);
        strides.push(stride);
        Layout { shape: shape.into(), strides, offset: l.offset }
    }
}
