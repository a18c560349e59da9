//! Scalar expressions: the bodies of pointwise operators. Plain data; `scalar` defines their functions in
//! f64, `elementary` the bits of some of them in f32.

pub mod elementary;
pub mod scalar;

use crate::dtype::{Class, DType};

/// Declares an enumeration that can be read back from its `Debug` form, so that no variant is forgotten.
macro_rules! named {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$vmeta:meta])* $variant:ident,)* }) => {
        $(#[$meta])*
        pub enum $name { $($(#[$vmeta])* $variant,)* }

        impl $name {
            /// The variant whose `Debug` form is `name`.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $(stringify!($variant) => Some($name::$variant),)*
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use named;

named! {
/// A function of one number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[allow(missing_docs)]
pub enum Unary {
    // Float to float, except Neg, Abs and Sign, which keep Float or Int.
    Neg,
    Abs,
    Sign,
    Exp,
    /// Exp of what is 0 at most, but for rounding, such as scores less their largest; what is no normal
    /// number may become 0.
    ExpNonpos,
    Expm1,
    Log,
    Log1p,
    Sqrt,
    Rsqrt,
    Recip,
    Sin,
    Cos,
    Tan,
    Tanh,
    Atan,
    Erf,
    /// Distribution function of the standard normal.
    Ndtr,
    Floor,
    Ceil,
    Trunc,
    /// To nearest, ties to even.
    Round,
    /// Logistic function.
    Sigmoid,
    // To Bool.
    IsNan,
    IsInf,
    /// Logical not of a Bool, bitwise not of an Int.
    Not,
    /// Float to Int: the bits of the number as an f32, as a signed number.
    Bits,
    /// Int to Float: the f32 of these bits, the low 32.
    FromBits,
}
}

named! {
/// A function of two numbers of one class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[allow(missing_docs)]
pub enum Binary {
    // Float or Int, class kept.
    Add,
    Sub,
    Mul,
    /// Float: IEEE. Int: truncated towards zero, and 0 for a zero divisor.
    Div,
    /// Division rounded down, as Python's `//`.
    FloorDiv,
    /// Remainder with the divisor's sign, as Python's `%`.
    Rem,
    /// Remainder with the dividend's sign, as C's.
    Fmod,
    Pow,
    Atan2,
    /// NaN if either is NaN, as PyTorch's.
    Min,
    /// NaN if either is NaN, as PyTorch's.
    Max,
    // Any class, to Bool.
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    // Bool (logical) or Int (bitwise).
    And,
    Or,
    Xor,
}
}

impl Unary {
    /// Class of the result, given that of the argument.
    pub fn class(self, arg: Class) -> Class {
        match self {
            Unary::IsNan | Unary::IsInf => Class::Bool,
            Unary::Bits => Class::Int,
            Unary::FromBits => Class::Float,
            _ => arg,
        }
    }
}

impl Binary {
    /// Class of the result, given that of the arguments.
    pub fn class(self, arg: Class) -> Class {
        match self {
            Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge => Class::Bool,
            _ => arg,
        }
    }
}

/// A scalar expression over the inputs of an operator, all broadcast to the output's shape.
///
/// Arguments of one operation must be of one class: convert with [`Expr::cast`]. Floats are computed in
/// f32 (f64 when an f64 takes part), and rounded where a `Cast` says so and at the output.
#[derive(Clone, PartialEq, Debug)]
pub enum Expr {
    /// Input number `i`, of its dtype's class.
    Input(usize),
    /// A float constant.
    Float(f64),
    /// An integer constant.
    Int(i64),
    /// A truth value.
    Bool(bool),
    /// Index along the output's dimension (Int).
    Coord(usize),
    /// Function of one.
    Unary(Unary, Box<Expr>),
    /// Function of two.
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// `if cond (Bool) { a } else { b }`; both sides are evaluated.
    Select(Box<Expr>, Box<Expr>, Box<Expr>),
    /// Conversion to a dtype, rounding (float) or wrapping (int), as `Tensor.to` does.
    Cast(DType, Box<Expr>),
}

/// Shorthand for [`Expr::Input`].
pub fn input(i: usize) -> Expr {
    Expr::Input(i)
}

/// Shorthand for [`Expr::Float`].
pub fn float(x: f64) -> Expr {
    Expr::Float(x)
}

macro_rules! unary_methods {
    ($($name:ident $op:ident),*) => { impl Expr { $(
        #[doc = concat!("`", stringify!($op), "` of this.")]
        pub fn $name(self) -> Expr { Expr::Unary(Unary::$op, Box::new(self)) }
    )* } };
}
unary_methods!(abs Abs, sign Sign, exp Exp, exp_nonpos ExpNonpos, expm1 Expm1, log Log, log1p Log1p, sqrt Sqrt, rsqrt Rsqrt, recip Recip,
    sin Sin, cos Cos, tan Tan, tanh Tanh, atan Atan, erf Erf, ndtr Ndtr, floor Floor, ceil Ceil, trunc Trunc,
    round Round, sigmoid Sigmoid, is_nan IsNan, is_inf IsInf, bits Bits, from_bits FromBits);

macro_rules! binary_methods {
    ($($name:ident $op:ident),*) => { impl Expr { $(
        #[doc = concat!("`", stringify!($op), "` of this and another.")]
        pub fn $name(self, other: Expr) -> Expr { Expr::Binary(Binary::$op, Box::new(self), Box::new(other)) }
    )* } };
}
binary_methods!(floor_div FloorDiv, rem Rem, fmod Fmod, pow Pow, atan2 Atan2, min Min, max Max, eq Eq, ne Ne, lt Lt, le Le,
    gt Gt, ge Ge, and And, or Or, xor Xor);

impl Expr {
    /// `if self { a } else { b }`.
    pub fn select(self, a: Expr, b: Expr) -> Expr {
        Expr::Select(Box::new(self), Box::new(a), Box::new(b))
    }

    /// Conversion to `dtype`.
    pub fn cast(self, dtype: DType) -> Expr {
        Expr::Cast(dtype, Box::new(self))
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident),*) => { $(
        impl std::ops::$trait for Expr {
            type Output = Expr;
            fn $method(self, other: Expr) -> Expr { Expr::Binary(Binary::$op, Box::new(self), Box::new(other)) }
        }
        impl std::ops::$trait<f64> for Expr {
            type Output = Expr;
            fn $method(self, other: f64) -> Expr {
                Expr::Binary(Binary::$op, Box::new(self), Box::new(Expr::Float(other)))
            }
        }
    )* };
}
operators!(Add add Add, Sub sub Sub, Mul mul Mul, Div div Div);

impl std::ops::Neg for Expr {
    type Output = Expr;
    fn neg(self) -> Expr {
        Expr::Unary(Unary::Neg, Box::new(self))
    }
}

impl std::ops::Not for Expr {
    type Output = Expr;
    fn not(self) -> Expr {
        Expr::Unary(Unary::Not, Box::new(self))
    }
}
