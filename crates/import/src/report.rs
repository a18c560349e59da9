//! Messages for the user: the report of unsupported operators, and notes on things that were dropped or
//! assumed.

use headwater_core::graph::Origin;
use std::collections::BTreeMap;
use std::fmt;

/// One kind of use that cannot be imported.
#[derive(Debug, Clone, PartialEq)]
pub struct UnsupportedUse {
    /// Target as exported, e.g. `aten.fft_fft.default`.
    pub target: String,
    /// Why, and what to do.
    pub reason: String,
    /// Number of uses in the graph.
    pub count: usize,
    /// Places: the first [`PLACES`] of them.
    pub places: Vec<Origin>,
}

/// Number of places that a report keeps for each kind of use.
pub const PLACES: usize = 16;

/// Everything in a model that cannot be imported.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Unsupported {
    uses: BTreeMap<(String, String), (usize, Vec<Origin>)>,
}

impl Unsupported {
    /// Adds one use.
    pub(crate) fn add(&mut self, target: &str, reason: impl Into<String>, origin: &Origin) {
        let (count, places) = self.uses.entry((crate::escape::shown(target), reason.into())).or_default();
        *count += 1;
        if places.len() < PLACES {
            places.push(origin.clone());
        }
    }

    /// True if there is nothing to report.
    pub fn is_empty(&self) -> bool {
        self.uses.is_empty()
    }

    /// The uses, by target.
    pub fn uses(&self) -> impl Iterator<Item = UnsupportedUse> + '_ {
        self.uses.iter().map(|((target, reason), (count, places))| UnsupportedUse {
            target: target.clone(),
            reason: reason.clone(),
            count: *count,
            places: places.clone(),
        })
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: usize = self.uses.values().map(|(n, _)| n).sum();
        write!(f, "{total} node(s) of {} kind(s) are not supported:", self.uses.len())?;
        for u in self.uses() {
            write!(f, "\n  {} × {}: {}", u.count, u.target, u.reason)?;
            for o in &u.places {
                write!(f, "\n      {o}")?;
            }
            if u.count > u.places.len() {
                write!(f, "\n      and {} more", u.count - u.places.len())?;
            }
        }
        Ok(())
    }
}

/// Something the importer dropped or assumed, and why that changes nothing the model computes.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// The note, e.g. `aten._assert_scalar.default dropped: it depends on data`.
    pub message: String,
    /// Number of times.
    pub count: usize,
    /// The first place.
    pub origin: Origin,
}

/// Collects notes, one an occurrence kind.
#[derive(Debug, Default)]
pub(crate) struct Notes(BTreeMap<String, (usize, Origin)>);

impl Notes {
    pub(crate) fn add(&mut self, message: impl Into<String>, origin: &Origin) {
        self.0.entry(message.into()).or_insert_with(|| (0, origin.clone())).0 += 1;
    }

    pub(crate) fn finish(self) -> Vec<Note> {
        self.0.into_iter().map(|(message, (count, origin))| Note { message, count, origin }).collect()
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {}", self.count, self.message)?;
        if !self.origin.node.is_empty() {
            write!(f, " (first at {})", self.origin)?;
        }
        Ok(())
    }
}
