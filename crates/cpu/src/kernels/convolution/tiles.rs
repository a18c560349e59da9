//! Tiles of rows that are summed over the same terms. Where an image ends, some taps meet nothing but padding: positions that
//! meet the same taps make tiles of their own, which leave the others out, where that costs less than it saves.

use super::band::{Band, within};
use super::nest::{Meeting, Member, Nest};
use super::{Block, Blocks};
use crate::gemm::{Row, Run};
use std::ops::Range;

/// What a tile takes besides its products, in products of one row.
const AROUND: usize = 100;

/// Even tiles of `n` rows, each of at most `rows`.
pub(super) fn cut(n: usize, rows: usize) -> impl Iterator<Item = Range<usize>> {
    let tiles = n.div_ceil(rows);
    (0..tiles).map(move |i| i * n / tiles..(i + 1) * n / tiles)
}

/// What they cost, each row a sum of `terms`: in products of a row. Few rows take as long as half a tile, for they wait for
/// their own sums.
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

/// What positions sum over: runs of memory, of so many columns.
#[derive(Clone, Debug)]
pub(super) struct Sum {
    /// With as many channels as the band holds, and as are left at the end.
    pub runs: [Vec<Run>; 2],
    pub columns: usize,
}

/// The positions of a block, each where the inputs of its cell begin.
#[derive(Clone, Debug, Default)]
pub(super) struct Tiles {
    pub rows: Vec<Row>,
    pub tiles: Vec<Tile>,
    pub sums: Vec<Sum>,
}

/// The member of a cell that a line or a column is, and those of its taps that meet inputs.
type Met = (usize, Range<usize>);

/// The tiles of all blocks; most of these are alike.
#[derive(Clone, Debug, Default)]
pub(super) struct Tilings {
    /// By the images, and what lines and columns meet.
    kinds: Vec<((usize, [Vec<Met>; 2]), Tiles)>,
    /// The kind of each block of an image, and of those of the last images if these are fewer.
    of: Vec<usize>,
}

impl Tilings {
    /// Of a pass whose band holds, of all channels, so many at a time and so many at the end; tiles have at most `rows`. The inputs
    /// of a cell, of an image of the block, a line and a column, begin at its `place`.
    pub fn new(
        nest: &Nest,
        blocks: &Blocks,
        band: &Band,
        channels: [usize; 2],
        rows: usize,
        place: &dyn Fn([usize; 3]) -> usize,
    ) -> Tilings {
        let mut tilings = Tilings::default();
        let each = blocks.per_image().iter().product::<usize>();
        for at in (0..each).chain(blocks.count().saturating_sub(each)..blocks.count()) {
            let block = nest.members_of(&blocks.get(at));
            let met = [(1, &block.lines), (2, &block.columns)]
                .map(|(d, outputs)| outputs.clone().map(|output| nest.met(d, output)).collect());
            let key = (block.images.len(), met);
            let kind = tilings.kinds.iter().position(|(other, _)| *other == key).unwrap_or_else(|| {
                let tiles = Tiles::new(nest, &block, band, channels, rows, &key.1, place);
                tilings.kinds.push((key, tiles));
                tilings.kinds.len() - 1
            });
            tilings.of.push(kind);
        }
        tilings
    }

    pub fn get(&self, blocks: &Blocks, at: usize) -> &Tiles {
        let each = self.of.len() / 2;
        let last = at + each >= blocks.count();
        &self.kinds[self.of[at % each + if last { each } else { 0 }]].1
    }
}

/// Lines or columns that sum over the same taps of a member.
type Class = (Met, Vec<usize>);

impl Tiles {
    fn new(
        nest: &Nest,
        block: &Block,
        band: &Band,
        channels: [usize; 2],
        rows: usize,
        met: &[Vec<Met>; 2],
        place: &dyn Fn([usize; 3]) -> usize,
    ) -> Tiles {
        let members = &nest.members;
        let divided = |divide: [bool; 2]| [0, 1].map(|d| classes(&met[d], &members[d + 1], divide[d]));
        let pairs = |[lines, columns]: &[Vec<Class>; 2]| -> Vec<[Class; 2]> {
            lines.iter().flat_map(|l| columns.iter().map(|c| [l.clone(), c.clone()])).collect()
        };
        let all = [[false, false], [true, false], [false, true], [true, true]].map(divided);
        let depths = members[0][0].taps;
        let price = |classes: &[Vec<Class>; 2]| -> usize {
            let each = |[(y, lines), (x, columns)]: [Class; 2]| {
                let terms = depths * y.1.len() * x.1.len() * channels[0];
                cost(block.images.len() * lines.len() * columns.len(), rows, terms)
            };
            pairs(classes).into_iter().map(each).sum()
        };
        let best = all.iter().min_by_key(|classes| price(classes)).expect("four ways");
        let mut tiles = Tiles::default();
        for [(y, lines), (x, columns)] in pairs(best) {
            let first = tiles.rows.len();
            for image in 0..block.images.len() {
                for (&line, &column) in lines.iter().flat_map(|l| columns.iter().map(move |c| (l, c))) {
                    let position = (image * met[0].len() + line) * met[1].len() + column;
                    let cell = [image, line / members[1].len(), column / members[2].len()];
                    tiles.rows.push(Row { position, place: place(cell) });
                }
            }
            for tile in cut(tiles.rows.len() - first, rows) {
                let rows = first + tile.start..first + tile.end;
                tiles.tiles.push(Tile { rows, sum: tiles.sums.len() });
            }
            tiles.sums.push(Sum::new(nest, band, channels, [y, x]));
        }
        tiles
    }
}

impl Sum {
    fn new(nest: &Nest, band: &Band, channels: [usize; 2], [y, x]: [Met; 2]) -> Sum {
        let [depth, line, column] = [(0, 0), (1, y.0), (2, x.0)].map(|(d, member)| nest.members[d][member]);
        let all = [1, 2].map(|d| nest.members[d].iter().map(|member| member.taps).sum::<usize>());
        // Columns that follow each other are one run.
        let columns = if column.apart == 1 { x.1.len() } else { x.1.len().min(1) };
        let runs = channels.map(|channels| {
            let mut runs = Vec::new();
            for (a, b) in (0..depth.taps).flat_map(|a| y.1.clone().map(move |b| (a, b))) {
                for c in x.1.clone().step_by(columns.max(1)) {
                    let [z, y, x] = [(depth, a), (line, b), (column, c)].map(|(m, t)| m.offset + t * m.apart);
                    let [plane, pitch] = band.pitches();
                    let left = ((z * plane + y * pitch + x) * channels) as isize;
                    runs.push(Run { left, right: (a * all[0] + line.first + b) * all[1] + column.first + c });
                }
            }
            runs
        });
        Sum { runs, columns }
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
        let all = |d: usize, cells: &Range<usize>| {
            let n = self.members[d].len();
            (cells.start * n).min(self.whole[d])..(cells.end * n).min(self.whole[d])
        };
        Block { images: block.images.clone(), lines: all(1, &block.lines), columns: all(2, &block.columns) }
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
