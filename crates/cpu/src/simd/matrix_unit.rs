//! Matrix units: instructions that multiply whole tiles of bf16 and add the products to tiles of sums in f32.
//! Kernels are written for one trait, [`MatrixUnit`]. A unit in plain Rust, [`PortableUnit`], runs them on
//! any processor, with AMX's bits.

use crate::simd::MAX_LANES;

/// A unit whose tiles have `SIDE` rows of `SIDE` words of 32 bits: sums in f32, or pairs of bf16 (VNNI-2
/// groups).
///
/// It holds 2 × 2 tiles of sums. Words are passed as f32, of which they have the size.
pub(crate) trait MatrixUnit {
    /// Rows of a tile, and words in a row.
    const SIDE: usize;

    /// The unit, ready for products, with any sums.
    ///
    /// # Safety
    /// The processor has it, and the process the right to use it.
    unsafe fn ready() -> Self;

    /// Makes all sums zeros.
    fn zero(&mut self);

    /// Loads `sums[i][j]`, with `stride` bytes from one row to the next.
    ///
    /// # Safety
    /// `SIDE` rows of `SIDE` numbers may be read.
    unsafe fn load(&mut self, i: usize, j: usize, from: *const f32, stride: isize);

    /// `sums[i][j] += left[i] · right[j]` for `R × C` tiles. A left tile is a pointer and the bytes from one
    /// row to the next; its words are k-groups. Rows of the right tiles are k-groups, its words columns, and
    /// row `p` of all right tiles is contiguous.
    ///
    /// # Safety
    /// As many tiles may be read, at any alignment.
    unsafe fn multiply<const R: usize, const C: usize>(
        &mut self,
        left: [(*const f32, isize); 2],
        right: (*const f32, isize),
    );

    /// Stores `sums[i][j]`, with `stride` bytes from one row to the next.
    ///
    /// # Safety
    /// `SIDE` rows of `SIDE` numbers may be written.
    unsafe fn store(&self, i: usize, j: usize, to: *mut f32, stride: isize);
}

/// A matrix unit in plain Rust. A product of tiles sums first and second elements of pairs separately, by
/// fused multiply-adds along `k`. It adds both, and that to the sum before. Subnormal numbers count as zero
/// everywhere. So Intel defines TDPBF16PS (*Intel 64 and IA-32 Architectures Software Developer's Manual*,
/// volume 2). Results that only rounding makes normal are kept here; AMX may flush them.
pub(crate) struct PortableUnit<const SIDE: usize> {
    sums: [[[[f32; SIDE]; SIDE]; 2]; 2],
}

impl<const SIDE: usize> MatrixUnit for PortableUnit<SIDE> {
    const SIDE: usize = SIDE;

    unsafe fn ready() -> Self {
        const { assert!(SIDE <= MAX_LANES) };
        PortableUnit { sums: [[[[0.0; SIDE]; SIDE]; 2]; 2] }
    }

    fn zero(&mut self) {
        self.sums = [[[[0.0; SIDE]; SIDE]; 2]; 2];
    }

    unsafe fn multiply<const R: usize, const C: usize>(
        &mut self,
        left: [(*const f32, isize); 2],
        right: (*const f32, isize),
    ) {
        // SAFETY: a word of a tile, for which the caller vouches.
        let word = |(at, stride): (*const f32, isize), row: usize, column: usize| unsafe {
            at.wrapping_byte_offset(row as isize * stride).add(column).cast::<u32>().read_unaligned()
        };
        for (i, j) in (0..R).flat_map(|i| (0..C).map(move |j| (i, j))) {
            for (m, sums) in self.sums[i][j].iter_mut().enumerate() {
                for (n, sum) in sums.iter_mut().enumerate() {
                    let mut both = [0.0f32; 2];
                    for p in 0..SIDE {
                        let a = elements(word(left[i], m, p));
                        let b = elements(word(right, p, j * SIDE + n));
                        for (x, (a, b)) in both.iter_mut().zip(a.into_iter().zip(b)) {
                            *x = flushed(a.mul_add(b, *x));
                        }
                    }
                    *sum = flushed(*sum + flushed(both[0] + both[1]));
                }
            }
        }
    }

    unsafe fn load(&mut self, i: usize, j: usize, from: *const f32, stride: isize) {
        for (m, row) in self.sums[i][j].iter_mut().enumerate() {
            let from = from.wrapping_byte_offset(m as isize * stride);
            // SAFETY: the caller's promise.
            row.iter_mut().enumerate().for_each(|(n, x)| *x = unsafe { from.add(n).read_unaligned() });
        }
    }

    unsafe fn store(&self, i: usize, j: usize, to: *mut f32, stride: isize) {
        for (m, row) in self.sums[i][j].iter().enumerate() {
            let to = to.wrapping_byte_offset(m as isize * stride);
            // SAFETY: the caller's promise.
            row.iter().enumerate().for_each(|(n, &x)| unsafe { to.add(n).write_unaligned(x) });
        }
    }
}

/// Both elements of a VNNI-2 group, the first in the lower half of the word.
fn elements(word: u32) -> [f32; 2] {
    [word << 16, word & !0xffff].map(|bits| flushed(f32::from_bits(bits)))
}

/// The number, or zero of its sign if it is subnormal.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}
