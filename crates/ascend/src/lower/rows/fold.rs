//! Reductions: of rows, and of columns over rows. Trees depend on sizes alone.

use super::route::Extent;
use super::value::{Held, Ty, Unit};
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

impl Unit {
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

    /// Reduces each row of a grid's tile. A sum is a tree of neighbours over each 64 columns, and one over their sums.
    pub fn reduce_rows(&mut self, op: Reduce, x: Held) -> Option<Held> {
        let (identity, both, blocks) = parts(op)?;
        let (cols, rows) = (self.tile.cols as u64, self.rows.clone());
        let stride = (self.tile.pitch / 8) as u32;
        let out = self.take(Extent::Lanes, Ty::F32);
        let most = self.tile.rows() as u64;
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

    /// Room for the reduction of a row that comes in several tiles: eight lanes, of which the first counts.
    pub fn reduction(&mut self, op: Reduce) -> Option<Buf> {
        let (identity, ..) = parts(op)?;
        let acc = self.w.take(Elem::F32, 8);
        self.w.vector(Duplicate { dst: acc.at(0).into(), value: identity.into(), over: Over::count(8u64) });
        Some(acc)
    }

    /// Reduces a tile of `count` elements of one row and joins the result with `acc`. A sum is a tree of blocks over the
    /// tile; sums of tiles are added one after the other.
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

    /// Adds the rows of a grid's tile to `acc`, of a pitch's elements: the upper half onto the lower, down to one row.
    pub fn add_columns(&mut self, x: Held, acc: Buf) {
        let (most, pitch) = (self.tile.rows() as u64, self.tile.pitch as u64);
        let sums = self.w.take(Elem::F32, most * pitch);
        let all = Over::count(most * pitch);
        self.w.vector(Duplicate { dst: sums.at(0).into(), value: 0.0f32.into(), over: all });
        self.w.vector(ScaledOp {
            op: Scaled::Muls,
            dst: sums.at(0).into(),
            src: x.buf.at(0).into(),
            scalar: 1.0f32.into(),
            over: Over::Count(self.rows.clone() * pitch),
        });
        let mut rows = most;
        while rows > 1 {
            let half = rows.div_ceil(2);
            let over = Over::count((rows - half) * pitch);
            let (dst, src1) = (sums.at(0), sums.at(half * pitch).into());
            self.w.vector(BinaryOp {
                op: Binary::Add,
                dst: dst.clone().into(),
                src0: dst.into(),
                src1,
                over,
            });
            rows = half;
        }
        self.add_to(acc.at(0), sums.at(0), (self.tile.cols as u64).into());
        self.w.release(sums);
    }

    /// `acc += x` for `count` elements.
    pub fn add_to(&mut self, acc: View, x: View, count: Scalar) {
        let over = Over::Count(count);
        let (dst, src0) = (acc.clone().into(), acc.into());
        self.w.vector(BinaryOp { op: Binary::Add, dst, src0, src1: x.into(), over });
    }
}
