//! `add`, from builder to text, back, and through the simulator on both chips.

use half::f16;
use headwater_ascend::kernel::{Elem, Instr, Pipe, Program, StmtKind, parse};
use headwater_ascend::kernels::add;
use headwater_ascend::sim::{Arg, Bytes, Launch, Mode, Region, launch, launch_verified};
use headwater_ascend::{Arch, Chip, Finding, Rule};

const LEN: usize = 100_003;

/// Elements with padding after them for copies of whole blocks.
const STRIDE: usize = (LEN + 16) * 2 / 32 * 32;

fn chip(arch: Arch) -> &'static Chip {
    Chip::from_name(if arch == Arch::A2 { "910b1" } else { "310p" }).unwrap()
}

fn value(i: usize, seed: usize) -> f16 {
    f16::from_f32(((i * 37 + seed * 101) % 2039) as f32 / 16.0 - 60.0)
}

/// Runs the kernel over two filled tensors; the sum's bytes.
fn run(program: &Program, blocks: u32, mode: Mode) -> Result<Vec<u8>, Vec<Finding>> {
    let mut memory = vec![0; 3 * STRIDE];
    for (seed, x) in memory.chunks_mut(STRIDE).take(2).enumerate() {
        for (i, b) in x[..2 * LEN].chunks_mut(2).enumerate() {
            b.copy_from_slice(&value(i, seed).to_le_bytes());
        }
    }
    let args = [0, STRIDE, 2 * STRIDE].map(|at| Arg::Pointer(at as u64));
    launch(&Launch::new(program, chip(program.arch), blocks, &args, mode), &mut memory)?;
    Ok(memory[2 * STRIDE..][..2 * LEN].to_vec())
}

fn wanted() -> Vec<u8> {
    (0..LEN).flat_map(|i| (value(i, 0) + value(i, 1)).to_le_bytes()).collect()
}

/// The program without its `n`-th instruction that `pick` picks.
fn without(program: &Program, n: usize, pick: impl Fn(&Instr) -> bool) -> Program {
    fn strip(body: &mut Vec<headwater_ascend::kernel::Stmt>, n: &mut i64, pick: &dyn Fn(&Instr) -> bool) {
        body.retain_mut(|stmt| {
            match &mut stmt.kind {
                StmtKind::Instr(instr) if pick(instr) => {
                    *n -= 1;
                    return *n != -1;
                }
                StmtKind::For { body, .. } => strip(body, n, pick),
                _ => {}
            }
            true
        });
    }
    let mut out = program.clone();
    let mut n = n as i64;
    strip(&mut out.parts[0].body, &mut n, &pick);
    assert!(n < 0, "there are so many");
    out
}

#[test]
fn text_is_exact() {
    for arch in Arch::ALL {
        let program = add(arch, Elem::F16, LEN as u64, 4096).unwrap();
        let text = program.to_string();
        let again = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(again, program, "{text}");
        assert_eq!(again.to_string(), text);
    }
}

#[test]
fn sums_are_right_for_any_number_of_cores_and_order() {
    for arch in Arch::ALL {
        let program = parse(&add(arch, Elem::F16, LEN as u64, 4096).unwrap().to_string()).unwrap();
        for blocks in [1, 3, 8] {
            for mode in [Mode::Fast, Mode::Checked { seed: 0 }, Mode::Checked { seed: 5 }] {
                let out = run(&program, blocks, mode).unwrap_or_else(|f| panic!("{arch} {mode:?}: {}", f[0]));
                assert_eq!(out, wanted(), "{arch} {blocks} {mode:?}");
            }
        }
    }
}

#[test]
fn a_removed_flag_is_found() {
    for arch in Arch::ALL {
        let program = add(arch, Elem::F16, LEN as u64, 4096).unwrap();
        // Set and wait of "a tile is read": without them the sum may read what has not come yet.
        let read = |from, to| {
            move |instr: &Instr| match instr {
                Instr::SetFlag(x) => (x.from, x.to) == (from, to),
                Instr::WaitFlag(x) => (x.from, x.to) == (from, to),
                _ => false,
            }
        };
        let once = without(&program, 0, read(Pipe::Mte2, Pipe::V));
        let findings = run(&once, 2, Mode::Checked { seed: 0 }).unwrap_err();
        assert_eq!(findings[0].rule, Rule::Flag, "a wait without its set: {}", findings[0]);

        let both = without(&once, 0, read(Pipe::Mte2, Pipe::V));
        let findings = run(&both, 2, Mode::Checked { seed: 0 }).unwrap_err();
        assert_eq!(findings[0].rule, Rule::Hazard, "{}", findings[0]);
        let text = findings[0].to_string();
        assert!(text.contains("a flag from mte2 to v") && text.contains("add dst=c:f16"), "{text}");
    }
}

#[test]
fn threads_and_pieces_of_memory_change_no_bit() {
    for arch in Arch::ALL {
        let program = add(arch, Elem::F16, LEN as u64, 4096).unwrap();
        let read = |seed| {
            let mut x: Vec<u8> = (0..LEN).flat_map(|i| value(i, seed).to_le_bytes()).collect();
            x.resize(STRIDE, 0);
            x
        };
        let (x, y) = (read(0), read(1));
        let starts = [3 << 20, 1 << 20, 7 << 20];
        let args = starts.map(Arg::Pointer);
        for threads in [1, 2, 3, 64] {
            let mut z = vec![0; STRIDE];
            let bytes = [Bytes::Read(&x), Bytes::Read(&y), Bytes::Write(&mut z)];
            let regions = starts.iter().zip(bytes).map(|(&start, bytes)| Region { start, bytes }).collect();
            let run = Launch::new(&program, chip(arch), 7, &args, Mode::Fast);
            launch_verified(&run, regions, threads).unwrap();
            assert_eq!(z[..2 * LEN], wanted(), "{arch}, {threads} threads");
        }
    }
}

#[test]
fn memory_lent_for_reading_is_not_written() {
    let program = add(Arch::A2, Elem::F16, 64, 64).unwrap();
    let memory = vec![0; 3 * 512];
    let args = [0, 512, 1024].map(Arg::Pointer);
    let run = Launch::new(&program, chip(Arch::A2), 1, &args, Mode::Fast);
    let lent = vec![Region { start: 0, bytes: Bytes::Read(&memory) }];
    let found = launch_verified(&run, lent, 1).unwrap_err();
    assert_eq!(found[0].rule, Rule::Memory, "{}", found[0]);
}
