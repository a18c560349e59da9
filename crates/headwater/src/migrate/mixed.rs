//! The step that trains the job once more in mixed precision, and says whether that cost accuracy.

use super::chance::{Says, Side, judge};
use super::training::{Frame, Places, Ran, Trained, run};
use super::{Found, Job, Watcher};
use crate::core::DType;
use crate::core::pass::precision::{Level, Properties};
use crate::core::target::Target;
use crate::report::{Block, Chart, Series, Stroke, Table, scores, text};
use crate::runtime::score::Metric;
use crate::runtime::trainer::Summary;
use anyhow::Result;

/// Medians of steps that differ by less are equal: runs of the same program differ by some percent.
const SLOWER: f64 = 1.05;

/// The level and the low precision, in a few words.
fn named(p: &Properties) -> String {
    match p.level {
        Level::O0 => "f32".into(),
        level => format!("{level} {}", p.dtype),
    }
}

/// The job's run again at the level it names.
pub(super) fn mixed(
    job: &Job,
    trained: Trained,
    frame: &Frame,
    watcher: &mut dyn Watcher,
) -> Result<(Trained, Found)> {
    if job.amp.level == Level::O0 {
        let summary = "the job asks for none: `[amp]` names level O0";
        return Ok((trained, Found::note(summary)));
    }
    let low = job.amp.properties(frame.device.target())?;
    let plain = named(&job.train.amp.properties(frame.device.target())?);
    let chosen = named(&low);
    let mut config = job.train.clone();
    config.amp = job.amp.clone();
    let places = Places { run: "run.mixed", log: "log.mixed.jsonl" };
    let opened = &trained.opened;
    let ran = run(opened, config, frame, places, watcher, |_, _| Ok(()), |_, _| ())?;
    let Ran { summary, note, held, .. } = ran;
    let (history, lost) = (&note.history, note.history.underflow());
    let (skipped, losses, plain_losses) = (history.skipped(), history.losses(), trained.history.losses());
    let (applied, plain_applied) = (history.applied(), trained.history.applied());
    let verdict = judge(
        &Side {
            evaluation: trained.summary.evaluation.as_ref(),
            losses: &plain_losses,
            applied: &plain_applied,
        },
        &Side { evaluation: summary.evaluation.as_ref(), losses: &losses, applied: &applied },
    );
    let mut table = Table::new("Both runs", &["what", &format!(">{plain}"), &format!(">{chosen}")]);
    for metric in Metric::ALL {
        let of = |s: &Summary| Some(scores::shown(metric, metric.of(&s.evaluation.as_ref()?.scores)?));
        if let Some(ours) = of(&summary) {
            let plain = of(&trained.summary).unwrap_or("—".into());
            table.row([format!("held-out {}", metric.word()), plain, ours]);
        }
    }
    let mut both = |what: &str, a: String, b: String| table.row([what.to_string(), a, b]);
    both(
        "loss, mean over the last tenth",
        format!("{:.4}", tail(&plain_losses, &plain_applied)),
        format!("{:.4}", tail(&losses, &applied)),
    );
    both("planned memory", text::bytes(trained.held), text::bytes(held));
    both("median of a step", text::seconds(trained.history.speed().0), text::seconds(history.speed().0));
    both("steps skipped", "—".into(), skipped.to_string());
    let scale = history.scale();
    let last = scale.points.last().map(|p| p.1);
    both("loss scale at the end", "1".into(), last.map_or("—".into(), |s| s.to_string()));
    let most = lost.iter().map(|p| p.1).fold(None, |a: Option<f64>, x| Some(a.map_or(x, |a| a.max(x))));
    let share = |x: f64| format!("{:.4} %", 100.0 * x);
    both("gradient elements lost to underflow, at the most", "—".into(), most.map_or("—".into(), share));
    let chart = |title: &str, y: &str, series| Chart::new(title, "step", y, series);
    let curves = vec![history.loss(&chosen), trained.history.loss(&plain).stroke(Stroke::Wide)];
    let skips = match skipped {
        0 => "no step skipped".to_string(),
        1 => "1 step skipped".to_string(),
        n => format!("{n} steps skipped"),
    };
    let slower = slower(&plain, trained.history.speed().0, history.speed().0);
    let found = format!("{chosen}: {}; {skips}{slower}", verdict.text);
    let curves = chart("Loss of each step in both precisions", "loss", curves).log(true);
    let found = match verdict.says {
        Says::NoCost => Found::new(true, found),
        Says::Unclear => Found::note(found),
        Says::Cost => Found::new(false, found).next(advice(&low, frame.device.target())),
    };
    let mut found = found
        .value("level", job.amp.level.to_string())
        .value("dtype", low.dtype.to_string())
        .value("loss", summary.evaluation.as_ref().map(|e| e.scores.loss))
        .value("accuracy", summary.evaluation.as_ref().and_then(|e| e.scores.accuracy))
        .value("losses", &losses)
        .value("step_seconds", history.speed().0)
        .value("planned_bytes", held)
        .value("steps_skipped", skipped)
        .value("loss_scale", last)
        .value("underflow_share", most)
        .value("resumed_at", note.resumed.as_ref().map(|r| r.0))
        .with(Block::Table(table))
        .with(Block::Chart(curves));
    if scale.points.iter().any(|p| p.1 != 1.0) {
        found = found.with(Block::Chart(chart("Loss scale", "factor", vec![scale]).log(true)));
    }
    if most.is_some_and(|m| m > 0.0) {
        let points = lost.iter().map(|p| (p.0, 100.0 * p.1)).collect();
        let series = vec![Series::new("elements lost", points)];
        let title = "Gradient elements that underflow to zero, where counted";
        found = found.with(Block::Chart(chart(title, "%", series)));
    }
    Ok((trained, found))
}

/// Said where a step of the second run takes longer than one of the first, whose precision is `plain`:
/// medians in seconds, 0 for unknown.
fn slower(plain: &str, first: f64, second: f64) -> String {
    match first > 0.0 && second > SLOWER * first {
        true => format!(
            "; on this device it is slower: {} a step, {} in {plain}",
            text::seconds(second),
            text::seconds(first)
        ),
        false => String::new(),
    }
}

/// Mean loss over the last tenth of a run, without the steps that were skipped.
fn tail(losses: &[f64], applied: &[bool]) -> f64 {
    let last = losses.len() - losses.len().div_ceil(10);
    let kept: Vec<f64> =
        losses.iter().zip(applied).skip(last).filter(|(_, applied)| **applied).map(|(l, _)| *l).collect();
    kept.iter().sum::<f64>() / kept.len() as f64
}

/// Ways out of a cost that there are at a level.
fn advice(low: &Properties, target: &Target) -> String {
    let mut ways = vec!["name what must stay in f32 (`headwater train --amp auto` chooses it by measuring)"];
    if matches!(low.level, Level::O2 | Level::O3) {
        ways.push("take O1");
    }
    if low.dtype == DType::F16 && target.low_dtypes().any(|dtype| dtype == DType::BF16) {
        ways.push("take bf16");
    }
    ways.push("or train longer: of few steps, runs of two seeds differ as much");
    ways.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_steps_are_in_no_mean() {
        let (mut losses, mut applied) = (vec![1.0; 20], vec![true; 20]);
        (losses[18], applied[18]) = (f64::NAN, false);
        assert_eq!(tail(&losses, &applied), 1.0);
        applied[18] = true;
        assert!(tail(&losses, &applied).is_nan());
    }

    #[test]
    fn a_slower_second_run_is_told() {
        assert_eq!(
            slower("f32", 0.01, 0.015),
            "; on this device it is slower: 15.0 ms a step, 10.0 ms in f32"
        );
        assert_eq!((slower("f32", 0.01, 0.0104), slower("f32", 0.01, 0.005)), (String::new(), String::new()));
        assert_eq!(slower("f32", 0.0, 0.01), "");
    }

    #[test]
    fn advice_fits_the_level() {
        let cpu = headwater_cpu::Cpu::new(1);
        let target = crate::core::device::Device::target(&cpu);
        let of = |level, dtype| advice(&Properties { level, dtype, ..Properties::default() }, target);
        let plain = of(Level::O1, DType::BF16);
        assert!(!plain.contains("O1") && !plain.contains("bf16") && plain.contains("--amp auto"), "{plain}");
        let half = of(Level::O2, DType::F16);
        assert!(half.contains("take O1") && half.contains("take bf16"), "{half}");
    }
}
