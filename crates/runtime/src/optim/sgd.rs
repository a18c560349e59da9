//! SGD: settings and the numbers of each step.

use super::table::{FINITE, NOT_NEGATIVE, settings};
use super::{Moment, Rule, SettingTable, Span, UpdateRule};
use crate::error::{Error, Result};
use headwater_core::ops::update::sgd::SGD;
use headwater_core::{Attrs, Builder, ValueId};

settings! {
    /// `torch.optim.SGD`, with its defaults.
    Sgd {
        /// Peak learning rate.
        lr: f64 = 1e-3, NOT_NEGATIVE;
        /// Momentum; 0: none. With momentum it does not step each element by itself.
        momentum: f64 = 0.0, NOT_NEGATIVE;
        /// Share of each gradient that is kept out of the momentum buffer, from the second step on.
        dampening: f64 = 0.0, FINITE;
        /// Added to the gradient, times the parameter.
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
        /// Nesterov's momentum.
        nesterov: bool = false;
        /// Goes up the gradient.
        maximize: bool = false;
    }
}

impl UpdateRule for Sgd {
    fn by_element(&self) -> bool {
        // With momentum, PyTorch moves rows that no gradient names.
        self.momentum == 0.0
    }
    fn moments(&self) -> Vec<Option<Moment>> {
        vec![(self.momentum != 0.0).then(|| Moment::new("momentum_buffer"))]
    }

    fn scalars(&self) -> Vec<&'static str> {
        vec!["lr", "gain"]
    }

    fn step(&self, b: &mut Builder, span: &Span) -> headwater_core::Result<Vec<ValueId>> {
        let changing = [("momentum", self.momentum), ("weight_decay", self.weight_decay)];
        let attrs = Attrs::new().with("nesterov", self.nesterov).with("maximize", self.maximize);
        span.apply(b, &SGD, span.constants(attrs, changing))
    }
}

impl Rule for Sgd {
    fn changing(&self) -> Vec<(&'static str, f64)> {
        vec![("l2", self.weight_decay), ("buffer_decay", self.momentum)]
    }

    fn values(&self, t: u64, lr: f64) -> Vec<f64> {
        vec![lr, if t == 1 { 1.0 } else { 1.0 - self.dampening }]
    }

    fn check(&self) -> Result<()> {
        self.in_range()?;
        if self.nesterov && (self.momentum == 0.0 || self.dampening != 0.0) {
            return Err(Error::config("nesterov", "needs momentum and no dampening"));
        }
        Ok(())
    }
}
