//! Lines on the terminal. A message that cannot be delivered never ends the work. A reader may leave (`|
//! head`), a terminal may close, a log may stand on a full disk. Nothing else in the program writes to the
//! standard streams.

use crate::core::device::Device;
use crate::report::text::plain;
use std::io::{ErrorKind, Write};
use std::sync::Mutex;

/// The first failure to write results to standard output, other than a reader that has left.
static LOST: Mutex<Option<String>> = Mutex::new(None);

/// Prints a message on standard error, if there is anybody to read it.
pub(crate) fn say(line: impl AsRef<str>) {
    // One call for the line and its end, so that lines of several threads stay whole.
    let _ = std::io::stderr().write_all(format!("{}\n", plain(line.as_ref())).as_bytes());
}

/// Says a device's remarks on plans that were loaded and run.
pub(crate) fn notes(device: &dyn Device) {
    device.notes().iter().for_each(|note| say(format!("{}: {note}", device.name())));
}

/// Prints a line of a command's result on standard output. Output that a full disk refused is reported by
/// [`lost`].
pub(crate) fn print(line: &str) {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(format!("{}\n", plain(line)).as_bytes()).and_then(|()| out.flush());
    if let Err(e) = written
        && e.kind() != ErrorKind::BrokenPipe
        && let Ok(mut lost) = LOST.lock()
    {
        lost.get_or_insert_with(|| e.to_string());
    }
}

/// The reason why part of the result did not reach standard output, if it did not.
pub(crate) fn lost() -> Option<String> {
    LOST.lock().ok()?.take()
}
