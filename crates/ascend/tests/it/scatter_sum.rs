//! `scatter_sum`, through the text and the simulator on both chips, beside sums in the same order. Sums
//! round, so that another order gives other bits.

use half::{bf16, f16};
use headwater_ascend::kernel::{Elem, parse, verify};
use headwater_ascend::kernels::{Scatter, ScatterSum, scatter_sum};
use headwater_ascend::sim::{Arg, Launch, Mode, launch};
use headwater_ascend::{Arch, Chip, Rule};

fn chip(arch: Arch) -> &'static Chip {
    Chip::from_name(if arch == Arch::A2 { "910b1" } else { "310p" }).unwrap()
}

fn bytes(elem: Elem, x: f32) -> Vec<u8> {
    match elem {
        Elem::F16 => f16::from_f32(x).to_le_bytes().to_vec(),
        Elem::BF16 => bf16::from_f32(x).to_le_bytes().to_vec(),
        Elem::I32 => (x as i32).to_le_bytes().to_vec(),
        Elem::I64 => (x as i64).to_le_bytes().to_vec(),
        Elem::U16 => (x as i16).to_le_bytes().to_vec(),
        Elem::U8 => (x as i8).to_le_bytes().to_vec(),
        _ => x.to_le_bytes().to_vec(),
    }
}

/// The number that a type has for another.
fn held(elem: Elem, x: f32) -> f32 {
    match elem {
        Elem::F16 => f16::from_f32(x).to_f32(),
        Elem::BF16 => bf16::from_f32(x).to_f32(),
        Elem::F32 => x,
        _ => x.trunc(),
    }
}

/// Numbers that each type has, and indices of which the last is `wrong` if there is one.
fn right(arch: Arch, shape: &ScatterSum, wrong: Option<i64>) {
    let program = scatter_sum(arch, shape).unwrap();
    verify(&program).unwrap();
    assert_eq!(parse(&program.to_string()).unwrap(), program);
    let [planes, from, to] = [shape.planes, shape.from, shape.to].map(|n| n as usize);
    let mut state = 5u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut indices: Vec<i64> = (0..planes * from).map(|_| next(to) as i64).collect();
    *indices.last_mut().unwrap() = wrong.unwrap_or(0);
    let mut numbers = |count: usize| -> Vec<f32> {
        (0..count).map(|_| held(shape.elem, next(255) as f32 / 7.0 - 18.0)).collect()
    };
    let (x, before) = (numbers(planes * from), numbers(planes * to));
    let onto = !matches!(shape.scatter, Scatter::Sum | Scatter::Position);
    let mut results = match shape.scatter {
        Scatter::Sum => vec![0f32; planes * to],
        Scatter::Position => vec![-1.0; planes * to],
        _ => before.clone(),
    };
    for (i, (&at, x)) in indices.iter().zip(&x).enumerate().filter(|(_, (at, _))| (0..to as i64).contains(at))
    {
        let result = &mut results[i / from * to + at as usize];
        match shape.scatter {
            Scatter::Sum | Scatter::SumOnto => *result += x,
            Scatter::ProductOnto => *result *= x,
            Scatter::MaxOnto => *result = result.max(*x),
            Scatter::MinOnto => *result = result.min(*x),
            Scatter::Replace => *result = *x,
            Scatter::Position => *result = i as f32,
        }
    }
    let want: Vec<u8> = results.into_iter().flat_map(|x| bytes(shape.elem, x)).collect();
    let report = wrong.map_or((0, -1, 0), |wrong| (1, indices.len() as i32 - 1, wrong));
    for (mode, blocks) in [(Mode::Fast, 48), (Mode::Checked { seed: 0 }, 3), (Mode::Checked { seed: 5 }, 1)] {
        let mut memory: Vec<u8> = match shape.index {
            Elem::I64 => indices.iter().flat_map(|i| i.to_le_bytes()).collect(),
            _ => indices.iter().flat_map(|i| (*i as i32).to_le_bytes()).collect(),
        };
        let room = |memory: &mut Vec<u8>, bytes: usize, value: u8| {
            memory.resize((memory.len() + 64).next_multiple_of(512), 0x5b);
            let start = memory.len();
            memory.resize(start + bytes, value);
            start
        };
        let operand = |memory: &mut Vec<u8>, numbers: &[f32]| {
            let start = room(memory, 0, 0);
            memory.extend(numbers.iter().flat_map(|&x| bytes(shape.elem, x)));
            start
        };
        let from = (shape.scatter != Scatter::Position).then(|| operand(&mut memory, &x));
        let before = onto.then(|| operand(&mut memory, &before));
        let out = room(&mut memory, want.len(), 0xa5);
        let fault = room(&mut memory, shape.reports() as usize * 32, 0xa5);
        let places = [Some(0), from, before, Some(out), Some(fault)];
        let args: Vec<Arg> = places.into_iter().flatten().map(|at| Arg::Pointer(at as u64)).collect();
        launch(&Launch::new(&program, chip(arch), blocks, &args, mode), &mut memory)
            .unwrap_or_else(|f| panic!("{arch} {shape:?} {mode:?}: {}", f[0]));
        assert!(memory[out..out + want.len()] == want, "{arch} {shape:?} {mode:?}");
        assert!(memory[out + want.len()..][..64] == [0x5b; 64], "{arch} {shape:?}: more is written");
        let word = |at: usize| i32::from_le_bytes(memory[at..at + 4].try_into().unwrap());
        let reports: Vec<usize> = (0..shape.reports() as usize).map(|r| fault + 32 * r).collect();
        let number: i32 = reports.iter().map(|&at| word(at)).sum();
        assert_eq!(number, report.0, "{arch} {shape:?}");
        if let Some(&at) = reports.iter().find(|&&at| word(at) > 0) {
            let index = i64::from_le_bytes(memory[at + 8..at + 16].try_into().unwrap());
            assert_eq!((word(at + 4), index), (report.1, report.2));
        }
    }
}

#[test]
fn elements_are_summed_in_their_order() {
    for arch in Arch::ALL {
        let elems =
            if arch == Arch::A2 { &[Elem::F32, Elem::F16, Elem::BF16][..] } else { &[Elem::F32, Elem::F16] };
        for &elem in elems {
            for (planes, from, to) in [
                (1, 1, 1),
                (1, 5, 12),
                (3, 49, 11),
                (40, 16, 64),
                (2, 5000, 70),
                (2, 300, 20_011),
                (700, 4, 36),
            ] {
                let shape = ScatterSum { scatter: Scatter::Sum, elem, index: Elem::I64, planes, from, to };
                right(arch, &shape, None);
                right(arch, &ScatterSum { index: Elem::I32, ..shape }, Some(to as i64));
            }
        }
        let shape = ScatterSum {
            scatter: Scatter::Sum,
            elem: Elem::F32,
            index: Elem::I64,
            planes: 9,
            from: 30,
            to: 500,
        };
        right(arch, &shape, Some(-1));
    }
}

#[test]
fn elements_are_added_to_others_and_replace_them() {
    for arch in Arch::ALL {
        let float = if arch == Arch::A2 { Elem::BF16 } else { Elem::F16 };
        for (scatter, elems) in [
            (Scatter::SumOnto, &[Elem::F32, float, Elem::I32, Elem::I64][..]),
            (Scatter::ProductOnto, &[Elem::F32]),
            (Scatter::MaxOnto, &[Elem::F32, float, Elem::I32, Elem::I64]),
            (Scatter::MinOnto, &[Elem::F32, float, Elem::I32, Elem::I64]),
            (Scatter::Replace, &[Elem::U32, Elem::U16, Elem::U8, Elem::I64]),
            (Scatter::Position, &[Elem::I32]),
        ] {
            for &elem in elems {
                for (planes, from, to) in
                    [(1, 1, 1), (1, 5, 12), (3, 49, 11), (1, 3000, 2500), (2, 300, 20_011)]
                {
                    let shape = ScatterSum { scatter, elem, index: Elem::I32, planes, from, to };
                    right(arch, &shape, None);
                    right(arch, &ScatterSum { index: Elem::I64, ..shape }, Some(-1));
                }
            }
        }
    }
}

#[test]
fn sums_that_there_are_not_are_refused() {
    let good =
        ScatterSum { scatter: Scatter::Sum, elem: Elem::F32, index: Elem::I64, planes: 2, from: 3, to: 4 };
    let rule = |arch, shape: ScatterSum| scatter_sum(arch, &shape).map(|_| ()).map_err(|f| f.rule);
    assert_eq!(rule(Arch::A2, good), Ok(()));
    assert_eq!(
        rule(Arch::P310, ScatterSum { scatter: Scatter::Sum, elem: Elem::BF16, ..good }),
        Err(Rule::Unsupported)
    );
    assert_eq!(rule(Arch::A2, ScatterSum { index: Elem::F32, ..good }), Err(Rule::Unsupported));
    assert_eq!(rule(Arch::A2, ScatterSum { from: 0, ..good }), Err(Rule::Range));
    assert_eq!(rule(Arch::A2, ScatterSum { planes: u64::MAX, ..good }), Err(Rule::Range));
}
