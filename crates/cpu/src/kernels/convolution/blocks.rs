//! Blocks of outputs: how many images, lines and columns a task computes at a time.

use super::index_map::IndexMap;
use crate::gemm::even;
use crate::matrix::Mat;
use crate::prefetch::Prefetch;
use std::ops::Range;

/// Inputs that a block holds at most, about: they fit into the second-level cache.
const HELD: usize = 48 << 10;

/// Outputs of many images cut into blocks: whole images, lines of one, or columns of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    /// Images (depths of the output of samples), and how many a block has.
    pub images: usize,
    pub images_per_block: usize,
    /// Lines of an image, and those in a block.
    pub height: usize,
    pub lines: usize,
    /// Columns of a line, and those in a block.
    pub width: usize,
    pub columns: usize,
}

impl Blocks {
    /// Blocks of about `positions` outputs of `samples`, whose inputs have `channels` channels.
    pub fn new(m: &IndexMap, samples: usize, channels: usize, positions: usize) -> Blocks {
        let (images, [_, height, width]) = (samples * m.result[0], m.result);
        let plane = (height * width).max(1);
        // Inputs that one more output reads.
        let each = (0..3).filter(|&d| m.taps[d] > 1).fold(channels, |n, d| n.saturating_mul(m.step[d]));
        let positions = positions.min(HELD / each.max(1)).max(1);
        let whole =
            Blocks { images, images_per_block: 1, height, lines: height.max(1), width, columns: width };
        if width >= 2 * positions {
            Blocks { lines: 1, columns: even(width, positions, 1), ..whole }
        } else if plane >= positions {
            let blocks = plane.div_ceil(positions).min(height);
            Blocks { lines: height.div_ceil(blocks.max(1)).max(1), ..whole }
        } else {
            // Few blocks are as many as a power of two, if images allow it, which most numbers of threads
            // divide evenly.
            let together = (positions / plane).clamp(1, images.max(1));
            let count = images.div_ceil(together);
            let count = if count < 16 { count.next_power_of_two() } else { count };
            Blocks { images_per_block: images.div_ceil(count).max(1), ..whole }
        }
    }

    /// Blocks of a line, and of the lines of an image.
    pub fn per_image(&self) -> [usize; 2] {
        [self.width.div_ceil(self.columns.max(1)).max(1), self.height.div_ceil(self.lines)]
    }

    pub fn count(&self) -> usize {
        self.images.div_ceil(self.images_per_block) * self.per_image().iter().product::<usize>()
    }

    /// Positions of a block at most.
    pub fn positions(&self) -> usize {
        self.images_per_block * self.lines * self.columns
    }

    /// Lines of a block, of all its images: image, and line of the block.
    pub fn each_line(&self) -> impl Iterator<Item = [usize; 2]> {
        let lines = self.lines;
        (0..self.images_per_block).flat_map(move |image| (0..lines).map(move |line| [image, line]))
    }

    pub fn get(&self, at: usize) -> Block {
        let [of_line, of_image] = self.per_image();
        let (column, at) = (at % of_line * self.columns, at / of_line);
        let (line, image) = (at % of_image * self.lines, at / of_image * self.images_per_block);
        Block {
            images: image..self.images.min(image + self.images_per_block),
            lines: line..self.height.min(line + self.lines),
            columns: column..self.width.min(column + self.columns),
        }
    }
}

/// Images, lines and columns of a block of outputs. An image is a depth of the output of a sample.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub images: Range<usize>,
    pub lines: Range<usize>,
    pub columns: Range<usize>,
}

impl Block {
    /// Positions in each image.
    pub fn of_image(&self) -> usize {
        self.lines.len() * self.columns.len()
    }

    pub fn positions(&self) -> usize {
        self.images.len() * self.of_image()
    }

    /// Inputs that the block reads, of some channels; nothing for images with depth. The first channel
    /// of sample `n` starts at `x[n · sample]`.
    pub fn prefetch_inputs<T>(&self, m: &IndexMap, x: *const T, sample: usize, channels: usize) -> Prefetch {
        let [depth, height, width] = m.source;
        if depth != 1 || m.result[0] != 1 || self.positions() == 0 {
            return Prefetch::NONE;
        }
        let span = |d: usize, outputs: &Range<usize>| {
            let inside = |i: isize| usize::try_from(i).unwrap_or(0).min(m.source[d]);
            let first = (outputs.start * m.step[d]) as isize + m.base[d];
            let last = (outputs.len() - 1) * m.step[d] + (m.taps[d] - 1) * m.tap[d];
            inside(first)..inside(first + last as isize + 1)
        };
        let mut columns = 0..width;
        if self.columns.len() < m.result[2] {
            columns = span(2, &self.columns);
        }
        let lines = span(1, &self.lines);
        let x = x.wrapping_add(self.images.start * sample + lines.start * width + columns.start);
        let elements = lines.len().saturating_sub(1) * width + columns.len();
        prefetch_channels(x, (self.images.len(), sample), channels, elements, height * width)
    }
}

/// Some elements of each of some channels of some images, which begin `stride` elements after each other.
/// Only of the first image if that is less than the whole plane of a channel.
pub(super) fn prefetch_channels<T>(
    x: *const T,
    (images, stride): (usize, usize),
    channels: usize,
    elements: usize,
    plane: usize,
) -> Prefetch {
    let matrix = |rows, rs: usize, k| Prefetch::matrix(Mat { ptr: x, rs: rs as isize, cs: 1 }, rows, k);
    match elements == plane {
        // Whole channels follow each other.
        true => matrix(images, stride, channels * plane),
        false => matrix(channels, plane, elements),
    }
}
