//! Outcomes of calls and of work: a status, and a text for a failure.

use headwater_ascend::host::codes::{self, Status};

/// Outcome of a call: the status of its failure and what the vendor would say.
pub type Outcome<T = ()> = Result<T, (Status, String)>;

/// Invalid parameter.
pub const PARAM: Status = codes::PARAM_INVALID;
/// Invalid handle.
pub const HANDLE: Status = 107_017;
/// No context is set.
pub const CONTEXT: Status = 107_002;

/// A failure with a text.
pub fn fail<T>(status: Status, text: impl Into<String>) -> Outcome<T> {
    Err((status, text.into()))
}
