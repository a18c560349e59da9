//! Steps on several streams: the waits that order them, before buffers have places.

use super::draft::{Buffer, Draft, Storage, extent};
use super::order::{STREAMS, Touch, ordered};
use crate::diagnostic::Result;
use crate::ensure;
use crate::plan::{ARENA, Place, SegmentId, TensorView, Wait};
use std::collections::HashMap;

/// Waits between the steps, and for each step the last that may run at the same time. A step that completes
/// one of the segments `buckets` is ordered after every other that writes there.
///
/// # Errors
/// `Plan` for a stream beyond [`STREAMS`].
pub(super) fn waits(
    buffers: &[Buffer],
    steps: &[Draft],
    roots: &[usize],
    buckets: &[SegmentId],
) -> Result<(Vec<Wait>, Vec<usize>)> {
    let streams: Vec<u32> = steps.iter().map(|s| s.stream).collect();
    if streams.iter().all(|s| *s == 0) {
        return Ok((Vec::new(), (0..steps.len()).collect()));
    }
    let beyond = streams.iter().find(|s| **s as usize >= STREAMS);
    ensure!(beyond.is_none(), Plan, "stream {beyond:?} of {STREAMS} that a plan may have");
    // Buffers of the arena are distinct until they have offsets; those of the caller have fixed ones.
    let touch = |s: &Storage, writes: bool| {
        let root = roots[s.buffer];
        let (space, place) = match buffers[root].place {
            Some(place) => (place.segment.0 as u64, place),
            None => ((1 << 32) + root as u64, Place { segment: ARENA, offset: 0 }),
        };
        let view = TensorView { place, dtype: s.dtype, layout: s.layout.clone() };
        let (low, high) = extent(&view)?;
        Some(Touch { space, bytes: low.max(0) as usize..high.max(0) as usize, writes })
    };
    let touches = |step: usize| {
        let step = &steps[step];
        let reads = step.reads.iter().flatten().filter_map(|s| touch(s, false));
        let writes = step.writes.iter().filter_map(|s| touch(s, true));
        let workspace = step.workspace.map(|b| {
            let (space, bytes) = ((1 << 32) + roots[b] as u64, 0..buffers[b].bytes);
            Touch { space, bytes, writes: true }
        });
        reads.chain(writes).chain(workspace).collect::<Vec<Touch>>()
    };
    let mut writers: HashMap<SegmentId, Vec<usize>> = buckets.iter().map(|b| (*b, Vec::new())).collect();
    for (s, step) in steps.iter().enumerate() {
        for place in step.writes.iter().filter_map(|w| buffers[roots[w.buffer]].place) {
            writers.entry(place.segment).and_modify(|all| all.push(s));
        }
    }
    let mut behind: HashMap<usize, Vec<usize>> = HashMap::new();
    for mut all in writers.into_values() {
        if let Some(last) = all.pop() {
            all.retain(|s| *s != last);
            behind.entry(last).or_default().append(&mut all);
        }
    }
    let (waits, order) = ordered(&streams, touches, |s| behind.get(&s).cloned().unwrap_or_default());
    Ok((waits, order.last_beside()))
}
