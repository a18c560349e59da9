//! Signals that ask a run to end: the first one lets it end in order, with a checkpoint; the second ends
//! the process at once.

use super::console::say;
use anyhow::Result;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Set when the run is to end.
static STOP: AtomicBool = AtomicBool::new(false);
/// True if the process is the program's own, so that signals are its to handle.
static OWN: AtomicBool = AtomicBool::new(false);
/// The signal that set it; 0 for none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Exit status of a process that a signal ended is this plus the signal's number (POSIX, "Exit Status for
/// Commands").
const BASE: i32 = 128;

/// Takes the process for the program's own: signals may be handled.
pub(crate) fn own_process() {
    OWN.store(true, Ordering::SeqCst);
}

/// True if the process is the program's own.
pub(crate) fn is_own_process() -> bool {
    OWN.load(Ordering::SeqCst)
}

/// Asks a run to end in order, as a first signal of this number does.
pub(crate) fn interrupt(signal: i32) {
    SIGNAL.store(signal, Ordering::SeqCst);
    STOP.store(true, Ordering::SeqCst);
}

/// Forgets what was asked of an earlier run.
pub(crate) fn forget() {
    STOP.store(false, Ordering::SeqCst);
    SIGNAL.store(0, Ordering::SeqCst);
}

/// Lets SIGINT, SIGTERM and SIGHUP set the flag that is returned, if the process is the program's own. SIGHUP
/// stays ignored where it was ignored when the process began, as `nohup` has it.
///
/// # Errors
/// If no handler can be set.
pub(crate) fn stop() -> Result<&'static AtomicBool> {
    #[cfg(unix)]
    if OWN.load(Ordering::SeqCst) {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let mut wanted = vec![SIGINT, SIGTERM];
        if !ignored(SIGHUP) {
            wanted.push(SIGHUP);
        }
        let mut signals = signal_hook::iterator::Signals::new(wanted)?;
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in signals.forever() {
                if STOP.load(Ordering::SeqCst) {
                    std::process::exit(BASE + signal);
                }
                // The number first: a reader that sees the flag sees the number.
                SIGNAL.store(signal, Ordering::SeqCst);
                STOP.store(true, Ordering::SeqCst);
                say("\nstopping and saving; press Ctrl-C again to end at once, without saving");
            }
        })?;
    }
    Ok(&STOP)
}

/// Reports and exits when a part of a mapped file is read that no longer exists. Models are mapped, and large
/// files of weights; checkpoints that were saved before are whole.
pub(crate) fn explain_lost_files() {
    crate::import::on_lost_file(|| {
        say(
            "error: HW-I001: a model or a file of weights was shortened while it was read, or its disk failed (SIGBUS): \
             put it back, and write new files under another name or rename them into place",
        );
        #[cfg(unix)]
        signal_hook::low_level::exit(1);
    });
}

/// Exit status of a run that a signal interrupted.
pub(crate) fn status() -> u8 {
    let signal = match SIGNAL.load(Ordering::SeqCst) {
        // SIGINT, where nobody says which it was.
        0 => 2,
        n => n,
    };
    u8::try_from(BASE + signal).unwrap_or(u8::MAX)
}

/// True if a signal is ignored by this process, as it was started. Linux says so in `/proc`; where nobody
/// does, it is not.
#[cfg(unix)]
fn ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}
