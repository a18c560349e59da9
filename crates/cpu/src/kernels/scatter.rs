//! Writing at places given by data: `scatter`, `_index_put_impl`. Where several values meet in one place,
//! they meet in the order of their positions, in f32 or wider, and are rounded once. Threads divide what
//! cannot meet: lanes beside the indexed dimension.

use super::accumulate::{Accumulate, accumulate, widened};
use super::grid::{GRAIN, small_rank};
use super::grid::{Grid, Indices};
use super::{Args, Kernel, Site, contiguous};
use crate::any_dtype;
use crate::pool::{Pool, Shared};
use headwater_core::DType;
use headwater_core::diagnostic::Result;
use headwater_core::ops::index::scatter::{Combine, SCATTER, combine, include_self};

/// The family.
pub static KERNELS: &[Kernel] = &[Kernel {
    op: &SCATTER,
    takes: |site| {
        // Integer means divide sums that did not wrap; sums of bools stay bools: rare enough for the
        // reference.
        let x = site.outs[0].dtype;
        let how = combine(&site.cx);
        let plain = x.is_float() || how == Ok(Combine::Replace);
        small_rank(site) && (plain || (x != DType::Bool && how != Ok(Combine::Mean)))
    },
    workspace: |site| Scatter::new(site).map_or(0, |s| s.workspace()),
    strided: contiguous,
    prepare: |site| {
        let s = Scatter::new(site)?;
        Ok(Box::new(move |args| any_dtype!(args.writes[0].dtype(), T => s.run::<T>(args))))
    },
}];

/// `scatter`: every lane along the indexed dimension is written by itself.
struct Scatter {
    how: Combine,
    include_self: bool,
    value: f64,
    dtype: DType,
    numel: usize,
    /// Offsets in the tensor, the index, and the source of rows of lanes: lanes whose elements are
    /// contiguous.
    rows: [Grid; 3],
    /// Lanes of a row.
    width: usize,
    /// Strides of the indexed dimension in the tensor, the index, and the source.
    strides: [usize; 3],
    /// Size of the indexed dimension, of the tensor and of the index.
    limit: usize,
    len: usize,
}

impl Scatter {
    fn new(site: &Site) -> Result<Self> {
        let (x, index) = (site.cx.shape(0)?, site.cx.shape(1)?);
        let src = site.cx.opt(2).map(|t| &t.shape);
        let dim = site.cx.dim("dim", x.rank())?;
        // Lanes of the last dimension make a row, unless it is the indexed one.
        let last = index.rank().checked_sub(1).filter(|&last| last != dim);
        let of_rows = |d: &usize| *d != dim && Some(*d) != last;
        let sizes: Vec<usize> = (0..index.rank()).filter(of_rows).map(|d| index[d]).collect();
        let walk = |s: &headwater_core::Shape| -> (Grid, usize) {
            let own = s.strides();
            let strides = (0..index.rank()).filter(of_rows).map(|d| own.get(d).copied().unwrap_or(0));
            (Grid::new(&sizes, &strides.collect::<Vec<_>>()), own.get(dim).map_or(1, |&s| s as usize))
        };
        let [(a, i), (b, j), (c, k)] = [walk(x), walk(index), walk(src.unwrap_or(index))];
        Ok(Scatter {
            how: combine(&site.cx)?,
            include_self: include_self(&site.cx)?,
            value: if src.is_some() { 0.0 } else { site.cx.float("value")? },
            dtype: site.outs[0].dtype,
            numel: x.numel(),
            rows: [a, b, c],
            width: last.map_or(1, |d| index[d]),
            strides: [i, j, k],
            limit: x.get(dim).copied().unwrap_or(1),
            len: index.get(dim).copied().unwrap_or(1),
        })
    }

    fn wide(&self) -> usize {
        if widened(self.dtype) && self.how != Combine::Replace { 4 * self.numel } else { 0 }
    }

    /// True if it matters how many values have met in a place.
    fn counts(&self) -> bool {
        self.how == Combine::Mean || (!self.include_self && self.how != Combine::Replace)
    }

    fn workspace(&self) -> usize {
        self.wide() + if self.counts() { 4 * self.numel } else { 0 }
    }

    fn run<T: Accumulate>(&self, args: &mut Args) -> Result<()> {
        let (x, index) = (args.read(0)?.slice::<T>(), Indices::of(args.read(1)?)?);
        let (src, pool) = (args.opt(2).map(|s| s.slice::<T>()), args.pool);
        index.check(self.limit, false)?;
        let (wide, counts) = args.workspace[..self.workspace()].split_at_mut(self.wide());
        let counts: &mut [u32] = bytemuck::cast_slice_mut(counts);
        counts.fill(self.include_self as u32);
        let out = args.writes[0].slice_mut::<T>();
        let value = T::of(self.value);
        if self.how == Combine::Replace {
            pool.chunks(out, GRAIN, |b, out| out.copy_from_slice(&x[b * GRAIN..][..out.len()]));
            let out = Shared(out.as_mut_ptr());
            self.each_lane(pool, index, |to, from| {
                // SAFETY: `to` is a place in the output (see `each_lane`), and lanes have no place in common.
                unsafe { *out.get().add(to) = src.map_or(value, |s| s[from]) };
            });
            return Ok(());
        }
        accumulate(pool, x, out, wide, |sums| {
            let (sums, met) = (Shared(sums.as_mut_ptr()), Shared(counts.as_mut_ptr()));
            let counted = self.counts();
            self.each_lane(pool, index, |to, from| {
                let v = src.map_or(value, |s| s[from]).lift();
                // SAFETY: as above; counts are as many as places.
                unsafe {
                    let sum = sums.get().add(to);
                    let first = counted && *met.get().add(to) == 0;
                    *sum = if first { v } else { T::combine(self.how, *sum, v) };
                    if counted {
                        *met.get().add(to) += 1;
                    }
                }
            });
            if self.how == Combine::Mean {
                // SAFETY: `sums` has a place for each count, and nobody else uses it now.
                let sums = unsafe { std::slice::from_raw_parts_mut(sums.get(), self.numel) };
                let divided = |(s, n): (&mut T::Sum, &u32)| *s = if *n > 1 { T::divide(*s, *n) } else { *s };
                sums.iter_mut().zip(&*counts).for_each(divided);
            }
        });
        Ok(())
    }

    /// Calls `f(place written, place read)` for every position of every lane, in order along the lane; lanes
    /// in any order. The place written is one of the output's: the index was checked, and reaches no further
    /// than the tensor elsewhere.
    fn each_lane(&self, pool: &Pool, index: Indices, f: impl Fn(usize, usize) + Sync) {
        match index {
            Indices::I64(index) => self.each_row(pool, |at| index[at] as usize, f),
            _ => self.each_row(pool, |at| index.place(at, self.limit), f),
        }
    }

    fn each_row(&self, pool: &Pool, place: impl Fn(usize) -> usize + Sync, f: impl Fn(usize, usize) + Sync) {
        /// Lanes of a row that a thread takes at a time.
        const TOGETHER: usize = 32;
        let (rows, work) = (self.rows[0].numel(), self.len * self.width.min(TOGETHER));
        let (pieces, group) = (self.width.div_ceil(TOGETHER), (GRAIN / work.max(1)).max(1));
        pool.each(rows.div_ceil(group) * pieces, |task| {
            let (first, piece) = (task / pieces * group, task % pieces * TOGETHER);
            let lanes = piece..self.width.min(piece + TOGETHER);
            let [to, at, from] = [0, 1, 2].map(|i| self.rows[i].from(first));
            for ((to, at), from) in to.zip(at).zip(from).take(group) {
                for i in 0..self.len {
                    let (at, from) = (at + i * self.strides[1], from + i * self.strides[2]);
                    for lane in lanes.clone() {
                        f(to + place(at + lane) * self.strides[0] + lane, from + lane);
                    }
                }
            }
        });
    }
}
