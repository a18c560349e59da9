//! Launches: a kernel program with the places of its arguments.

use crate::kernel::finding::Finding;
use crate::kernel::{Param, ParamKind, Program, Value};
use std::fmt;
use std::sync::Arc;

/// One launch of a kernel for a step of a plan.
#[derive(Clone, Debug)]
pub struct LoweredLaunch {
    /// The kernel.
    pub program: Arc<Program>,
    /// One argument for each parameter of the kernel, in order, but for the synchronisation address.
    pub args: Vec<LoweredArg>,
    /// Blocks: cores that take part, at least one.
    pub blocks: u32,
}

impl LoweredLaunch {
    /// Parameters with their arguments: all but the synchronisation address.
    pub fn arguments(&self) -> impl Iterator<Item = (&Param, &LoweredArg)> {
        self.program.params.iter().filter(|p| p.kind != ParamKind::Sync).zip(&self.args)
    }

    /// A value for each parameter: numbers as they are, 0 for addresses, the synchronisation address among them.
    pub fn values(&self) -> Vec<Value> {
        let mut args = self.arguments();
        let value = |param: &Param| match param.kind {
            ParamKind::Sync => Value::Int(0),
            _ => match args.next() {
                Some((_, LoweredArg::Float(x))) => Value::Float(*x),
                Some((_, LoweredArg::Int(x))) => Value::Int(*x),
                _ => Value::Int(0),
            },
        };
        self.program.params.iter().map(value).collect()
    }
}

/// An argument of a launch. Operands are numbered as in the step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum LoweredArg {
    /// Address of an operand that is read: its element of index 0 (`place.offset` and the layout's offset), and `bytes`
    /// behind it.
    Read {
        /// Position among the step's reads.
        operand: usize,
        /// Bytes behind the operand's first element.
        bytes: u64,
    },
    /// Address of an operand that is written.
    Write {
        /// Position among the step's writes.
        operand: usize,
        /// Bytes behind the operand's first element.
        bytes: u64,
    },
    /// Address in scratch memory, which all launches of a device's executable share, one after the other. It begins
    /// at 512 bytes.
    Scratch {
        /// Bytes from the start of the scratch memory.
        bytes: u64,
    },
    /// Address in the step's constants ([`Lowered::constants`]).
    Constant {
        /// Bytes from the start of the constants.
        bytes: u64,
    },
    /// Address of reports of indices out of range, eight i32 each: their number, the position of the first, the low and
    /// the high half of that index, and zeros. The device makes an error in data of the first.
    Fault {
        /// Indices are at least 0 and below it.
        limit: u64,
    },
    /// An integer.
    Int(i64),
    /// A float.
    Float(f32),
}

/// A step as launches, in order.
#[derive(Clone, Debug, Default)]
pub struct Lowered {
    /// The launches; each sees what the ones before it wrote.
    pub launches: Vec<LoweredLaunch>,
    /// Bytes of scratch memory that they need together.
    pub scratch: u64,
    /// Bytes that the launches only read. Devices write them once, when a plan is loaded.
    pub constants: Vec<u8>,
}

/// A step has no kernel: the construct that lacks one, for reports, such as `f64` or `i64 arithmetic`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal(pub String);

impl Refusal {
    /// A refusal with its reason.
    pub fn new(reason: impl Into<String>) -> Refusal {
        Refusal(reason.into())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A kernel that cannot be written for the shapes that are asked for.
impl From<Box<Finding>> for Refusal {
    fn from(finding: Box<Finding>) -> Refusal {
        Refusal(finding.message)
    }
}
