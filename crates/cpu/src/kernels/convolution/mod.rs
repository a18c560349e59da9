//! Convolutions and their two gradients, without ever writing the patches of an image as a matrix.
//!
//! A part of the image is copied into scratch memory with its padding around it, where the operands of one
//! sum are runs of memory at offsets that are the same for many sums: the walking register tile multiplies
//! them in place. For the forward pass channels are innermost (`band`), so that the taps of an output are
//! long runs (`pass`). The data gradient is the same with other strides; inputs whose index leaves one
//! remainder modulo the stride sum over taps of their own (`nest`). Which outputs sum over the same taps is
//! found out before (`tiles`). Where an output has one tap, as in convolutions of 1×1, both are plain
//! products of positions as they lie in the image (`pass::points`); patches that do not overlap are
//! multiplied as they lie (`patches`). The weight gradient sums over outputs: for it lines stay as they are
//! in the image as well (`planes`, `weight`). Of single channels all three are sums of lines (`depthwise`).
//! What strides leave apart is moved by `apart`.
//!
//! Padding is made of zeros. What meets nothing else is left out where that saves time (`tiles`); elsewhere
//! they are multiplied like other numbers, so that a weight or a gradient that is infinite gives NaN there.
//! So does, where pairs of bf16 are summed, an infinite input in the gradient of weights: of its channel
//! those whose last output in a line, one of an odd number, meets the input before it.

mod apart;
mod band;
mod depthwise;
mod nest;
mod pass;
mod patches;
mod planes;
mod tiles;
mod weight;

use super::{Kernel, Prepared, Site};
use crate::element::Float;
use crate::element::same;
use crate::float_dtype;
use crate::gemm::{Operand, even};
use crate::view::View;
use depthwise::Depthwise;
use headwater_core::diagnostic::Result;
use headwater_core::ops::conv::convolution;
use headwater_core::ops::conv::geometry::Conv;
use nest::{Meeting, Nest};
use pass::Pass;
use std::ops::Range;
use weight::Weights;

/// The family.
pub static KERNELS: &[Kernel] = &[
    Kernel {
        name: "convolution",
        takes: |site| convolution::forward(&site.cx).is_ok_and(|c| sensible(&c)),
        workspace: |site| workspace(site, Kind::Forward),
        strided: super::contiguous,
        prepare: |site| prepare(site, Kind::Forward),
    },
    Kernel {
        name: "convolution_input_grad",
        takes: |site| convolution::input_grad(&site.cx).is_ok_and(|c| sensible(&c) && Nest::feasible(&c)),
        workspace: |site| workspace(site, Kind::Input),
        strided: super::contiguous,
        prepare: |site| prepare(site, Kind::Input),
    },
    Kernel {
        name: "convolution_weight_grad",
        takes: |site| convolution::weight_grad(&site.cx).is_ok_and(|c| sensible(&c)),
        workspace: |site| workspace(site, Kind::Weight),
        strided: super::contiguous,
        prepare: |site| prepare(site, Kind::Weight),
    },
];

/// What is computed of a convolution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Forward,
    Input,
    Weight,
}

impl Kind {
    fn of(self, site: &Site) -> Result<Conv> {
        match self {
            Kind::Forward => convolution::forward(&site.cx),
            Kind::Input => convolution::input_grad(&site.cx),
            Kind::Weight => convolution::weight_grad(&site.cx),
        }
    }

    /// Loop nests of the forward pass, or of the gradient of inputs.
    fn passes(self, c: &Conv, site: &Site) -> Vec<Pass> {
        match self {
            Kind::Input => Pass::backward(c, Shape::of(site)),
            _ => vec![Pass::forward(c, Shape::of(site))],
        }
    }
}

fn workspace(site: &Site, kind: Kind) -> usize {
    let Ok(c) = kind.of(site) else { return 0 };
    float_dtype!(site.outs[0].dtype, T => {
        if depthwise::takes(&c, kind) {
            Depthwise::new(&c, kind, site.tier).workspace::<T>(site.threads)
        } else if kind == Kind::Weight {
            Weights::new(&c, site.tier, Shape::of(site)).workspace::<T>(site.threads)
        } else {
            let passes = kind.passes(&c, site);
            passes.iter().map(|p| p.workspace::<T>(site.tier, site.threads)).max().unwrap_or(0)
        }
    })
}

fn prepare(site: &Site, kind: Kind) -> Result<Prepared> {
    let (c, tier) = (kind.of(site)?, site.tier);
    Ok(float_dtype!(site.outs[0].dtype, T => {
        if depthwise::takes(&c, kind) {
            let depthwise = Depthwise::new(&c, kind, tier);
            Box::new(move |args| depthwise.run::<T>(args))
        } else if kind == Kind::Weight {
            let weights = Weights::new(&c, tier, Shape::of(site));
            Box::new(move |args| weights.run::<T>(args))
        } else {
            run(site, kind.passes(&c, site))
        }
    }))
}

/// Whether there are channels to sum over, and not much padding. The reference, which does without, computes
/// what nobody means.
fn sensible(c: &Conv) -> bool {
    c.cin > 0 && c.cout > 0 && c.is_compact()
}

/// Of the register tiles of a tier: terms of a sum that are taken at once, rows, and whether operands are
/// multiplied as they lie.
#[derive(Clone, Copy, Debug)]
struct Shape {
    k_group: usize,
    rows: usize,
    in_place: bool,
}

impl Shape {
    fn of(site: &Site) -> Shape {
        float_dtype!(site.outs[0].dtype, T => {
            let kernels = T::kernels(site.tier);
            let k_group = kernels.panels.k_group;
            Shape { k_group, rows: kernels.mr, in_place: k_group > 1 || same::<T, <T as Float>::Wide>() }
        })
    }
}

/// Runs passes one after the other. Results that none of them writes are zeros.
fn run(site: &Site, passes: Vec<Pass>) -> Prepared {
    let written: usize = passes.iter().map(Pass::written).sum();
    let all = written == site.outs[0].shape.numel() || matches!(&passes[..], [one] if one.fills());
    let tier = site.tier;
    float_dtype!(site.outs[0].dtype, T => Box::new(move |args| {
        if !all {
            args.writes[0].slice_mut::<T>().fill(T::from_f64(0.0));
        }
        let (x, w) = (args.read(0)?.slice::<T>(), args.read(1)?.slice::<T>());
        let bias = args.opt(2).map(View::slice::<T>);
        let out = args.writes[0].slice_mut::<T>();
        passes.iter().for_each(|p| p.run::<T>(tier, args.pool, args.workspace, x, w, bias, out));
        Ok(())
    }))
}

/// Channels taken at a time: as many as make the panel of a right operand, or what a line's sums read, fit
/// into the first-level cache, in even parts.
fn channels(taps: usize, all: usize) -> usize {
    let most = (288 / taps.max(1)).next_multiple_of(8).clamp(8, 256);
    even(all, most, 8).min(all).max(1)
}

/// Inputs that a block holds at most, about: what the second-level cache has room for.
const HELD: usize = 48 << 10;

/// How the outputs of many images are cut into blocks: whole images, lines of one, or columns of a line.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    /// Images, and those in a block.
    images: usize,
    together: usize,
    /// Lines of an image, and those in a block.
    height: usize,
    lines: usize,
    /// Columns of a line, and those in a block.
    width: usize,
    columns: usize,
}

impl Blocks {
    /// Of a meeting's results in `samples`, about `positions` of them at a time, whose inputs have this many
    /// channels.
    fn new(m: &Meeting, samples: usize, channels: usize, positions: usize) -> Blocks {
        let (images, [_, height, width]) = (samples * m.result[0], m.result);
        let plane = (height * width).max(1);
        // Inputs that one more result brings along.
        let each = (0..3).filter(|&d| m.taps[d] > 1).fold(channels, |n, d| n.saturating_mul(m.step[d]));
        let positions = positions.min(HELD / each.max(1)).max(1);
        let whole = Blocks { images, together: 1, height, lines: height.max(1), width, columns: width };
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
            Blocks { together: images.div_ceil(count).max(1), ..whole }
        }
    }

    /// Blocks of a line, and of the lines of an image.
    fn per_image(&self) -> [usize; 2] {
        [self.width.div_ceil(self.columns.max(1)).max(1), self.height.div_ceil(self.lines)]
    }

    fn count(&self) -> usize {
        self.images.div_ceil(self.together) * self.per_image().iter().product::<usize>()
    }

    /// Positions of a block at most.
    fn positions(&self) -> usize {
        self.together * self.lines * self.columns
    }

    /// Lines of a block, of all its images: image, and line of the block.
    fn each_line(&self) -> impl Iterator<Item = [usize; 2]> {
        let lines = self.lines;
        (0..self.together).flat_map(move |image| (0..lines).map(move |line| [image, line]))
    }

    fn get(&self, at: usize) -> Block {
        let [of_line, of_image] = self.per_image();
        let (column, at) = (at % of_line * self.columns, at / of_line);
        let (line, image) = (at % of_image * self.lines, at / of_image * self.together);
        Block {
            images: image..self.images.min(image + self.together),
            lines: line..self.height.min(line + self.lines),
            columns: column..self.width.min(column + self.columns),
        }
    }
}

/// Images, lines and columns of a block of outputs. An image is a depth of the output of a sample.
#[derive(Clone, Debug)]
struct Block {
    images: Range<usize>,
    lines: Range<usize>,
    columns: Range<usize>,
}

impl Block {
    /// Positions in each image.
    fn of_image(&self) -> usize {
        self.lines.len() * self.columns.len()
    }

    fn positions(&self) -> usize {
        self.images.len() * self.of_image()
    }
}

/// Spatial sizes: input, output, kernel, stride, dilation, padding.
fn spatial(c: &Conv) -> [[usize; 3]; 6] {
    [c.input, c.output, c.kernel, c.stride, c.dilation, c.pad]
}
