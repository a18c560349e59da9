//! Software prefetch: cache lines that are read or written soon, spread over the computation before it.

use crate::matrix::Mat;
use crate::simd::K_UNROLL;
use std::ptr::without_provenance;

const LINE: usize = 64;

/// Contiguous runs of memory to prefetch, in the order of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefetch {
    /// Address of the next run, bytes of a run, bytes from one run to the next, runs left.
    at: usize,
    bytes: usize,
    hop: isize,
    left: usize,
    /// True if it will be written.
    write: bool,
}

impl Prefetch {
    /// Nothing.
    pub const NONE: Prefetch = Prefetch { at: 0, bytes: 0, hop: 0, left: 0, write: false };

    /// All of a matrix whose rows or columns are contiguous; nothing of any other.
    pub fn matrix<T>(x: Mat<T>, rows: usize, cols: usize) -> Prefetch {
        let (left, stride, elements) = match (x.rs, x.cs) {
            (_, 1) => (rows, x.rs, cols),
            (1, _) => (cols, x.cs, rows),
            _ => return Prefetch::NONE,
        };
        Prefetch {
            at: x.ptr.addr(),
            bytes: elements * size_of::<T>(),
            hop: stride * size_of::<T>() as isize,
            left,
            write: false,
        }
    }

    /// The same to be written (prefetchw): lines are taken from another core that owns them.
    pub fn written(self) -> Prefetch {
        Prefetch { write: true, ..self }
    }

    /// Part `i` of `n` of it.
    pub fn part(self, i: usize, n: usize) -> Prefetch {
        let (start, end) = (self.left * i / n, self.left * (i + 1) / n);
        Prefetch { at: self.at.wrapping_add_signed(start as isize * self.hop), left: end - start, ..self }
    }

    /// Spread over `steps` steps.
    pub fn paced(self, steps: usize) -> PacedPrefetch {
        let lines = self.left * self.bytes.div_ceil(LINE);
        PacedPrefetch { ahead: self, offset: 0, lines, steps: steps.max(1), due: 0 }
    }

    /// Prefetches all of it at once, where there is nothing to compute meanwhile.
    pub fn now(self) {
        self.paced(1).step();
    }

    /// Runs left.
    pub fn len(&self) -> usize {
        self.left
    }

    /// The next runs, at most `n`, for a call of the microkernel on `blocks` register tiles of depth `k`.
    /// None if it has no full tile.
    #[inline(always)]
    pub fn take(&mut self, n: usize, blocks: usize, k: usize) -> TilePrefetch {
        let (steps, n) = (k / K_UNROLL, n.min(self.left));
        if n == 0 || blocks == 0 || steps == 0 {
            return TilePrefetch::NONE;
        }
        let each = n.div_ceil(blocks);
        let steps = (steps / each).max(1);
        // A run too long for its time is prefetched in part, from its beginning.
        let soon = TilePrefetch {
            at: self.at,
            hop: self.hop,
            runs: n,
            each,
            steps,
            pace: self.bytes.div_ceil(steps).min(2 * LINE),
        };
        self.at = self.at.wrapping_add_signed(n as isize * self.hop);
        self.left -= n;
        soon
    }
}

/// A prefetch in steps, an even part of its lines in each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacedPrefetch {
    ahead: Prefetch,
    /// Bytes of the first run that were prefetched.
    offset: usize,
    lines: usize,
    steps: usize,
    /// Parts of a line due, of which `steps` make one.
    due: usize,
}

impl PacedPrefetch {
    /// Prefetches the lines of the next step.
    #[inline]
    pub fn step(&mut self) {
        self.due += self.lines;
        while self.due >= self.steps && self.ahead.left > 0 {
            self.due -= self.steps;
            let line = without_provenance(self.ahead.at.wrapping_add(self.offset));
            match self.ahead.write {
                true => prefetch_write(line, 1, 0, 0),
                false => prefetch_l1(line),
            }
            self.offset += LINE;
            if self.offset >= self.ahead.bytes {
                self.ahead.at = self.ahead.at.wrapping_add_signed(self.ahead.hop);
                (self.offset, self.ahead.left) = (0, self.ahead.left - 1);
            }
        }
    }
}

/// A prefetch by a call of the microkernel, evenly while it sums. So loads that the tile itself waits for do
/// not queue after many that go to memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TilePrefetch {
    at: usize,
    hop: isize,
    runs: usize,
    /// Runs for each register tile.
    each: usize,
    /// Steps of [`K_UNROLL`] k-groups for a run, and bytes in each.
    steps: usize,
    pace: usize,
}

impl TilePrefetch {
    /// Nothing.
    pub const NONE: TilePrefetch =
        TilePrefetch { at: 0, hop: 0, runs: 0, each: 0, steps: usize::MAX, pace: 0 };

    /// Address, bytes a step and steps of run `i` of a register tile. Without one, a line that is in the
    /// cache (`near`), again and again.
    #[inline(always)]
    pub fn of<E>(&self, block: usize, i: usize, near: *const E) -> (*const u8, usize, usize) {
        let run = block * self.each + i;
        if i < self.each && run < self.runs {
            let at = self.at.wrapping_add_signed(run as isize * self.hop);
            (without_provenance(at), self.pace, self.steps)
        } else {
            (near.cast(), 0, usize::MAX)
        }
    }
}

/// Prefetches a line, which need not exist, into the first-level cache. Prefetches into the second one were
/// seen to be dropped on a TLB miss (Zen 5).
#[inline(always)]
pub(crate) fn prefetch_l1(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of every such processor; a prefetch may name any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, nomem));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Prefetches a line into the second-level cache.
#[inline(always)]
pub(crate) fn prefetch_l2(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of every such processor; a prefetch may name any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, nomem));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Prefetches lines for writing (prefetchw): into the first-level cache, in the exclusive state, often from
/// another core that wrote there before. Of `rows` rows, with a stride of `stride` bytes, the lines of the
/// first byte and of the byte at offset `last`.
#[inline(always)]
pub(crate) fn prefetch_write(first: *const u8, rows: usize, stride: isize, last: usize) {
    // A number: no memory is touched.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    let mut at = first.addr();
    #[cfg(target_arch = "x86_64")]
    for _ in 0..rows {
        // SAFETY: it only prefetches and adds; any address may be named. Where a processor does not know it,
        // it does nothing.
        unsafe {
            std::arch::asm!(
                "prefetchw [{at}]",
                "prefetchw [{at} + {last}]",
                "lea {at}, [{at} + {stride}]",
                at = inout(reg) at,
                last = in(reg) last,
                stride = in(reg) stride,
                options(nostack, preserves_flags, nomem),
            );
        }
    }
    #[cfg(target_arch = "aarch64")]
    for _ in 0..rows {
        // SAFETY: as above.
        unsafe {
            std::arch::asm!(
                "prfm pstl1keep, [{at}]",
                "prfm pstl1keep, [{at}, {last}]",
                "add {at}, {at}, {stride}",
                at = inout(reg) at,
                last = in(reg) last,
                stride = in(reg) stride,
                options(nostack, preserves_flags, nomem),
            );
        }
    }
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    let _ = at;
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = (first, rows, stride, last);
}
