//! Operations on tiles.

use super::code::{Kind, Op, Reg, Register};
use super::ops::{Move, Ty};
use super::run::Run;
use super::space::{Axis, Runs};
use crate::pool::Shared;

/// Rows of a tile, and which blocks they belong to.
pub(super) struct Place {
    pub(super) row: usize,
    pub(super) rows: usize,
    pub(super) col_block: usize,
}

/// One dimension of a tile: the runs of its indices, and the axis they are cut along.
#[derive(Clone, Copy)]
pub(super) struct Line<'a> {
    pub(super) runs: &'a Runs,
    pub(super) axis: Option<&'a Axis>,
    pub(super) len: usize,
}

impl Line<'_> {
    fn step(&self, operand: usize) -> isize {
        self.axis.map_or(0, |a| a.steps[operand])
    }
}

/// A tile: its elements lie in registers slow index by slow index.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    pub(super) slow: Line<'a>,
    pub(super) fast: Line<'a>,
}

impl Tile<'_> {
    fn len(&self) -> usize {
        self.slow.len * self.fast.len
    }

    /// Offset of an operand's elements, if they lie in memory as in a register.
    #[inline]
    fn alike(&self, operand: usize) -> Option<isize> {
        let one = |l: &Line| l.runs.lens.len() == 1;
        let (slow, fast) = (self.slow, self.fast);
        let fast_alike = fast.len == 1 || (one(&fast) && fast.step(operand) == 1);
        let slow_alike = slow.len == 1 || (one(&slow) && slow.step(operand) == fast.len as isize);
        (fast_alike && slow_alike).then(|| slow.runs.start(operand) + fast.runs.start(operand))
    }
}

impl Run<'_> {
    /// First byte of an operand's index 0, and the bytes of an element.
    pub(super) fn memory(&self, operand: usize) -> (*mut u8, isize) {
        let site = &self.p.sites[operand];
        let base = self.bases[site.place.segment].get().wrapping_add(site.place.byte);
        (base, site.dtype.size() as isize)
    }

    /// Where an operand's part of a tile is, if it lies in memory as in a register.
    #[inline]
    pub(super) fn part(&self, tile: &Tile, operand: usize) -> Option<*mut u8> {
        let (base, width) = self.memory(operand);
        tile.alike(operand).map(|o| base.wrapping_offset(o * width))
    }

    /// Moves a tile between a register of elements of `size` bytes and an operand.
    ///
    /// # Safety
    /// The operand may be read (or written) at the tile's indices; the register holds a tile.
    pub(super) unsafe fn transfer(
        &self,
        tile: &Tile,
        operand: usize,
        f: Move,
        register: *mut u8,
        size: usize,
        load: bool,
    ) {
        let (base, width) = self.memory(operand);
        let (slow, fast) = (tile.slow.step(operand), tile.fast.step(operand));
        let mut register = register;
        for (outer, rows) in tile.slow.runs.of(operand) {
            for i in 0..rows as isize {
                let row = outer + i * slow;
                for (inner, n) in tile.fast.runs.of(operand) {
                    let memory = base.wrapping_offset((row + inner) * width);
                    // SAFETY: the caller's promise.
                    unsafe { if load { f(memory, register, fast, n) } else { f(register, memory, fast, n) } }
                    register = register.wrapping_add(n * size);
                }
            }
        }
    }

    /// Where a row scalar, or a constant, of some row of a tile is.
    pub(super) fn one(&self, at: &[Shared<u8>], r: Reg, row: usize) -> *const u8 {
        let Register { ty, kind } = self.p.code.regs[r];
        let row = if kind == Kind::Scalar { row } else { 0 };
        at[r].get().wrapping_add(row * ty.size())
    }

    /// The column of a tile of `n` columns from `col` on that a row scalar names, if it is one of them.
    ///
    /// # Safety
    /// The register holds an i64 for each row.
    pub(super) unsafe fn column(
        &self,
        at: &[Shared<u8>],
        index: Reg,
        row: usize,
        col: usize,
        n: usize,
    ) -> Option<usize> {
        // SAFETY: the caller's promise.
        let index = unsafe { *self.one(at, index, row).cast::<i64>() };
        usize::try_from(index).ok()?.checked_sub(col).filter(|&i| i < n)
    }

    /// One operation on a tile.
    ///
    /// # Safety
    /// As [`Run::block`]; the registers in `at` are valid for the tile, `parts` are those of its operands or empty.
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe fn op(
        &self,
        op: &Op,
        at: &mut [Shared<u8>],
        parts: &[Shared<u8>],
        buffer: *mut u8,
        tile: &Tile,
        place: &Place,
        col: usize,
    ) {
        let p = self.p;
        // A kept register has been moved on to the tile's columns.
        let own = op.out().map_or(std::ptr::null_mut(), |out| match p.code.regs[out].kind {
            Kind::Kept => at[out].get(),
            _ => buffer.wrapping_add(p.homes[out]),
        });
        let size = |r: Reg| p.code.regs[r].ty.size();
        let alike = |operand: usize| match parts.get(operand) {
            Some(part) => (!part.get().is_null()).then(|| part.get()),
            None => self.part(tile, operand),
        };
        // SAFETY: registers hold a tile of their type, in the buffer or in an operand laid out like one; no loop's result
        // lies over its arguments (`compile` gives it a slot of its own, or an operand that overlaps no input).
        unsafe {
            match *op {
                Op::Load { operand, f, out, alias } => match alike(operand).filter(|_| alias) {
                    Some(memory) => at[out] = Shared(memory),
                    None => {
                        at[out] = Shared(own);
                        match alike(operand) {
                            Some(memory) => f(memory, own, 1, tile.len()),
                            None => self.transfer(tile, operand, f, own, size(out), true),
                        }
                    }
                },
                Op::Count { operand, out } => {
                    at[out] = Shared(own);
                    let mut next = own.cast::<i64>();
                    let (slow, fast) = (tile.slow.step(operand), tile.fast.step(operand));
                    for (outer, rows) in tile.slow.runs.of(operand) {
                        for i in 0..rows as isize {
                            for (inner, n) in tile.fast.runs.of(operand) {
                                for k in 0..n as isize {
                                    *next = (outer + i * slow + inner + k * fast) as i64;
                                    next = next.wrapping_add(1);
                                }
                            }
                        }
                    }
                }
                Op::Map { f, args, out, direct, .. } => {
                    at[out] = Shared(direct.and_then(alike).unwrap_or(own));
                    let arg = |r: Reg| at.get(r).map_or(std::ptr::null(), |a| a.get().cast_const());
                    f(args.map(arg), at[out].get(), tile.len());
                }
                Op::Spread { f, args, one, out, direct, .. } => {
                    at[out] = Shared(direct.and_then(alike).unwrap_or(own));
                    let (n, ty) = (tile.fast.len, size(out));
                    for row in 0..tile.slow.len {
                        let mut of: [*const u8; 3] = [at[args[1 - one]].get().wrapping_add(row * n * ty); 3];
                        of[one] = self.one(at, args[one], row);
                        f(of, at[out].get().wrapping_add(row * n * ty), n);
                    }
                }
                Op::Choose { cond, args, out } => {
                    at[out] = Shared(own);
                    let bytes = tile.fast.len * size(out);
                    for row in 0..tile.slow.len {
                        let which = args[(*self.one(at, cond, row) == 0) as usize];
                        let from = at[which].get().wrapping_add(row * bytes);
                        from.copy_to_nonoverlapping(own.wrapping_add(row * bytes), bytes);
                    }
                }
                Op::Patch { f, from, with, index, out, .. } => {
                    at[out] = Shared(own);
                    let (n, size) = (tile.fast.len, size(out));
                    at[from].get().copy_to_nonoverlapping(own, tile.len() * size);
                    for row in 0..tile.slow.len {
                        if let Some(i) = self.column(at, index, row, col, n) {
                            let byte = (row * n + i) * size;
                            let x: *const u8 = at[from].get().wrapping_add(byte);
                            f([x, self.one(at, with, row), x], own.wrapping_add(byte), 1);
                        }
                    }
                }
                Op::Expand { from, out } => {
                    let (from, size) = (at[from], size(out));
                    let (along, times) = if p.tiling.across {
                        (tile.fast.len, tile.slow.len)
                    } else {
                        (tile.slow.len, tile.fast.len)
                    };
                    if times == 1 {
                        // One column: the row scalars are the tile.
                        at[out] = from;
                        return;
                    }
                    at[out] = Shared(own);
                    if p.tiling.across {
                        for i in 0..times {
                            let to = own.wrapping_add(i * along * size);
                            from.get().copy_to_nonoverlapping(to, along * size);
                        }
                    } else {
                        for i in 0..along {
                            fill(
                                own.wrapping_add(i * times * size),
                                size,
                                from.get().wrapping_add(i * size),
                                times,
                            );
                        }
                    }
                }
                Op::Fold { fold, from } => {
                    let acc = buffer.wrapping_add(p.fold_homes[fold]);
                    let folding = &p.code.folds[fold];
                    let f = if p.tiling.across { folding.slow } else { folding.fast };
                    f(at[from].get(), tile.slow.len, tile.fast.len, acc);
                }
                Op::Dot { fold, f, args: [a, b] } => {
                    let acc = buffer.wrapping_add(p.fold_homes[fold]);
                    f(at[a].get(), at[b].get(), tile.slow.len, tile.fast.len, acc);
                }
                Op::Pick { fold, from, index } => {
                    let acc = buffer.wrapping_add(p.fold_homes[fold]).cast::<f64>();
                    for row in 0..tile.slow.len {
                        if let Some(i) = self.column(at, index, row, col, tile.fast.len) {
                            let x = match p.code.regs[from].kind {
                                Kind::Vector(_) | Kind::Kept => {
                                    let i = row * tile.fast.len + i;
                                    at[from].get().wrapping_add(i * size(from)).cast_const()
                                }
                                Kind::Scalar | Kind::Constant { .. } => self.one(at, from, row),
                            };
                            *acc.add(row) += match p.code.regs[from].ty {
                                Ty::F32 => *x.cast::<f32>() as f64,
                                _ => *x.cast::<f64>(),
                            };
                        }
                    }
                }
                Op::Sum { sum, from } => {
                    let cells = self.sum_cells(sum, place.row, col);
                    (p.code.sums[sum].fold)(at[from].get(), tile.slow.len, tile.fast.len, cells);
                }
                Op::Store { operand, f, from } => {
                    let (from, size) = (at[from].get(), size(from));
                    match alike(operand) {
                        Some(memory) if memory == from => {}
                        Some(memory) => f(from, memory, 1, tile.len()),
                        None => self.transfer(tile, operand, f, from, size, false),
                    }
                }
            }
        }
    }
}

/// Writes the same element of `size` bytes `n` times.
///
/// # Safety
/// `to` holds `n` such elements, `from` one; both are aligned to it.
pub(super) unsafe fn fill(to: *mut u8, size: usize, from: *const u8, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => std::slice::from_raw_parts_mut(to, n).fill(*from),
            4 => {
                std::slice::from_raw_parts_mut(to.cast::<u32>(), n).fill(from.cast::<u32>().read_unaligned())
            }
            _ => {
                std::slice::from_raw_parts_mut(to.cast::<u64>(), n).fill(from.cast::<u64>().read_unaligned())
            }
        }
    }
}
