//! Operators that show the same memory under another layout.

use crate::attr::Attrs;
use crate::diagnostic::{Code, Error, Result};
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, GradCx, OpCx};
use crate::shape::Layout;

operators! {
    alias: ALIAS;
    as_strided: AS_STRIDED, AS_STRIDED_BACKWARD;
    clone: CLONE;
    diagonal: DIAGONAL, DIAGONAL_SCATTER, DIAG_EMBED, DIAGFLAT, DIAGONAL_SELECT;
    expand: EXPAND;
    expand_as: EXPAND_AS;
    flatten: FLATTEN;
    movedim: MOVEDIM;
    narrow: NARROW;
    permute: PERMUTE;
    reshape: RESHAPE;
    reshape_as: RESHAPE_AS;
    select: SELECT, SELECT_SCATTER;
    slice: SLICE, SLICE_SCATTER;
    split: SPLIT, SPLIT_WITH_SIZES, CHUNK, TENSOR_SPLIT, VSPLIT, HSPLIT, DSPLIT, UNBIND;
    squeeze: SQUEEZE;
    transpose: TRANSPOSE, M_T;
    unflatten: UNFLATTEN;
    unfold: UNFOLD, UNFOLD_BACKWARD;
    unsqueeze: UNSQUEEZE;
}

/// Gradient of an operator that only changes the shape.
fn reshape_gradient(cx: &mut GradCx) -> Result<()> {
    let (g, x) = (cx.grad(0)?, cx.x(0)?);
    let shape = cx.ty(x).shape.clone();
    let dx = cx.reshape(g, &shape)?;
    cx.set(0, dx)
}

/// Writing through an operator that only changes the shape.
fn reshape_back(b: &mut Builder, cx: &OpCx, _: ValueId, new: ValueId, _: usize) -> Result<ValueId> {
    b.reshape(new, cx.shape(0)?)
}

/// The dimensions of a layout reordered.
fn permuted(l: &Layout, dims: &[usize]) -> Layout {
    Layout {
        shape: dims.iter().map(|&d| l.shape[d]).collect(),
        strides: dims.iter().map(|&d| l.strides[d]).collect(),
        offset: l.offset,
    }
}

/// The order that undoes `dims`.
fn inverse(dims: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; dims.len()];
    dims.iter().enumerate().for_each(|(i, &d)| inverse[d] = i);
    inverse
}

/// Gradient of an operator that reorders dimensions as `dims` says.
fn permute_gradient(cx: &mut GradCx, dims: fn(&OpCx) -> Result<Vec<usize>>) -> Result<()> {
    let (g, types) = (cx.grad(0)?, cx.types());
    let order = dims(&OpCx { inputs: types.iter().map(Option::as_ref).collect(), attrs: cx.attrs() })?;
    let dx = cx.permute(g, &inverse(&order))?;
    cx.set(0, dx)
}

/// Gradient of a view of one result: that result's gradient written through the view into zeros.
fn scatter_gradient(cx: &mut GradCx) -> Result<()> {
    let Body::View(view) = cx.op().body else { return Err(Error::new(Code::Graph, "not a view")) };
    let scatter = view.scatter.ok_or_else(|| Error::new(Code::Graph, "a view that cannot be written"))?;
    let (g, types, x) = (cx.grad(0)?, cx.types(), cx.x(0)?);
    let of = OpCx { inputs: types.iter().map(Option::as_ref).collect(), attrs: cx.attrs() };
    let ty = cx.ty(x).clone();
    let zeros = cx.full(&ty, 0.0)?;
    let dx = scatter(cx, &of, zeros, g, 0)?;
    cx.set(0, dx)
}

/// Attributes of a slice of one dimension.
pub(crate) fn slice_attrs(dim: usize, start: usize, end: usize) -> Attrs {
    Attrs::new().with("dim", dim as i64).with("start", start as i64).with("end", end as i64).with("step", 1)
}

/// The layout of indices `start..start + len` along a dimension.
fn narrowed(l: &Layout, dim: usize, start: usize, len: usize) -> Layout {
    let mut l = l.clone();
    let mut shape = l.shape.to_vec();
    shape[dim] = len;
    l.offset += start as isize * l.strides[dim];
    l.shape = shape.into();
    l
}
