//! Lines on the terminal, in its width, with colours where it has them. A message that cannot be delivered
//! never ends the work. A reader may leave (`| head`), a terminal may close, a log may be on a full disk.
//! Nothing else in the program writes to the standard streams.

use crate::core::device::Device;
use crate::report::text::plain;
use crate::report::{Table, text, wrap};
use ::console::{Style, Term, colors_enabled, colors_enabled_stderr};
use indicatif::ProgressBar;
use std::io::{ErrorKind, Write};
use std::sync::Mutex;

/// The first failure to write results to standard output, other than a reader that has left.
static LOST: Mutex<Option<String>> = Mutex::new(None);

/// The bar that is drawn at the bottom of the terminal, if one is.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Names the bar that messages must not be written into, or none.
pub(crate) fn draws(bar: Option<ProgressBar>) {
    if let Ok(mut drawn) = BAR.lock() {
        *drawn = bar;
    }
}

/// Columns of a terminal; `None` for a pipe or a file, whose lines stay whole. `COLUMNS`, where it is
/// exported, counts for both.
fn width(term: &Term) -> Option<usize> {
    let given = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok()).filter(|n| *n >= 20);
    given.or_else(|| Some(usize::from(term.size_checked()?.1)).filter(|_| term.is_term()))
}

/// Columns of standard error, if it is a terminal.
pub(crate) fn stderr_width() -> Option<usize> {
    width(&Term::stderr())
}

/// Columns of standard output, if it is a terminal.
pub(crate) fn stdout_width() -> Option<usize> {
    width(&Term::stdout())
}

/// Each line of a text in a width.
fn wrapped(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_string() };
    text.split('\n').map(|l| wrap::line(l, width)).collect::<Vec<_>>().join("\n")
}

/// A text with the word that begins it in its colour, if it is a verdict or a kind of message.
fn painted(text: &str, colours: bool) -> String {
    const WORDS: [(&str, Style); 6] = [
        ("pass  ", Style::new().green()),
        ("note  ", Style::new().yellow()),
        ("FAIL  ", Style::new().red().bold()),
        ("error:", Style::new().red().bold()),
        ("warning:", Style::new().yellow()),
        ("note:", Style::new().yellow()),
    ];
    let body = text.trim_start_matches([' ', '\n']);
    let found = WORDS.iter().find(|(word, _)| body.starts_with(word)).filter(|_| colours);
    let Some((word, style)) = found else { return text.to_string() };
    let (before, rest) = text.split_at(text.len() - body.len());
    let (word, after) = rest.split_at(word.trim_end().len());
    format!("{before}{}{after}", style.clone().force_styling(true).apply_to(word))
}

/// Prints a message on standard error, if there is anybody to read it.
pub(crate) fn say(line: impl AsRef<str>) {
    let text = painted(&wrapped(&plain(line.as_ref()), stderr_width()), colors_enabled_stderr());
    // One call for the line and its end, so that lines of several threads stay whole.
    let write = || drop(std::io::stderr().write_all(format!("{text}\n").as_bytes()));
    let bar = BAR.lock().ok().and_then(|bar| bar.clone());
    match bar.filter(|bar| !bar.is_finished()) {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Says a device's remarks on plans that were loaded and run.
pub(crate) fn notes(device: &dyn Device) {
    device.notes().iter().for_each(|note| say(format!("{}: {note}", device.name())));
}

/// Prints a line for people on standard output.
pub(crate) fn show(line: &str) {
    write(&painted(&wrapped(&plain(line), stdout_width()), colors_enabled()));
}

/// Prints a table for people on standard output.
pub(crate) fn show_table(t: &Table) {
    let text = match stdout_width() {
        Some(width) => wrap::table(t, width),
        None => text::table(t),
    };
    write(&plain(&text));
}

/// Prints what programs read on standard output, as it is.
pub(crate) fn print(text: &str) {
    write(&plain(text));
}

/// Writes to standard output. What a full disk refused is reported by [`lost`].
fn write(text: &str) {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(format!("{text}\n").as_bytes()).and_then(|()| out.flush());
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
    fn verdicts_have_colours_where_there_are_some() {
        assert_eq!(painted("   pass  all", true), "   \u{1b}[32mpass\u{1b}[0m  all");
        assert_eq!(painted("error: no", true), "\u{1b}[31m\u{1b}[1merror:\u{1b}[0m no");
        for line in ["   pass  all", "error: no"] {
            assert_eq!(painted(line, false), line);
        }
        for line in ["passed", "notes: none", "step 3: error: no"] {
            assert_eq!(painted(line, true), line);
        }
    }
}
