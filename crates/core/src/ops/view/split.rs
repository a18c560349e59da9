//! A tensor divided along a dimension: by size, by sizes, into chunks, into single indices.

use super::narrowed;
use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, View};
use crate::shape::{Layout, wrap_dim};
use crate::tensor::TensorType;
use crate::{Attrs, ensure, fail};

/// Parts of size `split_size`, the last one what remains.
pub static SPLIT: OpDef = OpDef {
    name: "split",
    schemas: &[
        "split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]",
        "unsafe_split.Tensor(Tensor self, SymInt split_size, int dim=0) -> Tensor[]",
    ],
    infer: |cx| parts(cx, by_size(cx)?, false),
    derivative: Derivative::Rule(|cx| gradient(cx, by_size)),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View {
        layout: |cx, l, i| layout(cx, l, &by_size(cx)?, i),
        scatter: Some(|b, cx, base, new, i| scatter(b, cx, base, new, &by_size(cx)?, i)),
    }),
    cases: || vec![Case::new("rest").f(&[5, 2]).attr("split_size", 2).attr("dim", 0)],
};

/// Parts of the sizes `split_sizes`.
pub static SPLIT_WITH_SIZES: OpDef = OpDef {
    name: "split_with_sizes",
    schemas: &[
        "split_with_sizes(Tensor(a -> *) self, SymInt[] split_sizes, int dim=0) -> Tensor(a)[]",
        "unsafe_split_with_sizes(Tensor self, SymInt[] split_sizes, int dim=0) -> Tensor[]",
        "split.sizes(Tensor(a -> *) self, SymInt[] split_size, int dim=0) -> Tensor(a)[]",
    ],
    infer: |cx| parts(cx, by_sizes(cx)?, false),
    derivative: Derivative::Rule(|cx| gradient(cx, by_sizes)),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View {
        layout: |cx, l, i| layout(cx, l, &by_sizes(cx)?, i),
        scatter: Some(|b, cx, base, new, i| scatter(b, cx, base, new, &by_sizes(cx)?, i)),
    }),
    cases: || vec![Case::new("uneven").f(&[2, 5]).attr("split_sizes", [1, 0, 4]).attr("dim", -1)],
};

/// At most `chunks` parts of equal size, the last one smaller if need be.
pub static CHUNK: OpDef = OpDef {
    name: "chunk",
    schemas: &[
        "chunk(Tensor(a -> *) self, int chunks, int dim=0) -> Tensor(a)[]",
        "unsafe_chunk(Tensor self, int chunks, int dim=0) -> Tensor[]",
    ],
    infer: |cx| parts(cx, by_chunks(cx)?, false),
    derivative: Derivative::Rule(|cx| gradient(cx, by_chunks)),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View {
        layout: |cx, l, i| layout(cx, l, &by_chunks(cx)?, i),
        scatter: Some(|b, cx, base, new, i| scatter(b, cx, base, new, &by_chunks(cx)?, i)),
    }),
    cases: || vec![Case::new("three of seven").f(&[7, 2]).attr("chunks", 3).attr("dim", 0)],
};

/// `sections` parts as equal as can be, or parts that end at `indices`.
pub static TENSOR_SPLIT: OpDef = OpDef {
    name: "tensor_split",
    schemas: &[
        "tensor_split.sections(Tensor(a -> *) self, SymInt sections, int dim=0) -> Tensor(a)[]",
        "tensor_split.indices(Tensor(a -> *) self, SymInt[] indices, int dim=0) -> Tensor(a)[]",
    ],
    infer: |cx| parts(cx, by_sections(cx)?, false),
    derivative: Derivative::Rule(|cx| gradient(cx, by_sections)),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View {
        layout: |cx, l, i| layout(cx, l, &by_sections(cx)?, i),
        scatter: Some(|b, cx, base, new, i| scatter(b, cx, base, new, &by_sections(cx)?, i)),
    }),
    cases: || {
        vec![
            Case::new("three of seven").f(&[7, 2]).attr("sections", 3).attr("dim", 0),
            Case::new("at indices").f(&[2, 6]).attr("indices", [1, 1, -2]).attr("dim", 1),
        ]
    },
};

/// Parts along dimension 0: `sections` of equal size, or those that end at `indices`.
pub static VSPLIT: OpDef = OpDef {
    name: "vsplit",
    schemas: &[
        "vsplit.int(Tensor(a -> *) self, int sections) -> Tensor(a)[]",
        "vsplit.array(Tensor(a -> *) self, int[] indices) -> Tensor(a)[]",
    ],
    infer: |cx| (TENSOR_SPLIT.infer)(&OpCx { inputs: cx.inputs.clone(), attrs: &along(cx, 0)? }),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| b.apply(&TENSOR_SPLIT, inputs, along(cx, 0)?)),
    cases: || vec![Case::new("halves").f(&[4, 2]).attr("sections", 2)],
};

/// Parts along dimension 1, of a vector along its own.
pub static HSPLIT: OpDef = OpDef {
    name: "hsplit",
    schemas: &[
        "hsplit.int(Tensor(a -> *) self, int sections) -> Tensor(a)[]",
        "hsplit.array(Tensor(a -> *) self, int[] indices) -> Tensor(a)[]",
    ],
    infer: |cx| (TENSOR_SPLIT.infer)(&OpCx { inputs: cx.inputs.clone(), attrs: &along(cx, 1)? }),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| b.apply(&TENSOR_SPLIT, inputs, along(cx, 1)?)),
    cases: || {
        vec![
            Case::new("thirds").f(&[2, 6]).attr("sections", 3),
            Case::new("vector, at indices").f(&[5]).attr("indices", [1, 3]),
        ]
    },
};

/// Parts along dimension 2.
pub static DSPLIT: OpDef = OpDef {
    name: "dsplit",
    schemas: &[
        "dsplit.int(Tensor(a -> *) self, int sections) -> Tensor(a)[]",
        "dsplit.array(Tensor(a -> *) self, int[] indices) -> Tensor(a)[]",
    ],
    infer: |cx| (TENSOR_SPLIT.infer)(&OpCx { inputs: cx.inputs.clone(), attrs: &along(cx, 2)? }),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| b.apply(&TENSOR_SPLIT, inputs, along(cx, 2)?)),
    cases: || vec![Case::new("halves").f(&[1, 2, 4]).attr("sections", 2)],
};

/// Every index of a dimension by itself, the dimension dropped.
pub static UNBIND: OpDef = OpDef {
    name: "unbind",
    schemas: &["unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]"],
    infer: |cx| parts(cx, by_index(cx)?, true),
    derivative: Derivative::Rule(|cx| gradient(cx, by_index)),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View {
        layout: |cx, l, i| {
            let dim = dim(cx)?;
            let part = layout(cx, l, &by_index(cx)?, i)?;
            Ok(part.map(|mut l| {
                let mut shape = l.shape.to_vec();
                shape.remove(dim);
                l.strides.remove(dim);
                l.shape = shape.into();
                l
            }))
        },
        scatter: Some(|b, cx, base, new, i| {
            let mut shape = cx.shape(0)?.to_vec();
            shape[dim(cx)?] = 1;
            let new = b.reshape(new, &shape)?;
            scatter(b, cx, base, new, &by_index(cx)?, i)
        }),
    }),
    cases: || vec![Case::new("columns").f(&[2, 3]).attr("dim", 1)],
};

/// Attributes of the [`TENSOR_SPLIT`] along a dimension by its place. Sections are equal there.
fn along(cx: &OpCx, place: usize) -> Result<Attrs> {
    let x = cx.shape(0)?;
    let dim = if place == 1 && x.rank() == 1 { 0 } else { place };
    // The parts of rows and columns are those of a matrix at least.
    let least = if place == 0 { 1 } else { dim };
    ensure!(x.rank() > least, Shape, "{} has too few dimensions to be divided so", cx.ty(0)?);
    if cx.opt_ints("indices")?.is_none() {
        let sections = cx.size("sections")?;
        let equal = sections > 0 && x[dim].is_multiple_of(sections);
        ensure!(equal, Attribute, "{} in {sections} equal sections", x[dim]);
    }
    Ok(cx.attrs.clone().with("dim", dim as i64))
}

fn dim(cx: &OpCx) -> Result<usize> {
    let x = cx.shape(0)?;
    ensure!(x.rank() > 0, Shape, "a scalar cannot be divided");
    let d = cx.opt_int("dim")?.unwrap_or(0);
    wrap_dim(d, x.rank()).ok_or_else(|| fail!(Attribute, "`dim` = {d} is out of range for {x}"))
}

fn of_size(total: usize, size: usize) -> Result<Vec<usize>> {
    if total == 0 {
        return Ok(vec![0]);
    }
    let count = checked(total.div_ceil(size))?;
    Ok((0..count).map(|i| size.min(total - i * size)).collect())
}

/// A number of parts that a graph can hold as values.
fn checked(count: usize) -> Result<usize> {
    ensure!(count <= 1 << 16, Size, "{count} parts, more than 65536");
    Ok(count)
}

fn by_size(cx: &OpCx) -> Result<Vec<usize>> {
    let (total, size) = (cx.shape(0)?[dim(cx)?], cx.size("split_size")?);
    ensure!(size > 0 || total == 0, Attribute, "`split_size` must be positive");
    of_size(total, size)
}

fn by_sizes(cx: &OpCx) -> Result<Vec<usize>> {
    let name = if cx.attrs.get("split_sizes").is_some() { "split_sizes" } else { "split_size" };
    let total = cx.shape(0)?[dim(cx)?];
    let sizes = cx.sizes(name)?.to_vec();
    ensure!(sizes.iter().sum::<usize>() == total, Shape, "sizes {sizes:?} do not add up to {total}");
    Ok(sizes)
}

fn by_chunks(cx: &OpCx) -> Result<Vec<usize>> {
    let (total, chunks) = (cx.shape(0)?[dim(cx)?], cx.size("chunks")?);
    ensure!(chunks > 0, Attribute, "`chunks` must be positive");
    if total == 0 {
        return Ok(vec![0; checked(chunks)?]);
    }
    of_size(total, total.div_ceil(chunks))
}

fn by_sections(cx: &OpCx) -> Result<Vec<usize>> {
    let total = cx.shape(0)?[dim(cx)?];
    let Some(indices) = cx.opt_ints("indices")? else {
        let sections = checked(cx.size("sections")?)?;
        ensure!(sections > 0, Attribute, "`sections` must be positive");
        return Ok((0..sections).map(|i| total / sections + (i < total % sections) as usize).collect());
    };
    checked(indices.len())?;
    let n = total as i64;
    let clamped = indices.iter().map(|&i| (if i < 0 { i.saturating_add(n) } else { i }).clamp(0, n) as usize);
    let ends: Vec<usize> = clamped.chain([total]).collect();
    let starts = [0].into_iter().chain(ends.iter().copied());
    let sizes: Option<Vec<usize>> =
        ends.iter().zip(starts).map(|(end, start)| end.checked_sub(start)).collect();
    sizes.ok_or_else(|| fail!(Unsupported, "`indices` = {indices:?} overlap"))
}

fn by_index(cx: &OpCx) -> Result<Vec<usize>> {
    Ok(vec![1; checked(cx.shape(0)?[dim(cx)?])?])
}

fn parts(cx: &OpCx, sizes: Vec<usize>, dropped: bool) -> Result<Vec<TensorType>> {
    let (x, dim) = (cx.ty(0)?, dim(cx)?);
    let part = |n: usize| {
        let mut shape = x.shape.to_vec();
        shape[dim] = n;
        if dropped {
            shape.remove(dim);
        }
        TensorType::new(x.dtype, shape)
    };
    Ok(sizes.into_iter().map(part).collect())
}

fn start(sizes: &[usize], i: usize) -> usize {
    sizes[..i].iter().sum()
}

fn layout(cx: &OpCx, l: &Layout, sizes: &[usize], i: usize) -> Result<Option<Layout>> {
    Ok(Some(narrowed(l, dim(cx)?, start(sizes, i), sizes[i])))
}

fn scatter(
    b: &mut Builder,
    cx: &OpCx,
    base: ValueId,
    new: ValueId,
    sizes: &[usize],
    i: usize,
) -> Result<ValueId> {
    let from = start(sizes, i);
    b.one(&super::slice::SLICE_SCATTER, &[base, new], super::slice_attrs(dim(cx)?, from, from + sizes[i]))
}

/// The parts' gradients joined again, zeros where none flows.
fn gradient(cx: &mut GradCx, sizes: fn(&OpCx) -> Result<Vec<usize>>) -> Result<()> {
    let types = cx.types();
    let of = OpCx { inputs: types.iter().map(Option::as_ref).collect(), attrs: cx.attrs() };
    let (dim, sizes, x) = (dim(&of)?, sizes(&of)?, of.ty(0)?);
    let mut grads = Vec::with_capacity(sizes.len());
    for (i, &n) in sizes.iter().enumerate() {
        let g = cx.grad(i)?;
        let mut shape = x.shape.to_vec();
        shape[dim] = n;
        grads.push(cx.reshape(g, &shape)?);
    }
    let dx = match grads[..] {
        [] => cx.full(x, 0.0)?,
        [only] => only,
        _ => cx.one(&crate::ops::movement::cat::CAT, &grads, Attrs::new().with("dim", dim as i64))?,
    };
    cx.set(0, dx)
}
