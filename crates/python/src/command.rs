//! The command line inside of a Python process, which keeps its own signal handlers.

use crate::error::{Failure, guarded};
use pyo3::prelude::*;
use std::ffi::OsString;

/// Runs a command line, without the program's name; gives the exit status.
#[pyfunction]
pub(crate) fn command(py: Python, args: Vec<OsString>) -> PyResult<u8> {
    guarded(py, move || Ok(headwater::cli::run_from(with_name(args))))
}

/// Runs a command line and gives what `--json` prints.
#[pyfunction]
pub(crate) fn command_json(py: Python, args: Vec<OsString>) -> PyResult<String> {
    guarded(py, move || {
        let made = headwater::cli::json_from(with_name(args));
        let json = made.map_err(|e| {
            let text = format!("{e:#}");
            Failure::Refused { code: code(&text), message: text }
        })?;
        Ok(json.to_string())
    })
}

/// Asks a command that runs to end in order, as a signal of this number does.
#[pyfunction]
pub(crate) fn interrupt(signal: i32) {
    headwater::cli::interrupt(signal);
}

fn with_name(args: Vec<OsString>) -> impl Iterator<Item = OsString> {
    std::iter::once(OsString::from("headwater")).chain(args)
}

/// The code in the text of an error, such as `HW-I001`; empty if it has none.
fn code(text: &str) -> String {
    let Some(at) = text.find("HW-") else { return String::new() };
    text[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect()
}
