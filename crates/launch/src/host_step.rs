//! Steps on the host: the operands' bytes are read, the reference interpreter computes, and what it wrote
//! goes back.

use crate::Driver;
use crate::place::hull;
use headwater_core::diagnostic::Result;
use headwater_core::plan::{Plan, SegmentId, Step};
use headwater_core::reference::memory as interpreter;
use std::ops::Range;

/// A step on the host. Its views are moved to bytes that are gathered for it.
pub(super) struct HostStep {
    step: Step,
    /// Bytes of segments, one range for each segment that the step touches.
    ranges: Vec<(SegmentId, Range<usize>)>,
    /// Ranges of bytes that are written, of the gathered segment of the same number.
    written: Vec<(SegmentId, Range<usize>)>,
}

impl HostStep {
    /// The step, whose views are in their segments.
    ///
    /// # Errors
    /// `Plan` if they do not.
    pub fn new(plan: &Plan, step: &Step) -> Result<HostStep> {
        let mut ranges: Vec<(SegmentId, Range<usize>)> = Vec::new();
        let mut written = Vec::new();
        let reads = step.reads.iter().flatten().map(|view| (view, false));
        for (view, writes) in reads.chain(step.writes.iter().map(|view| (view, true))) {
            let hull = hull(plan, view)?;
            if writes && hull.start < hull.end {
                written.push((view.place.segment, hull.clone()));
            }
            match ranges.iter_mut().find(|(id, _)| *id == view.place.segment) {
                None => ranges.push((view.place.segment, hull)),
                Some((_, range)) if range.start == range.end => *range = hull,
                Some((_, range)) if hull.start < hull.end => {
                    *range = range.start.min(hull.start)..range.end.max(hull.end);
                }
                Some(_) => {}
            }
        }
        let gathered = |id: SegmentId| ranges.iter().position(|r| r.0 == id).unwrap_or(0);
        let mut step = step.clone();
        let views = step.reads.iter_mut().flatten().chain(&mut step.writes);
        for view in views {
            let number = gathered(view.place.segment);
            // The first element is in the gathered bytes; a view without elements has any offset.
            let first = view.layout.offset * view.dtype.size() as isize;
            let start = view.place.offset as isize + first - ranges[number].1.start as isize;
            view.place.offset = usize::try_from(start).unwrap_or(0);
            view.layout.offset = 0;
            view.place.segment = SegmentId(number as u32);
        }
        Ok(HostStep { step, ranges, written })
    }

    /// Reads, computes, writes. Everything given to the device before is done.
    ///
    /// # Errors
    /// Refusals of the interpreter; the device's failure.
    pub fn run<D: Driver>(&self, driver: &D, memory: &[&D::Memory]) -> Result<()> {
        let mut bytes: Vec<Vec<u8>> = Vec::with_capacity(self.ranges.len());
        for (segment, range) in &self.ranges {
            let mut data = vec![0; range.len()];
            driver.read(memory[segment.0 as usize], range.start, &mut data)?;
            bytes.push(data);
        }
        interpreter::step(&self.step, &mut bytes)?;
        for (segment, range) in &self.written {
            let Some(number) = self.ranges.iter().position(|r| r.0 == *segment) else { continue };
            let start = range.start - self.ranges[number].1.start;
            let data = &bytes[number][start..start + range.len()];
            driver.write(memory[segment.0 as usize], range.start, data)?;
        }
        Ok(())
    }
}
