//! Vector clocks: what work on a stream knows to be over.

use std::collections::BTreeMap;
use std::fmt;

/// Number of a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(pub u32);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The part of each stream that is known to be over: a vector clock.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Clock(BTreeMap<StreamId, u64>);

impl Clock {
    /// True if work number `time` of a stream is over.
    pub fn knows(&self, stream: StreamId, time: u64) -> bool {
        self.0.get(&stream).is_some_and(|&t| t >= time)
    }

    /// Learns that work up to number `time` of a stream is over.
    pub fn learn(&mut self, stream: StreamId, time: u64) {
        let known = self.0.entry(stream).or_default();
        *known = time.max(*known);
    }

    /// Learns all that another clock knows.
    pub fn join(&mut self, other: &Clock) {
        other.0.iter().for_each(|(&s, &t)| self.learn(s, t));
    }
}

/// A user of memory: work on a stream, and what it knows of the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User<'a> {
    pub stream: StreamId,
    pub time: u64,
    pub clock: &'a Clock,
}
