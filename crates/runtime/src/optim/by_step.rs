//! Settings as numbers of the step.

use super::{Adam, AdamW, Moment, Optimizer, RmsProp, Sgd, Span, UpdateRule};
use headwater_core::ops::update::lerp_weight;
use headwater_core::{Builder, ValueId};

/// An optimizer of which weight decay, momentum and decay rates are numbers of the step, where its
/// operators take them so.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ByStep(pub Optimizer);

impl ByStep {
    /// Values of [`UpdateRule::scalars`] at a step, counted from 1.
    pub fn values(&self, t: u64, lr: f64) -> Vec<f64> {
        let rule = self.0.rule();
        let changing = rule.changing().into_iter().map(|(_, x)| x);
        rule.values(t, lr).into_iter().chain(changing).collect()
    }

    /// True if the plan of an update with these settings is that of `other` too. The rate is no constant of
    /// any plan.
    pub fn plans_as(&self, other: &ByStep) -> bool {
        self.constants() == other.constants()
    }

    fn constants(&self) -> Optimizer {
        match self.0.clone() {
            Optimizer::Adam(o) => {
                let Adam { lr, betas, weight_decay, .. } = Adam::default();
                Optimizer::Adam(Adam { lr, betas, weight_decay, ..o })
            }
            Optimizer::AdamW(o) => {
                let AdamW { lr, betas, weight_decay, .. } = AdamW::default();
                Optimizer::AdamW(AdamW { lr, betas, weight_decay, ..o })
            }
            Optimizer::RmsProp(o) => {
                let RmsProp { lr, alpha, weight_decay, momentum, .. } = RmsProp::default();
                Optimizer::RmsProp(RmsProp { lr, alpha, weight_decay, momentum, ..o })
            }
            Optimizer::Sgd(o) => {
                let Sgd { lr, momentum, dampening, weight_decay, .. } = Sgd::default();
                Optimizer::Sgd(Sgd { lr, momentum, dampening, weight_decay, ..o })
            }
            other => other,
        }
    }
}

impl UpdateRule for ByStep {
    fn moments(&self) -> Vec<Option<Moment>> {
        self.0.rule().moments()
    }

    fn scalars(&self) -> Vec<&'static str> {
        let rule = self.0.rule();
        let changing = rule.changing().into_iter().map(|(name, _)| name);
        rule.scalars().into_iter().chain(changing).collect()
    }

    fn by_step(&self) -> bool {
        !self.0.rule().changing().is_empty()
    }

    fn by_element(&self) -> bool {
        self.0.rule().by_element()
    }

    fn step(&self, b: &mut Builder, span: &Span) -> headwater_core::Result<Vec<ValueId>> {
        self.0.rule().step(b, span)
    }
}

/// A mean's decay rate as scalars of the update's operators.
pub(super) fn mean(decay: f64) -> (&'static str, f64) {
    ("mean_weight", lerp_weight(1.0 - decay))
}

/// The same of a mean of squares.
pub(super) fn squares(decay: f64) -> [(&'static str, f64); 2] {
    [("square_decay", decay), ("square_weight", 1.0 - decay)]
}
