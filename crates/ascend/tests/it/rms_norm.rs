//! `rms_norm`, through the text and the simulator on both chips, beside f64.

use half::f16;
use headwater_ascend::kernel::{Elem, Program, Value, parse, verify};
use headwater_ascend::kernels::{RmsNorm, rms_norm};
use headwater_ascend::sim::{Arg, Launch, Mode, launch};
use headwater_ascend::{Arch, Chip, Finding, Rule, timing};

const EPS: f32 = 1e-5;

fn chip(arch: Arch) -> &'static Chip {
    Chip::from_name(if arch == Arch::A2 { "910b1" } else { "310p" }).unwrap()
}

fn shape(elem: Elem, [rows, dim]: [u64; 2]) -> RmsNorm {
    RmsNorm { elem, rows, dim, eps: EPS }
}

/// Numbers from -2 to 2 that `elem` has exactly.
fn data(elem: Elem, len: u64, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = (state >> 32) as f64 / 2f64.powi(30) - 2.0;
        if elem == Elem::F16 { f16::from_f64(x).to_f32() } else { x as f32 }
    };
    (0..len).map(next).collect()
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

/// y and rstd of one run.
fn run(
    program: &Program,
    shape: &RmsNorm,
    x: &[f32],
    gamma: &[f32],
    blocks: u32,
    mode: Mode,
) -> Result<(Vec<f32>, Vec<f32>), Vec<Finding>> {
    let (elem, len) = (shape.elem, shape.rows * shape.dim);
    let mut memory = Vec::new();
    let starts = [
        append(&mut memory, elem, x),
        append(&mut memory, elem, gamma),
        append(&mut memory, elem, &vec![-7.0; len as usize]),
        append(&mut memory, Elem::F32, &vec![-7.0; shape.rows as usize]),
    ];
    let args = starts.map(|at| Arg::Pointer(at as u64));
    launch(&Launch::new(program, chip(program.arch), blocks, &args, mode), &mut memory)?;
    Ok((floats(elem, &memory[starts[2]..], len), floats(Elem::F32, &memory[starts[3]..], shape.rows)))
}

/// Runs that all have to give the same bits: checked in two orders, and fast with 1, 3 and 8 blocks.
const RUNS: [(u32, Mode); 5] = [
    (1, Mode::Fast),
    (3, Mode::Fast),
    (8, Mode::Fast),
    (3, Mode::Checked { seed: 0 }),
    (3, Mode::Checked { seed: 5 }),
];

/// Every result beside f64.
///
/// With u = 2⁻²⁴ and γ(k) = k u / (1 - k u) (Higham, Accuracy and Stability of Numerical Algorithms, 2nd
/// edition, lemma 3.1): a square is rounded once, and once on each of the 12 levels of the tree. All terms
/// are positive, so the sum is right to γ(13) of itself. The quotient and the sum with eps add a rounding
/// each: γ(15). Root and reciprocal do the same, and that a root halves errors is not used: `rstd` is right
/// to γ(17). Two products follow: y is right to γ(19). Of f16 results a last rounding adds 2⁻¹¹, and below
/// the normal numbers 2⁻²⁵.
fn all_runs(arch: Arch, shape: &RmsNorm) {
    let program = rms_norm(arch, shape).unwrap();
    verify(&program).unwrap();
    let text = program.to_string();
    assert_eq!(parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}")), program);
    let gamma_k = |k: f64| k * 2f64.powi(-24) / (1.0 - k * 2f64.powi(-24));
    let x = data(shape.elem, shape.rows * shape.dim, 1);
    let gamma = data(shape.elem, shape.dim, 2);
    let mut bits: Option<Vec<u32>> = None;
    for (blocks, mode) in RUNS {
        let (y, rstd) = run(&program, shape, &x, &gamma, blocks, mode)
            .unwrap_or_else(|f| panic!("{arch} {shape:?} {mode:?}: {}", f[0]));
        let dim = shape.dim as usize;
        for ((x, y), rstd) in x.chunks(dim).zip(y.chunks(dim)).zip(&rstd) {
            let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
            let truth = 1.0 / (squares / dim as f64 + f64::from(EPS)).sqrt();
            assert!(
                (f64::from(*rstd) - truth).abs() <= gamma_k(17.0) * truth,
                "{arch} {shape:?}: {rstd} {truth}"
            );
            for ((x, y), g) in x.iter().zip(y).zip(&gamma) {
                let truth = f64::from(*x) * truth * f64::from(*g);
                let mut bound = gamma_k(19.0) * truth.abs();
                if shape.elem == Elem::F16 {
                    bound += (truth.abs() + bound) * 2f64.powi(-11) + 2f64.powi(-25);
                }
                assert!((f64::from(*y) - truth).abs() <= bound, "{arch} {shape:?} {mode:?}: {y} {truth}");
            }
        }
        let now: Vec<u32> = y.iter().chain(&rstd).map(|x| x.to_bits()).collect();
        assert!(
            *bits.get_or_insert_with(|| now.clone()) == now,
            "{arch} {shape:?} {blocks} {mode:?}: other bits"
        );
    }
}

#[test]
fn rows_are_right_for_any_number_of_cores_and_order() {
    for arch in Arch::ALL {
        for elem in [Elem::F32, Elem::F16] {
            // Tiles of one row, of eight and of two; rows of each number of parts.
            for sizes in [[53, 48], [517, 48], [9, 768], [130, 1552], [3, 4096], [1, 16]] {
                all_runs(arch, &shape(elem, sizes));
            }
        }
    }
}

#[test]
fn rows_of_any_length_on_a2() {
    for elem in [Elem::F32, Elem::F16] {
        for sizes in [[13, 1], [519, 33], [131, 1100], [5, 4095]] {
            all_runs(Arch::A2, &shape(elem, sizes));
        }
    }
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    let refused = |arch, shape| rms_norm(arch, &shape).unwrap_err().rule;
    for arch in Arch::ALL {
        assert_eq!(refused(arch, shape(Elem::BF16, [4, 32])), Rule::Unsupported);
        assert_eq!(refused(arch, shape(Elem::F32, [0, 32])), Rule::Range);
        assert_eq!(refused(arch, shape(Elem::F32, [4, 4097])), Rule::Range);
    }
    assert_eq!(refused(Arch::P310, shape(Elem::F32, [4, 12])), Rule::Alignment);
    assert_eq!(refused(Arch::P310, shape(Elem::F16, [4, 24])), Rule::Alignment);
}

/// The norm of 4096 rows of 4096 reads x once: at least so much of what HBM allows, though L2 may hold all of
/// it. In f16 the vector unit is busy for 98 % of the cores' time.
#[test]
fn large_norms_take_what_memory_takes() {
    for (elem, bytes, share) in [(Elem::F32, 4.0, 0.85), (Elem::F16, 2.0, 0.85)] {
        let shape = shape(elem, [4096, 4096]);
        let (program, chip) = (rms_norm(Arch::A2, &shape).unwrap(), chip(Arch::A2));
        let launch =
            timing::Launch { blocks: chip.vector_cores, args: vec![Value::Int(0); program.params.len()] };
        let timing = timing::predict(&program, chip, &launch, &mut |_| Some(Value::Float(1.0))).unwrap();
        let read = 4096.0 * 4096.0 * bytes / timing.task / 1e6;
        println!("simulated: rms_norm {elem} 4096 rows of 4096, {read:.2} TB/s of x\n{timing}");
        assert!(read >= share * 1.49, "{timing}");
    }
}

#[test]
fn predicted_times() {
    for arch in Arch::ALL {
        for elem in [Elem::F32, Elem::F16] {
            let (program, chip) = (rms_norm(arch, &shape(elem, [2048, 768])).unwrap(), chip(arch));
            let mut last = f64::INFINITY;
            for blocks in [1, chip.vector_cores] {
                let launch = timing::Launch { blocks, args: vec![Value::Int(0); program.params.len()] };
                let timing =
                    timing::predict(&program, chip, &launch, &mut |_| Some(Value::Float(1.0))).unwrap();
                println!("simulated: rms_norm {elem} 2048 rows of 768, {blocks} blocks\n{timing}");
                assert!(timing.task < last, "more cores take longer: {timing}");
                last = timing.task;
            }
        }
    }
}
