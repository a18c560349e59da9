//! Tensors of random numbers.

use super::draw;
use super::transform::{
    UNIFORM_BELOW, UNIFORM_BETWEEN, UNIFORM_TO_EXPONENTIAL, UNIFORM_TO_INTEGER, UNIFORM_TO_NORMAL,
};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// Uniform numbers in `[0, 1)`.
pub static RAND: OpDef = OpDef {
    name: "rand",
    schemas: &[
        "rand(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        "rand.generator(SymInt[] size, *, Generator? generator, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        "rand_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
    ],
    infer: floats,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, _| uniform(b, cx, 0.0, 1.0)),
    cases: sizes,
};

/// Uniform numbers in `[from, to)`, of the input's type.
pub static UNIFORM: OpDef = OpDef {
    name: "uniform",
    schemas: &["uniform(Tensor self, float from=0., float to=1., *, Generator? generator=None) -> Tensor"],
    infer: floats,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, _| {
        uniform(b, cx, cx.opt_float("from")?.unwrap_or(0.0), cx.opt_float("to")?.unwrap_or(1.0))
    }),
    cases: || vec![Case::new("between").f(&[2, 3]).attr("from", -1.0).attr("to", 2.0)],
};

/// Standard normal numbers.
pub static RANDN: OpDef = OpDef {
    name: "randn",
    schemas: &[
        "randn(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        "randn.generator(SymInt[] size, *, Generator? generator, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        "randn_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
    ],
    infer: floats,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, _| {
        let ty = floats(cx)?.remove(0);
        Ok(vec![normal(b, &ty)?])
    }),
    cases: sizes,
};

/// Normal numbers of `mean` and `std`: numbers, or tensors of which the first given is first.
pub static NORMAL: OpDef = OpDef {
    name: "normal",
    schemas: &[
        "normal.float_float(float mean, float std, SymInt[] size, *, Generator? generator=None, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        "normal.Tensor_float(Tensor mean, float std=1., *, Generator? generator=None) -> Tensor",
        "normal.float_Tensor(float mean, Tensor std, *, Generator? generator=None) -> Tensor",
        "normal.Tensor_Tensor(Tensor mean, Tensor std, *, Generator? generator=None) -> Tensor",
    ],
    infer: |cx| {
        if cx.opt(0).is_none() {
            return floats(cx);
        }
        let dtype = cx.result_type(&[]);
        ensure!(dtype.is_float(), DType, "normal numbers are floats, not {dtype}");
        Ok(vec![TensorType::new(dtype, cx.broadcast()?)])
    },
    derivative: Derivative::NotDifferentiable("a drawn number does not depend on its distribution smoothly"),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let ty = (NORMAL.infer)(cx)?.remove(0);
        let mut given = inputs.iter().copied().flatten();
        let mean = if cx.attrs.get("mean").is_some() { None } else { given.next() };
        let std = if cx.attrs.get("std").is_some() { None } else { given.next() };
        let drawn = normal(b, &ty)?;
        let drawn = match std {
            Some(s) => b.mul(drawn, s)?,
            None => b.scale(drawn, cx.opt_float("std")?.unwrap_or(1.0))?,
        };
        let shifted = match mean {
            Some(m) => b.add(drawn, m)?,
            None => shift(b, drawn, cx.opt_float("mean")?.unwrap_or(0.0))?,
        };
        Ok(vec![b.cast(shifted, ty.dtype)?])
    }),
    cases: || {
        vec![
            Case::new("numbers")
                .attr("mean", 2.0)
                .attr("std", 0.5)
                .attr("size", [5])
                .attr("dtype", DType::F64),
            Case::new("mean").f(&[2, 3]).attr("std", 2.0),
            Case::new("deviation").range(&[3], 0.5, 1.0).attr("mean", 1.0),
            Case::new("both").f(&[2, 3]).range(&[3], 0.5, 1.0),
        ]
    },
};

/// Normal numbers of the input's type, whose content is not read.
pub static NORMAL_FUNCTIONAL: OpDef = OpDef {
    name: "normal_functional",
    schemas: &[
        "normal_functional(Tensor self, float mean=0., float std=1., *, Generator? generator=None) -> Tensor",
        // The operator whose in-place form `normal_` is.
        "normal(Tensor self, float mean=0., float std=1., *, Generator? generator=None) -> Tensor",
    ],
    infer: floats,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, _| {
        let ty = floats(cx)?.remove(0);
        let drawn = normal(b, &ty)?;
        let drawn = b.scale(drawn, cx.opt_float("std")?.unwrap_or(1.0))?;
        Ok(vec![shift(b, drawn, cx.opt_float("mean")?.unwrap_or(0.0))?])
    }),
    cases: || vec![Case::new("shifted").f(&[2, 3]).attr("mean", -1.0).attr("std", 2.0)],
};

/// Integers from `low` (0 unless given) up to below `high`.
pub static RANDINT: OpDef = OpDef {
    name: "randint",
    schemas: &[
        "randint(SymInt high, SymInt[] size, *, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        "randint.low(SymInt low, SymInt high, SymInt[] size, *, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        "randint_like(Tensor self, SymInt high, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
        "randint_like.low_dtype(Tensor self, SymInt low, SymInt high, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
    ],
    infer: |cx| Ok(vec![target(cx, DType::I64)?]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, _| {
        let ty = target(cx, DType::I64)?;
        let (u, v) = (draw(b, &ty.shape, DType::F64)?, draw(b, &ty.shape, DType::F64)?);
        let (low, high) = (cx.opt_int("low")?.unwrap_or(0), cx.int("high")?);
        let attrs = Attrs::new().with("low", low).with("high", high).with("dtype", ty.dtype);
        Ok(vec![b.one(&UNIFORM_TO_INTEGER, &[u, v], attrs)?])
    }),
    cases: || {
        vec![
            Case::new("below").attr("high", 10).attr("size", [2, 3]).attr("dtype", DType::I64),
            Case::new("like").f(&[4]).attr("low", -5).attr("high", 5),
        ]
    },
};

/// 1 with the probability the input gives (or the number `p`), else 0; of the input's type.
pub static BERNOULLI: OpDef = OpDef {
    name: "bernoulli",
    schemas: &[
        "bernoulli(Tensor self, *, Generator? generator=None) -> Tensor",
        "bernoulli.p(Tensor self, float p, *, Generator? generator=None) -> Tensor",
        "bernoulli.Tensor(Tensor self, Tensor p, *, Generator? generator=None) -> Tensor",
        // The operator whose in-place form `bernoulli_.float` is.
        "bernoulli.float(Tensor self, float p=0.5, *, Generator? generator=None) -> Tensor",
    ],
    infer: |cx| {
        if let Some(p) = cx.opt(1) {
            let fits =
                cx.shape(0)?.broadcast(&p.shape).is_some_and(|s| s == cx.ty(0).expect("checked").shape);
            ensure!(fits, Shape, "probabilities {p} do not broadcast to {}", cx.ty(0)?);
        }
        let p = cx.opt(1).or(if cx.attrs.get("p").is_none() { cx.opt(0) } else { None });
        ensure!(
            p.is_none_or(|p| p.dtype.is_float()),
            DType,
            "probabilities are floats, got {}",
            cx.list_types()
        );
        Ok(vec![cx.ty(0)?.clone()])
    },
    derivative: Derivative::NotDifferentiable("a drawn number does not depend on its distribution smoothly"),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let x = cx.ty(0)?;
        let attrs = Attrs::new().with("dtype", x.dtype);
        let (p, attrs) = match (inputs.get(1).copied().flatten(), cx.opt_float("p")?) {
            (Some(p), _) => (Some(p), attrs),
            (None, Some(p)) => (None, attrs.with("p", p)),
            (None, None) => (inputs[0], attrs),
        };
        let u = draw(b, &x.shape, if x.dtype == DType::F64 { DType::F64 } else { DType::F32 })?;
        b.apply(&UNIFORM_BELOW, &[Some(u), p], attrs)
    }),
    cases: || {
        vec![
            Case::new("own").range(&[2, 3], 0.0, 1.0),
            Case::new("number").f(&[4]).attr("p", 0.25),
            Case::new("tensor").f(&[2, 3]).range(&[3], 0.0, 1.0),
        ]
    },
};

/// Exponentially distributed numbers of rate `lambd`, of the input's type.
pub static EXPONENTIAL: OpDef = OpDef {
    name: "exponential",
    schemas: &["exponential(Tensor self, float lambd=1., *, Generator? generator=None) -> Tensor"],
    infer: floats,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, _| {
        let ty = floats(cx)?.remove(0);
        let rate = cx.opt_float("lambd")?.unwrap_or(1.0);
        ensure!(rate > 0.0, Attribute, "`lambd` must be positive, got {rate}");
        let u = draw(b, &ty.shape, DType::F32)?;
        let attrs = Attrs::new().with("lambd", rate).with("dtype", ty.dtype);
        Ok(vec![b.one(&UNIFORM_TO_EXPONENTIAL, &[u], attrs)?])
    }),
    cases: || vec![Case::new("rate").f(&[2, 3]).attr("lambd", 3.0)],
};

fn sizes() -> Vec<Case> {
    vec![
        Case::new("size").attr("size", [2, 3]).attr("dtype", DType::F64),
        Case::new("like").f(&[5]),
        Case::new("narrow").f(&[5]).attr("dtype", DType::BF16),
    ]
}

/// `size`, or the shape of the input; `dtype`, or that of the input, or `default`.
fn target(cx: &OpCx, default: DType) -> Result<TensorType> {
    let dtype = cx.opt_dtype("dtype")?.or(cx.opt(0).map(|t| t.dtype)).unwrap_or(default);
    let shape = if cx.attrs.get("size").is_some() { cx.sizes("size")? } else { cx.shape(0)?.clone() };
    Ok(TensorType::new(dtype, shape))
}

fn floats(cx: &OpCx) -> Result<Vec<TensorType>> {
    let ty = target(cx, DType::F32)?;
    ensure!(ty.dtype.is_float(), DType, "these random numbers are floats, not {ty}");
    Ok(vec![ty])
}

fn uniform(b: &mut Builder, cx: &OpCx, from: f64, to: f64) -> Result<Vec<ValueId>> {
    ensure!(from <= to, Attribute, "`from` {from} must not be above `to` {to}");
    let ty = floats(cx)?.remove(0);
    let wide = if ty.dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let u = draw(b, &ty.shape, wide)?;
    if ty.dtype == wide && (from, to) == (0.0, 1.0) {
        return Ok(vec![u]);
    }
    let attrs = Attrs::new().with("from", from).with("to", to).with("dtype", ty.dtype);
    Ok(vec![b.one(&UNIFORM_BETWEEN, &[u], attrs)?])
}

fn normal(b: &mut Builder, ty: &TensorType) -> Result<ValueId> {
    let wide = if ty.dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let (u, v) = (draw(b, &ty.shape, wide)?, draw(b, &ty.shape, wide)?);
    b.one(&UNIFORM_TO_NORMAL, &[u, v], Attrs::new().with("dtype", ty.dtype))
}

fn shift(b: &mut Builder, x: ValueId, by: f64) -> Result<ValueId> {
    if by == 0.0 {
        return Ok(x);
    }
    b.one(&crate::ops::pointwise::add::ADD, &[x], Attrs::new().with("other", by))
}
