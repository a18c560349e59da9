//! Direct depthwise convolution: one channel a group, so that vectors hold positions of one channel instead
//! of channels. Lines of a block of results are held as in `nchw_tile`.

use super::Kind;
use super::blocks::{Block, Blocks};
use super::nchw_tile::NchwTile;
use super::nest::Nest;
use crate::element::{Wide, same, total};
use crate::gemm::{DepthwiseLines, DepthwiseWeightSums, Operand};
use crate::kernels::Args;
use crate::matrix::Mat;
use crate::pool::{Pool, Shared};
use crate::simd::MAX_LANES;
use crate::tier::Tier;
use crate::view::View;
use crate::workspace::{self, Scratch};
use headwater_core::diagnostic::Result;
use headwater_core::ops::conv::geometry::Conv;

/// Positions of a block, about: they and their inputs fit into the first-level cache.
const POSITIONS: usize = 2048;

/// A channel's sums of weights' gradients are a task: fewer channels than this are left to the other kernel.
const FEW: usize = 4;

/// True if each channel is convolved by itself.
pub(super) fn takes(c: &Conv, kind: Kind) -> bool {
    c.cin == 1 && c.cout == 1 && (kind != Kind::Weight || c.groups >= FEW)
}

/// A depthwise convolution: the forward pass from input and weight, the gradient of the input from that of
/// the output and weight, or the weight's from that of the output and the input.
pub(super) struct Depthwise {
    kind: Kind,
    tier: Tier,
    groups: usize,
    /// Elements of a channel's kernel.
    kernel: usize,
    parts: Vec<PhasePass>,
    /// True if the phases leave results out, which are zeros.
    gaps: bool,
}

/// A loop nest, and how it is cut and holds its source.
struct PhasePass {
    nest: Nest,
    blocks: Blocks,
    planes: NchwTile,
    /// Offsets of the inputs of each line of a block in the tile, and what the taps add.
    rows: Vec<isize>,
    taps: Vec<usize>,
}

impl PhasePass {
    fn new(nest: Nest, samples: usize) -> PhasePass {
        let blocks = Blocks::new(&nest.map, samples, 1, POSITIONS);
        let planes = NchwTile::new(nest.map, blocks, 1, 1);
        PhasePass { blocks, planes, rows: planes.outputs(), taps: planes.taps(), nest }
    }

    /// Elements from one line of results to the next: whole vectors.
    fn pitch(&self) -> usize {
        self.blocks.columns.next_multiple_of(MAX_LANES)
    }

    /// Elements of a thread's scratch memory: the planes and what vectors read past them, lines of a block's
    /// results or gradients, and of the taps the weights or a vector each.
    fn room(&self) -> [usize; 3] {
        let lines = self.blocks.images_per_block * self.blocks.lines;
        let planes = (self.planes.elements() + MAX_LANES).next_multiple_of(MAX_LANES);
        [planes, lines * self.pitch(), self.taps.len() * MAX_LANES]
    }
}

impl Depthwise {
    pub fn new(c: &Conv, kind: Kind, tier: Tier) -> Depthwise {
        let nests = match kind {
            Kind::Input => Nest::per_phase(c),
            _ => vec![Nest::forward(c)],
        };
        let written: usize = nests.iter().map(|n| n.map.result.iter().product::<usize>()).sum();
        let gaps = kind == Kind::Input && written < c.input_plane();
        let parts = nests.into_iter().map(|nest| PhasePass::new(nest, c.batch)).collect();
        Depthwise { kind, tier, groups: c.groups, kernel: c.kernel_size(), parts, gaps }
    }

    /// Elements of a thread's scratch memory.
    fn room(&self) -> usize {
        self.parts.iter().map(|p| p.room().iter().sum()).max().unwrap_or(0)
    }

    /// Bytes of workspace.
    pub fn workspace<T: Operand>(&self, threads: usize) -> usize {
        threads * self.room() * size_of::<T::Wide>()
    }

    pub fn run<T: Operand>(&self, args: &mut Args) -> Result<()> {
        let (a, b) = (args.read(0)?.slice::<T>(), args.read(1)?.slice::<T>());
        let bias = args.opt(2).filter(|_| self.kind == Kind::Forward).map(View::slice::<T>);
        let mut scratch = workspace::each(args.workspace, self.room(), args.pool.threads());
        let out = args.writes[0].slice_mut::<T>();
        match self.kind {
            Kind::Weight => self.weight(args.pool, &mut scratch, a, b, out),
            _ => self.lines(args.pool, &mut scratch, a, b, bias, out),
        }
        Ok(())
    }

    /// Results from the source, the weights, and a bias for each channel.
    fn lines<T: Operand>(
        &self,
        pool: &Pool,
        scratch: &mut Scratch<T::Wide>,
        x: &[T],
        w: &[T],
        bias: Option<&[T]>,
        out: &mut [T],
    ) {
        if self.gaps {
            out.fill(T::from_f64(0.0));
        }
        let kernels = T::kernels(self.tier);
        let out = Shared(out.as_mut_ptr());
        let blocks = self.parts.iter().map(|p| p.blocks.count()).max().unwrap_or(0);
        // Channel after channel of a block, in the order of memory; and the phases sequentially, whose
        // results alternate.
        scratch.run(pool, self.groups * blocks, |at, scratch| {
            let (channel, at) = (at % self.groups, at / self.groups);
            for part in self.parts.iter().filter(|p| at < p.blocks.count()) {
                let room = part.room();
                let (planes, scratch) = scratch.split_at_mut(room[0]);
                let (sums, weights) = scratch.split_at_mut(room[1]);
                let block = part.blocks.get(at);
                self.hold(part, x, channel, &block, planes);
                for (weight, element) in weights.iter_mut().zip(&part.nest.elements) {
                    *weight = w[channel * self.kernel + element].widen();
                }
                let lines = DepthwiseLines {
                    inputs: planes.as_ptr(),
                    rows: &part.rows[..block.images.len() * block.lines.len()],
                    taps: &part.taps,
                    weights,
                    start: bias.map_or(T::Wide::ZERO, |b| b[channel].widen()),
                    width: block.columns.len(),
                    out: sums.as_mut_ptr(),
                    pitch: part.pitch(),
                };
                // SAFETY: inputs that the planes hold, and capacity for whole vectors; the results of a block
                // are its own.
                unsafe {
                    (kernels.depthwise_lines)(&lines);
                    self.store(part, channel, &block, sums, out);
                }
            }
        });
    }

    /// Holds what a block reads of a channel.
    fn hold<T: Operand>(
        &self,
        part: &PhasePass,
        x: &[T],
        channel: usize,
        block: &Block,
        planes: &mut [T::Wide],
    ) {
        let plane: usize = part.nest.map.source.iter().product();
        let (kernels, x) = (T::kernels(self.tier), &x[channel * plane..]);
        // SAFETY: the channel's plane of each sample.
        unsafe {
            let (of, sample) = (x.as_ptr(), self.groups * plane);
            part.planes.fill(&kernels.panels, kernels.widen, of, sample, block, 1, planes);
        }
    }

    /// Writes the results of a block where they belong.
    ///
    /// # Safety
    /// `out` is the result, and nobody else uses the elements of this block meanwhile.
    unsafe fn store<T: Operand>(
        &self,
        part: &PhasePass,
        channel: usize,
        block: &Block,
        sums: &[T::Wide],
        out: Shared<T>,
    ) {
        let kernels = T::kernels(self.tier);
        let Nest { map, output, origin, stride, .. } = &part.nest;
        let (depths, width, pitch) = (map.result[0], block.columns.len(), part.pitch());
        let each = block.lines.len() * pitch;
        for (image, sums) in block.images.clone().zip(sums.chunks(each.max(1))) {
            let at = |d: usize, r: usize| r * stride[d] + origin[d];
            let line = (image / depths * self.groups + channel) * output[0] + at(0, image % depths);
            let first =
                (line * output[1] + at(1, block.lines.start)) * output[2] + at(2, block.columns.start);
            let (out, stride_y) = (out.get().wrapping_add(first), stride[1] * output[2]);
            // SAFETY: results of this block.
            unsafe {
                if stride[2] == 1 && same::<T, T::Wide>() {
                    let sums = Mat { ptr: sums.as_ptr().cast(), rs: pitch as isize, cs: 1 };
                    (kernels.widen)(sums, block.lines.len(), width, out.cast(), stride_y);
                    continue;
                }
                for (i, sums) in sums.chunks_exact(pitch).take(block.lines.len()).enumerate() {
                    let out = out.wrapping_add(i * stride_y);
                    if stride[2] == 1 {
                        (kernels.narrow)(sums.as_ptr(), width, out);
                    } else {
                        (0..width).for_each(|j| *out.add(j * stride[2]) = T::narrow(sums[j]));
                    }
                }
            }
        }
    }

    /// Gradients of the weights, from those of the output and the input.
    fn weight<T: Operand>(
        &self,
        pool: &Pool,
        scratch: &mut Scratch<T::Wide>,
        g: &[T],
        x: &[T],
        out: &mut [T],
    ) {
        let (kernels, part) = (T::kernels(self.tier), &self.parts[0]);
        let ([depths, height, width], pitch, room) = (part.nest.map.result, part.pitch(), part.room());
        let lanes = kernels.nr / 2;
        let out = Shared(out.as_mut_ptr());
        scratch.run(pool, self.groups, |channel, scratch| {
            let (planes, scratch) = scratch.split_at_mut(room[0]);
            let (gradients, sums) = scratch.split_at_mut(room[1]);
            let sums = &mut sums[..room[2]];
            sums.fill(T::Wide::ZERO);
            for at in 0..part.blocks.count() {
                let block = part.blocks.get(at);
                self.hold(part, x, channel, &block, planes);
                let (lines, columns) = (block.lines.len(), block.columns.len());
                gradients.fill(T::Wide::ZERO);
                for (i, image) in block.images.clone().enumerate() {
                    let line = (image / depths * self.groups + channel) * depths + image % depths;
                    let first = (line * height + block.lines.start) * width + block.columns.start;
                    let g = Mat { ptr: g[first..].as_ptr(), rs: width as isize, cs: 1 };
                    let to = gradients[i * lines * pitch..].as_mut_ptr();
                    // SAFETY: the block's gradients of an image, and capacity for its lines.
                    unsafe { (kernels.widen)(g, lines, columns, to, pitch) };
                }
                let dots = DepthwiseWeightSums {
                    inputs: planes.as_ptr(),
                    rows: &part.rows[..block.images.len() * lines],
                    taps: &part.taps,
                    width: columns,
                    gradients: gradients.as_ptr(),
                    pitch,
                    sums: sums.as_mut_ptr(),
                };
                // SAFETY: inputs that the planes hold, gradients in whole vectors, and a vector for each tap.
                unsafe { (kernels.depthwise_weight_sums)(&dots) };
            }
            for (tap, sums) in sums.chunks_exact(lanes).take(self.kernel).enumerate() {
                let mut all = [T::Wide::ZERO; MAX_LANES];
                all[..lanes].copy_from_slice(sums);
                // SAFETY: a channel's weights are its own.
                unsafe { *out.get().add(channel * self.kernel + tap) = T::narrow(total(all, lanes)) };
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_core::Shape;

    /// Work and writes per channel depend on the convolution, not on the workspace that it shares with other
    /// steps.
    #[test]
    fn a_large_workspace_is_left_alone_but_for_the_parts_of_threads() {
        const UNTOUCHED: f32 = -7.0;
        let c = Conv {
            batch: 2,
            groups: 6,
            cin: 1,
            cout: 1,
            input: [1, 7, 9],
            kernel: [1, 3, 3],
            output: [1, 7, 9],
            stride: [1; 3],
            dilation: [1; 3],
            pad: [0, 1, 1],
            out_shape: Shape::from([2, 6, 7, 9]),
        };
        let (pool, plane) = (Pool::new(2), 2 * 6 * 7 * 9);
        let (x, w) = (vec![1.0f32; plane], vec![1.0f32; 6 * 9]);
        for kind in [Kind::Forward, Kind::Input, Kind::Weight] {
            let depthwise = Depthwise::new(&c, kind, Tier::detect());
            let size = depthwise.room();
            let mut room = vec![UNTOUCHED; 1 << 18];
            let mut scratch = workspace::spread(&mut room, size, pool.threads());
            match kind {
                Kind::Weight => {
                    let mut out = vec![0.0; w.len()];
                    depthwise.weight(&pool, &mut scratch, &x, &x, &mut out);
                    // Positions of both samples that the middle tap meets, and a corner's.
                    assert_eq!((out[4], out[0]), (2.0 * 63.0, 2.0 * 48.0));
                }
                _ => {
                    let mut out = vec![0.0; plane];
                    depthwise.lines(&pool, &mut scratch, &x, &w, None, &mut out);
                    assert_eq!((out[10], out[0]), (9.0, 4.0));
                }
            }
            let touched = room.iter().filter(|&&x| x != UNTOUCHED).count();
            assert!(
                (1..=size * pool.threads()).contains(&touched),
                "{touched} elements, {size} for each thread"
            );
        }
    }
}
