//! Sums of products of pairs of bf16, by the instruction BFDOT. That takes half as many instructions as
//! products of f32, with two numbers of `k` in each lane. Its arithmetic (FPCR.EBF = 0) is not that of a
//! processor's other instructions. The products of a pair are exact, their sum is rounded to odd, and so is
//! the sum with what there was. Subnormal numbers count as zero. Rounded to odd, a sum is off by less than
//! one unit of its last place, to either side. BFMMLA would need half as many again, and blocks of two by two
//! in other places.
#![allow(clippy::needless_range_loop)]

use super::neon::*;
use super::pack::Pack;
use super::{Convert, K_UNROLL, MAX_LANES, Simd, barrier, portable_bf16};
use crate::matrix::Mat;
use half::bf16;
use std::arch::aarch64::*;
use std::arch::asm;

/// Eight sums in f32, or in operands the bits of eight pairs.
#[derive(Clone, Copy)]
pub(crate) struct Pairs([float32x4_t; 2]);

simd!(Pairs: f32, 4 lanes, 6 rows; vdupq_n_f32 vld1q_f32 vst1q_f32 bfdot vaddq_f32 and_f32;
    few_loaded_f32 few_stored_f32 bfdot_lane [0 1 2 3]; vzip1q_f32 vzip2q_f32 sum_f32 largest_f32 transpose_4x4);

/// `c + a · b` of pairs.
///
/// # Safety
/// The processor has the instruction, for which the caller is compiled.
#[inline(always)]
unsafe fn bfdot(mut c: float32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "bfdot {c:v}.4s, {a:v}.8h, {b:v}.8h",
            c = inout(vreg) c,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    c
}

/// `c + b · a[LANE]` of pairs.
#[inline(always)]
fn bfdot_lane<const LANE: i32>(mut c: float32x4_t, b: float32x4_t, a: float32x4_t) -> float32x4_t {
    // SAFETY: callers are compiled for the instruction, which the processor was found to have.
    unsafe {
        asm!(
            "bfdot {c:v}.4s, {b:v}.8h, {a:v}.2h[{lane}]",
            c = inout(vreg) c,
            b = in(vreg) b,
            a = in(vreg) a,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    c
}

/// Pairs of the numbers of two vectors.
#[inline(always)]
fn paired(first: uint16x8_t, second: uint16x8_t) -> Pairs {
    // SAFETY: NEON is part of the architecture.
    Pairs(unsafe { [vzip1q_u16(first, second), vzip2q_u16(first, second)].map(|x| vreinterpretq_f32_u16(x)) })
}

impl Pack<bf16> for Pairs {
    const K_GROUP: usize = 2;

    #[inline(always)]
    unsafe fn rows(x: Mat<bf16>, i: usize, p: usize) -> Self {
        // SAFETY: eight numbers of each of two columns (the caller's promise).
        unsafe { paired(vld1q_u16(x.at(i, 2 * p).ptr.cast()), vld1q_u16(x.at(i, 2 * p + 1).ptr.cast())) }
    }
    #[inline(always)]
    unsafe fn rows_tail(x: Mat<bf16>, i: usize, p: usize) -> Self {
        // SAFETY: eight numbers of a column (the caller's promise).
        unsafe { paired(vld1q_u16(x.at(i, 2 * p).ptr.cast()), vdupq_n_u16(0)) }
    }
    #[inline(always)]
    unsafe fn k_groups(x: Mat<bf16>, i: usize, p: usize) -> Self {
        // SAFETY: sixteen numbers of a row (the caller's promise).
        unsafe { Simd::load(x.at(i, 2 * p).ptr.cast()) }
    }
    #[inline(always)]
    unsafe fn k_groups_partial(x: Mat<bf16>, i: usize, p: usize, n: usize) -> Self {
        // SAFETY: twice as many numbers of a row (the caller's promise).
        unsafe { Simd::load_partial(x.at(i, 2 * p).ptr.cast(), n) }
    }
    #[inline(always)]
    unsafe fn single(x: Mat<bf16>, i: usize, p: usize, k: usize) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { portable_bf16::Pairs::single(x, i, p, k) }
    }
    #[inline(always)]
    fn merge(self, next: Self, late: bool, next_late: bool) -> Self {
        Pairs([0, 1].map(|i| {
            // SAFETY: NEON is part of the architecture.
            unsafe {
                let [first, second] = [self, next].map(|x| vreinterpretq_u32_f32(x.0[i]));
                let first = if late { vshrq_n_u32::<16>(first) } else { first };
                let second = if next_late { second } else { vshlq_n_u32::<16>(second) };
                vreinterpretq_f32_u32(vbslq_u32(vdupq_n_u32(0xffff), first, second))
            }
        }))
    }
}
