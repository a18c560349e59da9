//! Memory that is read or written soon, asked for while something else is computed.

use super::Mat;
use super::lanes::PLACES;
use std::ptr::without_provenance;

const LINE: usize = 64;

/// Stretches of memory to be asked for, in the order of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    /// Address of the stretch that comes next, bytes of a stretch, bytes from one to the next, stretches
    /// left.
    at: usize,
    bytes: usize,
    hop: isize,
    left: usize,
    /// Whether it will be written.
    write: bool,
}

impl Ahead {
    /// Nothing.
    pub const NONE: Ahead = Ahead { at: 0, bytes: 0, hop: 0, left: 0, write: false };

    /// All of a matrix of which rows or columns lie together; nothing of any other.
    pub fn matrix<T>(x: Mat<T>, rows: usize, cols: usize) -> Ahead {
        let (left, stride, elements) = match (x.rs, x.cs) {
            (_, 1) => (rows, x.rs, cols),
            (1, _) => (cols, x.cs, rows),
            _ => return Ahead::NONE,
        };
        Ahead {
            at: x.ptr.addr(),
            bytes: elements * size_of::<T>(),
            hop: stride * size_of::<T>() as isize,
            left,
            write: false,
        }
    }

    /// The same to be written: what another thread holds of it is taken from there.
    pub fn written(self) -> Ahead {
        Ahead { write: true, ..self }
    }

    /// Part `i` of `n` of it.
    pub fn part(self, i: usize, n: usize) -> Ahead {
        let (start, end) = (self.left * i / n, self.left * (i + 1) / n);
        Ahead { at: self.at.wrapping_add_signed(start as isize * self.hop), left: end - start, ..self }
    }

    /// To be asked for in so many steps.
    pub fn paced(self, steps: usize) -> Paced {
        let lines = self.left * self.bytes.div_ceil(LINE);
        Paced { ahead: self, offset: 0, lines, steps: steps.max(1), due: 0 }
    }

    /// Asks for all of it at once, where there is nothing to compute meanwhile.
    pub fn now(self) {
        self.paced(1).step();
    }

    /// Stretches left.
    pub fn len(&self) -> usize {
        self.left
    }

    /// The next stretches, at most `n`, for a tile of so many whole blocks that are summed over `k`: none if
    /// it has none.
    #[inline(always)]
    pub fn take(&mut self, n: usize, blocks: usize, k: usize) -> Soon {
        let (steps, n) = (k / PLACES, n.min(self.left));
        if n == 0 || blocks == 0 || steps == 0 {
            return Soon::NONE;
        }
        let each = n.div_ceil(blocks);
        let steps = (steps / each).max(1);
        // Of a stretch too long for its time the beginning is asked for.
        let soon = Soon {
            at: self.at,
            hop: self.hop,
            stretches: n,
            each,
            steps,
            pace: self.bytes.div_ceil(steps).min(2 * LINE),
        };
        self.at = self.at.wrapping_add_signed(n as isize * self.hop);
        self.left -= n;
        soon
    }
}

/// Stretches that are asked for step by step, an even part of their lines in each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paced {
    ahead: Ahead,
    /// Bytes of the first stretch asked for.
    offset: usize,
    lines: usize,
    steps: usize,
    /// Parts of a line due, of which `steps` make one.
    due: usize,
}

impl Paced {
    /// Asks for the lines of the next step.
    #[inline]
    pub fn step(&mut self) {
        self.due += self.lines;
        while self.due >= self.steps && self.ahead.left > 0 {
            self.due -= self.steps;
            let line = without_provenance(self.ahead.at.wrapping_add(self.offset));
            match self.ahead.write {
                true => claim(line, 1, 0, 0),
                false => ask(line),
            }
            self.offset += LINE;
            if self.offset >= self.ahead.bytes {
                self.ahead.at = self.ahead.at.wrapping_add_signed(self.ahead.hop);
                (self.offset, self.ahead.left) = (0, self.ahead.left - 1);
            }
        }
    }
}

/// Stretches that a tile asks for, evenly while it sums: so loads that the tile itself waits for do not queue
/// behind many that go to memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Soon {
    at: usize,
    hop: isize,
    stretches: usize,
    /// Stretches in each block.
    each: usize,
    /// Steps of [`PLACES`] places for a stretch, and bytes in each.
    steps: usize,
    pace: usize,
}

impl Soon {
    /// Nothing.
    pub const NONE: Soon = Soon { at: 0, hop: 0, stretches: 0, each: 0, steps: usize::MAX, pace: 0 };

    /// Where part `i` of a block begins to ask, its pace, and its steps. Where there is nothing to ask for,
    /// it is for a line that is `near`.
    #[inline(always)]
    pub fn of<E>(&self, block: usize, i: usize, near: *const E) -> (*const u8, usize, usize) {
        let stretch = block * self.each + i;
        if i < self.each && stretch < self.stretches {
            let at = self.at.wrapping_add_signed(stretch as isize * self.hop);
            (without_provenance(at), self.pace, self.steps)
        } else {
            (near.cast(), 0, usize::MAX)
        }
    }
}

/// Asks for a line of memory, which need not exist, up to the first-level cache: asked for up to the second
/// one, a line of a page whose place the processor has to look up was seen not to come (Zen 5).
#[inline(always)]
pub(crate) fn ask(at: *const u8) {
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

/// The same up to the second-level cache.
#[inline(always)]
pub(crate) fn ask_second(at: *const u8) {
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

/// Asks for lines of memory that are written soon, up to the first-level cache, and takes them from whoever
/// has them: another thread, often, which wrote there before. Read first, they would have to be asked for
/// again when they are written. Of `rows` rows, `stride` bytes apart, the lines of the first byte and of that
/// `last` bytes behind it.
#[inline(always)]
pub(super) fn claim(first: *const u8, rows: usize, stride: isize, last: usize) {
    // A number: no memory is touched.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    let mut at = first.addr();
    #[cfg(target_arch = "x86_64")]
    for _ in 0..rows {
        // SAFETY: it does nothing but ask and add; any address may be named. Where a processor does not
        // know it, it does nothing.
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
