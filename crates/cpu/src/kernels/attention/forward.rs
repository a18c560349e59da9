//! The forward pass: a block of queries at a time goes over all keys that it sees.

use super::product::{self, Product, Upcoming, copied, copies, left, pack, packed, tile_rows};
use super::rows::Lines;
use super::softmax::{GROUP, Query, Shares, Softmax};
use super::{Four, FourMut, KEYS, LINE, Mask, Options};
use crate::element::{Float, Wide};
use crate::gemm::{Microkernels, Operand, even};
use crate::kernels::vector::{self, Vectors};
use crate::kernels::{Args, Site};
use crate::matrix::{Mat, MatMut};
use crate::pool::Shared;
use crate::workspace::{self, Pieces, total};
use headwater_core::diagnostic::Result;
use headwater_core::ops::attention::attention::Attention;

/// Most queries in a block: enough that packing the keys for each block costs little.
const QUERIES: usize = 252;

/// Queries whose scores exist at a time, for the first-level cache: whole rows of register tiles.
fn strip<T: Operand>(kernels: &Microkernels<T>) -> usize {
    const STRIP: usize = 24;
    STRIP.next_multiple_of(kernels.mr)
}

/// Elements of a thread's scratch memory: keys, values, queries, scores, sums of values unless these are made
/// in place, largest scores and sums, mask, dropout.
fn pieces<T: Operand>(a: &Attention, site_tier: crate::tier::Tier) -> [usize; 8] {
    let kernels = T::kernels(site_tier);
    [
        packed(kernels, a.e, KEYS),
        packed(kernels, KEYS, a.ev),
        copied::<T>(QUERIES, a.e),
        strip(kernels) * LINE,
        copied::<T>(QUERIES, a.ev),
        2 * QUERIES,
        GROUP * KEYS,
        GROUP * KEYS,
    ]
}

pub(super) fn workspace<T: Operand>(a: &Attention, site: &Site) -> usize {
    total(&pieces::<T>(a, site.tier)) * size_of::<T::Wide>() * site.threads
}

pub(super) fn run<T: Operand<Wide: Vectors>>(options: &Options, args: &mut Args) -> Result<()> {
    let a = &options.a;
    let (q, k, v) =
        (Four::<T>::of(args.read(0)?), Four::<T>::of(args.read(1)?), Four::<T>::of(args.read(2)?));
    let (mask, survivors) = (Mask::of(args.opt(3)), options.survivors(args.opt(4)));
    let kernels = T::kernels(options.tier);
    let k_group = kernels.panels.k_group;
    let sizes = pieces::<T>(a, options.tier);
    let [out, most, denominators] = args.writes else { unreachable!("attention has three results") };
    let out = FourMut::<T>::of(out);
    let [most, denominators] = [most, denominators].map(|x| Shared(x.ptr_mut::<T::Wide>()));
    let unseen = if a.nan_without_keys { T::Wide::from_f64(f64::NAN) } else { T::Wide::ZERO };
    let (tile_rows, strip) = (tile_rows(kernels), strip(kernels));
    let block = even(a.l, QUERIES / tile_rows * tile_rows, tile_rows);
    let blocks = a.l.div_ceil(block);
    let mut scratch = workspace::each(args.workspace, total(&sizes), args.pool.threads());
    scratch.run(args.pool, a.batch * a.heads * blocks, |at, scratch| {
        let mut scratch = Pieces(scratch);
        let [keys, values, queries, scores, sums, state, added, kept] = sizes.map(|n| scratch.take(n));
        let (sample, head) = (at / blocks / a.heads, at / blocks % a.heads);
        let shared = head / (a.heads / a.key_heads);
        // The queries with the most keys first, so that no thread is left with the longest work at the end.
        let first = (blocks - 1 - at % blocks) * block;
        let n = block.min(a.l - first);
        // SAFETY: rows of the queries.
        let query = unsafe { left(&kernels.panels, q.rows(sample, head, first), n, a.e, queries) };
        let (largest, totals) = state.split_at_mut(QUERIES);
        largest[..n].fill(T::Wide::NEG_INFINITY);
        totals[..n].fill(T::Wide::ZERO);
        let seen = |last: usize| if a.causal { a.s.min(last) } else { a.s };
        // Memory that this task writes, and that the thread reads next.
        let next = at + 1;
        let (sample_next, head_next) = (next / blocks / a.heads, next / blocks % a.heads);
        let shared_next = head_next / (a.heads / a.key_heads);
        let first_next = (blocks - 1 - next % blocks) * block;
        let n_next = block.min(a.l - first_next);
        let tiles = n.div_ceil(strip)
            * (seen(first + n) + seen(first + n).div_ceil(options.keys) * a.ev).div_ceil(kernels.nr);
        let mut soon = Upcoming::new(tiles, |i| match i {
            0 => Some(out.ahead(sample, head, first, n, a.ev)),
            _ if next >= a.batch * a.heads * blocks => None,
            1 => Some(k.ahead(sample_next, shared_next, 0, seen(first_next + n_next), a.e)),
            2 => Some(v.ahead(sample_next, shared_next, 0, seen(first_next + n_next), a.ev)),
            3 => Some(q.ahead(sample_next, head_next, first_next, n_next, a.e)),
            _ => None,
        });
        let seen = seen(first + n);
        let sums = product::sums(&out, [sample, head, first], sums, a.ev);
        // SAFETY: a query's sum of values: scratch memory, or a row of the result, which this block alone
        // writes.
        let sum_of = |row: usize| unsafe {
            std::slice::from_raw_parts_mut(sums.moved(row as isize * sums.rs).ptr, a.ev)
        };
        let mut begun = false;
        for k0 in (0..seen).step_by(options.keys) {
            let here = options.keys.min(a.s - k0);
            if mask.as_ref().is_some_and(|m| m.hides([sample, head, first], n, k0, here)) {
                continue;
            }
            let visible = |row: usize| options.visible(first + row, k0);
            // SAFETY: rows of keys and values.
            unsafe {
                pack(&kernels.panels, k.rows(sample, shared, k0).transposed(), a.e, here, keys);
                pack(&kernels.panels, v.rows(sample, shared, k0), here, a.ev, values);
            }
            if let Some(m) = mask.as_ref().filter(|m| m.of_all()) {
                m.read([sample, head, first], k0, &mut added[..here]);
            }
            for top in (0..n).step_by(strip) {
                let rows = strip.min(n - top);
                if visible(top + rows - 1) == 0 {
                    continue;
                }
                // SAFETY: products of blocks that were made for their sizes.
                unsafe {
                    let panels = &kernels.panels;
                    let (a, k) = (query.moved(top as isize * query.rs), a.e.div_ceil(panels.k_group));
                    let c = MatMut { ptr: scores.as_mut_ptr(), rs: LINE as isize };
                    // Whole vectors: the panels' last columns are zeros.
                    let n = here.next_multiple_of(panels.lanes);
                    Product { kernels, panels, m: rows, n, k, a, b: keys, c, add: false }.run(
                        &mut soon,
                        |rows, cols| if visible(top + rows.end - 1) > cols.start { 0..k } else { 0..0 },
                    );
                }
                for first_row in (top..top + rows).step_by(GROUP) {
                    let mut group = [Query::default(); GROUP];
                    let group = &mut group[..GROUP.min(top + rows - first_row)];
                    for (i, query) in group.iter_mut().enumerate() {
                        let row = first_row + i;
                        let most = visible((row / kernels.mr + 1) * kernels.mr - 1);
                        *query = Query {
                            n: visible(row),
                            width: most.next_multiple_of(k_group),
                            largest: largest[row],
                            sum: totals[row],
                        };
                        let (n, line) = (query.n, i * KEYS..(i + 1) * KEYS);
                        if let Some(m) = mask.as_ref().filter(|m| !m.of_all()) {
                            m.read([sample, head, first + row], k0, &mut added[line.clone()][..n]);
                        }
                        if let Some(s) = &survivors {
                            let index = (sample * a.heads + head) * a.l + first + row;
                            let kept = &mut kept[line][..n.next_multiple_of(16)];
                            s.row(options.tier, index * a.s + k0, n, kept);
                        }
                    }
                    let softmax = Softmax {
                        scores: &mut scores[(first_row - top) * LINE..],
                        queries: &mut *group,
                        factor: T::Wide::from_f64(a.scale),
                        added: mask.as_ref().map(|m| Lines(added, if m.of_all() { 0 } else { KEYS })),
                        kept: survivors.as_ref().map(|_| Lines(kept, KEYS)),
                        sums: begun.then_some(|i| sum_of(first_row + i)),
                        halves: k_group > 1,
                    };
                    vector::run(options.tier, softmax);
                    for (i, query) in group.iter().enumerate() {
                        (largest[first_row + i], totals[first_row + i]) = (query.largest, query.sum);
                    }
                }
                // SAFETY: as above.
                unsafe {
                    let weights = Mat { ptr: scores.as_ptr(), rs: LINE as isize, cs: 1 };
                    let c = sums.moved(top as isize * sums.rs);
                    let (panels, k) = (&kernels.panels, here.div_ceil(k_group));
                    Product { kernels, panels, m: rows, n: a.ev, k, a: weights, b: values, c, add: begun }
                        .run(&mut soon, |rows, _| 0..visible(top + rows.end - 1).div_ceil(k_group));
                }
            }
            begun = true;
        }
        let totals = &mut totals[..n];
        vector::run(options.tier, Shares { totals: &mut *totals, sums: sum_of, unseen });
        for (row, (&largest, &total)) in largest.iter().zip(&*totals).enumerate() {
            let index = (sample * a.heads + head) * a.l + first + row;
            // SAFETY: this row of the results is written by this block alone.
            unsafe {
                if copies::<T>() {
                    (kernels.narrow)(sum_of(row).as_ptr(), a.ev, out.row(sample, head, first + row));
                }
                *most.get().add(index) = largest;
                *denominators.get().add(index) = total;
            }
        }
    });
    Ok(())
}
