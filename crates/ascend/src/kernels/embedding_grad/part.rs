//! The division of the work: slices of indices, ranges of rows, and tasks of about as much work each.
//!
//! A key is a row and a position within a slice, in the 31 bits of a positive i32. Rows count from 1:
//! position keys of the padding row have row 0, those of wrong indices follow the last row. A *range* is as
//! many rows as have sums in UB at a time. A *task* has ranges and positions that cost as much as any other
//! task's, where a row costs as much as a position.

use super::{EmbeddingGrad, REPORT, refuse};
use crate::chip::Arch;
use crate::kernel::Elem;
use crate::kernel::finding::{Result, Rule};

/// Columns of a tile.
const COLUMNS: u64 = 1024;
/// Longest slice that every core sorts for itself: a launch costs more than that.
const OWN: u64 = 4096;
/// Slice that one core sorts for all.
const SHARED: u64 = 2048;
/// Longest and shortest slice: UB holds two lists of keys; sixteen blocks are transposed at a time.
const LONGEST: u64 = 16 << 10;
const SHORTEST: u64 = 128;
/// Most slices.
const SLICES: u64 = 256;
/// Keys in UB while rows are summed.
pub(super) const KEYS: u64 = 8 << 10;
/// Edges of ranges in UB: of all slices; where the core has sorted the only one itself.
const EDGES: u64 = 4 << 10;
const OWN_EDGES: u64 = 512;
/// Least positions of a range that several tasks share.
const HEAVY: u64 = 512;
/// Elements of partial sums that are added at a time.
const PIECE: u64 = 4096;
/// Ranges of a task at least, where there are so many rows: what tasks differ in is less then.
const RANGES: u64 = 4;
/// Rows of a copy.
const COPY_ROWS: u64 = 4095;

/// The sizes that kernels and host agree on.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Partition {
    pub arch: Arch,
    pub shape: EmbeddingGrad,
    /// Rows of gradients in flight, and results in flight.
    pub slots: u64,
    pub results: u64,
    /// Rows are not a multiple of a block, and the chip copies whole blocks only.
    pub ragged: bool,
    /// Columns of a tile, tiles, and elements from one row to the next in UB.
    pub width: u64,
    pub tiles: u64,
    pub pitch: u64,
    /// Indices of a slice, a power of two, its logarithm, and slices.
    pub slice: u64,
    pub bits: u32,
    pub slices: u64,
    /// Each core sorts the only slice itself.
    pub own: bool,
    /// Rows of a range, and ranges.
    pub range: u64,
    pub ranges: u64,
    /// Tasks.
    pub tasks: u64,
    /// Least positions of a range that tasks share; `None` where none is shared.
    pub heavy: Option<u64>,
    /// Edges of a slice's ranges that UB holds, and those in GM.
    pub edges: u64,
    pub all_edges: u64,
}

impl Partition {
    /// The partition of a checked shape.
    ///
    /// # Errors
    /// `Range` where keys or edges do not fit.
    pub fn new(arch: Arch, shape: &EmbeddingGrad, pipelined: bool) -> Result<Partition> {
        let EmbeddingGrad { elem, indices, rows, dim, cores, .. } = *shape;
        let cores = u64::from(cores.max(1));
        let block = elem.per_block();
        let width = dim.min(COLUMNS);
        // Rows of sums begin at whole blocks, also in 16 bits.
        let pitch = width.next_multiple_of(Elem::F16.per_block());
        let (slice, slices, own) = slices(shape)?;
        let most = (sums(arch) / pitch).min(COPY_ROWS);
        let shortest = (rows / (RANGES * cores)).clamp(1, most);
        let mut part = Partition {
            arch,
            shape: *shape,
            slots: if pipelined { 4 } else { 1 },
            results: if pipelined { 2 } else { 1 },
            ragged: arch == Arch::P310 && dim % block != 0,
            width,
            tiles: dim.div_ceil(width),
            pitch,
            slice,
            bits: slice.trailing_zeros(),
            slices,
            own,
            range: 0,
            ranges: 0,
            tasks: 0,
            heavy: None,
            edges: 0,
            all_edges: 0,
        };
        // As few rounds of tasks as the capacity of UB allows, since each task visits all slices; longer
        // ranges have fewer edges.
        let longer = |range: &u64| (*range < most.min(rows)).then(|| (2 * range).min(most));
        for rounds in 0..u32::BITS {
            part.tasks = cores << rounds;
            if std::iter::successors(Some(shortest), longer).any(|range| part.fits(range)) {
                part.all_edges = (part.ranges + 1).next_multiple_of(8) + part.edges;
                // From one slice's edges to the next: a gap of blocks in 16 bits.
                let near = own || part.all_edges / 8 <= 65535;
                // From one row to the next.
                let gap = (dim - width) / block;
                return match near && (arch != Arch::P310 || gap <= 65535) {
                    true => Ok(part),
                    false => Err(refuse(shape, Rule::Range, format!("{rows} rows of {dim} are too many"))),
                };
            }
        }
        Err(refuse(shape, Rule::Range, format!("there is no room for {indices} indices in {slices} slices")))
    }

    /// Divides the table into ranges of so many rows; true if what the tasks then read fits in UB.
    fn fits(&mut self, range: u64) -> bool {
        let EmbeddingGrad { indices, rows, by_frequency, .. } = self.shape;
        (self.range, self.ranges) = (range, rows.div_ceil(range));
        let span = (self.range * self.ranges + indices).div_ceil(self.tasks);
        let heavy = HEAVY.max(span / 8);
        // A task has no more ranges than there are: a small table with many positions needs few tasks.
        self.edges = ((span / range).min(self.ranges) + 3).next_multiple_of(8);
        self.heavy = (indices >= heavy && self.tasks > 1 && !by_frequency).then_some(heavy);
        match self.own {
            true => self.edges <= OWN_EDGES,
            false => self.slices * self.edges <= EDGES && self.most_keys(span, heavy) <= KEYS,
        }
    }

    /// Keys of a task at most; by frequency a range is never shared.
    fn most_keys(&self, span: u64, heavy: u64) -> u64 {
        let beyond = if self.shape.by_frequency { self.shape.indices } else { heavy };
        span.saturating_add(beyond).saturating_add(8 * self.slices)
    }

    /// Row of keys that stand for wrong indices and for no index.
    pub const fn wrong(&self) -> u64 {
        self.shape.rows + 1
    }

    /// Bytes of the sorted slices.
    pub const fn list_bytes(&self) -> u64 {
        self.slices * self.slice * 4
    }

    /// Bytes of the edges of all ranges in them.
    pub const fn edge_bytes(&self) -> u64 {
        self.slices * self.all_edges * 4
    }

    /// Elements of a task's partial sums in one tile: of its first range and of its last.
    pub const fn partial(&self) -> u64 {
        2 * self.range * self.pitch
    }

    /// Bytes of all partial sums.
    pub const fn partial_bytes(&self) -> u64 {
        self.tasks * self.tiles * self.partial() * 4
    }

    /// Bytes of what is said of each task's ends.
    pub const fn cut_bytes(&self) -> u64 {
        self.tasks * REPORT * 4
    }

    /// Rows of a range whose partial sums are added at a time.
    pub fn piece(&self) -> u64 {
        (PIECE / self.pitch).clamp(1, self.range)
    }

    /// Pieces of a range.
    pub fn pieces(&self) -> u64 {
        self.range.div_ceil(self.piece())
    }
}

/// Elements of sums in UB: with results they take eight bytes each.
const fn sums(arch: Arch) -> u64 {
    match arch {
        Arch::A2 => 12 << 10,
        Arch::P310 => 20 << 10,
    }
}

/// Indices of a slice, slices, and whether each core sorts the only one itself.
fn slices(shape: &EmbeddingGrad) -> Result<(u64, u64, bool)> {
    let EmbeddingGrad { indices, rows, .. } = *shape;
    // Rows 0 to rows + 1, positions below the slice's length.
    let fits = |slice: u64| (rows + 2).saturating_mul(slice) <= 1 << 31;
    let one = indices.next_power_of_two().max(SHORTEST);
    if one <= OWN && fits(one) {
        return Ok((one, 1, true));
    }
    let mut slice = SHARED;
    while slice > SHORTEST && !fits(slice) {
        slice /= 2;
    }
    while indices.div_ceil(slice) > SLICES && slice < LONGEST && fits(2 * slice) {
        slice *= 2;
    }
    let slices = indices.div_ceil(slice);
    match fits(slice) && slices <= SLICES {
        true => Ok((slice, slices, false)),
        false => {
            let message =
                format!("{indices} indices into {rows} rows: keys have 31 bits, slices are {SLICES}");
            Err(refuse(shape, Rule::Range, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_grow_with_positions_alone_where_the_table_is_small() {
        for (rows, indices) in
            [5_000, 50_000, 160_000, 320_000, 500_000].map(|n| [(10, n), (50, n), (300, n)]).as_flattened()
        {
            let (elem, index) = (Elem::F32, Elem::I64);
            let shape = EmbeddingGrad {
                elem,
                index,
                indices: *indices,
                rows: *rows,
                dim: 8,
                padding: None,
                by_frequency: false,
                cores: 48,
            };
            let part = Partition::new(Arch::A2, &shape, true).unwrap();
            // The fewest that can hold their keys: each task visits all slices.
            assert!(part.tasks <= 48 * indices.div_ceil(48 * 4096).next_power_of_two(), "{part:?}");
        }
    }
}
