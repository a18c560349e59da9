//! The ranks of a run, as the command line meets them.

use super::console::say;
use crate::core::ranks::Transport;
use crate::runtime::TrainConfig;
use crate::runtime::config::EngineChoice;
use anyhow::Result;
use headwater_ranks::mpi::Mpi;
use headwater_ranks::{Engine, Error, Launcher, Limits, launcher};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// Meets the other ranks, if a launcher has started several. Rank 0 says how many there are, and where.
///
/// # Errors
/// If they do not form a world (HW-R013).
pub(super) fn meet(config: &TrainConfig) -> Result<Option<Arc<Engine>>> {
    let Some(found) = launcher::detect()? else {
        let message = "`ranks.engine` is mpi, and no launcher has started this process with others: start it with mpirun -n N \
                       headwater train …, or leave the setting out";
        return match config.ranks.engine {
            EngineChoice::Mpi => Err(Error::Start(message.into()).into()),
            EngineChoice::Auto => Ok(None),
        };
    };
    let seconds = |s: f64| Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX);
    let limits = Limits { silent: seconds(config.ranks.silent), stalled: seconds(config.ranks.stalled) };
    let engine = Engine::start(&found, limits)?;
    if engine.rank() == 0 {
        say(format!("{} ranks over {}", engine.ranks(), engine.library()));
        (0..engine.ranks()).for_each(|rank| say(format!("  {}", engine.named(rank))));
    }
    Ok(Some(engine))
}

/// Threads of a rank without `--threads`: the cores that the launcher has bound it to, or else its
/// share of the machine's.
pub(super) fn threads(cores: usize) -> usize {
    let listed = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let all = listed.lines().filter(|l| l.starts_with("processor")).count();
    let local = launcher::detect().ok().flatten().map_or(1, |l| l.local.unwrap_or(l.size));
    if cores < all { cores } else { (cores / local.max(1)).max(1) }
}

/// Engines, launcher and ranks of this machine, for `doctor`.
#[derive(Serialize)]
pub(super) struct Ranks {
    /// The launcher that has started this process, with the ranks that it has started.
    launcher: Option<String>,
    /// The libraries that are found.
    engines: Vec<Found>,
}

/// A library.
#[derive(Serialize)]
struct Found {
    library: String,
    version: String,
    interface: String,
}

impl Ranks {
    /// Looks for them. No rank is met.
    pub(super) fn detect() -> Ranks {
        let launcher = match launcher::detect() {
            Ok(found) => found.map(|l: Launcher| format!("{} of {} ranks ({})", l.kind, l.size, l.variable)),
            Err(e) => Some(e.to_string()),
        };
        let found =
            |m: Mpi| Found { library: m.name().into(), version: m.version(), interface: m.abi().to_string() };
        Ranks { launcher, engines: Mpi::all().into_iter().map(found).collect() }
    }

    /// Rows of a table: what, and what was found.
    pub(super) fn rows(&self) -> Vec<[String; 2]> {
        let launcher = self.launcher.clone().unwrap_or_else(|| "none has started this process".into());
        let mut rows = vec![["launcher".into(), launcher]];
        rows.extend(
            self.engines.iter().map(|e| [e.library.clone(), format!("{}, {}", e.version, e.interface)]),
        );
        if self.engines.is_empty() {
            rows.push(["MPI".into(), "not found: several ranks need Open MPI, MPICH or Intel MPI".into()]);
        }
        rows
    }
}
