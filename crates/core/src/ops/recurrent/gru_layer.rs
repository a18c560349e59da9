//! One layer of gated recurrent units in one direction: Cho et al. 2014, with the reset gate after the
//! product as in cuDNN.

use super::layer::{Layer, add_product, add_transposed, floats, opt_floats, sigmoid};
use crate::diagnostic::Result;
use crate::ops::pointwise::NO_SECOND;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::tensor::{Tensor, TensorType};

/// Gates: reset, update, candidate.
pub const GATES: usize = 3;
/// Blocks of the stash: the gates after their functions, and what the state adds to the candidate before its
/// function.
pub const STASH: usize = 4;

/// `(gates [T, B, 3H], weight [3H, H], bias [3H] or none, hidden [B, H])` to the hidden states `[T, B, H]`,
/// the last one `[B, H]`, and a stash `[T, B, 4H]`: `r, z, n` and `m`. With `batch_first`, `[B, T, ...]` for
/// `[T, B, ...]`.
///
/// `gates` holds what the inputs add to the three gates. Each step, in order of time or with `reverse`
/// against it:
///
/// ```text
/// r, z = σ(gates + weight · h + bias)    m = weight · h + bias
/// n = tanh(gates + r · m)                h = (1 − z) · n + z · h
/// ```
///
/// Sums, functions and the carried state are in f32 or wider. The product takes `h` rounded to the dtype, as
/// it is stored.
pub static GRU_LAYER: OpDef = OpDef {
    name: "gru_layer",
    schemas: &[
        "headwater::gru_layer(Tensor gates, Tensor weight, Tensor? bias, Tensor hidden, *, bool reverse=False, bool batch_first=False) -> (Tensor, Tensor, Tensor)",
    ],
    infer: |cx| {
        let l = forward_layer(cx)?;
        l.expect(cx, 2, &[GATES * l.hidden])?;
        l.expect_state(cx, 3)?;
        Ok(vec![l.sequence_type(1), l.state_type(), l.sequence_type(STASH)])
    },
    derivative: Derivative::Rule(gradient),
    precision: Precision::Low,
    cost: Cost::Custom(|cx, _| forward_layer(cx).map_or(0.0, |l| l.flops(50))),
    body: Body::Kernel(forward),
    cases: || {
        let case = |name, sequence: [usize; 3], h: usize, batch: usize| {
            Case::new(name).f(&sequence).f(&[3 * h, h]).f(&[3 * h]).f(&[batch, h])
        };
        vec![
            case("time first", [3, 2, 6], 2, 2),
            case("batch first", [2, 3, 3], 1, 2).attr("batch_first", true),
            case("backwards", [3, 1, 9], 3, 1).attr("reverse", true),
            Case::new("no bias").f(&[2, 2, 6]).f(&[6, 2]).none().f(&[2, 2]),
            case("no samples", [2, 0, 6], 2, 0),
        ]
    },
};

/// Gradients of [`GRU_LAYER`]: `(grad_output, grad_hidden, weight, activations, output, hidden)` to three
/// gradients. They are of what the inputs add to the gates `[T, B, 3H]`, of what the state adds to them
/// `[T, B, 3H]`, and of the initial state. An absent gradient is zeros.
pub static GRU_LAYER_BACKWARD: OpDef = OpDef {
    name: "gru_layer_backward",
    schemas: &[
        "headwater::gru_layer_backward(Tensor? grad_output, Tensor? grad_hidden, Tensor weight, Tensor activations, Tensor output, Tensor hidden, *, bool reverse=False, bool batch_first=False) -> (Tensor, Tensor, Tensor)",
    ],
    infer: |cx| {
        let l = backward_layer(cx)?;
        l.expect_sequence(cx, 0, 1)?;
        let states = [1].into_iter().filter(|&i| cx.opt(i).is_some()).chain([5]);
        states.into_iter().try_for_each(|i| l.expect_state(cx, i))?;
        cx.ty(4)?;
        l.expect_sequence(cx, 4, 1)?;
        Ok(vec![l.sequence_type(GATES), l.sequence_type(GATES), l.state_type()])
    },
    derivative: NO_SECOND,
    precision: Precision::Low,
    cost: Cost::Custom(|cx, _| backward_layer(cx).map_or(0.0, |l| l.flops(30))),
    body: Body::Kernel(backward),
    cases: || {
        let case = |name, sequence: [usize; 3], h: usize, batch: usize| {
            let wide = [sequence[0], sequence[1], STASH * h];
            let c = Case::new(name).f(&sequence).f(&[batch, h]).f(&[3 * h, h]);
            c.range(&wide, 0.1, 0.9).f(&sequence).f(&[batch, h])
        };
        vec![
            case("time first", [3, 2, 2], 2, 2),
            case("batch first, backwards", [1, 3, 3], 3, 1).attr("batch_first", true).attr("reverse", true),
            Case::new("of the last state alone")
                .none()
                .f(&[1, 2])
                .f(&[6, 2])
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
    Layer::of(cx, GATES, (3, STASH), 2)
}

fn forward(cx: &OpCx, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let l = forward_layer(cx)?;
    let (x, weight, bias) = (floats(inputs, 0), floats(inputs, 1), opt_floats(inputs, 2));
    let mut hidden = floats(inputs, 3).to_vec();
    let h = l.hidden;
    let zeros = |i: usize| vec![0.0; outs[i].shape.numel()];
    let (mut output, mut stash) = (zeros(0), zeros(2));
    for time in (0..l.steps).map(|n| l.time(n)) {
        for b in 0..l.batch {
            let row = l.row(time, b);
            let state = &mut hidden[b * h..][..h];
            let mut inner = bias.map_or(vec![0.0; GATES * h], <[f64]>::to_vec);
            let rounded: Vec<f64> = state.iter().map(|&x| l.dtype.round(x)).collect();
            add_product(&mut inner, &rounded, weight);
            let outer = &x[row * GATES * h..][..GATES * h];
            for k in 0..h {
                let [r, z] = [0, 1].map(|gate| sigmoid(outer[gate * h + k] + inner[gate * h + k]));
                let m = inner[2 * h + k];
                let n = (outer[2 * h + k] + r * m).tanh();
                state[k] = (1.0 - z) * n + z * state[k];
                output[row * h + k] = state[k];
                for (block, value) in [r, z, n, m].into_iter().enumerate() {
                    stash[(row * STASH + block) * h + k] = value;
                }
            }
        }
    }
    let results = [output, hidden, stash];
    Ok(outs.iter().zip(results).map(|(t, v)| Tensor::float(t.dtype, t.shape.clone(), v)).collect())
}

fn backward(cx: &OpCx, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let l = backward_layer(cx)?;
    let grad_output = opt_floats(inputs, 0);
    let mut dh = opt_floats(inputs, 1).map_or(vec![0.0; l.batch * l.hidden], <[f64]>::to_vec);
    let (weight, stash) = (floats(inputs, 2), floats(inputs, 3));
    let (output, initial) = (floats(inputs, 4), floats(inputs, 5));
    let h = l.hidden;
    let zeros = |i: usize| vec![0.0; outs[i].shape.numel()];
    let (mut douter, mut dinner) = (zeros(0), zeros(1));
    for step in (0..l.steps).rev() {
        for b in 0..l.batch {
            let row = l.row(l.time(step), b);
            let before =
                if step == 0 { &initial[b * h..] } else { &output[l.row(l.time(step - 1), b) * h..] };
            let state = &mut dh[b * h..][..h];
            let gates = row * GATES * h..(row + 1) * GATES * h;
            let (outer, inner) = (&mut douter[gates.clone()], &mut dinner[gates]);
            for k in 0..h {
                let [r, z, n, m] = [0, 1, 2, 3].map(|block| stash[(row * STASH + block) * h + k]);
                let grad = state[k] + grad_output.map_or(0.0, |g| g[row * h + k]);
                let dn = grad * (1.0 - z) * (1.0 - n * n);
                let dz = grad * (before[k] - n) * z * (1.0 - z);
                let dr = dn * m * r * (1.0 - r);
                for (gate, [a, b]) in [[dr, dr], [dz, dz], [dn, dn * r]].into_iter().enumerate() {
                    outer[gate * h + k] = l.dtype.round(a);
                    inner[gate * h + k] = l.dtype.round(b);
                }
                state[k] = grad * z;
            }
            add_transposed(state, inner, weight);
        }
    }
    let results = [douter, dinner, dh];
    Ok(outs.iter().zip(results).map(|(t, v)| Tensor::float(t.dtype, t.shape.clone(), v)).collect())
}

fn gradient(cx: &mut GradCx) -> Result<()> {
    cx.only_outputs_before(2)?;
    let layer = cx.of(forward_layer)?;
    let (hidden, output, stash) = (cx.x(3)?, cx.y(0), cx.y(2));
    let inputs = [cx.opt_grad(0), cx.opt_grad(1), cx.opt_x(1), Some(stash), Some(output), Some(hidden)];
    let grads = cx.apply(&GRU_LAYER_BACKWARD, &inputs, layer.attrs())?;
    cx.set(0, grads[0])?;
    cx.set(3, grads[2])?;
    layer.set_parameters(cx, grads[1], hidden)
}
