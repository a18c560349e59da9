//! Places every buffer of a plan in one arena, and proves the result independently.
//!
//! Placement is best fit in the order of time: a buffer takes the smallest free gap it fits in, or the end. Near-linear
//! in the number of buffers. The checker knows nothing of that: it reads the finished plan.

use crate::diagnostic::Result;
use crate::ensure;
use crate::graph::{OriginId, ValueId};
use crate::plan::{ALIGN, ARENA, Place, Placement, Plan, SegmentKind, TensorView};
use std::collections::{BTreeMap, BTreeSet};

/// A buffer before placement.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// The value it is for.
    pub value: ValueId,
    /// Size.
    pub bytes: usize,
    /// Where it lies, if the caller decided; otherwise it goes into the arena.
    pub place: Option<Place>,
}

/// Free gaps of the arena, by offset and by size.
#[derive(Default)]
struct Gaps {
    by_offset: BTreeMap<usize, usize>,
    by_size: BTreeSet<(usize, usize)>,
    end: usize,
}

impl Gaps {
    fn insert(&mut self, mut offset: usize, mut bytes: usize) {
        if let Some((&o, &b)) = self.by_offset.range(..offset).next_back().filter(|(o, b)| *o + *b == offset)
        {
            self.remove(o, b);
            (offset, bytes) = (o, b + bytes);
        }
        if let Some(&b) = self.by_offset.get(&(offset + bytes)) {
            self.remove(offset + bytes, b);
            bytes += b;
        }
        self.by_offset.insert(offset, bytes);
        self.by_size.insert((bytes, offset));
    }

    fn remove(&mut self, offset: usize, bytes: usize) {
        self.by_offset.remove(&offset);
        self.by_size.remove(&(bytes, offset));
    }

    fn take(&mut self, bytes: usize) -> usize {
        if let Some(&(have, offset)) = self.by_size.range((bytes, 0)..).next() {
            self.remove(offset, have);
            if have > bytes {
                self.insert(offset + bytes, have - bytes);
            }
            return offset;
        }
        // A gap at the end is extended rather than left behind.
        let last = self.by_offset.last_key_value().map(|(&o, &b)| (o, b)).filter(|(o, b)| o + b == self.end);
        let offset = match last {
            Some((o, b)) => {
                self.remove(o, b);
                o
            }
            None => self.end,
        };
        self.end = offset + bytes;
        offset
    }
}

/// Gives every buffer a place. `uses[s]` are the buffers step `s` touches, `origins[s]` its origin.
/// Returns the places, the arena's placements and the arena's size in bytes.
pub fn place(
    buffers: &[Buffer],
    uses: &[Vec<usize>],
    origins: &[OriginId],
) -> (Vec<Place>, Vec<Placement>, usize) {
    let mut life: Vec<Option<(usize, usize)>> = vec![None; buffers.len()];
    for (s, used) in uses.iter().enumerate() {
        for &b in used {
            life[b] = Some((life[b].map_or(s, |l| l.0), s));
        }
    }
    let mut places: Vec<Place> =
        buffers.iter().map(|b| b.place.unwrap_or(Place { segment: ARENA, offset: 0 })).collect();
    let (mut starting, mut ending) = (vec![Vec::new(); uses.len()], vec![Vec::new(); uses.len()]);
    for (b, life) in life.iter().enumerate() {
        if let (Some((first, last)), None) = (life, buffers[b].place) {
            starting[*first].push(b);
            ending[*last].push(b);
        }
    }
    let mut gaps = Gaps::default();
    let mut placements = Vec::new();
    let padded = |b: usize| buffers[b].bytes.next_multiple_of(ALIGN);
    for step in 0..uses.len() {
        for &b in starting[step].iter().filter(|&&b| buffers[b].bytes > 0) {
            places[b].offset = gaps.take(padded(b));
            placements.push(Placement {
                value: buffers[b].value,
                place: places[b],
                bytes: buffers[b].bytes,
                first: step,
                last: life[b].map_or(step, |l| l.1),
                origin: origins[step],
            });
        }
        for &b in ending[step].iter().filter(|&&b| buffers[b].bytes > 0) {
            gaps.insert(places[b].offset, padded(b));
        }
    }
    (places, placements, gaps.end)
}

/// Bytes a view touches: first byte and one past the last, in its segment; `None` if it has no element.
fn extent(v: &TensorView) -> Option<(isize, isize)> {
    let (mut low, mut high) = (v.layout.offset, v.layout.offset);
    for (&d, &s) in v.layout.shape.iter().zip(&v.layout.strides) {
        if d == 0 {
            return None;
        }
        let span = s * (d as isize - 1);
        if span < 0 { low += span } else { high += span }
    }
    let size = v.dtype.size() as isize;
    let base = v.place.offset as isize;
    Some((base + low * size, base + (high + 1) * size))
}

/// Proves a plan sound from its steps alone: every view lies in its segment; in the arena, in a placement that is live at
/// that step and has been written before it is read; placements that are live together do not overlap.
///
/// # Errors
/// `Plan`, naming the step and what is wrong.
pub fn check_plan(plan: &Plan) -> Result<()> {
    ensure!(
        plan.segments.first().is_some_and(|s| s.kind == SegmentKind::Arena),
        Plan,
        "segment 0 must be the arena"
    );
    let (mut starting, mut ending) = (vec![Vec::new(); plan.steps.len()], vec![Vec::new(); plan.steps.len()]);
    for (i, p) in plan.placements.iter().enumerate() {
        ensure!(
            p.first <= p.last && p.last < plan.steps.len(),
            Plan,
            "placement {i} lives from {} to {}",
            p.first,
            p.last
        );
        ensure!(p.place.offset.is_multiple_of(ALIGN), Plan, "placement {i} is not aligned");
        starting[p.first].push(i);
        ending[p.last].push(i);
    }
    // Live placements by offset, with whether they have been written.
    let mut live: BTreeMap<usize, (usize, bool)> = BTreeMap::new();
    for (s, step) in plan.steps.iter().enumerate() {
        for &i in &starting[s] {
            let p = &plan.placements[i];
            let (start, end) = (p.place.offset, p.place.offset + p.bytes);
            let before = live.range(..end).next_back().filter(|(o, (b, _))| *o + b > start);
            ensure!(
                before.is_none(),
                Plan,
                "step {s}: the buffer of {} overlaps a live one at byte {start}",
                p.value
            );
            live.insert(start, (p.bytes, false));
        }
        let mut inside = |v: &TensorView, write: bool| -> Result<()> {
            let Some((low, high)) = extent(v) else { return Ok(()) };
            let segment = plan.segments.get(v.place.segment.0 as usize);
            let Some(segment) = segment else { return Err(crate::fail!(Plan, "step {s} names no segment")) };
            ensure!(
                low >= 0 && high as usize <= segment.bytes,
                Plan,
                "step {s} ({}) leaves {}",
                step.op,
                segment.name
            );
            ensure!(
                v.place.offset.is_multiple_of(v.dtype.size()),
                Plan,
                "step {s} ({}): an operand is not aligned",
                step.op
            );
            if v.place.segment != ARENA {
                let read_only = matches!(segment.kind, SegmentKind::Input | SegmentKind::Constant);
                ensure!(!(write && read_only), Plan, "step {s} ({}) writes {}", step.op, segment.name);
                return Ok(());
            }
            let at =
                live.range_mut(..=low as usize).next_back().filter(|(o, (b, _))| **o + *b >= high as usize);
            let Some((_, (_, written))) = at else {
                return Err(crate::fail!(
                    Plan,
                    "step {s} ({}) uses arena bytes {low}..{high} that are not live",
                    step.op
                ));
            };
            ensure!(
                write || *written,
                Plan,
                "step {s} ({}) reads arena bytes {low}..{high} before writing",
                step.op
            );
            *written |= write;
            Ok(())
        };
        for v in step.reads.iter().flatten() {
            inside(v, false)?;
        }
        for v in &step.writes {
            inside(v, true)?;
        }
        if let Some((place, bytes)) = step.workspace {
            let layout = crate::Layout::contiguous(&[bytes].into());
            inside(&TensorView { place, dtype: crate::DType::U8, layout }, true)?;
        }
        for &i in &ending[s] {
            live.remove(&plan.placements[i].place.offset);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_merge_and_are_reused() {
        let mut g = Gaps::default();
        let (a, b, c) = (g.take(64), g.take(128), g.take(64));
        assert_eq!((a, b, c), (0, 64, 192));
        g.insert(a, 64);
        g.insert(b, 128);
        assert_eq!(g.take(192), 0);
        g.insert(c, 64);
        assert_eq!(g.take(128), 192);
        assert_eq!(g.end, 320);
    }
}
