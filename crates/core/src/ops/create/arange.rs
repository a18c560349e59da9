//! Numbers at equal steps.

use crate::attr::Attr;
use crate::diagnostic::Result;
use crate::dtype::{Class, DType};
use crate::expr::{Expr, float};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// `start, start + step, ...` below `end` (above it for a negative step); i64 if all three are integers, else
/// f32, unless a dtype is given.
///
/// Length and numbers are PyTorch's. An i64 result is computed in i64 from the arguments truncated to
/// integers. For any other dtype the length comes from the arguments in f64, and floats are
/// `start + i · step` in f64, rounded once.
pub static ARANGE: OpDef = OpDef {
    name: "arange",
    schemas: &[
        "arange(Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        "arange.start(Scalar start, Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        "arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ],
    infer: |cx| Ok(vec![TensorType::new(dtype(cx)?, [length(cx)?])]),
    derivative: Derivative::NotDifferentiable("it has no tensor input"),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| {
        let i = Expr::Coord(0);
        Ok(vec![match dtype(cx)?.class() {
            Class::Float => {
                let (start, step) = (number(cx, "start", 0)?.as_f64(), number(cx, "step", 1)?.as_f64());
                (i.cast(DType::F64) * step + float(start)).cast(dtype(cx)?)
            }
            _ => {
                let (start, step) = (number(cx, "start", 0)?.as_i64(), number(cx, "step", 1)?.as_i64());
                Expr::Int(start) + i * Expr::Int(step)
            }
        }])
    }),
    cases: || {
        vec![
            Case::new("end").attr("end", 5),
            Case::new("start").attr("start", -2).attr("end", 2.5),
            Case::new("down").attr("start", 7).attr("end", 0).attr("step", -3),
            Case::new("fractions")
                .attr("start", 0)
                .attr("end", 1)
                .attr("step", 0.1)
                .attr("dtype", DType::F64),
            Case::new("nothing").attr("end", 0),
        ]
    },
};

#[derive(Clone, Copy)]
enum Number {
    Int(i64),
    Float(f64),
}

impl Number {
    fn as_f64(self) -> f64 {
        match self {
            Number::Int(i) => i as f64,
            Number::Float(x) => x,
        }
    }

    /// Truncated towards zero, as PyTorch's conversion of a number to an integer.
    fn as_i64(self) -> i64 {
        match self {
            Number::Int(i) => i,
            Number::Float(x) => x as i64,
        }
    }
}

fn number(cx: &OpCx, name: &str, default: i64) -> Result<Number> {
    Ok(match cx.attrs.get(name) {
        None => Number::Int(default),
        Some(Attr::Int(i)) => Number::Int(*i),
        Some(Attr::Bool(b)) => Number::Int(*b as i64),
        Some(_) => Number::Float(cx.float(name)?),
    })
}

fn dtype(cx: &OpCx) -> Result<DType> {
    if let Some(d) = cx.opt_dtype("dtype")? {
        ensure!(d != DType::Bool, DType, "a range of truth values");
        return Ok(d);
    }
    let float = ["start", "end", "step"].iter().any(|n| matches!(cx.attrs.get(n), Some(Attr::Float(_))));
    Ok(if float { DType::F32 } else { DType::I64 })
}

fn length(cx: &OpCx) -> Result<usize> {
    ensure!(cx.attrs.get("end").is_some(), Attribute, "attribute `end` is missing");
    let (start, end, step) = (number(cx, "start", 0)?, number(cx, "end", 0)?, number(cx, "step", 1)?);
    let count = if dtype(cx)? == DType::I64 {
        let (start, end, step) = (start.as_i64() as i128, end.as_i64() as i128, step.as_i64() as i128);
        ensure!(step != 0, Attribute, "`step` must not be 0");
        ((end - start + step - step.signum()) / step) as f64
    } else {
        let (start, end, step) = (start.as_f64(), end.as_f64(), step.as_f64());
        ensure!(step != 0.0, Attribute, "`step` must not be 0");
        ((end - start) / step).ceil()
    };
    ensure!(count.is_finite() && count >= 0.0, Attribute, "no steps lead from `start` to `end`");
    if count >= isize::MAX as f64 {
        return Err(fail!(Size, "a range of {count} numbers"));
    }
    Ok(count as usize)
}
