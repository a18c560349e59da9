//! The spellings that say by a flag, or by their name, whether a convolution is transposed.

use super::convolution::{CONVOLUTION, CONVOLUTION_INPUT_GRAD, floats};
use super::geometry::{numbers, spatial_rank};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// [`CONVOLUTION`] or [`CONV_TRANSPOSE`], by `transposed`.
pub static GENERAL: OpDef = OpDef {
    name: "_convolution",
    schemas: &[
        "convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor",
        "_convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, bool benchmark, bool deterministic, bool cudnn_enabled, bool allow_tf32) -> Tensor",
        "_convolution.deprecated(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, int[] output_padding, SymInt groups, bool benchmark, bool deterministic, bool cudnn_enabled) -> Tensor",
    ],
    infer: |cx| if cx.flag("transposed")? { (CONV_TRANSPOSE.infer)(cx) } else { (CONVOLUTION.infer)(cx) },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        if cx.flag("transposed")? {
            return transposed(b, cx, inputs);
        }
        b.apply(&CONVOLUTION, inputs, shared(cx.attrs))
    }),
    cases: || {
        let case = |name, w: &[usize]| {
            let c = Case::new(name).f(&[2, 2, 4, 4]).f(w).f(&[3]).attr("groups", 1).attr("dilation", [1, 1]);
            c.attr("stride", [2, 2]).attr("padding", [1, 1])
        };
        vec![
            case("forward", &[3, 2, 3, 3]).attr("transposed", false).attr("output_padding", [0, 0]),
            case("transposed", &[2, 3, 3, 3]).attr("transposed", true).attr("output_padding", [1, 0]),
        ]
    },
};

/// Transposed convolution: `input [N, C, …]` (N may be missing), `weight [C, out / groups, …]`, `bias [out]`
/// (optional). It is the gradient of the convolution by the same weight, plus the bias.
pub static CONV_TRANSPOSE: OpDef = OpDef {
    name: "conv_transpose",
    schemas: &[
        "conv_transpose1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=[1], SymInt[1] padding=[0], SymInt[1] output_padding=[0], SymInt groups=1, SymInt[1] dilation=[1]) -> Tensor",
        "conv_transpose2d.input(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=[1, 1], SymInt[2] padding=[0, 0], SymInt[2] output_padding=[0, 0], SymInt groups=1, SymInt[2] dilation=[1, 1]) -> Tensor",
        "conv_transpose3d.input(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=[1, 1, 1], SymInt[3] padding=[0, 0, 0], SymInt[3] output_padding=[0, 0, 0], SymInt groups=1, SymInt[3] dilation=[1, 1, 1]) -> Tensor",
    ],
    infer: |cx| {
        let (dtype, shape, w) = (floats(cx)?, transposed_shape(cx)?, cx.ty(1)?);
        if let Some(b) = cx.opt(2) {
            let channels = shape[shape.rank() - (w.shape.rank() - 1)];
            ensure!(b.shape[..] == [channels], Shape, "bias {b} for {channels} channels");
        }
        Ok(vec![TensorType::new(dtype, shape)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::Free,
    body: Body::Decompose(transposed),
    cases: || {
        let case = |name, x: &[usize], w: &[usize]| Case::new(name).f(x).f(w);
        vec![
            case("plain", &[2, 2, 3, 3], &[2, 3, 2, 2]).f(&[3]),
            case("strided", &[1, 1, 3], &[1, 2, 3])
                .none()
                .attr("stride", [2])
                .attr("padding", [1])
                .attr("output_padding", [1]),
            case("grouped", &[4, 3, 2], &[4, 1, 2, 3]).f(&[2]).attr("groups", 2).attr("dilation", [2, 1]),
        ]
    },
};

/// The attributes a plain convolution has.
pub(crate) fn shared(attrs: &Attrs) -> Attrs {
    let names = ["stride", "padding", "dilation", "groups"];
    attrs.iter().filter(|(n, _)| names.contains(n)).fold(Attrs::new(), |a, (n, v)| a.with(n, v.clone()))
}

/// `(in − 1) · stride − 2 · padding + dilation · (kernel − 1) + output_padding + 1` along every dimension.
fn transposed_shape(cx: &OpCx) -> Result<Shape> {
    let (x, w) = (cx.shape(0)?, cx.shape(1)?);
    let n = spatial_rank(x, w)?;
    let groups = cx.opt_int("groups")?.unwrap_or(1).max(0) as usize;
    let stride = numbers(cx, "stride", n, 1, 1)?;
    let padding = numbers(cx, "padding", n, 0, 0)?;
    let dilation = numbers(cx, "dilation", n, 1, 1)?;
    let extra = numbers(cx, "output_padding", n, 0, 0)?;
    let mut out = x[..x.rank() - n - 1].to_vec();
    out.push(w[1].checked_mul(groups).ok_or_else(|| crate::fail!(Size, "too many channels"))?);
    for d in 0..n {
        // More output padding than steps would add outputs that no kernel element reaches.
        ensure!(
            extra[d] < stride[d],
            Unsupported,
            "`output_padding` {} must be less than the stride {} here",
            extra[d],
            stride[d]
        );
        let last = x[x.rank() - n + d].checked_sub(1).and_then(|i| i.checked_mul(stride[d]));
        let reach = w[2 + d].checked_sub(1).and_then(|k| k.checked_mul(dilation[d]));
        let size = last.zip(reach).and_then(|(l, r)| l.checked_add(r)?.checked_add(extra[d] + 1));
        let size = size.and_then(|s| s.checked_sub(padding[d].checked_mul(2)?)).filter(|&s| s > 0);
        out.push(
            size.ok_or_else(|| crate::fail!(Shape, "input {x} and weight {w} give no output along {d}"))?,
        );
    }
    Ok(out.into())
}

fn transposed(b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]) -> Result<Vec<ValueId>> {
    let out = transposed_shape(cx)?;
    let attrs = shared(cx.attrs).with("input_size", out.to_ints());
    let y = b.apply(&CONVOLUTION_INPUT_GRAD, &inputs[..2], attrs)?[0];
    let Some(bias) = inputs.get(2).copied().flatten() else { return Ok(vec![y]) };
    let mut spread = vec![1; cx.shape(1)?.rank() - 1];
    spread[0] = b.ty(bias).shape[0];
    let bias = b.reshape(bias, &spread)?;
    Ok(vec![b.add(y, bias)?])
}
