//! Tables of indices, computed in UB: `Σ index[d] · step[d]` for each element of a tile. They are offsets for
//! gathers and values of counters.

use super::writer::Writer;
use crate::kernel::{Binary, BinaryOp, Buf, Cast, Duplicate, Elem, Over, Ramp, Round, Scaled, ScaledOp};

/// Dimensions of a table, from the outermost: rows of `pitch` elements, of which the columns come first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    /// Size and step of each dimension of the rows.
    pub rows: Vec<(u64, i64)>,
    /// Size and step of each dimension of the columns.
    pub cols: Vec<(u64, i64)>,
    /// Elements from one row to the next.
    pub pitch: u64,
}

impl Shape {
    /// Elements, including those after the columns of a row.
    pub fn len(&self) -> u64 {
        self.rows.iter().map(|r| r.0).product::<u64>() * self.pitch
    }

    fn merged(dims: &[(u64, i64)]) -> Vec<(u64, i64)> {
        let mut out: Vec<(u64, i64)> = Vec::new();
        for &(size, step) in dims.iter().filter(|d| d.0 != 1) {
            match out.last_mut() {
                Some(last) if last.1 == step * size as i64 => *last = (last.0 * size, step),
                _ => out.push((size, step)),
            }
        }
        out
    }
}

impl Writer {
    /// A table, i32, in a buffer of whole repeats. Elements after a row's columns are undefined; `limit`
    /// bounds all.
    pub fn table(&mut self, shape: &Shape, limit: Option<u64>) -> Buf {
        let len = shape.len().next_multiple_of(64);
        let out = self.take(Elem::I32, len);
        self.vector(Duplicate { dst: out.at(0).into(), value: 0.into(), over: Over::count(len) });
        let index = self.take(Elem::I32, len);
        self.vector(Ramp { dst: index.at(0), first: 0.into(), count: len.into() });
        let (rows, cols) = (Shape::merged(&shape.rows), Shape::merged(&shape.cols));
        match (rows.is_empty(), cols.is_empty()) {
            (true, _) => self.add_index(out, index, &cols, len),
            (false, true) if shape.pitch == 1 => self.add_index(out, index, &rows, len),
            (false, _) => {
                let row = self.take(Elem::I32, len);
                self.split(row, index, shape.pitch, len);
                self.add_index(out, index, &cols, len);
                self.add_index(out, row, &rows, len);
                self.release(row);
            }
        }
        self.release(index);
        if let Some(limit) = limit {
            let (dst, src) = (out.at(0).into(), out.at(0).into());
            self.vector(ScaledOp {
                op: Scaled::Mins,
                dst,
                src,
                scalar: limit.into(),
                over: Over::count(len),
            });
        }
        out
    }

    /// `out += Σ index[d] · step[d]` for an index over dimensions, which it destroys.
    fn add_index(&mut self, out: Buf, index: Buf, dims: &[(u64, i64)], len: u64) {
        for (place, &(size, step)) in dims.iter().enumerate().rev() {
            let term = self.take(Elem::I32, len);
            let over = || Over::count(len);
            let rest = if place > 0 {
                let rest = self.take(Elem::I32, len);
                self.split(rest, index, size, len);
                Some(rest)
            } else {
                None
            };
            self.scaled(Scaled::Muls, term, index, step, len);
            self.vector(BinaryOp {
                op: Binary::Add,
                dst: out.at(0).into(),
                src0: out.at(0).into(),
                src1: term.at(0).into(),
                over: over(),
            });
            if let Some(rest) = rest {
                self.scaled(Scaled::Adds, index, rest, 0, len);
                self.release(rest);
            }
            self.release(term);
        }
    }

    /// `quotient = index / by` and `index %= by`. Exact below 2²¹: `(index + ½) / by` is at least `1 / 2 by`
    /// from an integer, and the roundings of f32 are less.
    fn split(&mut self, quotient: Buf, index: Buf, by: u64, len: u64) {
        let float = self.take(Elem::F32, len);
        let over = || Over::count(len);
        self.cast(float, index, Round::None, len);
        for (op, by) in [(Scaled::Adds, 0.5), (Scaled::Muls, 1.0 / by as f32)] {
            self.vector(ScaledOp {
                op,
                dst: float.at(0).into(),
                src: float.at(0).into(),
                scalar: by.into(),
                over: over(),
            });
        }
        self.cast(quotient, float, Round::Floor, len);
        let whole = Buf { elem: Elem::I32, ..float };
        self.scaled(Scaled::Muls, whole, quotient, -(by as i64), len);
        self.vector(BinaryOp {
            op: Binary::Add,
            dst: index.at(0).into(),
            src0: index.at(0).into(),
            src1: whole.at(0).into(),
            over: over(),
        });
        self.release(float);
    }

    fn cast(&mut self, dst: Buf, src: Buf, round: Round, len: u64) {
        self.vector(Cast {
            dst: dst.at(0).into(),
            src: src.at(0).into(),
            round,
            scale: None,
            over: Over::count(len),
        });
    }

    fn scaled(&mut self, op: Scaled, dst: Buf, src: Buf, by: i64, len: u64) {
        self.vector(ScaledOp {
            op,
            dst: dst.at(0).into(),
            src: src.at(0).into(),
            scalar: by.into(),
            over: Over::count(len),
        });
    }
}
