//! Bounds of the rounding error of a value: statistics of runs that round by random functions
//! ([`rounded`](fn@super::rounded)).
//!
//! A run that rounds to nearest is taken for one more of them. Its distance from their mean is then bounded
//! by `F` times the root mean square of theirs, where `F²` is the quantile of the F distribution that
//! a value exceeds with a chance of [`CHANCE`]. Its degrees of freedom are those of errors that are
//! correlated (Satterthwaite, "An approximate distribution of estimates of variance components", Biometrics
//! Bulletin 2, 1946), `ν = (tr Σ)² / tr Σ²`, by the unbiased estimate of `tr Σ²` of Bai and Saranadasa
//! (Statistica Sinica 6, 1996). It is 1 for a scalar and grows with independent errors. The mean is what
//! roundings do in all runs alike, those of weights to 16 bits among them. What rounding to nearest does
//! beyond that is no chance, and is added.

use super::rounded::mixed;
use super::writer::unit;
use crate::dtype::DType;

/// Chance that an honest value breaks its bound, if errors are distributed normally.
pub const CHANCE: f64 = 1e-8;

/// Coordinates of a sketch: errors of more elements are projected to so many, inner products kept in
/// expectation.
const SKETCH: usize = 256;

/// Elements that are larger by more than this are of another class: a mask of -1e9 beside scores.
const CLASS: f64 = 1024.0;

/// Errors of one value in several runs.
#[derive(Clone, Debug)]
pub struct Spread {
    /// The value without any rounding.
    exact: Vec<f64>,
    dtype: DType,
    /// Numbers beyond this are infinite in the runs, or this number.
    largest: f64,
    /// By element, the error of the run that rounds to nearest.
    nearest: Vec<f64>,
    /// By element, mean and sum of squared deviations of the errors of the other runs.
    mean: Vec<f64>,
    squares: Vec<f64>,
    sketches: Vec<Vec<f64>>,
    /// Elements that are a number in some runs and none in others.
    wild: Vec<bool>,
    /// Elements of which the run that rounds to nearest has no finite number, where there is one.
    lost: Vec<bool>,
    /// Elements that are infinite without rounding and a number where the run that rounds to nearest
    /// saturates: that number.
    saturated: Vec<Option<f64>>,
}

/// A bound of the errors of a value.
#[derive(Clone, Debug)]
pub struct Bound {
    /// By element, the mean error of the runs: a value is expected to be off by it, and bounds are of the
    /// distance from there.
    pub shift: Vec<f64>,
    /// Bound of the Euclidean norm.
    pub norm: f64,
    /// The factor `F` by which it exceeds the root mean square of the runs.
    pub factor: f64,
    /// That root mean square, of the Euclidean norm.
    pub deviation: f64,
    /// Bound of each element.
    pub elements: Vec<f64>,
    /// By element, the root mean square of the numbers of its class, without rounding.
    pub sizes: Vec<f64>,
}

impl Spread {
    /// Statistics of a value that is `exact` without rounding, and of `dtype` in the runs, divided there by
    /// `scale`.
    pub fn new(exact: Vec<f64>, dtype: DType, scale: f64) -> Spread {
        let zeros = vec![0.0; exact.len()];
        Spread {
            dtype,
            largest: dtype.max_value() / scale,
            nearest: zeros.clone(),
            mean: zeros.clone(),
            squares: zeros,
            sketches: Vec::new(),
            wild: vec![false; exact.len()],
            lost: vec![false; exact.len()],
            saturated: vec![None; exact.len()],
            exact,
        }
    }

    /// The largest magnitude of the runs' numbers.
    pub fn largest(&self) -> f64 {
        self.largest
    }

    /// The value without rounding.
    pub fn exact(&self) -> &[f64] {
        &self.exact
    }

    /// The value of the run that rounds to nearest.
    pub fn nearest(&mut self, value: &[f64]) {
        self.nearest = self.errors(value);
        let lost = self.exact.iter().zip(value);
        self.lost = lost.map(|(&exact, &x)| !x.is_finite() && !alike(x, exact, self.largest)).collect();
    }

    /// The value of the run that rounds to nearest, where dtypes saturate: an element that is infinite
    /// without rounding may be a number there, of the dtype's largest and what is computed of it. Errors of
    /// further runs are the distances from it.
    pub fn nearest_saturated(&mut self, value: &[f64]) {
        let number = |(&exact, &x): (&f64, &f64)| {
            let is = exact.is_infinite() && x.is_finite() && !alike(x, exact, self.largest);
            is.then_some(x)
        };
        self.saturated = self.exact.iter().zip(value).map(number).collect();
        self.nearest(value);
    }

    /// By element, true for a number in the place of an infinity that saturation explains: the runs that
    /// saturate have numbers there too, and it is as near to them as they are to each other, by the bound of
    /// one element, and one spacing of its dtype.
    pub fn explained(&self, got: &[f64]) -> Vec<bool> {
        let (runs, elements) = (self.sketches.len() as f64, self.exact.len());
        if runs < 2.0 || self.saturated.iter().all(|s| s.is_none()) {
            return vec![false; elements];
        }
        let n = runs - 1.0;
        let own = quantile(1.0, n, CHANCE / elements as f64).sqrt() * (1.0 + 1.0 / runs).sqrt();
        let near = |(i, &x): (usize, &f64)| {
            self.saturated[i].is_some_and(|number| {
                let bound = own * (self.squares[i] / n).sqrt() + self.mean[i].abs();
                !self.wild[i] && (x - number).abs() <= bound + self.dtype.epsilon() * number.abs()
            })
        };
        got.iter().enumerate().map(near).collect()
    }

    /// The number that errors of an element are distances from.
    fn origin(&self, element: usize) -> f64 {
        self.saturated[element].unwrap_or(self.exact[element])
    }

    /// True if an element is no finite number where the run rounds to nearest, although there is one without
    /// rounding: a constant that the dtype lacks, or a sum that passes its range.
    pub fn lost(&self, element: usize) -> bool {
        self.lost[element]
    }

    /// The value of another run.
    pub fn add(&mut self, value: &[f64]) {
        let errors = self.errors(value);
        let n = (self.sketches.len() + 1) as f64;
        for (i, &e) in errors.iter().enumerate() {
            let apart = e - self.mean[i];
            self.mean[i] += apart / n;
            self.squares[i] += apart * (e - self.mean[i]);
        }
        self.sketches.push(sketch(&errors));
    }

    fn errors(&mut self, value: &[f64]) -> Vec<f64> {
        let each = self.exact.iter().zip(value).enumerate();
        each.map(|(i, (&exact, &x))| {
            if self.saturated[i].is_none() && alike(x, exact, self.largest) {
                return 0.0;
            }
            let apart = x - self.saturated[i].unwrap_or(exact);
            self.wild[i] |= !apart.is_finite();
            if apart.is_finite() { apart } else { 0.0 }
        })
        .collect()
    }

    /// The bound, of errors `scale` times those of the runs. Scaled errors stand for those of another grid,
    /// so that their mean says nothing; nor does it where all runs agree, which may be a chance. What they
    /// have alike is added to the bound there.
    pub fn bound(&self, scale: f64) -> Bound {
        let (runs, elements) = (self.sketches.len() as f64, self.exact.len());
        let n = runs - 1.0;
        let wild = self.wild.iter().any(|w| *w);
        if elements == 0 || runs < 2.0 || wild {
            let all = if wild { f64::INFINITY } else { 0.0 };
            let (factor, shift) = (f64::INFINITY, vec![0.0; elements]);
            let (elements, sizes) = (vec![all; elements], vec![all; elements]);
            return Bound { shift, norm: all, factor, deviation: all, elements, sizes };
        }
        let total = self.squares.iter().sum::<f64>() / n;
        let deviation = total.sqrt();
        let more = (1.0 + 1.0 / runs).sqrt();
        let freedom = self.freedom().clamp(1.0, elements as f64);
        let factor = quantile(freedom, n * freedom, CHANCE).sqrt() * more;
        let shift = if scale == 1.0 && total > 0.0 { self.mean.clone() } else { vec![0.0; elements] };
        let apart = |x: &[f64]| x.iter().zip(&shift).map(|(x, m)| (x - m).powi(2)).sum::<f64>();
        let systematic = (apart(&self.mean).max(apart(&self.nearest)) - total).max(0.0).sqrt();
        // The largest of the elements: each by its own deviation, or by that of its class.
        let chance = CHANCE / elements as f64;
        let (own, common) = (quantile(1.0, n, chance).sqrt(), quantile(1.0, 1e6, chance).sqrt());
        let classes = self.classes();
        let each = (0..elements).map(|i| {
            let common = common * (classes[i].0 / n).sqrt();
            let own = own * (self.squares[i] / n).sqrt();
            let systematic = (self.mean[i] - shift[i]).abs().max((self.nearest[i] - shift[i]).abs());
            let spacing = self.dtype.epsilon() * self.origin(i).abs();
            let spacing = if spacing.is_finite() { spacing / scale } else { 0.0 };
            scale * (own.max(common) * more + systematic + spacing)
        });
        Bound {
            norm: scale * (factor * deviation + systematic),
            factor,
            deviation: scale * deviation,
            elements: each.collect(),
            shift,
            sizes: classes.iter().map(|c| c.1.sqrt()).collect(),
        }
    }

    /// By element, the mean of the squared deviations of its class, and of its squared numbers. Of its class
    /// are the elements that are at most [`CLASS`] times as large as it or as the eighth of all that is
    /// smallest: what roundings decide, and none of the runs has decided otherwise, moves an element as
    /// others of its size. What is zero up to the roundings of f64 beside the largest, and what is not
    /// finite, has the class of the median of the rest.
    fn classes(&self) -> Vec<(f64, f64)> {
        let origins: Vec<f64> = (0..self.exact.len()).map(|i| self.origin(i)).collect();
        let mut sizes: Vec<f64> = origins.iter().map(|x| x.abs()).filter(|x| x.is_finite()).collect();
        sizes.sort_by(f64::total_cmp);
        let zero = sizes.last().copied().unwrap_or(0.0) * unit(DType::F64);
        sizes.retain(|&x| x > zero);
        let [least, median] = [8, 2].map(|part| sizes.get(sizes.len() / part).copied().unwrap_or(0.0));
        let size = |i: usize| match origins[i].abs() {
            x if x > zero && x.is_finite() => x.max(least),
            _ => median,
        };
        let mut order: Vec<usize> = (0..origins.len()).collect();
        order.sort_by(|&a, &b| size(a).total_cmp(&size(b)));
        let mut out = vec![(0.0, 0.0); order.len()];
        let (mut squares, mut numbers, mut count) = (0.0, 0.0, 0);
        for &i in &order {
            while let Some(&next) = order.get(count).filter(|&&next| size(next) <= CLASS * size(i)) {
                squares += self.squares[next];
                numbers += Some(origins[next].powi(2)).filter(|x| x.is_finite()).unwrap_or(0.0);
                count += 1;
            }
            out[i] = (squares / count as f64, numbers / count as f64);
        }
        out
    }

    /// Degrees of freedom of the errors.
    fn freedom(&self) -> f64 {
        let (runs, width) = (self.sketches.len(), self.sketches[0].len());
        let mean: Vec<f64> =
            (0..width).map(|i| self.sketches.iter().map(|s| s[i]).sum::<f64>() / runs as f64).collect();
        let centred: Vec<Vec<f64>> =
            self.sketches.iter().map(|s| s.iter().zip(&mean).map(|(x, m)| x - m).collect()).collect();
        let n = runs as f64 - 1.0;
        let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let trace = centred.iter().map(|c| product(c, c)).sum::<f64>() / n;
        let mut squares = 0.0;
        for a in &centred {
            squares += centred.iter().map(|b| (product(a, b) / n).powi(2)).sum::<f64>();
        }
        let squares = n * n / ((n + 2.0) * (n - 1.0).max(1.0)) * (squares - trace * trace / n);
        if squares > 0.0 { trace * trace / squares } else { 1.0 }
    }
}

/// True if `x` stands for a number without error where numbers have the magnitude `largest` at most: equal,
/// both NaN, or both beyond the range, where masks are that add up the most negative numbers. A result there
/// is infinite or the largest number.
pub fn alike(x: f64, exact: f64, largest: f64) -> bool {
    // The largest number as the sum of a mask and a score has it, a few roundings of bf16 lower.
    let most = x.abs() >= largest * (1.0 - 4.0 * DType::BF16.epsilon());
    let beyond = exact.abs() > largest && most && (x > 0.0) == (exact > 0.0);
    x == exact || (x.is_nan() && exact.is_nan()) || beyond
}

/// Projection to [`SKETCH`] coordinates: each element is added to or subtracted from one, by a hash of its
/// place (Charikar, Chen and Farach-Colton, "Finding frequent items in data streams", ICALP 2002).
fn sketch(errors: &[f64]) -> Vec<f64> {
    if errors.len() <= SKETCH {
        return errors.to_vec();
    }
    let mut out = vec![0.0; SKETCH];
    for (i, e) in errors.iter().enumerate() {
        let h = mixed(i as u64);
        out[(h % SKETCH as u64) as usize] += if h >> 63 == 0 { *e } else { -*e };
    }
    out
}

/// The number that an F distribution of `a` and `b` degrees of freedom exceeds with a chance.
fn quantile(a: f64, b: f64, chance: f64) -> f64 {
    let above = |x: f64| beta(b / (b + a * x), b / 2.0, a / 2.0);
    let (mut low, mut high) = (0.0f64, 1.0f64);
    while above(high) > chance && high < 1e30 {
        (low, high) = (high, high * 4.0);
    }
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if above(middle) > chance { low = middle } else { high = middle }
    }
    high
}

/// The regularized incomplete beta function, by its continued fraction (Abramowitz and Stegun 26.5.8,
/// evaluated by Lentz's method).
fn beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return if x <= 0.0 { 0.0 } else { 1.0 };
    }
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - beta(1.0 - x, b, a);
    }
    let front = libm::lgamma(a + b) - libm::lgamma(a) - libm::lgamma(b) + a * x.ln() + b * (1.0 - x).ln();
    const TINY: f64 = 1e-300;
    let nonzero = |x: f64| if x.abs() < TINY { TINY } else { x };
    let (mut c, mut d) = (1.0, 1.0 / nonzero(1.0 - (a + b) * x / (a + 1.0)));
    let mut fraction = d;
    for m in 1..2000 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut last = 1.0;
        for term in [even, odd] {
            d = 1.0 / nonzero(1.0 + term * d);
            c = nonzero(1.0 + term / c);
            last = c * d;
            fraction *= last;
        }
        if (last - 1.0).abs() < 1e-14 {
            break;
        }
    }
    (front.exp() * fraction / a).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_tables() {
        // scipy.stats.f.isf(1e-8, a, b)
        for (a, b, want) in [(1.0, 15.0, 127.4), (8.0, 120.0, 8.17), (256.0, 3840.0, 1.608)] {
            let got = quantile(a, b, 1e-8);
            assert!((got / want - 1.0).abs() < 0.02, "{a} {b}: {got}, {want}");
        }
    }

    /// Numbers of a normal distribution.
    fn normal(seed: &mut u64) -> f64 {
        let mut uniform = || {
            *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((*seed >> 11) as f64 + 0.5) / f64::exp2(53.0)
        };
        (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()
    }

    #[test]
    fn freedom_is_that_of_independent_errors() {
        let mut seed = 1;
        for (independent, elements) in [(1, 64), (8, 64), (64, 64), (100, 4096)] {
            let mut spread = Spread::new(vec![1.0; elements], DType::F32, 1.0);
            for _ in 0..16 {
                let few: Vec<f64> = (0..independent).map(|_| 1e-3 * normal(&mut seed)).collect();
                let value: Vec<f64> = (0..elements).map(|i| 1.0 + few[i % independent]).collect();
                spread.add(&value);
            }
            let freedom = spread.freedom() / independent as f64;
            assert!(freedom > 0.5 && freedom < 2.0, "{independent} of {elements}: {freedom}");
        }
    }

    #[test]
    fn small_elements_are_bounded_beside_huge_ones() {
        // Masks of -1e9, scores of 1 and rounding of each by its own size.
        let mut seed = 3;
        let exact = |i: usize| if i.is_multiple_of(2) { -1e9 } else { 1.0 };
        let mut spread = Spread::new((0..64).map(exact).collect(), DType::BF16, 1.0);
        for _ in 0..16 {
            let value: Vec<f64> = (0..64).map(|i| exact(i) * (1.0 + 2e-3 * normal(&mut seed))).collect();
            spread.add(&value);
        }
        let bound = spread.bound(1.0);
        for i in 0..64 {
            let share = bound.elements[i] / exact(i).abs();
            assert!(share > 0.01 && share < 0.2, "element {i}: {share}");
            assert_eq!(bound.sizes[i] > 1e8, i.is_multiple_of(2));
        }
        // A mask of zeros is of the class of what it masks.
        let mut spread = Spread::new(vec![0.0, 1.0, 2.0, 0.0], DType::BF16, 1.0);
        (0..16).for_each(|_| spread.add(&[0.0, 1.0 + 1e-2 * normal(&mut seed), 2.0, 0.0]));
        let bound = spread.bound(1.0);
        assert!(bound.elements[0] > 1e-2 && bound.elements[0] < 0.2, "{:?}", bound.elements);
    }

    #[test]
    fn what_all_runs_have_alike_is_expected_and_not_in_the_bound() {
        let mut seed = 5;
        let mut spread = Spread::new(vec![1.0; 50], DType::BF16, 1.0);
        let draw = |seed: &mut u64| -> Vec<f64> { (0..50).map(|_| 1.2 + 1e-2 * normal(seed)).collect() };
        let nearest = draw(&mut seed);
        spread.nearest(&nearest);
        for _ in 0..16 {
            spread.add(&draw(&mut seed));
        }
        let size = 50f64.sqrt();
        let (bound, scaled) = (spread.bound(1.0), spread.bound(0.5));
        assert!(bound.norm < 0.05 * size && bound.shift.iter().all(|s| (s - 0.2).abs() < 0.02));
        // Errors of another grid have another mean.
        assert!(scaled.norm > 0.1 * size && scaled.shift.iter().all(|s| *s == 0.0));
        // Runs that agree say nothing of the next one.
        let mut spread = Spread::new(vec![1.0], DType::BF16, 1.0);
        (0..16).for_each(|_| spread.add(&[1.2]));
        assert!(spread.bound(1.0).norm > 0.19 && spread.bound(1.0).shift == [0.0]);
    }

    #[test]
    fn what_saturates_is_explained_by_the_runs_that_saturate() {
        // The logarithm of two zeros in f16 without infinity, as f32 has it; beside it an ordinary number.
        let lowest = -65504.0 + 2f64.ln();
        let mut spread = Spread::new(vec![f64::NEG_INFINITY, 1.0], DType::F32, 1.0);
        spread.nearest_saturated(&[lowest, 1.0]);
        (0..16).for_each(|i| spread.add(&[lowest + 0.002 * f64::from(i % 3), 1.0 + 1e-7 * f64::from(i % 2)]));
        for (x, explained) in [
            (lowest, true),
            (lowest + 0.02, true),
            (lowest + 1.0, false),
            (-40000.0, false),
            (65504.0, false),
        ] {
            assert_eq!(spread.explained(&[x, 1.0]), [explained, false], "{x}");
        }
        // The other element has the bound that it has alone.
        let bound = spread.bound(1.0);
        assert!(bound.elements[1] > 1e-7 && bound.elements[1] < 1e-5, "{:?}", bound.elements);
        // Runs that do not saturate explain nothing, nor does a run that overflows elsewhere.
        let mut spread = Spread::new(vec![f64::NEG_INFINITY], DType::F32, 1.0);
        spread.nearest(&[lowest]);
        (0..16).for_each(|_| spread.add(&[lowest]));
        assert_eq!((spread.explained(&[lowest]), spread.bound(1.0).norm), (vec![false], f64::INFINITY));
        let mut spread = Spread::new(vec![f64::NEG_INFINITY], DType::F32, 1.0);
        spread.nearest_saturated(&[lowest]);
        (0..16).for_each(|i| spread.add(&[if i == 7 { f64::NEG_INFINITY } else { lowest }]));
        assert_eq!(spread.explained(&[lowest]), [false]);
    }

    #[test]
    fn honest_values_stay_within_and_wrong_ones_do_not() {
        let mut seed = 7;
        for elements in [1, 3, 50, 1000] {
            for _ in 0..50 {
                let mut spread = Spread::new(vec![1.0; elements], DType::F32, 1.0);
                let draw = |seed: &mut u64| -> Vec<f64> {
                    (0..elements).map(|_| 1.0 + 1e-3 * normal(seed)).collect()
                };
                for _ in 0..16 {
                    spread.add(&draw(&mut seed));
                }
                let nearest = draw(&mut seed);
                spread.nearest(&nearest);
                let bound = spread.bound(1.0);
                let value = draw(&mut seed);
                let norm = value.iter().map(|x| (x - 1.0).powi(2)).sum::<f64>().sqrt();
                assert!(norm <= bound.norm && bound.norm < 0.05 * (elements as f64).sqrt());
                assert!(value.iter().zip(&bound.elements).all(|(x, b)| (x - 1.0).abs() <= *b));
                assert!(bound.elements.iter().all(|b| *b < 0.2), "one element of 1.2 would be found");
            }
        }
    }
}
