//! The vector unit: gathers, compactions, transpositions and sorts.

use super::Fault;
use super::memory::Reach;
use super::numbers::*;
use crate::kernel::finding::Rule;
use crate::kernel::*;

type Done = Result<(), Fault>;

impl Reach<'_, '_> {
    /// Gathers, compactions, transpositions and sorts.
    pub(super) fn permute(&mut self, instr: &Instr<Value>) -> Done {
        match instr {
            Instr::Gather(x) => self.gather(x),
            Instr::GatherMask(x) => {
                let over = Over::Repeats { mask: Mask::First(x.count), repeat: x.repeat };
                let (size, lanes) = (x.dst.elem.size() as usize, x.dst.elem.per_repeat());
                let mut to = x.dst.byte();
                for (lane, at) in Self::lanes(&[&x.src], &over) {
                    if x.picks(lane % lanes) {
                        self.copy((x.src.view.base, at[0]), (x.dst.base, to), size)?;
                        to += size as i64;
                    }
                }
                Ok(())
            }
            Instr::Brcb(x) => {
                let size = x.src.elem.size() as usize;
                for i in 0..x.repeat.as_int().max(0) * 8 {
                    let to = x.dst.view.byte()
                        + (i / 8) * i64::from(x.dst.repeat) * 32
                        + (i % 8) * i64::from(x.dst.block) * 32;
                    let from = x.src.byte() + i * size as i64;
                    let mut cell = [0; 8];
                    cell[..size].copy_from_slice(self.read(x.src.base, from, size)?);
                    let block = self.write(x.dst.view.base, to, 32)?;
                    block.chunks_exact_mut(size).for_each(|to| to.copy_from_slice(&cell[..size]));
                    if let Some(defined) = self.defined(x.src.base, from, size).map(|d| [d[0], d[size - 1]]) {
                        self.define(x.dst.view.base, to, 32, defined == [1; 2]);
                    }
                }
                Ok(())
            }
            Instr::Ramp(x) => {
                let (elem, size) = (x.dst.elem, x.dst.elem.size() as usize);
                let len = x.count.as_int().max(0) as usize * size;
                let cells = self.write(x.dst.base, x.dst.byte(), len)?;
                match elem.is_float() {
                    true => {
                        for (i, to) in (0..).zip(cells.chunks_exact_mut(size)) {
                            write_number(elem, x.first.to_f64() + f64::from(i), Round::Rint, to);
                        }
                    }
                    false => {
                        let mut numbers = [0; 64];
                        for (part, to) in (0..).zip(cells.chunks_mut(64 * size)) {
                            let first = x.first.as_int().wrapping_add(part * 64);
                            for (i, number) in (0..).zip(&mut numbers) {
                                *number = first.wrapping_add(i);
                            }
                            write_ints(elem, &numbers, to);
                        }
                    }
                }
                self.define(x.dst.base, x.dst.byte(), len, true);
                Ok(())
            }
            Instr::Transpose(x) => {
                let rows = |view: &View<Value>| {
                    (0..16).map(|i| (view.base, view.byte() + i * 32)).collect::<Vec<_>>()
                };
                self.transpose(&rows(&x.dst), &rows(&x.src), 2)
            }
            Instr::TransposeRows(x) => {
                for r in 0..x.repeat.as_int().max(0) {
                    let rows = |views: &[View<Value>], step: u32| {
                        views
                            .iter()
                            .map(|v| (v.base, v.byte() + r * i64::from(step) * 32))
                            .collect::<Vec<_>>()
                    };
                    self.transpose(
                        &rows(&x.dst, x.dst_repeat),
                        &rows(&x.src, x.src_repeat),
                        x.dst.first().map_or(2, |v| v.elem.size() as usize),
                    )?;
                }
                Ok(())
            }
            Instr::Sort32(x) => {
                for r in 0..x.repeat.as_int().max(0) {
                    let mut pairs = Vec::new();
                    for i in r * 32..r * 32 + 32 {
                        let size = x.score.elem.size() as usize;
                        let score = x.score.byte() + i * size as i64;
                        self.must_be_defined("score", x.score.base, score, size)?;
                        self.must_be_defined("index", x.index.base, x.index.byte() + i * 4, 4)?;
                        let mut pair = [0; 8];
                        pair[..size].copy_from_slice(self.read(x.score.base, score, size)?);
                        pair[4..].copy_from_slice(self.read(x.index.base, x.index.byte() + i * 4, 4)?);
                        pairs.push(pair);
                    }
                    self.put_sorted(&x.dst, r * 256, pairs)?;
                }
                Ok(())
            }
            Instr::MergeSort(x) => {
                let total: i64 = x.lengths.iter().map(|&l| i64::from(l)).sum();
                for r in 0..x.repeat.as_int().max(0) {
                    let mut pairs = Vec::new();
                    for (view, &len) in x.src.iter().zip(&x.lengths) {
                        for i in 0..i64::from(len) {
                            let at = view.byte() + (r * total + i) * 8;
                            self.must_be_defined("src", view.base, at, 8)?;
                            let mut pair = [0; 8];
                            pair.copy_from_slice(self.read(view.base, at, 8)?);
                            pairs.push(pair);
                        }
                    }
                    self.put_sorted(&x.dst, r * total * 8, pairs)?;
                }
                Ok(())
            }
            _ => Err(Fault::new(Rule::Unsupported, "the simulator does not execute this instruction")),
        }
    }

    fn gather(&mut self, x: &Gather<Value>) -> Done {
        let size = x.dst.elem.size() as usize;
        let count = x.count.as_int().max(0) as usize;
        let offsets = (x.offsets.base, x.offsets.byte());
        let len = count.saturating_mul(4);
        self.must_be_defined("offsets", offsets.0, offsets.1, len)?;
        self.read(offsets.0, offsets.1, len)?;
        let mut room = std::mem::take(&mut self.local.offsets);
        room.resize(count, 0);
        let read = self.read(offsets.0, offsets.1, len).map(|bytes| read_ints(Elem::U32, bytes, &mut room));
        let done = read.and_then(|()| {
            let first = x.src.byte().saturating_add(x.base.as_int());
            match size {
                2 => self.gathered::<2>(x, first, &room),
                4 => self.gathered::<4>(x, first, &room),
                _ => Err(Fault::new(Rule::Unsupported, "gathers have 16 or 32 bits")),
            }
        });
        self.local.offsets = room;
        done
    }

    /// Gathers elements of `SIZE` bytes, at `offsets` bytes from `first`.
    fn gathered<const SIZE: usize>(&mut self, x: &Gather<Value>, first: i64, offsets: &[i64]) -> Done {
        if let Some(offset) = offsets.iter().find(|&offset| offset % SIZE as i64 != 0) {
            let message = format!("offset {offset} is no multiple of {SIZE} bytes");
            return Err(Fault::new(Rule::Alignment, message));
        }
        // Elements in hand, for source and result share a memory.
        let mut cells = [[0; SIZE]; 256];
        let mut to = x.dst.byte();
        for offsets in offsets.chunks(cells.len()) {
            let (low, high) = offsets.iter().fold((i64::MAX, 0), |(low, high), &x| (low.min(x), high.max(x)));
            let begin = first.saturating_add(low);
            let bytes = self.read(x.src.base, begin, (high - low) as usize + SIZE)?;
            for (cell, offset) in cells.iter_mut().zip(offsets) {
                let at = (offset - low) as usize;
                cell.copy_from_slice(&bytes[at..at + SIZE]);
            }
            let len = offsets.len() * SIZE;
            self.write(x.dst.base, to, len)?.copy_from_slice(cells[..offsets.len()].as_flattened());
            if self.checked {
                for (i, offset) in offsets.iter().enumerate() {
                    let from = self.defined(x.src.base, first + offset, SIZE);
                    let defined = from.is_none_or(|d| d.iter().all(|&d| d == 1));
                    self.define(x.dst.base, to + (i * SIZE) as i64, SIZE, defined);
                }
            }
            to += len as i64;
        }
        Ok(())
    }

    fn put_sorted(&mut self, dst: &View<Value>, at: i64, mut pairs: Vec<[u8; 8]>) -> Done {
        pairs.sort_by(|a, b| read_number(dst.elem, b).total_cmp(&read_number(dst.elem, a)));
        let bytes = pairs.concat();
        self.write(dst.base, dst.byte() + at, bytes.len())?.copy_from_slice(&bytes);
        self.define(dst.base, dst.byte() + at, bytes.len(), true);
        Ok(())
    }

    /// Transposes 16 rows of 32 bytes: of 16-bit elements a square; of 32-bit ones 16 × 8 into 8 × 16, a row
    /// of results in two halves.
    fn transpose(&mut self, dst: &[(Base, i64)], src: &[(Base, i64)], size: usize) -> Done {
        let columns = 32 / size;
        let mut rows = Vec::new();
        for &(base, at) in src {
            let defined = self.defined(base, at, 32).map(<[u8]>::to_vec);
            rows.push((self.read(base, at, 32)?.to_vec(), defined));
        }
        for (i, &(base, at)) in dst.iter().enumerate() {
            for j in 0..columns {
                // For 32-bit types, results 2c and 2c + 1 are the halves of column c.
                let (column, row) = if size == 4 { (i / 2, i % 2 * columns + j) } else { (i, j) };
                let Some((bytes, defined)) = rows.get(row) else { continue };
                let from = column * size..(column + 1) * size;
                let to = at + (j * size) as i64;
                self.write(base, to, size)?.copy_from_slice(&bytes[from.clone()]);
                let is = defined.as_ref().is_none_or(|d| d[from].iter().all(|&x| x == 1));
                self.define(base, to, size, is);
            }
        }
        Ok(())
    }
}
