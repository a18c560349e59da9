//! Vectors of NEON, two registers each. They have as many lanes as vectors of AVX2, and blocks of as many
//! rows, so that products have the same bits. Of the 32 registers 24 hold a block of f32 and 16 one of f64. A
//! multiplication takes a lane of its operand, so that contiguous elements of a left operand are read four at
//! a time.
//!
//! Every processor of the architecture has these instructions, and every function is compiled for them.
#![allow(clippy::needless_range_loop)]

use super::{Convert, K_UNROLL, MAX_LANES, Simd, SimdF32, barrier};
use half::{bf16, f16};
use std::arch::aarch64::*;

/// Eight f32.
#[derive(Clone, Copy)]
pub struct Eight(pub(crate) [float32x4_t; 2]);
/// Four f64.
#[derive(Clone, Copy)]
pub struct Four([float64x2_t; 2]);

macro_rules! simd {
    ($name:ident: $e:ty, $register:literal lanes, $rows:literal rows; $dup:ident $load:ident $store:ident $fma:ident $add:ident $and:ident;
        $few:ident $few_stored:ident $by_lane:ident [$($lane:literal)*]; $zip:ident $zip_high:ident $sum:ident $largest:ident $transpose:ident) => {
        impl Simd for $name {
            type E = $e;
            const N: usize = 2 * $register;
            const MR: usize = $rows;
            const FMA_BY_LANE: bool = true;

            #[inline(always)]
            fn zero() -> Self {
                Self::splat(0.0)
            }
            #[inline(always)]
            fn splat(x: $e) -> Self {
                // SAFETY: for all intrinsics here: NEON is part of the architecture.
                $name([unsafe { $dup(x) }; 2])
            }
            #[inline(always)]
            unsafe fn load(p: *const $e) -> Self {
                // SAFETY: as above, and the caller's promise.
                $name(unsafe { [$load(p), $load(p.add($register))] })
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $e) {
                // SAFETY: as above, and the caller's promise.
                unsafe {
                    $store(p, self.0[0]);
                    $store(p.add($register), self.0[1]);
                }
            }
            #[inline(always)]
            unsafe fn load_partial(p: *const $e, n: usize) -> Self {
                // SAFETY: as above, and the caller's promise.
                $name(unsafe {
                    if n < $register {
                        [$few(p, n), $dup(0.0)]
                    } else {
                        [$load(p), $few(p.wrapping_add($register), n - $register)]
                    }
                })
            }
            #[inline(always)]
            unsafe fn store_partial(self, p: *mut $e, n: usize) {
                // SAFETY: as above, and the caller's promise.
                unsafe {
                    if n < $register {
                        $few_stored(p, n, self.0[0]);
                    } else {
                        $store(p, self.0[0]);
                        $few_stored(p.wrapping_add($register), n - $register, self.0[1]);
                    }
                }
            }
            #[inline(always)]
            fn fma(self, a: Self, b: Self) -> Self {
                // SAFETY: as above.
                $name(unsafe { [$fma(self.0[0], a.0[0], b.0[0]), $fma(self.0[1], a.0[1], b.0[1])] })
            }
            #[inline(always)]
            fn add(self, x: Self) -> Self {
                // SAFETY: as above.
                $name(unsafe { [$add(self.0[0], x.0[0]), $add(self.0[1], x.0[1])] })
            }
            #[inline(always)]
            fn masked(self, mask: Self) -> Self {
                $name([$and(self.0[0], mask.0[0]), $and(self.0[1], mask.0[1])])
            }
            #[inline(always)]
            fn zip(self, x: Self) -> [Self; 2] {
                // SAFETY: as above.
                [0, 1].map(|i| $name(unsafe { [$zip(self.0[i], x.0[i]), $zip_high(self.0[i], x.0[i])] }))
            }
            #[inline(always)]
            fn reduce_sum(self) -> $e {
                // SAFETY: as above.
                unsafe { $sum($add(self.0[0], self.0[1])) }
            }
            #[inline(always)]
            fn reduce_max(self) -> $e {
                $largest(self.0)
            }
            #[inline(always)]
            fn transpose(rows: &mut [Self; MAX_LANES]) {
                // Squares of as many rows as a register has lanes; those off the diagonal change places.
                const W: usize = $register;
                let mut out = *rows;
                for i in 0..2 {
                    for j in 0..2 {
                        let mut square = [rows[0].0[0]; W];
                        for k in 0..W {
                            square[k] = rows[i * W + k].0[j];
                        }
                        let square = $transpose(square);
                        for k in 0..W {
                            out[j * W + k].0[i] = square[k];
                        }
                    }
                }
                *rows = out;
            }

            #[inline(always)]
            unsafe fn fma_outer<const R: usize, const C: usize>(
                sums: &mut [[Self; C]; R],
                a: *const $e,
                b: [Self; C],
            ) {
                for i in (0..R).step_by($register) {
                    let some = if R - i < $register { R - i } else { $register };
                    // SAFETY: `some` of the `R` numbers.
                    let left = unsafe { if some == $register { $load(a.add(i)) } else { $few(a.add(i), some) } };
                    // Each lane by name: what the compiler is sure to unroll, and so to keep in registers.
                    $(if $lane < some {
                        for j in 0..C {
                            let sum = &mut sums[i + $lane][j].0;
                            sum[0] = $by_lane::<$lane>(sum[0], b[j].0[0], left);
                            sum[1] = $by_lane::<$lane>(sum[1], b[j].0[1], left);
                        }
                    })*
                }
            }
            #[inline(always)]
            unsafe fn fma_unrolled<const R: usize, const C: usize>(
                sums: &mut [[Self; C]; R],
                a: [*const $e; R],
                b: *const $e,
                brs: isize,
            ) {
                const PARTS: usize = K_UNROLL / $register;
                // SAFETY: for all that is read here: the caller's promise.
                let mut left = [[unsafe { $dup(0.0) }; PARTS]; R];
                for i in 0..R {
                    for part in 0..PARTS {
                        // SAFETY: as above.
                        left[i][part] = unsafe { $load(a[i].add(part * $register)) };
                    }
                }
                const { assert!(K_UNROLL == 4) };
                macro_rules! place {
                    ($p:literal) => {
                        let b = b.wrapping_offset($p * brs);
                        for j in 0..C {
                            for half in 0..2 {
                                // SAFETY: as above.
                                let right = unsafe { $load(b.add(j * Self::N + half * $register)) };
                                for i in 0..R {
                                    let sum = &mut sums[i][j].0[half];
                                    *sum = $by_lane::<{ $p % $register }>(*sum, right, left[i][$p / $register]);
                                }
                            }
                        }
                        // Hoisted, right operands of other steps would find no registers.
                        barrier();
                    };
                }
                place!(0);
                place!(1);
                place!(2);
                place!(3);
            }
        }

        impl Convert<$e> for $name {
            #[inline(always)]
            unsafe fn load_widen(p: *const $e) -> Self {
                // SAFETY: the caller's promise.
                unsafe { Self::load(p) }
            }
            #[inline(always)]
            unsafe fn load_widen_partial(p: *const $e, n: usize) -> Self {
                // SAFETY: the caller's promise.
                unsafe { Self::load_partial(p, n) }
            }
            #[inline(always)]
            unsafe fn store_narrow(self, p: *mut $e) {
                // SAFETY: the caller's promise.
                unsafe { self.store(p) }
            }
            #[inline(always)]
            fn round_through(self) -> Self {
                self
            }
        }
    };
}
pub(super) use simd;

simd!(Eight: f32, 4 lanes, 6 rows; vdupq_n_f32 vld1q_f32 vst1q_f32 vfmaq_f32 vaddq_f32
    and_f32;
    few_loaded_f32 few_stored_f32 fma_lane_f32 [0 1 2 3]; vzip1q_f32 vzip2q_f32 sum_f32 largest_f32 transpose_4x4);
simd!(Four: f64, 2 lanes, 4 rows; vdupq_n_f64 vld1q_f64 vst1q_f64 vfmaq_f64 vaddq_f64
    and_f64;
    few_loaded_f64 few_stored_f64 fma_lane_f64 [0 1]; vzip1q_f64 vzip2q_f64 sum_f64 largest_f64 transpose_2x2);

/// `c + b · a[LANE]`, rounded once.
#[inline(always)]
fn fma_lane_f32<const LANE: i32>(c: float32x4_t, b: float32x4_t, a: float32x4_t) -> float32x4_t {
    // SAFETY: NEON is part of the architecture.
    unsafe { vfmaq_laneq_f32::<LANE>(c, b, a) }
}

/// The same of f64.
#[inline(always)]
fn fma_lane_f64<const LANE: i32>(c: float64x2_t, b: float64x2_t, a: float64x2_t) -> float64x2_t {
    // SAFETY: NEON is part of the architecture.
    unsafe { vfmaq_laneq_f64::<LANE>(c, b, a) }
}

#[inline(always)]
pub(super) fn and_f32(x: float32x4_t, mask: float32x4_t) -> float32x4_t {
    // SAFETY: NEON is part of the architecture.
    unsafe { vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vreinterpretq_u32_f32(mask))) }
}

#[inline(always)]
fn and_f64(x: float64x2_t, mask: float64x2_t) -> float64x2_t {
    // SAFETY: NEON is part of the architecture.
    unsafe { vreinterpretq_f64_u64(vandq_u64(vreinterpretq_u64_f64(x), vreinterpretq_u64_f64(mask))) }
}

/// The first `n` of four numbers, zeros in the other lanes.
///
/// # Safety
/// `n ≤ 4` numbers may be read.
#[inline(always)]
pub(super) unsafe fn few_loaded_f32(p: *const f32, n: usize) -> float32x4_t {
    // SAFETY: the caller's promise.
    unsafe {
        let two = |p| vcombine_f32(vld1_f32(p), vdup_n_f32(0.0));
        match n {
            0 => vdupq_n_f32(0.0),
            1 => vld1q_lane_f32::<0>(p, vdupq_n_f32(0.0)),
            2 => two(p),
            3 => vld1q_lane_f32::<2>(p.add(2), two(p)),
            _ => vld1q_f32(p),
        }
    }
}

/// The first `n` lanes to memory.
///
/// # Safety
/// `n ≤ 4` numbers may be written.
#[inline(always)]
pub(super) unsafe fn few_stored_f32(p: *mut f32, n: usize, x: float32x4_t) {
    // SAFETY: the caller's promise.
    unsafe {
        match n {
            0 => {}
            1 => vst1q_lane_f32::<0>(p, x),
            2 => vst1_f32(p, vget_low_f32(x)),
            3 => {
                vst1_f32(p, vget_low_f32(x));
                vst1q_lane_f32::<2>(p.add(2), x);
            }
            _ => vst1q_f32(p, x),
        }
    }
}

/// The first `n` of two numbers, zeros in the other lanes.
///
/// # Safety
/// `n ≤ 2` numbers may be read.
#[inline(always)]
unsafe fn few_loaded_f64(p: *const f64, n: usize) -> float64x2_t {
    // SAFETY: the caller's promise.
    unsafe {
        match n {
            0 => vdupq_n_f64(0.0),
            1 => vld1q_lane_f64::<0>(p, vdupq_n_f64(0.0)),
            _ => vld1q_f64(p),
        }
    }
}

/// The first `n` lanes to memory.
///
/// # Safety
/// `n ≤ 2` numbers may be written.
#[inline(always)]
unsafe fn few_stored_f64(p: *mut f64, n: usize, x: float64x2_t) {
    // SAFETY: the caller's promise.
    unsafe {
        match n {
            0 => {}
            1 => vst1q_lane_f64::<0>(p, x),
            _ => vst1q_f64(p, x),
        }
    }
}

/// Sum of the lanes, half by half.
#[inline(always)]
pub(super) fn sum_f32(x: float32x4_t) -> f32 {
    // SAFETY: NEON is part of the architecture.
    unsafe {
        let x = vadd_f32(vget_low_f32(x), vget_high_f32(x));
        vget_lane_f32::<0>(x) + vget_lane_f32::<1>(x)
    }
}

#[inline(always)]
fn sum_f64(x: float64x2_t) -> f64 {
    // SAFETY: NEON is part of the architecture.
    unsafe { vgetq_lane_f64::<0>(x) + vgetq_lane_f64::<1>(x) }
}

/// The largest lane, half by half: the upper one where it is greater, which the instruction for it says
/// otherwise of zeros.
#[inline(always)]
pub(super) fn largest_f32([low, high]: [float32x4_t; 2]) -> f32 {
    // SAFETY: NEON is part of the architecture.
    unsafe {
        let x = vbslq_f32(vcgtq_f32(high, low), high, low);
        let (low, high) = (vget_low_f32(x), vget_high_f32(x));
        let x = vbsl_f32(vcgt_f32(high, low), high, low);
        let (low, high) = (vget_lane_f32::<0>(x), vget_lane_f32::<1>(x));
        if high > low { high } else { low }
    }
}

/// The same of f64.
#[inline(always)]
fn largest_f64([low, high]: [float64x2_t; 2]) -> f64 {
    // SAFETY: NEON is part of the architecture.
    unsafe {
        let x = vbslq_f64(vcgtq_f64(high, low), high, low);
        let (low, high) = (vgetq_lane_f64::<0>(x), vgetq_lane_f64::<1>(x));
        if high > low { high } else { low }
    }
}

#[inline(always)]
pub(super) fn transpose_4x4([a, b, c, d]: [float32x4_t; 4]) -> [float32x4_t; 4] {
    // SAFETY: NEON is part of the architecture.
    unsafe {
        // Pairs of rows, then of pairs.
        let pairs = |x, y| [vtrn1q_f32(x, y), vtrn2q_f32(x, y)].map(|x| vreinterpretq_f64_f32(x));
        let ([a, b], [c, d]) = (pairs(a, b), pairs(c, d));
        [vtrn1q_f64(a, c), vtrn1q_f64(b, d), vtrn2q_f64(a, c), vtrn2q_f64(b, d)]
            .map(|x| vreinterpretq_f32_f64(x))
    }
}

#[inline(always)]
fn transpose_2x2([a, b]: [float64x2_t; 2]) -> [float64x2_t; 2] {
    // SAFETY: NEON is part of the architecture.
    unsafe { [vtrn1q_f64(a, b), vtrn2q_f64(a, b)] }
}

/// Four bits of f16 each, of the nearest numbers.
#[inline(always)]
fn nearest_f16(x: float32x4_t) -> uint16x4_t {
    // SAFETY: NEON is part of the architecture.
    unsafe { vreinterpret_u16_f16(vcvt_f16_f32(x)) }
}

#[inline(always)]
fn wide_f16(x: uint16x4_t) -> float32x4_t {
    // SAFETY: NEON is part of the architecture.
    unsafe { vcvt_f32_f16(vreinterpret_f16_u16(x)) }
}

#[inline(always)]
fn wide_bf16(x: uint16x4_t) -> float32x4_t {
    // SAFETY: NEON is part of the architecture.
    unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(x)) }
}

/// The bits of the nearest bf16: as in `x86`.
#[inline(always)]
fn nearest_bf16(x: float32x4_t) -> uint16x4_t {
    // SAFETY: NEON is part of the architecture.
    unsafe {
        let bits = vreinterpretq_u32_f32(x);
        let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
        let rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
        let quiet = vorrq_u32(bits, vdupq_n_u32(0x0040_0000));
        vshrn_n_u32::<16>(vbslq_u32(vceqq_f32(x, x), rounded, quiet))
    }
}

macro_rules! halves {
    ($t:ty: $wide:ident $nearest:ident) => {
        impl Convert<$t> for Eight {
            #[inline(always)]
            unsafe fn load_widen(p: *const $t) -> Self {
                // SAFETY: eight numbers may be read (the caller's promise); NEON is part of the architecture.
                unsafe {
                    let x = vld1q_u16(p.cast());
                    Eight([$wide(vget_low_u16(x)), $wide(vget_high_u16(x))])
                }
            }
            #[inline(always)]
            unsafe fn store_narrow(self, p: *mut $t) {
                // SAFETY: as above, written.
                unsafe { vst1q_u16(p.cast(), vcombine_u16($nearest(self.0[0]), $nearest(self.0[1]))) }
            }
            #[inline(always)]
            fn round_through(self) -> Self {
                Eight(self.0.map(|x| $wide($nearest(x))))
            }
            #[inline(always)]
            fn narrow_pair(self, high: Self) -> Self {
                // SAFETY: as above.
                Eight([0, 1].map(|i| unsafe {
                    let (low, high) = (vmovl_u16($nearest(self.0[i])), $nearest(high.0[i]));
                    vreinterpretq_f32_u32(vorrq_u32(low, vshll_n_u16::<16>(high)))
                }))
            }
        }
    };
}
halves!(f16: wide_f16 nearest_f16);
halves!(bf16: wide_bf16 nearest_bf16);

/// The same of both registers.
macro_rules! both {
    (|$($x:ident = $v:tt),*| $f:expr) => {
        Eight([0, 1].map(|i| {
            $(let $x = $v.0[i];)*
            // SAFETY: for all intrinsics here: NEON is part of the architecture.
            unsafe { $f }
        }))
    };
}

#[inline(always)]
fn int(x: float32x4_t) -> int32x4_t {
    // SAFETY: NEON is part of the architecture.
    unsafe { vreinterpretq_s32_f32(x) }
}

#[inline(always)]
fn float(x: int32x4_t) -> float32x4_t {
    // SAFETY: NEON is part of the architecture.
    unsafe { vreinterpretq_f32_s32(x) }
}

/// All bits of a lane, or none.
#[inline(always)]
fn mask(x: uint32x4_t) -> float32x4_t {
    // SAFETY: NEON is part of the architecture.
    unsafe { vreinterpretq_f32_u32(x) }
}

impl SimdF32 for Eight {
    type Mask = Eight;

    #[inline(always)]
    fn sub(self, x: Eight) -> Eight {
        both!(|a = self, b = x| vsubq_f32(a, b))
    }
    #[inline(always)]
    fn mul(self, x: Eight) -> Eight {
        both!(|a = self, b = x| vmulq_f32(a, b))
    }
    #[inline(always)]
    fn div(self, x: Eight) -> Eight {
        both!(|a = self, b = x| vdivq_f32(a, b))
    }
    // The instructions for these would give a NaN wherever one takes part.
    #[inline(always)]
    fn max(self, x: Eight) -> Eight {
        both!(|a = self, b = x| vbslq_f32(vcgtq_f32(a, b), a, b))
    }
    #[inline(always)]
    fn min(self, x: Eight) -> Eight {
        both!(|a = self, b = x| vbslq_f32(vcltq_f32(a, b), a, b))
    }
    #[inline(always)]
    fn lt(self, x: Eight) -> Eight {
        both!(|a = self, b = x| mask(vcltq_f32(a, b)))
    }
    #[inline(always)]
    fn eq(self, x: Eight) -> Eight {
        both!(|a = self, b = x| mask(vceqq_f32(a, b)))
    }
    #[inline(always)]
    fn is_nan(self) -> Eight {
        both!(|a = self| mask(vmvnq_u32(vceqq_f32(a, a))))
    }
    #[inline(always)]
    fn select(mask: Eight, yes: Eight, no: Eight) -> Eight {
        both!(|m = mask, a = yes, b = no| vbslq_f32(vreinterpretq_u32_f32(m), a, b))
    }
    #[inline(always)]
    fn from_bits(x: u32) -> Eight {
        Self::splat(f32::from_bits(x))
    }
    #[inline(always)]
    fn or(self, x: Eight) -> Eight {
        both!(|a = self, b = x| float(vorrq_s32(int(a), int(b))))
    }
    #[inline(always)]
    fn sub_int(self, x: Eight) -> Eight {
        both!(|a = self, b = x| float(vsubq_s32(int(a), int(b))))
    }
    #[inline(always)]
    fn shift_left(self, n: u8) -> Eight {
        both!(|a = self| float(vshlq_s32(int(a), vdupq_n_s32(n.into()))))
    }
    #[inline(always)]
    fn shift_right(self, n: u8) -> Eight {
        // A negative number shifts right.
        both!(|a = self| float(vshlq_s32(int(a), vdupq_n_s32(-i32::from(n)))))
    }
    #[inline(always)]
    fn lookup(self, table: [u32; 8]) -> Eight {
        // Bytes of the table: those of the entry, four times its number and on.
        // SAFETY: NEON is part of the architecture; the table has 32 bytes.
        let bytes = unsafe { vld1q_u8_x2(table.as_ptr().cast()) };
        both!(|a = self| {
            let entry = vandq_u32(vreinterpretq_u32_f32(a), vdupq_n_u32(7));
            let first = vdupq_n_u32(u32::from_le_bytes([0, 1, 2, 3]));
            let at = vmlaq_u32(first, entry, vdupq_n_u32(0x0404_0404));
            vreinterpretq_f32_u8(vqtbl2q_u8(bytes, vreinterpretq_u8_u32(at)))
        })
    }
    #[inline(always)]
    fn int_to_float(self) -> Eight {
        both!(|a = self| vcvtq_f32_s32(int(a)))
    }
}
