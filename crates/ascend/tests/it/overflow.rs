//! Integers that leave their type are a finding, unless the instruction is marked.

use headwater_ascend::kernel::{Barrier, Binary, Builder, Elem, Over, Pipe, Program, Ramp, Scaled, Unit};
use headwater_ascend::sim::{Arg, Launch, Mode, launch};
use headwater_ascend::{Arch, Chip, Rule};

enum Step {
    Two(Binary),
    One(Scaled, i64),
}

/// `y = op(x, x)`, or `op(x, s)`, of 64 integers.
fn program(arch: Arch, elem: Elem, step: &Step) -> Program {
    let unit = if arch.split() { Unit::Vector } else { Unit::Whole };
    let mut k = Builder::new("ints", arch, unit);
    let (x, y) = (k.input("x", elem, 64), k.output("y", elem, 64));
    let [near, out] = ["near", "out"].map(|name| k.ub(name, elem, 128));
    k.copy(near.at(0), x.at(0), 64);
    k.flag(Pipe::Mte2, Pipe::V, 0);
    let over = || Over::count(64);
    match *step {
        Step::Two(op) => k.binary(op, out.at(0), near.at(0), near.at(0), over()),
        Step::One(op, by) => k.scaled(op, out.at(0), near.at(0), by, over()),
    }
    k.barrier(Barrier::V);
    k.flag(Pipe::V, Pipe::Mte3, 0);
    k.copy(y.at(0), out.at(0), 64);
    k.finish().unwrap()
}

/// The results, or the rule that was broken.
fn run(arch: Arch, elem: Elem, step: &Step, value: i64, mode: Mode) -> Result<i64, Rule> {
    let program = program(arch, elem, step);
    let chip = Chip::from_name(if arch == Arch::A2 { "910b1" } else { "310p" }).unwrap();
    let (size, args) = (elem.size() as usize, [Arg::Pointer(0), Arg::Pointer(512)]);
    let mut memory: Vec<u8> = (0..64).flat_map(|_| value.to_le_bytes()[..size].to_vec()).collect();
    memory.resize(1024, 0);
    launch(&Launch::new(&program, chip, 1, &args, mode), &mut memory).map_err(|f| f[0].rule)?;
    let mut bytes = if memory[512 + size - 1] >> 7 == 1 { [0xff; 8] } else { [0; 8] };
    bytes[..size].copy_from_slice(&memory[512..512 + size]);
    Ok(i64::from_le_bytes(bytes))
}

#[test]
fn integers_that_leave_their_type_are_found() {
    for arch in Arch::ALL {
        for (elem, half) in [(Elem::I32, 1i64 << 31), (Elem::I16, 1 << 15)] {
            let root = if elem == Elem::I32 { 46341 } else { 182 };
            // The operation, its marked form, a value at which it stays within its type, and one at which it
            // does not.
            for (step, marked, stays, leaves, low) in [
                (Step::Two(Binary::Add), Step::Two(Binary::AddWrapping), half / 2 - 1, half / 2, -half),
                (Step::Two(Binary::Add), Step::Two(Binary::AddWrapping), -half / 2, -half / 2 - 1, half - 2),
                (
                    Step::Two(Binary::Mul),
                    Step::Two(Binary::MulWrapping),
                    root - 1,
                    root,
                    root * root - 2 * half,
                ),
                (Step::One(Scaled::Adds, 1), Step::One(Scaled::AddsWrapping, 1), half - 2, half - 1, -half),
                (Step::One(Scaled::Muls, -1), Step::One(Scaled::MulsWrapping, -1), 1 - half, -half, -half),
            ] {
                for seed in [0, 3] {
                    let checked = Mode::Checked { seed };
                    assert_eq!(run(arch, elem, &step, leaves, checked), Err(Rule::Overflow), "{arch} {elem}");
                    assert!(run(arch, elem, &step, stays, checked).is_ok(), "{arch} {elem}");
                    assert_eq!(run(arch, elem, &marked, leaves, checked), Ok(low), "{arch} {elem}");
                }
                assert_eq!(run(arch, elem, &marked, leaves, Mode::Fast), Ok(low));
            }
        }
    }
}

#[test]
fn marks_are_for_integers() {
    for arch in Arch::ALL {
        let unit = if arch.split() { Unit::Vector } else { Unit::Whole };
        let mut k = Builder::new("marked", arch, unit);
        let x = k.ub("x", Elem::F32, 64);
        k.duplicate(x.at(0), 0.0, Over::count(64));
        k.barrier(Barrier::V);
        k.binary(Binary::AddWrapping, x.at(0), x.at(0), x.at(0), Over::count(64));
        assert_eq!(k.finish().unwrap_err().rule, Rule::Unsupported);
    }
}

/// Constants tell it before anything runs: a scalar beyond its type, a ramp whose end is.
#[test]
fn constants_beyond_their_type_are_refused() {
    for arch in Arch::ALL {
        let unit = if arch.split() { Unit::Vector } else { Unit::Whole };
        let with = |scalar: i64, first: i64| {
            let mut k = Builder::new("constants", arch, unit);
            let x = k.ub("x", Elem::I32, 64);
            k.issue(Ramp { dst: x.at(0), first: first.into(), count: 64.into() });
            k.barrier(Barrier::V);
            k.scaled(Scaled::Maxs, x.at(0), x.at(0), scalar, Over::count(64));
            k.finish()
        };
        let end = i64::from(i32::MAX);
        with(end, end - 63).unwrap();
        with(-end - 1, -end - 1).unwrap();
        assert_eq!(with(end + 1, 0).unwrap_err().rule, Rule::Range);
        assert_eq!(with(-end - 2, 0).unwrap_err().rule, Rule::Range);
        assert_eq!(with(0, end - 62).unwrap_err().rule, Rule::Overflow);
    }
}
