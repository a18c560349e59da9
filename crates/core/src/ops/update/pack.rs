//! A bucket of gradients as one value, as a collective or a norm reads it.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::movement::{cat::CAT, pad::CONSTANT_PAD_ND};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// Tensors of one dtype, each in row-major order from its element of `offsets` on, in a span `[elements]`
/// that is zero between them. Offsets ascend, and no tensor reaches into the next.
///
/// No data move where the span is a bucket's segment: a plan computes each tensor at its place
/// (`pass::pack`).
pub static PACK: OpDef = OpDef {
    name: "pack",
    schemas: &["headwater::pack(Tensor[] tensors, int[] offsets, int elements) -> Tensor"],
    infer: |cx| {
        let elements = cx.int("elements")?;
        let first = cx.ty(0)?;
        let mut end = 0;
        for ((t, from), i) in parts(cx)?.zip(0..) {
            ensure!(t.dtype == first.dtype, DType, "tensors of a span differ: {first} and {t}");
            ensure!(from >= end, Shape, "tensor {i} begins at element {from}, within the one before it");
            end = t.shape.checked_numel().map_or(i64::MAX, |n| from.saturating_add(n as i64));
        }
        ensure!(end <= elements, Shape, "{end} elements are packed into a span of {elements}");
        Ok(vec![TensorType::new(first.dtype, [elements as usize])])
    },
    derivative: Derivative::NotDifferentiable("gradients are not differentiated again"),
    precision: Precision::Full,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(expand),
    cases: || {
        let one = |name| Case::new(name).attr("offsets", vec![0i64]).attr("elements", 4i64);
        let two = Case::new("gaps").f(&[2, 3]).f(&[]).f(&[0, 3]);
        vec![
            one("alone").f(&[4]),
            one("zeros behind").f(&[3, 1]),
            two.attr("offsets", vec![1i64, 8, 9]).attr("elements", 12i64),
        ]
    },
};

/// The tensors, each with its first element in the span.
pub(crate) fn parts<'a>(cx: &OpCx<'a>) -> Result<impl Iterator<Item = (&'a TensorType, i64)>> {
    let offsets = cx.ints("offsets")?.to_vec();
    let (given, tensors) = (offsets.len(), cx.present().count());
    ensure!(tensors == given, Attribute, "{given} offsets are given for {tensors} tensors");
    Ok(cx.present().zip(offsets))
}

/// Every tensor flat, with zeros up to the next, joined.
fn expand(b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]) -> Result<Vec<ValueId>> {
    let elements = cx.int("elements")?;
    let parts: Vec<(usize, i64)> = parts(cx)?.map(|(t, from)| (t.shape.numel(), from)).collect();
    let ends = parts.iter().skip(1).map(|(_, from)| *from).chain([elements]);
    let mut padded = Vec::with_capacity(parts.len());
    let mut at = 0;
    for ((&v, &(numel, from)), end) in inputs.iter().flatten().zip(&parts).zip(ends) {
        let flat = b.reshape(v, &[numel])?;
        let pad = vec![from - at, end - from - numel as i64];
        padded.push(match pad[..] {
            [0, 0] => flat,
            _ => b.one(&CONSTANT_PAD_ND, &[flat], Attrs::new().with("pad", pad))?,
        });
        at = end;
    }
    match padded[..] {
        [only] => Ok(vec![only]),
        _ => Ok(vec![b.one(&CAT, &padded, Attrs::new().with("dim", 0))?]),
    }
}
