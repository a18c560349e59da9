//! The definition of the transforms, in f64: mixed radix, decimated in time (Cooley and Tukey, "An algorithm
//! for the machine calculation of complex Fourier series", Mathematics of Computation 19, 1965).

use crate::shape::Shape;

/// A complex number.
pub type Complex = [f64; 2];

/// `a + b`.
fn plus(a: Complex, b: Complex) -> Complex {
    [a[0] + b[0], a[1] + b[1]]
}

/// `a · b`.
fn times(a: Complex, b: Complex) -> Complex {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

/// The complex conjugate.
pub fn conjugate(a: Complex) -> Complex {
    [a[0], -a[1]]
}

/// `e^(∓2πi k/n)` for `k` below `n`, the sign negative for a forward transform.
fn roots(n: usize, forward: bool) -> Vec<Complex> {
    let turn = if forward { -std::f64::consts::TAU } else { std::f64::consts::TAU };
    let root = |k: usize| (turn * k as f64 / n as f64).sin_cos();
    (0..n).map(root).map(|(sin, cos)| [cos, sin]).collect()
}

/// `Σⱼ xⱼ e^(∓2πi jk/n)` for each `k`, of the `n` elements from `x[0]` on with stride `step`. `roots` are
/// those of the whole signal, whose size is a multiple of `n`.
fn signal(x: &[Complex], step: usize, n: usize, roots: &[Complex]) -> Vec<Complex> {
    let root = |j: usize, k: usize| roots[j * k % n * (roots.len() / n)];
    let radix = (2..).take_while(|p| p * p <= n).find(|p| n.is_multiple_of(*p)).unwrap_or(n);
    if radix == n {
        let term = |j: usize, k: usize| times(x[j * step], root(j, k));
        return (0..n).map(|k| (0..n).map(|j| term(j, k)).fold([0.0; 2], plus)).collect();
    }
    let m = n / radix;
    let parts: Vec<_> = (0..radix).map(|r| signal(&x[r * step..], step * radix, m, roots)).collect();
    let term = |r: usize, k: usize| times(parts[r][k % m], root(r, k));
    (0..n).map(|k| (0..radix).map(|r| term(r, k)).fold([0.0; 2], plus)).collect()
}

/// Transforms `data` of the sizes `shape` along a dimension that has elements.
pub fn along(data: &mut [Complex], shape: &Shape, dim: usize, forward: bool) {
    if data.is_empty() {
        return;
    }
    let (before, n, after) = shape.around(dim);
    let roots = roots(n, forward);
    for lane in 0..before * after {
        let start = lane / after * n * after + lane % after;
        let made = signal(&data[start..], after, n, &roots);
        for (k, y) in made.into_iter().enumerate() {
            data[start + k * after] = y;
        }
    }
}

/// Numbers as pairs.
pub fn complex(x: &[f64]) -> Vec<Complex> {
    x.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect()
}

/// Pairs as numbers, each times a factor.
pub fn scaled(x: &[Complex], factor: f64) -> Vec<f64> {
    x.iter().flatten().map(|x| x * factor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_the_sum_it_stands_for() {
        for n in [1, 2, 3, 4, 6, 7, 8, 9, 12, 13, 15, 30, 49] {
            let x: Vec<Complex> =
                (0..n).map(|j| [(j * j % 11) as f64 - 5.0, (j * 7 % 5) as f64 - 2.0]).collect();
            for forward in [true, false] {
                let mut y = x.clone();
                along(&mut y, &[n].into(), 0, forward);
                let sign = if forward { -1.0 } else { 1.0 };
                for (k, y) in y.iter().enumerate() {
                    let mut sum = [0.0; 2];
                    for (j, &x) in x.iter().enumerate() {
                        let angle = sign * std::f64::consts::TAU * (j * k) as f64 / n as f64;
                        sum = plus(sum, times(x, [angle.cos(), angle.sin()]));
                    }
                    let error = (y[0] - sum[0]).abs().max((y[1] - sum[1]).abs());
                    // Angles up to 2πn are off by as many units of rounding, in n terms of at most 6.
                    assert!(error < 40.0 * (n * n) as f64 * f64::EPSILON, "{n}, {k}: {y:?} {sum:?}");
                }
            }
        }
    }
}
