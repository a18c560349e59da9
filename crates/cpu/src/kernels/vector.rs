//! Vectors that kernels compute rows on between their products, one type for each instruction set. What is
//! here for an instruction set may be called only by functions compiled for it, into which it is inlined: those
//! that [`run`] chooses.

// Loops go by index over arrays: what the compiler is sure to turn into vectors.
#![allow(clippy::needless_range_loop)]

use crate::element::{self, Wide};
use crate::rows::real::bf16_bits;
use crate::tier::{Loop, Tier};
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
    /// Its lanes where they are greater than those of `x`, which has the others.
    fn larger(self, x: Self) -> Self;
    /// Lanes of `yes` where its own are less than those of `x`, elsewhere of `no`.
    fn less(self, x: Self, yes: Self, no: Self) -> Self;
    /// [`Wide::exp_nonpos`].
    fn exp_nonpos(self) -> Self;
    /// [`Wide::ln`].
    fn ln(self) -> Self;
    /// [`Wide::tanh`].
    fn tanh(self) -> Self;
    /// [`Wide::sigmoid`].
    fn sigmoid(self) -> Self;
    /// Sum of the lanes of a group, in the order of [`element::total`].
    fn total(group: [Self; LANES]) -> Self::E;
    /// The largest lane of a group; its lanes are numbers.
    fn largest(group: [Self; LANES]) -> Self::E;

    /// Part `i` of a group of bf16, whose bits these numbers of 32 bits become. Subnormal ones may become 0:
    /// as operands of products they are that anyway.
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
    fn ln(self) -> Self {
        Plain(std::array::from_fn(|j| self.0[j].ln()))
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

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LANES, Vector};
    use crate::rows::math::{Lanes, vector};
    use crate::rows::vectors::{Avx2, Avx512};
    use std::arch::x86_64::*;

    /// Vectors of AVX2.
    #[derive(Clone, Copy)]
    pub struct Of256(__m256);
    /// Vectors of AVX-512.
    #[derive(Clone, Copy)]
    pub struct Of512(__m512);
    /// The same, rounded to bf16 by the instruction for it.
    #[derive(Clone, Copy)]
    pub struct Rounding(__m512);

    macro_rules! vectors {
        ($v:ident $lanes:ident $parts:literal $load:ident $store:ident $total:expr, $largest:expr; $($more:item)*) => {
            impl Vector for $v {
                type E = f32;
                const PARTS: usize = $parts;

                #[inline(always)]
                fn splat(x: f32) -> Self {
                    $v($lanes.num(x))
                }
                #[inline(always)]
                fn numbers(i: usize) -> Self {
                    const NUMBERS: [f32; LANES] =
                        [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
                    Self::load(&NUMBERS, i)
                }
                #[inline(always)]
                fn load(group: &[f32; LANES], i: usize) -> Self {
                    // SAFETY: for all intrinsics here: callers are compiled for the instruction set (module
                    // documentation), which the processor was found to have. A part of the group.
                    $v(unsafe { $load(group[i * (LANES / $parts)..(i + 1) * (LANES / $parts)].as_ptr()) })
                }
                #[inline(always)]
                fn store(self, group: &mut [f32; LANES], i: usize) {
                    // SAFETY: as above.
                    unsafe {
                        $store(group[i * (LANES / $parts)..(i + 1) * (LANES / $parts)].as_mut_ptr(), self.0)
                    }
                }
                #[inline(always)]
                fn add(self, x: Self) -> Self {
                    $v($lanes.add(self.0, x.0))
                }
                #[inline(always)]
                fn sub(self, x: Self) -> Self {
                    $v($lanes.sub(self.0, x.0))
                }
                #[inline(always)]
                fn mul(self, x: Self) -> Self {
                    $v($lanes.mul(self.0, x.0))
                }
                #[inline(always)]
                fn larger(self, x: Self) -> Self {
                    $v($lanes.max(self.0, x.0))
                }
                #[inline(always)]
                fn less(self, x: Self, yes: Self, no: Self) -> Self {
                    let less = $lanes.lt(self.0, x.0);
                    $v($lanes.select(less, yes.0, no.0))
                }
                #[inline(always)]
                fn exp_nonpos(self) -> Self {
                    $v(vector::exp_nonpos(&mut $lanes, self.0))
                }
                #[inline(always)]
                fn ln(self) -> Self {
                    $v(vector::log(&mut $lanes, self.0))
                }
                #[inline(always)]
                fn tanh(self) -> Self {
                    $v(vector::tanh(&mut $lanes, self.0))
                }
                #[inline(always)]
                fn sigmoid(self) -> Self {
                    $v(vector::sigmoid(&mut $lanes, self.0))
                }
                #[inline(always)]
                fn total(group: [Self; LANES]) -> f32 {
                    // SAFETY: as above.
                    unsafe { $total(group) }
                }
                #[inline(always)]
                fn largest(group: [Self; LANES]) -> f32 {
                    // SAFETY: as above.
                    unsafe { $largest(group) }
                }
                $($more)*
            }
        };
    }

    /// # Safety
    /// The processor has AVX2, for which the caller is compiled.
    #[inline(always)]
    unsafe fn total(x: __m256) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps::<1>(x, x)))
        }
    }

    /// # Safety
    /// As [`total`].
    #[inline(always)]
    unsafe fn largest(x: __m256) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            let x = _mm_max_ps(_mm256_extractf128_ps::<1>(x), _mm256_castps256_ps128(x));
            let x = _mm_max_ps(_mm_movehl_ps(x, x), x);
            _mm_cvtss_f32(_mm_max_ss(_mm_shuffle_ps::<1>(x, x), x))
        }
    }

    /// # Safety
    /// The processor has AVX-512, for which the caller is compiled.
    #[inline(always)]
    unsafe fn total_16(x: __m512) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { total(_mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x))) }
    }

    /// # Safety
    /// As [`total_16`].
    #[inline(always)]
    unsafe fn largest_16(x: __m512) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { largest(_mm256_max_ps(_mm512_extractf32x8_ps::<1>(x), _mm512_castps512_ps256(x))) }
    }

    vectors!(Of256 Avx2 2 _mm256_loadu_ps _mm256_storeu_ps
        |g: [Self; LANES]| total(_mm256_add_ps(g[0].0, g[1].0)),
        |g: [Self; LANES]| largest(_mm256_max_ps(g[1].0, g[0].0)););
    vectors!(Of512 Avx512 1 _mm512_loadu_ps _mm512_storeu_ps
        |g: [Self; LANES]| total_16(g[0].0), |g: [Self; LANES]| largest_16(g[0].0););
    vectors!(Rounding Avx512 1 _mm512_loadu_ps _mm512_storeu_ps
        |g: [Self; LANES]| total_16(g[0].0), |g: [Self; LANES]| largest_16(g[0].0);

    #[inline(always)]
    fn round(self, group: &mut [u16; LANES], _: usize) {
        // SAFETY: as above; a group has these bits.
        unsafe {
            let bits = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(self.0));
            _mm256_storeu_si256(group.as_mut_ptr().cast(), bits);
        }
    }

    #[inline(always)]
    fn round_pairs(self, x: Self, group: &mut [u32; LANES], _: usize) {
        const IN_TURNS: [u16; 32] = {
            let (mut turns, mut i) = ([0; 32], 0);
            while i < 16 {
                (turns[2 * i], turns[2 * i + 1]) = (i as u16, 16 + i as u16);
                i += 1;
            }
            turns
        };
        // SAFETY: as above; a group has these bits.
        unsafe {
            let bits = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(x.0, self.0));
            let turns = _mm512_loadu_si512(IN_TURNS.as_ptr().cast());
            _mm512_storeu_si512(group.as_mut_ptr().cast(), _mm512_permutexvar_epi16(turns, bits));
        }
    });
}

/// A type with vectors.
pub trait Vectors: Wide {
    type Avx2: Vector<E = Self>;
    type Avx512: Vector<E = Self>;
    type Avx512Bf16: Vector<E = Self>;
}

#[cfg(target_arch = "x86_64")]
impl Vectors for f32 {
    type Avx2 = x86::Of256;
    type Avx512 = x86::Of512;
    type Avx512Bf16 = x86::Rounding;
}
#[cfg(not(target_arch = "x86_64"))]
impl Vectors for f32 {
    type Avx2 = Plain<f32>;
    type Avx512 = Plain<f32>;
    type Avx512Bf16 = Plain<f32>;
}
impl Vectors for f64 {
    type Avx2 = Plain<f64>;
    type Avx512 = Plain<f64>;
    type Avx512Bf16 = Plain<f64>;
}

/// A loop over rows, on any vectors.
pub trait Rows<E> {
    /// What it gives.
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
        Tier::Pairs | Tier::Portable => {}
        // SAFETY: devices take only tiers that the processor has.
        Tier::Avx2 => return unsafe { crate::tier::avx2(On::<E::Avx2, R>(rows, PhantomData)) },
        // SAFETY: as above.
        Tier::Avx512 => return unsafe { crate::tier::avx512(On::<E::Avx512, R>(rows, PhantomData)) },
        Tier::Avx512Bf16 => {
            // SAFETY: as above.
            return unsafe { crate::tier::avx512bf16(On::<E::Avx512Bf16, R>(rows, PhantomData)) };
        }
    }
    let _ = tier;
    On::<Plain<E>, R>(rows, PhantomData).run()
}
