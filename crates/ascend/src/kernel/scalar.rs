//! Scalar expressions: what the scalar unit computes, in i64 and in f32. Trees, so that they print as they
//! are read.

use super::{ParamId, Program, VarId};
use crate::words::words;
use std::ops::{Add, Div, Mul, Rem, Sub};

/// A float that is equal to another when its bits are.
#[derive(Clone, Copy, Debug)]
pub struct Real(pub f32);

impl PartialEq for Real {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Real {}

/// Expressions of the scalar unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Scalar {
    /// A constant.
    Int(i64),
    /// A constant.
    Float(Real),
    /// Value of a variable.
    Var(VarId),
    /// Value of a scalar parameter.
    Param(ParamId),
    /// A fact about the core.
    Core(CoreFact),
    /// A function of one operand.
    Unary(ScalarUnary, Box<Scalar>),
    /// A function of two operands of the same type.
    Binary(ScalarBinary, Box<Scalar>, Box<Scalar>),
}

/// Type of a scalar.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ScalarType {
    /// `int64_t`
    Int,
    /// `float`
    Float,
}

/// A computed scalar.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value {
    /// `int64_t`
    Int(i64),
    /// `float`
    Float(f32),
}

words! {
    /// A fact about the core that runs a block.
    CoreFact {
        /// Index of the block, from 0. A vector core of a kernel with both kinds of cores sees twice as many.
        Block = "block",
        /// Number of blocks launched.
        Blocks = "blocks",
        /// Which of the vector cores beside a cube core this is, 0 or 1; 0 elsewhere.
        SubBlock = "sub_block",
    }
}

words! {
    /// Functions of one scalar.
    ScalarUnary {
        /// `-x`
        Neg = "neg",
        /// Integer to the nearest float.
        Float = "float",
        /// Float to integer, towards zero.
        Int = "int",
        /// Square root of a float.
        Sqrt = "sqrt",
    }
}

words! {
    /// Functions of two scalars. Comparisons and bit operations give integers; comparisons 0 or 1.
    ScalarBinary {
        /// Sum.
        Add = "+",
        /// Difference.
        Sub = "-",
        /// Product.
        Mul = "*",
        /// Quotient; of integers towards zero.
        Div = "/",
        /// Remainder of integers, with the dividend's sign.
        Rem = "%",
        /// Smaller.
        Min = "min",
        /// Larger.
        Max = "max",
        /// Bits in both.
        And = "&",
        /// Bits in either.
        Or = "|",
        /// Bits in one of them.
        Xor = "^",
        /// Shift to the left.
        Shl = "<<",
        /// Arithmetic shift to the right.
        Shr = ">>",
        /// Less.
        Lt = "<",
        /// Less or equal.
        Le = "<=",
        /// Greater.
        Gt = ">",
        /// Greater or equal.
        Ge = ">=",
        /// Equal.
        Eq = "==",
        /// Not equal.
        Ne = "!=",
    }
}

impl ScalarBinary {
    /// True if the result is 0 or 1.
    pub const fn compares(self) -> bool {
        use ScalarBinary::{Eq, Ge, Gt, Le, Lt, Ne};
        matches!(self, Lt | Le | Gt | Ge | Eq | Ne)
    }

    /// True if it is defined for integers alone.
    pub const fn integers_only(self) -> bool {
        use ScalarBinary::{And, Or, Rem, Shl, Shr, Xor};
        matches!(self, Rem | And | Or | Xor | Shl | Shr)
    }

    /// Result for integers; `None` where C leaves it undefined.
    pub fn of_ints(self, a: i64, b: i64) -> Option<i64> {
        use ScalarBinary::*;
        Some(match self {
            Add => a.checked_add(b)?,
            Sub => a.checked_sub(b)?,
            Mul => a.checked_mul(b)?,
            Div => a.checked_div(b)?,
            Rem => a.checked_rem(b)?,
            Min => a.min(b),
            Max => a.max(b),
            And => a & b,
            Or => a | b,
            Xor => a ^ b,
            Shl => (0..64).contains(&b).then(|| a.checked_mul(1i64.checked_shl(b as u32)?))??,
            Shr => (0..64).contains(&b).then(|| a >> b)?,
            Lt => (a < b) as i64,
            Le => (a <= b) as i64,
            Gt => (a > b) as i64,
            Ge => (a >= b) as i64,
            Eq => (a == b) as i64,
            Ne => (a != b) as i64,
        })
    }

    /// Result for floats; `None` for what is defined for integers alone.
    pub fn of_floats(self, a: f32, b: f32) -> Option<Value> {
        use ScalarBinary::*;
        let float = |x| Some(Value::Float(x));
        let truth = |x| Some(Value::Int(x as i64));
        match self {
            Add => float(a + b),
            Sub => float(a - b),
            Mul => float(a * b),
            Div => float(a / b),
            Min => float(if b < a { b } else { a }),
            Max => float(if b > a { b } else { a }),
            Lt => truth(a < b),
            Le => truth(a <= b),
            Gt => truth(a > b),
            Ge => truth(a >= b),
            Eq => truth(a == b),
            Ne => truth(a != b),
            Rem | And | Or | Xor | Shl | Shr => None,
        }
    }
}

impl ScalarUnary {
    /// Result; `None` where the operand's type is wrong or C leaves it undefined.
    pub fn of(self, x: Value) -> Option<Value> {
        Some(match (self, x) {
            (ScalarUnary::Neg, Value::Int(x)) => Value::Int(x.checked_neg()?),
            (ScalarUnary::Neg, Value::Float(x)) => Value::Float(-x),
            (ScalarUnary::Float, Value::Int(x)) => Value::Float(x as f32),
            (ScalarUnary::Int, Value::Float(x)) => Value::Int((x.abs() < 9.2e18).then_some(x)? as i64),
            (ScalarUnary::Sqrt, Value::Float(x)) => Value::Float(x.sqrt()),
            _ => return None,
        })
    }
}

impl Value {
    /// The integer, if it is one.
    pub const fn int(self) -> Option<i64> {
        match self {
            Value::Int(x) => Some(x),
            Value::Float(_) => None,
        }
    }

    /// The number, as f64: exact for floats and for integers below 2⁵³.
    pub const fn to_f64(self) -> f64 {
        match self {
            Value::Int(x) => x as f64,
            Value::Float(x) => x as f64,
        }
    }

    /// Its type.
    pub const fn ty(self) -> ScalarType {
        match self {
            Value::Int(_) => ScalarType::Int,
            Value::Float(_) => ScalarType::Float,
        }
    }
}

impl Scalar {
    /// The fact [`CoreFact::Block`].
    pub const BLOCK: Scalar = Scalar::Core(CoreFact::Block);
    /// The fact [`CoreFact::Blocks`].
    pub const BLOCKS: Scalar = Scalar::Core(CoreFact::Blocks);

    /// The type, or `None` where operands do not fit or a variable is not `program`'s.
    pub fn ty(&self, program: &Program) -> Option<ScalarType> {
        match self {
            Scalar::Int(_) | Scalar::Core(_) => Some(ScalarType::Int),
            Scalar::Float(_) => Some(ScalarType::Float),
            Scalar::Var(v) => program.vars.get(v.0 as usize).map(|v| v.ty),
            Scalar::Param(p) => program.params.get(p.0 as usize)?.scalar(),
            Scalar::Unary(op, x) => {
                let x = x.ty(program)?;
                match op {
                    ScalarUnary::Neg => Some(x),
                    ScalarUnary::Float => (x == ScalarType::Int).then_some(ScalarType::Float),
                    ScalarUnary::Int => (x == ScalarType::Float).then_some(ScalarType::Int),
                    ScalarUnary::Sqrt => (x == ScalarType::Float).then_some(x),
                }
            }
            Scalar::Binary(op, a, b) => {
                let (a, b) = (a.ty(program)?, b.ty(program)?);
                let fits = a == b && !(a == ScalarType::Float && op.integers_only());
                fits.then_some(if op.compares() { ScalarType::Int } else { a })
            }
        }
    }

    /// The constant, if it is one.
    pub const fn constant(&self) -> Option<Value> {
        match self {
            Scalar::Int(x) => Some(Value::Int(*x)),
            Scalar::Float(x) => Some(Value::Float(x.0)),
            _ => None,
        }
    }

    /// `op(self, other)`, computed at once where both are integer constants.
    pub fn binary(self, op: ScalarBinary, other: impl Into<Scalar>) -> Scalar {
        let other = other.into();
        if let (Scalar::Int(a), Scalar::Int(b)) = (&self, &other)
            && let Some(x) = op.of_ints(*a, *b)
        {
            return Scalar::Int(x);
        }
        match (op, &self, &other) {
            (ScalarBinary::Add, x, Scalar::Int(0)) | (ScalarBinary::Add, Scalar::Int(0), x) => x.clone(),
            (ScalarBinary::Sub | ScalarBinary::Shl | ScalarBinary::Shr, x, Scalar::Int(0)) => x.clone(),
            (ScalarBinary::Mul, x, Scalar::Int(1)) | (ScalarBinary::Mul, Scalar::Int(1), x) => x.clone(),
            (ScalarBinary::Div, x, Scalar::Int(1)) => x.clone(),
            _ => Scalar::Binary(op, Box::new(self), Box::new(other)),
        }
    }

    /// `op(self)`.
    pub fn unary(self, op: ScalarUnary) -> Scalar {
        Scalar::Unary(op, Box::new(self))
    }

    /// The smaller of both.
    pub fn min(self, other: impl Into<Scalar>) -> Scalar {
        self.binary(ScalarBinary::Min, other)
    }

    /// The larger of both.
    pub fn max(self, other: impl Into<Scalar>) -> Scalar {
        self.binary(ScalarBinary::Max, other)
    }

    /// 1 if `self < other`, else 0.
    pub fn lt(self, other: impl Into<Scalar>) -> Scalar {
        self.binary(ScalarBinary::Lt, other)
    }

    /// 1 if `self == other`, else 0.
    pub fn eq(self, other: impl Into<Scalar>) -> Scalar {
        self.binary(ScalarBinary::Eq, other)
    }

    /// 1 if `self != other`, else 0.
    pub fn ne(self, other: impl Into<Scalar>) -> Scalar {
        self.binary(ScalarBinary::Ne, other)
    }

    /// The quotient of a non-negative `self`, rounded up.
    pub fn div_ceil(self, other: i64) -> Scalar {
        (self + (other - 1)) / other
    }

    /// The nearest float of an integer.
    pub fn float(self) -> Scalar {
        self.unary(ScalarUnary::Float)
    }

    /// The square root of a float.
    pub fn sqrt(self) -> Scalar {
        self.unary(ScalarUnary::Sqrt)
    }

    /// Calls `f` with every part of the expression, the operands of a part before it.
    pub fn visit(&self, f: &mut dyn FnMut(&Scalar)) {
        match self {
            Scalar::Unary(_, x) => x.visit(f),
            Scalar::Binary(_, a, b) => {
                a.visit(f);
                b.visit(f);
            }
            _ => {}
        }
        f(self);
    }
}

macro_rules! operators {
    ($($trait:ident $fn:ident;)+) => { $(
        impl<T: Into<Scalar>> $trait<T> for Scalar {
            type Output = Scalar;
            fn $fn(self, other: T) -> Scalar {
                self.binary(ScalarBinary::$trait, other)
            }
        }
        impl<T: Into<Scalar>> $trait<T> for VarId {
            type Output = Scalar;
            fn $fn(self, other: T) -> Scalar {
                Scalar::Var(self).binary(ScalarBinary::$trait, other)
            }
        }
    )+ };
}

operators! {
    Add add;
    Sub sub;
    Mul mul;
    Div div;
    Rem rem;
}

macro_rules! from_ints {
    ($($int:ty)+) => { $(
        impl From<$int> for Scalar {
            fn from(x: $int) -> Scalar {
                Scalar::Int(i64::try_from(x).unwrap_or(i64::MAX))
            }
        }
    )+ };
}

from_ints!(i32 i64 u32 u64 usize);

impl From<f32> for Scalar {
    fn from(x: f32) -> Scalar {
        Scalar::Float(Real(x))
    }
}

impl From<VarId> for Scalar {
    fn from(v: VarId) -> Scalar {
        Scalar::Var(v)
    }
}

impl From<&Scalar> for Scalar {
    fn from(x: &Scalar) -> Scalar {
        x.clone()
    }
}
