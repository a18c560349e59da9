//! Lines on the terminal. A message that cannot be delivered never ends the work. A reader may leave (`|
//! head`), a terminal may close, a log may stand on a full disk. Nothing else in the program writes to the
//! standard streams.

use crate::core::device::Device;
use std::borrow::Cow;
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

/// A text whose control characters are spelled out, line ends and tabs excepted. Names in a model come from
/// strangers, and a terminal obeys what is written to it.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    // Beside control characters, those that change the direction of writing (Unicode, UAX #9).
    let obeyed = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(obeyed) {
        return text.into();
    }
    let spelled = |c: char| if obeyed(c) { c.escape_unicode().to_string() } else { c.to_string() };
    text.chars().map(spelled).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_told_nothing_to_obey() {
        assert_eq!(plain("a\tb\nç ▁█"), "a\tb\nç ▁█");
        assert_eq!(plain("\u{1b}[2Jgone\r\u{9b}1m\u{202e}x"), "\\u{1b}[2Jgone\\u{d}\\u{9b}1m\\u{202e}x");
    }
}
