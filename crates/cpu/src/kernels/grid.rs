//! Strided iteration over a tensor in the order of another's elements, and tensors of indices: shared by the
//! index kernels. Nothing is allocated.

use super::Site;
use crate::view::View;
use headwater_core::diagnostic::Result;
use headwater_core::ops::index::resolve;
use headwater_core::{DType, fail};
use smallvec::SmallVec;

/// Most dimensions the index kernels take; tensors of more go to the reference.
pub const MAX_RANK: usize = 12;

/// For [`super::Kernel::takes`]: no operand has more than [`MAX_RANK`] dimensions.
pub(super) fn small_rank(site: &Site) -> bool {
    site.cx.present().chain(site.outs).all(|t| t.shape.rank() <= MAX_RANK)
}

/// Elements that a thread copies at a time.
pub(super) const GRAIN: usize = 1 << 14;

/// Offsets over a shape: element `index` is at `Σ index·strides`.
#[derive(Clone, Debug)]
pub struct Grid {
    sizes: SmallVec<[usize; MAX_RANK]>,
    strides: SmallVec<[isize; MAX_RANK]>,
}

impl Grid {
    /// A grid of at most [`MAX_RANK`] dimensions.
    pub fn new(sizes: &[usize], strides: &[isize]) -> Grid {
        // Neighbours walked as one are joined.
        let mut grid = Grid { sizes: SmallVec::new(), strides: SmallVec::new() };
        for (&n, &s) in sizes.iter().zip(strides).filter(|(n, _)| **n != 1) {
            match (grid.sizes.last_mut(), grid.strides.last_mut()) {
                (Some(size), Some(stride)) if *stride == s * n as isize => (*size, *stride) = (*size * n, s),
                _ => {
                    grid.sizes.push(n);
                    grid.strides.push(s);
                }
            }
        }
        grid
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.sizes.iter().product()
    }

    /// True if every position is at the offset of its own number.
    pub fn as_is(&self) -> bool {
        self.strides.is_empty() || self.strides[..] == [1]
    }

    /// Offsets from a row-major position on, to the end.
    pub fn from(&self, position: usize) -> GridIter<'_> {
        let mut iter =
            GridIter { grid: self, index: [0; MAX_RANK], offset: 0, left: self.numel() - position };
        let mut rest = position;
        for d in (0..self.sizes.len()).rev() {
            if iter.left > 0 {
                iter.index[d] = rest % self.sizes[d];
                rest /= self.sizes[d];
                iter.offset += iter.index[d] as isize * self.strides[d];
            }
        }
        iter
    }

    /// Offset of a row-major position.
    pub fn at(&self, position: usize) -> isize {
        self.from(position).offset
    }
}

/// See [`Grid::from`].
#[derive(Clone, Debug)]
pub struct GridIter<'a> {
    grid: &'a Grid,
    index: [usize; MAX_RANK],
    offset: isize,
    left: usize,
}

impl Iterator for GridIter<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let at = self.offset as usize;
        for d in (0..self.grid.sizes.len()).rev() {
            self.index[d] += 1;
            self.offset += self.grid.strides[d];
            if self.index[d] < self.grid.sizes[d] {
                break;
            }
            self.offset -= self.grid.strides[d] * self.grid.sizes[d] as isize;
            self.index[d] = 0;
        }
        Some(at)
    }
}

/// The elements of a contiguous integer tensor.
#[derive(Clone, Copy, Debug)]
pub enum Indices<'a> {
    /// Indices of u8.
    U8(&'a [u8]),
    /// Indices of i8.
    I8(&'a [i8]),
    /// Indices of i16.
    I16(&'a [i16]),
    /// Indices of i32.
    I32(&'a [i32]),
    /// Indices of i64.
    I64(&'a [i64]),
}

impl<'a> Indices<'a> {
    /// Indices of a view.
    ///
    /// # Errors
    /// `DType` if it holds no integers.
    pub fn of(view: &'a View) -> Result<Indices<'a>> {
        Ok(match view.dtype() {
            DType::U8 => Indices::U8(view.slice()),
            DType::I8 => Indices::I8(view.slice()),
            DType::I16 => Indices::I16(view.slice()),
            DType::I32 => Indices::I32(view.slice()),
            DType::I64 => Indices::I64(view.slice()),
            other => return Err(fail!(DType, "indices of {other}")),
        })
    }

    /// Number of indices.
    pub fn len(&self) -> usize {
        match self {
            Indices::U8(v) => v.len(),
            Indices::I8(v) => v.len(),
            Indices::I16(v) => v.len(),
            Indices::I32(v) => v.len(),
            Indices::I64(v) => v.len(),
        }
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Index at a position.
    #[inline]
    pub fn get(&self, at: usize) -> i64 {
        match self {
            Indices::U8(v) => v[at] as i64,
            Indices::I8(v) => v[at] as i64,
            Indices::I16(v) => v[at] as i64,
            Indices::I32(v) => v[at] as i64,
            Indices::I64(v) => v[at],
        }
    }

    /// Checks all of them, so that [`Indices::place`] holds for each.
    ///
    /// # Errors
    /// `Value` for the first one outside `0..limit` (or `-limit..limit` if `wrap`).
    pub fn check(&self, limit: usize, wrap: bool) -> Result<()> {
        let (low, size) = if wrap { (-(limit as i64), 2 * limit as u64) } else { (0, limit as u64) };
        // All without a branch; the first invalid one is searched for only if there is one.
        macro_rules! outside {
            ($v:expr) => {
                $v.iter().fold(false, |any, &i| any | ((i as i64).wrapping_sub(low) as u64 >= size))
            };
        }
        let outside = match self {
            Indices::U8(v) => outside!(v),
            Indices::I8(v) => outside!(v),
            Indices::I16(v) => outside!(v),
            Indices::I32(v) => outside!(v),
            Indices::I64(v) => outside!(v),
        };
        match outside {
            true => (0..self.len()).try_for_each(|at| resolve(self.get(at), at, limit, wrap).map(|_| ())),
            false => Ok(()),
        }
    }

    /// A checked index as a place.
    #[inline]
    pub fn place(&self, at: usize, limit: usize) -> usize {
        let i = self.get(at);
        (if i < 0 { i + limit as i64 } else { i }) as usize
    }
}

/// Evaluates an expression with `T` bound to the unsigned type of a dtype's size: for kernels that only move
/// bits.
#[macro_export]
macro_rules! bits_of {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype.size() {
            1 => {
                type $T = u8;
                $body
            }
            2 => {
                type $T = u16;
                $body
            }
            4 => {
                type $T = u32;
                $body
            }
            _ => {
                type $T = u64;
                $body
            }
        }
    };
}
