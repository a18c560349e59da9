//! Reductions: of rows, and of columns over rows. Trees depend on sizes alone.

use super::route::Extent;
use super::value::{Held, Ty, VectorUnit};
use crate::kernel::{
    Binary, BinaryOp, Buf, Duplicate, Elem, Mask, Order, Over, Reduce as ReduceInstr, Reduction, Scalar,
    Scaled, ScaledOp, View,
};
use headwater_core::row::Reduce;

/// Identity of a reduction, the instruction for two vectors, and the one for blocks.
fn parts(op: Reduce) -> Option<(f32, Binary, Reduction)> {
    Some(match op {
        Reduce::Sum => (0.0, Binary::Add, Reduction::BlockSum),
        Reduce::Max => (f32::NEG_INFINITY, Binary::Max, Reduction::BlockMax),
        Reduce::Min => (f32::INFINITY, Binary::Min, Reduction::BlockMin),
        Reduce::Prod => return None,
    })
}

impl VectorUnit {
    fn reduced(
        &mut self,
        op: Reduction,
        dst: View,
        src: (Buf, Scalar, u32),
        mask: u64,
        repeat: Scalar,
        step: u32,
    ) {
        let order: Option<Order> = None;
        let src = src.0.at(src.1).strided(1, src.2);
        self.w.vector(ReduceInstr {
            op,
            dst,
            src,
            mask: Mask::First(mask.into()),
            repeat,
            dst_repeat: step,
            order,
        });
    }

    /// Reduces each row of a grid's tile. Rows of whole repeats are reduced to their blocks, all rows at
    /// once, as long as those are whole repeats. Else a sum is a tree of neighbours over each 64 columns, and
    /// one over their sums.
    pub fn reduce_rows(&mut self, op: Reduce, x: Held) -> Option<Held> {
        let (identity, both, blocks) = parts(op)?;
        let (cols, rows) = (self.tile.cols as u64, self.rows.clone());
        let stride = (self.tile.pitch / 8) as u32;
        let out = self.take(Extent::Lanes, Ty::F32);
        let most = self.tile.rows() as u64;
        if cols.is_multiple_of(64) {
            self.reduce_blocks(op, x.buf, out.buf);
            return Some(out);
        }
        let chunks = cols.div_ceil(64);
        let width = |chunk: u64| (cols - chunk * 64).min(64);
        if op == Reduce::Sum {
            if chunks == 1 {
                self.reduced(Reduction::WholeSum, out.buf.at(0), (x.buf, 0.into(), stride), cols, rows, 1);
                return Some(out);
            }
            let pitch = chunks.next_multiple_of(8);
            let partial = self.w.take(Elem::F32, most * pitch);
            for chunk in 0..chunks {
                let source = (x.buf, Scalar::from(chunk * 64), stride);
                let step = pitch as u32;
                self.reduced(
                    Reduction::WholeSum,
                    partial.at(chunk),
                    source,
                    width(chunk),
                    rows.clone(),
                    step,
                );
            }
            let source = (partial, 0.into(), (pitch / 8) as u32);
            self.reduced(Reduction::WholeSum, out.buf.at(0), source, chunks, rows, 1);
            self.w.release(partial);
            return Some(out);
        }
        let wide = self.w.take(Elem::F32, most * 64);
        self.w.vector(Duplicate {
            dst: wide.at(0).into(),
            value: identity.into(),
            over: Over::count(most * 64),
        });
        for chunk in 0..chunks {
            let src1 = x.buf.at(chunk * 64).strided(1, stride);
            let over = Over::repeats(width(chunk), rows.clone());
            let dst = wide.at(0).into();
            self.w.vector(BinaryOp { op: both, dst, src0: wide.at(0).into(), src1, over });
        }
        let narrow = self.w.take(Elem::F32, most.next_multiple_of(8) * 8);
        self.reduced(blocks, narrow.at(0), (wide, 0.into(), 8), 64, rows.clone(), 1);
        self.reduced(blocks, out.buf.at(0), (narrow, 0.into(), 8), 64, rows.div_ceil(8), 1);
        self.w.release(wide);
        self.w.release(narrow);
        Some(out)
    }

    /// Reduces rows of whole repeats that are contiguous: to the results of their blocks, of eight at last to
    /// one. A sum whose results are not whole repeats ends as a tree over each row; maxima of both halves of
    /// a row, which may overlap, replace it.
    fn reduce_blocks(&mut self, op: Reduce, x: Buf, out: Buf) {
        let Some((_, both, blocks)) = parts(op) else { return };
        let (most, rows) = (self.tile.rows() as u64, self.rows.clone());
        let (mut from, mut n) = (x, self.tile.cols as u64);
        let step = |u: &mut VectorUnit, from: Buf, to: Buf| {
            if from.id != x.id {
                u.w.release(from);
            }
            to
        };
        while n > 8 {
            if n.is_multiple_of(64) {
                let to = self.w.take(Elem::F32, most * n / 8);
                self.reduced(blocks, to.at(0), (from, 0.into(), 8), 64, rows.clone() * (n / 64), 1);
                (from, n) = (step(self, from, to), n / 8);
            } else if op != Reduce::Sum {
                let half = (n / 2).next_multiple_of(8);
                let to = self.w.take(Elem::F32, most * half);
                for column in (0..half).step_by(64) {
                    let over = Over::repeats((half - column).min(64), rows.clone());
                    let dst = to.at(column).strided(1, (half / 8) as u32);
                    let side = |at: u64| from.at(at + column).strided(1, (n / 8) as u32);
                    self.w.vector(BinaryOp { op: both, dst, src0: side(0), src1: side(n - half), over });
                }
                (from, n) = (step(self, from, to), half);
            } else {
                let chunks = n.div_ceil(64);
                let stride = (n / 8) as u32;
                let sums = if chunks == 1 { out } else { self.w.take(Elem::F32, most * 8) };
                let apart = if chunks == 1 { 1 } else { 8 };
                for chunk in 0..chunks {
                    let (source, mask) = ((from, Scalar::from(chunk * 64), stride), (n - chunk * 64).min(64));
                    self.reduced(Reduction::WholeSum, sums.at(chunk), source, mask, rows.clone(), apart);
                }
                step(self, from, sums);
                if chunks > 1 {
                    self.reduced(Reduction::WholeSum, out.at(0), (sums, 0.into(), 1), chunks, rows, 1);
                    self.w.release(sums);
                }
                return;
            }
        }
        self.reduced(blocks, out.at(0), (from, 0.into(), 8), 64, rows.div_ceil(8), 1);
        step(self, from, out);
    }

    /// Accumulator for the reduction of a row that comes in several tiles: eight lanes, of which the first
    /// counts.
    pub fn reduction(&mut self, op: Reduce) -> Option<Buf> {
        let (identity, ..) = parts(op)?;
        let acc = self.w.take(Elem::F32, 8);
        self.w.vector(Duplicate { dst: acc.at(0).into(), value: identity.into(), over: Over::count(8u64) });
        Some(acc)
    }

    /// Reduces a tile of `count` elements of one row and joins the result with `acc`. A sum is a tree of
    /// blocks over the tile; sums of tiles are added in order.
    pub fn reduce_tile(&mut self, op: Reduce, x: Held, count: &Scalar, acc: Buf) {
        let Some((identity, both, blocks)) = parts(op) else { return };
        // A copy that ends in what changes nothing.
        let mut len = self.len(Extent::Full);
        let mut level = self.w.take(Elem::F32, len);
        self.w.vector(Duplicate { dst: level.at(0).into(), value: identity.into(), over: Over::count(len) });
        self.w.vector(ScaledOp {
            op: Scaled::Muls,
            dst: level.at(0).into(),
            src: x.buf.at(0).into(),
            scalar: 1.0f32.into(),
            over: Over::Count(count.clone()),
        });
        while len > 1 {
            let results = len.div_ceil(8);
            let padded = results.next_multiple_of(64);
            let next = self.w.take(Elem::F32, padded);
            if !results.is_multiple_of(64) {
                let over = Over::count(padded);
                self.w.vector(Duplicate { dst: next.at(0).into(), value: identity.into(), over });
            }
            self.reduced(blocks, next.at(0), (level, 0.into(), 8), 64, len.div_ceil(64).into(), 1);
            self.w.release(level);
            (level, len) = (next, results);
        }
        let (dst, src0, src1) = (acc.at(0).into(), acc.at(0).into(), level.at(0).into());
        self.w.vector(BinaryOp { op: both, dst, src0, src1, over: Over::count(1u64) });
        self.w.release(level);
    }

    /// Adds the rows of a grid's tile to `acc`, of a pitch's elements: the upper half onto the lower, down to
    /// one row.
    pub fn add_columns(&mut self, x: Held, acc: Buf) {
        let (most, pitch) = (self.tile.rows() as u64, self.tile.pitch as u64);
        let (mut from, mut rows) = (x.buf, most);
        let sums = self.w.take(Elem::F32, most * pitch);
        if self.rows.constant().is_none() {
            // Rows that a last tile lacks are zeros.
            let all = Over::count(most * pitch);
            self.w.vector(Duplicate { dst: sums.at(0).into(), value: 0.0f32.into(), over: all });
            self.copied(sums.at(0), from.at(0), Over::Count(self.rows.clone() * pitch));
            from = sums;
        }
        while rows > 1 {
            let half = rows.div_ceil(2);
            let over = Over::count((rows - half) * pitch);
            let (src0, src1) = (from.at(0).into(), from.at(half * pitch).into());
            self.w.vector(BinaryOp { op: Binary::Add, dst: sums.at(0).into(), src0, src1, over });
            if rows % 2 == 1 && from.id != sums.id {
                let middle = (half - 1) * pitch;
                self.copied(sums.at(middle), from.at(middle), Over::count(pitch));
            }
            (from, rows) = (sums, half);
        }
        self.add_to(acc.at(0), from.at(0), (self.tile.cols as u64).into());
        self.w.release(sums);
    }

    fn copied(&mut self, dst: View, src: View, over: Over) {
        let (dst, src) = (dst.into(), src.into());
        self.w.vector(ScaledOp { op: Scaled::Muls, dst, src, scalar: 1.0f32.into(), over });
    }

    /// `acc += x` for `count` elements.
    pub fn add_to(&mut self, acc: View, x: View, count: Scalar) {
        let over = Over::Count(count);
        let (dst, src0) = (acc.clone().into(), acc.into());
        self.w.vector(BinaryOp { op: Binary::Add, dst, src0, src1: x.into(), over });
    }
}
