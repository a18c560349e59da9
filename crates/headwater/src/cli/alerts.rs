//! Alerts of a run: a message, an event of the log, and a command, once for each reason.

use super::console::say;
use crate::runtime::Error;
use crate::runtime::config::AlertConfig;
use crate::runtime::log::JsonLines;
use crate::runtime::trainer::{Alert, Event, Observer, Start};
use std::collections::VecDeque;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time that a command may take. The documentation of `alert.command` states it.
const LIMIT: Duration = Duration::from_secs(60);
/// Time between two looks at a command that runs.
const LOOK: Duration = Duration::from_millis(10);
/// Time for the last messages of a command that has ended.
const REST: Duration = Duration::from_millis(500);
/// Bytes of a command's messages that are kept, the last ones.
const KEPT: usize = 4096;
/// Characters of a failed command's messages that are shown, the last ones.
const SHOWN: usize = 400;

/// Watches runs, sequentially.
pub(super) struct Alerts {
    /// True if the command line lets the settings' command run.
    allowed: bool,
    watched: Option<Watched>,
    /// Commands that were started.
    commands: Commands,
}

type Commands = Arc<Mutex<Vec<JoinHandle<()>>>>;

/// The run that goes on, and the thread that sees when it does not.
struct Watched {
    run: Arc<Run>,
    thread: Option<JoinHandle<()>>,
}

/// A run, as both threads see it.
struct Run {
    settings: AlertConfig,
    allowed: bool,
    /// Its folder, for the command; its log.
    folder: PathBuf,
    log: Option<PathBuf>,
    commands: Commands,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    step: u64,
    loss: Option<f64>,
    /// When something was done last.
    done: Instant,
    raised: Vec<Alert>,
    over: bool,
}

impl Alerts {
    /// Commands of settings run only if they are `allowed`: files of settings may come from others.
    pub(super) fn new(allowed: bool) -> Alerts {
        Alerts { allowed, watched: None, commands: Commands::default() }
    }

    fn begin(&mut self, start: &Start) {
        self.end();
        let settings = start.config.alert.clone();
        if !settings.command.is_empty() && !self.allowed {
            say(
                "warning: `alert.command` is not run, as a file of settings may come from somebody else; --allow-command \
                 allows it",
            );
        }
        let log = start.config.log.json.clone();
        let folder = start.config.checkpoint.dir.clone();
        let folder = folder.or_else(|| Some(log.as_ref()?.parent()?.to_path_buf())).unwrap_or_default();
        let state = State { step: 0, loss: None, done: Instant::now(), raised: Vec::new(), over: false };
        let run = Arc::new(Run {
            allowed: self.allowed,
            folder: std::path::absolute(&folder).unwrap_or(folder),
            log,
            commands: self.commands.clone(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            settings,
        });
        let watching = run.clone();
        let thread = run.settings.no_progress_minutes.and_then(|minutes| {
            let limit = Duration::try_from_secs_f64(60.0 * minutes).ok()?;
            let thread = std::thread::Builder::new().name("alerts".into());
            thread.spawn(move || watching.watch(limit)).ok()
        });
        self.watched = Some(Watched { run, thread });
    }

    /// Ends the watch of a run.
    fn end(&mut self) {
        let Some(Watched { run, thread }) = self.watched.take() else { return };
        run.state.lock().unwrap_or_else(PoisonError::into_inner).over = true;
        run.changed.notify_all();
        thread.into_iter().for_each(|t| drop(t.join()));
    }

    /// A run has ended in an error: an alert if that was numbers that are not finite.
    pub(super) fn failed(&mut self, error: &anyhow::Error) {
        let not_finite = |e: &Error| matches!(e, Error::NotFinite { .. });
        if error.chain().any(|e| e.downcast_ref().is_some_and(not_finite))
            && let Some(Watched { run, .. }) = &self.watched
        {
            run.loss(f64::NAN);
        }
        self.end();
    }
}

impl Drop for Alerts {
    fn drop(&mut self) {
        self.end();
        let commands = std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner));
        // Each ends within its limit.
        commands.into_iter().for_each(|command| drop(command.join()));
    }
}

impl Observer for Alerts {
    fn essential(&self) -> bool {
        false
    }

    fn event(&mut self, event: &Event) -> crate::runtime::Result<()> {
        match event {
            Event::Start(start) => self.begin(start),
            Event::End { .. } | Event::Interrupted { .. } => self.end(),
            _ => {}
        }
        let Some(Watched { run, .. }) = &self.watched else { return Ok(()) };
        let mut state = run.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.done = Instant::now();
        match event {
            Event::Resume { step, .. } => state.step = *step,
            Event::Step(s) => (state.step, state.loss) = (s.step, Some(s.loss)),
            _ => {}
        }
        drop(state);
        if let Event::Step(s) = event {
            run.loss(s.loss);
        }
        Ok(())
    }
}

impl Run {
    fn loss(&self, loss: f64) {
        if let Some(limit) = self.settings.loss_above.filter(|limit| loss.is_nan() || loss > *limit) {
            self.raise(Alert::LossAbove, Some(loss), |_| {
                format!("the loss is {loss}, higher than `alert.loss_above` ({limit})")
            });
        }
    }

    /// Waits for the end of the run, and raises an alert when nothing was done for `limit`.
    fn watch(&self, limit: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.over {
            let idle = state.done.elapsed();
            if idle >= limit {
                let loss = state.loss;
                drop(state);
                return self.raise(Alert::NoProgress, loss, |step| {
                    let minutes = self.settings.no_progress_minutes.unwrap_or_default();
                    format!("nothing was done after step {step} for {minutes} minutes (`alert.no_progress_minutes`)")
                });
            }
            let waited = self.changed.wait_timeout(state, limit - idle);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Raises an alert, unless this run has raised it before.
    fn raise(&self, alert: Alert, loss: Option<f64>, words: impl Fn(u64) -> String) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.raised.contains(&alert) {
            return;
        }
        state.raised.push(alert);
        let step = state.step;
        drop(state);
        let message = words(step);
        say(format!("warning: alert at step {step}: {message}"));
        let event = Event::Alert { alert, step, loss, message: message.clone() };
        note(self.log.as_ref(), &event);
        let [program, arguments @ ..] = &self.settings.command[..] else { return };
        if !self.allowed {
            return;
        }
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("HEADWATER_ALERT", alert.name())
            .env("HEADWATER_ALERT_STEP", step.to_string())
            .env("HEADWATER_ALERT_LOSS", loss.map_or(String::new(), |l| l.to_string()))
            .env("HEADWATER_ALERT_RUN", &self.folder)
            .env("HEADWATER_ALERT_MESSAGE", message)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // Ctrl-C is for the run, not for a command that it starts. The group is ended as one.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let (log, program) = (self.log.clone(), program.clone());
        let work = move || {
            let why = match limited(command, LIMIT) {
                Ok((Some(status), _)) if status.success() => return,
                Ok((status, said)) => {
                    let how = status.map_or_else(
                        || format!("it was ended after {} seconds", LIMIT.as_secs()),
                        |status| status.to_string(),
                    );
                    format!("{how}{}{said}", if said.is_empty() { "" } else { ": " })
                }
                Err(e) => format!("it cannot be started: {e}"),
            };
            let message = format!("the command of the alert `{}`, {program}, failed: {why}", alert.name());
            say(format!("warning: {message}"));
            note(log.as_ref(), &Event::Warning { message });
        };
        if let Ok(thread) = std::thread::Builder::new().name("alert".into()).spawn(work) {
            self.commands.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
    }
}

/// Runs a command that has a group of its own, for at most `limit`. Returns its status, `None` if it was
/// ended, and the end of what it wrote to standard error.
fn limited(mut command: Command, limit: Duration) -> std::io::Result<(Option<ExitStatus>, String)> {
    let begin = Instant::now();
    let mut child = command.spawn()?;
    let said = Arc::new(Mutex::new(VecDeque::new()));
    let reader = child.stderr.take().and_then(|stderr| {
        let said = said.clone();
        let read = move || keep_end(stderr, &said);
        std::thread::Builder::new().name("alert messages".into()).spawn(read).ok()
    });
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if begin.elapsed() >= limit {
            end(&mut child);
            break None;
        }
        std::thread::sleep(LOOK);
    };
    // A process that has left the group may keep the pipe open: it is not waited for.
    let ended = Instant::now();
    while reader.as_ref().is_some_and(|r| !r.is_finished()) && ended.elapsed() < REST {
        std::thread::sleep(LOOK);
    }
    let said: Vec<u8> = said.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
    let said = String::from_utf8_lossy(&said);
    let said = said.trim();
    let shown = said.char_indices().rev().nth(SHOWN - 1).map_or(0, |(at, _)| at);
    Ok((status, said[shown..].to_string()))
}

/// Reads to the end and keeps the last bytes.
fn keep_end(mut from: impl Read, kept: &Mutex<VecDeque<u8>>) {
    let mut part = [0; KEPT];
    while let Ok(n @ 1..) = from.read(&mut part) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(&part[..n]);
        let over = kept.len().saturating_sub(KEPT);
        kept.drain(..over);
    }
}

/// Ends a child, and with it all processes of its group.
fn end(child: &mut Child) {
    #[cfg(unix)]
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    // Both fail only if it has ended by itself.
    let _ = child.kill();
    let _ = child.wait();
}

/// Writes an event to the log of a run, if it has one.
fn note(log: Option<&PathBuf>, event: &Event) {
    if let Some(Err(e)) = log.map(|log| JsonLines::add(log, event)) {
        say(format!("warning: the alert is not in the log: {e}"));
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    #[test]
    fn a_command_that_does_not_end_is_ended_with_what_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script = format!("echo waiting >&2; sleep 300 & echo $! > {}; wait", file.display());
        let begin = Instant::now();
        let (status, said) = limited(shell(&script), Duration::from_millis(500)).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(20));
        assert_eq!((status, said.as_str()), (None, "waiting"));
        let pid: i32 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        // The system removes it when its new parent has noticed.
        let gone = || {
            let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
            let zombie = state.is_ok_and(|s| s.contains(") Z "));
            zombie || rustix::process::test_kill_process(pid).is_err()
        };
        while !gone() && begin.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(LOOK);
        }
        assert!(gone(), "the process that the command started still runs");
    }

    #[test]
    fn the_end_of_many_messages_is_kept() {
        let script =
            "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done >&2; echo the cause >&2; exit 3";
        let (status, said) = limited(shell(script), LIMIT).unwrap();
        assert_eq!(status.and_then(|s| s.code()), Some(3));
        assert!(said.ends_with("line 19999\nthe cause") && said.chars().count() == SHOWN, "{said}");
        let kept = Mutex::new(VecDeque::new());
        keep_end(std::io::repeat(b'x').take(1 << 20), &kept);
        assert_eq!(kept.into_inner().unwrap().len(), KEPT);
    }

    #[test]
    fn a_process_that_keeps_the_pipe_open_is_not_waited_for() {
        let begin = Instant::now();
        // In a session of its own, it is of no group that is ended.
        let (status, _) = limited(shell("setsid sleep 30 & exit 0"), LIMIT).unwrap();
        assert!(status.is_some_and(|s| s.success()) && begin.elapsed() < Duration::from_secs(20));
    }
}
