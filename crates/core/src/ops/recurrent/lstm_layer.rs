//! One layer of a long short-term memory in one direction: Hochreiter and Schmidhuber 1997, with the forget
//! gate of Gers, Schmidhuber and Cummins 2000.

use super::layer::{Layer, add_product, add_transposed, floats, opt_floats, sigmoid};
use crate::diagnostic::Result;
use crate::ops::pointwise::NO_SECOND;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::tensor::{Tensor, TensorType};

/// Gates: input, forget, cell candidate, output.
pub const GATES: usize = 4;

/// `(gates [T, B, 4H], weight [4H, H], bias [4H] or none, hidden [B, H], cell [B, H])` to the hidden states
/// `[T, B, H]` and the last hidden and cell state `[B, H]`. Two stashes follow: the gates after their
/// functions `[T, B, 4H]`, and the cell states `[T, B, H]`. With `batch_first`, `[B, T, ...]` for
/// `[T, B, ...]`.
///
/// `gates` holds what the inputs add to the four gates `i, f, g, o`. Each step, in order of time or with
/// `reverse` against it:
///
/// ```text
/// i, f, o = σ(gates + weight · h + bias)    g = tanh(gates + weight · h + bias)
/// c = f · c + i · g                         h = o · tanh(c)
/// ```
///
/// Sums, functions and the carried cell state are in f32 or wider. The product takes `h` as it is stored,
/// rounded to the dtype.
pub static LSTM_LAYER: OpDef = OpDef {
    name: "lstm_layer",
    schemas: &[
        "headwater::lstm_layer(Tensor gates, Tensor weight, Tensor? bias, Tensor hidden, Tensor cell, *, bool reverse=False, bool batch_first=False) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    ],
    infer: |cx| {
        let l = forward_layer(cx)?;
        l.expect(cx, 2, &[GATES * l.hidden])?;
        l.expect_state(cx, 3)?;
        l.expect_state(cx, 4)?;
        let (state, states) = (l.state_type(), l.sequence_type(1));
        Ok(vec![states.clone(), state.clone(), state, l.sequence_type(GATES), states])
    },
    derivative: Derivative::Rule(gradient),
    precision: Precision::Low,
    cost: Cost::Custom(|cx, _| forward_layer(cx).map_or(0.0, |l| l.flops(60))),
    body: Body::Kernel(forward),
    cases: || {
        let case = |name, sequence: [usize; 3], h: usize, batch: usize| {
            Case::new(name).f(&sequence).f(&[4 * h, h]).f(&[4 * h]).f(&[batch, h]).f(&[batch, h])
        };
        vec![
            case("time first", [3, 2, 8], 2, 2),
            case("batch first", [2, 3, 4], 1, 2).attr("batch_first", true),
            case("backwards", [3, 1, 12], 3, 1).attr("reverse", true),
            case("batch first, backwards", [2, 2, 8], 2, 2).attr("batch_first", true).attr("reverse", true),
            Case::new("no bias").f(&[1, 2, 8]).f(&[8, 2]).none().f(&[2, 2]).f(&[2, 2]),
            case("no samples", [2, 0, 8], 2, 0),
        ]
    },
};

/// Gradients of [`LSTM_LAYER`]: `(grad_output, grad_hidden, grad_cell, weight, activations, cells, cell)` to
/// those of the gates before their functions `[T, B, 4H]`, of the initial hidden and of the initial cell
/// state. An absent gradient is zeros.
pub static LSTM_LAYER_BACKWARD: OpDef = OpDef {
    name: "lstm_layer_backward",
    schemas: &[
        "headwater::lstm_layer_backward(Tensor? grad_output, Tensor? grad_hidden, Tensor? grad_cell, Tensor weight, Tensor activations, Tensor cells, Tensor cell, *, bool reverse=False, bool batch_first=False) -> (Tensor, Tensor, Tensor)",
    ],
    infer: |cx| {
        let l = backward_layer(cx)?;
        l.expect_sequence(cx, 0, 1)?;
        let states = [1, 2].into_iter().filter(|&i| cx.opt(i).is_some()).chain([6]);
        states.into_iter().try_for_each(|i| l.expect_state(cx, i))?;
        cx.ty(5)?;
        l.expect_sequence(cx, 5, 1)?;
        Ok(vec![l.sequence_type(GATES), l.state_type(), l.state_type()])
    },
    derivative: NO_SECOND,
    precision: Precision::Low,
    cost: Cost::Custom(|cx, _| backward_layer(cx).map_or(0.0, |l| l.flops(50))),
    body: Body::Kernel(backward),
    cases: || {
        let case = |name, sequence: [usize; 3], h: usize, batch: usize| {
            let wide = [sequence[0], sequence[1], 4 * h];
            let c = Case::new(name).f(&sequence).f(&[batch, h]).f(&[batch, h]).f(&[4 * h, h]);
            c.range(&wide, 0.1, 0.9).f(&sequence).f(&[batch, h])
        };
        vec![
            case("time first", [3, 2, 2], 2, 2),
            case("batch first, backwards", [1, 3, 3], 3, 1).attr("batch_first", true).attr("reverse", true),
            Case::new("of the output alone")
                .f(&[2, 1, 2])
                .none()
                .none()
                .f(&[8, 2])
                .range(&[2, 1, 8], 0.1, 0.9)
                .f(&[2, 1, 2])
                .f(&[1, 2]),
            Case::new("of the last cell alone")
                .none()
                .none()
                .f(&[1, 2])
                .f(&[8, 2])
                .range(&[2, 1, 8], 0.1, 0.9)
                .f(&[2, 1, 2])
                .f(&[1, 2]),
        ]
    },
};

/// The layer of a forward node.
///
/// # Errors
/// As [`Layer::of`].
pub fn forward_layer(cx: &OpCx) -> Result<Layer> {
    Layer::of(cx, GATES, (0, GATES), 1)
}

/// The layer of a gradient's node.
///
/// # Errors
/// As [`Layer::of`].
pub fn backward_layer(cx: &OpCx) -> Result<Layer> {
    Layer::of(cx, GATES, (4, GATES), 3)
}

fn forward(cx: &OpCx, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let l = forward_layer(cx)?;
    let (x, weight, bias) = (floats(inputs, 0), floats(inputs, 1), opt_floats(inputs, 2));
    let (mut hidden, mut cell) = (floats(inputs, 3).to_vec(), floats(inputs, 4).to_vec());
    let h = l.hidden;
    let zeros = |i: usize| vec![0.0; outs[i].shape.numel()];
    let (mut output, mut activations, mut cells) = (zeros(0), zeros(3), zeros(4));
    for time in (0..l.steps).map(|n| l.time(n)) {
        for b in 0..l.batch {
            let row = l.row(time, b);
            let mut gates = x[row * GATES * h..][..GATES * h].to_vec();
            let (state, c) = (&mut hidden[b * h..][..h], &mut cell[b * h..][..h]);
            add_product(&mut gates, state, weight);
            for (k, gate) in gates.iter_mut().enumerate() {
                let sum = *gate + bias.map_or(0.0, |b| b[k]);
                *gate = if k / h == 2 { sum.tanh() } else { sigmoid(sum) };
            }
            for k in 0..h {
                let [i, f, g, o] = [0, 1, 2, 3].map(|gate| gates[gate * h + k]);
                c[k] = f * c[k] + i * g;
                state[k] = l.dtype.round(o * c[k].tanh());
            }
            output[row * h..][..h].copy_from_slice(state);
            cells[row * h..][..h].copy_from_slice(c);
            activations[row * GATES * h..][..GATES * h].copy_from_slice(&gates);
        }
    }
    let results = [output, hidden, cell, activations, cells];
    Ok(outs.iter().zip(results).map(|(t, v)| Tensor::float(t.dtype, t.shape.clone(), v)).collect())
}

fn backward(cx: &OpCx, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let l = backward_layer(cx)?;
    let grad_output = opt_floats(inputs, 0);
    let state = |i: usize| opt_floats(inputs, i).map_or(vec![0.0; l.batch * l.hidden], <[f64]>::to_vec);
    let (mut dh, mut dc) = (state(1), state(2));
    let (weight, activations) = (floats(inputs, 3), floats(inputs, 4));
    let (cells, initial) = (floats(inputs, 5), floats(inputs, 6));
    let h = l.hidden;
    let mut dgates = vec![0.0; outs[0].shape.numel()];
    for n in (0..l.steps).rev() {
        for b in 0..l.batch {
            let row = l.row(l.time(n), b);
            let before = if n == 0 { &initial[b * h..] } else { &cells[l.row(l.time(n - 1), b) * h..] };
            let (state, dc) = (&mut dh[b * h..][..h], &mut dc[b * h..][..h]);
            let gates = &mut dgates[row * GATES * h..][..GATES * h];
            for k in 0..h {
                let [i, f, g, o] = [0, 1, 2, 3].map(|gate| activations[(row * GATES + gate) * h + k]);
                let grad = state[k] + grad_output.map_or(0.0, |g| g[row * h + k]);
                let tanh = cells[row * h + k].tanh();
                let through = dc[k] + grad * o * (1.0 - tanh * tanh);
                let slopes = [
                    through * g * i * (1.0 - i),
                    through * before[k] * f * (1.0 - f),
                    through * i * (1.0 - g * g),
                    grad * tanh * o * (1.0 - o),
                ];
                for (gate, slope) in slopes.into_iter().enumerate() {
                    gates[gate * h + k] = l.dtype.round(slope);
                }
                dc[k] = through * f;
            }
            state.fill(0.0);
            add_transposed(state, gates, weight);
        }
    }
    let results = [dgates, dh, dc];
    Ok(outs.iter().zip(results).map(|(t, v)| Tensor::float(t.dtype, t.shape.clone(), v)).collect())
}

fn gradient(cx: &mut GradCx) -> Result<()> {
    cx.only_outputs_before(3)?;
    let layer = cx.of(forward_layer)?;
    let (weight, cell, activations, cells) = (cx.opt_x(1), cx.opt_x(4), cx.y(3), cx.y(4));
    let [output, last, last_cell] = [0, 1, 2].map(|i| cx.opt_grad(i));
    let inputs = [output, last, last_cell, weight, Some(activations), Some(cells), cell];
    let grads = cx.apply(&LSTM_LAYER_BACKWARD, &inputs, layer.attrs())?;
    cx.set(0, grads[0])?;
    cx.set(3, grads[1])?;
    cx.set(4, grads[2])?;
    let hidden = cx.x(3)?;
    layer.set_parameters(cx, grads[0], hidden)
}
