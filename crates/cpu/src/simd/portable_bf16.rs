//! Sums of products of pairs of bf16 without an instruction for them: slow, for tests of what takes pairs on
//! any processor.

use super::Simd;
use super::pack::Pack;
use crate::matrix::Mat;
use half::bf16;

/// Four sums in f32, or in operands the bits of four pairs. The arithmetic of the instruction (see `avx512`),
/// but that subnormal numbers count.
#[derive(Clone, Copy)]
pub(crate) struct Pairs([f32; 4]);

impl Simd for Pairs {
    type E = f32;
    const N: usize = 4;
    const MR: usize = 4;

    #[inline(always)]
    fn zero() -> Self {
        Pairs([0.0; 4])
    }
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Pairs([x; 4])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's promise.
        Pairs(unsafe { p.cast::<[f32; 4]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[f32; 4]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    fn fma(self, a: Self, b: Self) -> Self {
        let (first, second) =
            (|x: f32| f32::from_bits(x.to_bits() << 16), |x: f32| f32::from_bits(x.to_bits() & !0xffff));
        Pairs(std::array::from_fn(|i| {
            let (a, b) = (a.0[i], b.0[i]);
            // Products of two bf16 are exact.
            self.0[i] + second(a) * second(b) + first(a) * first(b)
        }))
    }
    #[inline(always)]
    fn add(self, x: Self) -> Self {
        Pairs(std::array::from_fn(|i| self.0[i] + x.0[i]))
    }
}

impl Pack<bf16> for Pairs {
    const K_GROUP: usize = 2;

    #[inline(always)]
    unsafe fn rows(x: Mat<bf16>, i: usize, p: usize) -> Self {
        // SAFETY: the caller's promise.
        Pairs(std::array::from_fn(|j| unsafe { Self::single(x, i + j, p, usize::MAX) }))
    }
    #[inline(always)]
    unsafe fn rows_tail(x: Mat<bf16>, i: usize, p: usize) -> Self {
        // SAFETY: the caller's promise.
        Pairs(std::array::from_fn(|j| unsafe { Self::single(x, i + j, p, 2 * p + 1) }))
    }
    #[inline(always)]
    unsafe fn k_groups(x: Mat<bf16>, i: usize, p: usize) -> Self {
        // SAFETY: the caller's promise.
        Pairs(std::array::from_fn(|j| unsafe { Self::single(x, i, p + j, usize::MAX) }))
    }
    #[inline(always)]
    unsafe fn k_groups_partial(x: Mat<bf16>, i: usize, p: usize, n: usize) -> Self {
        let place = |j| {
            // SAFETY: the caller's promise.
            if j < n { unsafe { Self::single(x, i, p + j, usize::MAX) } } else { 0.0 }
        };
        Pairs(std::array::from_fn(place))
    }
    #[inline(always)]
    unsafe fn single(x: Mat<bf16>, i: usize, p: usize, k: usize) -> f32 {
        let mut high = 0;
        if 2 * p + 1 < k {
            // SAFETY: the second number of a row's two (the caller's promise).
            high = u32::from(unsafe { *x.at(i, 2 * p + 1).ptr }.to_bits());
        }
        // SAFETY: the first number (the caller's promise).
        let low = u32::from(unsafe { *x.at(i, 2 * p).ptr }.to_bits());
        f32::from_bits(low | high << 16)
    }
    #[inline(always)]
    fn merge(self, next: Self, late: bool, next_late: bool) -> Self {
        let element = |x: f32, late: bool| if late { x.to_bits() >> 16 } else { x.to_bits() & 0xffff };
        Pairs(std::array::from_fn(|i| {
            f32::from_bits(element(self.0[i], late) | element(next.0[i], next_late) << 16)
        }))
    }
}
