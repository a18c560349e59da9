//! Order of a plan's steps on several streams. It tells the steps that are over when another begins, and the
//! uses of the same bytes that are not ordered.
//!
//! Happens-before by vector clocks (Fidge 1988, Mattern 1989). A step begins when the one before it on its
//! stream is over, and those that its waits name, with all that precede these.

use crate::diagnostic::Result;
use crate::ensure;
use crate::plan::{Plan, Wait};
use std::collections::BTreeMap;
use std::ops::Range;

/// Most streams of a plan.
pub const STREAMS: usize = 16;

/// By stream, one more than the number of a step; 0 for none.
pub(super) type Clock = [usize; STREAMS];

/// Happens-before of the steps of a plan.
#[derive(Default)]
pub(super) struct Order {
    streams: Vec<u32>,
    /// By step, what is over when it begins.
    over: Vec<Clock>,
    /// By stream, one more than its last step.
    last: Clock,
}

impl Order {
    /// The order of a plan's steps.
    ///
    /// # Errors
    /// `Plan` for a stream beyond [`STREAMS`], and a wait for a step that does not come earlier.
    pub(super) fn of(plan: &Plan) -> Result<Order> {
        let mut waits = plan.waits.clone();
        waits.sort_by_key(|w| w.step);
        for w in &waits {
            let exists = w.on < w.step && w.step < plan.steps.len();
            ensure!(exists, Plan, "step {} waits for step {}, which does not come earlier", w.step, w.on);
        }
        let mut waits = waits.into_iter().peekable();
        let mut order = Order::default();
        for (s, step) in plan.steps.iter().enumerate() {
            let known = (step.stream as usize) < STREAMS;
            ensure!(
                known,
                Plan,
                "step {s} runs on stream {}, of {STREAMS} that a plan may have",
                step.stream
            );
            order.push(step.stream);
            while let Some(w) = waits.next_if(|w| w.step == s) {
                order.wait(w.on);
            }
        }
        Ok(order)
    }

    /// Appends a step to a stream below [`STREAMS`].
    pub(super) fn push(&mut self, stream: u32) {
        let on = stream as usize;
        let mut over = match self.last[on] {
            0 => Clock::default(),
            before => self.over[before - 1],
        };
        over[on] = self.last[on];
        self.last[on] = self.streams.len() + 1;
        self.streams.push(stream);
        self.over.push(over);
    }

    /// Lets the last step begin when an earlier one is over.
    pub(super) fn wait(&mut self, on: usize) {
        let (known, stream) = (self.over[on], self.streams[on] as usize);
        if let Some(over) = self.over.last_mut() {
            over.iter_mut().zip(known).for_each(|(own, theirs)| *own = theirs.max(*own));
            over[stream] = over[stream].max(on + 1);
        }
    }

    /// True if step `i` is over when step `j` begins.
    pub(super) fn before(&self, i: usize, j: usize) -> bool {
        self.over[j][self.streams[i] as usize] > i
    }

    /// For each step the last one that may run at the same time, or itself.
    pub(super) fn last_beside(&self) -> Vec<usize> {
        let mut of_stream: Vec<Vec<usize>> = vec![Vec::new(); STREAMS];
        self.streams.iter().enumerate().for_each(|(s, &stream)| of_stream[stream as usize].push(s));
        let beside = |step: usize| {
            // A step that is known on a stream stays known there.
            let others = of_stream.iter().filter_map(|steps| {
                let unaware = steps.partition_point(|&k| !self.before(step, k));
                unaware.checked_sub(1).map(|last| steps[last])
            });
            others.fold(step, usize::max)
        };
        (0..self.streams.len()).map(beside).collect()
    }
}

/// A use of bytes by a step. Spaces are segments, or whatever else holds bytes of its own.
pub(super) struct Touch {
    pub(super) space: u64,
    pub(super) bytes: Range<usize>,
    pub(super) writes: bool,
}

/// The latest uses of bytes, on each stream.
#[derive(Default)]
pub(super) struct Uses(BTreeMap<(u64, usize), Span>);

/// Bytes that have been used alike, up to `end`.
#[derive(Clone, Default)]
struct Span {
    end: usize,
    reads: Clock,
    writes: Clock,
}

impl Uses {
    /// Notes a use by a step, later than all before. Returns the last steps of other streams that it
    /// conflicts with: one of the two writes.
    pub(super) fn note(&mut self, touch: &Touch, step: usize, stream: u32) -> Clock {
        let Touch { space, bytes, writes } = touch;
        let mut conflicts = Clock::default();
        if bytes.is_empty() {
            return conflicts;
        }
        self.split(*space, bytes.start);
        self.split(*space, bytes.end);
        let mut free = bytes.start;
        let mut gaps = Vec::new();
        for ((_, start), span) in self.0.range_mut((*space, bytes.start)..(*space, bytes.end)) {
            if free < *start {
                gaps.push(free..*start);
            }
            free = span.end;
            for (u, latest) in conflicts.iter_mut().enumerate().filter(|(u, _)| *u != stream as usize) {
                *latest = span.writes[u].max(if *writes { span.reads[u] } else { 0 }).max(*latest);
            }
            span.note(*writes, step, stream);
        }
        if free < bytes.end {
            gaps.push(free..bytes.end);
        }
        for gap in gaps {
            let mut span = Span { end: gap.end, ..Span::default() };
            span.note(*writes, step, stream);
            self.0.insert((*space, gap.start), span);
        }
        conflicts
    }

    /// Lets a span begin at a byte, if one covers it.
    fn split(&mut self, space: u64, at: usize) {
        let Some((_, span)) = self.0.range_mut(..(space, at)).next_back().filter(|((s, _), _)| *s == space)
        else {
            return;
        };
        if at < span.end {
            let rest = span.clone();
            span.end = at;
            self.0.insert((space, at), rest);
        }
    }
}

impl Span {
    fn note(&mut self, writes: bool, step: usize, stream: u32) {
        let latest = if writes { &mut self.writes } else { &mut self.reads };
        latest[stream as usize] = step + 1;
    }
}

/// The waits that order the uses of bytes by steps on streams, with the order that these give. `touches` are
/// those of each step; `behind` are further steps that come before it.
pub(super) fn ordered(
    streams: &[u32],
    touches: impl Fn(usize) -> Vec<Touch>,
    behind: impl Fn(usize) -> Vec<usize>,
) -> (Vec<Wait>, Order) {
    let (mut waits, mut order, mut uses) = (Vec::new(), Order::default(), Uses::default());
    for (step, &stream) in streams.iter().enumerate() {
        order.push(stream);
        let mut needed = Clock::default();
        for on in behind(step) {
            let latest = &mut needed[streams[on] as usize];
            *latest = (on + 1).max(*latest);
        }
        for touch in touches(step) {
            let conflicts = uses.note(&touch, step, stream);
            needed.iter_mut().zip(conflicts).for_each(|(own, other)| *own = other.max(*own));
        }
        // The latest first: with it much of the rest is known.
        let mut needed: Vec<usize> = needed.iter().filter_map(|n| n.checked_sub(1)).collect();
        needed.sort_unstable();
        for on in needed.into_iter().rev() {
            if !order.before(on, step) {
                order.wait(on);
                waits.push(Wait { step, on });
            }
        }
    }
    (waits, order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Steps on streams that each use some bytes.
    fn steps() -> impl Strategy<Value = Vec<(u32, Vec<(Range<usize>, bool)>)>> {
        let touch = (0usize..24, 1usize..6, any::<bool>()).prop_map(|(at, n, writes)| (at..at + n, writes));
        prop::collection::vec((0u32..3, prop::collection::vec(touch, 0..3)), 0..24)
    }

    proptest! {
        /// Against all pairs of steps: conflicts are ordered, and each wait is needed for that.
        #[test]
        fn waits_order_every_conflict(steps in steps()) {
            let streams: Vec<u32> = steps.iter().map(|s| s.0).collect();
            let touches = |s: usize| {
                let all = steps[s].1.iter().cloned();
                all.map(|(bytes, writes)| Touch { space: 1, bytes, writes }).collect::<Vec<_>>()
            };
            let (waits, order) = ordered(&streams, touches, |_| vec![]);
            // Reachability by edges.
            let reach = |waits: &[Wait]| {
                let mut over = vec![vec![false; steps.len()]; steps.len()];
                for j in 0..steps.len() {
                    let before = (0..j).rev().find(|&i| streams[i] == streams[j]);
                    for i in waits.iter().filter(|w| w.step == j).map(|w| w.on).chain(before) {
                        let known = over[i].clone();
                        over[j].iter_mut().zip(known).for_each(|(own, other)| *own |= other);
                        over[j][i] = true;
                    }
                }
                over
            };
            let conflict = |i: usize, j: usize| {
                steps[i].1.iter().any(|(a, w)| steps[j].1.iter().any(|(b, v)| {
                    (*w || *v) && a.start < b.end && b.start < a.end
                }))
            };
            let over = reach(&waits);
            let beside = order.last_beside();
            for (j, known) in over.iter().enumerate() {
                for (i, known) in known.iter().copied().enumerate().take(j) {
                    prop_assert_eq!(order.before(i, j), known);
                    prop_assert!(known || !conflict(i, j), "{} and {} are not ordered", i, j);
                }
                let last = (j..steps.len()).rev().find(|&k| k == j || !over[k][j]);
                prop_assert_eq!(Some(beside[j]), last);
            }
            for w in &waits {
                let others: Vec<Wait> = waits.iter().filter(|o| *o != w).cloned().collect();
                let over = reach(&others);
                prop_assert!(!over[w.step][w.on], "{:?} is not needed", w);
            }
        }
    }
}
