//! The common part of single steps: two products whose sum, block by block, goes through the gates'
//! functions.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::linear::linear::{Dims, LINEAR};
use crate::ops::{Case, OpCx, required};
use crate::tensor::TensorType;

/// Checks `(input [B, inputs], states [B, H], weights [G · H, inputs] and [G · H, H], two biases [G · H] or
/// none)`; the type of a state.
pub(super) fn state_type(cx: &OpCx, gates: usize, states: usize) -> Result<TensorType> {
    let state = cx.ty(1)?;
    let part = |x: usize, w: usize, bias: usize| -> Result<Dims> {
        let inputs = vec![cx.opt(x), cx.opt(w), cx.opt(bias)];
        cx.ty(w)?;
        Dims::of(&OpCx { inputs, attrs: cx.attrs })
    };
    let w = 1 + states;
    let (x, h) = (part(0, w, w + 2)?, part(1, w + 1, w + 3)?);
    let fits = x.out == h.out && state.shape.rank() == 2 && h.k.checked_mul(gates) == Some(h.n) && h.k > 0;
    ensure!(fits, Shape, "{} do not fit {gates} gates", cx.list_types());
    for i in 0..states {
        let t = cx.ty(1 + i)?;
        ensure!(t == state, Shape, "the states {t} and {state} differ");
    }
    ensure!(state.dtype == cx.dtype(0)?, DType, "input and state differ: {}", cx.list_types());
    Ok(state.clone())
}

/// The products that input and state add to the gates, each in blocks of `H`.
pub(super) fn gates(b: &mut Builder, inputs: &[Option<ValueId>], states: usize) -> Result<[ValueId; 2]> {
    let w = 1 + states;
    let bias = |i: usize| inputs.get(i).copied().flatten();
    let mut product = |x: usize, w: usize, bias: Option<ValueId>| {
        let operands = [Some(required(inputs, x)?), Some(required(inputs, w)?), bias];
        Ok(b.apply(&LINEAR, &operands, Attrs::new())?[0])
    };
    Ok([product(0, w, bias(w + 2))?, product(1, w + 1, bias(w + 3))?])
}

/// Block `i` of `H` columns.
pub(super) fn block(b: &mut Builder, x: ValueId, i: usize, hidden: usize) -> Result<ValueId> {
    b.slice(x, 1, i * hidden, (i + 1) * hidden)
}

/// Cases of a cell of `gates` gates and `states` states.
pub(super) fn cases(gates: usize, states: usize) -> Vec<Case> {
    let case = |name, batch: usize, biases: bool| {
        let mut case = Case::new(name).f(&[batch, 3]);
        for _ in 0..states {
            case = case.f(&[batch, 2]);
        }
        let case = case.f(&[2 * gates, 3]).f(&[2 * gates, 2]);
        if biases { case.f(&[2 * gates]).f(&[2 * gates]) } else { case.none().none() }
    };
    vec![case("biases", 2, true), case("no biases", 3, false), case("no samples", 0, true)]
}
