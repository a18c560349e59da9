//! The vector unit: gathers, compactions, transpositions and sorts.

use super::Fault;
use super::memory::Reach;
use super::numbers::*;
use crate::finding::Rule;
use crate::kernel::*;

type Done = Result<(), Fault>;

impl Reach<'_, '_> {
    /// Gathers, compactions, transpositions and sorts.
    pub(super) fn permute(&mut self, instr: &Instr<Value>) -> Done {
        match instr {
            Instr::Gather(x) => {
                let size = x.dst.elem.size() as usize;
                if !self.checked {
                    return self.gather(x, size);
                }
                for i in 0..x.count.as_int().max(0) {
                    let at = x.offsets.byte() + i * 4;
                    self.must_be_defined("offsets", x.offsets.base, at, 4)?;
                    let offset = read_int(Elem::U32, self.read(x.offsets.base, at, 4)?);
                    if offset % size as i64 != 0 {
                        let message = format!("offset {offset} is no multiple of {size} bytes");
                        return Err(Fault::new(Rule::Alignment, message));
                    }
                    let from = x.src.byte() + x.base.as_int() + offset;
                    self.copy((x.src.base, from), (x.dst.base, x.dst.byte() + i * size as i64), size)?;
                }
                Ok(())
            }
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
                    for j in 0..32 / size as i64 {
                        let from = x.src.byte() + i * size as i64;
                        self.copy((x.src.base, from), (x.dst.view.base, to + j * size as i64), size)?;
                    }
                }
                Ok(())
            }
            Instr::Ramp(x) => {
                let (elem, size) = (x.dst.elem, x.dst.elem.size() as usize);
                for i in 0..x.count.as_int().max(0) {
                    let at = x.dst.byte() + i * size as i64;
                    let to = self.write(x.dst.base, at, size)?;
                    match elem.is_float() {
                        true => write_number(elem, x.first.to_f64() + i as f64, Round::Rint, to),
                        false => write_int(elem, x.first.as_int().wrapping_add(i), to),
                    }
                    self.define(x.dst.base, at, size, true);
                }
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

    /// A gather of a fast run: to the same bits, without following written bytes.
    fn gather(&mut self, x: &Gather<Value>, size: usize) -> Done {
        let count = x.count.as_int().max(0) as usize;
        let all = self.read(x.src.base, 0, self.program.size(x.src.base) as usize)?;
        let start = x.src.byte() + x.base.as_int();
        let mut out = vec![0; count * size];
        let offsets = self.read(x.offsets.base, x.offsets.byte(), count * 4)?;
        for (offset, to) in offsets.as_chunks::<4>().0.iter().zip(out.chunks_mut(size)) {
            let from = start.saturating_add(i64::from(u32::from_le_bytes(*offset)));
            let bytes = usize::try_from(from).ok().and_then(|from| all.get(from..from.checked_add(size)?));
            let outside = || {
                let fault = Fault::new(Rule::Bounds, format!("{size} bytes at {from}"));
                fault.of(self.program.base_name(x.src.base))
            };
            to.copy_from_slice(bytes.ok_or_else(outside)?);
        }
        self.write(x.dst.base, x.dst.byte(), out.len())?.copy_from_slice(&out);
        Ok(())
    }

    fn put_sorted(&mut self, dst: &View<Value>, at: i64, mut pairs: Vec<[u8; 8]>) -> Done {
        pairs.sort_by(|a, b| read_number(dst.elem, b).total_cmp(&read_number(dst.elem, a)));
        let bytes = pairs.concat();
        self.write(dst.base, dst.byte() + at, bytes.len())?.copy_from_slice(&bytes);
        self.define(dst.base, dst.byte() + at, bytes.len(), true);
        Ok(())
    }

    /// Transposes 16 rows of 32 bytes: of 16-bit elements a square; of 32-bit ones 16 × 8 into 8 × 16, a row of results
    /// in two halves.
    fn transpose(&mut self, dst: &[(Base, i64)], src: &[(Base, i64)], size: usize) -> Done {
        let columns = 32 / size;
        let mut rows = Vec::new();
        for &(base, at) in src {
            let defined = self.defined(base, at, 32).map(<[u8]>::to_vec);
            rows.push((self.read(base, at, 32)?.to_vec(), defined));
        }
        for (i, &(base, at)) in dst.iter().enumerate() {
            for j in 0..columns {
                // Of 32-bit types, results 2c and 2c + 1 are the halves of column c.
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
