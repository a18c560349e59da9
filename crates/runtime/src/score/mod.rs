//! Metrics of a model on samples: of classes (one for each sample, token or pixel) and of numbers.
//! Evaluations while training and `headwater eval` are made of these alike. Knows tensors, and neither files
//! nor devices.

mod by_batch;
mod classes;
mod metric;
mod numbers;
mod ranking;

pub use by_batch::{Batch, ByBatch, Paired};
pub use metric::Metric;

use classes::{CLASSES, Counts, Logits, by_class};
use headwater_core::{Tensor, TensorType};
use numbers::{Binary, Numbers};
use ranking::Ranking;
use serde::{Deserialize, Deserializer, Serialize};

/// Number of the largest logits that count for the top-k accuracy, unless it is said.
pub const TOP_K: usize = 5;

/// Names of inputs that hold labels.
const LABELS: [&str; 5] = ["labels", "label", "targets", "target", "y"];

/// Metrics that were measured. One that does not apply is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Samples.
    pub samples: usize,
    /// Mean loss over the batches, weighted by their samples.
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    /// Standard error of that mean, from how the losses of the batches differ; none of one batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_error: Option<f64>,
    /// The input that holds the truth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<String>,
    /// Share of labels whose class has the largest logit; of two classes with one output, those on their side
    /// of the threshold that the notes state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Share of labels whose class is among the `top_k.0` largest logits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<(usize, f64)>,
    /// Labels counted: samples, tokens or pixels, without those that are ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<u64>,
    /// Perplexity of tokens: `exp` of the mean negative log-likelihood.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
    /// Means over the classes that occur as label or prediction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_class: Option<ByClass>,
    /// Area under the ROC curve, for two classes of samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roc_auc: Option<f64>,
    /// Average precision, an area under the curve of precision against recall, for two classes of samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pr_auc: Option<f64>,
    /// Mean negative log-likelihood of the labels of samples, whatever the model's own loss is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_loss: Option<f64>,
    /// Mean squared error, mean absolute error, and 1 − (residual over total sum of squares).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regression: Option<Regression>,
    /// Metrics that could not be measured, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Means over classes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ByClass {
    /// True positives over predictions of a class.
    pub precision: f64,
    /// True positives over labels of a class.
    pub recall: f64,
    /// Harmonic mean of both.
    pub f1: f64,
    /// Intersection over union.
    pub iou: f64,
    /// Counts `[label][prediction]`. For more than [`LISTED`] classes they are in no JSON.
    #[serde(default, skip_serializing_if = "unlisted")]
    pub confusion: Vec<Vec<u64>>,
    /// Each class, of at most [`LISTED`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub each: Vec<OneClass>,
}

/// Classes that are listed one by one.
pub const LISTED: usize = 100;

fn unlisted(confusion: &[Vec<u64>]) -> bool {
    confusion.is_empty() || confusion.len() > LISTED
}

/// Counts and shares of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OneClass {
    /// Its name, if the data have names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Labels of this class.
    pub labels: u64,
    /// Predictions of it.
    pub predicted: u64,
    /// True positives over predictions; 0 without any.
    pub precision: f64,
    /// True positives over labels; 0 without any.
    pub recall: f64,
    /// Harmonic mean of both.
    pub f1: f64,
}

impl Scores {
    /// The same with names of the classes, in the order of the labels, if there are any. Notes say so where
    /// one class alone is predicted.
    pub fn named(mut self, names: Option<&[String]>) -> Scores {
        let Some(by) = &mut self.by_class else { return self };
        by.each
            .iter_mut()
            .zip(names.unwrap_or_default())
            .for_each(|(class, name)| class.name = Some(name.clone()));
        let occur = |of: fn(&OneClass) -> u64| by.each.iter().filter(|c| of(c) > 0).count();
        if occur(|c| c.predicted) == 1 && occur(|c| c.labels) > 1 {
            let class = by.each.iter().position(|c| c.predicted > 0).unwrap_or(0);
            let name = by.each[class].name.clone().unwrap_or_else(|| class.to_string());
            self.notes.push(format!("the model predicts one class only: {name}"));
        }
        self
    }
}

/// Errors of numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Regression {
    /// Mean squared error.
    #[serde(deserialize_with = "number")]
    pub mse: f64,
    /// Mean absolute error.
    #[serde(deserialize_with = "number")]
    pub mae: f64,
    /// Coefficient of determination.
    #[serde(deserialize_with = "number")]
    pub r2: f64,
}

/// Reads a number; JSON has `null` for one that is not finite.
fn number<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or(f64::NAN))
}

/// A batch as it is counted.
#[derive(Clone, Copy)]
pub struct Measured<'a> {
    /// The truth, in the order of the batch.
    pub truth: &'a Tensor,
    /// Type of the output that is measured by it.
    pub ty: &'a TensorType,
    /// Its row-major little-endian bytes.
    pub bytes: &'a [u8],
}

/// Adds up what the scores are made of.
#[derive(Debug)]
pub struct Scorer {
    task: Option<Task>,
    k: usize,
    samples: usize,
    loss: f64,
    /// Samples and loss of each batch.
    batches: Vec<(usize, f64)>,
    /// Labels counted and right up to each batch, by both ways of counting.
    counted: Vec<[(u64, u64); 2]>,
    /// By the logits at a label's own place, and by those one token before.
    classes: [Counts; 2],
    numbers: Numbers,
    binary: Binary,
    ranking: Ranking,
}

#[derive(Clone, Debug, PartialEq)]
enum Task {
    /// Logits are output `logits`, with classes along its dimension `dim`.
    Classes { labels: String, logits: usize, dim: usize, count: usize, tokens: bool, single: bool },
    /// Output `output` is the number that the input holds, or one for each sample and the logit of its class.
    /// `ids`: the input holds integers, which are numbers of classes and no quantities.
    Numbers { labels: String, output: usize, single: bool, ids: bool },
}

impl Scorer {
    /// Finds the truth among the inputs and what is measured by it among the outputs, of which the first is
    /// the loss. `named` is the input with the truth; by default the one called labels, label, targets,
    /// target or y (of several one of integers), or the only integer input that fits an output. `k`: how many
    /// of the largest logits count for the top-k accuracy.
    ///
    /// # Errors
    /// If the named input does not exist, or fits no output.
    pub fn new(
        inputs: &[(String, TensorType)],
        outputs: &[TensorType],
        named: Option<&str>,
        k: usize,
    ) -> Result<Scorer, String> {
        let called = |name: &str| named.map_or(LABELS.contains(&name), |n| n == name);
        if let Some(name) = named.filter(|n| inputs.iter().all(|(i, _)| i != n)) {
            let have: Vec<_> = inputs.iter().map(|(n, _)| n.as_str()).collect();
            return Err(format!("the model has no input {name}; it has {}", have.join(", ")));
        }
        let tasks = |(name, ty): &(String, TensorType)| task(name, ty, outputs);
        let mut named_so: Vec<Task> = inputs.iter().filter(|(n, _)| called(n)).filter_map(tasks).collect();
        named_so.sort_by_key(|task| matches!(task, Task::Numbers { .. }));
        let mut task = named_so.into_iter().next();
        if let (None, Some(name)) = (&task, named) {
            return Err(format!(
                "no output has logits or numbers for {name}: of each sample one, token by token, or pixel by pixel"
            ));
        }
        if task.is_none() {
            let classes = |task: &Task| matches!(task, Task::Classes { .. });
            let mut fitting =
                inputs.iter().filter(|(_, t)| !t.dtype.is_float()).filter_map(tasks).filter(classes);
            task = fitting.next().filter(|_| fitting.next().is_none());
        }
        let (samples, loss, batches, counted) = (0, 0.0, Vec::new(), Vec::new());
        let (classes, numbers, binary, ranking) = Default::default();
        Ok(Scorer { task, k, samples, loss, batches, counted, classes, numbers, binary, ranking })
    }

    /// The input with the truth, and the position of the output that is measured by it; `None` if the loss is
    /// all that is measured.
    pub fn wanted(&self) -> Option<(&str, usize)> {
        match self.task.as_ref()? {
            Task::Classes { labels, logits: at, .. } | Task::Numbers { labels, output: at, .. } => {
                Some((labels, *at))
            }
        }
    }

    /// The input that holds the truth.
    pub fn labels(&self) -> Option<&str> {
        match self.task.as_ref()? {
            Task::Classes { labels, .. } | Task::Numbers { labels, .. } => Some(labels),
        }
    }

    /// The position of an output of one number for each sample, which may be the logit of its class.
    pub fn one_number(&self) -> Option<usize> {
        match self.task.as_ref()? {
            Task::Numbers { output, single: true, .. } => Some(*output),
            _ => None,
        }
    }

    /// The position of the output that has logits of the samples' classes.
    pub fn logits(&self) -> Option<usize> {
        match self.task.as_ref()? {
            Task::Classes { logits, single: true, .. } => Some(*logits),
            _ => None,
        }
    }

    /// Why a metric will not be measured, whatever the samples are; `None` if it can be.
    pub fn lacks(&self, metric: Metric) -> Option<String> {
        let is = |metrics: &[Metric]| metrics.contains(&metric);
        use Metric::*;
        let by_class = [Precision, Recall, F1, Iou];
        let why = match &self.task {
            _ if metric == Loss => return None,
            None => "no output fits an input with the truth".to_string(),
            Some(Task::Classes { labels, count, tokens, single, .. }) => match metric {
                Mse | Mae | R2 => format!("{labels} are classes, and no numbers"),
                Perplexity if !tokens => format!("{labels} are no tokens, one of each position"),
                RocAuc | PrAuc if *count != 2 => format!("there are {count} classes, and it is of two"),
                RocAuc | PrAuc | LogLoss if !single => format!("{labels} are not one label for each sample"),
                TopK if self.k >= *count => format!("there are {count} classes, and k is {}", self.k),
                _ if *count > CLASSES && is(&by_class) => {
                    format!("there are {count} classes, and means are taken over at most {CLASSES}")
                }
                _ => return None,
            },
            Some(Task::Numbers { labels, single, ids, .. }) => match metric {
                Mse | Mae | R2 if *ids => format!("{labels} are integers, which are classes, and no numbers"),
                TopK | Perplexity => format!("{labels} are numbers, and no classes"),
                _ if !single && !is(&[Mse, Mae, R2]) => format!("{labels} are several numbers of a sample"),
                _ => return None,
            },
        };
        Some(why)
    }

    /// Counts a batch of so many samples. `measured`: what [`Scorer::wanted`] requests.
    pub fn add(&mut self, samples: usize, loss: f64, measured: Option<Measured>) {
        self.samples += samples;
        self.loss += loss * samples as f64;
        self.batches.push((samples, loss));
        self.measure(loss, measured);
        self.counted.push(self.classes.each_ref().map(|c| (c.counted, c.right)));
    }

    fn measure(&mut self, loss: f64, measured: Option<Measured>) {
        let (Some(task), Some(Measured { truth, ty, bytes })) = (&self.task, measured) else { return };
        match *task {
            Task::Classes { dim, count: classes, tokens, single, .. } => {
                let logits = Logits { ty, bytes, dim, classes, tokens, likely: tokens || single, k: self.k };
                classes::add(&mut self.classes, truth.ints(), logits, loss);
                if single && classes == 2 {
                    let values = Tensor::from_bytes(ty, bytes).to_f64();
                    for (label, row) in
                        truth.ints().iter().zip(values.chunks(2)).filter(|(l, _)| (0..2).contains(*l))
                    {
                        self.ranking.add(row[1] - row[0], *label == 1);
                    }
                }
            }
            Task::Numbers { .. } => {
                for (want, got) in truth.to_f64().into_iter().zip(Tensor::from_bytes(ty, bytes).to_f64()) {
                    self.numbers.add(want, got);
                    self.binary.add(want, got);
                    self.ranking.add(got, want == 1.0);
                }
            }
        }
    }

    /// The scores of each batch so far.
    pub fn by_batch(&self) -> ByBatch {
        let way = match &self.task {
            Some(Task::Classes { tokens: true, .. }) => self.classes.iter().position(|c| c.fits()),
            Some(Task::Classes { .. }) => Some(0),
            _ => None,
        };
        let mut before = (0, 0);
        let each = self.batches.iter().zip(&self.counted).map(|(&(samples, loss), counted)| {
            let (counted, right) = way.map_or((0, 0), |way| counted[way]);
            let batch = Batch { samples, loss, counted: counted - before.0, right: right - before.1 };
            before = (counted, right);
            batch
        });
        ByBatch::new(each.collect())
    }

    /// The scores.
    pub fn finish(self) -> Scores {
        let mut s =
            Scores { samples: self.samples, loss: self.loss / self.samples as f64, ..Scores::default() };
        s.loss_error = standard_error(&self.batches, s.loss);
        match self.task {
            Some(Task::Classes { labels, count, tokens, single, .. }) => {
                s.labels = Some(labels);
                // Token t is predicted by the logits at t or at t − 1: the choice is the one that reproduces
                // the loss.
                let chosen = match tokens {
                    true => self.classes.iter().find(|c| c.fits()),
                    false => Some(&self.classes[0]),
                };
                let Some(c) = chosen else {
                    s.notes.push(
                        "token metrics are left out: neither the logits at a token nor those before it give the model's loss"
                            .into(),
                    );
                    return s;
                };
                s.counted = Some(c.counted);
                if c.counted == 0 {
                    s.notes.push("no label is the number of a class: there is nothing to count".into());
                    return s;
                }
                let share = |n: u64| n as f64 / c.counted as f64;
                s.accuracy = Some(share(c.right));
                s.top_k = (self.k < count).then(|| (self.k, share(c.top)));
                s.perplexity = tokens.then(|| (c.nll / c.counted as f64).exp());
                s.by_class = (!c.confusion.is_empty()).then(|| by_class(&c.confusion, count));
                s.log_loss = single.then(|| c.nll / c.counted as f64);
                let areas = if single && count == 2 { self.ranking.finish() } else { None };
                [s.roc_auc, s.pr_auc] = areas.map_or([None; 2], |areas| areas.map(Some));
            }
            Some(Task::Numbers { labels, single, ids, .. }) => {
                let numbers = self.numbers.finish();
                match single && !self.binary.other && self.numbers.count > 0.0 {
                    true => {
                        self.binary.finish(&mut s, self.numbers.count, numbers);
                        let areas = self.ranking.finish();
                        [s.roc_auc, s.pr_auc] = areas.map_or([None; 2], |areas| areas.map(Some));
                    }
                    false if ids => s.notes.push(format!(
                        "nothing but the loss is measured: {labels} are integers beyond 0 and 1, which are classes, and the \
                         output has one number for each sample, and no logits; for errors of numbers the model takes \
                         {labels} as floats"
                    )),
                    false => s.regression = Some(numbers),
                }
                s.labels = Some(labels);
            }
            None => s.notes.push(
                "nothing but the loss is measured: no output fits an input with the truth; name it with --labels, in \
                 settings with `eval.labels`"
                    .into(),
            ),
        }
        s
    }
}

/// The kind of task, by the types of an input with labels and of an output after the loss.
fn task(name: &str, ty: &TensorType, outputs: &[TensorType]) -> Option<Task> {
    let labels = name.to_string();
    let behind_loss = || outputs.iter().enumerate().skip(1).filter(|(_, o)| o.dtype.is_float());
    if ty.dtype.is_float() {
        // [n] and [n, 1] are the same: one number for each sample.
        let single = |t: &TensorType| t.shape.rank() > 0 && t.shape[1..].iter().all(|n| *n == 1);
        let alike = |o: &TensorType| single(o) && single(ty) && o.shape[0] == ty.shape[0];
        let same = behind_loss().find(|(_, o)| o.shape == ty.shape);
        let output = same.or_else(|| behind_loss().find(|(_, o)| alike(o)))?.0;
        return Some(Task::Numbers { labels, output, single: single(ty), ids: false });
    }
    let rank = ty.shape.rank();
    let classes =
        behind_loss().filter(|(_, o)| rank > 0 && o.shape.rank() == rank + 1).find_map(|(logits, o)| {
            let dim = match (
                o.shape[..rank] == ty.shape[..],
                o.shape[0] == ty.shape[0] && o.shape[2..] == ty.shape[1..],
            ) {
                (true, _) => rank,
                (false, true) => 1,
                (false, false) => return None,
            };
            let count = o.shape[dim];
            (count > 1).then(|| Task::Classes {
                labels: labels.clone(),
                logits,
                dim,
                count,
                tokens: rank == 2 && dim == 2,
                single: rank == 1,
            })
        });
    // Labels 0 and 1 beside one logit of each sample.
    let one = |o: &TensorType| o.shape.first() == ty.shape.first() && o.shape[1..].iter().all(|n| *n == 1);
    let number = || behind_loss().find(|(_, o)| rank == 1 && o.shape.rank() > 0 && one(o));
    classes.or_else(|| Some(Task::Numbers { labels, output: number()?.0, single: true, ids: true }))
}

/// Standard error of a mean over batches, each with its samples as its weight. `None` for fewer than two
/// batches, and where it is not finite.
fn standard_error(batches: &[(usize, f64)], mean: f64) -> Option<f64> {
    let samples: usize = batches.iter().map(|b| b.0).sum();
    let square = |(n, loss): &(usize, f64)| *n as f64 / samples as f64 * (loss - mean).powi(2);
    let variance = batches.iter().map(square).sum::<f64>() / (batches.len() as f64 - 1.0);
    Some(variance.sqrt()).filter(|e| batches.len() > 1 && e.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_core::DType;

    /// The label that PyTorch's cross entropy leaves out.
    const IGNORED: i64 = -100;

    fn float(shape: &[usize], v: &[f64]) -> Tensor {
        Tensor::float(DType::F32, shape, v.to_vec())
    }

    fn ints(shape: &[usize], v: &[i64]) -> Tensor {
        let bytes: Vec<u8> = v.iter().flat_map(|x| x.to_le_bytes()).collect();
        Tensor::from_bytes(&TensorType::new(DType::I64, shape), &bytes)
    }

    fn add(s: &mut Scorer, labels: &Tensor, output: &Tensor, loss: f64) {
        let measured = Measured { truth: labels, ty: &output.ty, bytes: &output.to_bytes() };
        s.add(labels.shape()[0], loss, Some(measured));
    }

    fn score(labels: Tensor, output: Tensor, loss: f64) -> Scores {
        let inputs = [("labels".to_string(), labels.ty.clone())];
        let scalar = float(&[], &[loss]);
        let mut s = Scorer::new(&inputs, &[scalar.ty.clone(), output.ty.clone()], None, 2).unwrap();
        assert_eq!(s.wanted(), Some(("labels", 1)));
        add(&mut s, &labels, &output, loss);
        s.finish()
    }

    #[test]
    fn classes_by_hand() {
        // Predictions 1, 0 (of equals the first), none (NaN), 2; labels 1, 1, 0, 2.
        let logits = [0.0, 2.0, 1.0, 3.0, 3.0, 0.0, f64::NAN, 1.0, 0.0, 0.0, 1.0, 2.0];
        let s = score(ints(&[4], &[1, 1, 0, 2]), float(&[4, 3], &logits), 1.0);
        assert_eq!((s.accuracy, s.top_k, s.counted), (Some(0.5), Some((2, 0.75)), Some(4)));
        let by = s.by_class.unwrap();
        assert_eq!(by.confusion, [[0, 0, 0], [1, 1, 0], [0, 0, 1]]);
        // Class 0: 0 of 1 predicted; class 1: 1 of 1, 1 of 2 labelled; class 2: all.
        assert!((by.precision - 2.0 / 3.0).abs() < 1e-15 && (by.recall - 0.5).abs() < 1e-15);
        assert!((by.f1 - (0.0 + 2.0 / 3.0 + 1.0) / 3.0).abs() < 1e-15 && (by.iou - 0.5).abs() < 1e-15);
        assert_eq!(s.perplexity, None);
    }

    #[test]
    fn tokens_are_aligned_by_the_loss() {
        // Two sequences of three tokens, two classes; a logit of ±2 for the next token's class.
        let labels = ints(&[2, 3], &[0, 1, 0, 1, IGNORED, 1]);
        let for_class = |c: i64| if c == 0 { [2.0, 0.0] } else { [0.0, 2.0] };
        let next: Vec<f64> = [1, 0, 0, 0, 1, 0].into_iter().flat_map(for_class).collect();
        let likely = (1.0 + (-2.0f64).exp()).ln();
        // Counted are tokens 1 and 2 of the first, and token 2 of the second sequence: all right.
        let s = score(labels.clone(), float(&[2, 3, 2], &next), likely);
        assert_eq!((s.accuracy, s.counted), (Some(1.0), Some(3)));
        assert!((s.perplexity.unwrap() - likely.exp()).abs() < 1e-12);
        // The same logits for the tokens themselves: 0 1 0 | 1 . 1 against 1 0 0 | 0 . 0.
        let plain = (4.0 * (2.0 + likely) + likely) / 5.0;
        let s = score(labels.clone(), float(&[2, 3, 2], &next), plain);
        assert_eq!((s.accuracy, s.counted), (Some(0.2), Some(5)));
        let s = score(labels, float(&[2, 3, 2], &next), 17.0);
        assert!(s.accuracy.is_none() && s.notes[0].contains("neither"));
    }

    #[test]
    fn pixels_have_classes_in_front() {
        let logits = [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0];
        let s = score(ints(&[1, 2, 2], &[0, 1, 1, 1]), float(&[1, 2, 2, 2], &logits), 1.0);
        assert_eq!(s.accuracy, Some(0.75));
        assert!((s.by_class.unwrap().iou - (1.0 / 2.0 + 2.0 / 3.0) / 2.0).abs() < 1e-15);
    }

    #[test]
    fn numbers_by_hand() {
        let s = score(float(&[4], &[1.0, 2.0, 3.0, 4.0]), float(&[4], &[1.0, 2.0, 3.0, 2.0]), 1.0);
        assert_eq!(s.regression, Some(Regression { mse: 1.0, mae: 0.5, r2: 1.0 - 4.0 / 5.0 }));
    }

    #[test]
    fn numbers_that_are_0_or_1_are_classes() {
        let truth = [1.0, 0.0, 1.0, 1.0, 0.0];
        let (logits, shares) = ([2.0, -1.0, -0.5, 3.0, 0.25], [0.9, 0.2, 0.4, 0.8, 0.6]);
        let entropy = |x: f64, y: f64| (1.0 + (if y == 1.0 { -x } else { x }).exp()).ln();
        let loss = logits.iter().zip(truth).map(|(x, y)| entropy(*x, y)).sum::<f64>() / 5.0;
        // 0.01, 0.04, 0.36, 0.04 and 0.36 for `shares`.
        let squared = 0.81 / 5.0;
        for (shape, output, loss, said) in [
            (vec![5], logits, loss, "the logit is above 0"),
            (vec![5, 1], logits, loss, "the logit is above 0"),
            // With a weight of positive samples, say.
            (vec![5], logits, 2.0 * loss, "above 0, though the loss is not"),
            (vec![5], shares, 0.5, "a probability, is above 0.5"),
            (vec![5], shares, squared, "the squared error, is above 0.5"),
        ] {
            let s = score(float(&[5], &truth), float(&shape, &output), loss);
            // Predicted are 1, 0, 0, 1, 1.
            assert_eq!((s.accuracy, s.counted), (Some(0.6), Some(5)), "{said}");
            let by = s.by_class.unwrap();
            assert_eq!(by.confusion, [[1, 1], [1, 2]]);
            // Class 0: 1 of 2 predicted, 1 of 2 labelled; class 1: 2 of 3 and 2 of 3.
            for mean in [by.precision, by.recall, by.f1] {
                assert!((mean - 7.0 / 12.0).abs() < 1e-15, "{mean}");
            }
            assert_eq!(s.regression.is_some(), loss == squared);
            assert!(s.notes.len() == 1 && s.notes[0].contains("were taken as classes"), "{:?}", s.notes);
            assert!(s.notes[0].contains(said), "{:?}", s.notes);
        }
        // A NaN is never right, and in no cell.
        let s = score(float(&[2], &[1.0, 0.0]), float(&[2], &[f64::NAN, -1.0]), 1.0);
        assert_eq!((s.accuracy, s.counted), (Some(0.5), Some(2)));
        assert_eq!(s.by_class.unwrap().confusion, [[1, 0], [0, 0]]);
        // One logit beside integers 0 and 1, where its name says that they are the truth.
        let s = score(ints(&[5], &[1, 0, 1, 1, 0]), float(&[5], &logits), loss);
        assert_eq!((s.accuracy, s.counted), (Some(0.6), Some(5)));
        // By hand: of 6 pairs of a positive and a negative 5 are in order.
        assert!((s.roc_auc.unwrap() - 5.0 / 6.0).abs() < 1e-15 && (s.log_loss.unwrap() - loss).abs() < 1e-12);
        let each = &s.named(Some(&["no".into(), "yes".into()])).by_class.unwrap().each;
        assert_eq!((each[1].name.as_deref(), each[1].labels, each[1].predicted), (Some("yes"), 3, 3));
        assert!((each[0].precision - 0.5).abs() < 1e-15 && (each[1].recall - 2.0 / 3.0).abs() < 1e-15);
        let s = score(ints(&[4], &[0, 1, 0, 0]), float(&[4], &[-1.0, -2.0, -3.0, -0.5]), 9.0);
        for (names, said) in [(None, "0"), (Some(&["no".to_string(), "yes".to_string()][..]), "no")] {
            let notes = s.clone().named(names).notes;
            assert!(notes.contains(&format!("the model predicts one class only: {said}")), "{notes:?}");
        }
        // One other label in any batch, or several numbers for each sample: these are numbers.
        let ty = TensorType::new(DType::F32, [2]);
        let inputs = [("labels".to_string(), ty.clone())];
        let loss = float(&[], &[1.0]);
        let mut several = Scorer::new(&inputs, &[loss.ty.clone(), ty], None, 5).unwrap();
        for labels in [[0.0, 1.0], [1.0, 0.5], [0.0, 0.0]] {
            add(&mut several, &float(&[2], &labels), &float(&[2], &[1.0, 2.0]), 1.0);
        }
        let wide = score(float(&[1, 2], &[0.0, 1.0]), float(&[1, 2], &[1.0, 2.0]), 1.0);
        for s in [several.finish(), wide] {
            assert!(s.regression.is_some() && s.accuracy.is_none() && s.notes.is_empty(), "{s:?}");
        }
    }

    #[test]
    fn integers_beside_one_number_are_no_quantities() {
        // As the losses of samples, which a model returns beside its own.
        let s = score(ints(&[4], &[0, 1, 2, 3]), float(&[4], &[0.5, 0.25, 1.0, 2.0]), 1.0);
        assert_eq!((s.regression, s.accuracy, s.labels.as_deref()), (None, None, Some("labels")));
        assert!(s.notes.len() == 1 && s.notes[0].contains("labels are integers beyond 0 and 1"), "{s:?}");
        let s = score(float(&[4], &[0.0, 1.0, 2.0, 3.0]), float(&[4], &[0.5, 0.25, 1.0, 2.0]), 1.0);
        assert!(s.regression.is_some() && s.notes.is_empty(), "{s:?}");
    }

    #[test]
    fn named_labels_must_fit() {
        let ty = |dtype, shape: &[usize]| TensorType::new(dtype, shape);
        let inputs = [("a".to_string(), ty(DType::I64, &[4])), ("b".to_string(), ty(DType::I64, &[4]))];
        let outputs = [ty(DType::F32, &[]), ty(DType::F32, &[4, 3])];
        let task = |named| Scorer::new(&inputs, &outputs, named, 5).map(|s| s.task);
        let both =
            [("target".to_string(), ty(DType::F32, &[4, 3])), ("label".to_string(), ty(DType::I64, &[4]))];
        let chosen = Scorer::new(&both, &outputs, None, 5).unwrap();
        assert_eq!(chosen.wanted(), Some(("label", 1)), "classes before numbers");
        assert_eq!(task(None).unwrap(), None, "two fit");
        assert!(matches!(task(Some("b")).unwrap(), Some(Task::Classes { ref labels, .. }) if labels == "b"));
        assert!(task(Some("c")).unwrap_err().contains("it has a, b"));
    }

    #[test]
    fn a_metric_that_cannot_be_measured_is_known_beforehand() {
        let ty = |dtype, shape: &[usize]| TensorType::new(dtype, shape);
        let scorer = |labels: TensorType, output: TensorType| {
            Scorer::new(&[("y".to_string(), labels)], &[ty(DType::F32, &[]), output], None, 5).unwrap()
        };
        let (int, float) = (DType::I64, DType::F32);
        use Metric::*;
        for (labels, output, has) in [
            (ty(int, &[4]), ty(float, &[4, 9]), vec![Accuracy, TopK, Precision, Recall, F1, Iou, LogLoss]),
            (ty(int, &[4]), ty(float, &[4, 5]), vec![Accuracy, Precision, Recall, F1, Iou, LogLoss]),
            (
                ty(int, &[4]),
                ty(float, &[4, 2]),
                vec![Accuracy, Precision, Recall, F1, Iou, RocAuc, PrAuc, LogLoss],
            ),
            (ty(int, &[4]), ty(float, &[4, 1001]), vec![Accuracy, TopK, LogLoss]),
            (ty(int, &[4, 3]), ty(float, &[4, 3, 1001]), vec![Accuracy, TopK, Perplexity]),
            (ty(float, &[4, 3]), ty(float, &[4, 3]), vec![Mse, Mae, R2]),
            (
                ty(float, &[4]),
                ty(float, &[4]),
                vec![Accuracy, Precision, Recall, F1, Iou, RocAuc, PrAuc, LogLoss, Mse, Mae, R2],
            ),
            (
                ty(int, &[4]),
                ty(float, &[4]),
                vec![Accuracy, Precision, Recall, F1, Iou, RocAuc, PrAuc, LogLoss],
            ),
            (ty(int, &[4]), ty(float, &[3]), vec![]),
        ] {
            let scorer = scorer(labels.clone(), output);
            let found: Vec<Metric> = Metric::ALL.into_iter().filter(|m| scorer.lacks(*m).is_none()).collect();
            assert_eq!(found, [vec![Loss], has].concat(), "{labels}");
        }
    }

    #[test]
    fn scores_come_back_from_their_json() {
        let mut s = score(ints(&[2], &[0, 1]), float(&[2, 3], &[1.0, 0.0, 0.0, 0.0, 2.0, 1.0]), 1.0);
        let back =
            |s: &Scores| -> Scores { serde_json::from_str(&serde_json::to_string(s).unwrap()).unwrap() };
        assert!(s.by_class.is_some() && back(&s) == s);
        s.loss = f64::NAN;
        let read = back(&s);
        assert!(read.loss.is_nan() && read.top_k == s.top_k);
        let no_label = score(ints(&[2], &[IGNORED, 7]), float(&[2, 3], &[0.0; 6]), 1.0);
        assert_eq!((no_label.counted, no_label.accuracy), (Some(0), None));
    }
}
