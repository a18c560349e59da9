//! Matrices in memory: a pointer and strides. Copies no element and checks no bound.

/// A matrix to read: element `(i, j)` is at `ptr + i·rs + j·cs`.
#[derive(Clone, Copy, Debug)]
pub struct Mat<T> {
    /// Element (0, 0).
    pub ptr: *const T,
    /// Row stride in elements; any.
    pub rs: isize,
    /// Column stride in elements; any.
    pub cs: isize,
}

/// A matrix to write: element `(i, j)` is at `ptr + i·rs + j`. Its elements are distinct.
#[derive(Clone, Copy, Debug)]
pub struct MatMut<T> {
    /// Element (0, 0).
    pub ptr: *mut T,
    /// Row stride in elements.
    pub rs: isize,
}

// SAFETY: pointers alone do nothing; each dereference carries its own argument.
unsafe impl<T: Send + Sync> Sync for Mat<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for Mat<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for MatMut<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for MatMut<T> {}

impl<T: Copy> Mat<T> {
    pub(crate) fn at(self, i: usize, j: usize) -> Self {
        self.moved(i as isize * self.rs + j as isize * self.cs)
    }

    /// The matrix whose element (0, 0) is this many elements further.
    pub fn moved(self, offset: isize) -> Self {
        Mat { ptr: self.ptr.wrapping_offset(offset), ..self }
    }

    /// The same matrix, rows and columns exchanged.
    pub fn transposed(self) -> Self {
        Mat { ptr: self.ptr, rs: self.cs, cs: self.rs }
    }
}

impl<T: Copy> MatMut<T> {
    /// The matrix whose element (0, 0) is this many elements further.
    pub fn moved(self, offset: isize) -> Self {
        MatMut { ptr: self.ptr.wrapping_offset(offset), ..self }
    }

    pub(crate) fn at(self, i: usize, j: usize) -> Self {
        self.moved(i as isize * self.rs + j as isize)
    }
}
