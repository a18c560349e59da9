//! The cube unit. Sums run over ascending k, in f32 (or i32), each product exact: the chips' own order is not published,
//! so that the last bits of products are the simulator's alone.

use super::Fault;
use super::memory::Reach;
use super::numbers::*;
use crate::finding::Rule;
use crate::kernel::*;
use std::ops::Range;

impl Reach<'_, '_> {
    /// Executes a product.
    pub(super) fn mmad(&mut self, x: &Mmad<Value>) -> Result<(), Fault> {
        let [m, n, k] = [&x.m, &x.n, &x.k].map(|v| v.as_int().max(0) as usize);
        if m * n * k == 0 {
            return Ok(());
        }
        let k0 = 32 / x.a.elem.size() as usize;
        let a = self.left(x, m, k, k0)?;
        let b = self.right(x, n, k, k0)?;
        let mut c = self.accumulators(x, m, n)?;
        if x.a.elem.is_float() {
            let half = x.c.elem == Elem::F16;
            for i in 0..m {
                let row = &mut c[i * n..(i + 1) * n];
                for (p, &a) in a[i * k..(i + 1) * k].iter().enumerate() {
                    let a = if x.hf32 { hf32(a) } else { a };
                    for (c, &b) in row.iter_mut().zip(&b[p * n..(p + 1) * n]) {
                        *c += a * if x.hf32 { hf32(b) } else { b };
                    }
                }
                if half {
                    row.iter_mut().for_each(|c| *c = super::vector::round_float(Elem::F16, *c));
                }
            }
            return self.put_accumulators(x, m, n, |b, row| write_floats(x.c.elem, &c[row], b));
        }
        // Sums of products of 8 bits are exact in f64.
        let mut sums = vec![0f64; m * n];
        let before = self.integers(x, m, n)?;
        for i in 0..m {
            for (p, &a) in a[i * k..(i + 1) * k].iter().enumerate() {
                for (c, &b) in sums[i * n..(i + 1) * n].iter_mut().zip(&b[p * n..(p + 1) * n]) {
                    *c += f64::from(a) * f64::from(b);
                }
            }
        }
        self.put_accumulators(x, m, n, |b, row| {
            for (b, i) in b.chunks_mut(4).zip(row) {
                write_int(Elem::I32, before[i].wrapping_add(sums[i] as i64), b);
            }
        })
    }

    /// The left operand, row by row.
    fn left(&self, x: &Mmad<Value>, m: usize, k: usize, k0: usize) -> Result<Vec<f32>, Fault> {
        let columns = k.div_ceil(k0);
        let size = x.a.elem.size() as usize;
        let mut out = vec![0.0; m * k];
        for i in 0..m {
            for block in 0..columns {
                let len = k0.min(k - block * k0);
                let at = match m {
                    // A single row is read as it lies, not in fractals.
                    1 => block * 32,
                    _ => (i / 16 * columns + block) * 512 + i % 16 * 32,
                };
                let to = &mut out[i * k + block * k0..][..len];
                self.numbers("a", &x.a, at, len * size, to)?;
            }
        }
        Ok(out)
    }

    /// The right operand, row by row.
    fn right(&self, x: &Mmad<Value>, n: usize, k: usize, k0: usize) -> Result<Vec<f32>, Fault> {
        let columns = n.div_ceil(16);
        let size = x.b.elem.size() as usize;
        let mut out = vec![0.0; k * n];
        let mut column = vec![0.0; k0];
        for block in 0..k.div_ceil(k0) {
            let len = k0.min(k - block * k0);
            for j in 0..n {
                let at = (block * columns + j / 16) * 512 + j % 16 * 32;
                self.numbers("b", &x.b, at, len * size, &mut column[..len])?;
                for (p, x) in column[..len].iter().enumerate() {
                    out[(block * k0 + p) * n + j] = *x;
                }
            }
        }
        Ok(out)
    }

    fn numbers(
        &self,
        name: &str,
        view: &View<Value>,
        at: usize,
        len: usize,
        to: &mut [f32],
    ) -> Result<(), Fault> {
        let at = view.byte() + at as i64;
        self.must_be_defined(name, view.base, at, len)?;
        let bytes = self.read(view.base, at, len)?;
        match view.elem.is_float() {
            true => read_floats(view.elem, bytes, to),
            false => to.iter_mut().zip(bytes).for_each(|(x, b)| *x = f32::from(*b as i8)),
        }
        Ok(())
    }

    /// Where accumulator (i, j) lies.
    fn accumulator(x: &Mmad<Value>, m: usize, i: usize, j: usize) -> i64 {
        let size = x.c.elem.size() as usize;
        x.c.byte() + ((j / 16 * m.div_ceil(16) + i / 16) * 256 + i % 16 * 16 + j % 16) as i64 * size as i64
    }

    /// What the sums begin with.
    fn accumulators(&self, x: &Mmad<Value>, m: usize, n: usize) -> Result<Vec<f32>, Fault> {
        let mut c = vec![0.0; m * n];
        let size = x.c.elem.size() as usize;
        if !x.c.elem.is_float() || (x.init.as_int() != 0 && x.bias.is_none()) {
            return Ok(c);
        }
        for i in 0..m {
            for (block, row) in c[i * n..(i + 1) * n].chunks_mut(16).enumerate() {
                let (name, base, at) = match &x.bias {
                    Some(bias) => ("bias", bias.base, bias.byte() + (block * 16 * size) as i64),
                    None => ("c", x.c.base, Self::accumulator(x, m, i, block * 16)),
                };
                self.must_be_defined(name, base, at, row.len() * size)?;
                read_floats(x.c.elem, self.read(base, at, row.len() * size)?, row);
            }
        }
        Ok(c)
    }

    fn integers(&self, x: &Mmad<Value>, m: usize, n: usize) -> Result<Vec<i64>, Fault> {
        let mut c = vec![0; m * n];
        if x.init.as_int() == 0 {
            for i in 0..m {
                for j in 0..n {
                    let at = Self::accumulator(x, m, i, j);
                    self.must_be_defined("c", x.c.base, at, 4)?;
                    c[i * n + j] = read_int(Elem::I32, self.read(x.c.base, at, 4)?);
                }
            }
        }
        Ok(c)
    }

    fn put_accumulators(
        &mut self,
        x: &Mmad<Value>,
        m: usize,
        n: usize,
        put: impl Fn(&mut [u8], Range<usize>),
    ) -> Result<(), Fault> {
        let size = x.c.elem.size() as usize;
        if size != 4 && size != 2 {
            return Err(Fault::new(Rule::Unsupported, "accumulators of another size"));
        }
        for i in 0..m {
            // A row of a fractal lies together.
            for j in (0..n).step_by(16) {
                let (at, len) = (Self::accumulator(x, m, i, j), (n - j).min(16));
                put(self.write(x.c.base, at, len * size)?, i * n + j..i * n + j + len);
                self.define(x.c.base, at, len * size, true);
            }
        }
        Ok(())
    }
}

/// An f32 with 10 bits behind the point, to nearest, ties to even.
fn hf32(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0xfff + (bits >> 13 & 1)) & !0x1fff;
    if x.is_finite() { f32::from_bits(rounded) } else { x }
}
