//! Numbers of a run's batches. A step takes `lanes · accumulate` of them; batch `i` of lane `l` of step `s`
//! has the number `(s · lanes + l) · accumulate + i`, counted through the run. The number decides a batch's
//! samples, its random numbers and its length, so nothing depends on which rank computes it.

use std::ops::Range;

/// Batches of a step: lanes, and batches that a lane adds up sequentially.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batches {
    lanes: u64,
    accumulate: u64,
}

impl Batches {
    /// At least one of each.
    pub fn new(lanes: u32, accumulate: u32) -> Batches {
        Batches { lanes: lanes.max(1).into(), accumulate: accumulate.max(1).into() }
    }

    /// Batches in a step.
    pub fn per_step(self) -> u64 {
        self.lanes * self.accumulate
    }

    /// Batches of so many steps; `None` beyond 2⁶⁴.
    pub fn of_steps(self, steps: u64) -> Option<u64> {
        steps.checked_mul(self.per_step())
    }

    /// The batches of a step, counted from 0.
    pub fn step(self, step: u64) -> Range<u64> {
        let first = step.saturating_mul(self.per_step());
        first..first.saturating_add(self.per_step())
    }

    /// The batches of some lanes of a step.
    pub fn of_lanes(self, step: u64, lanes: Range<usize>) -> Range<u64> {
        let first = self.step(step).start;
        let at = |lane: usize| first.saturating_add(lane as u64 * self.accumulate);
        at(lanes.start)..at(lanes.end)
    }

    /// The last batch of a step: its update draws random numbers by this key.
    pub fn last(self, step: u64) -> u64 {
        self.step(step).end.saturating_sub(1)
    }

    /// True if a batch is the last of its lane.
    pub fn ends_lane(self, number: u64) -> bool {
        number % self.accumulate == self.accumulate - 1
    }

    /// Steps that so many batches make, as a fraction.
    pub fn steps(self, batches: f64) -> f64 {
        batches / self.per_step() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_numbered_by_step_lane_and_place_in_it() {
        let batches = Batches::new(4, 2);
        assert_eq!(batches.step(1), 8..16);
        let (step, lane, i) = (1, 2, 1);
        let number = (step * 4 + lane) * 2 + i;
        assert_eq!(batches.step(step).nth(2 * lane as usize + i as usize), Some(number));
        let ends: Vec<u64> = batches.step(1).filter(|g| batches.ends_lane(*g)).collect();
        assert_eq!(ends, [9, 11, 13, 15]);
        assert_eq!(batches.last(1), 15);
        assert_eq!(batches.of_lanes(1, 1..3), 10..14);
        assert_eq!(batches.of_lanes(1, 0..4), batches.step(1));
        assert_eq!(Batches::new(1, 1).step(7), 7..8);
        assert_eq!(batches.of_steps(u64::MAX), None);
    }
}
