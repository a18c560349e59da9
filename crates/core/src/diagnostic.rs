//! Typed errors of the core: what, where, and what to do. Every error carries a stable code.

use crate::origin::Origin;
use std::fmt;

/// Why a graph, an operator or a pass was refused.
#[derive(Debug, Clone, PartialEq)]
pub struct Error {
    /// Stable code, for scripts and documentation.
    pub code: Code,
    /// The fault, with expected and got.
    pub message: String,
    /// ATen name of the operator concerned.
    pub op: Option<&'static str>,
    /// The line of the model concerned.
    pub origin: Option<Box<Origin>>,
}

/// Stable error codes. The number never changes its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// HW-C001: an operator got inputs of a shape it does not take.
    Shape,
    /// HW-C002: an operator got inputs of a dtype it does not take.
    DType,
    /// HW-C003: an attribute is missing or has a value outside its range.
    Attribute,
    /// HW-C004: an operator is not known or not supported in this form.
    Unsupported,
    /// HW-C005: a value in the data is outside its range (an index, a class).
    Value,
    /// HW-C006: a graph breaks an invariant of the form.
    Graph,
    /// HW-C007: a gradient is needed where none exists.
    Gradient,
    /// HW-C008: a text form does not parse.
    Parse,
    /// HW-C009: sizes exceed what can be addressed.
    Size,
    /// HW-C010: a plan breaks an invariant (overlapping live values, a view outside its segment).
    Plan,
    /// HW-C011: a device refused or failed.
    Device,
}

impl Code {
    /// The code as printed.
    pub const fn as_str(self) -> &'static str {
        match self {
            Code::Shape => "HW-C001",
            Code::DType => "HW-C002",
            Code::Attribute => "HW-C003",
            Code::Unsupported => "HW-C004",
            Code::Value => "HW-C005",
            Code::Graph => "HW-C006",
            Code::Gradient => "HW-C007",
            Code::Parse => "HW-C008",
            Code::Size => "HW-C009",
            Code::Plan => "HW-C010",
            Code::Device => "HW-C011",
        }
    }
}

/// Result of the core.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with a code and a sentence.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Error { code, message: message.into(), op: None, origin: None }
    }

    /// The same, naming the operator, unless one is named already.
    pub fn in_op(mut self, op: &'static str) -> Self {
        self.op.get_or_insert(op);
        self
    }

    /// The same, naming the model's line, unless one is named already.
    pub fn at(mut self, origin: &Origin) -> Self {
        self.origin.get_or_insert_with(|| Box::new(origin.clone()));
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.code.as_str())?;
        if let Some(op) = self.op {
            write!(f, "{op}: ")?;
        }
        f.write_str(&self.message)?;
        if let Some(o) = self.origin.as_deref().filter(|o| **o != Origin::default()) {
            write!(f, "\n  at {o}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// Returns early with an [`Error`] unless a condition holds: `ensure!(cond, Shape, "format {}", x)`.
#[macro_export]
macro_rules! ensure {
    ($cond:expr, $code:ident, $($arg:tt)+) => {
        match $cond {
            true => {}
            false => {
                return Err($crate::diagnostic::Error::new($crate::diagnostic::Code::$code, format!($($arg)+)))
            }
        }
    };
}

/// An [`Error`] from a code and a format: `fail!(Shape, "...")`.
#[macro_export]
macro_rules! fail {
    ($code:ident, $($arg:tt)+) => {
        $crate::diagnostic::Error::new($crate::diagnostic::Code::$code, format!($($arg)+))
    };
}
