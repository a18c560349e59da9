//! Vectors that pack operands of products, element by element or in VNNI-2 groups.

use super::{Convert, Simd};
use crate::element::Float;
use crate::matrix::Mat;

/// The form in which operands are packed for products. A k-group has the size of one accumulator: one widened
/// element, or [`Pack::K_GROUP`] elements along `k` as dot product instructions read them (VNNI-2 for bf16).
pub(crate) trait Pack<T: Float<Wide = Self::E>>: Simd {
    /// Elements along `k` in a k-group.
    const K_GROUP: usize;

    /// k-group `p` of `N` rows from row `i` on, which are contiguous.
    ///
    /// # Safety
    /// These elements may be read.
    unsafe fn rows(x: Mat<T>, i: usize, p: usize) -> Self;
    /// The same of a k-group that has only its first element.
    ///
    /// # Safety
    /// These elements may be read.
    unsafe fn rows_tail(x: Mat<T>, i: usize, p: usize) -> Self;
    /// `N` k-groups of row `i` from k-group `p` on, whose columns are contiguous.
    ///
    /// # Safety
    /// These elements may be read.
    unsafe fn k_groups(x: Mat<T>, i: usize, p: usize) -> Self;
    /// The first `n ≤ N` of these k-groups, and zeros.
    ///
    /// # Safety
    /// As [`Pack::k_groups`], of these k-groups.
    unsafe fn k_groups_partial(x: Mat<T>, i: usize, p: usize, n: usize) -> Self;
    /// k-group `p` of row `i` of a matrix of `k` columns; elements after the last column are zeros.
    ///
    /// # Safety
    /// The first of its elements may be read, and the others that are in the matrix.
    unsafe fn single(x: Mat<T>, i: usize, p: usize, k: usize) -> Self::E;
    /// Recombines VNNI-2 groups. The first element of each result is the second (`late`) or first element of
    /// `self`. Its second one is the second (`next_late`) or first element of `next`.
    #[inline(always)]
    fn merge(self, _next: Self, _late: bool, _next_late: bool) -> Self {
        self
    }
}

impl<T: Float<Wide = Self::E>, L: Convert<T>> Pack<T> for L {
    const K_GROUP: usize = 1;

    #[inline(always)]
    unsafe fn rows(x: Mat<T>, i: usize, p: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { L::load_widen(x.at(i, p).ptr) }
    }
    #[inline(always)]
    unsafe fn rows_tail(x: Mat<T>, i: usize, p: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { L::rows(x, i, p) }
    }
    #[inline(always)]
    unsafe fn k_groups(x: Mat<T>, i: usize, p: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { L::load_widen(x.at(i, p).ptr) }
    }
    #[inline(always)]
    unsafe fn k_groups_partial(x: Mat<T>, i: usize, p: usize, n: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { L::load_widen_partial(x.at(i, p).ptr, n) }
    }
    #[inline(always)]
    unsafe fn single(x: Mat<T>, i: usize, p: usize, _: usize) -> Self::E {
        // SAFETY: the caller's promise.
        unsafe { *x.at(i, p).ptr }.widen()
    }
}
