//! Tiles of rows that are summed over the same terms. Where an image ends, some taps meet nothing but padding: positions that
//! meet the same taps make tiles of their own, which leave the others out, where that costs less than it saves.

use super::band::{Band, within};
use super::nest::Meeting;
use super::{Block, Blocks};
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

/// A position of a block, and the place where its inputs begin in a band.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub position: usize,
    pub place: usize,
}

/// Positions that meet some of the taps of a line and of a column.
#[derive(Clone, Debug)]
pub(super) struct Tile {
    /// Of [`Tiles::rows`].
    pub rows: Range<usize>,
    pub lines: Range<usize>,
    pub columns: Range<usize>,
}

/// The positions of a block.
#[derive(Clone, Debug, Default)]
pub(super) struct Tiles {
    pub rows: Vec<Row>,
    pub tiles: Vec<Tile>,
}

/// Taps that lines or columns meet, one after the other.
type Met = Vec<Range<usize>>;

/// Those of all blocks; most of them are alike.
#[derive(Clone, Debug, Default)]
pub(super) struct Tilings {
    /// By the images, and the taps that lines and columns meet.
    kinds: Vec<((usize, [Met; 2]), Tiles)>,
    /// The kind of each block of an image, and of those of the last images if these are fewer.
    of: Vec<usize>,
}

impl Tilings {
    /// Of a pass whose band holds `m`'s inputs; tiles have at most `rows`.
    pub fn new(m: &Meeting, blocks: &Blocks, band: &Band, rows: usize) -> Tilings {
        let mut tilings = Tilings::default();
        let each = blocks.per_image().iter().product::<usize>();
        for at in (0..each).chain(blocks.count().saturating_sub(each)..blocks.count()) {
            let block = blocks.get(at);
            let met = [(1, &block.lines), (2, &block.columns)]
                .map(|(d, outputs)| outputs.clone().map(|output| m.met(d, output)).collect());
            let key = (block.images.len(), met);
            let kind = tilings.kinds.iter().position(|(other, _)| *other == key).unwrap_or_else(|| {
                let tiles = Tiles::new(m, &block, band, rows, &key.1);
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

impl Tiles {
    fn new(m: &Meeting, block: &Block, band: &Band, rows: usize, met: &[Met; 2]) -> Tiles {
        // Runs of memory must stay runs: those of a dimension more are not divided, nor columns that lie apart.
        let may = [m.taps[0] == 1, band.joined()];
        let classes = |[lines, columns]: [bool; 2]| {
            let of = |d: usize, divide: bool| match divide && may[d] {
                true => classes(&met[d]),
                false => vec![(0..m.taps[d + 1], (0..met[d].len()).collect())],
            };
            (of(0, lines), of(1, columns))
        };
        let all = [[false, false], [true, false], [false, true], [true, true]].map(classes);
        let price = |(lines, columns): &(Vec<Class>, Vec<Class>)| -> usize {
            let each = |(l, c): (&Class, &Class)| {
                let n = block.images.len() * l.1.len() * c.1.len();
                cost(n, rows, l.0.len() * c.0.len() * m.taps[0] * band.channels)
            };
            lines.iter().flat_map(|l| columns.iter().map(move |c| (l, c))).map(each).sum()
        };
        let (lines, columns) = all.iter().min_by_key(|division| price(division)).expect("four ways");
        let mut tiles = Tiles::default();
        for ((taps_y, lines), (taps_x, columns)) in
            lines.iter().flat_map(|l| columns.iter().map(move |c| (l, c)))
        {
            let first = tiles.rows.len();
            for image in 0..block.images.len() {
                for (&line, &column) in lines.iter().flat_map(|l| columns.iter().map(move |c| (l, c))) {
                    let position = (image * met[0].len() + line) * met[1].len() + column;
                    tiles.rows.push(Row { position, place: band.at([image, line, column]) });
                }
            }
            for tile in cut(tiles.rows.len() - first, rows) {
                let rows = first + tile.start..first + tile.end;
                tiles.tiles.push(Tile { rows, lines: taps_y.clone(), columns: taps_x.clone() });
            }
        }
        tiles
    }
}

/// Lines or columns that meet the same taps.
type Class = (Range<usize>, Vec<usize>);

fn classes(met: &Met) -> Vec<Class> {
    let mut classes: Vec<Class> = Vec::new();
    for (at, taps) in met.iter().enumerate() {
        match classes.iter_mut().find(|(of, _)| of == taps) {
            Some((_, members)) => members.push(at),
            None => classes.push((taps.clone(), vec![at])),
        }
    }
    classes
}

impl Meeting {
    /// The taps through which an output meets inputs, along dimension `d`.
    pub fn met(&self, d: usize, output: usize) -> Range<usize> {
        let first = (output * self.step[d]) as isize + self.base[d];
        let (before, inside, _) = within(first, self.tap[d], self.taps[d], self.source[d]);
        before..before + inside
    }

    /// The outputs that meet inputs through a tap, along dimension `d`.
    pub fn meeting(&self, d: usize, tap: usize) -> Range<usize> {
        let first = (tap * self.tap[d]) as isize + self.base[d];
        let (before, inside, _) = within(first, self.step[d], self.result[d], self.source[d]);
        before..before + inside
    }
}
