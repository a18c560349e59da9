//! Covariances and correlations of variables.

use super::mean::MEAN;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::Class;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::{clamp::CLAMP, compare::GT, sqrt::SQRT};
use crate::ops::view::diagonal::DIAGONAL;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// The covariances `[V, V]` of variables, the rows of `[V, N]` with an observation a column; of one row `[N]`
/// its variance. Divided by `N − correction`. `fweights [N]` repeat observations, `aweights [N]` weigh them.
pub static COV: OpDef = OpDef {
    name: "cov",
    schemas: &[
        "cov(Tensor self, *, int correction=1, Tensor? fweights=None, Tensor? aweights=None) -> Tensor",
    ],
    infer: |cx| {
        let t = types(cx)?;
        cx.opt_int("correction")?;
        for (i, class) in [(1, Class::Int), (2, Class::Float)] {
            let Some(w) = cx.opt(i) else { continue };
            let fits = w.shape[..] == [cx.shape(0)?.last().copied().unwrap_or(1)] && w.dtype.class() == class;
            ensure!(fits, Shape, "weights {w} for observations {}", cx.ty(0)?);
        }
        Ok(vec![t])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let (x, shape, dtype) = (required(inputs, 0)?, cx.shape(0)?, cx.dtype(0)?);
        let n = shape.last().copied().unwrap_or(1);
        let rows = if shape.rank() == 2 { shape[0] } else { 1 };
        let x = b.reshape(x, &[rows, n])?;
        let correction = cx.opt_int("correction")?.unwrap_or(1) as f64;
        let [repeated, weighed] = [1, 2].map(|i| inputs.get(i).copied().flatten());
        let weighed = weighed.map(|w| b.cast(w, dtype)).transpose()?;
        let weight = match (repeated, weighed) {
            (Some(f), Some(a)) => {
                let f = b.cast(f, dtype)?;
                Some(b.mul(f, a)?)
            }
            (Some(f), None) => Some(b.cast(f, dtype)?),
            (None, a) => a,
        };
        let y = match weight {
            None => {
                let mean = b.one(&MEAN, &[x], Attrs::new().with("dim", [1]).with("keepdim", true))?;
                let apart = b.sub(x, mean)?;
                let t = b.transpose_last(apart)?;
                let y = b.matmul(apart, t)?;
                b.scale(y, 1.0 / (n as f64 - correction).max(0.0))?
            }
            Some(weight) => {
                let total = b.sum(weight, &[0], true)?;
                let sum = b.mul(x, weight)?;
                let sum = b.sum(sum, &[1], true)?;
                let mean = b.div(sum, total)?;
                let apart = b.sub(x, mean)?;
                let weighted = b.mul(apart, weight)?;
                let t = b.transpose_last(weighted)?;
                let y = b.matmul(apart, t)?;
                let off = match weighed {
                    Some(a) => {
                        let squares = b.mul(weight, a)?;
                        let squares = b.sum(squares, &[0], true)?;
                        let share = b.div(squares, total)?;
                        let share = b.scale(share, -correction)?;
                        b.add(total, share)?
                    }
                    None => b.shift(total, -correction)?,
                };
                let some = b.one(&GT, &[off], Attrs::new().with("other", 0.0))?;
                let divisor = b.keep_where(some, off)?;
                b.div(y, divisor)?
            }
        };
        Ok(vec![b.reshape(y, &types(cx)?.shape)?])
    }),
    cases: || {
        let counts = crate::ops::Sample::Values(vec![1.0, 3.0, 2.0, 1.0]);
        let repeated = Case::new("repeated").f(&[2, 4]).arg(crate::DType::I64, &[4], counts);
        vec![
            Case::new("variables").f(&[3, 4]).attr("correction", 1),
            Case::new("one variable").f(&[5]).attr("correction", 0),
            repeated.none().attr("correction", 1),
            Case::new("weighed").f(&[2, 4]).none().range(&[4], 0.5, 2.0).attr("correction", 1),
        ]
    },
};

/// The correlations of the variables of [`COV`]: covariances divided by both standard deviations, held in −1
/// to 1.
pub static CORRCOEF: OpDef = OpDef {
    name: "corrcoef",
    schemas: &["corrcoef(Tensor self) -> Tensor"],
    infer: |cx| Ok(vec![types(cx)?]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let y = b.one(&COV, &[required(inputs, 0)?], Attrs::new().with("correction", 1))?;
        if types(cx)?.shape.rank() == 0 {
            return Ok(vec![b.div(y, y)?]);
        }
        let squares =
            b.one(&DIAGONAL, &[y], Attrs::new().with("offset", 0).with("dim1", 0).with("dim2", 1))?;
        let deviation = b.call(&SQRT, &[squares])?;
        let (down, across) = (b.unsqueeze(deviation, 1)?, b.unsqueeze(deviation, 0)?);
        let y = b.div(y, down)?;
        let y = b.div(y, across)?;
        Ok(vec![b.one(&CLAMP, &[y], Attrs::new().with("min", -1.0).with("max", 1.0))?])
    }),
    cases: || vec![Case::new("variables").f(&[3, 4]), Case::new("one variable").f(&[4])],
};

fn types(cx: &OpCx) -> Result<TensorType> {
    let x = cx.ty(0)?;
    ensure!(x.dtype.is_float(), DType, "covariances are of floats, got {x}");
    ensure!(x.shape.rank() <= 2, Shape, "variables are rows of a matrix, got {x}");
    let shape = if x.shape.rank() == 2 { Shape::from([x.shape[0]; 2]) } else { Shape::default() };
    ensure!(shape.checked_numel().is_some(), Size, "the covariances of {x} are more than memory can hold");
    Ok(TensorType::new(x.dtype, shape))
}
