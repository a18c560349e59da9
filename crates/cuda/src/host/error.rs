//! Errors of the vendor's libraries.

use headwater_launch::{FileError, Site};
use std::path::PathBuf;
use std::sync::Arc;

/// Result of the host side.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure on the host side. Cloned where it stays: a context that failed gives the same error again.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// A library is not found, or cannot be opened.
    #[error("{name} {problem}; without it {without}{looked}\n  install it, or name its folder in HEADWATER_CUDA_PATH", looked = looked_in(places))]
    Library {
        /// Name of the file, of the newest version that is searched for.
        name: &'static str,
        /// The problem with it.
        problem: String,
        /// The consequence.
        without: &'static str,
        /// Folders that were searched.
        places: Vec<PathBuf>,
    },
    /// A library lacks functions.
    #[error("{} lacks {}: it is older or newer than what Headwater knows (CUDA 12.4 to 13)", path.display(), missing.join(", "))]
    Functions {
        /// The library.
        path: PathBuf,
        /// Names of the functions.
        missing: Vec<&'static str>,
    },
    /// A call failed.
    #[error("{call} failed: {text} ({code}){}", sites(site.as_deref(), near))]
    Call {
        /// The function.
        call: &'static str,
        /// Its result.
        code: i32,
        /// The library's words for it.
        text: String,
        /// The launch that it was about.
        site: Option<Arc<Site>>,
        /// Launches that were under way, the last ones.
        near: Vec<Arc<Site>>,
    },
    /// A kernel does not compile.
    #[error("kernel `{kernel}` does not compile for {arch}:\n{log}")]
    Compile {
        /// Its name.
        kernel: String,
        /// The architecture.
        arch: String,
        /// Messages of the compiler.
        log: String,
    },
    /// A file cannot be written or read.
    #[error(transparent)]
    File(#[from] FileError),
    /// An argument of Headwater's or of its caller's that is not valid.
    #[error("{0}")]
    Usage(String),
}

fn looked_in(places: &[PathBuf]) -> String {
    let list: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
    if list.is_empty() { String::new() } else { format!("\n  looked in {}", list.join(", ")) }
}

fn sites(site: Option<&Site>, near: &[Arc<Site>]) -> String {
    if let Some(site) = site {
        return format!("\n  in {site}");
    }
    let mut text = String::new();
    for site in near {
        text.push_str(&format!("\n  perhaps in {site}"));
    }
    if !near.is_empty() {
        text.push_str(
            "\n  set HEADWATER_CUDA_BLOCKING=1 to wait for each launch and name the one that fails",
        );
    }
    text
}

/// Results after which a context does nothing more: the driver gives them again to every call.
pub const STICKY: &[i32] = &[214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999];

impl Error {
    /// True if the context can do nothing more after it.
    pub fn is_sticky(&self) -> bool {
        matches!(self, Error::Call { code, .. } if STICKY.contains(code))
    }
}

impl From<Error> for headwater_core::Error {
    fn from(error: Error) -> headwater_core::Error {
        headwater_core::Error::new(headwater_core::Code::Device, error.to_string())
    }
}
