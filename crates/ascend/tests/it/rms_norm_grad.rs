//! `rms_norm_grad` and `rms_norm_grad_gamma`, through the text and the simulator on both chips, beside f64.

use half::f16;
use headwater_ascend::kernel::{Barrier, Elem, Instr, Program, Stmt, StmtKind, Value, View, parse, verify};
use headwater_ascend::kernels::{RmsNorm, rms_norm_grad, rms_norm_grad_gamma, rms_norm_grad_partials};
use headwater_ascend::sim::{Arg, Launch, Mode, launch};
use headwater_ascend::{Arch, Chip, Finding, Rule, timing};

fn chip(arch: Arch) -> &'static Chip {
    Chip::from_name(if arch == Arch::A2 { "910b1" } else { "310p" }).unwrap()
}

fn shape(elem: Elem, [rows, dim]: [u64; 2]) -> RmsNorm {
    RmsNorm { elem, rows, dim, eps: 1e-5 }
}

/// dy, x, rstd and gamma: numbers from -2 to 2 (rstd: 0.25 to 1.25) that their types have exactly.
fn data(shape: &RmsNorm) -> [Vec<f32>; 4] {
    let mut state = shape.rows * 4096 + shape.dim;
    let mut next = |elem| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = (state >> 32) as f64 / 2f64.powi(30) - 2.0;
        if elem == Elem::F16 { f16::from_f64(x).to_f32() } else { x as f32 }
    };
    let mut many = |elem, len: u64| -> Vec<f32> { (0..len).map(|_| next(elem)).collect() };
    let dy = many(shape.elem, shape.rows * shape.dim);
    let x = many(shape.elem, shape.rows * shape.dim);
    let rstd = many(Elem::F32, shape.rows).iter().map(|x| 0.75 + x / 4.0).collect();
    [dy, x, rstd, many(shape.elem, shape.dim)]
}

/// Appends an array; where it begins.
fn append(memory: &mut Vec<u8>, elem: Elem, values: &[f32]) -> usize {
    let start = memory.len();
    for x in values {
        match elem {
            Elem::F16 => memory.extend(f16::from_f32(*x).to_le_bytes()),
            _ => memory.extend(x.to_le_bytes()),
        }
    }
    memory.resize(memory.len().next_multiple_of(32), 0);
    start
}

fn floats(elem: Elem, bytes: &[u8], len: u64) -> Vec<f32> {
    let size = elem.size() as usize;
    let one = |b: &[u8]| match size {
        2 => f16::from_le_bytes([b[0], b[1]]).to_f32(),
        _ => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
    };
    bytes[..len as usize * size].chunks(size).map(one).collect()
}

/// dx and dgamma of one run of both kernels.
fn run(
    programs: &[Program; 2],
    shape: &RmsNorm,
    [dy, x, rstd, gamma]: &[Vec<f32>; 4],
    blocks: u32,
    mode: Mode,
) -> Result<[Vec<f32>; 2], Vec<Finding>> {
    let (elem, len) = (shape.elem, shape.rows * shape.dim);
    let mut memory = Vec::new();
    let starts = [
        append(&mut memory, elem, dy),
        append(&mut memory, elem, x),
        append(&mut memory, Elem::F32, rstd),
        append(&mut memory, elem, gamma),
        append(&mut memory, elem, &vec![-7.0; len as usize]),
        append(&mut memory, Elem::F32, &vec![-7.0; rms_norm_grad_partials(shape) as usize]),
        append(&mut memory, elem, &vec![-7.0; shape.dim as usize]),
    ];
    let args = starts.map(|at| Arg::Pointer(at as u64));
    for (program, args) in programs.iter().zip([&args[..6], &args[5..]]) {
        launch(&Launch::new(program, chip(program.arch), blocks, args, mode), &mut memory)?;
    }
    Ok([floats(elem, &memory[starts[4]..], len), floats(elem, &memory[starts[6]..], shape.dim)])
}

fn programs(arch: Arch, shape: &RmsNorm) -> [Program; 2] {
    [rms_norm_grad(arch, shape).unwrap(), rms_norm_grad_gamma(arch, shape).unwrap()]
}

/// Runs that all have to give the same bits: checked in two orders, and fast with 1, 3 and 8 blocks.
const RUNS: [(u32, Mode); 5] = [
    (1, Mode::Fast),
    (3, Mode::Fast),
    (8, Mode::Fast),
    (3, Mode::Checked { seed: 0 }),
    (3, Mode::Checked { seed: 5 }),
];

/// γ(k) = k u / (1 - k u) with u = 2⁻²⁴: the bound of k roundings in turn (Higham, Accuracy and Stability of
/// Numerical Algorithms, 2nd edition, lemma 3.1).
fn gamma_k(k: u64) -> f64 {
    let ku = k as f64 * 2f64.powi(-24);
    ku / (1.0 - ku)
}

/// Results in f64, and bounds of their errors: dx, then dgamma.
///
/// dx: `rstd dy gamma` has 2 roundings and that of the last sum. A term of `rstd` times the dot product has
/// 3, and 12 levels of its tree; its factor has 3 more (rstd², the quotient, their product), the product with
/// x and the last sum one each: 20, of the sum of the terms' sizes. dgamma: a term has 2, the sums of a range
/// one less than its rows, as the first goes to zero exactly, and the tree over the ranges of four rows or
/// more, 240 at most, as many levels as their number has bits.
fn wanted(shape: &RmsNorm, [dy, x, rstd, gamma]: &[Vec<f32>; 4]) -> [Vec<(f64, f64)>; 2] {
    let dim = shape.dim as usize;
    let rounded = |(truth, bound): (f64, f64)| match shape.elem {
        // A last rounding adds 2⁻¹¹, and below the normal numbers 2⁻²⁵.
        Elem::F16 => (truth, bound + (truth.abs() + bound) * 2f64.powi(-11) + 2f64.powi(-25)),
        _ => (truth, bound),
    };
    let (mut dx, mut dgamma) = (Vec::new(), vec![(0f64, 0f64); dim]);
    for ((dy, x), rstd) in dy.chunks(dim).zip(x.chunks(dim)).zip(rstd) {
        let r = f64::from(*rstd);
        let term = |i: usize| f64::from(dy[i]) * f64::from(x[i]) * f64::from(gamma[i]);
        let dot: f64 = (0..dim).map(term).sum();
        let size: f64 = (0..dim).map(|i| term(i).abs()).sum();
        for i in 0..dim {
            let (dy, x, gamma) = (f64::from(dy[i]), f64::from(x[i]), f64::from(gamma[i]));
            let (a, b) = (r * dy * gamma, x * r.powi(3) / dim as f64);
            dx.push(rounded((a - b * dot, gamma_k(3) * a.abs() + gamma_k(20) * b.abs() * size)));
            dgamma[i].0 += dy * x * r;
            dgamma[i].1 += (dy * x * r).abs();
        }
    }
    let ranges = shape.rows.div_ceil(4).min(240);
    let roundings = 2 + shape.rows.div_ceil(ranges) - 1 + u64::from(ranges.next_power_of_two().ilog2());
    [dx, dgamma.into_iter().map(|(sum, size)| rounded((sum, gamma_k(roundings) * size))).collect()]
}

fn all_runs(arch: Arch, shape: &RmsNorm) {
    let programs = programs(arch, shape);
    for program in &programs {
        verify(program).unwrap();
        let text = program.to_string();
        assert_eq!(parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}")), *program);
    }
    let data = data(shape);
    let wanted = wanted(shape, &data);
    let mut bits: Option<Vec<u32>> = None;
    for (blocks, mode) in RUNS {
        let got = run(&programs, shape, &data, blocks, mode)
            .unwrap_or_else(|f| panic!("{arch} {shape:?} {mode:?}: {}", f[0]));
        for (what, (got, wanted)) in ["dx", "dgamma"].iter().zip(got.iter().zip(&wanted)) {
            assert_eq!(got.len(), wanted.len());
            for (i, (x, (truth, bound))) in got.iter().zip(wanted).enumerate() {
                let error = (f64::from(*x) - truth).abs();
                assert!(
                    error <= *bound,
                    "{arch} {shape:?} {mode:?}: {what} {i} is {x}, not {truth} ± {bound}"
                );
            }
        }
        let now: Vec<u32> = got.iter().flatten().map(|x| x.to_bits()).collect();
        assert!(
            *bits.get_or_insert_with(|| now.clone()) == now,
            "{arch} {shape:?} {blocks} {mode:?}: other bits"
        );
    }
}

#[test]
fn gradients_are_right_for_any_number_of_cores_and_order() {
    for arch in Arch::ALL {
        for elem in [Elem::F32, Elem::F16] {
            // Few ranges; ranges of different lengths; tiles of several rows; several tasks of columns; the
            // longest row, of which A2 has two in a tile in f16, with one gamma for both.
            for sizes in
                [[53, 48], [150, 64], [1037, 64], [9, 768], [130, 1040], [131, 4096], [2, 4096], [1, 16]]
            {
                all_runs(arch, &shape(elem, sizes));
            }
        }
    }
}

#[test]
fn rows_of_any_length_on_a2() {
    for elem in [Elem::F32, Elem::F16] {
        for sizes in [[13, 1], [1021, 33], [5, 515]] {
            all_runs(Arch::A2, &shape(elem, sizes));
        }
    }
}

/// Takes away the `n`-th barrier of the vector unit, in the order of the text.
fn without_barrier(body: &mut Vec<Stmt>, n: &mut i64) {
    body.retain_mut(|stmt| {
        match &mut stmt.kind {
            StmtKind::Instr(Instr::Barrier(Barrier::V)) => {
                *n -= 1;
                return *n != -1;
            }
            StmtKind::For { body, .. } => without_barrier(body, n),
            _ => {}
        }
        true
    });
}

#[test]
fn every_barrier_is_needed_in_the_last_kernel() {
    for arch in Arch::ALL {
        let shape = shape(Elem::F32, [256, 256]);
        let data = data(&shape);
        // Before the first sum a flag already orders what a barrier would.
        for n in 1..6 {
            let mut programs = programs(arch, &shape);
            let mut left = n;
            without_barrier(&mut programs[1].parts[0].body, &mut left);
            assert!(left < 0, "there are so many");
            let findings = run(&programs, &shape, &data, 1, Mode::Checked { seed: 0 }).unwrap_err();
            assert_eq!(findings[0].rule, Rule::Hazard, "{arch} {n}: {}", findings[0]);
        }
    }
}

/// The gradient of 4096 rows of 4096 reads dy and x at 85 % of HBM's bandwidth at least.
#[test]
fn large_gradients_overlap_copies_and_computing() {
    for elem in [Elem::F32, Elem::F16] {
        let (shape, chip) = (shape(elem, [4096, 4096]), chip(Arch::A2));
        let times = programs(Arch::A2, &shape).map(|program| {
            let launch =
                timing::Launch { blocks: chip.vector_cores, args: vec![Value::Int(0); program.params.len()] };
            let one = &mut |_: &View<Value>| Some(Value::Float(1.0));
            let timing = timing::predict(&program, chip, &launch, one).unwrap();
            println!("simulated: {} 4096 rows of 4096\n{timing}", program.name);
            timing.task
        });
        let bytes = (2 * shape.rows * shape.dim * elem.size()) as f64;
        let limit = bytes / (0.85 * timing::bandwidth(chip)[0]) * 1e6;
        assert!(times[0] + times[1] < limit, "{elem}: {times:?}, not below {limit}");
    }
}

#[test]
fn predicted_times() {
    for arch in Arch::ALL {
        for elem in [Elem::F32, Elem::F16] {
            let chip = chip(arch);
            let times = programs(arch, &shape(elem, [2048, 768])).map(|program| {
                [1, chip.vector_cores].map(|blocks| {
                    let launch = timing::Launch { blocks, args: vec![Value::Int(0); program.params.len()] };
                    let one = &mut |_: &View<Value>| Some(Value::Float(1.0));
                    let timing = timing::predict(&program, chip, &launch, one).unwrap();
                    println!("simulated: {} 2048 rows of 768, {blocks} blocks\n{timing}", program.name);
                    timing.task
                })
            });
            let [[alone, together], [_, last]] = times;
            assert!(together < alone && last < together, "{arch} {elem}: {times:?}");
        }
    }
}
