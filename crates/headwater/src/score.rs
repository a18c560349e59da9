//! Metrics of a model on samples: of classes (one for each sample, token or pixel) and of numbers.

use crate::core::{Tensor, TensorType};
use crate::infer::Ran;
use anyhow::{Result, bail};
use serde::Serialize;

/// Labels that PyTorch's cross entropy leaves out by default.
const IGNORED: i64 = -100;

/// More classes than these have no confusion matrix.
const CLASSES: usize = 1000;

/// Mean negative log-likelihoods this near to the loss, relative, are the loss.
const SAME_LOSS: f64 = 1e-3;

/// What inputs are called that hold the truth.
const LABELS: [&str; 5] = ["labels", "label", "targets", "target", "y"];

/// What was measured. What does not apply is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Scores {
    /// Samples.
    pub samples: usize,
    /// Mean loss over the batches, weighted by their samples.
    pub loss: f64,
    /// The input that holds the truth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<String>,
    /// Share of labels whose class has the largest logit; of two classes with one output, those on their side
    /// of the threshold that the notes state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Share of labels whose class is among the `top_k.0` largest logits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<(usize, f64)>,
    /// Labels counted: samples, tokens or pixels, without those that are ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counted: Option<u64>,
    /// Of tokens: `exp` of the mean negative log-likelihood.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
    /// Means over the classes that occur as label or prediction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_class: Option<ByClass>,
    /// Mean squared error, mean absolute error, and 1 − (residual over total sum of squares).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regression: Option<Regression>,
    /// What could not be measured, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Means over classes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ByClass {
    /// True positives over predictions of a class.
    pub precision: f64,
    /// True positives over labels of a class.
    pub recall: f64,
    /// Harmonic mean of both.
    pub f1: f64,
    /// Intersection over union.
    pub iou: f64,
    /// Counts `[label][prediction]`.
    pub confusion: Vec<Vec<u64>>,
}

/// Errors of numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Regression {
    /// Mean squared error.
    pub mse: f64,
    /// Mean absolute error.
    pub mae: f64,
    /// Coefficient of determination.
    pub r2: f64,
}

/// Adds up what the scores are made of.
#[derive(Debug)]
pub struct Scorer {
    task: Option<Task>,
    k: usize,
    samples: usize,
    loss: f64,
    /// Plain, and with logits shifted by one token.
    classes: [Classes; 2],
    numbers: Numbers,
    binary: Binary,
}

#[derive(Clone, Debug, PartialEq)]
enum Task {
    /// Logits are output `logits`, with classes along its dimension `dim`.
    Classes { labels: String, logits: usize, dim: usize, count: usize, tokens: bool },
    /// Output `output` is the number that the input holds, or one for each sample and the logit of its class.
    Numbers { labels: String, output: usize, single: bool },
}

#[derive(Clone, Debug, Default)]
struct Classes {
    counted: u64,
    right: u64,
    top: u64,
    nll: f64,
    /// Distance of the mean from the loss, relative, over the batches.
    apart: f64,
    batches: usize,
    confusion: Vec<u64>,
}

#[derive(Debug, Default)]
struct Numbers {
    count: f64,
    squares: f64,
    magnitudes: f64,
    truth: f64,
    truths: f64,
}

/// Labels 0 and 1 as numbers, beside one output for each sample.
#[derive(Debug, Default)]
struct Binary {
    /// True once a label is neither 0 nor 1.
    other: bool,
    /// True once an output is no probability.
    outside: bool,
    /// Sum of the binary cross-entropy, outputs being logits.
    nll: f64,
    /// For each of [`THRESHOLDS`], counts by label and prediction.
    confusion: [[u64; 4]; 2],
}

/// Outputs above these are of class 1: logits, and probabilities.
const THRESHOLDS: [f64; 2] = [0.0, 0.5];

impl Scorer {
    /// Finds the truth among the inputs and what is measured by it among the outputs, of which the first is
    /// the loss. `named` is the input with the truth; by default the one called labels, label, targets,
    /// target or y, or the only integer input that fits an output. `k`: how many of the largest logits count
    /// for the top-k accuracy.
    ///
    /// # Errors
    /// If the named input is not there, or fits no output.
    pub fn new(
        inputs: &[(String, TensorType)],
        outputs: &[TensorType],
        named: Option<&str>,
        k: usize,
    ) -> Result<Scorer> {
        let called = |name: &str| named.map_or(LABELS.contains(&name), |n| n == name);
        if let Some(name) = named.filter(|n| inputs.iter().all(|(i, _)| i != n)) {
            let have: Vec<_> = inputs.iter().map(|(n, _)| n.as_str()).collect();
            bail!("the model has no input {name}; it has {}", have.join(", "));
        }
        let tasks = |(name, ty): &(String, TensorType)| task(name, ty, outputs);
        let mut task = inputs.iter().filter(|(n, _)| called(n)).find_map(tasks);
        if let (None, Some(name)) = (&task, named) {
            bail!(
                "no output has logits or numbers for {name}: of each sample one, token by token, or pixel by pixel"
            );
        }
        if task.is_none() {
            let mut fitting = inputs.iter().filter(|(_, t)| !t.dtype.is_float()).filter_map(tasks);
            task = fitting.next().filter(|_| fitting.next().is_none());
        }
        let (samples, loss) = (0, 0.0);
        let (classes, numbers, binary) = Default::default();
        Ok(Scorer { task, k, samples, loss, classes, numbers, binary })
    }

    /// Counts a batch, of which all outputs were asked for.
    pub fn add(&mut self, ran: &Ran) {
        let loss = ran.outputs.first().map_or(f64::NAN, |l| l.to_f64().first().copied().unwrap_or(f64::NAN));
        self.samples += ran.samples;
        self.loss += loss * ran.samples as f64;
        match &self.task {
            Some(Task::Classes { labels, logits, dim, count, tokens }) => {
                let Some(labels) = ran.inputs.get(labels.as_str()) else { return };
                let logits = &ran.outputs[*logits];
                for shift in 0..=(*tokens as usize) {
                    self.classes[shift].add(labels.ints(), logits, (*dim, *count), shift, self.k, loss);
                }
            }
            Some(Task::Numbers { labels, output, .. }) => {
                let Some(labels) = ran.inputs.get(labels.as_str()) else { return };
                for (want, got) in labels.to_f64().into_iter().zip(ran.outputs[*output].to_f64()) {
                    self.numbers.add(want, got);
                    self.binary.add(want, got);
                }
            }
            None => {}
        }
    }

    /// The scores.
    pub fn finish(self) -> Scores {
        let mut s =
            Scores { samples: self.samples, loss: self.loss / self.samples as f64, ..Scores::default() };
        match self.task {
            Some(Task::Classes { labels, count, tokens, .. }) => {
                s.labels = Some(labels);
                // Whether token t is predicted by the logits at t or at t − 1 is what reproduces the loss.
                let fits = |c: &Classes| c.counted > 0 && c.apart / c.batches as f64 <= SAME_LOSS;
                let chosen = self.classes.iter().position(fits);
                let c = match (chosen, tokens) {
                    (Some(i), _) => &self.classes[i],
                    (None, false) => &self.classes[0],
                    (None, true) => {
                        s.notes.push(
                            "token metrics are left out: neither the logits at a token nor those before it give the model's loss"
                                .into(),
                        );
                        return s;
                    }
                };
                let share = |n: u64| n as f64 / c.counted as f64;
                (s.accuracy, s.counted) = (Some(share(c.right)), Some(c.counted));
                s.top_k = (self.k < count).then(|| (self.k, share(c.top)));
                s.perplexity = tokens.then(|| (c.nll / c.counted as f64).exp());
                s.by_class = (!c.confusion.is_empty()).then(|| by_class(&c.confusion, count));
            }
            Some(Task::Numbers { labels, single, .. }) => {
                s.labels = Some(labels);
                let numbers = self.numbers.finish();
                match single && !self.binary.other && self.numbers.count > 0.0 {
                    true => self.binary.finish(&mut s, self.numbers.count, numbers),
                    false => s.regression = Some(numbers),
                }
            }
            None => s.notes.push(
                "nothing but the loss is measured: no output fits an input with the truth; name it with --labels".into(),
            ),
        }
        s
    }
}

/// How an input with the truth fits an output after the loss.
fn task(name: &str, ty: &TensorType, outputs: &[TensorType]) -> Option<Task> {
    let labels = name.to_string();
    let behind_loss = || outputs.iter().enumerate().skip(1).filter(|(_, o)| o.dtype.is_float());
    if ty.dtype.is_float() {
        // [n] and [n, 1] are the same: one number for each sample.
        let single = |t: &TensorType| t.shape.rank() > 0 && t.shape[1..].iter().all(|n| *n == 1);
        let alike = |o: &TensorType| single(o) && single(ty) && o.shape[0] == ty.shape[0];
        let same = behind_loss().find(|(_, o)| o.shape == ty.shape);
        let output = same.or_else(|| behind_loss().find(|(_, o)| alike(o)))?.0;
        return Some(Task::Numbers { labels, output, single: single(ty) });
    }
    let rank = ty.shape.rank();
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
        })
    })
}

impl Classes {
    fn add(
        &mut self,
        labels: &[i64],
        logits: &Tensor,
        (dim, count): (usize, usize),
        shift: usize,
        k: usize,
        loss: f64,
    ) {
        // Element `c` of place `(before, after)` is at `(before · count + c) · inner + after`.
        let inner: usize = logits.shape()[dim + 1..].iter().product();
        let values = logits.floats();
        let length = if shift > 0 { logits.shape()[1] } else { 0 };
        let (mut nll, mut counted) = (0.0, 0u64);
        if self.confusion.is_empty() && count <= CLASSES && shift == 0 {
            self.confusion = vec![0; count * count];
        }
        let mut row = vec![0.0; count];
        for (place, &label) in labels.iter().enumerate() {
            let from = match shift {
                0 => place,
                // The first token has none before it.
                _ if place % length == 0 => continue,
                _ => place - 1,
            };
            let Some(class) = usize::try_from(label).ok().filter(|&c| label != IGNORED && c < count) else {
                continue;
            };
            let begin = from / inner * count * inner + from % inner;
            row.iter_mut().enumerate().for_each(|(c, x)| *x = values[begin + c * inner]);
            let own = row[class];
            let largest = row.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
            nll += largest + row.iter().map(|x| (x - largest).exp()).sum::<f64>().ln() - own;
            counted += 1;
            // The first of equal logits wins, and a row with NaN is never right.
            let known = !row.iter().any(|x| x.is_nan());
            let before =
                row.iter().enumerate().filter(|&(c, x)| *x > own || (*x == own && c < class)).count();
            self.right += (known && before == 0) as u64;
            self.top += (known && before < k) as u64;
            if let (true, Some(best)) =
                (known && !self.confusion.is_empty(), row.iter().position(|x| *x == largest))
            {
                self.confusion[class * count + best] += 1;
            }
        }
        self.nll += nll;
        self.counted += counted;
        if counted > 0 {
            self.apart += ((nll / counted as f64 - loss) / loss.abs().max(f64::MIN_POSITIVE)).abs();
            self.batches += 1;
        }
    }
}

fn by_class(confusion: &[u64], count: usize) -> ByClass {
    let (mut sums, mut present) = (ByClass::default(), 0.0);
    let ratio = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 / b as f64 };
    for c in 0..count {
        let hits = confusion[c * count + c];
        let labelled: u64 = confusion[c * count..][..count].iter().sum();
        let predicted: u64 = (0..count).map(|l| confusion[l * count + c]).sum();
        if labelled + predicted == 0 {
            continue;
        }
        present += 1.0;
        sums.precision += ratio(hits, predicted);
        sums.recall += ratio(hits, labelled);
        sums.f1 += ratio(2 * hits, labelled + predicted);
        sums.iou += ratio(hits, labelled + predicted - hits);
    }
    let rows = confusion.chunks(count).map(<[u64]>::to_vec).collect();
    let mean = |x: f64| if present > 0.0 { x / present } else { 0.0 };
    ByClass {
        precision: mean(sums.precision),
        recall: mean(sums.recall),
        f1: mean(sums.f1),
        iou: mean(sums.iou),
        confusion: rows,
    }
}

impl Binary {
    fn add(&mut self, want: f64, got: f64) {
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
    fn finish(&self, s: &mut Scores, count: f64, numbers: Regression) {
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
        s.regression = (squares && !logits).then_some(numbers);
        s.notes
            .push(format!("the labels are all 0 or 1 and were taken as classes: class 1 is predicted {why}"));
    }
}

impl Numbers {
    fn add(&mut self, want: f64, got: f64) {
        self.count += 1.0;
        self.squares += (got - want).powi(2);
        self.magnitudes += (got - want).abs();
        // Welford's update (1962): the sum of squares about the mean without cancellation.
        let before = want - self.truth;
        self.truth += before / self.count;
        self.truths += before * (want - self.truth);
    }

    fn finish(&self) -> Regression {
        let n = self.count;
        Regression { mse: self.squares / n, mae: self.magnitudes / n, r2: 1.0 - self.squares / self.truths }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::DType;
    use std::collections::BTreeMap;

    fn float(shape: &[usize], v: &[f64]) -> Tensor {
        Tensor::float(DType::F32, shape, v.to_vec())
    }

    fn ints(shape: &[usize], v: &[i64]) -> Tensor {
        let bytes: Vec<u8> = v.iter().flat_map(|x| x.to_le_bytes()).collect();
        Tensor::from_bytes(&TensorType::new(DType::I64, shape), &bytes)
    }

    fn score(labels: Tensor, output: Tensor, loss: f64) -> Scores {
        let inputs = [("labels".to_string(), labels.ty.clone())];
        let scalar = float(&[], &[loss]);
        let mut s = Scorer::new(&inputs, &[scalar.ty.clone(), output.ty.clone()], None, 2).unwrap();
        let samples = labels.shape()[0];
        s.add(&Ran { samples, inputs: BTreeMap::from([("labels", labels)]), outputs: vec![scalar, output] });
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
        // One other label in any batch, or several numbers for each sample: these are numbers.
        let ty = TensorType::new(DType::F32, [2]);
        let inputs = [("labels".to_string(), ty.clone())];
        let loss = float(&[], &[1.0]);
        let mut several = Scorer::new(&inputs, &[loss.ty.clone(), ty], None, 5).unwrap();
        for labels in [[0.0, 1.0], [1.0, 0.5], [0.0, 0.0]] {
            let (inputs, output) =
                (BTreeMap::from([("labels", float(&[2], &labels))]), float(&[2], &[1.0, 2.0]));
            several.add(&Ran { samples: 2, inputs, outputs: vec![loss.clone(), output] });
        }
        let wide = score(float(&[1, 2], &[0.0, 1.0]), float(&[1, 2], &[1.0, 2.0]), 1.0);
        for s in [several.finish(), wide] {
            assert!(s.regression.is_some() && s.accuracy.is_none() && s.notes.is_empty(), "{s:?}");
        }
    }

    #[test]
    fn named_labels_must_fit() {
        let ty = |dtype, shape: &[usize]| TensorType::new(dtype, shape);
        let inputs = [("a".to_string(), ty(DType::I64, &[4])), ("b".to_string(), ty(DType::I64, &[4]))];
        let outputs = [ty(DType::F32, &[]), ty(DType::F32, &[4, 3])];
        let task = |named| Scorer::new(&inputs, &outputs, named, 5).map(|s| s.task);
        assert_eq!(task(None).unwrap(), None, "two fit");
        assert!(matches!(task(Some("b")).unwrap(), Some(Task::Classes { ref labels, .. }) if labels == "b"));
        assert!(task(Some("c")).unwrap_err().to_string().contains("it has a, b"));
    }
}
