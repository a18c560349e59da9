//! What the ranks of a run tell each other: a value of each, or the error of one, with which all end.

use crate::error::{Error, Result};
use headwater_core::diagnostic::Code;
use headwater_core::ranks::{Exchange, Transport, exchanged};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The values of all ranks, in their order.
///
/// # Errors
/// `Device` if a rank is lost, or sends something else.
pub(crate) fn gather<T: Serialize + DeserializeOwned>(ranks: &dyn Transport, own: &T) -> Result<Vec<T>> {
    let strange = |rank: usize, e: serde_json::Error| {
        let message = format!("{} has sent something else than was asked: {e}", ranks.named(rank));
        Error::Core(headwater_core::Error::new(Code::Device, message))
    };
    let own = serde_json::to_vec(own).map_err(|e| strange(ranks.rank(), e))?;
    let all = exchanged(ranks, Exchange::AllGather(own))?;
    let read = |(rank, bytes): (usize, &Vec<u8>)| serde_json::from_slice(bytes).map_err(|e| strange(rank, e));
    all.iter().enumerate().map(read).collect()
}

/// The values of all ranks, if each has one. Otherwise the ranks leave each other, and all end: with the
/// error of the first that has one.
///
/// # Errors
/// On rank 0 its own error, or what `told` makes of another rank's, which is named; `AsRankZero` on the
/// others.
pub(crate) fn all<T: Serialize + DeserializeOwned>(
    ranks: &dyn Transport,
    own: Result<T>,
    told: impl FnOnce(String) -> Error,
) -> Result<Vec<T>> {
    let (own, error) = match own {
        Ok(value) => (Ok(value), None),
        Err(e) => (Err(e.to_string()), Some(e)),
    };
    let all: Vec<Result<T, String>> = gather(ranks, &own)?;
    let first = all.iter().position(Result::is_err);
    let Some(first) = first else { return Ok(all.into_iter().filter_map(Result::ok).collect()) };
    ranks.leave();
    let why = all.into_iter().nth(first).and_then(Result::err).unwrap_or_default();
    Err(match (ranks.rank(), error) {
        (0, Some(e)) => e,
        (0, None) => told(format!("{}: {why}", ranks.named(first))),
        _ => Error::AsRankZero,
    })
}
