//! The loops over columns: rows added up, sums rounded and stored. Portable, and for AVX2 with F16C; both
//! give the same bits, because every element is computed alone by the same IEEE operations.

use crate::element::{Float, Wide};
use crate::tier::Tier;
use half::{bf16, f16};

/// How sums become elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finish<W> {
    /// Sums are divided by this.
    pub divisor: Option<W>,
    /// And multiplied by this.
    pub factor: Option<W>,
    /// Finite sums too large for the result are the largest number it has, not infinite.
    pub saturate: bool,
    /// Stored past the caches.
    pub stream: bool,
}

/// The class of a finished sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    Fits,
    Overflows,
    NotFinite,
}

impl<W: Wide> Finish<W> {
    /// The element that a sum becomes.
    #[inline(always)]
    pub fn one<T: Float<Wide = W>>(&self, sum: W) -> (T, Class) {
        let sum = self.divisor.map_or(sum, |d| sum / d);
        let sum = self.factor.map_or(sum, |f| sum * f);
        let y = T::narrow(sum);
        if y.widen().to_f64().is_finite() {
            (y, Class::Fits)
        } else if !sum.to_f64().is_finite() {
            (y, Class::NotFinite)
        } else if self.saturate {
            (T::from_f64(largest::<T>().copysign(sum.to_f64())), Class::Overflows)
        } else {
            (y, Class::Overflows)
        }
    }
}

/// The largest finite number of a type.
fn largest<T: Float>() -> f64 {
    use headwater_core::DType::{BF16, F16, F32, F64};
    [F64, F32, F16, BF16].into_iter().find(|d| T::holds(*d)).map_or(f64::MAX, |d| d.max_value())
}

/// The loops for a type. Each pointer must be valid for `n` elements, read or written; nothing that is
/// written overlaps anything else.
#[derive(Debug)]
pub(super) struct Loops<T: Float> {
    /// `sums[i] += Σ rows[r][i]`, rows in order; from 0 if `fresh`.
    pub add: unsafe fn(rows: &[*const T], fresh: bool, sums: *mut T::Wide, n: usize),
    /// Rounds sums and stores them; whether all of them fit.
    pub finish: unsafe fn(how: &Finish<T::Wide>, sums: *const T::Wide, out: *mut T, n: usize) -> bool,
    /// Stores zeros, past the caches if `stream`.
    pub zero: unsafe fn(out: *mut T, n: usize, stream: bool),
}

impl<T: Float> Clone for Loops<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: Float> Copy for Loops<T> {}

/// An element type that can be summed.
pub trait Summed: Float {
    /// The loops of a tier, which this processor must have: for elements, and for their sums.
    #[doc(hidden)]
    fn loops(tier: Tier) -> (Table<Self>, Table<Self::Wide>);
}

/// The loops of a type, opaque outside.
#[doc(hidden)]
#[derive(Debug)]
pub struct Table<T: Float>(pub(super) Loops<T>);

macro_rules! summed {
    ($($t:ty),*) => { $(
        impl Summed for $t {
            fn loops(tier: Tier) -> (Table<$t>, Table<f32>) {
                #[cfg(target_arch = "x86_64")]
                if tier >= Tier::Avx2 {
                    return (Table(avx2::loops()), Table(avx2::loops()));
                }
                let _ = tier;
                (Table(portable()), Table(portable()))
            }
        }
    )* };
}
summed!(f32, f16, bf16);

impl Summed for f64 {
    fn loops(_: Tier) -> (Table<f64>, Table<f64>) {
        (Table(portable()), Table(portable()))
    }
}

fn portable<T: Float>() -> Loops<T> {
    unsafe fn add<T: Float>(rows: &[*const T], fresh: bool, sums: *mut T::Wide, n: usize) {
        // SAFETY: the contract of `Loops`.
        let sums = unsafe { std::slice::from_raw_parts_mut(sums, n) };
        if fresh {
            sums.fill(T::Wide::ZERO);
        }
        for &row in rows {
            // SAFETY: as above.
            let row = unsafe { std::slice::from_raw_parts(row, n) };
            sums.iter_mut().zip(row).for_each(|(s, x)| *s += x.widen());
        }
    }
    unsafe fn finish<T: Float>(how: &Finish<T::Wide>, sums: *const T::Wide, out: *mut T, n: usize) -> bool {
        let mut fits = true;
        for i in 0..n {
            // SAFETY: the contract of `Loops`.
            unsafe {
                let (y, class) = how.one(*sums.add(i));
                *out.add(i) = y;
                fits &= class == Class::Fits;
            }
        }
        fits
    }
    unsafe fn zero<T: Float>(out: *mut T, n: usize, _: bool) {
        // SAFETY: the contract of `Loops`; zero bytes are the number 0.
        unsafe { out.write_bytes(0, n) }
    }
    Loops { add: add::<T>, finish: finish::<T>, zero: zero::<T> }
}

/// Asks for `bytes` bytes to be brought near.
#[inline(always)]
pub(super) fn prefetch(ptr: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..bytes).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which may name any address; SSE is there on every x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(ptr.wrapping_add(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (ptr, bytes);
}

/// Makes what was streamed visible to whoever is told next that this thread is done.
#[inline(always)]
pub(super) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is there on every x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Class, Finish, Loops};
    use crate::element::Float;
    use half::{bf16, f16};
    use std::arch::x86_64::*;

    /// Eight elements as f32. The functions need AVX2 and F16C, and may only be inlined where these are
    /// enabled.
    pub(super) trait Lanes: Float<Wide = f32> {
        /// The smallest magnitude that becomes infinite: midway between the largest number and the next power
        /// of two.
        const LIMIT: f32;
        const MAX: f32;
        /// Alignment of eight elements that are streamed.
        const ALIGN: usize = 8 * size_of::<Self>();
        /// # Safety
        /// The features; eight elements at `p`.
        unsafe fn load(p: *const Self) -> __m256;
        /// Rounded to nearest, ties to even.
        ///
        /// # Safety
        /// The features; room for eight elements at `p`, aligned to `ALIGN` if `stream`.
        unsafe fn store(p: *mut Self, x: __m256, stream: bool);
    }

    impl Lanes for f32 {
        const LIMIT: f32 = f32::INFINITY;
        const MAX: f32 = f32::MAX;
        #[inline(always)]
        unsafe fn load(p: *const f32) -> __m256 {
            // SAFETY: the trait's contract.
            unsafe { _mm256_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn store(p: *mut f32, x: __m256, stream: bool) {
            // SAFETY: the trait's contract.
            unsafe { if stream { _mm256_stream_ps(p, x) } else { _mm256_storeu_ps(p, x) } }
        }
    }

    /// # Safety
    /// As [`Lanes::store`].
    #[inline(always)]
    unsafe fn store_half(p: *mut __m128i, x: __m128i, stream: bool) {
        // SAFETY: the caller's promise.
        unsafe { if stream { _mm_stream_si128(p, x) } else { _mm_storeu_si128(p, x) } }
    }

    impl Lanes for f16 {
        const LIMIT: f32 = 65520.0;
        const MAX: f32 = 65504.0;
        #[inline(always)]
        unsafe fn load(p: *const f16) -> __m256 {
            // SAFETY: the trait's contract.
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
        }
        #[inline(always)]
        unsafe fn store(p: *mut f16, x: __m256, stream: bool) {
            // SAFETY: the trait's contract.
            unsafe { store_half(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x), stream) }
        }
    }

    impl Lanes for bf16 {
        const LIMIT: f32 = f32::from_bits(0x7F7F_8000);
        const MAX: f32 = f32::from_bits(0x7F7F_0000);
        #[inline(always)]
        unsafe fn load(p: *const bf16) -> __m256 {
            // SAFETY: the trait's contract.
            unsafe {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            }
        }
        #[inline(always)]
        unsafe fn store(p: *mut bf16, x: __m256, stream: bool) {
            // SAFETY: the trait's contract.
            unsafe {
                let bits = _mm256_castps_si256(x);
                // Half a unit less one, and one more where the kept part is odd.
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
                // A NaN keeps its upper bits and becomes quiet.
                let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
                let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
                let kept = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(up, quiet, nan));
                let packed =
                    _mm_packus_epi32(_mm256_castsi256_si128(kept), _mm256_extracti128_si256::<1>(kept));
                store_half(p.cast(), packed, stream)
            }
        }
    }

    pub(super) fn loops<T: Lanes>() -> Loops<T> {
        Loops { add: add::<T>, finish: finish::<T>, zero: zero::<T> }
    }

    #[target_feature(enable = "avx2,fma,f16c,bmi2")]
    unsafe fn add<T: Lanes>(rows: &[*const T], fresh: bool, sums: *mut f32, n: usize) {
        // Columns of one block are kept in registers while the rows pass by.
        const BLOCK: usize = 4;
        // SAFETY: the contract of `Loops`: all accesses are below `n`.
        unsafe {
            let mut i = 0;
            while i + 8 * BLOCK <= n {
                let mut s = [_mm256_setzero_ps(); BLOCK];
                if !fresh {
                    for (k, s) in s.iter_mut().enumerate() {
                        *s = _mm256_loadu_ps(sums.add(i + 8 * k));
                    }
                }
                for &row in rows {
                    for (k, s) in s.iter_mut().enumerate() {
                        *s = _mm256_add_ps(*s, T::load(row.add(i + 8 * k)));
                    }
                }
                for (k, s) in s.iter().enumerate() {
                    _mm256_storeu_ps(sums.add(i + 8 * k), *s);
                }
                i += 8 * BLOCK;
            }
            while i + 8 <= n {
                let mut s = if fresh { _mm256_setzero_ps() } else { _mm256_loadu_ps(sums.add(i)) };
                for &row in rows {
                    s = _mm256_add_ps(s, T::load(row.add(i)));
                }
                _mm256_storeu_ps(sums.add(i), s);
                i += 8;
            }
            while i < n {
                let mut s = if fresh { 0.0 } else { *sums.add(i) };
                for &row in rows {
                    s += (*row.add(i)).widen();
                }
                *sums.add(i) = s;
                i += 1;
            }
        }
    }

    #[target_feature(enable = "avx2,fma,f16c,bmi2")]
    unsafe fn finish<T: Lanes>(how: &Finish<f32>, sums: *const f32, out: *mut T, n: usize) -> bool {
        let mut fits = true;
        let mut one = |i: usize| {
            // SAFETY: `i < n`, by the contract of `Loops`.
            unsafe {
                let (y, class) = how.one::<T>(*sums.add(i));
                *out.add(i) = y;
                fits &= class == Class::Fits;
            }
        };
        let mut i = 0;
        if how.stream {
            // Up to an aligned address.
            while i < n && !(out as usize + i * size_of::<T>()).is_multiple_of(T::ALIGN) {
                one(i);
                i += 1;
            }
        }
        let (divisor, factor) =
            (_mm256_set1_ps(how.divisor.unwrap_or(1.0)), _mm256_set1_ps(how.factor.unwrap_or(1.0)));
        let magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(i32::MAX));
        let (limit, infinity, max) =
            (_mm256_set1_ps(T::LIMIT), _mm256_set1_ps(f32::INFINITY), _mm256_set1_ps(T::MAX));
        let mut good = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
        while i + 8 <= n {
            // SAFETY: the contract of `Loops`, and the address is aligned where it must be.
            unsafe {
                let mut s = _mm256_loadu_ps(sums.add(i));
                if how.divisor.is_some() {
                    s = _mm256_div_ps(s, divisor);
                }
                if how.factor.is_some() {
                    s = _mm256_mul_ps(s, factor);
                }
                let size = _mm256_and_ps(s, magnitude);
                good = _mm256_and_ps(good, _mm256_cmp_ps::<_CMP_LT_OQ>(size, limit));
                if how.saturate {
                    let finite = _mm256_cmp_ps::<_CMP_LT_OQ>(size, infinity);
                    let signed = _mm256_or_ps(_mm256_min_ps(size, max), _mm256_andnot_ps(magnitude, s));
                    s = _mm256_blendv_ps(s, signed, finite);
                }
                T::store(out.add(i), s, how.stream);
            }
            i += 8;
        }
        (i..n).for_each(one);
        fits & (_mm256_movemask_ps(good) == 0xFF)
    }

    #[target_feature(enable = "avx2,fma,f16c,bmi2")]
    unsafe fn zero<T: Lanes>(out: *mut T, n: usize, stream: bool) {
        // SAFETY: the contract of `Loops`; streamed stores are aligned.
        unsafe {
            let (mut i, out) = (0, out.cast::<u8>());
            let bytes = n * size_of::<T>();
            if stream {
                i = out.align_offset(32).min(bytes);
                out.write_bytes(0, i);
                while i + 32 <= bytes {
                    _mm256_stream_si256(out.add(i).cast(), _mm256_setzero_si256());
                    i += 32;
                }
            }
            out.add(i).write_bytes(0, bytes - i);
        }
    }
}
