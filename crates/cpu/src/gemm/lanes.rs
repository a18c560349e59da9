//! Vectors of numbers, as the kernels of matrix products need them: one implementation per instruction set
//! and type. The kernels are written once, generic over these; `tiers` compiles them for each instruction
//! set.
#![allow(clippy::needless_range_loop)]

use super::{Mat, turn};
use crate::element::{Float, Wide, halved, total};

/// Most lanes of any vector: the size of buffers for one.
pub(crate) const MAX_LANES: usize = 16;
/// Most elements in a place ([`Packs::TAKEN`]).
pub(super) const MAX_TAKEN: usize = 2;
/// Places of `k` at a time: fewer instructions besides the multiplications, which share the processor's front
/// end.
pub(super) const PLACES: usize = 4;

/// A vector of `N` numbers, and the block of the output that its instruction set holds in registers.
pub(crate) trait Lanes: Copy + 'static {
    /// Type of a lane.
    type E: Wide;
    /// Lanes.
    const N: usize;
    /// Rows of the block held in registers; it is two vectors wide.
    const ROWS: usize;

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
    /// The first `n` of `N` numbers from memory, zeros in the other lanes.
    ///
    /// # Safety
    /// `n ≤ N` numbers may be read.
    #[inline(always)]
    unsafe fn load_few(p: *const Self::E, n: usize) -> Self {
        let mut lanes = [Self::E::ZERO; MAX_LANES];
        for i in 0..n {
            // SAFETY: the caller's promise.
            lanes[i] = unsafe { *p.add(i) };
        }
        // SAFETY: the buffer holds any vector.
        unsafe { Self::load(lanes.as_ptr()) }
    }
    /// The first `n` lanes to memory, at any alignment.
    ///
    /// # Safety
    /// `n ≤ N` numbers may be written.
    #[inline(always)]
    unsafe fn store_few(self, p: *mut Self::E, n: usize) {
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

    /// Its lanes where all bits of `mask` are set; 0 where none is.
    #[inline(always)]
    fn kept(self, mask: Self) -> Self {
        let (mut lanes, mut masks) = ([Self::E::ZERO; MAX_LANES], [Self::E::ZERO; MAX_LANES]);
        // SAFETY: each buffer holds any vector.
        unsafe {
            self.store(lanes.as_mut_ptr());
            mask.store(masks.as_mut_ptr());
        }
        for i in 0..Self::N {
            // All bits set are no number.
            lanes[i] = if masks[i].is_nan() { lanes[i] } else { Self::E::ZERO };
        }
        // SAFETY: as above.
        unsafe { Self::load(lanes.as_ptr()) }
    }

    /// True if products take single lanes of vectors. Numbers of a left operand that are neighbours are then
    /// read as vectors, by [`Lanes::outer`] and [`Lanes::inner`], and not each into all lanes of one.
    const BY_LANE: bool = false;

    /// `sums[i][j] += a[i] · b[j]`, as [`Lanes::fma`] rounds.
    ///
    /// # Safety
    /// `R` numbers may be read at `a`.
    #[inline(always)]
    unsafe fn outer<const R: usize, const C: usize>(
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

    /// [`PLACES`] places of `k`: `sums[i][j] += a[i][p] · b[p · brs + j · N ..]`, one place after the other.
    ///
    /// # Safety
    /// `PLACES` numbers may be read at each of `a`, and `C` vectors at each row of `b`.
    #[inline(always)]
    unsafe fn inner<const R: usize, const C: usize>(
        sums: &mut [[Self; C]; R],
        a: [*const Self::E; R],
        b: *const Self::E,
        brs: isize,
    ) {
        for p in 0..PLACES {
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
    fn sum(self) -> Self::E {
        let mut lanes = [Self::E::ZERO; MAX_LANES];
        // SAFETY: the buffer holds any vector.
        unsafe { self.store(lanes.as_mut_ptr()) };
        total(lanes, Self::N)
    }

    /// The largest lane, where all are numbers: of the halves, as [`Lanes::sum`] takes them, the upper one
    /// where it is greater.
    #[inline(always)]
    fn largest(self) -> Self::E {
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
pub(crate) trait Converts<T: Float<Wide = Self::E>>: Lanes {
    /// `N` numbers, widened.
    ///
    /// # Safety
    /// They may be read.
    #[inline(always)]
    unsafe fn read(p: *const T) -> Self {
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
    unsafe fn read_few(p: *const T, n: usize) -> Self {
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
    fn rounded(self) -> Self {
        let mut lanes = [Self::E::ZERO; MAX_LANES];
        // SAFETY: the buffer holds any vector.
        unsafe { self.store(lanes.as_mut_ptr()) };
        for i in 0..Self::N {
            lanes[i] = T::narrow(lanes[i]).widen();
        }
        // SAFETY: as above.
        unsafe { Self::load(lanes.as_ptr()) }
    }

    /// Lanes of pairs: this number rounded to `T`, of half the width, in the lower half, that of `high` in
    /// the upper one.
    #[inline(always)]
    fn pair(self, high: Self) -> Self {
        let (mut lanes, mut upper) = ([Self::E::ZERO; MAX_LANES], [Self::E::ZERO; MAX_LANES]);
        // SAFETY: each buffer holds any vector.
        unsafe {
            self.store(lanes.as_mut_ptr());
            high.store(upper.as_mut_ptr());
        }
        for i in 0..Self::N {
            lanes[i] = turn::pair::<T>(lanes[i], upper[i]);
        }
        // SAFETY: as above.
        unsafe { Self::load(lanes.as_ptr()) }
    }

    /// As `write`, past the caches where the instruction set can.
    ///
    /// # Safety
    /// As `write`; `p` is aligned to a vector of `T`.
    #[inline(always)]
    unsafe fn stream(self, p: *mut T) {
        // SAFETY: the caller's promise.
        unsafe { self.write(p) }
    }

    /// Rounded to nearest, ties to even.
    ///
    /// # Safety
    /// `N` numbers may be written.
    #[inline(always)]
    unsafe fn write(self, p: *mut T) {
        let mut lanes = [Self::E::ZERO; MAX_LANES];
        // SAFETY: the buffer holds any vector.
        unsafe { self.store(lanes.as_mut_ptr()) };
        for i in 0..Self::N {
            // SAFETY: the caller's promise.
            unsafe { *p.add(i) = T::narrow(lanes[i]) };
        }
    }
}

/// How elements of an operand are packed for products: each widened, or pairs along `k` together in the place
/// of one, as instructions take them that sum products of pairs.
pub(crate) trait Packs<T: Float<Wide = Self::E>>: Lanes {
    /// Elements of `k` in a place.
    const TAKEN: usize;

    /// Place `p` of `N` rows from row `i` on, which are neighbours in memory.
    ///
    /// # Safety
    /// These elements may be read.
    unsafe fn across(x: Mat<T>, i: usize, p: usize) -> Self;
    /// The same of a place that has but its first element.
    ///
    /// # Safety
    /// These elements may be read.
    unsafe fn across_last(x: Mat<T>, i: usize, p: usize) -> Self;
    /// `N` places of row `i` from place `p` on, whose columns are neighbours in memory.
    ///
    /// # Safety
    /// These elements may be read.
    unsafe fn along(x: Mat<T>, i: usize, p: usize) -> Self;
    /// The first `n ≤ N` of these places, and zeros.
    ///
    /// # Safety
    /// As [`Packs::along`], of these places.
    unsafe fn along_few(x: Mat<T>, i: usize, p: usize, n: usize) -> Self;
    /// Place `p` of row `i` of a matrix of `k` columns; elements behind the last column are zeros.
    ///
    /// # Safety
    /// The first of its elements may be read, and the others that are in the matrix.
    unsafe fn one(x: Mat<T>, i: usize, p: usize, k: usize) -> Self::E;
    /// Of places of two elements: those whose first one is the second of these or, unless `late`, the first,
    /// and whose second one is so of `next`.
    #[inline(always)]
    fn joined(self, _next: Self, _late: bool, _next_late: bool) -> Self {
        self
    }
}

impl<T: Float<Wide = Self::E>, L: Converts<T>> Packs<T> for L {
    const TAKEN: usize = 1;

    #[inline(always)]
    unsafe fn across(x: Mat<T>, i: usize, p: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { L::read(x.at(i, p).ptr) }
    }
    #[inline(always)]
    unsafe fn across_last(x: Mat<T>, i: usize, p: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { L::across(x, i, p) }
    }
    #[inline(always)]
    unsafe fn along(x: Mat<T>, i: usize, p: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { L::read(x.at(i, p).ptr) }
    }
    #[inline(always)]
    unsafe fn along_few(x: Mat<T>, i: usize, p: usize, n: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { L::read_few(x.at(i, p).ptr, n) }
    }
    #[inline(always)]
    unsafe fn one(x: Mat<T>, i: usize, p: usize, _: usize) -> Self::E {
        // SAFETY: the caller's promise.
        unsafe { *x.at(i, p).ptr }.widen()
    }
}

/// Four numbers in an array: what the compiler makes of it, on any processor.
#[derive(Clone, Copy)]
pub(super) struct Array<E>([E; 4]);

impl<E: Wide> Lanes for Array<E> {
    type E = E;
    const N: usize = 4;
    const ROWS: usize = 4;

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

impl<T: Float> Converts<T> for Array<T::Wide> {}
