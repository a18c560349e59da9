//! Machine code against the interpreter: the same bits for every function, dtype and reduction, whole groups
//! and rests, numbers of all kinds.

use super::Form;
use crate::rows::tests::{Example, compile, plain, run};
use crate::tier::Tier;
use headwater_core::expr::{Binary, Expr, Unary, input};
use headwater_core::row::{Reduce, ReduceSpace, RowBuilder};
use headwater_core::{DType, Tensor};

/// Floats of all kinds: NaN, infinities, zeros of both signs, subnormals, and values between them.
fn numbers(n: usize, seed: u32) -> Vec<f64> {
    // The second of the two NaNs would become -0 if it were rounded like a number.
    let nans = [f32::NAN, f32::from_bits(0x7FFF_FFFF)];
    let numbers = [f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e-42, -1e-42, 1.0, -1.0, 0.5, f32::MAX];
    let special: Vec<f32> = nans.into_iter().chain(numbers).collect();
    let mut state = seed;
    (0..n)
        .map(|i| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let x = (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
            let x = match state % 7 {
                0 => special[i % special.len()],
                1 => x * 200.0,
                2 => x * 1e-3,
                _ => x * 8.0,
            };
            x as f64
        })
        .collect()
}

/// A number between -3 and 3, where there may be any.
fn tame(at: usize) -> Expr {
    let between = input(at).max(Expr::Float(-3.0)).min(Expr::Float(3.0));
    input(at).is_nan().select(Expr::Float(0.5), between)
}

/// Numbers of all kinds for an example's operands.
pub(super) fn fill(ex: &mut Example, seed: u32) {
    for (i, (slot, tensor)) in ex.reads.iter_mut().enumerate() {
        let n = slot.ty.shape.numel();
        let numbers = numbers(n, seed.wrapping_add(i as u32));
        let data: Vec<f64> = numbers.iter().map(|&x| slot.ty.dtype.round(x)).collect();
        *tensor = match slot.ty.dtype {
            DType::Bool => Tensor::int(
                DType::Bool,
                slot.ty.shape.clone(),
                data.iter().map(|x| (*x > 0.0) as i64).collect(),
            ),
            DType::I16 => {
                let data = data.iter().map(|x| (x * 1e4) as i16 as i64).collect();
                Tensor::int(DType::I16, slot.ty.shape.clone(), data)
            }
            dtype => Tensor::float(dtype, slot.ty.shape.clone(), data),
        };
    }
}

/// Runs an example with machine code and without, and compares all bits.
fn same(mut ex: Example, what: &str) {
    if Tier::detect() < Tier::Avx2 {
        return;
    }
    fill(&mut ex, 17);
    assert!(compile(&ex, Tier::Portable).unwrap().machine.is_none());
    agree(&ex, what);
}

/// The same bits with machine code of every tier as without.
pub(super) fn agree(ex: &Example, what: &str) {
    let tiers = Tier::ALL.into_iter().filter(|&t| t >= Tier::Avx2 && t <= Tier::detect());
    let want = run(ex, 1, Tier::Portable);
    for (tier, threads) in tiers.flat_map(|tier| [(tier, 1), (tier, 3)]) {
        assert!(compile(ex, tier).unwrap().machine.is_some(), "{what} has no machine code");
        for (g, w) in run(ex, threads, tier).iter().zip(&want) {
            // Bits, but for those of NaNs, whose payload no rule fixes.
            let number = |t: &Tensor, i: usize| match t.dtype() {
                DType::Bool | DType::I16 => t.ints()[i] as f64,
                _ => t.floats()[i],
            };
            for i in 0..g.ty.shape.numel() {
                let (g, w) = (number(g, i), number(w, i));
                assert!(
                    g.to_bits() == w.to_bits() || g.is_nan() && w.is_nan(),
                    "{what}, {tier:?}: element {i} is {g}, not {w}"
                );
            }
        }
    }
}

/// A pointwise function of two operands of some dtype, to another.
fn pointwise(from: DType, to: DType, n: usize, e: Expr) -> Example {
    let shape: &[usize] = &[n];
    let space = ReduceSpace::new(shape, &[]);
    let mut b = space.builder();
    let (x, y) = (b.read(from, space.full.clone()), b.read(from, space.full.clone()));
    let z = b.expr(&e, &[x, y]);
    b.store(to, space.full.clone(), z);
    plain(b.finish(), &[shape; 2], &[shape])
}

#[test]
fn functions_have_the_bits_of_the_interpreter() {
    use Unary::*;
    for f in [
        Neg, Abs, Exp, ExpNonpos, Log, Sqrt, Rsqrt, Recip, Tanh, Erf, Ndtr, Floor, Ceil, Trunc, Round,
        Sigmoid,
    ] {
        let e = Expr::Unary(f, Box::new(input(0)));
        same(pointwise(DType::F32, DType::F32, 3000 + 13, e), &format!("{f:?}"));
    }
    for f in [IsNan, IsInf] {
        let e = Expr::Unary(f, Box::new(input(0))).select(input(1), input(0));
        same(pointwise(DType::F32, DType::F32, 1000 + 5, e), &format!("{f:?}"));
    }
    for f in [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Min, Binary::Max] {
        let e = Expr::Binary(f, Box::new(input(0)), Box::new(input(1)));
        same(pointwise(DType::F32, DType::F32, 3000 + 1, e), &format!("{f:?}"));
    }
    for f in [Binary::Eq, Binary::Ne, Binary::Lt, Binary::Le, Binary::Gt, Binary::Ge] {
        let e = Expr::Binary(f, Box::new(input(0)), Box::new(input(1)));
        let both = Expr::Binary(Binary::Xor, Box::new(e.clone()), Box::new(input(1).lt(Expr::Float(0.25))));
        same(pointwise(DType::F32, DType::F32, 1000 + 9, both.select(input(0), input(1))), &format!("{f:?}"));
        same(pointwise(DType::F32, DType::Bool, 1000 + 9, e), &format!("{f:?} stored"));
    }
}

/// Rows of odd length with non-temporal stores, from where a vector is aligned. Values that phases keep
/// between them begin there in the middle of a group. And rows of more tiles than one call takes.
#[test]
fn long_rows_that_begin_anywhere_have_the_bits_of_the_interpreter() {
    let shapes: [&[usize]; 3] = [&[1201, 5001], &[20, 70_001], &[2, 12_288]];
    for (shape, dtype) in shapes.into_iter().flat_map(|s| [(s, DType::F32), (s, DType::BF16)]) {
        let space = ReduceSpace::new(shape, &[1]);
        let mut b = space.builder();
        let x = b.read(DType::F32, space.full.clone());
        let x = b.expr(&tame(0), &[x]);
        let max = b.reduce(Reduce::Max, x);
        let weight = b.expr(&Expr::Unary(Unary::ExpNonpos, Box::new(input(0) - input(1))), &[x, max]);
        let sum = b.sum(weight);
        let y = b.expr(&(input(0) / input(1)), &[weight, sum]);
        b.store(dtype, space.full.clone(), y);
        let ex = plain(b.finish(), &[shape], &[shape]);
        if Tier::detect() >= Tier::Avx2 {
            let program = compile(&ex, Tier::detect()).unwrap();
            let Form::Phases(phases) = &program.machine.as_ref().unwrap().form else { panic!("whole rows") };
            assert!(
                phases.iter().all(|p| p.tiles.is_some() && p.folds.is_empty() == p.tile_steps().is_none())
            );
            assert!(!program.tiling.split, "{shape:?}");
            assert_eq!(program.stream && phases.last().unwrap().past.is_some(), shape[0] > 1000, "{shape:?}");
        }
        same(ex, &format!("rows of {} columns in {dtype}", shape[1]));
    }
}

/// Phases of long rows that read only row values: their lanes are added up tile by tile as well.
#[test]
fn numbers_of_long_rows_are_summed_by_tiles() {
    for shape in [[2, 12_288 + 7], [20, 70_001]] {
        let space = ReduceSpace::new(&shape, &[1]);
        let mut b = space.builder();
        let y = b.read(DType::F32, space.dropped.clone());
        let y = b.expr(&tame(0), &[y]);
        let sum = b.sum(y);
        b.store(DType::F32, space.dropped.clone(), sum);
        same(plain(b.finish(), &[&shape[..1]], &[&shape[..1]]), &format!("{shape:?}"));
    }
}

/// Answers of a byte each, more than a group of which are before the first aligned vector.
#[test]
fn bytes_of_long_rows_are_written_wherever_they_begin() {
    let shape: &[usize] = &[1801, 5001];
    let space = ReduceSpace::new(shape, &[1]);
    let mut b = space.builder();
    let (x, y) = (b.read(DType::F32, space.full.clone()), b.read(DType::F32, space.dropped.clone()));
    let z = b.expr(&input(0).lt(input(1)), &[x, y]);
    b.store(DType::Bool, space.full.clone(), z);
    same(plain(b.finish(), &[shape, &shape[..1]], &[shape]), "bytes");
}

#[test]
fn dtypes_are_read_rounded_and_written_alike() {
    for from in [DType::F32, DType::F16, DType::BF16] {
        for to in [DType::F32, DType::F16, DType::BF16] {
            let e = input(0) * input(1) + 0.1;
            same(pointwise(from, to, 5000 + 3, e.clone()), &format!("{from} to {to}"));
            same(pointwise(from, DType::F32, 5000 + 3, e.cast(to) + 1.0), &format!("{from} rounded to {to}"));
        }
    }
    let e = input(0).select(Expr::Float(2.0), Expr::Float(-1.0));
    same(pointwise(DType::Bool, DType::F32, 500 + 3, e), "bool");
    same(pointwise(DType::Bool, DType::F32, 500 + 3, input(1).cast(DType::F32)), "bool as a number");
}

/// Masters in halves: integers of 16 bits, and the bits of floats.
#[test]
fn bits_are_read_changed_and_written_alike() {
    let (rest, int) = (input(1).bits().cast(DType::I16), |x: i64| Expr::Int(x));
    same(pointwise(DType::F32, DType::I16, 3000 + 5, rest.clone()), "lower halves");
    let rounded = (input(0).bits() + int(0x8000)).and(int(-0x10000)).from_bits();
    same(pointwise(DType::F32, DType::BF16, 3000 + 5, rounded.clone()), "upper halves");
    let both = (rounded.bits() + rest.clone()).from_bits();
    same(pointwise(DType::F32, DType::F32, 3000 + 5, both), "halves of two");
    let chosen = input(0).lt(input(1)).select(rest, input(0).bits().xor(int(77)).cast(DType::I16));
    same(pointwise(DType::BF16, DType::I16, 3000 + 5, chosen), "integers chosen");
    let space = ReduceSpace::new(&[999], &[]);
    let mut b = space.builder();
    let (w, r) = (b.read(DType::BF16, space.full.clone()), b.read(DType::I16, space.full.clone()));
    let master = b.expr(&((input(0).bits() + input(1)).from_bits() * 0.5), &[w, r]);
    b.store(DType::F32, space.full.clone(), master);
    let shape: &[usize] = &[999];
    same(plain(b.finish(), &[shape; 2], &[shape]), "joined");
}

/// Phases that wait for reductions, keep what is dear, and sum over rows; more values than registers.
#[test]
fn phases_have_the_bits_of_the_interpreter() {
    for (rows, cols) in
        [(1, 70), (40, 31), (37, 192), (9, 1000), (300, 64), (70, 2049), (3, 9001), (2, 70_001)]
    {
        for dtype in [DType::F32, DType::BF16] {
            let shape: &[usize] = &[rows, cols];
            let space = ReduceSpace::new(shape, &[1]);
            let mut b = space.builder();
            let (x, y) = (b.read(dtype, space.full.clone()), b.read(DType::F32, space.full.clone()));
            let (x, y) = (b.expr(&tame(0), &[x]), b.expr(&tame(0), &[y]));
            let (max, dot) = (b.reduce(Reduce::Max, x), b.expr(&(input(0) * input(1)), &[x, y]));
            let (dot, least) = (b.sum(dot), b.reduce(Reduce::Min, y));
            let e = b.expr(&((input(0) - input(1)).exp() + input(2)), &[x, max, least]);
            let sum = b.sum(e);
            let many = (1..14).fold(input(0), |e, i| e * input(1) + input(i % 4) * (i as f64));
            let z = b.expr(&many, &[e, sum, dot, x]);
            b.store(DType::F32, space.full.clone(), z);
            b.store(DType::BF16, space.full.clone(), e);
            b.store(DType::F32, space.dropped.clone(), sum);
            let mut columns = space.full.clone();
            columns.0[0] = None;
            columns.0[1] = Some((0, 1));
            b.columns(DType::F32, columns, z);
            let ex = plain(b.finish(), &[shape; 2], &[shape, shape, &shape[..1], &shape[1..]]);
            same(ex, &format!("{rows}×{cols} {dtype}"));
        }
    }
}

/// Reductions over columns in several stretches, as those of a batch norm over images.
#[test]
fn stretches_of_columns_have_the_bits_of_the_interpreter() {
    // Stretches of whole groups, and others.
    let whole = [[3, 5, 32], [16, 6, 64], [5, 3, 1056], [7, 2, 4096], [2, 3, 9600]];
    let short = [[16, 5, 16], [16, 4, 49], [3, 70, 9], [12, 3, 784], [9, 2, 3001], [2, 3, 70_001]];
    for shape in whole.into_iter().chain(short) {
        let space = ReduceSpace::new(&shape, &[0, 2]);
        let mut b = space.builder();
        let (x, y) = (b.read(DType::F32, space.full.clone()), b.read(DType::BF16, space.full.clone()));
        let safe =
            input(0).is_nan().select(Expr::Float(0.5), input(0).max(Expr::Float(-3.0)).min(Expr::Float(3.0)));
        let (x, y) = (b.expr(&safe, &[x]), b.expr(&safe, &[y]));
        let (sum, max, dot) = (b.sum(x), b.reduce(Reduce::Max, y), b.expr(&(input(0) * input(1)), &[x, y]));
        let dot = b.sum(dot);
        let z = b.expr(&((input(0) - input(1)) * input(2) + input(3) * input(4)), &[x, sum, max, y, dot]);
        b.store(DType::F32, space.full.clone(), z);
        b.store(DType::F32, space.dropped.clone(), dot);
        let shape: &[usize] = &shape;
        let ex = plain(b.finish(), &[shape; 2], &[shape, &shape[1..2]]);
        same(ex, &format!("{shape:?}"));
    }
}

/// Sums of one column of a row, which are looked up where they can be, and rows that are changed in one
/// column.
#[test]
fn single_columns_have_the_bits_of_the_interpreter() {
    for (rows, cols) in [(5, 70), (40, 31), (37, 192), (3, 9001), (2, 70_001)] {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let shape: &[usize] = &[rows, cols];
            let space = ReduceSpace::new(shape, &[1]);
            let mut b = space.builder();
            let (x, y) = (b.read(dtype, space.full.clone()), b.read(DType::F32, space.full.clone()));
            // In the first row there is none, in late rows of few columns neither.
            let column = Expr::Coord(0) * Expr::Int(9) - Expr::Int(2);
            let (column, one) = (b.expr(&column, &[]), b.expr(&Expr::Float(1.0), &[]));
            let here = b.expr(&Expr::Coord(1).eq(input(0)), &[column]);
            let at = |from: &Expr, b: &mut RowBuilder| {
                let from = b.expr(from, &[x, y, one]);
                let picked = b.expr(&input(0).select(input(1), Expr::Float(0.0)), &[here, from]);
                b.sum(picked)
            };
            let picked = [input(0), input(1), input(2), input(0) * 2.0 + input(1)];
            let [own, other, number, made] = picked.map(|e| at(&e, &mut b));
            let less = b.expr(&input(0).select(input(1) - 1.0, input(1)), &[here, y]);
            let z = input(0) * input(1) + input(2) + input(3) * input(4);
            let z = b.expr(&z, &[less, own, other, number, made]);
            b.store(DType::F32, space.full.clone(), z);
            b.store(DType::F32, space.dropped.clone(), number);
            same(plain(b.finish(), &[shape; 2], &[shape, &shape[..1]]), &format!("{rows}×{cols} {dtype}"));
        }
    }
}

/// NaNs of all payloads through what does not compute: they are rounded to bf16 as what they were read as, or
/// kept as. The largest magnitude of a row is a NaN, too.
#[test]
fn nans_stay_nans() {
    let shape: &[usize] = &[40, 300];
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let space = ReduceSpace::new(shape, &[1]);
        let mut b = space.builder();
        let (x, y) = (b.read(dtype, space.full.clone()), b.read(DType::F32, space.full.clone()));
        let row = b.read(DType::F32, space.dropped.clone());
        let (abs, least) = (b.expr(&input(0).abs(), &[x]), b.expr(&input(0).min(input(1)), &[x, y]));
        let exact = b.expr(&(input(0).bits().and(Expr::Int(-0x10000))).from_bits(), &[y]);
        let split = b.expr(&input(0).is_nan().select(input(0), input(1)), &[y, exact]);
        let chosen = b.expr(&input(0).lt(Expr::Float(0.5)).select(input(0), input(1)), &[x, split]);
        let (largest, sum) = (b.reduce(Reduce::Max, abs), b.expr(&(input(0) * input(1)), &[least, row]));
        let sum = b.sum(sum);
        let made = b.expr(&(-input(0) * input(1) + input(2)), &[least, row, largest]);
        let late = b.expr(&input(0).max(input(1)).max(input(2)), &[least, sum, row]);
        // Bits that arithmetic does not make: those of 0 become a NaN.
        let some = input(0).lt(Expr::Float(0.5)).select(input(1), Expr::Float(0.0));
        let flipped = b.expr(&some.bits().xor(Expr::Int(0x7FFF_FFFF)).from_bits(), &[x, row]);
        for v in [abs, least, split, chosen, made, late, flipped] {
            b.store(DType::BF16, space.full.clone(), v);
        }
        b.store(DType::F32, space.dropped.clone(), largest);
        let of_rows = [&shape[..1]];
        let writes: Vec<&[usize]> = [shape; 7].into_iter().chain(of_rows).collect();
        same(plain(b.finish(), &[shape, shape, &shape[..1]], &writes), &format!("{dtype}"));
    }
}

/// Numbers of the row stay what they are in rows of several tiles, of which the last is not a multiple of a
/// group.
#[test]
fn numbers_of_the_row_last_to_its_end() {
    for shape in [[1, 150_000], [3, 9_000 + 16], [40, 96]] {
        let space = ReduceSpace::new(&shape, &[1]);
        let mut b = space.builder();
        let (x, y) = (b.read(DType::F32, space.full.clone()), b.read(DType::F32, space.kept.clone()));
        let same_as = b.expr(&input(0).eq(input(1)), &[x, y]);
        let size = b.expr(&Expr::Unary(Unary::Abs, Box::new(input(0))), &[y]);
        b.store(DType::Bool, space.full.clone(), same_as);
        b.columns(DType::F32, space.trailing(1), size);
        let kept = [shape[0], 1];
        same(plain(b.finish(), &[&shape, &kept], &[&shape, &shape[1..]]), &format!("{shape:?}"));
    }
}

/// Rows of several phases from beginning to end. Reductions make numbers of the row, zeros and NaNs among
/// them, which are stored, used by later phases, and by others of the kind.
#[test]
fn whole_rows_have_the_bits_of_the_interpreter() {
    for (rows, cols) in [(40, 32), (37, 192), (300, 64), (9, 1024), (3, 4096)] {
        for (dtype, to) in [(DType::F32, DType::F32), (DType::F32, DType::F16), (DType::BF16, DType::BF16)] {
            let (shape, kept) = ([rows, cols], [rows, 1]);
            let space = ReduceSpace::new(&shape, &[1]);
            let mut b = space.builder();
            let (x, w) = (b.read(dtype, space.full.clone()), b.read(DType::F32, space.trailing(1)));
            let given = b.read(DType::F32, space.kept.clone());
            let any = b.reduce(Reduce::Max, x);
            let x = b.expr(&tame(0), &[x]);
            let mean = b.sum(x);
            let mean = b.expr(&(input(0) / cols as f64 + tame(1)), &[mean, given]);
            let apart = b.expr(&(input(0) - input(1)), &[x, mean]);
            let square = b.expr(&(input(0) * input(0)), &[apart]);
            let (square, most, least) =
                (b.sum(square), b.reduce(Reduce::Max, x), b.reduce(Reduce::Min, apart));
            let scale = b.expr(&(input(0) + 1e-5).rsqrt(), &[square]);
            let e = b.expr(&(input(0) - input(1)).exp(), &[apart, most]);
            let sum = b.sum(e);
            let y = b.expr(
                &(input(0) * input(1) * input(2) + input(3) / input(4) - input(5)),
                &[apart, scale, w, e, sum, least],
            );
            b.store(to, space.full.clone(), y);
            for v in [mean, scale, most, least, sum, any] {
                b.store(DType::F32, space.kept.clone(), v);
            }
            b.columns(DType::F32, space.trailing(1), y);
            let writes = [&shape[..], &kept, &kept, &kept, &kept, &kept, &kept, &shape[1..]];
            let ex = plain(b.finish(), &[&shape, &shape[1..], &kept], &writes);
            if Tier::detect() >= Tier::Avx2 {
                let machine = compile(&ex, Tier::Avx2).unwrap().machine;
                assert!(
                    machine.is_some_and(|m| matches!(m.form, Form::Rows(_))),
                    "{rows}×{cols} {dtype} has no whole rows"
                );
            }
            same(ex, &format!("{rows}×{cols} {dtype} to {to}"));
        }
    }
}

/// A column that is the same in all rows, in several phases.
#[test]
fn a_column_of_all_rows_has_the_bits_of_the_interpreter() {
    for (rows, cols) in [(37, 64), (3, 70), (40, 1024)] {
        let shape = [rows, cols];
        let space = ReduceSpace::new(&shape, &[1]);
        let mut b = space.builder();
        let x = b.read(DType::F32, space.full.clone());
        let x = b.expr(&tame(0), &[x]);
        let here = b.expr(&Expr::Coord(1).eq(Expr::Int(3)), &[]);
        let sum = b.sum(x);
        let less = b.expr(&input(0).select(input(1) - input(2), input(1)), &[here, x, sum]);
        let picked = b.expr(&input(0).select(input(1) * 2.0 + 1.0, Expr::Float(0.0)), &[here, less]);
        let picked = b.sum(picked);
        b.store(DType::F32, space.full.clone(), less);
        b.store(DType::F32, space.kept.clone(), picked);
        same(plain(b.finish(), &[&shape], &[&shape, &[rows, 1]]), &format!("{rows}×{cols}"));
    }
}
