//! Convolution of sequences whose time comes first.

use super::convolution::CONVOLUTION;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// `self [T, B, C]`, `weight [K, C, out]` and `bias [out]` to `[T + 2 · pad − K + 1, B, out]`.
pub static CONV_TBC: OpDef = OpDef {
    name: "conv_tbc",
    schemas: &["conv_tbc(Tensor self, Tensor weight, Tensor bias, int pad=0) -> Tensor"],
    infer: |cx| {
        let [x, w, b] = [cx.ty(0)?, cx.ty(1)?, cx.ty(2)?];
        let fits = x.shape.rank() == 3 && w.shape.rank() == 3 && x.shape[2] == w.shape[1];
        ensure!(fits, Shape, "sequences {x} and weights {w} do not fit");
        let turn = |t: &TensorType, order: [usize; 3]| {
            TensorType::new(t.dtype, order.iter().map(|&d| t.shape[d]).collect::<Shape>())
        };
        let (turned, weights) = (turn(x, [1, 2, 0]), turn(w, [2, 1, 0]));
        let attrs = attrs(cx)?;
        let inner = OpCx { inputs: vec![Some(&turned), Some(&weights), Some(b)], attrs: &attrs };
        let made = (CONVOLUTION.infer)(&inner)?.remove(0);
        Ok(vec![turn(&made, [2, 0, 1])])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let x = b.permute(required(inputs, 0)?, &[1, 2, 0])?;
        let w = b.permute(required(inputs, 1)?, &[2, 1, 0])?;
        let y = b.one(&CONVOLUTION, &[x, w, required(inputs, 2)?], attrs(cx)?)?;
        Ok(vec![b.permute(y, &[2, 0, 1])?])
    }),
    cases: || {
        let case = |name, pad: i64| Case::new(name).f(&[4, 2, 2]).f(&[3, 2, 2]).f(&[2]).attr("pad", pad);
        vec![case("plain", 0), case("padded", 1)]
    },
};

fn attrs(cx: &OpCx) -> Result<Attrs> {
    let pad = cx.opt_int("pad")?.unwrap_or(0);
    Ok(Attrs::new().with("padding", [pad]))
}
