//! The iteration space of a row program over its operands' layouts, and how it is cut into tiles.

use crate::chip::Arch;
use crate::lower::Refusal;
use headwater_core::DType;
use headwater_core::axes::{Axis, count, merge};
use headwater_core::plan::TensorView;
use headwater_core::row::{Instr, RowProgram};

/// Most columns of a tile of several rows of any width: a repeat's stride is at most 255 blocks. Rows of
/// whole repeats may be longer.
const WIDEST: usize = 2040;
/// Most rows of a tile: an instruction has at most 255 repeats.
const TALLEST: usize = 248;
/// Most elements of a tile: 255 repeats.
const LARGEST: usize = 255 * 64;

/// Axes of a program, merged where all operands allow it. Steps are of reads, then writes, then counters
/// ([`Instr::Iota`]); those of 64-bit integers are in words of 32 bits.
#[derive(Debug)]
pub(super) struct IterationSpace {
    pub rows: Vec<Axis>,
    pub cols: Vec<Axis>,
    /// Number of each counter among the operands, by instruction.
    pub counters: Vec<Option<usize>>,
    /// True if no element depends on another.
    pub pointwise: bool,
    /// True if 64-bit integers are moved as two words, along an axis of their own.
    pub words: bool,
    /// True if tiles have one row however short rows are.
    line: bool,
}

/// The cut of a space: a tile has some indices of the leading axis and all of those inside it.
#[derive(Clone, Debug)]
pub(super) struct Tile {
    /// True if a tile has rows and all columns; otherwise it has columns of one row.
    pub grid: bool,
    /// The leading axis, among rows of a grid, else among columns.
    pub lead: usize,
    /// Indices of the leading axis in a tile.
    pub most: usize,
    /// Number of tiles along the leading axis.
    pub tiles: usize,
    /// Rows or columns for each index of the leading axis.
    pub inner: usize,
    /// Columns of a tile at most.
    pub cols: usize,
    /// From one row to the next in a tile, in elements.
    pub pitch: usize,
}

/// A dimension of a tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct TileDim<'a> {
    pub axis: &'a Axis,
    /// True if the number of indices is the tile's own, at most `most`.
    pub leads: bool,
    /// Indices, at most.
    pub most: usize,
    /// True if it is one of the rows.
    pub row: bool,
}

/// 32-bit words that memory is addressed by, for an element: two of 64-bit integers.
pub(super) const fn words(dtype: DType) -> isize {
    if matches!(dtype, DType::I64) { 2 } else { 1 }
}

impl IterationSpace {
    /// # Errors
    /// Programs that do not fit their operands.
    pub fn new(p: &RowProgram, views: &[&TensorView]) -> Result<IterationSpace, Refusal> {
        let dims: Vec<usize> = p.outer.iter().chain(&p.inner).copied().collect();
        let mut axes: Vec<Axis> = dims.iter().map(|&size| Axis { size, steps: Vec::new() }).collect();
        for (o, v) in p.reads.iter().chain(&p.writes).zip(views) {
            if o.dtype != v.dtype {
                return Err(Refusal::new("an operand of another type than the program's"));
            }
            for (axis, access) in axes.iter_mut().zip(&o.access.0) {
                let step = match *access {
                    None => 0,
                    Some((dim, times)) => (v.layout.strides.get(dim))
                        .and_then(|s| {
                            s.checked_mul(isize::try_from(times).ok()?)?.checked_mul(words(o.dtype))
                        })
                        .ok_or_else(|| Refusal::new("an access beyond its operand's dimensions"))?,
                };
                if step < 0 && axis.size > 1 {
                    return Err(Refusal::new("an operand that runs backwards"));
                }
                axis.steps.push(if axis.size == 1 { 0 } else { step });
            }
        }
        let mut operands = views.len();
        let mut counters = vec![None; p.body.len()];
        for (at, instr) in p.body.iter().enumerate() {
            if let Instr::Iota(coefficients) = instr {
                counters[at] = Some(operands);
                operands += 1;
                for (axis, &c) in axes.iter_mut().zip(coefficients) {
                    axis.steps.push(if axis.size == 1 { 0 } else { c as isize });
                }
            }
        }
        // Programs that only move 64-bit integers move their words.
        let moves = !p.reads.is_empty()
            && p.reads.iter().chain(&p.writes).all(|o| o.dtype == DType::I64)
            && p.body
                .iter()
                .all(|i| matches!(i, Instr::Load(_) | Instr::Store(..) | Instr::Cast(DType::I64, _)));
        if moves {
            axes.push(Axis { size: 2, steps: vec![1; operands] });
        }
        let cols = axes.split_off(p.outer.len());
        let still = |w: usize| cols.iter().all(|a| a.size == 1 || a.steps[p.reads.len() + w] == 0);
        let pointwise = p.body.iter().all(|i| match i {
            Instr::Reduce(..) | Instr::Columns(..) => false,
            Instr::Store(w, _) => !still(*w) || count(&cols) == 1,
            _ => true,
        });
        let (mut rows, mut cols) = (merge(axes), merge(cols));
        if pointwise {
            // Rows and columns are alike: the last axis is the one along which results are contiguous.
            let mut all = rows;
            all.append(&mut cols);
            if let Some(first) = (!p.writes.is_empty()).then_some(p.reads.len()) {
                all.sort_by_key(|a| std::cmp::Reverse(a.steps[first]));
            }
            all = merge(all);
            cols = all.split_off(all.len().saturating_sub(1));
            rows = all;
        }
        for list in [&mut rows, &mut cols] {
            if list.is_empty() {
                list.push(Axis { size: 1, steps: vec![0; operands] });
            }
        }
        Ok(IterationSpace { rows, cols, counters, pointwise, words: moves, line: false })
    }

    /// True if an operand is contiguous along another axis than the columns, and there are many of those.
    pub fn crossed(&self, operands: usize) -> bool {
        let [cols] = &self.cols[..] else { return false };
        let across = |o: usize| cols.steps[o] > 1 && self.rows.iter().any(|a| a.size > 1 && a.steps[o] == 1);
        self.pointwise && cols.size > 64 && (0..operands).any(across)
    }

    /// The same space with at most so many columns to a row, as many as divide them; for programs without
    /// dependences.
    pub fn cut(&self, most: usize) -> Option<IterationSpace> {
        let [cols] = &self.cols[..] else { return None };
        let size = (16..=most)
            .rev()
            .find(|&n| cols.size > n && cols.size.is_multiple_of(n))
            .filter(|_| self.pointwise)?;
        let outer = Axis {
            size: cols.size / size,
            steps: cols.steps.iter().map(|s| s.checked_mul(size as isize)).collect::<Option<_>>()?,
        };
        let inner = Axis { size, steps: cols.steps.clone() };
        // The axis with an operand's smallest stride is cut into tiles: the longest of the rows.
        let mut rows: Vec<Axis> = self.rows.iter().filter(|a| a.size > 1).cloned().collect();
        rows.insert(rows.len().saturating_sub(1), outer);
        Some(IterationSpace { rows, cols: vec![inner], counters: self.counters.clone(), ..*self })
    }

    /// The same space in tiles of one row; for programs without dependences.
    pub fn line(&self) -> Option<IterationSpace> {
        let copy = || IterationSpace {
            rows: self.rows.clone(),
            cols: self.cols.clone(),
            counters: self.counters.clone(),
            line: true,
            ..*self
        };
        self.pointwise.then(copy)
    }

    /// Tiles of at most `largest` elements, or `None` if there are no smaller ones than before. `unit`
    /// elements are 32 bytes in the narrowest operand; `fits` says whether tiles of so many indices, and a
    /// last one of so many, can be written.
    pub fn tile(
        &self,
        arch: Arch,
        largest: usize,
        unit: usize,
        fits: impl Fn(&Tile, usize) -> bool,
    ) -> Option<Tile> {
        let largest = largest.min(LARGEST);
        let (rows, cols) = (count(&self.rows), count(&self.cols));
        let pitch = cols.next_multiple_of(unit);
        let wide = pitch <= WIDEST || cols.is_multiple_of(64) && cols <= largest && !self.pointwise;
        let grid = wide && (rows > 1 || self.cols.len() > 1) && !self.line;
        let (axes, each, limit) = match grid {
            true => (&self.rows, pitch, (largest / pitch).min(TALLEST)),
            false => (&self.cols, 1, largest),
        };
        // The leading axis: the outermost whose inner axes fit into a tile completely.
        let mut lead = axes.len() - 1;
        let mut inner = 1;
        while lead > 0 && inner * axes[lead].size * axes[lead - 1].size.min(2) <= limit {
            inner *= axes[lead].size;
            lead -= 1;
        }
        if inner > limit || limit == 0 {
            return None;
        }
        let size = axes[lead].size;
        // As many tiles as there are cores on the largest chip, if they do not become too small for it; of
        // rows that are reduced, as few as can be.
        let enough = if grid || self.pointwise { size.div_ceil(64).max(2048 / (inner * each)) } else { size };
        let wanted = enough.min(limit / inner).min(size).max(1);
        let of = |most: usize| Tile {
            grid,
            lead,
            most,
            tiles: size.div_ceil(most),
            inner,
            cols: if grid { cols } else { most * inner },
            pitch: if grid { pitch } else { (most * inner).next_multiple_of(64) },
        };
        let last = |most: usize| if size % most == 0 { most } else { size % most };
        let whole = |most: usize| grid || (most * inner).is_multiple_of(64) || most == size;
        let any = (1..=wanted).rev().chain(wanted + 1..=(limit / inner).min(size));
        let found =
            any.into_iter().find(|&most| whole(most) && arch_fits(arch, &of(most), last(most), &fits));
        // Without such a size, one core writes single elements.
        let most = found.or_else(|| (1..=wanted).rev().find(|&m| whole(m))).unwrap_or(wanted);
        Some(of(most))
    }

    /// Dimensions of a tile, from the outermost.
    pub fn dims<'a>(&'a self, tile: &Tile) -> Vec<TileDim<'a>> {
        let all = |axes: &'a [Axis], row: bool| {
            axes.iter().map(move |axis| TileDim { axis, leads: false, most: axis.size, row })
        };
        let lead = |axes: &'a [Axis], row: bool| TileDim {
            axis: &axes[tile.lead],
            leads: true,
            most: tile.most,
            row,
        };
        match tile.grid {
            true => std::iter::once(lead(&self.rows, true))
                .chain(all(&self.rows[tile.lead + 1..], true))
                .chain(all(&self.cols, false))
                .collect(),
            false => std::iter::once(lead(&self.cols, false))
                .chain(all(&self.cols[tile.lead + 1..], false))
                .collect(),
        }
    }

    /// Axes that a tile has one index of, from the outermost: rows, then columns.
    pub fn outside(&self, tile: &Tile) -> (&[Axis], &[Axis]) {
        match tile.grid {
            true => (&self.rows[..tile.lead], &[]),
            false => (&self.rows, &self.cols[..tile.lead]),
        }
    }
}

impl Tile {
    /// Rows of a tile, at most.
    pub const fn rows(&self) -> usize {
        if self.grid { self.most * self.inner } else { 1 }
    }

    /// True if instructions go over rows one by one, not over columns: rows are longer than a stride reaches,
    /// or few.
    pub const fn by_rows(&self) -> bool {
        self.grid && (self.pitch > WIDEST || self.rows() < self.cols.div_ceil(64))
    }
}

fn arch_fits(arch: Arch, tile: &Tile, last: usize, fits: &impl Fn(&Tile, usize) -> bool) -> bool {
    arch == Arch::A2 || (fits(tile, tile.most) && fits(tile, last))
}
