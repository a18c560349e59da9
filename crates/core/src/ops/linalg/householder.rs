//! Products of Householder reflections.

use super::triangular::LINALG_SOLVE_TRIANGULAR;
use super::{matrices, transposed};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::create::eye::EYE;
use crate::ops::movement::tril::{TRIL, TRIU};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::Shape;

/// `(input [..., m, n], tau [..., k])`: the first n columns of `H₁ · H₂ ⋯ H_k`, with `H_i = 1 − τ_i v vᵀ` and `v` the
/// column i of the input below the diagonal, behind a 1. The gradient by the input is of what is read alone.
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
        let ([m, n, k], dtype) = (sizes(cx)?, cx.dtype(0)?);
        let (x, tau) = (required(inputs, 0)?, required(inputs, 1)?);
        let last = cx.shape(0)?.rank() - 1;
        let eye = |b: &mut Builder, columns: usize| {
            let attrs = Attrs::new().with("n", m as i64).with("m", columns as i64).with("dtype", dtype);
            b.one(&EYE, &[], attrs)
        };
        let x = b.slice(x, last, 0, k)?;
        let below = b.one(&TRIL, &[x], Attrs::new().with("diagonal", -1))?;
        let ones = eye(b, k)?;
        let v = b.add(below, ones)?;
        let vt = transposed(b, v)?;
        let inner = b.matmul(vt, v)?;
        let inner = b.one(&TRIU, &[inner], Attrs::new().with("diagonal", 1))?;
        // T = (1 + τ · triu(Vᵀ V, 1))⁻¹ · τ, which a τ of 0 does not disturb.
        let tau = b.unsqueeze(tau, last)?;
        let system = b.mul(tau, inner)?;
        let top = b.slice(vt, last, 0, n)?;
        let right = b.mul(tau, top)?;
        let attrs = Attrs::new().with("upper", true).with("left", true).with("unitriangular", true);
        let solved = b.one(&LINALG_SOLVE_TRIANGULAR, &[system, right], attrs)?;
        let taken = b.matmul(v, solved)?;
        let one = eye(b, n)?;
        Ok(vec![b.sub(one, taken)?])
    }),
    cases: || {
        vec![
            Case::new("tall").f(&[2, 4, 2]).range(&[2, 2], 0.2, 1.5),
            Case::new("fewer reflections").f(&[4, 3]).range(&[2], 0.2, 1.5),
            Case::new("square").f(&[3, 3]).range(&[3], 0.2, 1.5),
        ]
    },
};

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
