//! Row programs as kernels.

use super::launch::{Lowered, Refusal};
use crate::chip::Chip;
use crate::kernel::Source;
use headwater_core::plan::TensorView;
use headwater_core::row::RowProgram;

/// The launches of a row program on a chip. `reads` and `writes` are the operands in order; `source` is the operator and
/// the model's line that the kernel names.
///
/// # Errors
/// The construct that has no kernel yet.
pub fn rows(
    chip: &Chip,
    program: &RowProgram,
    reads: &[&TensorView],
    writes: &[&TensorView],
    source: &Source,
) -> Result<Lowered, Refusal> {
    let _ = (chip, program, reads, writes, source);
    Err(Refusal::new("row programs have no kernels yet"))
}
