//! Matrix products: batched, any strides, summed in f32 or wider, rounded once. f16 and bf16 are widened
//! while they are packed, or bf16 brought together in pairs where there are instructions for these; no matrix
//! is ever copied whole.
//!
//! The method is the usual one: columns of the right operand are packed into panels that all threads share,
//! rows of the left one into panels of a thread's own, and a block of the output is held in registers while a
//! panel of each streams by. Every element is the sum, in order, of sums over parts of `k`; the parts depend
//! on the sizes alone, and which thread computes what does not matter to the bits.
//!
//! Knows nothing of operators: callers vouch for their pointers.

mod ahead;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod bfdot;
mod blocks;
mod deep;
mod dot;
mod groups;
mod lanes;
mod lines;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pairs;
mod parts;
mod skinny;
mod taps;
#[cfg(test)]
mod tests;
mod tiers;
mod tile;
mod turn;
mod walk;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use ahead::{Ahead, Paced, Soon, ask, ask_second};
pub use groups::{Grouped, gemm_groups, workspace_groups};
pub(crate) use lanes::{Converts, Lanes, MAX_LANES};
pub(crate) use lines::{Dots, Lines};
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Eight;
pub(crate) use parts::even;
pub(crate) use taps::room as taps_room;
pub use tiers::{Kernels, Operand, Panels};
pub(crate) use tile::Tile;
pub(crate) use walk::{Row, Run, Walk};

use crate::element::Wide;
use crate::pool::Pool;
use crate::tier::Tier;
use crate::workspace;
use blocks::Product;
use parts::Parts;
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

/// A matrix to write: element `(i, j)` lies at `ptr + i·rs + j`. Its elements lie apart.
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
        self.moved(i as isize * self.rs + j as isize)
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

impl Size {
    /// Multiplications.
    fn work(self) -> usize {
        self.m.saturating_mul(self.n).saturating_mul(self.k)
    }
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

/// Work worth handing to a thread, in multiplications.
const GRAIN: usize = 1 << 19;

pub(crate) fn same<A: 'static, B: 'static>() -> bool {
    TypeId::of::<A>() == TypeId::of::<B>()
}

/// Bytes of workspace [`gemm`] needs for products of this size on `threads` threads.
pub fn workspace<T: Operand, O: Operand<Wide = T::Wide>>(tier: Tier, size: Size, threads: usize) -> usize {
    Parts::new::<T, O>(T::kernels(tier), size).total(threads) * size_of::<T::Wide>()
}

/// `c[i] = start + a[i] · b[i]` for each `i` in `0..batches`, summed in `T::Wide`, each element rounded once
/// to `O`.
///
/// # Safety
/// For every batch, all elements that the sizes name lie in memory that lives through the call; those of the
/// outputs lie apart from each other and from all inputs, and nobody else uses them meanwhile. The processor
/// has the tier.
///
/// # Panics
/// If `workspace` (aligned to 64 bytes) is smaller than [`workspace`] says.
#[allow(clippy::too_many_arguments)]
pub unsafe fn gemm<T: Operand, O: Operand<Wide = T::Wide>>(
    pool: &Pool,
    tier: Tier,
    workspace: &mut [u8],
    batches: usize,
    size: Size,
    a: impl Fn(usize) -> Mat<T> + Sync,
    b: impl Fn(usize) -> Mat<T> + Sync,
    c: impl Fn(usize) -> MatMut<O> + Sync,
    start: Start<T>,
) {
    if batches == 0 || size.m == 0 || size.n == 0 {
        return;
    }
    let kernels = T::kernels(tier);
    let parts = Parts::new::<T, O>(kernels, size);
    let needs = parts.total(pool.threads()) * size_of::<T::Wide>();
    let workspace: &mut [T::Wide] = workspace::all(workspace, needs);
    let (bias, rest) = workspace.split_at_mut(parts.bias);
    if let Start::Bias(v) = start {
        for (j, x) in bias.iter_mut().enumerate() {
            // SAFETY: element `j` of the bias, for which the caller vouches; behind its end stand zeros.
            *x = if j < size.n { unsafe { *v.at(0, j).ptr }.widen() } else { T::Wide::ZERO };
        }
    }
    let product = |i: usize| Product::<T, O> {
        kernels,
        narrow: O::kernels(tier).narrow,
        parts,
        size,
        a: a(i),
        b: b(i),
        c: c(i),
        start: match start {
            Start::Zero => Start::Zero,
            Start::Output => Start::Output,
            Start::Bias(_) => Start::Bias(Mat { ptr: bias.as_ptr(), rs: 0, cs: 1 }),
        },
    };
    // SAFETY: products of different batches write different elements, all among those the caller vouches for.
    unsafe {
        if batches >= ALONE && parts.alone {
            // Small products are computed by one thread each, several at a time.
            let group = (GRAIN / size.work().max(1)).clamp(1, batches.div_ceil(ALONE));
            let mut rest = workspace::spread(rest, parts.slab + parts.own(), pool.threads());
            rest.run(pool, batches.div_ceil(group), |g, own| {
                (g * group..((g + 1) * group).min(batches)).for_each(|i| product(i).alone(own));
            });
        } else {
            (0..batches).for_each(|i| product(i).together(pool, rest));
        }
    }
}

/// Batches from which on small products are computed by one thread each.
const ALONE: usize = 4;
