//! Pairs against f64, with the bounds that the functions state.

use super::program::{COLUMNS, split};
use super::*;
use crate::expr::{Binary, Expr, float, input};
use crate::reference::{self, rows};
use crate::row::{Access, Reduce, RowBuilder, RowProgram};
use proptest::prelude::*;

/// u².
const U2: f64 = 1.0 / (1u64 << 48) as f64;

/// An f64 as its nearest pair.
fn parts(x: f64) -> [f64; 2] {
    let hi = x as f32 as f64;
    [hi, if hi.is_finite() { (x - hi) as f32 as f64 } else { 0.0 }]
}

/// Runs a program of f64 operands on pairs; a pair for each element of each result.
fn run(p: &RowProgram, inputs: &[Vec<f64>], results: &[usize]) -> Vec<Vec<[f64; 2]>> {
    let halves: Vec<Tensor> = (inputs.iter())
        .flat_map(|x| [0, 1].map(|part| x.iter().map(|&x| parts(x)[part]).collect::<Vec<_>>()))
        .map(|x| Tensor::float(DType::F32, [x.len()], x))
        .collect();
    let types: Vec<TensorType> =
        results.iter().flat_map(|&n| vec![TensorType::new(DType::F32, [n]); 2]).collect();
    let split = split(p).unwrap();
    let out = rows::run(&split, &halves.iter().collect::<Vec<_>>(), &types).unwrap();
    out.chunks(2)
        .map(|c| c[0].floats().iter().zip(c[1].floats()).map(|(&hi, &lo)| [hi, lo]).collect())
        .collect()
}

/// One number of pairs of `x` and `y`.
fn of_two(e: Expr, x: f64, y: f64) -> [f64; 2] {
    let one: &[usize] = &[1];
    let p = RowProgram::pointwise(&[(DType::F64, one), (DType::F64, one)], one, &[DType::F64], &[e]);
    run(&p, &[vec![x], vec![y]], &[1])[0][0]
}

/// The same function of one register over the columns of a row.
fn over_row(op: Reduce, x: &[f64]) -> [f64; 2] {
    let mut b = RowBuilder::new(&[], &[x.len()]);
    let r = b.read(DType::F64, Access::identity(1));
    let r = b.reduce(op, r);
    b.store(DType::F64, Access::still(1), r);
    run(&b.finish(), &[x.to_vec()], &[1])[0][0]
}

/// Numbers that are pairs, of either sign, far from the ends of the range.
fn number() -> impl Strategy<Value = f64> {
    (any::<bool>(), -40..40i32, 1.0..2.0f64).prop_map(|(minus, exponent, x)| {
        let x = x * f64::exp2(exponent as f64);
        let [hi, lo] = parts(if minus { -x } else { x });
        hi + lo
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn arithmetic_keeps_its_bounds(x in number(), y in number()) {
        let cases = [
            (Binary::Add, x + y, 3.1),
            (Binary::Sub, x - y, 3.1),
            (Binary::Mul, x * y, 7.0),
            (Binary::Div, x / y, 15.1),
        ];
        for (op, want, bound) in cases {
            let e = Expr::Binary(op, Box::new(input(0)), Box::new(input(1)));
            let [hi, lo] = of_two(e, x, y);
            // One rounding is f64's own, of `want`.
            prop_assert!((hi + lo - want).abs() <= (bound * U2 + f64::EPSILON) * want.abs(), "{op:?}: {hi} + {lo}, not {want}");
            prop_assert_eq!(hi, (hi + lo) as f32 as f64, "{:?} is not normalized", op);
        }
        let root = x.abs().sqrt();
        let [hi, lo] = of_two(input(0).abs().sqrt(), x, y);
        prop_assert!((hi + lo - root).abs() <= (4.0 * U2 + f64::EPSILON) * root);
        let [hi, lo] = of_two(input(0).max(input(1)), x, y);
        prop_assert_eq!(hi + lo, x.max(y));
        for (e, want) in [
            (input(0).lt(input(1)), x < y), (input(0).le(input(0)), true), (input(0).eq(input(1)), x == y),
            (input(0).ge(input(1)), x >= y), (input(0).ne(input(1)), x != y), (input(0).gt(input(1)), x > y),
        ] {
            prop_assert_eq!(of_two(e.select(float(1.0), float(0.0)), x, y)[0], want as u8 as f64);
        }
    }

    #[test]
    fn close_numbers_cancel_and_compare(x in number(), ulps in -8..8i32) {
        let y = { let [hi, lo] = parts(x + x * U2 * ulps as f64); hi + lo };
        let [hi, lo] = of_two(input(0) - input(1), x, y);
        prop_assert!((hi + lo - (x - y)).abs() <= 4.0 * U2 * (x - y).abs());
        let less = of_two(input(0).lt(input(1)).select(float(1.0), float(0.0)), x, y);
        prop_assert_eq!(less[0], (x < y) as u8 as f64);
    }

    #[test]
    fn sums_keep_their_bound_in_any_order(x in prop::collection::vec(number(), 1..200), turn in 0..200usize) {
        let [hi, lo] = over_row(Reduce::Sum, &x);
        let (want, size) = (exact_sum(&x), x.iter().map(|x| x.abs()).sum::<f64>());
        prop_assert!((hi + lo - want).abs() <= 32.0 * U2 * size, "{} is off by {:e} of {size}", hi + lo, hi + lo - want);
        let mut turned = x.clone();
        turned.rotate_left(turn % x.len());
        let other = over_row(Reduce::Sum, &turned);
        prop_assert!((hi + lo - other[0] - other[1]).abs() <= U2 * size);
        let [hi, lo] = over_row(Reduce::Max, &x);
        prop_assert_eq!(hi + lo, x.iter().copied().fold(f64::NEG_INFINITY, f64::max));
    }
}

/// The sum with Neumaier's compensation, exact to f64's rounding for so few numbers.
fn exact_sum(x: &[f64]) -> f64 {
    let (mut sum, mut error) = (0.0f64, 0.0);
    for &x in x {
        let next = sum + x;
        error += if sum.abs() >= x.abs() { (sum - next) + x } else { (x - next) + sum };
        sum = next;
    }
    sum + error
}

#[test]
fn infinities_and_nan_are_those_of_floats() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let (x, y) = (input(0), input(1));
    let third = 1.0 / 3.0;
    for (e, a, b, want) in [
        (x.clone() + y.clone(), inf, third, inf),
        (x.clone() + y.clone(), inf, -inf, nan),
        (x.clone() + y.clone(), 3e38, 3e38, inf),
        (x.clone() * y.clone(), inf, third, inf),
        (x.clone() * y.clone(), 3e38, 3.0, inf),
        (x.clone() * y.clone(), inf, 0.0, nan),
        (x.clone() / y.clone(), third, 0.0, inf),
        (x.clone() / y.clone(), third, inf, 0.0),
        (x.clone() / y.clone(), 0.0, 0.0, nan),
        (x.clone().sqrt(), 0.0, 0.0, 0.0),
        (x.clone().sqrt(), inf, 0.0, inf),
        (x.clone().sqrt(), -third, 0.0, nan),
        (x.clone().min(y.clone()), nan, third, nan),
        (x.clone().abs(), -inf, third, inf),
    ] {
        let [hi, lo] = of_two(e.clone(), a, b);
        assert!(hi == want || (hi.is_nan() && want.is_nan()), "{e:?} of {a} and {b} is {hi}");
        assert_eq!(lo, 0.0, "{e:?} of {a} and {b}");
    }
    assert_eq!(over_row(Reduce::Sum, &[1.0, inf, 2.0]), [inf, 0.0]);
    assert!(over_row(Reduce::Sum, &[inf, -inf])[0].is_nan());
    assert!(over_row(Reduce::Max, &[1.0, nan, third])[0].is_nan());
    assert_eq!(over_row(Reduce::Sum, &[0.0; 7]), [0.0, 0.0]);
}

#[test]
fn large_and_small_numbers_neither_overflow_nor_vanish() {
    for (x, y) in [(2e38, 1.0 / 3.0), (1.0 / 3.0, 2e38), (1.5e19, 2.1e19), (1e-30, 1e-5)] {
        let [hi, lo] = of_two(input(0) * input(1), x, y);
        let want = (parts(x)[0] + parts(x)[1]) * (parts(y)[0] + parts(y)[1]);
        // The smallest f32, for the error terms of small products.
        assert!(
            (hi + lo - want).abs() <= 8.0 * U2 * want + 8.0 * f64::exp2(-149.0),
            "{x} · {y} is {hi} + {lo}"
        );
    }
    for size in [1e38 / COLUMNS as f64, 1e-35] {
        let x: Vec<f64> = (0..COLUMNS).map(|i| size * (1.0 + i as f64 / 999.0)).collect();
        let x: Vec<f64> = x.iter().map(|&x| parts(x)[0] + parts(x)[1]).collect();
        let ([hi, lo], want) = (over_row(Reduce::Sum, &x), exact_sum(&x));
        let smallest = COLUMNS as f64 * f64::exp2(-149.0);
        assert!((hi + lo - want).abs() <= 32.0 * U2 * want + smallest, "{} is not {want}", hi + lo);
    }
}

#[test]
fn what_pairs_do_not_compute_is_refused_by_name() {
    let refused = |e: Expr| {
        let one: &[usize] = &[1];
        let p = RowProgram::pointwise(&[(DType::F64, one)], one, &[DType::F64], &[e]);
        split(&p).unwrap_err().message
    };
    assert_eq!(refused(input(0).exp()), "Exp in pairs of f32");
    assert_eq!(refused(input(0).pow(float(3.0))), "Pow in pairs of f32");
    assert_eq!(refused(input(0) + float(1e300)), "the number 1e300 in pairs of f32");

    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F64, [3]), InputRole::State);
    b.output("y", x, OutputRole::User);
    let message = split_wide(b.finish()).unwrap_err().message;
    assert_eq!(message, "the target has no f64, and input x is f64[3]");
}

/// The sum of a vector of f32 in f64, as the global norm has it.
#[test]
fn a_graph_sums_long_vectors_without_f64() {
    for n in [1, COLUMNS, COLUMNS + 1, 3 * COLUMNS * COLUMNS / 2] {
        let mut b = Builder::new();
        let x = b.input("x", TensorType::new(DType::F32, [n]), InputRole::State);
        let factor = b.input("factor", TensorType::new(DType::F64, [0usize; 0]), InputRole::State);
        let wide = b.cast(x, DType::F64).unwrap();
        let sum = b.one(&SUM, &[wide], Attrs::new()).unwrap();
        let y = b.mul(sum, factor).unwrap();
        b.output("y", y, OutputRole::User);
        let graph = b.finish();
        let split = split_wide(graph.clone()).unwrap();
        crate::graph::verify::verify(&split).unwrap();
        assert!(split.values.iter().all(|v| v.ty.dtype != DType::F64));
        let numbers = (0..n).map(|i| ((i * 7919) % 1013) as f64 / 1013.0).collect();
        let x = Tensor::float(DType::F32, [n], numbers);
        let factor = 1.0 / 3.0;
        let want = reference::run(&graph, &[x.clone(), Tensor::float(DType::F64, [0usize; 0], vec![factor])]);
        let want = want.unwrap()[0].floats()[0];
        let ty = TensorType::new(DType::F32, [2]);
        let pair = Tensor::from_bytes(&ty, &scalar_bytes(&ty, factor));
        let got = scalar_value(&reference::run(&split, &[x, pair]).unwrap()[0]);
        // Three levels of sums, a product and the rounding of the factor, and f64's running sum.
        let bound = (3.0 * 32.0 + 7.0 + 1.0) * U2 + n as f64 * f64::EPSILON;
        assert!((got - want).abs() <= bound * want, "{n}: {got}, not {want}");
    }
}
