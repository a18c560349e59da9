//! Register tiles of outputs that sum over the same taps. At the border of an image some taps read only
//! padding. Outputs with the same valid taps get tiles of their own, which skip the other taps, where that
//! costs less than it saves.

use super::blocks::Blocks;
use super::index_map::Reduction;
use super::nest::{Nest, Phase, ValidTaps};
use super::nhwc_tile::NhwcTile;
use super::patchify::Patchify;
use crate::gemm::{IndirectRow, IndirectRun};
use std::ops::Range;

/// Fixed cost of a tile, in multiply-adds of one row.
const AROUND: usize = 100;

/// Even tiles of `n` rows, each of at most `rows`.
pub(super) fn cut(n: usize, rows: usize) -> impl Iterator<Item = Range<usize>> {
    let tiles = n.div_ceil(rows);
    (0..tiles).map(move |i| i * n / tiles..(i + 1) * n / tiles)
}

/// Cost of these tiles, each row a sum of `terms`, in multiply-adds of a row. Few rows take as long as half a
/// tile, for they wait for their own sums.
pub(super) fn cost(n: usize, rows: usize, terms: usize) -> usize {
    cut(n, rows).map(|tile| tile.len().max(rows / 2) * terms + AROUND).sum()
}

/// Outputs with the same valid taps.
#[derive(Clone, Debug)]
pub(super) struct Tile {
    /// Range of [`Tiles::rows`].
    pub rows: Range<usize>,
    /// Index in [`Tiles::sums`].
    pub sum: usize,
}

/// Inputs of a pass: held in scratch memory, or read in place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Inputs {
    Held(NhwcTile),
    InPlace(Patchify),
}

/// Register tiles of a block, each row with the offset of the inputs of its cell.
#[derive(Clone, Debug, Default)]
pub(super) struct Tiles {
    pub rows: Vec<IndirectRow>,
    pub tiles: Vec<Tile>,
    /// Reductions over as many channels as are summed at a time, and over those left at the end.
    pub sums: Vec<[Reduction; 2]>,
}

/// The tiles of all blocks; most of these are alike.
#[derive(Clone, Debug, Default)]
pub(super) struct Tilings {
    /// Kind of each block of an image's lines, and of a line's columns, by their valid taps.
    lines: Vec<usize>,
    columns: Vec<usize>,
    /// Tiles of all pairs of kinds, for whole blocks of images and for the last one.
    tiles: [Vec<Tiles>; 2],
    column_kinds: usize,
}

impl Tilings {
    /// Tilings of a pass that sums over `channels[0]` channels at a time and `channels[1]` at the end; tiles
    /// have at most `rows` rows.
    pub fn new(nest: &Nest, blocks: &Blocks, inputs: &Inputs, channels: [usize; 2], rows: usize) -> Tilings {
        let [of_line, of_image] = blocks.per_image();
        // Blocks of a dimension, and where their cells end.
        let kinds = |d: usize, n: usize, cells: usize, end: usize| -> (Vec<usize>, Vec<Vec<ValidTaps>>) {
            let mut kinds: Vec<Vec<ValidTaps>> = Vec::new();
            let of = |i: usize| {
                let block = i * cells..end.min((i + 1) * cells);
                let met: Vec<ValidTaps> =
                    nest.outputs(d, &block).map(|output| nest.valid_taps(d, output)).collect();
                kinds.iter().position(|kind| *kind == met).unwrap_or_else(|| {
                    kinds.push(met);
                    kinds.len() - 1
                })
            };
            ((0..n).map(of).collect(), kinds)
        };
        let (lines, of_lines) = kinds(1, of_image, blocks.lines, blocks.height);
        let (columns, of_columns) = kinds(2, of_line, blocks.columns, blocks.width);
        let last = blocks.images.saturating_sub(1) % blocks.images_per_block + 1;
        let tiles = [blocks.images_per_block, last.min(blocks.images)].map(|images| {
            let pairs = of_lines.iter().flat_map(|l| of_columns.iter().map(move |c| [&l[..], &c[..]]));
            pairs.map(|met| Tiles::new(nest, images, inputs, channels, rows, met)).collect()
        });
        Tilings { lines, columns, tiles, column_kinds: of_columns.len() }
    }

    pub fn get(&self, blocks: &Blocks, at: usize) -> &Tiles {
        let [of_line, of_image] = blocks.per_image();
        let last = at + of_line * of_image >= blocks.count();
        let line = self.lines[at / of_line % of_image];
        &self.tiles[usize::from(last)][line * self.column_kinds + self.columns[at % of_line]]
    }
}

/// Lines or columns that sum over the same taps of a phase.
type Class = (ValidTaps, Vec<usize>);

impl Tiles {
    fn new(
        nest: &Nest,
        images: usize,
        inputs: &Inputs,
        channels: [usize; 2],
        rows: usize,
        met: [&[ValidTaps]; 2],
    ) -> Tiles {
        let phases = &nest.phases;
        let divided = |divide: [bool; 2]| [0, 1].map(|d| classes(met[d], &phases[d + 1], divide[d]));
        let pairs = |[lines, columns]: &[Vec<Class>; 2]| -> Vec<[Class; 2]> {
            lines.iter().flat_map(|l| columns.iter().map(|c| [l.clone(), c.clone()])).collect()
        };
        let all = [[false, false], [true, false], [false, true], [true, true]].map(divided);
        let depths = phases[0][0].taps;
        let price = |classes: &[Vec<Class>; 2]| -> usize {
            let each = |[(y, lines), (x, columns)]: [Class; 2]| {
                let terms = depths * y.1.len() * x.1.len() * channels[0];
                cost(images * lines.len() * columns.len(), rows, terms)
            };
            pairs(classes).into_iter().map(each).sum()
        };
        let best = all.iter().min_by_key(|classes| price(classes)).expect("four ways");
        let mut tiles = Tiles::default();
        for [(y, lines), (x, columns)] in pairs(best) {
            let first = tiles.rows.len();
            for image in 0..images {
                for (&line, &column) in lines.iter().flat_map(|l| columns.iter().map(move |c| (l, c))) {
                    let position = (image * met[0].len() + line) * met[1].len() + column;
                    let cell = [image, line / phases[1].len(), column / phases[2].len()];
                    tiles.rows.push(IndirectRow { position, offset: inputs.at(cell) });
                }
            }
            for tile in cut(tiles.rows.len() - first, rows) {
                let rows = first + tile.start..first + tile.end;
                tiles.tiles.push(Tile { rows, sum: tiles.sums.len() });
            }
            tiles.sums.push(channels.map(|channels| inputs.part(nest, channels, [&y, &x])));
        }
        tiles
    }
}

impl Inputs {
    /// Offset of the inputs of a cell: of an image of a block, a line and a column.
    fn at(&self, cell: [usize; 3]) -> usize {
        match self {
            Inputs::Held(band) => band.at(cell),
            Inputs::InPlace(patches) => patches.at(cell),
        }
    }

    /// The reduction of outputs with these taps over some channels.
    fn part(&self, nest: &Nest, channels: usize, [y, x]: [&ValidTaps; 2]) -> Reduction {
        let band = match self {
            _ if channels == 0 => return Reduction::default(),
            Inputs::InPlace(patches) => return patches.part(channels),
            Inputs::Held(band) => band,
        };
        let [depth, line, column] = [(0, 0), (1, y.0), (2, x.0)].map(|(d, phase)| nest.phases[d][phase]);
        let all = [1, 2].map(|d| nest.phases[d].iter().map(|phase| phase.taps).sum::<usize>());
        // Columns that follow each other are one run.
        let columns = if column.dilation == 1 { x.1.len() } else { x.1.len().min(1) };
        let [plane, pitch] = band.pitches();
        let mut runs = Vec::new();
        for (a, b) in (0..depth.taps).flat_map(|a| y.1.clone().map(move |b| (a, b))) {
            for c in x.1.clone().step_by(columns.max(1)) {
                let [z, y, x] = [(depth, a), (line, b), (column, c)].map(|(m, t)| m.offset + t * m.dilation);
                let left = ((z * plane + y * pitch + x) * channels) as isize;
                runs.push(IndirectRun {
                    left,
                    right: (a * all[0] + line.first + b) * all[1] + column.first + c,
                });
            }
        }
        Reduction { runs, inner: columns * channels, pitch: channels }
    }
}

/// Classes by valid taps if `divided`, else by phase alone.
fn classes(met: &[ValidTaps], phases: &[Phase], divided: bool) -> Vec<Class> {
    let mut classes: Vec<Class> = Vec::new();
    for (at, (phase, taps)) in met.iter().enumerate() {
        let of = (*phase, if divided { taps.clone() } else { 0..phases[*phase].taps });
        match classes.iter_mut().find(|(other, _)| *other == of) {
            Some((_, outputs)) => outputs.push(at),
            None => classes.push((of, vec![at])),
        }
    }
    classes
}
