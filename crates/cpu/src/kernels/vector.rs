//! Vectors that kernels compute rows on between their products, one type for each instruction set. What is
//! here for an instruction set may be called only by functions compiled for it, into which it is inlined:
//! those that [`run`] chooses.

// Loops go by index over arrays: what the compiler is sure to turn into vectors.
#![allow(clippy::needless_range_loop)]

use crate::element::{self, Wide};
use crate::rows::interpret::functions::bf16_bits;
#[cfg(target_arch = "aarch64")]
use crate::simd::neon::Eight;
use crate::simd::{Convert, Native, Simd, SimdF32};
use crate::tier::{Loop, Tier};
use half::bf16;
use headwater_core::expr::elementary;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m512};
use std::marker::PhantomData;

/// Lanes of sums and maxima, which make a group. The same in every tier, so that all give the same bits.
pub const LANES: usize = 16;

/// A vector of numbers of a group.
pub trait Vector: Copy {
    type E: Wide;
    /// Vectors in a group.
    const PARTS: usize;

    /// All lanes `x`.
    fn splat(x: Self::E) -> Self;
    /// Numbers of the lanes of part `i`, from 0 to [`LANES`].
    fn numbers(i: usize) -> Self;
    /// Part `i` of a group.
    fn load(group: &[Self::E; LANES], i: usize) -> Self;
    /// Becomes part `i` of a group.
    fn store(self, group: &mut [Self::E; LANES], i: usize);
    fn add(self, x: Self) -> Self;
    fn sub(self, x: Self) -> Self;
    fn mul(self, x: Self) -> Self;
    /// Lane-wise maximum; that of `x` where either is NaN.
    fn larger(self, x: Self) -> Self;
    /// Lanes of `yes` where its own are less than those of `x`, elsewhere of `no`.
    fn less(self, x: Self, yes: Self, no: Self) -> Self;
    /// [`Wide::exp_nonpos`].
    fn exp_nonpos(self) -> Self;
    /// [`Wide::tanh`].
    fn tanh(self) -> Self;
    /// [`Wide::sigmoid`].
    fn sigmoid(self) -> Self;
    /// Sum of the lanes of a group, in the order of [`element::total`].
    fn total(group: [Self; LANES]) -> Self::E;
    /// The largest lane of a group; its lanes are numbers.
    fn largest(group: [Self; LANES]) -> Self::E;

    /// Rounds these numbers to bf16 as part `i` of a group. May flush subnormals, which products flush
    /// anyway.
    #[inline(always)]
    fn round(self, group: &mut [u16; LANES], i: usize) {
        let numbers = self.array(i);
        let part = LANES / Self::PARTS;
        for j in i * part..(i + 1) * part {
            group[j] = bf16_bits(numbers[j].to_f64() as f32);
        }
    }

    /// The same of pairs: numbers of this one in the lower halves, of `x` in the upper ones.
    #[inline(always)]
    fn round_pairs(self, x: Self, group: &mut [u32; LANES], i: usize) {
        let (low, high) = (self.array(i), x.array(i));
        let part = LANES / Self::PARTS;
        for j in i * part..(i + 1) * part {
            let [low, high] = [low[j], high[j]].map(|x| bf16_bits(x.to_f64() as f32) as u32);
            group[j] = low | high << 16;
        }
    }

    /// A group with this part `i`.
    #[inline(always)]
    fn array(self, i: usize) -> [Self::E; LANES] {
        let mut group = [Self::E::ZERO; LANES];
        self.store(&mut group, i);
        group
    }
}

/// A group as an array: what the compiler makes of it.
#[derive(Clone, Copy)]
pub struct Plain<E>([E; LANES]);

impl<E: Wide> Vector for Plain<E> {
    type E = E;
    const PARTS: usize = 1;

    #[inline(always)]
    fn splat(x: E) -> Self {
        Plain([x; LANES])
    }
    #[inline(always)]
    fn numbers(_: usize) -> Self {
        Plain(std::array::from_fn(|j| E::from_f64(j as f64)))
    }
    #[inline(always)]
    fn load(group: &[E; LANES], _: usize) -> Self {
        Plain(*group)
    }
    #[inline(always)]
    fn store(self, group: &mut [E; LANES], _: usize) {
        *group = self.0;
    }
    #[inline(always)]
    fn add(self, x: Self) -> Self {
        Plain(std::array::from_fn(|j| self.0[j] + x.0[j]))
    }
    #[inline(always)]
    fn sub(self, x: Self) -> Self {
        Plain(std::array::from_fn(|j| self.0[j] - x.0[j]))
    }
    #[inline(always)]
    fn mul(self, x: Self) -> Self {
        Plain(std::array::from_fn(|j| self.0[j] * x.0[j]))
    }
    #[inline(always)]
    fn larger(self, x: Self) -> Self {
        x.less(self, self, x)
    }
    #[inline(always)]
    fn less(self, x: Self, yes: Self, no: Self) -> Self {
        Plain(std::array::from_fn(|j| if self.0[j] < x.0[j] { yes.0[j] } else { no.0[j] }))
    }
    #[inline(always)]
    fn exp_nonpos(self) -> Self {
        Plain(std::array::from_fn(|j| self.0[j].exp_nonpos()))
    }
    #[inline(always)]
    fn tanh(self) -> Self {
        Plain(std::array::from_fn(|j| self.0[j].tanh()))
    }
    #[inline(always)]
    fn sigmoid(self) -> Self {
        Plain(std::array::from_fn(|j| self.0[j].sigmoid()))
    }
    #[inline(always)]
    fn total(group: [Self; LANES]) -> E {
        element::total(group[0].0, LANES)
    }
    #[inline(always)]
    fn largest(group: [Self; LANES]) -> E {
        let mut lanes = group[0].0;
        let mut n = LANES;
        while n > 1 {
            n /= 2;
            for j in 0..n {
                lanes[j] = if lanes[j + n] > lanes[j] { lanes[j + n] } else { lanes[j] };
            }
        }
        lanes[0]
    }
}

/// Groups of bf16, as vectors become them.
trait Rounds<V> {
    /// # Safety
    /// As many numbers as the vector has may be written.
    unsafe fn round(x: V, to: *mut u16);
    /// Numbers of `low` in the lower halves, of `high` in the upper ones.
    ///
    /// # Safety
    /// As [`Rounds::round`], of pairs.
    unsafe fn round_pairs(low: V, high: V, to: *mut u32);
}

/// Rounded as everywhere.
#[derive(Clone, Copy)]
pub struct Nearest;

impl<V: Simd<E = f32> + Convert<bf16>> Rounds<V> for Nearest {
    #[inline(always)]
    unsafe fn round(x: V, to: *mut u16) {
        // SAFETY: the caller's promise; a bf16 is its bits.
        unsafe { Convert::<bf16>::store_narrow(x, to.cast()) }
    }
    #[inline(always)]
    unsafe fn round_pairs(low: V, high: V, to: *mut u32) {
        // SAFETY: the caller's promise.
        unsafe { Convert::<bf16>::narrow_pair(low, high).store(to.cast()) }
    }
}

/// Part of a group in a vector of an instruction set, `S`, and a way to round it.
pub struct Of<S, R = Nearest>(S, PhantomData<R>);

impl<S, R> Of<S, R> {
    #[inline(always)]
    fn new(x: S) -> Self {
        Of(x, PhantomData)
    }
}

impl<S: Copy, R> Clone for Of<S, R> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<S: Copy, R> Copy for Of<S, R> {}

impl<S: SimdF32, R: Rounds<S>> Vector for Of<S, R> {
    type E = f32;
    const PARTS: usize = LANES / S::N;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        Of::new(S::splat(x))
    }
    #[inline(always)]
    fn numbers(i: usize) -> Self {
        const NUMBERS: [f32; LANES] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
        Self::load(&NUMBERS, i)
    }
    #[inline(always)]
    fn load(group: &[f32; LANES], i: usize) -> Self {
        let part = LANES / Self::PARTS;
        // SAFETY: a part of the group; callers are compiled for the instruction set (module documentation).
        Of::new(unsafe { S::load(group[i * part..(i + 1) * part].as_ptr()) })
    }
    #[inline(always)]
    fn store(self, group: &mut [f32; LANES], i: usize) {
        let part = LANES / Self::PARTS;
        // SAFETY: as above.
        unsafe { self.0.store(group[i * part..(i + 1) * part].as_mut_ptr()) }
    }
    #[inline(always)]
    fn add(self, x: Self) -> Self {
        Of::new(self.0.add(x.0))
    }
    #[inline(always)]
    fn sub(self, x: Self) -> Self {
        Of::new(self.0.sub(x.0))
    }
    #[inline(always)]
    fn mul(self, x: Self) -> Self {
        Of::new(self.0.mul(x.0))
    }
    #[inline(always)]
    fn larger(self, x: Self) -> Self {
        Of::new(self.0.max(x.0))
    }
    #[inline(always)]
    fn less(self, x: Self, yes: Self, no: Self) -> Self {
        Of::new(S::select(self.0.lt(x.0), yes.0, no.0))
    }
    #[inline(always)]
    fn exp_nonpos(self) -> Self {
        Of::new(elementary::exp_nonpos(&mut Native::default(), self.0))
    }
    #[inline(always)]
    fn tanh(self) -> Self {
        Of::new(elementary::tanh(&mut Native::default(), self.0))
    }
    #[inline(always)]
    fn sigmoid(self) -> Self {
        Of::new(elementary::sigmoid(&mut Native::default(), self.0))
    }
    #[inline(always)]
    fn total(mut group: [Self; LANES]) -> f32 {
        let mut n = Self::PARTS;
        while n > 1 {
            n /= 2;
            for i in 0..n {
                group[i] = group[i].add(group[i + n]);
            }
        }
        group[0].0.reduce_sum()
    }
    #[inline(always)]
    fn largest(mut group: [Self; LANES]) -> f32 {
        let mut n = Self::PARTS;
        while n > 1 {
            n /= 2;
            for i in 0..n {
                group[i] = group[i + n].larger(group[i]);
            }
        }
        group[0].0.reduce_max()
    }
    #[inline(always)]
    fn round(self, group: &mut [u16; LANES], i: usize) {
        let part = LANES / Self::PARTS;
        // SAFETY: a part of the group.
        unsafe { R::round(self.0, group[i * part..(i + 1) * part].as_mut_ptr()) }
    }
    #[inline(always)]
    fn round_pairs(self, x: Self, group: &mut [u32; LANES], i: usize) {
        let part = LANES / Self::PARTS;
        // SAFETY: as above.
        unsafe { R::round_pairs(self.0, x.0, group[i * part..(i + 1) * part].as_mut_ptr()) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// Rounded to bf16 by the instruction for it.
    #[derive(Clone, Copy)]
    pub struct ByInstruction;

    impl super::Rounds<__m512> for ByInstruction {
        #[inline(always)]
        unsafe fn round(x: __m512, to: *mut u16) {
            // SAFETY: callers are compiled for the instruction, which the processor was found to have; the
            // caller's promise.
            unsafe {
                let bits = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x));
                _mm256_storeu_si256(to.cast(), bits);
            }
        }

        #[inline(always)]
        unsafe fn round_pairs(low: __m512, high: __m512, to: *mut u32) {
            const IN_TURNS: [u16; 32] = {
                let (mut turns, mut i) = ([0; 32], 0);
                while i < 16 {
                    (turns[2 * i], turns[2 * i + 1]) = (i as u16, 16 + i as u16);
                    i += 1;
                }
                turns
            };
            // SAFETY: as above.
            unsafe {
                let bits = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
                let turns = _mm512_loadu_si512(IN_TURNS.as_ptr().cast());
                _mm512_storeu_si512(to.cast(), _mm512_permutexvar_epi16(turns, bits));
            }
        }
    }
}

/// A type with vectors, for each tier.
pub trait Vectors: Wide {
    #[cfg(target_arch = "aarch64")]
    type Neon: Vector<E = Self>;
    #[cfg(target_arch = "x86_64")]
    type Avx2: Vector<E = Self>;
    #[cfg(target_arch = "x86_64")]
    type Avx512: Vector<E = Self>;
    #[cfg(target_arch = "x86_64")]
    type Avx512Bf16: Vector<E = Self>;
}

impl Vectors for f32 {
    #[cfg(target_arch = "aarch64")]
    type Neon = Of<Eight>;
    #[cfg(target_arch = "x86_64")]
    type Avx2 = Of<__m256>;
    #[cfg(target_arch = "x86_64")]
    type Avx512 = Of<__m512>;
    #[cfg(target_arch = "x86_64")]
    type Avx512Bf16 = Of<__m512, x86::ByInstruction>;
}
impl Vectors for f64 {
    #[cfg(target_arch = "aarch64")]
    type Neon = Plain<f64>;
    #[cfg(target_arch = "x86_64")]
    type Avx2 = Plain<f64>;
    #[cfg(target_arch = "x86_64")]
    type Avx512 = Plain<f64>;
    #[cfg(target_arch = "x86_64")]
    type Avx512Bf16 = Plain<f64>;
}

/// A loop over rows, on any vectors.
pub trait Rows<E> {
    /// Its result.
    type Out;
    /// Runs it. To be marked `#[inline(always)]`, as all that it calls.
    fn run<V: Vector<E = E>>(self) -> Self::Out;
}

/// A loop on certain vectors.
struct On<V, R>(R, PhantomData<V>);

impl<V: Vector, R: Rows<V::E>> Loop for On<V, R> {
    type Out = R::Out;

    #[inline(always)]
    fn run(self) -> R::Out {
        self.0.run::<V>()
    }
}

/// Runs a loop on the vectors of a tier, which the processor must have.
#[inline]
pub fn run<E: Vectors, R: Rows<E>>(tier: Tier, rows: R) -> R::Out {
    #[cfg(target_arch = "x86_64")]
    match tier {
        Tier::Tiles | Tier::Pairs | Tier::Portable => {}
        // SAFETY: devices take only tiers that the processor has.
        Tier::Avx2 => return unsafe { crate::tier::avx2(On::<E::Avx2, R>(rows, PhantomData)) },
        // SAFETY: as above.
        Tier::Avx512 => return unsafe { crate::tier::avx512(On::<E::Avx512, R>(rows, PhantomData)) },
        Tier::Avx512Bf16 | Tier::Amx => {
            // SAFETY: as above.
            return unsafe { crate::tier::avx512bf16(On::<E::Avx512Bf16, R>(rows, PhantomData)) };
        }
    }
    #[cfg(target_arch = "aarch64")]
    if tier >= Tier::Neon {
        return On::<E::Neon, R>(rows, PhantomData).run();
    }
    let _ = tier;
    On::<Plain<E>, R>(rows, PhantomData).run()
}
