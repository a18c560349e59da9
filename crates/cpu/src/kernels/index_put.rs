//! Writing through tensors as indices: `_index_put_impl`. Where several values meet in one place, they meet
//! in the order of their positions, in f32 or wider, and are rounded once.

use super::accumulate::{Accumulate, accumulate, widened};
use super::advanced_index::AdvancedIndex;
use super::grid::Grid;
use super::grid::{GRAIN, small_rank};
use super::{Args, Kernel, Site, contiguous};
use crate::any_dtype;
use crate::pool::Shared;
use headwater_core::DType;
use headwater_core::diagnostic::Result;
use headwater_core::ops::index::index_put::INDEX_PUT_IMPL;
use headwater_core::ops::index::scatter::Combine;

/// The family.
pub static KERNELS: &[Kernel] = &[Kernel {
    op: &INDEX_PUT_IMPL,
    takes: |site| {
        small_rank(site) && (site.outs[0].dtype != DType::Bool || site.cx.flag("accumulate") == Ok(false))
    },
    workspace: |site| Put::new(site).map_or(0, |p| p.workspace()),
    strided: contiguous,
    prepare: |site| {
        let p = Put::new(site)?;
        Ok(Box::new(move |args| any_dtype!(args.writes[0].dtype(), T => p.run::<T>(args))))
    },
}];

/// Rows written sequentially.
struct Put {
    picks: AdvancedIndex,
    values: usize,
    /// True if a value stands for each element that is written. Else some stand for several, and there are
    /// offsets in the values, of each row and within a row.
    whole: bool,
    lead: Grid,
    tail: Grid,
    accumulate: bool,
    numel: usize,
    dtype: DType,
}

impl Put {
    fn new(site: &Site) -> Result<Self> {
        let values = site.cx.inputs.len() - 1;
        let picks = AdvancedIndex::new(site, values)?;
        let (out, own) = (&picks.out, site.cx.shape(values)?);
        let (strides, skip) = (own.strides(), out.len() - own.rank());
        let walk: Vec<isize> = (0..out.len())
            .map(|d| if d < skip || own[d - skip] == 1 { 0 } else { strides[d - skip] })
            .collect();
        let lead = picks.lead;
        Ok(Put {
            values,
            whole: own.numel() == out.iter().product(),
            lead: Grid::new(&out[..lead], &walk[..lead]),
            tail: Grid::new(&out[lead..], &walk[lead..]),
            accumulate: site.cx.flag("accumulate")?,
            numel: site.outs[0].shape.numel(),
            dtype: site.outs[0].dtype,
            picks,
        })
    }

    /// Bytes of sums that are wider than the result.
    fn wide(&self) -> usize {
        if widened(self.dtype) && self.accumulate { 4 * self.numel } else { 0 }
    }

    fn workspace(&self) -> usize {
        self.picks.workspace() + self.wide()
    }

    fn run<T: Accumulate>(&self, args: &mut Args) -> Result<()> {
        let (x, values) = (args.read(0)?.slice::<T>(), args.read(self.values)?.slice::<T>());
        let (reads, pool) = (args.reads, args.pool);
        let (places, wide) = args.workspace[..self.workspace()].split_at_mut(self.picks.workspace());
        let places = self.picks.places(reads, places)?;
        let out = args.writes[0].slice_mut::<T>();
        if self.accumulate {
            accumulate(pool, x, out, wide, |sums| {
                self.each(pool, places, values, sums, |sum, x| {
                    *sum = T::combine(Combine::Sum, *sum, x.lift())
                });
            });
        } else {
            pool.chunks(out, GRAIN, |b, out| out.copy_from_slice(&x[b * GRAIN..][..out.len()]));
            self.each(pool, places, values, out, |out, x| *out = x);
        }
        Ok(())
    }

    /// Calls `f(place, value)` for all elements that are written, those of a place in order.
    fn each<T: Accumulate, O: Send>(
        &self,
        pool: &crate::Pool,
        places: &[usize],
        values: &[T],
        out: &mut [O],
        f: impl Fn(&mut O, T) + Sync,
    ) {
        let row = self.picks.row;
        let out = Shared(out.as_mut_ptr());
        self.picks.each(pool, places, |to, at| {
            // SAFETY: a row of the result, which no other thread writes: see `AdvancedIndex::each`.
            let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(to), row) };
            let from = if self.whole { at * row } else { self.lead.at(at) as usize };
            match self.whole || self.tail.as_is() {
                true => out.iter_mut().zip(&values[from..from + row]).for_each(|(o, &x)| f(o, x)),
                false => out.iter_mut().zip(self.tail.from(0)).for_each(|(o, by)| f(o, values[from + by])),
            }
        });
    }
}
