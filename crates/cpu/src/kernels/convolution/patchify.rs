//! Patchify convolutions, as of vision transformers: patches that do not overlap, without padding. Each input
//! is read by few micro-panels of filters, so that copying it first would gain nothing. Image and filters are
//! multiplied in place, one run of memory for each channel and line of a patch.

use super::Shape;
use super::blocks::Block;
use super::index_map::Reduction;
use crate::gemm::IndirectRun;
use headwater_core::ops::conv::geometry::Conv;

/// The inputs of such a convolution.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patchify {
    /// Elements of a sample, of a channel, of a line.
    sample: usize,
    plane: usize,
    width: usize,
    /// From one patch to the next: lines and columns.
    step: [usize; 2],
    /// Lines of a patch, and lines of the image from one of them to the next.
    lines: usize,
    dilation: usize,
    /// Columns of a patch, and those of a k-group.
    columns: usize,
    k_group: usize,
}

impl Patchify {
    /// For a forward pass, if its operands may be multiplied in place.
    pub fn new(c: &Conv, shape: Shape) -> Option<Patchify> {
        let ([_, height, width], k_group) = (c.input, shape.k_group);
        let flat = c.input[0] == 1 && c.kernel[0] == 1 && c.kernel_size() > 1;
        let whole = width.is_multiple_of(k_group) && c.kernel[2].is_multiple_of(k_group);
        let dilation = c.dilation[2] == 1 && c.stride[2] >= c.kernel[2] && c.kernel[2] > k_group;
        let inside = |d: usize| {
            let last = c.output[d].saturating_sub(1) * c.stride[d] + (c.kernel[d] - 1) * c.dilation[d];
            c.pad[d] == 0 && last < c.input[d]
        };
        let fits = shape.in_place && flat && whole && dilation && (0..3).all(inside);
        fits.then(|| Patchify {
            sample: c.groups * c.cin * height * width,
            plane: height * width,
            width,
            step: [c.stride[1], c.stride[2]],
            lines: c.kernel[1],
            dilation: c.dilation[1],
            columns: c.kernel[2],
            k_group,
        })
    }

    /// Offset of the inputs of a patch: of an image of a block, a line and a column.
    pub fn at(&self, [image, line, column]: [usize; 3]) -> usize {
        image * self.sample + line * self.step[0] * self.width + column * self.step[1]
    }

    /// Offset of the inputs of a block.
    pub fn first(&self, block: &Block) -> usize {
        self.at([block.images.start, block.lines.start, block.columns.start])
    }

    /// k-groups of the sum for each channel.
    pub fn k_groups(&self) -> usize {
        self.lines * self.columns / self.k_group
    }

    /// The reduction of patches over some channels.
    pub fn part(&self, channels: usize) -> Reduction {
        let lines = (0..channels).flat_map(|i| (0..self.lines).map(move |y| [i, y]));
        let starts = lines.map(|[i, y]| (i * self.plane + y * self.dilation * self.width) / self.k_group);
        let runs =
            starts.enumerate().map(|(right, left)| IndirectRun { left: left as isize, right }).collect();
        let inner = self.columns / self.k_group;
        Reduction { runs, inner, pitch: inner }
    }
}
