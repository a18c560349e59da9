//! Threads: a fixed crew, started once. Work is handed out as numbered blocks; which thread runs a block
//! never matters.
//!
//! The caller works too. The others look out for work for a moment before they sleep, so that the many small
//! steps of a plan need no wake-up. A thread that is late, or gets no core, is not waited for: only a block
//! that was taken is.
//!
//! Each thread has a share of consecutive blocks and takes them in order. So what one of its blocks asks of
//! memory for the next is of use. Who is done takes from the ends of the others' shares.

use crate::free;
use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, TryLockError};
use std::thread::JoinHandle;

/// Bytes of address space that a thread takes: Rust's default stack, and guard pages and the stack for
/// signals beside it.
const STACK: usize = (2 << 20) + (64 << 10);

/// A pool of threads. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Pool {
    crew: Arc<Crew>,
    threads: usize,
}

impl Pool {
    /// A pool of `threads` threads (at least one), the caller's among them.
    ///
    /// # Errors
    /// If the system does not start so many.
    pub fn start(threads: usize) -> std::io::Result<Self> {
        let threads = threads.max(1);
        Ok(Pool { crew: Arc::new(Crew::start(threads)?), threads })
    }

    /// As [`Pool::start`], where a few threads are sure to be had: tests, a pool of one.
    ///
    /// # Panics
    /// If the system does not start so many.
    pub fn new(threads: usize) -> Self {
        Pool::start(threads).expect("the system starts threads")
    }

    /// A pool of as many threads as `HEADWATER_THREADS` says, or as there are cores.
    pub fn from_env() -> Self {
        let asked = std::env::var("HEADWATER_THREADS").ok().and_then(|s| s.trim().parse().ok());
        Pool::new(asked.filter(|&n: &usize| n > 0).unwrap_or_else(cores))
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `f(block)` for every block in `0..blocks`, in any order, on any threads.
    pub fn each(&self, blocks: usize, f: impl Fn(usize) + Sync) {
        self.run(blocks, |_, block| f(block));
    }

    /// As [`Pool::each`], giving each running block a part of `workspace` of its own: `workspace.len() /
    /// threads` elements, of undefined content.
    pub fn each_with<T: Send>(&self, blocks: usize, workspace: &mut [T], f: impl Fn(usize, &mut [T]) + Sync) {
        let part = workspace.len() / self.threads;
        let base = Shared(workspace.as_mut_ptr());
        self.run(blocks, |thread, block| {
            // SAFETY: `thread < threads`, and each thread runs one block of this call at a time, so parts in
            // use at one time do not overlap.
            let own = unsafe { std::slice::from_raw_parts_mut(base.get().add(thread * part), part) };
            f(block, own);
        });
    }

    /// Runs `f(i, chunk)` for consecutive chunks of `size` elements (the last may be shorter).
    pub fn chunks<T: Send>(&self, data: &mut [T], size: usize, f: impl Fn(usize, &mut [T]) + Sync) {
        let (size, len) = (size.max(1), data.len());
        let base = Shared(data.as_mut_ptr());
        self.run(len.div_ceil(size), |_, i| {
            let n = size.min(len - i * size);
            // SAFETY: chunks are disjoint parts of `data`, which is borrowed exclusively, and each is given
            // out once.
            f(i, unsafe { std::slice::from_raw_parts_mut(base.get().add(i * size), n) });
        });
    }

    /// Runs `f(thread, block)` for every block. A pool in use, by another caller or by one of its own blocks,
    /// does not divide the work. It is done by the calling thread, as thread 0.
    fn run<F: Fn(usize, usize) + Sync>(&self, blocks: usize, f: F) {
        if blocks > 1 && self.threads > 1 && u32::try_from(blocks).is_ok() {
            // A block that panicked has poisoned the lock, which guards no data.
            let turn = match self.crew.turn.try_lock() {
                Err(TryLockError::Poisoned(turn)) => Some(turn.into_inner()),
                other => other.ok(),
            };
            if turn.is_some() {
                return self.crew.post.run(blocks, &f);
            }
        }
        (0..blocks).for_each(|b| f(0, b));
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The threads besides the caller. They are those of the process that started them. A forked child has none:
/// there the caller does all work, and nobody is waited for.
#[derive(Debug)]
struct Crew {
    post: Arc<Post>,
    members: Vec<JoinHandle<()>>,
    /// Held by the thread that hands out work.
    turn: Mutex<()>,
}

impl Crew {
    fn start(threads: usize) -> std::io::Result<Crew> {
        // A thread whose signal stack cannot be mapped ends the process: the limit is checked before any is
        // started.
        let stacks = threads.saturating_sub(1).saturating_mul(STACK);
        if free::address_space().is_some_and(|left| stacks > left) {
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
        // Looking out pays only on a core of one's own.
        let patience = if threads <= cores() { LOOKS } else { 0 };
        let shares = (0..threads).map(|_| Share::default()).collect();
        let post = Arc::new(Post { patience, shares, process: std::process::id(), ..Post::default() });
        let mut crew = Crew { members: Vec::new(), turn: Mutex::new(()), post };
        // A thread's own beginning belongs to no step: all have begun before the pool is used.
        let (begins, begun) = channel();
        for thread in 1..threads {
            let (post, begins) = (Arc::clone(&crew.post), begins.clone());
            let named = std::thread::Builder::new().name(format!("headwater-{thread}"));
            let serve = move || {
                // The channel is open until all have begun, or the crew is dismissed.
                let _ = begins.send(());
                post.serve(thread);
            };
            // Dropping the crew dismisses those that were started.
            crew.members.push(named.spawn(serve)?);
        }
        begun.iter().take(threads - 1).for_each(drop);
        Ok(crew)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        if !self.post.at_home() {
            // The handles are of threads that are not here.
            self.members.drain(..).for_each(std::mem::forget);
            return;
        }
        self.post.dismissed.store(true, Ordering::SeqCst);
        self.post.wake();
        for member in self.members.drain(..) {
            // A member catches what its blocks throw, so it ends well.
            let _ = member.join();
        }
    }
}

/// Number of times that a thread looks for work before it sleeps: about a tenth of a millisecond.
const LOOKS: usize = 4000;

/// Work handed out at one time.
struct Job {
    data: *const (),
    call: unsafe fn(*const (), usize, usize),
}

/// Blocks that a thread has not taken yet: the first in the low half, the one after the last in the high
/// half. On a line of the caches of its own.
#[derive(Default)]
#[repr(align(64))]
struct Share(AtomicU64);

impl Share {
    const HALF: u32 = 32;

    fn set(&self, first: usize, end: usize) {
        self.0.store(first as u64 | (end as u64) << Self::HALF, Ordering::Relaxed);
    }

    /// Takes the first block, or the last.
    fn take(&self, last: bool) -> Option<usize> {
        let ends = |share: u64| (share & u32::MAX as u64, share >> Self::HALF);
        let without = |share: u64| {
            let (first, end) = ends(share);
            (first < end).then(|| if last { share - (1 << Self::HALF) } else { share + 1 })
        };
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, without).ok()?;
        let (first, end) = ends(before);
        Some(if last { end - 1 } else { first } as usize)
    }
}

/// The place where work is handed out.
#[derive(Default)]
struct Post {
    /// From the low bits: threads that have joined the job, whether it is open to join, and the number of the
    /// job.
    gate: AtomicU64,
    /// The job. Written by the one who hands out work while the gate is closed and nobody has joined; read by
    /// those who have.
    job: UnsafeCell<Option<Job>>,
    /// For each thread. Set while the gate is closed and nobody has joined.
    shares: Vec<Share>,
    /// The panic of a block.
    thrown: Mutex<Option<Box<dyn Any + Send>>>,
    patience: usize,
    /// The process whose threads these are.
    process: u32,
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    bell: Condvar,
    dismissed: AtomicBool,
}

// SAFETY: `job` is written and read as its comment says; the gate orders these accesses. The function in it
// is `Sync`.
unsafe impl Sync for Post {}
// SAFETY: the pointer in `job` is followed only while the gate says that the job is going on.
unsafe impl Send for Post {}

impl std::fmt::Debug for Post {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Post").field("gate", &self.gate).finish_non_exhaustive()
    }
}

const OPEN: u64 = 1 << 16;
const JOINED: u64 = OPEN - 1;

impl Post {
    /// Runs all blocks of `f`. The caller holds the turn.
    fn run<F: Fn(usize, usize) + Sync>(&self, blocks: usize, f: &F) {
        /// # Safety
        /// `data` points to a live `F`.
        unsafe fn call<F: Fn(usize, usize)>(data: *const (), thread: usize, block: usize) {
            // SAFETY: the caller's promise.
            unsafe { (*data.cast::<F>())(thread, block) }
        }
        // SAFETY: the gate is closed and nobody has joined: the last job ended so.
        unsafe { *self.job.get() = Some(Job { data: std::ptr::from_ref(f).cast(), call: call::<F> }) };
        let threads = self.shares.len();
        for (t, share) in self.shares.iter().enumerate() {
            share.set(blocks * t / threads, blocks * (t + 1) / threads);
        }
        let number = self.gate.load(Ordering::Relaxed) / (2 * OPEN) + 1;
        self.gate.store(number * (2 * OPEN) + OPEN, Ordering::SeqCst);
        // A forked child finds sleepers that never wake, and the bed perhaps locked by one of them.
        if self.sleepers.load(Ordering::SeqCst) > 0 && self.at_home() {
            self.wake();
        }
        self.work(0);
        self.gate.fetch_and(!OPEN, Ordering::AcqRel);
        // Blocks still running are waited for; `f` may not go before.
        let mut looks = 0;
        while self.gate.load(Ordering::Acquire) & JOINED != 0 {
            looks += 1;
            if looks < LOOKS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        let thrown = self.thrown.lock().map_or(None, |mut t| t.take());
        if let Some(thrown) = thrown {
            resume_unwind(thrown);
        }
    }

    /// Takes blocks until there are none. The calling thread has joined the job, or hands it out.
    fn work(&self, thread: usize) {
        // SAFETY: the job is not written while somebody works at it.
        let Some(job) = (unsafe { &*self.job.get() }) else { return };
        let all = catch_unwind(AssertUnwindSafe(|| {
            let (before, from) = self.shares.split_at(thread);
            let take = || {
                let mut others = from[1..].iter().chain(before);
                from[0].take(false).or_else(|| others.find_map(|s| s.take(true)))
            };
            while let Some(block) = take() {
                // SAFETY: the function lives until all who have joined have left.
                unsafe { (job.call)(job.data, thread, block) };
            }
        }));
        if let Err(thrown) = all {
            // Nobody takes further blocks.
            self.shares.iter().for_each(|s| s.set(0, 0));
            if let Ok(mut first) = self.thrown.lock() {
                first.get_or_insert(thrown);
            }
        }
    }

    /// True in the process that started the threads.
    fn at_home(&self) -> bool {
        std::process::id() == self.process
    }

    fn wake(&self) {
        let _bed = self.bed.lock();
        self.bell.notify_all();
    }

    /// The number of the job that is open, if it is not `last`.
    fn news(&self, last: u64) -> Option<u64> {
        let gate = self.gate.load(Ordering::SeqCst);
        (gate & OPEN != 0 && gate / (2 * OPEN) != last).then_some(gate)
    }

    /// The life of a thread.
    fn serve(&self, thread: usize) {
        let mut last = 0;
        while !self.dismissed.load(Ordering::SeqCst) {
            let mut looks = 0;
            while looks < self.patience && self.news(last).is_none() {
                std::hint::spin_loop();
                looks += 1;
            }
            let Some(gate) = self.news(last) else {
                self.sleep(last);
                continue;
            };
            // Another thread may have joined meanwhile; then one looks again.
            let joined = self.gate.compare_exchange_weak(gate, gate + 1, Ordering::AcqRel, Ordering::Relaxed);
            if joined.is_ok() {
                last = gate / (2 * OPEN);
                self.work(thread);
                self.gate.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    fn sleep(&self, last: u64) {
        let Ok(mut bed) = self.bed.lock() else { return };
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.news(last).is_none() && !self.dismissed.load(Ordering::SeqCst) {
            match self.bell.wait(bed) {
                Ok(again) => bed = again,
                Err(_) => break,
            }
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A pointer that several threads may use; code that dereferences it ensures that their accesses are
/// disjoint.
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

    #[test]
    fn many_small_jobs_awake_and_asleep() {
        let pool = Pool::new(3);
        for job in 0..2000usize {
            if job % 200 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            let sum = AtomicUsize::new(0);
            pool.each(5, |b| _ = sum.fetch_add(b + job, Ordering::Relaxed));
            assert_eq!(sum.into_inner(), 10 + 5 * job);
        }
    }

    #[test]
    fn a_pool_in_use_does_the_work_on_the_spot() {
        let pool = Pool::new(3);
        let sum = AtomicUsize::new(0);
        pool.each(4, |_| pool.each(10, |b| _ = sum.fetch_add(b, Ordering::Relaxed)));
        assert_eq!(sum.load(Ordering::Relaxed), 180);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| pool.each(100, |_| _ = sum.fetch_add(1, Ordering::Relaxed)));
            }
        });
        assert_eq!(sum.into_inner(), 580);
    }

    #[test]
    fn a_panic_in_a_block_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2);
        for bad in 0..4 {
            let run = AssertUnwindSafe(|| pool.each(4, |b| assert!(b != bad, "block {b}")));
            let message = catch_unwind(run).unwrap_err();
            assert_eq!(message.downcast_ref::<String>().unwrap(), &format!("block {bad}"));
        }
        let sum = AtomicUsize::new(0);
        pool.each(10, |b| _ = sum.fetch_add(b, Ordering::Relaxed));
        assert_eq!(sum.into_inner(), 45);
    }

    #[cfg(unix)]
    unsafe extern "C" {
        fn fork() -> i32;
        fn waitpid(child: i32, status: *mut i32, options: i32) -> i32;
        fn _exit(status: i32) -> !;
    }

    /// Runs `child` in a forked process, and tells whether it ended well.
    #[cfg(unix)]
    fn forked(child: impl FnOnce()) -> bool {
        // SAFETY: the child has this thread alone, takes no lock of others but those of the allocator, which
        // the C library keeps usable, and leaves by `_exit`.
        let id = unsafe { fork() };
        if id == 0 {
            let ended = catch_unwind(AssertUnwindSafe(child));
            // SAFETY: ends the process.
            unsafe { _exit(ended.is_err() as i32) };
        }
        let mut status = -1;
        // SAFETY: `id` is a child of this process, and `status` outlives the call.
        id > 0 && unsafe { waitpid(id, &mut status, 0) } == id && status == 0
    }

    #[test]
    #[cfg(unix)]
    fn a_forked_child_works_alone_and_drops_the_pool_without_its_threads() {
        let pool = Pool::new(3);
        let sum = AtomicUsize::new(0);
        pool.each(100, |b| _ = sum.fetch_add(b, Ordering::Relaxed));
        // Once while the threads look out for work, once while they sleep.
        for asleep in [false, true] {
            if asleep {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            let inherited = pool.clone();
            let child = || {
                let sum = AtomicUsize::new(0);
                inherited.each(100, |b| _ = sum.fetch_add(b, Ordering::Relaxed));
                assert_eq!(sum.into_inner(), 4950);
                // Both handles: the last one dismisses the crew.
                // SAFETY: the child leaves without running the parent's destructors, so this one alone drops
                // it.
                drop(unsafe { std::ptr::read(&pool) });
                drop(inherited);
            };
            assert!(forked(child), "asleep: {asleep}");
        }
        assert!(!forked(|| panic!("a child that fails is seen")));
        pool.each(100, |b| _ = sum.fetch_add(b, Ordering::Relaxed));
        assert_eq!(sum.into_inner(), 2 * 4950, "the parent's threads are as they were");
    }
}
