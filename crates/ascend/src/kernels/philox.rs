//! Uniform random numbers of a counter, bit by bit those of `headwater_core::random`: Philox4x32-10 (Salmon,
//! Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//!
//! A lane computes a block of four words. No sum and no product leaves 32 bits: the result is the same
//! whether a chip wraps integers or saturates them (CTRL\[53\]), and no overflow status is raised. Words are
//! two 16-bit halves each, and multipliers have signed digits of 16 bits, so that the largest product is
//! `65535 · 29353 < 2³¹`.

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
/// Elements of a word's lanes: its lower halves followed by its upper ones.
const WORD: u64 = 2 * LANES;
/// Multipliers of the first and the third word, and what the key's words grow by each round.
const FACTORS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const GROWTH: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
/// Masks of an i32: its lower half, its upper half, the second byte.
const MASKS: [(&str, i64); 3] = [("low_half", 0xffff), ("high_half", -0x1_0000), ("second_byte", 0xff00)];

/// `out[i] = ⌊word / 2⁸⌋ / 2²⁴` of the words `4 · first + i` of a stream, for i below n.
///
/// Parameters: `key` \[2\] i64 (seed, step), `out` \[n\] f32, the integers `stream`, of 32 bits, and `first`,
/// a block. On 310P the key has a slack of two elements.
///
/// # Errors
/// `Range` for zero numbers, or more than a stream has.
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
    let words = k.ub("words", Elem::I32, 4 * WORD);
    let [upper_a, upper_b, key_halves, p, q] =
        ["upper_a", "upper_b", "key_halves", "p", "q"].map(|n| k.ub(n, Elem::I32, WORD));
    let digits = ["t", "u", "v"].map(|n| k.ub(n, Elem::I32, LANES));
    let floats = k.ub("floats", Elem::F32, 4 * LANES);
    let result = k.ub("result", Elem::F32, 4 * LANES);
    let order = k.ub("order", Elem::I32, 4 * LANES);
    // 310P copies whole blocks: the last numbers again, as a block of their own; fewer than a block one by
    // one.
    let block = Elem::F32.per_block();
    let ragged = arch == Arch::P310 && !numbers.is_multiple_of(block);
    let last =
        (ragged && numbers >= block).then(|| [k.ub("last", Elem::F32, 64), k.ub("places", Elem::F32, 64)]);
    let singly = ragged && numbers < block;

    let masks = MASKS.map(|(name, bits)| {
        let mask = k.ub(name, Elem::I32, Elem::I32.per_repeat());
        k.duplicate(mask.at(0), bits, Over::count(Elem::I32.per_repeat()));
        mask
    });
    interleaved(&mut k, order, p, q);
    if let Some([_, places]) = last {
        ramp(&mut k, places.cast(Elem::I32), 64, 4);
    }
    read(&mut k, key_words.cast(Elem::I64).at(0), key.at(0), &2.into());
    k.flag(Pipe::Mte2, Pipe::S, 0);
    let [seed_low, seed_high, step_low, step_high] = [0, 1, 2, 3]
        .map(|i| k.load(["seed_low", "seed_high", "step_low", "step_high"][i], key_words.at(i as u64)));
    // The result's buffer may be overwritten.
    k.set_flag(Pipe::Mte3, Pipe::V, 0);
    let tasks = (numbers / NUMBERS).max(1);
    k.for_each("task", Scalar::BLOCK, tasks, Scalar::BLOCKS, |k, task| {
        let start = k.let_("start", task.clone() * NUMBERS);
        let is_last = k.let_("is_last", task.eq(tasks - 1));
        let rest = numbers - (tasks - 1) * NUMBERS;
        let len = k.let_("len", is_last.clone() * rest + (Scalar::from(1) - is_last.clone()) * NUMBERS);
        let lanes = k.let_("lanes", len.clone().div_ceil(256) * 64u64);
        let v = Lanes { lanes: lanes.clone(), digits, either: p, both: q, masks };
        // Counter: block, stream, step. Where a block's lower half leaves 16 bits, its upper one grows.
        let begin = k.let_("begin", first.clone() + start.clone() / 4u64);
        let [low, high] = v.halves(&words.at(0));
        k.issue(Ramp { dst: low.clone(), first: 0.into(), count: lanes.clone() });
        k.barrier(Barrier::V);
        v.scaled(k, Scaled::Adds, &low, &low, half(&begin, 0));
        v.upper_half(k, &high, &low);
        v.scaled(k, Scaled::Adds, &high, &high, half(&begin, 1));
        v.masked(k, &words.at(0), &words.at(0), masks[0], 2);
        for (i, value) in [(1, &stream), (2, &step_low), (3, &step_high)] {
            v.fill(k, &words.at(i * WORD), value);
        }
        k.for_each("round", 0, 10, 1, |k, round| {
            // Each round leaves word i where word i + 1 was: the lower product where its operand was.
            let [c0, c1, c2, c3] =
                [0, 1, 2, 3].map(|i| words.at(k.let_("word", (round.clone() + i) % 4 * WORD)));
            let (upper_a, upper_b, key_halves) = (upper_a.at(0), upper_b.at(0), key_halves.at(0));
            v.product(k, &c2, &upper_b, FACTORS[1]);
            v.product(k, &c0, &upper_a, FACTORS[0]);
            for (word, upper, seed, growth) in
                [(c1, upper_b, &seed_low, GROWTH[0]), (c3, upper_a, &seed_high, GROWTH[1])]
            {
                v.xor(k, &upper, &upper, &word);
                let key = k.let_("key", seed.clone() + round.clone() * u64::from(growth));
                v.fill(k, &key_halves, &key);
                v.xor(k, &word, &upper, &key_halves);
            }
        });
        for i in 0..4 {
            // The upper 24 bits of the word, exact in f32: its upper half, and the second byte.
            let [low, high] = v.halves(&words.at((i + 10) % 4 * WORD));
            v.masked(k, &low, &low, masks[2], 1);
            let [second, upper] = v.halves(&p.cast(Elem::F32).at(0));
            for (from, to, unit) in [(low, &second, 32), (high, &upper, 16)] {
                k.cast(to.clone(), from, Round::None, v.over(1));
                k.barrier(Barrier::V);
                v.scaled(k, Scaled::Muls, to, to, 1.0 / (1u64 << unit) as f32);
            }
            v.binary(k, Binary::Add, &floats.at(i * LANES), &second, &upper);
        }
        k.wait_flag(Pipe::Mte3, Pipe::V, 0);
        k.issue(Gather {
            dst: result.at(0),
            src: floats.at(0),
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

/// The lower (0) or the upper (1) half of a number's low 32 bits.
fn half(x: &Scalar, which: i64) -> Scalar {
    x.clone().binary(ScalarBinary::Shr, 16 * which).binary(ScalarBinary::And, 0xffff)
}

/// `out[i] = i · step`
fn ramp(k: &mut Builder, out: Buf, count: u64, step: i64) {
    k.issue(Ramp { dst: out.at(0), first: 0.into(), count: count.into() });
    k.barrier(Barrier::V);
    k.scaled(Scaled::Muls, out.at(0), out.at(0), step, Over::count(count));
    k.barrier(Barrier::V);
}

/// Offsets in bytes of numbers in order: word `i % 4` of lane `i / 4`. Words of a kind are contiguous.
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

/// Arithmetic on words in halves, lane by lane; each instruction is done before the next starts.
struct Lanes {
    lanes: Scalar,
    digits: [Buf; 3],
    either: Buf,
    both: Buf,
    /// [`MASKS`] for a repeat each.
    masks: [Buf; 3],
}

impl Lanes {
    /// Elements of `times` halves.
    fn over(&self, times: u64) -> Over {
        Over::Count(self.lanes.clone() * times)
    }

    /// The lower and the upper halves of a word.
    fn halves(&self, word: &View) -> [View; 2] {
        [word.clone(), word.add(self.lanes.clone())]
    }

    fn scaled(&self, k: &mut Builder, op: Scaled, dst: &View, src: &View, by: impl Into<Scalar>) {
        k.scaled(op, dst.clone(), src.clone(), by, self.over(1));
        k.barrier(Barrier::V);
    }

    fn binary(&self, k: &mut Builder, op: Binary, dst: &View, a: &View, b: &View) {
        k.binary(op, dst.clone(), a.clone(), b.clone(), self.over(1));
        k.barrier(Barrier::V);
    }

    /// A word that is the same in every lane: the low 32 bits of a number.
    fn fill(&self, k: &mut Builder, word: &View, value: &Scalar) {
        for (to, which) in self.halves(word).into_iter().zip(0..) {
            k.duplicate(to, half(value, which), self.over(1));
        }
        k.barrier(Barrier::V);
    }

    /// `dst = ⌊src / 2¹⁶⌋`. 310P has no shifts: without its lower half an i32 is exact in f32, and so is its
    /// quotient.
    fn upper_half(&self, k: &mut Builder, dst: &View, src: &View) {
        if k.arch() == Arch::A2 {
            return self.scaled(k, Scaled::ShiftRight, dst, src, 16);
        }
        let float = View { elem: Elem::F32, ..dst.clone() };
        self.masked(k, dst, src, self.masks[1], 1);
        k.cast(float.clone(), dst.clone(), Round::None, self.over(1));
        k.barrier(Barrier::V);
        self.scaled(k, Scaled::Muls, &float, &float, 1.0 / 65536.0f32);
        k.cast(dst.clone(), float, Round::Rint, self.over(1));
        k.barrier(Barrier::V);
    }

    /// `dst = src & mask` of `times` halves, by a mask for one repeat.
    fn masked(&self, k: &mut Builder, dst: &View, src: &View, mask: Buf, times: u64) {
        // Views of 16 bits begin at twice as many elements.
        let bits =
            |x: &View| Vector::from(View { elem: Elem::U16, offset: x.offset.clone() * 2u64, ..x.clone() });
        let repeat = self.lanes.clone() * times / Elem::I32.per_repeat();
        let over = Over::Repeats { mask: Mask::First(Elem::U16.per_repeat().into()), repeat };
        let src1 = Vector { repeat: 0, ..bits(&mask.at(0)) };
        k.issue(BinaryOp { op: Binary::And, dst: bits(dst), src0: bits(src), src1, over });
        k.barrier(Barrier::V);
    }

    /// The bits of one of two words: those of either without those of both, so that nothing is borrowed.
    fn xor(&self, k: &mut Builder, dst: &View, a: &View, b: &View) {
        let bits = |x: &View| View { elem: Elem::U16, offset: x.offset.clone() * 2u64, ..x.clone() };
        let (either, both) = (self.either.at(0), self.both.at(0));
        for (op, to) in [(Binary::Or, &either), (Binary::And, &both)] {
            k.binary(op, bits(to), bits(a), bits(b), self.over(4));
        }
        k.barrier(Barrier::V);
        k.binary(Binary::Sub, dst.clone(), either, both, self.over(2));
        k.barrier(Barrier::V);
    }

    /// The product of a word `2¹⁶ a₁ + a₀` and a factor `2³² + 2¹⁶ m₁ + m₀` of signed digits: the lower word
    /// in its place, the upper one in `upper`. With t = a₀ m₀, u = a₁ m₀ + ⌊t / 2¹⁶⌋ and v = a₀ m₁ + u % 2¹⁶
    /// the lower word has the halves t and v, and the upper one is the word itself plus a₁ m₁ + ⌊u / 2¹⁶⌋ +
    /// ⌊v / 2¹⁶⌋.
    fn product(&self, k: &mut Builder, word: &View, upper: &View, factor: u32) {
        let [t, u, v] = &self.digits.map(|b| b.at(0));
        let ([a0, a1], [low, high]) = (&self.halves(word), &self.halves(upper));
        let m0 = i64::from(factor as i16);
        let m1 = i64::from(((i64::from(factor) - m0) >> 16) as i16);
        debug_assert_eq!(i64::from(factor), (1 << 32) + (m1 << 16) + m0);
        self.scaled(k, Scaled::Muls, t, a0, m0);
        self.scaled(k, Scaled::Muls, u, a1, m0);
        self.scaled(k, Scaled::Muls, v, a0, m1);
        self.scaled(k, Scaled::Muls, high, a1, m1);
        self.upper_half(k, low, t);
        self.binary(k, Binary::Add, u, u, low);
        self.masked(k, low, u, self.masks[0], 1);
        self.binary(k, Binary::Add, v, v, low);
        for carry in [u, v] {
            self.upper_half(k, low, carry);
            self.binary(k, Binary::Add, high, high, low);
        }
        self.masked(k, low, high, self.masks[0], 1);
        self.upper_half(k, u, high);
        self.binary(k, Binary::Add, low, low, a0);
        self.binary(k, Binary::Add, high, u, a1);
        self.upper_half(k, u, low);
        self.binary(k, Binary::Add, high, high, u);
        self.masked(k, upper, upper, self.masks[0], 2);
        self.masked(k, a0, t, self.masks[0], 1);
        self.masked(k, a1, v, self.masks[0], 1);
    }
}
