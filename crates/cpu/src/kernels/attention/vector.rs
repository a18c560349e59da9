//! Vectors that rows of scores are computed on, one type for each instruction set. What is here for an instruction set may be
//! called only by functions compiled for it, into which it is inlined: those that [`run`] chooses.

// Loops go by index over arrays: what the compiler is sure to turn into vectors.
#![allow(clippy::needless_range_loop)]

use crate::element::{self, Wide};
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
    /// Sum of the lanes of a group, in the order of [`element::total`].
    fn total(group: [Self; LANES]) -> Self::E;
    /// The largest lane of a group; its lanes are numbers.
    fn largest(group: [Self; LANES]) -> Self::E;
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

    macro_rules! vectors {
        ($v:ty, $lanes:ident, $parts:literal; $load:ident $store:ident; $total:expr, $largest:expr) => {
            impl Vector for $v {
                type E = f32;
                const PARTS: usize = $parts;

                #[inline(always)]
                fn splat(x: f32) -> Self {
                    $lanes.num(x)
                }
                #[inline(always)]
                fn numbers(i: usize) -> Self {
                    const NUMBERS: [f32; LANES] =
                        [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
                    Self::load(&NUMBERS, i)
                }
                #[inline(always)]
                fn load(group: &[f32; LANES], i: usize) -> Self {
                    // SAFETY: for all intrinsics here: callers are compiled for the instruction set (module documentation),
                    // which the processor was found to have. A part of the group.
                    unsafe { $load(group[i * (LANES / $parts)..(i + 1) * (LANES / $parts)].as_ptr()) }
                }
                #[inline(always)]
                fn store(self, group: &mut [f32; LANES], i: usize) {
                    // SAFETY: as above.
                    unsafe {
                        $store(group[i * (LANES / $parts)..(i + 1) * (LANES / $parts)].as_mut_ptr(), self)
                    }
                }
                #[inline(always)]
                fn add(self, x: Self) -> Self {
                    $lanes.add(self, x)
                }
                #[inline(always)]
                fn sub(self, x: Self) -> Self {
                    $lanes.sub(self, x)
                }
                #[inline(always)]
                fn mul(self, x: Self) -> Self {
                    $lanes.mul(self, x)
                }
                #[inline(always)]
                fn larger(self, x: Self) -> Self {
                    $lanes.max(self, x)
                }
                #[inline(always)]
                fn less(self, x: Self, yes: Self, no: Self) -> Self {
                    let less = $lanes.lt(self, x);
                    $lanes.select(less, yes, no)
                }
                #[inline(always)]
                fn exp_nonpos(self) -> Self {
                    vector::exp_nonpos(&mut $lanes, self)
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

    vectors!(__m256, Avx2, 2; _mm256_loadu_ps _mm256_storeu_ps;
        |g: [__m256; LANES]| total(_mm256_add_ps(g[0], g[1])),
        |g: [__m256; LANES]| largest(_mm256_max_ps(g[1], g[0])));
    vectors!(__m512, Avx512, 1; _mm512_loadu_ps _mm512_storeu_ps;
        |g: [__m512; LANES]| total(_mm256_add_ps(_mm512_castps512_ps256(g[0]), _mm512_extractf32x8_ps::<1>(g[0]))),
        |g: [__m512; LANES]| largest(_mm256_max_ps(_mm512_extractf32x8_ps::<1>(g[0]), _mm512_castps512_ps256(g[0]))));
}

/// A type with vectors.
pub trait Vectors: Wide {
    type Avx2: Vector<E = Self>;
    type Avx512: Vector<E = Self>;
}

#[cfg(target_arch = "x86_64")]
impl Vectors for f32 {
    type Avx2 = std::arch::x86_64::__m256;
    type Avx512 = std::arch::x86_64::__m512;
}
#[cfg(not(target_arch = "x86_64"))]
impl Vectors for f32 {
    type Avx2 = Plain<f32>;
    type Avx512 = Plain<f32>;
}
impl Vectors for f64 {
    type Avx2 = Plain<f64>;
    type Avx512 = Plain<f64>;
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
        Tier::Avx512 | Tier::Avx512Bf16 => {
            // SAFETY: as above.
            return unsafe { crate::tier::avx512(On::<E::Avx512, R>(rows, PhantomData)) };
        }
    }
    let _ = tier;
    On::<Plain<E>, R>(rows, PhantomData).run()
}
