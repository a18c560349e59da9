//! A call of complex numbers while its result is made: its operands by argument, and what is made of them.

use super::pairs::{joined, parts, promoted};
use crate::arguments::{Call, Obstacle, Operand};
use crate::error::{Result, refuse};
use crate::importer::Importer;
use crate::scope::Scope;
use headwater_core::ops::create::constant::CONSTANT;
use headwater_core::ops::{OpCx, OpDef};
use headwater_core::tensor::TensorType;
use headwater_core::{Attr, Attrs, Builder, DType, Tensor, ValueId};
use std::sync::Arc;

/// A call of which other operators make the result.
#[derive(Debug)]
pub(crate) struct Maker<'m, 'a> {
    pub importer: &'m mut Importer<'a>,
    pub scope: &'m Scope<'a>,
    /// The operator of real numbers, if there is one.
    pub op: Option<&'static OpDef>,
    pub call: Call,
    /// Type of the result; of complex numbers that of their pairs.
    pub want: TensorType,
    /// True if the result is of complex numbers.
    pub complex: bool,
}

/// An operand.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Term {
    /// Pairs.
    Complex(ValueId),
    /// Real numbers.
    Real(ValueId),
    /// A number: real and imaginary part.
    Number([f64; 2]),
}

impl Maker<'_, '_> {
    pub fn b(&mut self) -> &mut Builder {
        &mut self.importer.b
    }

    /// The attributes, to be read typed.
    pub fn args(&self) -> OpCx<'_> {
        OpCx { inputs: Vec::new(), attrs: &self.call.attrs }
    }

    /// The argument of this name, if it is given: a tensor in the result's dtype, or a number.
    pub fn get(&mut self, name: &str) -> Result<Option<Term>, Obstacle> {
        let found = self.call.tensors.iter().flatten().find(|o| o.argument == name).copied();
        if let Some(operand) = found {
            return Ok(Some(self.read(operand)?));
        }
        Ok(match self.call.attrs.get(name) {
            Some(Attr::Floats(parts)) if parts.len() == 2 => Some(Term::Number([parts[0], parts[1]])),
            Some(_) => Some(Term::Number([self.args().float(name)?, 0.0])),
            None => None,
        })
    }

    /// An argument that must be given.
    pub fn term(&mut self, name: &str) -> Result<Term, Obstacle> {
        let found = self.get(name)?;
        Ok(found.ok_or_else(|| refuse!(Argument, "argument `{name}` is missing"))?)
    }

    /// A real tensor that must be given, in its own dtype.
    pub fn real(&mut self, name: &str) -> Result<ValueId, Obstacle> {
        let found = self.call.tensors.iter().flatten().find(|o| o.argument == name && !o.complex).copied();
        let operand = found.ok_or_else(|| refuse!(Argument, "argument `{name}` must be a real tensor"))?;
        Ok(self.importer.operand(self.scope, operand.tensor)?.1)
    }

    /// All tensors, in order.
    pub fn tensors(&mut self) -> Result<Vec<Term>, Obstacle> {
        let operands: Vec<Operand> = self.call.tensors.iter().flatten().copied().collect();
        operands.into_iter().map(|o| self.read(o)).collect()
    }

    fn read(&mut self, operand: Operand) -> Result<Term, Obstacle> {
        let (_, value) = self.importer.operand(self.scope, operand.tensor)?;
        let pairs = self.b().ty(value).shape.last() == Some(&2);
        if operand.complex && !(pairs && self.b().ty(value).dtype.is_float()) {
            return Err(refuse!(Mismatch, "argument `{}` is not of complex numbers", operand.argument).into());
        }
        let dtype = if self.want.dtype.is_float() { self.want.dtype } else { DType::F32 };
        let value = self.b().cast(value, dtype)?;
        Ok(if operand.complex { Term::Complex(value) } else { Term::Real(value) })
    }

    /// A term as pairs.
    pub fn pair(&mut self, term: Term) -> Result<ValueId, Obstacle> {
        let dtype = self.want.dtype;
        Ok(match term {
            Term::Complex(v) => v,
            Term::Real(v) => promoted(self.b(), v, dtype)?,
            Term::Number(parts) => {
                let value = Arc::new(Tensor::float(dtype, [2], parts.to_vec()));
                self.b().one(&CONSTANT, &[], Attrs::new().with("value", value))?
            }
        })
    }

    /// The argument of this name as pairs.
    pub fn pairs(&mut self, name: &str) -> Result<ValueId, Obstacle> {
        let term = self.term(name)?;
        self.pair(term)
    }

    /// Real and imaginary part of a term; `None` if it has no imaginary part.
    pub fn parts(&mut self, term: Term) -> Result<[Option<ValueId>; 2], Obstacle> {
        Ok(match term {
            Term::Real(v) => [Some(v), None],
            term => {
                let pairs = self.pair(term)?;
                parts(self.b(), pairs)?.map(Some)
            }
        })
    }

    /// Pairs of two parts, broadcast against each other.
    pub fn joined(&mut self, re: ValueId, im: ValueId) -> Result<ValueId, Obstacle> {
        Ok(joined(self.b(), re, im)?)
    }

    /// A result of one number everywhere.
    pub fn filled(&mut self, parts: [f64; 2]) -> Result<ValueId, Obstacle> {
        let want = self.want.clone();
        if !self.complex || parts[0] == parts[1] {
            return Ok(self.b().full(&want, parts[0])?);
        }
        let pair = self.pair(Term::Number(parts))?;
        Ok(self.b().expand(pair, &want.shape)?)
    }
}
