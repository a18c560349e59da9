//! Attention and its gradient in blocks: a few rows of scores exist at a time, never all of them.
//!
//! Dao, Fu, Ermon, Rudra and Ré 2022, "FlashAttention"; Milakov and Gimelshein 2018, "Online normalizer
//! calculation for softmax". Sums are in f32 (f64 for f64), in an order that the sizes alone decide; each
//! result is rounded once. Where products sum pairs of bf16, weights and the gradients of scores are rounded
//! to bf16 as their operands. So they are in PyTorch's kernels for bf16. Sums of weights are of those not
//! rounded. A pair may have a masked key, of weight 0. If it is NaN, so are the results of the queries that
//! see the other.

mod backward;
mod forward;
mod product;
mod rows;
mod slopes;
mod softmax;
#[cfg(test)]
mod tests;

use super::{Kernel, Site};
use crate::element::{Float, Wide};
use crate::float_dtype;
use crate::gemm::even;
use crate::matrix::Mat;
use crate::prefetch::Prefetch;
use crate::tier::Tier;
use crate::view::{View, ViewMut};
use headwater_core::DType;
use headwater_core::diagnostic::Result;
use headwater_core::ops::attention::attention::{ATTENTION, ATTENTION_BACKWARD, Attention};
use headwater_core::random::Stream;
use headwater_core::target::Port;
use rows::Kept;

/// The family.
pub static KERNELS: &[Kernel] = &[
    Kernel {
        op: &ATTENTION,
        takes: |site| of_one_kind(site, Attention::of(&site.cx, [0, 1, 2, 3, 4])),
        workspace: |site| match Attention::of(&site.cx, [0, 1, 2, 3, 4]) {
            Ok(a) => float_dtype!(site.outs[0].dtype, T => forward::workspace::<T>(&a, site)),
            Err(_) => 0,
        },
        strided: |port| !matches!(port, Port::Write(1 | 2)),
        prepare: |site| {
            let options = Options::new(site, Attention::of(&site.cx, [0, 1, 2, 3, 4])?)?;
            Ok(float_dtype!(site.outs[0].dtype, T => Box::new(move |args| forward::run::<T>(&options, args))))
        },
    },
    Kernel {
        op: &ATTENTION_BACKWARD,
        takes: |site| of_one_kind(site, Attention::of_backward(&site.cx)),
        workspace: |site| match Attention::of_backward(&site.cx) {
            Ok(a) => float_dtype!(site.outs[0].dtype, T => backward::workspace::<T>(&a, site)),
            Err(_) => 0,
        },
        strided: |port| !matches!(port, Port::Write(3)),
        prepare: |site| {
            let options = Options::new(site, Attention::of_backward(&site.cx)?)?;
            Ok(
                float_dtype!(site.outs[0].dtype, T => Box::new(move |args| backward::run::<T>(&options, args))),
            )
        },
    },
];

/// Keys and values have the same heads, and what the gradient reads of the forward pass has its types.
fn of_one_kind(site: &Site, a: Result<Attention>) -> bool {
    let Ok(a) = a else { return false };
    let dtype = site.outs[0].dtype;
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    // Gradient, output, largest scores and denominators are the inputs 0 and 4 to 6 of the gradient.
    let backward = site.cx.inputs.len() > 5;
    let typed = |i: usize, d: DType| site.cx.dtype(i) == Ok(d);
    a.ev > 0
        && a.key_heads == a.value_heads
        && (!backward || typed(0, dtype) && typed(4, dtype) && typed(5, wide) && typed(6, wide))
}

/// Most keys in a block: the more, the fewer sums are interrupted, while blocks of keys and values fit into
/// the second-level cache. A multiple of the columns of every tier's register tile, as every block but the
/// last is.
const KEYS: usize = 256;
const PANELS: usize = 32;
/// Elements from one row of a block of scores to the next: rows start in different sets of the cache.
const LINE: usize = KEYS + 16;

/// A node's sizes and attributes.
struct Options {
    a: Attention,
    /// Keys in a block.
    keys: usize,
    stream: u32,
    tier: crate::tier::Tier,
}

impl Options {
    fn new(site: &Site, a: Attention) -> Result<Options> {
        let stream = if a.dropout > 0.0 { headwater_core::ops::random::philox::number(&site.cx)? } else { 0 };
        Ok(Options { keys: even(a.s, KEYS, PANELS), a, stream, tier: site.tier })
    }

    /// The number of keys of the block from `first` on query `i` sees.
    fn visible(&self, query: usize, first: usize) -> usize {
        let n = self.keys.min(self.a.s - first);
        if self.a.causal { n.min((query + 1).saturating_sub(first)) } else { n }
    }

    /// The survivors of dropout, for one run.
    fn survivors(&self, key: Option<&View>) -> Option<Survivors> {
        let key = key.filter(|_| self.a.dropout > 0.0)?;
        let (seed, strides) = (key.ptr::<i64>(), key.strides());
        // SAFETY: the key is i64[2], as the type rule demands; indices of a view are in bounds.
        let (seed, step) = unsafe { (*seed, *seed.offset(strides[0])) };
        Some(Survivors {
            stream: Stream::new(seed, step, self.stream),
            // Exact: a power of two only moves the exponent.
            below: ((1.0 - self.a.dropout) * (1u64 << 24) as f64).ceil() as u32,
            scale: self.a.survivor_scale(),
        })
    }
}

/// Which weights survive dropout: those whose word's upper 24 bits are less than `below`.
struct Survivors {
    stream: Stream,
    below: u32,
    scale: f64,
}

impl Survivors {
    /// Factors of `n` consecutive weights, the first of which has this index, followed by zeros.
    fn row<'o, W: Wide>(&self, tier: Tier, first: usize, n: usize, out: &'o mut [W]) -> &'o [W] {
        let (here, behind) = out.split_at_mut(n);
        behind.fill(W::ZERO);
        let (stream, below, scale) = (self.stream, self.below, W::from_f64(self.scale));
        tier.run(Kept { stream, first: first as u64, below, scale, out: here });
        out
    }
}

/// Strides of an operand of four dimensions, and its element (0, 0, 0, 0).
#[derive(Clone, Copy)]
struct Four<T> {
    ptr: *const T,
    strides: [isize; 4],
}

// SAFETY: pointers alone do nothing; each dereference carries its own argument.
unsafe impl<T: Send + Sync> Sync for Four<T> {}

impl<T: crate::element::Element> Four<T> {
    fn of(view: &View) -> Self {
        let mut strides = [0; 4];
        strides[..view.strides().len()].copy_from_slice(view.strides());
        Four { ptr: view.ptr(), strides }
    }

    /// `n` rows of `size` elements of a head of a sample, to be prefetched.
    fn ahead(&self, sample: usize, head: usize, row: usize, n: usize, size: usize) -> Prefetch {
        Prefetch::matrix(self.rows(sample, head, row), n, size)
    }

    /// Rows from `row` on, of a head of a sample.
    fn rows(&self, sample: usize, head: usize, row: usize) -> Mat<T> {
        let [b, h, rs, cs] = self.strides;
        Mat { ptr: self.ptr, rs, cs }.moved(sample as isize * b + head as isize * h + row as isize * rs)
    }
}

/// As [`Four`], to write. Rows are dense.
#[derive(Clone, Copy)]
struct FourMut<T> {
    ptr: *mut T,
    strides: [isize; 4],
}

// SAFETY: as for `Four`.
unsafe impl<T: Send + Sync> Sync for FourMut<T> {}
// SAFETY: as for `Four`.
unsafe impl<T: Send + Sync> Send for FourMut<T> {}

impl<T: crate::element::Element> FourMut<T> {
    fn of(view: &mut ViewMut) -> Self {
        let mut strides = [0; 4];
        strides[..view.strides().len()].copy_from_slice(view.strides());
        FourMut { ptr: view.ptr_mut(), strides }
    }

    /// As [`Four::ahead`].
    fn ahead(&self, sample: usize, head: usize, row: usize, n: usize, size: usize) -> Prefetch {
        Prefetch::matrix(Mat { ptr: self.row(sample, head, row), rs: self.strides[2], cs: 1 }, n, size)
    }

    /// A row of a head of a sample.
    fn row(&self, sample: usize, head: usize, row: usize) -> *mut T {
        let [b, h, rs, _] = self.strides;
        self.ptr.wrapping_offset(sample as isize * b + head as isize * h + row as isize * rs)
    }
}

/// The mask of a run; sizes of 1 are broadcast.
struct Mask<'a> {
    view: &'a View,
    strides: [isize; 4],
}

impl<'a> Mask<'a> {
    fn of(view: Option<&'a View>) -> Option<Self> {
        let view = view?;
        let mut strides = [0; 4];
        (0..4).filter(|&d| view.shape()[d] != 1).for_each(|d| strides[d] = view.strides()[d]);
        Some(Mask { view, strides })
    }

    /// True if some queries of a head (from `at[2]` on) see none of some keys. Looks no further than to the
    /// first that is seen.
    fn hides(&self, at: [usize; 3], queries: usize, first: usize, keys: usize) -> bool {
        // Broadcast elements are looked at once.
        let queries = if self.strides[2] == 0 { 1 } else { queries };
        let keys = if self.strides[3] == 0 { 1 } else { keys };
        let place = |i: usize, j: usize| {
            let at = [at[0], at[1], at[2] + i, first + j];
            at.iter().zip(self.strides).map(|(&i, s)| i as isize * s).sum::<isize>()
        };
        macro_rules! all {
            ($t:ty, $hidden:expr) => {{
                let p = self.view.ptr::<$t>();
                // SAFETY: indices of the mask, whose sizes are 1 or those of the scores.
                (0..queries).all(|i| (0..keys).all(|j| $hidden(unsafe { *p.offset(place(i, j)) })))
            }};
        }
        match self.view.dtype() {
            DType::Bool => all!(u8, |x| x == 0),
            float => float_dtype!(float, M => all!(M, |x: M| x.widen().to_f64() == f64::NEG_INFINITY)),
        }
    }

    /// True if it is the same for all queries of a head.
    fn of_all(&self) -> bool {
        self.strides[2] == 0
    }

    /// The numbers that are added to the scores of a query with the keys from `first` on.
    fn read<W: Wide>(&self, at: [usize; 3], first: usize, out: &mut [W]) {
        let [b, h, l, s] = self.strides;
        let at = [at[0], at[1], at[2], first].map(|i| i as isize);
        let start = at[0] * b + at[1] * h + at[2] * l + at[3] * s;
        macro_rules! fill {
            ($t:ty, $f:expr) => {{
                let p = self.view.ptr::<$t>().wrapping_offset(start);
                if s == 1 {
                    // SAFETY: neighbours in the mask, whose sizes are 1 or those of the scores.
                    let line = unsafe { std::slice::from_raw_parts(p, out.len()) };
                    out.iter_mut().zip(line).for_each(|(o, &x)| *o = $f(x));
                } else {
                    for (j, o) in out.iter_mut().enumerate() {
                        // SAFETY: an element of the mask, as above.
                        *o = $f(unsafe { *p.offset(j as isize * s) });
                    }
                }
            }};
        }
        match self.view.dtype() {
            DType::Bool => fill!(u8, |x| if x != 0 { W::ZERO } else { W::NEG_INFINITY }),
            float => float_dtype!(float, M => fill!(M, |x: M| W::from_f64(x.widen().to_f64()))),
        }
    }
}
