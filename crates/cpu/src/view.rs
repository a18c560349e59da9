//! Operands in memory, as kernels see them: typed, bounds known. Made by the executor alone, which has
//! checked every one against its segment when the plan was loaded.

use crate::any_dtype;
use crate::element::Element;
use crate::pool::Shared;
use headwater_core::diagnostic::Result;
use headwater_core::plan::{Plan, SegmentKind, TensorView};
use headwater_core::{DType, Layout, Shape, TensorType, ensure, fail};

/// An operand that a step reads.
///
/// Invariant: while a step runs, `ptr` is the address of index 0. Every index of `layout` is in one live
/// segment, and nobody writes there (row programs that work in place go by other means).
#[derive(Debug)]
pub struct View {
    ptr: *const u8,
    dtype: DType,
    layout: Layout,
    place: Place,
}

/// An operand that a step writes; never overlaps another operand of the step. Invariants as for [`View`], and
/// nobody else reads there.
#[derive(Debug)]
pub struct ViewMut(View);

/// Segment and byte of index 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub segment: usize,
    pub byte: usize,
}

// SAFETY: the pointer is only followed while the executor holds the segments; sharing follows Rust's rules
// through the methods' borrows.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

/// Smallest and largest offset that strides reach over sizes; `None` if there is no element at all.
pub(crate) fn reach(sizes: &[usize], strides: &[isize]) -> Option<(isize, isize)> {
    let mut range = (0isize, 0isize);
    for (&n, &s) in sizes.iter().zip(strides) {
        let last = isize::try_from(n).ok()?.checked_sub(1)?;
        if last < 0 {
            return None;
        }
        let far = last.checked_mul(s)?;
        range = (range.0.checked_add(far.min(0))?, range.1.checked_add(far.max(0))?);
    }
    Some(range)
}

impl View {
    /// Checks a plan's view: its elements are in its segment, aligned to their size.
    pub(crate) fn checked(plan: &Plan, view: &TensorView) -> Result<View> {
        let outside = || fail!(Plan, "the view {view:?} lies outside its segment");
        let segment = plan.segments.get(view.place.segment.0 as usize).ok_or_else(outside)?;
        let size = view.dtype.size();
        let layout = &view.layout;
        ensure!(layout.strides.len() == layout.shape.rank(), Plan, "{view:?}: one stride per dimension");
        ensure!(view.place.offset.is_multiple_of(size), Plan, "{view:?} is not aligned to its elements");
        let place = Place { segment: view.place.segment.0 as usize, byte: 0 };
        let made = |byte| View {
            ptr: std::ptr::null(),
            dtype: view.dtype,
            layout: layout.clone(),
            place: Place { byte, ..place },
        };
        if layout.shape.checked_numel().ok_or_else(outside)? == 0 {
            return Ok(made(0));
        }
        let (lo, hi) = reach(&layout.shape, &layout.strides).ok_or_else(outside)?;
        let first = isize::try_from(view.place.offset / size).ok().and_then(|p| p.checked_add(layout.offset));
        let first = first.ok_or_else(outside)?;
        let end = first.checked_add(hi).and_then(|e| e.checked_add(1)?.checked_mul(size as isize));
        let inside = first.checked_add(lo).is_some_and(|lo| lo >= 0)
            && end.is_some_and(|end| end as usize <= segment.bytes);
        ensure!(inside, Plan, "the view {view:?} lies outside its segment of {} bytes", segment.bytes);
        Ok(made(first as usize * size))
    }

    /// As [`View::checked`], for an operand that is written.
    pub(crate) fn checked_mut(plan: &Plan, view: &TensorView) -> Result<ViewMut> {
        let checked = View::checked(plan, view)?;
        let kind = plan.segments[checked.place.segment].kind;
        let writable = !matches!(kind, SegmentKind::Input | SegmentKind::Constant);
        ensure!(writable, Plan, "a step writes to {view:?}, which lies in a segment that is only read");
        Ok(ViewMut(checked))
    }

    /// Points the view at the memory of this run.
    pub(crate) fn bind(&mut self, bases: &[Shared<u8>]) {
        self.ptr = bases[self.place.segment].get().wrapping_add(self.place.byte);
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Segment and the bytes in it from the first to the last element; `None` if there is no element.
    pub(crate) fn hull(&self) -> Option<(usize, std::ops::Range<usize>)> {
        let (lo, hi) = reach(&self.layout.shape, &self.layout.strides)?;
        let size = self.dtype.size();
        let start = self.place.byte.wrapping_add_signed(lo * size as isize);
        Some((self.place.segment, start..self.place.byte.wrapping_add_signed((hi + 1) * size as isize)))
    }

    /// True if the spans of memory from first to last element of two operands meet.
    pub(crate) fn meets(&self, other: &View) -> bool {
        match (self.hull(), other.hull()) {
            (Some((s, a)), Some((t, b))) => s == t && a.start < b.end && b.start < a.end,
            _ => false,
        }
    }

    /// True if no byte is of both operands: their spans do not meet, or they take turns there, as parts of
    /// the rows of one tensor do. (Sufficient: with some pitch, each has bytes of its own in every stretch of
    /// that length.)
    pub(crate) fn apart(&self, other: &View) -> bool {
        let pitches = self.layout.strides.iter().map(|s| s.unsigned_abs() * self.dtype.size());
        let turns = |pitch: usize| {
            // From the first operand's beginning on, modulo the pitch.
            let between = (other.place.byte % pitch + pitch - self.place.byte % pitch) % pitch;
            match (self.within(pitch), other.within(pitch)) {
                (Some(own), Some(others)) => own <= between && others <= pitch - between,
                _ => false,
            }
        };
        !self.meets(other) || pitches.filter(|&pitch| pitch > 0).any(turns)
    }

    /// Bytes from the first to the last of an operand in every stretch of a length that begins where it does;
    /// `None` if it does not go on from one to the next by that length.
    fn within(&self, pitch: usize) -> Option<usize> {
        let size = self.dtype.size();
        let mut bytes = size;
        for (&n, &stride) in self.layout.shape.iter().zip(&self.layout.strides).filter(|(n, _)| **n > 1) {
            let step = usize::try_from(stride).ok()?.checked_mul(size)?;
            if step % pitch != 0 {
                bytes = bytes.checked_add((n - 1).checked_mul(step)?)?;
            }
        }
        Some(bytes)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes.
    pub fn shape(&self) -> &Shape {
        &self.layout.shape
    }

    /// Elements to move per step along each dimension, counted from [`View::ptr`].
    pub fn strides(&self) -> &[isize] {
        &self.layout.strides
    }

    /// Dtype and shape.
    pub fn ty(&self) -> TensorType {
        TensorType { dtype: self.dtype, shape: self.layout.shape.clone() }
    }

    /// True if the elements are in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// Address of index 0 (dangling if there is no element). Indices of the shape, along the strides, are in
    /// bounds.
    ///
    /// # Panics
    /// If the dtype is not held by `T`.
    pub fn ptr<T: Element>(&self) -> *const T {
        assert!(T::holds(self.dtype), "a view of {} was asked for another type", self.dtype);
        self.ptr.cast()
    }

    /// All elements in row-major order.
    ///
    /// # Panics
    /// If the dtype is not held by `T`, or the view is not contiguous (operands are, unless the kernel's
    /// `strided` says it takes any strides).
    pub fn slice<T: Element>(&self) -> &[T] {
        let ptr = self.ptr::<T>();
        assert!(self.is_contiguous(), "a strided operand was read as a slice");
        let n = self.layout.shape.numel();
        if n == 0 {
            return &[];
        }
        // SAFETY: by the invariant the `n` elements from `ptr` are in one live segment and nobody writes them
        // while `self` is borrowed. Every bit pattern is a `T` (Pod); the address was checked to be aligned.
        unsafe { std::slice::from_raw_parts(ptr, n) }
    }

    /// All elements in row-major order as raw bytes. Panics as [`View::slice`] does.
    pub fn bytes(&self) -> &[u8] {
        any_dtype!(self.dtype, T => bytemuck::cast_slice(self.slice::<T>()))
    }
}

impl std::ops::Deref for ViewMut {
    type Target = View;
    fn deref(&self) -> &View {
        &self.0
    }
}

impl ViewMut {
    pub(crate) fn bind(&mut self, bases: &[Shared<u8>]) {
        self.0.bind(bases);
    }

    /// Address of index 0, as [`View::ptr`].
    pub fn ptr_mut<T: Element>(&mut self) -> *mut T {
        self.0.ptr::<T>().cast_mut()
    }

    /// All elements in row-major order, of undefined content until written. Panics as [`View::slice`] does.
    pub fn slice_mut<T: Element>(&mut self) -> &mut [T] {
        let ptr = self.ptr_mut::<T>();
        assert!(self.is_contiguous(), "a strided operand was written as a slice");
        let n = self.layout.shape.numel();
        if n == 0 {
            return &mut [];
        }
        // SAFETY: as in `View::slice`; the operand overlaps no other of the step, and `self` is borrowed
        // exclusively.
        unsafe { std::slice::from_raw_parts_mut(ptr, n) }
    }

    /// All elements in row-major order as raw bytes. Panics as [`View::slice`] does.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        any_dtype!(self.dtype, T => bytemuck::cast_slice_mut(self.slice_mut::<T>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn view(byte: usize, dtype: DType, shape: &[usize], strides: &[isize]) -> View {
        let layout = Layout { shape: Shape::new(shape), strides: strides.into(), offset: 0 };
        View { ptr: std::ptr::null(), dtype, layout, place: Place { segment: 0, byte } }
    }

    fn bytes(v: &View) -> HashSet<usize> {
        let size = v.dtype.size();
        let offsets = v.layout.offsets();
        offsets
            .iter()
            .flat_map(|&at| (0..size).map(move |b| b + at as usize * size))
            .map(|b| b + v.place.byte)
            .collect()
    }

    #[test]
    fn heads_of_rows_that_queries_and_keys_share_lie_apart() {
        // Rows of 64 numbers: four heads of 8, then two.
        let queries = view(192, DType::F32, &[2, 4, 10, 8], &[640, 8, 64, 1]);
        let keys = view(320, DType::F32, &[2, 2, 10, 8], &[640, 8, 64, 1]);
        assert!(queries.meets(&keys) && queries.apart(&keys) && keys.apart(&queries));
        let late = view(316, DType::F32, &[2, 2, 10, 8], &[640, 8, 64, 1]);
        assert!(!queries.apart(&late));
        // The last head reaches into the next row.
        let long = view(352, DType::F32, &[2, 4, 10, 8], &[640, 8, 64, 1]);
        assert!(!queries.apart(&long) && !long.apart(&queries));
    }

    proptest! {
        #[test]
        fn what_is_said_to_lie_apart_shares_no_byte(
            (at, other) in (0..40usize, 0..40usize),
            shapes in prop::collection::vec((1..4usize, 0..13isize), 6),
            wide in any::<[bool; 2]>(),
        ) {
            let of = |byte: usize, dims: &[(usize, isize)], wide: bool| {
                let dtype = if wide { DType::F32 } else { DType::F16 };
                let (shape, strides): (Vec<usize>, Vec<isize>) = dims.iter().copied().unzip();
                view(byte * dtype.size(), dtype, &shape, &strides)
            };
            let (a, b) = (of(at, &shapes[..3], wide[0]), of(other, &shapes[3..], wide[1]));
            prop_assert!(!a.apart(&b) || bytes(&a).is_disjoint(&bytes(&b)), "{a:?} {b:?}");
        }
    }
}
