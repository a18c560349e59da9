//! Products of tensors summed over some of their dimensions.

use crate::diagnostic::Result;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::{Shape, wrap_dim};
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// Sums over the pairs of dimensions `dims_self` and `dims_other`; the others of both, in their order, are
/// those of the result. A size of 1 in one of a pair is broadcast.
pub static TENSORDOT: OpDef = OpDef {
    name: "tensordot",
    schemas: &["tensordot(Tensor self, Tensor other, int[] dims_self, int[] dims_other) -> Tensor"],
    infer: |cx| Ok(vec![TensorType::new(cx.dtype(0)?, Pairs::of(cx)?.result)]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let pairs = Pairs::of(cx)?;
        let mut flat = [required(inputs, 0)?, required(inputs, 1)?];
        for (i, value) in flat.iter_mut().enumerate() {
            // Summed first where the other has but one of them.
            let alone: Vec<usize> = (0..pairs.summed[i].len())
                .filter(|&k| b.ty(*value).shape[pairs.summed[i][k]] != pairs.sizes[k])
                .map(|k| pairs.summed[i][k])
                .collect();
            *value = b.sum(*value, &alone, true)?;
            let order = if i == 0 {
                [&pairs.kept[0][..], &pairs.summed[0]].concat()
            } else {
                [&pairs.summed[1][..], &pairs.kept[1]].concat()
            };
            *value = b.permute(*value, &order)?;
            let outer: usize =
                pairs.kept[i].iter().map(|&d| cx.inputs[i].map_or(1, |t| t.shape[d])).product();
            let inner: usize = pairs.sizes.iter().product();
            *value = b.reshape(*value, &if i == 0 { [outer, inner] } else { [inner, outer] })?;
        }
        let product = b.matmul(flat[0], flat[1])?;
        Ok(vec![b.reshape(product, &pairs.result)?])
    }),
    cases: || {
        let case = |name, x: &[usize], y: &[usize]| Case::new(name).f(x).f(y);
        vec![
            case("two", &[2, 3, 4], &[4, 3, 2]).attr("dims_self", [1, 2]).attr("dims_other", [1, 0]),
            case("broadcast", &[2, 3], &[1, 2]).attr("dims_self", [-1]).attr("dims_other", [0]),
            case("outer", &[2], &[3])
                .attr("dims_self", Vec::<i64>::new())
                .attr("dims_other", Vec::<i64>::new()),
        ]
    },
};

/// The inner product of the last dimensions: `self [..., k]`, `other [..., k]` to `[..., ...]`; of a scalar
/// the product.
pub static INNER: OpDef = OpDef {
    name: "inner",
    schemas: &["inner(Tensor self, Tensor other) -> Tensor"],
    infer: |cx| {
        let (x, y) = (cx.ty(0)?, cx.ty(1)?);
        one_dtype(cx)?;
        let (Some((k, left)), Some((m, right))) = (x.shape.split_last(), y.shape.split_last()) else {
            return Ok(vec![TensorType::new(x.dtype, cx.broadcast()?)]);
        };
        ensure!(k == m, Shape, "inner sizes differ in {}", cx.list_types());
        let shape = checked([left, right].concat().into())?;
        Ok(vec![TensorType::new(x.dtype, shape)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let (x, y) = (required(inputs, 0)?, required(inputs, 1)?);
        let (left, right) = (cx.shape(0)?, cx.shape(1)?);
        let (Some((&k, lead)), Some((_, rest))) = (left.split_last(), right.split_last()) else {
            return Ok(vec![b.mul(x, y)?]);
        };
        let (rows, columns) = (lead.iter().product(), rest.iter().product());
        let (x, y) = (b.reshape(x, &[rows, k])?, b.reshape(y, &[columns, k])?);
        let y = b.transpose_last(y)?;
        let product = b.matmul(x, y)?;
        Ok(vec![b.reshape(product, &[lead, rest].concat())?])
    }),
    cases: || {
        vec![
            Case::new("matrices").f(&[2, 3]).f(&[4, 3]),
            Case::new("vectors").f(&[3]).f(&[3]),
            Case::new("scalar").f(&[]).f(&[2, 3]),
        ]
    },
};

/// Dimensions of both tensors: summed, in pairs, and kept.
struct Pairs {
    summed: [Vec<usize>; 2],
    kept: [Vec<usize>; 2],
    /// Terms of each sum.
    sizes: Vec<usize>,
    result: Shape,
}

impl Pairs {
    fn of(cx: &OpCx) -> Result<Pairs> {
        one_dtype(cx)?;
        let dims = |i: usize, name: &str| -> Result<Vec<usize>> {
            let shape = cx.shape(i)?;
            let wrap = |&d: &i64| wrap_dim(d, shape.rank()).filter(|&d| d < shape.rank());
            let dims: Option<Vec<usize>> = cx.ints(name)?.iter().map(wrap).collect();
            let dims = dims.ok_or_else(|| fail!(Attribute, "`{name}` is out of range for {shape}"))?;
            let twice = (1..dims.len()).any(|k| dims[..k].contains(&dims[k]));
            ensure!(!twice, Attribute, "`{name}` names a dimension twice");
            Ok(dims)
        };
        let summed = [dims(0, "dims_self")?, dims(1, "dims_other")?];
        let (x, y) = (cx.shape(0)?, cx.shape(1)?);
        ensure!(summed[0].len() == summed[1].len(), Attribute, "as many dimensions of both are summed");
        let mut sizes = Vec::new();
        for (&d, &e) in summed[0].iter().zip(&summed[1]) {
            let fits = x[d] == y[e] || x[d] == 1 || y[e] == 1;
            ensure!(fits, Shape, "dimensions {d} and {e} of {} differ", cx.list_types());
            sizes.push(if x[d] == 1 || y[e] == 1 { 1 } else { x[d] });
        }
        let kept = [(0, x), (1, y)]
            .map(|(i, s): (usize, &Shape)| (0..s.rank()).filter(|d| !summed[i].contains(d)).collect());
        let [left, right]: &[Vec<usize>; 2] = &kept;
        let result = left.iter().map(|&d| x[d]).chain(right.iter().map(|&d| y[d])).collect();
        Ok(Pairs { sizes, result: checked(result)?, summed, kept })
    }
}

fn one_dtype(cx: &OpCx) -> Result<()> {
    let (x, y) = (cx.ty(0)?, cx.ty(1)?);
    let one = x.dtype == y.dtype && x.dtype.is_float();
    ensure!(one, DType, "products of {} need one float dtype", cx.list_types());
    Ok(())
}

fn checked(shape: Shape) -> Result<Shape> {
    ensure!(shape.checked_numel().is_some(), Size, "{shape} is larger than memory can be");
    Ok(shape)
}
