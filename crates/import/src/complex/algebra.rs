//! Arithmetic of complex numbers, by their parts.

use super::maker::{Maker, Term};
use super::pairs::{of_both, parts};
use crate::arguments::Obstacle;
use crate::error::{Result, refuse};
use headwater_core::ops::OpDef;
use headwater_core::ops::complex::conj::CONJ;
use headwater_core::ops::pointwise::{
    add::ADD, atan2::ATAN2, cos::COS, div::DIV, exp::EXP, log::LOG, mul::MUL, sin::SIN, sub::SUB,
};
use headwater_core::ops::reduce::vector_norm::VECTOR_NORM;
use headwater_core::{Attrs, Builder, ValueId};

type Made = Result<ValueId, Obstacle>;

/// `re + i im`.
pub(super) fn complex(m: &mut Maker) -> Made {
    let (re, im) = (m.real("real")?, m.real("imag")?);
    m.joined(re, im)
}

/// `abs · e^(i angle)`.
pub(super) fn polar(m: &mut Maker) -> Made {
    let (abs, angle) = (m.real("abs")?, m.real("angle")?);
    let (cos, sin) = (m.b().call(&COS, &[angle])?, m.b().call(&SIN, &[angle])?);
    let (re, im) = (m.b().mul(abs, cos)?, m.b().mul(abs, sin)?);
    m.joined(re, im)
}

/// Pairs of real numbers, or the real part of complex ones.
pub(super) fn convert(m: &mut Maker) -> Made {
    let term = m.term("self")?;
    if m.complex {
        return m.pair(term);
    }
    let dtype = m.want.dtype;
    match m.parts(term)? {
        [Some(re), _] => Ok(m.b().cast(re, dtype)?),
        _ => Err(refuse!(Argument, "a conversion of nothing").into()),
    }
}

/// The second tensor in the shape of the first.
pub(super) fn copy(m: &mut Maker) -> Made {
    let term = m.term("src")?;
    let want = m.want.clone();
    let new = if m.complex {
        m.pair(term)?
    } else {
        m.parts(term)?[0].ok_or_else(|| refuse!(Argument, "a copy of nothing"))?
    };
    Ok(m.b().expand(new, &want.shape)?)
}

/// Magnitudes; their gradient at 0 is 0, as PyTorch's.
pub(super) fn abs(m: &mut Maker) -> Made {
    let z = m.pairs("self")?;
    magnitude(m.b(), z)
}

fn magnitude(b: &mut Builder, z: ValueId) -> Made {
    let dim = b.ty(z).shape.rank() as i64 - 1;
    Ok(b.one(&VECTOR_NORM, &[z], Attrs::new().with("ord", 2.0).with("dim", vec![dim]))?)
}

/// Angles; of real numbers 0 or π.
pub(super) fn angle(m: &mut Maker) -> Made {
    let z = m.pairs("self")?;
    let [re, im] = parts(m.b(), z)?;
    Ok(m.b().call(&ATAN2, &[im, re])?)
}

/// The conjugate as a copy; of real numbers these.
pub(super) fn conj(m: &mut Maker) -> Made {
    match m.term("self")? {
        Term::Real(x) => Ok(x),
        z => {
            let z = m.pair(z)?;
            Ok(m.b().call(&CONJ, &[z])?)
        }
    }
}

/// `self ± alpha · other`.
pub(super) fn sum(m: &mut Maker) -> Made {
    let op = if m.op == Some(&SUB) { &SUB } else { &ADD };
    let (a, b) = (m.pairs("self")?, m.pairs("other")?);
    weighted(m, op, a, b)
}

/// `other - alpha · self`.
pub(super) fn rsub(m: &mut Maker) -> Made {
    let (a, b) = (m.pairs("other")?, m.pairs("self")?);
    weighted(m, &SUB, a, b)
}

fn weighted(m: &mut Maker, op: &'static OpDef, a: ValueId, b: ValueId) -> Made {
    let alpha = m.args().opt_float("alpha")?.unwrap_or(1.0);
    Ok(m.b().one(op, &[a, b], Attrs::new().with("alpha", alpha))?)
}

/// `self · other`.
pub(super) fn mul(m: &mut Maker) -> Made {
    let (a, b) = (m.term("self")?, m.term("other")?);
    times(m, a, b)
}

fn times(m: &mut Maker, a: Term, b: Term) -> Made {
    match (a, b) {
        (Term::Number(_), Term::Complex(_) | Term::Real(_)) | (Term::Real(_), Term::Complex(_)) => {
            times(m, b, a)
        }
        (Term::Complex(z), Term::Number([factor, 0.0])) => Ok(m.b().scale(z, factor)?),
        (Term::Complex(z), Term::Real(x)) => {
            let x = of_both(m.b(), x)?;
            Ok(m.b().mul(z, x)?)
        }
        (Term::Real(x), z) => {
            let (z, x) = (m.pair(z)?, of_both(m.b(), x)?);
            Ok(m.b().mul(z, x)?)
        }
        _ => by_parts(m, a, b, &MUL, &Attrs::new()),
    }
}

/// A product that is linear in each of two operands: `(a + i b)(c + i d) = (ac - bd) + i (ad + bc)`.
fn by_parts(m: &mut Maker, a: Term, b: Term, op: &'static OpDef, attrs: &Attrs) -> Made {
    let ([ar, ai], [br, bi]) = (m.parts(a)?, m.parts(b)?);
    let mut of = |x: Option<ValueId>, y: Option<ValueId>| -> Result<Option<ValueId>, Obstacle> {
        let (Some(x), Some(y)) = (x, y) else { return Ok(None) };
        Ok(Some(m.b().one(op, &[x, y], attrs.clone())?))
    };
    let (rr, ii, ri, ir) = (of(ar, br)?, of(ai, bi)?, of(ar, bi)?, of(ai, br)?);
    let both = |b: &mut Builder, op, x: Option<ValueId>, y: Option<ValueId>| match (x, y) {
        (Some(x), Some(y)) => b.call(op, &[x, y]).map(Some),
        (x, y) => Ok(x.or(y)),
    };
    let (re, im) = (both(m.b(), &SUB, rr, ii)?, both(m.b(), &ADD, ri, ir)?);
    match (re, im) {
        (Some(re), Some(im)) => m.joined(re, im),
        _ => Err(refuse!(Argument, "a product without complex numbers").into()),
    }
}

/// `self / other`: of complex divisors `self · conj(other) / |other|²`.
pub(super) fn div(m: &mut Maker) -> Made {
    if m.args().opt_str("rounding_mode")?.is_some() {
        return Err(Obstacle::Unsupported("complex numbers are not divided with a `rounding_mode`".into()));
    }
    let (a, b) = (m.term("self")?, m.term("other")?);
    match b {
        Term::Number([by, 0.0]) => {
            let a = m.pair(a)?;
            Ok(m.b().one(&DIV, &[a], Attrs::new().with("other", by))?)
        }
        Term::Real(by) => {
            let (a, by) = (m.pair(a)?, of_both(m.b(), by)?);
            Ok(m.b().div(a, by)?)
        }
        by => quotient(m, a, by),
    }
}

fn quotient(m: &mut Maker, a: Term, by: Term) -> Made {
    let by = m.pair(by)?;
    let [re, im] = parts(m.b(), by)?;
    let (rr, ii) = (m.b().mul(re, re)?, m.b().mul(im, im)?);
    let square = m.b().add(rr, ii)?;
    let square = of_both(m.b(), square)?;
    let conj = m.b().call(&CONJ, &[by])?;
    let product = times(m, a, Term::Complex(conj))?;
    Ok(m.b().div(product, square)?)
}

/// `1 / self`.
pub(super) fn reciprocal(m: &mut Maker) -> Made {
    let z = m.term("self")?;
    quotient(m, Term::Number([1.0, 0.0]), z)
}

/// `self · self`.
pub(super) fn square(m: &mut Maker) -> Made {
    let z = m.term("self")?;
    times(m, z, z)
}

/// A power by a small whole number.
pub(super) fn pow(m: &mut Maker) -> Made {
    let (z, exponent) = (m.term("self")?, m.term("exponent")?);
    let times_itself = match exponent {
        Term::Number([n, 0.0]) if (1.0..=16.0).contains(&n) && n.fract() == 0.0 => n as usize,
        _ => {
            let way = "of complex numbers powers are taken by whole numbers from 1 to 16; others are `(log(z) * n).exp()`";
            return Err(Obstacle::Unsupported(way.into()));
        }
    };
    let mut product = z;
    for _ in 1..times_itself {
        product = Term::Complex(times(m, product, z)?);
    }
    m.pair(product)
}

/// `e^re · (cos im + i sin im)`.
pub(super) fn exp(m: &mut Maker) -> Made {
    let z = m.pairs("self")?;
    let [re, im] = parts(m.b(), z)?;
    let scale = m.b().call(&EXP, &[re])?;
    let (cos, sin) = (m.b().call(&COS, &[im])?, m.b().call(&SIN, &[im])?);
    let (re, im) = (m.b().mul(scale, cos)?, m.b().mul(scale, sin)?);
    m.joined(re, im)
}

/// `ln |z| + i angle(z)`.
pub(super) fn log(m: &mut Maker) -> Made {
    let z = m.pairs("self")?;
    let size = magnitude(m.b(), z)?;
    let re = m.b().call(&LOG, &[size])?;
    let im = angle(m)?;
    m.joined(re, im)
}

/// `condition ? self : other`.
pub(super) fn choose(m: &mut Maker) -> Made {
    let (this, other) = (m.pairs("self")?, m.pairs("other")?);
    masked(m, "condition", this, other)
}

/// `mask ? value : self`.
pub(super) fn masked_fill(m: &mut Maker) -> Made {
    let (value, this) = (m.pairs("value")?, m.pairs("self")?);
    masked(m, "mask", value, this)
}

fn masked(m: &mut Maker, mask: &str, yes: ValueId, no: ValueId) -> Made {
    let mask = m.real(mask)?;
    let mask = of_both(m.b(), mask)?;
    Ok(m.b().choose(mask, yes, no)?)
}

/// The number or the tensor of one number `name` everywhere.
pub(super) fn full(m: &mut Maker, name: &str) -> Made {
    match m.term(name)? {
        Term::Number(parts) => m.filled(parts),
        tensor => {
            let (pairs, want) = (m.pair(tensor)?, m.want.clone());
            Ok(m.b().expand(pairs, &want.shape)?)
        }
    }
}

/// A sum or mean over dimensions.
pub(super) fn reduced(m: &mut Maker) -> Made {
    let z = m.pairs("self")?;
    let Some(op) = m.op else { return Err(refuse!(Argument, "a reduction without operator").into()) };
    let rank = m.b().ty(z).shape.rank() - 1;
    let dims: Vec<i64> = m.args().dims("dim", rank)?.into_iter().map(|d| d as i64).collect();
    // An element alone is its own sum.
    if dims.is_empty() {
        return Ok(z);
    }
    let keepdim = m.args().flag("keepdim")?;
    Ok(m.b().one(op, &[z], Attrs::new().with("dim", dims).with("keepdim", keepdim))?)
}

/// A norm of magnitudes.
pub(super) fn norm(m: &mut Maker) -> Made {
    let z = m.pairs("self")?;
    let (size, attrs) = (magnitude(m.b(), z)?, m.call.attrs.clone());
    Ok(m.b().one(&VECTOR_NORM, &[size], attrs)?)
}

/// A product of matrices or vectors, as the operator makes it of real ones.
pub(super) fn product(m: &mut Maker) -> Made {
    let (terms, attrs) = (m.tensors()?, m.call.attrs.clone());
    let Some(op) = m.op else { return Err(refuse!(Argument, "a product without operator").into()) };
    match terms[..] {
        [a, b] => by_parts(m, a, b, op, &attrs),
        // Diagonals and sums of one tensor.
        [one] => {
            let pairs = m.pair(one)?;
            let [re, im] = parts(m.b(), pairs)?;
            let (re, im) = (m.b().one(op, &[re], attrs.clone())?, m.b().one(op, &[im], attrs)?);
            m.joined(re, im)
        }
        _ => Err(Obstacle::Unsupported(
            "a product of more than two tensors of complex numbers: multiply two at a time".into(),
        )),
    }
}

/// `Σ conj(self) · other`.
pub(super) fn vdot(m: &mut Maker) -> Made {
    let (a, b) = (m.pairs("self")?, m.term("other")?);
    let a = m.b().call(&CONJ, &[a])?;
    let Some(op) = m.op else { return Err(refuse!(Argument, "a product without operator").into()) };
    by_parts(m, Term::Complex(a), b, op, &Attrs::new())
}
