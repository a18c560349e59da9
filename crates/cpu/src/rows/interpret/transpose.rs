//! Transpositions of matrices of plain elements, which may be anything of 1, 2, 4 or 8 bytes.

use crate::gemm::Operand;
use crate::matrix::Mat;
use crate::prefetch::prefetch_l2;
use crate::tier::Tier;

/// Element `(r, c)`, at `from + r · step + c`, becomes element `(c, r)`, at `to + c · pitch + r`, in elements
/// of `size` bytes.
#[derive(Clone, Copy, Debug)]
pub(in crate::rows) struct Transposition {
    pub tier: Tier,
    pub size: usize,
    pub from: *const u8,
    pub step: isize,
    pub to: *mut u8,
    pub pitch: usize,
    pub rows: usize,
    pub cols: usize,
}

impl Transposition {
    /// Prefetches the first line of memory of each row, all at once. The rows' stride is often a multiple of
    /// the page size, so that the caches hold few of them, and nothing that was prefetched long before.
    #[inline]
    pub fn prefetch(&self) {
        for r in 0..self.rows as isize {
            prefetch_l2(self.from.wrapping_offset(r * self.step * self.size as isize));
        }
    }

    /// # Safety
    /// The elements may be read, or written, and are aligned to their size; they do not overlap. The
    /// processor has the tier.
    #[inline]
    pub unsafe fn run(self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.size {
                8 => self.wide::<f64>(),
                4 => self.wide::<f32>(),
                2 => self.halves(),
                _ => self.part::<u8>(0, 0),
            }
        }
    }

    /// # Safety
    /// As [`Transposition::run`], of elements of this size: they are moved, whatever they stand for.
    unsafe fn wide<T: Operand>(self) {
        let x = Mat { ptr: self.from.cast(), rs: self.step, cs: 1 };
        let transpose = T::kernels(self.tier).transpose;
        // SAFETY: the caller's promise.
        unsafe { transpose(x, self.rows, self.cols, self.to.cast(), self.pitch) }
    }

    /// Elements after whole blocks of so many rows and columns, one by one.
    ///
    /// # Safety
    /// As [`Transposition::run`], of elements of this size.
    unsafe fn part<T: Copy>(self, rows: usize, cols: usize) {
        let (from, to) = (self.from.cast::<T>(), self.to.cast::<T>());
        for c in 0..self.cols {
            for r in if c < cols { rows } else { 0 }..self.rows {
                // SAFETY: the caller's promise.
                unsafe { *to.add(c * self.pitch + r) = *from.offset(r as isize * self.step).add(c) };
            }
        }
    }

    /// Elements of two bytes.
    ///
    /// # Safety
    /// As [`Transposition::run`].
    unsafe fn halves(self) {
        let (rows, cols) = (self.rows / EIGHT * EIGHT, self.cols / EIGHT * EIGHT);
        let (from, to) = (self.from.cast::<u16>(), self.to.cast::<u16>());
        for r in (0..rows).step_by(EIGHT) {
            for c in (0..cols).step_by(EIGHT) {
                let from = from.wrapping_offset(r as isize * self.step).wrapping_add(c);
                // SAFETY: a block of the matrix.
                unsafe { block(from, self.step, to.wrapping_add(c * self.pitch + r), self.pitch) };
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.part::<u16>(rows, cols) };
    }
}

/// Rows and columns of a block of elements of two bytes.
const EIGHT: usize = 8;

/// # Safety
/// As [`Transposition::run`], of a block.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn block(from: *const u16, step: isize, to: *mut u16, pitch: usize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's promise; SSE2 is part of the architecture.
    unsafe {
        let x: [__m128i; EIGHT] =
            std::array::from_fn(|i| _mm_loadu_si128(from.wrapping_offset(i as isize * step).cast()));
        // Pairs of rows, then fours, then all.
        let pair = |i: usize| [_mm_unpacklo_epi16(x[i], x[i + 1]), _mm_unpackhi_epi16(x[i], x[i + 1])];
        let four = |a: __m128i, b: __m128i| [_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b)];
        let ([a, b], [c, d]) = (pair(0), pair(2));
        let ([e, f], [g, h]) = (pair(4), pair(6));
        let upper = [four(a, c), four(b, d)];
        let lower = [four(e, g), four(f, h)];
        for i in 0..4 {
            let (u, l) = (upper[i / 2][i % 2], lower[i / 2][i % 2]);
            _mm_storeu_si128(to.wrapping_add(2 * i * pitch).cast(), _mm_unpacklo_epi64(u, l));
            _mm_storeu_si128(to.wrapping_add((2 * i + 1) * pitch).cast(), _mm_unpackhi_epi64(u, l));
        }
    }
}

/// # Safety
/// As [`Transposition::run`], of a block.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn block(from: *const u16, step: isize, to: *mut u16, pitch: usize) {
    use std::arch::aarch64::*;
    // SAFETY: the caller's promise; NEON is part of the architecture.
    unsafe {
        let x: [uint16x8_t; EIGHT] =
            std::array::from_fn(|i| vld1q_u16(from.wrapping_offset(i as isize * step)));
        // Pairs of rows, then fours, then all.
        let pair = |i: usize| {
            [vzip1q_u16(x[i], x[i + 1]), vzip2q_u16(x[i], x[i + 1])].map(|x| vreinterpretq_u32_u16(x))
        };
        let four = |a: uint32x4_t, b: uint32x4_t| {
            [vzip1q_u32(a, b), vzip2q_u32(a, b)].map(|x| vreinterpretq_u64_u32(x))
        };
        let ([a, b], [c, d]) = (pair(0), pair(2));
        let ([e, f], [g, h]) = (pair(4), pair(6));
        let upper = [four(a, c), four(b, d)];
        let lower = [four(e, g), four(f, h)];
        for i in 0..4 {
            let (u, l) = (upper[i / 2][i % 2], lower[i / 2][i % 2]);
            vst1q_u16(to.wrapping_add(2 * i * pitch), vreinterpretq_u16_u64(vzip1q_u64(u, l)));
            vst1q_u16(to.wrapping_add((2 * i + 1) * pitch), vreinterpretq_u16_u64(vzip2q_u64(u, l)));
        }
    }
}

/// # Safety
/// As [`Transposition::run`], of a block.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
unsafe fn block(from: *const u16, step: isize, to: *mut u16, pitch: usize) {
    for c in 0..EIGHT {
        for r in 0..EIGHT {
            // SAFETY: the caller's promise.
            unsafe { *to.add(c * pitch + r) = *from.offset(r as isize * step).add(c) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements that tell where they came from, of every size, in blocks and not, from rows in either order.
    #[test]
    fn every_element_moves_to_its_place() {
        for tier in Tier::ALL.into_iter().filter(|&t| t <= Tier::detect()) {
            for size in [1, 2, 4, 8] {
                for (rows, cols) in [(1, 1), (8, 8), (16, 24), (19, 37), (5, 64), (64, 3)] {
                    for backwards in [false, true] {
                        let (width, pitch) = (cols + 3, rows + 2);
                        let from: Vec<u8> = (0..rows * width * size).map(|i| (i * 37 % 251) as u8).collect();
                        // Memory between columns is somebody else's.
                        let mut to = vec![u64::MAX; usize::div_ceil(cols * pitch * size, 8)];
                        let aligned: Vec<u64> = from
                            .chunks(8)
                            .map(|c| c.iter().rev().fold(0, |n, &b| n << 8 | b as u64))
                            .collect();
                        let base: *const u8 = aligned.as_ptr().cast();
                        let (first, step) = match backwards {
                            false => (0, width as isize),
                            true => ((rows - 1) * width * size, -(width as isize)),
                        };
                        let to_ptr: *mut u8 = to.as_mut_ptr().cast();
                        let from_ptr = base.wrapping_add(first);
                        let t =
                            Transposition { tier, size, from: from_ptr, step, to: to_ptr, pitch, rows, cols };
                        // SAFETY: both are large enough, and aligned.
                        unsafe { t.run() };
                        let bytes: &[u8] = bytemuck::cast_slice(&to);
                        for (r, c) in (0..rows).flat_map(|r| (0..cols).map(move |c| (r, c))) {
                            let row = if backwards { rows - 1 - r } else { r };
                            let want = &from[(row * width + c) * size..][..size];
                            assert_eq!(&bytes[(c * pitch + r) * size..][..size], want, "{t:?} at {r}, {c}");
                        }
                        for c in 0..cols {
                            let gap = &bytes[(c * pitch + rows) * size..(c + 1) * pitch * size];
                            assert!(gap.iter().all(|&b| b == 0xff), "{t:?} behind column {c}");
                        }
                    }
                }
            }
        }
    }
}
