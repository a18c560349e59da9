//! Vectors of x86: AVX2 with FMA and F16C. Only functions compiled for these instructions (see `tiers`) may
//! come here; everything is inlined into them.

use super::lanes::{Converts, Lanes, MAX_LANES};
use half::{bf16, f16};
use std::arch::x86_64::*;

macro_rules! lanes {
    ($v:ty: $e:ty, $n:literal, $rows:literal; $zero:ident $splat:ident $load:ident $store:ident $stream:ident $fma:ident $add:ident $and:ident
        $few_loaded:ident $few_stored:ident $($last:ident $transpose:ident $sum:ident $largest:ident)?) => {
        impl Lanes for $v {
            type E = $e;
            const N: usize = $n;
            const ROWS: usize = $rows;

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
            unsafe fn load_few(p: *const $e, n: usize) -> Self {
                // SAFETY: as above, and the caller's promise.
                unsafe { $few_loaded(p, n) }
            }
            #[inline(always)]
            unsafe fn store_few(self, p: *mut $e, n: usize) {
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
            fn kept(self, mask: Self) -> Self {
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
            fn sum(self) -> $e {
                // SAFETY: as above.
                unsafe { $sum(self) }
            }
            #[inline(always)]
            fn largest(self) -> $e {
                // SAFETY: as above.
                unsafe { $largest(self) }
            })?
        }
        impl Converts<$e> for $v {
            #[inline(always)]
            unsafe fn read(p: *const $e) -> Self {
                // SAFETY: the caller's promise.
                unsafe { Self::load(p) }
            }
            #[inline(always)]
            unsafe fn read_few(p: *const $e, n: usize) -> Self {
                // SAFETY: the caller's promise.
                unsafe { Self::load_few(p, n) }
            }
            #[inline(always)]
            unsafe fn write(self, p: *mut $e) {
                // SAFETY: the caller's promise.
                unsafe { self.store(p) }
            }
            #[inline(always)]
            unsafe fn stream(self, p: *mut $e) {
                // SAFETY: as above, and the caller's promise.
                unsafe { $stream(p, self) }
            }
            #[inline(always)]
            fn rounded(self) -> Self {
                self
            }
        }
    };
}
pub(super) use lanes;

lanes!(__m256: f32, 8, 6; _mm256_setzero_ps _mm256_set1_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_stream_ps _mm256_fmadd_ps
    _mm256_add_ps _mm256_and_ps few_loaded_ps few_stored_ps last_ps transpose_8x8 sum_8 largest_8);
lanes!(__m256d: f64, 4, 4; _mm256_setzero_pd _mm256_set1_pd _mm256_loadu_pd _mm256_storeu_pd _mm256_stream_pd _mm256_fmadd_pd
    _mm256_add_pd _mm256_and_pd few_loaded_pd few_stored_pd);

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

impl Converts<f16> for __m256 {
    #[inline(always)]
    unsafe fn read(p: *const f16) -> Self {
        // SAFETY: eight numbers may be read (the caller's promise); the processor has F16C.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn write(self, p: *mut f16) {
        // SAFETY: as above, written.
        unsafe { _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<NEAREST>(self)) }
    }
    #[inline(always)]
    unsafe fn stream(self, p: *mut f16) {
        // SAFETY: as above, aligned.
        unsafe { _mm_stream_si128(p.cast(), _mm256_cvtps_ph::<NEAREST>(self)) }
    }
    #[inline(always)]
    fn rounded(self) -> Self {
        // SAFETY: the processor has F16C.
        unsafe { _mm256_cvtph_ps(_mm256_cvtps_ph::<NEAREST>(self)) }
    }
    #[inline(always)]
    fn pair(self, high: Self) -> Self {
        // SAFETY: as above, and AVX2.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm256_cvtps_ph::<NEAREST>(self));
            let high = _mm256_cvtepu16_epi32(_mm256_cvtps_ph::<NEAREST>(high));
            _mm256_castsi256_ps(_mm256_or_si256(low, _mm256_slli_epi32::<16>(high)))
        }
    }
}

// A bf16 is the upper half of an f32. Rounding to nearest, ties to even: add half of the last place, less a
// bit if it is even, and cut; a NaN is made quiet instead, so that cutting leaves one.
impl Converts<bf16> for __m256 {
    #[inline(always)]
    unsafe fn read(p: *const bf16) -> Self {
        // SAFETY: eight numbers may be read (the caller's promise); the processor has AVX2.
        unsafe {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn write(self, p: *mut bf16) {
        // SAFETY: as above, written.
        unsafe { _mm_storeu_si128(p.cast(), bf16_halves(nearest_bf16(self))) }
    }
    #[inline(always)]
    unsafe fn stream(self, p: *mut bf16) {
        // SAFETY: as above, written and aligned.
        unsafe { _mm_stream_si128(p.cast(), bf16_halves(nearest_bf16(self))) }
    }
    #[inline(always)]
    fn rounded(self) -> Self {
        // SAFETY: the processor has AVX2.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(nearest_bf16(self))) }
    }
    #[inline(always)]
    fn pair(self, high: Self) -> Self {
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
