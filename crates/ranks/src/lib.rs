//! The ranks of a run: how a process finds that it is one of several, and the transport between them
//! ([`headwater_core::ranks::Transport`]).
//!
//! MPI is opened at run time. One table of functions serves the three binary interfaces in use
//! ([`mpi::Abi`]); the launcher's variables say which library belongs to it ([`launcher`]). One thread makes
//! all calls of MPI ([`engine`]): it carries exchanges, receives the heartbeats of the other ranks, and ends
//! the process when one of them is lost ([`health`]). [`memory`] is a transport within one process. Adds
//! nothing up, and knows no plan.

pub mod engine;
pub mod health;
pub mod launcher;
pub mod memory;
pub mod mpi;

pub use engine::{Engine, Limits};
pub use launcher::{Kind, Launcher};
pub use memory::World;

/// Why ranks do not form a world, or lose it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// HW-R012: a rank is lost, stopped or does something else.
    #[error("HW-R012: {0}")]
    Lost(String),
    /// HW-R013: ranks that were started do not make one run.
    #[error("HW-R013: {0}")]
    Start(String),
}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Exit status of a process whose run has lost a rank.
pub const LOST: i32 = 4;
