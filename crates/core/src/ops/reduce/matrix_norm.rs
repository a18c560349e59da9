//! Norms of matrices, and the call that takes vectors or matrices.

use super::{amax::AMAX, amax::AMIN, sum::SUM, vector_norm::VECTOR_NORM};
use crate::attr::{Attr, Attrs};
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, ValueId};
use crate::ops::linalg::svdvals::SVDVALS;
use crate::ops::pointwise::abs::ABS;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::wrap_dim;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// A norm over the two dimensions `dim`: `ord` "fro" the root of the sum of squares, "nuc" the sum of the
/// singular values, 2 and −2 the largest and the smallest of them; 1 and −1 the largest and smallest sum of
/// magnitudes of a column, inf and −inf of a row.
pub static LINALG_MATRIX_NORM: OpDef = OpDef {
    name: "linalg_matrix_norm",
    schemas: &[
        "linalg_matrix_norm(Tensor self, Scalar ord, int[] dim=[-2,-1], bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        "linalg_matrix_norm.str_ord(Tensor self, str ord='fro', int[] dim=[-2,-1], bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    ],
    infer: |cx| result(cx, Some(matrix_dims(cx)?)),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(3),
    body: Body::Decompose(|b, cx, inputs| {
        let x = b.cast(required(inputs, 0)?, dtype(cx)?)?;
        let dims = matrix_dims(cx)?;
        Ok(vec![matrix(b, x, Order::of(cx)?.unwrap_or(Order::Frobenius), dims, cx.flag("keepdim")?)?])
    }),
    cases: || {
        let case = |name| Case::new(name).distinct(&[2, 3, 4]).attr("dim", [-2, -1]);
        vec![
            case("frobenius").attr("ord", "fro"),
            case("columns").attr("ord", 1),
            case("rows, least, kept").attr("ord", f64::NEG_INFINITY).attr("keepdim", true),
            Case::new("outer dimensions").distinct(&[3, 2, 4]).attr("ord", f64::INFINITY).attr("dim", [2, 0]),
            case("nuclear").attr("ord", "nuc"),
            case("spectral, kept").attr("ord", 2).attr("keepdim", true),
        ]
    },
};

/// The norm of vectors along the one dimension `dim`, of matrices over two, or without `dim` of all elements,
/// which with an `ord` are a vector or a matrix.
pub static LINALG_NORM: OpDef = OpDef {
    name: "linalg_norm",
    schemas: &[
        "linalg_norm(Tensor self, Scalar? ord=None, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        "linalg_norm.ord_str(Tensor self, str ord, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    ],
    infer: |cx| result(cx, matrices(cx)?),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(3),
    body: Body::Decompose(|b, cx, inputs| {
        let x = b.cast(required(inputs, 0)?, dtype(cx)?)?;
        let keep = cx.flag("keepdim")?;
        if let Some(dims) = matrices(cx)? {
            return Ok(vec![matrix(b, x, Order::of(cx)?.unwrap_or(Order::Frobenius), dims, keep)?]);
        }
        let ord = match Order::of(cx)? {
            Some(Order::Number(p)) => p,
            _ => 2.0,
        };
        let mut attrs = Attrs::new().with("ord", ord).with("keepdim", keep);
        if let Some(dim) = cx.opt_ints("dim")? {
            attrs.set("dim", dim);
        }
        Ok(vec![b.one(&VECTOR_NORM, &[x], attrs)?])
    }),
    cases: || {
        let case = |name| Case::new(name).distinct(&[2, 3]);
        vec![
            case("all"),
            case("rows").attr("dim", [-1]).attr("keepdim", true),
            case("cubic").attr("ord", 3.0).attr("dim", [0]),
            case("matrix").attr("ord", 1),
            case("frobenius").attr("ord", "fro"),
            Case::new("vector").distinct(&[3]).attr("ord", 1.0),
        ]
    },
};

enum Order {
    Frobenius,
    Nuclear,
    Number(f64),
}

impl Order {
    fn of(cx: &OpCx) -> Result<Option<Order>> {
        Ok(match cx.attrs.get("ord") {
            Some(Attr::Str(s)) if &**s == "fro" => Some(Order::Frobenius),
            Some(Attr::Str(s)) if &**s == "nuc" => Some(Order::Nuclear),
            Some(Attr::Str(s)) => return Err(fail!(Attribute, "`ord` {s:?} is not known")),
            _ => cx.opt_float("ord")?.map(Order::Number),
        })
    }
}

/// The two dimensions, if the norm is of matrices.
fn matrices(cx: &OpCx) -> Result<Option<[usize; 2]>> {
    let rank = cx.shape(0)?.rank();
    let dims = cx.opt_ints("dim")?.unwrap_or(&[]);
    let order = Order::of(cx)?;
    let named = matches!(order, Some(Order::Frobenius | Order::Nuclear));
    match (dims.len(), &order) {
        (2, Some(_)) => matrix_dims(cx).map(Some),
        (0, Some(_)) if rank == 2 => Ok(Some([0, 1])),
        (0, Some(_)) => {
            ensure!(rank == 1 && !named, Shape, "`ord` is of a vector or a matrix, got {}", cx.ty(0)?);
            Ok(None)
        }
        (1, _) if !named => Ok(None),
        (_, None) => Ok(None),
        _ => Err(fail!(Attribute, "norms are over one or two dimensions, not {dims:?}")),
    }
}

/// The two dimensions of a matrix norm, in their order.
fn matrix_dims(cx: &OpCx) -> Result<[usize; 2]> {
    let rank = cx.shape(0)?.rank();
    let wrap = |d: i64| {
        wrap_dim(d, rank)
            .filter(|&d| d < rank)
            .ok_or_else(|| fail!(Attribute, "`dim` has {d}, out of range for {rank} dimensions"))
    };
    let [row, column] = cx.opt_ints("dim")?.unwrap_or(&[-2, -1]) else {
        return Err(fail!(Attribute, "a norm of matrices is over two dimensions"));
    };
    let dims = [wrap(*row)?, wrap(*column)?];
    ensure!(dims[0] != dims[1], Attribute, "`dim` names dimension {} twice", dims[0]);
    Ok(dims)
}

/// Dtype that a norm is computed in.
fn dtype(cx: &OpCx) -> Result<DType> {
    let x = cx.ty(0)?;
    let dtype = cx.opt_dtype("dtype")?.unwrap_or(x.dtype);
    ensure!(dtype.is_float() && x.dtype.is_float(), DType, "a norm needs floats, got {x}");
    Ok(dtype)
}

/// Type of the result: of matrices over the dimensions given, else over `dim`.
fn result(cx: &OpCx, over: Option<[usize; 2]>) -> Result<Vec<TensorType>> {
    let (x, dtype) = (cx.ty(0)?, dtype(cx)?);
    let keep = cx.flag("keepdim")?;
    let order = Order::of(cx)?;
    let Some(dims) = over else {
        let ord = match order {
            Some(Order::Number(p)) => p,
            _ => 2.0,
        };
        let mut attrs = Attrs::new().with("ord", ord).with("keepdim", keep).with("dtype", dtype);
        if let Some(dim) = cx.opt_ints("dim")? {
            attrs.set("dim", dim);
        }
        return (VECTOR_NORM.infer)(&OpCx { inputs: vec![Some(x)], attrs: &attrs });
    };
    let singular = match order {
        Some(Order::Number(p)) => {
            let known = [1.0, 2.0, f64::INFINITY].contains(&p.abs());
            ensure!(known, Attribute, "`ord` of a matrix is 1, 2 or inf, or the negative, not {p}");
            p.abs() == 2.0
        }
        Some(Order::Nuclear) => true,
        _ => false,
    };
    let wide = matches!(dtype, DType::F32 | DType::F64);
    ensure!(wide || !singular, DType, "singular values are in f32 or f64, got {x}");
    let empty = dims.iter().any(|&d| x.shape[d] == 0);
    ensure!(!empty, Shape, "no norm of matrices without elements, {x}");
    let kept = (0..x.shape.rank()).filter(|d| keep || !dims.contains(d));
    let shape: Vec<usize> = kept.map(|d| if dims.contains(&d) { 1 } else { x.shape[d] }).collect();
    Ok(vec![TensorType::new(dtype, shape)])
}

/// The norm of matrices of rows along the first dimension given, columns along the second.
fn matrix(b: &mut Builder, x: ValueId, order: Order, dims: [usize; 2], keep: bool) -> Result<ValueId> {
    let [row, column] = dims;
    let over = |d: &[usize]| Attrs::new().with("dim", d.iter().map(|&d| d as i64).collect::<Vec<_>>());
    let (sum, least) = match order {
        Order::Frobenius => {
            let attrs = over(&dims).with("ord", 2.0).with("keepdim", keep);
            return b.one(&VECTOR_NORM, &[x], attrs);
        }
        Order::Number(p) if p.abs() != 2.0 => (if p.abs() == 1.0 { row } else { column }, p < 0.0),
        by_values => return singular(b, x, by_values, dims, keep),
    };
    let size = b.call(&ABS, &[x])?;
    let lines = b.one(&SUM, &[size], over(&[sum]).with("keepdim", true))?;
    let best = if least { &AMIN } else { &AMAX };
    let other = row + column - sum;
    let best = b.one(best, &[lines], over(&[other]).with("keepdim", true))?;
    dropped(b, best, dims, keep)
}

/// The norms that singular values give.
fn singular(b: &mut Builder, x: ValueId, order: Order, dims: [usize; 2], keep: bool) -> Result<ValueId> {
    let shape = b.ty(x).shape.clone();
    let lead: Vec<usize> = (0..shape.rank()).filter(|d| !dims.contains(d)).collect();
    let last = b.permute(x, &[&lead[..], &dims].concat())?;
    let values = b.call(&SVDVALS, &[last])?;
    let reduce = match order {
        Order::Number(p) if p < 0.0 => &AMIN,
        Order::Number(_) => &AMAX,
        _ => &SUM,
    };
    let y = b.one(reduce, &[values], Attrs::new().with("dim", [-1]).with("keepdim", false))?;
    let kept: Vec<usize> = (0..shape.rank()).map(|d| if dims.contains(&d) { 1 } else { shape[d] }).collect();
    let y = b.reshape(y, &kept)?;
    dropped(b, y, dims, keep)
}

/// Without the two dimensions, which are of size 1, unless they are kept.
fn dropped(b: &mut Builder, y: ValueId, dims: [usize; 2], keep: bool) -> Result<ValueId> {
    let shape = b.ty(y).shape.clone();
    let kept: Vec<usize> =
        (0..shape.rank()).filter(|d| keep || !dims.contains(d)).map(|d| shape[d]).collect();
    b.reshape(y, &kept)
}
