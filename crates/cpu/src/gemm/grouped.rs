//! Grouped products, as of a mixture of experts: sizes are known only when they are computed, within bounds
//! that are known before.

use super::blocking::Blocking;
use super::microkernel::Operand;
use super::product::Product;
use super::{GRAIN, Size, Start};
use crate::matrix::{Mat, MatMut};
use crate::pool::Pool;
use crate::tier::Tier;
use crate::workspace;

/// Products of less work than this are computed by one thread each, several at a time. With more, threads
/// wait little for each other.
const SMALL: usize = 8 * GRAIN;

/// One of several products: `c = a · b`.
#[derive(Clone, Copy, Debug)]
pub struct Grouped<T> {
    /// Its size.
    pub size: Size,
    /// Left operand.
    pub a: Mat<T>,
    /// Right operand.
    pub b: Mat<T>,
    /// Result.
    pub c: MatMut<T>,
}

/// Bytes of workspace that [`gemm_groups`] needs on `threads` threads. Products have at most as many rows and
/// as long a sum as `most`, and its columns.
pub fn workspace_groups<T: Operand>(tier: Tier, most: Size, threads: usize) -> usize {
    Blocking::upper_bound::<T, T>(T::kernels(tier), most).workspace(threads) * size_of::<T::Wide>()
}

/// Computes `count` products, summed in `T::Wide`, each element rounded once. How a product is cut depends on
/// its own size alone.
///
/// # Safety
/// As [`super::gemm`], for each of the products.
///
/// # Panics
/// If `workspace` (aligned to 64 bytes) is smaller than [`workspace_groups`] says, or a product larger than
/// `most`.
pub unsafe fn gemm_groups<T: Operand>(
    pool: &Pool,
    tier: Tier,
    workspace: &mut [u8],
    most: Size,
    count: usize,
    group: impl Fn(usize) -> Grouped<T> + Sync,
) {
    let kernels = T::kernels(tier);
    let narrow = kernels.narrow;
    let product = |i: usize| {
        let Grouped { size, a, b, c } = group(i);
        assert!(size.m <= most.m && size.n == most.n && size.k <= most.k, "{size:?} is not within {most:?}");
        let blocking = Blocking::new::<T, T>(kernels, size).without_split_k();
        Product::<T, T> { kernels, narrow, blocking, size, a, b, c, start: Start::Zero }
    };
    let some = |i: usize| Some(product(i)).filter(|p| p.size.m > 0 && p.size.n > 0);
    let serial = |p: &Product<T, T>| p.blocking.serial && p.size.work() < SMALL;
    let within = Blocking::upper_bound::<T, T>(kernels, most);
    let workspace: &mut [T::Wide] =
        workspace::all(workspace, within.workspace(pool.threads()) * size_of::<T::Wide>());
    // SAFETY: products write different elements, all among those the caller vouches for.
    unsafe {
        let mut each = workspace::spread(workspace, within.serial_workspace(), pool.threads());
        each.run(pool, count, |i, own| {
            if let Some(p) = some(i).filter(serial) {
                p.serial(own);
            }
        });
        (0..count).filter_map(some).filter(|p| !serial(p)).for_each(|p| p.parallel(pool, workspace));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    /// The workspace for products up to a size suffices for each of them.
    fn room_is_enough<T: Operand>(tier: Tier) {
        let kernels = T::kernels(tier);
        let sizes = [1, 2, 15, 16, 17, 33, 64, 97, 130, 193, 300];
        for (m, n, k) in sizes.iter().flat_map(|&m| sizes.iter().flat_map(move |&n| sizes.map(|k| (m, n, k))))
        {
            let within = Blocking::upper_bound::<T, T>(kernels, Size { m, n, k });
            // Sizes just below those at which something is cut are among the first.
            for (m, k) in
                (1..=m).step_by(7).chain([m]).flat_map(|m| (0..=k).step_by(5).chain([k]).map(move |k| (m, k)))
            {
                let blocking = Blocking::new::<T, T>(kernels, Size { m, n, k }).without_split_k();
                let what = format!("{m} by {n} by {k} in {within:?}: {blocking:?}");
                assert!(
                    blocking.b_panel + blocking.partial + 3 * blocking.thread_workspace()
                        <= within.workspace(3),
                    "{what}"
                );
                assert!(
                    !blocking.serial
                        || blocking.b_panel + blocking.thread_workspace() <= within.serial_workspace(),
                    "{what}"
                );
            }
        }
    }

    #[test]
    fn room_within_a_size_is_enough_for_every_smaller_one() {
        for tier in Tier::ALL.into_iter().filter(|&t| t <= Tier::detect()) {
            room_is_enough::<f32>(tier);
            room_is_enough::<bf16>(tier);
            room_is_enough::<f64>(tier);
        }
    }
}
