//! Sorting and scanning along a dimension: `sort`, `topk`, `cumsum`. Lanes are independent; each is done by
//! one thread.

use super::grid::GRAIN;
use super::{Args, Kernel, Prepared, Site, contiguous};
use crate::element::{Element, Float, Wide};
use crate::pool::Shared;
use crate::{any_dtype, float_dtype};
use half::{bf16, f16};
use headwater_core::diagnostic::Result;
use headwater_core::ops::index::sort::{self, SORT};
use headwater_core::ops::index::topk::TOPK;
use headwater_core::ops::reduce::cumsum::CUMSUM;
use headwater_core::{DType, fail};
use std::cmp::Ordering;

/// The family.
pub static KERNELS: &[Kernel] = &[
    Kernel {
        op: &SORT,
        takes: countable,
        workspace: |site| 4 * Lanes::of(site).len * site.threads,
        strided: contiguous,
        prepare: |site| Ok(selection(Lanes::of(site), Lanes::of(site).len, site.cx.flag("descending")?)),
    },
    Kernel {
        op: &TOPK,
        takes: countable,
        workspace: |site| 4 * Lanes::of(site).len * site.threads,
        strided: contiguous,
        prepare: |site| {
            let largest = site.cx.attrs.get("largest").is_none() || site.cx.flag("largest")?;
            Ok(selection(Lanes::of(site), site.cx.size("k")?, largest))
        },
    },
    Kernel {
        op: &CUMSUM,
        takes: |site| {
            site.cx.dtype(0) == Ok(site.outs[0].dtype)
                && (site.outs[0].dtype.is_float() || site.outs[0].dtype == DType::I64)
        },
        workspace: super::no_workspace,
        strided: contiguous,
        prepare: |site| {
            let lanes = Lanes::new(site, site.cx.dim("dim", site.cx.shape(0)?.rank())?)?;
            let reverse = site.cx.flag("reverse")?;
            Ok(Box::new(move |args| match args.writes[0].dtype() {
                DType::I64 => scan(&lanes, reverse, args, 0i64, |sum, x: i64| {
                    *sum = sum.wrapping_add(x);
                    *sum
                }),
                float => float_dtype!(float, T => scan(&lanes, reverse, args, 0.0, |sum, x: T| {
                    *sum += x.widen().to_f64();
                    T::from_f64(*sum)
                })),
            }))
        },
    },
];

/// A tensor as lanes along a dimension: `before × len × after` elements.
#[derive(Clone, Copy)]
struct Lanes {
    len: usize,
    after: usize,
    count: usize,
}

impl Lanes {
    /// Lanes of the first input along the attribute `dim` (absent: the last).
    fn of(site: &Site) -> Lanes {
        let along = |dim| Lanes::new(site, dim).ok();
        sort::dim(&site.cx).ok().and_then(along).unwrap_or(Lanes { len: 0, after: 1, count: 0 })
    }

    fn new(site: &Site, dim: usize) -> Result<Lanes> {
        let x = site.cx.shape(0)?;
        let (before, len, after) = x.around(dim);
        // Lanes of nothing need no visit.
        Ok(Lanes { len, after, count: if x.numel() == 0 { 0 } else { before * after } })
    }

    /// First element of a lane in a tensor whose lanes have `len` elements.
    fn start(&self, lane: usize, len: usize) -> usize {
        lane / self.after * len * self.after + lane % self.after
    }
}

/// Replaces each element of a lane by what `f` makes of those so far and it.
fn scan<T: Element, S: Copy + Sync>(
    lanes: &Lanes,
    reverse: bool,
    args: &mut Args,
    zero: S,
    f: impl Fn(&mut S, T) -> T + Sync,
) -> Result<()> {
    let x = args.read(0)?.slice::<T>();
    let Lanes { len, after, count } = *lanes;
    let out = args.writes[0].slice_mut::<T>();
    assert_eq!(x.len(), out.len());
    let out = Shared(out.as_mut_ptr());
    let group = (GRAIN / len.max(1)).max(1);
    args.pool.each(count.div_ceil(group), |b| {
        for lane in b * group..((b + 1) * group).min(count) {
            let (start, mut sum) = (lanes.start(lane, len), zero);
            for i in 0..len {
                let at = start + after * if reverse { len - 1 - i } else { i };
                // SAFETY: a lane's elements are in bounds (`x` is as long, and checks), and no other lane's.
                unsafe { *out.get().add(at) = f(&mut sum, x[at]) };
            }
        }
    });
    Ok(())
}

/// Elements in order, NaN largest.
trait Ordered: Element {
    fn order(self, other: Self) -> Ordering;
}

macro_rules! ordered {
    ($($t:ident)*; $($f:ident)*) => {
        $(impl Ordered for $t {
            #[inline(always)]
            fn order(self, other: Self) -> Ordering {
                self.cmp(&other)
            }
        })*
        $(impl Ordered for $f {
            #[inline(always)]
            fn order(self, other: Self) -> Ordering {
                let (a, b) = (self.widen(), other.widen());
                a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
            }
        })*
    };
}
ordered!(u8 i8 i16 i32 i64; f16 bf16 f32 f64);

/// For [`Kernel::takes`]: positions along the dimension fit in u32.
fn countable(site: &Site) -> bool {
    u32::try_from(Lanes::of(site).len).is_ok()
}

/// Writes the first `k` of each lane in order, and their positions. Of equal elements the first come first.
fn selection(lanes: Lanes, k: usize, descending: bool) -> Prepared {
    Box::new(
        move |args| any_dtype!(args.read(0)?.dtype(), T => run_selection::<T>(&lanes, k, descending, args)),
    )
}

fn run_selection<T: Ordered>(lanes: &Lanes, k: usize, descending: bool, args: &mut Args) -> Result<()> {
    let x = args.read(0)?.slice::<T>();
    let [values, places] = args.writes else { return Err(fail!(Graph, "two results are needed")) };
    let (values, places) = (values.slice_mut::<T>(), places.slice_mut::<i64>());
    let (len, count) = (lanes.len, if k == 0 { 0 } else { lanes.count });
    assert!(
        values.len() == count * k && places.len() == values.len() && x.len() == count * len || count == 0
    );
    let (values, places) = (Shared(values.as_mut_ptr()), Shared(places.as_mut_ptr()));
    let group = (GRAIN / len.max(1) / 8).max(1);
    let order: &mut [u32] = bytemuck::cast_slice_mut(&mut args.workspace[..4 * len * args.pool.threads()]);
    args.pool.each_with(count.div_ceil(group), order, |b, order| {
        for lane in b * group..((b + 1) * group).min(count) {
            let start = lanes.start(lane, len);
            let at = |i: u32| x[start + i as usize * lanes.after];
            // Positions decide between equals, so that the order is total and any sort is stable.
            let compare = |a: &u32, b: &u32| {
                let order = at(*a).order(at(*b));
                (if descending { order.reverse() } else { order }).then(a.cmp(b))
            };
            order.iter_mut().enumerate().for_each(|(i, o)| *o = i as u32);
            if k < len {
                order.select_nth_unstable_by(k, compare);
            }
            order[..k].sort_unstable_by(compare);
            let to = lanes.start(lane, k);
            for (i, &o) in order[..k].iter().enumerate() {
                // SAFETY: element `i < k` of this lane, of results that have `count` lanes of `k`; no other
                // thread's.
                unsafe {
                    *values.get().add(to + i * lanes.after) = at(o);
                    *places.get().add(to + i * lanes.after) = o as i64;
                }
            }
        }
    });
    Ok(())
}
