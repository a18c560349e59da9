//! Reading and rounding bf16 two vectors at a time, with AVX-512's instructions for words and for bf16. The upper registers, which
//! nothing else uses, hold what these need.

use super::asm::*;
use super::emit::pack;
use super::row::{REGISTERS, WIDE};

/// Registers with the numbers of the words of either vector, and the mask of the upper halves of lanes.
const WORDS: u8 = 30;
const UPPER: Mask = Mask(7);
/// Registers that keep others meanwhile.
const KEPT: u8 = 16;
/// Subnormal numbers, among the kinds of [`op::KIND`].
const SUBNORMAL: u8 = 0x20;

/// Loads what [`widen`] needs, at the beginning of a function.
pub(super) fn prepare(asm: &mut Asm) {
    for vector in 0..2 {
        // Of lower halves nothing is picked.
        let words: Vec<u8> =
            (0..2 * WIDE).flat_map(|word| ((WIDE * vector + word / 2) as u16).to_le_bytes()).collect();
        let words = Rm::Pool(asm.constant(&words));
        asm.evex(op::LOAD_UPPER, WORDS + vector as u8, 0, words, None, None);
    }
    asm.number(0xAAAA_AAAA);
    let Mask(upper) = UPPER;
    asm.vex(false, op::TO_MASK, upper, 0, Rm::Reg(RAX), None);
}

/// The first or the second vector of those that begin at `from`: each word becomes the upper half of a lane.
pub(super) fn widen(asm: &mut Asm, out: u8, from: Rm, vector: usize) {
    asm.evex(op::PICK_WORDS, out, WORDS + vector as u8, from, Some(UPPER), None);
}

/// Rounds two vectors to one of bf16, to nearest, ties to even, NaNs quiet. The instruction for it takes subnormal numbers for
/// zeros: where there are any, both are rounded by integer arithmetic, as `round` says.
pub(super) fn round(asm: &mut Asm, out: u8, [first, second]: [u8; 2]) {
    for (mask, x) in [(1, first), (2, second)] {
        asm.evex(op::KIND, mask, 0, Rm::Reg(x), None, Some(SUBNORMAL));
    }
    asm.vex(false, op::TEST_MASKS, 1, 0, Rm::Reg(2), None);
    let none = asm.skip(true);
    let mut free = (0..REGISTERS as u8).filter(|r| ![out, first, second].contains(r));
    let own: [u8; 3] = std::array::from_fn(|_| free.next().expect("three of sixteen are in use"));
    for (i, r) in own.into_iter().enumerate() {
        asm.evex(op::MOVE, KEPT + i as u8, 0, Rm::Reg(r), None, None);
    }
    let mut all = |bits: u32| Rm::Pool(asm.constant(&bits.to_le_bytes().repeat(WIDE)));
    let (one, last, half) = (all(1f32.to_bits()), all(1), all(0x7FFF));
    let [quiet, halves @ ..] = own;
    for (x, y) in [first, second].into_iter().zip(halves) {
        asm.vex(true, op::MUL, quiet, x, one, None);
        asm.vex(true, op::SHIFT, 2, y, Rm::Reg(quiet), Some(16));
        asm.vex(true, op::AND, y, y, last, None);
        asm.vex(true, op::ADD_INT, y, y, half, None);
        // Nothing is added to a NaN: the sum could run over.
        asm.vex(true, op::CMP, out, quiet, Rm::Reg(quiet), Some(7));
        asm.vex(true, op::AND, y, y, Rm::Reg(out), None);
        asm.vex(true, op::ADD_INT, y, y, Rm::Reg(quiet), None);
        asm.vex(true, op::SHIFT, 2, y, Rm::Reg(y), Some(16));
    }
    pack(asm, out, halves);
    for (i, r) in own.into_iter().enumerate() {
        asm.evex(op::MOVE, r, 0, Rm::Reg(KEPT + i as u8), None, None);
    }
    let done = asm.skip(false);
    asm.arrive(none);
    asm.evex(op::TO_BF16, out, second, Rm::Reg(first), None, None);
    asm.arrive(done);
}
