//! The step that trains the job once more in mixed precision, and says whether that cost accuracy.

use super::training::{Frame, Places, Ran, Trained, run};
use super::{Found, Job, Watcher};
use crate::core::DType;
use crate::core::pass::precision::{Level, Properties};
use crate::core::target::Target;
use crate::report::{Block, Chart, Series, Table, scores, text};
use crate::runtime::score::{Metric, Scores};
use crate::runtime::trainer::Summary;
use anyhow::Result;

/// Largest relative increase of the loss that is no cost, where chance makes less.
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
    let verdict = judge(&Side::new(&trained.summary, &plain_losses), &Side::new(&summary, &losses));
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
    let curves = vec![history.loss(&chosen), trained.history.loss(&plain)];
    let skips = match skipped {
        0 => "no step skipped".to_string(),
        1 => "1 step skipped".to_string(),
        n => format!("{n} steps skipped"),
    };
    let slower = slower(&plain, trained.history.speed().0, history.speed().0);
    let found = format!("{chosen}: {}; {skips}{slower}", verdict.text);
    let curves = chart("Loss of each step in both precisions", "loss", curves).log(true);
    let mut found = Found::new(!verdict.cost, found)
        .next(advice(&low, frame.device.target()))
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
        let series = vec![Series { name: "elements lost".into(), points }];
        let title = "Gradient elements that underflow to zero, where counted";
        found = found.with(Block::Chart(chart(title, "%", series)));
    }
    Ok((trained, found))
}

/// Said where a step of the second run takes longer than one of the first, whose precision is `plain`: medians in seconds, 0
/// for unknown.
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

/// Mean loss over the last tenth of a run.
fn tail(losses: &[f64]) -> f64 {
    let last = last_tenth(losses);
    last.iter().sum::<f64>() / last.len() as f64
}

fn last_tenth(losses: &[f64]) -> &[f64] {
    &losses[losses.len() - losses.len().div_ceil(10)..]
}

/// One of two runs that are compared.
struct Side<'a> {
    summary: &'a Summary,
    /// Mean loss over its last tenth, and the standard error of that.
    tail: (f64, f64),
}

impl Side<'_> {
    fn new<'a>(summary: &'a Summary, losses: &[f64]) -> Side<'a> {
        let (mean, last) = (tail(losses), last_tenth(losses));
        let squares: f64 = last.iter().map(|l| (l - mean).powi(2)).sum();
        let n = last.len() as f64;
        let error = if n > 1.0 { (squares / (n - 1.0) / n).sqrt() } else { 0.0 };
        Side { summary, tail: (mean, error) }
    }
}

struct Judged {
    cost: bool,
    text: String,
}

/// Judges whether the second run is worse than the first by more than chance: runs that differ in rounding alone
/// part ways as runs of different seeds do.
fn judge(plain: &Side, mixed: &Side) -> Judged {
    let both = |of: &dyn Fn(&Scores) -> Option<f64>| {
        let of = |s: &Summary| of(&s.evaluation.as_ref()?.scores);
        Some((of(plain.summary)?, of(mixed.summary)?))
    };
    // Shares of samples: tokens and pixels of one sample are not independent, so that their number says nothing of chance.
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
    let (what, (a, b), (wide, low)) = match both(&|s| Some(s.loss)) {
        Some(losses) => {
            ("held-out loss", losses, both(&|s| Some(s.loss_error.unwrap_or(0.0))).unwrap_or_default())
        }
        None => (
            "mean loss over the last tenth of the run",
            (plain.tail.0, mixed.tail.0),
            (plain.tail.1, mixed.tail.1),
        ),
    };
    // Two standard errors of a difference of two means: batches differ by so much themselves.
    let allowed = (LOSS_LIMIT * a.abs()).max(2.0 * wide.hypot(low));
    // A NaN is no loss to be within anything.
    let within = b - a <= allowed;
    // Of tokens and pixels the share that is right has no chance of its own here, and speaks where it is not worse.
    let right = both(&|s| s.accuracy).filter(|_| b.is_finite());
    let better = right.is_some_and(|(a, b)| b >= a);
    let shares = right.map_or(String::new(), |(a, b)| format!("; accuracy {b:.4}, {a:.4} in full precision"));
    let word = match (within, better) {
        (true, _) => "no cost beyond chance",
        (false, true) => "no cost of accuracy, though of loss",
        (false, false) => "it COSTS loss",
    };
    let text =
        format!("{word}: {what} {b:.4}, {a:.4} in full precision; {:.4} is allowed{shares}", a + allowed);
    Judged { cost: !within && !better, text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::trainer::Evaluation;

    fn side(summary: &Summary) -> Side<'_> {
        Side::new(summary, &summary.losses)
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
        let judged = |a: &Summary, b: &Summary| judge(&side(a), &side(b));
        assert!(judged(&tokens(0.95), &tokens(0.9)).text.starts_with("no cost beyond chance: held-out loss"));
        let with = |accuracy, loss, error| {
            let mut run = tokens(accuracy);
            let scores = &mut run.evaluation.as_mut().unwrap().scores;
            (scores.loss, scores.loss_error) = (loss, error);
            run
        };
        // By 2 %, where batches say no more of the mean than 1 % each: two standard errors of the difference are 2.8 %.
        let (first, second) = (with(0.99, 1.0, Some(0.01)), with(0.989, 1.02, Some(0.01)));
        assert!(!judged(&first, &second).cost && judged(&first, &with(0.989, 1.03, Some(0.01))).cost);
        assert!(
            judged(&first, &with(0.989, f64::NAN, None)).cost
                && judged(&first, &with(0.995, f64::NAN, None)).cost
        );
        // A higher loss with as many pixels right is said, and is no cost.
        let pixels = judged(&first, &with(0.992, 1.2, Some(0.01)));
        assert!(
            !pixels.cost && pixels.text.contains("though of loss") && pixels.text.contains("accuracy 0.9920")
        );
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
