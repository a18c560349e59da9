//! Numbers in text forms: floats that read back to the same bits, lists.

use std::fmt;

/// A float in the shortest form that reads back to the same bits; a NaN other than the usual one with its
/// bits.
#[derive(Clone, Copy)]
pub(crate) struct Exact(pub f64);

impl Exact {
    pub fn all(v: &[f64]) -> Vec<Exact> {
        v.iter().copied().map(Exact).collect()
    }
}

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.to_bits() {
            bits if self.0.is_nan() && bits != f64::NAN.to_bits() => write!(f, "NaN:{bits:x}"),
            _ => write!(f, "{:?}", self.0),
        }
    }
}

/// Items with commas between them.
pub(crate) struct Listed<'a, T>(pub &'a [T]);

impl<T: fmt::Display> fmt::Display for Listed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, item) in self.0.iter().enumerate() {
            write!(f, "{}{item}", if i > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}
