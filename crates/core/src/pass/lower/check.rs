//! Proof of a finished plan, from its steps alone: it knows nothing of how they were placed and ordered.

use super::draft::extent;
use super::halves::check_halves;
use super::order::{Order, Touch, Uses};
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::collective;
use crate::plan::{ARENA, Plan, SegmentKind, Step, TensorView};
use std::collections::{BTreeMap, HashMap};

/// Proves a plan sound from its steps alone. Every view is in its segment. In the arena it is in a placement
/// that is live at that step and has been written before it is read. Placements that are live at the same
/// time do not overlap. Steps on several streams that use the same bytes are ordered by waits. Collectives of
/// an axis are on one stream. Segments are complete when the plan says so. In a plan in halves, the second
/// reads nothing of the first but what is listed, and the first completes what it returns (`halves`).
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
        ensure!(p.place.offset.is_multiple_of(plan.alignment), Plan, "placement {i} is not aligned");
        let end = p.place.offset.checked_add(p.bytes);
        ensure!(end.is_some_and(|end| end <= isize::MAX as usize), Plan, "placement {i} ends beyond memory");
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
            let room = TensorView { place, dtype: crate::DType::U8, layout };
            inside(&room, true)?;
            let (start, end) = (place.offset as isize, (place.offset + bytes) as isize);
            for v in step.reads.iter().flatten().chain(&step.writes).filter(|v| v.place.segment == ARENA) {
                let apart = extent(v).is_none_or(|(low, high)| high <= start || end <= low);
                ensure!(apart, Plan, "step {s} ({}) has an operand in its workspace", step.op);
            }
            // A kernel leaves nothing there that anybody reads.
            if let Some((_, (_, written))) = live.range_mut(..=place.offset).next_back() {
                *written = false;
            }
        }
        for &i in &ending[s] {
            live.remove(&plan.placements[i].place.offset);
        }
    }
    let order = Order::of(plan)?;
    if plan.steps.iter().any(|s| s.stream != 0) {
        check_order(plan, &order)?;
    }
    check_collectives(plan)?;
    check_completions(plan, &order)?;
    plan.halves.as_ref().map_or(Ok(()), |halves| check_halves(plan, halves))
}

/// The bytes that a step uses: segment, bytes, and whether it writes them.
fn touches(step: &Step) -> impl Iterator<Item = Touch> + '_ {
    let view = |v: &TensorView, writes: bool| {
        let (low, high) = extent(v)?;
        let bytes = low.max(0) as usize..high.max(0) as usize;
        Some(Touch { space: v.place.segment.0 as u64, bytes, writes })
    };
    let reads = step.reads.iter().flatten().filter_map(move |v| view(v, false));
    let writes = step.writes.iter().filter_map(move |v| view(v, true));
    let workspace = step.workspace.map(|(place, bytes)| {
        let bytes = place.offset..place.offset.saturating_add(bytes);
        Touch { space: place.segment.0 as u64, bytes, writes: true }
    });
    reads.chain(writes).chain(workspace)
}

/// Proves that steps which use the same bytes, one of them writing, are ordered, whatever streams they run
/// on.
///
/// # Errors
/// `Plan`, naming both steps.
fn check_order(plan: &Plan, order: &Order) -> Result<()> {
    let mut uses = Uses::default();
    for (s, step) in plan.steps.iter().enumerate() {
        for touch in touches(step) {
            let conflicts = uses.note(&touch, s, step.stream);
            for other in conflicts.iter().filter_map(|c| c.checked_sub(1)) {
                ensure!(
                    order.before(other, s),
                    Plan,
                    "step {s} ({}) on stream {} {} bytes {}..{} of segment {}, which step {other} ({}) on stream \
                     {} uses: a wait is missing",
                    step.op,
                    step.stream,
                    if touch.writes { "writes" } else { "reads" },
                    touch.bytes.start,
                    touch.bytes.end,
                    touch.space,
                    plan.steps[other].op,
                    plan.steps[other].stream
                );
            }
        }
    }
    Ok(())
}

/// Proves that ranks meet in the order of the steps: the collectives of an axis are on one stream, and are
/// all of the same ranks.
///
/// # Errors
/// `Plan`, naming both steps.
fn check_collectives(plan: &Plan) -> Result<()> {
    let mut first: HashMap<&str, (usize, u32, usize)> = HashMap::new();
    for (s, step, attrs) in plan.collectives() {
        let (axis, ranks) = (collective::axis(attrs), collective::ranks(attrs));
        let (other, stream, world) = *first.entry(axis).or_insert((s, step.stream, ranks));
        ensure!(
            stream == step.stream,
            Plan,
            "step {s} ({}) on stream {} and step {other} ({}) on stream {stream} are collectives of the axis \
             `{axis}`: in the order of two streams, ranks may meet in different ones",
            step.op,
            step.stream,
            plan.steps[other].op
        );
        ensure!(
            ranks == world,
            Plan,
            "step {s} ({}) is of {ranks} ranks of the axis `{axis}`, step {other} ({}) of {world}",
            step.op,
            plan.steps[other].op
        );
    }
    Ok(())
}

/// Proves that segments are complete when the plan says so: the step writes there, and every other that does
/// comes before it.
///
/// # Errors
/// `Plan`, naming the step.
fn check_completions(plan: &Plan, order: &Order) -> Result<()> {
    let mut writers: HashMap<u32, Vec<usize>> = HashMap::new();
    for c in &plan.completions {
        let exists = (c.segment.0 as usize) < plan.segments.len() && c.segment != ARENA;
        ensure!(exists, Plan, "segment {}, which cannot be complete, is said to be", c.segment.0);
        ensure!(writers.insert(c.segment.0, Vec::new()).is_none(), Plan, "{} is complete twice", c.segment.0);
    }
    for (s, step) in plan.steps.iter().enumerate() {
        for v in step.writes.iter().filter(|v| extent(v).is_some()) {
            if let Some(all) = writers.get_mut(&v.place.segment.0) {
                all.push(s);
            }
        }
    }
    for c in &plan.completions {
        let (all, name) = (&writers[&c.segment.0], &plan.segments[c.segment.0 as usize].name);
        ensure!(
            all.contains(&c.step),
            Plan,
            "step {} is said to complete {name}, and does not write it",
            c.step
        );
        let late = all.iter().find(|&&s| s != c.step && !order.before(s, c.step));
        if let Some(&s) = late {
            let op = plan.steps[s].op;
            return Err(crate::fail!(
                Plan,
                "step {s} ({op}) writes {name}, which is said to be complete after step {}",
                c.step
            ));
        }
    }
    Ok(())
}
