//! Random programs: machine code of every tier has the bits of the interpreter.

use super::tests::{agree, fill};
use crate::rows::tests::{Example, Rng, compile, plain};
use crate::tier::Tier;
use headwater_core::DType;
use headwater_core::expr::{Binary, Expr, Unary, input};
use headwater_core::row::{Reduce, ReduceSpace, Reg, RowBuilder};
use proptest::prelude::ProptestConfig;
use proptest::proptest;

/// Registers made so far, by type.
#[derive(Default)]
struct Made {
    floats: Vec<Reg>,
    bools: Vec<Reg>,
    ints: Vec<Reg>,
    /// Numbers as they were read: no rule fixes the bits of NaNs that are computed.
    read: Vec<Reg>,
}

/// One of some, rather a late one.
fn one(rng: &mut Rng, of: &[Reg]) -> Reg {
    let late = of.len().min(6);
    match rng.below(2) {
        0 => of[of.len() - 1 - rng.below(late)],
        _ => of[rng.below(of.len())],
    }
}

/// Adds an operation on what there is.
fn operation(rng: &mut Rng, b: &mut RowBuilder, made: &mut Made) {
    let two = |f: Binary| Expr::Binary(f, Box::new(input(0)), Box::new(input(1)));
    let unary = |f: Unary| Expr::Unary(f, Box::new(input(0)));
    let (x, y) = (one(rng, &made.floats), one(rng, &made.floats));
    match rng.below(9) {
        0 => {
            use Unary::*;
            let f = rng.pick(&[Neg, Abs, Exp, ExpNonpos, Log, Sqrt, Rsqrt, Recip, Floor, Ceil, Trunc, Round]);
            made.floats.push(b.expr(&unary(f), &[x]));
        }
        1 => {
            let f = rng.pick(&[Unary::Tanh, Unary::Erf, Unary::Ndtr, Unary::Sigmoid]);
            made.floats.push(b.expr(&unary(f), &[x]));
        }
        2 | 3 => {
            use Binary::*;
            let f = rng.pick(&[Add, Sub, Mul, Div, Min, Max]);
            made.floats.push(b.expr(&two(f), &[x, y]));
        }
        4 => {
            // Deciding once or twice, or kept as it is.
            use Binary::*;
            let f = rng.pick(&[Eq, Ne, Lt, Le, Gt, Ge]);
            let mask = b.expr(&two(f), &[x, y]);
            for _ in 0..rng.below(3) {
                let (x, y) = (one(rng, &made.floats), one(rng, &made.floats));
                made.floats.push(b.expr(&input(0).select(input(1), input(2)), &[mask, x, y]));
            }
            made.bools.push(mask);
        }
        5 => made.bools.push(b.expr(&unary(rng.pick(&[Unary::IsNan, Unary::IsInf])), &[x])),
        6 if !made.bools.is_empty() => {
            let (m, n) = (one(rng, &made.bools), one(rng, &made.bools));
            let both = b.expr(&two(rng.pick(&[Binary::And, Binary::Or, Binary::Xor])), &[m, n]);
            made.bools.push(both);
            made.floats.push(b.expr(&input(0).select(input(1), input(2)), &[both, x, y]));
        }
        7 => made.floats.push(b.expr(&input(0).cast(rng.pick(&[DType::F16, DType::BF16])), &[x])),
        _ => {
            let bits = b.expr(&input(0).bits(), &[one(rng, &made.read)]);
            let changed = b.expr(&(input(0) + Expr::Int(0x8000)).and(Expr::Int(-0x10000)), &[bits]);
            made.ints.push(b.expr(&input(0).cast(DType::I16), &[bits]));
            made.floats.push(b.expr(&input(0).from_bits(), &[changed]));
        }
    }
}

/// A program of some operands, operations, reductions and results.
fn program(rng: &mut Rng) -> Example {
    let cols = match rng.below(4) {
        0 => 24 + rng.below(80),
        1 => 32 * (1 + rng.below(12)),
        2 => 16 * (2 + rng.below(40)),
        _ => 30 + rng.below(600),
    };
    let (shape, dims): (Vec<usize>, Vec<usize>) = match rng.below(5) {
        0 => (vec![cols], vec![]),
        1 => (vec![1 + rng.below(5), 1 + rng.below(5), cols], vec![0, 2]),
        _ => (vec![rng.pick(&[1, 2, 5, 17, 40]), cols], vec![1]),
    };
    let space = ReduceSpace::new(&shape, &dims);
    let mut b = space.builder();
    let (mut made, mut reads, mut writes) = (Made::default(), Vec::new(), Vec::new());
    for i in 0..1 + rng.below(5) {
        use DType::*;
        let dtype = if i == 0 { F32 } else { rng.pick(&[F32, F32, F16, BF16, BF16, Bool, I16]) };
        let last = shape.len() - 1;
        let (access, of) = match rng.below(6) {
            0 => (space.trailing(last), shape[last..].to_vec()),
            _ => (space.full.clone(), shape.clone()),
        };
        let x = b.read(dtype, access);
        reads.push(of);
        match dtype {
            Bool => made.bools.push(x),
            I16 => made.ints.push(x),
            F16 => made.floats.push(x),
            _ => {
                made.floats.push(x);
                made.read.push(x);
            }
        }
    }
    let mut reductions = 0;
    for _ in 0..1 + rng.below(30) {
        if rng.below(8) == 0 && !dims.is_empty() && reductions < 4 {
            reductions += 1;
            let x = one(rng, &made.floats);
            made.floats.push(b.reduce(rng.pick(&[Reduce::Sum, Reduce::Sum, Reduce::Max, Reduce::Min]), x));
        } else {
            operation(rng, &mut b, &mut made);
        }
    }
    for _ in 0..1 + rng.below(3) {
        let (dtype, x) = match rng.below(6) {
            0 if !made.bools.is_empty() => (DType::Bool, one(rng, &made.bools)),
            1 if !made.ints.is_empty() => (DType::I16, one(rng, &made.ints)),
            _ => (rng.pick(&[DType::F32, DType::F16, DType::BF16]), one(rng, &made.floats)),
        };
        b.store(dtype, space.full.clone(), x);
        writes.push(shape.clone());
    }
    let reads: Vec<&[usize]> = reads.iter().map(|s| &s[..]).collect();
    let writes: Vec<&[usize]> = writes.iter().map(|s| &s[..]).collect();
    plain(b.finish(), &reads, &writes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn random_programs_have_the_bits_of_the_interpreter(seed in 1u64..) {
        let rng = &mut Rng(seed);
        let mut ex = program(rng);
        fill(&mut ex, seed as u32);
        if Tier::detect() >= Tier::Avx2 && compile(&ex, Tier::Avx2).is_ok_and(|p| p.machine.is_some()) {
            agree(&ex, &format!("program {seed}"));
        }
    }
}
