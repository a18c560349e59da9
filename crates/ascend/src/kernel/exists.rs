//! Tables of the chips' flags between pipes and conversions.

use super::operand::Round;
use super::{Elem, Pipe};
use crate::chip::Arch;

/// Flags from one pipe to another that the chips have (`HardEvent`).
pub fn event_exists(arch: Arch, from: Pipe, to: Pipe) -> bool {
    use Pipe::*;
    if from == to || [from, to].contains(&Fix) && arch == Arch::P310 {
        return from == V && to == V;
    }
    !matches!((from, to), (Mte1, S) | (S, Mte1) | (S, M) | (S, Fix) | (Mte3, M) | (M, Mte3) | (Mte3, Fix))
}

/// Conversions: whether the chip has one, with this rounding.
pub fn cast_exists(arch: Arch, from: Elem, to: Elem, round: Round, scaled: bool) -> bool {
    use Elem::{BF16, F16, F32, I8, I16, I32, I64, U8};
    use Round::{Ceil, Floor, None as No, Odd, Rint, Trunc};
    let five = matches!(round, Rint | Floor | Ceil | Round::Round | Trunc);
    let none = round == No;
    if scaled {
        return (from, to) == (I32, F16) && none;
    }
    match (arch, from, to) {
        (_, F16, F32) | (_, I32, F32) => none || (from == I32 && arch == Arch::A2 && five),
        (Arch::A2, F32, F16) => five || none || round == Odd,
        (Arch::P310, F32, F16) => none || round == Odd,
        (Arch::A2, BF16, F32) => none,
        (Arch::A2, F32, BF16) => five,
        (_, F32, I32) => five,
        (Arch::A2, F32, I16 | I64 | F32) | (Arch::A2, I64, F32) => five,
        (Arch::A2, I64, I32) | (Arch::A2, I32, I64) => none,
        (_, F16, I32) => five,
        (Arch::A2, F16, I16) => five,
        (Arch::P310, F16, I16) => round == Rint,
        (Arch::A2, F16, I8 | U8) => five || none,
        (Arch::P310, F16, I8 | U8) => none || (five && round != Rint),
        (_, I8 | U8, F16) => none,
        (Arch::A2, I16, F16) => five || none,
        (Arch::A2, I16, F32) => none,
        _ => false,
    }
}
