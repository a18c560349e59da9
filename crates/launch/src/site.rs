//! The place a launch comes from, for errors.

use headwater_core::diagnostic::Error;
use headwater_core::graph::Origin;
use std::fmt;
use std::sync::Arc;

/// The place a launch comes from: named in every error about it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Site {
    /// Name of the kernel, as in its source.
    pub kernel: String,
    /// ATen name of the operator.
    pub op: Option<&'static str>,
    /// Node, module and line of the model.
    pub origin: Option<Origin>,
}

impl Site {
    /// A launch of which only the kernel is known.
    pub fn of_kernel(kernel: impl Into<String>) -> Arc<Site> {
        Arc::new(Site { kernel: kernel.into(), op: None, origin: None })
    }

    /// An error with the operator and the line of this site.
    pub fn named(&self, error: Error) -> Error {
        let error = match self.op {
            Some(op) => error.in_op(op),
            None => error,
        };
        match &self.origin {
            Some(origin) => error.at(origin),
            None => error,
        }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel `{}`", self.kernel)?;
        if let Some(op) = self.op {
            write!(f, " of {op}")?;
        }
        if let Some(origin) = &self.origin {
            write!(f, "\n  at {origin}")?;
        }
        Ok(())
    }
}
