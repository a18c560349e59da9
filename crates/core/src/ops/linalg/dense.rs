//! The algorithms, on one matrix of f64, row by row. Golub and Van Loan, "Matrix Computations", 4th edition:
//! 3.4 (LU with partial pivoting), 4.2 (Cholesky), 8.6 (one-sided Jacobi, for singular values).
#![allow(clippy::needless_range_loop)]

use crate::diagnostic::Result;
use crate::ensure;

/// A matrix as the product of a permutation, a lower triangle with ones, and an upper triangle, in its place.
#[derive(Debug)]
pub struct Lu {
    n: usize,
    factors: Vec<f64>,
    /// Row `i` of the factors is row `rows[i]` of the matrix.
    rows: Vec<usize>,
    /// Sign of the permutation.
    sign: f64,
}

impl Lu {
    /// Factorizes a matrix of order `n`. Where no pivot is left, the diagonal has a zero.
    pub fn new(a: &[f64], n: usize) -> Lu {
        let mut factors = a.to_vec();
        let (rows, sign) = pivoted(&mut factors, [n, n]);
        Lu { n, factors, rows, sign }
    }

    /// The diagonal, the sign of the permutation before it.
    fn diagonal(&self) -> impl Iterator<Item = f64> + '_ {
        std::iter::once(self.sign).chain((0..self.n).map(|i| self.factors[i * self.n + i]))
    }

    /// The determinant of the matrix.
    pub fn determinant(&self) -> f64 {
        self.diagonal().product()
    }

    /// The sign of the determinant, 0 if it is 0, and the logarithm of its magnitude.
    pub fn log_determinant(&self) -> (f64, f64) {
        let signs = self.diagonal().map(|d| if d == 0.0 || d.is_nan() { d.abs() } else { d.signum() });
        (signs.product(), self.diagonal().map(|d| d.abs().ln()).sum())
    }

    /// Solves for `columns` right sides, `[n, columns]`.
    ///
    /// # Errors
    /// `Value` if the matrix is singular.
    pub fn solve(&self, b: &[f64], columns: usize, x: &mut [f64]) -> Result<()> {
        let (n, f) = (self.n, &self.factors);
        let zero = (0..n).find(|&i| f[i * n + i] == 0.0);
        ensure!(zero.is_none(), Value, "the matrix is singular: pivot {} is zero", zero.unwrap_or(0));
        for i in 0..n {
            let row = self.rows[i];
            for c in 0..columns {
                let known: f64 = (0..i).map(|j| f[i * n + j] * x[j * columns + c]).sum();
                x[i * columns + c] = b[row * columns + c] - known;
            }
        }
        for i in (0..n).rev() {
            for c in 0..columns {
                let known: f64 = (i + 1..n).map(|j| f[i * n + j] * x[j * columns + c]).sum();
                x[i * columns + c] = (x[i * columns + c] - known) / f[i * n + i];
            }
        }
        Ok(())
    }
}

/// Factorizes a matrix `[m, n]` in its place. Returns its rows in the order of those of the factors, and the
/// sign of that permutation. Where no pivot is left, the diagonal has a zero.
pub fn pivoted(f: &mut [f64], [m, n]: [usize; 2]) -> (Vec<usize>, f64) {
    let (mut rows, mut sign) = ((0..m).collect::<Vec<_>>(), 1.0);
    for k in 0..m.min(n) {
        // The first largest; a NaN is never larger and so comes through.
        let pivot =
            (k..m).fold(k, |best, i| if f[i * n + k].abs() > f[best * n + k].abs() { i } else { best });
        if pivot != k {
            (0..n).for_each(|j| f.swap(k * n + j, pivot * n + j));
            rows.swap(k, pivot);
            sign = -sign;
        }
        let diagonal = f[k * n + k];
        if diagonal == 0.0 {
            continue;
        }
        for i in k + 1..m {
            let factor = f[i * n + k] / diagonal;
            f[i * n + k] = factor;
            for j in k + 1..n {
                f[i * n + j] -= factor * f[k * n + j];
            }
        }
    }
    (rows, sign)
}

/// The exchanges that bring rows into an order, in order: row i with row `pivots[i]`, counted from 0.
pub fn pivots_of_order(order: &[usize]) -> Vec<usize> {
    let mut rows: Vec<usize> = (0..order.len()).collect();
    let exchange = |(i, row): (usize, &usize)| {
        let at = (i..rows.len()).find(|&j| rows[j] == *row).unwrap_or(i);
        rows.swap(i, at);
        at
    };
    order.iter().enumerate().map(exchange).collect()
}

/// The order of `m` rows after the exchanges that pivots, counted from 1, stand for.
///
/// # Errors
/// `Value` if one names no row.
pub fn order_of_pivots(pivots: &[i64], m: usize) -> Result<Vec<usize>> {
    let mut rows: Vec<usize> = (0..m).collect();
    for (i, &pivot) in pivots.iter().enumerate() {
        let row = usize::try_from(pivot).ok().and_then(|p| p.checked_sub(1)).filter(|&p| p < m);
        ensure!(row.is_some(), Value, "pivot {pivot} at position {i} is outside 1..={m}");
        rows.swap(i, row.unwrap_or(i));
    }
    Ok(rows)
}

/// Solves for `columns` right sides, `[n, columns]`, with the upper triangle of a matrix of order `n`, or the
/// lower one; with `unit` its diagonal counts as ones. Zeros on the diagonal give infinities.
pub fn solve_triangle(
    a: &[f64],
    n: usize,
    b: &[f64],
    columns: usize,
    [upper, unit]: [bool; 2],
    x: &mut [f64],
) {
    x.copy_from_slice(b);
    for step in 0..n {
        let i = if upper { n - 1 - step } else { step };
        let (before, rest) = x.split_at_mut(i * columns);
        let (row, after) = rest.split_at_mut(columns);
        let (known, first) = if upper { (&*after, i + 1) } else { (&*before, 0) };
        for (j, solved) in known.chunks_exact(columns.max(1)).enumerate() {
            let factor = a[i * n + first + j];
            row.iter_mut().zip(solved).for_each(|(x, y)| *x -= factor * y);
        }
        if !unit {
            row.iter_mut().for_each(|x| *x /= a[i * n + i]);
        }
    }
}

/// The inverse of a matrix of order `n`.
///
/// # Errors
/// `Value` if it is singular.
pub fn inverse(a: &[f64], n: usize, out: &mut [f64]) -> Result<()> {
    let mut one = vec![0.0; n * n];
    (0..n).for_each(|i| one[i * n + i] = 1.0);
    Lu::new(a, n).solve(&one, n, out)
}

/// The lower triangle whose product with its transpose is a symmetric matrix of order `n`, of which the lower
/// triangle is read.
///
/// # Errors
/// `Value` if the matrix is not positive definite.
pub fn cholesky(a: &[f64], n: usize, l: &mut [f64]) -> Result<()> {
    l.fill(0.0);
    for j in 0..n {
        for i in j..n {
            let known: f64 = (0..j).map(|k| l[i * n + k] * l[j * n + k]).sum();
            let rest = a[i * n + j] - known;
            if i == j {
                ensure!(
                    rest > 0.0 || rest.is_nan(),
                    Value,
                    "the matrix is not positive definite: minor {} is not positive",
                    j + 1
                );
                l[j * n + j] = rest.sqrt();
            } else {
                l[i * n + j] = rest / l[j * n + j];
            }
        }
    }
    Ok(())
}

/// Sweeps after which Jacobi's method fails; it needs about six.
pub(super) const SWEEPS: usize = 60;

/// Singular values of a matrix `[m, n]`, the largest first, and the vectors that belong to them: `u [m, k]`
/// and `v [n, k]` with `k = min(m, n)`. Vectors of the value 0 are zeros in one of both.
pub fn singular(a: &[f64], [m, n]: [usize; 2], values: &mut [f64], u: &mut [f64], v: &mut [f64]) {
    if m < n {
        let transposed: Vec<f64> = (0..n * m).map(|i| a[i % m * n + i / m]).collect();
        return singular(&transposed, [n, m], values, v, u);
    }
    // Columns are rotated until they are orthogonal: their lengths are the singular values.
    let mut columns: Vec<Vec<f64>> = (0..n).map(|j| (0..m).map(|i| a[i * n + j]).collect()).collect();
    let mut turns: Vec<Vec<f64>> = (0..n).map(|j| (0..n).map(|i| f64::from(i == j)).collect()).collect();
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(a, b)| a * b).sum::<f64>();
    for _ in 0..SWEEPS {
        let mut turned = false;
        for p in 0..n {
            for q in p + 1..n {
                let (alpha, beta) = (dot(&columns[p], &columns[p]), dot(&columns[q], &columns[q]));
                let gamma = dot(&columns[p], &columns[q]);
                if gamma == 0.0 || gamma.abs() <= f64::EPSILON * (alpha * beta).sqrt() {
                    continue;
                }
                turned = true;
                let zeta = (beta - alpha) / (2.0 * gamma);
                let t = zeta.signum() / (zeta.abs() + zeta.hypot(1.0));
                let c = 1.0 / t.hypot(1.0);
                let s = c * t;
                for vectors in [&mut columns, &mut turns] {
                    let (low, high) = vectors.split_at_mut(q);
                    for (x, y) in low[p].iter_mut().zip(&mut high[0]) {
                        (*x, *y) = (c * *x - s * *y, s * *x + c * *y);
                    }
                }
            }
        }
        if !turned {
            break;
        }
    }
    let lengths: Vec<f64> = columns.iter().map(|x| dot(x, x).sqrt()).collect();
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| lengths[j].total_cmp(&lengths[i]));
    for (k, &j) in order.iter().enumerate() {
        values[k] = lengths[j];
        let scale = if lengths[j] == 0.0 { 0.0 } else { 1.0 / lengths[j] };
        (0..m).for_each(|i| u[i * n + k] = columns[j][i] * scale);
        (0..n).for_each(|i| v[i * n + k] = turns[j][i]);
    }
}
