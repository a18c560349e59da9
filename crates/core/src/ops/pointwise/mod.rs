//! Operators that compute each element from the elements at the same place. A new one is one file and one line here.

use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::expr::Expr;
use crate::ops::OpCx;
use crate::tensor::TensorType;

operators! {
    add: ADD;
    gelu: GELU, GELU_BACKWARD;
    mul: MUL;
    to: TO;
}

/// Type rule of a float function of one input: ints become f32, floats stay.
pub fn float_like(cx: &OpCx) -> Result<Vec<TensorType>> {
    let t = cx.ty(0)?;
    let dtype = if t.dtype.is_float() { t.dtype } else { DType::F32 };
    Ok(vec![TensorType::new(dtype, t.shape.clone())])
}

/// Type rule of arithmetic: all inputs broadcast, promoted together with the scalar attribute `other`.
pub fn arithmetic(cx: &OpCx) -> Result<Vec<TensorType>> {
    Ok(vec![TensorType::new(cx.result_type(&["other"]), cx.broadcast()?)])
}

/// Type rule of a gradient formula: the inputs broadcast, in their promoted dtype.
pub fn promoted(cx: &OpCx) -> Result<Vec<TensorType>> {
    Ok(vec![TensorType::new(cx.result_type(&[]), cx.broadcast()?)])
}

/// Input `i` converted to the dtype the operator computes in, or the attribute `other` in place of a missing input 1.
pub fn operand(cx: &OpCx, i: usize, dtype: DType) -> Result<Expr> {
    Ok(match cx.opt(i) {
        Some(t) if t.dtype == dtype => Expr::Input(i),
        Some(_) => Expr::Input(i).cast(dtype),
        None => number(cx.float("other")?, dtype),
    })
}

/// A constant of `dtype`'s class. Floats are rounded where the dtype is narrower than the computation only at the end,
/// as PyTorch treats plain numbers.
pub fn number(x: f64, dtype: DType) -> Expr {
    match dtype.class() {
        crate::dtype::Class::Float => Expr::Float(x),
        crate::dtype::Class::Int => Expr::Int(x as i64),
        crate::dtype::Class::Bool => Expr::Bool(x != 0.0),
    }
}
