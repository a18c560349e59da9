//! Vectors of AVX2 with FMA and F16C. Only functions compiled for these instructions may come here;
//! everything is inlined into them.

use super::{Convert, MAX_LANES, Simd, SimdF32};
use half::{bf16, f16};
use std::arch::x86_64::*;

macro_rules! simd {
    ($v:ty: $e:ty, $n:literal, $rows:literal; $zero:ident $splat:ident $load:ident $store:ident $stream:ident $fma:ident $add:ident $and:ident
        $few_loaded:ident $few_stored:ident $($last:ident $transpose:ident $sum:ident $largest:ident)?) => {
        impl Simd for $v {
            type E = $e;
            const N: usize = $n;
            const MR: usize = $rows;

            #[inline(always)]
            fn zero() -> Self {
                // SAFETY: for all intrinsics here: callers are compiled for the instruction set (module
                // documentation), which the processor was found to have.
                unsafe { $zero() }
            }
            #[inline(always)]
            fn splat(x: $e) -> Self {
                // SAFETY: as above.
                unsafe { $splat(x) }
            }
            #[inline(always)]
            unsafe fn load(p: *const $e) -> Self {
                // SAFETY: as above, and the caller's promise.
                unsafe { $load(p) }
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $e) {
                // SAFETY: as above, and the caller's promise.
                unsafe { $store(p, self) }
            }
            #[inline(always)]
            unsafe fn load_partial(p: *const $e, n: usize) -> Self {
                // SAFETY: as above, and the caller's promise.
                unsafe { $few_loaded(p, n) }
            }
            #[inline(always)]
            unsafe fn store_partial(self, p: *mut $e, n: usize) {
                // SAFETY: as above, and the caller's promise.
                unsafe { $few_stored(p, n, self) }
            }
            #[inline(always)]
            fn fma(self, a: Self, b: Self) -> Self {
                // SAFETY: as above.
                unsafe { $fma(a, b, self) }
            }
            #[inline(always)]
            fn add(self, x: Self) -> Self {
                // SAFETY: as above.
                unsafe { $add(self, x) }
            }
            #[inline(always)]
            fn masked(self, mask: Self) -> Self {
                // SAFETY: as above.
                unsafe { $and(self, mask) }
            }
            $(#[inline(always)]
            fn last(self, n: usize) -> Self {
                // SAFETY: as above.
                unsafe { $last(self, n) }
            }
            #[inline(always)]
            fn transpose(rows: &mut [Self; MAX_LANES]) {
                // SAFETY: as above.
                unsafe { $transpose(rows) }
            }
            #[inline(always)]
            fn reduce_sum(self) -> $e {
                // SAFETY: as above.
                unsafe { $sum(self) }
            }
            #[inline(always)]
            fn reduce_max(self) -> $e {
                // SAFETY: as above.
                unsafe { $largest(self) }
            })?
        }
        impl Convert<$e> for $v {
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
            unsafe fn stream_narrow(self, p: *mut $e) {
                // SAFETY: as above, and the caller's promise.
                unsafe { $stream(p, self) }
            }
            #[inline(always)]
            fn round_through(self) -> Self {
                self
            }
        }
    };
}
pub(super) use simd;

simd!(__m256: f32, 8, 6; _mm256_setzero_ps _mm256_set1_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_stream_ps _mm256_fmadd_ps
    _mm256_add_ps _mm256_and_ps few_loaded_ps few_stored_ps last_ps transpose_8x8 sum_8 largest_8);
simd!(__m256d: f64, 4, 4; _mm256_setzero_pd _mm256_set1_pd _mm256_loadu_pd _mm256_storeu_pd _mm256_stream_pd _mm256_fmadd_pd
    _mm256_add_pd _mm256_and_pd few_loaded_pd few_stored_pd);

macro_rules! simd_f32 {
    ($v:ty, $m:ty; $sub:ident $mul:ident $div:ident $max:ident $min:ident $or:ident; $sub_int:ident $set_int:ident $left:ident
        $right:ident $to_float:ident $to_int:ident $of_int:ident; $compare:ident $select:expr, $lookup:expr) => {
        impl SimdF32 for $v {
            type Mask = $m;

            #[inline(always)]
            fn sub(self, x: Self) -> Self {
                // SAFETY: for all intrinsics here: callers are compiled for the instruction set (module
                // documentation), which the processor was found to have.
                unsafe { $sub(self, x) }
            }
            #[inline(always)]
            fn mul(self, x: Self) -> Self {
                // SAFETY: as above.
                unsafe { $mul(self, x) }
            }
            #[inline(always)]
            fn div(self, x: Self) -> Self {
                // SAFETY: as above.
                unsafe { $div(self, x) }
            }
            #[inline(always)]
            fn max(self, x: Self) -> Self {
                // SAFETY: as above.
                unsafe { $max(self, x) }
            }
            #[inline(always)]
            fn min(self, x: Self) -> Self {
                // SAFETY: as above.
                unsafe { $min(self, x) }
            }
            #[inline(always)]
            fn lt(self, x: Self) -> $m {
                // SAFETY: as above.
                unsafe { $compare::<_CMP_LT_OQ>(self, x) }
            }
            #[inline(always)]
            fn eq(self, x: Self) -> $m {
                // SAFETY: as above.
                unsafe { $compare::<_CMP_EQ_OQ>(self, x) }
            }
            #[inline(always)]
            fn is_nan(self) -> $m {
                // SAFETY: as above.
                unsafe { $compare::<_CMP_UNORD_Q>(self, self) }
            }
            #[inline(always)]
            fn select(mask: $m, yes: Self, no: Self) -> Self {
                // SAFETY: as above.
                unsafe { $select(mask, yes, no) }
            }
            #[inline(always)]
            fn from_bits(x: u32) -> Self {
                // SAFETY: as above.
                unsafe { $of_int($set_int(x.cast_signed())) }
            }
            #[inline(always)]
            fn or(self, x: Self) -> Self {
                // SAFETY: as above.
                unsafe { $or(self, x) }
            }
            #[inline(always)]
            fn sub_int(self, x: Self) -> Self {
                // SAFETY: as above.
                unsafe { $of_int($sub_int($to_int(self), $to_int(x))) }
            }
            #[inline(always)]
            fn shift_left(self, n: u8) -> Self {
                // SAFETY: as above.
                unsafe { $of_int($left($to_int(self), _mm_cvtsi32_si128(n.into()))) }
            }
            #[inline(always)]
            fn shift_right(self, n: u8) -> Self {
                // SAFETY: as above.
                unsafe { $of_int($right($to_int(self), _mm_cvtsi32_si128(n.into()))) }
            }
            #[inline(always)]
            fn int_to_float(self) -> Self {
                // SAFETY: as above.
                unsafe { $to_float($to_int(self)) }
            }
            #[inline(always)]
            fn lookup(self, table: [u32; 8]) -> Self {
                // SAFETY: as above; the table has eight entries.
                unsafe { $of_int($lookup(_mm256_loadu_si256(table.as_ptr().cast()), $to_int(self))) }
            }
        }
    };
}
pub(super) use simd_f32;

simd_f32!(__m256, __m256; _mm256_sub_ps _mm256_mul_ps _mm256_div_ps _mm256_max_ps _mm256_min_ps _mm256_or_ps; _mm256_sub_epi32
    _mm256_set1_epi32 _mm256_sll_epi32 _mm256_sra_epi32 _mm256_cvtepi32_ps _mm256_castps_si256 _mm256_castsi256_ps;
    // One instruction is left of these if one of them is zero.
    _mm256_cmp_ps |m, a, b| _mm256_or_ps(_mm256_and_ps(m, a), _mm256_andnot_ps(m, b)),
    |table, a| _mm256_permutevar8x32_epi32(table, a));

/// From place `8 - n` on: the mask of the first `n` of eight words.
static FIRST: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

macro_rules! few {
    ($v:ty, $e:ty, $words:literal, $load:ident $store:ident $loaded:ident $stored:ident) => {
        /// The first `n` lanes, zeros in the others.
        ///
        /// # Safety
        /// `n ≤ N` numbers may be read; the processor has AVX2.
        #[inline(always)]
        unsafe fn $loaded(p: *const $e, n: usize) -> $v {
            // SAFETY: the caller's promise; lanes that are masked out are not read.
            unsafe { $load(p.cast(), _mm256_loadu_si256(FIRST[8 - $words * n..].as_ptr().cast())) }
        }
        /// The first `n` lanes to memory.
        ///
        /// # Safety
        /// As above, written.
        #[inline(always)]
        unsafe fn $stored(p: *mut $e, n: usize, x: $v) {
            // SAFETY: as above.
            unsafe { $store(p.cast(), _mm256_loadu_si256(FIRST[8 - $words * n..].as_ptr().cast()), x) }
        }
    };
}
few!(__m256, f32, 1, _mm256_maskload_ps _mm256_maskstore_ps few_loaded_ps few_stored_ps);
few!(__m256d, f64, 2, _mm256_maskload_pd _mm256_maskstore_pd few_loaded_pd few_stored_pd);

/// The last `n` lanes, in the first ones.
///
/// # Safety
/// `n ≤ 8`; the processor has AVX2.
#[inline(always)]
unsafe fn last_ps(x: __m256, n: usize) -> __m256 {
    // From place `8 - n` on: the last `n` lanes, and any.
    static FROM: [i32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: the caller's promise.
    unsafe { _mm256_permutevar8x32_ps(x, _mm256_loadu_si256(FROM[8 - n..].as_ptr().cast())) }
}

/// # Safety
/// The processor has AVX.
#[inline(always)]
unsafe fn transpose_8x8(r: &mut [__m256; MAX_LANES]) {
    // SAFETY: the caller's promise.
    unsafe {
        // Pairs of rows, then of pairs, then the halves.
        let (a, b) = (_mm256_unpacklo_ps(r[0], r[1]), _mm256_unpackhi_ps(r[0], r[1]));
        let (c, d) = (_mm256_unpacklo_ps(r[2], r[3]), _mm256_unpackhi_ps(r[2], r[3]));
        let (e, f) = (_mm256_unpacklo_ps(r[4], r[5]), _mm256_unpackhi_ps(r[4], r[5]));
        let (g, h) = (_mm256_unpacklo_ps(r[6], r[7]), _mm256_unpackhi_ps(r[6], r[7]));
        let low = [
            _mm256_shuffle_ps::<0x44>(a, c),
            _mm256_shuffle_ps::<0xee>(a, c),
            _mm256_shuffle_ps::<0x44>(b, d),
            _mm256_shuffle_ps::<0xee>(b, d),
        ];
        let high = [
            _mm256_shuffle_ps::<0x44>(e, g),
            _mm256_shuffle_ps::<0xee>(e, g),
            _mm256_shuffle_ps::<0x44>(f, h),
            _mm256_shuffle_ps::<0xee>(f, h),
        ];
        for i in 0..4 {
            r[i] = _mm256_permute2f128_ps::<0x20>(low[i], high[i]);
            r[i + 4] = _mm256_permute2f128_ps::<0x31>(low[i], high[i]);
        }
    }
}

/// # Safety
/// The processor has AVX2, for which the caller is compiled.
#[inline(always)]
pub(super) unsafe fn sum_8(x: __m256) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps::<1>(x, x)))
    }
}

/// # Safety
/// As [`sum_8`].
#[inline(always)]
pub(super) unsafe fn largest_8(x: __m256) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let x = _mm_max_ps(_mm256_extractf128_ps::<1>(x), _mm256_castps256_ps128(x));
        let x = _mm_max_ps(_mm_movehl_ps(x, x), x);
        _mm_cvtss_f32(_mm_max_ss(_mm_shuffle_ps::<1>(x, x), x))
    }
}

pub(super) const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

impl Convert<f16> for __m256 {
    #[inline(always)]
    unsafe fn load_widen(p: *const f16) -> Self {
        // SAFETY: eight numbers may be read (the caller's promise); the processor has F16C.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_narrow(self, p: *mut f16) {
        // SAFETY: as above, written.
        unsafe { _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<NEAREST>(self)) }
    }
    #[inline(always)]
    unsafe fn stream_narrow(self, p: *mut f16) {
        // SAFETY: as above, aligned.
        unsafe { _mm_stream_si128(p.cast(), _mm256_cvtps_ph::<NEAREST>(self)) }
    }
    #[inline(always)]
    fn round_through(self) -> Self {
        // SAFETY: the processor has F16C.
        unsafe { _mm256_cvtph_ps(_mm256_cvtps_ph::<NEAREST>(self)) }
    }
    #[inline(always)]
    fn narrow_pair(self, high: Self) -> Self {
        // SAFETY: as above, and AVX2.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm256_cvtps_ph::<NEAREST>(self));
            let high = _mm256_cvtepu16_epi32(_mm256_cvtps_ph::<NEAREST>(high));
            _mm256_castsi256_ps(_mm256_or_si256(low, _mm256_slli_epi32::<16>(high)))
        }
    }
}

// A bf16 is the upper half of an f32. Rounding to nearest, ties to even: add half of the last place, less a
// bit if it is even, and cut. A NaN is made quiet instead, so that cutting leaves one.
impl Convert<bf16> for __m256 {
    #[inline(always)]
    unsafe fn load_widen(p: *const bf16) -> Self {
        // SAFETY: eight numbers may be read (the caller's promise); the processor has AVX2.
        unsafe {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn store_narrow(self, p: *mut bf16) {
        // SAFETY: as above, written.
        unsafe { _mm_storeu_si128(p.cast(), bf16_halves(nearest_bf16(self))) }
    }
    #[inline(always)]
    unsafe fn stream_narrow(self, p: *mut bf16) {
        // SAFETY: as above, written and aligned.
        unsafe { _mm_stream_si128(p.cast(), bf16_halves(nearest_bf16(self))) }
    }
    #[inline(always)]
    fn round_through(self) -> Self {
        // SAFETY: the processor has AVX2.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(nearest_bf16(self))) }
    }
    #[inline(always)]
    fn narrow_pair(self, high: Self) -> Self {
        // SAFETY: the processor has AVX2.
        unsafe {
            let (low, high) = (nearest_bf16(self), nearest_bf16(high));
            _mm256_castsi256_ps(_mm256_or_si256(low, _mm256_slli_epi32::<16>(high)))
        }
    }
}

/// The bits of the nearest bf16, in the lower half of each lane.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn nearest_bf16(x: __m256) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = _mm256_castps_si256(x);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
        _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan))
    }
}

/// The lower half of each lane.
///
/// # Safety
/// The processor has AVX2; the upper halves are zero.
#[inline(always)]
unsafe fn bf16_halves(bits: __m256i) -> __m128i {
    // SAFETY: the caller's promise.
    unsafe { _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256::<1>(bits)) }
}
