//! Powers of matrices, and products of many.

use super::inverse::INVERSE;
use super::squares;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, ValueId};
use crate::ops::create::eye::EYE;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// Each matrix `[..., n, n]` to the integer power `n`, by squares; the inverse to a power below 0.
pub static MATRIX_POWER: OpDef = OpDef {
    name: "linalg_matrix_power",
    schemas: &[
        "linalg_matrix_power(Tensor self, int n) -> Tensor",
        "matrix_power(Tensor self, int n) -> Tensor",
    ],
    infer: |cx| {
        let t = squares(cx, 0)?.0;
        let n = cx.int("n")?;
        ensure!(n.unsigned_abs() <= 1 << 20, Unsupported, "power {n} of a matrix: take one of at most 2²⁰");
        Ok(vec![t.clone()])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let ((t, order), n) = (squares(cx, 0)?, cx.int("n")?);
        if n == 0 {
            let attrs = Attrs::new().with("n", order as i64).with("dtype", t.dtype);
            let one = b.one(&EYE, &[], attrs)?;
            return Ok(vec![b.expand(one, &t.shape)?]);
        }
        let mut square = required(inputs, 0)?;
        if n < 0 {
            square = b.call(&INVERSE, &[square])?;
        }
        let (mut rest, mut made) = (n.unsigned_abs(), None);
        loop {
            if rest % 2 == 1 {
                made = Some(match made {
                    Some(m) => b.matmul(m, square)?,
                    None => square,
                });
            }
            rest /= 2;
            match made {
                Some(m) if rest == 0 => return Ok(vec![m]),
                _ => square = b.matmul(square, square)?,
            }
        }
    }),
    cases: || {
        let values = vec![2.0, 0.5, -0.3, 1.5, 0.2, 1.0, 3.0, -0.4];
        let power = |name, n: i64| {
            let case =
                Case::new(name).arg(DType::F64, &[2, 2, 2], crate::ops::Sample::Values(values.clone()));
            case.attr("n", n)
        };
        vec![power("fifth", 5), power("inverse squared", -2), power("zeroth", 0), power("first", 1)]
    },
};

/// The product of two or more matrices; the first may be a row and the last a column, each a vector. The
/// order is that of the fewest operations: Godbole 1973, "On efficient computation of matrix chain products".
pub static MULTI_DOT: OpDef = OpDef {
    name: "linalg_multi_dot",
    schemas: &["linalg_multi_dot(Tensor[] tensors) -> Tensor", "chain_matmul(Tensor[] matrices) -> Tensor"],
    infer: |cx| {
        let sizes = chain(cx)?;
        let (first, last) = (cx.shape(0)?.rank(), cx.shape(cx.inputs.len() - 1)?.rank());
        let outer = [(first, sizes[0]), (last, sizes[sizes.len() - 1])];
        let shape: Vec<usize> = outer.into_iter().filter(|(rank, _)| *rank == 2).map(|(_, n)| n).collect();
        ensure!(Shape::new(&shape).checked_numel().is_some(), Size, "the product of {}", cx.list_types());
        Ok(vec![TensorType::new(cx.dtype(0)?, shape)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let sizes = chain(cx)?;
        let count = inputs.len();
        let mut parts = Vec::with_capacity(count);
        for i in 0..count {
            parts.push(b.reshape(required(inputs, i)?, &sizes[i..i + 2])?);
        }
        // cut[i][j]: the operations of the product of parts i..=j, and the last part of its left factor.
        let mut cut = vec![vec![(0.0, 0); count]; count];
        for span in 1..count {
            for i in 0..count - span {
                let j = i + span;
                let cost = |k: usize| {
                    let own = sizes[i] as f64 * sizes[k + 1] as f64 * sizes[j + 1] as f64;
                    (cut[i][k].0 + cut[k + 1][j].0 + own, k)
                };
                let best = (i..j).map(cost).min_by(|a, b| a.0.total_cmp(&b.0));
                cut[i][j] = best.ok_or_else(|| fail!(Attribute, "no matrices"))?;
            }
        }
        let product = multiplied(b, &parts, &cut, [0, count - 1])?;
        let ty = (MULTI_DOT.infer)(cx)?;
        Ok(vec![b.reshape(product, &ty[0].shape)?])
    }),
    cases: || {
        vec![
            Case::new("matrices").f(&[2, 4]).f(&[4, 1]).f(&[1, 3]).f(&[3, 2]),
            Case::new("vectors at both ends").f(&[3]).f(&[3, 2]).f(&[2]),
        ]
    },
};

/// The sizes along the chain: rows of the first, then columns of each.
fn chain(cx: &OpCx) -> Result<Vec<usize>> {
    let count = cx.inputs.len();
    ensure!((2..=64).contains(&count), Attribute, "a product of 2 to 64 matrices, not of {count}");
    let mut sizes = Vec::with_capacity(count + 1);
    for i in 0..count {
        let t = cx.ty(i)?;
        let [rows, columns] = match t.shape[..] {
            [n] if i == 0 => [1, n],
            [n] if i + 1 == count => [n, 1],
            [m, n] => [m, n],
            _ => return Err(fail!(Shape, "a chain of matrices is needed, got {}", cx.list_types())),
        };
        ensure!(
            t.dtype.is_float() && t.dtype == cx.dtype(0)?,
            DType,
            "one float dtype is needed: {}",
            cx.list_types()
        );
        let fits = sizes.last().is_none_or(|&n| n == rows);
        ensure!(fits, Shape, "matrices {} do not fit", cx.list_types());
        if i == 0 {
            sizes.push(rows);
        }
        sizes.push(columns);
    }
    Ok(sizes)
}

fn multiplied(
    b: &mut Builder,
    parts: &[ValueId],
    cut: &[Vec<(f64, usize)>],
    [i, j]: [usize; 2],
) -> Result<ValueId> {
    if i == j {
        return Ok(parts[i]);
    }
    let k = cut[i][j].1;
    let (left, right) = (multiplied(b, parts, cut, [i, k])?, multiplied(b, parts, cut, [k + 1, j])?);
    b.matmul(left, right)
}
