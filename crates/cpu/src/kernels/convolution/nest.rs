//! Convolutions as loop nests: which inputs the outputs meet through which taps.

use super::{Block, spatial};
use crate::gemm::{Ahead, Mat};
use headwater_core::ops::conv::geometry::Conv;
use std::ops::Range;

/// Where the outputs of a pass find their inputs: along dimension `d`, output `r` meets through tap `t` the input
/// `r · step[d] + t · tap[d] + base[d]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meeting {
    /// Inputs.
    pub source: [usize; 3],
    /// Outputs.
    pub result: [usize; 3],
    /// Taps.
    pub taps: [usize; 3],
    pub step: [usize; 3],
    pub tap: [usize; 3],
    pub base: [isize; 3],
}

impl Meeting {
    /// The inputs that the outputs of a block meet, of so many channels; nothing of images with depth. The first channel of
    /// sample `n` starts at `x[n · sample]`.
    pub fn ahead<T>(&self, x: *const T, sample: usize, block: &Block, channels: usize) -> Ahead {
        let [depth, height, width] = self.source;
        if depth != 1 || self.result[0] != 1 || block.positions() == 0 {
            return Ahead::NONE;
        }
        let met = |d: usize, outputs: &Range<usize>| {
            let inside = |i: isize| usize::try_from(i).unwrap_or(0).min(self.source[d]);
            let first = (outputs.start * self.step[d]) as isize + self.base[d];
            let last = (outputs.len() - 1) * self.step[d] + (self.taps[d] - 1) * self.tap[d];
            inside(first)..inside(first + last as isize + 1)
        };
        let mut columns = 0..width;
        if block.columns.len() < self.result[2] {
            columns = met(2, &block.columns);
        }
        let lines = met(1, &block.lines);
        let x = x.wrapping_add(block.images.start * sample + lines.start * width + columns.start);
        let elements = lines.len().saturating_sub(1) * width + columns.len();
        ahead(x, (block.images.len(), sample), channels, elements, height * width)
    }
}

/// So many elements of each of some channels of some images, which begin `apart` elements after each other: of the first image
/// alone if that is less than the whole plane of a channel.
pub(super) fn ahead<T>(
    x: *const T,
    (images, apart): (usize, usize),
    channels: usize,
    elements: usize,
    plane: usize,
) -> Ahead {
    let matrix = |rows, rs: usize, k| Ahead::matrix(Mat { ptr: x, rs: rs as isize, cs: 1 }, rows, k);
    match elements == plane {
        // Whole channels follow each other.
        true => matrix(images, apart, channels * plane),
        false => matrix(channels, plane, elements),
    }
}

/// The forward pass, or the part of the data gradient that falls on inputs of one remainder: of the whole result it gives the
/// indices `place + r · apart`.
#[derive(Clone, Debug)]
pub(super) struct Nest {
    pub meeting: Meeting,
    pub whole: [usize; 3],
    pub place: [usize; 3],
    pub apart: [usize; 3],
    /// The kernel's element of each tap.
    pub elements: Vec<usize>,
}

impl Nest {
    /// The forward pass.
    pub fn forward(c: &Conv) -> Nest {
        let [source, result, taps, step, tap, pad] = spatial(c);
        let base = pad.map(|p| -(p as isize));
        let meeting = Meeting { source, result, taps, step, tap, base };
        let elements = (0..c.kernel_size()).collect();
        Nest { meeting, whole: result, place: [0; 3], apart: [1; 3], elements }
    }

    /// The data gradient: a nest for each remainder of the input's index modulo the stride that any output meets. Input `i`
    /// meets through kernel element `k` the output `(i + pad − k · dilation) / stride`, where that is whole.
    pub fn backward(c: &Conv) -> Vec<Nest> {
        // Remainders that inputs have.
        let [depths, lines, columns]: [usize; 3] = std::array::from_fn(|d| c.stride[d].min(c.input[d]));
        let rests =
            (0..depths * lines * columns).map(|i| [i / columns / lines, i / columns % lines, i % columns]);
        rests.filter_map(|rest| Nest::of_remainder(c, rest)).collect()
    }

    /// The nest of one remainder, unless no output meets it.
    fn of_remainder(c: &Conv, place: [usize; 3]) -> Option<Nest> {
        let [input, output, kernel, stride, dilation, pad] = spatial(c);
        let all = [1; 3];
        let mut meeting =
            Meeting { source: output, result: input, taps: all, step: all, tap: all, base: [0; 3] };
        let (mut first, mut next) = ([0; 3], [0; 3]);
        for d in 0..3 {
            let shared = gcd(dilation[d], stride[d]);
            let at = place[d] + pad[d];
            let every = stride[d] / shared;
            let fits = |k: &usize| at % stride[d] == k * dilation[d] % stride[d];
            let k = (0..every.min(kernel[d])).find(fits)?;
            let taps = (kernel[d] - k).div_ceil(every);
            // From the last tap to the first, so that the outputs they meet ascend.
            let last = k + (taps - 1) * every;
            meeting.taps[d] = taps;
            meeting.tap[d] = dilation[d] / shared;
            meeting.base[d] = (at as isize - (last * dilation[d]) as isize) / stride[d] as isize;
            meeting.result[d] = (input[d] - place[d]).div_ceil(stride[d]);
            (first[d], next[d]) = (last, every);
        }
        let element = |d: usize, t: usize| first[d] - t * next[d];
        let [_, lines, columns] = meeting.taps;
        let elements = (0..meeting.taps.iter().product())
            .map(|t| {
                [element(0, t / columns / lines), element(1, t / columns % lines), element(2, t % columns)]
            })
            .map(|[z, y, x]| (z * kernel[1] + y) * kernel[2] + x)
            .collect();
        Some(Nest { meeting, whole: input, place, apart: stride, elements })
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
