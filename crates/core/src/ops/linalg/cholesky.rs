//! Cholesky factors.

use super::dense::cholesky;
use super::inverse::INVERSE;
use super::triangular::LINALG_SOLVE_TRIANGULAR;
use super::{each_matrix, squares, transposed};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::create::eye::EYE;
use crate::ops::movement::tril::TRIL;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, Sample, required};

/// The lower triangle `L` with `L · Lᵀ = A` of each symmetric matrix `A [..., n, n]`, or with `upper` its
/// transpose. The gradient is symmetric, as PyTorch's.
pub static LINALG_CHOLESKY: OpDef = OpDef {
    name: "linalg_cholesky",
    schemas: &[
        "linalg_cholesky(Tensor self, *, bool upper=False) -> Tensor",
        "cholesky(Tensor self, bool upper=False) -> Tensor",
    ],
    infer: |cx| {
        cx.flag("upper")?;
        Ok(vec![squares(cx, 0)?.0.clone()])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let x = required(inputs, 0)?;
        let t = transposed(b, x)?;
        let sum = b.add(x, t)?;
        let even = b.scale(sum, 0.5)?;
        let lower = b.call(&CHOLESKY, &[even])?;
        Ok(vec![if cx.flag("upper")? { transposed(b, lower)? } else { lower }])
    }),
    cases: || vec![definite("lower").attr("upper", false), definite("upper").attr("upper", true)],
};

/// `A⁻¹ · self` with `A = L · Lᵀ` of a Cholesky factor, input 1; leading dimensions broadcast. The gradient
/// by the factor is of its triangle alone, where PyTorch's fills the matrix.
pub static CHOLESKY_SOLVE: OpDef = OpDef {
    name: "cholesky_solve",
    schemas: &["cholesky_solve(Tensor self, Tensor input2, bool upper=False) -> Tensor"],
    infer: |cx| {
        let attrs = Attrs::new().with("upper", cx.flag("upper")?).with("left", true);
        let swapped = OpCx { inputs: vec![cx.opt(1), cx.opt(0)], attrs: &attrs };
        (LINALG_SOLVE_TRIANGULAR.infer)(&swapped)
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let (x, factor, upper) = (required(inputs, 0)?, required(inputs, 1)?, cx.flag("upper")?);
        let t = transposed(b, factor)?;
        let (lower, above) = if upper { (t, factor) } else { (factor, t) };
        let with = |upper: bool| Attrs::new().with("upper", upper).with("left", true);
        let y = b.one(&LINALG_SOLVE_TRIANGULAR, &[lower, x], with(false))?;
        Ok(vec![b.one(&LINALG_SOLVE_TRIANGULAR, &[above, y], with(true))?])
    }),
    cases: || {
        let case = |name, upper: bool| {
            let factor = definite(name).inputs;
            let mut case = Case::new(name).f(&[2, 3, 2]);
            case.inputs.extend(factor);
            case.attr("upper", upper)
        };
        vec![case("lower", false), case("upper", true)]
    },
};

/// `(L · Lᵀ)⁻¹` of a Cholesky factor, or `(Uᵀ · U)⁻¹` with `upper`. The gradient is of its triangle alone.
pub static CHOLESKY_INVERSE: OpDef = OpDef {
    name: "cholesky_inverse",
    schemas: &["cholesky_inverse(Tensor self, bool upper=False) -> Tensor"],
    infer: |cx| {
        cx.flag("upper")?;
        Ok(vec![squares(cx, 0)?.0.clone()])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let ((t, n), factor) = (squares(cx, 0)?, required(inputs, 0)?);
        let one = b.one(&EYE, &[], Attrs::new().with("n", n as i64).with("dtype", t.dtype))?;
        let attrs = Attrs::new().with("upper", cx.flag("upper")?);
        let solved = b.one(&CHOLESKY_SOLVE, &[one, factor], attrs)?;
        Ok(vec![b.expand(solved, &t.shape)?])
    }),
    cases: || vec![definite("lower").attr("upper", false), definite("upper").attr("upper", true)],
};

/// The lower Cholesky factor, of the lower triangle of each matrix `[..., n, n]`. One that is not positive
/// definite is refused when it is met.
pub static CHOLESKY: OpDef = OpDef {
    name: "cholesky_lower",
    schemas: &["headwater::cholesky_lower(Tensor A) -> Tensor"],
    infer: |cx| Ok(vec![squares(cx, 0)?.0.clone()]),
    derivative: Derivative::Rule(gradient),
    precision: Precision::Full,
    cost: Cost::Custom(|cx, out| {
        out[0].shape.numel() as f64 * squares(cx, 0).map_or(0, |s| s.1) as f64 / 3.0
    }),
    body: Body::Kernel(|cx, inputs, outs| {
        let n = squares(cx, 0)?.1;
        let x = inputs[0].expect("typed").floats();
        each_matrix([x], [n * n], outs, [n * n], |[x], [l]| cholesky(x, n, l))
    }),
    cases: || vec![definite("two"), Case::new("none").f(&[0, 2, 2])],
};

fn definite(name: &'static str) -> Case {
    let values =
        vec![2.0, 0.5, -0.3, 0.5, 1.5, 0.2, -0.3, 0.2, 3.0, 1.0, -0.4, 0.1, -0.4, 2.0, 0.6, 0.1, 0.6, 1.2];
    Case::new(name).arg(crate::DType::F64, &[2, 3, 3], Sample::Values(values))
}

/// Murray 2016, "Differentiation of the Cholesky decomposition", section 3.1: `S = L⁻ᵀ Φ(Lᵀ g) L⁻¹`, where Φ
/// takes the lower triangle and half the diagonal. An element below the diagonal stands for the one above it
/// too.
fn gradient(cx: &mut GradCx) -> Result<()> {
    let (g, l) = (cx.grad(0)?, cx.y(0));
    let g = triangle(cx, g, 0)?;
    let t = transposed(cx, l)?;
    let product = cx.matmul(t, g)?;
    let (low, below) = (triangle(cx, product, 0)?, triangle(cx, product, -1)?);
    let phi = cx.add(low, below)?;
    let phi = cx.scale(phi, 0.5)?;
    let inverse = cx.call(&INVERSE, &[l])?;
    let t = transposed(cx, inverse)?;
    let s = cx.matmul(t, phi)?;
    let s = cx.matmul(s, inverse)?;
    let t = transposed(cx, s)?;
    let s = cx.add(s, t)?;
    let s = cx.scale(s, 0.5)?;
    let (low, below) = (triangle(cx, s, 0)?, triangle(cx, s, -1)?);
    let dx = cx.add(low, below)?;
    cx.set(0, dx)
}

fn triangle(b: &mut Builder, x: ValueId, diagonal: i64) -> Result<ValueId> {
    b.one(&TRIL, &[x], Attrs::new().with("diagonal", diagonal))
}
