//! The step that trains the job once more in mixed precision, and says whether that cost accuracy.

use super::steps::Trained;
use super::{Found, Job, Watcher};
use crate::core::device::Device;
use crate::core::pass::precision::Level;
use crate::import::Dims;
use crate::report::{Block, Chart, Series, Table, Verdict, text};
use crate::runtime::amp::AmpConfig;
use crate::runtime::trainer::{Evaluation, Event, Observer, Summary};
use crate::train::with_trainer;
use anyhow::{Result, ensure};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// How much higher the loss may be, relative, where there is no accuracy to judge by.
const LOSS_LIMIT: f64 = 0.01;

/// Notes what a run tells about its precision, beside the observer that draws.
struct Note<'a> {
    inner: &'a mut dyn Observer,
    /// By step: log₂ of the loss scale, and the share of the gradients that underflowed.
    scale: Vec<(f64, f64)>,
    lost: Vec<(f64, f64)>,
    skipped: usize,
    seconds: Vec<f64>,
}

impl Observer for Note<'_> {
    fn event(&mut self, event: &Event) -> crate::runtime::Result<()> {
        if let Event::Step(s) = event {
            self.scale.push((s.step as f64, s.scale.log2()));
            self.lost.extend(s.underflow.as_ref().map(|u| (s.step as f64, u.share())));
            self.skipped += !s.applied as usize;
            self.seconds.push(s.seconds);
        }
        self.inner.event(event)
    }
}

/// The level and what of it is not the default, in a few words.
fn named(amp: &AmpConfig) -> Result<String> {
    let p = amp.properties()?;
    Ok(match p.level {
        Level::O0 => "f32".into(),
        level => format!("{level} {}", p.dtype),
    })
}

/// The job's run again at the level it names.
pub(super) fn mixed(
    job: &Job,
    trained: Trained,
    out: &Path,
    device: Arc<dyn Device>,
    watcher: &mut dyn Watcher,
    stop: &AtomicBool,
) -> Result<(Trained, Found)> {
    let (plain, chosen) = (named(&job.train.amp)?, named(&job.amp)?);
    if job.amp.level == Level::O0 {
        let summary = "the job asks for none: `[amp]` names level O0".into();
        return Ok((trained, Found { verdict: Verdict::Note, summary, blocks: vec![] }));
    }
    let mut config = job.train.clone();
    config.amp = job.amp.clone();
    (config.checkpoint.dir, config.checkpoint.every) = (None, None);
    config.log.json = Some(out.join("log.mixed.jsonl"));
    let mut note =
        Note { inner: watcher.training(), scale: vec![], lost: vec![], skipped: 0, seconds: vec![] };
    let (summary, held) =
        with_trainer(&trained.opened.model, Dims::new(), config, device, false, |trainer, config| {
            let held = trainer.session().planned_bytes();
            Ok((crate::train::run_logged(trainer, config, &mut [&mut note], stop)?, held))
        })?;
    ensure!(summary.complete, "the run was stopped at step {}", summary.step);
    let Note { scale, lost, skipped, mut seconds, .. } = note;
    let verdict = judge(&trained.summary, &summary);
    let mut table = Table::new("Both runs", &["what", &format!(">{plain}"), &format!(">{chosen}")]);
    let shown = |x: Option<f64>| x.map_or("—".to_string(), |x| format!("{x:.4}"));
    let mut row = |what: &str, of: &dyn Fn(&Summary) -> Option<f64>| {
        table.row([what.to_string(), shown(of(&trained.summary)), shown(of(&summary))]);
    };
    row("held-out accuracy", &|s| s.evaluation.as_ref().and_then(|e| e.accuracy));
    row("held-out loss", &|s| s.evaluation.as_ref().map(|e| e.loss));
    row("loss, mean over the last tenth", &|s| Some(tail(s)));
    let mut both = |what: &str, a: String, b: String| table.row([what.to_string(), a, b]);
    both("planned memory", text::bytes(trained.held), text::bytes(held));
    both(
        "median of a step",
        text::seconds(trained.seconds),
        text::seconds(super::steps::median(&mut seconds)),
    );
    both("steps skipped", "—".into(), skipped.to_string());
    let last = |points: &[(f64, f64)]| points.last().map(|p| p.1);
    both("loss scale at the end", "1".into(), last(&scale).map_or("—".into(), |s| s.exp2().to_string()));
    let most = lost.iter().map(|p| p.1).fold(None, |a: Option<f64>, x| Some(a.map_or(x, |a| a.max(x))));
    let share = |x: f64| format!("{:.4} %", 100.0 * x);
    both("gradient elements lost to underflow, at the most", "—".into(), most.map_or("—".into(), share));
    let line = |name: &str, loss: &[f64]| Series {
        name: name.into(),
        points: loss.iter().enumerate().map(|(i, &l)| (i as f64 + 1.0, l)).collect(),
    };
    let chart = |title: &str, y: &str, series| {
        Block::Chart(Chart { title: title.into(), x: "step".into(), y: y.into(), series, filled: false })
    };
    let curves = vec![line(&chosen, &summary.losses), line(&plain, &trained.summary.losses)];
    let skips = match skipped {
        0 => "no step skipped".to_string(),
        1 => "1 step skipped".to_string(),
        n => format!("{n} steps skipped"),
    };
    let summary = format!("{chosen}: {}; {skips}", verdict.text);
    let mut found = Found::new(!verdict.cost, summary).with(Block::Table(table)).with(chart(
        "Loss of each step in both precisions",
        "loss",
        curves,
    ));
    if scale.iter().any(|p| p.1 != 0.0) {
        let series = vec![Series { name: "loss scale".into(), points: scale }];
        found = found.with(chart("Loss scale", "log₂", series));
    }
    if most.is_some_and(|m| m > 0.0) {
        let series = vec![Series {
            name: "elements lost".into(),
            points: lost.iter().map(|p| (p.0, 100.0 * p.1)).collect(),
        }];
        found = found.with(chart("Gradient elements that underflow to zero, where counted", "%", series));
    }
    Ok((trained, found))
}

/// Mean loss over the last tenth of a run.
fn tail(s: &Summary) -> f64 {
    let last = &s.losses[s.losses.len() - s.losses.len().div_ceil(10)..];
    last.iter().sum::<f64>() / last.len() as f64
}

struct Judged {
    cost: bool,
    text: String,
}

/// Whether the second run is worse than the first by more than chance: runs that differ in rounding alone
/// part ways as runs of different seeds do.
fn judge(plain: &Summary, mixed: &Summary) -> Judged {
    let both = |of: &dyn Fn(&Evaluation) -> Option<f64>| {
        Some((of(plain.evaluation.as_ref()?)?, of(mixed.evaluation.as_ref()?)?))
    };
    if let (Some((a, b)), Some(e)) = (both(&|e| e.accuracy), &mixed.evaluation) {
        // Two standard errors of a difference of two shares, and one sample.
        let n = e.samples as f64;
        let chance = 2.0 * ((a * (1.0 - a) + b * (1.0 - b)) / n).sqrt() + 1.0 / n;
        let cost = a - b > chance;
        let word = if cost { "it COSTS accuracy" } else { "no cost beyond chance" };
        let text = format!(
            "{word}: {b:.4} of {} held-out samples, {a:.4} in full precision; up to {chance:.4} is chance",
            e.samples
        );
        return Judged { cost, text };
    }
    let (what, (a, b)) = match both(&|e| Some(e.loss)) {
        Some(losses) => ("held-out loss", losses),
        None => ("mean loss over the last tenth of the run", (tail(plain), tail(mixed))),
    };
    // A NaN is no loss to be within anything.
    let within = b - a <= LOSS_LIMIT * a.abs();
    let word = if within { "no cost" } else { "it COSTS loss" };
    let text = format!("{word}: {what} {b:.4}, {a:.4} in full precision; {} is allowed", 1.0 + LOSS_LIMIT);
    Judged { cost: !within, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(accuracy: Option<f64>, loss: f64, held_out: bool) -> Summary {
        let evaluation = Evaluation { step: 9, loss, accuracy, samples: 400, left_out: 0, seconds: 0.0 };
        Summary {
            step: 20,
            complete: true,
            losses: vec![loss; 20],
            evaluation: held_out.then_some(evaluation),
            best: None,
        }
    }

    #[test]
    fn the_verdict_knows_chance_from_cost() {
        let cost = |a: &Summary, b: &Summary| judge(a, b).cost;
        let at = |a| run(Some(a), 1.0, true);
        // Two standard errors around 0.95 and 400 samples are 3 points.
        assert!(!cost(&at(0.95), &at(0.93)));
        assert!(cost(&at(0.95), &at(0.90)));
        assert!(!cost(&at(0.90), &at(0.95)), "better is no cost");
        assert!(!cost(&at(1.0), &at(1.0 - 1.0 / 400.0)) && cost(&at(1.0), &at(0.97)));
        for held_out in [true, false] {
            let by = |l| run(None, l, held_out);
            assert!(!cost(&by(2.0), &by(2.01)));
            assert!(cost(&by(2.0), &by(2.03)) && cost(&by(2.0), &by(f64::NAN)));
        }
        assert!(judge(&at(0.95), &at(0.9)).text.contains("COSTS accuracy: 0.9000 of 400"));
    }
}
