//! Values of a row program's registers.

use super::value::Held;
use crate::kernel::Compare;
use crate::lower::Refusal;
use headwater_core::DType;
use headwater_core::expr::Binary;

/// The value of a register: a constant, or numbers in UB with the range of integers. Integers without a range
/// are the lower words of 64-bit ones.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Register {
    Float(f64),
    Int(i64),
    Bool(bool),
    Held(Held, Option<(i64, i64)>),
}

/// A value, or the reason why there is no kernel for it.
pub(super) type Done<T = Register> = Result<T, Refusal>;

/// A construct that has no kernel yet.
pub(super) fn refuse<T>(what: impl Into<String>) -> Done<T> {
    Err(Refusal::new(what))
}

/// A value that is no integer.
pub(super) const fn float(x: Held) -> Register {
    Register::Held(x, None)
}

/// Integers of 32 bits.
pub(super) const WORD: (i64, i64) = (i32::MIN as i64, i32::MAX as i64);

/// The smallest and the largest number of an integer type of up to 32 bits.
pub(super) const fn limits(dtype: DType) -> (i64, i64) {
    match dtype {
        DType::I8 => (-128, 127),
        DType::U8 => (0, 255),
        DType::I16 => (-32768, 32767),
        _ => WORD,
    }
}

/// An integer value with the range of its numbers; of numbers beyond 32 bits the lower words.
pub(super) fn int(x: Held, low: i128, high: i128) -> Register {
    let fits = low >= WORD.0.into() && high <= WORD.1.into();
    Register::Held(x, Some(if fits { (low as i64, high as i64) } else { WORD }))
}

/// The comparison of vectors for an operator, if it compares.
pub(super) const fn compare(op: Binary) -> Option<Compare> {
    Some(match op {
        Binary::Eq => Compare::Eq,
        Binary::Ne => Compare::Ne,
        Binary::Lt => Compare::Lt,
        Binary::Le => Compare::Le,
        Binary::Gt => Compare::Gt,
        Binary::Ge => Compare::Ge,
        _ => return None,
    })
}
