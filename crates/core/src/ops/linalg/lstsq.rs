//! Least squares.

use super::matrices;
use super::pinv::PINV;
use super::svdvals::SVDVALS;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::compare::GT;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, Sample, required};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// The X of least `‖A · X − B‖`, and of those the shortest, of each pair `A [..., m, n]`, `B [..., m, k]` (or
/// a vector `[..., m]`): the pseudo-inverse times B. Singular values up to `rcond` (the dtype's epsilon times
/// `max(m, n)`) times the largest count as 0. Then the sums of squares of what is left, if `m > n` (else
/// nothing), the ranks, and nothing in the place of singular values.
///
/// PyTorch gives no sums of squares where a rank is not full, which is up to the data: here they are as
/// defined.
pub static LINALG_LSTSQ: OpDef = OpDef {
    name: "linalg_lstsq",
    schemas: &[
        "linalg_lstsq(Tensor self, Tensor b, float? rcond=None, *, str? driver=None) -> (Tensor solution, Tensor residuals, Tensor rank, Tensor singular_values)",
    ],
    infer: |cx| {
        let s = System::of(cx)?;
        let dtype = cx.dtype(0)?;
        let right: &[usize] = if s.vectors { &[] } else { &[s.k] };
        let solution = Shape::from([&s.lead[..], &[s.n], right].concat());
        let left = if s.m > s.n { Shape::from([&s.lead[..], &[s.k]].concat()) } else { [0].into() };
        Ok(vec![
            TensorType::new(dtype, solution),
            TensorType::new(dtype, left),
            TensorType::new(DType::I64, Shape::new(&s.lead)),
            TensorType::new(dtype, [0]),
        ])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let (s, types) = (System::of(cx)?, (LINALG_LSTSQ.infer)(cx)?);
        let (a, mut y) = (required(inputs, 0)?, required(inputs, 1)?);
        if s.vectors {
            y = b.unsqueeze(y, s.lead.len() + 1)?;
        }
        let attrs = Attrs::new().with("atol", 0.0).with("rtol", s.tolerance);
        let inverse = b.one(&PINV, &[a], attrs)?;
        let x = b.matmul(inverse, y)?;
        let left = if s.m > s.n {
            let made = b.matmul(a, x)?;
            let left = b.sub(made, y)?;
            let squares = b.mul(left, left)?;
            b.sum(squares, &[s.lead.len()], false)?
        } else {
            b.full(&types[1], 0.0)?
        };
        let values = b.apply(&SVDVALS, &[Some(a)], Attrs::new())?[0];
        let largest = b.slice(values, s.lead.len(), 0, 1)?;
        let least = b.scale(largest, s.tolerance)?;
        let counted = b.call(&GT, &[values, least])?;
        let counted = b.cast(counted, DType::I64)?;
        let rank = b.sum(counted, &[s.lead.len()], false)?;
        Ok(vec![b.reshape(x, &types[0].shape)?, left, rank, b.full(&types[3], 0.0)?])
    }),
    cases: || {
        vec![
            matrix("tall", &[2, 3, 2]).f(&[2, 3, 2]),
            matrix("wide", &[2, 3]).f(&[2, 1]),
            matrix("vectors", &[2, 2, 2]).f(&[2, 2]).attr("rcond", 1e-12),
        ]
    },
};

struct System {
    lead: Vec<usize>,
    m: usize,
    n: usize,
    k: usize,
    /// Right sides are vectors.
    vectors: bool,
    tolerance: f64,
}

impl System {
    fn of(cx: &OpCx) -> Result<System> {
        let ((a, [m, n]), b) = (matrices(cx, 0)?, cx.ty(1)?);
        let lead = a.shape[..a.shape.rank() - 2].to_vec();
        let vectors = b.shape.rank() == lead.len() + 1;
        let fits = b.shape.rank() == lead.len() + if vectors { 1 } else { 2 }
            && b.shape[..=lead.len()] == a.shape[..=lead.len()];
        ensure!(fits && a.dtype == b.dtype, Shape, "matrices {a} and right sides {b} do not fit");
        ensure!(m > 0 && n > 0, Shape, "no least squares of {a}");
        let k = if vectors { 1 } else { b.shape[lead.len() + 1] };
        let most = Shape::from([&lead[..], &[m.max(n), k.max(m)]].concat());
        ensure!(most.checked_numel().is_some(), Size, "{most} is larger than memory can be");
        let epsilon = if a.dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
        let tolerance = cx.opt_float("rcond")?.unwrap_or(epsilon * m.max(n) as f64);
        cx.opt_str("driver")?;
        Ok(System { lead, m, n, k, vectors, tolerance })
    }
}

fn matrix(name: &'static str, shape: &[usize]) -> Case {
    let values =
        [2.0, 0.5, -0.3, 1.5, 0.2, -1.0, 3.0, -0.4, 1.1, 0.7, -2.0, 0.9][..shape.iter().product()].to_vec();
    Case::new(name).arg(DType::F64, shape, Sample::Values(values))
}
