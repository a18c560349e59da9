//! The step that judges the trained model on held-out data.

use super::job::Accept;
use super::training::Trained;
use super::{Found, Job};
use crate::report::{Block, Table};
use crate::runtime::trainer::Evaluation;
use anyhow::{Result, ensure};

/// 6: how well the trained model does on held-out data.
pub(super) fn evaluation(job: &Job, t: Trained) -> Result<(Trained, Found)> {
    let Some(e): Option<&Evaluation> = t.summary.evaluation.as_ref() else {
        ensure!(
            job.accept == Accept::default(),
            "[accept] demands something of held-out data, but the job names none: name it under [train.data] as `eval`"
        );
        let summary: String =
            "the job names no held-out data: nothing says how well the model does on other samples".into();
        return Ok((t, Found::note(summary)));
    };
    let mut table = Table::new("Held-out data", &["what", ">Headwater", ">PyTorch, recorded"]);
    let theirs = t.curve.as_ref().and_then(|c| c.accuracy);
    let shown = |x: Option<f64>| x.map_or("—".to_string(), |x| format!("{x:.4}"));
    table.row(["accuracy".into(), shown(e.accuracy), shown(theirs)]);
    table.row(["loss".into(), format!("{:.4}", e.loss), shown(t.curve.as_ref().and_then(|c| c.eval_loss))]);
    table.row(["samples".into(), e.samples.to_string(), "".into()]);
    let mut good = e.loss.is_finite();
    let mut said = Vec::new();
    match (e.accuracy, job.accept.accuracy) {
        (Some(a), Some(want)) => {
            good &= a >= want;
            said.push(format!("accuracy {a:.4} ({want} is demanded)"));
        }
        (None, Some(want)) => {
            good = false;
            said.push(format!("accuracy {want} is demanded, but the model has no logits and labels"));
        }
        (Some(a), None) => said.push(format!("accuracy {a:.4}")),
        (None, None) => {}
    }
    match job.accept.loss {
        Some(most) => {
            good &= e.loss <= most;
            said.push(format!("loss {:.4} (at most {most} is demanded)", e.loss));
        }
        None => said.push(format!("loss {:.4}", e.loss)),
    }
    let recorded = t.curve.as_ref().and_then(|c| apart(e, c.accuracy, c.eval_loss)).unwrap_or_default();
    let text = format!("{} on {} samples{recorded}", said.join(", "), e.samples);
    let found = Found::new(good, text)
        .took(e.seconds)
        .next("train longer, at another learning rate, or look at the curves of held-out loss and training loss above")
        .value("loss", e.loss)
        .value("accuracy", e.accuracy)
        .value("samples", e.samples)
        .value("left_out", e.left_out)
        .value("accuracy_demanded", job.accept.accuracy)
        .value("loss_demanded", job.accept.loss)
        .value("pytorch_loss", t.curve.as_ref().and_then(|c| c.eval_loss))
        .value("pytorch_accuracy", theirs)
        .value("best", t.summary.best);
    Ok((t, found.with(Block::Table(table))))
}

/// Digits after the point to which accuracies and losses are shown and compared.
const DIGITS: usize = 4;

/// PyTorch's recorded accuracy and loss on the same data where they differ from ours, and why; `None` where they are the same
/// to the digits shown.
fn apart(ours: &Evaluation, accuracy: Option<f64>, loss: Option<f64>) -> Option<String> {
    let differ = |a: f64, b: f64| format!("{a:.DIGITS$}") != format!("{b:.DIGITS$}");
    let mut said = Vec::new();
    if let (Some(a), Some(b)) = (ours.accuracy, accuracy)
        && differ(a, b)
    {
        // A share of whole samples; that of tokens is no whole number of them.
        let samples = (a - b).abs() * ours.samples as f64;
        let more = if b > a { "more" } else { "fewer" };
        let count = match samples.round() {
            n if (samples - n).abs() > 0.01 || n == 0.0 => String::new(),
            1.0 => format!(", 1 sample {more} right"),
            n => format!(", {n} samples {more} right"),
        };
        said.push(format!("accuracy {b:.DIGITS$}{count}"));
    }
    if let Some(b) = loss.filter(|b| differ(ours.loss, *b)) {
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
        let ours =
            Evaluation { step: 9, loss: 0.5, accuracy: Some(0.95), samples: 400, left_out: 0, seconds: 0.0 };
        let said = |accuracy, loss| apart(&ours, accuracy, loss).unwrap_or_default();
        assert_eq!(said(Some(0.95), Some(0.50001)), "");
        assert_eq!(said(None, None), "");
        assert!(
            said(Some(0.9575), None).contains("accuracy 0.9575, 3 samples more right: two runs part ways")
        );
        assert!(said(Some(0.9475), None).contains("accuracy 0.9475, 1 sample fewer right"));
        // No whole number of samples: a share of tokens.
        assert!(said(Some(0.9562), None).contains("has accuracy 0.9562: "));
        assert!(said(Some(0.95), Some(0.52)).contains("has loss 0.5200: "));
    }
}
