//! Copies: between GM, UB and L1, into L0 and out of L0C.

use super::Fault;
use super::memory::{Reach, start};
use super::numbers::*;
use crate::kernel::finding::Rule;
use crate::kernel::*;

type Done = Result<(), Fault>;

fn n(x: &Value) -> i64 {
    x.as_int().max(0)
}

impl Reach<'_, '_> {
    /// Executes a copy.
    pub(super) fn transfer(&mut self, instr: &Instr<Value>) -> Done {
        match instr {
            Instr::DataCopy(x) => {
                let unit = if self.program.space(x.dst.base) == Space::Bt { 64 } else { 32 };
                let len = n(&x.len) * unit;
                let (from, to) = (start(&x.src), start(&x.dst));
                for i in 0..n(&x.blocks) {
                    let from = (from.0, from.1.saturating_add(i * (len + n(&x.src_gap) * unit)));
                    let to = (to.0, to.1.saturating_add(i * (len + n(&x.dst_gap) * unit)));
                    self.put(from, to, len as usize, x.dst.elem, x.atomic)?;
                }
                Ok(())
            }
            Instr::DataCopyPad(x) => self.padded(x),
            Instr::CopyNdToNz(x) => self.nd_to_nz(x),
            Instr::LoadData2d(x) => {
                let (from, to) = (start(&x.src), start(&x.dst));
                if self.fractals(x)? {
                    return Ok(());
                }
                for i in 0..n(&x.repeat) {
                    let from = (from.0, from.1 + (n(&x.start) + n(&x.src_stride) * i) * 512);
                    let to = (to.0, to.1 + (n(&x.dst_gap) + 1) * i * 512);
                    match x.transpose {
                        false => self.copy(from, to, 512)?,
                        true => match x.src.elem.size() {
                            2 => self.transposed::<2>(from, to)?,
                            4 => self.transposed::<4>(from, to)?,
                            _ => self.transposed::<1>(from, to)?,
                        },
                    }
                }
                Ok(())
            }
            Instr::LoadDataTransposed(x) => self.blocks_transposed(x),
            Instr::LoadData3d(x) => self.im2col(x),
            Instr::InitConst(x) => {
                let unit = if self.program.space(x.dst.base) == Space::L1 { 32 } else { 512 };
                let (elem, size) = (x.dst.elem, x.dst.elem.size() as usize);
                let mut cell = [0; 8];
                match elem.is_float() {
                    true => write_number(elem, x.value.to_f64(), Round::Rint, &mut cell),
                    false => write_int(elem, x.value.as_int(), &mut cell),
                }
                let len = (n(&x.len) * unit) as usize;
                for i in 0..n(&x.repeat) {
                    let at = x.dst.byte() + i * (n(&x.len) + n(&x.gap)) * unit;
                    let to = self.write(x.dst.base, at, len)?;
                    to.chunks_mut(size).for_each(|c| c.copy_from_slice(&cell[..size]));
                    self.define(x.dst.base, at, len, true);
                }
                Ok(())
            }
            Instr::Fixpipe(x) => self.fixpipe(x),
            Instr::CopyL0c(x) => {
                let (from, to) = (x.src.elem.size() as i64 * 256, x.dst.elem.size() as i64 * 256);
                for i in 0..n(&x.blocks) {
                    let source = x.src.byte() + i * (n(&x.len) + n(&x.src_gap)) * from;
                    let target = x.dst.byte() + i * (n(&x.len) * to + n(&x.dst_gap) * 32);
                    let count = (n(&x.len) * 256) as usize;
                    self.converted(&x.src, source, &x.dst, target, count, x.relu, None)?;
                }
                Ok(())
            }
            _ => Err(Fault::new(Rule::Unsupported, "the simulator does not execute this instruction")),
        }
    }

    /// Copies fractals that are contiguous at both ends; returns whether they are.
    fn fractals(&mut self, x: &LoadData2d<Value>) -> Result<bool, Fault> {
        let joined = n(&x.src_stride) == 1 && n(&x.dst_gap) == 0 && !x.transpose && n(&x.repeat) > 0;
        if joined {
            let (from, to) = (start(&x.src), start(&x.dst));
            let from = (from.0, from.1.saturating_add(n(&x.start).saturating_mul(512)));
            self.copy(from, to, n(&x.repeat).saturating_mul(512) as usize)?;
        }
        Ok(joined)
    }

    /// Copies bytes, or combines them with the old content.
    fn put(
        &mut self,
        from: (Base, i64),
        to: (Base, i64),
        len: usize,
        elem: Elem,
        atomic: Option<AtomicOp>,
    ) -> Done {
        if to.0 != from.0 && matches!(to.0, Base::Param(_)) {
            self.output_is_defined(from, to, len)?;
        }
        let Some(op) = atomic else { return self.copy(from, to, len) };
        self.must_be_defined("what is there", to.0, to.1, len)?;
        let bytes = self.read(from.0, from.1, len)?.to_vec();
        let size = elem.size() as usize;
        let (saturates, checked) = (self.saturates(elem), self.checked);
        for (there, new) in self.write(to.0, to.1, len)?.chunks_mut(size).zip(bytes.chunks(size)) {
            if elem.is_float() {
                let (mut a, mut b) = ([0.0], [0.0]);
                read_floats(elem, there, &mut a);
                read_floats(elem, new, &mut b);
                let x = match op {
                    AtomicOp::Add => a[0] + b[0],
                    AtomicOp::Max => a[0].max(b[0]),
                    AtomicOp::Min => a[0].min(b[0]),
                };
                let mut result = [x];
                if saturates {
                    saturate(&mut result);
                }
                write_floats(elem, &result, there);
            } else {
                let (a, b) = (read_int(elem, there), read_int(elem, new));
                let x = match op {
                    AtomicOp::Add => a.wrapping_add(b),
                    AtomicOp::Max => a.max(b),
                    AtomicOp::Min => a.min(b),
                };
                let half = 1i64 << (size * 8 - 1);
                if checked && !(-half..half).contains(&x) {
                    let message = format!("an atomic sum is {x}, beyond {elem}: chips may saturate it");
                    return Err(Fault::new(Rule::Overflow, message));
                }
                write_int(elem, x, there);
            }
        }
        Ok(())
    }

    /// Content that becomes part of a tensor has been written; the slack after its end is undefined.
    fn output_is_defined(&self, from: (Base, i64), to: (Base, i64), len: usize) -> Done {
        let Base::Param(p) = to.0 else { return Ok(()) };
        let Some(ParamKind::Pointer { elem, len: elements, access, .. }) =
            self.program.params.get(p.0 as usize).map(|p| &p.kind)
        else {
            return Ok(());
        };
        if *access == Access::Workspace {
            return Ok(());
        }
        let end = i64::try_from(elements.saturating_mul(elem.size())).unwrap_or(i64::MAX);
        let inside = end.saturating_sub(to.1).clamp(0, len as i64) as usize;
        self.must_be_defined("src", from.0, from.1, inside)
    }

    fn padded(&mut self, x: &DataCopyPad<Value>) -> Done {
        let (bytes, elem) = (n(&x.bytes), x.dst.elem);
        let size = elem.size() as i64;
        let into = self.program.space(x.src.base) == Space::Gm;
        for i in 0..n(&x.blocks) {
            if !into {
                let row = (bytes + 31) / 32 * 32 + n(&x.src_gap) * 32;
                let from = (x.src.base, x.src.byte().saturating_add(i * row));
                let to = (x.dst.base, x.dst.byte().saturating_add(i * (bytes + n(&x.dst_gap))));
                self.put(from, to, bytes as usize, elem, x.atomic)?;
                continue;
            }
            let from = (x.src.base, x.src.byte().saturating_add(i * (bytes + n(&x.src_gap))));
            let (left, right) = (i64::from(x.left) * size, i64::from(x.right) * size);
            let row = (left + bytes + right + 31) / 32 * 32;
            // Far outside is outside, with headroom for the addition.
            let at = x.dst.byte().clamp(-(1 << 60), 1 << 60) + i * (row + n(&x.dst_gap) * 32);
            self.copy(from, (x.dst.base, at + left), bytes as usize)?;
            // The fillers: before the row, and after it up to whole blocks.
            for (begin, end) in [(at, at + left), (at + left + bytes, at + row)] {
                for cell in (begin..end).step_by(size as usize) {
                    match x.fill {
                        Some(fill) => {
                            let to = self.write(x.dst.base, cell, size as usize)?;
                            match elem.is_float() {
                                true => write_number(elem, fill.0.to_f64(), Round::Rint, to),
                                false => write_int(elem, fill.0.as_int(), to),
                            }
                            self.define(x.dst.base, cell, size as usize, true);
                        }
                        None if left + right == 0 => self.copy(from, (x.dst.base, cell), size as usize)?,
                        None => {
                            self.write(x.dst.base, cell, size as usize)?.fill(0xab);
                            self.define(x.dst.base, cell, size as usize, false);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn nd_to_nz(&mut self, x: &CopyNdToNz<Value>) -> Done {
        let size = x.src.elem.size() as i64;
        let (row_bytes, c0) = (n(&x.d).saturating_mul(size), 32 / size);
        let blocks = (n(&x.d) + c0 - 1) / c0;
        let step = n(&x.dst_c0) * 32;
        for i in 0..n(&x.matrices) {
            for row in 0..n(&x.n) {
                let from = x.src.byte() + (i * n(&x.src_matrix) + row * n(&x.src_row)) * size;
                let to = x.dst.byte() + i * n(&x.dst_matrix) * size + row * n(&x.dst_row) * 32;
                let reach = (blocks - 1).max(0).saturating_mul(step).saturating_add(32);
                let source = (x.src.base, from, row_bytes as usize);
                let Some((bytes, cells)) = self.between(source, (x.dst.base, to, reach as usize))? else {
                    return Err(Fault::new(Rule::Memory, "no copy between these memories"));
                };
                // Columns past the last are filled with zeros.
                for (block, bytes) in bytes.chunks(32).enumerate() {
                    let cells = &mut cells[block * step as usize..][..32];
                    match <&[u8; 32]>::try_from(bytes) {
                        Ok(bytes) => cells.copy_from_slice(bytes),
                        Err(_) => {
                            cells[..bytes.len()].copy_from_slice(bytes);
                            cells[bytes.len()..].fill(0);
                        }
                    }
                }
                if self.checked {
                    self.follow_row(source, (x.dst.base, to), step);
                }
            }
        }
        Ok(())
    }

    /// Marks blocks of 32 bytes, at a stride of `step` bytes, as written where their source row is, and after
    /// it.
    fn follow_row(&mut self, (base, from, len): (Base, i64, usize), to: (Base, i64), step: i64) {
        let Some(row) = self.defined(base, from, len).map(<[u8]>::to_vec) else { return };
        for (block, row) in row.chunks(32).enumerate() {
            if let Some(defined) = self.defined_mut(to.0, to.1 + block as i64 * step, 32) {
                defined[..row.len()].copy_from_slice(row);
                defined[row.len()..].fill(1);
            }
        }
    }

    /// A fractal of 16 × 16 elements of `SIZE` bytes, transposed.
    fn transposed<const SIZE: usize>(&mut self, from: (Base, i64), to: (Base, i64)) -> Done {
        let turn = |from: &[u8], to: &mut [u8]| {
            let (from, to) = (from.as_chunks::<SIZE>().0, to.as_chunks_mut::<SIZE>().0);
            for (i, row) in to.chunks_mut(16).enumerate() {
                row.iter_mut().enumerate().for_each(|(j, cell)| *cell = from[j * 16 + i]);
            }
        };
        let mut cells = [[0; SIZE]; 256];
        let cells = cells.as_flattened_mut();
        let len = cells.len();
        turn(self.read(from.0, from.1, len)?, cells);
        self.write(to.0, to.1, len)?.copy_from_slice(cells);
        if let Some(defined) = self.defined(from.0, from.1, len) {
            turn(defined, cells);
            if let Some(to) = self.defined_mut(to.0, to.1, len) {
                to.copy_from_slice(cells);
            }
        }
        Ok(())
    }

    /// Square blocks of fractals: of 16-bit types one fractal; of 32-bit types two of 16 × 8, which become 16
    /// × 16 transposed, again in two fractals; of 8-bit types two of 16 × 32, in two.
    fn blocks_transposed(&mut self, x: &LoadDataTransposed<Value>) -> Done {
        let size = x.src.elem.size() as i64;
        let fractals = (size / 2).max(1);
        let (from, to) = (start(&x.src), start(&x.dst));
        if size == 1 {
            return Err(Fault::new(Rule::Unsupported, "the simulator transposes no blocks of 8-bit types"));
        }
        let step = (n(&x.dst_fractal_gap) + 1) * 512;
        let columns = 32 / size;
        for b in 0..n(&x.repeat) {
            let from = from.1 + (n(&x.start) + b * n(&x.src_stride)) * fractals * 512;
            let to = to.1 + b * (fractals * step + n(&x.dst_gap) * 512);
            for i in 0..16 {
                for j in 0..16 {
                    let source = from + j / columns * 512 + (i * columns + j % columns) * size;
                    let target = to + i / columns * step + (j * columns + i % columns) * size;
                    self.copy((x.src.base, source), (x.dst.base, target), size as usize)?;
                }
            }
        }
        Ok(())
    }

    /// Fractals of the matrix that im2col makes. In L0A they follow one another along k, transposed along m;
    /// in L0B along k, each of them transposed (asc-devkit's `load_data_l12l0` example).
    fn im2col(&mut self, x: &LoadData3d<Value>) -> Done {
        let size = x.src.elem.size() as i64;
        let c0 = 32 / size;
        let (rows, columns) = ((n(&x.m) + 15) / 16, (n(&x.k) + c0 - 1) / c0);
        let to_b = self.program.space(x.dst.base) == Space::L0b;
        let turned = to_b || x.transpose;
        if turned && size != 2 {
            return Err(Fault::new(Rule::Unsupported, "the simulator turns fractals of 16-bit types alone"));
        }
        let fractal = |i: i64, j: i64| match x.transpose && !to_b {
            true => x.dst.byte() + (j * rows + i) * 512,
            false => x.dst.byte() + (i * columns + j) * 512,
        };
        if let Some([first, column]) = plain(x) {
            for i in 0..rows {
                for j in 0..columns {
                    let behind = first as i64 + j * column as i64 + i * 512;
                    let from = (x.src.base, x.src.byte() + behind);
                    let to = (x.dst.base, fractal(i, j));
                    match turned {
                        true => self.transposed::<2>(from, to)?,
                        false => self.copy(from, to, 512)?,
                    }
                }
            }
            return Ok(());
        }
        let [height, width] = x.size.map(i64::from);
        let [filter_h, filter_w] = x.filter.map(i64::from);
        let [left, right, top, _bottom] = x.pad.map(i64::from);
        let [stride_h, stride_w] = x.stride.map(i64::from);
        let [dilation_h, dilation_w] = x.dilation.map(i64::from);
        let across = ((width + left + right - dilation_w * (filter_w - 1) - 1) / stride_w + 1).max(1);
        let mut pad = [0; 8];
        write_number(x.src.elem, x.pad_value.to_f64(), Round::Rint, &mut pad);
        for i in 0..rows * 16 {
            let position = n(&x.m_start) + i;
            let (row, column) = (position / across * stride_h - top, position % across * stride_w - left);
            for j in 0..columns {
                let at = n(&x.k_start) / c0 + j;
                let (channel_block, point) = (at / (filter_h * filter_w), at % (filter_h * filter_w));
                let (h, w) = (row + point / filter_w * dilation_h, column + point % filter_w * dilation_w);
                let inside = (0..height).contains(&h)
                    && (0..width).contains(&w)
                    && channel_block * c0 < n(&x.channels);
                let source = x.src.byte() + ((channel_block * height + h) * width + w) * 32;
                let to = fractal(i / 16, j);
                // A row of the fractal, or a column of it.
                let (pieces, len, first, step) = match turned {
                    true => (c0, size, i % 16 * size, 16 * size),
                    false => (1, 32, i % 16 * 32, 0),
                };
                for piece in 0..pieces {
                    let to = (x.dst.base, to + first + piece * step);
                    match inside {
                        true => self.copy((x.src.base, source + piece * len), to, len as usize)?,
                        false => {
                            let cells = self.write(to.0, to.1, len as usize)?.chunks_exact_mut(size as usize);
                            cells.for_each(|cell| cell.copy_from_slice(&pad[..size as usize]));
                            self.define(to.0, to.1, len as usize, true);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn fixpipe(&mut self, x: &Fixpipe<Value>) -> Done {
        let (from, to) = (x.src.elem.size() as i64, x.dst.elem.size() as i64);
        for block in 0..(n(&x.n) + 15) / 16 {
            let columns = (n(&x.n) - block * 16).min(16);
            for row in 0..n(&x.m) {
                let source = x.src.byte() + (block * n(&x.src_stride) + row) * 16 * from;
                let target = x.dst.byte()
                    + match x.layout {
                        Layout::Nd => (row * n(&x.dst_stride) + block * 16) * to,
                        Layout::Nz => block * n(&x.dst_stride) * 32 + row * 16 * to,
                    };
                self.converted(&x.src, source, &x.dst, target, columns as usize, x.relu, x.atomic)?;
            }
        }
        Ok(())
    }

    /// Elements out of L0C in another type.
    #[allow(clippy::too_many_arguments)]
    fn converted(
        &mut self,
        src: &View<Value>,
        from: i64,
        dst: &View<Value>,
        to: i64,
        count: usize,
        relu: bool,
        atomic: Option<AtomicOp>,
    ) -> Done {
        let (a, b) = (src.elem.size() as usize, dst.elem.size() as usize);
        if !self.checked
            && atomic.is_none()
            && (src.elem, dst.elem.is_float(), relu) == (Elem::F32, true, false)
        {
            let ends = ((src.base, from, count * a), (dst.base, to, count * b));
            let saturates = self.saturates(dst.elem);
            if let Some((source, target)) = self.between(ends.0, ends.1)? {
                let mut numbers = [0.0; 256];
                for (source, target) in source.chunks(256 * a).zip(target.chunks_mut(256 * b)) {
                    let numbers = &mut numbers[..source.len() / a];
                    read_floats(src.elem, source, numbers);
                    if saturates {
                        saturate(numbers);
                    }
                    write_floats(dst.elem, numbers, target);
                }
                return Ok(());
            }
        }
        let source = self.read(src.base, from, count * a)?;
        let numbers: Vec<f64> = source.chunks(a).map(|x| read_number(src.elem, x)).collect();
        let mut out = vec![0; count * b];
        for (x, y) in numbers.into_iter().zip(out.chunks_mut(b)) {
            let x = self.result(dst.elem, if relu && x < 0.0 { 0.0 } else { x });
            write_number(dst.elem, x, Round::Rint, y);
        }
        if matches!(dst.base, Base::Param(_)) {
            self.must_be_defined("src", src.base, from, count * a)?;
        }
        let defined = self
            .defined(src.base, from, count * a)
            .map(|d| d.chunks(a).flat_map(|d| vec![d.iter().fold(1, |x, y| x & y); b]).collect::<Vec<u8>>());
        if atomic == Some(AtomicOp::Add) {
            self.must_be_defined("what is there", dst.base, to, count * b)?;
            for (there, new) in self.write(dst.base, to, count * b)?.chunks_mut(b).zip(out.chunks(b)) {
                let sum = read_number(dst.elem, there) + read_number(dst.elem, new);
                write_number(dst.elem, sum, Round::Rint, there);
            }
            return Ok(());
        }
        self.write(dst.base, to, count * b)?.copy_from_slice(&out);
        if let (Some(from), Some(to)) = (defined, self.defined_mut(dst.base, to, count * b)) {
            to.copy_from_slice(&from);
        }
        Ok(())
    }
}
