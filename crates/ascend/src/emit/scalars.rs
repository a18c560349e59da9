//! Scalars and views in Ascend C.

use super::{Emitter, fact};
use crate::kernel::{Elem, Mask, Scalar, ScalarBinary, ScalarUnary, Vector, View};

impl Emitter<'_> {
    /// A scalar, in brackets where it is made of two.
    pub(super) fn scalar(&self, x: &Scalar) -> String {
        match x {
            Scalar::Int(i64::MIN) => "(-9223372036854775807LL - 1)".into(),
            Scalar::Int(x) if i32::try_from(*x).is_ok() => x.to_string(),
            Scalar::Int(x) => format!("{x}LL"),
            Scalar::Float(x) if x.0.is_finite() => format!("{:?}f", x.0),
            Scalar::Float(x) => format!("from_bits_({}U)", x.0.to_bits()),
            Scalar::Var(v) => self.program.vars[v.0 as usize].name.clone(),
            Scalar::Param(p) => self.program.params[p.0 as usize].name.clone(),
            Scalar::Core(f) => fact(*f).into(),
            Scalar::Unary(op, x) => {
                let x = self.scalar(x);
                match op {
                    ScalarUnary::Neg => format!("(-{x})"),
                    ScalarUnary::Float => format!("static_cast<float>({x})"),
                    ScalarUnary::Int => format!("static_cast<int64_t>({x})"),
                    // If only that of f64 is found, its result is rounded once more, to the same bits.
                    ScalarUnary::Sqrt => format!("static_cast<float>(sqrt({x}))"),
                }
            }
            Scalar::Binary(op @ (ScalarBinary::Min | ScalarBinary::Max), a, b) => {
                let name = if *op == ScalarBinary::Min { "smaller_" } else { "larger_" };
                let ty = match x.ty(self.program) {
                    Some(crate::kernel::ScalarType::Float) => "float",
                    _ => "int64_t",
                };
                format!("{name}<{ty}>({}, {})", self.scalar(a), self.scalar(b))
            }
            Scalar::Binary(op, a, b) => format!("({} {op} {})", self.scalar(a), self.scalar(b)),
        }
    }

    /// A scalar at an argument of a type.
    pub(super) fn as_type(&self, ty: &str, x: &Scalar) -> String {
        match x {
            Scalar::Int(x) if (0..=65535).contains(x) => x.to_string(),
            x => format!("static_cast<{ty}>({})", unbracketed(&self.scalar(x))),
        }
    }

    pub(super) fn u8(&self, x: &Scalar) -> String {
        self.as_type("uint8_t", x)
    }

    pub(super) fn u16(&self, x: &Scalar) -> String {
        self.as_type("uint16_t", x)
    }

    pub(super) fn u32(&self, x: &Scalar) -> String {
        self.as_type("uint32_t", x)
    }

    pub(super) fn i32(&self, x: &Scalar) -> String {
        self.as_type("int32_t", x)
    }

    /// A scalar as a value of an element's type.
    pub(super) fn value(&self, elem: Elem, x: &Scalar) -> String {
        let text = self.scalar(x);
        match elem {
            Elem::F32 => text,
            Elem::BF16 => format!("ToBfloat16({text})"),
            elem => format!("static_cast<{}>({})", elem.c_name(), unbracketed(&text)),
        }
    }

    /// The place that a view begins at.
    pub(super) fn view(&self, view: &View) -> String {
        let tensor = self.tensor(view.base, view.elem);
        match &view.offset {
            Scalar::Int(0) => tensor,
            offset => format!("{tensor}[{}]", unbracketed(&self.scalar(offset))),
        }
    }

    pub(super) fn vector(&self, v: &Vector) -> String {
        self.view(&v.view)
    }

    /// A mask's argument; bits need an array, which `lines` then declares.
    pub(super) fn mask(&self, mask: &Mask, lines: &mut Vec<String>) -> String {
        match mask {
            Mask::First(n) => self.as_type("uint64_t", n),
            Mask::Bits([low, high]) => {
                lines.push(format!("uint64_t mask_[2] = {{{low}ULL, {high}ULL}};"));
                "mask_".into()
            }
        }
    }
}

/// The text without the brackets that are all around it.
pub(super) fn unbracketed(text: &str) -> &str {
    let Some(inner) = text.strip_prefix('(').and_then(|t| t.strip_suffix(')')) else { return text };
    let mut depth = 0i32;
    let closes_early = inner.bytes().any(|b| {
        depth += i32::from(b == b'(') - i32::from(b == b')');
        depth < 0
    });
    if closes_early { text } else { inner }
}
