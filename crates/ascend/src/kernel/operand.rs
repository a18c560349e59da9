//! Operands of instructions: views of memories, their strides, and how much of them an instruction covers.

use super::scalar::{Real, Scalar, Value};
use super::{BufferId, Elem, ParamId};
use crate::words::words;

/// The buffer or pointer that a view begins in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Base {
    /// A pointer parameter: GM.
    Param(ParamId),
    /// A buffer of the core.
    Buffer(BufferId),
}

/// A place in a memory: `offset` elements of type `elem` from the beginning of `base`.
#[derive(Clone, PartialEq, Debug)]
pub struct View<S = Scalar> {
    /// Parameter or buffer.
    pub base: Base,
    /// Type that the bytes are read as; it need not be the base's own.
    pub elem: Elem,
    /// Offset in elements.
    pub offset: S,
}

/// An operand of a vector instruction: a view, and the strides of its blocks.
///
/// One repeat covers eight blocks of 32 bytes. Block `b` of repeat `r` begins `(r · repeat + b · block) · 32`
/// bytes after the view's beginning.
#[derive(Clone, PartialEq, Debug)]
pub struct Vector<S = Scalar> {
    /// The beginning, a multiple of 32 bytes.
    pub view: View<S>,
    /// From one block of a repeat to the next, in blocks. 0 reads one block eight times; a result has at
    /// least 1.
    pub block: u32,
    /// From one repeat to the next, in blocks.
    pub repeat: u32,
}

/// Elements of a repeat that take part. Others of the result stay as they were.
#[derive(Clone, PartialEq, Debug)]
pub enum Mask<S = Scalar> {
    /// The first so many, at least 1.
    First(S),
    /// One bit for each, the lowest for the first: 128 of 16-bit types; of 32-bit types 64, with the second
    /// word 0.
    Bits([u64; 2]),
}

/// Part of its operands that a vector instruction covers.
#[derive(Clone, PartialEq, Debug)]
pub enum Over<S = Scalar> {
    /// So many contiguous elements (counter mode); strides are 1 and 8.
    Count(S),
    /// Repeats of 256 bytes.
    Repeats {
        /// Elements of every repeat.
        mask: Mask<S>,
        /// Number of repeats, at most 255.
        repeat: S,
    },
}

words! {
    /// Combination of a write to GM with the old content.
    AtomicOp {
        /// Adds.
        Add = "add",
        /// Takes the larger.
        Max = "max",
        /// Takes the smaller.
        Min = "min",
    }
}

words! {
    /// Rounding of a conversion.
    Round {
        /// Exact conversions need none; others as the chip does by itself (310P: to nearest, ties to even).
        None = "none",
        /// To nearest, ties to even.
        Rint = "rint",
        /// Down.
        Floor = "floor",
        /// Up.
        Ceil = "ceil",
        /// To nearest, ties away from zero.
        Round = "round",
        /// Towards zero.
        Trunc = "trunc",
        /// To odd.
        Odd = "odd",
    }
}

words! {
    /// Comparison.
    Compare {
        /// Less.
        Lt = "lt",
        /// Greater.
        Gt = "gt",
        /// Equal.
        Eq = "eq",
        /// Less or equal.
        Le = "le",
        /// Greater or equal.
        Ge = "ge",
        /// Not equal.
        Ne = "ne",
    }
}

words! {
    /// Results that reductions to a maximum or minimum write.
    Order {
        /// The value followed by its index, in the same type's width.
        ValueIndex = "value_index",
        /// The index followed by the value.
        IndexValue = "index_value",
        /// The value (A2).
        OnlyValue = "only_value",
        /// The index (A2).
        OnlyIndex = "only_index",
    }
}

words! {
    /// Handshake of `mmad` and `fixpipe` over single fractals of L0C (A2), in place of a flag.
    #[derive(Default)]
    UnitFlag {
        /// None.
        #[default]
        Off = "off",
        /// Checks and leaves as it is: more products follow.
        Keep = "keep",
        /// Checks and, when done, hands over: the last product sets, `fixpipe` clears.
        Set = "set",
    }
}

impl<S> View<S> {
    /// The same with other scalars.
    ///
    /// # Errors
    /// Errors that `f` returns.
    pub fn map<T, E>(&self, f: &mut impl FnMut(&S) -> Result<T, E>) -> Result<View<T>, E> {
        Ok(View { base: self.base, elem: self.elem, offset: f(&self.offset)? })
    }
}

impl View {
    /// The view that begins `offset` elements further.
    pub fn add(&self, offset: impl Into<Scalar>) -> View {
        View { base: self.base, elem: self.elem, offset: self.offset.clone() + offset }
    }

    /// The same bytes as elements of another type.
    pub fn cast(&self, elem: Elem) -> View {
        let (from, to) = (self.elem.size(), elem.size());
        let offset = match from >= to {
            true => self.offset.clone() * (from / to),
            false => self.offset.clone() / (to / from),
        };
        View { base: self.base, elem, offset }
    }

    /// As an operand of a vector instruction, with strides in blocks.
    pub fn strided(&self, block: u32, repeat: u32) -> Vector {
        Vector { view: self.clone(), block, repeat }
    }
}

impl View<Value> {
    /// Offset in bytes; negative if the program says so.
    pub fn byte(&self) -> i64 {
        self.offset.as_int().saturating_mul(self.elem.size() as i64)
    }
}

impl<S> Vector<S> {
    /// The same with other scalars.
    ///
    /// # Errors
    /// Errors that `f` returns.
    pub fn map<T, E>(&self, f: &mut impl FnMut(&S) -> Result<T, E>) -> Result<Vector<T>, E> {
        Ok(Vector { view: self.view.map(f)?, block: self.block, repeat: self.repeat })
    }
}

impl From<View> for Vector {
    fn from(view: View) -> Vector {
        Vector { view, block: 1, repeat: 8 }
    }
}

impl From<&View> for Vector {
    fn from(view: &View) -> Vector {
        view.clone().into()
    }
}

impl From<&Vector> for Vector {
    fn from(vector: &Vector) -> Vector {
        vector.clone()
    }
}

impl From<&View> for View {
    fn from(view: &View) -> View {
        view.clone()
    }
}

impl<S> Mask<S> {
    /// The same with other scalars.
    ///
    /// # Errors
    /// Errors that `f` returns.
    pub fn map<T, E>(&self, f: &mut impl FnMut(&S) -> Result<T, E>) -> Result<Mask<T>, E> {
        Ok(match self {
            Mask::First(n) => Mask::First(f(n)?),
            Mask::Bits(bits) => Mask::Bits(*bits),
        })
    }
}

impl<S> Over<S> {
    /// The same with other scalars.
    ///
    /// # Errors
    /// Errors that `f` returns.
    pub fn map<T, E>(&self, f: &mut impl FnMut(&S) -> Result<T, E>) -> Result<Over<T>, E> {
        Ok(match self {
            Over::Count(n) => Over::Count(f(n)?),
            Over::Repeats { mask, repeat } => Over::Repeats { mask: mask.map(f)?, repeat: f(repeat)? },
        })
    }
}

impl Over {
    /// `count` contiguous elements.
    pub fn count(count: impl Into<Scalar>) -> Over {
        Over::Count(count.into())
    }

    /// `repeat` repeats, of which the first `elements` elements take part.
    pub fn repeats(elements: impl Into<Scalar>, repeat: impl Into<Scalar>) -> Over {
        Over::Repeats { mask: Mask::First(elements.into()), repeat: repeat.into() }
    }

    /// `repeat` repeats with the elements whose bits are set.
    pub fn bits(bits: [u64; 2], repeat: impl Into<Scalar>) -> Over {
        Over::Repeats { mask: Mask::Bits(bits), repeat: repeat.into() }
    }
}

impl Value {
    /// The integer; 0 for a float, which a verified program has at no integer's place.
    pub const fn as_int(self) -> i64 {
        match self {
            Value::Int(x) => x,
            Value::Float(_) => 0,
        }
    }
}

/// Scales of `cast` from i32 to f16 (`SetDeqScale`).
pub type Scale = Option<Real>;

/// Filler of a padded copy: an integer or a float, of the element's type.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fill(pub Value);
