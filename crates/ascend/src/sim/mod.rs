//! The simulator: runs kernel programs as the chip would, and checks for violations that the chip does not
//! report.
//!
//! [`launch`] runs all blocks of a kernel over a piece of memory that stands for GM. In [`Mode::Checked`]
//! every access is checked (bounds, alignment, contents, order), flags must pair, cores must not race; in
//! [`Mode::Fast`] the same instructions compute the same bits with only what keeps the simulator itself safe.
//! Knows programs and chips, nothing of graphs.

mod cache;
mod core;
mod cube;
mod issue;
mod lane_room;
mod lanes;
mod memory;
mod numbers;
mod order;
mod permute;
mod schedule;
mod transfer;
mod vector;

pub(crate) use issue::sub_blocks;
pub use issue::{Code, Issued, Issuer, Place};
pub use memory::{Bytes, Region};
pub use schedule::{Launch, launch, launch_in_orders, launch_verified, loads};

use crate::kernel::finding::{Finding, Rule};
use crate::kernel::{ParamKind, Program, ScalarType, Value};

/// An argument.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Arg {
    /// Offset in bytes into the memory that stands for GM.
    Pointer(u64),
    /// `int64_t`
    Int(i64),
    /// `float`
    Float(f32),
}

/// Modes of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// With every check. Seed 0 runs pipes and blocks in the order of the program; others run them in orders
    /// of their own, as far as flags allow.
    Checked {
        /// Seed of the order.
        seed: u64,
    },
    /// Without checks. To the same bits for programs that have no finding.
    Fast,
}

/// Counts of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Instructions of all cores.
    pub instructions: u64,
}

/// A fault of an instruction, before it is known which one.
#[derive(Debug)]
pub struct Fault {
    rule: Rule,
    message: String,
    buffer: String,
}

impl Fault {
    /// A fault.
    pub fn new(rule: Rule, message: impl Into<String>) -> Fault {
        Fault { rule, message: message.into(), buffer: String::new() }
    }

    /// The same, naming a buffer unless one is named.
    pub fn of(mut self, buffer: &str) -> Fault {
        if self.buffer.is_empty() {
            self.buffer = buffer.into();
        }
        self
    }

    /// As a finding about a statement.
    fn finding(self, program: &Program, stmt: &crate::kernel::Stmt, block: u32) -> Box<Finding> {
        let text = crate::kernel::head(program, stmt);
        Finding::new(self.rule, program, self.message)
            .of(&self.buffer)
            .at(program, &text, stmt.source)
            .in_block(block)
    }
}

/// Arguments out of the bytes that the runtime passes, by C's rules for a struct. Pointers are `base` plus an
/// offset.
///
/// # Errors
/// `Arguments` where the bytes are too few, or a pointer is before `base`.
pub fn decode(program: &Program, bytes: &[u8], base: u64) -> crate::kernel::finding::Result<Vec<Arg>> {
    let fail = |message: String| Finding::new(Rule::Arguments, program, message);
    let (offsets, size) = program.abi();
    let mut out = Vec::new();
    for (param, offset) in program.params.iter().zip(offsets) {
        let end = offset + param.abi_size();
        let Some(b) = bytes.get(offset..end) else {
            return Err(fail(format!("{} bytes of arguments, {size} are needed", bytes.len())));
        };
        let mut word = [0; 8];
        word[..b.len()].copy_from_slice(b);
        let word = u64::from_le_bytes(word);
        out.push(match param.scalar() {
            Some(ScalarType::Int) => Arg::Int(word as i64),
            Some(ScalarType::Float) => Arg::Float(f32::from_bits(word as u32)),
            None if param.kind == ParamKind::Sync => Arg::Pointer(word),
            None => match word.checked_sub(base) {
                Some(offset) => Arg::Pointer(offset),
                None => {
                    return Err(
                        fail(format!("{word:#x} is no address of the device's memory")).of(&param.name)
                    );
                }
            },
        });
    }
    Ok(out)
}

impl Arg {
    /// The value of a scalar.
    const fn value(self) -> Option<Value> {
        match self {
            Arg::Pointer(_) => None,
            Arg::Int(x) => Some(Value::Int(x)),
            Arg::Float(x) => Some(Value::Float(x)),
        }
    }
}
