//! One layer of simple recurrent units in one direction: Elman 1990.

use super::layer::{Layer, add_product, add_transposed, floats, opt_floats};
use crate::diagnostic::Result;
use crate::ops::pointwise::NO_SECOND;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::tensor::{Tensor, TensorType};

/// `(gates [T, B, H], weight [H, H], bias [H] or none, hidden [B, H])` to the hidden states `[T, B, H]` and
/// the last one `[B, H]`. With `batch_first`, `[B, T, H]` for `[T, B, H]`.
///
/// `gates` holds what the inputs add. Each step, in order of time or with `reverse` against it: `h =
/// tanh(gates + weight · h + bias)`, or with `relu`, `max(0, …)`. Sums are in f32 or wider.
pub static RNN_LAYER: OpDef = OpDef {
    name: "rnn_layer",
    schemas: &[
        "headwater::rnn_layer(Tensor gates, Tensor weight, Tensor? bias, Tensor hidden, *, bool relu=False, bool reverse=False, bool batch_first=False) -> (Tensor, Tensor)",
    ],
    infer: |cx| {
        let l = forward_layer(cx)?;
        l.expect(cx, 2, &[l.hidden])?;
        l.expect_state(cx, 3)?;
        cx.flag("relu")?;
        Ok(vec![l.sequence_type(1), l.state_type()])
    },
    derivative: Derivative::Rule(gradient),
    precision: Precision::Low,
    cost: Cost::Custom(|cx, _| forward_layer(cx).map_or(0.0, |l| l.flops(12))),
    body: Body::Kernel(forward),
    cases: || {
        let case = |name, sequence: [usize; 3], h: usize, batch: usize| {
            Case::new(name).f(&sequence).f(&[h, h]).f(&[h]).f(&[batch, h])
        };
        vec![
            case("time first", [3, 2, 3], 3, 2),
            case("batch first, backwards", [2, 3, 2], 2, 2).attr("batch_first", true).attr("reverse", true),
            case("rectified", [3, 2, 3], 3, 2).attr("relu", true),
            Case::new("no bias").f(&[2, 2, 2]).f(&[2, 2]).none().f(&[2, 2]),
            case("no samples", [2, 0, 2], 2, 0),
        ]
    },
};

/// Gradients of [`RNN_LAYER`]: `(grad_output, grad_hidden, weight, output)` to those of the gates before
/// their function `[T, B, H]` and of the initial state. An absent gradient is zeros.
pub static RNN_LAYER_BACKWARD: OpDef = OpDef {
    name: "rnn_layer_backward",
    schemas: &[
        "headwater::rnn_layer_backward(Tensor? grad_output, Tensor? grad_hidden, Tensor weight, Tensor output, *, bool relu=False, bool reverse=False, bool batch_first=False) -> (Tensor, Tensor)",
    ],
    infer: |cx| {
        let l = backward_layer(cx)?;
        l.expect_sequence(cx, 0, 1)?;
        l.expect(cx, 1, &[l.batch, l.hidden])?;
        cx.flag("relu")?;
        Ok(vec![l.sequence_type(1), l.state_type()])
    },
    derivative: NO_SECOND,
    precision: Precision::Low,
    cost: Cost::Custom(|cx, _| backward_layer(cx).map_or(0.0, |l| l.flops(5))),
    body: Body::Kernel(backward),
    cases: || {
        let case = |name, sequence: [usize; 3], h: usize, batch: usize| {
            Case::new(name).f(&sequence).f(&[batch, h]).f(&[h, h]).range(&sequence, -0.9, 0.9)
        };
        vec![
            case("time first", [3, 2, 3], 3, 2),
            case("rectified, batch first, backwards", [2, 3, 2], 2, 2)
                .attr("relu", true)
                .attr("batch_first", true)
                .attr("reverse", true),
            Case::new("of the last state alone").none().f(&[2, 2]).f(&[2, 2]).range(&[3, 2, 2], -0.9, 0.9),
        ]
    },
};

/// The layer of a forward node.
///
/// # Errors
/// As [`Layer::of`].
pub fn forward_layer(cx: &OpCx) -> Result<Layer> {
    Layer::of(cx, 1, (0, 1), 1)
}

/// The layer of a gradient's node.
///
/// # Errors
/// As [`Layer::of`].
pub fn backward_layer(cx: &OpCx) -> Result<Layer> {
    Layer::of(cx, 1, (3, 1), 2)
}

fn forward(cx: &OpCx, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let (l, relu) = (forward_layer(cx)?, cx.flag("relu")?);
    let (x, weight, bias) = (floats(inputs, 0), floats(inputs, 1), opt_floats(inputs, 2));
    let mut hidden = floats(inputs, 3).to_vec();
    let h = l.hidden;
    let mut output = vec![0.0; outs[0].shape.numel()];
    for time in (0..l.steps).map(|n| l.time(n)) {
        for b in 0..l.batch {
            let row = l.row(time, b);
            let state = &mut hidden[b * h..][..h];
            let mut gates = x[row * h..][..h].to_vec();
            add_product(&mut gates, state, weight);
            for (k, gate) in gates.iter().enumerate() {
                let sum = gate + bias.map_or(0.0, |b| b[k]);
                // Not `max`, which would lose a NaN.
                let value = match relu {
                    true if sum < 0.0 => 0.0,
                    true => sum,
                    false => sum.tanh(),
                };
                state[k] = l.dtype.round(value);
            }
            output[row * h..][..h].copy_from_slice(state);
        }
    }
    let results = [output, hidden];
    Ok(outs.iter().zip(results).map(|(t, v)| Tensor::float(t.dtype, t.shape.clone(), v)).collect())
}

fn backward(cx: &OpCx, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let (l, relu) = (backward_layer(cx)?, cx.flag("relu")?);
    let grad_output = opt_floats(inputs, 0);
    let mut dh = opt_floats(inputs, 1).map_or(vec![0.0; l.batch * l.hidden], <[f64]>::to_vec);
    let (weight, output) = (floats(inputs, 2), floats(inputs, 3));
    let h = l.hidden;
    let mut dgates = vec![0.0; outs[0].shape.numel()];
    for n in (0..l.steps).rev() {
        for b in 0..l.batch {
            let row = l.row(l.time(n), b);
            let state = &mut dh[b * h..][..h];
            let gates = &mut dgates[row * h..][..h];
            for (k, (gate, grad)) in gates.iter_mut().zip(&*state).enumerate() {
                let grad = grad + grad_output.map_or(0.0, |g| g[row * h + k]);
                let y = output[row * h + k];
                *gate = l.dtype.round(match relu {
                    true if y > 0.0 => grad,
                    true => 0.0,
                    false => grad * (1.0 - y * y),
                });
            }
            state.fill(0.0);
            add_transposed(state, gates, weight);
        }
    }
    let results = [dgates, dh];
    Ok(outs.iter().zip(results).map(|(t, v)| Tensor::float(t.dtype, t.shape.clone(), v)).collect())
}

fn gradient(cx: &mut GradCx) -> Result<()> {
    let layer = cx.of(forward_layer)?;
    let relu = cx.args().flag("relu")?;
    let (hidden, output) = (cx.x(3)?, cx.y(0));
    let inputs = [cx.opt_grad(0), cx.opt_grad(1), cx.opt_x(1), Some(output)];
    let grads = cx.apply(&RNN_LAYER_BACKWARD, &inputs, layer.attrs().with("relu", relu))?;
    cx.set(0, grads[0])?;
    cx.set(3, grads[1])?;
    layer.set_parameters(cx, grads[0], hidden)
}
