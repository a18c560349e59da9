//! Two classes by the order of their scores: areas under the curves of true against false positives (ROC) and
//! of precision against recall.

/// Scores that are kept; of more samples the areas are not measured.
const MOST: usize = 1 << 22;

/// Scores of samples, higher for class 1, beside their labels.
#[derive(Debug, Default)]
pub(super) struct Ranking {
    scores: Vec<(f64, bool)>,
    /// True once a score is NaN, or there are too many.
    lost: bool,
}

impl Ranking {
    pub fn add(&mut self, score: f64, positive: bool) {
        self.lost |= score.is_nan() || self.scores.len() == MOST;
        if !self.lost {
            self.scores.push((score, positive));
        }
    }

    /// The area under the ROC curve, where equal scores count half (Mann and Whitney 1947), and the average
    /// precision, which is the area under steps of precision against recall; both as scikit-learn has them.
    /// `None` without samples of both classes.
    pub fn finish(mut self) -> Option<[f64; 2]> {
        let positives = self.scores.iter().filter(|s| s.1).count() as f64;
        let negatives = self.scores.len() as f64 - positives;
        if self.lost || positives == 0.0 || negatives == 0.0 {
            return None;
        }
        self.scores.sort_by(|a, b| b.0.total_cmp(&a.0));
        let (mut right, mut wrong, mut roc, mut average) = (0.0, 0.0, 0.0, 0.0);
        for equal in self.scores.chunk_by(|a, b| a.0 == b.0) {
            let hits = equal.iter().filter(|s| s.1).count() as f64;
            let misses = equal.len() as f64 - hits;
            roc += misses * (right + hits / 2.0);
            (right, wrong) = (right + hits, wrong + misses);
            average += hits / positives * (right / (right + wrong));
        }
        Some([roc / (positives * negatives), average])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(scores: &[(f64, bool)]) -> Option<[f64; 2]> {
        let mut ranking = Ranking::default();
        scores.iter().for_each(|(score, positive)| ranking.add(*score, *positive));
        ranking.finish()
    }

    /// Values of scikit-learn 1.9: `roc_auc_score` and `average_precision_score`.
    #[test]
    fn areas_are_those_of_scikit_learn() {
        let near = |found: Option<[f64; 2]>, want: [f64; 2]| {
            let found = found.unwrap();
            assert!(found.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-15), "{found:?} {want:?}");
        };
        near(of(&[(0.1, false), (0.4, false), (0.35, true), (0.8, true)]), [0.75, 5.0 / 6.0]);
        // All scores are equal.
        near(of(&[(0.5, false), (0.5, true), (0.5, false), (0.5, true), (0.5, true)]), [0.5, 0.6]);
        let scores = [0.0, 0.5, 0.5, 0.9, 0.2, 0.2, 0.7];
        let labels = [true, false, true, true, false, true, false];
        let all: Vec<(f64, bool)> = scores.into_iter().zip(labels).collect();
        near(of(&all), [5.0 / 12.0, 9.0 / 14.0]);
    }

    #[test]
    fn one_class_or_nan_has_none() {
        assert_eq!(of(&[(0.1, true), (0.4, true)]), None);
        assert_eq!(of(&[(f64::NAN, true), (0.4, false)]), None);
        assert_eq!(of(&[]), None);
    }
}
