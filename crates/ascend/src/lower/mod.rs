//! Steps of plans as launches of kernels.
//!
//! A step either becomes launches ([`Lowered`]) or is refused with the construct that has no kernel
//! ([`Refusal`]); then it runs through the reference on the host, and reports list it with that reason.
//! Devices lower steps when they load a plan; nothing here executes anything.

mod attention;
mod constant;
mod convolution;
mod counting;
mod expand;
mod grouped;
mod indexing;
mod kernel;
mod launch;
mod product;
mod recurrent;
mod resample;
mod rows;
mod segment;
mod sequence;
mod source;
mod split;
mod tables;
#[cfg(test)]
mod tests;
mod vendor;

pub use expand::expands;
pub use kernel::{embedding_grads, has_kernel, takes_strides};
pub use launch::{Distinct, Lowered, LoweredArg, LoweredLaunch, Refusal, values};
pub use rows::rows;
pub use split::MODEL as SPLIT;
pub use vendor::{VendorStep, vendor};

use crate::chip::Chip;
use crate::kernel::Source;
use headwater_core::graph::Origin;
use headwater_core::plan::{Step, Work};

/// The launches of a step on a chip. `origin` is the model's line. `together` says that cores of both kinds
/// can wait for each other: that the runtime gives the address that they do it by.
///
/// # Errors
/// The construct that has no kernel.
pub fn step(chip: &Chip, together: bool, step: &Step, origin: &Origin) -> Result<Lowered, Refusal> {
    // A step that writes no element does nothing, except that a kernel may still refuse its indices.
    let writes_nothing = step.writes.iter().all(|view| view.layout.shape.contains(&0));
    let source = Source { op: step.op.into(), origin: origin.clone() };
    match &step.work {
        Work::Rows(_) if writes_nothing => Ok(Lowered::default()),
        Work::Rows(program) => {
            let reads: Option<Vec<_>> = step.reads.iter().map(Option::as_ref).collect();
            let reads = reads.ok_or_else(|| Refusal::new("a row program without an operand"))?;
            rows(chip, program, &reads, &step.writes.iter().collect::<Vec<_>>(), &source)
        }
        Work::Kernel { op, attrs } => kernel::kernel(chip, together, op, attrs, step, &source),
    }
}
