//! Flags between a cube core and its vector cores: in the timing model and in the simulator.

use headwater_ascend::kernel::{
    Barrier, Binary, Builder, CrossSet, CrossWait, Elem, Mmad, Over, Pipe, Program, Space, Unit, UnitFlag,
    Value,
};
use headwater_ascend::sim::{self, Arg, Mode};
use headwater_ascend::timing::{Launch, predict};
use headwater_ascend::{Arch, Chip, Rule};

/// Cycles of a product of 128³ and until its results are available, and of an addition of 4096 numbers in
/// f32.
const PRODUCT: f64 = 512.0 + 9.0;
const TAIL: f64 = 14.0;
const ADDITION: f64 = 64.0 + 22.0;
/// Cycles that a flag takes to another core, as the model assumes.
const CROSS: f64 = 200.0;

fn chip() -> &'static Chip {
    Chip::from_name("910b1").unwrap()
}

fn tell(k: &mut Builder, pipe: Pipe, id: i64) {
    k.issue(CrossSet { mode: 2, pipe, id: id.into() });
}

fn hear(k: &mut Builder, pipe: Pipe, id: i64) {
    k.issue(CrossWait { mode: 2, pipe, id: id.into() });
}

/// Rounds of a product, of which the vector cores are notified, and their additions, of which, if `back`, the
/// cube core is notified before its next product.
fn rounds(rounds: u64, additions: u64, back: bool, told: bool) -> Program {
    let mut k = Builder::new("rounds", Arch::A2, Unit::Cube);
    let a = k.buffer("a", Space::L0a, Elem::F16, 128 * 128, None);
    let b = k.buffer("b", Space::L0b, Elem::F16, 128 * 128, None);
    let c = k.buffer("c", Space::L0c, Elem::F32, 128 * 128, None);
    k.for_each("i", 0, rounds, 1, |k, _| {
        k.issue(Mmad {
            c: c.at(0),
            a: a.at(0),
            b: b.at(0),
            bias: None,
            m: 128.into(),
            n: 128.into(),
            k: 128.into(),
            init: 1.into(),
            unit_flag: UnitFlag::Off,
            hf32: false,
        });
        if told {
            tell(k, Pipe::M, 0);
        }
        if back {
            hear(k, Pipe::M, 1);
        }
    });
    k.part(Unit::Vector);
    let x = k.ub_phase("x", Elem::F32, 4096, 0);
    let y = k.ub_phase("y", Elem::F32, 4096, 256);
    k.for_each("j", 0, rounds, 1, |k, _| {
        hear(k, Pipe::V, 0);
        for _ in 0..additions {
            k.binary(Binary::Add, y.at(0), x.at(0), y.at(0), Over::count(4096));
            k.barrier(Barrier::V);
        }
        if back {
            tell(k, Pipe::V, 1);
        }
    });
    k.finish().unwrap()
}

/// Cycles of a round among many.
fn period(additions: u64, back: bool) -> f64 {
    let cycles = |n: u64| {
        let launch = Launch { blocks: 24, args: Vec::new() };
        let timing = predict(&rounds(n, additions, back, true), chip(), &launch, &mut |_| None).unwrap();
        timing.task * 1850.0
    };
    (cycles(60) - cycles(20)) / 40.0
}

/// Cores of both kinds work at the same time: the slower one sets the pace, unless each waits for the other.
#[test]
fn rounds_overlap_unless_both_wait() {
    // The additions' own cost; barriers and flags take a cycle or two each.
    let near = |what: &str, got: f64, want: f64| {
        assert!((got - want).abs() <= 0.03 * want, "{what}: {got} cycles a round, expected {want}");
    };
    near("the product is longer", period(4, false), PRODUCT + 1.0);
    near("additions are longer", period(10, false), 10.0 * ADDITION);
    near("each waits for the other", period(10, true), PRODUCT + TAIL + 10.0 * ADDITION + 2.0 * CROSS);
}

#[test]
fn flags_that_nobody_sets_are_deadlocks() {
    let program = rounds(3, 1, false, false);
    let launch = Launch { blocks: 2, args: Vec::new() };
    let found = predict(&program, chip(), &launch, &mut |_| None).unwrap_err();
    assert_eq!(found.rule, Rule::Deadlock);
}

/// A cube core that leaves flags, or sets too many.
#[test]
fn surplus_flags_are_found() {
    let program = |sets: u64, waits: u64| {
        let mut k = Builder::new("surplus", Arch::A2, Unit::Cube);
        k.for_each("i", 0, sets, 1, |k, _| tell(k, Pipe::Fix, 3));
        k.part(Unit::Vector);
        k.for_each("j", 0, waits, 1, |k, _| hear(k, Pipe::Mte2, 3));
        k.finish().unwrap()
    };
    let run = |program: &Program| {
        let args: [Arg; 0] = [];
        sim::launch(&sim::Launch::new(program, chip(), 2, &args, Mode::Checked { seed: 0 }), &mut [])
    };
    run(&program(5, 5)).unwrap();
    for (sets, waits, rule) in [(5, 4, Rule::Flag), (16, 0, Rule::Flag), (4, 5, Rule::Deadlock)] {
        assert_eq!(run(&program(sets, waits)).unwrap_err()[0].rule, rule, "{sets} sets, {waits} waits");
    }
}

/// A flag's counter belongs to the group: other blocks' flags do not count.
#[test]
fn groups_wait_for_their_own() {
    let mut k = Builder::new("groups", Arch::A2, Unit::Cube);
    let first = headwater_ascend::kernel::Scalar::BLOCK.eq(0);
    k.if_(first, |k| {
        tell(k, Pipe::Fix, 0);
        tell(k, Pipe::Fix, 0);
    });
    k.part(Unit::Vector);
    hear(&mut k, Pipe::Mte2, 0);
    let program = k.finish().unwrap();
    let launch = Launch { blocks: 2, args: Vec::<Value>::new() };
    assert_eq!(predict(&program, chip(), &launch, &mut |_| None).unwrap_err().rule, Rule::Deadlock);
    let args: [Arg; 0] = [];
    let run = sim::launch(&sim::Launch::new(&program, chip(), 2, &args, Mode::Fast), &mut []);
    assert_eq!(run.unwrap_err()[0].rule, Rule::Deadlock);
}
