//! Typed errors of the runtime: what, where, and what to do. Every error carries a stable code.

use std::path::{Path, PathBuf};

/// Result of the runtime.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why training, evaluation, data or checkpoints failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// HW-C…: a graph, a plan or a device refused.
    #[error(transparent)]
    Core(#[from] headwater_core::Error),
    /// HW-R001: the system refused to read or write a file.
    #[error("HW-R001: {}: {cause}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's message; part of the message, hence no `source`.
        cause: std::io::Error,
    },
    /// HW-R002: a data file does not hold what its format demands.
    #[error("HW-R002: {}: {message}", path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// The fault.
        message: String,
    },
    /// HW-R003: the data does not fit the model's inputs.
    #[error("HW-R003: {0}")]
    Feed(String),
    /// HW-R004: a setting has a value that makes no sense.
    #[error("HW-R004: `{setting}`: {message}")]
    Config {
        /// Its name.
        setting: &'static str,
        /// The fault.
        message: String,
    },
    /// HW-R005: a checkpoint is damaged or belongs to another model.
    #[error("HW-R005: {}: {message}", path.display())]
    Checkpoint {
        /// The checkpoint.
        path: PathBuf,
        /// The fault.
        message: String,
    },
    /// HW-R006: gradients are not finite; nothing was updated in this step.
    #[error(
        "HW-R006: the gradients of step {step} are not finite ({detail}); the parameters are those before the step"
    )]
    NotFinite {
        /// Step, counted from 0.
        step: u64,
        /// The cause as far as it is known, loss, norm and the parameters concerned.
        detail: String,
        /// True if the parameters are to blame: the data are finite, and no loss scale is too large.
        diverged: bool,
    },
    /// HW-R007: the model's tensors are not what its graph says.
    #[error("HW-R007: {0}")]
    Model(String),
    /// HW-R008: the model could not be made for another batch size.
    #[error("HW-R008: the model cannot run on a batch of {batch}: {cause}")]
    Rebind {
        /// The batch size.
        batch: usize,
        /// Why; part of the message, hence no `source`.
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// HW-R009: a checkpoint is whole, but of a version that this one cannot read.
    #[error("HW-R009: {}: {message}; nothing was removed: resume with the version that wrote it", path.display())]
    Version {
        /// The checkpoint.
        path: PathBuf,
        /// The properties of it that are not known.
        message: String,
    },
    /// HW-R010: a training step needs more memory than there is.
    #[error(
        "HW-R010: a training step takes {} and the device has {} left ({held}); `headwater doctor --model MODEL` lists what needs less",
        bytes(*need), bytes(*free)
    )]
    Memory {
        /// Bytes that it takes.
        need: usize,
        /// Bytes that the device can still give.
        free: usize,
        /// Bytes by kind, the largest first.
        held: String,
    },
    /// HW-R011: every step was skipped.
    #[error(
        "HW-R011: all {steps} steps were skipped, because their gradients were not finite ({detail}): nothing was trained; \
         take bf16, more steps if the loss scale was still falling, or a lower first one (`amp.scaler.init`)"
    )]
    NoUpdate {
        /// Steps of this process.
        steps: u64,
        /// The first node that was not finite, and the loss scales that were tried.
        detail: String,
    },
    /// HW-R013: the ranks that were started do not make one run.
    #[error("HW-R013: {0}")]
    Ranks(String),
    /// HW-R014: ranks have computed other bits than each other. All of them end with this.
    #[error("HW-R014: {0}; the run ends, and goes on from its last checkpoint with --resume")]
    Drift(String),
    /// HW-R013: this rank ends with the error of rank 0, which reports it.
    #[error("HW-R013: it ends with the error that rank 0 reports")]
    AsRankZero,
}

/// Bytes for people: in the largest of KiB, MiB and GiB that they reach.
pub(crate) fn bytes(n: usize) -> String {
    let unit = [(30, "GiB"), (20, "MiB"), (10, "KiB")].into_iter().find(|(shift, _)| n >> shift > 0);
    unit.map_or(format!("{n} B"), |(shift, name)| format!("{:.2} {name}", n as f64 / (1u64 << shift) as f64))
}

impl Error {
    /// The stable code, as printed.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Core(e) => e.code.as_str(),
            Error::Io { .. } => "HW-R001",
            Error::Data { .. } => "HW-R002",
            Error::Feed(_) => "HW-R003",
            Error::Config { .. } => "HW-R004",
            Error::Checkpoint { .. } => "HW-R005",
            Error::NotFinite { .. } => "HW-R006",
            Error::Model(_) => "HW-R007",
            Error::Rebind { .. } => "HW-R008",
            Error::Version { .. } => "HW-R009",
            Error::Memory { .. } => "HW-R010",
            Error::NoUpdate { .. } => "HW-R011",
            Error::Ranks(_) | Error::AsRankZero => "HW-R013",
            Error::Drift(_) => "HW-R014",
        }
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
        move |cause| Error::Io { path: path.to_owned(), cause }
    }

    pub(crate) fn data(path: &Path, message: impl Into<String>) -> Error {
        Error::Data { path: path.to_owned(), message: message.into() }
    }

    pub(crate) fn config(setting: &'static str, message: impl Into<String>) -> Error {
        Error::Config { setting, message: message.into() }
    }

    pub(crate) fn checkpoint(path: &Path, message: impl Into<String>) -> Error {
        Error::Checkpoint { path: path.to_owned(), message: message.into() }
    }
}
