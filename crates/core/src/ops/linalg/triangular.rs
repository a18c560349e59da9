//! Systems of linear equations with a triangle for matrix.

use super::dense::solve_triangle;
use super::solve::System;
use super::{each_matrix, matrices, squares, transposed};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::movement::tril::{TRIL, TRIU};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, required};
use crate::tensor::TensorType;

/// `X` with `A · X = B`, or with `left` false `X · A = B`, of which only the upper or lower triangle of A is
/// read, and with `unitriangular` not its diagonal, which counts as ones. Leading dimensions broadcast.
pub static LINALG_SOLVE_TRIANGULAR: OpDef = OpDef {
    name: "linalg_solve_triangular",
    schemas: &[
        "linalg_solve_triangular(Tensor self, Tensor B, *, bool upper, bool left=True, bool unitriangular=False) -> Tensor",
    ],
    infer: |cx| {
        flags(cx)?;
        Ok(vec![TensorType::new(cx.dtype(0)?, System::of_matrices(cx)?.result)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let [mut upper, unit] = flags(cx)?;
        let system = System::of_matrices(cx)?;
        // From the right, the transposed system is solved: its triangle is the other one.
        upper ^= !system.left;
        let attrs = Attrs::new().with("upper", upper).with("unitriangular", unit);
        system.solved(b, required(inputs, 0)?, required(inputs, 1)?, |b, a, x| {
            b.one(&SOLVE_TRIANGLE, &[a, x], attrs)
        })
    }),
    cases: || {
        let case = |name, upper: bool, left: bool| {
            let case = diagonal(name, 2, 3).f(if left { &[2, 3, 2] } else { &[2, 2, 3] });
            case.attr("upper", upper).attr("left", left)
        };
        vec![
            case("upper", true, true),
            case("lower, from the right", false, false),
            case("unit", false, true).attr("unitriangular", true),
            diagonal("broadcast", 1, 2).f(&[3, 2, 1]).attr("upper", true).attr("left", true),
        ]
    },
};

/// The older call, with both in the other order: `X` with `A · X = self`, or of the transposed A; and A.
pub static TRIANGULAR_SOLVE: OpDef = OpDef {
    name: "triangular_solve",
    schemas: &[
        "triangular_solve(Tensor self, Tensor A, bool upper=True, bool transpose=False, bool unitriangular=False) -> (Tensor solution, Tensor cloned_coefficient)",
    ],
    infer: |cx| {
        let (system, attrs) = older(cx)?;
        flags(cx)?;
        let swapped = OpCx { inputs: vec![cx.opt(1), cx.opt(0)], attrs: &attrs };
        let mut types = (LINALG_SOLVE_TRIANGULAR.infer)(&swapped)?;
        types.push(TensorType::new(system.dtype, system.shape.clone()));
        Ok(types)
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let (x, a) = (required(inputs, 0)?, required(inputs, 1)?);
        let attrs = older(cx)?.1;
        let t = if cx.flag("transpose")? { transposed(b, a)? } else { a };
        Ok(vec![b.one(&LINALG_SOLVE_TRIANGULAR, &[t, x], attrs)?, a])
    }),
    cases: || {
        let with = |name, transpose: bool| {
            let a = diagonal(name, 2, 3).inputs;
            let mut case = Case::new(name).f(&[2, 3, 2]);
            case.inputs.extend(a);
            case.attr("upper", true).attr("transpose", transpose)
        };
        vec![with("upper", false), with("transposed", true)]
    },
};

/// `A⁻¹ · B` of a triangle `A [N, n, n]` and `B [N, n, k]`; a diagonal with a zero gives infinities, as in
/// PyTorch.
pub static SOLVE_TRIANGLE: OpDef = OpDef {
    name: "solve_triangle",
    schemas: &[
        "headwater::solve_triangle(Tensor A, Tensor B, *, bool upper, bool unitriangular=False) -> Tensor",
    ],
    infer: |cx| {
        let ((a, n), (b, [rows, _])) = (squares(cx, 0)?, matrices(cx, 1)?);
        let fits = a.shape.rank() == 3 && b.shape.rank() == 3 && a.shape[0] == b.shape[0] && rows == n;
        ensure!(fits && a.dtype == b.dtype, Shape, "triangles {a} and right sides {b} do not fit");
        flags(cx)?;
        Ok(vec![b.clone()])
    },
    derivative: Derivative::Rule(gradient),
    precision: Precision::Full,
    cost: Cost::Custom(|cx, out| out[0].shape.numel() as f64 * squares(cx, 0).map_or(0, |s| s.1) as f64),
    body: Body::Kernel(|cx, inputs, outs| {
        let (n, [_, k], [upper, unit]) = (squares(cx, 0)?.1, matrices(cx, 1)?.1, flags(cx)?);
        let [a, b] = [0, 1].map(|i| inputs[i].expect("typed").floats());
        each_matrix([a, b], [n * n, n * k], outs, [n * k], |[a, b], [x]| {
            solve_triangle(a, n, b, k, [upper, unit], x);
            Ok(())
        })
    }),
    cases: || {
        let case = |name| diagonal(name, 2, 3).f(&[2, 3, 2]);
        vec![
            case("upper").attr("upper", true),
            case("lower").attr("upper", false),
            case("unit").attr("upper", true).attr("unitriangular", true),
            Case::new("none").f(&[0, 2, 2]).f(&[0, 2, 1]).attr("upper", true),
        ]
    },
};

/// The flags `upper`, for the triangle that is read, and `unitriangular`, for a diagonal that counts as ones.
pub fn flags(cx: &OpCx) -> Result<[bool; 2]> {
    Ok([cx.flag("upper")?, cx.flag("unitriangular")?])
}

/// The gradient by B solves the transposed system; that by A is minus its product with Xᵀ, of the triangle
/// that is read.
fn gradient(cx: &mut GradCx) -> Result<()> {
    let (g, a, x) = (cx.grad(0)?, cx.x(0)?, cx.y(0));
    let [upper, unit] = flags(&cx.args())?;
    let t = transposed(cx, a)?;
    let attrs = Attrs::new().with("upper", !upper).with("unitriangular", unit);
    let db = cx.one(&SOLVE_TRIANGLE, &[t, g], attrs)?;
    if cx.needs(0) {
        let x = transposed(cx, x)?;
        let da = cx.matmul(db, x)?;
        let da = cx.neg(da)?;
        let (part, beside) = if upper { (&TRIU, 1) } else { (&TRIL, -1) };
        let from = if unit { beside } else { 0 };
        let da = cx.one(part, &[da], Attrs::new().with("diagonal", from))?;
        cx.set(0, da)?;
    }
    cx.set(1, db)
}

/// The matrices and attributes of the newer call that stands for a `triangular_solve`.
fn older<'a>(cx: &OpCx<'a>) -> Result<(&'a TensorType, Attrs)> {
    let (a, _) = squares(cx, 1)?;
    let [upper, unit] = flags(cx)?;
    let upper = upper != cx.flag("transpose")?;
    Ok((a, Attrs::new().with("upper", upper).with("left", true).with("unitriangular", unit)))
}

/// A case with matrices whose diagonals are far from 0.
fn diagonal(name: &'static str, count: usize, n: usize) -> Case {
    let value =
        |i: usize| if (i % (n * n)).is_multiple_of(n + 1) { 1.5 } else { 0.9 - 0.37 * (i % 5) as f64 };
    let values = (0..count * n * n).map(value).collect();
    let shape: &[usize] = if count == 1 { &[n, n] } else { &[count, n, n] };
    Case::new(name).arg(crate::DType::F64, shape, crate::ops::Sample::Values(values))
}
