//! Metrics by name: evaluations are compared by them, and logs and charts show them.

use super::Scores;
use serde::{Deserialize, Serialize};

/// Metric by which evaluations are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The mean loss: lower is better.
    #[default]
    Loss,
    /// The share of labels whose class is predicted: higher is better.
    Accuracy,
    /// The share of labels whose class is among the `eval.top_k` largest logits: higher is better.
    TopK,
    /// `exp` of the mean negative log-likelihood of a token: lower is better.
    Perplexity,
    /// True positives over predictions, mean over classes: higher is better.
    Precision,
    /// True positives over labels, mean over classes: higher is better.
    Recall,
    /// The harmonic mean of precision and recall, mean over classes: higher is better.
    F1,
    /// Intersection over union, mean over classes: higher is better.
    Iou,
    /// The area under the ROC curve, for two classes: higher is better.
    RocAuc,
    /// The average precision, an area under precision against recall, for two classes: higher is better.
    PrAuc,
    /// The mean negative log-likelihood of a sample's label: lower is better.
    LogLoss,
    /// The mean squared error of numbers: lower is better.
    Mse,
    /// The mean absolute error of numbers: lower is better.
    Mae,
    /// The coefficient of determination of numbers: higher is better.
    R2,
}

impl Metric {
    /// Every metric, in the order in which they are shown.
    pub const ALL: [Metric; 14] = [
        Metric::Loss,
        Metric::Accuracy,
        Metric::TopK,
        Metric::Perplexity,
        Metric::Precision,
        Metric::Recall,
        Metric::F1,
        Metric::Iou,
        Metric::RocAuc,
        Metric::PrAuc,
        Metric::LogLoss,
        Metric::Mse,
        Metric::Mae,
        Metric::R2,
    ];

    /// Its value; `None` if it was not measured.
    pub fn of(self, s: &Scores) -> Option<f64> {
        let by = s.by_class.as_ref();
        match self {
            Metric::Loss => Some(s.loss),
            Metric::Accuracy => s.accuracy,
            Metric::TopK => s.top_k.map(|(_, share)| share),
            Metric::Perplexity => s.perplexity,
            Metric::Precision => by.map(|b| b.precision),
            Metric::Recall => by.map(|b| b.recall),
            Metric::F1 => by.map(|b| b.f1),
            Metric::Iou => by.map(|b| b.iou),
            Metric::RocAuc => s.roc_auc,
            Metric::PrAuc => s.pr_auc,
            Metric::LogLoss => s.log_loss,
            Metric::Mse => s.regression.map(|r| r.mse),
            Metric::Mae => s.regression.map(|r| r.mae),
            Metric::R2 => s.regression.map(|r| r.r2),
        }
    }

    /// True if a lower value is a better one.
    pub fn falls(self) -> bool {
        matches!(self, Metric::Loss | Metric::Perplexity | Metric::LogLoss | Metric::Mse | Metric::Mae)
    }

    /// By how much `value` is better than `other`; negative if it is worse.
    pub fn gain(self, value: f64, other: f64) -> f64 {
        if self.falls() { other - value } else { value - other }
    }

    /// Its name in settings, logs and results.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Loss => "loss",
            Metric::Accuracy => "accuracy",
            Metric::TopK => "top_k",
            Metric::Perplexity => "perplexity",
            Metric::Precision => "precision",
            Metric::Recall => "recall",
            Metric::F1 => "f1",
            Metric::Iou => "iou",
            Metric::RocAuc => "roc_auc",
            Metric::PrAuc => "pr_auc",
            Metric::LogLoss => "log_loss",
            Metric::Mse => "mse",
            Metric::Mae => "mae",
            Metric::R2 => "r2",
        }
    }

    /// Its name in sentences.
    pub fn word(self) -> &'static str {
        match self {
            Metric::TopK => "top-k accuracy",
            Metric::F1 => "F1",
            Metric::Iou => "IoU",
            Metric::RocAuc => "ROC-AUC",
            Metric::PrAuc => "PR-AUC",
            Metric::LogLoss => "log loss",
            Metric::Mse => "MSE",
            Metric::Mae => "MAE",
            Metric::R2 => "R²",
            other => other.name(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_settings() {
        for metric in Metric::ALL {
            assert_eq!(serde_json::to_value(metric).unwrap(), metric.name());
        }
        assert!(Metric::ALL.windows(2).all(|pair| pair[0] < pair[1]), "each once, in order");
    }

    #[test]
    fn gains_have_the_sign_of_what_is_better() {
        for metric in Metric::ALL {
            assert_eq!(metric.gain(0.25, 0.5) > 0.0, metric.falls(), "{metric:?}");
            assert_eq!(metric.gain(0.5, 0.5), 0.0);
        }
    }
}
