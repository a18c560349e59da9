//! Learning rate as a pure function of the step.

use serde::{Deserialize, Serialize};

/// How the learning rate goes on after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// Stays.
    #[default]
    Constant,
    /// Falls along a line.
    Linear,
    /// Falls along half a cosine.
    Cosine,
}

/// A schedule: warm-up, then a shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// Peak learning rate.
    pub lr: f64,
    /// What follows the warm-up.
    pub shape: Shape,
    /// Steps of the warm-up: step t (from 0) of it has `lr · (t + 1) / warmup`.
    pub warmup: u64,
    /// All steps of the run.
    pub steps: u64,
    /// Share of `lr` that the step after the last would have (linear and cosine).
    pub end: f64,
}

impl Schedule {
    /// The learning rate of a step, counted from 0.
    pub fn rate(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.lr * (step + 1) as f64 / self.warmup as f64;
        }
        let left = self.steps.saturating_sub(self.warmup).max(1);
        let done = ((step - self.warmup) as f64 / left as f64).min(1.0);
        let factor = match self.shape {
            Shape::Constant => return self.lr,
            Shape::Linear => 1.0 - done,
            Shape::Cosine => (1.0 + (std::f64::consts::PI * done).cos()) / 2.0,
        };
        self.lr * (self.end + (1.0 - self.end) * factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warms_up_then_falls_to_the_end() {
        let s = |shape| Schedule { lr: 2.0, shape, warmup: 4, steps: 12, end: 0.0 };
        let rates: Vec<f64> = (0..6).map(|t| s(Shape::Linear).rate(t)).collect();
        assert_eq!(rates, [0.5, 1.0, 1.5, 2.0, 2.0, 1.75]);
        assert_eq!(s(Shape::Constant).rate(100), 2.0);
        assert_eq!(s(Shape::Cosine).rate(8), 1.0);
        assert!(s(Shape::Cosine).rate(12) < 1e-15);
        let kept = Schedule { end: 0.1, ..s(Shape::Cosine) };
        assert!((kept.rate(12) - 0.2).abs() < 1e-15 && kept.rate(99) == kept.rate(12));
        // No warm-up, one step.
        assert_eq!(Schedule { lr: 1.0, shape: Shape::Linear, warmup: 0, steps: 1, end: 0.0 }.rate(0), 1.0);
    }
}
