//! A matrix product: its operands, sizes, blocking and kernels. Which of its operands are packed, and which
//! are read where they are.

use super::blocking::Blocking;
use super::microkernel::{Microkernels, Operand};
use super::{Size, Start};
use crate::element::{Float, same};
use crate::matrix::{Mat, MatMut};

/// Micro-panels of columns up to which rows of the left operand are not packed.
const IN_PLACE: usize = 16;

/// One product of a batch.
pub(super) struct Product<T: Float, O: Float> {
    pub kernels: &'static Microkernels<T>,
    pub narrow: unsafe fn(*const T::Wide, usize, *mut O),
    pub blocking: Blocking,
    pub size: Size,
    pub a: Mat<T>,
    pub b: Mat<T>,
    pub c: MatMut<O>,
    /// A bias is widened, and padded to whole micro-panels.
    pub start: Start<T::Wide>,
}

impl<T: Operand, O: Operand<Wide = T::Wide>> Product<T, O> {
    /// The left operand from row `i` and k-group `p` on.
    pub fn left(&self, i: usize, p: usize) -> Mat<T> {
        self.a.at(i, p * self.kernels.panels.k_group)
    }

    /// The right operand from k-group `p` and column `j` on.
    pub fn right(&self, p: usize, j: usize) -> Mat<T> {
        self.b.at(p * self.kernels.panels.k_group, j)
    }

    /// Elements of `k` in `groups` k-groups from k-group `p` on.
    pub fn elements(&self, p: usize, groups: usize) -> usize {
        let k_group = self.kernels.panels.k_group;
        (groups * k_group).min(self.size.k - p * k_group)
    }

    /// True if whole micro-panels of the right operand are read in place: too few rows would repay packing.
    pub fn right_in_place(&self) -> bool {
        same::<T, T::Wide>() && self.b.cs == 1 && self.size.m <= 2 * self.kernels.mr
    }

    /// True if rows of the left operand are read in place: too few columns would repay packing. All k-groups
    /// must be whole, and each row begin where one may.
    pub fn left_in_place(&self) -> bool {
        let (k_group, bytes) = (self.kernels.panels.k_group, size_of::<T::Wide>());
        let whole = self.size.k.is_multiple_of(k_group)
            && self.a.rs % k_group as isize == 0
            && (self.a.ptr as usize).is_multiple_of(bytes);
        let fits = size_of::<T>() * k_group == bytes && self.a.cs == 1 && whole;
        fits && self.size.n <= IN_PLACE * self.kernels.nr
    }
}
