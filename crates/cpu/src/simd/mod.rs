//! Vectors: one trait, [`Simd`], with one file for each instruction set. Kernels are written once, generic
//! over it, and compiled where the instructions are enabled; everything here is inlined into them.
//! [`Convert`] reads and writes narrower floats, [`SimdF32`] has the arithmetic of elementary functions, and
//! [`pack::Pack`] packs operands of products.
//!
//! A default method goes through memory: correct on any instruction set, and slow.
#![allow(clippy::needless_range_loop)]

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod matrix_unit;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon_bf16;
pub(crate) mod pack;
pub(crate) mod portable_bf16;

use crate::element::{Float, Wide, halved, total};
use headwater_core::expr::elementary::Ops;
use std::marker::PhantomData;

/// Most lanes of any vector: the size of buffers for one.
pub(crate) const MAX_LANES: usize = 16;
/// Most elements in a k-group ([`pack::Pack::K_GROUP`]).
pub(crate) const MAX_K_GROUP: usize = 2;
/// Steps along `k` unrolled at a time: fewer instructions besides the multiplications, which share the
/// processor's front end.
pub(crate) const K_UNROLL: usize = 4;

/// A vector of `N` numbers, and MR, the rows of the register tile for its instruction set.
pub(crate) trait Simd: Copy + 'static {
    /// Type of a lane.
    type E: Wide;
    /// Lanes per vector.
    const N: usize;
    /// MR: rows of the register tile, which is two vectors wide (NR = 2 N).
    const MR: usize;

    /// All lanes 0.
    fn zero() -> Self;
    /// All lanes `x`.
    fn splat(x: Self::E) -> Self;
    /// `N` numbers from memory, at any alignment.
    ///
    /// # Safety
    /// They may be read.
    unsafe fn load(p: *const Self::E) -> Self;
    /// To memory, at any alignment.
    ///
    /// # Safety
    /// `N` numbers may be written.
    unsafe fn store(self, p: *mut Self::E);
    /// The first `n` of `N` numbers from memory, at any alignment, zeros in the other lanes.
    ///
    /// # Safety
    /// `n ≤ N` numbers may be read.
    #[inline(always)]
    unsafe fn load_partial(p: *const Self::E, n: usize) -> Self {
        let mut lanes = [Self::E::ZERO; MAX_LANES];
        for i in 0..n {
            // SAFETY: the caller's promise.
            lanes[i] = unsafe { p.add(i).read_unaligned() };
        }
        // SAFETY: the buffer holds any vector.
        unsafe { Self::load(lanes.as_ptr()) }
    }
    /// The first `n` lanes to memory, at any alignment.
    ///
    /// # Safety
    /// `n ≤ N` numbers may be written.
    #[inline(always)]
    unsafe fn store_partial(self, p: *mut Self::E, n: usize) {
        let mut lanes = [Self::E::ZERO; MAX_LANES];
        // SAFETY: the buffer holds any vector.
        unsafe { self.store(lanes.as_mut_ptr()) };
        for i in 0..n {
            // SAFETY: the caller's promise.
            unsafe { p.add(i).write_unaligned(lanes[i]) };
        }
    }
    /// The last `n` lanes, in the first ones.
    #[inline(always)]
    fn last(self, n: usize) -> Self {
        let mut lanes = [Self::E::ZERO; 2 * MAX_LANES];
        // SAFETY: the buffer holds two of any vector.
        unsafe {
            self.store(lanes.as_mut_ptr());
            Self::load(lanes[Self::N - n..].as_ptr())
        }
    }
    /// Its lanes and those of `x` in turn.
    #[inline(always)]
    fn zip(self, x: Self) -> [Self; 2] {
        let (mut a, mut b) = ([Self::E::ZERO; MAX_LANES], [Self::E::ZERO; MAX_LANES]);
        let mut both = [Self::E::ZERO; 2 * MAX_LANES];
        // SAFETY: the buffers hold any vector, and two.
        unsafe {
            self.store(a.as_mut_ptr());
            x.store(b.as_mut_ptr());
            for i in 0..Self::N {
                (both[2 * i], both[2 * i + 1]) = (a[i], b[i]);
            }
            [Self::load(both.as_ptr()), Self::load(both[Self::N..].as_ptr())]
        }
    }
    /// `self + a · b`; rounded once where the instruction set can.
    fn fma(self, a: Self, b: Self) -> Self;
    /// `self + x`.
    fn add(self, x: Self) -> Self;

    /// The bits of both (on instruction sets): its lanes where all bits of `mask` are set, 0 where none is.
    #[inline(always)]
    fn masked(self, mask: Self) -> Self {
        let (mut lanes, mut masks) = ([Self::E::ZERO; MAX_LANES], [Self::E::ZERO; MAX_LANES]);
        // SAFETY: each buffer holds any vector.
        unsafe {
            self.store(lanes.as_mut_ptr());
            mask.store(masks.as_mut_ptr());
        }
        for i in 0..Self::N {
            // A mask of all ones is a NaN.
            lanes[i] = if masks[i].is_nan() { lanes[i] } else { Self::E::ZERO };
        }
        // SAFETY: as above.
        unsafe { Self::load(lanes.as_ptr()) }
    }

    /// True if the multiply-add takes a lane of a vector. Contiguous numbers of a left operand are then read
    /// as vectors, by [`Simd::fma_outer`] and [`Simd::fma_unrolled`], instead of broadcasting each.
    const FMA_BY_LANE: bool = false;

    /// `sums[i][j] += a[i] · b[j]`, as [`Simd::fma`] rounds.
    ///
    /// # Safety
    /// `R` numbers may be read at `a`.
    #[inline(always)]
    unsafe fn fma_outer<const R: usize, const C: usize>(
        sums: &mut [[Self; C]; R],
        a: *const Self::E,
        b: [Self; C],
    ) {
        for i in 0..R {
            // SAFETY: the caller's promise.
            let left = Self::splat(unsafe { a.add(i).read_unaligned() });
            for j in 0..C {
                sums[i][j] = sums[i][j].fma(left, b[j]);
            }
        }
    }

    /// [`K_UNROLL`] steps along `k`: `sums[i][j] += a[i][p] · b[p · brs + j · N ..]`, one step after the
    /// other.
    ///
    /// # Safety
    /// `K_UNROLL` numbers may be read at each of `a`, and `C` vectors at each row of `b`.
    #[inline(always)]
    unsafe fn fma_unrolled<const R: usize, const C: usize>(
        sums: &mut [[Self; C]; R],
        a: [*const Self::E; R],
        b: *const Self::E,
        brs: isize,
    ) {
        for p in 0..K_UNROLL {
            for i in 0..R {
                // SAFETY: the caller's promise.
                let left = Self::splat(unsafe { a[i].add(p).read_unaligned() });
                for j in 0..C {
                    // SAFETY: as above.
                    let right = unsafe { Self::load(b.offset(p as isize * brs).add(j * Self::N)) };
                    sums[i][j] = sums[i][j].fma(left, right);
                }
            }
        }
    }

    /// Sum of the lanes: the upper half is added to the lower one until one is left.
    #[inline(always)]
    fn reduce_sum(self) -> Self::E {
        let mut lanes = [Self::E::ZERO; MAX_LANES];
        // SAFETY: the buffer holds any vector.
        unsafe { self.store(lanes.as_mut_ptr()) };
        total(lanes, Self::N)
    }

    /// The largest lane, where all are numbers: of the halves, as [`Simd::reduce_sum`] takes them, the upper
    /// one where it is greater.
    #[inline(always)]
    fn reduce_max(self) -> Self::E {
        let mut lanes = [Self::E::ZERO; MAX_LANES];
        // SAFETY: the buffer holds any vector.
        unsafe { self.store(lanes.as_mut_ptr()) };
        halved(lanes, Self::N, |a, b| if b > a { b } else { a })
    }

    /// Transposes the matrix whose rows are the first `N` vectors.
    #[inline(always)]
    fn transpose(rows: &mut [Self; MAX_LANES]) {
        let mut from = [[Self::E::ZERO; MAX_LANES]; MAX_LANES];
        let mut to = from;
        for i in 0..Self::N {
            // SAFETY: each buffer holds any vector.
            unsafe { rows[i].store(from[i].as_mut_ptr()) };
            for j in 0..Self::N {
                to[j][i] = from[i][j];
            }
        }
        for i in 0..Self::N {
            // SAFETY: as above.
            rows[i] = unsafe { Self::load(to[i].as_ptr()) };
        }
    }
}

/// Vectors read from and written to memory that holds another float type.
pub(crate) trait Convert<T: Float<Wide = Self::E>>: Simd {
    /// `N` numbers, widened.
    ///
    /// # Safety
    /// They may be read.
    #[inline(always)]
    unsafe fn load_widen(p: *const T) -> Self {
        let mut lanes = [Self::E::ZERO; MAX_LANES];
        for i in 0..Self::N {
            // SAFETY: the caller's promise.
            lanes[i] = unsafe { *p.add(i) }.widen();
        }
        // SAFETY: the buffer holds any vector.
        unsafe { Self::load(lanes.as_ptr()) }
    }

    /// The first `n` of `N` numbers, widened, and zeros in the other lanes.
    ///
    /// # Safety
    /// `n ≤ N` numbers may be read.
    #[inline(always)]
    unsafe fn load_widen_partial(p: *const T, n: usize) -> Self {
        let mut lanes = [Self::E::ZERO; MAX_LANES];
        for i in 0..n {
            // SAFETY: the caller's promise.
            lanes[i] = unsafe { *p.add(i) }.widen();
        }
        // SAFETY: the buffer holds any vector.
        unsafe { Self::load(lanes.as_ptr()) }
    }

    /// Rounded to `T`.
    #[inline(always)]
    fn round_through(self) -> Self {
        let mut lanes = [Self::E::ZERO; MAX_LANES];
        // SAFETY: the buffer holds any vector.
        unsafe { self.store(lanes.as_mut_ptr()) };
        for i in 0..Self::N {
            lanes[i] = T::narrow(lanes[i]).widen();
        }
        // SAFETY: as above.
        unsafe { Self::load(lanes.as_ptr()) }
    }

    /// Packs two vectors rounded to `T`, of half the width: in each lane the low half is from `self`, the
    /// high half from `high`.
    #[inline(always)]
    fn narrow_pair(self, high: Self) -> Self {
        let (mut lanes, mut upper) = ([Self::E::ZERO; MAX_LANES], [Self::E::ZERO; MAX_LANES]);
        // SAFETY: each buffer holds any vector.
        unsafe {
            self.store(lanes.as_mut_ptr());
            high.store(upper.as_mut_ptr());
        }
        for i in 0..Self::N {
            lanes[i] = pair_bits::<T>(lanes[i], upper[i]);
        }
        // SAFETY: as above.
        unsafe { Self::load(lanes.as_ptr()) }
    }

    /// Like [`store_narrow`](Self::store_narrow), with non-temporal stores where available.
    ///
    /// # Safety
    /// As `store_narrow`; `p` is aligned to a vector of `T`.
    #[inline(always)]
    unsafe fn stream_narrow(self, p: *mut T) {
        // SAFETY: the caller's promise.
        unsafe { self.store_narrow(p) }
    }

    /// Rounded to nearest, ties to even.
    ///
    /// # Safety
    /// `N` numbers may be written.
    #[inline(always)]
    unsafe fn store_narrow(self, p: *mut T) {
        let mut lanes = [Self::E::ZERO; MAX_LANES];
        // SAFETY: the buffer holds any vector.
        unsafe { self.store(lanes.as_mut_ptr()) };
        for i in 0..Self::N {
            // SAFETY: the caller's promise.
            unsafe { *p.add(i) = T::narrow(lanes[i]) };
        }
    }
}

/// Arithmetic that elementary functions of f32 are written in ([`Ops`]), besides that of [`Simd`].
pub(crate) trait SimdF32: Simd<E = f32> {
    /// A truth value for each lane.
    type Mask: Copy;

    /// `self - x`.
    fn sub(self, x: Self) -> Self;
    /// `self · x`.
    fn mul(self, x: Self) -> Self;
    /// `self / x`.
    fn div(self, x: Self) -> Self;
    /// The larger one; `x` where neither is.
    fn max(self, x: Self) -> Self;
    /// The smaller one; `x` where neither is.
    fn min(self, x: Self) -> Self;
    /// True where `self < x`.
    fn lt(self, x: Self) -> Self::Mask;
    /// True where `self == x`.
    fn eq(self, x: Self) -> Self::Mask;
    /// True where it is not a number.
    fn is_nan(self) -> Self::Mask;
    /// Lanes of `yes` where the mask is true, of `no` elsewhere.
    fn select(mask: Self::Mask, yes: Self, no: Self) -> Self;
    /// All lanes with these bits.
    fn from_bits(x: u32) -> Self;
    /// Bits of either.
    fn or(self, x: Self) -> Self;
    /// Difference of the bits as integers, wrapping.
    fn sub_int(self, x: Self) -> Self;
    /// Bits shifted left.
    fn shift_left(self, n: u8) -> Self;
    /// Bits shifted right, with copies of the sign.
    fn shift_right(self, n: u8) -> Self;
    /// Numbers of the bits as integers, exact if they are small.
    fn int_to_float(self) -> Self;
    /// Entries of a table, each named by the three lowest bits of a lane.
    fn lookup(self, table: [u32; 8]) -> Self;
}

/// Vectors of an instruction set, as [`Ops`] of elementary functions.
pub(crate) struct Native<V>(PhantomData<V>);

impl<V> Default for Native<V> {
    #[inline(always)]
    fn default() -> Self {
        Native(PhantomData)
    }
}

impl<V: SimdF32> Ops for Native<V> {
    type V = V;
    type M = V::Mask;

    #[inline(always)]
    fn num(&mut self, x: f32) -> V {
        V::splat(x)
    }
    #[inline(always)]
    fn add(&mut self, a: V, b: V) -> V {
        a.add(b)
    }
    #[inline(always)]
    fn sub(&mut self, a: V, b: V) -> V {
        a.sub(b)
    }
    #[inline(always)]
    fn mul(&mut self, a: V, b: V) -> V {
        a.mul(b)
    }
    #[inline(always)]
    fn div(&mut self, a: V, b: V) -> V {
        a.div(b)
    }
    #[inline(always)]
    fn fma(&mut self, a: V, b: V, c: V) -> V {
        c.fma(a, b)
    }
    #[inline(always)]
    fn max(&mut self, a: V, b: V) -> V {
        a.max(b)
    }
    #[inline(always)]
    fn min(&mut self, a: V, b: V) -> V {
        a.min(b)
    }
    #[inline(always)]
    fn lt(&mut self, a: V, b: V) -> V::Mask {
        a.lt(b)
    }
    #[inline(always)]
    fn eq(&mut self, a: V, b: V) -> V::Mask {
        a.eq(b)
    }
    #[inline(always)]
    fn is_nan(&mut self, a: V) -> V::Mask {
        a.is_nan()
    }
    #[inline(always)]
    fn select(&mut self, m: V::Mask, a: V, b: V) -> V {
        V::select(m, a, b)
    }
    #[inline(always)]
    fn bits(&mut self, x: u32) -> V {
        V::from_bits(x)
    }
    #[inline(always)]
    fn and(&mut self, a: V, b: V) -> V {
        a.masked(b)
    }
    #[inline(always)]
    fn or(&mut self, a: V, b: V) -> V {
        a.or(b)
    }
    #[inline(always)]
    fn sub_int(&mut self, a: V, b: V) -> V {
        a.sub_int(b)
    }
    #[inline(always)]
    fn shift_left(&mut self, a: V, n: u8) -> V {
        a.shift_left(n)
    }
    #[inline(always)]
    fn shift_right(&mut self, a: V, n: u8) -> V {
        a.shift_right(n)
    }
    #[inline(always)]
    fn lookup(&mut self, table: [u32; 8], a: V) -> V {
        a.lookup(table)
    }
    #[inline(always)]
    fn int_to_float(&mut self, a: V) -> V {
        a.int_to_float()
    }
}

/// Four numbers in an array: what the compiler makes of it, on any processor.
#[derive(Clone, Copy)]
pub(crate) struct Array<E>([E; 4]);

impl<E: Wide> Simd for Array<E> {
    type E = E;
    const N: usize = 4;
    const MR: usize = 4;

    #[inline(always)]
    fn zero() -> Self {
        Array([E::ZERO; 4])
    }
    #[inline(always)]
    fn splat(x: E) -> Self {
        Array([x; 4])
    }
    #[inline(always)]
    unsafe fn load(p: *const E) -> Self {
        // SAFETY: the caller's promise.
        Array(unsafe { p.cast::<[E; 4]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut E) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[E; 4]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    fn fma(self, a: Self, b: Self) -> Self {
        Array(std::array::from_fn(|i| self.0[i] + a.0[i] * b.0[i]))
    }
    #[inline(always)]
    fn add(self, x: Self) -> Self {
        Array(std::array::from_fn(|i| self.0[i] + x.0[i]))
    }
}

impl<T: Float> Convert<T> for Array<T::Wide> {}

/// Keeps the compiler from hoisting loads of the next step along `k`, for which there are no registers.
#[inline(always)]
pub(crate) fn barrier() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// The bits of two numbers of half the width, the first one's lower, as one of the whole width.
#[inline(always)]
fn pair_bits<T: Float>(low: T::Wide, high: T::Wide) -> T::Wide {
    let mut bits = [T::narrow(low), T::narrow(high)];
    if cfg!(target_endian = "big") {
        bits.reverse();
    }
    bytemuck::cast(bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::{Loop, Tier};
    use headwater_core::expr::elementary::{self, scalar as one};

    const LANES: usize = 16;

    /// The functions of some numbers, each on all lanes at once.
    struct All<V>([fn(f32) -> f32; 7], [f32; LANES], PhantomData<V>);

    impl<V: SimdF32> Loop for All<V> {
        type Out = ();

        #[inline(always)]
        fn run(self) {
            let All(scalar, x, _) = self;
            let mut l = Native::<V>::default();
            for part in x.chunks_exact(V::N) {
                // SAFETY: as many lanes as the vector has; the caller is compiled for the instruction set.
                let v = unsafe { V::load(part.as_ptr()) };
                let found = [
                    elementary::exp(&mut l, v),
                    elementary::exp_nonpos(&mut l, v),
                    elementary::log(&mut l, v),
                    elementary::tanh(&mut l, v),
                    elementary::erf(&mut l, v),
                    elementary::ndtr(&mut l, v),
                    elementary::sigmoid(&mut l, v),
                ];
                for (found, scalar) in found.into_iter().zip(&scalar) {
                    let mut lanes = [0f32; LANES];
                    // SAFETY: as above.
                    unsafe { found.store(lanes.as_mut_ptr()) };
                    for (&x, got) in part.iter().zip(lanes) {
                        let want = scalar(x);
                        let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                        assert!(same, "of {x}: {got}, one at a time {want}");
                    }
                }
            }
        }
    }

    #[test]
    fn functions_of_vectors_are_those_of_numbers() {
        let scalar: [fn(f32) -> f32; 7] =
            [one::exp, one::exp_nonpos, one::log, one::tanh, one::erf, one::ndtr, one::sigmoid];
        // All exponents and signs, special numbers among them, and numbers near zero and one.
        let numbers = (0..1u32 << 16).map(|i| f32::from_bits((i << 16) | (i * 7919 % 65536)));
        let numbers: Vec<f32> = numbers.chain((0..1 << 12).map(|i| (i as f32 - 2048.0) / 20.0)).collect();
        for x in numbers.as_chunks::<LANES>().0 {
            #[cfg(target_arch = "x86_64")]
            if Tier::detect() >= Tier::Avx2 {
                Tier::Avx2.run(All::<std::arch::x86_64::__m256>(scalar, *x, PhantomData));
            }
            #[cfg(target_arch = "x86_64")]
            if Tier::detect() >= Tier::Avx512 {
                Tier::Avx512.run(All::<std::arch::x86_64::__m512>(scalar, *x, PhantomData));
            }
            #[cfg(target_arch = "aarch64")]
            Tier::Neon.run(All::<neon::Eight>(scalar, *x, PhantomData));
        }
    }
}
