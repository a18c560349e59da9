//! Memory that is read soon, asked for while something else is computed.

use super::Mat;
use std::ops::Range;

const LINE: usize = 64;

/// The lines of a matrix, or of some of its rows, in the order of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    /// Address of the stretch that comes next: its first line, and the next line of it.
    at: usize,
    line: usize,
    /// Lines of a stretch, bytes from one to the next, stretches left.
    lines: usize,
    stride: isize,
    left: usize,
}

impl Ahead {
    /// Nothing.
    pub const NONE: Ahead = Ahead { at: 0, line: 0, lines: 0, stride: 0, left: 0 };

    /// All of a matrix of which rows or columns lie together; nothing of any other.
    pub fn matrix<T>(x: Mat<T>, rows: usize, cols: usize) -> Ahead {
        let (stretches, stride, elements) = match (x.rs, x.cs) {
            (_, 1) => (rows, x.rs, cols),
            (1, _) => (cols, x.cs, rows),
            _ => return Ahead::NONE,
        };
        let start = x.ptr.addr();
        let before = start % LINE;
        Ahead {
            at: start - before,
            line: 0,
            lines: (before + elements * size_of::<T>()).div_ceil(LINE),
            stride: stride * size_of::<T>() as isize,
            left: stretches,
        }
    }

    /// Part `i` of `n` of it.
    pub fn part(self, i: usize, n: usize) -> Ahead {
        let Range { start, end } = self.left * i / n..self.left * (i + 1) / n;
        Ahead { at: self.at.wrapping_add_signed(start as isize * self.stride), left: end - start, ..self }
    }

    /// Lines in all.
    pub fn len(&self) -> usize {
        self.lines * self.left
    }

    /// Asks for the next lines, if there are any.
    #[inline(always)]
    pub fn ask(&mut self, n: usize) {
        for _ in 0..n {
            if self.left == 0 {
                return;
            }
            prefetch(self.at.wrapping_add(self.line * LINE));
            self.line += 1;
            if self.line == self.lines {
                self.line = 0;
                self.at = self.at.wrapping_add_signed(self.stride);
                self.left -= 1;
            }
        }
    }
}

/// Asks for a line of memory, which need not exist, up to the second-level cache.
#[inline(always)]
fn prefetch(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of every such processor; a prefetch may name any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(std::ptr::without_provenance(address));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
