//! QR factors.

use super::factor::qr;
use super::triangular::LINALG_SOLVE_TRIANGULAR;
use super::{each_matrix, matrices, transposed};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, ValueId};
use crate::ops::movement::tril::TRIL;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, Sample, required};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// `Q` and `R` with `Q · R = A` of each matrix `A [..., m, n]`: columns that are orthonormal and an upper
/// triangle. With the `mode` "reduced" there are `min(m, n)` columns, with "complete" m; with "r" Q is empty.
pub static LINALG_QR: OpDef = OpDef {
    name: "linalg_qr",
    schemas: &[
        "linalg_qr(Tensor A, str mode='reduced') -> (Tensor Q, Tensor R)",
        "qr(Tensor self, bool some=True) -> (Tensor Q, Tensor R)",
    ],
    infer: |cx| {
        let (mode, mut types) = (Mode::of(cx)?, types(cx, Mode::of(cx)? == Mode::Complete)?);
        if mode == Mode::Triangle {
            types[0].shape = [0].into();
        }
        Ok(types)
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let mode = Mode::of(cx)?;
        let attrs = Attrs::new().with("complete", mode == Mode::Complete);
        let mut factors = b.apply(&QR, &[Some(required(inputs, 0)?)], attrs)?;
        if mode == Mode::Triangle {
            factors[0] = b.full(&TensorType::new(cx.dtype(0)?, [0]), 0.0)?;
        }
        Ok(factors)
    }),
    cases: || {
        vec![
            matrix("tall", &[2, 4, 2]).attr("mode", "reduced"),
            matrix("wide", &[2, 4]).attr("mode", "complete"),
            matrix("the triangle", &[3, 3]).attr("mode", "r"),
            matrix("some", &[3, 2]).attr("some", true),
        ]
    },
};

/// [`LINALG_QR`] with both factors; `complete` if Q is square. A tall matrix's complete factors have no
/// gradient, as in PyTorch.
pub static QR: OpDef = OpDef {
    name: "qr_factors",
    schemas: &["headwater::qr_factors(Tensor A, *, bool complete=False) -> (Tensor Q, Tensor R)"],
    infer: |cx| types(cx, cx.flag("complete")?),
    derivative: Derivative::Rule(gradient),
    precision: Precision::Full,
    cost: Cost::Custom(|cx, _| {
        matrices(cx, 0).map_or(0.0, |(t, [m, n])| 4.0 * t.shape.numel() as f64 * m.min(n) as f64)
    }),
    body: Body::Kernel(|cx, inputs, outs| {
        let (mn, c) = sizes(cx)?;
        let x = inputs[0].expect("typed").floats();
        each_matrix([x], [mn[0] * mn[1]], outs, [mn[0] * c, c * mn[1]], |[x], [q, r]| {
            qr(x, mn, c, q, r);
            Ok(())
        })
    }),
    cases: || {
        vec![
            matrix("tall", &[2, 3, 2]),
            matrix("wide", &[2, 4]),
            matrix("square", &[3, 3]).attr("complete", true),
            matrix("complete", &[4, 2]).constant().attr("complete", true),
            Case::new("none").f(&[0, 2, 2]),
        ]
    },
};

/// Rows and columns of the matrices, and the number of columns of Q.
///
/// # Errors
/// Refusals of [`matrices`].
pub fn sizes(cx: &OpCx) -> Result<([usize; 2], usize)> {
    let [m, n] = matrices(cx, 0)?.1;
    Ok(([m, n], if cx.flag("complete")? { m } else { m.min(n) }))
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Reduced,
    Complete,
    Triangle,
}

impl Mode {
    fn of(cx: &OpCx) -> Result<Mode> {
        Ok(match cx.opt_str("mode")? {
            Some("complete") => Mode::Complete,
            Some("r") => Mode::Triangle,
            Some("reduced") => Mode::Reduced,
            Some(other) => {
                return Err(fail!(Attribute, "`mode` {other:?} is not \"reduced\", \"complete\" or \"r\""));
            }
            None if cx.attrs.get("some").is_some() && !cx.flag("some")? => Mode::Complete,
            None => Mode::Reduced,
        })
    }
}

fn types(cx: &OpCx, complete: bool) -> Result<Vec<TensorType>> {
    let (t, [m, n]) = matrices(cx, 0)?;
    let c = if complete { m } else { m.min(n) };
    ensure!(c == m.min(n) || n > 0, Shape, "no complete factors of {t}");
    let with = |last: [usize; 2]| Shape::from([&t.shape[..t.shape.rank() - 2], &last].concat());
    let shapes = [with([m, c]), with([c, n])];
    ensure!(shapes.iter().all(|s| s.checked_numel().is_some()), Size, "the factors of {t} do not fit memory");
    Ok(shapes.map(|s| TensorType::new(t.dtype, s)).to_vec())
}

/// Walter and Lehmann 2012, "Algorithmic differentiation of linear algebra functions with application in
/// optimum experimental design", section 4: `(gQ + Q · S(R gRᵀ − gQᵀ Q)) R⁻ᵀ`, where S makes the lower
/// triangle symmetric. Of a wide matrix the columns beyond the square are `Q` times their part of R.
fn gradient(cx: &mut GradCx) -> Result<()> {
    let (complete, [m, n]) = cx.of(|cx| sizes(cx).map(|([m, n], c)| (c > n, [m, n])))?;
    ensure!(
        !complete || m <= n,
        Gradient,
        "the complete factors of a tall matrix have no gradient, as in PyTorch: take `mode=\"reduced\"`"
    );
    let (mut dq, mut dr, q, mut r) = (cx.grad(0)?, cx.grad(1)?, cx.y(0), cx.y(1));
    let last = cx.ty(r).shape.rank() - 1;
    let mut beyond = None;
    if n > m {
        let (of_r, v) = (cx.slice(dr, last, m, n)?, cx.slice(r, last, m, n)?);
        beyond = Some(cx.matmul(q, of_r)?);
        // Q also makes the columns beyond.
        let y = cx.matmul(q, v)?;
        let t = transposed(cx, of_r)?;
        let more = cx.matmul(y, t)?;
        dq = cx.add(dq, more)?;
        (dr, r) = (cx.slice(dr, last, 0, m)?, cx.slice(r, last, 0, m)?);
    }
    let t = transposed(cx, dr)?;
    let inner = cx.matmul(r, t)?;
    let t = transposed(cx, dq)?;
    let outer = cx.matmul(t, q)?;
    let inner = cx.sub(inner, outer)?;
    let low = cx.one(&TRIL, &[inner], Attrs::new().with("diagonal", 0))?;
    let below = cx.one(&TRIL, &[inner], Attrs::new().with("diagonal", -1))?;
    let above = transposed(cx, below)?;
    let even = cx.add(low, above)?;
    let turned = cx.matmul(q, even)?;
    let sum = cx.add(dq, turned)?;
    let t = transposed(cx, r)?;
    let attrs = Attrs::new().with("upper", false).with("left", false).with("unitriangular", false);
    let mut dx = cx.one(&LINALG_SOLVE_TRIANGULAR, &[t, sum], attrs)?;
    if let Some(beyond) = beyond {
        dx = cx.cat(&[dx, beyond], last)?;
    }
    cx.set(0, dx)
}

fn matrix(name: &'static str, shape: &[usize]) -> Case {
    let values = [2.0, 0.5, -0.3, 1.5, 0.2, -1.0, 3.0, -0.4, 1.1, 0.7, -2.0, 0.9, 0.3, 1.2, -0.6, 0.8]
        [..shape.iter().product()]
        .to_vec();
    Case::new(name).arg(DType::F64, shape, Sample::Values(values))
}
