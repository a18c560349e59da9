//! The cube unit. Sums run over ascending k, in f32 (or i32), each product exact. The chips' own order is not
//! published, so that the last bits of products are the simulator's alone.
//!
//! Operands are decoded into panels of f32 first: the left one by rows, the right one by columns of fractals,
//! the layout of accumulators.

use super::Fault;
use super::memory::Reach;
use super::numbers::*;
use crate::kernel::finding::Rule;
use crate::kernel::*;

/// Rows and columns of a fractal of accumulators.
const SIDE: usize = 16;
/// Rows and columns of sums of one micro-tile, so many that a processor's registers hold them.
const ROWS: usize = 4;
const COLUMNS: usize = 8;

impl Reach<'_, '_> {
    /// Executes a product.
    pub(super) fn mmad(&mut self, x: &Mmad<Value>) -> Result<(), Fault> {
        let [m, n, k] = [&x.m, &x.n, &x.k].map(|v| v.as_int().max(0) as usize);
        if m * n * k == 0 {
            return Ok(());
        }
        let k0 = 32 / x.a.elem.size() as usize;
        let [mut left, mut right] = std::mem::take(&mut self.local.panels);
        let done = self
            .left(x, [m, k, k0], &mut left)
            .and_then(|()| self.right(x, [n, k, k0], &mut right))
            .and_then(|()| match x.a.elem.is_float() {
                true => self.sums(x, [m, n, k], &left, &right),
                false => self.integer_sums(x, [m, n, k], &left, &right),
            });
        self.local.panels = [left, right];
        done
    }

    /// The left operand by rows.
    fn left(&self, x: &Mmad<Value>, [m, k, k0]: [usize; 3], out: &mut Vec<f32>) -> Result<(), Fault> {
        let (columns, size) = (k.div_ceil(k0), x.a.elem.size() as usize);
        // A single row is contiguous, not in fractals.
        let place = |i: usize, block: usize| match m {
            1 => block * 32,
            _ => (i / SIDE * columns + block) * 512 + i % SIDE * 32,
        };
        let len = |block: usize| k0.min(k - block * k0) * size;
        let bytes = self.operand(x, &x.a, "a", [m, columns], &place, &len)?;
        out.resize(m * k, 0.0);
        for (i, row) in out.chunks_mut(k).enumerate() {
            for (block, to) in row.chunks_mut(k0).enumerate() {
                decode(x, x.a.elem, &bytes[place(i, block)..][..to.len() * size], to);
            }
        }
        Ok(())
    }

    /// The right operand: for each column of fractals, `k` rows of 16 numbers. Columns past the last are
    /// zeros.
    fn right(&self, x: &Mmad<Value>, [n, k, k0]: [usize; 3], out: &mut Vec<f32>) -> Result<(), Fault> {
        let (columns, size) = (n.div_ceil(SIDE), x.b.elem.size() as usize);
        let place = |j: usize, block: usize| (block * columns + j / SIDE) * 512 + j % SIDE * 32;
        let len = |block: usize| k0.min(k - block * k0) * size;
        let bytes = self.operand(x, &x.b, "b", [n, k.div_ceil(k0)], &place, &len)?;
        out.resize(columns * k * SIDE, 0.0);
        let mut fractal = [[0.0; 32]; SIDE];
        for (column, panel) in out.chunks_mut(k * SIDE).enumerate() {
            let width = (n - column * SIDE).min(SIDE);
            for (block, rows) in panel.chunks_mut(k0 * SIDE).enumerate() {
                let depth = rows.len() / SIDE;
                for (j, to) in fractal[..width].iter_mut().enumerate() {
                    let from = &bytes[place(column * SIDE + j, block)..][..depth * size];
                    decode(x, x.b.elem, from, &mut to[..depth]);
                }
                for (p, row) in rows.as_chunks_mut::<SIDE>().0.iter_mut().enumerate() {
                    for (j, to) in row.iter_mut().enumerate() {
                        *to = if j < width { fractal[j][p] } else { 0.0 };
                    }
                }
            }
        }
        Ok(())
    }

    /// Bytes of an operand, up to the end of its last row in its last block. Of each `rows` row and block,
    /// `len` bytes at `place` have to be written.
    fn operand(
        &self,
        x: &Mmad<Value>,
        view: &View<Value>,
        name: &str,
        [rows, blocks]: [usize; 2],
        place: &dyn Fn(usize, usize) -> usize,
        len: &dyn Fn(usize) -> usize,
    ) -> Result<&[u8], Fault> {
        debug_assert_eq!(x.a.elem.size(), view.elem.size());
        if self.checked {
            for i in 0..rows {
                for block in 0..blocks {
                    let at = view.byte() + place(i, block) as i64;
                    self.must_be_defined(name, view.base, at, len(block))?;
                }
            }
        }
        self.read(view.base, view.byte(), place(rows - 1, blocks - 1) + len(blocks - 1))
    }

    /// Sums in f32, by columns of fractals.
    fn sums(
        &mut self,
        x: &Mmad<Value>,
        [m, n, k]: [usize; 3],
        left: &[f32],
        right: &[f32],
    ) -> Result<(), Fault> {
        let elem = x.c.elem;
        let size = match elem.size() as usize {
            size @ (2 | 4) if elem.is_float() => size,
            _ => return Err(Fault::new(Rule::Unsupported, "accumulators of another type")),
        };
        let before = x.init.as_int() == 0;
        for (column, panel) in right.chunks(k * SIDE).enumerate() {
            let width = (n - column * SIDE).min(SIDE);
            // Accumulators of a column of fractals are stored row by row.
            let at = x.c.byte() + (column * m.div_ceil(SIDE) * SIDE * SIDE * size) as i64;
            let bytes = ((m - 1) * SIDE + width) * size;
            let bias = match &x.bias {
                None => None,
                Some(bias) => {
                    let at = bias.byte() + (column * SIDE * size) as i64;
                    self.must_be_defined("bias", bias.base, at, width * size)?;
                    let mut row = [0.0; SIDE];
                    read_floats(elem, self.read(bias.base, at, width * size)?, &mut row[..width]);
                    Some(row)
                }
            };
            if self.checked && before && bias.is_none() {
                for i in 0..m {
                    self.must_be_defined("c", x.c.base, at + (i * SIDE * size) as i64, width * size)?;
                }
            }
            let saturates = self.saturates(elem);
            let sums = self.write(x.c.base, at, bytes)?;
            let panel = panel.as_chunks::<SIDE>().0;
            for first in (0..m).step_by(ROWS) {
                let rows = (m - first).min(ROWS);
                let mut c = [[0.0; SIDE]; ROWS];
                for (i, c) in c[..rows].iter_mut().enumerate() {
                    match &bias {
                        Some(bias) => *c = *bias,
                        None if before => {
                            let from = &sums[(first + i) * SIDE * size..][..width * size];
                            read_floats(elem, from, &mut c[..width]);
                        }
                        None => {}
                    }
                }
                // Rows past the last are computed as the last and not used.
                let a = std::array::from_fn(|i| &left[(first + i.min(rows - 1)) * k..][..k]);
                multiply(&mut c, a, panel);
                for (i, c) in c[..rows].iter_mut().enumerate() {
                    if saturates {
                        saturate(&mut c[..width]);
                    }
                    let to = &mut sums[(first + i) * SIDE * size..][..width * size];
                    write_floats(elem, &c[..width], to);
                }
            }
            for i in 0..m {
                self.define(x.c.base, at + (i * SIDE * size) as i64, width * size, true);
            }
        }
        Ok(())
    }

    /// Sums of products of 8 bits, in i32.
    fn integer_sums(
        &mut self,
        x: &Mmad<Value>,
        [m, n, k]: [usize; 3],
        left: &[f32],
        right: &[f32],
    ) -> Result<(), Fault> {
        if x.c.elem.size() != 4 {
            return Err(Fault::new(Rule::Unsupported, "accumulators of another type"));
        }
        for i in 0..m {
            for j in 0..n {
                let panel = &right[j / SIDE * k * SIDE..][..k * SIDE];
                // Exact in f64.
                let products = left[i * k..(i + 1) * k].iter().zip(panel[j % SIDE..].iter().step_by(SIDE));
                let sum: f64 = products.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                let at = ((j / SIDE * m.div_ceil(SIDE) + i / SIDE) * 256 + i % SIDE * SIDE + j % SIDE) as i64;
                let at = x.c.byte() + at * 4;
                let before = match x.init.as_int() {
                    0 => {
                        self.must_be_defined("c", x.c.base, at, 4)?;
                        read_int(Elem::I32, self.read(x.c.base, at, 4)?)
                    }
                    _ => 0,
                };
                write_int(Elem::I32, before.wrapping_add(sum as i64), self.write(x.c.base, at, 4)?);
                self.define(x.c.base, at, 4, true);
            }
        }
        Ok(())
    }
}

/// Adds the products of four rows with a panel to sums, over ascending k.
fn multiply(c: &mut [[f32; SIDE]; ROWS], a: [&[f32]; ROWS], panel: &[[f32; SIDE]]) {
    for half in 0..SIDE / COLUMNS {
        let mut sums = [[0.0; COLUMNS]; ROWS];
        for (sums, c) in sums.iter_mut().zip(c.iter()) {
            sums.copy_from_slice(&c[half * COLUMNS..][..COLUMNS]);
        }
        let [a0, a1, a2, a3] = a;
        for ((((b, a0), a1), a2), a3) in panel.iter().zip(a0).zip(a1).zip(a2).zip(a3) {
            let b = &b[half * COLUMNS..][..COLUMNS];
            for (sums, a) in sums.iter_mut().zip([a0, a1, a2, a3]) {
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum += a * b;
                }
            }
        }
        for (sums, c) in sums.iter().zip(c.iter_mut()) {
            c[half * COLUMNS..][..COLUMNS].copy_from_slice(sums);
        }
    }
}

/// Numbers as the cube multiplies them.
fn decode(x: &Mmad<Value>, elem: Elem, from: &[u8], to: &mut [f32]) {
    match elem.is_float() {
        true => read_floats(elem, from, to),
        false => to.iter_mut().zip(from).for_each(|(x, b)| *x = f32::from(*b as i8)),
    }
    if x.hf32 {
        to.iter_mut().for_each(|x| *x = hf32(*x));
    }
}

/// An f32 with 10 bits after the point, to nearest, ties to even.
fn hf32(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0xfff + (bits >> 13 & 1)) & !0x1fff;
    if x.is_finite() { f32::from_bits(rounded) } else { x }
}
