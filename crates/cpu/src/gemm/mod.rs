//! Matrix products (GEMM): batched, any strides, accumulated in f32 or wider, rounded once.
//!
//! The method is Goto's (Goto and van de Geijn, *Anatomy of High-Performance Matrix Multiplication*, ACM TOMS
//! 34, 2008). Names are those of BLIS (Van Zee and van de Geijn, ACM TOMS 41, 2015). A microkernel keeps MR ×
//! NR sums in registers ([`microkernel`]), operands are packed into micro-panels ([`pack`]), and loops are
//! blocked for the caches ([`blocking`], [`goto`]). Small results of long sums are split along `k`
//! ([`split_k`]); few rows or columns are dot products ([`gemv`]). Elements of f16 are widened while they are
//! packed. Those of bf16 are widened too, or interleaved in VNNI-2 groups where there are instructions for
//! products of pairs or tiles. No matrix is ever copied whole. `ARCHITECTURE.md` in this folder has a figure,
//! the cost model and rejected variants.
//!
//! Every element is the sum, in order, of sums over parts of `k`. The parts depend on the sizes alone, so the
//! bits do not depend on the number of threads.
//!
//! Knows nothing of operators: callers vouch for their pointers.

mod blocking;
mod epilogue;
mod gemv;
mod goto;
mod grouped;
mod microkernel;
mod pack;
mod product;
mod split_k;
#[cfg(test)]
mod tests;

pub(crate) use blocking::even;
pub use grouped::{Grouped, gemm_groups, workspace_groups};
pub(crate) use microkernel::{
    DepthwiseLines, DepthwiseWeightSums, IndirectRow, IndirectRun, IndirectTile, Tile,
};
pub use microkernel::{Microkernels, Operand, PanelKernels};
pub(crate) use pack::filters_scratch;

use crate::element::Wide;
use crate::matrix::{Mat, MatMut};
use crate::pool::Pool;
use crate::tier::Tier;
use crate::workspace;
use blocking::Blocking;
use product::Product;

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

/// The numbers that a product is added to, in f32 or wider.
#[derive(Clone, Copy, Debug)]
pub enum Start<T> {
    /// Zeros.
    Zero,
    /// The content of the output.
    Output,
    /// A vector along the columns, repeated for every row: a bias. Pointer and stride.
    Bias(Mat<T>),
}

/// Work worth handing to a thread, in multiplications.
const GRAIN: usize = 1 << 19;

/// Bytes of workspace [`gemm`] needs for products of this size on `threads` threads.
pub fn workspace<T: Operand, O: Operand<Wide = T::Wide>>(tier: Tier, size: Size, threads: usize) -> usize {
    Blocking::new::<T, O>(T::kernels(tier), size).workspace(threads) * size_of::<T::Wide>()
}

/// `c[i] = start + a[i] · b[i]` for each `i` in `0..batches`, summed in `T::Wide`, each element rounded once
/// to `O`.
///
/// # Safety
/// For every batch, all elements that the sizes name are in memory that lives through the call. Those of the
/// outputs are distinct from each other and from all inputs, and nobody else uses them meanwhile. The
/// processor has the tier.
///
/// # Panics
/// If `workspace` (aligned to 64 bytes) is smaller than [`workspace`](fn@workspace) says.
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
    let blocking = Blocking::new::<T, O>(kernels, size);
    let needs = blocking.workspace(pool.threads()) * size_of::<T::Wide>();
    let workspace: &mut [T::Wide] = workspace::all(workspace, needs);
    let (bias, rest) = workspace.split_at_mut(blocking.bias);
    if let Start::Bias(v) = start {
        for (j, x) in bias.iter_mut().enumerate() {
            // SAFETY: element `j` of the bias, for which the caller vouches; it is padded with zeros.
            *x = if j < size.n { unsafe { *v.at(0, j).ptr }.widen() } else { T::Wide::ZERO };
        }
    }
    let product = |i: usize| Product::<T, O> {
        kernels,
        narrow: O::kernels(tier).narrow,
        blocking,
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
        if batches >= SERIAL && blocking.serial {
            // Small products are computed by one thread each, several at a time.
            let group = (GRAIN / size.work().max(1)).clamp(1, batches.div_ceil(SERIAL));
            let mut rest =
                workspace::spread(rest, blocking.b_panel + blocking.thread_workspace(), pool.threads());
            rest.run(pool, batches.div_ceil(group), |g, own| {
                (g * group..((g + 1) * group).min(batches)).for_each(|i| product(i).serial(own));
            });
        } else {
            (0..batches).for_each(|i| product(i).parallel(pool, rest));
        }
    }
}

/// Batches from which on small products are computed by one thread each.
const SERIAL: usize = 4;

impl<T: Operand, O: Operand<Wide = T::Wide>> Product<T, O> {
    /// Computes the product on one thread, by the method for its sizes.
    ///
    /// # Safety
    /// As [`gemm`], for this product; `own` is a thread's workspace, and the blocking allows one thread.
    unsafe fn serial(&self, own: &mut [T::Wide]) {
        // SAFETY: the caller's promise.
        unsafe {
            match gemv::takes(self) {
                true => gemv::tiles(self, 0..self.size.m, 0..self.size.n),
                false => self.goto_serial(own),
            }
        }
    }

    /// Computes the product on all threads, by the method for its sizes.
    ///
    /// # Safety
    /// As [`gemm`], for this product; `workspace` is as large as the blocking says, without the bias.
    unsafe fn parallel(&self, pool: &Pool, workspace: &mut [T::Wide]) {
        // SAFETY: the caller's promise.
        unsafe {
            match &self.blocking.split_k {
                _ if gemv::takes(self) => gemv::parallel(self, pool),
                Some(split) => split_k::parallel(self, split, pool, workspace),
                None => self.goto_parallel(pool, workspace),
            }
        }
    }
}
