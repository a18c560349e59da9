//! Errors of the crates as exceptions of `headwater.errors`.

use headwater_core::origin::Origin;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call failed.
pub(crate) enum Failure {
    /// `headwater.Error`.
    Refused { code: String, message: String },
    /// `headwater.Unsupported`: what is not supported, the module, the line.
    Unsupported(Vec<(String, String, String)>),
    /// An exception of Python code that was called.
    Python(PyErr),
}

impl Failure {
    pub fn new(code: &str, message: impl Into<String>) -> Failure {
        Failure::Refused { code: code.to_string(), message: message.into() }
    }

    fn exception(self, py: Python) -> PyErr {
        let class = |name: &str| py.import("headwater.errors").and_then(|m| m.getattr(name));
        let made = match self {
            Failure::Python(e) => return e,
            Failure::Refused { code, message } => {
                class("Error").and_then(|c| c.call1((message, Some(code).filter(|c| !c.is_empty()))))
            }
            Failure::Unsupported(refusals) => {
                class("Unsupported").and_then(|c| c.getattr("of")?.call1((refusals,)))
            }
        };
        made.map_or_else(|e| e, PyErr::from_value)
    }
}

impl From<headwater_core::Error> for Failure {
    fn from(e: headwater_core::Error) -> Failure {
        Failure::new(e.code.as_str(), e.to_string())
    }
}

impl From<headwater_runtime::Error> for Failure {
    fn from(e: headwater_runtime::Error) -> Failure {
        Failure::new(e.code(), e.to_string())
    }
}

impl From<headwater_import::Error> for Failure {
    fn from(e: headwater_import::Error) -> Failure {
        let headwater_import::Error::Unsupported(report) = &e else {
            return Failure::new(e.code(), e.to_string());
        };
        let line =
            |o: &Origin| if o.file.is_empty() { String::new() } else { format!("{}:{}", o.file, o.line) };
        let refusals = report.uses().flat_map(|used| {
            let what = format!("{}: {}", used.target, used.reason);
            used.places.into_iter().map(move |o| (what.clone(), o.module.clone(), line(&o)))
        });
        Failure::Unsupported(refusals.collect())
    }
}

/// Runs `f` without the interpreter lock. What it throws is caught, and named as a fault of ours.
pub(crate) fn guarded<T: Send>(py: Python, f: impl FnOnce() -> Result<T, Failure> + Send) -> PyResult<T> {
    match py.detach(|| catch_unwind(AssertUnwindSafe(f))) {
        Ok(done) => done.map_err(|e| e.exception(py)),
        Err(thrown) => {
            let text = thrown.downcast_ref::<String>().cloned();
            let text = text.or_else(|| thrown.downcast_ref::<&str>().map(|s| s.to_string()));
            Err(PyRuntimeError::new_err(format!(
                "Headwater failed, which is a fault of its own: {}. Please report it, with this message and the model",
                text.as_deref().unwrap_or("no message")
            )))
        }
    }
}
