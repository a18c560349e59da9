//! Operations on tiles.

use super::run::{Place, Run};
use super::transpose::Transposition;
use crate::pool::Shared;
use crate::rows::code::{Kind, Op, Reg, Register};
use crate::rows::space::{Axis, Runs};
use crate::rows::types::{Move, Ty};
use std::mem::MaybeUninit;

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

/// A tile: its elements are in registers slow index by slow index.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    pub(super) slow: Line<'a>,
    pub(super) fast: Line<'a>,
}

impl Tile<'_> {
    fn len(&self) -> usize {
        self.slow.len * self.fast.len
    }

    /// Offset of an operand's elements, if their layout in memory is that in a register.
    #[inline]
    fn alike(&self, operand: usize) -> Option<isize> {
        let one = |l: &Line| l.runs.lens.len() == 1;
        let (slow, fast) = (self.slow, self.fast);
        let fast_alike = fast.len == 1 || (one(&fast) && fast.step(operand) == 1);
        let slow_alike = slow.len == 1 || (one(&slow) && slow.step(operand) == fast.len as isize);
        (fast_alike && slow_alike).then(|| slow.runs.start(operand) + fast.runs.start(operand))
    }
}

/// Shorter rows and columns are not transposed: by measurement this pays from so many on.
const LEAST_TRANSPOSED: usize = 4;
/// Bytes of rows that are transposed at a time, a line of the cache, and columns.
const COPY: [usize; 2] = [64, 128];

/// A part of a tile that is transposed in memory. Element `(i, j)` is at `memory + i + j · stride`, in
/// elements. In the register it is element `j` at `register + i · line`, in bytes.
struct TransposedPart {
    memory: *mut u8,
    stride: isize,
    register: *mut u8,
    line: usize,
    rows: usize,
    n: usize,
}

impl Run<'_> {
    /// The place of an operand's part of a tile, if its layout in memory is that in a register.
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
        let line = size * tile.fast.len;
        let mut register = register;
        for (outer, rows) in tile.slow.runs.of(operand) {
            let mut first = register;
            for (inner, n) in tile.fast.runs.of(operand) {
                let memory = base.wrapping_offset((outer + inner) * width);
                let part = TransposedPart { memory, stride: fast, register: first, line, rows, n };
                // SAFETY: the caller's promise.
                unsafe {
                    if slow == 1 && fast > 1 && rows >= LEAST_TRANSPOSED && n >= LEAST_TRANSPOSED {
                        self.transpose(&part, f, width as usize, size, load);
                    } else {
                        for i in 0..rows {
                            let memory = memory.wrapping_offset(i as isize * slow * width);
                            let register = first.wrapping_add(i * line);
                            if load { f(memory, register, fast, n) } else { f(register, memory, fast, n) }
                        }
                    }
                }
                first = first.wrapping_add(n * size);
            }
            register = register.wrapping_add(rows * line);
        }
    }

    /// Moves a part of a tile that is transposed in memory, by way of a copy that does not.
    ///
    /// # Safety
    /// As [`Run::transfer`]; elements of memory are of `width` bytes, those of the register of `size`.
    unsafe fn transpose(&self, part: &TransposedPart, f: Move, width: usize, size: usize, load: bool) {
        let mut copy = [const { MaybeUninit::<u64>::uninit() }; COPY[0] * COPY[1] / size_of::<u64>()];
        let copy: *mut u8 = copy.as_mut_ptr().cast();
        for col in (0..part.n).step_by(COPY[1]) {
            let n = COPY[1].min(part.n - col);
            for row in (0..part.rows).step_by(COPY[0] / width) {
                let rows = (COPY[0] / width).min(part.rows - row);
                let memory =
                    part.memory.wrapping_offset((col as isize * part.stride + row as isize) * width as isize);
                let lines = |i: usize| {
                    let register = part.register.wrapping_add((row + i) * part.line + col * size);
                    (copy.wrapping_add(i * n * width), register)
                };
                let transposition = Transposition {
                    tier: self.p.tier,
                    size: width,
                    from: memory,
                    step: part.stride,
                    to: copy,
                    pitch: n,
                    rows: n,
                    cols: rows,
                };
                // SAFETY: elements of the part; the copy can hold so many.
                unsafe {
                    if load {
                        transposition.prefetch();
                        transposition.run();
                    }
                    for i in 0..rows {
                        let (copy, register) = lines(i);
                        if load { f(copy, register, 1, n) } else { f(register, copy, 1, n) }
                    }
                    if !load {
                        let (step, pitch) = (n as isize, part.stride as usize);
                        Transposition { from: copy, step, to: memory, pitch, rows, cols: n, ..transposition }
                            .run();
                    }
                }
            }
        }
    }

    /// The place of a row scalar, or a constant, of some row of a tile.
    pub(super) fn one(&self, at: &[Shared<u8>], r: Reg, row: usize) -> *const u8 {
        let Register { ty, kind } = self.p.code.regs[r];
        let row = if kind == Kind::Scalar { row } else { 0 };
        at[r].get().wrapping_add(row * ty.size())
    }

    /// The column of a tile of `n` columns from `col` on that a row scalar names, if it is one of them.
    ///
    /// # Safety
    /// The register holds an i64 for each row.
    pub(in crate::rows) unsafe fn column(
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
    /// As [`Run::block`]; the registers in `at` are valid for the tile, `parts` are those of its operands or
    /// empty.
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
        // SAFETY: registers hold a tile of their type, in the buffer or in an operand laid out like one. No
        // loop's result overlaps its arguments (`compile` gives it a slot of its own, or an operand that
        // overlaps no input).
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
                Op::Lookup { fold, from, index } => {
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
