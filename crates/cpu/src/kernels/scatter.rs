//! Writing at places given by data: `scatter`, `_index_put_impl`. Where several values meet in one place,
//! they meet in the order of their positions, in f32 or wider, and are rounded once. Threads divide what
//! cannot meet: lanes beside the indexed dimension, elements of a run.

use super::index::{GRAIN, Runs, small_rank};
use super::walk::{Grid, Indices};
use super::{Args, Kernel, Site, contiguous};
use crate::any_dtype;
use crate::element::{Element, Float};
use crate::pool::Shared;
use half::{bf16, f16};
use headwater_core::DType;
use headwater_core::diagnostic::Result;
use headwater_core::ops::index::scatter::{Combine, combine, include_self};

/// The family.
pub static KERNELS: &[Kernel] = &[
    Kernel {
        name: "scatter",
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
    },
    Kernel {
        name: "_index_put_impl",
        takes: |site| {
            small_rank(site) && (site.outs[0].dtype != DType::Bool || site.cx.flag("accumulate") == Ok(false))
        },
        workspace: |site| Put::new(site).map_or(0, |p| p.workspace()),
        strided: contiguous,
        prepare: |site| {
            let p = Put::new(site)?;
            Ok(Box::new(move |args| any_dtype!(args.writes[0].dtype(), T => p.run::<T>(args))))
        },
    },
];

/// An element and the type in which several meet.
trait Meet: Element {
    type Sum: bytemuck::Pod + Send + Sync;
    fn lift(self) -> Self::Sum;
    fn lower(sum: Self::Sum) -> Self;
    fn of(number: f64) -> Self;
    fn meet(how: Combine, a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn divide(a: Self::Sum, n: u32) -> Self::Sum;
}

macro_rules! meet_floats {
    ($($t:ident)*) => { $(
        impl Meet for $t {
            type Sum = <$t as Float>::Wide;
            #[inline(always)]
            fn lift(self) -> Self::Sum {
                self.widen()
            }
            #[inline(always)]
            fn lower(sum: Self::Sum) -> $t {
                <$t as Float>::narrow(sum)
            }
            fn of(number: f64) -> $t {
                <$t as Float>::from_f64(number)
            }
            #[inline(always)]
            fn meet(how: Combine, a: Self::Sum, b: Self::Sum) -> Self::Sum {
                match how {
                    Combine::Replace => b,
                    Combine::Sum | Combine::Mean => a + b,
                    Combine::Prod => a * b,
                    Combine::Max => if a.is_nan() || a > b { a } else { b },
                    Combine::Min => if a.is_nan() || a < b { a } else { b },
                }
            }
            fn divide(a: Self::Sum, n: u32) -> Self::Sum {
                a / n as Self::Sum
            }
        }
    )* };
}
meet_floats!(f16 bf16 f32 f64);

macro_rules! meet_ints {
    ($($t:ident)*) => { $(
        impl Meet for $t {
            type Sum = $t;
            #[inline(always)]
            fn lift(self) -> $t {
                self
            }
            #[inline(always)]
            fn lower(sum: $t) -> $t {
                sum
            }
            fn of(number: f64) -> $t {
                number as i64 as $t
            }
            #[inline(always)]
            fn meet(how: Combine, a: $t, b: $t) -> $t {
                match how {
                    Combine::Replace => b,
                    Combine::Sum | Combine::Mean => a.wrapping_add(b),
                    Combine::Prod => a.wrapping_mul(b),
                    Combine::Max => a.max(b),
                    Combine::Min => a.min(b),
                }
            }
            fn divide(a: $t, _: u32) -> $t {
                a
            }
        }
    )* };
}
meet_ints!(u8 i8 i16 i32 i64);

/// Whether values of a dtype meet in a type of their own, and so need room for it.
fn widened(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Runs `f` on accumulators that start as `x` and end, rounded, in `out`: `out` itself, or `wide` for the
/// narrow floats.
fn accumulate<T: Meet>(
    pool: &crate::Pool,
    x: &[T],
    out: &mut [T],
    wide: &mut [u8],
    f: impl FnOnce(&mut [T::Sum]),
) {
    if size_of::<T>() == size_of::<T::Sum>() {
        pool.chunks(out, GRAIN, |b, out| out.copy_from_slice(&x[b * GRAIN..][..out.len()]));
        f(bytemuck::cast_slice_mut(out));
    } else {
        let sums: &mut [T::Sum] = bytemuck::cast_slice_mut(wide);
        pool.chunks(sums, GRAIN, |b, sums| {
            sums.iter_mut().zip(&x[b * GRAIN..]).for_each(|(s, x)| *s = x.lift())
        });
        f(sums);
        pool.chunks(out, GRAIN, |b, out| {
            out.iter_mut().zip(&sums[b * GRAIN..]).for_each(|(o, s)| *o = T::lower(*s));
        });
    }
}

/// `scatter`: every lane along the indexed dimension is written by itself.
struct Scatter {
    how: Combine,
    include_self: bool,
    value: f64,
    dtype: DType,
    numel: usize,
    /// Offsets of each lane in the tensor, the index, and the source.
    lanes: [Grid; 3],
    /// Strides of the indexed dimension in the same.
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
        // Sizes of a lane's other dimensions.
        let lane: Vec<usize> = (0..index.rank()).filter(|&d| d != dim).map(|d| index[d]).collect();
        let walk = |s: &headwater_core::Shape| -> (Grid, usize) {
            let own = s.strides();
            let others: Vec<isize> =
                (0..index.rank()).filter(|&d| d != dim).map(|d| own.get(d).copied().unwrap_or(0)).collect();
            (Grid::new(&lane, &others), own.get(dim).map_or(1, |&s| s as usize))
        };
        let [(a, i), (b, j), (c, k)] = [walk(x), walk(index), walk(src.unwrap_or(index))];
        Ok(Scatter {
            how: combine(&site.cx)?,
            include_self: include_self(&site.cx)?,
            value: if src.is_some() { 0.0 } else { site.cx.float("value")? },
            dtype: site.outs[0].dtype,
            numel: x.numel(),
            lanes: [a, b, c],
            strides: [i, j, k],
            limit: x.get(dim).copied().unwrap_or(1),
            len: index.get(dim).copied().unwrap_or(1),
        })
    }

    fn wide(&self) -> usize {
        if widened(self.dtype) && self.how != Combine::Replace { 4 * self.numel } else { 0 }
    }

    /// Whether it matters how many values have met in a place.
    fn counts(&self) -> bool {
        self.how == Combine::Mean || (!self.include_self && self.how != Combine::Replace)
    }

    fn workspace(&self) -> usize {
        self.wide() + if self.counts() { 4 * self.numel } else { 0 }
    }

    fn run<T: Meet>(&self, args: &mut Args) -> Result<()> {
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
                    *sum = if first { v } else { T::meet(self.how, *sum, v) };
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
    fn each_lane(&self, pool: &crate::Pool, index: Indices, f: impl Fn(usize, usize) + Sync) {
        const LANES: usize = 64;
        let count = self.lanes[0].numel();
        let group = if self.len * LANES > GRAIN { LANES } else { GRAIN / self.len.max(1) };
        pool.each(count.div_ceil(group), |b| {
            let first = b * group;
            let lanes =
                self.lanes[0].from(first).zip(self.lanes[1].from(first)).zip(self.lanes[2].from(first));
            for ((to, at), from) in lanes.take(group) {
                for i in 0..self.len {
                    let place = index.place(at + i * self.strides[1], self.limit);
                    f(to + place * self.strides[0], from + i * self.strides[2]);
                }
            }
        });
    }
}

/// `_index_put_impl`: runs of elements written one after the other; threads divide the runs' elements.
struct Put {
    runs: Runs,
    values: usize,
    /// Offset in the values of each run, and within a run.
    lead: Grid,
    tail: Grid,
    accumulate: bool,
    numel: usize,
    dtype: DType,
}

impl Put {
    fn new(site: &Site) -> Result<Self> {
        let values = site.cx.inputs.len() - 1;
        let runs = Runs::new(site, values)?;
        let (out, own) = (&runs.out, site.cx.shape(values)?);
        let (strides, skip) = (own.strides(), out.rank() - own.rank());
        let walk: Vec<isize> = (0..out.rank())
            .map(|d| if d < skip || own[d - skip] == 1 { 0 } else { strides[d - skip] })
            .collect();
        let lead = runs.lead;
        Ok(Put {
            values,
            lead: Grid::new(&out[..lead], &walk[..lead]),
            tail: Grid::new(&out[lead..], &walk[lead..]),
            accumulate: site.cx.flag("accumulate")?,
            numel: site.outs[0].shape.numel(),
            dtype: site.outs[0].dtype,
            runs,
        })
    }

    fn workspace(&self) -> usize {
        if widened(self.dtype) && self.accumulate { 4 * self.numel } else { 0 }
    }

    fn run<T: Meet>(&self, args: &mut Args) -> Result<()> {
        self.runs.check(args)?;
        let (x, values) = (args.read(0)?.slice::<T>(), args.read(self.values)?.slice::<T>());
        let (reads, pool) = (args.reads, args.pool);
        let wide = &mut args.workspace[..self.workspace()];
        let out = args.writes[0].slice_mut::<T>();
        if self.accumulate {
            accumulate(pool, x, out, wide, |sums| {
                let sums = Shared(sums.as_mut_ptr());
                self.each(pool, reads, |to, from| {
                    // SAFETY: `to` is a place in the output, of elements that this thread alone writes (see
                    // `each`).
                    unsafe {
                        *sums.get().add(to) = T::meet(Combine::Sum, *sums.get().add(to), values[from].lift())
                    };
                });
            });
        } else {
            pool.chunks(out, GRAIN, |b, out| out.copy_from_slice(&x[b * GRAIN..][..out.len()]));
            let out = Shared(out.as_mut_ptr());
            // SAFETY: as above.
            self.each(pool, reads, |to, from| unsafe { *out.get().add(to) = values[from] });
        }
        Ok(())
    }

    /// Calls `f(place written, place read)` for every element of every run, runs in order. A thread takes the
    /// same elements of all runs, which differ from other threads' in the dimensions after the indexed ones.
    fn each(&self, pool: &crate::Pool, reads: &[Option<crate::view::View>], f: impl Fn(usize, usize) + Sync) {
        const PART: usize = 256;
        pool.each(self.runs.len.div_ceil(PART), |b| {
            let (start, len) = (b * PART, PART.min(self.runs.len - b * PART));
            let tail = self.tail.from(start);
            for (to, from) in self.runs.starts(reads, 0).zip(self.lead.from(0)) {
                for (i, t) in tail.clone().take(len).enumerate() {
                    f(to + start + i, from + t);
                }
            }
        });
    }
}
