//! Systems of linear equations.

use super::dense::Lu;
use super::{each_matrix, matrices, squares, transposed};
use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, Sample, required};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// `X` with `A · X = B`, or with `left` false `X · A = B`. `A [..., n, n]`; `B` has matrices, `[..., n, k]`
/// (`[..., k, n]`), or a vector for each matrix, `[..., n]`. The latter is meant if it has the shape of `A`
/// without the last dimension, or is one vector. Leading dimensions broadcast.
pub static LINALG_SOLVE: OpDef = OpDef {
    name: "linalg_solve",
    schemas: &[
        "linalg_solve(Tensor A, Tensor B, *, bool left=True) -> Tensor",
        "_linalg_solve_ex(Tensor A, Tensor B, *, bool left=True, bool check_errors=False) -> (Tensor result, Tensor LU, Tensor pivots, Tensor info)",
    ],
    infer: |cx| Ok(vec![TensorType::new(cx.dtype(0)?, System::of(cx)?.result)]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let system = System::of(cx)?;
        system.solved(b, required(inputs, 0)?, required(inputs, 1)?, |b, a, x| b.call(&SOLVE, &[a, x]))
    }),
    cases: || {
        vec![
            matrix("matrices", 1).f(&[2, 3]).attr("left", true),
            matrix("vectors", 2).f(&[2, 2]).attr("left", true),
            matrix("one vector", 1).f(&[2]).attr("left", true),
            matrix("from the right", 2).f(&[3, 2]).attr("left", false),
        ]
    },
};

/// `A⁻¹ · B` of `A [N, n, n]` and `B [N, n, k]`. A singular matrix is refused when it is met.
pub static SOLVE: OpDef = OpDef {
    name: "solve_matrices",
    schemas: &["headwater::solve_matrices(Tensor A, Tensor B) -> Tensor"],
    infer: |cx| {
        let ((a, n), (b, [rows, _])) = (squares(cx, 0)?, matrices(cx, 1)?);
        let fits = a.shape.rank() == 3 && b.shape.rank() == 3 && a.shape[0] == b.shape[0] && rows == n;
        ensure!(fits && a.dtype == b.dtype, Shape, "matrices {a} and right sides {b} do not fit");
        Ok(vec![b.clone()])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        // The gradient by B solves the transposed system; that by A is minus its product with Xᵀ.
        let (g, a, x) = (cx.grad(0)?, cx.x(0)?, cx.y(0));
        let t = transposed(cx, a)?;
        let db = cx.call(&SOLVE, &[t, g])?;
        if cx.needs(0) {
            let x = transposed(cx, x)?;
            let da = cx.matmul(db, x)?;
            let da = cx.neg(da)?;
            cx.set(0, da)?;
        }
        cx.set(1, db)
    }),
    precision: Precision::Full,
    cost: Cost::Custom(|cx, out| {
        let n = squares(cx, 0).map_or(0, |s| s.1) as f64;
        let count = out[0].shape.first().copied().unwrap_or(0) as f64;
        2.0 / 3.0 * count * n * n * n + 2.0 * n * out[0].shape.numel() as f64
    }),
    body: Body::Kernel(|cx, inputs, outs| {
        let (n, [_, k]) = (squares(cx, 0)?.1, matrices(cx, 1)?.1);
        let [a, b] = [0, 1].map(|i| inputs[i].expect("typed").floats());
        each_matrix([a, b], [n * n, n * k], outs, [n * k], |[a, b], [x]| Lu::new(a, n).solve(b, k, x))
    }),
    cases: || vec![matrix("two", 2).f(&[2, 2, 3]), Case::new("none").f(&[0, 2, 2]).f(&[0, 2, 1])],
};

fn matrix(name: &'static str, count: usize) -> Case {
    let values = [2.0, 0.5, -0.3, 1.5, 0.2, 1.0, 3.0, -0.4][..4 * count].to_vec();
    let shape: &[usize] = if count == 1 && name != "two" { &[2, 2] } else { &[2, 2, 2] };
    Case::new(name).arg(crate::DType::F64, shape, Sample::Values(values))
}

/// Matrices and right sides that fit.
pub(super) struct System {
    lead: Vec<usize>,
    n: usize,
    k: usize,
    vectors: bool,
    /// The matrices are to the left of the solutions.
    pub left: bool,
    /// Shape of the solutions.
    pub result: Shape,
}

impl System {
    /// The system of inputs A and B, the latter matrices or vectors.
    ///
    /// # Errors
    /// `Shape`, `DType` or `Size` if they do not fit.
    fn of(cx: &OpCx) -> Result<System> {
        let own = cx.shape(0)?;
        let b = cx.shape(1)?;
        let vectors = b.rank() == 1 || b[..] == own[..own.rank().saturating_sub(1)];
        System::new(cx, vectors)
    }

    /// As [`System::of`] of right sides that are matrices.
    pub fn of_matrices(cx: &OpCx) -> Result<System> {
        System::new(cx, false)
    }

    fn new(cx: &OpCx, vectors: bool) -> Result<System> {
        let ((a, n), b) = (squares(cx, 0)?, cx.ty(1)?);
        ensure!(a.dtype == b.dtype, DType, "one dtype is needed: {}", cx.list_types());
        let left = cx.opt_int("left")?.unwrap_or(1) != 0;
        let own = &a.shape[..a.shape.rank() - 1];
        ensure!(left || !vectors, Shape, "vectors are solved for from the left: {}", cx.list_types());
        let last = |d: usize| b.shape[b.shape.rank() - d];
        ensure!(b.shape.rank() >= if vectors { 1 } else { 2 }, Shape, "no right sides: {}", cx.list_types());
        let (rows, k, dims) = match (vectors, left) {
            (true, _) => (last(1), 1, 1),
            (_, true) => (last(2), last(1), 2),
            (_, false) => (last(1), last(2), 2),
        };
        ensure!(rows == n, Shape, "matrices and right sides do not fit: {}", cx.list_types());
        let lead = Shape::new(&own[..own.len() - 1]).broadcast(&b.shape[..b.shape.rank() - dims]);
        let lead = lead.ok_or_else(|| fail!(Shape, "{} do not broadcast", cx.list_types()))?.to_vec();
        let result = match (vectors, left) {
            (true, _) => [&lead[..], &[n]].concat(),
            (_, true) => [&lead[..], &[n, k]].concat(),
            (_, false) => [&lead[..], &[k, n]].concat(),
        };
        let most = Shape::from([&lead[..], &[n, n.max(k)]].concat());
        ensure!(most.checked_numel().is_some(), Size, "{most} is larger than memory can be");
        Ok(System { lead, n, k, vectors, left, result: result.into() })
    }

    /// Appends the solutions, by `solve` of `A [N, n, n]` and `B [N, n, k]`.
    pub fn solved(
        &self,
        b: &mut Builder,
        mut a: ValueId,
        mut x: ValueId,
        solve: impl FnOnce(&mut Builder, ValueId, ValueId) -> Result<ValueId>,
    ) -> Result<Vec<ValueId>> {
        if self.vectors {
            let rank = b.ty(x).shape.rank();
            x = b.unsqueeze(x, rank)?;
        }
        let with = |last: [usize; 2]| [&self.lead[..], &last].concat();
        a = b.expand(a, &with([self.n, self.n]))?;
        let count = self.lead.iter().product();
        if !self.left {
            (a, x) = (transposed(b, a)?, transposed(b, x)?);
        }
        x = b.expand(x, &with([self.n, self.k]))?;
        a = b.reshape(a, &[count, self.n, self.n])?;
        x = b.reshape(x, &[count, self.n, self.k])?;
        let y = solve(b, a, x)?;
        let mut y = b.reshape(y, &with([self.n, self.k]))?;
        if !self.left {
            y = transposed(b, y)?;
        }
        Ok(vec![b.reshape(y, &self.result)?])
    }
}
