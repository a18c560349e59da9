//! `gather_rows`, through the text and the simulator on both chips: exact copies, and indices that are refused.

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

/// The rows and the reports that a kernel makes of a table of consecutive bytes.
fn all_runs(arch: Arch, shape: &GatherRows, indices: &[i64]) {
    let program = gather_rows(arch, shape).unwrap();
    verify(&program).unwrap();
    assert_eq!(parse(&program.to_string()).unwrap(), program);
    let width = (shape.dim * shape.elem.size()) as usize;
    let table: Vec<u8> = (0..shape.rows as usize * width).map(|i| (i * 7 % 251) as u8).collect();
    let mut want = Vec::new();
    for &index in indices {
        match usize::try_from(index).ok().filter(|&row| row < shape.rows as usize) {
            Some(row) => want.extend_from_slice(&table[row * width..][..width]),
            None => want.resize(want.len() + width, 0),
        }
    }
    for (blocks, mode) in RUNS {
        let mut memory: Vec<u8> = match shape.index {
            Elem::I64 => indices.iter().flat_map(|i| i.to_le_bytes()).collect(),
            _ => indices.iter().flat_map(|i| (*i as i32).to_le_bytes()).collect(),
        };
        let place = |memory: &mut Vec<u8>, bytes: &[u8]| {
            memory.resize(memory.len().next_multiple_of(64), 0xa5);
            let start = memory.len();
            memory.extend_from_slice(bytes);
            start
        };
        let from = place(&mut memory, &table);
        let out = place(&mut memory, &vec![0xa5; want.len()]);
        let fault = place(&mut memory, &vec![0xa5; shape.reports() as usize * 32]);
        let args = [0, from, out, fault].map(|at| Arg::Pointer(at as u64));
        let run = Launch::new(&program, chip(arch), blocks, &args, mode);
        launch(&run, &mut memory).unwrap_or_else(|f| panic!("{arch} {shape:?} {mode:?}: {}", f[0]));
        assert!(memory[out..][..want.len()] == want, "{arch} {shape:?} {blocks} {mode:?}: other rows");
        let words: Vec<i32> =
            memory[fault..].as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)).collect();
        for (task, report) in words.chunks(8).enumerate() {
            let start = task * 256;
            let mine = &indices[start..indices.len().min(start + 256)];
            let outside = |i: &i64| !(0..shape.rows as i64).contains(i);
            let count = mine.iter().filter(|i| outside(i)).count() as i32;
            let (at, index) = match mine.iter().position(outside) {
                Some(at) => ((start + at) as i32, mine[at]),
                None => (-1, 0),
            };
            let want = [count, at, index as i32, (index >> 32) as i32, 0, 0, 0, 0];
            assert_eq!(report, want, "{arch} {shape:?} {blocks} {mode:?}: report {task}");
        }
    }
}

fn shape(elem: Elem, index: Elem, [indices, rows, dim]: [u64; 3]) -> GatherRows {
    GatherRows { elem, index, indices, rows, dim }
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
    for dim in [1, 33] {
        all_runs(Arch::A2, &shape(Elem::U16, Elem::I64, [19, 11, dim]), &[10; 19]);
    }
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    let refused = |arch, shape| gather_rows(arch, &shape).unwrap_err().rule;
    assert_eq!(refused(Arch::A2, shape(Elem::U32, Elem::F32, [4, 4, 32])), Rule::Unsupported);
    assert_eq!(refused(Arch::A2, shape(Elem::U32, Elem::I32, [0, 4, 32])), Rule::Range);
    assert_eq!(refused(Arch::P310, shape(Elem::U32, Elem::I32, [4, 4, 12])), Rule::Alignment);
}
