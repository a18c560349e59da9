//! Draws of classes by their weights.

use super::distributions::{EXPONENTIAL, RAND};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, ValueId};
use crate::ops::index::sort::ARGSORT;
use crate::ops::index::topk::TOPK;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// `num_samples` indices of classes for each row of weights `[N, C]` or `[C]`, i64. Without replacement they
/// are those of the largest weights over exponential numbers (Efraimidis and Spirakis 2006); with it, each is
/// the largest for numbers of its own. A class of weight 0 is drawn when no other is left.
pub static MULTINOMIAL: OpDef = OpDef {
    name: "multinomial",
    schemas: &[
        "multinomial(Tensor self, SymInt num_samples, bool replacement=False, *, Generator? generator=None) -> Tensor",
    ],
    infer: |cx| Ok(vec![TensorType::new(DType::I64, sizes(cx)?.2)]),
    derivative: Derivative::NotDifferentiable("an index has no derivative"),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let ([rows, classes], count, shape) = sizes(cx)?;
        let x = b.cast(required(inputs, 0)?, DType::F32)?;
        let repeats = cx.flag("replacement")?;
        let (each, chosen) = if repeats { (count, 1) } else { (1, count) };
        let x = b.reshape(x, &[rows, 1, classes])?;
        let ty = TensorType::new(DType::F32, [rows, each, classes]);
        let like = b.full(&ty, 0.0)?;
        let drawn = b.one(&EXPONENTIAL, &[like], Attrs::new().with("lambd", 1.0))?;
        let keys = b.div(x, drawn)?;
        let attrs =
            Attrs::new().with("k", chosen as i64).with("dim", 2).with("largest", true).with("sorted", true);
        let index = b.apply(&TOPK, &[Some(keys)], attrs)?[1];
        Ok(vec![b.reshape(index, &shape)?])
    }),
    cases: || {
        let weights = |name, shape: &[usize]| Case::new(name).range(shape, 0.1, 1.0);
        vec![
            weights("one of each row", &[3, 4]).attr("num_samples", 1).attr("replacement", false),
            weights("several", &[5]).attr("num_samples", 3).attr("replacement", false),
            weights("with replacement", &[2, 3]).attr("num_samples", 4).attr("replacement", true),
        ]
    },
};

/// The numbers below `n` in random order.
pub static RANDPERM: OpDef = OpDef {
    name: "randperm",
    schemas: &[
        "randperm(SymInt n, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        "randperm.generator(SymInt n, *, Generator? generator, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ],
    infer: |cx| {
        let shape = Shape::from([cx.size("n")?]);
        ensure!(shape.checked_numel().is_some(), Size, "{shape} is larger than memory can be");
        Ok(vec![TensorType::new(cx.opt_dtype("dtype")?.unwrap_or(DType::I64), shape)])
    },
    derivative: Derivative::NotDifferentiable("it has no tensor input"),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, _: &[Option<ValueId>]| {
        let attrs = Attrs::new().with("size", [cx.int("n")?]).with("dtype", DType::F64);
        let keys = b.one(&RAND, &[], attrs)?;
        let order = b.one(&ARGSORT, &[keys], Attrs::new().with("dim", 0).with("descending", false))?;
        Ok(vec![b.cast(order, cx.opt_dtype("dtype")?.unwrap_or(DType::I64))?])
    }),
    cases: || vec![Case::new("five").attr("n", 5), Case::new("none").attr("n", 0).attr("dtype", DType::I32)],
};

/// Rows and classes, the number of draws, and the shape of the result.
fn sizes(cx: &OpCx) -> Result<([usize; 2], usize, Shape)> {
    let (x, count) = (cx.ty(0)?, cx.size("num_samples")?);
    ensure!(x.dtype.is_float(), DType, "weights are floats, got {x}");
    let (rows, classes, shape) = match x.shape[..] {
        [c] => (1, c, Shape::from([count])),
        [n, c] => (n, c, Shape::from([n, count])),
        _ => return Err(fail!(Shape, "weights are [N, C] or [C], got {x}")),
    };
    let fits = count > 0 && classes > 0 && (cx.flag("replacement")? || count <= classes);
    ensure!(fits, Attribute, "`num_samples` is {count} of {x}");
    let most = Shape::from([rows, count, classes]);
    ensure!(most.checked_numel().is_some(), Size, "{most} is larger than memory can be");
    Ok(([rows, classes], count, shape))
}
