//! Tiles of rows that are summed over the same terms. Where an image ends, some taps meet nothing but
//! padding: positions that meet the same taps make tiles of their own, which leave the others out, where that
//! costs less than it saves.

use super::band::{Band, within};
use super::nest::{Meeting, Member, Nest};
use super::patches::Patches;
use super::{Block, Blocks};
use crate::gemm::{IndirectRow, IndirectRun};
use std::ops::Range;

/// What a tile takes besides its products, in products of one row.
const AROUND: usize = 100;

/// Even tiles of `n` rows, each of at most `rows`.
pub(super) fn cut(n: usize, rows: usize) -> impl Iterator<Item = Range<usize>> {
    let tiles = n.div_ceil(rows);
    (0..tiles).map(move |i| i * n / tiles..(i + 1) * n / tiles)
}

/// What they cost, each row a sum of `terms`: in products of a row. Few rows take as long as half a tile, for
/// they wait for their own sums.
pub(super) fn cost(n: usize, rows: usize, terms: usize) -> usize {
    cut(n, rows).map(|tile| tile.len().max(rows / 2) * terms + AROUND).sum()
}

/// Positions that meet the same taps.
#[derive(Clone, Debug)]
pub(super) struct Tile {
    /// Of [`Tiles::rows`].
    pub rows: Range<usize>,
    /// Of [`Tiles::sums`].
    pub sum: usize,
}

/// What positions sum over, of some channels: see [`crate::gemm::IndirectTile`].
#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    pub runs: Vec<IndirectRun>,
    pub inner: usize,
    pub pitch: usize,
}

/// Where the inputs of a pass lie: they are held in scratch memory, or as they are in the image.
#[derive(Clone, Copy, Debug)]
pub(super) enum Inputs {
    Held(Band),
    Image(Patches),
}

/// The positions of a block, each where the inputs of its cell begin.
#[derive(Clone, Debug, Default)]
pub(super) struct Tiles {
    pub rows: Vec<IndirectRow>,
    pub tiles: Vec<Tile>,
    /// Of as many channels as are summed at a time, and of those left at the end.
    pub sums: Vec<[Part; 2]>,
}

/// The member of a cell that a line or a column is, and those of its taps that meet inputs.
type Met = (usize, Range<usize>);

/// The tiles of all blocks; most of these are alike.
#[derive(Clone, Debug, Default)]
pub(super) struct Tilings {
    /// The kind of each block of an image's lines, and of a line's columns: by what these meet.
    lines: Vec<usize>,
    columns: Vec<usize>,
    /// Those of all pairs of kinds, of whole blocks of images and of the last one.
    tiles: [Vec<Tiles>; 2],
    column_kinds: usize,
}

impl Tilings {
    /// Of a pass that sums over so many channels at a time and so many at the end; tiles have at most `rows`.
    pub fn new(nest: &Nest, blocks: &Blocks, inputs: &Inputs, channels: [usize; 2], rows: usize) -> Tilings {
        let [of_line, of_image] = blocks.per_image();
        // Blocks of a dimension, and where their cells end.
        let kinds = |d: usize, n: usize, cells: usize, end: usize| -> (Vec<usize>, Vec<Vec<Met>>) {
            let mut kinds: Vec<Vec<Met>> = Vec::new();
            let of = |i: usize| {
                let block = i * cells..end.min((i + 1) * cells);
                let met: Vec<Met> = nest.outputs(d, &block).map(|output| nest.met(d, output)).collect();
                kinds.iter().position(|kind| *kind == met).unwrap_or_else(|| {
                    kinds.push(met);
                    kinds.len() - 1
                })
            };
            ((0..n).map(of).collect(), kinds)
        };
        let (lines, of_lines) = kinds(1, of_image, blocks.lines, blocks.height);
        let (columns, of_columns) = kinds(2, of_line, blocks.columns, blocks.width);
        let last = blocks.images.saturating_sub(1) % blocks.together + 1;
        let tiles = [blocks.together, last.min(blocks.images)].map(|images| {
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

/// Lines or columns that sum over the same taps of a member.
type Class = (Met, Vec<usize>);

impl Tiles {
    fn new(
        nest: &Nest,
        images: usize,
        inputs: &Inputs,
        channels: [usize; 2],
        rows: usize,
        met: [&[Met]; 2],
    ) -> Tiles {
        let members = &nest.members;
        let divided = |divide: [bool; 2]| [0, 1].map(|d| classes(met[d], &members[d + 1], divide[d]));
        let pairs = |[lines, columns]: &[Vec<Class>; 2]| -> Vec<[Class; 2]> {
            lines.iter().flat_map(|l| columns.iter().map(|c| [l.clone(), c.clone()])).collect()
        };
        let all = [[false, false], [true, false], [false, true], [true, true]].map(divided);
        let depths = members[0][0].taps;
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
                    let cell = [image, line / members[1].len(), column / members[2].len()];
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
    /// Where the inputs of a cell begin: of an image of a block, a line and a column.
    fn at(&self, cell: [usize; 3]) -> usize {
        match self {
            Inputs::Held(band) => band.at(cell),
            Inputs::Image(patches) => patches.at(cell),
        }
    }

    /// What positions that meet these taps sum over, of some channels.
    fn part(&self, nest: &Nest, channels: usize, [y, x]: [&Met; 2]) -> Part {
        let band = match self {
            _ if channels == 0 => return Part::default(),
            Inputs::Image(patches) => return patches.part(channels),
            Inputs::Held(band) => band,
        };
        let [depth, line, column] = [(0, 0), (1, y.0), (2, x.0)].map(|(d, member)| nest.members[d][member]);
        let all = [1, 2].map(|d| nest.members[d].iter().map(|member| member.taps).sum::<usize>());
        // Columns that follow each other are one run.
        let columns = if column.apart == 1 { x.1.len() } else { x.1.len().min(1) };
        let [plane, pitch] = band.pitches();
        let mut runs = Vec::new();
        for (a, b) in (0..depth.taps).flat_map(|a| y.1.clone().map(move |b| (a, b))) {
            for c in x.1.clone().step_by(columns.max(1)) {
                let [z, y, x] = [(depth, a), (line, b), (column, c)].map(|(m, t)| m.offset + t * m.apart);
                let left = ((z * plane + y * pitch + x) * channels) as isize;
                runs.push(IndirectRun {
                    left,
                    right: (a * all[0] + line.first + b) * all[1] + column.first + c,
                });
            }
        }
        Part { runs, inner: columns * channels, pitch: channels }
    }
}

/// By the taps that they meet if they are divided so, else by their member alone.
fn classes(met: &[Met], members: &[Member], divided: bool) -> Vec<Class> {
    let mut classes: Vec<Class> = Vec::new();
    for (at, (member, taps)) in met.iter().enumerate() {
        let of = (*member, if divided { taps.clone() } else { 0..members[*member].taps });
        match classes.iter_mut().find(|(other, _)| *other == of) {
            Some((_, outputs)) => outputs.push(at),
            None => classes.push((of, vec![at])),
        }
    }
    classes
}

impl Nest {
    /// The outputs that the cells of a block are made of, but for its depth.
    pub fn members_of(&self, block: &Block) -> Block {
        let [lines, columns] =
            [(1, &block.lines), (2, &block.columns)].map(|(d, cells)| self.outputs(d, cells));
        Block { images: block.images.clone(), lines, columns }
    }

    /// Those of some cells along dimension `d`.
    fn outputs(&self, d: usize, cells: &Range<usize>) -> Range<usize> {
        let n = self.members[d].len();
        (cells.start * n).min(self.whole[d])..(cells.end * n).min(self.whole[d])
    }

    /// What an output meets along dimension `d`.
    fn met(&self, d: usize, output: usize) -> Met {
        let m = &self.meeting;
        let (cell, member) = (output / self.members[d].len(), output % self.members[d].len());
        let Member { taps, offset, apart, .. } = self.members[d][member];
        let first = (cell * m.step[d] + offset) as isize + m.base[d];
        let (before, inside, _) = within(first, apart.max(1), taps, m.source[d]);
        (member, before..before + inside)
    }
}

impl Meeting {
    /// The outputs that meet inputs through a tap, along dimension `d`.
    pub fn meeting(&self, d: usize, tap: usize) -> Range<usize> {
        let first = (tap * self.tap[d]) as isize + self.base[d];
        let (before, inside, _) = within(first, self.step[d], self.result[d], self.source[d]);
        before..before + inside
    }
}
