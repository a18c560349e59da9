//! Patches, which do not overlap, with nothing around the image: each input is met once by a few panels of
//! weights, so that nothing is gained by bringing them together. They are multiplied as they lie, a run of
//! memory for each channel and line of a patch, against kernels as they lie as well.

use super::tiles::Part;
use super::{Block, Shape};
use crate::gemm::IndirectRun;
use headwater_core::ops::conv::geometry::Conv;

/// The inputs of such a convolution.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patches {
    /// Elements of a sample, of a channel, of a line.
    sample: usize,
    plane: usize,
    width: usize,
    /// From one patch to the next: lines and columns.
    step: [usize; 2],
    /// Lines of a patch, and lines of the image from one of them to the next.
    lines: usize,
    apart: usize,
    /// Columns of a patch, and those that are multiplied at once.
    columns: usize,
    k_group: usize,
}

impl Patches {
    /// Of a forward pass, if operands may be multiplied as they lie.
    pub fn new(c: &Conv, shape: Shape) -> Option<Patches> {
        let ([_, height, width], k_group) = (c.input, shape.k_group);
        let flat = c.input[0] == 1 && c.kernel[0] == 1 && c.kernel_size() > 1;
        let whole = width.is_multiple_of(k_group) && c.kernel[2].is_multiple_of(k_group);
        let apart = c.dilation[2] == 1 && c.stride[2] >= c.kernel[2] && c.kernel[2] > k_group;
        let inside = |d: usize| {
            let last = c.output[d].saturating_sub(1) * c.stride[d] + (c.kernel[d] - 1) * c.dilation[d];
            c.pad[d] == 0 && last < c.input[d]
        };
        let fits = shape.in_place && flat && whole && apart && (0..3).all(inside);
        fits.then(|| Patches {
            sample: c.groups * c.cin * height * width,
            plane: height * width,
            width,
            step: [c.stride[1], c.stride[2]],
            lines: c.kernel[1],
            apart: c.dilation[1],
            columns: c.kernel[2],
            k_group,
        })
    }

    /// Where the inputs of a patch begin: of an image of a block, a line and a column.
    pub fn at(&self, [image, line, column]: [usize; 3]) -> usize {
        image * self.sample + line * self.step[0] * self.width + column * self.step[1]
    }

    /// Where those of a block do.
    pub fn first(&self, block: &Block) -> usize {
        self.at([block.images.start, block.lines.start, block.columns.start])
    }

    /// Places of the sum for each channel.
    pub fn places(&self) -> usize {
        self.lines * self.columns / self.k_group
    }

    /// What patches sum over, of some channels.
    pub fn part(&self, channels: usize) -> Part {
        let lines = (0..channels).flat_map(|i| (0..self.lines).map(move |y| [i, y]));
        let starts = lines.map(|[i, y]| (i * self.plane + y * self.apart * self.width) / self.k_group);
        let runs =
            starts.enumerate().map(|(right, left)| IndirectRun { left: left as isize, right }).collect();
        let inner = self.columns / self.k_group;
        Part { runs, inner, pitch: inner }
    }
}
