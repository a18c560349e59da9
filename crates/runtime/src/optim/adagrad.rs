//! Adagrad: settings and the numbers of each step.

use super::{Moment, Rule, Span, UpdateRule, check_eps, rates, within};
use crate::error::Result;
use headwater_core::ops::update::adagrad::ADAGRAD;
use headwater_core::{Attrs, Builder, ValueId};
use serde::{Deserialize, Serialize};

/// `torch.optim.Adagrad`, with its defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adagrad {
    /// Peak learning rate.
    pub lr: f64,
    /// The learning rate of step t is `lr / (1 + (t − 1) · lr_decay)`.
    pub lr_decay: f64,
    /// Added to the root of the sum.
    pub eps: f64,
    /// Added to the gradient, times the parameter.
    pub weight_decay: f64,
    /// What the sum of squares starts at.
    pub initial_accumulator_value: f64,
    /// Goes up the gradient.
    pub maximize: bool,
}

impl Default for Adagrad {
    fn default() -> Self {
        Adagrad {
            lr: 1e-2,
            lr_decay: 0.0,
            eps: 1e-10,
            weight_decay: 0.0,
            initial_accumulator_value: 0.0,
            maximize: false,
        }
    }
}

impl UpdateRule for Adagrad {
    fn by_element(&self) -> bool {
        true
    }
    fn moments(&self) -> Vec<Option<Moment>> {
        vec![Some(Moment { initial: self.initial_accumulator_value, ..Moment::squares("sum") })]
    }

    fn scalars(&self) -> Vec<&'static str> {
        vec!["step_size"]
    }

    fn step(&self, b: &mut Builder, span: &Span) -> headwater_core::Result<Vec<ValueId>> {
        let attrs = Attrs::new()
            .with("eps", self.eps)
            .with("weight_decay", self.weight_decay)
            .with("maximize", self.maximize);
        span.apply(b, &ADAGRAD, attrs)
    }
}

impl Rule for Adagrad {
    fn values(&self, t: u64, lr: f64) -> Vec<f64> {
        vec![lr / (1.0 + (t - 1) as f64 * self.lr_decay)]
    }

    fn lr(&self) -> f64 {
        self.lr
    }

    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }

    fn check(&self) -> Result<()> {
        rates(self.lr, self.weight_decay)?;
        within("lr_decay", self.lr_decay, 0.0, f64::INFINITY)?;
        within("initial_accumulator_value", self.initial_accumulator_value, 0.0, f64::INFINITY)?;
        check_eps(self.eps)
    }
}
