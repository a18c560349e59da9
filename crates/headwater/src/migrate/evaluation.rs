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
    let text = format!("{} on {} samples", said.join(", "), e.samples);
    let found = Found::new(good, text)
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
