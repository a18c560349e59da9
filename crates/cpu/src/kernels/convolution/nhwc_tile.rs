//! A padded tile of the input, channels last (NHWC): inputs of a block of outputs in scratch memory, with
//! zeros for the padding. Channels are counted in k-groups ([`PanelKernels::k_group`]).

use super::blocks::{Block, Blocks};
use super::index_map::{IndexMap, within};
use crate::gemm::{Operand, PanelKernels};
use crate::matrix::Mat;

/// For each image of a block `depth × height × width` inputs of `channels`.
#[derive(Clone, Copy, Debug)]
pub(super) struct NhwcTile {
    map: IndexMap,
    blocks: Blocks,
    /// Channels held at a time.
    channels: usize,
    /// Inputs held of an image.
    size: [usize; 3],
    /// Inputs of the image from one held to the next, and held ones from one output to the next.
    stride: [usize; 3],
    step: [usize; 3],
}

impl NhwcTile {
    pub fn new(map: IndexMap, blocks: Blocks, channels: usize) -> NhwcTile {
        let m = &map;
        let (mut size, mut stride, mut step) = ([1; 3], [1; 3], m.step);
        for d in 0..3 {
            let outputs = [1, blocks.lines, blocks.columns][d];
            if m.taps[d] == 1 {
                // Inputs between those of the outputs are not needed.
                (size[d], stride[d], step[d]) = (outputs, m.step[d], 1);
            } else {
                size[d] = outputs.saturating_sub(1) * m.step[d] + (m.taps[d] - 1) * m.tap[d] + 1;
            }
        }
        NhwcTile { map, blocks, channels, size, stride, step }
    }

    /// Elements of one image.
    fn image(&self) -> usize {
        self.size.iter().product::<usize>() * self.channels
    }

    /// Elements of all lines of an image, at one depth.
    pub fn plane(&self) -> usize {
        self.size[1] * self.size[2] * self.channels
    }

    /// Elements of scratch memory.
    pub fn elements(&self) -> usize {
        self.blocks.images_per_block * self.image()
    }

    /// Offset of the inputs of a cell, in columns held: of an image of the block, a line of the block, a
    /// column.
    pub fn at(&self, [image, line, column]: [usize; 3]) -> usize {
        let held = self.size.iter().product::<usize>();
        image * held + line * self.step[1] * self.size[2] + column * self.step[2]
    }

    /// Inputs held from one line to the next, and to the next depth.
    pub fn pitches(&self) -> [usize; 2] {
        [self.size[1] * self.size[2], self.size[2]]
    }

    /// Fills the tile with `elements` channels, not k-groups, of the images of a block. The first channel of
    /// sample `n` starts at `x[n · sample]`. `moved` can hold a plane.
    ///
    /// # Safety
    /// `x` points to the requested channels of the first sample; all samples are readable.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn fill<T: Operand>(
        &self,
        panels: &PanelKernels<T>,
        x: *const T,
        sample: usize,
        block: &Block,
        elements: usize,
        moved: &mut [T::Wide],
        out: &mut [T::Wide],
    ) {
        let m = &self.map;
        let channels = elements.div_ceil(panels.k_group);
        let size: usize = m.source.iter().product();
        let zero = <T::Wide as crate::element::Wide>::ZERO;
        let (width, stride) = (self.size[2], self.stride[2]);
        // Columns within the image.
        let first = (block.columns.start * m.step[2]) as isize + m.base[2];
        let (before, inside, start) = within(first, stride, width, m.source[2]);
        // Lines that are not whole vectors are copied as one where they are contiguous.
        let follow = self.stride[1] == 1 && stride == 1 && inside == m.source[2];
        let merge = follow && !inside.is_multiple_of(panels.lanes);
        let mut to = 0;
        for image in block.images.clone() {
            let (n, depth) = (image / m.result[0], image % m.result[0]);
            for d in 0..self.size[0] {
                let input = |axis: usize, first: usize, i: usize| {
                    let at = (first * m.step[axis] + i * self.stride[axis]) as isize + m.base[axis];
                    usize::try_from(at).ok().filter(|&at| at < m.source[axis])
                };
                let plane = &mut out[to..][..self.size[1] * width * channels];
                to += plane.len();
                let Some(z) = input(0, depth, d) else {
                    plane.fill(zero);
                    continue;
                };
                // Columns of some lines from `y`, channels innermost.
                let source = |y: usize, columns: usize, to: &mut [T::Wide]| {
                    let row = n * sample + (z * m.source[1] + y) * m.source[2] + start;
                    let x = Mat { ptr: x.wrapping_add(row), rs: size as isize, cs: stride as isize };
                    // SAFETY: columns of each channel, and capacity for them.
                    unsafe {
                        (panels.interleave)(
                            x,
                            elements,
                            columns,
                            to[..columns * channels].as_mut_ptr(),
                            channels,
                        )
                    };
                };
                let mut inner = (0..self.size[1]).filter_map(|h| input(1, block.lines.start, h));
                let first = inner.next();
                let count = inner.count() + usize::from(first.is_some());
                let first = first.unwrap_or(0);
                if merge {
                    source(first, count * inside, moved);
                }
                for (h, line) in plane.chunks_exact_mut(width * channels).enumerate() {
                    let Some(y) = input(1, block.lines.start, h) else {
                        line.fill(zero);
                        continue;
                    };
                    let (left, line) = line.split_at_mut(before * channels);
                    let (line, right) = line.split_at_mut(inside * channels);
                    left.fill(zero);
                    right.fill(zero);
                    if merge {
                        line.copy_from_slice(&moved[(y - first) * line.len()..][..line.len()]);
                    } else if inside > 0 {
                        source(y, inside, line);
                    }
                }
            }
        }
    }
}
