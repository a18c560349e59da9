//! Threads: a fixed pool, started once. Work is handed out as numbered blocks; which thread runs a block never matters.

use rayon::prelude::*;
use std::sync::Arc;

/// A pool of threads. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Pool {
    inner: Arc<rayon::ThreadPool>,
    threads: usize,
}

impl Pool {
    /// A pool of `threads` threads (at least one).
    ///
    /// # Panics
    /// If the system starts no threads.
    pub fn new(threads: usize) -> Self {
        let threads = threads.max(1);
        let inner = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("headwater-{i}"))
            .build()
            .expect("the system starts threads");
        Pool { inner: Arc::new(inner), threads }
    }

    /// A pool of as many threads as `HEADWATER_THREADS` says, or as there are cores.
    pub fn from_env() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let asked = std::env::var("HEADWATER_THREADS").ok().and_then(|s| s.trim().parse().ok());
        Pool::new(asked.filter(|&n: &usize| n > 0).unwrap_or(cores))
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `f` on one of the pool's threads, so that what it hands out starts without a hop.
    pub fn enter<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        self.inner.install(f)
    }

    /// Runs `f(block)` for every block in `0..blocks`, in any order, on any threads.
    pub fn each(&self, blocks: usize, f: impl Fn(usize) + Sync) {
        if blocks == 1 || self.threads == 1 {
            (0..blocks).for_each(f);
        } else if blocks > 0 {
            self.enter(|| (0..blocks).into_par_iter().with_max_len(1).for_each(&f));
        }
    }

    /// As [`Pool::each`], giving each running block a part of `workspace` of its own: `workspace.len() / threads`
    /// elements, of undefined content.
    pub fn each_with<T: Send>(&self, blocks: usize, workspace: &mut [T], f: impl Fn(usize, &mut [T]) + Sync) {
        let part = workspace.len() / self.threads;
        if blocks <= 1 || self.threads == 1 {
            return (0..blocks).for_each(|b| f(b, &mut workspace[..part]));
        }
        let base = Shared(workspace.as_mut_ptr());
        self.enter(|| {
            (0..blocks).into_par_iter().with_max_len(1).for_each(|b| {
                let thread = rayon::current_thread_index().unwrap_or(0);
                // SAFETY: `thread < threads` and each thread runs one block at a time (blocks do not hand out work that
                // could be taken up meanwhile: `f` is given no pool), so parts in use at one time do not overlap.
                let own = unsafe { std::slice::from_raw_parts_mut(base.get().add(thread * part), part) };
                f(b, own);
            });
        });
    }

    /// Runs `f(i, chunk)` for consecutive chunks of `size` elements (the last may be shorter).
    pub fn chunks<T: Send>(&self, data: &mut [T], size: usize, f: impl Fn(usize, &mut [T]) + Sync) {
        let size = size.max(1);
        if data.len() <= size || self.threads == 1 {
            data.chunks_mut(size).enumerate().for_each(|(i, c)| f(i, c));
        } else {
            self.enter(|| data.par_chunks_mut(size).with_max_len(1).enumerate().for_each(|(i, c)| f(i, c)));
        }
    }
}

/// A pointer that several threads may use; whoever dereferences it sees to it that they stay apart.
#[derive(Debug)]
pub struct Shared<T>(pub *mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Shared<T> {}

impl<T> Shared<T> {
    /// The pointer. (A method, so that closures capture the whole `Shared`.)
    #[inline(always)]
    pub fn get(self) -> *mut T {
        self.0
    }
}

// SAFETY: a pointer alone does nothing; each dereference carries its own argument.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_block_runs_once() {
        for threads in [1, 3] {
            let pool = Pool::new(threads);
            let sum = AtomicUsize::new(0);
            pool.each(100, |b| _ = sum.fetch_add(b + 1, Ordering::Relaxed));
            assert_eq!(sum.into_inner(), 5050);
            let mut data = vec![0usize; 1000];
            pool.chunks(&mut data, 7, |i, c| c.iter_mut().for_each(|x| *x += i + 1));
            assert!(data.iter().enumerate().all(|(k, &x)| x == k / 7 + 1));
            let mut scratch = vec![0usize; 4 * threads];
            let max = AtomicUsize::new(0);
            pool.each_with(50, &mut scratch, |b, own| {
                own.fill(b);
                std::thread::yield_now();
                assert!(own.len() == 4 && own.iter().all(|&x| x == b));
                max.fetch_max(b, Ordering::Relaxed);
            });
            assert_eq!(max.into_inner(), 49);
        }
    }
}
