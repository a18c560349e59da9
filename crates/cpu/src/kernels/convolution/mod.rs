//! Convolutions and their two gradients, without ever writing the patches of an image as a matrix.
//!
//! A part of the image is copied into scratch memory with its padding around it, where the operands of one sum are runs of
//! memory at offsets that are the same for all sums: the walking register tile multiplies them in place. For the forward pass
//! channels are innermost (`band`), so that the taps of an output are long runs (`pass`). The data gradient is the same with
//! other strides, once for each remainder of the input's index modulo the stride. Where an output has one tap, as in
//! convolutions of 1×1, both are plain products of positions as they lie in the image (`pass::points`). The weight gradient
//! sums over outputs: for it lines stay as they are in the image as well (`planes`, `weight`). Of single channels they
//! are sums of lines (`depthwise`).

mod band;
mod depthwise;
mod pass;
mod planes;
mod weight;

use super::{Kernel, Prepared, Site};
use crate::element::Float;
use crate::float_dtype;
use crate::gemm::Operand;
use crate::view::View;
use band::Meeting;
use headwater_core::diagnostic::Result;
use headwater_core::ops::conv::convolution;
use headwater_core::ops::conv::geometry::Conv;
use pass::Pass;
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
        takes: |site| convolution::input_grad(&site.cx).is_ok_and(|c| sensible(&c)),
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
            Kind::Input => Pass::backward(c, taken(site)),
            _ => vec![Pass::forward(c, taken(site))],
        }
    }
}

fn workspace(site: &Site, kind: Kind) -> usize {
    let Ok(c) = kind.of(site) else { return 0 };
    float_dtype!(site.outs[0].dtype, T => {
        if depthwise::takes(&c, kind) {
            depthwise::workspace::<T>(&c, kind, site.threads)
        } else if kind == Kind::Weight {
            Weights::new(&c, site.tier).workspace::<T>(site.threads)
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
            Box::new(move |args| depthwise::run::<T>(&c, kind, tier, args))
        } else if kind == Kind::Weight {
            let weights = Weights::new(&c, tier);
            Box::new(move |args| weights.run::<T>(args))
        } else {
            run(site, kind.passes(&c, site))
        }
    }))
}

/// Whether there are channels to sum over, and padding and gaps are not much larger than the images, as they are held in
/// memory for a while. The reference, which does without, computes what nobody means.
fn sensible(c: &Conv) -> bool {
    let channels = c.cin > 0 && c.cout > 0;
    channels
        && (0..3).all(|d| {
            let span = (c.output[d].saturating_sub(1) * c.stride[d])
                .saturating_add((c.kernel[d] - 1) * c.dilation[d]);
            span <= 4 * (c.input[d] + c.output[d]) + 64
        })
}

/// Channels of the source that are taken at once.
fn taken(site: &Site) -> usize {
    float_dtype!(site.outs[0].dtype, T => T::kernels(site.tier).fast.taken)
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

/// Channels taken at a time: as many as make the panel of a right operand, or what a line's sums read, fit into the first-level
/// cache.
fn channels(taps: usize, all: usize) -> usize {
    (320 / taps.max(1)).next_multiple_of(8).clamp(8, 256).min(all).max(1)
}

/// Inputs that a block holds at most, about: what the second-level cache has room for.
const HELD: usize = 48 << 10;

/// How the outputs of many images are cut into blocks: whole images, or lines of one.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    /// Images, and those in a block.
    images: usize,
    together: usize,
    /// Lines of an image, and those in a block.
    height: usize,
    lines: usize,
}

impl Blocks {
    /// Of a meeting's results in `samples`, about `positions` of them at a time, whose inputs have this many channels.
    fn new(m: &Meeting, samples: usize, channels: usize, positions: usize) -> Blocks {
        let (images, [_, height, width]) = (samples * m.result[0], m.result);
        let plane = (height * width).max(1);
        // Inputs that one more result brings along.
        let each = (0..3).filter(|&d| m.taps[d] > 1).fold(channels, |n, d| n.saturating_mul(m.step[d]));
        let positions = positions.min(HELD / each.max(1)).max(1);
        if plane >= positions {
            let blocks = plane.div_ceil(positions).min(height);
            Blocks { images, together: 1, height, lines: height.div_ceil(blocks.max(1)).max(1) }
        } else {
            Blocks { images, together: (positions / plane).min(images).max(1), height, lines: height.max(1) }
        }
    }

    fn per_image(&self) -> usize {
        self.height.div_ceil(self.lines)
    }

    fn count(&self) -> usize {
        self.images.div_ceil(self.together) * self.per_image()
    }

    /// Images and lines of a block.
    fn get(&self, at: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let (image, line) = (at / self.per_image() * self.together, at % self.per_image() * self.lines);
        (image..self.images.min(image + self.together), line..self.height.min(line + self.lines))
    }
}

/// Spatial sizes: input, output, kernel, stride, dilation, padding.
fn spatial(c: &Conv) -> [[usize; 3]; 6] {
    [c.input, c.output, c.kernel, c.stride, c.dilation, c.pad]
}
