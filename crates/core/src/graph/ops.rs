//! Nodes that derivative rules and decompositions build most: one method an operator, beside those of
//! `builder`.

use super::{Builder, ValueId};
use crate::attr::{Attr, Attrs};
use crate::diagnostic::Result;
use crate::ops::{movement, pointwise, view};

impl Builder {
    /// `a - b`, broadcast and promoted.
    pub fn sub(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.call(&pointwise::sub::SUB, &[a, b])
    }

    /// `a / b`, broadcast and promoted.
    pub fn div(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.call(&pointwise::div::DIV, &[a, b])
    }

    /// `a + c` for a number, in `a`'s dtype.
    pub fn shift(&mut self, a: ValueId, c: f64) -> Result<ValueId> {
        if c == 0.0 {
            return Ok(a);
        }
        self.one(&pointwise::add::ADD, &[a], Attrs::new().with("other", c))
    }

    /// `-a`.
    pub fn neg(&mut self, a: ValueId) -> Result<ValueId> {
        self.call(&pointwise::neg::NEG, &[a])
    }

    /// `a` to a power that is a number.
    pub fn power(&mut self, a: ValueId, exponent: impl Into<Attr>) -> Result<ValueId> {
        self.one(&pointwise::pow::POW, &[a], Attrs::new().with("exponent", exponent))
    }

    /// `if cond { a } else { b }`, broadcast and promoted.
    pub fn choose(&mut self, cond: ValueId, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.call(&pointwise::where_self::WHERE, &[cond, a, b])
    }

    /// `a` where `cond` holds, 0 elsewhere.
    pub fn keep_where(&mut self, cond: ValueId, a: ValueId) -> Result<ValueId> {
        self.one(&pointwise::where_self::WHERE, &[cond, a], Attrs::new().with("other", 0.0))
    }

    /// 0 where `cond` holds, `a` elsewhere.
    pub fn drop_where(&mut self, cond: ValueId, a: ValueId) -> Result<ValueId> {
        self.one(&pointwise::where_self::WHERE, &[cond, a], Attrs::new().with("self", 0.0))
    }

    /// Indices `start..end` along a dimension.
    pub fn slice(&mut self, a: ValueId, dim: usize, start: usize, end: usize) -> Result<ValueId> {
        if start == 0 && end == self.ty(a).shape[dim] {
            return Ok(a);
        }
        let attrs = Attrs::new().with("dim", dim as i64).with("start", start as i64).with("end", end as i64);
        self.one(&view::slice::SLICE, &[a], attrs.with("step", 1))
    }

    /// Index `index` along a dimension, which goes away.
    pub fn select(&mut self, a: ValueId, dim: usize, index: usize) -> Result<ValueId> {
        let attrs = Attrs::new().with("dim", dim as i64).with("index", index as i64);
        self.one(&view::select::SELECT, &[a], attrs)
    }

    /// A dimension of size 1 inserted before `dim`.
    pub fn unsqueeze(&mut self, a: ValueId, dim: usize) -> Result<ValueId> {
        let mut shape = self.ty(a).shape.to_vec();
        shape.insert(dim, 1);
        self.reshape(a, &shape)
    }

    /// Two dimensions exchanged.
    pub fn transpose(&mut self, a: ValueId, dim0: usize, dim1: usize) -> Result<ValueId> {
        let mut dims: Vec<usize> = (0..self.ty(a).shape.rank()).collect();
        dims.swap(dim0, dim1);
        self.permute(a, &dims)
    }

    /// Tensors joined along a dimension.
    pub fn cat(&mut self, parts: &[ValueId], dim: usize) -> Result<ValueId> {
        match parts {
            [one] => Ok(*one),
            _ => self.one(&movement::cat::CAT, parts, Attrs::new().with("dim", dim as i64)),
        }
    }
}
