//! Uniform random numbers of a counter, bit by bit those of `headwater_core::random`: Philox4x32-10 (Salmon, Moraes,
//! Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//!
//! A lane computes a block of four words. The vector unit multiplies to the low 32 bits alone: upper words come from
//! halves of 16 bits. Sums and products of i32 keep their low words, as the simulator has them; no page states it.

use super::copies::{read, write};
use super::refusal;
use crate::chip::Arch;
use crate::kernel::finding::{Result, Rule};
use crate::kernel::{
    Barrier, Binary, BinaryOp, Buf, Builder, CacheFlush, Elem, Gather, Mask, Over, Pipe, Program, Ramp,
    Round, Scalar, ScalarBinary, Scaled, Unit, Vector, View,
};
use headwater_core::random::WORDS;

/// Numbers of a task; the last has what is left beside.
const NUMBERS: u64 = 2048;
/// Lanes of a task at most.
const LANES: u64 = 2 * NUMBERS / 4;
/// Multipliers of the first and the third word, and what the key's words grow by each round.
const FACTORS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const GROWTH: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
/// Bits of words: the lower and the upper half, all but the lowest byte, all but the highest.
const MASKS: [(&str, i64); 4] =
    [("low_half", 0xffff), ("high_half", -0x1_0000), ("high_24", -0x100), ("low_24", 0xff_ffff)];

/// `out[i] = ⌊word / 2⁸⌋ / 2²⁴` of the words `4 · first + i` of a stream, for i below n.
///
/// Parameters: `key` \[2\] i64 (seed, step), `out` \[n\] f32, the integers `stream`, of 32 bits, and `first`, a block. On 310P
/// the key has a slack of two elements.
///
/// # Errors
/// `Range` for no numbers, or more than a stream has.
pub fn philox_uniform(arch: Arch, numbers: u64) -> Result<Program> {
    let name = "philox_uniform";
    if !(1..=WORDS).contains(&numbers) {
        let message = format!("there are {numbers} numbers, outside 1 to {WORDS}");
        return Err(refusal(name, name, Rule::Range, message));
    }
    let unit = if arch.split() { Unit::Vector } else { Unit::Whole };
    let mut k = Builder::new(name, arch, unit);
    k.doc(format!("out[i] = uniform number 4 first + i of a stream of Philox4x32-10: {numbers} numbers"));
    let key = k.input("key", Elem::I64, 2);
    let out = k.output("out", Elem::F32, numbers);
    let (stream, first) = (k.int_param("stream"), k.int_param("first"));
    if arch == Arch::P310 {
        k.slack(key, 2);
    }
    let key_words = k.ub("key_words", Elem::I32, 8);
    let words = k.ub("words", Elem::I32, 4 * LANES);
    let result = k.ub("result", Elem::F32, 4 * LANES);
    let order = k.ub("order", Elem::I32, 4 * LANES);
    let [upper_a, upper_b, p, q, r, s, grown_a, grown_b] =
        ["upper_a", "upper_b", "p", "q", "r", "s", "grown_a", "grown_b"].map(|n| k.ub(n, Elem::I32, LANES));
    // 310P copies whole blocks: the last numbers again, as a block of their own; fewer than a block one by one.
    let block = Elem::F32.per_block();
    let ragged = arch == Arch::P310 && !numbers.is_multiple_of(block);
    let last =
        (ragged && numbers >= block).then(|| [k.ub("last", Elem::F32, 64), k.ub("places", Elem::F32, 64)]);
    let singly = ragged && numbers < block;

    let masks = (arch == Arch::P310).then(|| {
        MASKS.map(|(name, bits)| {
            let mask = k.ub(name, Elem::I32, Elem::I32.per_repeat());
            k.duplicate(mask.at(0), bits, Over::count(Elem::I32.per_repeat()));
            mask
        })
    });
    interleaved(&mut k, order, p, q);
    if let Some([_, places]) = last {
        ramp(&mut k, places.cast(Elem::I32), 64, 4);
    }
    read(&mut k, key_words.cast(Elem::I64).at(0), key.at(0), &2.into());
    k.flag(Pipe::Mte2, Pipe::S, 0);
    let [seed_low, seed_high, step_low, step_high] = [0, 1, 2, 3]
        .map(|i| k.load(["seed_low", "seed_high", "step_low", "step_high"][i], key_words.at(i as u64)));
    // The result's room may be overwritten.
    k.set_flag(Pipe::Mte3, Pipe::V, 0);
    let tasks = (numbers / NUMBERS).max(1);
    k.for_each("task", Scalar::BLOCK, tasks, Scalar::BLOCKS, |k, task| {
        let start = k.let_("start", task.clone() * NUMBERS);
        let is_last = k.let_("is_last", task.eq(tasks - 1));
        let rest = numbers - (tasks - 1) * NUMBERS;
        let len = k.let_("len", is_last.clone() * rest + (Scalar::from(1) - is_last.clone()) * NUMBERS);
        let lanes = k.let_("lanes", len.clone().div_ceil(256) * 64u64);
        let v = Lanes { lanes: lanes.clone(), temporary: [p, q, r, s], masks };
        let word = |i: u64| words.at(i * LANES);
        // Counter: block, stream, step.
        let begin = k.let_("begin", first.clone() + start.clone() / 4u64);
        let begin = k.let_("begin_word", signed(&begin));
        k.issue(Ramp { dst: word(0), first: 0.into(), count: lanes.clone() });
        k.barrier(Barrier::V);
        v.scaled(k, Scaled::Adds, word(0), word(0), begin);
        for (i, value) in [(1, signed(&stream)), (2, step_low.clone()), (3, step_high.clone())] {
            k.duplicate(word(i), value, Over::Count(lanes.clone()));
        }
        k.duplicate(grown_a.at(0), seed_low.clone(), Over::Count(lanes.clone()));
        k.duplicate(grown_b.at(0), seed_high.clone(), Over::Count(lanes.clone()));
        k.barrier(Barrier::V);
        k.for_each("round", 0, 10, 1, |k, _| {
            let halves = [(2, 1, upper_b, FACTORS[1]), (0, 3, upper_a, FACTORS[0])];
            for (from, with, upper, factor) in halves {
                v.upper(k, upper.at(0), word(from), factor);
                v.xor(k, upper.at(0), upper.at(0), word(with));
                v.scaled(k, Scaled::Muls, word(with), word(from), i64::from(factor as i32));
            }
            for (to, upper, grown, growth) in
                [(0, upper_b, grown_a, GROWTH[0]), (2, upper_a, grown_b, GROWTH[1])]
            {
                v.xor(k, word(to), upper.at(0), grown.at(0));
                v.scaled(k, Scaled::Adds, grown.at(0), grown.at(0), i64::from(growth as i32));
            }
        });
        for i in 0..4 {
            v.shift_right(k, word(i), word(i), 8);
            k.cast(words.cast(Elem::F32).at(i * LANES), word(i), Round::None, Over::Count(lanes.clone()));
            k.barrier(Barrier::V);
            let float = words.cast(Elem::F32).at(i * LANES);
            v.scaled(k, Scaled::Muls, float.clone(), float, 1.0 / (1u32 << 24) as f32);
        }
        k.wait_flag(Pipe::Mte3, Pipe::V, 0);
        k.issue(Gather {
            dst: result.at(0),
            src: words.cast(Elem::F32).at(0),
            offsets: order.cast(Elem::U32).at(0),
            base: 0.into(),
            count: lanes * 4u64,
        });
        if let Some([last, places]) = last {
            k.barrier(Barrier::V);
            k.issue(Gather {
                dst: last.at(0),
                src: result.at(0),
                offsets: places.cast(Elem::U32).at(0),
                base: (len.clone() - block) * 4u64,
                count: block.into(),
            });
        }
        if singly {
            k.flag(Pipe::V, Pipe::S, 0);
            k.for_each("i", 0, numbers, 1, |k, i| {
                let value = k.load("number", result.at(&i));
                k.store(out.at(&i), value);
                k.issue(CacheFlush { line: out.at(i) });
            });
        }
        k.flag(Pipe::V, Pipe::Mte3, 0);
        if !singly {
            let whole = if ragged { len / block * block } else { len };
            write(k, out.at(start), result.at(0), &whole);
        }
        if let Some([last, _]) = last {
            k.if_(is_last, |k| {
                k.barrier(Barrier::Mte3);
                write(k, out.at(numbers - block), last.at(0), &block.into());
            });
        }
        k.set_flag(Pipe::Mte3, Pipe::V, 0);
    });
    k.wait_flag(Pipe::Mte3, Pipe::V, 0);
    k.finish()
}

/// Blocks that [`philox_uniform`] has work for.
pub fn uniform_blocks(numbers: u64) -> u32 {
    (numbers / NUMBERS).clamp(1, u32::MAX.into()) as u32
}

/// The low 32 bits of a number of 32 bits as a signed one.
fn signed(x: &Scalar) -> Scalar {
    let top = x.clone().binary(ScalarBinary::Shr, 31).binary(ScalarBinary::And, 1);
    x.clone() - top * (1i64 << 32)
}

/// `out[i] = i · step`
fn ramp(k: &mut Builder, out: Buf, count: u64, step: i64) {
    k.issue(Ramp { dst: out.at(0), first: 0.into(), count: count.into() });
    k.barrier(Barrier::V);
    k.scaled(Scaled::Muls, out.at(0), out.at(0), step, Over::count(count));
    k.barrier(Barrier::V);
}

/// Offsets in bytes of numbers in order: word `i % 4` of lane `i / 4`. Words of a kind lie together.
fn interleaved(k: &mut Builder, order: Buf, p: Buf, q: Buf) {
    for part in 0..4 {
        let over = || Over::count(LANES);
        let to = order.at(part * LANES);
        k.issue(Ramp { dst: p.at(0), first: (part * LANES).into(), count: LANES.into() });
        k.barrier(Barrier::V);
        // A quarter of each, rounded down.
        let quarter = q.cast(Elem::F32).at(0);
        k.cast(quarter.clone(), p.at(0), Round::None, over());
        k.barrier(Barrier::V);
        k.scaled(Scaled::Muls, quarter.clone(), quarter.clone(), 0.25, over());
        k.barrier(Barrier::V);
        k.cast(q.at(0), quarter, Round::Floor, over());
        k.barrier(Barrier::V);
        // 4 · (i % 4) · lanes + 4 · (i / 4), with i % 4 = i − 4 (i / 4).
        k.scaled(Scaled::Muls, p.at(0), p.at(0), 4 * LANES as i64, over());
        k.scaled(Scaled::Muls, q.at(0), q.at(0), 4 - 16 * LANES as i64, over());
        k.barrier(Barrier::V);
        k.binary(Binary::Add, to, p.at(0), q.at(0), over());
        k.barrier(Barrier::V);
    }
}

/// Arithmetic on unsigned words, lane by lane; each instruction is done before the next starts.
struct Lanes {
    lanes: Scalar,
    temporary: [Buf; 4],
    /// [`MASKS`] for a repeat each, on chips without shifts.
    masks: Option<[Buf; 4]>,
}

impl Lanes {
    fn over(&self) -> Over {
        Over::Count(self.lanes.clone())
    }

    fn scaled(&self, k: &mut Builder, op: Scaled, dst: View, src: View, by: impl Into<Scalar>) {
        k.scaled(op, dst, src, by, self.over());
        k.barrier(Barrier::V);
    }

    fn binary(&self, k: &mut Builder, op: Binary, dst: View, a: View, b: View) {
        k.binary(op, dst, a, b, self.over());
        k.barrier(Barrier::V);
    }

    /// `dst = src >> by` for 8 or 16, with zeros from above. 310P has no shifts: without its lower bits a word is exact in
    /// f32, and so is its quotient, whose sign goes with the upper bits.
    fn shift_right(&self, k: &mut Builder, dst: View, src: View, by: u32) {
        let Some([low_half, high_half, high_24, low_24]) = self.masks else {
            let unsigned = |x: View| View { elem: Elem::U32, ..x };
            return self.scaled(k, Scaled::ShiftRight, unsigned(dst), unsigned(src), i64::from(by));
        };
        let [upper, lower] = if by == 16 { [high_half, low_half] } else { [high_24, low_24] };
        let float = View { elem: Elem::F32, ..dst.clone() };
        self.masked(k, dst.clone(), src, upper);
        k.cast(float.clone(), dst.clone(), Round::None, self.over());
        k.barrier(Barrier::V);
        self.scaled(k, Scaled::Muls, float.clone(), float.clone(), 1.0 / (1u32 << by) as f32);
        k.cast(dst.clone(), float, Round::Rint, self.over());
        k.barrier(Barrier::V);
        self.masked(k, dst.clone(), dst, lower);
    }

    /// `dst = src % 2¹⁶`
    fn low_half(&self, k: &mut Builder, dst: View, src: View) {
        match self.masks {
            Some([halves, ..]) => self.masked(k, dst, src, halves),
            None => {
                self.scaled(k, Scaled::ShiftLeft, dst.clone(), src, 16);
                self.shift_right(k, dst.clone(), dst, 16);
            }
        }
    }

    /// `dst = src & mask`, of a mask for one repeat.
    fn masked(&self, k: &mut Builder, dst: View, src: View, mask: Buf) {
        let half = |x: View| Vector::from(View { elem: Elem::U16, offset: x.offset * 2u64, ..x });
        let repeat = self.lanes.clone() / Elem::I32.per_repeat();
        let over = Over::Repeats { mask: Mask::First(Elem::U16.per_repeat().into()), repeat };
        let src1 = Vector { repeat: 0, ..half(mask.at(0)) };
        k.issue(BinaryOp { op: Binary::And, dst: half(dst), src0: half(src), src1, over });
        k.barrier(Barrier::V);
    }

    /// The bits of one of two operands: those of either without those of both, so that nothing is borrowed.
    fn xor(&self, k: &mut Builder, dst: View, a: View, b: View) {
        let [p, q, ..] = self.temporary;
        for (op, to) in [(Binary::Or, p), (Binary::And, q)] {
            // Views of 16 bits begin at twice as many elements.
            let half = |x: View| View { elem: Elem::U16, offset: x.offset * 2u64, ..x };
            let over = Over::Count(self.lanes.clone() * 2u64);
            let (dst, src0, src1) = (half(to.at(0)).into(), half(a.clone()).into(), half(b.clone()).into());
            k.issue(BinaryOp { op, dst, src0, src1, over });
        }
        k.barrier(Barrier::V);
        self.binary(k, Binary::Sub, dst, p.at(0), q.at(0));
    }

    /// The upper word of `src · factor`. With a = 2¹⁶ a₁ + a₀ and likewise m:
    /// u = a₁ m₀ + ⌊a₀ m₀ / 2¹⁶⌋ and v = a₀ m₁ + u % 2¹⁶ are words, and the result is a₁ m₁ + ⌊u / 2¹⁶⌋ + ⌊v / 2¹⁶⌋.
    fn upper(&self, k: &mut Builder, dst: View, src: View, factor: u32) {
        let [a0, a1, u, v] = self.temporary.map(|b| b.at(0));
        let [m0, m1] = [factor & 0xffff, factor >> 16].map(i64::from);
        self.low_half(k, a0.clone(), src.clone());
        self.shift_right(k, a1.clone(), src, 16);
        self.scaled(k, Scaled::Muls, v.clone(), a0.clone(), m0);
        self.shift_right(k, v.clone(), v.clone(), 16);
        self.scaled(k, Scaled::Muls, u.clone(), a1.clone(), m0);
        self.binary(k, Binary::Add, u.clone(), u.clone(), v.clone());
        self.scaled(k, Scaled::Muls, v.clone(), a0.clone(), m1);
        self.low_half(k, a0.clone(), u.clone());
        self.binary(k, Binary::Add, v.clone(), v.clone(), a0);
        self.scaled(k, Scaled::Muls, dst.clone(), a1, m1);
        for part in [u, v] {
            self.shift_right(k, part.clone(), part.clone(), 16);
            self.binary(k, Binary::Add, dst.clone(), dst.clone(), part);
        }
    }
}
