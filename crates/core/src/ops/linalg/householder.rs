//! Products of Householder reflections.

use super::factor::reflections;
use super::triangular::LINALG_SOLVE_TRIANGULAR;
use super::{each_matrix, matrices, transposed};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::create::eye::EYE;
use crate::ops::movement::tril::{TRIL, TRIU};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::Shape;

/// `(input [..., m, n], tau [..., k])`: the first n columns of `H₁ · H₂ ⋯ H_k`, with `H_i = 1 − τ_i v vᵀ` and
/// `v` the column i of the input below the diagonal, after a 1. The gradient by the input is of what is read
/// alone.
///
/// Schreiber and Van Loan 1989: the product is `1 − V T Vᵀ` with a triangle T.
pub static LINALG_HOUSEHOLDER_PRODUCT: OpDef = OpDef {
    name: "linalg_householder_product",
    schemas: &[
        "linalg_householder_product(Tensor input, Tensor tau) -> Tensor",
        "orgqr(Tensor self, Tensor input2) -> Tensor",
    ],
    infer: |cx| {
        sizes(cx)?;
        Ok(vec![cx.ty(0)?.clone()])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let ([m, n, _], dtype) = (sizes(cx)?, cx.dtype(0)?);
        let r = Reflections::of(b, cx, inputs)?;
        let attrs = Attrs::new().with("n", m as i64).with("m", n as i64).with("dtype", dtype);
        let one = b.one(&EYE, &[], attrs)?;
        Ok(vec![r.applied(b, one, false)?])
    }),
    cases: || {
        vec![
            Case::new("tall").f(&[2, 4, 2]).range(&[2, 2], 0.2, 1.5),
            Case::new("fewer reflections").f(&[4, 3]).range(&[2], 0.2, 1.5),
            Case::new("square").f(&[3, 3]).range(&[3], 0.2, 1.5),
        ]
    },
};

/// `(input [..., m, n], tau [..., k], other)`: the whole product of the reflections, or with `transpose` its
/// transpose, before `other [..., m, c]`, or with `left` false after `other [..., c, m]`.
pub static ORMQR: OpDef = OpDef {
    name: "ormqr",
    schemas: &[
        "ormqr(Tensor self, Tensor input2, Tensor input3, bool left=True, bool transpose=False) -> Tensor",
    ],
    infer: |cx| {
        let ([m, ..], (x, _), (other, [rows, columns])) = (sizes(cx)?, matrices(cx, 0)?, matrices(cx, 2)?);
        let side = if left(cx)? { rows } else { columns };
        let lead = |t: &crate::TensorType| t.shape[..t.shape.rank() - 2].to_vec();
        let fits = side == m && lead(x) == lead(other) && x.dtype == other.dtype;
        ensure!(fits, Shape, "reflections {x} and matrices {other} do not fit");
        cx.flag("transpose")?;
        Ok(vec![other.clone()])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let (mut other, left) = (required(inputs, 2)?, left(cx)?);
        let r = Reflections::of(b, cx, inputs)?;
        if !left {
            other = transposed(b, other)?;
        }
        // From the right, the transposed product comes before the transposed matrix.
        let y = r.applied(b, other, cx.flag("transpose")? == left)?;
        Ok(vec![if left { y } else { transposed(b, y)? }])
    }),
    cases: || {
        let case = |name, other: &[usize]| Case::new(name).f(&[4, 2]).range(&[2], 0.2, 1.5).f(other);
        vec![
            case("left", &[4, 3]).attr("left", true).attr("transpose", false),
            case("left, transposed", &[4, 1]).attr("left", true).attr("transpose", true),
            case("right", &[3, 4]).attr("left", false).attr("transpose", false),
            case("right, transposed", &[2, 4]).attr("left", false).attr("transpose", true),
        ]
    },
};

/// The reflections of each matrix `[..., m, n]` that make it an upper triangle: R, below it the vectors of
/// [`LINALG_HOUSEHOLDER_PRODUCT`], and their factors `[..., min(m, n)]`.
pub static GEQRF: OpDef = OpDef {
    name: "geqrf",
    schemas: &["geqrf(Tensor self) -> (Tensor a, Tensor tau)"],
    infer: |cx| {
        let (t, [m, n]) = matrices(cx, 0)?;
        let tau = Shape::from([&t.shape[..t.shape.rank() - 2], &[m.min(n)]].concat());
        Ok(vec![t.clone(), crate::TensorType::new(t.dtype, tau)])
    },
    derivative: Derivative::NotDifferentiable(
        "reflections have no derivative, as in PyTorch: take `torch.linalg.qr`",
    ),
    precision: Precision::Full,
    cost: Cost::Custom(|cx, _| {
        matrices(cx, 0).map_or(0.0, |(t, [m, n])| 2.0 * t.shape.numel() as f64 * m.min(n) as f64)
    }),
    body: Body::Kernel(|cx, inputs, outs| {
        let mn = matrices(cx, 0)?.1;
        let x = inputs[0].expect("typed").floats();
        each_matrix([x], [mn[0] * mn[1]], outs, [mn[0] * mn[1], mn[0].min(mn[1])], |[x], [a, tau]| {
            a.copy_from_slice(x);
            tau.copy_from_slice(&reflections(a, mn));
            Ok(())
        })
    }),
    cases: || {
        let values = [2.0, 0.5, -0.3, 1.5, 0.2, -1.0, 3.0, -0.4, 1.1, 0.7, -2.0, 0.9];
        let of = |name, shape: &[usize]| {
            Case::new(name).arg(crate::DType::F64, shape, crate::ops::Sample::Values(values.to_vec()))
        };
        vec![of("tall", &[4, 3]), of("wide", &[2, 2, 3]), Case::new("none").f(&[0, 2, 2])]
    },
};

fn left(cx: &OpCx) -> Result<bool> {
    Ok(cx.opt_int("left")?.unwrap_or(1) != 0)
}

/// The vectors V of reflections and what `1 − V T Vᵀ` needs of the triangle T: `τ` as a column and
/// `τ · triu(Vᵀ V, 1)`.
struct Reflections {
    v: ValueId,
    tau: ValueId,
    system: ValueId,
}

impl Reflections {
    fn of(b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]) -> Result<Reflections> {
        let ([m, _, k], dtype) = (sizes(cx)?, cx.dtype(0)?);
        let (x, tau) = (required(inputs, 0)?, required(inputs, 1)?);
        let last = cx.shape(0)?.rank() - 1;
        let x = b.slice(x, last, 0, k)?;
        let below = b.one(&TRIL, &[x], Attrs::new().with("diagonal", -1))?;
        let attrs = Attrs::new().with("n", m as i64).with("m", k as i64).with("dtype", dtype);
        let ones = b.one(&EYE, &[], attrs)?;
        let v = b.add(below, ones)?;
        let vt = transposed(b, v)?;
        let inner = b.matmul(vt, v)?;
        let inner = b.one(&TRIU, &[inner], Attrs::new().with("diagonal", 1))?;
        let tau = b.unsqueeze(tau, last)?;
        let system = b.mul(tau, inner)?;
        Ok(Reflections { v, tau, system })
    }

    /// The product, or its transpose, before `other [..., m, c]`. `T = (1 + τ · triu(Vᵀ V, 1))⁻¹ · τ`, which
    /// a τ of 0 does not disturb.
    fn applied(&self, b: &mut Builder, other: ValueId, transpose: bool) -> Result<ValueId> {
        let vt = transposed(b, self.v)?;
        let along = b.matmul(vt, other)?;
        let attrs = Attrs::new().with("upper", !transpose).with("left", true).with("unitriangular", true);
        let solved = if transpose {
            let system = transposed(b, self.system)?;
            let solved = b.one(&LINALG_SOLVE_TRIANGULAR, &[system, along], attrs)?;
            b.mul(self.tau, solved)?
        } else {
            let right = b.mul(self.tau, along)?;
            b.one(&LINALG_SOLVE_TRIANGULAR, &[self.system, right], attrs)?
        };
        let taken = b.matmul(self.v, solved)?;
        b.sub(other, taken)
    }
}

/// Rows and columns of the result, and the number of reflections.
fn sizes(cx: &OpCx) -> Result<[usize; 3]> {
    let ((x, [m, n]), tau) = (matrices(cx, 0)?, cx.ty(1)?);
    let lead = &x.shape[..x.shape.rank() - 2];
    let fits = tau.shape.rank() == lead.len() + 1 && tau.shape[..lead.len()] == *lead && tau.dtype == x.dtype;
    let k = tau.shape.last().copied().unwrap_or(0);
    ensure!(fits && m >= n && n >= k, Shape, "reflections {x} with factors {tau} do not fit");
    let most = Shape::from([lead, &[m.max(k), m.max(n)]].concat());
    ensure!(most.checked_numel().is_some(), Size, "{most} is larger than memory can be");
    Ok([m, n, k])
}
