//! Loop nests of convolutions: outputs, the stride phases they belong to, and the filter taps of each phase.

use super::blocks::Block;
use super::index_map::{IndexMap, spatial, within};
use headwater_core::ops::conv::geometry::Conv;
use std::ops::Range;

/// A convolution as a loop nest. Outputs of a plane come in cells of `stride[1] × stride[2]`: one of each
/// stride phase, with filter taps of its own. The forward pass has one phase.
#[derive(Clone, Debug)]
pub(super) struct Nest {
    /// Inputs of the cells, of all phases.
    pub map: IndexMap,
    /// Size of the whole output.
    pub output: [usize; 3],
    /// Depth `r` of the map is depth `origin[0] + r · stride[0]` of the output. In a pointwise pass so are
    /// lines and columns, and outputs between them belong to no cell.
    pub origin: [usize; 3],
    pub stride: [usize; 3],
    /// Phases of each dimension; depth has one.
    pub phases: [Vec<Phase>; 3],
    /// Filter element of each tap, one phase after the other in each dimension.
    pub elements: Vec<usize>,
}

/// Taps of a stride phase along a dimension.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Phase {
    /// First tap among those of all phases, and how many.
    pub first: usize,
    pub taps: usize,
    /// Inputs from the first of the cell to that of the first tap, and from one tap to the next.
    pub offset: usize,
    pub dilation: usize,
}

/// Phase of a line or a column, and its taps that fall inside the image.
pub(super) type ValidTaps = (usize, Range<usize>);

impl Nest {
    /// The forward pass.
    pub fn forward(c: &Conv) -> Nest {
        let [source, result, taps, step, tap, pad] = spatial(c);
        let base = pad.map(|p| -(p as isize));
        let map = IndexMap { source, result, taps, step, tap, base };
        let phases =
            std::array::from_fn(|d| vec![Phase { first: 0, taps: taps[d], offset: 0, dilation: tap[d] }]);
        let elements = (0..c.kernel_size()).collect();
        Nest { map, output: result, origin: [0; 3], stride: [1; 3], phases, elements }
    }

    /// Taps of all phases.
    pub fn taps(&self) -> usize {
        self.elements.len()
    }

    /// Most taps of one phase.
    pub fn most_taps(&self) -> usize {
        self.phases.iter().map(|all| all.iter().map(|phase| phase.taps).max().unwrap_or(0)).product()
    }

    /// Outputs of the cells of a block, except for depth.
    pub fn outputs_of(&self, block: &Block) -> Block {
        let [lines, columns] =
            [(1, &block.lines), (2, &block.columns)].map(|(d, cells)| self.outputs(d, cells));
        Block { images: block.images.clone(), lines, columns }
    }

    /// Outputs of some cells along dimension `d`.
    pub fn outputs(&self, d: usize, cells: &Range<usize>) -> Range<usize> {
        let n = self.phases[d].len();
        (cells.start * n).min(self.output[d])..(cells.end * n).min(self.output[d])
    }

    /// Phase and valid taps of an output along dimension `d`.
    pub fn valid_taps(&self, d: usize, output: usize) -> ValidTaps {
        let m = &self.map;
        let (cell, phase) = (output / self.phases[d].len(), output % self.phases[d].len());
        let Phase { taps, offset, dilation, .. } = self.phases[d][phase];
        let first = (cell * m.step[d] + offset) as isize + m.base[d];
        let (before, inside, _) = within(first, dilation.max(1), taps, m.source[d]);
        (phase, before..before + inside)
    }
}
