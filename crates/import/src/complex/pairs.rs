//! Pairs of real numbers: split and combined.

use headwater_core::ops::movement::stack::STACK;
use headwater_core::ops::view::split::UNBIND;
use headwater_core::{Attrs, Builder, DType, Result, ValueId, fail};

/// Real and imaginary part of pairs.
pub(super) fn parts(b: &mut Builder, pairs: ValueId) -> Result<[ValueId; 2]> {
    let made = b.apply(&UNBIND, &[Some(pairs)], Attrs::new().with("dim", -1))?;
    Ok([made[0], made[1]])
}

/// Pairs of two parts, broadcast against each other.
pub(super) fn joined(b: &mut Builder, re: ValueId, im: ValueId) -> Result<ValueId> {
    let shapes = [re, im].map(|v| b.ty(v).shape.clone());
    let shape = shapes[0].broadcast(&shapes[1]);
    let shape = shape.ok_or_else(|| fail!(Shape, "parts of {} and {}", shapes[0], shapes[1]))?;
    let (re, im) = (b.expand(re, &shape)?, b.expand(im, &shape)?);
    b.one(&STACK, &[re, im], Attrs::new().with("dim", -1))
}

/// Real numbers as pairs in `dtype`.
pub(super) fn promoted(b: &mut Builder, real: ValueId, dtype: DType) -> Result<ValueId> {
    let real = b.cast(real, dtype)?;
    let ty = b.ty(real).clone();
    let zeros = b.full(&ty, 0.0)?;
    joined(b, real, zeros)
}

/// Real numbers with a last dimension of 1, to be combined with both parts.
pub(super) fn of_both(b: &mut Builder, real: ValueId) -> Result<ValueId> {
    let rank = b.ty(real).shape.rank();
    b.unsqueeze(real, rank)
}
