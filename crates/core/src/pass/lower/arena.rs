//! Static memory planning: places every buffer of a plan in one arena.
//!
//! Buffers that hold most bytes for most steps are placed first, each in the smallest gap that is free while
//! it lives. Small and short-lived ones fill the gaps between them. Placing in the order of time instead
//! leaves gaps that are a little too small for what comes next. The many small buffers of a large graph are
//! placed so, which keeps all near-linear in their number. It is taken also where it needs less.

use super::draft::Buffer;
use crate::graph::OriginId;
use crate::plan::{ARENA, Place, Placement};
use std::collections::{BTreeMap, BTreeSet};

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
        // A gap at the end is extended rather than abandoned.
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

/// A buffer that the arena holds, from its first step to its last.
#[derive(Clone, Copy)]
struct Alive {
    buffer: usize,
    bytes: usize,
    first: usize,
    last: usize,
}

/// So many buffers are placed by what they hold: each is compared with all before it.
const WEIGHED: usize = 4096;

/// Gives every buffer a place, aligned to `alignment` bytes. `uses[s]` are the buffers step `s` touches,
/// `beside[s]` is the last step that may run at the same time, `origins[s]` its origin. Returns the places,
/// the arena's placements and the arena's size in bytes.
pub(super) fn place(
    buffers: &[Buffer],
    uses: &[Vec<usize>],
    beside: &[usize],
    alignment: usize,
    origins: &[OriginId],
) -> (Vec<Place>, Vec<Placement>, usize) {
    let mut life: Vec<Option<(usize, usize)>> = vec![None; buffers.len()];
    for (s, used) in uses.iter().enumerate() {
        for &b in used {
            let last = life[b].map_or(0, |l| l.1);
            life[b] = Some((life[b].map_or(s, |l| l.0), beside[s].max(last)));
        }
    }
    let mut places: Vec<Place> =
        buffers.iter().map(|b| b.place.unwrap_or(Place { segment: ARENA, offset: 0 })).collect();
    let mut alive: Vec<Alive> = Vec::new();
    for (buffer, (b, life)) in buffers.iter().zip(&life).enumerate() {
        if let (Some((first, last)), None, 1..) = (*life, b.place, b.bytes) {
            alive.push(Alive { buffer, bytes: b.bytes.next_multiple_of(alignment), first, last });
        }
    }
    alive.sort_by_key(|a| (a.first, a.buffer));
    let (offsets, bytes) = std::cmp::min_by_key(by_weight(&alive), in_time(&alive), |(_, bytes)| *bytes);
    let mut placements = Vec::with_capacity(alive.len());
    for (a, offset) in alive.iter().zip(offsets) {
        places[a.buffer].offset = offset;
        let Buffer { value, bytes, .. } = buffers[a.buffer];
        let (place, origin) = (places[a.buffer], origins[a.first]);
        placements.push(Placement { value, place, bytes, first: a.first, last: a.last, origin });
    }
    (places, placements, bytes)
}

/// Offsets in the order of time, and their end: the smallest gap that is free, or an extension.
fn in_time(alive: &[Alive]) -> (Vec<usize>, usize) {
    let steps = alive.iter().map(|a| a.last + 1).max().unwrap_or(0);
    let mut ending = vec![Vec::new(); steps];
    alive.iter().enumerate().for_each(|(i, a)| ending[a.last].push(i));
    let mut gaps = Gaps::default();
    let mut offsets = Vec::with_capacity(alive.len());
    for (step, ending) in ending.iter().enumerate() {
        while let Some(a) = alive.get(offsets.len()).filter(|a| a.first == step) {
            offsets.push(gaps.take(a.bytes));
        }
        ending.iter().for_each(|&i| gaps.insert(offsets[i], alive[i].bytes));
    }
    (offsets, gaps.end)
}

/// Offsets in the order of bytes times steps, and their end.
fn by_weight(alive: &[Alive]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..alive.len()).collect();
    order.sort_by_key(|&i| {
        std::cmp::Reverse(alive[i].bytes.saturating_mul(alive[i].last - alive[i].first + 1))
    });
    let light = order.split_off(order.len().min(WEIGHED));
    let mut offsets = vec![0; alive.len()];
    // Buffers placed so far, by offset.
    let mut placed: Vec<(usize, Alive)> = Vec::with_capacity(order.len());
    let mut end = 0;
    for i in order {
        let a = alive[i];
        let (mut free, mut best) = (0, None);
        for (offset, other) in placed.iter().filter(|(_, o)| o.first <= a.last && a.first <= o.last) {
            let gap = offset.saturating_sub(free);
            if gap >= a.bytes && best.is_none_or(|(have, _)| gap < have) {
                best = Some((gap, free));
            }
            free = free.max(offset + other.bytes);
        }
        offsets[i] = best.map_or(free, |(_, offset)| offset);
        end = end.max(offsets[i] + a.bytes);
        let at = placed.partition_point(|(offset, _)| *offset < offsets[i]);
        placed.insert(at, (offsets[i], a));
    }
    // The light ones follow, in their own order of time.
    let mut light = light;
    light.sort_unstable();
    let rest: Vec<Alive> = light.iter().map(|&i| alive[i]).collect();
    let (behind, more) = in_time(&rest);
    light.into_iter().zip(behind).for_each(|(i, offset)| offsets[i] = end + offset);
    (offsets, end + more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ALIGN;
    use proptest::prelude::*;

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

    fn alive(all: &[(usize, usize, usize)]) -> Vec<Alive> {
        let one = |(buffer, &(bytes, first, last)): (usize, &(usize, usize, usize))| Alive {
            buffer,
            bytes: bytes * ALIGN,
            first,
            last,
        };
        let mut all: Vec<Alive> = all.iter().enumerate().map(one).collect();
        all.sort_by_key(|a| (a.first, a.buffer));
        all
    }

    /// The most bytes that are needed at once.
    fn peak(alive: &[Alive]) -> usize {
        let at =
            |step: usize| alive.iter().filter(move |a| (a.first..=a.last).contains(&step)).map(|a| a.bytes);
        alive.iter().map(|a| at(a.first).sum()).max().unwrap_or(0)
    }

    /// Convolutions with a workspace and a result that stays, and norms of it. In the order of time these
    /// land where the workspace was, and the next does not fit there.
    #[test]
    fn what_stays_does_not_break_the_room_of_what_comes_again() {
        let all: Vec<_> =
            (0..8).flat_map(|s| [(10, 2 * s, 2 * s), (1, 2 * s, 40), (1, 2 * s + 1, 40)]).collect();
        let all = alive(&all);
        assert!(in_time(&all).1 > peak(&all));
        assert_eq!(by_weight(&all).1, peak(&all));
    }

    proptest! {
        #[test]
        fn buffers_that_live_together_lie_apart(
            all in prop::collection::vec((1usize..50, 0usize..30, 0usize..30), 0..60)
        ) {
            let all: Vec<_> = all.into_iter().map(|(b, s, t)| (b, s.min(t), s.max(t))).collect();
            let all = alive(&all);
            for (offsets, end) in [by_weight(&all), in_time(&all)] {
                prop_assert!(end >= peak(&all));
                for (i, (a, &x)) in all.iter().zip(&offsets).enumerate() {
                    prop_assert!(x.is_multiple_of(ALIGN) && x + a.bytes <= end);
                    for (b, &y) in all.iter().zip(&offsets).skip(i + 1) {
                        let together = a.first <= b.last && b.first <= a.last;
                        prop_assert!(!together || x + a.bytes <= y || y + b.bytes <= x);
                    }
                }
            }
        }
    }
}
