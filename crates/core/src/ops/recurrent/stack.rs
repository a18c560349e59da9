//! The common part of `lstm`, `gru` and `rnn_*`: several layers, one or two directions, dropout between them.

use super::layer::Layer;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::linear::linear::LINEAR;
use crate::ops::random::dropout::DROPOUT;
use crate::ops::{Case, OpCx, required};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// A stack of layers as ATen's operators state it.
///
/// Inputs: the sequence `[T, B, inputs]` or `[B, T, inputs]`, `states` initial states
/// `[layers · directions, B, H]`. Then come, for each layer and direction, the weights `[G · H, inputs]` and
/// `[G · H, H]`, with `has_biases` two biases `[G · H]`.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    layers: usize,
    directions: usize,
    states: usize,
    biases: bool,
    dropout: f64,
    /// Inputs of the first direction of the first layer.
    layer: Layer,
}

impl Stack {
    /// The stack of a call of cells with `gates` gates and `states` states.
    ///
    /// # Errors
    /// `Shape`, `DType`, `Size` or `Attribute` if operands do not fit; `Unsupported` for projected states.
    pub fn of(cx: &OpCx, gates: usize, states: usize) -> Result<Stack> {
        let (x, state) = (cx.ty(0)?, cx.ty(1)?);
        let (&[first, second, _], &[count, batch, hidden]) = (&x.shape[..], &state.shape[..]) else {
            return Err(fail!(Shape, "it needs [time, batch, inputs] and states [layers, batch, hidden]"));
        };
        ensure!(x.dtype.is_float(), DType, "it needs floats, got {x}");
        ensure!(hidden > 0, Shape, "states of no width: {state}");
        let (layers, biases) = (cx.size("num_layers")?, cx.flag("has_biases")?);
        let directions = 1 + usize::from(cx.flag("bidirectional")?);
        let fits = layers > 0 && layers.checked_mul(directions) == Some(count);
        ensure!(fits, Shape, "{layers} layers of {directions} directions do not fit the states {state}");
        let batch_first = cx.flag("batch_first")?;
        let (steps, samples) = if batch_first { (second, first) } else { (first, second) };
        ensure!(samples == batch, Shape, "{x} has {samples} samples, the states {state} have {batch}");
        ensure!(steps > 0, Shape, "a sequence of no time steps: {x}");
        let dropout = cx.opt_float("dropout")?.unwrap_or(0.0);
        ensure!(
            (0.0..=1.0).contains(&dropout),
            Attribute,
            "`dropout` must be between 0 and 1, got {dropout}"
        );
        let active = cx.flag("train")?;
        let layer = Layer { steps, batch, hidden, gates, batch_first, reverse: false, dtype: x.dtype };
        let stack =
            Stack { layers, directions, states, biases, dropout: if active { dropout } else { 0.0 }, layer };
        let most = Shape::new(&[steps, batch, hidden, 8 * gates.max(directions)]).checked_numel();
        ensure!(
            most.is_some() && gates.checked_mul(hidden).is_some(),
            Size,
            "{x} is larger than memory can be"
        );
        let (given, each) = (cx.inputs.len().saturating_sub(1 + states), stack.parameters());
        let projected = count.checked_mul(each + 1) == Some(given) && gates == 4;
        ensure!(
            !projected,
            Unsupported,
            "projected states (`proj_size`) are not supported: build the model with proj_size=0 and an \
             nn.Linear behind the LSTM, or write its steps with nn.LSTMCell and nn.Linear"
        );
        ensure!(
            count.checked_mul(each) == Some(given),
            Shape,
            "{given} parameters for {count} layers of {each}, directions counted"
        );
        (1..=states).try_for_each(|i| {
            cx.ty(i)?;
            layer.expect(cx, i, &state.shape)
        })?;
        for at in 0..count {
            let p = stack.first_parameter(at);
            (p..p + each).try_for_each(|i| cx.ty(i).map(|_| ()))?;
            layer.expect(cx, p, &[gates * hidden, stack.inputs(at, x)])?;
            layer.expect(cx, p + 1, &[gates * hidden, hidden])?;
            (p + 2..p + each).try_for_each(|i| layer.expect(cx, i, &[gates * hidden]))?;
        }
        Ok(stack)
    }

    /// Types of the results: the sequence of the last layer, and the last states.
    pub fn types(&self) -> Vec<TensorType> {
        let l = &self.layer;
        let last = [self.layers * self.directions, l.batch, l.hidden];
        let states = std::iter::repeat_n(TensorType::new(l.dtype, last), self.states);
        std::iter::once(l.sequence_type(self.directions)).chain(states).collect()
    }

    /// Appends the stack. `run` appends one layer in one direction: `(builder, [gates, weight, bias,
    /// states...], attributes)` to its sequence and its last states.
    pub fn build(
        &self,
        b: &mut Builder,
        inputs: &[Option<ValueId>],
        run: impl Fn(&mut Builder, &[Option<ValueId>], Attrs) -> Result<Vec<ValueId>>,
    ) -> Result<Vec<ValueId>> {
        let mut sequence = required(inputs, 0)?;
        let mut last = vec![Vec::new(); self.states];
        for layer in 0..self.layers {
            if layer > 0 && self.dropout > 0.0 {
                let attrs = Attrs::new().with("p", self.dropout).with("train", true);
                sequence = b.one(&DROPOUT, &[sequence], attrs)?;
            }
            let mut outputs = Vec::new();
            for direction in 0..self.directions {
                let at = layer * self.directions + direction;
                let p = self.first_parameter(at);
                let bias = |i: usize| if self.biases { inputs.get(p + i).copied().flatten() } else { None };
                let projection = [Some(sequence), Some(required(inputs, p)?), bias(2)];
                let gates = b.apply(&LINEAR, &projection, Attrs::new())?[0];
                let mut operands = vec![Some(gates), Some(required(inputs, p + 1)?), bias(3)];
                for state in 0..self.states {
                    operands.push(Some(b.select(required(inputs, 1 + state)?, 0, at)?));
                }
                let layer = Layer { reverse: direction == 1, ..self.layer };
                let results = run(b, &operands, layer.attrs())?;
                outputs.push(results[0]);
                for (last, &state) in last.iter_mut().zip(&results[1..]) {
                    last.push(b.unsqueeze(state, 0)?);
                }
            }
            sequence = b.cat(&outputs, 2)?;
        }
        let mut results = vec![sequence];
        for states in last {
            results.push(b.cat(&states, 0)?);
        }
        Ok(results)
    }

    /// Operations of the whole stack, `pointwise` for each element of a state beside the products.
    pub fn flops(&self, cx: &OpCx, pointwise: usize) -> f64 {
        let l = &self.layer;
        let project = |at: usize| cx.ty(0).map_or(0.0, |x| 2.0 * self.inputs(at, x) as f64);
        let rows = (l.steps * l.batch * l.hidden * l.gates) as f64;
        (0..self.layers * self.directions).map(|at| rows * project(at) + l.flops(pointwise)).sum()
    }

    /// Parameters of each layer and direction.
    fn parameters(&self) -> usize {
        if self.biases { 4 } else { 2 }
    }

    /// The position among the inputs where those of layer and direction `at` begin.
    fn first_parameter(&self, at: usize) -> usize {
        1 + self.states + at * self.parameters()
    }

    /// Width of what layer and direction `at` reads.
    fn inputs(&self, at: usize, x: &TensorType) -> usize {
        if at < self.directions { x.shape[2] } else { self.layer.hidden * self.directions }
    }
}

/// Cases of a stack of cells with `gates` gates and `states` states.
pub(super) fn cases(gates: usize, states: usize) -> Vec<Case> {
    // Sequence, width, layers, directions, biases.
    let case = |name, x: [usize; 3], h: usize, [layers, directions, biases]: [usize; 3], batch: usize| {
        let mut case = Case::new(name).f(&x);
        for _ in 0..states {
            case = case.f(&[layers * directions, batch, h]);
        }
        for at in 0..layers * directions {
            let inputs = if at < directions { x[2] } else { h * directions };
            case = case.f(&[gates * h, inputs]).f(&[gates * h, h]);
            for _ in 0..2 * biases {
                case = case.f(&[gates * h]);
            }
        }
        case.attr("has_biases", biases == 1)
            .attr("num_layers", layers as i64)
            .attr("dropout", 0.0)
            .attr("train", true)
            .attr("bidirectional", directions == 2)
            .attr("batch_first", false)
    };
    vec![
        case("one layer", [3, 2, 3], 2, [1, 1, 1], 2),
        case("two layers, batch first", [2, 3, 2], 1, [2, 1, 1], 2).attr("batch_first", true),
        case("both directions, no biases", [3, 1, 2], 2, [2, 2, 0], 1),
        case("dropout", [2, 2, 2], 2, [2, 1, 0], 2).attr("dropout", 0.4),
        case("evaluation", [2, 2, 2], 2, [2, 1, 0], 2).attr("dropout", 0.4).attr("train", false),
        case("no samples", [2, 0, 2], 1, [1, 1, 1], 0),
    ]
}
