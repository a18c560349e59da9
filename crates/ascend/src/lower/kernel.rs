//! Operators with a kernel of their own, by kernels that are written by hand.

use super::launch::{Lowered, Refusal};
use crate::chip::Chip;
use crate::kernel::Source;
use headwater_core::ops::{OpCx, OpDef};
use headwater_core::plan::Step;
use headwater_core::{Attrs, TensorType};

/// The launches of an operator.
///
/// # Errors
/// The operator, type or shape that has no kernel yet.
pub fn kernel(
    chip: &Chip,
    op: &'static OpDef,
    attrs: &Attrs,
    step: &Step,
    source: &Source,
) -> Result<Lowered, Refusal> {
    let _ = (chip, attrs, step, source);
    Err(Refusal(format!("`{}` has no kernel yet", op.name)))
}

/// True if an operator has a kernel on a chip, for contiguous operands of these types.
pub fn has_kernel(chip: &Chip, op: &OpDef, cx: &OpCx, outs: &[TensorType]) -> bool {
    let _ = (chip, op, cx, outs);
    false
}
