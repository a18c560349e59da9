//! Attention by cube and vector cores, in the simulator compared with f64, and its flags between cores.

use half::{bf16, f16};
use headwater_ascend::kernel::{Elem, Instr, Program, Stmt, StmtKind, parse, verify};
use headwater_ascend::kernels::{Attention, HeadRows, attention};
use headwater_ascend::sim::{Arg, Launch, Mode, launch};
use headwater_ascend::{Arch, Chip, Finding, Rule};

fn chip() -> &'static Chip {
    Chip::from_name("910b1").unwrap()
}

fn to_bytes(elem: Elem, x: f64) -> Vec<u8> {
    match elem {
        Elem::F16 => f16::from_f64(x).to_le_bytes().to_vec(),
        Elem::BF16 => bf16::from_f64(x).to_le_bytes().to_vec(),
        _ => (x as f32).to_le_bytes().to_vec(),
    }
}

fn number(elem: Elem, memory: &[u8], at: usize) -> f64 {
    match elem {
        Elem::F16 => f16::from_le_bytes([memory[at], memory[at + 1]]).to_f64(),
        Elem::BF16 => bf16::from_le_bytes([memory[at], memory[at + 1]]).to_f64(),
        _ => f64::from(f32::from_le_bytes(memory[at..at + 4].try_into().unwrap())),
    }
}

/// Numbers from -1 to 1, as `elem` has them.
fn data(elem: Elem, len: u64, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bytes = to_bytes(elem, (state >> 33) as f64 / 2f64.powi(30) - 1.0);
        number(elem, &bytes, 0)
    };
    (0..len).map(next).collect()
}

/// Rows of a tensor of `heads` heads: grouped by head, or of each position.
fn rows(heads: u64, len: u64, width: u64, by_position: bool) -> HeadRows {
    let sample = heads * len * width;
    match by_position {
        true => HeadRows { row: heads * width, head: width, sample },
        false => HeadRows { row: width, head: len * width, sample },
    }
}

fn shape(
    elem: Elem,
    heads: [u64; 3],
    [queries, keys]: [u64; 2],
    [width, value]: [u64; 2],
    by_position: bool,
    causal: bool,
) -> Attention {
    let places = [
        rows(heads[0], queries, width, by_position),
        rows(heads[1], keys, width, by_position),
        rows(heads[2], keys, value, by_position),
        rows(heads[0], queries, value, by_position),
    ];
    let numbers = [queries, heads[0] * queries];
    let (lens, widths) = ([queries, keys], [width, value]);
    Attention { elem, samples: 2, heads, lens, widths, places, numbers, scale: 0.75, causal, blocks: 3 }
}

/// Memory with operands back to back, and the arguments.
struct Memory {
    bytes: Vec<u8>,
    args: Vec<Arg>,
    operands: [Vec<f64>; 3],
}

fn memory(x: &Attention, program: &Program) -> Memory {
    let counts = [x.heads[0], x.heads[1], x.heads[2]];
    let sizes = [x.lens[0] * x.widths[0], x.lens[1] * x.widths[0], x.lens[1] * x.widths[1]];
    let operands = [0, 1, 2].map(|i| data(x.elem, x.samples * counts[i] * sizes[i], i as u64 + 1));
    let (mut bytes, mut args) = (Vec::new(), vec![Arg::Pointer(0)]);
    for (i, param) in program.params.iter().skip(1).enumerate() {
        args.push(Arg::Pointer(bytes.len() as u64));
        match operands.get(i) {
            Some(all) => bytes.extend(all.iter().flat_map(|&v| to_bytes(x.elem, v))),
            None => bytes.resize(bytes.len() + param.bytes() as usize, 0x5b),
        }
        bytes.resize(bytes.len().next_multiple_of(512), 0x5b);
    }
    Memory { bytes, args, operands }
}

fn run(program: &Program, before: &Memory, blocks: u32, mode: Mode) -> Result<Vec<u8>, Vec<Finding>> {
    let mut bytes = before.bytes.clone();
    launch(&Launch::new(program, chip(), blocks, &before.args, mode), &mut bytes)?;
    Ok(bytes)
}

/// Bytes of a parameter's memory after a run.
fn part<'a>(program: &Program, from: &Memory, bytes: &'a [u8], param: usize) -> &'a [u8] {
    let Arg::Pointer(start) = from.args[param] else { panic!("no pointer") };
    &bytes[start as usize..][..program.params[param].bytes() as usize]
}

/// Results beside f64, with the same bits in several orders and on several numbers of cores.
///
/// With u = 2⁻²⁴ and `γ(n) = n u / (1 - n u)`, a score is off by `d = (γ(width) + u) · scale · Σ|q k|` at
/// most (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 3.1), and the
/// difference to the maximum, whose own error is the same for the whole row, by u times itself more. `exp` is
/// right to 2 u, each of the factors of later tiles too. Weights are rounded to the operands' type (v, and
/// 2⁻²⁵ below f16's normal numbers, beside a sum of at least 1), sums are f32, results are rounded once more.
fn right(x: &Attention) {
    let program = attention(Arch::A2, x).unwrap_or_else(|f| panic!("{x:?}: {f}"));
    verify(&program).unwrap();
    assert_eq!(parse(&program.to_string()).unwrap(), program);
    let before = memory(x, &program);
    let after =
        run(&program, &before, 1, Mode::Checked { seed: 0 }).unwrap_or_else(|f| panic!("{x:?}: {}", f[0]));
    let results = |bytes: &[u8]| [4, 5, 6].map(|param| part(&program, &before, bytes, param).to_vec());
    for (blocks, mode) in [
        (3, Mode::Checked { seed: 1 }),
        (2, Mode::Checked { seed: 2 }),
        (1, Mode::Fast),
        (2, Mode::Fast),
        (3, Mode::Fast),
    ] {
        let again = run(&program, &before, blocks, mode).unwrap_or_else(|f| panic!("{x:?}: {}", f[0]));
        assert!(results(&again) == results(&after), "{x:?}: {blocks} blocks, {mode:?} give other bits");
    }
    let [out, largest, denominators] = results(&after);
    let unit = f64::exp2(-24.0);
    let gamma = |n: u64| n as f64 * unit / (1.0 - n as f64 * unit);
    let narrow = f64::exp2(if x.elem == Elem::F16 { -11.0 } else { -8.0 });
    let tiles = x.lens[1].div_ceil(512);
    let at = |place: &HeadRows, sample: u64, head: u64, row: u64| {
        (sample * place.sample + head * place.head + row * place.row) as usize
    };
    for sample in 0..x.samples {
        for head in 0..x.heads[0] {
            let shared = |i: usize| head / (x.heads[0] / x.heads[i]);
            for row in 0..x.lens[0] {
                let q = &before.operands[0][at(&x.places[0], sample, head, row)..][..x.widths[0] as usize];
                let seen = if x.causal { x.lens[1].min(row + 1) } else { x.lens[1] };
                let scale = f64::from(x.scale);
                let score = |key: u64, f: &dyn Fn(f64) -> f64| {
                    let k = &before.operands[1][at(&x.places[1], sample, shared(1), key)..];
                    scale * q.iter().zip(k).map(|(a, b)| f(a * b)).sum::<f64>()
                };
                let scores: Vec<f64> = (0..seen).map(|key| score(key, &|x| x)).collect();
                let size = (0..seen).map(|key| score(key, &f64::abs)).fold(0.0, f64::max);
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let off = 2.0 * ((gamma(x.widths[0]) + unit) * size + unit * 2.0 * size)
                    + 2.0 * unit * (1 + tiles) as f64
                    + gamma(seen + 3 * tiles);
                let at_row = (sample * x.numbers[1] + head * x.numbers[0] + row) as usize * 4;
                let pairs = [(&largest, most, off), (&denominators, sum, off * sum)];
                for (i, (bytes, want, bound)) in pairs.into_iter().enumerate() {
                    let got = number(Elem::F32, bytes, at_row);
                    assert!(
                        (got - want).abs() <= bound,
                        "{x:?} number {i} of {sample} {head} {row}: {got}, {want} ± {bound:e}"
                    );
                }
                for column in 0..x.widths[1] as usize {
                    let value =
                        |key: u64| before.operands[2][at(&x.places[2], sample, shared(2), key) + column];
                    let (mut want, mut all, mut tiny) = (0.0, 0.0, 0.0);
                    for (key, w) in (0..).zip(&weights) {
                        let v = value(key);
                        want += w / sum * v;
                        all += w / sum * v.abs();
                        tiny += v.abs();
                    }
                    let tiny = if x.elem == Elem::F16 { tiny / sum * f64::exp2(-25.0) } else { 0.0 };
                    let before_rounding = (3.0 * off + narrow) * 1.01 * all + tiny;
                    let bound = before_rounding + narrow * (want.abs() + before_rounding) + f64::exp2(-25.0);
                    let place = (at(&x.places[3], sample, head, row) + column) * 2;
                    let got = number(x.elem, &out, place);
                    assert!(
                        (got - want).abs() <= bound,
                        "{x:?} {sample} {head} {row} {column}: {got}, {want} ± {bound:e}"
                    );
                }
            }
        }
    }
}

#[test]
fn attention_of_several_tiles_is_right() {
    right(&shape(Elem::F16, [1, 1, 1], [130, 1100], [32, 16], false, false));
    right(&shape(Elem::BF16, [2, 1, 2], [40, 600], [16, 48], true, false));
}

#[test]
fn causal_attention_is_right() {
    right(&shape(Elem::F16, [2, 2, 1], [150, 150], [16, 80], false, true));
    right(&shape(Elem::BF16, [1, 1, 1], [600, 601], [16, 16], true, true));
    right(&shape(Elem::F16, [1, 1, 1], [300, 203], [32, 128], true, true));
}

/// Removes statements.
fn without(program: &Program, goes: &dyn Fn(&Instr) -> bool) -> Program {
    fn retain(body: &mut Vec<Stmt>, goes: &dyn Fn(&Instr) -> bool) {
        body.retain_mut(|stmt| {
            match &mut stmt.kind {
                StmtKind::For { body, .. } | StmtKind::While { body, .. } => retain(body, goes),
                StmtKind::If { then, otherwise, .. } => {
                    retain(then, goes);
                    retain(otherwise, goes);
                }
                StmtKind::Instr(instr) => return !goes(instr),
                StmtKind::Let(..) => {}
            }
            true
        });
    }
    let mut program = program.clone();
    program.parts.iter_mut().for_each(|part| retain(&mut part.body, goes));
    program
}

/// Each flag between cores is needed: without it cores race; without its setting nothing goes on.
#[test]
fn missing_flags_between_cores_are_found() {
    let x = shape(Elem::F16, [1, 1, 1], [130, 1700], [16, 16], false, false);
    let program = attention(Arch::A2, &x).unwrap();
    let before = memory(&x, &program);
    let id = |instr: &Instr| match instr {
        Instr::CrossSet(x) => x.id.constant().and_then(|v| v.int()),
        Instr::CrossWait(x) => x.id.constant().and_then(|v| v.int()),
        _ => None,
    };
    for flag in 0..3 {
        let none = without(&program, &|instr| id(instr) == Some(flag));
        let found: Vec<Rule> = (0..4)
            .filter_map(|seed| run(&none, &before, 2, Mode::Checked { seed }).err())
            .map(|findings| findings[0].rule)
            .collect();
        let races = [Rule::Race, Rule::Uninitialised];
        assert!(found.len() == 4 && found.iter().all(|r| races.contains(r)), "flag {flag}: {found:?}");
        let unset = without(&program, &|i| matches!(i, Instr::CrossSet(_)) && id(i) == Some(flag));
        let found = run(&unset, &before, 2, Mode::Checked { seed: 0 }).unwrap_err();
        let stuck = [Rule::Deadlock, Rule::Flag];
        assert!(stuck.contains(&found[0].rule), "{}", found[0]);
        let unheard = without(&program, &|i| matches!(i, Instr::CrossWait(_)) && id(i) == Some(flag));
        assert!(run(&unheard, &before, 2, Mode::Checked { seed: 0 }).is_err());
    }
}

#[test]
fn what_has_no_kernel_is_refused() {
    let fine = shape(Elem::F16, [2, 1, 1], [64, 600], [64, 64], false, false);
    let rule = |arch, x: &Attention| attention(arch, x).unwrap_err().rule;
    assert_eq!(rule(Arch::P310, &fine), Rule::Unsupported);
    assert_eq!(rule(Arch::A2, &Attention { elem: Elem::F32, ..fine }), Rule::Unsupported);
    for wrong in [
        Attention { widths: [64, 72], ..fine },
        Attention { widths: [256, 64], ..fine },
        Attention { lens: [0, 600], ..fine },
        Attention { lens: [1, 600], ..fine },
        Attention { heads: [2, 0, 1], ..fine },
        Attention { blocks: 0, ..fine },
    ] {
        assert_eq!(rule(Arch::A2, &wrong), Rule::Range, "{wrong:?}");
    }
}
