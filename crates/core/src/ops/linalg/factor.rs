//! Factorizations by orthogonal matrices, and the exponential, of one matrix of f64, row by row. Golub and
//! Van Loan, "Matrix Computations", 4th edition: 5.2 (QR by Householder reflections), 8.5 (Jacobi's method
//! for eigenvalues), 9.3 (the exponential by scaling and squaring).

use super::dense::{Lu, SWEEPS};
use crate::diagnostic::Result;

/// `q [m, c]` and `r [c, n]` with `q · r = a [m, n]`, `qᵀ · q = 1` and an upper triangle r, where c is
/// `min(m, n)` or m. Signs are LAPACK's: a column that is reflected gives a diagonal element of the other
/// sign.
pub fn qr(a: &[f64], [m, n]: [usize; 2], c: usize, q: &mut [f64], r: &mut [f64]) {
    let mut a = a.to_vec();
    let factors = reflections(&mut a, [m, n]);
    for i in 0..c {
        (0..n).for_each(|j| r[i * n + j] = if j >= i { a[i * n + j] } else { 0.0 });
    }
    (0..m * c).for_each(|i| q[i] = f64::from(i / c == i % c));
    for (j, tau) in factors.iter().enumerate().rev() {
        let v: Vec<f64> = (j..m).map(|i| if i == j { 1.0 } else { a[i * n + j] }).collect();
        reflect(q, c, j, 0..c, *tau, &v);
    }
}

/// Makes `a [m, n]` an upper triangle by reflections `1 − τ v vᵀ`: returns their factors τ, and leaves each v
/// below the diagonal, without the 1 that it begins with.
pub fn reflections(a: &mut [f64], [m, n]: [usize; 2]) -> Vec<f64> {
    let mut factors = Vec::with_capacity(m.min(n));
    for j in 0..m.min(n) {
        let head = a[j * n + j];
        let below = (j + 1..m).map(|i| a[i * n + j]).fold(0.0, f64::hypot);
        if below == 0.0 {
            factors.push(0.0);
            continue;
        }
        let length = -head.hypot(below).copysign(head);
        let mut v: Vec<f64> = (j..m).map(|i| a[i * n + j] / (head - length)).collect();
        v[0] = 1.0;
        let tau = (length - head) / length;
        reflect(a, n, j, j + 1..n, tau, &v);
        a[j * n + j] = length;
        (j + 1..m).for_each(|i| a[i * n + j] = v[i - j]);
        factors.push(tau);
    }
    factors
}

/// `(1 − τ v vᵀ) · a` in place, of the rows from `top` on and of some columns; `a` has rows of `width`.
fn reflect(a: &mut [f64], width: usize, top: usize, columns: std::ops::Range<usize>, tau: f64, v: &[f64]) {
    if tau == 0.0 {
        return;
    }
    for j in columns {
        let along: f64 = v.iter().enumerate().map(|(i, v)| v * a[(top + i) * width + j]).sum();
        for (i, v) in v.iter().enumerate() {
            a[(top + i) * width + j] -= tau * along * v;
        }
    }
}

/// The eigenvalues of a symmetric matrix of order `n`, the least first, and in the columns of `vectors` the
/// eigenvectors that belong to them. The lower triangle is read. A vector's sign is one choice of two;
/// vectors of equal values are one choice of many.
pub fn symmetric(a: &[f64], n: usize, values: &mut [f64], vectors: &mut [f64]) {
    let mut s: Vec<f64> = (0..n * n).map(|i| a[(i / n).max(i % n) * n + (i / n).min(i % n)]).collect();
    let mut turns: Vec<f64> = (0..n * n).map(|i| f64::from(i / n == i % n)).collect();
    for _ in 0..SWEEPS {
        let mut turned = false;
        for p in 0..n {
            for q in p + 1..n {
                let (x, y, off) = (s[p * n + p], s[q * n + q], s[p * n + q]);
                // Too small to change either value.
                if off == 0.0 || off.abs() <= f64::EPSILON * 0.25 * x.abs().min(y.abs()) || off.is_nan() {
                    continue;
                }
                turned = true;
                let zeta = (y - x) / (2.0 * off);
                let t = 1.0_f64.copysign(zeta) / (zeta.abs() + zeta.hypot(1.0));
                let c = 1.0 / t.hypot(1.0);
                let turn = |a: &mut f64, b: &mut f64| (*a, *b) = (c * *a - c * t * *b, c * t * *a + c * *b);
                for k in 0..n {
                    let (mut a, mut b) = (s[k * n + p], s[k * n + q]);
                    turn(&mut a, &mut b);
                    (s[k * n + p], s[k * n + q]) = (a, b);
                    let (mut a, mut b) = (turns[k * n + p], turns[k * n + q]);
                    turn(&mut a, &mut b);
                    (turns[k * n + p], turns[k * n + q]) = (a, b);
                }
                for k in 0..n {
                    let (mut a, mut b) = (s[p * n + k], s[q * n + k]);
                    turn(&mut a, &mut b);
                    (s[p * n + k], s[q * n + k]) = (a, b);
                }
                (s[p * n + q], s[q * n + p]) = (0.0, 0.0);
            }
        }
        if !turned {
            break;
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| s[i * n + i].total_cmp(&s[j * n + j]));
    for (k, &j) in order.iter().enumerate() {
        values[k] = s[j * n + j];
        (0..n).for_each(|i| vectors[i * n + k] = turns[i * n + j]);
    }
}

/// Fills the columns from `known` on of `u [m, c]` so that all of its columns are orthonormal, if those
/// before are: each with the unit vector that they reach least, made orthogonal to them.
pub fn complete(u: &mut [f64], [m, c]: [usize; 2], known: usize) {
    for k in known..c {
        // The rest of each unit vector beside its part in the columns before.
        let left = |i: usize| 1.0 - (0..k).map(|j| u[i * c + j] * u[i * c + j]).sum::<f64>();
        let best = (0..m).fold(0, |best, i| if left(i) > left(best) { i } else { best });
        let mut v: Vec<f64> = (0..m).map(|i| f64::from(i == best)).collect();
        // Twice is enough (Giraud, Langou, Rozložník 2005).
        for j in (0..k).chain(0..k) {
            let along: f64 = (0..m).map(|i| u[i * c + j] * v[i]).sum();
            (0..m).for_each(|i| v[i] -= along * u[i * c + j]);
        }
        let length = v.iter().fold(0.0, |l: f64, x| l.hypot(*x));
        (0..m).for_each(|i| u[i * c + k] = v[i] / length);
    }
}

/// Coefficients of the numerator of the diagonal Padé approximant of degree 13 (Higham 2005, table 2.3).
const PADE: [f64; 14] = [
    64764752532480000.0,
    32382376266240000.0,
    7771770303897600.0,
    1187353796428800.0,
    129060195264000.0,
    10559470521600.0,
    670442572800.0,
    33522128640.0,
    1323241920.0,
    40840800.0,
    960960.0,
    16380.0,
    182.0,
    1.0,
];

/// Norm up to which that approximant is as exact as f64 (Higham 2005, table 2.3).
const PADE_NORM: f64 = 5.371920351148152;

/// The exponential of a matrix of order `n`: Higham 2005, "The scaling and squaring method for the matrix
/// exponential revisited", with degree 13 always. NaN of a matrix that is not finite.
///
/// # Errors
/// `Value` if the approximant's denominator is singular, which no finite matrix makes it.
pub fn exponential(a: &[f64], n: usize, out: &mut [f64]) -> Result<()> {
    let columns = (0..n).map(|j| (0..n).map(|i| a[i * n + j].abs()).sum::<f64>());
    let norm = columns.fold(0.0, |most: f64, x| if x > most || x.is_nan() { x } else { most });
    if !norm.is_finite() {
        out.fill(f64::NAN);
        return Ok(());
    }
    let squarings = (norm / PADE_NORM).log2().ceil().clamp(0.0, 1100.0) as i32;
    let a: Vec<f64> = a.iter().map(|x| x * 0.5_f64.powi(squarings)).collect();
    let two = product(&a, &a, n);
    let four = product(&two, &two, n);
    let six = product(&four, &two, n);
    // The odd terms and the even ones, by powers of two up to six, and six more.
    let terms = |odd: usize| {
        let sum = |from: usize, i: usize, one: f64| {
            PADE[from + odd] * one + PADE[from + 2 + odd] * two[i] + PADE[from + 4 + odd] * four[i]
        };
        let high: Vec<f64> = (0..n * n)
            .map(|i| PADE[8 + odd] * two[i] + PADE[10 + odd] * four[i] + PADE[12 + odd] * six[i])
            .collect();
        let high = product(&six, &high, n);
        let one = |i: usize| f64::from(i / n == i % n);
        (0..n * n).map(|i| high[i] + sum(0, i, one(i)) + PADE[6 + odd] * six[i]).collect::<Vec<f64>>()
    };
    let (even, odd) = (terms(0), product(&a, &terms(1), n));
    let above: Vec<f64> = even.iter().zip(&odd).map(|(v, u)| v + u).collect();
    let below: Vec<f64> = even.iter().zip(&odd).map(|(v, u)| v - u).collect();
    Lu::new(&below, n).solve(&above, n, out)?;
    for _ in 0..squarings {
        let square = product(out, out, n);
        out.copy_from_slice(&square);
    }
    Ok(())
}

fn product(a: &[f64], b: &[f64], n: usize) -> Vec<f64> {
    let mut c = vec![0.0; n * n];
    for (a, c) in a.chunks_exact(n).zip(c.chunks_exact_mut(n)) {
        for (a, b) in a.iter().zip(b.chunks_exact(n)) {
            c.iter_mut().zip(b).for_each(|(c, b)| *c += a * b);
        }
    }
    c
}
