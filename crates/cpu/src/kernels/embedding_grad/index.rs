//! Positions grouped by row: checked, then sorted by (row, position) in one of three ways that give the same
//! result.

use super::operand::StridedIndices;
use crate::pool::Pool;
use headwater_core::diagnostic::Result;
use headwater_core::ops::index::embedding_grad::{
    BadIndex, EmbeddingGradOptions, EmbeddingGradReport, Method,
};
use headwater_core::ops::index::resolve;
use std::sync::atomic::{AtomicU64, Ordering};

/// Positions by row: those of row `rows[s]` are `order[starts[s]..starts[s + 1]]`, ascending. Rows ascend.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segments<'a> {
    pub rows: &'a [u32],
    pub starts: &'a [u32],
    pub order: &'a [u32],
}

/// The workspace in which [`Segments`] are built.
pub(super) struct Room<'a> {
    /// One for each position.
    pub keys: &'a mut [u32],
    /// One for each position.
    pub order: &'a mut [u32],
    /// As many as rows can be read, and one more.
    pub rows: &'a mut [u32],
    /// As `rows`.
    pub starts: &'a mut [u32],
    /// [`scratch`] words.
    pub scratch: &'a mut [u64],
}

/// Why a method was taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The method.
    pub method: Method,
    /// Share of distinct rows in a sample of positions, where it was measured.
    pub distinct: Option<f64>,
    /// In words.
    pub why: &'static str,
}

/// Key of positions that add nothing.
const NONE: u32 = u32::MAX;
/// Most bits of a digit of the radix sort: a histogram of 2,048 counters stays in the first-level cache.
const DIGIT: u32 = 11;
/// Positions that a thread checks at a time.
const BLOCK: usize = 1 << 14;
/// Positions looked at to estimate how many rows are distinct.
const SAMPLE: usize = 1 << 10;
/// A counter for each row pays up to so many rows for each position: there, counting and sorting take the
/// same time (BENCHMARKS.md).
const DIRECT: usize = 8;
/// Share of distinct rows below which the hash table is taken, because its slots in use stay in the
/// first-level cache. With half of the rows distinct, sorting is ahead by a tenth.
const FEW: f64 = 0.25;

/// Digits of a row number below `rows`, and the bits of each.
fn digits(rows: usize) -> (u32, u32) {
    let bits = usize::BITS - rows.saturating_sub(1).leading_zeros();
    let passes = bits.div_ceil(DIGIT).max(1);
    (passes, bits.div_ceil(passes))
}

/// Slots of the hash table for `rows` distinct rows: at most half of them are in use.
fn slots(rows: usize) -> usize {
    (2 * rows).next_power_of_two()
}

/// Most rows that `positions` positions read of a table.
pub(super) fn most(positions: usize, rows: usize) -> usize {
    positions.min(rows)
}

/// Words (u64) of the histograms of the radix sort.
fn histograms(rows: usize) -> usize {
    (digits(rows).0 as usize) << (DIGIT - 1)
}

/// Words (u64) that a method needs beside keys, order, rows and starts; `Auto` as many as any it may take.
pub(super) fn scratch(method: Method, positions: usize, rows: usize) -> usize {
    let few = most(positions, rows);
    let radix = 2 * positions + histograms(rows);
    match method {
        _ if few == 0 => 0,
        Method::Direct => rows.div_ceil(2),
        Method::Radix => radix,
        // The table; row and count of each distinct row; their sort. The radix sort, if the table fills up
        // badly.
        Method::Hash => (slots(few).div_ceil(2) + few + 2 * few + histograms(rows)).max(radix),
        Method::Auto if direct_pays(positions, rows) => scratch(Method::Direct, positions, rows),
        Method::Auto => scratch(Method::Hash, positions, rows),
    }
}

fn direct_pays(positions: usize, rows: usize) -> bool {
    rows <= DIRECT.saturating_mul(positions)
}

/// Checks the indices and groups their positions by row. The report holds what was skipped.
///
/// # Errors
/// `Value` for the first index outside the table, unless such are skipped.
pub(super) fn bring_together<'a>(
    pool: &Pool,
    indices: &StridedIndices,
    options: &EmbeddingGradOptions,
    room: Room<'a>,
) -> Result<(Segments<'a>, EmbeddingGradReport, Choice)> {
    let report = keys(pool, indices, options, room.keys)?;
    let rows = options.num_weights;
    if room.rows.len() <= 1 {
        let choice = Choice { method: Method::Direct, distinct: None, why: "there is nothing to sort" };
        room.starts[0] = 0;
        return Ok((Segments { rows: &[], starts: room.starts, order: &[] }, report, choice));
    }
    let choice = choose(options.method, room.keys, rows);
    let segments = match choice.method {
        Method::Direct => direct(room, rows),
        Method::Hash => hash(room, rows),
        _ => radix(room, rows),
    };
    Ok((segments, report, choice))
}

/// The row of each position, or [`NONE`].
fn keys(
    pool: &Pool,
    indices: &StridedIndices,
    options: &EmbeddingGradOptions,
    keys: &mut [u32],
) -> Result<EmbeddingGradReport> {
    let (limit, padding) = (options.num_weights as u64, options.padding_idx);
    let (skipped, first) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    pool.chunks(keys, BLOCK, |b, keys| {
        let (start, count) = (b * BLOCK, keys.len());
        let (mut bad, mut slots) = (0, keys.iter_mut());
        indices.each(start..start + count, |i| {
            let inside = (i as u64) < limit;
            bad += !inside as u64;
            if let Some(key) = slots.next() {
                *key = if inside && i != padding { i as u32 } else { NONE };
            }
        });
        if bad > 0 {
            skipped.fetch_add(bad, Ordering::Relaxed);
            let (mut at, mut found) = (start as u64, u64::MAX);
            indices.each(start..start + count, |i| {
                if i as u64 >= limit {
                    found = found.min(at);
                }
                at += 1;
            });
            first.fetch_min(found, Ordering::Relaxed);
        }
    });
    let mut report = EmbeddingGradReport { skipped: skipped.into_inner(), ..EmbeddingGradReport::default() };
    if report.skipped > 0 {
        let at = first.into_inner();
        let index = indices.get(at as usize);
        if options.bad_index == BadIndex::Error {
            resolve(index, at as usize, options.num_weights, false)?;
        }
        report.first_skipped = Some((at, index));
    }
    Ok(report)
}

fn choose(asked: Method, keys: &[u32], rows: usize) -> Choice {
    if asked != Method::Auto {
        return Choice { method: asked, distinct: None, why: "it was asked for" };
    }
    if direct_pays(keys.len(), rows) {
        let why =
            "a counter for each row costs less than sorting: the table has few rows for so many positions";
        return Choice { method: Method::Direct, distinct: None, why };
    }
    let distinct = sample(keys);
    let (method, why) = match distinct < FEW {
        true => (
            Method::Hash,
            "the table is large, few rows of it are read, and a hash table of those stays in the cache",
        ),
        false => (Method::Radix, "the table is large and most positions read rows of their own"),
    };
    Choice { method, distinct: Some(distinct), why }
}

/// Share of distinct rows among some positions, evenly spread.
fn sample(keys: &[u32]) -> f64 {
    let mut seen = [NONE; 4 * SAMPLE];
    let (mut distinct, mut k_group) = (0, 0);
    for &key in keys.iter().step_by((keys.len() / SAMPLE).max(1)).take(SAMPLE).filter(|k| **k != NONE) {
        let mut slot = spread(key, 2 + SAMPLE.ilog2());
        while seen[slot] != NONE && seen[slot] != key {
            slot = (slot + 1) % seen.len();
        }
        distinct += (seen[slot] == NONE) as usize;
        k_group += 1;
        seen[slot] = key;
    }
    distinct as f64 / k_group.max(1) as f64
}

/// Multiplicative hashing (Knuth, The Art of Computer Programming 3, section 6.4) to `bits` bits, at least 1.
#[inline]
fn spread(key: u32, bits: u32) -> usize {
    (key.wrapping_mul(0x9E37_79B1) >> (32 - bits)) as usize
}

fn direct<'a>(room: Room<'a>, table: usize) -> Segments<'a> {
    let Room { keys, order, rows, starts, scratch } = room;
    let counts = &mut bytemuck::cast_slice_mut::<u64, u32>(scratch)[..table];
    counts.fill(0);
    keys.iter().filter(|k| **k != NONE).for_each(|&k| counts[k as usize] += 1);
    let (mut found, mut total) = (0, 0);
    for (row, count) in counts.iter_mut().enumerate() {
        // Overwritten by the next row if this one is not read: no branch to predict.
        (rows[found], starts[found]) = (row as u32, total);
        found += (*count != 0) as usize;
        total += std::mem::replace(count, total);
    }
    starts[found] = total;
    for (at, &k) in keys.iter().enumerate().filter(|(_, k)| **k != NONE) {
        let next = &mut counts[k as usize];
        order[*next as usize] = at as u32;
        *next += 1;
    }
    Segments { rows: &rows[..found], starts: &starts[..found + 1], order: &order[..total as usize] }
}

fn radix<'a>(room: Room<'a>, table: usize) -> Segments<'a> {
    let Room { keys, order, rows, starts, scratch } = room;
    let (histograms, pairs) = scratch.split_at_mut(histograms(table));
    let (a, b) = pairs.split_at_mut(keys.len());
    let mut count = 0;
    for (at, &k) in keys.iter().enumerate() {
        a[count] = (k as u64) << 32 | at as u64;
        count += (k != NONE) as usize;
    }
    let sorted = sort(&mut a[..count], &mut b[..count], bytemuck::cast_slice_mut(histograms), table);
    let (mut found, mut last) = (0, NONE);
    for (i, &pair) in sorted.iter().enumerate() {
        let key = (pair >> 32) as u32;
        order[i] = pair as u32;
        (rows[found], starts[found]) =
            if key == last { (rows[found], starts[found]) } else { (key, i as u32) };
        found += (key != last) as usize;
        last = key;
    }
    starts[found] = count as u32;
    Segments { rows: &rows[..found], starts: &starts[..found + 1], order: &order[..count] }
}

/// Sorts pairs by their upper halves, rows of a table of `rows`, keeping the order of equal ones. It goes by
/// the least significant digit first, with as few passes as the rows need. The result is in `a` or `b`.
fn sort<'a>(mut a: &'a mut [u64], mut b: &'a mut [u64], histograms: &mut [u32], rows: usize) -> &'a [u64] {
    let (passes, bits) = digits(rows);
    let mask = (1 << bits) - 1;
    histograms.fill(0);
    for &pair in a.iter() {
        for (pass, counts) in histograms.chunks_exact_mut(1 << DIGIT).enumerate() {
            counts[(pair >> (32 + pass as u32 * bits)) as usize & mask] += 1;
        }
    }
    for (pass, next) in histograms.chunks_exact_mut(1 << DIGIT).enumerate().take(passes as usize) {
        let mut total = 0;
        next[..=mask].iter_mut().for_each(|n| total += std::mem::replace(n, total));
        for &pair in a.iter() {
            let to = &mut next[(pair >> (32 + pass as u32 * bits)) as usize & mask];
            b[*to as usize] = pair;
            *to += 1;
        }
        std::mem::swap(&mut a, &mut b);
    }
    a
}

fn hash<'a>(room: Room<'a>, table: usize) -> Segments<'a> {
    let few = most(room.keys.len(), table);
    let bits = slots(few).ilog2();
    {
        let words: &mut [u32] = bytemuck::cast_slice_mut(room.scratch);
        let (slots, rest) = words.split_at_mut(2 * slots(few).div_ceil(2));
        let (own, rest) = rest.split_at_mut(few);
        let counts = &mut rest[..few];
        if let Err(done) = number(room.keys, slots, own, counts, bits) {
            // Rows chosen to collide: back to what takes the same time for all.
            room.keys[..done].iter_mut().filter(|k| **k != NONE).for_each(|k| *k = own[*k as usize]);
            return radix(room, table);
        }
    }
    let Room { keys, order, rows, starts, scratch } = room;
    let (head, rest) = scratch.split_at_mut(slots(few).div_ceil(2) + few);
    let words = &mut bytemuck::cast_slice_mut::<u64, u32>(head)[2 * slots(few).div_ceil(2)..];
    let (own, counts) = words.split_at_mut(few);
    let (histograms, pairs) = rest.split_at_mut(histograms(table));
    let (a, b) = pairs[..2 * few].split_at_mut(few);
    let found = counts.iter().position(|&n| n == 0).unwrap_or(few);
    for (i, pair) in a[..found].iter_mut().enumerate() {
        *pair = (own[i] as u64) << 32 | i as u64;
    }
    let sorted = sort(&mut a[..found], &mut b[..found], bytemuck::cast_slice_mut(histograms), table);
    let mut total = 0;
    for (s, &pair) in sorted.iter().enumerate() {
        (rows[s], starts[s]) = ((pair >> 32) as u32, total);
        total += std::mem::replace(&mut counts[pair as u32 as usize], total);
    }
    starts[found] = total;
    for (at, &id) in keys.iter().enumerate().filter(|(_, id)| **id != NONE) {
        order[counts[id as usize] as usize] = at as u32;
        counts[id as usize] += 1;
    }
    Segments { rows: &rows[..found], starts: &starts[..found + 1], order: &order[..total as usize] }
}

/// Replaces each key by the number of its row in order of first appearance. The rows are in `own`, and their
/// numbers of appearances in `counts`. Stops after too many collisions, returning how many positions were
/// done.
fn number(
    keys: &mut [u32],
    slots: &mut [u32],
    own: &mut [u32],
    counts: &mut [u32],
    bits: u32,
) -> Result<(), usize> {
    slots.fill(NONE);
    counts.fill(0);
    let (mut found, mut left) = (0u32, 8 * keys.len() + 64);
    for (at, place) in keys.iter_mut().enumerate().filter(|(_, k)| **k != NONE) {
        let key = *place;
        let mut slot = spread(key, bits);
        let id = loop {
            match slots[slot] {
                NONE => {
                    slots[slot] = found;
                    own[found as usize] = key;
                    found += 1;
                    break found - 1;
                }
                id if own[id as usize] == key => break id,
                _ => {
                    slot = (slot + 1) & ((1 << bits) - 1);
                    left -= 1;
                    if left == 0 {
                        return Err(at);
                    }
                }
            }
        };
        counts[id as usize] += 1;
        *place = id;
    }
    Ok(())
}
