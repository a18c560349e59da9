//! Operators that compute each element from the elements at the same place. A new one is one file and one
//! line here.

use crate::attr::Attr;
use crate::diagnostic::Result;
use crate::dtype::{Class, DType};
use crate::expr::{Expr, float, input};
use crate::graph::{Builder, ValueId};
use crate::ops::{Derivative, GradCx, OpCx, OpDef};
use crate::tensor::TensorType;
use crate::{ensure, fail};

operators! {
    abs: ABS;
    acos: ACOS;
    acosh: ACOSH;
    add: ADD;
    addcmul: ADDCMUL, ADDCDIV;
    angle: ANGLE;
    asin: ASIN;
    asinh: ASINH;
    atan: ATAN;
    atan2: ATAN2;
    atanh: ATANH;
    bitwise: BITWISE_AND, BITWISE_OR, BITWISE_XOR, BITWISE_NOT;
    bitwise_shift: BITWISE_LEFT_SHIFT, BITWISE_RIGHT_SHIFT;
    ceil: CEIL;
    clamp: CLAMP, CLAMP_MIN, CLAMP_MAX, CLAMP_BACKWARD, CLAMP_TENSORS_BACKWARD;
    compare: EQ, NE, LT, LE, GT, GE;
    copy: COPY, FILL, ZERO;
    copysign: COPYSIGN, SIGNBIT;
    cos: COS;
    cosh: COSH;
    deg2rad: DEG2RAD, RAD2DEG;
    div: DIV;
    div_out: DIV_OUT;
    elu: ELU, SELU, CELU, ELU_BACKWARD;
    entr: ENTR;
    erf: ERF;
    erfc: ERFC;
    erfcx: ERFCX, ERFCX_SLOPE;
    erfinv: ERFINV;
    exp: EXP;
    exp2: EXP2;
    expm1: EXPM1;
    float_power: FLOAT_POWER;
    floor: FLOOR;
    floor_divide: FLOOR_DIVIDE;
    fmax: FMAX, FMIN;
    frac: FRAC;
    gcd: GCD, LCM;
    gelu: GELU, GELU_BACKWARD;
    glu: GLU;
    hardsigmoid: HARDSIGMOID, HARDSIGMOID_BACKWARD;
    hardswish: HARDSWISH, HARDSWISH_BACKWARD;
    hardtanh: HARDTANH, RELU6, HARDTANH_BACKWARD;
    heaviside: HEAVISIDE;
    hypot: HYPOT;
    i0: I0, I0E, I1, I1E;
    isclose: ISCLOSE;
    isnan: ISNAN, ISINF, ISFINITE, ISPOSINF, ISNEGINF;
    ldexp: LDEXP;
    leaky_relu: LEAKY_RELU, LEAKY_RELU_BACKWARD;
    lerp: LERP;
    lgamma: LGAMMA, DIGAMMA, MVLGAMMA;
    log: LOG;
    log10: LOG10;
    log1p: LOG1P;
    log2: LOG2;
    log_ndtr: LOG_NDTR, NDTRI;
    log_sigmoid: LOG_SIGMOID, LOG_SIGMOID_FORWARD;
    logaddexp: LOGADDEXP, LOGADDEXP2;
    logical: LOGICAL_AND, LOGICAL_OR, LOGICAL_XOR, LOGICAL_NOT;
    logit: LOGIT, LOGIT_BACKWARD;
    masked_fill: MASKED_FILL;
    maximum: MAXIMUM, MINIMUM, MAXIMUM_BACKWARD;
    mish: MISH, MISH_BACKWARD;
    mul: MUL;
    nan_to_num: NAN_TO_NUM;
    ndtr: NDTR;
    neg: NEG;
    polygamma: POLYGAMMA, ZETA;
    pow: POW, POW_SCALAR, POW_BACKWARD_SELF, POW_BACKWARD_EXPONENT;
    prelu: PRELU, PRELU_KERNEL, PRELU_KERNEL_BACKWARD;
    reciprocal: RECIPROCAL;
    relu: RELU, THRESHOLD_BACKWARD;
    remainder: REMAINDER, REMAINDER_SCALAR, FMOD;
    round: ROUND;
    rsqrt: RSQRT;
    rsub: RSUB;
    shrink: HARDSHRINK, SOFTSHRINK, SHRINK_BACKWARD;
    sigmoid: SIGMOID, SIGMOID_BACKWARD;
    sign: SIGN;
    silu: SILU, SILU_BACKWARD;
    sin: SIN;
    sinc: SINC;
    sinh: SINH;
    softplus: SOFTPLUS, SOFTPLUS_BACKWARD;
    sqrt: SQRT;
    square: SQUARE;
    sub: SUB;
    tan: TAN;
    tanh: TANH, TANH_BACKWARD;
    threshold: THRESHOLD;
    to: TO;
    trunc: TRUNC;
    type_as: TYPE_AS;
    where_self: WHERE;
    xlog1py: XLOG1PY;
    xlogy: XLOGY;
}

/// Type rule of a function that keeps the dtype and takes any.
pub fn same(cx: &OpCx) -> Result<Vec<TensorType>> {
    Ok(vec![cx.ty(0)?.clone()])
}

/// Type rule of a function that keeps the dtype and takes numbers, not truth values.
pub fn number_like(cx: &OpCx) -> Result<Vec<TensorType>> {
    let t = cx.ty(0)?;
    ensure!(t.dtype.class() != Class::Bool, DType, "it takes numbers, got {t}");
    Ok(vec![t.clone()])
}

/// Type rule of a function of one input that PyTorch defines for floats alone.
pub fn float_only(cx: &OpCx) -> Result<Vec<TensorType>> {
    let t = cx.ty(0)?;
    ensure!(t.dtype.is_float(), DType, "it takes floats, got {t}");
    Ok(vec![t.clone()])
}

/// Type rule of a function of one input that keeps a float's dtype and makes f32 of integers.
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

/// [`promoted`], for floats alone.
pub fn float_promoted(cx: &OpCx) -> Result<Vec<TensorType>> {
    ensure!(cx.present().all(|t| t.dtype.is_float()), DType, "needs floats, got {}", cx.list_types());
    promoted(cx)
}

/// Type rule of a function of two that gives floats: as [`arithmetic`], but integers become f32.
pub fn float_arithmetic(cx: &OpCx) -> Result<Vec<TensorType>> {
    Ok(vec![TensorType::new(floating(cx.result_type(&["other"])), cx.broadcast()?)])
}

/// `dtype` if it is a float, else the default f32.
pub fn floating(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::F32 }
}

/// Input `i` converted to the dtype the operator computes in, or the attribute `other` in place of a missing
/// input 1.
pub fn operand(cx: &OpCx, i: usize, dtype: DType) -> Result<Expr> {
    operand_or(cx, i, "other", dtype)
}

/// Input `i` converted to the dtype the operator computes in, or the number attribute `name` if it is
/// missing.
pub fn operand_or(cx: &OpCx, i: usize, name: &str, dtype: DType) -> Result<Expr> {
    match cx.opt(i) {
        Some(_) => tensor(cx, i, dtype),
        None => scalar(cx, name, dtype),
    }
}

/// Input `i` converted to the dtype the operator computes in.
pub fn tensor(cx: &OpCx, i: usize, dtype: DType) -> Result<Expr> {
    let own = cx.dtype(i)?;
    // Expressions count the inputs that are present.
    let x = input(cx.inputs[..i].iter().flatten().count());
    Ok(if own == dtype { x } else { x.cast(dtype) })
}

/// Input `i`, which fills elements of a tensor of `dtype`: a number without dimensions is held within the
/// finite numbers of a narrower type, as a mask's is.
pub fn filling(cx: &OpCx, i: usize, dtype: DType) -> Result<Expr> {
    let x = tensor(cx, i, cx.dtype(i)?)?;
    let narrows = cx.dtype(i)?.is_float() && cx.dtype(i)?.size() > dtype.size();
    Ok(if narrows { saturated(x, dtype).cast(dtype) } else { tensor(cx, i, dtype)? })
}

/// A float held within the finite numbers of a 16-bit `dtype`: what a model means by the most negative
/// number, which its export has of f32. The infinities and NaN stay.
pub fn saturated(x: Expr, dtype: DType) -> Expr {
    if !matches!(dtype, DType::F16 | DType::BF16) {
        return x;
    }
    x.clone().is_inf().select(x.clone(), clamped(x, dtype))
}

fn clamped(x: Expr, dtype: DType) -> Expr {
    let most = dtype.max_value();
    x.max(float(-most)).min(float(most))
}

/// True for a finite number that overflows a 16-bit `dtype`.
pub fn overflows(x: f64, dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16) && x.is_finite() && dtype.round(x).is_infinite()
}

/// True for a number that leaves nothing of what it is applied to: see [`with_number`].
fn hides(c: f64, dtype: DType) -> bool {
    // The very largest f32 numbers alone overflow bf16.
    overflows(c, dtype) && (dtype == DType::BF16 || c.abs() * f64::exp2(-14.0) >= dtype.max_value() / 2.0)
}

/// The number attribute `name` as an element of a tensor of `dtype`: a finite one that overflows it is its
/// largest.
pub fn element(cx: &OpCx, name: &str, dtype: DType) -> Result<Expr> {
    Ok(held(scalar(cx, name, dtype)?, dtype))
}

/// A literal that is put into a tensor of `dtype`: a finite one that overflows it is its largest.
pub fn held(literal: Expr, dtype: DType) -> Expr {
    match literal {
        Expr::Float(x) if overflows(x, dtype) => Expr::Float(dtype.max_value().copysign(x)),
        other => other,
    }
}

/// The result `y` of arithmetic of `x` and the number attribute `other`. Where that number hides what it is
/// applied to, as the most negative f32 does in `(1 - mask) * min`, the result is held within the finite
/// numbers, so that what it masks is finite, as it is with the most negative number of `dtype` itself. Such a
/// number overflows `dtype`, and so would, but for a factor of two, its product with the smallest normal
/// number. Others are left to IEEE's rules.
pub fn with_number(cx: &OpCx, dtype: DType, x: Expr, y: Expr) -> Result<Expr> {
    let number = if cx.opt(1).is_some() { None } else { cx.opt_float("other")? };
    Ok(match number {
        Some(c) if hides(c, dtype) => x.is_inf().select(y.clone(), clamped(y, dtype)),
        _ => y,
    })
}

/// Input 0 as a float: integers are converted as PyTorch's float functions do.
pub fn float_input(cx: &OpCx) -> Result<Expr> {
    tensor(cx, 0, floating(cx.dtype(0)?))
}

/// The number attribute `name` as a constant of `dtype`'s class, if it is given.
pub fn opt_scalar(cx: &OpCx, name: &str, dtype: DType) -> Result<Option<Expr>> {
    Ok(match (cx.attrs.get(name), dtype.class()) {
        // Not through f64, which cannot represent every i64.
        (Some(Attr::Int(i)), Class::Int) => Some(Expr::Int(*i)),
        _ => cx.opt_float(name)?.map(|x| number(x, dtype)),
    })
}

/// The number attribute `name` as a constant of `dtype`'s class.
pub fn scalar(cx: &OpCx, name: &str, dtype: DType) -> Result<Expr> {
    opt_scalar(cx, name, dtype)?.ok_or_else(|| fail!(Attribute, "attribute `{name}` is missing"))
}

/// A constant of `dtype`'s class. Floats are rounded where the dtype is narrower than the computation only at
/// the end, as PyTorch treats plain numbers.
pub fn number(x: f64, dtype: DType) -> Expr {
    match dtype.class() {
        Class::Float => Expr::Float(x),
        Class::Int => Expr::Int(x as i64),
        Class::Bool => Expr::Bool(x != 0.0),
    }
}

/// Derivative rule of a function of one input: `f(builder, grad, x, y)` builds the gradient.
pub fn chain(
    cx: &mut GradCx,
    f: impl FnOnce(&mut Builder, ValueId, ValueId, ValueId) -> Result<ValueId>,
) -> Result<()> {
    let (g, x, y) = (cx.grad(0)?, cx.x(0)?, cx.y(0));
    let dx = f(cx, g, x, y)?;
    cx.set(0, dx)
}

/// Derivative rule: `backward(grad, self)` with the node's attributes.
pub fn through_input(cx: &mut GradCx, backward: &'static OpDef) -> Result<()> {
    let attrs = cx.attrs().clone();
    chain(cx, |b, g, x, _| b.one(backward, &[g, x], attrs))
}

/// Derivative rule: `backward(grad, output)` with the node's attributes.
pub fn through_output(cx: &mut GradCx, backward: &'static OpDef) -> Result<()> {
    let attrs = cx.attrs().clone();
    chain(cx, |b, g, _, y| b.one(backward, &[g, y], attrs))
}

/// The derivative of operators that only gradients use.
pub const NO_SECOND: Derivative = Derivative::NotDifferentiable("second derivatives are not taken");

/// Derivative rule of functions that move in steps: zeros, also at the jumps, as PyTorch. They are stated
/// rather than left out, because an optimizer still decays and moves a parameter whose gradient is zero.
pub const STEPS: Derivative = Derivative::Rule(zero_gradients);

/// The rule of [`STEPS`].
pub fn zero_gradients(cx: &mut GradCx) -> Result<()> {
    for i in (0..cx.arity()).filter(|&i| cx.needs(i)).collect::<Vec<_>>() {
        let ty = cx.ty(cx.x(i)?).clone();
        let zeros = cx.full(&ty, 0.0)?;
        cx.set(i, zeros)?;
    }
    Ok(())
}

/// The derivative of comparisons and bit operations.
pub const DISCRETE: Derivative = Derivative::NotDifferentiable("its result is not a real number");
