//! `check_index`, through its text form and the simulator on both chips. Indices may count from the end, one
//! is ignored, and those out of range are reported.

use headwater_ascend::kernel::{Elem, parse, verify};
use headwater_ascend::kernels::{CheckIndex, check_index};
use headwater_ascend::sim::{Arg, Launch, Mode, launch};
use headwater_ascend::{Arch, Chip, Rule};

/// Runs that all have to give the same bytes.
const RUNS: [(u32, Mode); 4] =
    [(1, Mode::Fast), (8, Mode::Fast), (1, Mode::Checked { seed: 0 }), (3, Mode::Checked { seed: 5 })];

/// Runs a kernel in every way: its results and reports are those of the definition, and it writes nothing
/// else.
fn all_runs(arch: Arch, shape: &CheckIndex, indices: &[i64]) {
    let chip = Chip::from_name(if arch == Arch::A2 { "910b1" } else { "310p" }).unwrap();
    let program = check_index(arch, shape).unwrap();
    verify(&program).unwrap();
    assert_eq!(parse(&program.to_string()).unwrap(), program);
    let limit = shape.limit as i64;
    let checked = |i: i64| match i {
        _ if shape.ignored == Some(i) => Ok(i),
        _ if (0..limit).contains(&i) => Ok(i),
        _ if shape.wrap && (-limit..0).contains(&i) => Ok(i + limit),
        _ => Err(i),
    };
    let bytes = |all: &[i64]| -> Vec<u8> {
        match shape.index {
            Elem::I64 => all.iter().flat_map(|i| i.to_le_bytes()).collect(),
            _ => all.iter().flat_map(|i| (*i as i32).to_le_bytes()).collect(),
        }
    };
    let want = bytes(&indices.iter().map(|&i| checked(i).unwrap_or(0)).collect::<Vec<_>>());
    let tasks = shape.reports() as usize;
    for (blocks, mode) in RUNS {
        let mut memory = bytes(indices);
        let room = |memory: &mut Vec<u8>, len: usize| {
            memory.resize(memory.len().next_multiple_of(64) + 64, 0xa5);
            let start = memory.len();
            memory.resize(start + len, 0xa5);
            start
        };
        let out = room(&mut memory, want.len());
        let fault = room(&mut memory, tasks * 32);
        let args = [0, out, fault].map(|at| Arg::Pointer(at as u64));
        let run = Launch::new(&program, chip, blocks, &args, mode);
        launch(&run, &mut memory).unwrap_or_else(|f| panic!("{arch} {shape:?} {mode:?}: {}", f[0]));
        assert!(memory[out..][..want.len()] == want, "{arch} {shape:?} {blocks} {mode:?}: other indices");
        assert!(memory[out + want.len()..fault].iter().all(|&b| b == 0xa5), "{arch} {shape:?}: too much");
        let words: Vec<i32> =
            memory[fault..].as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)).collect();
        for (task, report) in words.chunks(8).enumerate() {
            let start = task * 1024;
            let end = if task == tasks - 1 { indices.len() } else { start + 1024 };
            let mut wrong = (start..end).filter(|&at| checked(indices[at]).is_err());
            let first = wrong.next();
            let count = first.map_or(0, |_| 1 + wrong.count() as i32);
            let (at, index) = first.map_or((-1, 0), |at| (at as i32, indices[at]));
            let want = [count, at, index as i32, (index >> 32) as i32, 0, 0, 0, 0];
            assert_eq!(report, want, "{arch} {shape:?} {blocks} {mode:?}: report {task}");
        }
    }
}

#[test]
fn indices_are_resolved_and_reported() {
    for arch in Arch::ALL {
        for index in [Elem::I32, Elem::I64] {
            for (wrap, ignored) in [(false, None), (true, None), (false, Some(-100)), (true, Some(-2))] {
                for indices in [1, 3, 8, 9, 1027, 2048, 3001] {
                    let shape = CheckIndex { index, indices, limit: 37, wrap, ignored };
                    let some: Vec<i64> = (0..indices as i64)
                        .map(|i| match i % 101 {
                            7 => -100,
                            13 => -2,
                            50 => 37,
                            51 => -38,
                            52 => i64::from(i32::MIN),
                            i => i % 37,
                        })
                        .collect();
                    all_runs(arch, &shape, &some);
                }
            }
        }
        // Numbers that are small in their low half alone are no indices.
        let shape = CheckIndex { index: Elem::I64, indices: 4, limit: 4, wrap: true, ignored: None };
        all_runs(arch, &shape, &[1 << 32, -(1 << 32), i64::MIN, -4]);
    }
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    let shape = CheckIndex { index: Elem::I32, indices: 4, limit: 4, wrap: false, ignored: None };
    let refused = |shape| check_index(Arch::A2, &shape).unwrap_err().rule;
    assert_eq!(refused(CheckIndex { index: Elem::F32, ..shape }), Rule::Unsupported);
    assert_eq!(refused(CheckIndex { indices: 0, ..shape }), Rule::Range);
    assert_eq!(refused(CheckIndex { limit: 0, ..shape }), Rule::Range);
}
