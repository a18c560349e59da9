//! A padded tile of the input, channels first (NCHW): inputs of a block of outputs in scratch memory, with
//! zeros for the padding. With strides, columns of one residue modulo the stride are contiguous, since
//! neighbouring outputs read them through one tap. Elements are widened, or left as they are if sums take
//! several columns at a time.

use super::blocks::{Block, Blocks};
use super::index_map::{IndexMap, within};
use super::strided;
use crate::element::Element;
use crate::gemm::{Operand, PanelKernels};
use crate::matrix::Mat;

/// For each image of a block and each of its channels, `depths × lines × residues × columns`.
#[derive(Clone, Copy, Debug)]
pub(super) struct NchwTile {
    map: IndexMap,
    blocks: Blocks,
    /// Channels held at a time.
    pub channels: usize,
    depths: usize,
    /// Lines held, and lines of the image from one to the next.
    lines: usize,
    line_stride: usize,
    /// Columns of a residue, residues that are held, and columns of the image from one to the next.
    columns: usize,
    residues: usize,
    column_stride: usize,
    /// Columns in a k-group: lines begin at multiples of them.
    k_group: usize,
}

impl NchwTile {
    pub fn new(mut map: IndexMap, blocks: Blocks, channels: usize, k_group: usize) -> NchwTile {
        // A single output has no neighbour a stride away.
        (0..3).filter(|&d| map.result[d] <= 1).for_each(|d| map.step[d] = 1);
        let m = &map;
        let held =
            |d: usize, outputs: usize| outputs.saturating_sub(1) * m.step[d] + (m.taps[d] - 1) * m.tap[d] + 1;
        // With a single tap only the lines and columns it reads.
        let line_stride = if m.taps[1] == 1 { m.step[1] } else { 1 };
        let residues = if m.taps[2] == 1 { 1 } else { m.step[2] };
        // Columns taken with the last of an odd number belong to no other line.
        let whole = [blocks.columns, blocks.width].iter().all(|n| n.is_multiple_of(k_group));
        let behind = if whole { 0 } else { k_group - 1 };
        NchwTile {
            map,
            blocks,
            channels,
            depths: held(0, 1),
            lines: held(1, blocks.lines).div_ceil(line_stride),
            line_stride,
            columns: held(2, blocks.columns).div_ceil(m.step[2]) + behind,
            residues,
            column_stride: m.step[2],
            k_group,
        }
    }

    fn line(&self) -> usize {
        (self.residues * self.columns).next_multiple_of(self.k_group)
    }

    fn plane(&self) -> usize {
        self.depths * self.lines * self.line()
    }

    /// Elements of scratch memory; the last one's neighbours may be taken with it.
    pub fn elements(&self) -> usize {
        self.blocks.images_per_block * self.channels * self.plane() + self.k_group - 1
    }

    /// Offset of the first inputs that the outputs of a line read through tap 0: of each image of a block,
    /// line by line.
    pub fn outputs(&self) -> Vec<isize> {
        let (each, step) = (self.channels * self.plane(), self.map.step[1] / self.line_stride);
        let at = |[image, line]: [usize; 2]| image * each + line * step * self.line();
        self.blocks.each_line().map(|copy| at(copy) as isize).collect()
    }

    /// Offsets that further taps and channels add to that: of each channel, tap by tap.
    pub fn taps(&self) -> Vec<usize> {
        let m = &self.map;
        let mut starts = Vec::new();
        for channel in 0..self.channels {
            for a in 0..m.taps[0] {
                for b in 0..m.taps[1] {
                    for c in 0..m.taps[2] {
                        let line = a * m.tap[0] * self.lines + b * m.tap[1];
                        let column = c * m.tap[2];
                        let (residue, column) = (column % self.column_stride, column / self.column_stride);
                        starts.push(
                            channel * self.plane() + line * self.line() + residue * self.columns + column,
                        );
                    }
                }
            }
        }
        starts
    }

    /// Holds some channels of the images of a block. The first channel of sample `n` starts at
    /// `x[n · sample]`. `place` maps rows of a matrix to memory, with a stride in elements.
    ///
    /// # Safety
    /// `x` points to the requested channels of the first sample; all samples are readable. `copy` needs no
    /// more than that its elements may be read and written; elements are those of `T`, or as wide as what it
    /// is computed in.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn fill<T: Operand, E: Element>(
        &self,
        panels: &PanelKernels<T>,
        copy: unsafe fn(Mat<T>, usize, usize, *mut E, usize),
        x: *const T,
        sample: usize,
        block: &Block,
        channels: usize,
        out: &mut [E],
    ) {
        let m = &self.map;
        let [depth, height, width] = m.source;
        let pitch = self.line();
        let first = |d: usize, output: usize| (output * m.step[d]) as isize + m.base[d];
        let ends = |residue: usize| {
            let start = first(2, block.columns.start) + residue as isize;
            within(start, self.column_stride, self.columns, width)
        };
        // Lines whose remainders all have the same columns, as those of patches, are matrices to be
        // transposed, by whole vectors.
        let (left, columns, start) = ends(0);
        let transposed = self.k_group == panels.k_group
            && self.residues == self.column_stride
            && self.residues >= panels.lanes
            && ends(self.residues - 1) == (left, columns, start + self.residues - 1)
            && [left, self.columns].iter().all(|n| n.is_multiple_of(self.k_group));
        out[..block.images.len() * self.channels * self.plane() + self.k_group - 1].fill(E::zeroed());
        for (i, image) in block.images.clone().enumerate() {
            let (n, result) = (image / m.result[0], image % m.result[0]);
            let (before, depths, z) = within(first(0, result), 1, self.depths, depth);
            let (above, rows, y) = within(first(1, block.lines.start), self.line_stride, self.lines, height);
            // Planes of the image, and where the first of their lines and columns are held.
            let planes = || {
                (0..channels).flat_map(|c| (0..depths).map(move |d| (c, d))).map(|(channel, d)| {
                    let line =
                        ((i * self.channels + channel) * self.depths + before + d) * self.lines + above;
                    (n * sample + ((channel * depth + z + d) * height + y) * width, line * pitch)
                })
            };
            if transposed && rows > 0 && columns > 0 {
                for ((from, to), row) in planes().flat_map(|plane| (0..rows).map(move |row| (plane, row))) {
                    let ptr = x.wrapping_add(from + start + row * self.line_stride * width);
                    let x = Mat { ptr, rs: self.column_stride as isize, cs: 1 };
                    let to = to + row * pitch;
                    let out = out[to + left..to + pitch].as_mut_ptr().cast();
                    // SAFETY: a line of the image, and where it is held.
                    unsafe {
                        (panels.interleave)(x, columns, self.residues, out, self.columns / self.k_group)
                    };
                }
                continue;
            }
            for residue in 0..self.residues {
                let (left, columns, start) = ends(residue);
                if rows == 0 || columns == 0 {
                    continue;
                }
                for (from, to) in planes() {
                    let x = Mat {
                        ptr: x.wrapping_add(from + start),
                        rs: (self.line_stride * width) as isize,
                        cs: self.column_stride as isize,
                    };
                    let to = to + residue * self.columns + left;
                    let out = out[to..][..(rows - 1) * pitch + columns].as_mut_ptr();
                    // SAFETY: inputs of the image, and where they are held.
                    unsafe { copy(x, rows, columns, out, pitch) };
                }
            }
        }
    }
}

/// Copies a matrix row by row: element `p` of row `i` to `out[i · pitch + p]`.
///
/// # Safety
/// The elements may be read, their places be written; they do not overlap.
pub(super) unsafe fn copy_rows<T: Copy>(x: Mat<T>, rows: usize, columns: usize, out: *mut T, pitch: usize) {
    for i in 0..rows {
        let (from, to) = (x.moved(i as isize * x.rs).ptr, out.wrapping_add(i * pitch));
        // SAFETY: a row, and where it goes.
        unsafe {
            if x.cs != 1 {
                strided::gather(from, x.cs.unsigned_abs(), columns, to);
                continue;
            }
            // Some short lines, as of images that were halved a few times, are moved without a call for each.
            match columns {
                4 => to.copy_from_nonoverlapping(from, 4),
                8 => to.copy_from_nonoverlapping(from, 8),
                16 => to.copy_from_nonoverlapping(from, 16),
                _ => to.copy_from_nonoverlapping(from, columns),
            }
        }
    }
}
