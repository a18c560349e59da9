//! Shapes and layouts: pure index arithmetic, checked. Knows nothing of dtypes, graphs or memory.

use smallvec::SmallVec;
use std::fmt;
use std::ops::Deref;

/// Sizes of a tensor, outermost first; `[]` is a scalar.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(SmallVec<[usize; 5]>);

impl Shape {
    /// A shape from its sizes.
    pub fn new(dims: &[usize]) -> Self {
        Shape(SmallVec::from_slice(dims))
    }

    /// Number of elements; `usize::MAX` where the product overflows, which graph construction refuses.
    pub fn numel(&self) -> usize {
        if self.0.contains(&0) { 0 } else { self.0.iter().fold(1, |n, &d| n.saturating_mul(d)) }
    }

    /// Number of elements, or `None` if it does not fit in `isize`.
    pub fn checked_numel(&self) -> Option<usize> {
        // Zero-sized dimensions must not hide an overflow in the others: strides are computed from them.
        let n = self.0.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1)))?;
        isize::try_from(n).ok()?;
        Some(self.numel())
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The NumPy broadcast of two shapes, or `None` if they do not agree.
    pub fn broadcast(&self, other: &[usize]) -> Option<Shape> {
        let rank = self.rank().max(other.len());
        let at = |s: &[usize], i: usize| if i + s.len() >= rank { s[i + s.len() - rank] } else { 1 };
        let mut out = SmallVec::with_capacity(rank);
        for i in 0..rank {
            out.push(match (at(&self.0, i), at(other, i)) {
                (a, b) if a == b => a,
                (1, b) => b,
                (a, 1) => a,
                _ => return None,
            });
        }
        Some(Shape(out))
    }

    /// Row-major strides, in elements.
    pub fn strides(&self) -> SmallVec<[isize; 5]> {
        let mut strides: SmallVec<[isize; 5]> = SmallVec::from_elem(1, self.rank());
        for i in (1..self.rank()).rev() {
            strides[i - 1] = strides[i] * self.0[i].max(1) as isize;
        }
        strides
    }

    /// Elements before, along and after dimension `dim`, as if of shape `[before, along, after]`. A scalar
    /// has one of each.
    pub fn around(&self, dim: usize) -> (usize, usize, usize) {
        if self.0.is_empty() {
            return (1, 1, 1);
        }
        (self.0[..dim].iter().product(), self.0[dim], self.0[dim + 1..].iter().product())
    }

    /// Row-major offset of the element that each element of the wider shape `to` reads when this one is
    /// broadcast to it.
    pub fn broadcast_offsets(&self, to: &Shape) -> impl Iterator<Item = usize> + use<> {
        let (own, lead) = (self.strides(), to.rank() - self.rank());
        let stride = |d: usize| if d < lead || self.0[d - lead] == 1 { 0 } else { own[d - lead] };
        let strides = (0..to.rank()).map(stride).collect();
        Layout { shape: to.clone(), strides, offset: 0 }.offsets().into_iter().map(|o| o as usize)
    }

    /// The sizes as signed integers, as attributes carry them.
    pub fn to_ints(&self) -> Vec<i64> {
        self.0.iter().map(|&d| d as i64).collect()
    }
}

/// A dimension number that may be negative, as PyTorch counts; `None` if out of range.
/// A scalar counts as having one dimension.
pub fn wrap_dim(dim: i64, rank: usize) -> Option<usize> {
    let n = rank.max(1) as i64;
    (-n..n).contains(&dim).then(|| dim.rem_euclid(n) as usize)
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Shape::new(dims)
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Shape(dims.into())
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape::new(&dims)
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(dims: I) -> Self {
        Shape(dims.into_iter().collect())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            write!(f, "{}{d}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str("]")
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The places of a tensor's elements in a buffer, in elements: `offset + Σ index[d]·strides[d]`.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Layout {
    /// Sizes.
    pub shape: Shape,
    /// Elements to move per step along each dimension; 0 broadcasts, negative runs backwards.
    pub strides: SmallVec<[isize; 5]>,
    /// Element offset of index 0.
    pub offset: isize,
}

impl Layout {
    /// The row-major layout at offset 0.
    pub fn contiguous(shape: &Shape) -> Self {
        Layout { shape: shape.clone(), strides: shape.strides(), offset: 0 }
    }

    /// True if the elements are in row-major order without gaps (dimensions of size 1 do not count).
    pub fn is_contiguous(&self) -> bool {
        let mut expect = 1isize;
        for (&d, &s) in self.shape.iter().zip(&self.strides).rev() {
            if d != 1 && s != expect {
                return self.shape.numel() == 0;
            }
            expect *= d as isize;
        }
        true
    }

    /// The same elements, in the same order, under another shape; `None` if that needs a copy.
    /// `shape` must have the same number of elements.
    pub fn reshape(&self, shape: &Shape) -> Option<Layout> {
        if self.shape.numel() == 0 || self.is_contiguous() {
            return Some(Layout { shape: shape.clone(), strides: shape.strides(), offset: self.offset });
        }
        let mut strides: SmallVec<[isize; 5]> = SmallVec::from_elem(0, shape.rank());
        // Walk runs of old dimensions that are contiguous among themselves; each must be
        // filled exactly by a run of new dimensions.
        let old: SmallVec<[(usize, isize); 5]> =
            self.shape.iter().copied().zip(self.strides.iter().copied()).filter(|&(d, _)| d != 1).collect();
        let mut new = shape.rank();
        let mut i = old.len();
        while i > 0 {
            let inner = old[i - 1].1;
            let mut run = old[i - 1].0;
            i -= 1;
            while i > 0 && old[i - 1].1 == inner * run as isize {
                run *= old[i - 1].0;
                i -= 1;
            }
            let mut filled = 1usize;
            while filled < run || (new > 0 && shape[new - 1] == 1) {
                if new == 0 {
                    return None;
                }
                new -= 1;
                strides[new] = inner * filled as isize;
                filled *= shape[new];
                if !run.is_multiple_of(filled) {
                    return None;
                }
            }
        }
        Some(Layout { shape: shape.clone(), strides, offset: self.offset })
    }

    /// Offsets of all elements in row-major order of the index: slow and obvious, for the reference.
    pub fn offsets(&self) -> Vec<isize> {
        let mut out = Vec::with_capacity(self.shape.numel());
        if self.shape.numel() == 0 {
            return out;
        }
        let rank = self.shape.rank();
        let mut index = vec![0usize; rank];
        let mut at = self.offset;
        loop {
            out.push(at);
            let mut d = rank;
            loop {
                if d == 0 {
                    return out;
                }
                d -= 1;
                index[d] += 1;
                // Modulo 2^64: the stride of a dimension of size 1 is any number, added and taken back.
                at = at.wrapping_add(self.strides[d]);
                if index[d] < self.shape[d] {
                    break;
                }
                at = at.wrapping_sub(self.strides[d].wrapping_mul(self.shape[d] as isize));
                index[d] = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcast_follows_numpy() {
        assert_eq!(Shape::new(&[3, 1]).broadcast(&[4]), Some([3, 4].into()));
        assert_eq!(Shape::new(&[]).broadcast(&[2, 0]), Some([2, 0].into()));
        assert_eq!(Shape::new(&[3]).broadcast(&[4]), None);
    }

    #[test]
    fn reshape_of_a_transpose_needs_a_copy_only_where_it_must() {
        // [2,3,4] transposed in the outer two: strides (4, 12, 1), shape [3,2,4].
        let l = Layout { shape: [3, 2, 4].into(), strides: SmallVec::from_slice(&[4, 12, 1]), offset: 0 };
        assert!(l.reshape(&[3, 2, 2, 2].into()).is_some());
        assert!(l.reshape(&[6, 4].into()).is_none());
        let r = l.reshape(&[3, 1, 2, 2, 2].into()).unwrap();
        assert_eq!(r.offsets(), l.offsets());
    }

    #[test]
    fn dims_wrap() {
        assert_eq!(wrap_dim(-1, 3), Some(2));
        assert_eq!(wrap_dim(0, 0), Some(0));
        assert_eq!(wrap_dim(3, 3), None);
    }
}
