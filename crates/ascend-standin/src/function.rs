//! Kernels of loaded binaries: kernel programs. A few programs of the stand-in's own test the interface
//! itself: they show how arguments arrive, run for long or for ever, and fail.

use crate::binary::KernelText;
use headwater_ascend::Chip;
use headwater_ascend::host::codes::Status;
use headwater_ascend::kernel::{self, Param, Program};

/// A kernel of a loaded binary.
#[derive(Debug)]
pub struct Function {
    /// Symbol.
    pub name: String,
    /// Size of each parameter, 8 or 4 bytes.
    pub parameters: Vec<usize>,
    /// Work of a launch.
    pub action: Action,
}

/// Work of a kernel.
#[derive(Debug)]
pub enum Action {
    /// A kernel program.
    Program(Box<Program>),
    /// Writes the number of blocks, then every argument but the first as 64 bits, to the address in the
    /// first.
    Probe,
    /// `z = x + y` for f32: addresses of x, y and z, and the count.
    AddF32,
    /// Runs for so many milliseconds.
    Sleep(u64),
    /// Runs until it is aborted or its time limit is over.
    Spin,
    /// Fails with a status.
    Fault(Status),
}

impl Function {
    /// The function that a text describes: a kernel program for the chip `soc`, or
    ///
    /// ```text
    /// standin 1
    /// parameters 8 8 8 4
    /// probe | add_f32 | sleep MILLISECONDS | spin | fault STATUS
    /// ```
    ///
    /// # Errors
    /// The part of the text that is not understood.
    pub fn parse(text: &KernelText, soc: &str) -> Result<Function, String> {
        let mut lines = text.program.lines();
        if lines.next() != Some("standin 1") {
            let program = program(&text.program, soc)?;
            let parameters = program.params.iter().map(Param::abi_size).collect();
            let action = Action::Program(Box::new(program));
            return Ok(Function { name: text.name.clone(), parameters, action });
        }
        let mut parameters = Vec::new();
        let sizes = lines.next().and_then(|l| l.strip_prefix("parameters")).ok_or("no parameters")?;
        for size in sizes.split_whitespace() {
            match size {
                "8" => parameters.push(8),
                "4" => parameters.push(4),
                other => return Err(format!("a parameter of {other} bytes")),
            }
        }
        let words: Vec<_> = lines.next().unwrap_or_default().split_whitespace().collect();
        let action = match words.as_slice() {
            ["probe"] => Action::Probe,
            ["add_f32"] => Action::AddF32,
            ["spin"] => Action::Spin,
            ["sleep", ms] => Action::Sleep(ms.parse().map_err(|_| "sleep how long?")?),
            ["fault", status] => Action::Fault(status.parse().map_err(|_| "which fault?")?),
            other => return Err(format!("{other:?} is no action")),
        };
        Ok(Function { name: text.name.clone(), parameters, action })
    }

    /// Offset of each parameter in the block of arguments, and the block's size: C's rules.
    pub fn layout(&self) -> (Vec<usize>, usize) {
        let mut end = 0usize;
        let offsets = self.parameters.iter().map(|&size| {
            let offset = end.next_multiple_of(size);
            end = offset + size;
            offset
        });
        (offsets.collect(), end.next_multiple_of(8))
    }
}

/// Reads a kernel program for a chip.
///
/// # Errors
/// Errors of the parser; a program for another generation of chips.
fn program(text: &str, soc: &str) -> Result<Program, String> {
    let program = kernel::parse(text).map_err(|e| e.to_string())?;
    match Chip::from_name(soc) {
        Some(chip) if chip.arch == program.arch => Ok(program),
        _ => Err(format!("{} is not for {}", program.name, soc)),
    }
}
