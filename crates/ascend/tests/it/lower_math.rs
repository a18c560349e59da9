//! Elementary functions of row programs on both chips, in the simulator, beside f64. Division, root, `exp`
//! and `ln` are the simulator's own there; the chips' are not published.

use half::f16;
use headwater_ascend::kernel::Source;
use headwater_ascend::lower::rows;
use headwater_ascend::sim::{Arg, Launch, Mode, launch};
use headwater_ascend::{Arch, Chip};
use headwater_core::expr::{Expr, Unary, input};
use headwater_core::graph::Origin;
use headwater_core::plan::{Place, SegmentId, TensorView};
use headwater_core::reference::scalar::unary_f;
use headwater_core::row::RowProgram;
use headwater_core::{DType, Layout, Shape};

/// A function of some numbers as a kernel computes it.
fn computed(chip: &Chip, op: Unary, x: &[f32]) -> Vec<f32> {
    let shape = Shape::new(&[x.len()]);
    let expr = Expr::Unary(op, Box::new(input(0)));
    let program = RowProgram::pointwise(&[(DType::F32, &shape)], &shape, &[DType::F32], &[expr]);
    let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
    run(chip, &program, &bytes, 4).as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// The same of halves, to halves.
fn computed_in_half(chip: &Chip, op: Unary, x: &[f16]) -> Vec<f16> {
    let shape = Shape::new(&[x.len()]);
    let expr = Expr::Unary(op, Box::new(input(0)));
    let program = RowProgram::pointwise(&[(DType::F16, &shape)], &shape, &[DType::F16], &[expr]);
    let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
    run(chip, &program, &bytes, 2).as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b)).collect()
}

/// A program of one operand and one result, of elements of so many bytes.
fn run(chip: &Chip, program: &RowProgram, x: &[u8], size: usize) -> Vec<u8> {
    let view = |segment, dtype| TensorView {
        place: Place { segment: SegmentId(segment), offset: 0 },
        dtype,
        layout: Layout::contiguous(&Shape::new(&[x.len() / size])),
    };
    let (from, to) = (view(0, program.reads[0].dtype), view(1, program.writes[0].dtype));
    let source = Source { op: "function".into(), origin: Origin::default() };
    let lowered = rows(chip, program, &[&from], &[&to], &source).unwrap();
    let bytes = x.len().next_multiple_of(512);
    let mut memory = x.to_vec();
    memory.resize(2 * bytes, 0);
    let args = [Arg::Pointer(0), Arg::Pointer(bytes as u64)];
    let only = &lowered.launches[0];
    launch(&Launch::new(&only.program, chip, only.blocks, &args, Mode::Fast), &mut memory).unwrap();
    memory[bytes..][..x.len()].to_vec()
}

/// Floats of all magnitudes and both signs, and a fine even grid around 0.
fn numbers(from: f32, to: f32) -> Vec<f32> {
    let step = 40_009;
    let all = (0..u32::MAX / step).map(|i| f32::from_bits(i * step));
    let grid = (0..100_000).map(|i| -100.0 + 200.0 * i as f32 / 1e5);
    let near = (0..100_000).map(|i| -2.0 + 4.0 * i as f32 / 1e5);
    all.chain(grid).chain(near).filter(|x| (from..=to).contains(x)).collect()
}

/// Largest error in units of the last place of the truth, of results that are normal numbers.
fn worst(chip: &Chip, op: Unary, from: f32, to: f32) -> (f64, f32) {
    let x = numbers(from, to);
    let mut worst = (0.0, 0.0);
    for (x, y) in x.iter().zip(computed(chip, op, &x)) {
        let truth = unary_f(op, f64::from(*x));
        if (truth as f32).is_infinite() {
            assert_eq!(y, truth as f32, "{op:?} of {x} on {chip}");
            continue;
        }
        let near = (truth as f32).abs().max(f32::MIN_POSITIVE);
        let ulp = f64::from(near.next_up()) - f64::from(near);
        let error = (f64::from(y) - truth).abs() / ulp;
        assert!(!error.is_nan(), "{op:?} of {x} on {chip} is {y}");
        if error > worst.0 {
            worst = (error, *x);
        }
    }
    worst
}

#[test]
fn functions_are_within_their_bounds() {
    let inf = f32::INFINITY;
    let bounds = [
        (Unary::Exp, -inf, inf, 1.0),
        (Unary::Log, 0.0, inf, 1.0),
        (Unary::Sqrt, 0.0, inf, 0.5),
        (Unary::Rsqrt, 1e-30, inf, 2.0),
        (Unary::Recip, 1e-37, 1e37, 0.5),
        (Unary::Expm1, -inf, inf, 4.0),
        (Unary::Log1p, -1.0, inf, 4.0),
        (Unary::Tanh, -inf, inf, 4.0),
        (Unary::Erf, -inf, inf, 4.0),
        (Unary::Sigmoid, -87.0, inf, 4.0),
    ];
    for arch in Arch::ALL {
        let chip = Chip::from_name(if arch == Arch::A2 { "910b1" } else { "310p" }).unwrap();
        for (op, from, to, bound) in bounds {
            let (error, at) = worst(chip, op, from, to);
            println!("{op:?} on {chip}: {error:.2} ulp at {at:e}");
            assert!(error <= bound, "{op:?} on {chip}: {error} ulp at {at:e}, stated are {bound}");
        }
    }
}

#[test]
fn sines_and_cosines_are_within_their_bound() {
    for name in ["910b1", "310p"] {
        let chip = Chip::from_name(name).unwrap();
        let limit = std::f32::consts::PI * 32768.0;
        let mut x = numbers(-limit, limit);
        x.extend((0..200_000).map(|i| limit * (i as f32 / 1e5 - 1.0)));
        for op in [Unary::Sin, Unary::Cos] {
            for (x, y) in x.iter().zip(computed(chip, op, &x)) {
                let truth = unary_f(op, f64::from(*x));
                assert!(
                    (f64::from(y) - truth).abs() <= f64::exp2(-22.0),
                    "{op:?} of {x} on {chip}: {y}, {truth}"
                );
            }
        }
    }
}

#[test]
fn the_normal_distribution_is_within_its_bound() {
    for name in ["910b1", "310p"] {
        let chip = Chip::from_name(name).unwrap();
        let x: Vec<f32> = (0..=400_000).map(|i| 7.0 * (i as f32 / 2e5 - 1.0)).collect();
        for (x, y) in x.iter().zip(computed(chip, Unary::Ndtr, &x)) {
            let truth = unary_f(Unary::Ndtr, f64::from(*x));
            let below = 2.0 * (1.0 + f64::from(x * x)) * truth;
            let bound = if *x < -5.7 { truth } else { f64::exp2(-22.0) * below.min(1.0) };
            assert!((f64::from(y) - truth).abs() <= bound, "ndtr of {x} on {chip}: {y}, {truth}");
        }
    }
}

/// Results of every half, where 16 bits are kept, are within 2⁻¹⁷ of themselves before they are rounded.
#[test]
fn the_normal_distribution_of_halves_is_within_its_bound() {
    for name in ["910b1", "310p"] {
        let chip = Chip::from_name(name).unwrap();
        let x: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).filter(|x| x.is_finite()).collect();
        for (x, y) in x.iter().zip(computed_in_half(chip, Unary::Ndtr, &x)) {
            let truth = unary_f(Unary::Ndtr, f64::from(*x));
            let own = truth * f64::exp2(-17.0);
            let bound = own + (truth + own) * f64::exp2(-11.0) + f64::exp2(-25.0);
            assert!((f64::from(y) - truth).abs() <= bound, "ndtr of {x} on {chip}: {y}, {truth}");
        }
    }
}

/// `1 + tanh x` comes without cancellation.
#[test]
fn one_more_than_a_tangent_is_exact_for_negative_numbers() {
    let chip = Chip::from_name("910b1").unwrap();
    let x: Vec<f32> = (0..=20_000).map(|i| -10.0 + i as f32 / 1e3).collect();
    let shape = Shape::new(&[x.len()]);
    let expr = input(0).tanh() + 1.0;
    let program = RowProgram::pointwise(&[(DType::F32, &shape)], &shape, &[DType::F32], &[expr]);
    let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
    for (x, y) in x.iter().zip(run(chip, &program, &bytes, 4).as_chunks::<4>().0) {
        let (y, truth) = (f64::from(f32::from_le_bytes(*y)), 2.0 / (1.0 + (-2.0 * f64::from(*x)).exp()));
        // The exponential is off by an ulp, 2⁻²³; a sum and a quotient are rounded. All are relative errors.
        let bound = 4.0 * f64::exp2(-24.0) / (1.0 - 4.0 * f64::exp2(-24.0));
        assert!((y - truth).abs() <= bound * truth, "1 + tanh {x}: {y}, {truth}");
    }
}

#[test]
fn special_numbers() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let cases: [(Unary, &[(f32, f32)]); 9] = [
        (Unary::Exp, &[(inf, inf), (-inf, 0.0), (nan, nan), (0.0, 1.0)]),
        (Unary::Expm1, &[(inf, inf), (-inf, -1.0), (nan, nan), (0.0, 0.0)]),
        (Unary::Log, &[(inf, inf), (-1.0, nan), (nan, nan), (0.0, -inf)]),
        (Unary::Log1p, &[(inf, inf), (-1.0, -inf), (nan, nan), (0.0, 0.0), (-2.0, nan)]),
        (Unary::Tanh, &[(inf, 1.0), (-inf, -1.0), (nan, nan), (0.0, 0.0)]),
        (Unary::Erf, &[(inf, 1.0), (-inf, -1.0), (nan, nan), (0.0, 0.0)]),
        (Unary::Ndtr, &[(inf, 1.0), (-inf, 0.0), (nan, nan), (0.0, 0.5)]),
        (Unary::Sigmoid, &[(inf, 1.0), (-inf, 0.0), (nan, nan), (0.0, 0.5)]),
        (Unary::Sign, &[(inf, 1.0), (-inf, -1.0), (nan, 0.0), (-0.0, 0.0)]),
    ];
    for name in ["910b1", "310p"] {
        let chip = Chip::from_name(name).unwrap();
        for (op, cases) in &cases {
            let x: Vec<f32> = cases.iter().map(|c| c.0).collect();
            for ((x, want), y) in cases.iter().zip(computed(chip, *op, &x)) {
                assert!(
                    y == *want || (y.is_nan() && want.is_nan()),
                    "{op:?} of {x} on {chip} is {y}, not {want}"
                );
            }
        }
        for op in [Unary::Floor, Unary::Ceil, Unary::Trunc, Unary::Round] {
            let x = [-2.5, -0.5, 0.5, 1.5, 2.5, 8_388_607.5, -3e9, 3e38];
            for (x, y) in x.iter().zip(computed(chip, op, &x)) {
                assert_eq!(f64::from(y), unary_f(op, f64::from(*x)), "{op:?} of {x} on {chip}");
            }
        }
    }
}
