//! Findings: violations by a kernel, found by the parser, the verifier, the planner of buffers or the
//! simulator.

use super::{Program, SourceId};
use headwater_core::graph::Origin;
use headwater_core::{Code, Error};
use std::fmt;

/// Rules that a kernel can break. The code never changes its meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// HW-A001: a program is malformed: names, types, variables without a value.
    Form,
    /// HW-A002: the chip has no such instruction, or not for these types.
    Unsupported,
    /// HW-A003: a field of an instruction is outside its range.
    Range,
    /// HW-A004: a memory of the core is too small for the buffers.
    Capacity,
    /// HW-A005: an access is outside its buffer.
    Bounds,
    /// HW-A006: an address or length is not aligned.
    Alignment,
    /// HW-A007: an operand is in a memory that the instruction cannot access.
    Memory,
    /// HW-A008: a byte is read that nothing has written.
    Uninitialised,
    /// HW-A009: operands overlap where the instruction does not allow it.
    Overlap,
    /// HW-A010: two accesses on different pipes, or dependent ones on one, are not ordered.
    Hazard,
    /// HW-A011: a flag is waited for that nobody sets, set twice, or left over.
    Flag,
    /// HW-A012: two cores access the same bytes of GM without order.
    Race,
    /// HW-A013: nothing goes on: cores or pipes wait for each other.
    Deadlock,
    /// HW-A014: a scalar is not defined: overflow, division by zero.
    Scalar,
    /// HW-A015: a result depends on the order in which cores come.
    Order,
    /// HW-A016: arguments do not fit the parameters.
    Arguments,
    /// HW-A017: a limit of the simulator on instructions is reached: a loop that never ends.
    Endless,
    /// HW-A018: an integer sum or product of the vector unit leaves its type, where chips may saturate it.
    Overflow,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 18] = [
        Rule::Form,
        Rule::Unsupported,
        Rule::Range,
        Rule::Capacity,
        Rule::Bounds,
        Rule::Alignment,
        Rule::Memory,
        Rule::Uninitialised,
        Rule::Overlap,
        Rule::Hazard,
        Rule::Flag,
        Rule::Race,
        Rule::Deadlock,
        Rule::Scalar,
        Rule::Order,
        Rule::Arguments,
        Rule::Endless,
        Rule::Overflow,
    ];

    /// The code as printed.
    pub fn as_str(self) -> &'static str {
        const CODES: [&str; 18] = [
            "HW-A001", "HW-A002", "HW-A003", "HW-A004", "HW-A005", "HW-A006", "HW-A007", "HW-A008",
            "HW-A009", "HW-A010", "HW-A011", "HW-A012", "HW-A013", "HW-A014", "HW-A015", "HW-A016",
            "HW-A017", "HW-A018",
        ];
        CODES[self as usize]
    }
}

/// One thing that is wrong with a kernel.
#[derive(Clone, PartialEq, Debug)]
pub struct Finding {
    /// The rule that is broken.
    pub rule: Rule,
    /// The violation, with expected and got.
    pub message: String,
    /// The kernel's name.
    pub kernel: String,
    /// The statement as the text form has it; empty if it is about none.
    pub statement: String,
    /// The buffer or parameter concerned; empty if none.
    pub buffer: String,
    /// The block that met it, in a run.
    pub block: Option<u32>,
    /// The operator concerned; empty if none is known.
    pub op: String,
    /// The line of the model concerned.
    pub origin: Option<Box<Origin>>,
}

/// Result with a finding.
pub type Result<T, E = Box<Finding>> = std::result::Result<T, E>;

impl Finding {
    /// A finding about a program.
    pub fn new(rule: Rule, program: &Program, message: impl Into<String>) -> Box<Finding> {
        Box::new(Finding {
            rule,
            message: message.into(),
            kernel: program.name.clone(),
            statement: String::new(),
            buffer: String::new(),
            block: None,
            op: String::new(),
            origin: None,
        })
    }

    /// The same, naming a statement and its source, unless one is named already.
    pub fn at(mut self: Box<Self>, program: &Program, statement: &str, source: SourceId) -> Box<Self> {
        if self.statement.is_empty() {
            self.statement = statement.to_string();
            if let Some(source) = program.source(source) {
                self.op = source.op.clone();
                self.origin = Some(Box::new(source.origin.clone()));
            }
        }
        self
    }

    /// The same, naming a buffer or parameter, unless one is named already.
    pub fn of(mut self: Box<Self>, buffer: &str) -> Box<Self> {
        if self.buffer.is_empty() {
            self.buffer = buffer.to_string();
        }
        self
    }

    /// The same, naming the block that met it.
    pub fn in_block(mut self: Box<Self>, block: u32) -> Box<Self> {
        self.block.get_or_insert(block);
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: kernel {}", self.rule.as_str(), self.kernel)?;
        if let Some(block) = self.block {
            write!(f, ", block {block}")?;
        }
        if !self.buffer.is_empty() {
            write!(f, ", buffer {}", self.buffer)?;
        }
        write!(f, ": {}", self.message)?;
        if !self.statement.is_empty() {
            write!(f, "\n  in `{}`", self.statement)?;
        }
        if !self.op.is_empty() {
            write!(f, "\n  of {}", self.op)?;
        }
        if let Some(origin) = self.origin.as_deref().filter(|o| **o != Origin::default()) {
            write!(f, "\n  at {origin}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Finding {}

impl From<Box<Finding>> for Error {
    fn from(finding: Box<Finding>) -> Error {
        let error = Error::new(Code::Device, finding.to_string().replace("\n  ", "; "));
        match &finding.origin {
            Some(origin) => error.at(origin),
            None => error,
        }
    }
}
