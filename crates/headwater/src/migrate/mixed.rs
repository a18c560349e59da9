//! The step that trains the job once more in mixed precision, and says whether that cost accuracy.

use super::training::{Frame, Places, Ran, Trained, run};
use super::{Found, Job, Watcher};
use crate::core::pass::precision::{Level, Properties};
use crate::report::{Block, Chart, Series, Stroke, Table, scores, text};
use crate::runtime::score::{Metric, Scores};
use crate::runtime::trainer::Summary;
use anyhow::Result;

/// Largest relative increase of the loss, where there is no accuracy to judge by.
const LOSS_LIMIT: f64 = 0.01;

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
    let side = |summary, losses| Side { summary, tail: tail(losses) };
    let verdict = judge(&side(&trained.summary, &plain_losses), &side(&summary, &losses));
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
        format!("{:.4}", tail(&plain_losses)),
        format!("{:.4}", tail(&losses)),
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
    let next = "name what must stay in f32 (`headwater train --amp auto` chooses it by measuring), take O1 in place of O2 or \
                O3, or bf16 in place of f16";
    let mut found = Found::new(!verdict.cost, found)
        .next(next)
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

/// Mean loss over the last tenth of a run.
fn tail(losses: &[f64]) -> f64 {
    let last = &losses[losses.len() - losses.len().div_ceil(10)..];
    last.iter().sum::<f64>() / last.len() as f64
}

/// One of two runs that are compared.
struct Side<'a> {
    summary: &'a Summary,
    /// Mean loss over its last tenth.
    tail: f64,
}

struct Judged {
    cost: bool,
    text: String,
}

/// Judges whether the second run is worse than the first by more than chance: runs that differ in rounding
/// alone part ways as runs of different seeds do.
fn judge(plain: &Side, mixed: &Side) -> Judged {
    let both = |of: &dyn Fn(&Scores) -> Option<f64>| {
        let of = |s: &Summary| of(&s.evaluation.as_ref()?.scores);
        Some((of(plain.summary)?, of(mixed.summary)?))
    };
    // Shares of samples: tokens and pixels of one sample are not independent, so that their number says
    // nothing of chance.
    let by_sample = |s: &Scores| s.accuracy.filter(|_| s.counted == Some(s.samples as u64));
    if let (Some((a, b)), Some(e)) = (both(&by_sample), &mixed.summary.evaluation) {
        // Two standard errors of a difference of two shares, and one sample.
        let n = e.scores.samples as f64;
        let chance = 2.0 * ((a * (1.0 - a) + b * (1.0 - b)) / n).sqrt() + 1.0 / n;
        let cost = a - b > chance;
        let word = if cost { "it COSTS accuracy" } else { "no loss of accuracy beyond chance" };
        let text = format!(
            "{word}: {b:.4} on {} held-out samples, {a:.4} in full precision; a difference of up to {chance:.4} is chance",
            e.scores.samples
        );
        return Judged { cost, text };
    }
    let (what, (a, b)) = match both(&|s| Some(s.loss)) {
        Some(losses) => ("held-out loss", losses),
        None => ("mean loss over the last tenth of the run", (plain.tail, mixed.tail)),
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
    use crate::runtime::trainer::Evaluation;

    fn side(summary: &Summary) -> Side<'_> {
        Side { summary, tail: tail(&summary.losses) }
    }

    fn run(accuracy: Option<f64>, loss: f64, held_out: bool) -> Summary {
        let counted = accuracy.map(|_| 400);
        let scores = Scores { samples: 400, loss, accuracy, counted, ..Scores::default() };
        let evaluation = Evaluation { step: 9, scores, left_out: 0, seconds: 0.0 };
        Summary {
            step: 20,
            complete: true,
            losses: vec![loss; 20],
            updates: 20,
            evaluation: held_out.then_some(evaluation),
            best: None,
        }
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
    fn the_verdict_knows_chance_from_cost() {
        let cost = |a: &Summary, b: &Summary| judge(&side(a), &side(b)).cost;
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
        assert!(judge(&side(&at(0.95)), &side(&at(0.9))).text.contains("COSTS accuracy: 0.9000 on 400"));
        // Runs on tokens, more than samples, are compared by their losses.
        let tokens = |a: f64| {
            let mut run = at(a);
            run.evaluation.as_mut().unwrap().scores.counted = Some(400 * 64);
            run
        };
        assert!(judge(&side(&tokens(0.95)), &side(&tokens(0.9))).text.starts_with("no cost: held-out loss"));
    }
}
