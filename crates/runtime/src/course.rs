//! Held-out evaluations as a run goes by: which was the best, when the run ends early, and when a plateau
//! lowers the learning rate. Part of every checkpoint, so that a run that resumes decides as it would have.

use crate::config::EvalConfig;
use crate::evaluation::Evaluation;
use crate::schedule::Shape;
use crate::score::Metric;
use serde::{Deserialize, Serialize};

/// `ReduceLROnPlateau`'s `eps`: the least by which the learning rate falls.
const EPS: f64 = 1e-8;

/// The evaluation that was best so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Steps done then.
    pub step: u64,
    /// The metric.
    pub value: f64,
}

/// The course of a run's evaluations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Course {
    /// Steps done at the last evaluation.
    pub evaluated: Option<u64>,
    /// The best evaluation.
    pub best: Option<Best>,
    /// Evaluations since the best one.
    pub since: u64,
    /// A plateau's factor on the learning rate, 1 at first.
    pub factor: f64,
    /// The best metric as the plateau counts it, with its own threshold.
    level: Option<f64>,
    /// Evaluations since then.
    bad: u64,
    /// Evaluations for which nothing is counted after a fall of the rate.
    resting: u64,
}

impl Default for Course {
    fn default() -> Course {
        Course { evaluated: None, best: None, since: 0, factor: 1.0, level: None, bad: 0, resting: 0 }
    }
}

impl Course {
    /// Takes in an evaluation; returns whether it is the best so far. `lr` is the peak learning rate.
    /// An evaluation counts once, however often a run is resumed at it.
    pub fn add(&mut self, e: &Evaluation, eval: &EvalConfig, shape: &Shape, lr: f64) -> bool {
        if self.evaluated == Some(e.step) {
            return false;
        }
        self.evaluated = Some(e.step);
        // A metric that is not finite is never better.
        let value = eval.metric.of(&e.scores).unwrap_or(f64::NAN);
        let ahead = |before: f64| eval.metric.gain(value, before);
        let better = value.is_finite() && self.best.is_none_or(|b| ahead(b.value) > eval.min_delta);
        if better {
            (self.best, self.since) = (Some(Best { step: e.step, value }), 0);
        } else {
            self.since += 1;
        }
        self.plateau(value, eval.metric, shape, lr);
        better
    }

    /// `ReduceLROnPlateau.step(value)` with a relative threshold.
    fn plateau(&mut self, value: f64, metric: Metric, shape: &Shape, lr: f64) {
        let &Shape::Plateau { factor, patience, threshold, cooldown, min_lr } = shape else { return };
        let better = |level: f64| match metric.falls() {
            true => value < level * (1.0 - threshold),
            false => value > level * (1.0 + threshold),
        };
        if value.is_finite() && self.level.is_none_or(better) {
            (self.level, self.bad) = (Some(value), 0);
        } else {
            self.bad += 1;
        }
        if self.resting > 0 {
            (self.resting, self.bad) = (self.resting - 1, 0);
        }
        if self.bad > patience {
            let lower = self.factor.min((self.factor * factor).max(min_lr / lr));
            // Smaller falls than its `eps` are none; they begin the cooldown all the same.
            if lr > 0.0 && (self.factor - lower) * lr > EPS {
                self.factor = lower;
            }
            (self.resting, self.bad) = (cooldown, 0);
        }
    }

    /// The course of a run that goes on with another metric: what was best by the one before says nothing.
    pub fn compared_anew(self) -> Course {
        Course { evaluated: self.evaluated, factor: self.factor, ..Course::default() }
    }

    /// True when the run ends early: so many evaluations without a better one.
    pub fn ends(&self, eval: &EvalConfig) -> bool {
        eval.patience.is_some_and(|patience| self.since >= patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score::Scores;

    fn at(step: u64, loss: f64) -> Evaluation {
        let scores = Scores { samples: 8, loss, accuracy: Some(1.0 - loss), ..Scores::default() };
        Evaluation { step, scores, left_out: 0, seconds: 0.0, by_batch: Default::default() }
    }

    fn factors(losses: &[f64], shape: &Shape, metric: Metric, lr: f64) -> Vec<f64> {
        let eval = EvalConfig { metric, ..EvalConfig::default() };
        let mut course = Course::default();
        let mut take = |(i, &loss): (usize, &f64)| {
            course.add(&at(i as u64 + 1, loss), &eval, shape, lr);
            course.factor
        };
        losses.iter().enumerate().map(&mut take).collect()
    }

    /// By hand from the definition of `ReduceLROnPlateau`, for both modes.
    #[test]
    fn a_plateau_lowers_the_rate() {
        let shape =
            |cooldown| Shape::Plateau { factor: 0.5, patience: 1, threshold: 0.1, cooldown, min_lr: 0.3 };
        // 0.95 and 0.91 are not below 0.9 · 1.0: the second one too many lowers the rate.
        let losses = [1.0, 0.95, 0.91, 0.8, 0.8, 0.8, 0.8, 0.8];
        let want = [1.0, 1.0, 0.5, 0.5, 0.5, 0.3, 0.3, 0.3];
        assert_eq!(factors(&losses, &shape(0), Metric::Loss, 1.0), want);
        // After the fall at the third, two evaluations are not counted.
        let losses = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
        let want = [1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.3];
        assert_eq!(factors(&losses, &shape(2), Metric::Loss, 1.0), want);
        // Accuracies 0.1, 0.2, 0.21 (not 10 % above), 0.21, 0.3.
        let losses = [0.9, 0.8, 0.79, 0.79, 0.7];
        assert_eq!(factors(&losses, &shape(0), Metric::Accuracy, 2.0), [1.0, 1.0, 1.0, 0.5, 0.5]);
        assert_eq!(factors(&losses, &Shape::Constant, Metric::Loss, 1.0), [1.0; 5]);
        // From 1.5e-8 to 7.5e-9 is less than `eps`, from 3e-8 to 1.5e-8 more.
        let shape = Shape::Plateau { factor: 0.5, patience: 0, threshold: 0.1, cooldown: 0, min_lr: 0.0 };
        assert_eq!(factors(&[1.0; 4], &shape, Metric::Loss, 3e-8), [1.0, 0.5, 0.5, 0.5]);
    }

    #[test]
    fn the_best_is_kept_and_patience_ends() {
        let eval = EvalConfig { patience: Some(2), min_delta: 0.05, ..EvalConfig::default() };
        let mut course = Course::default();
        let mut add = |step, loss| {
            let better = course.add(&at(step, loss), &eval, &Shape::Constant, 1.0);
            (better, course.ends(&eval), course.best.map(|b| b.step))
        };
        assert_eq!(add(1, f64::NAN), (false, false, None));
        assert_eq!(add(2, 1.0), (true, false, Some(2)));
        assert_eq!(add(3, 0.97), (false, false, Some(2)));
        assert_eq!(add(3, 0.97), (false, false, Some(2)), "the same evaluation again");
        assert_eq!(add(4, 0.9), (true, false, Some(4)));
        assert_eq!(add(5, 0.95), (false, false, Some(4)));
        assert_eq!(add(6, f64::INFINITY), (false, true, Some(4)));
    }
}
