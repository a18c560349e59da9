//! Products of f32 on 310P, in parts of f16: beside f64, and with infinities and NaN.

use headwater_ascend::device::AscendSim;
use headwater_core::DType::F32;
use headwater_core::evaluate::evaluate;
use headwater_core::graph::{Builder, InputRole, OutputRole};
use headwater_core::ops::linear::matmul::MATMUL;
use headwater_core::{Attrs, Tensor, TensorType};

/// `a · b` for `[m, k]` and `[k, n]`, by checked and fast runs to the same bits.
fn product(a: &Tensor, b: &Tensor) -> Vec<f64> {
    let mut graph = Builder::new();
    let inputs = [("a", a), ("b", b)]
        .map(|(name, t)| Some(graph.input(name, TensorType::new(F32, t.shape().clone()), InputRole::User)));
    let c = graph.apply(&MATMUL, &inputs, Attrs::new()).unwrap()[0];
    graph.output("c", c, OutputRole::User);
    let graph = graph.finish();
    let run = |name: &str| {
        let device = AscendSim::from_name(name, 1).unwrap();
        evaluate(&device, &graph, &[a.clone(), b.clone()]).unwrap_or_else(|e| panic!("{e}")).remove(0)
    };
    let (checked, fast) = (run("310p,checked"), run("310p"));
    assert_eq!(checked.to_bytes(), fast.to_bytes());
    fast.floats().to_vec()
}

/// Numbers in (-1, 1).
fn drawn(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as f64 / f64::exp2(30.0) - 1.0
}

fn f32s(shape: [usize; 2], values: Vec<f64>) -> Tensor {
    Tensor::float(F32, shape, values.into_iter().map(|x| f64::from(x as f32)).collect())
}

/// With u = 2⁻²⁴: parts are off by 2⁻²³ of an element each and 2⁻²² of a term are left out (2⁻²¹ in all),
/// sums of k terms by γ(k), the mixed terms' sums are 2⁻¹⁰ as large, and they are added once. Elements far
/// below the largest of their row or column are off by 2⁻⁵⁰ of it, and results by half a subnormal.
#[test]
fn terms_are_right_to_21_bits() {
    let mut state = 7;
    // Sizes, spread of rows' and columns' magnitudes, and of elements in each, as powers of two.
    for ([m, k, n], apart, inside) in [
        ([5, 70, 33], 0.0, 0.0),
        ([40, 300, 7], 30.0, 8.0),
        ([17, 2100, 20], 10.0, 20.0),
        ([33, 16, 48], 15.0, 40.0),
        ([3, 5, 2], 30.0, 25.0),
    ] {
        let mut spread = |by: f64| f64::exp2((drawn(&mut state) * by).round());
        let (rows, columns): (Vec<_>, Vec<_>) =
            ((0..m).map(|_| spread(apart)).collect(), (0..n).map(|_| spread(apart)).collect());
        let inner: Vec<f64> = (0..m * k + k * n).map(|_| spread(inside)).collect();
        let a = f32s([m, k], (0..m * k).map(|i| drawn(&mut state) * rows[i / k] * inner[i]).collect());
        let b =
            f32s([k, n], (0..k * n).map(|i| drawn(&mut state) * columns[i % n] * inner[m * k + i]).collect());
        let got = product(&a, &b);
        let (a, b) = (a.floats(), b.floats());
        let largest = |all: &mut dyn Iterator<Item = f64>| all.fold(0.0, |m: f64, x| m.max(x.abs()));
        for i in 0..m {
            for j in 0..n {
                let terms = || (0..k).map(|p| a[i * k + p] * b[p * n + j]);
                let (sum, size): (f64, f64) = (terms().sum(), terms().map(f64::abs).sum());
                let (most_a, most_b) =
                    (largest(&mut (0..k).map(|p| a[i * k + p])), largest(&mut (0..k).map(|p| b[p * n + j])));
                let small = 2.0 * k as f64 * most_a * most_b * f64::exp2(-50.0);
                let bound = (f64::exp2(-21.0) + (k + 4) as f64 * f64::exp2(-24.0)) * 1.01 * size;
                let bound = bound + small + f64::exp2(-149.0);
                let got = got[i * n + j];
                assert!(
                    (got - sum).abs() <= bound,
                    "{m} {k} {n} [{i}, {j}]: {got:e}, not {sum:e}, bound {bound:e}"
                );
            }
        }
    }
}

#[test]
fn products_overflow_and_underflow_as_f32_does() {
    let (huge, tiny) = (f64::exp2(120.0), f64::exp2(-120.0));
    let a = f32s([3, 2], vec![huge, huge, tiny, tiny, f64::exp2(-149.0), -f64::exp2(-140.0)]);
    let b = f32s([2, 4], vec![huge, tiny, 1.0, huge, huge, tiny, 0.0, 0.0]);
    let infinite = f64::INFINITY;
    let want = [
        [infinite, 2.0, huge, infinite],
        [2.0, 0.0, tiny, 1.0],
        [f64::exp2(-29.0) - f64::exp2(-20.0), 0.0, f64::exp2(-149.0), f64::exp2(-29.0)],
    ];
    assert_eq!(product(&a, &b), want.concat());
}

/// A number that is not finite makes NaN of every sum that has a term of its row or column, and of no other.
#[test]
fn rows_that_are_not_finite_give_nan() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let (least, small) = (f64::exp2(-149.0), f64::exp2(-70.0));
    let a = [
        [1.0, -2.0, 0.5],
        [inf, 1.0, 2.0],
        [nan, 1.0, 1.0],
        [0.0, 1e30, 1.0],
        [-inf, 1.0, 3e38],
        [least, inf, 0.0],
    ];
    let b = [[1.0, 0.0, small, -least, -1.0], [1.0, 1.0, 1e20, 1.0, inf], [1.0, 1.0, 1.0, 1e10, 1.0]];
    let got = product(&f32s([6, 3], a.concat()), &f32s([3, 5], b.concat()));
    for (i, row) in a.iter().enumerate() {
        for j in 0..5 {
            let column = b.map(|row| row[j]);
            let finite = row.iter().chain(&column).all(|x| x.is_finite());
            let (got, want) = (got[i * 5 + j], row.iter().zip(column).map(|(a, b)| a * b).sum::<f64>());
            // Twice the error of terms, and what is lost of elements that are small beside the largest.
            let largest = |x: &[f64]| x.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
            let (of_row, of_column) = (largest(row), largest(&column));
            let bound = row.iter().zip(column).map(|(a, b)| {
                let (a, b) = (a.abs(), b.abs());
                f64::exp2(-20.0) * a * b + f64::exp2(-50.0) * (of_row * b + a * of_column)
            });
            let near = (got - want).abs() <= bound.sum::<f64>();
            let overflows = want.abs() > f64::from(f32::MAX) && got == inf.copysign(want);
            assert!(if finite { near || overflows } else { got.is_nan() }, "[{i}, {j}] is {got}, not {want}");
        }
    }
}
