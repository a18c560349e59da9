//! The verdict of one value.

use super::step::Precision;
use super::{Compared, Verdict};
use crate::core::pass::bound::{Bound, Spread, alike};
use crate::core::target::Target;
use crate::core::{DType, Tensor, TensorType};
use crate::golden::Kind;
use anyhow::{Result, ensure};

/// A value that can be compared with a golden's.
pub(super) struct Value {
    pub(super) kind: Kind,
    pub(super) name: String,
    /// Output of the step's graph.
    pub(super) output: usize,
    /// What the device computed, unscaled, and its type there.
    pub(super) got: Vec<f64>,
    pub(super) result: TensorType,
    pub(super) spread: Spread,
    pub(super) bound: Bound,
    pub(super) origin: String,
    pub(super) operator: String,
    /// True if it depends on the order in which a sort leaves equal keys.
    pub(super) tied: bool,
}

impl Default for Value {
    fn default() -> Self {
        let spread = Spread::new(vec![], DType::F64, 1.0);
        Value {
            kind: Kind::Output,
            name: String::new(),
            output: 0,
            got: vec![],
            result: TensorType::new(DType::F64, [0usize]),
            bound: spread.bound(1.0),
            spread,
            origin: String::new(),
            operator: String::new(),
            tied: false,
        }
    }
}

/// A value is proved where its bound is at most its size over this. It is then within half of PyTorch's,
/// whatever the precision: a flipped sign, a zero in its place, and another value of its size are all found.
/// Where the bound is [`HALF`] times smaller, half of it is found as well.
pub const PROVED: f64 = 2.0;

/// In f32 and lower, PyTorch's value and that of the step in f64 differ by less than this share of the bound
/// or of the value, whichever is smaller, or by [`EXACT`] of the value: roundings of f64 are 2⁻²⁹ of those of
/// f32, and results that PyTorch has in f32 inside are within 1e-7.
const SHARE: f64 = 1e-3;
const EXACT: f64 = 1e-6;

/// The share of a value of ordinary size below which a value without any error in the random runs may be
/// what roundings of f64 leave: of some thousand terms that cancel.
pub(super) const CANCELLED: f64 = 4096.0 * f64::EPSILON;

/// A bound that is smaller than the size by this finds a value that is half of what it should be.
pub const HALF: f64 = 4.0;

impl Precision {
    /// The factor between size and bound of a proved value.
    pub fn proved(&self) -> f64 {
        if self.dtype.epsilon() > DType::F32.epsilon() { PROVED } else { HALF }
    }
}

impl Value {
    /// True if no more runs are needed to prove it.
    pub(super) fn is_tight(&self, precision: &Precision) -> bool {
        let size = norm(self.spread.exact().iter().copied());
        // Zeros are proved by other sizes.
        !self.result.dtype.is_float() || self.bound.norm * HALF <= size || self.is_zero(size, precision)
    }

    /// True if a number of this size, of the truth, is what rounding in f64 leaves of terms that cancel.
    pub(super) fn is_zero(&self, size: f64, precision: &Precision) -> bool {
        /// PyTorch's roundings in f64 may be more than those of the step.
        const MORE: f64 = 8.0;
        // Part of a step in 16 bits is in f32.
        let share =
            if precision.dtype == DType::F64 { 1.0 } else { DType::F64.epsilon() / DType::F32.epsilon() };
        size == 0.0 || size <= MORE * self.bound.norm * share && self.bound.norm.is_finite()
    }

    /// The verdict against a truth. A zero is compared with `ordinary`, the size of an element of other
    /// gradients.
    ///
    /// # Errors
    /// If the shapes differ.
    pub(super) fn judge(
        &self,
        want: &Tensor,
        ordinary: f64,
        precision: &Precision,
        target: &Target,
    ) -> Result<Compared> {
        let (name, got) = (&self.name, &self.result);
        ensure!(got.shape == *want.shape(), "{name} is {got}, the golden has {}", want.ty);
        let mut c = Compared {
            kind: self.kind,
            name: name.clone(),
            origin: self.origin.clone(),
            operator: self.operator.clone(),
            ..Compared::default()
        };
        let want = want.to_f64();
        if !got.dtype.is_float() {
            let differ = self.got.iter().zip(&want).filter(|(a, b)| a != b).count();
            c.error = differ as f64 / want.len().max(1) as f64;
            (c.norm, c.size) = (norm(want.iter().copied()), 1.0);
            c.within = differ == 0;
            c.verdict = if c.within { Verdict::Proved } else { Verdict::Differs };
            return Ok(c);
        }
        let (dtype, largest) = (got.dtype, self.spread.largest());
        // A dtype that saturates has a number where others have infinity, and so where they have NaN of it,
        // or an infinite result of further operations. The runs with random roundings saturate as the target
        // does: a number is excused where they have the infinity without rounding, and this number within its
        // bound with it.
        let saturates = target.saturating.contains(precision.dtype);
        let explained = self.spread.explained(&self.got);
        let infinite = |i: usize, b: f64| b.is_infinite() && self.spread.exact()[i] == b && explained[i];
        let saturated =
            |i: usize, a: f64, b: f64| saturates && a.is_finite() && (b.is_nan() || infinite(i, b));
        let same = |i: usize, a: f64, b: f64| {
            alike(a, b, largest) || a == target.result(dtype, b) || saturated(i, a, b)
        };
        // No finite number, because the step has none where it is rounded to these dtypes, or because the
        // order of a sum decides between infinity and NaN.
        let lost = |i: usize, a: f64, b: f64| {
            !a.is_finite() && self.spread.lost(i) || a.is_nan() && b.is_finite() && b.abs() > largest
        };
        let apart = self.got.iter().zip(&want).zip(&self.bound.shift).enumerate();
        let apart = apart.map(|(i, ((&a, &b), shift))| match same(i, a, b) || lost(i, a, b) {
            true => 0.0,
            false => a - b - shift,
        });
        let apart: Vec<f64> = apart.collect();
        c.lost = self.got.iter().zip(&want).enumerate().any(|(i, (&a, &b))| lost(i, a, b));
        let finite = |x: f64| if x.is_finite() && x.abs() <= largest { x } else { 0.0 };
        // Nothing is proved of numbers that the dtype does not have.
        let measured = want.iter().all(|x| x.is_finite() && x.abs() <= largest);
        c.norm = norm(want.iter().map(|&x| finite(x)));
        // PyTorch's last rounding in f64.
        let last = 4.0 * f64::EPSILON;
        let usual = ordinary * (want.len() as f64).sqrt();
        // What roundings in f64 leave of terms that cancel, where those of lower precision leave nothing.
        let cancelled = CANCELLED * usual;
        let most = norm(self.spread.exact().iter().copied()).max(c.norm);
        let left = if self.bound.norm == 0.0 && most <= cancelled { cancelled } else { 0.0 };
        let allowed = self.bound.norm + last * c.norm + left;
        let overflows = allowed.is_infinite();
        let distance = match apart.iter().all(|d| d.is_finite()) {
            true => norm(apart.iter().copied()),
            false => f64::INFINITY,
        };
        let nans = |x: &[f64]| x.iter().filter(|x| x.is_nan()).count();
        c.nans = (nans(&want), nans(&self.got));
        c.elements = apart
            .iter()
            .zip(self.bound.elements.iter().zip(&self.bound.sizes))
            .zip(&want)
            .filter(|((d, (bound, size)), w)| {
                let near = d.abs() <= *bound + last * w.abs().max(**size) + left;
                !near
            })
            .count();
        c.zero = measured && (left > 0.0 || self.is_zero(c.norm, precision));
        c.size = if c.zero { usual } else { c.norm };
        // A zero beside which there is nothing of ordinary size is proved only where it is exact.
        // Nor is a result beyond the range of its dtype, or one of NaN alone, or a number where PyTorch has
        // none, or none where rounding leaves none.
        let beyond = want.iter().any(|x| x.is_finite() && x.abs() > largest)
            || !want.is_empty() && want.iter().all(|x| x.is_nan());
        c.saturated = self.got.iter().zip(&want).enumerate().any(|(i, (&a, &b))| saturated(i, a, b));
        let unmeasured = c.zero && c.size == 0.0 && allowed > 0.0
            || beyond && self.kind != Kind::Node
            || c.saturated
            || c.lost;
        if c.size == 0.0 && c.zero {
            // Nothing else tells what is large: the terms that cancel do.
            c.size = self.bound.deviation / (precision.dtype.epsilon() / 2.0);
        }
        let share = |x: f64| if x == 0.0 { 0.0 } else { x / c.size };
        (c.error, c.bound, c.factor) = (share(distance), share(allowed), self.bound.factor);
        c.shift = share(norm(self.bound.shift.iter().copied()));
        c.within = distance.is_finite() && distance <= allowed && c.elements == 0;
        // The golden is that of this model: the same step in f64 has its value, to far less than the bound.
        let exact = self.spread.exact().iter().zip(&want);
        let from_exact = exact.map(|(&a, &b)| if alike(a, b, largest) { 0.0 } else { a - b });
        let from_exact = norm(from_exact.collect::<Vec<_>>().into_iter());
        // A number of the size of PyTorch's is expected: one that roundings leave nothing of is not proved.
        let expected = want.iter().zip(&self.bound.shift).map(|(&x, shift)| finite(x) + shift);
        let least = if c.zero { 1.0 } else { (norm(expected) / c.size).min(1.0) };
        let shared = if overflows { 0.0 } else { SHARE * self.bound.norm.min(c.size) };
        // A value that cancels in f64 and has an infinite bound is not proved: nothing says that it is wrong.
        let unknown = if overflows && most <= cancelled { cancelled } else { 0.0 };
        let truth = precision.dtype == DType::F64 || from_exact <= shared + EXACT * c.size + unknown;
        c.verdict = match c.within && truth {
            false => Verdict::Differs,
            true if unmeasured => Verdict::NotProved,
            true if c.bound * precision.proved() <= least => Verdict::Proved,
            true => Verdict::NotProved,
        };
        Ok(c)
    }
}

/// Euclidean norm, scaled so that squares of tiny or huge values neither vanish nor overflow; infinite where
/// something is not a number.
pub(super) fn norm(x: impl Iterator<Item = f64> + Clone) -> f64 {
    if x.clone().any(f64::is_nan) {
        return f64::INFINITY;
    }
    let largest = x.clone().fold(0.0f64, |a, b| a.max(b.abs()));
    if largest == 0.0 || !largest.is_finite() {
        return largest;
    }
    largest * x.map(|v| (v / largest).powi(2)).sum::<f64>().sqrt()
}

/// True if two tensors hold the same numbers in some order, up to a bound.
pub(super) fn same_multiset(got: &[f64], want: &[f64], bound: f64) -> bool {
    let (mut g, mut w) = (got.to_vec(), want.to_vec());
    g.sort_by(f64::total_cmp);
    w.sort_by(f64::total_cmp);
    g.len() == w.len() && g.iter().zip(&w).all(|(a, b)| a == b || (a - b).abs() <= bound)
}
