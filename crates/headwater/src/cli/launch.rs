//! `headwater launch`: starts ranks by the launcher that is installed, with the options that it needs, ends
//! it if it hangs, and starts them again after a fault.

use super::console::say;
use super::{Outcome, Status, Usage, signals};
use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time in which ranks end after one is lost; a launcher that runs on after it hangs.
const GRACE: Duration = Duration::from_secs(25);
/// Time in which a launcher ends after SIGTERM, and the ranks save.
const SAVES: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater launch -n 4 train model.pt2 --data train.parquet --steps 1000 --out run
  headwater launch -n 8 --hosts node-1:4,node-2:4 --restarts 3 train model.pt2 --config train.toml --out run

The launcher is mpirun, mpiexec or srun, whichever is found first; its command line is printed. With --restarts, ranks that were lost, or
that differ, are started again from the last checkpoint, without the host of the lost rank if others are left.")]
pub struct Args {
    /// Ranks to start.
    #[arg(short = 'n', long, value_name = "COUNT")]
    ranks: std::num::NonZeroUsize,
    /// Hosts, each with the most ranks that it takes (default: this machine).
    #[arg(long, value_name = "HOST[:RANKS],…", value_delimiter = ',')]
    hosts: Vec<Host>,
    /// Starts after a rank was lost, from the last checkpoint in --out of the command.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    restarts: u32,
    /// Launcher to use (default: mpirun, mpiexec or srun).
    #[arg(long, value_name = "PROGRAM")]
    launcher: Option<PathBuf>,
    /// Command of headwater that each rank runs.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// A host that takes ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Host {
    name: String,
    ranks: usize,
}

impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Host, String> {
        let (name, ranks) = text.split_once(':').unwrap_or((text, "1"));
        let count = ranks.parse().ok().filter(|n| *n > 0);
        let ranks = count.ok_or_else(|| format!("{ranks} is no number of ranks, as in node-1:4"))?;
        if name.is_empty() || name.starts_with('-') {
            return Err(format!("`{name}` is no name of a host"));
        }
        Ok(Host { name: name.into(), ranks })
    }
}

/// Launchers, by the options that they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    OpenMpi,
    Hydra,
    Intel,
    Slurm,
}

impl Kind {
    /// The kind of a program, by its answer to `--version`.
    fn of(answer: &str) -> Option<Kind> {
        let answer = answer.to_lowercase();
        let known = [("open mpi", Kind::OpenMpi), ("openrte", Kind::OpenMpi), ("prte", Kind::OpenMpi)];
        let known = known.into_iter().chain([("intel(r) mpi", Kind::Intel), ("hydra", Kind::Hydra)]);
        known.chain([("slurm", Kind::Slurm)]).find(|(word, _)| answer.contains(word)).map(|(_, kind)| kind)
    }

    /// Options for so many ranks on these hosts; `cores` of this machine, and whether the user is root.
    fn options(self, ranks: usize, hosts: &[Host], cores: usize, root: bool) -> Vec<String> {
        let mut options: Vec<String> = vec!["-n".into(), ranks.to_string()];
        let mut add = |all: &[&str]| options.extend(all.iter().map(|o| o.to_string()));
        let with_ranks: Vec<String> = hosts.iter().map(|h| format!("{}:{}", h.name, h.ranks)).collect();
        match self {
            Kind::OpenMpi => {
                // It kills one second after SIGTERM otherwise: a checkpoint may take longer.
                add(&["--mca", "odls_base_sigkill_timeout", "30"]);
                if root {
                    add(&["--allow-run-as-root"]);
                }
                match hosts {
                    [] if ranks > cores => add(&["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]),
                    [] => {}
                    _ => add(&["--host", &with_ranks.join(",")]),
                }
            }
            Kind::Hydra | Kind::Intel => {
                if self == Kind::Hydra {
                    // It ends the others otherwise before they can say which rank is lost.
                    add(&["-disable-auto-cleanup"]);
                }
                if !hosts.is_empty() {
                    add(&["-hosts", &with_ranks.join(",")]);
                }
            }
            Kind::Slurm => {
                add(&["--kill-on-bad-exit=1"]);
                let names: Vec<&str> = hosts.iter().map(|h| h.name.as_str()).collect();
                if !names.is_empty() {
                    add(&["--nodelist", &names.join(",")]);
                }
            }
        }
        options
    }
}

/// Findings in the output of the ranks of one start.
#[derive(Default)]
struct Said {
    /// When a rank was first reported as lost, or as different.
    lost: Option<Instant>,
    /// The host of the lost rank.
    host: Option<String>,
}

/// The host of a lost rank, if a line reports one.
fn lost(line: &str) -> Option<Option<String>> {
    if line.contains("error: HW-R014: ") {
        return Some(None);
    }
    let (_, rest) = line.split_once("error: HW-R012: rank ")?;
    Some(rest.split_once("(host ").and_then(|(_, h)| Some(h.split_once(',')?.0.to_string())))
}

pub fn run(args: &Args) -> Result<Outcome> {
    if !signals::is_own_process() {
        bail!("within Python, start ranks by their launcher: mpirun -n {} headwater …", args.ranks);
    }
    let (program, kind) = found(args.launcher.as_deref())?;
    let out = out(&args.command);
    if args.restarts > 0 && out.is_none() {
        bail!(Usage("--restarts needs checkpoints: give the command a folder with --out".into()));
    }
    let own = std::env::current_exe().context("cannot find this program")?;
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let stop = signals::stop()?;
    let (mut ranks, mut hosts, mut command) = (args.ranks.get(), args.hosts.clone(), args.command.clone());
    let room = |hosts: &[Host]| hosts.iter().map(|h| h.ranks).sum::<usize>();
    if !hosts.is_empty() && room(&hosts) < ranks {
        bail!(Usage(format!(
            "{ranks} ranks, and the hosts take {}: say how many each takes, as node-1:4",
            room(&hosts)
        )));
    }
    for start in 0.. {
        let options = kind.options(ranks, &hosts, cores, root());
        let line = [program.as_os_str()].into_iter().chain(options.iter().map(OsStr::new));
        let line = line.chain([own.as_os_str()]).chain(command.iter().map(OsString::as_os_str));
        say(line.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" "));
        let mut launcher = Command::new(&program);
        launcher.args(&options).arg(&own).args(&command).stderr(Stdio::piped());
        let launcher = launcher.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let (status, said) = watched(launcher, stop)?;
        if status.success() {
            return Outcome::of((), Status::Done);
        }
        let code = code(status);
        if stop.load(Ordering::Relaxed) {
            return Outcome::of((), Status::Interrupted);
        }
        // The program's own errors would come again; others come from a signal, which hydra gives as it is.
        let again = said.lost.is_some() || !matches!(code, 1..=3 | 101);
        if !again || start >= args.restarts {
            return Outcome::of((), Status::Of(code));
        }
        if let Some(host) = said.host.filter(|_| hosts.len() > 1) {
            hosts.retain(|h| h.name != host);
            ranks = ranks.min(room(&hosts)).max(1);
        }
        let saved = out.as_deref().is_some_and(has_checkpoint);
        if saved && !command.iter().any(|a| a == "--resume") {
            command.push("--resume".into());
        }
        let from = if saved { "its last checkpoint" } else { "the beginning: nothing was saved" };
        say(format!("start {} of {}: {ranks} ranks, from {from}", start + 2, args.restarts + 1));
    }
    Outcome::of((), Status::Failed)
}

/// Passes on what a launcher says until it ends; ends it if it hangs, or if that is requested.
fn watched(mut launcher: Child, stop: &AtomicBool) -> Result<(ExitStatus, Said)> {
    let said = Arc::new(Mutex::new(Said::default()));
    let (lines, shared) = (launcher.stderr.take(), said.clone());
    let reader = std::thread::spawn(move || {
        for line in lines.into_iter().flat_map(|l| BufReader::new(l).split(b'\n')) {
            let Ok(line) = line else { return };
            let line = String::from_utf8_lossy(&line);
            if let Some(host) = lost(&line) {
                let mut said = shared.lock().unwrap_or_else(PoisonError::into_inner);
                said.lost.get_or_insert_with(Instant::now);
                said.host = said.host.take().or(host);
            }
            say(&*line);
        }
    });
    let mut asked: Option<Instant> = None;
    let status = loop {
        if let Some(status) = launcher.try_wait()? {
            break status;
        }
        let lost = said.lock().unwrap_or_else(PoisonError::into_inner).lost;
        let hangs = lost.is_some_and(|since| since.elapsed() > GRACE);
        match asked {
            None if hangs || stop.load(Ordering::Relaxed) => {
                if hangs {
                    say("the launcher hangs: it is ended");
                }
                terminate(launcher.id());
                asked = Some(Instant::now());
            }
            Some(since) if since.elapsed() > SAVES => launcher.kill()?,
            _ => {}
        }
        std::thread::sleep(LOOK);
    };
    // Processes that a launcher has left may hold the pipe: they are not waited for.
    let until = Instant::now() + Duration::from_secs(2);
    while !reader.is_finished() && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
    let said = std::mem::take(&mut *said.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((status, said))
}

/// The launcher and its kind.
fn found(named: Option<&Path>) -> Result<(PathBuf, Kind)> {
    let usual = ["mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.mpich", "srun"].map(Path::new);
    let all: Vec<&Path> = named.map_or_else(|| usual.to_vec(), |p| vec![p]);
    for program in &all {
        let Ok(output) = Command::new(program).arg("--version").stdin(Stdio::null()).output() else {
            continue;
        };
        let answer = [output.stdout, output.stderr].concat();
        if let Some(kind) = Kind::of(&String::from_utf8_lossy(&answer)) {
            return Ok((program.to_path_buf(), kind));
        }
    }
    let names: Vec<String> = all.iter().map(|p| p.display().to_string()).collect();
    bail!(
        "no launcher of ranks: {} is none of Open MPI, MPICH, Intel MPI or Slurm that answers to --version; install one, such as the \
         package openmpi-bin or mpich, or name it with --launcher",
        names.join(", ")
    )
}

/// The folder of a command's `--out`.
fn out(command: &[OsString]) -> Option<PathBuf> {
    command.iter().enumerate().find_map(|(i, word)| match word.to_str()? {
        "--out" => command.get(i + 1).map(PathBuf::from),
        word => word.strip_prefix("--out=").map(PathBuf::from),
    })
}

fn has_checkpoint(out: &Path) -> bool {
    let names = std::fs::read_dir(out).into_iter().flatten().flatten().map(|e| e.file_name());
    names.into_iter().any(|n| n.to_string_lossy().starts_with("step-"))
}

/// Asks a process to end.
fn terminate(process: u32) {
    // One that has just ended is no failure.
    let _ = Command::new("kill").arg("-TERM").arg(process.to_string()).stderr(Stdio::null()).status();
}

/// True if the user is root, for whom Open MPI requires an option.
fn root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("Uid:"));
    line.is_some_and(|l| l.split_whitespace().nth(1) == Some("0"))
}

/// The exit status of a process, as a shell has it.
fn code(status: ExitStatus) -> u8 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return u8::try_from(128 + signal).unwrap_or(u8::MAX);
    }
    status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_known_by_their_versions_and_get_their_options() {
        for (answer, kind) in [
            ("mpirun (Open MPI) 4.1.4\n", Some(Kind::OpenMpi)),
            ("HYDRA build details:\n    Version: 4.0.2", Some(Kind::Hydra)),
            ("slurm 23.02.6", Some(Kind::Slurm)),
            ("GNU coreutils", None),
        ] {
            assert_eq!(Kind::of(answer), kind, "{answer}");
        }
        let hosts: Vec<Host> = ["a:2", "b"].map(|h| h.parse().unwrap()).into();
        let options = |kind: Kind, hosts: &[Host]| kind.options(3, hosts, 2, true).join(" ");
        let open = options(Kind::OpenMpi, &[]);
        for word in ["-n 3", "sigkill_timeout 30", "--allow-run-as-root", "--oversubscribe"] {
            assert!(open.contains(word), "{open}");
        }
        assert!(options(Kind::OpenMpi, &hosts).ends_with("--host a:2,b:1"));
        assert_eq!(options(Kind::Hydra, &hosts), "-n 3 -disable-auto-cleanup -hosts a:2,b:1");
        assert_eq!(options(Kind::Intel, &hosts), "-n 3 -hosts a:2,b:1");
        assert_eq!(options(Kind::Slurm, &hosts), "-n 3 --kill-on-bad-exit=1 --nodelist a,b");
        for wrong in ["", "a:0", "a:x", "-x"] {
            assert!(wrong.parse::<Host>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_host_of_a_lost_rank_is_read_from_the_line() {
        let line = "[1,0]<stderr>: error: HW-R012: rank 2 (host node-7, process 4711) has died; the run ends";
        assert_eq!(lost(line), Some(Some("node-7".into())));
        assert_eq!(lost("error: HW-R014: the weights of ranks differ"), Some(None));
        assert_eq!(lost("error: HW-R004: `steps`"), None);
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(out(&words("train m --out run --steps 2")), Some("run".into()));
        assert_eq!(out(&words("train m --out=run")), Some("run".into()));
        assert_eq!(out(&words("train m")), None);
    }
}
