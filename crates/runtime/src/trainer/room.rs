//! Patience with a full disk: a run waits for space instead of losing the steps since its last checkpoint.

use super::event::Event;
use crate::error::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time between two looks at the disk.
pub(super) const PAUSE: Duration = Duration::from_secs(2);

/// Waits until there is space for a checkpoint, as `room` says, at most for `patience`, and while `stop` is
/// not set. Reports it once.
///
/// # Errors
/// The last refusal of `room`, and those of `tell`.
pub(super) fn wait(
    mut room: impl FnMut() -> Result<()>,
    patience: Duration,
    pause: Duration,
    tell: &mut dyn FnMut(&Event) -> Result<()>,
    stop: &AtomicBool,
) -> Result<()> {
    let begin = Instant::now();
    let mut told = false;
    loop {
        let Err(none) = room() else { return Ok(()) };
        if begin.elapsed() >= patience || stop.load(Ordering::Relaxed) {
            return Err(none);
        }
        if !told {
            told = true;
            let minutes = patience.as_secs_f64() / 60.0;
            let reason = match &none {
                Error::Checkpoint { path, message } => format!("{}: {message}", path.display()),
                other => other.to_string(),
            };
            tell(&Event::Warning {
                message: format!("{reason}; the run waits up to {minutes} minutes for it"),
            })?;
        }
        std::thread::sleep(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Looks at the disk until it is refused no more; the result, the looks and the reported events.
    fn looked(full: usize, patience: Duration, stop_at: usize) -> (Result<()>, usize, Vec<String>) {
        let (mut looks, mut told, stop) = (0, Vec::new(), AtomicBool::new(stop_at == 0));
        let room = || {
            looks += 1;
            stop.store(looks >= stop_at, Ordering::Relaxed);
            if looks > full { Ok(()) } else { Err(Error::checkpoint(Path::new("run"), "the disk is full")) }
        };
        let mut tell = |event: &Event| {
            let Event::Warning { message } = event else { panic!("{event:?}") };
            told.push(message.clone());
            Ok(())
        };
        let result = wait(room, patience, Duration::ZERO, &mut tell, &stop);
        (result, looks, told)
    }

    #[test]
    fn a_run_waits_for_room_and_says_so_once() {
        let (ten, never) = (Duration::from_secs(600), usize::MAX);
        let (done, looks, told) = looked(0, ten, never);
        assert!(done.is_ok() && looks == 1 && told.is_empty());
        let (done, looks, told) = looked(5, ten, never);
        assert!(done.is_ok() && looks == 6);
        assert_eq!(told, ["run: the disk is full; the run waits up to 10 minutes for it"]);
        // Without patience, and where the user requests the end, the run ends with what was missing.
        let (done, looks, told) = looked(5, Duration::ZERO, never);
        assert!(matches!(done, Err(Error::Checkpoint { .. })) && looks == 1 && told.is_empty());
        let (done, looks, told) = looked(5, ten, 3);
        assert!(matches!(done, Err(Error::Checkpoint { .. })) && looks == 3 && told.len() == 1);
    }
}
