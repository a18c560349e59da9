//! A pass: one loop nest of a convolution, with its blocks and tilings. The forward pass is one, the input
//! gradient one or several. `implicit_gemm` and `pointwise` are the methods that compute it.

use super::blocks::{Block, Blocks};
use super::index_map::{IndexMap, single};
use super::nest::Nest;
use super::nhwc_tile::NhwcTile;
use super::patchify::Patchify;
use super::tiling::{Inputs, Tilings};
use super::{Shape, channels};
use crate::gemm::even;
use headwater_core::ops::conv::geometry::Conv;

/// Channels of the result computed at a time.
pub(super) const RESULTS: usize = 128;
/// Positions computed at a time, about.
const POSITIONS: usize = 512;
/// k-groups of patches summed over at a time, about: a micro-panel of filters fits into the first-level
/// cache.
const DEPTH: usize = 256;
/// Elements of the source that a block of a pointwise pass packs, about: half of the second-level cache.
const POINTWISE_PACKED: usize = 128 << 10;
/// Positions of such a block, at most.
const POINTWISE_POSITIONS: usize = 512;
/// Blocks that few positions are cut into as well, of 32 positions at least.
const POINTWISE_BLOCKS: usize = 8;

/// One loop nest. Source `[samples, groups · from, source…]`, result `[samples, groups · to, output…]`.
#[derive(Clone, Debug)]
pub(super) struct Pass {
    pub samples: usize,
    pub groups: usize,
    pub from: usize,
    pub to: usize,
    /// Channels of the source in a k-group.
    pub k_group: usize,
    pub nest: Nest,
    /// One tap without padding: a plain matrix product.
    pub pointwise: bool,
    /// Weight of result channel `o`, source channel `i` (in a group) and tap `t`:
    /// `o · weight[0] + i · weight[1] + nest.elements[t]`; a group's weights follow the last one's.
    pub weight: [usize; 2],
    /// Blocks of cells.
    pub blocks: Blocks,
    /// k-groups of the source's channels summed over at a time, and rows of a micro-panel for each.
    pub channels: usize,
    pub taps: usize,
    pub inputs: Inputs,
    pub tilings: Tilings,
}

impl Pass {
    /// The forward pass, by register tiles of some shape.
    pub fn forward(c: &Conv, shape: Shape) -> Pass {
        let weight = [c.cin * c.kernel_size(), c.kernel_size()];
        Pass::new(c, [c.cin, c.cout], shape, weight, Nest::forward(c), Patchify::new(c, shape))
    }

    /// The input gradient: a pass for each nest.
    pub fn input_gradient(c: &Conv, shape: Shape) -> Vec<Pass> {
        let weight = [c.kernel_size(), c.cin * c.kernel_size()];
        let pass = |nest| Pass::new(c, [c.cout, c.cin], shape, weight, nest, None);
        Nest::input_gradient(c).into_iter().map(pass).collect()
    }

    /// A pass; `patches` are multiplied in place.
    fn new(
        c: &Conv,
        [from, to]: [usize; 2],
        shape: Shape,
        weight: [usize; 2],
        nest: Nest,
        patches: Option<Patchify>,
    ) -> Pass {
        // Patches group columns into k-groups, others channels.
        let k_group = if patches.is_some() { 1 } else { shape.k_group };
        let (m, samples, k_groups) = (nest.map, c.batch, from.div_ceil(k_group));
        let phases: usize = nest.phases.iter().map(Vec::len).product();
        let pointwise = single(&m) && phases == 1;
        let (channels, taps) = match patches {
            Some(patches) => (even(k_groups, (DEPTH / patches.k_groups()).max(1), 1), patches.k_groups()),
            None => (channels(nest.most_taps(), k_groups), nest.taps()),
        };
        let blocks = match patches {
            // Nothing is held, as if there were a tap.
            Some(_) => Blocks::new(&IndexMap { taps: [1; 3], ..m }, samples, 1, POSITIONS / 2),
            None if pointwise => pointwise_blocks(&m, samples, k_groups),
            // At least as many cells as a tile has rows.
            None if phases > 1 => Blocks::new(&m, samples, channels, (POSITIONS / phases).max(shape.mr)),
            None => Blocks::new(&m, samples, channels, POSITIONS),
        };
        let inputs =
            patches.map_or_else(|| Inputs::Held(NhwcTile::new(m, blocks, channels)), Inputs::InPlace);
        let tilings = match pointwise {
            true => Tilings::default(),
            false => Tilings::new(&nest, &blocks, &inputs, [channels, k_groups % channels], shape.mr),
        };
        let groups = c.groups;
        Pass {
            samples,
            groups,
            from,
            to,
            k_group,
            nest,
            pointwise,
            weight,
            blocks,
            channels,
            taps,
            inputs,
            tilings,
        }
    }

    /// Elements of the result it writes.
    pub fn written(&self) -> usize {
        let Nest { map: IndexMap { result, .. }, output: whole, .. } = &self.nest;
        let plane = if self.pointwise { result[1] * result[2] } else { whole[1] * whole[2] };
        self.samples * self.groups * self.to * result[0] * plane
    }

    /// Places that the source's channels take.
    pub fn k_groups(&self) -> usize {
        self.from.div_ceil(self.k_group)
    }

    /// Positions of a block at most.
    pub fn positions(&self) -> usize {
        self.blocks.positions() * self.nest.phases.iter().map(Vec::len).product::<usize>()
    }

    /// Elements of the whole kernel, whichever taps this pass uses.
    pub fn kernel(&self) -> usize {
        self.weight[0].min(self.weight[1])
    }

    /// True if weights are packed where they are used, panel by panel: all results are one block, which needs
    /// each once.
    pub fn at_once(&self) -> bool {
        self.blocks.count() == 1
    }

    /// True if it writes the zeros between its results.
    pub fn fills(&self) -> bool {
        self.pointwise
            && self.nest.stride[0] == 1
            && self.nest.origin == [0; 3]
            && self.nest.output[0] == self.nest.map.result[0]
    }

    /// Job `at` of an implicit GEMM: some channels of the result of a block.
    pub fn job(&self, at: usize) -> Job {
        let parts = self.to.div_ceil(RESULTS);
        let (part, at) = (at % parts, at / parts);
        Job { group: at % self.groups, block: at / self.groups, first: part * RESULTS }
    }

    /// Channels of one partial sum, from k-group `i0` on: k-groups, and elements.
    pub fn part(&self, i0: usize) -> (usize, usize) {
        let channels = self.channels.min(self.k_groups() - i0);
        (channels, (channels * self.k_group).min(self.from - i0 * self.k_group))
    }

    /// Offset of a channel's results of a block in an image: of a block of outputs, or of cells where these
    /// have one each.
    pub fn result(&self, job: &Job, image: usize, block: &Block, channel: usize) -> usize {
        let nest = &self.nest;
        let (sample, depth) = (image / nest.map.result[0], image % nest.map.result[0]);
        let at = |d: usize, i: usize| match d == 0 || self.pointwise {
            true => i * nest.stride[d] + nest.origin[d],
            false => i,
        };
        let channel = (sample * self.groups + job.group) * self.to + channel;
        index(channel, nest.output, [at(0, depth), at(1, block.lines.start), at(2, block.columns.start)])
    }
}

/// The blocks of such a pass, whose channels take so many places.
fn pointwise_blocks(m: &IndexMap, samples: usize, k_groups: usize) -> Blocks {
    let all = samples * m.result.iter().product::<usize>();
    let most = (POINTWISE_PACKED / k_groups.max(1)).min(POINTWISE_POSITIONS).min(all / POINTWISE_BLOCKS);
    Blocks::new(m, samples, 1, most.max(32))
}

/// The index of an element of a channel's image.
pub(super) fn index(channel: usize, size: [usize; 3], [z, y, x]: [usize; 3]) -> usize {
    ((channel * size[0] + z) * size[1] + y) * size[2] + x
}

/// The work of one task.
pub(super) struct Job {
    pub group: usize,
    pub block: usize,
    /// First of the result's channels in the group.
    pub first: usize,
}
