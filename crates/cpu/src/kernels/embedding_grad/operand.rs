//! Operands of any strides: rows of numbers by position, and indices of any integer type.

use super::super::grid::{Grid, MAX_RANK};
use crate::element::Element;
use crate::view::{View, reach};
use headwater_core::diagnostic::Result;
use headwater_core::{DType, ensure, fail};
use std::marker::PhantomData;

/// Elements at the positions of a shape, in row-major order. If the shape's last dimension was split off,
/// each position has as many as that had, with stride `step`.
///
/// Invariant: every element is in memory that is readable for `'a` and that nobody writes.
#[derive(Debug)]
pub struct Strided<'a, T> {
    ptr: *const T,
    positions: usize,
    grid: Grid,
    /// Distance of neighbouring positions, where all have the same.
    even: Option<isize>,
    /// Elements at a position, and their distance.
    width: usize,
    step: isize,
    life: PhantomData<&'a T>,
}

// SAFETY: elements are only read, which `Element`s allow from any thread.
unsafe impl<T: Element> Send for Strided<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Strided<'_, T> {}

impl<'a, T: Element> Strided<'a, T> {
    /// The rows of `data`: of its elements at `offset + Σ index·strides`, those along the last dimension form
    /// a row.
    ///
    /// # Errors
    /// `Shape` if there is no dimension, strides are not as many, or an element is outside of `data`;
    /// `Unsupported` beyond 12 dimensions.
    pub fn rows(data: &'a [T], offset: usize, sizes: &[usize], strides: &[isize]) -> Result<Self> {
        ensure!(!sizes.is_empty(), Shape, "rows have at least one dimension");
        Self::check(data, offset, sizes, strides)?;
        // SAFETY: the elements were checked to be in `data`, which is borrowed.
        Ok(unsafe { Self::new(data.as_ptr().wrapping_add(offset), sizes, strides, true) })
    }

    /// Single elements, as [`Strided::rows`].
    ///
    /// # Errors
    /// As there; no dimension is one element.
    pub fn elements(data: &'a [T], offset: usize, sizes: &[usize], strides: &[isize]) -> Result<Self> {
        Self::check(data, offset, sizes, strides)?;
        // SAFETY: as above.
        Ok(unsafe { Self::new(data.as_ptr().wrapping_add(offset), sizes, strides, false) })
    }

    fn check(data: &[T], offset: usize, sizes: &[usize], strides: &[isize]) -> Result<()> {
        let rank = (sizes.len(), strides.len());
        ensure!(rank.0 == rank.1, Shape, "{} sizes, {} strides", rank.0, rank.1);
        ensure!(rank.0 <= MAX_RANK, Unsupported, "{} dimensions, at most {MAX_RANK}", rank.0);
        let numel = sizes.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let inside = match (numel, reach(sizes, strides)) {
            (Some(0), _) => true,
            (Some(_), Some((lo, hi))) => {
                let end = offset.checked_add_signed(hi);
                offset.checked_add_signed(lo).is_some() && end.is_some_and(|end| end < data.len())
            }
            _ => false,
        };
        ensure!(
            inside,
            Shape,
            "sizes {sizes:?}, strides {strides:?} and offset {offset} reach outside of {} elements",
            data.len()
        );
        Ok(())
    }

    /// # Safety
    /// The type's invariant holds for the elements from `ptr`.
    unsafe fn new(ptr: *const T, sizes: &[usize], strides: &[isize], rows: bool) -> Self {
        let lead = sizes.len() - rows as usize;
        let (width, step) = if rows { (sizes[lead], strides[lead]) } else { (1, 1) };
        let mut even = Some((1usize, 0isize));
        // From the last dimension on: each must continue where the one after it ends.
        for (&n, &s) in sizes[..lead].iter().zip(&strides[..lead]).rev().filter(|(n, _)| **n != 1) {
            even = match even {
                Some((1, _)) => Some((n, s)),
                Some((count, stride)) if s == stride * count as isize => Some((count * n, stride)),
                _ => None,
            };
        }
        Strided {
            ptr,
            positions: sizes[..lead].iter().product(),
            grid: Grid::new(&sizes[..lead], &strides[..lead]),
            even: even.map(|(_, stride)| stride),
            width,
            step,
            life: PhantomData,
        }
    }

    /// The rows (or elements) of a view.
    pub(super) fn of_view(view: &'a View, rows: bool) -> Self {
        // SAFETY: every index of a view is readable while it is borrowed, and nobody writes there.
        unsafe { Self::new(view.ptr::<T>(), view.shape(), view.strides(), rows) }
    }

    /// Number of positions.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Elements at each.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Distance of the elements at a position.
    pub(super) fn step(&self) -> isize {
        self.step
    }

    /// The first element at a position.
    #[inline]
    pub(super) fn at(&self, position: usize) -> *const T {
        let offset = match self.even {
            Some(stride) => position as isize * stride,
            None => self.grid.at(position),
        };
        self.ptr.wrapping_offset(offset)
    }
}

impl<T: Element + Into<i64>> Strided<'_, T> {
    /// Calls `f` with each element of `range` in order.
    #[inline(always)]
    fn each(&self, range: std::ops::Range<usize>, mut f: impl FnMut(i64)) {
        match self.even {
            // SAFETY: positions of the range exist.
            Some(_) => range.for_each(|at| f(unsafe { *self.at(at) }.into())),
            None => {
                for offset in self.grid.from(range.start).take(range.len()) {
                    // SAFETY: as above; an offset below zero wraps around.
                    f(unsafe { *self.ptr.wrapping_add(offset) }.into());
                }
            }
        }
    }
}

/// Indices of any integer type.
#[derive(Debug)]
pub enum StridedIndices<'a> {
    /// Indices of u8.
    U8(Strided<'a, u8>),
    /// Indices of i8.
    I8(Strided<'a, i8>),
    /// Indices of i16.
    I16(Strided<'a, i16>),
    /// Indices of i32.
    I32(Strided<'a, i32>),
    /// Indices of i64.
    I64(Strided<'a, i64>),
}

/// Evaluates `$body` with `$v` bound to the indices, whatever their type.
macro_rules! of_any {
    ($indices:expr, $v:ident => $body:expr) => {
        match $indices {
            StridedIndices::U8($v) => $body,
            StridedIndices::I8($v) => $body,
            StridedIndices::I16($v) => $body,
            StridedIndices::I32($v) => $body,
            StridedIndices::I64($v) => $body,
        }
    };
}

impl<'a> StridedIndices<'a> {
    /// Indices of a view.
    ///
    /// # Errors
    /// `DType` if it holds no integers.
    pub(super) fn of_view(view: &'a View) -> Result<Self> {
        Ok(match view.dtype() {
            DType::U8 => StridedIndices::U8(Strided::of_view(view, false)),
            DType::I8 => StridedIndices::I8(Strided::of_view(view, false)),
            DType::I16 => StridedIndices::I16(Strided::of_view(view, false)),
            DType::I32 => StridedIndices::I32(Strided::of_view(view, false)),
            DType::I64 => StridedIndices::I64(Strided::of_view(view, false)),
            other => return Err(fail!(DType, "indices of {other}")),
        })
    }

    /// Number of positions.
    pub fn positions(&self) -> usize {
        of_any!(self, v => v.positions())
    }

    /// The index at a position.
    ///
    /// # Panics
    /// If there is no such position.
    pub fn get(&self, at: usize) -> i64 {
        let mut found = 0;
        assert!(at < self.positions(), "there is no position {at}");
        of_any!(self, v => v.each(at..at + 1, |i| found = i));
        found
    }

    /// Calls `f` with the indices of some positions in order.
    ///
    /// # Panics
    /// If they are not all there.
    #[inline(always)]
    pub(super) fn each(&self, range: std::ops::Range<usize>, f: impl FnMut(i64)) {
        assert!(range.end <= self.positions(), "there are no positions {range:?}");
        of_any!(self, v => v.each(range, f));
    }
}
