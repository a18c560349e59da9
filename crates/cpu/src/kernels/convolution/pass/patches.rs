//! Patches, which do not overlap, with nothing around the image: each input is met once by a few panels of weights, so that nothing
//! is gained by bringing them together. They are multiplied as they lie, a run of memory for each channel and line of a patch,
//! against kernels as they lie as well.

use super::{Nest, POSITIONS, Pass};
use crate::gemm::{Run, even};
use crate::kernels::convolution::band::Band;
use crate::kernels::convolution::tiles::Tilings;
use crate::kernels::convolution::{Blocks, Shape};
use headwater_core::ops::conv::geometry::Conv;

/// Places of a sum at a time, about: a panel of weights lies in the first-level cache.
const DEPTH: usize = 256;

/// What positions sum over, of each part of the kernel: runs of so many places.
#[derive(Clone, Debug)]
pub(super) struct Patches {
    pub runs: Vec<Vec<Run>>,
    pub inner: usize,
}

impl Pass {
    /// The forward pass of such a convolution, where operands may be multiplied as they lie.
    pub fn patches(c: &Conv, shape: Shape) -> Option<Pass> {
        let Shape { taken, rows, in_place } = shape;
        let [_, height, width] = c.input;
        let flat = c.groups == 1 && c.input[0] == 1 && c.kernel[0] == 1 && c.kernel_size() > 1;
        let whole = width.is_multiple_of(taken) && c.kernel[2].is_multiple_of(taken);
        let inner = c.kernel[2] / taken;
        let apart = c.dilation[2] == 1 && c.stride[2] >= c.kernel[2] && inner > 1;
        let inside = |d: usize| {
            let last = c.output[d].saturating_sub(1) * c.stride[d] + (c.kernel[d] - 1) * c.dilation[d];
            c.pad[d] == 0 && last < c.input[d]
        };
        if !(in_place && flat && whole && apart && (0..3).all(inside)) {
            return None;
        }
        // Of the kernel, which is one row for each result.
        let (from, mut nest) = (c.cin * c.kernel_size(), Nest::forward(c));
        nest.elements = vec![0];
        let channels = even(from / taken, (DEPTH / inner).max(1) * inner, inner);
        let lines = (0..c.cin).flat_map(|i| (0..c.kernel[1]).map(move |y| [i, y * c.dilation[1]]));
        let starts = lines.map(|[i, y]| ((i * height + y) * width / taken) as isize);
        let all: Vec<isize> = starts.collect();
        let runs = all
            .chunks(channels / inner)
            .map(|part| part.iter().enumerate().map(|(right, &left)| Run { left, right }).collect());
        let patches = Some(Patches { runs: runs.collect(), inner });
        let m = nest.meeting;
        let mut each = m;
        each.taps = [1; 3];
        let blocks = Blocks::new(&each, c.batch, 1, POSITIONS / 2);
        let place = |[image, line, column]: [usize; 3]| {
            image * c.cin * height * width + line * m.step[1] * width + column * m.step[2]
        };
        // Nothing is held.
        let band = Band::new(m, blocks, 0);
        let tilings = Tilings::new(&nest, &blocks, &band, [channels, 0], rows, &place);
        let (samples, to, weight) = (c.batch, c.cout, [from, 1]);
        let (groups, point) = (1, false);
        Some(Pass {
            samples,
            groups,
            from,
            to,
            taken,
            nest,
            point,
            patches,
            weight,
            blocks,
            channels,
            band,
            tilings,
        })
    }
}
