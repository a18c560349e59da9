//! Adagrad: settings and the numbers of each step.

use super::table::{NOT_NEGATIVE, POSITIVE, settings};
use super::{Moment, Rule, Span, UpdateRule};
use headwater_core::ops::update::adagrad::ADAGRAD;
use headwater_core::{Attrs, Builder, ValueId};

settings! {
    /// `torch.optim.Adagrad`, with its defaults.
    Adagrad {
        /// Peak learning rate.
        lr: f64 = 1e-2, NOT_NEGATIVE;
        /// The learning rate of step t is `lr / (1 + (t − 1) · lr_decay)`.
        lr_decay: f64 = 0.0, NOT_NEGATIVE;
        /// Added to the root of the sum.
        eps: f64 = 1e-10, POSITIVE;
        /// Added to the gradient, times the parameter.
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
        /// The number that the sum of squares starts at.
        initial_accumulator_value: f64 = 0.0, NOT_NEGATIVE;
        /// Goes up the gradient.
        maximize: bool = false;
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
}
