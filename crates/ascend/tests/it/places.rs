//! `places`, through its text form and the simulator on both chips: indices checked and multiplied by
//! strides, and what positions add by themselves.

use headwater_ascend::kernel::{Elem, parse, verify};
use headwater_ascend::kernels::{Places, places};
use headwater_ascend::sim::{Arg, Launch, Mode, launch};
use headwater_ascend::{Arch, Chip, Rule};

/// Runs that all have to give the same bytes.
const RUNS: [(u32, Mode); 3] =
    [(8, Mode::Fast), (1, Mode::Checked { seed: 0 }), (3, Mode::Checked { seed: 5 })];

fn all_runs(arch: Arch, shape: &Places, indices: &[i64]) {
    let chip = Chip::from_name(if arch == Arch::A2 { "910b1" } else { "310p" }).unwrap();
    let program = places(arch, shape).unwrap();
    verify(&program).unwrap();
    assert_eq!(parse(&program.to_string()).unwrap(), program);
    let limit = shape.limit as i64;
    let resolved = |i: i64| {
        let at = if shape.wrap && i < 0 { i + limit } else { i };
        (0..limit).contains(&at).then_some(at)
    };
    let before = |i: usize| if shape.onto { 1000 + i as i64 } else { 0 };
    let want: Vec<i32> = (indices.iter().enumerate())
        .map(|(i, &index)| {
            let walked: u64 = shape.walks.iter().map(|[d, m, s]| i as u64 / d % m * s).sum();
            (resolved(index).unwrap_or(0) * shape.stride as i64 + walked as i64 + before(i)) as i32
        })
        .collect();
    for (blocks, mode) in RUNS {
        let mut memory: Vec<u8> = match shape.index {
            Elem::I64 => indices.iter().flat_map(|i| i.to_le_bytes()).collect(),
            _ => indices.iter().flat_map(|i| (*i as i32).to_le_bytes()).collect(),
        };
        let place = |memory: &mut Vec<u8>, words: usize| {
            memory.resize(memory.len().next_multiple_of(64) + 64, 0xa5);
            let start = memory.len();
            memory.resize(start + 4 * words, 0xa5);
            start
        };
        let room = shape.room() as usize;
        let sum = shape.onto.then(|| place(&mut memory, room));
        for (i, word) in sum.iter().flat_map(|&at| (0..room).map(move |i| (i, at + 4 * i))) {
            memory[word..word + 4].copy_from_slice(&(before(i) as i32).to_le_bytes());
        }
        let out = place(&mut memory, room);
        let fault = place(&mut memory, shape.reports() as usize * 8);
        let all = [Some(0), sum, Some(out), Some(fault)].into_iter().flatten();
        let args: Vec<Arg> = all.map(|at| Arg::Pointer(at as u64)).collect();
        let run = Launch::new(&program, chip, blocks, &args, mode);
        launch(&run, &mut memory).unwrap_or_else(|f| panic!("{arch} {shape:?} {mode:?}: {}", f[0]));
        let words = |at: usize, count: usize| -> Vec<i32> {
            let words = memory[at..][..4 * count].as_chunks::<4>().0;
            words.iter().map(|b| i32::from_le_bytes(*b)).collect()
        };
        assert_eq!(words(out, indices.len()), want, "{arch} {shape:?} {blocks} {mode:?}");
        for (task, report) in words(fault, shape.reports() as usize * 8).chunks(8).enumerate() {
            let mine = task * 512..indices.len().min(task * 512 + 512);
            let mut wrong = mine.filter(|&at| resolved(indices[at]).is_none());
            let first = wrong.next();
            let count = first.map_or(0, |_| 1 + wrong.count() as i32);
            let (at, index) = first.map_or((-1, 0), |at| (at as i32, indices[at]));
            let want = [count, at, index as i32, (index >> 32) as i32, 0, 0, 0, 0];
            assert_eq!(report, want, "{arch} {shape:?} {blocks} {mode:?}: report {task}");
        }
    }
}

#[test]
fn indices_become_places() {
    for arch in Arch::ALL {
        for index in [Elem::I32, Elem::I64] {
            for (wrap, onto) in [(false, false), (true, false), (true, true)] {
                for indices in [1, 7, 8, 511, 1030] {
                    let walks = vec![[1, 3, 370], [3, 11, 1110]];
                    let shape = Places { index, indices, limit: 37, wrap, stride: 10, walks, onto };
                    let some: Vec<i64> = (0..indices as i64)
                        .map(|i| match i % 101 {
                            5 => -37,
                            50 => 37,
                            51 => -38,
                            52 => i64::from(i32::MIN),
                            i => i % 37,
                        })
                        .collect();
                    all_runs(arch, &shape, &some);
                    all_runs(arch, &Places { walks: Vec::new(), ..shape }, &some);
                }
            }
        }
        // Numbers that are small in their low half alone are no indices.
        let shape = Places {
            index: Elem::I64,
            indices: 4,
            limit: 4,
            wrap: true,
            stride: 3,
            walks: Vec::new(),
            onto: false,
        };
        all_runs(arch, &shape, &[1 << 32, -(1 << 32), i64::MIN, -4]);
    }
}

#[test]
fn places_that_cannot_be_are_refused() {
    let shape = Places {
        index: Elem::I32,
        indices: 4,
        limit: 4,
        wrap: false,
        stride: 1,
        walks: Vec::new(),
        onto: false,
    };
    let refused = |shape: &Places| places(Arch::A2, shape).unwrap_err().rule;
    assert_eq!(refused(&Places { index: Elem::F32, ..shape.clone() }), Rule::Unsupported);
    assert_eq!(refused(&Places { indices: 0, ..shape.clone() }), Rule::Range);
    assert_eq!(refused(&Places { limit: 0, ..shape.clone() }), Rule::Range);
    assert_eq!(refused(&Places { stride: 1 << 30, ..shape.clone() }), Rule::Range);
    assert_eq!(refused(&Places { walks: vec![[1, 4, 1 << 30]], ..shape }), Rule::Range);
}
