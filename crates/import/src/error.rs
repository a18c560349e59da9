//! Typed errors of the importer: a stable code, what, where, and what to do.

pub(crate) use crate::escape::shown;

use crate::report::Unsupported;
use headwater_core::graph::Origin;
use std::fmt;

/// Result of the importer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an archive was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be opened or mapped.
    #[error("{}: {path}: {reason}", Code::Io)]
    Io {
        /// The file.
        path: String,
        /// The system's message.
        reason: std::io::Error,
    },
    /// The importer refuses what the file says.
    #[error("{code}: {message}{}", Where(origin))]
    Refused {
        /// Kind of fault.
        code: Code,
        /// The fault, with expected and got, and a remedy.
        message: String,
        /// The line of the model concerned.
        origin: Option<Box<Origin>>,
    },
    /// Operators, or uses of them, that cannot be imported: all of them at once.
    #[error("{code}: {0}", code = Code::Unsupported)]
    Unsupported(Unsupported),
    /// An operator refused its arguments.
    #[error("{0}")]
    Core(#[from] headwater_core::Error),
}

/// Stable error codes. The number never changes its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// HW-I001: the file cannot be opened or mapped.
    Io,
    /// HW-I002: the file is no zip, is cut short, or its directory contradicts its contents.
    Zip,
    /// HW-I003: entries overlap, share a name, or have names that lead out of the archive.
    Entries,
    /// HW-I004: an entry cannot be unpacked: method, encryption, checksum, or more data than the file
    /// justifies.
    Unpack,
    /// HW-I005: an entry that every export has is missing.
    Missing,
    /// HW-I006: the archive is not little-endian.
    ByteOrder,
    /// HW-I007: the archive or its schema is of a version this importer does not read.
    Version,
    /// HW-I008: the model's JSON is malformed, nested too deeply, or has a number out of range.
    Json,
    /// HW-I009: a tensor or object is stored as a pickle, which is never opened.
    Pickle,
    /// HW-I010: a name is unknown, used before its definition, or defined twice.
    Name,
    /// HW-I011: an element type or layout is unknown or not supported.
    DType,
    /// HW-I012: a stored tensor exceeds its storage.
    Weights,
    /// HW-I013: a symbolic expression cannot be read or has no value.
    Expression,
    /// HW-I014: a symbolic size is not given, or the value given is not allowed.
    Dimension,
    /// HW-I015: operators or uses of them are not supported.
    Unsupported,
    /// HW-I016: a result's dtype or shape differs from what PyTorch recorded.
    Mismatch,
    /// HW-I017: a node's arguments do not fit its operator.
    Argument,
    /// HW-I018: the signature contradicts the graph.
    Signature,
    /// HW-I019: an assertion of the model fails at the sizes given.
    Assertion,
    /// HW-I020: the graph would grow out of proportion to the file.
    Budget,
}

impl Code {
    /// The code as printed.
    pub const fn as_str(self) -> &'static str {
        match self {
            Code::Io => "HW-I001",
            Code::Zip => "HW-I002",
            Code::Entries => "HW-I003",
            Code::Unpack => "HW-I004",
            Code::Missing => "HW-I005",
            Code::ByteOrder => "HW-I006",
            Code::Version => "HW-I007",
            Code::Json => "HW-I008",
            Code::Pickle => "HW-I009",
            Code::Name => "HW-I010",
            Code::DType => "HW-I011",
            Code::Weights => "HW-I012",
            Code::Expression => "HW-I013",
            Code::Dimension => "HW-I014",
            Code::Unsupported => "HW-I015",
            Code::Mismatch => "HW-I016",
            Code::Argument => "HW-I017",
            Code::Signature => "HW-I018",
            Code::Assertion => "HW-I019",
            Code::Budget => "HW-I020",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Error {
    /// A refusal with a code and a sentence.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Error::Refused { code, message: message.into(), origin: None }
    }

    /// The same, naming the model's line, unless one is named already.
    pub fn at(mut self, at: &Origin) -> Self {
        match &mut self {
            Error::Refused { origin, .. } => {
                origin.get_or_insert_with(|| Box::new(at.clone()));
            }
            Error::Core(e) => {
                e.origin.get_or_insert_with(|| Box::new(at.clone()));
            }
            _ => {}
        }
        self
    }

    /// The stable code, e.g. `HW-I012`; the core's own (`HW-C...`) if an operator refused.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Io { .. } => Code::Io.as_str(),
            Error::Refused { code, .. } => code.as_str(),
            Error::Unsupported(_) => Code::Unsupported.as_str(),
            Error::Core(e) => e.code.as_str(),
        }
    }
}

struct Where<'a>(&'a Option<Box<Origin>>);

impl fmt::Display for Where<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |o| write!(f, "\n  at {o}"))
    }
}

/// A refusal from a code and a format: `refuse!(Json, "...")`.
macro_rules! refuse {
    ($code:ident, $($arg:tt)+) => {
        $crate::error::Error::new($crate::error::Code::$code, format!($($arg)+))
    };
}
pub(crate) use refuse;
