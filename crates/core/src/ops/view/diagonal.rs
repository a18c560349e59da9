//! The diagonal of two dimensions.

use super::scatter_gradient;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::expr::Expr;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, View, required};
use crate::shape::{Layout, Shape, wrap_dim};
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// The diagonal `offset` above the main one of dimensions `dim1` and `dim2`, as a new last dimension.
pub static DIAGONAL: OpDef = OpDef {
    name: "diagonal",
    schemas: &[
        "diagonal(Tensor(a) self, int offset=0, int dim1=0, int dim2=1) -> Tensor(a)",
        "linalg_diagonal(Tensor(a) A, *, int offset=0, int dim1=-2, int dim2=-1) -> Tensor(a)",
    ],
    infer: |cx| {
        let (x, d) = (cx.ty(0)?, Diagonal::of(cx)?);
        Ok(vec![d.ty(x)])
    },
    derivative: Derivative::Rule(scatter_gradient),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View {
        layout: |cx, l, _| {
            let d = Diagonal::of(cx)?;
            let kept = (0..l.shape.rank()).filter(|&i| i != d.dim1 && i != d.dim2);
            let (mut shape, mut strides) = (Vec::new(), Vec::new());
            for i in kept {
                shape.push(l.shape[i]);
                strides.push(l.strides[i]);
            }
            shape.push(d.len);
            strides.push(l.strides[d.dim1] + l.strides[d.dim2]);
            let offset =
                l.offset + d.row as isize * l.strides[d.dim1] + d.column as isize * l.strides[d.dim2];
            Ok(Some(Layout { shape: shape.into(), strides: strides.into(), offset }))
        },
        scatter: Some(|b, cx, base, new, _| {
            let attrs = cx.attrs.clone();
            b.one(&DIAGONAL_SCATTER, &[base, new], attrs)
        }),
    }),
    cases: || {
        vec![
            Case::new("main").f(&[3, 4]),
            Case::new("above, other dimensions")
                .f(&[3, 2, 4])
                .attr("offset", 1)
                .attr("dim1", 0)
                .attr("dim2", -1),
            Case::new("below").f(&[4, 3]).attr("offset", -2),
        ]
    },
};

/// `self` with that diagonal replaced by `src`: built of masks, since a diagonal is no box.
pub static DIAGONAL_SCATTER: OpDef = OpDef {
    name: "diagonal_scatter",
    schemas: &["diagonal_scatter(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> Tensor"],
    infer: |cx| {
        let (x, src) = (cx.ty(0)?, cx.ty(1)?);
        crate::ensure!(x.dtype == src.dtype, DType, "{src} cannot be written into {x}");
        let diagonal = Diagonal::of(cx)?.ty(x);
        crate::ensure!(*src == diagonal, Shape, "the diagonal of {x} is {diagonal}, not {src}");
        Ok(vec![x.clone()])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| {
        let (Some(base), Some(src)) = (inputs[0], inputs[1]) else {
            return Err(crate::fail!(Attribute, "an input is missing"));
        };
        let d = Diagonal::of(cx)?;
        let x = cx.shape(0)?;
        // The source spread along the rows of the diagonal: pad it to the size of `dim1`, at its first row.
        let rank = x.rank();
        let src_shape = b.ty(src).shape.clone();
        let mut padded_shape = src_shape.to_vec();
        padded_shape[rank - 2] = x[d.dim1];
        let zeros = {
            let ty = TensorType::new(b.ty(src).dtype, padded_shape);
            b.full(&ty, 0.0)?
        };
        let attrs = super::slice_attrs(rank - 2, d.row, d.row + d.len);
        let padded = b.one(&super::slice::SLICE_SCATTER, &[zeros, src], attrs)?;
        // Bring `dim1` back to its place, `dim2` as 1.
        let kept: Vec<usize> = (0..rank).filter(|&i| i != d.dim1 && i != d.dim2).collect();
        let mut shape = b.ty(padded).shape.to_vec();
        shape.push(1);
        let spread = b.reshape(padded, &shape)?;
        let from = |i: usize| match i {
            i if i == d.dim1 => rank - 2,
            i if i == d.dim2 => rank - 1,
            i => kept.iter().position(|&k| k == i).unwrap_or(0),
        };
        let order: Vec<usize> = (0..rank).map(from).collect();
        let spread = b.permute(spread, &order)?;
        b.one(&DIAGONAL_SELECT, &[base, spread], cx.attrs.clone()).map(|v| vec![v])
    }),
    cases: || vec![Case::new("above").f(&[3, 4]).f(&[3]).attr("offset", 1).attr("dim1", 0).attr("dim2", 1)],
};

/// Matrices of zeros with the last dimension of `self` on the diagonal `offset`; their rows and columns are
/// dimensions `dim1` and `dim2` of the result.
pub static DIAG_EMBED: OpDef = OpDef {
    name: "diag_embed",
    schemas: &[
        "diag_embed(Tensor self, int offset=0, int dim1=-2, int dim2=-1) -> Tensor",
        "diag(Tensor self, int diagonal=0) -> Tensor",
    ],
    infer: |cx| {
        let x = cx.ty(0)?;
        if let Some(attrs) = of_matrix(cx)? {
            return (DIAGONAL.infer)(&OpCx { inputs: vec![Some(x)], attrs: &attrs });
        }
        Ok(vec![TensorType::new(x.dtype, embedded(cx)?.0)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| {
        let x = required(inputs, 0)?;
        if let Some(attrs) = of_matrix(cx)? {
            return Ok(vec![b.one(&DIAGONAL, &[x], attrs)?]);
        }
        let (shape, attrs) = embedded(cx)?;
        let zeros = b.full(&TensorType::new(cx.dtype(0)?, shape), 0.0)?;
        Ok(vec![b.one(&DIAGONAL_SCATTER, &[zeros, x], attrs)?])
    }),
    cases: || {
        vec![
            Case::new("last").f(&[2, 3]).attr("offset", 0).attr("dim1", -2).attr("dim2", -1),
            Case::new("below, other dimensions")
                .f(&[2, 3])
                .attr("offset", -1)
                .attr("dim1", 2)
                .attr("dim2", 0),
            Case::new("diag of a vector").f(&[3]).attr("diagonal", 1),
            Case::new("diag of a matrix").f(&[3, 2]).attr("diagonal", -1),
        ]
    },
};

/// All elements as a diagonal, `offset` above the main one.
pub static DIAGFLAT: OpDef = OpDef {
    name: "diagflat",
    schemas: &["diagflat(Tensor self, int offset=0) -> Tensor"],
    infer: |cx| {
        let line = TensorType::new(cx.dtype(0)?, [cx.shape(0)?.numel()]);
        let attrs = Attrs::new().with("offset", cx.opt_int("offset")?.unwrap_or(0));
        (DIAG_EMBED.infer)(&OpCx { inputs: vec![Some(&line)], attrs: &attrs })
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| {
        let x = b.reshape(required(inputs, 0)?, &[cx.shape(0)?.numel()])?;
        let attrs = Attrs::new().with("offset", cx.opt_int("offset")?.unwrap_or(0));
        Ok(vec![b.one(&DIAG_EMBED, &[x], attrs)?])
    }),
    cases: || {
        vec![Case::new("matrix").f(&[2, 2]).attr("offset", 1), Case::new("scalar").f(&[]).attr("offset", 0)]
    },
};

/// The attributes of the diagonal that `diag` takes of a matrix.
fn of_matrix(cx: &OpCx) -> Result<Option<Attrs>> {
    let Some(offset) = cx.opt_int("diagonal")? else { return Ok(None) };
    let rank = cx.shape(0)?.rank();
    ensure!((1..=2).contains(&rank), Shape, "`diag` takes a vector or a matrix, got {}", cx.ty(0)?);
    Ok((rank == 2).then(|| Attrs::new().with("offset", offset).with("dim1", 0).with("dim2", 1)))
}

/// Shape of the matrices that hold a diagonal, and the attributes that name it.
fn embedded(cx: &OpCx) -> Result<(Shape, Attrs)> {
    let x = cx.shape(0)?;
    let (n, lead) = x.split_last().ok_or_else(|| fail!(Shape, "a scalar is no diagonal"))?;
    let wrap = |name: &str, default: i64| {
        let d = cx.opt_int(name)?.unwrap_or(default);
        wrap_dim(d, x.rank() + 1)
            .ok_or_else(|| fail!(Attribute, "`{name}` = {d} is out of range for the matrices of {x}"))
    };
    let (dim1, dim2) = (wrap("dim1", -2)?, wrap("dim2", -1)?);
    ensure!(dim1 != dim2, Attribute, "a diagonal needs two dimensions, got {dim1} twice");
    let offset = cx.opt_int("offset")?.or(cx.opt_int("diagonal")?).unwrap_or(0);
    let beside = usize::try_from(offset.unsigned_abs()).ok();
    let size = beside.and_then(|o| o.checked_add(*n));
    let size = size.ok_or_else(|| fail!(Size, "`offset` {offset} is beyond what memory can hold"))?;
    let mut rest = lead.iter().copied();
    let at = |d| if d == dim1 || d == dim2 { size } else { rest.next().unwrap_or(1) };
    let shape: Shape = (0..x.rank() + 1).map(at).collect();
    ensure!(shape.checked_numel().is_some(), Size, "{shape} is larger than memory can be");
    let attrs = Attrs::new().with("offset", offset).with("dim1", dim1 as i64).with("dim2", dim2 as i64);
    Ok((shape, attrs))
}

/// `(self, other)`: `other` on the diagonal, `self` elsewhere.
pub static DIAGONAL_SELECT: OpDef = OpDef {
    name: "diagonal_select",
    schemas: &[
        "headwater::diagonal_select(Tensor self, Tensor other, int offset=0, int dim1=0, int dim2=1) -> Tensor",
    ],
    infer: |cx| {
        let (x, other) = (cx.ty(0)?, cx.ty(1)?);
        Diagonal::of(cx)?;
        crate::ensure!(x.dtype == other.dtype, DType, "{other} cannot be written into {x}");
        let fits = x.shape.broadcast(&other.shape).is_some_and(|s| s == x.shape);
        crate::ensure!(fits, Shape, "{other} is not broadcast to {x}");
        Ok(vec![x.clone()])
    },
    derivative: Derivative::Rule(|cx| {
        let (g, attrs, types) = (cx.grad(0)?, cx.attrs().clone(), cx.types());
        let ty = types[0].clone().ok_or_else(|| crate::fail!(Attribute, "an input is missing"))?;
        let zeros = cx.full(&ty, 0.0)?;
        let off = cx.one(&DIAGONAL_SELECT, &[g, zeros], attrs.clone())?;
        let on = cx.one(&DIAGONAL_SELECT, &[zeros, g], attrs)?;
        cx.set(0, off)?;
        cx.set(1, on)
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| {
        let d = Diagonal::of(cx)?;
        let column = Expr::Coord(d.dim2) + Expr::Int(d.row as i64);
        let on = column.eq(Expr::Coord(d.dim1) + Expr::Int(d.column as i64));
        Ok(vec![on.select(Expr::Input(1), Expr::Input(0))])
    }),
    cases: || {
        vec![Case::new("below").f(&[4, 3]).f(&[4, 1]).attr("offset", -1).attr("dim1", 0).attr("dim2", 1)]
    },
};

/// A diagonal, resolved: its two dimensions, where it starts and how long it is.
struct Diagonal {
    dim1: usize,
    dim2: usize,
    row: usize,
    column: usize,
    len: usize,
}

impl Diagonal {
    /// Type of the diagonal of `x`.
    fn ty(&self, x: &TensorType) -> TensorType {
        let rest = (0..x.shape.rank()).filter(|&i| i != self.dim1 && i != self.dim2);
        TensorType::new(x.dtype, rest.map(|i| x.shape[i]).chain([self.len]).collect::<Vec<_>>())
    }

    fn of(cx: &OpCx) -> Result<Diagonal> {
        let x = cx.shape(0)?;
        let wrap = |name: &str, default: i64| -> Result<usize> {
            let d = cx.opt_int(name)?.unwrap_or(default);
            crate::shape::wrap_dim(d, x.rank())
                .filter(|&d| d < x.rank())
                .ok_or_else(|| crate::fail!(Attribute, "`{name}` = {d} is out of range for {x}"))
        };
        let (dim1, dim2) = (wrap("dim1", 0)?, wrap("dim2", 1)?);
        ensure!(dim1 != dim2, Attribute, "a diagonal needs two dimensions, got {dim1} twice");
        let offset = cx.opt_int("offset")?.unwrap_or(0);
        let size = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
        let (row, column) = if offset < 0 { (size, 0) } else { (0, size) };
        let len = x[dim1].saturating_sub(row).min(x[dim2].saturating_sub(column));
        // An empty diagonal starts nowhere.
        let (row, column) = if len == 0 { (0, 0) } else { (row, column) };
        Ok(Diagonal { dim1, dim2, row, column, len })
    }
}
