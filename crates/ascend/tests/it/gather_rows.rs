//! `gather_rows`, through the text and the simulator on both chips: exact copies, and indices that are
//! refused.

use headwater_ascend::kernel::{Elem, parse, verify};
use headwater_ascend::kernels::{GatherRows, gather_rows};
use headwater_ascend::sim::{Arg, Launch, Mode, launch};
use headwater_ascend::{Arch, Chip, Rule};

/// Runs that all have to give the same bytes.
const RUNS: [(u32, Mode); 5] = [
    (1, Mode::Fast),
    (8, Mode::Fast),
    (1, Mode::Checked { seed: 0 }),
    (3, Mode::Checked { seed: 5 }),
    (8, Mode::Checked { seed: 9 }),
];

fn chip(arch: Arch) -> &'static Chip {
    Chip::from_name(if arch == Arch::A2 { "910b1" } else { "310p" }).unwrap()
}

/// The rows and the reports that a kernel makes of a table of consecutive bytes. A row is anything where an
/// index is wrong.
fn all_runs(arch: Arch, shape: &GatherRows, indices: &[i64]) {
    let program = gather_rows(arch, shape).unwrap();
    verify(&program).unwrap();
    assert_eq!(parse(&program.to_string()).unwrap(), program);
    let width = (shape.dim * shape.elem.size()) as usize;
    let table: Vec<u8> = (0..shape.rows as usize * width).map(|i| (i * 7 % 251) as u8).collect();
    let base: Vec<u8> = (0..indices.len() * width).map(|i| (i * 11 % 253) as u8).collect();
    let inside = |index: &i64| (0..shape.rows as i64).contains(index);
    let want: Vec<Option<&[u8]>> = (indices.iter().enumerate())
        .map(|(i, index)| match inside(index) {
            true => Some(&table[*index as usize * width..][..width]),
            false => shape.merged.then(|| &base[i * width..][..width]),
        })
        .collect();
    for (blocks, mode) in RUNS {
        let mut memory: Vec<u8> = match shape.index {
            Elem::I64 => indices.iter().flat_map(|i| i.to_le_bytes()).collect(),
            _ => indices.iter().flat_map(|i| (*i as i32).to_le_bytes()).collect(),
        };
        let place = |memory: &mut Vec<u8>, bytes: &[u8]| {
            memory.resize(memory.len().next_multiple_of(64) + 64, 0xa5);
            let start = memory.len();
            memory.extend_from_slice(bytes);
            start
        };
        let from = place(&mut memory, &table);
        let merged = shape.merged.then(|| place(&mut memory, &base));
        let out = place(&mut memory, &vec![0xa5; base.len()]);
        let fault = place(&mut memory, &vec![0xa5; shape.reports() as usize * 32]);
        let places = [Some(0), Some(from), merged, Some(out), Some(fault)];
        let args: Vec<Arg> = places.into_iter().flatten().map(|at| Arg::Pointer(at as u64)).collect();
        let run = Launch::new(&program, chip(arch), blocks, &args, mode);
        launch(&run, &mut memory).unwrap_or_else(|f| panic!("{arch} {shape:?} {mode:?}: {}", f[0]));
        for (row, want) in memory[out..].chunks(width).zip(&want) {
            assert!(want.is_none_or(|want| row == want), "{arch} {shape:?} {blocks} {mode:?}: other rows");
        }
        let behind = &memory[out + base.len()..fault];
        assert!(behind.iter().all(|&b| b == 0xa5), "{arch} {shape:?} {blocks} {mode:?}: too much");
        let words: Vec<i32> =
            memory[fault..].as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)).collect();
        for (task, report) in words.chunks(8).enumerate() {
            let start = task * 256;
            let is_last = task as u64 == shape.reports() - 1;
            let mine = &indices[start..if is_last { indices.len() } else { start + 256 }];
            let wrong = |i: &i64| !shape.merged && !inside(i);
            let count = mine.iter().filter(|i| wrong(i)).count() as i32;
            let (at, index) = match mine.iter().position(wrong) {
                Some(at) => ((start + at) as i32, mine[at]),
                None => (-1, 0),
            };
            let want = [count, at, index as i32, (index >> 32) as i32, 0, 0, 0, 0];
            assert_eq!(report, want, "{arch} {shape:?} {blocks} {mode:?}: report {task}");
        }
    }
}

fn shape(elem: Elem, index: Elem, [indices, rows, dim]: [u64; 3]) -> GatherRows {
    GatherRows { elem, index, indices, rows, dim, merged: false }
}

#[test]
fn rows_are_copied_and_indices_checked() {
    for arch in Arch::ALL {
        for index in [Elem::I32, Elem::I64] {
            let some: Vec<i64> = (0..301).map(|i| i * i % 37).collect();
            all_runs(arch, &shape(Elem::U32, index, [301, 37, 24]), &some);
            // Rows of two pieces.
            all_runs(arch, &shape(Elem::U16, index, [5, 3, 9024]), &[2, 0, 2, 1, 1]);
            all_runs(arch, &shape(Elem::U16, index, [1, 1, 16]), &[0]);
            let wild = [0, -1, 3, 4, i64::from(i32::MIN), i64::from(i32::MAX), 1];
            all_runs(arch, &shape(Elem::U32, index, [7, 4, 16]), &wild);
        }
        // A number that is small in its low half alone is no index.
        all_runs(arch, &shape(Elem::U32, Elem::I64, [3, 4, 16]), &[1 << 32, 1, -(1 << 32)]);
    }
}

#[test]
fn short_and_odd_rows_are_moved_together() {
    for arch in Arch::ALL {
        for elem in [Elem::U16, Elem::U32] {
            for dim in [1, 3, 8, 31, 33, 100, 250] {
                for indices in [1, 2, 7, 255, 300, 801] {
                    let some: Vec<i64> = (0..indices as i64).map(|i| i * i % 37).collect();
                    all_runs(arch, &shape(elem, Elem::I32, [indices, 37, dim]), &some);
                }
            }
            let wild = [0, -1, 3, 4, i64::from(i32::MIN), i64::from(i32::MAX), 1];
            all_runs(arch, &shape(elem, Elem::I64, [7, 4, 3]), &wild);
        }
    }
    for dim in [1, 33] {
        all_runs(Arch::A2, &shape(Elem::U8, Elem::I64, [19, 11, dim]), &[10; 19]);
    }
}

#[test]
fn rows_without_an_index_are_those_of_another_table() {
    for arch in Arch::ALL {
        for dim in [1, 5, 24, 250] {
            let some: Vec<i64> = (0..301).map(|i| if i % 3 == 1 { -1 } else { i * i % 37 }).collect();
            let shape = shape(Elem::U32, Elem::I32, [301, 37, dim]);
            all_runs(arch, &GatherRows { merged: true, ..shape }, &some);
        }
    }
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    let refused = |arch, shape| gather_rows(arch, &shape).unwrap_err().rule;
    assert_eq!(refused(Arch::A2, shape(Elem::U32, Elem::F32, [4, 4, 32])), Rule::Unsupported);
    assert_eq!(refused(Arch::A2, shape(Elem::U32, Elem::I32, [0, 4, 32])), Rule::Range);
    assert_eq!(refused(Arch::P310, shape(Elem::U32, Elem::I32, [4, 4, 300])), Rule::Alignment);
    assert_eq!(refused(Arch::P310, shape(Elem::U8, Elem::I32, [4, 4, 12])), Rule::Alignment);
}
