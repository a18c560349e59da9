//! Layers of recurrent networks, forward and backward. A step is a product with the weight, packed once for
//! all steps. The gates' functions follow on its result while that is in the first-level cache.
//!
//! Steps follow each other. Within one, blocks of samples and strips of the state's columns are tasks of
//! their own. The threads get the same strips in every step, so that each finds its part of the weight in its
//! own caches. The cut depends on the sizes alone. Sums, functions and carried states are in f32 (f64 of
//! f64); products take the stored, rounded numbers.

mod backward;
mod cut;
mod forward;
mod gates;

use super::{Kernel, Site, contiguous, floats};
use crate::float_dtype;
use crate::tier::Tier;
use headwater_core::OpCx;
use headwater_core::diagnostic::Result;
use headwater_core::ops::recurrent::layer::Layer;
use headwater_core::ops::recurrent::{gru_layer, lstm_layer, rnn_layer};

macro_rules! layers {
    ($($op:path, $pass:ident $cell:ident $layer:path;)*) => { &[$(
        Kernel {
            op: &$op,
            takes: floats,
            workspace: |site| match Setup::new(site, Cell::$cell, $layer) {
                Ok(s) => float_dtype!(s.layer.dtype, T => $pass::workspace::<T>(&s, site.threads)),
                Err(_) => 0,
            },
            strided: contiguous,
            prepare: |site| {
                let s = Setup::new(site, Cell::$cell, $layer)?;
                Ok(float_dtype!(s.layer.dtype, T => Box::new(move |args| $pass::run::<T>(&s, args))))
            },
        },
    )*] };
}

/// The family.
pub static KERNELS: &[Kernel] = layers! {
    lstm_layer::LSTM_LAYER, forward Lstm lstm_layer::forward_layer;
    lstm_layer::LSTM_LAYER_BACKWARD, backward Lstm lstm_layer::backward_layer;
    gru_layer::GRU_LAYER, forward Gru gru_layer::forward_layer;
    gru_layer::GRU_LAYER_BACKWARD, backward Gru gru_layer::backward_layer;
    rnn_layer::RNN_LAYER, forward Rnn rnn_layer::forward_layer;
    rnn_layer::RNN_LAYER_BACKWARD, backward Rnn rnn_layer::backward_layer;
};

/// Kinds of cells.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cell {
    Lstm,
    Gru,
    Rnn,
}

/// A node's sizes and attributes.
struct Setup {
    layer: Layer,
    cell: Cell,
    /// Simple units are rectified.
    relu: bool,
    tier: Tier,
}

impl Setup {
    fn new(site: &Site, cell: Cell, layer: fn(&OpCx) -> Result<Layer>) -> Result<Setup> {
        Ok(Setup { layer: layer(&site.cx)?, cell, relu: site.cx.flag("relu")?, tier: site.tier })
    }
}
