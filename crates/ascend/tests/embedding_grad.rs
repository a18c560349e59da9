//! `embedding_grad`, through the text and the simulator on both chips, beside sums in f64.

use half::f16;
use headwater_ascend::kernel::{Barrier, Elem, Instr, Program, Stmt, StmtKind, Value, parse, verify};
use headwater_ascend::kernels::{EmbeddingGrad, embedding_grad};
use headwater_ascend::sim::{Arg, Launch, Mode, launch};
use headwater_ascend::{Arch, Chip, Finding, Rule, timing};

fn chip(arch: Arch) -> &'static Chip {
    Chip::from_name(if arch == Arch::A2 { "910b1" } else { "310p" }).unwrap()
}

fn shape(elem: Elem, [indices, rows, dim]: [u64; 3], padding: Option<u64>) -> EmbeddingGrad {
    EmbeddingGrad { elem, index: Elem::I32, indices, rows, dim, padding }
}

/// Numbers below 2³², the same for the same seed.
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 32
    }
}

/// Indices of which half are among the first few rows, and gradients of both signs that `elem` has exactly.
fn data(shape: &EmbeddingGrad) -> (Vec<i32>, Vec<f32>) {
    let mut next = random(shape.indices + shape.dim);
    let indices = (0..shape.indices).map(|_| match next() % 2 {
        0 => (next() % shape.rows.min(3)) as i32,
        _ => (next() % shape.rows) as i32,
    });
    let indices = indices.collect();
    let grads = (0..shape.indices * shape.dim).map(|_| {
        let x = (next() as f64 / 2f64.powi(31) - 1.0) * 2f64.powi((next() % 9) as i32 - 4);
        if shape.elem == Elem::F16 { f16::from_f64(x).to_f32() } else { x as f32 }
    });
    (indices, grads.collect())
}

/// The table's gradient and `fault` of one run.
fn run(
    program: &Program,
    shape: &EmbeddingGrad,
    (indices, grads): &(Vec<i32>, Vec<f32>),
    blocks: u32,
    mode: Mode,
) -> Result<(Vec<f32>, Vec<i32>), Vec<Finding>> {
    let size = shape.elem.size() as usize;
    let mut memory: Vec<u8> = match shape.index {
        Elem::I64 => indices.iter().flat_map(|i| i64::from(*i).to_le_bytes()).collect(),
        _ => indices.iter().flat_map(|i| i.to_le_bytes()).collect(),
    };
    memory.resize(memory.len().next_multiple_of(32), 0);
    let grad = memory.len();
    for g in grads {
        match shape.elem {
            Elem::F16 => memory.extend(f16::from_f32(*g).to_le_bytes()),
            _ => memory.extend(g.to_le_bytes()),
        }
    }
    memory.resize(memory.len().next_multiple_of(32), 0);
    let table = memory.len();
    let bytes = (shape.rows * shape.dim) as usize * size;
    memory.resize((table + bytes).next_multiple_of(32), 0xa5);
    let fault = memory.len();
    memory.resize(fault + 32, 0xa5);
    let args = [0, grad, table, fault].map(|at| Arg::Pointer(at as u64));
    launch(&Launch::new(program, chip(program.arch), blocks, &args, mode), &mut memory)?;
    let sums = memory[table..table + bytes].chunks(size).map(|b| match size {
        2 => f16::from_le_bytes([b[0], b[1]]).to_f32(),
        _ => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
    });
    let words = memory[fault..].as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b));
    Ok((sums.collect(), words.collect()))
}

/// Sums in f64, and the bound of each one's error.
///
/// The first term is added to zero exactly. m - 1 roundings of f32 remain, in turn: with u = 2⁻²⁴ and
/// γ = (m - 1) u / (1 - (m - 1) u) the error is at most γ Σ|g| (Higham, Accuracy and Stability of Numerical Algorithms,
/// 2nd edition, eq. 4.4). Of f16 results a last rounding adds 2⁻¹¹ of the sum, and below the normal numbers 2⁻²⁵.
fn wanted(shape: &EmbeddingGrad, (indices, grads): &(Vec<i32>, Vec<f32>)) -> Vec<(f64, f64)> {
    let dim = shape.dim as usize;
    let mut sums = vec![(0f64, 0f64, 0u32); (shape.rows * shape.dim) as usize];
    for (&index, grad) in indices.iter().zip(grads.chunks(dim)) {
        let row = index as u64;
        if index < 0 || row >= shape.rows || Some(row) == shape.padding {
            continue;
        }
        for (sum, g) in sums[row as usize * dim..].iter_mut().zip(grad) {
            *sum = (sum.0 + f64::from(*g), sum.1 + f64::from(g.abs()), sum.2 + 1);
        }
    }
    let bound = |(sum, size, terms): (f64, f64, u32)| {
        let mu = f64::from(terms.saturating_sub(1)) * 2f64.powi(-24);
        let error = mu / (1.0 - mu) * size;
        match shape.elem {
            Elem::F16 => (sum, error + (sum.abs() + error) * 2f64.powi(-11) + 2f64.powi(-25)),
            _ => (sum, error),
        }
    };
    sums.into_iter().map(bound).collect()
}

/// Runs that all have to give the same bits: checked in two orders, and fast with 1, 3 and 8 blocks.
const RUNS: [(u32, Mode); 6] = [
    (1, Mode::Fast),
    (3, Mode::Fast),
    (8, Mode::Fast),
    (3, Mode::Checked { seed: 0 }),
    (3, Mode::Checked { seed: 5 }),
    (8, Mode::Checked { seed: 5 }),
];

fn all_runs(arch: Arch, shape: &EmbeddingGrad) {
    let program = embedding_grad(arch, shape).unwrap();
    verify(&program).unwrap();
    let text = program.to_string();
    assert_eq!(parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}")), program);
    let data = data(shape);
    let wanted = wanted(shape, &data);
    let mut bits: Option<Vec<u32>> = None;
    for (blocks, mode) in RUNS {
        let (sums, fault) = run(&program, shape, &data, blocks, mode)
            .unwrap_or_else(|f| panic!("{arch} {shape:?} {mode:?}: {}", f[0]));
        assert_eq!(fault, [0, -1, 0, 0, 0, 0, 0, 0], "{arch} {shape:?} {blocks} {mode:?}");
        for (i, (sum, (truth, bound))) in sums.iter().zip(&wanted).enumerate() {
            let error = (f64::from(*sum) - truth).abs();
            assert!(error <= *bound, "{arch} {shape:?} {blocks} {mode:?}: element {i} is {sum}, not {truth}");
        }
        let now: Vec<u32> = sums.iter().map(|x| x.to_bits()).collect();
        assert!(
            *bits.get_or_insert_with(|| now.clone()) == now,
            "{arch} {shape:?} {blocks} {mode:?}: other bits"
        );
    }
}

#[test]
fn sums_are_right_for_any_number_of_cores_and_order() {
    for arch in Arch::ALL {
        for elem in [Elem::F32, Elem::F16] {
            // Few rows, many of them repeated; a padding row in the middle of those.
            all_runs(arch, &shape(elem, [301, 37, 48], Some(1)));
            // More rows than fit into UB at once.
            all_runs(arch, &shape(elem, [150, 3000, 16], Some(2999)));
            // Three ranges of columns, the last of them short.
            all_runs(arch, &shape(elem, [19, 7, 2064], None));
            // Two pieces of indices.
            all_runs(arch, &shape(elem, [4099, 40, 16], None));
            // One of each.
            all_runs(arch, &shape(elem, [1, 1, 16], None));
            let wide = EmbeddingGrad { index: Elem::I64, ..shape(elem, [301, 37, 48], Some(1)) };
            all_runs(arch, &wide);
        }
    }
}

#[test]
fn rows_of_any_length_on_a2() {
    for elem in [Elem::F32, Elem::F16] {
        for dim in [1, 33, 1030] {
            all_runs(Arch::A2, &shape(elem, [29, 11, dim], Some(0)));
        }
    }
}

#[test]
fn indices_outside_the_table_are_reported_and_add_nothing() {
    for arch in Arch::ALL {
        for elem in [Elem::F32, Elem::F16] {
            let index = if elem == Elem::F16 { Elem::I64 } else { Elem::I32 };
            let shape = EmbeddingGrad { index, ..shape(elem, [64, 20, 32], Some(3)) };
            let program = embedding_grad(arch, &shape).unwrap();
            let mut data = data(&shape);
            for (at, index) in [(11, -7), (12, 20), (40, i32::MIN), (63, i32::MAX)] {
                data.0[at] = index;
            }
            let wanted = wanted(&shape, &data);
            for (blocks, mode) in RUNS {
                let (sums, fault) = run(&program, &shape, &data, blocks, mode).unwrap();
                assert_eq!(fault, [4, 11, -7, -1, 0, 0, 0, 0], "{arch} {elem} {blocks} {mode:?}");
                for (sum, (truth, bound)) in sums.iter().zip(&wanted) {
                    assert!((f64::from(*sum) - truth).abs() <= *bound, "{arch} {elem}: {sum} {truth}");
                }
            }
        }
    }
}

/// Takes away the barriers in the bodies of loops in loops.
fn without_inner_barriers(body: &mut Vec<Stmt>, depth: u32) {
    body.retain(|stmt| depth < 3 || !matches!(stmt.kind, StmtKind::Instr(Instr::Barrier(Barrier::V))));
    for stmt in body {
        match &mut stmt.kind {
            StmtKind::For { body, .. } => without_inner_barriers(body, depth + 1),
            StmtKind::If { then, .. } => without_inner_barriers(then, depth),
            _ => {}
        }
    }
}

#[test]
fn a_missing_barrier_between_sums_is_found() {
    for arch in Arch::ALL {
        let shape = shape(Elem::F32, [8, 1, 64], None);
        let mut program = embedding_grad(arch, &shape).unwrap();
        let whole = program.clone();
        without_inner_barriers(&mut program.parts[0].body, 0);
        assert_ne!(program, whole);
        let findings = run(&program, &shape, &data(&shape), 1, Mode::Checked { seed: 0 }).unwrap_err();
        assert_eq!(findings[0].rule, Rule::Hazard, "{arch}: {}", findings[0]);
    }
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    let refused = |arch, shape| embedding_grad(arch, &shape).unwrap_err().rule;
    for arch in Arch::ALL {
        assert_eq!(refused(arch, shape(Elem::BF16, [4, 4, 32], None)), Rule::Unsupported);
        assert_eq!(refused(arch, shape(Elem::F32, [0, 4, 32], None)), Rule::Range);
        assert_eq!(refused(arch, shape(Elem::F32, [4, 1 << 31, 32], None)), Rule::Range);
        assert_eq!(refused(arch, shape(Elem::F32, [4, 4, 0], None)), Rule::Range);
        assert_eq!(refused(arch, shape(Elem::F32, [4, 4, 32], Some(4))), Rule::Range);
    }
    assert_eq!(refused(Arch::P310, shape(Elem::F32, [4, 4, 12], None)), Rule::Alignment);
    assert_eq!(refused(Arch::P310, shape(Elem::F16, [4, 4, 24], None)), Rule::Alignment);
    assert!(embedding_grad(Arch::P310, &shape(Elem::F32, [4, 4, 24], None)).is_ok());
    assert!(embedding_grad(Arch::A2, &shape(Elem::F16, [4, 4, 12], None)).is_ok());
}

#[test]
fn predicted_times() {
    for arch in Arch::ALL {
        for (elem, sizes) in [(Elem::F32, [2048, 8192, 256]), (Elem::F16, [2048, 8192, 256])] {
            let shape = shape(elem, sizes, None);
            let program = embedding_grad(arch, &shape).unwrap();
            let (indices, _) = data(&shape);
            let near = program.buffers.iter().position(|b| b.name == "near").unwrap();
            let mut loads = |view: &headwater_ascend::kernel::View<Value>| {
                let base =
                    headwater_ascend::kernel::Base::Buffer(headwater_ascend::kernel::BufferId(near as u32));
                assert_eq!(view.base, base, "only indices are loaded");
                indices.get(view.offset.as_int() as usize).map(|i| Value::Int(i64::from(*i)))
            };
            let chip = chip(arch);
            let mut last = f64::INFINITY;
            for blocks in [1, chip.vector_cores] {
                let launch = timing::Launch { blocks, args: vec![Value::Int(0); program.params.len()] };
                let timing = timing::predict(&program, chip, &launch, &mut loads).unwrap();
                println!(
                    "simulated: embedding_grad {elem} {sizes:?} (n, rows, dim), {blocks} blocks\n{timing}"
                );
                assert!(timing.task < last, "more cores take longer: {timing}");
                last = timing.task;
            }
        }
    }
}
