//! The geometry of one layer in one direction, which its operators, their references and the kernels of
//! devices share.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::ops::{GradCx, OpCx};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// Sizes and order of the recurrence over a sequence.
///
/// Sequences are `[T, B, width]`, or `[B, T, width]` with `batch_first`. Gates are concatenated in a
/// sequence's last dimension, `G · H` wide, in PyTorch's order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layer {
    /// Time steps `T`, at least one.
    pub steps: usize,
    /// Samples `B`.
    pub batch: usize,
    /// Width `H` of the state, at least one.
    pub hidden: usize,
    /// Gates `G` of the cell.
    pub gates: usize,
    /// Samples come before time in sequences.
    pub batch_first: bool,
    /// Time runs backwards.
    pub reverse: bool,
    /// Element type of all operands.
    pub dtype: DType,
}

impl Layer {
    /// The layer of a sequence of gates (input `sequence`, `width` blocks of `H`) with the weight `[G · H,
    /// H]` (input `weight`).
    ///
    /// # Errors
    /// `Shape`, `DType` or `Size` if they do not fit.
    pub fn of(cx: &OpCx, gates: usize, (sequence, width): (usize, usize), weight: usize) -> Result<Layer> {
        let (x, w) = (cx.ty(sequence)?, cx.ty(weight)?);
        let [first, second, columns] = x.shape[..] else {
            return Err(fail!(Shape, "a recurrent layer needs [time, batch, gates], got {x}"));
        };
        let [rows, hidden] = w.shape[..] else {
            return Err(fail!(Shape, "a recurrent weight is [gates, hidden], got {w}"));
        };
        let fits = hidden > 0 && hidden.checked_mul(gates) == Some(rows) && columns / hidden == width;
        ensure!(fits && columns % hidden == 0, Shape, "gates {x} and weight {w} do not fit {gates} gates");
        let batch_first = cx.flag("batch_first")?;
        let (steps, batch) = if batch_first { (second, first) } else { (first, second) };
        ensure!(steps > 0, Shape, "a sequence of no time steps: {x}");
        ensure!(x.dtype.is_float(), DType, "a recurrent layer needs floats, got {x}");
        let layer =
            Layer { steps, batch, hidden, gates, batch_first, reverse: cx.flag("reverse")?, dtype: x.dtype };
        let most = layer.sequence(5).checked_numel().and_then(|n| n.checked_mul(size_of::<f64>()));
        ensure!(most.is_some(), Size, "{x} is larger than memory can be");
        layer.expect(cx, weight, &[rows, hidden])?;
        Ok(layer)
    }

    /// Requires input `i`, if present, to be of the layer's dtype and exactly this shape.
    ///
    /// # Errors
    /// `Shape` or `DType` if it is not.
    pub fn expect(&self, cx: &OpCx, i: usize, shape: &[usize]) -> Result<()> {
        let Some(t) = cx.opt(i) else { return Ok(()) };
        ensure!(t.dtype == self.dtype, DType, "input {i} must be of {}, got {t}", self.dtype);
        ensure!(t.shape[..] == *shape, Shape, "input {i} must be {}, got {t}", Shape::new(shape));
        Ok(())
    }

    /// Requires input `i` to be a state `[B, H]`.
    ///
    /// # Errors
    /// As [`Layer::expect`], and `Attribute` if it is absent.
    pub fn expect_state(&self, cx: &OpCx, i: usize) -> Result<()> {
        cx.ty(i)?;
        self.expect(cx, i, &[self.batch, self.hidden])
    }

    /// Requires input `i`, if present, to be a gradient or stash: a sequence of `width` blocks of `H`.
    ///
    /// # Errors
    /// As [`Layer::expect`].
    pub fn expect_sequence(&self, cx: &OpCx, i: usize, width: usize) -> Result<()> {
        self.expect(cx, i, &self.sequence(width))
    }

    /// Shape of a sequence of `width` blocks of `H`.
    pub fn sequence(&self, width: usize) -> Shape {
        let columns = self.hidden.saturating_mul(width);
        let [first, second] =
            if self.batch_first { [self.batch, self.steps] } else { [self.steps, self.batch] };
        Shape::new(&[first, second, columns])
    }

    /// Type of a sequence of `width` blocks of `H`.
    pub fn sequence_type(&self, width: usize) -> TensorType {
        TensorType::new(self.dtype, self.sequence(width))
    }

    /// Type of a state.
    pub fn state_type(&self) -> TensorType {
        TensorType::new(self.dtype, [self.batch, self.hidden])
    }

    /// Operations of all steps: the product with the weight, and `pointwise` for each element of the state.
    pub fn flops(&self, pointwise: usize) -> f64 {
        let each = 2 * self.gates * self.hidden + pointwise;
        (self.steps * self.batch * self.hidden) as f64 * each as f64
    }

    /// The time of the step that is computed `nth`.
    pub fn time(&self, nth: usize) -> usize {
        if self.reverse { self.steps - 1 - nth } else { nth }
    }

    /// The place of a sample's row at a time among the rows of a sequence.
    pub fn row(&self, time: usize, sample: usize) -> usize {
        if self.batch_first { sample * self.steps + time } else { time * self.batch + sample }
    }

    /// Appends the state before each step, as a sequence: the initial state, then `states` but the last one
    /// computed.
    ///
    /// # Errors
    /// None for a layer's own states.
    pub fn previous(&self, cx: &mut GradCx, states: ValueId, initial: ValueId) -> Result<ValueId> {
        let dim = usize::from(self.batch_first);
        let initial = cx.unsqueeze(initial, dim)?;
        if self.steps == 1 {
            return Ok(initial);
        }
        if self.reverse {
            let rest = cx.slice(states, dim, 1, self.steps)?;
            cx.cat(&[rest, initial], dim)
        } else {
            let rest = cx.slice(states, dim, 0, self.steps - 1)?;
            cx.cat(&[initial, rest], dim)
        }
    }

    /// Sets the gradients of weight (input 1) and bias (input 2), given that of the sums they enter, a
    /// sequence of gates.
    ///
    /// # Errors
    /// None for a layer's own gradient.
    pub fn set_parameters(&self, cx: &mut GradCx, dgates: ValueId, initial: ValueId) -> Result<()> {
        let rows = self.steps * self.batch;
        let dgates = cx.reshape(dgates, &[rows, self.gates * self.hidden])?;
        if cx.needs(1) {
            let before = self.previous(cx, cx.y(0), initial)?;
            let before = cx.reshape(before, &[rows, self.hidden])?;
            let transposed = cx.transpose_last(dgates)?;
            let dw = cx.matmul(transposed, before)?;
            cx.set(1, dw)?;
        }
        if cx.needs(2) {
            let db = cx.sum(dgates, &[0], false)?;
            cx.set(2, db)?;
        }
        Ok(())
    }

    /// The attributes of the gradient's node.
    pub fn attrs(&self) -> Attrs {
        Attrs::new().with("reverse", self.reverse).with("batch_first", self.batch_first)
    }
}

/// Numbers of a tensor that the type rule has seen.
pub(super) fn floats<'a>(inputs: &[Option<&'a crate::Tensor>], i: usize) -> &'a [f64] {
    inputs[i].expect("typed").floats()
}

/// Numbers of an input that may be absent.
pub(super) fn opt_floats<'a>(inputs: &[Option<&'a crate::Tensor>], i: usize) -> Option<&'a [f64]> {
    inputs.get(i).copied().flatten().map(crate::Tensor::floats)
}

/// `out[j] + Σ_k x[k] · weight[j, k]` for each `j`: how the state before a step enters its gates.
pub(super) fn add_product(out: &mut [f64], x: &[f64], weight: &[f64]) {
    for (o, row) in out.iter_mut().zip(weight.chunks_exact(x.len())) {
        *o += row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
    }
}

/// `out[k] + Σ_j x[j] · weight[j, k]` for each `k`: the gradient of [`add_product`] by its `x`.
pub(super) fn add_transposed(out: &mut [f64], x: &[f64], weight: &[f64]) {
    for (x, row) in x.iter().zip(weight.chunks_exact(out.len())) {
        out.iter_mut().zip(row).for_each(|(o, w)| *o += w * x);
    }
}

/// Logistic function.
pub(super) fn sigmoid(x: f64) -> f64 {
    // The exponential of a negative number cannot overflow.
    let e = (-x.abs()).exp();
    if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
}
