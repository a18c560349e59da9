//! Vectors of AVX-512, and of its BF16 extension, which sums products of pairs (VDPBF16PS).

use super::avx2::{NEAREST, largest_8, simd, simd_f32, sum_8};
use super::pack::Pack;
use super::{Convert, MAX_LANES, Simd, SimdF32, portable_bf16};
use crate::matrix::Mat;
use half::{bf16, f16};
use std::arch::x86_64::*;

simd!(__m512: f32, 16, 12; _mm512_setzero_ps _mm512_set1_ps _mm512_loadu_ps _mm512_storeu_ps _mm512_stream_ps _mm512_fmadd_ps
    _mm512_add_ps _mm512_and_ps few_loaded_ps few_stored_ps last_ps transpose_16x16 sum_16 largest_16);
simd!(__m512d: f64, 8, 8; _mm512_setzero_pd _mm512_set1_pd _mm512_loadu_pd _mm512_storeu_pd _mm512_stream_pd _mm512_fmadd_pd
    _mm512_add_pd _mm512_and_pd few_loaded_pd few_stored_pd);

simd_f32!(__m512, __mmask16; _mm512_sub_ps _mm512_mul_ps _mm512_div_ps _mm512_max_ps _mm512_min_ps _mm512_or_ps; _mm512_sub_epi32
    _mm512_set1_epi32 _mm512_sll_epi32 _mm512_sra_epi32 _mm512_cvtepi32_ps _mm512_castps_si512 _mm512_castsi512_ps;
    _mm512_cmp_ps_mask |m, a, b| _mm512_mask_blend_ps(m, b, a),
    // Twice the table: the fourth bit is of no matter.
    |table, a| _mm512_permutexvar_epi32(a, _mm512_broadcast_i64x4(table)));

macro_rules! few {
    ($v:ty, $e:ty, $mask:ty: $load:ident $store:ident $loaded:ident $stored:ident) => {
        /// The first `n` lanes, zeros in the others.
        ///
        /// # Safety
        /// `n ≤ N` numbers may be read; the processor has AVX-512.
        #[inline(always)]
        unsafe fn $loaded(p: *const $e, n: usize) -> $v {
            // SAFETY: the caller's promise; lanes that are masked out are not read.
            unsafe { $load(((1_u32 << n) - 1) as $mask, p) }
        }
        /// The first `n` lanes to memory.
        ///
        /// # Safety
        /// As above, written.
        #[inline(always)]
        unsafe fn $stored(p: *mut $e, n: usize, x: $v) {
            // SAFETY: as above.
            unsafe { $store(p, ((1_u32 << n) - 1) as $mask, x) }
        }
    };
}
few!(__m512, f32, __mmask16: _mm512_maskz_loadu_ps _mm512_mask_storeu_ps few_loaded_ps few_stored_ps);
few!(__m512d, f64, __mmask8: _mm512_maskz_loadu_pd _mm512_mask_storeu_pd few_loaded_pd few_stored_pd);

/// The last `n` lanes, in the first ones.
///
/// # Safety
/// `n ≤ 16`; the processor has AVX-512.
#[inline(always)]
unsafe fn last_ps(x: __m512, n: usize) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe { _mm512_maskz_compress_ps((((1_u32 << n) - 1) << (16 - n)) as __mmask16, x) }
}

/// # Safety
/// The processor has AVX-512.
#[inline(always)]
unsafe fn transpose_16x16(r: &mut [__m512; MAX_LANES]) {
    // SAFETY: the caller's promise.
    unsafe {
        // Quarters of four columns each: within them pairs of rows, then fours.
        let mut fours = [_mm512_setzero_ps(); 16];
        for i in (0..16).step_by(4) {
            let (a, b) = (_mm512_unpacklo_ps(r[i], r[i + 1]), _mm512_unpackhi_ps(r[i], r[i + 1]));
            let (c, d) = (_mm512_unpacklo_ps(r[i + 2], r[i + 3]), _mm512_unpackhi_ps(r[i + 2], r[i + 3]));
            fours[i] = _mm512_shuffle_ps::<0x44>(a, c);
            fours[i + 1] = _mm512_shuffle_ps::<0xee>(a, c);
            fours[i + 2] = _mm512_shuffle_ps::<0x44>(b, d);
            fours[i + 3] = _mm512_shuffle_ps::<0xee>(b, d);
        }
        // Column `j` of each quarter, of four rows in each of four vectors: a square of quarters, transposed.
        for j in 0..4 {
            let (a, b) = (fours[j], fours[j + 4]);
            let (c, d) = (fours[j + 8], fours[j + 12]);
            let (ab, cd) = (_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0x44>(c, d));
            r[j] = _mm512_shuffle_f32x4::<0x88>(ab, cd);
            r[j + 4] = _mm512_shuffle_f32x4::<0xdd>(ab, cd);
            let (ab, cd) = (_mm512_shuffle_f32x4::<0xee>(a, b), _mm512_shuffle_f32x4::<0xee>(c, d));
            r[j + 8] = _mm512_shuffle_f32x4::<0x88>(ab, cd);
            r[j + 12] = _mm512_shuffle_f32x4::<0xdd>(ab, cd);
        }
    }
}

/// # Safety
/// The processor has AVX-512, for which the caller is compiled.
#[inline(always)]
unsafe fn sum_16(x: __m512) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { sum_8(_mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x))) }
}

/// # Safety
/// As [`sum_16`].
#[inline(always)]
unsafe fn largest_16(x: __m512) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { largest_8(_mm256_max_ps(_mm512_extractf32x8_ps::<1>(x), _mm512_castps512_ps256(x))) }
}

/// The first `n` of sixteen halves of words, and zeros.
///
/// # Safety
/// `n ≤ 16` of them may be read; the processor has AVX-512.
#[inline(always)]
unsafe fn few_halves(p: *const i16, n: usize) -> __m256i {
    // SAFETY: the caller's promise; lanes that are masked out are not read.
    unsafe { _mm256_maskz_loadu_epi16(((1_u32 << n) - 1) as __mmask16, p) }
}

impl Convert<f16> for __m512 {
    #[inline(always)]
    unsafe fn load_widen(p: *const f16) -> Self {
        // SAFETY: sixteen numbers may be read (the caller's promise); the processor has AVX-512.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_widen_partial(p: *const f16, n: usize) -> Self {
        // SAFETY: as above, `n` numbers.
        unsafe { _mm512_cvtph_ps(few_halves(p.cast(), n)) }
    }
    #[inline(always)]
    unsafe fn store_narrow(self, p: *mut f16) {
        // SAFETY: as above, written.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<NEAREST>(self)) }
    }
    #[inline(always)]
    fn narrow_pair(self, high: Self) -> Self {
        // SAFETY: the processor has AVX-512.
        unsafe {
            let low = _mm512_cvtepu16_epi32(_mm512_cvtps_ph::<NEAREST>(self));
            let high = _mm512_cvtepu16_epi32(_mm512_cvtps_ph::<NEAREST>(high));
            _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32::<16>(high)))
        }
    }
}

impl Convert<bf16> for __m512 {
    #[inline(always)]
    unsafe fn load_widen(p: *const bf16) -> Self {
        // SAFETY: sixteen numbers may be read (the caller's promise); the processor has AVX-512.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn load_widen_partial(p: *const bf16, n: usize) -> Self {
        // SAFETY: as above, `n` numbers.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(few_halves(p.cast(), n));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn store_narrow(self, p: *mut bf16) {
        // SAFETY: as above, written.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(nearest_bf16(self))) }
    }
    #[inline(always)]
    fn narrow_pair(self, high: Self) -> Self {
        // SAFETY: the processor has AVX-512.
        unsafe {
            let (low, high) = (nearest_bf16(self), nearest_bf16(high));
            _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32::<16>(high)))
        }
    }
}

/// The bits of the nearest bf16, in the lower half of each lane: as in `x86`. The instruction for it flushes
/// subnormal numbers to zero, which no other tier does.
///
/// # Safety
/// The processor has AVX-512.
#[inline(always)]
unsafe fn nearest_bf16(x: __m512) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = _mm512_castps_si512(x);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
        _mm512_srli_epi32::<16>(_mm512_mask_blend_epi32(nan, rounded, quiet))
    }
}

/// Sixteen sums in f32, or in operands the bits of sixteen pairs of bf16. `fma` adds the products of both,
/// the second one first, each rounded to f32. Subnormal operands and sums count as zero: so the instruction
/// is defined.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Pairs(__m512);

impl Simd for Pairs {
    type E = f32;
    const N: usize = <__m512 as Simd>::N;
    const MR: usize = <__m512 as Simd>::MR;

    #[inline(always)]
    fn zero() -> Self {
        Pairs(Simd::zero())
    }
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Pairs(Simd::splat(x))
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's promise.
        Pairs(unsafe { Simd::load(p) })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { self.0.store(p) }
    }
    #[inline(always)]
    unsafe fn load_partial(p: *const f32, n: usize) -> Self {
        // SAFETY: the caller's promise.
        Pairs(unsafe { Simd::load_partial(p, n) })
    }
    #[inline(always)]
    unsafe fn store_partial(self, p: *mut f32, n: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.0.store_partial(p, n) }
    }
    #[inline(always)]
    fn last(self, n: usize) -> Self {
        Pairs(self.0.last(n))
    }
    #[inline(always)]
    fn zip(self, x: Self) -> [Self; 2] {
        // SAFETY: callers are compiled for AVX-512, which the processor was found to have.
        unsafe {
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
            [low, high].map(|from| Pairs(_mm512_permutex2var_ps(self.0, from, x.0)))
        }
    }
    #[inline(always)]
    fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: callers are compiled for the instruction, which the processor was found to have; any bits
        // are operands.
        unsafe {
            let (a, b) =
                (std::mem::transmute::<__m512, __m512bh>(a.0), std::mem::transmute::<__m512, __m512bh>(b.0));
            Pairs(_mm512_dpbf16_ps(self.0, a, b))
        }
    }
    #[inline(always)]
    fn add(self, x: Self) -> Self {
        Pairs(self.0.add(x.0))
    }
    #[inline(always)]
    fn transpose(rows: &mut [Self; MAX_LANES]) {
        // SAFETY: a `Pairs` is such a vector; the processor has AVX-512.
        unsafe { transpose_16x16(&mut *(&raw mut *rows).cast()) }
    }
}

impl Pack<bf16> for Pairs {
    const K_GROUP: usize = 2;

    #[inline(always)]
    unsafe fn rows(x: Mat<bf16>, i: usize, p: usize) -> Self {
        // SAFETY: sixteen numbers of each of two columns (the caller's promise).
        unsafe {
            let low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.at(i, 2 * p).ptr.cast()));
            let high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.at(i, 2 * p + 1).ptr.cast()));
            Pairs(_mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32::<16>(high))))
        }
    }
    #[inline(always)]
    unsafe fn rows_tail(x: Mat<bf16>, i: usize, p: usize) -> Self {
        // SAFETY: sixteen numbers of a column (the caller's promise).
        unsafe {
            let low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.at(i, 2 * p).ptr.cast()));
            Pairs(_mm512_castsi512_ps(low))
        }
    }
    #[inline(always)]
    unsafe fn k_groups(x: Mat<bf16>, i: usize, p: usize) -> Self {
        // SAFETY: thirty-two numbers of a row (the caller's promise).
        Pairs(unsafe { Simd::load(x.at(i, 2 * p).ptr.cast()) })
    }
    #[inline(always)]
    unsafe fn k_groups_partial(x: Mat<bf16>, i: usize, p: usize, n: usize) -> Self {
        // SAFETY: twice as many numbers of a row (the caller's promise).
        Pairs(unsafe { Simd::load_partial(x.at(i, 2 * p).ptr.cast(), n) })
    }
    #[inline(always)]
    unsafe fn single(x: Mat<bf16>, i: usize, p: usize, k: usize) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { portable_bf16::Pairs::single(x, i, p, k) }
    }
    #[inline(always)]
    fn merge(self, next: Self, late: bool, next_late: bool) -> Self {
        // SAFETY: callers are compiled for AVX-512, which the processor was found to have.
        unsafe {
            let [first, second] = [self, next].map(|x| _mm512_castps_si512(x.0));
            let first = if late { _mm512_srli_epi32::<16>(first) } else { first };
            let second = if next_late { second } else { _mm512_slli_epi32::<16>(second) };
            Pairs(_mm512_castsi512_ps(_mm512_mask_blend_epi16(0xaaaa_aaaa, first, second)))
        }
    }
}
