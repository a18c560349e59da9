//! Differences of AVX-512 from AVX2: comparisons give mask registers, halves and bytes are cut from lanes,
//! and bf16 is rounded by an instruction.

use super::assembler::*;

/// The mask register that all this takes.
const MASK: u8 = 1;
/// Subnormal numbers, among the kinds of [`op::KIND`].
const SUBNORMAL: u8 = 0x20;

/// Compares; for [`blend`] or [`to_lanes`].
pub(super) fn compare(asm: &mut Assembler, op: Op, a: u8, b: Rm, predicate: Option<u8>) {
    asm.vector(op, MASK, a, b, predicate);
}

/// Lanes of ones where the comparison holds.
pub(super) fn to_lanes(asm: &mut Assembler, out: u8) {
    asm.vector(op::FROM_MASK, out, 0, Rm::Reg(MASK), None);
}

/// For [`blend`]: where lanes are ones.
pub(super) fn by_lanes(asm: &mut Assembler, by: u8) {
    asm.vector(op::TO_MASK, MASK, 0, Rm::Reg(by), None);
}

/// `b` where the comparison holds, else `a`.
pub(super) fn blend(asm: &mut Assembler, out: u8, a: u8, b: Rm) {
    asm.masked(op::BLEND_MASK, out, a, b, MASK);
}

/// Rounds to half a vector of bf16, to nearest, ties to even, NaNs quiet. The instruction for it takes
/// subnormal numbers for zeros. Where there are any, all are rounded by integer arithmetic, as the module
/// `round` does it elsewhere.
pub(super) fn round(asm: &mut Assembler, out: u8, x: u8) {
    asm.vector(op::KIND, MASK, 0, Rm::Reg(x), Some(SUBNORMAL));
    asm.test_mask(MASK);
    let none = asm.skip(true);
    let [quiet, y] = [SPARE, SPARE + 1];
    let mut all = |bits: u32| Rm::Pool(asm.constant(&bits.to_le_bytes().repeat(asm.width.lanes())));
    let (one, last, half) = (all(1f32.to_bits()), all(1), all(0x7FFF));
    asm.vector(op::MUL, quiet, x, one, None);
    asm.vector(op::SHIFT, 2, y, Rm::Reg(quiet), Some(16));
    asm.vector(op::AND, y, y, last, None);
    asm.vector(op::ADD_INT, y, y, half, None);
    // Nothing is added to a NaN: the sum could run over.
    asm.vector(op::CMP, MASK, quiet, Rm::Reg(quiet), Some(7));
    asm.masked(op::ADD_INT, quiet, quiet, Rm::Reg(y), MASK);
    asm.vector(op::SHIFT, 2, quiet, Rm::Reg(quiet), Some(16));
    asm.vector(op::LOWER_16, quiet, 0, Rm::Reg(out), None);
    let done = asm.skip(false);
    asm.arrive(none);
    asm.vector(op::TO_BF16, out, 0, Rm::Reg(x), None);
    asm.arrive(done);
}
