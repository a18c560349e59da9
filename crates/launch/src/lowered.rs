//! Launches: a kernel program with the places of its arguments.

use std::fmt::{self, Debug};
use std::sync::Arc;

/// A kernel as a device writes it, before it is compiled.
pub trait Program: Clone + Debug + Send + Sync + 'static {
    /// Its symbol.
    fn name(&self) -> &str;

    /// The same under another symbol.
    fn renamed(&self, name: String) -> Self;

    /// All that it computes, as text, without the lines of the model: programs with the same text are one.
    fn text(&self) -> String;

    /// The parameters that a launch gives arguments for, in order.
    fn parameters(&self) -> Vec<Parameter>;
}

/// A parameter of a kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// Its name, for errors.
    pub name: String,
    /// Its kind.
    pub kind: ParameterKind,
}

/// Kinds of parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParameterKind {
    /// The address of memory.
    Pointer {
        /// True if the kernel writes there.
        writes: bool,
        /// Bytes of the operand.
        own: u64,
        /// Bytes that the kernel may touch, at least the operand's: whole blocks may reach beyond it.
        touched: u64,
    },
    /// An integer of 64 bits.
    Int,
    /// An f32.
    Float,
}

impl Parameter {
    /// Bytes that the memory of a pointer must have; 0 for numbers.
    pub fn touched(&self) -> u64 {
        match self.kind {
            ParameterKind::Pointer { touched, .. } => touched,
            _ => 0,
        }
    }
}

/// One launch of a kernel for a step of a plan.
#[derive(Clone, Debug)]
pub struct LoweredLaunch<P> {
    /// The kernel.
    pub program: Arc<P>,
    /// One argument for each parameter of the kernel, in order, but for the synchronisation address.
    pub args: Vec<LoweredArg>,
    /// Blocks: cores that take part, at least one.
    pub blocks: u32,
}

/// An argument of a launch. Operands are numbered as in the step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum LoweredArg {
    /// Address of an operand that is read: its element of index 0 (`place.offset` and the layout's offset),
    /// plus `bytes`.
    Read {
        /// Position among the step's reads.
        operand: usize,
        /// Byte offset from the operand's first element.
        bytes: u64,
    },
    /// Address of an operand that is written.
    Write {
        /// Position among the step's writes.
        operand: usize,
        /// Byte offset from the operand's first element.
        bytes: u64,
    },
    /// Address in scratch memory, which all launches of a device's executable share sequentially. It begins
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
    /// Address of reports of indices out of range, eight i32 each: their number, the position of the first,
    /// the low and the high half of that index, and zeros. The device makes an error in data of the first.
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
#[derive(Clone, Debug)]
pub struct Lowered<P> {
    /// The launches; each sees what the ones before it wrote.
    pub launches: Vec<LoweredLaunch<P>>,
    /// Bytes of scratch memory that they share.
    pub scratch: u64,
    /// Bytes that the launches only read. Devices write them once, when a plan is loaded.
    pub constants: Vec<u8>,
}

impl<P> Default for Lowered<P> {
    fn default() -> Self {
        Lowered { launches: Vec::new(), scratch: 0, constants: Vec::new() }
    }
}

/// A step as a call of a vendor's library, with launches before and after it.
#[derive(Clone, Debug)]
pub struct LibraryStep<O, P> {
    /// The call, ready.
    pub operator: O,
    /// Name of the library's function.
    pub function: &'static str,
    /// Its operands.
    pub operands: Vec<LibraryOperand>,
    /// Launches, with the scratch memory and the constants of all.
    pub lowered: Lowered<P>,
    /// Launches before the call.
    pub before: usize,
}

/// An operand of a library's function.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LibraryOperand {
    /// Its address.
    pub arg: LoweredArg,
    /// Its bytes.
    pub bytes: usize,
    /// True if the function writes it.
    pub written: bool,
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

/// A refusal of an operator's own rules.
impl From<headwater_core::Error> for Refusal {
    fn from(error: headwater_core::Error) -> Refusal {
        Refusal(error.message)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
