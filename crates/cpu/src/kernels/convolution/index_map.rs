//! Index maps of convolutions: which input an output reads through which filter tap, as affine functions
//! along each dimension.

use crate::gemm::IndirectRun;
use headwater_core::ops::conv::geometry::Conv;
use std::ops::Range;

/// Spatial sizes: input, output, kernel, stride, dilation, padding.
pub(super) fn spatial(c: &Conv) -> [[usize; 3]; 6] {
    [c.input, c.output, c.kernel, c.stride, c.dilation, c.pad]
}

/// An affine index map: along dimension `d`, output `r` reads through filter tap `t` the input
/// `r · step[d] + t · tap[d] + base[d]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct IndexMap {
    /// Size of the input.
    pub source: [usize; 3],
    /// Size of the output.
    pub result: [usize; 3],
    /// Size of the filter.
    pub taps: [usize; 3],
    pub step: [usize; 3],
    pub tap: [usize; 3],
    pub base: [isize; 3],
}

impl IndexMap {
    /// Outputs whose input through a tap is inside the image, along dimension `d`.
    pub fn outputs_inside(&self, d: usize, tap: usize) -> Range<usize> {
        let first = (tap * self.tap[d]) as isize + self.base[d];
        let (before, inside, _) = within(first, self.step[d], self.result[d], self.source[d]);
        before..before + inside
    }
}

/// True if the filter has one tap, and all inputs are inside the image.
pub(super) fn single(m: &IndexMap) -> bool {
    (0..3).all(|d| {
        let last = m.base[d] + (m.result[d].saturating_sub(1) * m.step[d]) as isize;
        m.taps[d] == 1 && m.base[d] >= 0 && last < m.source[d] as isize
    })
}

/// Clips the indices `first + i · stride`, `i < held`, to a dimension of `size`: how many are before it, how
/// many inside, and the first of these, if there are any.
pub(super) fn within(first: isize, stride: usize, held: usize, size: usize) -> (usize, usize, usize) {
    let before = usize::try_from(-first).unwrap_or(0).div_ceil(stride).min(held);
    let start = first + (before * stride) as isize;
    let inside = usize::try_from(size as isize - start).unwrap_or(0).div_ceil(stride);
    (before, inside.min(held - before), usize::try_from(start).unwrap_or(0))
}

/// The reduction of some outputs over some channels, as [`crate::gemm::IndirectTile`] takes it.
#[derive(Clone, Debug, Default)]
pub(super) struct Reduction {
    pub runs: Vec<IndirectRun>,
    pub inner: usize,
    pub pitch: usize,
}
