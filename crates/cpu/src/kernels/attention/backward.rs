//! The gradient: for each block of keys, the blocks of queries that see it. The sums over queries (gradients
//! of keys and values) and over keys (of queries) are each taken in one order. One thread does it for all
//! heads that share their keys.

use super::product::{self, Product, Upcoming, copied, copies, left, pack, packed, tile_rows};
use super::rows::{Dots, Lines, Times};
use super::slopes::{Paired, Query, Slopes};
use super::{Four, FourMut, KEYS, LINE, Mask, Options};
use crate::element::same;
use crate::element::{Float, Wide};
use crate::float_dtype;
use crate::gemm::{Microkernels, Operand, even};
use crate::kernels::vector::{self, Vectors};
use crate::kernels::{Args, Site};
use crate::matrix::{Mat, MatMut};
use crate::pool::Shared;
use crate::tier::Tier;
use crate::workspace::{self, Pieces, total};
use headwater_core::diagnostic::Result;
use headwater_core::ops::attention::attention::Attention;

/// Queries in a block: what a block of them and one of keys need fits into the second-level cache.
const QUERIES: usize = 132;
/// Queries whose products of gradient and output are made at a time.
const DOTS: usize = 16;

/// Elements of a thread's scratch memory: keys and values (across), keys, queries and gradients packed as
/// right operands, and queries and gradients as left ones. Then weights and slopes, and gradients of keys,
/// values and queries, unless they are summed in place. Last, products of gradient and output, mask, and
/// dropout.
fn pieces<T: Operand>(a: &Attention, tier: Tier) -> [usize; 15] {
    let kernels = T::kernels(tier);
    let queries = a.heads / a.key_heads * a.l;
    [
        packed(kernels, a.e, KEYS),
        packed(kernels, a.ev, KEYS),
        packed(kernels, KEYS, a.e),
        packed(kernels, QUERIES, a.e),
        packed(kernels, QUERIES, a.ev),
        copied::<T>(QUERIES, a.e),
        copied::<T>(QUERIES, a.ev),
        QUERIES * LINE,
        QUERIES * LINE,
        copied::<T>(KEYS, a.e),
        copied::<T>(KEYS, a.ev),
        if copies::<T>() { queries * a.e } else { 0 },
        queries + 2 * DOTS * a.ev,
        2 * KEYS,
        2 * KEYS,
    ]
}

pub(super) fn workspace<T: Operand>(a: &Attention, site: &Site) -> usize {
    total(&pieces::<T>(a, site.tier)) * size_of::<T::Wide>() * site.threads
}

pub(super) fn run<T: Operand<Wide: Vectors>>(options: &Options, args: &mut Args) -> Result<()> {
    let a = &options.a;
    let four = |i: usize| args.read(i).map(Four::<T>::of);
    let (g, q, k, v, y) = (four(0)?, four(1)?, four(2)?, four(3)?, four(4)?);
    let (most, denominators) = (Four::<T::Wide>::of(args.read(5)?), Four::<T::Wide>::of(args.read(6)?));
    let (mask, survivors) = (Mask::of(args.opt(7)), options.survivors(args.opt(8)));
    let kernels = T::kernels(options.tier);
    let (panels, k_group) = (&kernels.panels, kernels.panels.k_group);
    // From one row of weights or slopes across to the next: of pairs, weights and slopes take turns.
    let rows = k_group * LINE;
    let sizes = pieces::<T>(a, options.tier);
    let [dq, dk, dv, rest @ ..] = args.writes else { unreachable!("three gradients and the mask's") };
    let (dq, dk, dv) = (FourMut::<T>::of(dq), FourMut::<T>::of(dk), FourMut::<T>::of(dv));
    let mask_grad = rest.first_mut().map(|w| {
        let dtype = w.dtype();
        (dtype, float_dtype!(dtype, M => Shared(w.ptr_mut::<M>().cast::<u8>())))
    });
    let group = a.heads / a.key_heads;
    let rows_of_tile = tile_rows(kernels);
    let block = even(a.l, QUERIES / rows_of_tile * rows_of_tile, rows_of_tile);
    let mut scratch = workspace::each(args.workspace, total(&sizes), args.pool.threads());
    scratch.run(args.pool, a.batch * a.key_heads, |at, scratch| {
        let mut scratch = Pieces(scratch);
        let pieces = sizes.map(|n| scratch.take(n));
        let [
            k_across,
            v_across,
            k_along,
            q_along,
            g_along,
            q_left,
            g_left,
            weights,
            slopes,
            sum_k,
            sum_v,
            sum_q,
            through,
            added,
            kept,
        ] = pieces;
        let (sample, shared) = (at / a.key_heads, at % a.key_heads);
        // Rows of the queries' results of the first of the heads; those of the others follow.
        let base = (sample * a.heads + shared * group) * a.l;
        // The product of each query's output and its gradient.
        let (through, line) = through.split_at_mut(group * a.l);
        let (wide_g, wide_y) = line.split_at_mut(DOTS * a.ev);
        for inner in 0..group {
            let (head, of) = (shared * group + inner, &mut through[inner * a.l..][..a.l]);
            for (i, out) in of.chunks_mut(DOTS).enumerate() {
                let (g, y) = (g.rows(sample, head, i * DOTS), y.rows(sample, head, i * DOTS));
                // SAFETY: as many rows of each, and capacity for them.
                let (g, y) = unsafe {
                    (
                        wide_rows(kernels, g, out.len(), a.ev, wide_g),
                        wide_rows(kernels, y, out.len(), a.ev, wide_y),
                    )
                };
                // SAFETY: one of them.
                let row = |x: Mat<T::Wide>, row| unsafe {
                    std::slice::from_raw_parts(x.moved(row as isize * x.rs).ptr, a.ev)
                };
                vector::run(options.tier, Dots { rows: |i| [row(g, i), row(y, i)], out });
            }
        }
        // Memory that the thread reads and adds to next.
        let next = at + 1;
        let (sample_next, shared_next) = (next / a.key_heads, next % a.key_heads);
        let tiles = a.s.div_ceil(options.keys) * group * a.l.div_ceil(block);
        let tiles = tiles * (2 * options.keys + 2 * a.e + a.ev).div_ceil(kernels.nr);
        let tiles = if a.causal { tiles / 2 } else { tiles };
        let mut soon = Upcoming::new(tiles, |i| match i {
            _ if next >= a.batch * a.key_heads || i >= 4 + 4 * group => None,
            0 => Some(k.ahead(sample_next, shared_next, 0, a.s, a.e)),
            1 => Some(v.ahead(sample_next, shared_next, 0, a.s, a.ev)),
            2 => Some(dk.ahead(sample_next, shared_next, 0, a.s, a.e)),
            3 => Some(dv.ahead(sample_next, shared_next, 0, a.s, a.ev)),
            _ => {
                let head = shared_next * group + i / 4 - 1;
                Some(match i % 4 {
                    0 => g.ahead(sample_next, head, 0, a.l, a.ev),
                    1 => y.ahead(sample_next, head, 0, a.l, a.ev),
                    2 => q.ahead(sample_next, head, 0, a.l, a.e),
                    _ => dq.ahead(sample_next, head, 0, a.l, a.e),
                })
            }
        });
        // Rows of the first of the heads; strides between heads and between queries.
        let (sum_q, heads, queries) = if copies::<T>() {
            (sum_q.as_mut_ptr(), (a.l * a.e) as isize, a.e as isize)
        } else {
            let first = dq.row(sample, shared * group, 0).cast::<T::Wide>();
            (first, dq.strides[1], dq.strides[2])
        };
        let sum_q =
            |head: usize, row: usize| sum_q.wrapping_offset(head as isize * heads + row as isize * queries);
        for (head, row) in (0..group).flat_map(|head| (0..a.l).map(move |row| (head, row))) {
            // SAFETY: a query's gradient, which nobody else uses.
            unsafe { zero(sum_q(head, row), a.e) };
        }
        if let Some((dtype, dm)) = mask_grad {
            float_dtype!(dtype, M => {
                // SAFETY: the scores of these heads, which nobody else writes; all bits 0 are the number 0.
                unsafe { std::ptr::write_bytes(dm.get().cast::<M>().add(base * a.s), 0, group * a.l * a.s) };
            });
        }
        for k0 in (0..a.s).step_by(options.keys) {
            let here = options.keys.min(a.s - k0);
            // SAFETY: rows of keys and values.
            unsafe {
                let (k, v) = (k.rows(sample, shared, k0), v.rows(sample, shared, k0));
                pack(panels, k.transposed(), a.e, here, k_across);
                pack(panels, v.transposed(), a.ev, here, v_across);
                pack(panels, k, here, a.e, k_along);
            }
            let sum_k = product::sums(&dk, [sample, shared, k0], sum_k, a.e);
            let sum_v = product::sums(&dv, [sample, shared, k0], sum_v, a.ev);
            for row in 0..here as isize {
                // SAFETY: gradients of these keys and values, which nobody else uses.
                unsafe {
                    zero(sum_k.moved(row * sum_k.rs).ptr, a.e);
                    zero(sum_v.moved(row * sum_v.rs).ptr, a.ev);
                }
            }
            // Whole vectors and whole groups; the panels' last columns are zeros.
            let (cols, width) = (here.next_multiple_of(panels.lanes), here.next_multiple_of(16));
            let from = if a.causal { k0 / block * block } else { 0 };
            for (inner, q0) in (0..group).flat_map(|h| (from..a.l).step_by(block).map(move |q0| (h, q0))) {
                let (head, n) = (shared * group + inner, block.min(a.l - q0));
                let visible = |row: usize| options.visible(q0 + row, k0);
                // SAFETY: an element of the numbers of each query.
                let of_query = |x: &Four<T::Wide>, row: usize| unsafe {
                    *x.rows(sample, head, 0).ptr.offset((q0 + row) as isize * x.strides[2])
                };
                // One that is NaN makes the gradients of all keys so.
                let undefined = || (0..n).any(|row| of_query(&denominators, row).is_nan());
                if mask.as_ref().is_some_and(|m| m.hides([sample, head, q0], n, k0, here)) && !undefined() {
                    continue;
                }
                // SAFETY: rows of queries and gradients; products of blocks that were made for their sizes.
                unsafe {
                    let (q, g) = (q.rows(sample, head, q0), g.rows(sample, head, q0));
                    let (query, grad) = (left(panels, q, n, a.e, q_left), left(panels, g, n, a.ev, g_left));
                    pack(panels, q, n, a.e, q_along);
                    pack(panels, g, n, a.ev, g_along);
                    let scores = (query, &*k_across, a.e, &mut *weights);
                    for (x, b, size, to) in [scores, (grad, &*v_across, a.ev, &mut *slopes)] {
                        let (k, c) =
                            (size.div_ceil(k_group), MatMut { ptr: to.as_mut_ptr(), rs: LINE as isize });
                        Product { kernels, panels, m: n, n: cols, k, a: x, b, c, add: false }.run(
                            &mut soon,
                            |rows, cols| {
                                if visible(rows.end - 1) > cols.start { 0..k } else { 0..0 }
                            },
                        );
                    }
                }
                if let Some(m) = mask.as_ref().filter(|m| m.of_all()) {
                    m.read([sample, head, q0], k0, &mut added[..here]);
                }
                let times = if mask_grad.is_some() { T::Wide::ONE } else { T::Wide::from_f64(a.scale) };
                for first in (0..n).step_by(2) {
                    // The last one's pair sees nothing.
                    let mut pair = [Query::default(); 2];
                    for (i, pair) in pair.iter_mut().enumerate().take(n - first) {
                        let (row, query) = (first + i, inner * a.l + q0 + first + i);
                        let (count, line) = (visible(row), i * KEYS..(i + 1) * KEYS);
                        if let Some(m) = mask.as_ref().filter(|m| !m.of_all()) {
                            m.read([sample, head, q0 + row], k0, &mut added[line.clone()][..count]);
                        }
                        if let Some(s) = &survivors {
                            let kept = &mut kept[line][..count.next_multiple_of(16)];
                            s.row(options.tier, (base + query) * a.s + k0, count, kept);
                        }
                        let denominator = of_query(&denominators, row);
                        let none = denominator == T::Wide::ZERO;
                        let share = if none { T::Wide::ZERO } else { T::Wide::ONE / denominator };
                        let largest = of_query(&most, row);
                        *pair = Query { n: count, largest, share, through: through[query] };
                    }
                    let [weights, slopes] =
                        [&mut *weights, &mut *slopes].map(|x| &mut x[first * LINE..][..2 * LINE]);
                    let rows = Slopes {
                        scores: &mut *weights,
                        slopes: &mut *slopes,
                        queries: pair,
                        width,
                        factor: T::Wide::from_f64(a.scale),
                        times,
                        added: mask.as_ref().map(|m| Lines(added, if m.of_all() { 0 } else { KEYS })),
                        kept: survivors.as_ref().map(|_| Lines(kept, KEYS)),
                        pairs: k_group > 1 && mask_grad.is_none(),
                    };
                    vector::run(options.tier, rows);
                    let Some((dtype, dm)) = mask_grad else { continue };
                    for (i, query) in pair.iter().enumerate().take(n - first) {
                        float_dtype!(dtype, M => {
                            let of = base + inner * a.l + q0 + first + i;
                            let to = dm.get().cast::<M>().wrapping_add(of * a.s + k0);
                            // SAFETY: scores of these heads.
                            unsafe { write_row(options.tier, &slopes[i * LINE..][..query.n], to) };
                        });
                    }
                    let factor = T::Wide::from_f64(a.scale);
                    if k_group > 1 {
                        vector::run(options.tier, Paired { weights, slopes, width, factor });
                    } else {
                        vector::run(options.tier, Times { x: slopes, factor });
                    }
                }
                // SAFETY: as above; the rows of the queries' gradients are those of this block.
                unsafe {
                    let across = |block: &[T::Wide]| Mat { ptr: block.as_ptr(), rs: 1, cs: rows as isize };
                    let places = n.div_ceil(k_group);
                    // Queries before the first that sees a tile's first key add nothing, but the other one of
                    // its pair's.
                    let seeing = |key: usize| {
                        let first = if a.causal { (k0 + key).saturating_sub(q0) } else { 0 };
                        if first < n { first / k_group..places } else { places..places }
                    };
                    let slopes_across = if k_group > 1 { across(&weights[LINE..]) } else { across(slopes) };
                    let values = (across(weights), &*g_along, a.ev, sum_v);
                    for (x, b, n, c) in [values, (slopes_across, &*q_along, a.e, sum_k)] {
                        Product { kernels, panels, m: here, n, k: places, a: x, b, c, add: true }
                            .run(&mut soon, |keys, _| seeing(keys.start));
                    }
                    let a_slopes = Mat { ptr: slopes.as_ptr(), rs: LINE as isize, cs: 1 };
                    let c = MatMut { ptr: sum_q(inner, q0), rs: queries };
                    let k = here.div_ceil(k_group);
                    Product { kernels, panels, m: n, n: a.e, k, a: a_slopes, b: k_along, c, add: true }
                        .run(&mut soon, |rows, _| 0..visible(rows.end - 1).div_ceil(k_group));
                }
            }
            if copies::<T>() {
                for row in 0..here {
                    let (k, v) = (sum_k.moved(row as isize * sum_k.rs), sum_v.moved(row as isize * sum_v.rs));
                    // SAFETY: rows of the gradients of these keys and values, which nobody else writes.
                    unsafe {
                        (kernels.narrow)(k.ptr, a.e, dk.row(sample, shared, k0 + row));
                        (kernels.narrow)(v.ptr, a.ev, dv.row(sample, shared, k0 + row));
                    }
                }
            }
        }
        if copies::<T>() {
            for (head, row) in (0..group).flat_map(|head| (0..a.l).map(move |row| (head, row))) {
                // SAFETY: a query's gradient, which nobody else writes.
                unsafe {
                    (kernels.narrow)(sum_q(head, row), a.e, dq.row(sample, shared * group + head, row))
                };
            }
        }
    });
    Ok(())
}

/// Makes zeros of `n` numbers.
///
/// # Safety
/// They may be written.
unsafe fn zero<W: Wide>(x: *mut W, n: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(x, n) }.fill(W::ZERO);
}

/// Writes a row of numbers, rounded to the type of the output.
///
/// # Safety
/// As many may be written.
unsafe fn write_row<W: Wide, M: Operand>(tier: Tier, from: &[W], to: *mut M) {
    // SAFETY: the caller's promise; the types are the same.
    unsafe {
        if same::<M::Wide, W>() {
            (M::kernels(tier).narrow)(from.as_ptr().cast(), from.len(), to);
        } else {
            from.iter().enumerate().for_each(|(j, x)| *to.add(j) = M::from_f64(x.to_f64()));
        }
    }
}

/// Rows of numbers that are contiguous, copied if need be.
///
/// # Safety
/// They may be read; the destination can hold them.
unsafe fn wide_rows<T: Operand>(
    kernels: &Microkernels<T>,
    x: Mat<T>,
    rows: usize,
    cols: usize,
    room: &mut [T::Wide],
) -> Mat<T::Wide> {
    if x.cs == 1 && !copies::<T>() {
        return Mat { ptr: x.ptr.cast(), rs: x.rs, cs: 1 };
    }
    let room = &mut room[..rows * cols];
    // SAFETY: the caller's promise.
    unsafe { (kernels.widen)(x, rows, cols, room.as_mut_ptr(), cols) };
    Mat { ptr: room.as_ptr(), rs: cols as isize, cs: 1 }
}
