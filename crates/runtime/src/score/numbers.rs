//! Errors of numbers, and labels 0 and 1 as numbers beside one output for each sample.

use super::classes::{SAME_LOSS, by_class};
use super::{Regression, Scores};

/// Sums that errors of numbers are made of.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub count: f64,
    squares: f64,
    magnitudes: f64,
    truth: f64,
    truths: f64,
}

impl Numbers {
    pub fn add(&mut self, want: f64, got: f64) {
        self.count += 1.0;
        self.squares += (got - want).powi(2);
        self.magnitudes += (got - want).abs();
        // Welford's update (1962): the sum of squares about the mean without cancellation.
        let before = want - self.truth;
        self.truth += before / self.count;
        self.truths += before * (want - self.truth);
    }

    pub fn finish(&self) -> Regression {
        let n = self.count;
        Regression { mse: self.squares / n, mae: self.magnitudes / n, r2: 1.0 - self.squares / self.truths }
    }
}

/// Labels 0 and 1 as numbers, beside one output for each sample.
#[derive(Debug, Default)]
pub(super) struct Binary {
    /// True once a label is neither 0 nor 1.
    pub other: bool,
    /// True once an output is no probability.
    outside: bool,
    /// Sum of the binary cross-entropy, outputs being logits.
    nll: f64,
    /// For each of [`THRESHOLDS`], counts by label and prediction.
    confusion: [[u64; 4]; 2],
}

/// Outputs above these are of class 1: logits, and probabilities.
const THRESHOLDS: [f64; 2] = [0.0, 0.5];

impl Binary {
    pub fn add(&mut self, want: f64, got: f64) {
        self.other |= want != 0.0 && want != 1.0;
        self.outside |= !(0.0..=1.0).contains(&got);
        // As `binary_cross_entropy_with_logits` has it: no exponential overflows.
        self.nll += got.max(0.0) - got * want + (-got.abs()).exp().ln_1p();
        if !got.is_nan() {
            for (counts, threshold) in self.confusion.iter_mut().zip(THRESHOLDS) {
                counts[2 * (want == 1.0) as usize + (got > threshold) as usize] += 1;
            }
        }
    }

    /// Sets the scores of `count` labels. The model's own loss tells logits from other outputs; where it is
    /// neither of those known here, outputs that could be probabilities are taken for such.
    pub fn finish(&self, s: &mut Scores, count: f64, numbers: Regression) {
        let loss = s.loss;
        let near = |x: f64| (x - loss).abs() <= SAME_LOSS * loss.abs();
        let (logits, squares) = (near(self.nll / count), near(numbers.mse));
        let (at, why) = match (logits, squares, self.outside) {
            (true, ..) => (0, "where the logit is above 0"),
            (false, true, _) => (1, "where the output, whose loss is the squared error, is above 0.5"),
            (false, false, false) => (1, "where the output, taken as a probability, is above 0.5"),
            (false, false, true) => {
                (0, "where the output is above 0, though the loss is not its plain binary cross-entropy")
            }
        };
        let counts = &self.confusion[at];
        s.counted = Some(count as u64);
        s.accuracy = Some((counts[0] + counts[3]) as f64 / count);
        s.by_class = Some(by_class(counts, 2));
        s.log_loss = logits.then(|| self.nll / count);
        s.regression = (squares && !logits).then_some(numbers);
        s.notes
            .push(format!("the labels are all 0 or 1 and were taken as classes: class 1 is predicted {why}"));
    }
}
