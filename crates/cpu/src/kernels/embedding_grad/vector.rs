//! The loops over columns: rows added up, sums rounded and stored. Portable, and on vectors of AVX2 and NEON;
//! all give the same bits, because every element is computed alone by the same IEEE operations.

use crate::element::{Float, Wide};
use crate::prefetch::prefetch_l1;
#[cfg(target_arch = "aarch64")]
use crate::simd::neon::Eight;
use crate::tier::Tier;
use half::{bf16, f16};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__m256;

/// The way sums become elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finish<W> {
    /// Sums are divided by this.
    pub divisor: Option<W>,
    /// And multiplied by this.
    pub factor: Option<W>,
    /// Finite sums too large for the result are the largest number it has, not infinite.
    pub saturate: bool,
    /// Uses non-temporal stores.
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
    /// Stores zeros, with non-temporal stores if `stream`.
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
                #[cfg(target_arch = "aarch64")]
                if tier >= Tier::Neon {
                    return (Table(vectors::loops::<Eight, $t>()), Table(vectors::loops::<Eight, f32>()));
                }
                #[cfg(target_arch = "x86_64")]
                if tier >= Tier::Avx2 {
                    return (Table(vectors::loops::<__m256, $t>()), Table(vectors::loops::<__m256, f32>()));
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

/// Prefetches `bytes` bytes.
#[inline(always)]
pub(super) fn prefetch(ptr: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(64) {
        prefetch_l1(ptr.wrapping_add(at));
    }
}

/// A fence (`sfence`): makes non-temporal stores visible before the thread signals completion.
#[inline(always)]
pub(super) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

/// A type whose elements vectors of f32 are read from.
trait Element: Float<Wide = f32> {
    /// The smallest magnitude that becomes infinite: midway between the largest number and the next power of
    /// two.
    const LIMIT: f32;
    const MAX: f32;
}

impl Element for f32 {
    const LIMIT: f32 = f32::INFINITY;
    const MAX: f32 = f32::MAX;
}
impl Element for f16 {
    const LIMIT: f32 = 65520.0;
    const MAX: f32 = 65504.0;
}
impl Element for bf16 {
    const LIMIT: f32 = f32::from_bits(0x7F7F_8000);
    const MAX: f32 = f32::from_bits(0x7F7F_0000);
}

/// The loops on the vectors of the lowest tier that has some, which all higher ones have as well.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod vectors {
    use super::{Class, Element, Finish, Loops};
    use crate::simd::{Convert, MAX_LANES, Native, Simd, SimdF32};
    use headwater_core::expr::elementary::{Ops, abs};

    pub(super) fn loops<V, T: Element>() -> Loops<T>
    where
        V: SimdF32 + Convert<T>,
    {
        Loops { add: add::<V, T>, finish: finish::<V, T>, zero: zero::<T> }
    }

    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c,bmi2"))]
    unsafe fn add<V, T: Element>(rows: &[*const T], fresh: bool, sums: *mut f32, n: usize)
    where
        V: Simd<E = f32> + Convert<T>,
    {
        // Columns of one block are kept in registers while the rows pass by.
        const BLOCK: usize = 4;
        // SAFETY: the contract of `Loops`: all accesses are below `n`.
        unsafe {
            let mut i = 0;
            while i + V::N * BLOCK <= n {
                let mut s = [V::zero(); BLOCK];
                if !fresh {
                    for (k, s) in s.iter_mut().enumerate() {
                        *s = V::load(sums.add(i + V::N * k));
                    }
                }
                for &row in rows {
                    for (k, s) in s.iter_mut().enumerate() {
                        *s = s.add(<V as Convert<T>>::load_widen(row.add(i + V::N * k)));
                    }
                }
                for (k, s) in s.iter().enumerate() {
                    s.store(sums.add(i + V::N * k));
                }
                i += V::N * BLOCK;
            }
            while i + V::N <= n {
                let mut s = if fresh { V::zero() } else { V::load(sums.add(i)) };
                for &row in rows {
                    s = s.add(<V as Convert<T>>::load_widen(row.add(i)));
                }
                s.store(sums.add(i));
                i += V::N;
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

    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c,bmi2"))]
    unsafe fn finish<V, T: Element>(how: &Finish<f32>, sums: *const f32, out: *mut T, n: usize) -> bool
    where
        V: SimdF32 + Convert<T>,
    {
        let width = V::N;
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
            while i < n && !(out as usize + i * size_of::<T>()).is_multiple_of(width * size_of::<T>()) {
                one(i);
                i += 1;
            }
        }
        let mut l = Native::<V>::default();
        let (divisor, factor) = (l.num(how.divisor.unwrap_or(1.0)), l.num(how.factor.unwrap_or(1.0)));
        let (limit, infinity, max) = (l.num(T::LIMIT), l.num(f32::INFINITY), l.num(T::MAX));
        let (sign, none, some) = (l.bits(1 << 31), l.num(0.0), l.num(1.0));
        // Simd of 1 where some number did not fit.
        let mut bad = none;
        while i + width <= n {
            // SAFETY: the contract of `Loops`, and the address is aligned where it must be.
            unsafe {
                let mut s = V::load(sums.add(i));
                if how.divisor.is_some() {
                    s = l.div(s, divisor);
                }
                if how.factor.is_some() {
                    s = l.mul(s, factor);
                }
                let size = abs(&mut l, s);
                let good = l.lt(size, limit);
                bad = l.select(good, bad, some);
                if how.saturate {
                    let finite = l.lt(size, infinity);
                    let (size, sign) = (l.min(size, max), l.and(s, sign));
                    let signed = l.or(size, sign);
                    s = l.select(finite, signed, s);
                }
                match how.stream {
                    true => Convert::<T>::stream_narrow(s, out.add(i)),
                    false => Convert::<T>::store_narrow(s, out.add(i)),
                }
            }
            i += width;
        }
        (i..n).for_each(one);
        let mut lanes = [0.0; MAX_LANES];
        // SAFETY: the buffer holds any vector.
        unsafe { bad.store(lanes.as_mut_ptr()) };
        fits & (lanes == [0.0; MAX_LANES])
    }

    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c,bmi2"))]
    unsafe fn zero<T: Element>(out: *mut T, n: usize, stream: bool) {
        // SAFETY: the contract of `Loops`; streamed stores are aligned.
        unsafe {
            let (mut i, out) = (0, out.cast::<u8>());
            let bytes = n * size_of::<T>();
            #[cfg(target_arch = "x86_64")]
            if stream {
                use std::arch::x86_64::{_mm256_setzero_si256, _mm256_stream_si256};
                i = out.align_offset(32).min(bytes);
                out.write_bytes(0, i);
                while i + 32 <= bytes {
                    _mm256_stream_si256(out.add(i).cast(), _mm256_setzero_si256());
                    i += 32;
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = (&mut i, stream);
            out.add(i).write_bytes(0, bytes - i);
        }
    }
}
