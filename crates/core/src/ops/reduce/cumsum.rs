//! Running sum along a dimension.

use super::sum::sum_dtype;
use crate::diagnostic::Result;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::tensor::{Data, Tensor, TensorType};

/// Element `i` along `dim` is the sum of elements `0..=i`. Attribute `reverse` (ours, absent is false): of
/// `i..`, which is the gradient. Integers and bools sum in i64; floats in f32 or wider.
pub static CUMSUM: OpDef = OpDef {
    name: "cumsum",
    schemas: &["cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor"],
    infer: |cx| {
        cx.dim("dim", cx.shape(0)?.rank())?;
        Ok(vec![TensorType::new(sum_dtype(cx)?, cx.shape(0)?.clone())])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, at) = (cx.grad(0)?, cx.args());
        let attrs = crate::Attrs::new().with("dim", at.int("dim")?).with("reverse", !at.flag("reverse")?);
        let dx = cx.one(&CUMSUM, &[g], attrs)?;
        cx.set(0, dx)
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(1),
    body: Body::Kernel(reference),
    cases: || {
        vec![
            Case::new("middle").f(&[2, 3, 2]).attr("dim", 1),
            Case::new("reversed").f(&[4]).attr("dim", -1).attr("reverse", true),
            Case::new("ints").index(&[2, 3], 9).attr("dim", 0),
            Case::new("scalar").f(&[]).attr("dim", 0),
            Case::new("empty").f(&[2, 0]).attr("dim", 1),
        ]
    },
};

fn reference(cx: &OpCx, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let x = inputs[0].expect("typed").cast(outs[0].dtype);
    let (dim, reverse) = (cx.dim("dim", x.shape().rank())?, cx.flag("reverse")?);
    Ok(vec![match x.data {
        Data::Float(v) => {
            let v = scan(v, &outs[0], dim, reverse, |a, b| a + b);
            Tensor::float(outs[0].dtype, outs[0].shape.clone(), v)
        }
        Data::Int(v) => {
            let v = scan(v, &outs[0], dim, reverse, i64::wrapping_add);
            Tensor::int(outs[0].dtype, outs[0].shape.clone(), v)
        }
    }])
}

/// Replaces each element by the combination of those before it along `dim` with itself.
pub(super) fn scan<T: Copy>(
    mut v: Vec<T>,
    ty: &TensorType,
    dim: usize,
    reverse: bool,
    f: impl Fn(T, T) -> T,
) -> Vec<T> {
    for mut lane in lanes(ty, dim) {
        if reverse {
            lane.reverse();
        }
        lane.windows(2).for_each(|w| v[w[1]] = f(v[w[0]], v[w[1]]));
    }
    v
}

/// Row-major offsets of the elements of each line along `dim`.
pub(super) fn lanes(ty: &TensorType, dim: usize) -> impl Iterator<Item = Vec<usize>> + use<> {
    let (before, n, after) = ty.shape.around(dim);
    // There may be very many lines of nothing.
    let before = if n == 0 { 0 } else { before };
    let starts = (0..before).flat_map(move |b| (0..after).map(move |a| b * n * after + a));
    starts.map(move |start| (0..n).map(|i| start + i * after).collect())
}
