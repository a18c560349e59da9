//! Routes of an operand's elements into a tile and out of it: in their layout, or through a gather that
//! orders them.

use super::space::{IterationSpace, Tile, TileDim};
use super::table::Shape;
use crate::chip::Arch;
use crate::kernel::{Elem, Scalar};

/// In which directions a value moves within a tile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub(super) enum Extent {
    /// One number for all, 64 times.
    One,
    /// One for each row, lane by lane.
    Lanes,
    /// One for each column, the same in all rows.
    Column,
    /// One for each element; the rows' stride is a pitch.
    Full,
}

impl Extent {
    pub const fn new(rows: bool, cols: bool) -> Extent {
        match (rows, cols) {
            (false, false) => Extent::One,
            (true, false) => Extent::Lanes,
            (false, true) => Extent::Column,
            (true, true) => Extent::Full,
        }
    }

    /// If it moves along rows, and if along columns.
    pub const fn moves(self) -> (bool, bool) {
        (matches!(self, Extent::Lanes | Extent::Full), matches!(self, Extent::Column | Extent::Full))
    }

    /// The directions of both.
    pub fn join(self, other: Extent) -> Extent {
        let (a, b) = (self.moves(), other.moves());
        Extent::new(a.0 || b.0, a.1 || b.1)
    }
}

/// A number of elements that may depend on the tile: `times` for each index of the leading axis.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Size {
    /// At most.
    pub most: u64,
    /// For each index of the leading axis, or `None` where it is always `most`.
    pub times: Option<u64>,
}

impl Size {
    const ONE: Size = Size { most: 1, times: None };

    /// The number, where a tile has `lead` indices of the leading axis.
    pub fn at(self, lead: &Scalar) -> Scalar {
        match self.times {
            Some(times) => lead.clone() * times,
            None => self.most.into(),
        }
    }

    fn of(self, lead: usize) -> u64 {
        self.times.map_or(self.most, |times| times * lead as u64)
    }

    fn times(self, n: u64) -> Size {
        Size { most: self.most * n, times: self.times.map(|t| t * n) }
    }
}

/// A dimension of a copy.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Step {
    pub size: Size,
    /// From one index to the next in memory, in words of the operand.
    pub memory: i64,
    /// The same in UB, in elements.
    pub local: u64,
}

/// A copy between memory and UB: runs that are contiguous in both.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Route {
    pub run: Size,
    /// Dimensions of runs, from the outermost.
    pub others: Vec<Step>,
    /// The order of the copy's elements, if it is not the tile's.
    pub staged: Option<Staged>,
}

/// A staging buffer for a copy whose layout differs from the tile's.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Staged {
    /// Elements of the buffer.
    pub len: u64,
    /// For each element of the tile, the offset in the buffer, or for each in the buffer the offset in the
    /// tile; in bytes of 32-bit elements.
    pub table: Shape,
}

/// Ways to write runs on a chip that copies whole blocks alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub(super) enum Way {
    /// Every run is whole blocks, or the chip copies any number of bytes.
    Whole,
    /// The last block of a run begins in the block before.
    Overlapping,
    /// By the scalar unit, element by element.
    Single,
}

impl Route {
    /// The way in which runs can be written.
    pub fn way(&self, arch: Arch, elem: Elem, lead: usize) -> Way {
        let run = self.run.of(lead);
        match (arch, run % elem.per_block(), run >= elem.per_block()) {
            (Arch::A2, ..) | (_, 0, _) => Way::Whole,
            (_, _, true) => Way::Overlapping,
            _ => Way::Single,
        }
    }
}

struct Dim {
    size: Size,
    row: bool,
    memory: i64,
    local: u64,
}

/// Dimensions of operand `o` in the directions of `extent`, with their places in the tile.
fn dims(space: &IterationSpace, tile: &Tile, o: usize, extent: Extent) -> Vec<Dim> {
    let (rows, cols) = extent.moves();
    let mut out = Vec::new();
    let (mut row, mut col) = (if extent == Extent::Full && tile.grid { tile.pitch as u64 } else { 1 }, 1);
    for TileDim { axis, leads, most, row: is_row } in space.dims(tile).into_iter().rev() {
        let (local, wanted) = if is_row { (&mut row, rows) } else { (&mut col, cols) };
        if !wanted {
            continue;
        }
        let size = Size { most: most as u64, times: (leads && tile.tiles > 1).then_some(1) };
        out.push(Dim { size, row: is_row, memory: axis.steps[o] as i64, local: *local });
        *local *= most as u64;
    }
    out.reverse();
    out
}

/// Extent of operand `o` in a tile.
pub(super) fn extent(space: &IterationSpace, tile: &Tile, o: usize) -> Extent {
    let moves =
        |row: bool| space.dims(tile).iter().any(|d| d.row == row && d.most > 1 && d.axis.steps[o] != 0);
    match tile.grid {
        true => Extent::new(moves(true), moves(false)),
        false => {
            if moves(false) {
                Extent::Full
            } else {
                Extent::One
            }
        }
    }
}

/// Elements of a tile in the directions of an extent, whole repeats.
pub(super) fn len(tile: &Tile, extent: Extent) -> u64 {
    let elements = match (extent, tile.grid) {
        (Extent::One, _) => 64,
        (Extent::Lanes, _) => tile.rows(),
        (Extent::Column, _) | (Extent::Full, false) => tile.pitch,
        (Extent::Full, true) => tile.rows() * tile.pitch,
    };
    (elements as u64).next_multiple_of(64)
}

/// Joins neighbours that are one in memory and in UB.
fn joined(dims: Vec<Step>) -> Vec<Step> {
    let mut out: Vec<Step> = Vec::new();
    for dim in dims {
        match out.last_mut() {
            Some(last)
                if dim.size.times.is_none()
                    && last.memory == dim.memory * dim.size.most as i64
                    && last.local == dim.local * dim.size.most =>
            {
                *last = Step { size: last.size.times(dim.size.most), ..dim };
            }
            _ => out.push(dim),
        }
    }
    out
}

/// The copy that needs no gather, if there is one.
fn direct(dims: &[Dim], elem: Elem) -> Option<Route> {
    let steps = dims.iter().filter(|d| d.size.most > 1);
    let steps: Vec<Step> = steps.map(|d| Step { size: d.size, memory: d.memory, local: d.local }).collect();
    let mut steps = joined(steps);
    if steps.iter().any(|s| s.memory == 0) {
        return None;
    }
    let run = match steps.last() {
        None => Size::ONE,
        Some(last) if last.memory == 1 && last.local == 1 => {
            let size = last.size;
            steps.pop();
            size
        }
        Some(_) => return None,
    };
    let blocks = steps.iter().all(|s| (s.local * elem.size()).is_multiple_of(32));
    blocks.then_some(Route { run, others: steps, staged: None })
}

/// The copy in the order of memory; `words` to an element.
fn staged(dims: &[Dim], tile: &Tile, extent: Extent, elem: Elem, words: u64, load: bool) -> Route {
    // Dimension numbers by step, the words of an element first.
    let mut order: Vec<usize> =
        (0..dims.len()).filter(|&d| dims[d].size.most > 1 && dims[d].memory != 0).collect();
    order.sort_by_key(|&d| dims[d].memory);
    let (mut run, mut reach) = (Size { most: words, times: None }, words as i64);
    let mut places = vec![0u64; dims.len()];
    let mut group = Vec::new();
    while let Some(&d) = order.first() {
        if dims[d].memory != reach || run.times.is_some() {
            break;
        }
        places[d] = run.most;
        run = dims[d].size.times(run.most);
        reach *= dims[d].size.most as i64;
        group.push(d);
        order.remove(0);
    }
    let pitch = run.most.next_multiple_of(elem.per_block());
    let mut room = pitch;
    for &d in &order {
        places[d] = room;
        room *= dims[d].size.most;
    }
    let others =
        order.iter().rev().map(|&d| Step { size: dims[d].size, memory: dims[d].memory, local: places[d] });
    let others = others.collect();
    let bytes = |d: usize| (dims[d].size.most, places[d] as i64 * 4);
    let locals = |d: usize| (dims[d].size.most, dims[d].local as i64 * 4);
    let table = if load {
        let pick =
            |row: bool| (0..dims.len()).filter(move |&d| dims[d].row == row).map(bytes).collect::<Vec<_>>();
        match extent {
            Extent::Lanes => Shape { rows: Vec::new(), cols: pick(true), pitch: len(tile, extent) },
            Extent::Full if tile.grid => {
                Shape { rows: pick(true), cols: pick(false), pitch: tile.pitch as u64 }
            }
            _ => Shape { rows: Vec::new(), cols: pick(false), pitch: len(tile, extent) },
        }
    } else {
        let mut cols: Vec<(u64, i64)> = group.iter().rev().map(|&d| locals(d)).collect();
        if words > 1 {
            // The upper words of all elements follow the lower ones.
            cols.push((words, len(tile, extent) as i64 * 4));
        }
        Shape { rows: order.iter().rev().map(|&d| locals(d)).collect(), cols, pitch }
    };
    Route { run, others, staged: Some(Staged { len: room.next_multiple_of(64), table }) }
}

/// The copy of operand `o` into a tile.
pub(super) fn load(
    space: &IterationSpace,
    tile: &Tile,
    o: usize,
    extent: Extent,
    elem: Elem,
    words: u64,
) -> Route {
    let dims = dims(space, tile, o, extent);
    let route = if words == 1 { direct(&dims, elem) } else { None };
    route.unwrap_or_else(|| staged(&dims, tile, extent, elem, words, true))
}

/// The copy of a tile to operand `o`, the way that needs the least.
pub(super) fn store(
    space: &IterationSpace,
    tile: &Tile,
    o: usize,
    extent: Extent,
    elem: Elem,
    words: u64,
    arch: Arch,
) -> (Route, Way) {
    let leads = leads(space, tile);
    let dims = dims(space, tile, o, extent);
    let direct = if words == 1 { direct(&dims, elem) } else { None };
    let rated = |route: Route| {
        let way = leads.map(|lead| route.way(arch, elem, lead)).into_iter().max().unwrap_or(Way::Single);
        (route, way)
    };
    match direct.map(rated) {
        Some((route, Way::Whole)) => (route, Way::Whole),
        Some((route, way)) => {
            let (other, better) = rated(staged(&dims, tile, extent, elem, words, false));
            // Runs that are fewer and longer.
            if better < way || (better == way && other.others.len() < route.others.len()) {
                (other, better)
            } else {
                (route, way)
            }
        }
        None => rated(staged(&dims, tile, extent, elem, words, false)),
    }
}

/// Indices of the leading axis in a tile, and in the last one.
pub(super) fn leads(space: &IterationSpace, tile: &Tile) -> [usize; 2] {
    let size = if tile.grid { space.rows[tile.lead].size } else { space.cols[tile.lead].size };
    [tile.most, if size.is_multiple_of(tile.most) { tile.most } else { size % tile.most }]
}
