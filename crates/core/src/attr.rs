//! Attributes of a node: the non-tensor arguments, under their ATen names.

use crate::dtype::DType;
use crate::row::RowProgram;
use std::fmt;
use std::sync::Arc;

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

    /// Whether there are none.
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
      &[i64] => Ints, Vec<f64> => Floats, DType => DType, Arc<RowProgram> => Program);

impl<const N: usize> From<[i64; N]> for Attr {
    fn from(x: [i64; N]) -> Attr {
        Attr::Ints(x.to_vec())
    }
}

impl fmt::Display for Attr {
    /// Exact: floats print the shortest form that reads back to the same bits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list<T>(f: &mut fmt::Formatter<'_>, xs: &[T], show: impl Fn(&T) -> String) -> fmt::Result {
            write!(f, "[{}]", xs.iter().map(show).collect::<Vec<_>>().join(", "))
        }
        match self {
            Attr::Bool(b) => write!(f, "{b}"),
            Attr::Int(i) => write!(f, "{i}"),
            Attr::Float(x) => write!(f, "{x:?}"),
            Attr::Str(s) => write!(f, "{s:?}"),
            Attr::Ints(v) => list(f, v, |i| i.to_string()),
            Attr::Floats(v) => list(f, v, |x| format!("{x:?}")),
            Attr::DType(d) => write!(f, "{d}"),
            Attr::Program(p) => write!(f, "{p}"),
        }
    }
}
