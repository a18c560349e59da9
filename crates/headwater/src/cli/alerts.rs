//! Alerts of a run: a message, an event of the log, and a command, once for each reason.

use super::console::say;
use crate::runtime::Error;
use crate::runtime::config::AlertConfig;
use crate::runtime::log::JsonLines;
use crate::runtime::trainer::{Alert, Event, Observer, Start};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time for which the end of a process waits for commands that still run.
const GRACE: Duration = Duration::from_secs(10);
/// Bytes of a failed command's messages that are shown.
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
        let begin = Instant::now();
        let commands = std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner));
        for command in commands {
            while !command.is_finished() && begin.elapsed() < GRACE {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
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
        // Ctrl-C is for the run, not for whom it calls.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let (log, program) = (self.log.clone(), program.clone());
        let work = move || {
            let why = match command.output() {
                Ok(done) if done.status.success() => return,
                Ok(done) => {
                    let said = String::from_utf8_lossy(&done.stderr);
                    let said: String = said.trim().chars().take(SHOWN).collect();
                    format!("{}{}{said}", done.status, if said.is_empty() { "" } else { ": " })
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

/// Writes an event to the log of a run, if it has one.
fn note(log: Option<&PathBuf>, event: &Event) {
    if let Some(Err(e)) = log.map(|log| JsonLines::add(log, event)) {
        say(format!("warning: the alert is not in the log: {e}"));
    }
}
