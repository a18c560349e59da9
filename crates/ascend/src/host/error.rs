//! Errors of the host side: what failed, in which kernel and line of the model, what the vendor's library
//! says, and what to do.

use super::codes::{self, Status};
use headwater_launch::FileError;
pub use headwater_launch::Site;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Result of the host side.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something on the host side failed. Cloned where it stays: a device that failed gives the same error
/// again.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// HW-A101: a library is missing or does not open.
    #[error(
        "HW-A101: {}: {cause}\n  to do: source CANN's set_env.sh; `headwater doctor` lists what is missing",
        path.display()
    )]
    Library {
        /// The library.
        path: PathBuf,
        /// Message of the dynamic linker.
        cause: String,
    },
    /// HW-A102: a library lacks a function.
    #[error(
        "HW-A102: {} has no function {symbol}\n  to do: install CANN 8.0 or later; `headwater doctor` shows the version found",
        path.display()
    )]
    Symbol {
        /// The library.
        path: PathBuf,
        /// The first function that is missing.
        symbol: String,
    },
    /// HW-A103: a call was refused.
    #[error("HW-A103: {call} on {device}: {}{}\n  to do: {}", codes::describe(*status), vendor_text(detail), codes::advice(*status))]
    Call {
        /// The function.
        call: &'static str,
        /// The device, e.g. `ascend:0`, or the library.
        device: String,
        /// Its return code.
        status: Status,
        /// The vendor's text.
        detail: String,
    },
    /// HW-A104: the device has not enough memory.
    #[error(
        "HW-A104: {device} has no room for {bytes} bytes: {free} of {total} bytes are free{}\n  to do: {}",
        vendor_text(detail),
        codes::advice(codes::MEMORY_ALLOCATION)
    )]
    OutOfMemory {
        /// The device.
        device: String,
        /// Bytes requested.
        bytes: usize,
        /// Bytes free, as the device says.
        free: usize,
        /// Bytes of the device.
        total: usize,
        /// The vendor's text.
        detail: String,
    },
    /// HW-A105: a kernel failed.
    #[error("HW-A105: on {device}: {} in {}{}\n  to do: {}", codes::describe(*status), list_sites(sites, *others), vendor_text(detail), advice(*status, sites))]
    Kernel {
        /// The device.
        device: String,
        /// Code that the device reported.
        status: Status,
        /// The launch at fault; several where the runtime does not distinguish them, in the order of
        /// launching.
        sites: Vec<Arc<Site>>,
        /// Further launches that may be at fault.
        others: usize,
        /// The vendor's text.
        detail: String,
    },
    /// HW-A106: work was not done in time.
    #[error("HW-A106: {device} did not finish within {limit:?}: waiting for {}{}\n  to do: {}", list_sites(sites, *others), vendor_text(detail), advice(codes::STREAM_SYNC_TIMEOUT, sites))]
    Timeout {
        /// The device.
        device: String,
        /// Limit of the wait.
        limit: Duration,
        /// Launches that were not done, oldest first.
        sites: Vec<Arc<Site>>,
        /// Further launches after them.
        others: usize,
        /// The vendor's text.
        detail: String,
    },
    /// HW-A107: the device is lost.
    #[error("HW-A107: {device} is lost: {call}: {}{}\n  to do: {}", codes::describe(*status), vendor_text(detail), codes::advice(*status))]
    Lost {
        /// The device.
        device: String,
        /// The call that met it.
        call: &'static str,
        /// Its return code.
        status: Status,
        /// The vendor's text.
        detail: String,
    },
    /// HW-A108: a unit of kernels did not compile.
    #[error("HW-A108: {tool} did not compile {unit} (kernels {kernels}): {cause}\n{log}")]
    Compile {
        /// The compiler.
        tool: String,
        /// The unit.
        unit: String,
        /// Its kernels.
        kernels: String,
        /// Exit status, time-out or missing output.
        cause: String,
        /// The end of what the compiler said.
        log: String,
    },
    /// HW-A109: there is no compiler for the chip.
    #[error(
        "HW-A109: no compiler for {chip}: {missing}\n  to do: install the CANN toolkit and source its set_env.sh; `headwater doctor` shows where was looked"
    )]
    NoCompiler {
        /// The chip.
        chip: String,
        /// The tool that was not found.
        missing: String,
    },
    /// HW-A110: something was asked that cannot be: a range outside of memory, a kernel that is not in a
    /// binary.
    #[error("HW-A110: {0}")]
    Usage(String),
    /// HW-A111: a file could not be read or written.
    #[error("HW-A111: {}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Message of the system.
        cause: String,
    },
}

/// The vendor's text as a line of an error.
fn vendor_text(detail: &str) -> String {
    if detail.is_empty() {
        String::new()
    } else {
        format!("\n  CANN says: {}", detail.replace('\n', "\n    "))
    }
}

/// The advice on a failure of launches; the simulator finds nothing in the vendor's operators.
fn advice(status: Status, sites: &[Arc<Site>]) -> String {
    let own = codes::advice(status);
    match sites.iter().any(|site| site.kernel.starts_with("aclnn")) {
        true => format!("use --ascend-ops own if it is CANN's operator that fails, else {own}"),
        false => own.into(),
    }
}

/// Launches as a list in an error.
fn list_sites(sites: &[Arc<Site>], others: usize) -> String {
    match sites {
        [] => "no launch that is known: a copy or an event".into(),
        [one] if others == 0 => one.to_string(),
        many => {
            let mut text = format!("one of {} launches:", many.len() + others);
            for site in many {
                text += &format!("\n  {}", site.to_string().replace('\n', "\n  "));
            }
            if others > 0 {
                text += &format!("\n  and {others} more");
            }
            text + "\n  (HEADWATER_ASCEND_BLOCKING=1 waits for every launch and names the one)"
        }
    }
}

impl Error {
    /// The stable code, as printed.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Library { .. } => "HW-A101",
            Error::Symbol { .. } => "HW-A102",
            Error::Call { .. } => "HW-A103",
            Error::OutOfMemory { .. } => "HW-A104",
            Error::Kernel { .. } => "HW-A105",
            Error::Timeout { .. } => "HW-A106",
            Error::Lost { .. } => "HW-A107",
            Error::Compile { .. } => "HW-A108",
            Error::NoCompiler { .. } => "HW-A109",
            Error::Usage(_) => "HW-A110",
            Error::File { .. } => "HW-A111",
        }
    }

    /// True if the device can do nothing more after it.
    pub fn is_sticky(&self) -> bool {
        matches!(self, Error::Kernel { .. } | Error::Timeout { .. } | Error::Lost { .. })
    }

    pub(super) fn symbol(path: &Path, symbol: &str) -> Error {
        Error::Symbol { path: path.to_owned(), symbol: symbol.to_owned() }
    }

    pub(super) fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
        move |cause| Error::File { path: path.to_owned(), cause: cause.to_string() }
    }
}

impl From<FileError> for Error {
    fn from(FileError { path, cause }: FileError) -> Error {
        Error::File { path, cause }
    }
}

impl From<Error> for headwater_core::Error {
    fn from(error: Error) -> headwater_core::Error {
        headwater_core::Error::new(headwater_core::Code::Device, error.to_string())
    }
}
