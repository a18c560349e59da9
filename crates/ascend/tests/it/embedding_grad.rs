//! `embedding_grad`, rung by rung, through the text and the simulator on both chips, beside sums in f64.

use half::{bf16, f16};
use headwater_ascend::kernel::{Barrier, Elem, Instr, ParamKind, Stmt, StmtKind, parse, verify};
use headwater_ascend::kernels::{EmbeddingGrad, Operand, Rung, Stages, embedding_grad};
use headwater_ascend::sim::{Arg, Launch, Mode, launch};
use headwater_ascend::{Arch, Chip, Finding, Rule};

fn chip(arch: Arch) -> &'static Chip {
    Chip::from_name(if arch == Arch::A2 { "910b1" } else { "310p" }).unwrap()
}

fn shape(elem: Elem, [indices, rows, dim]: [u64; 3], padding: Option<u64>) -> EmbeddingGrad {
    let index = Elem::I32;
    EmbeddingGrad { elem, index, indices, rows, dim, padding, by_frequency: false, cores: 8 }
}

/// Numbers below 2³², the same for the same seed.
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 32
    }
}

/// A number as `elem` has it.
fn rounded(elem: Elem, x: f64) -> f32 {
    match elem {
        Elem::F16 => f16::from_f64(x).to_f32(),
        Elem::BF16 => bf16::from_f64(x).to_f32(),
        _ => x as f32,
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
        rounded(shape.elem, x)
    });
    (indices, grads.collect())
}

/// The table's gradient and the reports of one run.
fn run(
    stages: &Stages,
    shape: &EmbeddingGrad,
    (indices, grads): &(Vec<i32>, Vec<f32>),
    most: u32,
    mode: Mode,
) -> Result<(Vec<f32>, Vec<i32>), Vec<Finding>> {
    let size = shape.elem.size() as usize;
    let index =
        indices.iter().flat_map(|&i| i64::from(i).to_le_bytes()[..shape.index.size() as usize].to_vec());
    let mut memory: Vec<u8> = index.collect();
    let begin = |memory: &mut Vec<u8>| {
        // Unwritten bytes are conspicuous as numbers.
        memory.resize((memory.len() + 64).next_multiple_of(64), 0xa5);
        memory.len()
    };
    let grad = begin(&mut memory);
    for g in grads {
        match shape.elem {
            Elem::F16 => memory.extend(f16::from_f32(*g).to_le_bytes()),
            Elem::BF16 => memory.extend(bf16::from_f32(*g).to_le_bytes()),
            _ => memory.extend(g.to_le_bytes()),
        }
    }
    let table = begin(&mut memory);
    let bytes = (shape.rows * shape.dim) as usize * size;
    memory.resize(table + bytes, 0xa5);
    let fault = begin(&mut memory);
    let places = stages.stages.iter().flat_map(|s| s.program.params.iter().zip(&s.operands));
    let reports = places.filter(|(_, o)| **o == Operand::Fault).map(|(p, _)| p.bytes() as usize).max();
    let reports = reports.unwrap_or(0);
    memory.resize(fault + reports, 0xa5);
    let workspace = begin(&mut memory);
    memory.resize(workspace + stages.workspace as usize + 64, 0xa5);
    for stage in &stages.stages {
        let args = stage.operands.iter().map(|operand| {
            Arg::Pointer(match *operand {
                Operand::Index => 0,
                Operand::Grad => grad as u64,
                Operand::Table => table as u64,
                Operand::Fault => fault as u64,
                Operand::Workspace(bytes) => workspace as u64 + bytes,
            })
        });
        let args: Vec<Arg> = args.collect();
        let blocks = stage.blocks.min(most);
        launch(&Launch::new(&stage.program, chip(stage.program.arch), blocks, &args, mode), &mut memory)?;
    }
    assert!(memory[table + bytes..fault].iter().all(|b| *b == 0xa5), "the end of the table is left alone");
    let sums = memory[table..table + bytes].chunks(size).map(|b| match shape.elem {
        Elem::F16 => f16::from_le_bytes([b[0], b[1]]).to_f32(),
        Elem::BF16 => bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        _ => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
    });
    let words = memory[fault..fault + reports].as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b));
    Ok((sums.collect(), words.collect()))
}

/// Sums in f64, and the bound of each one's error.
///
/// In any order and any tree m terms take m - 1 roundings of f32 besides exact sums with zero: with u = 2⁻²⁴
/// and γ = (m - 1) u / (1 - (m - 1) u) the error is at most γ Σ|g| (Higham, Accuracy and Stability of
/// Numerical Algorithms, 2nd edition, section 4.2). By frequency a reciprocal and a product are rounded as
/// well. Of 16-bit results a last rounding adds half a unit of the sum, and below the normal numbers of f16
/// 2⁻²⁵.
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
        let more = if shape.by_frequency { 2 } else { 0 };
        let weight = if shape.by_frequency { 1.0 / f64::from(terms.max(1)) } else { 1.0 };
        let mu = f64::from(terms.saturating_sub(1) + more) * 2f64.powi(-24);
        let (sum, error) = (sum * weight, mu / (1.0 - mu) * size * weight);
        match shape.elem {
            Elem::F16 => (sum, error + (sum.abs() + error) * 2f64.powi(-11) + 2f64.powi(-25)),
            Elem::BF16 => (sum, error + (sum.abs() + error) * 2f64.powi(-8)),
            _ => (sum, error),
        }
    };
    sums.into_iter().map(bound).collect()
}

/// Runs that all have to give the same bits: checked in two orders, and fast with 1, 3 and 8 blocks.
const RUNS: [(u32, Mode); 5] = [
    (1, Mode::Fast),
    (3, Mode::Fast),
    (8, Mode::Fast),
    (3, Mode::Checked { seed: 0 }),
    (8, Mode::Checked { seed: 5 }),
];

/// True if every report is about no index.
fn no_faults(fault: &[i32]) -> bool {
    fault.chunks(8).all(|report| report == [0, -1, 0, 0, 0, 0, 0, 0])
}

fn rung_runs(arch: Arch, shape: &EmbeddingGrad, rung: Rung, runs: &[(u32, Mode)]) {
    let stages = embedding_grad(arch, shape, rung).unwrap();
    for stage in &stages.stages {
        verify(&stage.program).unwrap();
        let text = stage.program.to_string();
        assert_eq!(parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}")), stage.program);
    }
    let data = data(shape);
    let wanted = wanted(shape, &data);
    let sorted = matches!(rung, Rung::Grouped | Rung::Pipelined);
    let mut bits: Option<Vec<u32>> = None;
    for &(blocks, mode) in runs {
        let name = format!("{arch} {shape:?} {rung:?} {blocks} {mode:?}");
        let (sums, fault) =
            run(&stages, shape, &data, blocks, mode).unwrap_or_else(|f| panic!("{name}: {}", f[0]));
        assert!(no_faults(&fault), "{name}: {fault:?}");
        for (i, (sum, (truth, bound))) in sums.iter().zip(&wanted).enumerate() {
            let error = (f64::from(*sum) - truth).abs();
            assert!(error <= *bound, "{name}: element {i} is {sum}, not {truth}");
        }
        let now: Vec<u32> = sums.iter().map(|x| x.to_bits()).collect();
        // Atomic sums depend on the order in which cores come.
        assert!(!sorted || *bits.get_or_insert_with(|| now.clone()) == now, "{name}: other bits");
    }
}

fn all_runs(arch: Arch, shape: &EmbeddingGrad) {
    rung_runs(arch, shape, Rung::Pipelined, &RUNS);
}

/// Types of gradients that a chip sums.
fn types(arch: Arch) -> &'static [Elem] {
    match arch {
        Arch::A2 => &[Elem::F32, Elem::F16, Elem::BF16],
        Arch::P310 => &[Elem::F32, Elem::F16],
    }
}

#[test]
fn sums_are_right_for_any_number_of_cores_and_order() {
    for arch in Arch::ALL {
        for &elem in types(arch) {
            // Few rows, many of them repeated; a padding row in the middle of those.
            all_runs(arch, &shape(elem, [301, 37, 48], Some(1)));
            // More rows than fit into UB at once.
            all_runs(arch, &shape(elem, [150, 3000, 16], Some(2999)));
            // Three ranges of columns, the last of them short.
            all_runs(arch, &shape(elem, [19, 7, 2064], None));
            // One of each.
            all_runs(arch, &shape(elem, [1, 1, 16], None));
            let wide = EmbeddingGrad { index: Elem::I64, ..shape(elem, [301, 37, 48], Some(1)) };
            all_runs(arch, &wide);
        }
    }
}

#[test]
fn rows_that_several_tasks_share_are_summed_in_a_fixed_order() {
    for arch in Arch::ALL {
        for &elem in types(arch) {
            // One slice, which each core sorts; a third and more of the positions are of one row.
            all_runs(arch, &shape(elem, [2500, 40, 16], Some(2)));
            all_runs(arch, &shape(elem, [1030, 2, 2064], None));
        }
        // Three slices, sorted by a launch of their own.
        all_runs(arch, &shape(Elem::F16, [4099, 40, 16], Some(0)));
        let wide = EmbeddingGrad { index: Elem::I64, ..shape(Elem::F32, [5001, 300, 16], Some(1)) };
        all_runs(arch, &wide);
    }
}

/// Many positions of a small table: ranges of several rows, so that their edges fit the capacity of UB, and
/// few tasks.
#[test]
fn many_positions_of_a_small_table_are_divided_among_few_tasks() {
    for (arch, rows) in [(Arch::A2, 300), (Arch::P310, 450)] {
        let shape = EmbeddingGrad { cores: 48, ..shape(Elem::F32, [43_100, rows, 8], Some(1)) };
        rung_runs(arch, &shape, Rung::Pipelined, &RUNS[2..4]);
    }
}

#[test]
fn every_rung_sums() {
    for arch in Arch::ALL {
        for &elem in types(arch) {
            for rung in Rung::ALL {
                rung_runs(arch, &shape(elem, [700, 90, 48], Some(1)), rung, &RUNS[2..]);
                let wide = EmbeddingGrad { index: Elem::I64, ..shape(elem, [37, 900, 32], None) };
                rung_runs(arch, &wide, rung, &RUNS[2..]);
            }
        }
        rung_runs(arch, &shape(Elem::F16, [4200, 90, 16], None), Rung::Grouped, &RUNS[2..]);
    }
}

#[test]
fn rows_of_any_length() {
    for arch in Arch::ALL {
        for &elem in types(arch) {
            for dim in [1, 33, 1030] {
                all_runs(arch, &shape(elem, [29, 16, dim], Some(0)));
            }
            all_runs(arch, &shape(elem, [1500, 11, 19], Some(0)));
        }
    }
}

#[test]
fn sums_are_divided_by_frequency() {
    for arch in Arch::ALL {
        for &elem in types(arch) {
            for sizes in [[301, 37, 48], [4500, 37, 16]] {
                all_runs(arch, &EmbeddingGrad { by_frequency: true, ..shape(elem, sizes, Some(1)) });
            }
        }
    }
}

#[test]
fn without_indices_the_table_is_zero() {
    for arch in Arch::ALL {
        for dim in [16, 17] {
            all_runs(arch, &shape(Elem::F16, [0, 700, dim], None));
        }
    }
}

#[test]
fn indices_outside_the_table_are_reported_and_add_nothing() {
    for arch in Arch::ALL {
        for elem in [Elem::F32, Elem::F16] {
            let index = if elem == Elem::F16 { Elem::I64 } else { Elem::I32 };
            for indices in [64, 4200] {
                let shape = EmbeddingGrad { index, ..shape(elem, [indices, 20, 32], Some(3)) };
                let stages = embedding_grad(arch, &shape, Rung::Pipelined).unwrap();
                let mut data = data(&shape);
                for (at, index) in [(11, -7), (12, 20), (40, i32::MIN), (63, i32::MAX)] {
                    data.0[at] = index;
                }
                let wanted = wanted(&shape, &data);
                for (blocks, mode) in RUNS {
                    let (sums, fault) = run(&stages, &shape, &data, blocks, mode).unwrap();
                    assert_eq!(fault[..8], [4, 11, -7, -1, 0, 0, 0, 0], "{arch} {elem} {blocks} {mode:?}");
                    assert!(no_faults(&fault[8..]), "{fault:?}");
                    for (sum, (truth, bound)) in sums.iter().zip(&wanted) {
                        assert!((f64::from(*sum) - truth).abs() <= *bound, "{arch} {elem}: {sum} {truth}");
                    }
                }
            }
        }
    }
}

#[test]
fn an_index_whose_lower_word_is_a_row_is_outside() {
    for arch in Arch::ALL {
        let shape = EmbeddingGrad { index: Elem::I64, ..shape(Elem::F32, [2, 20, 32], None) };
        let stages = embedding_grad(arch, &shape, Rung::Pipelined).unwrap();
        let [stage] = &stages.stages[..] else { panic!("one launch") };
        let mut memory = vec![0u8; 8192];
        // Rows 3 and 3 + 2³²; all gradients are 1.
        memory[..8].copy_from_slice(&3i64.to_le_bytes());
        memory[8..16].copy_from_slice(&(3i64 + (1 << 32)).to_le_bytes());
        memory[1024..1024 + 256].as_chunks_mut::<4>().0.fill(1f32.to_le_bytes());
        let args = stage.operands.iter().map(|operand| match operand {
            Operand::Index => Arg::Pointer(0),
            Operand::Fault => Arg::Pointer(512),
            Operand::Grad => Arg::Pointer(1024),
            _ => Arg::Pointer(2048),
        });
        let args: Vec<Arg> = args.collect();
        let one = Launch::new(&stage.program, chip(arch), 2, &args, Mode::Checked { seed: 0 });
        launch(&one, &mut memory).unwrap();
        let words: Vec<i32> =
            memory[512..544].as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)).collect();
        assert_eq!(words, [1, 1, 3, 1, 0, 0, 0, 0]);
        let table = memory[2048..2048 + 20 * 32 * 4].as_chunks::<4>().0.iter();
        let sums: Vec<f32> = table.map(|b| f32::from_le_bytes(*b)).collect();
        assert!((0..20 * 32).all(|i| sums[i] == if i / 32 == 3 { 1.0 } else { 0.0 }), "{sums:?}");
    }
}

/// Takes away the barriers in the bodies of loops in loops in loops.
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
        let mut stages = embedding_grad(arch, &shape, Rung::Pipelined).unwrap();
        let whole = stages.clone();
        without_inner_barriers(&mut stages.stages[0].program.parts[0].body, 0);
        assert_ne!(stages, whole);
        let findings = run(&stages, &shape, &data(&shape), 1, Mode::Checked { seed: 0 }).unwrap_err();
        assert_eq!(findings[0].rule, Rule::Hazard, "{arch}: {}", findings[0]);
    }
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    let refused = |arch, shape, rung| embedding_grad(arch, &shape, rung).unwrap_err().rule;
    for rung in Rung::ALL {
        for arch in Arch::ALL {
            assert_eq!(refused(arch, shape(Elem::I32, [4, 4, 32], None), rung), Rule::Unsupported);
            assert_eq!(refused(arch, shape(Elem::F32, [1 << 31, 4, 32], None), rung), Rule::Range);
            assert_eq!(refused(arch, shape(Elem::F32, [4, 1 << 31, 32], None), rung), Rule::Range);
            assert_eq!(refused(arch, shape(Elem::F32, [4, 4, 0], None), rung), Rule::Range);
            assert_eq!(refused(arch, shape(Elem::F32, [4, 4, 32], Some(4)), rung), Rule::Range);
        }
        assert_eq!(refused(Arch::P310, shape(Elem::BF16, [4, 4, 32], None), rung), Rule::Unsupported);
        assert_eq!(refused(Arch::P310, shape(Elem::F16, [4, 5, 3], None), rung), Rule::Alignment);
    }
    // Keys of 31 bits: rows, and positions in slices of 128.
    assert_eq!(refused(Arch::A2, shape(Elem::F16, [4, 1 << 24, 16], None), Rung::Pipelined), Rule::Range);
    assert!(
        embedding_grad(Arch::A2, &shape(Elem::F16, [4, (1 << 24) - 2, 16], None), Rung::Pipelined).is_ok()
    );
    // 256 slices of 16,384.
    assert_eq!(refused(Arch::A2, shape(Elem::F16, [1 << 23, 99, 16], None), Rung::Pipelined), Rule::Range);
    assert!(embedding_grad(Arch::A2, &shape(Elem::F16, [1 << 22, 99, 16], None), Rung::Pipelined).is_ok());
    for rung in [Rung::Naive, Rung::Vectorised] {
        assert_eq!(refused(Arch::P310, shape(Elem::F16, [4, 4, 24], None), rung), Rule::Alignment);
    }
}

/// Bytes of a parameter.
fn workspace_of(stages: &Stages) -> u64 {
    let params = stages.stages.iter().flat_map(|s| s.program.params.iter().zip(&s.operands));
    let ends = params.filter_map(|(p, o)| match (o, &p.kind) {
        (Operand::Workspace(start), ParamKind::Pointer { .. }) => Some(start + p.bytes()),
        _ => None,
    });
    ends.max().unwrap_or(0)
}

/// The shape that the ladder is measured on: the upper rungs have no table in f32.
#[test]
fn sorted_positions_take_little_memory() {
    let shape = EmbeddingGrad { ..shape(Elem::F16, [16_384, 32_000, 1024], None) };
    let workspace = |rung| {
        let stages = embedding_grad(Arch::P310, &shape, rung).unwrap();
        assert!(workspace_of(&stages) <= stages.workspace + 32, "{rung:?}");
        stages.workspace
    };
    assert_eq!(workspace(Rung::Naive), 32_000 * 1024 * 4);
    assert!(workspace(Rung::Pipelined) * 4 <= workspace(Rung::Naive));
}
