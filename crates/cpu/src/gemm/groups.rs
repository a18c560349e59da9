//! Products whose sizes are known only when they are computed, such as those of groups of rows: each has a size
//! of its own, within one that is known before.

use super::blocks::Product;
use super::parts::Parts;
use super::{GRAIN, Mat, MatMut, Operand, Size, Start};
use crate::pool::Pool;
use crate::tier::Tier;
use crate::workspace;

/// Products of less work than this are computed by one thread each, several at a time: with more, what threads
/// wait for each other is little.
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

/// Bytes of workspace [`gemm_groups`] needs on `threads` threads for products with at most as many rows and as
/// long a sum as `most`, and with its columns.
pub fn workspace_groups<T: Operand>(tier: Tier, most: Size, threads: usize) -> usize {
    Parts::within::<T, T>(T::kernels(tier), most).total(threads) * size_of::<T::Wide>()
}

/// Computes `count` products, summed in `T::Wide`, each element rounded once. How a product is cut depends on
/// its own size alone.
///
/// # Safety
/// As [`super::gemm`], for each of the products.
///
/// # Panics
/// If `workspace` (aligned to 64 bytes) is smaller than [`workspace_groups`] says, or a product larger than `most`.
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
        let parts = Parts::new::<T, T>(kernels, size).of_whole_sums();
        Product::<T, T> { kernels, narrow, parts, size, a, b, c, start: Start::Zero }
    };
    let some = |i: usize| Some(product(i)).filter(|p| p.size.m > 0 && p.size.n > 0);
    let alone = |p: &Product<T, T>| p.parts.alone && p.size.work() < SMALL;
    let within = Parts::within::<T, T>(kernels, most);
    let workspace: &mut [T::Wide] =
        workspace::all(workspace, within.total(pool.threads()) * size_of::<T::Wide>());
    // SAFETY: products write different elements, all among those the caller vouches for.
    unsafe {
        let mut each = workspace::spread(workspace, within.alone_room(), pool.threads());
        each.run(pool, count, |i, own| {
            if let Some(p) = some(i).filter(alone) {
                p.alone(own);
            }
        });
        (0..count).filter_map(some).filter(|p| !alone(p)).for_each(|p| p.together(pool, workspace));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    /// The room for products within a size is enough for each of them.
    fn room_is_enough<T: Operand>(tier: Tier) {
        let kernels = T::kernels(tier);
        let sizes = [1, 2, 15, 16, 17, 33, 64, 97, 130, 193, 300];
        for (m, n, k) in sizes.iter().flat_map(|&m| sizes.iter().flat_map(move |&n| sizes.map(|k| (m, n, k))))
        {
            let within = Parts::within::<T, T>(kernels, Size { m, n, k });
            // Sizes just below those at which something is cut are among the first.
            for (m, k) in
                (1..=m).step_by(7).chain([m]).flat_map(|m| (0..=k).step_by(5).chain([k]).map(move |k| (m, k)))
            {
                let parts = Parts::new::<T, T>(kernels, Size { m, n, k }).of_whole_sums();
                let what = format!("{m} by {n} by {k} in {within:?}: {parts:?}");
                assert!(parts.slab + parts.waiting + 3 * parts.own() <= within.total(3), "{what}");
                assert!(!parts.alone || parts.slab + parts.own() <= within.alone_room(), "{what}");
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
