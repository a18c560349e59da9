//! The functions as text of C and of languages like it, such as CUDA C.
//!
//! A function is a straight line of assignments, an operation each, so that no compiler has a choice:
//! products and sums are contracted nowhere but in the explicit fused multiply-adds. That holds under the
//! settings which the language needs for IEEE arithmetic: `-ffp-contract=off` of C compilers, `--fmad=false`
//! of CUDA's, subnormal numbers kept and quotients rounded correctly, as both do unless told otherwise.

use super::{FUNCTIONS, Ops, unary};
use crate::expr::Unary;
use std::fmt::Write;

/// A language: the words in which it differs from the others.
#[derive(Clone, Copy, Debug)]
pub struct Dialect {
    /// Lines before the functions: headers, and helpers that the other fields name.
    pub prelude: &'static str,
    /// Unsigned integers of 32 bits.
    pub unsigned: &'static str,
    /// Signed integers of 32 bits, in two's complement, whose right shift copies the sign.
    pub signed: &'static str,
    /// The function that gives the bits of a float.
    pub to_bits: &'static str,
    /// The function that gives the float of some bits.
    pub from_bits: &'static str,
    /// The fused multiply-add of floats: `a · b + c`, rounded once.
    pub fma: &'static str,
    /// Words before a function.
    pub function: &'static str,
    /// Words before a table of constants outside of functions.
    pub table: &'static str,
}

/// C99 and later.
pub const C: Dialect = Dialect {
    prelude: "#include <math.h>\n#include <stdint.h>\n#include <string.h>\n\n\
        static inline uint32_t hw_to_bits(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }\n\
        static inline float hw_from_bits(uint32_t b) { float x; memcpy(&x, &b, 4); return x; }\n",
    unsigned: "uint32_t",
    signed: "int32_t",
    to_bits: "hw_to_bits",
    from_bits: "hw_from_bits",
    fma: "fmaf",
    function: "static inline",
    table: "static const",
};

/// CUDA C++. Compile with `--fmad=false`, and without `--ftz=true`, `--prec-div=false` and `--use_fast_math`.
pub const CUDA: Dialect = Dialect {
    prelude: "",
    unsigned: "unsigned int",
    signed: "int",
    to_bits: "__float_as_uint",
    from_bits: "__uint_as_float",
    fma: "__fmaf_rn",
    function: "static __device__ __forceinline__",
    table: "static __device__ const",
};

/// The name of a function in the text: `hw_exp` of [`Unary::Exp`].
pub fn name(function: Unary) -> String {
    format!("hw_{function:?}").to_lowercase()
}

/// All functions of [`FUNCTIONS`], after the dialect's prelude: `float NAME(float x)`, by [`name`].
pub fn source(dialect: &Dialect) -> String {
    let mut out = format!("{}\n", dialect.prelude);
    for function in FUNCTIONS {
        out += &definition(dialect, function).unwrap_or_default();
        out.push('\n');
    }
    out
}

/// One function, with the tables that it reads; `None` for those that are not in [`FUNCTIONS`].
pub fn definition(dialect: &Dialect, function: Unary) -> Option<String> {
    let mut t = Text {
        dialect,
        name: name(function),
        values: vec![("x".to_string(), Type::Float)],
        masks: Vec::new(),
        lines: String::new(),
        tables: Vec::new(),
    };
    let result = unary(&mut t, function, V(0))?;
    let result = t.float(result);
    let mut out = String::new();
    for (i, table) in t.tables.iter().enumerate() {
        let entries: Vec<String> = table.iter().map(|x| format!("0x{x:08x}u")).collect();
        let (words, unsigned) = (dialect.table, dialect.unsigned);
        let _ = writeln!(out, "{words} {unsigned} {}_table{i}[8] = {{{}}};", t.name, entries.join(", "));
    }
    let _ = write!(out, "{} float {}(float x) {{\n{}", dialect.function, t.name, t.lines);
    let _ = write!(out, "    return {result};\n}}\n");
    Some(out)
}

/// A value: the number of its text.
#[derive(Clone, Copy)]
struct V(usize);

/// A truth value: the number of its text.
#[derive(Clone, Copy)]
struct M(usize);

/// The type that a value's text has.
#[derive(Clone, Copy, PartialEq)]
enum Type {
    Float,
    Bits,
}

/// Writes the lines of one function.
struct Text<'a> {
    dialect: &'a Dialect,
    name: String,
    values: Vec<(String, Type)>,
    masks: Vec<String>,
    lines: String,
    tables: Vec<[u32; 8]>,
}

impl Text<'_> {
    fn float(&self, v: V) -> String {
        match &self.values[v.0] {
            (text, Type::Float) => text.clone(),
            (text, Type::Bits) => format!("{}({text})", self.dialect.from_bits),
        }
    }

    fn unsigned(&self, v: V) -> String {
        match &self.values[v.0] {
            (text, Type::Bits) => text.clone(),
            (text, Type::Float) => format!("{}({text})", self.dialect.to_bits),
        }
    }

    fn signed(&self, v: V) -> String {
        format!("({})({})", self.dialect.signed, self.unsigned(v))
    }

    fn value(&mut self, text: String, ty: Type) -> V {
        self.values.push((text, ty));
        V(self.values.len() - 1)
    }

    /// A variable with this value.
    fn assign(&mut self, ty: Type, text: &str) -> V {
        let (word, letter) = match ty {
            Type::Float => ("float", 'f'),
            Type::Bits => (self.dialect.unsigned, 'u'),
        };
        let name = format!("{letter}{}", self.values.len());
        let _ = writeln!(self.lines, "    const {word} {name} = {text};");
        self.value(name, ty)
    }

    fn floats(&mut self, a: V, op: &str, b: V) -> V {
        let text = format!("{} {op} {}", self.float(a), self.float(b));
        self.assign(Type::Float, &text)
    }

    fn integers(&mut self, a: V, op: &str, b: V) -> V {
        let text = format!("{} {op} {}", self.unsigned(a), self.unsigned(b));
        self.assign(Type::Bits, &text)
    }

    /// A choice of the first or the second by a comparison of the two.
    fn choice(&mut self, a: V, op: &str, b: V) -> V {
        let (a, b) = (self.float(a), self.float(b));
        self.assign(Type::Float, &format!("{a} {op} {b} ? {a} : {b}"))
    }

    fn mask(&mut self, text: String) -> M {
        self.masks.push(text);
        M(self.masks.len() - 1)
    }
}

impl Ops for Text<'_> {
    type V = V;
    type M = M;

    // A constant is its bits: no decimal is read back, and the compiler folds the conversion.
    fn num(&mut self, x: f32) -> V {
        self.bits(x.to_bits())
    }
    fn add(&mut self, a: V, b: V) -> V {
        self.floats(a, "+", b)
    }
    fn sub(&mut self, a: V, b: V) -> V {
        self.floats(a, "-", b)
    }
    fn mul(&mut self, a: V, b: V) -> V {
        self.floats(a, "*", b)
    }
    fn div(&mut self, a: V, b: V) -> V {
        self.floats(a, "/", b)
    }
    fn fma(&mut self, a: V, b: V, c: V) -> V {
        let text = format!("{}({}, {}, {})", self.dialect.fma, self.float(a), self.float(b), self.float(c));
        self.assign(Type::Float, &text)
    }
    fn max(&mut self, a: V, b: V) -> V {
        self.choice(a, ">", b)
    }
    fn min(&mut self, a: V, b: V) -> V {
        self.choice(a, "<", b)
    }
    fn lt(&mut self, a: V, b: V) -> M {
        self.mask(format!("{} < {}", self.float(a), self.float(b)))
    }
    fn eq(&mut self, a: V, b: V) -> M {
        self.mask(format!("{} == {}", self.float(a), self.float(b)))
    }
    fn is_nan(&mut self, a: V) -> M {
        let a = self.float(a);
        self.mask(format!("{a} != {a}"))
    }
    fn select(&mut self, m: M, a: V, b: V) -> V {
        let text = format!("{} ? {} : {}", self.masks[m.0], self.float(a), self.float(b));
        self.assign(Type::Float, &text)
    }
    fn bits(&mut self, x: u32) -> V {
        self.value(format!("0x{x:08x}u"), Type::Bits)
    }
    fn and(&mut self, a: V, b: V) -> V {
        self.integers(a, "&", b)
    }
    fn or(&mut self, a: V, b: V) -> V {
        self.integers(a, "|", b)
    }
    fn sub_int(&mut self, a: V, b: V) -> V {
        self.integers(a, "-", b)
    }
    fn shift_left(&mut self, a: V, n: u8) -> V {
        let text = format!("{} << {n}", self.unsigned(a));
        self.assign(Type::Bits, &text)
    }
    fn shift_right(&mut self, a: V, n: u8) -> V {
        let text = format!("({})({} >> {n})", self.dialect.unsigned, self.signed(a));
        self.assign(Type::Bits, &text)
    }
    fn lookup(&mut self, table: [u32; 8], a: V) -> V {
        let number = self.tables.iter().position(|t| *t == table).unwrap_or_else(|| {
            self.tables.push(table);
            self.tables.len() - 1
        });
        let text = format!("{}_table{number}[{} & 7u]", self.name, self.unsigned(a));
        self.assign(Type::Bits, &text)
    }
    fn int_to_float(&mut self, a: V) -> V {
        let text = format!("(float)({})", self.signed(a));
        self.assign(Type::Float, &text)
    }
}
