//! Writing through tensors as indices.

use super::index_tensor::{INDEX, Indexing, wrap_of};
use super::{given, take};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::where_self::WHERE;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::tensor::{Data, Tensor, TensorType};
use crate::{ensure, fail};

/// `self` with `self[indices]` replaced by `values`, or increased if `accumulate`; see [`INDEX`] for the
/// indices. A mask may be alone among the indices if `values` is one number.
pub static INDEX_PUT: OpDef = OpDef {
    name: "index_put",
    schemas: &[
        "index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor",
        "_unsafe_index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor",
    ],
    infer: |cx| match mask(cx) {
        None => infer(cx),
        Some(at) => {
            let (x, m, values) = (cx.ty(0)?, cx.ty(at)?, cx.ty(cx.inputs.len() - 1)?);
            let fits = x.shape.get(at - 1..at - 1 + m.shape.rank()).is_some_and(|dims| *dims == m.shape[..]);
            ensure!(fits, Shape, "the mask {m} does not fit dimension {} of {x}", at - 1);
            ensure!(values.dtype == x.dtype, DType, "{values} cannot be written into {x}");
            Ok(vec![x.clone()])
        }
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Widest,
    cost: Cost::PerOutput(1),
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let Some(at) = mask(cx) else {
            return b.apply(&INDEX_PUT_IMPL, inputs, Attrs::new().with("accumulate", cx.flag("accumulate")?));
        };
        let present = |i: usize| inputs[i].ok_or_else(|| fail!(Attribute, "input {i} is missing"));
        let (x, mask, value) = (present(0)?, present(at)?, present(inputs.len() - 1)?);
        let mut shape = vec![1; b.ty(x).shape.rank()];
        shape[at - 1..at - 1 + cx.shape(at)?.rank()].copy_from_slice(cx.shape(at)?);
        let mask = b.reshape(mask, &shape)?;
        let mut value = b.reshape(value, &[])?;
        if cx.flag("accumulate")? {
            value = b.add(x, value)?;
        }
        Ok(vec![b.one(&WHERE, &[mask, value, x], Attrs::new())?])
    }),
    cases: || {
        let mask =
            |name| Case::new(name).f(&[2, 3, 2]).none().mask(&[3, 2]).f(&[1]).attr("accumulate", false);
        [vec![mask("mask"), mask("added by mask").attr("accumulate", true)], cases()].concat()
    },
};

/// The input that is the one index given, if that is a mask and one number is to be written.
fn mask(cx: &OpCx) -> Option<usize> {
    let end = cx.inputs.len().checked_sub(1)?;
    let mut given = (1..end).filter(|&i| cx.opt(i).is_some());
    let (at, more) = (given.next()?, given.next());
    let is_mask = more.is_none() && cx.opt(at)?.dtype == DType::Bool && cx.opt(end)?.shape.numel() == 1;
    is_mask.then_some(at)
}

/// [`INDEX_PUT`] by integers. Of values for one place the last in row-major order wins; sums are in f32 or
/// wider, in row-major order.
pub static INDEX_PUT_IMPL: OpDef = OpDef {
    name: "_index_put_impl",
    schemas: &[
        "headwater::_index_put_impl(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False, bool wrap=True) -> Tensor",
    ],
    infer,
    derivative: Derivative::Rule(gradient),
    precision: Precision::Widest,
    cost: Cost::PerOutput(1),
    body: Body::Kernel(reference),
    cases,
};

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    let end = cx.inputs.len().saturating_sub(1);
    let (x, out, values) = (cx.ty(0)?, Indexing::of(cx, end)?.out, cx.ty(end)?);
    ensure!(values.dtype == x.dtype, DType, "{values} cannot be written into {x}");
    let fits = out.broadcast(&values.shape).is_some_and(|s| s == out);
    ensure!(fits, Shape, "values {values} do not fit the indexed {out}");
    Ok(vec![x.clone()])
}

fn reference(cx: &OpCx, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let end = inputs.len() - 1;
    let indexing = Indexing::of(cx, end)?;
    let at = indexing.places(cx, inputs)?;
    let values = given(inputs, end)?;
    let from: Vec<usize> = values.shape().broadcast_offsets(&indexing.out).collect();
    let accumulate = cx.flag("accumulate")?;
    Ok(vec![match (&given(inputs, 0)?.data, take(values, &from)) {
        (Data::Float(x), Data::Float(v)) => {
            let v = put(x, &at, &v, |old, new| if accumulate { old + new } else { new });
            Tensor::float(outs[0].dtype, outs[0].shape.clone(), v)
        }
        (Data::Int(x), Data::Int(v)) => {
            let v = put(x, &at, &v, |old, new| if accumulate { old.wrapping_add(new) } else { new });
            Tensor::int(outs[0].dtype, outs[0].shape.clone(), v)
        }
        _ => return Err(fail!(DType, "values and destination are of two classes")),
    }])
}

fn put<T: Copy>(x: &[T], at: &[usize], values: &[T], f: impl Fn(T, T) -> T) -> Vec<T> {
    let mut out = x.to_vec();
    at.iter().zip(values).for_each(|(&at, &v)| out[at] = f(out[at], v));
    out
}

fn gradient(cx: &mut GradCx) -> Result<()> {
    let (g, end) = (cx.grad(0)?, cx.arity() - 1);
    let mut inputs: Vec<_> = std::iter::once(Some(g)).chain((1..end).map(|i| cx.opt_x(i))).collect();
    let attrs = wrap_of(&cx.args())?;
    if cx.needs(end) {
        let dv = cx.apply(&INDEX, &inputs, attrs.clone())?[0];
        cx.set(end, dv)?;
    }
    if cx.needs(0) {
        let mut dx = g;
        if !cx.args().flag("accumulate")? {
            let zero = TensorType::new(cx.ty(g).dtype, []);
            inputs.push(Some(cx.full(&zero, 0.0)?));
            dx = cx.apply(&INDEX_PUT_IMPL, &inputs, attrs.with("accumulate", false))?[0];
        }
        cx.set(0, dx)?;
    }
    Ok(())
}

fn cases() -> Vec<Case> {
    // No place twice, so that replacing is differentiable.
    let unique = || crate::ops::Sample::Values(vec![2.0, 0.0, -3.0]);
    let int = crate::DType::I64;
    vec![
        Case::new("replaced").f(&[4, 2]).arg(int, &[3], unique()).f(&[3, 2]).attr("accumulate", false),
        Case::new("one value").f(&[4, 2]).arg(int, &[3], unique()).f(&[]).attr("accumulate", false),
        Case::new("added").f(&[2, 3]).index(&[5, 1], 2).index(&[4], 3).f(&[5, 4]).attr("accumulate", true),
        Case::new("second").f(&[2, 3]).none().index(&[4], 3).f(&[4]).attr("accumulate", true),
    ]
}
