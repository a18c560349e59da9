//! Faults put into correct kernels: each must give a finding or another result, and the kernels themselves
//! neither.

use headwater_ascend::kernel::*;
use headwater_ascend::sim::{Arg, Launch, Mode, launch, launch_in_orders};
use headwater_ascend::{Arch, Chip, Finding, Rule};

/// Numbers from a seed (an LCG; the high bits).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }

    fn one<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }
}

/// Elements of each tensor: tiles for two cores, some cores with more than others.
const TILES: u64 = 5;

/// A kernel of a random chain of vector instructions over tiles, with one or two places for each tile.
fn random_kernel(seed: u64) -> Program {
    let mut r = Random(seed);
    let arch = r.one(&Arch::ALL);
    let elem = r.one(&[Elem::F16, Elem::F32]);
    let lanes = elem.per_repeat();
    let repeats = 1 + r.below(3) as u64;
    let tile = lanes * repeats;
    let slots = 1 + r.below(2) as u64;
    let unit = if arch == Arch::A2 { Unit::Vector } else { Unit::Whole };
    let mut k = Builder::new(&format!("random_{seed}"), arch, unit);
    let [x, y] = ["x", "y"].map(|name| k.input(name, elem, TILES * tile));
    let z = k.output("z", elem, TILES * tile);
    let [a, b, out] = ["a", "b", "out"].map(|name| k.ub(name, elem, slots * tile));
    let temps = ["t0", "t1"].map(|name| k.ub(name, elem, tile));
    let steps = 2 + r.below(5);
    for slot in 0..slots {
        k.set_flag(Pipe::V, Pipe::Mte2, slot);
        k.set_flag(Pipe::Mte3, Pipe::V, slot);
    }
    let round = k.var("round", ScalarType::Int);
    k.set(round, 0);
    k.for_each("i", Scalar::BLOCK, TILES, Scalar::BLOCKS, |k, i| {
        let slot = k.let_("slot", round % slots);
        let at = slot.clone() * tile;
        k.wait_flag(Pipe::V, Pipe::Mte2, slot.clone());
        k.copy(a.at(at.clone()), x.at(i.clone() * tile), tile);
        k.copy(b.at(at.clone()), y.at(i.clone() * tile), tile);
        k.flag(Pipe::Mte2, Pipe::V, slot.clone());
        k.wait_flag(Pipe::Mte3, Pipe::V, slot.clone());
        let mut last = a.at(at.clone());
        for step in 0..steps {
            let to = if step + 1 == steps { out.at(at.clone()) } else { temps[step % 2].at(0) };
            let whole = r.one(&[Over::count(tile), Over::repeats(lanes, repeats)]);
            match r.below(4) {
                0 => {
                    let op = r.one(&[Scaled::Adds, Scaled::Muls]);
                    k.scaled(op, &to, &last, 1.5f32, whole);
                }
                1 => {
                    // A part of each repeat, over what was there before.
                    let part = 8 + r.below(lanes as usize - 16) as u64;
                    k.scaled(Scaled::Adds, &to, &last, 0.25f32, whole);
                    k.barrier(Barrier::V);
                    k.binary(Binary::Add, &to, &to, b.at(at.clone()), Over::repeats(part, repeats));
                }
                _ => {
                    let op = r.one(&[Binary::Add, Binary::Sub, Binary::Mul]);
                    k.binary(op, &to, &last, b.at(at.clone()), whole);
                }
            }
            k.barrier(Barrier::V);
            last = to;
        }
        k.set_flag(Pipe::V, Pipe::Mte2, slot.clone());
        k.flag(Pipe::V, Pipe::Mte3, slot.clone());
        k.copy(z.at(i * tile), out.at(at), tile);
        k.set_flag(Pipe::Mte3, Pipe::V, slot);
        k.set(round, round + 1);
    });
    for slot in 0..slots {
        k.wait_flag(Pipe::V, Pipe::Mte2, slot);
        k.wait_flag(Pipe::Mte3, Pipe::V, slot);
    }
    k.finish().unwrap_or_else(|f| panic!("{f}"))
}

fn chip(arch: Arch) -> &'static Chip {
    Chip::from_name(if arch == Arch::A2 { "910b3" } else { "310p" }).unwrap()
}

/// Runs a kernel over filled tensors that are back to back in memory; returns all of the memory.
fn run(program: &Program, mode: Mode) -> Result<Vec<u8>, Vec<Finding>> {
    let bytes: Vec<u64> = program.params.iter().map(Param::bytes).collect();
    let mut memory = vec![0; bytes.iter().sum::<u64>() as usize];
    let size = match program.params[0].kind {
        ParamKind::Pointer { elem, .. } => elem.size() as usize,
        _ => 4,
    };
    let inputs = (bytes[0] + bytes[1]) as usize;
    for (i, cell) in memory[..inputs].chunks_mut(size).enumerate() {
        let x = ((i * 29) % 61) as f32 / 32.0 + 0.125;
        match size {
            2 => cell.copy_from_slice(&half::f16::from_f32(x).to_le_bytes()),
            _ => cell.copy_from_slice(&x.to_le_bytes()),
        }
    }
    let args: Vec<Arg> = (0..bytes.len()).map(|i| Arg::Pointer(bytes[..i].iter().sum::<u64>())).collect();
    launch(&Launch::new(program, chip(program.arch), 2, &args, mode), &mut memory)?;
    Ok(memory)
}

/// Calls `f` with every statement, in order, and removes those for which it says so.
fn edit(body: &mut Vec<Stmt>, f: &mut dyn FnMut(&mut Stmt) -> bool) {
    body.retain_mut(|stmt| {
        if let StmtKind::For { body, .. } = &mut stmt.kind {
            edit(body, f);
        }
        !f(stmt)
    });
}

/// Changes one of the instructions for which `change` has a change; it says whether the instruction goes.
/// `None` if no instruction has one.
fn mutant(
    program: &Program,
    r: &mut Random,
    mut change: impl FnMut(&Instr) -> Option<Option<Instr>>,
) -> Option<Program> {
    let mut places = 0;
    Program::walk(&program.parts[0].body, &mut |stmt| {
        places += usize::from(matches!(&stmt.kind, StmtKind::Instr(i) if change(i).is_some()));
    });
    if places == 0 {
        return None;
    }
    let (mut at, chosen, mut out) = (0, r.below(places), program.clone());
    edit(&mut out.parts[0].body, &mut |stmt| {
        let StmtKind::Instr(instr) = &stmt.kind else { return false };
        let Some(changed) = change(instr) else { return false };
        at += 1;
        match changed {
            _ if at - 1 != chosen => false,
            None => true,
            Some(new) => {
                stmt.kind = StmtKind::Instr(new);
                false
            }
        }
    });
    Some(out)
}

/// A set and a wait of one flag, both gone. Flags of all slots are one here.
fn without_pair(program: &Program, from: Pipe, to: Pipe) -> Program {
    let mut out = program.clone();
    edit(&mut out.parts[0].body, &mut |stmt| match &stmt.kind {
        StmtKind::Instr(Instr::SetFlag(x)) => (x.from, x.to) == (from, to),
        StmtKind::Instr(Instr::WaitFlag(x)) => (x.from, x.to) == (from, to),
        _ => false,
    });
    out
}

fn shifted(view: &View, by: i64) -> View {
    view.add(by)
}

/// The faults, by name.
fn mutants(program: &Program, seed: u64) -> Vec<(&'static str, Program)> {
    let mut r = Random(seed ^ 0x5eed);
    let mut out = Vec::new();
    let mut put = |name, program: Option<Program>| out.extend(program.map(|p| (name, p)));
    put(
        "half of a flag removed",
        mutant(program, &mut r, |i| match i {
            Instr::SetFlag(_) | Instr::WaitFlag(_) => Some(None),
            _ => None,
        }),
    );
    let pairs = [(Pipe::Mte2, Pipe::V), (Pipe::V, Pipe::Mte3), (Pipe::V, Pipe::Mte2), (Pipe::Mte3, Pipe::V)];
    let (from, to) = r.one(&pairs);
    put("a flag removed", Some(without_pair(program, from, to)));
    put(
        "a flag swapped",
        mutant(program, &mut r, |i| match i {
            Instr::SetFlag(x) => Some(Some(SetFlag { from: x.to, to: x.from, id: x.id.clone() }.into())),
            Instr::WaitFlag(x) => Some(Some(WaitFlag { from: x.to, to: x.from, id: x.id.clone() }.into())),
            _ => None,
        }),
    );
    put(
        "a flag of another number",
        mutant(program, &mut r, |i| match i {
            Instr::SetFlag(x) => Some(Some(SetFlag { id: x.id.clone() + 2, ..x.clone() }.into())),
            Instr::WaitFlag(x) => Some(Some(WaitFlag { id: x.id.clone() + 2, ..x.clone() }.into())),
            _ => None,
        }),
    );
    put(
        "an address shifted by 32 bytes",
        mutant(program, &mut r, |i| match i {
            Instr::BinaryOp(x) => {
                let mut x = x.clone();
                x.src1.view = shifted(&x.src1.view, x.src1.view.elem.per_block() as i64);
                Some(Some(x.into()))
            }
            Instr::ScaledOp(x) => {
                let mut x = x.clone();
                x.dst.view = shifted(&x.dst.view, x.dst.view.elem.per_block() as i64);
                Some(Some(x.into()))
            }
            Instr::DataCopy(x) if matches!(x.dst.base, Base::Buffer(_)) => {
                let dst = shifted(&x.dst, x.dst.elem.per_block() as i64);
                Some(Some(DataCopy { dst, ..x.clone() }.into()))
            }
            _ => None,
        }),
    );
    put(
        "a short copy",
        mutant(program, &mut r, |i| match i {
            Instr::DataCopy(x) => Some(Some(DataCopy { len: x.len.clone() - 1, ..x.clone() }.into())),
            _ => None,
        }),
    );
    put(
        "a barrier removed",
        mutant(program, &mut r, |i| match i {
            Instr::Barrier(Barrier::V) => Some(None),
            _ => None,
        }),
    );
    put(
        "an atomic write",
        mutant(program, &mut r, |i| match i {
            Instr::DataCopy(x) if matches!(x.dst.base, Base::Param(_)) => {
                Some(Some(DataCopy { atomic: Some(AtomicOp::Add), ..x.clone() }.into()))
            }
            _ => None,
        }),
    );
    put(
        "a wrong mask",
        mutant(program, &mut r, |i| {
            let fewer = |over: &Over| match over {
                Over::Count(n) => Over::Count(n.clone() - 3),
                Over::Repeats { mask: Mask::First(n), repeat } => {
                    Over::Repeats { mask: Mask::First(n.clone() - 3), repeat: repeat.clone() }
                }
                over => over.clone(),
            };
            match i {
                Instr::BinaryOp(x) => Some(Some(BinaryOp { over: fewer(&x.over), ..x.clone() }.into())),
                Instr::ScaledOp(x) => Some(Some(ScaledOp { over: fewer(&x.over), ..x.clone() }.into())),
                _ => None,
            }
        }),
    );
    put(
        "a repeat left out",
        mutant(program, &mut r, |i| match i {
            Instr::BinaryOp(x) => match &x.over {
                Over::Repeats { mask, repeat } => {
                    let over = Over::Repeats { mask: mask.clone(), repeat: repeat.clone() - 1 };
                    Some(Some(BinaryOp { over, ..x.clone() }.into()))
                }
                Over::Count(_) => None,
            },
            _ => None,
        }),
    );
    out
}

#[test]
fn faults_in_random_kernels_are_found() {
    let (mut faults, mut missed) = (0, Vec::new());
    for seed in 1..=200 {
        let program = random_kernel(seed);
        let good = run(&program, Mode::Fast).unwrap_or_else(|f| panic!("{}", f[0]));
        for mode in [Mode::Checked { seed: 0 }, Mode::Checked { seed: seed + 7 }] {
            let again =
                run(&program, mode).unwrap_or_else(|f| panic!("seed {seed}, {mode:?}: {}\n{program}", f[0]));
            assert!(again == good, "seed {seed}, {mode:?}");
        }
        for (name, program) in mutants(&program, seed) {
            faults += 1;
            if run(&program, Mode::Checked { seed: 0 }).is_ok_and(|bytes| bytes == good) {
                missed.push(format!("{name} in kernel {seed}"));
            }
        }
    }
    println!("{} of {faults} faults have no effect: {missed:?}", missed.len());
    assert!(faults > 1500, "{faults}");
    assert!(missed.len() * 20 <= faults, "{missed:?}");
}

/// All cores add numbers of different sizes to the same cells.
fn crowd(elem: Elem) -> Program {
    let mut k = Builder::new("crowd", Arch::A2, Unit::Vector);
    let x = k.input("x", elem, 8 * 64);
    let z = k.pointer("z", Access::InOut, elem, 64);
    let a = k.ub("a", elem, 64);
    k.copy(a.at(0), x.at(Scalar::BLOCK * 64), 64);
    k.flag(Pipe::Mte2, Pipe::Mte3, 0);
    k.copy_atomic(z.at(0), a.at(0), 64, AtomicOp::Add);
    k.finish().unwrap_or_else(|f| panic!("{f}"))
}

#[test]
fn sums_that_depend_on_the_order_of_cores_are_seen() {
    let run = |elem: Elem, fill: fn(usize) -> [u8; 4]| {
        let program = crowd(elem);
        let mut memory: Vec<u8> =
            (0..9 * 64).flat_map(|i| if i < 8 * 64 { fill(i) } else { [0; 4] }).collect();
        let args = [Arg::Pointer(0), Arg::Pointer(8 * 64 * 4)];
        let chip = Chip::from_name("910b1").unwrap();
        launch_in_orders(&Launch::new(&program, chip, 8, &args, Mode::Checked { seed: 0 }), &mut memory, 4)
    };
    let findings = run(Elem::F32, |i| (10f32.powi(i as i32 / 64) / 3.0).to_le_bytes()).unwrap_err();
    assert_eq!(findings[0].rule, Rule::Order, "{}", findings[0]);
    assert_eq!(findings[0].buffer, "z");
    run(Elem::F32, |i| (i as f32).to_le_bytes())
        .unwrap_or_else(|f| panic!("small integers are exact: {}", f[0]));
    run(Elem::I32, |i| (i as i32 * 77_777).to_le_bytes()).unwrap_or_else(|f| panic!("{}", f[0]));
}

#[test]
fn cores_that_share_bytes_without_order_race() {
    let mut program = crowd(Elem::F32);
    edit(&mut program.parts[0].body, &mut |stmt| {
        if let StmtKind::Instr(Instr::DataCopy(x)) = &mut stmt.kind {
            x.atomic = None;
        }
        false
    });
    let mut memory = vec![0; 9 * 64 * 4];
    let args = [Arg::Pointer(0), Arg::Pointer(8 * 64 * 4)];
    let chip = Chip::from_name("910b1").unwrap();
    let one = Launch::new(&program, chip, 1, &args, Mode::Checked { seed: 0 });
    launch(&one, &mut memory).unwrap_or_else(|f| panic!("one core has nobody to race with: {}", f[0]));
    let findings = launch(&Launch { blocks: 8, ..one }, &mut memory).unwrap_err();
    assert_eq!(findings[0].rule, Rule::Race, "{}", findings[0]);
}

/// Each core writes a block, all meet, each reads its neighbour's.
fn neighbours(barrier: bool) -> Program {
    let mut k = Builder::new("neighbours", Arch::A2, Unit::Vector);
    let x = k.input("x", Elem::F32, 64 * 8);
    let w = k.workspace("w", Elem::F32, 64 * 8);
    let z = k.output("z", Elem::F32, 64 * 8);
    let a = k.ub("a", Elem::F32, 8);
    k.copy(a.at(0), x.at(Scalar::BLOCK * 8), 8);
    k.flag(Pipe::Mte2, Pipe::Mte3, 0);
    k.copy(w.at(Scalar::BLOCK * 8), a.at(0), 8);
    k.flag(Pipe::Mte3, Pipe::Mte2, 0);
    if barrier {
        k.barrier(Barrier::Cores);
    }
    k.copy(a.at(0), w.at((Scalar::BLOCK + 1) % Scalar::BLOCKS * 8), 8);
    k.flag(Pipe::Mte2, Pipe::Mte3, 0);
    k.copy(z.at(Scalar::BLOCK * 8), a.at(0), 8);
    k.finish().unwrap_or_else(|f| panic!("{f}"))
}

#[test]
fn cores_meet_and_do_not_when_there_are_more_than_the_chip_has() {
    let bytes = 64 * 8 * 4;
    let args = [0, bytes, 2 * bytes].map(Arg::Pointer);
    let chip = Chip::from_name("910b3").unwrap();
    let go = |program: &Program, blocks, seed| {
        let mut memory: Vec<u8> = (0..3 * bytes).map(|i| (i % 251) as u8).collect();
        launch(&Launch::new(program, chip, blocks, &args, Mode::Checked { seed }), &mut memory)
            .map(|_| memory)
    };
    let program = neighbours(true);
    for seed in [0, 3] {
        let memory = go(&program, 40, seed).unwrap_or_else(|f| panic!("{}", f[0]));
        let (x, z) = (&memory[..bytes as usize], &memory[2 * bytes as usize..]);
        for block in 0..40 {
            let next = (block + 1) % 40;
            assert_eq!(z[block * 32..][..32], x[next * 32..][..32], "block {block}");
        }
    }
    let findings = go(&program, 41, 0).unwrap_err();
    assert_eq!(findings[0].rule, Rule::Deadlock, "41 blocks on 40 cores: {}", findings[0]);
    let findings = go(&neighbours(false), 40, 0).unwrap_err();
    assert!(matches!(findings[0].rule, Rule::Race | Rule::Uninitialised), "{}", findings[0]);
}

#[test]
fn an_endless_loop_ends() {
    let mut k = Builder::new("endless", Arch::P310, Unit::Whole);
    let n = k.int_param("n");
    let i = k.var("i", ScalarType::Int);
    k.set(i, 0);
    k.while_(n.lt(1), |k| k.set(i, i + 1));
    let program = k.finish().unwrap_or_else(|f| panic!("{f}"));
    let chip = Chip::from_name("310p").unwrap();
    let args = [Arg::Int(0)];
    let mut one = Launch::new(&program, chip, 1, &args, Mode::Fast);
    one.fuel = 10_000;
    assert_eq!(launch(&one, &mut []).unwrap_err()[0].rule, Rule::Endless);
}
