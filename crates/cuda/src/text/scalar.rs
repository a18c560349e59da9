//! Instructions of row programs as expressions of CUDA C. Floats are computed in `float`, or in `double`
//! where an f64 takes part; integers in `i64`, truth values in `bool`.

use headwater_core::DType;
use headwater_core::dtype::Class;
use headwater_core::expr::{Binary, Unary};
use headwater_core::row::Instr;

/// Classes of a program's registers, and the type that floats are computed in.
pub(crate) struct Classes {
    pub of: Vec<Option<Class>>,
    pub wide: bool,
}

impl Classes {
    /// C type of floats.
    pub fn float(&self) -> &'static str {
        if self.wide { "double" } else { "float" }
    }

    /// C type of a register.
    pub fn ty(&self, reg: usize) -> &'static str {
        match self.of[reg] {
            Some(Class::Float) => self.float(),
            Some(Class::Bool) => "bool",
            _ => "i64",
        }
    }
}

/// C type of elements in memory.
pub(crate) fn memory(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::F64 => "double",
        DType::BF16 | DType::F16 => "u16",
        DType::I64 => "i64",
        DType::I32 => "i32",
        DType::I16 => "i16",
        DType::I8 => "i8",
        DType::U8 | DType::Bool => "u8",
    }
}

/// The element that was read, `raw`, as a register holds it.
pub(crate) fn load(dtype: DType, raw: &str, wide: bool) -> String {
    let float = if wide { "double" } else { "float" };
    match dtype {
        DType::F32 | DType::F64 => format!("({float}){raw}"),
        DType::BF16 => format!("({float})hw_from_bf16({raw})"),
        DType::F16 => format!("({float})hw_from_f16({raw})"),
        DType::Bool => format!("{raw} != 0"),
        _ => format!("(i64){raw}"),
    }
}

/// A register as memory holds it.
pub(crate) fn store(dtype: DType, value: &str, wide: bool) -> String {
    let once = if wide { format!("hw_odd({value})") } else { value.into() };
    match dtype {
        DType::BF16 => format!("hw_bf16_bits({once})"),
        DType::F16 => format!("hw_f16_bits({once})"),
        _ => format!("({})({value})", memory(dtype)),
    }
}

/// A float as C reads it back.
pub(crate) fn constant(x: f64, wide: bool) -> String {
    match wide {
        true if x.is_finite() => format!("{x:?}"),
        true => format!("hw_double({:#x}ull)", x.to_bits()),
        false if (x as f32).is_finite() => format!("{:?}f", x as f32),
        false => format!("hw_float({:#x}u)", (x as f32).to_bits()),
    }
}

/// The low bits of an integer, as a dtype holds them.
fn wrapped(dtype: DType, x: &str) -> String {
    match dtype {
        DType::I64 => x.into(),
        _ => format!("(i64)({})({x})", memory(dtype)),
    }
}

/// A conversion.
fn cast(to: DType, x: &str, from: Option<Class>, wide: bool) -> String {
    let float = if wide { "double" } else { "float" };
    match (from, to.class()) {
        (Some(Class::Float), Class::Float) => match to {
            DType::F32 if wide => format!("(double)(float){x}"),
            DType::F32 | DType::F64 => x.into(),
            _ => load(to, &store(to, x, wide), wide),
        },
        (_, Class::Float) => {
            let x = match from {
                Some(Class::Bool) => format!("({x} ? 1.0 : 0.0)"),
                _ => format!("(double){x}"),
            };
            match to {
                DType::F32 => format!("({float})(float){x}"),
                DType::F64 => format!("({float}){x}"),
                _ => load(to, &store(to, &x, true), wide),
            }
        }
        (Some(Class::Float), Class::Int) => wrapped(to, &format!("hw_int({x})")),
        (Some(Class::Bool), Class::Int) => format!("(i64){x}"),
        (_, Class::Int) => wrapped(to, x),
        (Some(Class::Bool), Class::Bool) => x.into(),
        (_, Class::Bool) => format!("{x} != 0"),
    }
}

fn unary(op: Unary, x: &str, from: Option<Class>) -> String {
    let float = from == Some(Class::Float);
    let function = match op {
        Unary::Neg if float => return format!("-{x}"),
        Unary::Neg => return format!("hw_sub(0, {x})"),
        Unary::Not if from == Some(Class::Bool) => return format!("!{x}"),
        Unary::Not => return format!("~{x}"),
        Unary::Bits => return format!("(i64)(i32)hw_bits((float){x})"),
        Unary::FromBits => return format!("hw_float((u32){x})"),
        Unary::Floor | Unary::Ceil | Unary::Trunc | Unary::Round if !float => return x.into(),
        Unary::Abs => "abs",
        Unary::Sign => "sign",
        Unary::Exp => "exp",
        Unary::ExpNonpos => "expnonpos",
        Unary::Expm1 => "expm1",
        Unary::Log => "log",
        Unary::Log1p => "log1p",
        Unary::Sqrt => "sqrt",
        Unary::Rsqrt => "rsqrt",
        Unary::Recip => "recip",
        Unary::Sin => "sin",
        Unary::Cos => "cos",
        Unary::Tan => "tan",
        Unary::Tanh => "tanh",
        Unary::Atan => "atan",
        Unary::Erf => "erf",
        Unary::Ndtr => "ndtr",
        Unary::Floor => "floor",
        Unary::Ceil => "ceil",
        Unary::Trunc => "trunc",
        Unary::Round => "round",
        Unary::Sigmoid => "sigmoid",
        Unary::IsNan => "is_nan",
        Unary::IsInf => "is_inf",
    };
    format!("hw_{function}({x})")
}

fn binary(op: Binary, a: &str, b: &str, of: Option<Class>) -> String {
    let (float, truth) = (of == Some(Class::Float), of == Some(Class::Bool));
    let function = match op {
        Binary::Add if float => return format!("{a} + {b}"),
        Binary::Sub if float => return format!("{a} - {b}"),
        Binary::Mul if float => return format!("{a} * {b}"),
        Binary::Div if float => return format!("{a} / {b}"),
        Binary::Eq => return format!("{a} == {b}"),
        Binary::Ne => return format!("{a} != {b}"),
        Binary::Lt => return format!("{a} < {b}"),
        Binary::Le => return format!("{a} <= {b}"),
        Binary::Gt => return format!("{a} > {b}"),
        Binary::Ge => return format!("{a} >= {b}"),
        Binary::And if truth => return format!("{a} && {b}"),
        Binary::Or if truth => return format!("{a} || {b}"),
        Binary::Xor if truth => return format!("{a} != {b}"),
        Binary::And => return format!("{a} & {b}"),
        Binary::Or => return format!("{a} | {b}"),
        Binary::Xor => return format!("{a} ^ {b}"),
        Binary::Add => "add",
        Binary::Sub => "sub",
        Binary::Mul => "mul",
        Binary::Div => "div",
        Binary::FloorDiv => "floor_div",
        Binary::Rem => "rem",
        Binary::Fmod => "fmod",
        Binary::Pow => "pow",
        Binary::Atan2 => "atan2",
        Binary::Min => "min",
        Binary::Max => "max",
    };
    match truth {
        true => format!("hw_{function}((i64){a}, (i64){b}) != 0"),
        false => format!("hw_{function}({a}, {b})"),
    }
}

/// An instruction's value from the names of its arguments; `None` for those that are no expressions of
/// registers: loads, indices, reductions and stores.
pub(crate) fn value(instr: &Instr, classes: &Classes, name: impl Fn(usize) -> String) -> Option<String> {
    let of = |r: usize| classes.of[r];
    Some(match *instr {
        Instr::Float(x) => constant(x, classes.wide),
        Instr::Int(i64::MIN) => "-0x7fffffffffffffffll - 1".into(),
        Instr::Int(x) => format!("{x}ll"),
        Instr::Bool(x) => x.to_string(),
        Instr::Unary(op, a) => unary(op, &name(a), of(a)),
        Instr::Binary(op, a, b) => binary(op, &name(a), &name(b), of(a)),
        Instr::Select(c, a, b) => format!("{} ? {} : {}", name(c), name(a), name(b)),
        Instr::Cast(d, a) => cast(d, &name(a), of(a), classes.wide),
        _ => return None,
    })
}
