//! The step that judges the trained model on held-out data.

use super::job::Accept;
use super::training::Trained;
use super::{Found, Job};
use crate::report::{Block, Table, scores};
use crate::runtime::score::{Metric, Scores};
use crate::runtime::trainer::Evaluation;
use anyhow::{Result, ensure};
use std::collections::BTreeMap;

/// 6: how well the trained model does on held-out data.
pub(super) fn evaluation(job: &Job, t: Trained) -> Result<(Trained, Found)> {
    let Some(e): Option<&Evaluation> = t.summary.evaluation.as_ref() else {
        ensure!(
            job.accept == Accept::default(),
            "[accept] demands something of held-out data, but the job names none: name it under [train.data] as `eval`"
        );
        let summary: String =
            "the job names no held-out data: nothing says how well the model does on other samples".into();
        return Ok((t, Found::idle(summary)));
    };
    let ours = &e.scores;
    let theirs = |metric: Metric| match (metric, &t.curve) {
        (Metric::Loss, Some(curve)) => curve.eval_loss,
        (Metric::Accuracy, Some(curve)) => curve.accuracy,
        _ => None,
    };
    let mut table = Table::new("Held-out data", &["what", ">Headwater", ">PyTorch, recorded"]);
    for metric in Metric::ALL {
        if let Some(value) = metric.of(ours) {
            let recorded = theirs(metric).map_or("—".to_string(), |x| scores::shown(metric, x));
            table.row([scores::name(metric, ours), scores::shown(metric, value), recorded]);
        }
    }
    table.row(["samples".into(), ours.samples.to_string(), "".into()]);
    let (good, said) = judged(ours, &job.accept);
    let recorded = apart(e, theirs(Metric::Accuracy), theirs(Metric::Loss)).unwrap_or_default();
    let text = format!("{said} on {} samples{recorded}", ours.samples);
    let demanded = |metric| job.accept.0.get(&metric);
    let mut found = Found::new(good, text)
        .took(e.seconds)
        .next("train longer, at another learning rate, or look at the curves of held-out loss and training loss above")
        .value("loss", ours.loss)
        .value("accuracy", ours.accuracy)
        .value("scores", ours)
        .value("samples", ours.samples)
        .value("left_out", e.left_out)
        .value("accuracy_demanded", demanded(Metric::Accuracy))
        .value("loss_demanded", demanded(Metric::Loss))
        .value("demanded", job.accept.0.iter().map(|(m, x)| (m.name(), *x)).collect::<BTreeMap<_, _>>())
        .value("pytorch_loss", theirs(Metric::Loss))
        .value("pytorch_accuracy", theirs(Metric::Accuracy))
        .value("best", t.summary.best)
        .with(Block::Table(table));
    for table in [scores::each(ours), scores::confusion(ours)].into_iter().flatten() {
        found = found.with(Block::Table(table));
    }
    Ok((t, found))
}

/// True if the scores keep the job's limits, and the scores in words.
fn judged(ours: &Scores, accept: &Accept) -> (bool, String) {
    let mut good = ours.loss.is_finite();
    let mut said = Vec::new();
    // The loss comes last: it exists for every model.
    let others = Metric::ALL.into_iter().filter(|m| *m != Metric::Loss);
    for metric in others.chain([Metric::Loss]) {
        let word = scores::name(metric, ours);
        match (metric.of(ours), accept.0.get(&metric)) {
            (Some(value), Some(&want)) => {
                good &= metric.gain(value, want) >= 0.0;
                let most = if metric.falls() { "at most " } else { "" };
                said.push(format!("{word} {} ({most}{want} is demanded)", scores::shown(metric, value)));
            }
            (None, Some(want)) => {
                good = false;
                let why = ours.notes.first().map_or("the model's outputs have none", String::as_str);
                said.push(format!("{word} {want} is demanded, but was not measured: {why}"));
            }
            (Some(value), None) if matches!(metric, Metric::Accuracy | Metric::Loss) => {
                said.push(format!("{word} {}", scores::shown(metric, value)));
            }
            _ => {}
        }
    }
    (good, said.join(", "))
}

/// Digits after the point to which accuracies and losses are shown and compared.
const DIGITS: usize = 4;

/// PyTorch's recorded accuracy and loss on the same data where they differ from ours, and why; `None` where
/// they are the same to the digits shown.
fn apart(ours: &Evaluation, accuracy: Option<f64>, loss: Option<f64>) -> Option<String> {
    let differ = |a: f64, b: f64| format!("{a:.DIGITS$}") != format!("{b:.DIGITS$}");
    let mut said = Vec::new();
    let scores = &ours.scores;
    if let (Some(a), Some(b)) = (scores.accuracy, accuracy)
        && differ(a, b)
    {
        // A share of whole samples; that of tokens is not a multiple of one.
        let samples = (a - b).abs() * scores.samples as f64;
        let more = if b > a { "more" } else { "fewer" };
        let count = match samples.round() {
            n if (samples - n).abs() > 0.01 || n == 0.0 => String::new(),
            1.0 => format!(", 1 sample {more} right"),
            n => format!(", {n} samples {more} right"),
        };
        said.push(format!("accuracy {b:.DIGITS$}{count}"));
    }
    if let Some(b) = loss.filter(|b| differ(scores.loss, *b)) {
        said.push(format!("loss {b:.DIGITS$}"));
    }
    let because = "two runs part ways after some steps, as training amplifies every rounding";
    (!said.is_empty()).then(|| format!("; PyTorch's recorded run has {}: {because}", said.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_run_that_ends_elsewhere_is_told_in_samples() {
        let scores = Scores { loss: 0.5, accuracy: Some(0.95), samples: 400, ..Scores::default() };
        let ours = Evaluation { step: 9, scores, left_out: 0, seconds: 0.0, by_batch: Default::default() };
        let said = |accuracy, loss| apart(&ours, accuracy, loss).unwrap_or_default();
        assert_eq!(said(Some(0.95), Some(0.50001)), "");
        assert_eq!(said(None, None), "");
        assert!(
            said(Some(0.9575), None).contains("accuracy 0.9575, 3 samples more right: two runs part ways")
        );
        assert!(said(Some(0.9475), None).contains("accuracy 0.9475, 1 sample fewer right"));
        // Not a multiple of one sample: a share of tokens.
        assert!(said(Some(0.9562), None).contains("has accuracy 0.9562: "));
        assert!(said(Some(0.95), Some(0.52)).contains("has loss 0.5200: "));
    }

    #[test]
    fn limits_are_kept_in_the_direction_of_their_metric() {
        let s = Scores { loss: 0.5, accuracy: Some(0.95), perplexity: Some(1.65), ..Scores::default() };
        let of = |limits: &[(Metric, f64)]| judged(&s, &Accept(limits.iter().copied().collect()));
        assert_eq!(of(&[]), (true, "accuracy 0.9500, loss 0.5000".into()));
        assert_eq!(
            of(&[(Metric::Accuracy, 0.9), (Metric::Loss, 0.5)]),
            (true, "accuracy 0.9500 (0.9 is demanded), loss 0.5000 (at most 0.5 is demanded)".into())
        );
        assert!(!of(&[(Metric::Accuracy, 0.96)]).0 && !of(&[(Metric::Loss, 0.4)]).0);
        assert!(of(&[(Metric::Perplexity, 1.7)]).0 && !of(&[(Metric::Perplexity, 1.6)]).0);
        let (good, said) = of(&[(Metric::F1, 0.5)]);
        assert!(
            !good && said.contains("F1, mean over classes 0.5 is demanded, but was not measured"),
            "{said}"
        );
        let lost = Scores { loss: f64::NAN, ..Scores::default() };
        assert!(!judged(&lost, &Accept::default()).0);
    }
}
