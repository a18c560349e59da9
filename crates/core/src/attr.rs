//! Attributes of a node: the non-tensor arguments, under their ATen names.

use crate::dtype::DType;
use crate::exact::{Exact, Listed};
use crate::row::RowProgram;
use crate::tensor::{Data, Tensor};
use std::fmt;
use std::sync::Arc;

/// Name of the attribute of nodes inside `torch.autocast(enabled=False)`: no list of O1 applies to them. The
/// importer sets it; it is removed once precision has been chosen.
pub const KEEPS_TYPES: &str = "keeps_types";

/// One attribute value.
#[derive(Clone, PartialEq, Debug)]
pub enum Attr {
    /// `bool`
    Bool(bool),
    /// `int`, and sizes once bound
    Int(i64),
    /// `float`
    Float(f64),
    /// `str`
    Str(String),
    /// `int[]`
    Ints(Vec<i64>),
    /// `float[]`
    Floats(Vec<f64>),
    /// `ScalarType`
    DType(DType),
    /// The program of a fused node.
    Program(Arc<RowProgram>),
    /// A small tensor, the content of a `constant`.
    Tensor(Arc<Tensor>),
}

/// The attributes of a node, sorted by name; an absent name means ATen's `None`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Attrs(Vec<(&'static str, Attr)>);

impl Attrs {
    /// No attributes.
    pub const fn new() -> Self {
        Attrs(Vec::new())
    }

    /// Sets `name`, replacing an earlier value.
    pub fn set(&mut self, name: &'static str, value: impl Into<Attr>) {
        let value = value.into();
        match self.0.binary_search_by(|(n, _)| (*n).cmp(name)) {
            Ok(i) => self.0[i].1 = value,
            Err(i) => self.0.insert(i, (name, value)),
        }
    }

    /// The same with `name` set.
    pub fn with(mut self, name: &'static str, value: impl Into<Attr>) -> Self {
        self.set(name, value);
        self
    }

    /// The value of `name`.
    pub fn get(&self, name: &str) -> Option<&Attr> {
        self.0.binary_search_by(|(n, _)| (*n).cmp(name)).ok().map(|i| &self.0[i].1)
    }

    /// Removes `name`.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(n, _)| *n != name);
    }

    /// All names and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Attr)> {
        self.0.iter().map(|(n, a)| (*n, a))
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

macro_rules! from {
    ($($t:ty => $v:ident),*) => {$(
        impl From<$t> for Attr {
            fn from(x: $t) -> Attr { Attr::$v(x.into()) }
        }
    )*};
}
from!(bool => Bool, i64 => Int, f64 => Float, &str => Str, String => Str, Vec<i64> => Ints,
      &[i64] => Ints, Vec<f64> => Floats, DType => DType, Arc<RowProgram> => Program, Arc<Tensor> => Tensor);

impl<const N: usize> From<[i64; N]> for Attr {
    fn from(x: [i64; N]) -> Attr {
        Attr::Ints(x.to_vec())
    }
}

impl fmt::Display for Attr {
    /// Exact and unambiguous: two attributes print alike only if they are the same, bit for bit. The text
    /// form of graphs reads every one back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attr::Bool(b) => write!(f, "{b}"),
            Attr::Int(i) => write!(f, "{i}"),
            Attr::Float(x) => write!(f, "{}", Exact(*x)),
            Attr::Str(s) => write!(f, "{s:?}"),
            Attr::Ints(v) => write!(f, "[{}]", Listed(v)),
            // The brackets alone would be the list of no ints.
            Attr::Floats(v) if v.is_empty() => f.write_str("floats[]"),
            Attr::Floats(v) => write!(f, "[{}]", Listed(&Exact::all(v))),
            Attr::DType(d) => write!(f, "{d}"),
            Attr::Program(p) => write!(f, "{p}"),
            Attr::Tensor(t) => match &t.data {
                Data::Float(v) => write!(f, "{}{{{}}}", t.ty, Listed(&Exact::all(v))),
                Data::Int(v) => write!(f, "{}{{{}}}", t.ty, Listed(v)),
            },
        }
    }
}

impl fmt::Display for Attrs {
    /// `name=value, name=value`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, value)) in self.0.iter().enumerate() {
            write!(f, "{}{name}={value}", if i > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}
