//! Matrix products: batched, any strides, f32 or wider inside. The output is cut into blocks by the sizes alone; each
//! block is computed by one thread, so that bits do not depend on their number. Inside a block the `gemm` crate works in
//! f32 or f64; f16 and bf16 are widened panel by panel into a workspace, summed in f32 and rounded once.
//!
//! Knows nothing of operators: callers vouch for their pointers.

#[cfg(test)]
mod tests;

use crate::element::{Float, Wide};
use crate::pool::Pool;
use std::any::TypeId;

/// A matrix to read: element `(i, j)` lies at `ptr + i·rs + j·cs`.
#[derive(Clone, Copy, Debug)]
pub struct Mat<T> {
    /// Element (0, 0).
    pub ptr: *const T,
    /// Row stride in elements; any.
    pub rs: isize,
    /// Column stride in elements; any.
    pub cs: isize,
}

/// A matrix to write, as [`Mat`]; its elements lie apart.
#[derive(Clone, Copy, Debug)]
pub struct MatMut<T> {
    /// Element (0, 0).
    pub ptr: *mut T,
    /// Row stride in elements.
    pub rs: isize,
    /// Column stride in elements.
    pub cs: isize,
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
    fn at(self, i: usize, j: usize) -> Self {
        self.moved(i as isize * self.rs + j as isize * self.cs)
    }

    /// The matrix whose element (0, 0) lies this many elements further.
    pub fn moved(self, offset: isize) -> Self {
        Mat { ptr: self.ptr.wrapping_offset(offset), ..self }
    }

    /// The same matrix, rows and columns exchanged.
    pub fn transposed(self) -> Self {
        Mat { ptr: self.ptr, rs: self.cs, cs: self.rs }
    }
}

impl<T: Copy> MatMut<T> {
    /// The matrix whose element (0, 0) lies this many elements further.
    pub fn moved(self, offset: isize) -> Self {
        MatMut { ptr: self.ptr.wrapping_offset(offset), ..self }
    }

    fn at(self, i: usize, j: usize) -> Self {
        self.moved(i as isize * self.rs + j as isize * self.cs)
    }
}

/// Sizes of a product `[m, k] × [k, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Summed dimension; 0 gives the start value.
    pub k: usize,
}

/// What a product is added to, in f32 or wider.
#[derive(Clone, Copy, Debug)]
pub enum Start<T> {
    /// Zeros.
    Zero,
    /// What the output holds.
    Output,
    /// A vector along the columns, repeated for every row: a bias. Pointer and stride.
    Bias(Mat<T>),
}

/// Blocks of the output computed by one thread at a time, and the part of `k` widened at once.
const BLOCK: Size = Size { m: 256, n: 512, k: 512 };

/// Work worth handing to a thread, in multiplications.
const GRAIN: usize = 1 << 19;

fn same<A: 'static, B: 'static>() -> bool {
    TypeId::of::<A>() == TypeId::of::<B>()
}

/// Panel sizes for widening: left, right, accumulator.
fn panels<T: Float, O: Float>(size: Size) -> (usize, usize, usize) {
    let (m, n, k) = (size.m.min(BLOCK.m), size.n.min(BLOCK.n), size.k.min(BLOCK.k));
    let round = |n: usize| n.next_multiple_of(16);
    let widen = !same::<T, T::Wide>();
    (
        if widen { round(m * k) } else { 0 },
        if widen { round(k * n) } else { 0 },
        if widen || !same::<O, O::Wide>() { round(m * n) } else { 0 },
    )
}

/// Bytes of workspace [`gemm`] needs for products of this size on `threads` threads.
pub fn workspace<T: Float, O: Float>(size: Size, threads: usize) -> usize {
    let (a, b, c) = panels::<T, O>(size);
    (a + b + c) * size_of::<T::Wide>() * threads
}

/// `c[i] = start + a[i] · b[i]` for each `i` in `0..batches`, summed in `T::Wide`, each element rounded once to `O`.
///
/// # Safety
/// For every batch, all elements that the sizes name lie in memory that lives through the call; those of the outputs lie
/// apart from each other and from all inputs, and nobody else uses them meanwhile.
///
/// # Panics
/// If `workspace` (aligned to 64 bytes) is smaller than [`workspace`] says.
#[allow(clippy::too_many_arguments)]
pub unsafe fn gemm<T: Float, O: Float<Wide = T::Wide>>(
    pool: &Pool,
    workspace: &mut [u8],
    batches: usize,
    size: Size,
    a: impl Fn(usize) -> Mat<T> + Sync,
    b: impl Fn(usize) -> Mat<T> + Sync,
    c: impl Fn(usize) -> MatMut<O> + Sync,
    start: Start<T>,
) {
    let needs = self::workspace::<T, O>(size, pool.threads());
    // An empty workspace need not be aligned, which the cast would demand.
    let scratch: &mut [T::Wide] =
        if needs == 0 { &mut [] } else { bytemuck::cast_slice_mut(&mut workspace[..needs]) };
    let (rows, cols) = (size.m.div_ceil(BLOCK.m), size.n.div_ceil(BLOCK.n));
    let per_batch = rows * cols;
    let blocks = per_batch * batches;
    if blocks == 0 {
        return;
    }
    // Small products are handed out several at a time.
    let group = (GRAIN / (size.m.min(BLOCK.m) * size.n.min(BLOCK.n) * size.k).max(1)).clamp(1, blocks);
    pool.each_with(blocks.div_ceil(group), scratch, |g, scratch| {
        for at in g * group..((g + 1) * group).min(blocks) {
            let (batch, within) = (at / per_batch, at % per_batch);
            let (i, j) = (within / cols * BLOCK.m, within % cols * BLOCK.n);
            let part = Size { m: BLOCK.m.min(size.m - i), n: BLOCK.n.min(size.n - j), k: size.k };
            let start = match start {
                Start::Bias(v) => Start::Bias(v.at(0, j)),
                other => other,
            };
            // SAFETY: blocks of one product, and products of different batches, write different elements; all of them
            // are among those the caller vouches for.
            unsafe { block(part, a(batch).at(i, 0), b(batch).at(0, j), c(batch).at(i, j), start, scratch) }
        }
    });
}

/// One block on one thread. `scratch` holds the panels, if any are needed.
///
/// # Safety
/// As [`gemm`], for one product of `size`.
unsafe fn block<T: Float, O: Float<Wide = T::Wide>>(
    size: Size,
    a: Mat<T>,
    b: Mat<T>,
    c: MatMut<O>,
    start: Start<T>,
    scratch: &mut [T::Wide],
) {
    let (pa, pb, pc) = panels::<T, O>(size);
    let (sa, rest) = scratch.split_at_mut(pa);
    let (sb, rest) = rest.split_at_mut(pb);
    let sc = &mut rest[..pc];
    let direct = sc.is_empty();
    let acc = if direct {
        MatMut { ptr: c.ptr.cast::<T::Wide>(), rs: c.rs, cs: c.cs }
    } else {
        MatMut { ptr: sc.as_mut_ptr(), rs: size.n as isize, cs: 1 }
    };
    // SAFETY: every element read or written below is one of the block's, for which the caller vouches, or lies in the
    // scratch panels, whose sizes are at least those of the block.
    unsafe {
        match start {
            Start::Zero => {}
            Start::Bias(v) => each(size.m, size.n, |i, j| *acc.at(i, j).ptr = (*v.at(0, j).ptr).widen()),
            Start::Output if direct => {}
            Start::Output => each(size.m, size.n, |i, j| *acc.at(i, j).ptr = (*c.at(i, j).ptr).widen()),
        }
        let mut keep = !matches!(start, Start::Zero);
        if pa == 0 {
            let wide = |m: Mat<T>| Mat { ptr: m.ptr.cast::<T::Wide>(), rs: m.rs, cs: m.cs };
            product(size, wide(a), wide(b), acc, keep);
        } else {
            let mut at = 0;
            while at < size.k || (at == 0 && !keep) {
                let k = BLOCK.k.min(size.k - at);
                widen(a.at(0, at), size.m, k, sa);
                widen(b.at(at, 0), k, size.n, sb);
                let left = Mat { ptr: sa.as_ptr(), rs: k as isize, cs: 1 };
                let right = Mat { ptr: sb.as_ptr(), rs: size.n as isize, cs: 1 };
                product(Size { k, ..size }, left, right, acc, keep);
                (at, keep) = (at + k, true);
            }
        }
        if !direct {
            each(size.m, size.n, |i, j| *c.at(i, j).ptr = O::narrow(*acc.at(i, j).ptr));
        }
    }
}

fn each(m: usize, n: usize, mut f: impl FnMut(usize, usize)) {
    (0..m).for_each(|i| (0..n).for_each(|j| f(i, j)));
}

/// Copies a matrix, widened, into a row-major panel.
///
/// # Safety
/// The matrix' `m × n` elements may be read.
unsafe fn widen<T: Float>(x: Mat<T>, m: usize, n: usize, panel: &mut [T::Wide]) {
    let panel = &mut panel[..m * n];
    // Read along the smaller stride.
    if x.rs.unsigned_abs() < x.cs.unsigned_abs() {
        // SAFETY: elements of the matrix.
        (0..n).for_each(|j| (0..m).for_each(|i| panel[i * n + j] = unsafe { *x.at(i, j).ptr }.widen()));
    } else {
        // SAFETY: elements of the matrix.
        each(m, n, |i, j| panel[i * n + j] = unsafe { *x.at(i, j).ptr }.widen());
    }
}

/// `c = a · b`, or `c += a · b` if `keep`, on the calling thread. For kernels that divide their work themselves.
///
/// # Safety
/// As [`gemm`], for one product.
pub unsafe fn product<W: Wide>(size: Size, a: Mat<W>, b: Mat<W>, c: MatMut<W>, keep: bool) {
    // SAFETY: the caller vouches for the pointers; `W` is f32 or f64, which the crate takes.
    unsafe {
        gemm::gemm::<W>(
            size.m,
            size.n,
            size.k,
            c.ptr,
            c.cs,
            c.rs,
            keep,
            a.ptr,
            a.cs,
            a.rs,
            b.ptr,
            b.cs,
            b.rs,
            W::ONE,
            W::ONE,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
