//! The numbers that a training run tells, kept for its report: loss, learning rate, norm, throughput,
//! evaluations.

use super::{Block, Chart, Series, Stroke, scores};
use crate::runtime::score::Metric;
use crate::runtime::trainer::{Evaluation, Event};
use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

/// Bytes of the longest line of a log that is read; a longer one is none that a run writes.
const LONGEST: u64 = 1 << 24;

/// A step, as logs have it. A number that is not finite is `null` there.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Step {
    step: u64,
    loss: Option<f64>,
    lr: Option<f64>,
    norm: Option<f64>,
    scale: Option<f64>,
    #[serde(default)]
    applied: bool,
    #[serde(default)]
    samples: usize,
    #[serde(default)]
    seconds: f64,
    underflow: Option<Lost>,
}

/// Elements of gradients that underflowed, of those that were counted.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Lost {
    lost: u64,
    elements: u64,
}

/// A line of a log; events that nobody reads are left out.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Line {
    Start {
        steps: Option<u64>,
        #[serde(default)]
        config: Value,
        #[serde(flatten)]
        facts: Map<String, Value>,
    },
    Step(Step),
    Evaluation(Box<Evaluation>),
    Interrupted {},
    End {},
    #[serde(other)]
    Other,
}

/// Steps of the shortest mean that is drawn as a trend.
const TREND: usize = 5;

/// The steps and evaluations of a run, in order.
#[derive(Clone, Debug, Default)]
pub struct History {
    steps: Vec<Step>,
    evaluations: Vec<Evaluation>,
    /// Steps of the whole run, once it has begun.
    pub planned: Option<u64>,
}

impl History {
    /// The first `until` steps of a run that is resumed, from its log; what the log does not have is missing.
    ///
    /// # Errors
    /// If the log exists and cannot be read.
    pub fn read(log: &Path, until: u64) -> Result<History> {
        History::read_with(log, until, |_| {})
    }

    /// The same; `other` receives lines that are neither steps nor evaluations. The log is read once, line by
    /// line, and numbers alone are kept.
    pub(crate) fn read_with(log: &Path, until: u64, mut other: impl FnMut(Line)) -> Result<History> {
        let mut history = History::default();
        let failed = || format!("cannot read {}", log.display());
        let file = match File::open(log) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(history),
            opened => opened.with_context(failed)?,
        };
        each_line(BufReader::new(file), |line| match serde_json::from_slice(line) {
            Ok(Line::Step(s)) if s.step <= until => history.steps.push(s),
            Ok(Line::Evaluation(e)) if e.step <= until => history.evaluate(*e),
            Ok(Line::Step(_) | Line::Evaluation(_)) => {}
            Ok(line) => other(line),
            // A line cut off by a crash is no line.
            Err(_) => {}
        })
        .with_context(failed)?;
        Ok(history)
    }

    /// Counts by label and prediction are shown of the last evaluation alone.
    fn evaluate(&mut self, e: Evaluation) {
        if let Some(before) = self.evaluations.last_mut() {
            *before = before.brief();
        }
        self.evaluations.push(e);
    }

    /// Takes in an event.
    pub fn add(&mut self, event: &Event) {
        let number = |x: f64| Some(x).filter(|x| x.is_finite());
        match event {
            Event::Start(s) => self.planned = Some(s.steps),
            Event::Step(s) => self.steps.push(Step {
                step: s.step,
                loss: number(s.loss),
                lr: number(s.lr),
                norm: number(s.norm),
                scale: number(s.scale),
                applied: s.applied,
                samples: s.samples,
                seconds: s.seconds,
                underflow: s.underflow.as_ref().map(|u| Lost { lost: u.lost, elements: u.elements }),
            }),
            Event::Evaluation(e) => self.evaluate(e.clone()),
            _ => {}
        }
    }

    /// Loss of every step.
    pub fn losses(&self) -> Vec<f64> {
        self.steps.iter().map(|s| s.loss.unwrap_or(f64::NAN)).collect()
    }

    /// True for each step that has updated the parameters.
    pub fn applied(&self) -> Vec<bool> {
        self.steps.iter().map(|s| s.applied).collect()
    }

    /// Steps done.
    pub fn step(&self) -> u64 {
        self.steps.last().map_or(0, |s| s.step)
    }

    /// Steps whose gradients were not finite.
    pub fn skipped(&self) -> usize {
        self.steps.iter().filter(|s| !s.applied).count()
    }

    /// Seconds of all steps and evaluations.
    pub fn seconds(&self) -> f64 {
        let steps: f64 = self.steps.iter().map(|s| s.seconds).sum();
        steps + self.evaluations.iter().map(|e| e.seconds).sum::<f64>()
    }

    /// The mean loss of the last fiftieth of the steps, at least of the last one.
    pub fn end_loss(&self) -> Option<f64> {
        let losses = self.loss("").points;
        let last = &losses[losses.len() - (losses.len() / 50).max(1).min(losses.len())..];
        (!last.is_empty()).then(|| last.iter().map(|p| p.1).sum::<f64>() / last.len() as f64)
    }

    /// A metric of all evaluations, by their steps.
    pub fn measured(&self, metric: Metric) -> Vec<(f64, f64)> {
        let point = |e: &Evaluation| Some((e.step as f64, metric.of(&e.scores)?));
        self.evaluations.iter().filter_map(point).filter(|p| p.1.is_finite()).collect()
    }

    /// The step and the value of the best evaluation by a metric; of equal ones the first.
    pub fn best(&self, metric: Metric) -> Option<(f64, f64)> {
        let better = |a: (f64, f64), b: (f64, f64)| if metric.gain(b.1, a.1) > 0.0 { b } else { a };
        self.measured(metric).into_iter().reduce(better)
    }

    /// Median seconds of a step, and median samples in a second; 0 for none.
    pub fn speed(&self) -> (f64, f64) {
        let timed = || self.steps.iter().filter(|s| s.seconds > 0.0);
        let mut seconds: Vec<f64> = timed().map(|s| s.seconds).collect();
        let mut rate: Vec<f64> = timed().map(|s| s.samples as f64 / s.seconds).collect();
        (median(&mut seconds), median(&mut rate))
    }

    /// A line of a chart: the numbers of all steps that have one.
    fn line(&self, name: &str, of: impl Fn(&Step) -> Option<f64>) -> Series {
        let points = self.steps.iter().filter_map(|s| Some((s.step as f64, of(s)?)));
        Series::new(name, points.collect())
    }

    /// The loss of every step.
    pub fn loss(&self, name: &str) -> Series {
        self.line(name, |s| s.loss)
    }

    /// The mean loss of the last steps at each step, a fiftieth of the run, where that is many: a line that
    /// shows the trend through the noise of batches.
    pub fn trend(&self) -> Option<Series> {
        let points = self.loss("").points;
        let window = points.len() / 50;
        if window < TREND {
            return None;
        }
        let mut sum = points[..window].iter().map(|p| p.1).sum::<f64>();
        let mut trend = vec![(points[window - 1].0, sum / window as f64)];
        for i in window..points.len() {
            sum += points[i].1 - points[i - window].1;
            trend.push((points[i].0, sum / window as f64));
        }
        Some(Series::new(&format!("mean of the last {window} steps"), trend))
    }

    /// The loss on held-out data, if it was measured.
    pub fn held_out_loss(&self) -> Option<Series> {
        let points = self.measured(Metric::Loss);
        (!points.is_empty()).then(|| Series::new("held-out loss", points))
    }

    /// The loss of the run in one chart: the trend over the noise of steps, and held-out data beside it.
    pub fn loss_chart(&self) -> Chart {
        let steps = self.loss("training loss, each step").colour(0);
        let mut series: Vec<Series> = Vec::new();
        match self.trend() {
            Some(trend) => {
                let name = format!("training loss, {}", trend.name);
                series.extend([Series { name, ..trend }, steps.stroke(Stroke::Faint)]);
            }
            None => series.push(steps),
        }
        series.extend(self.held_out_loss().map(|line| line.colour(1)));
        Chart::new("Loss", "step", "loss", series).log(true)
    }

    /// The loss scale of every step.
    pub fn scale(&self) -> Series {
        self.line("loss scale", |s| s.scale)
    }

    /// The share of the gradients' elements that underflowed, at the steps that counted it.
    pub fn underflow(&self) -> Vec<(f64, f64)> {
        let share = |u: Lost| u.lost as f64 / u.elements.max(1) as f64;
        self.steps.iter().filter_map(|s| Some((s.step as f64, share(s.underflow?)))).collect()
    }

    /// The last evaluation.
    pub fn evaluation(&self) -> Option<&Evaluation> {
        self.evaluations.last()
    }

    /// The course of metrics on held-out data, of those that were measured.
    fn held_out(&self, title: &str, y: &str, log: bool, metrics: &[Metric]) -> Option<Chart> {
        let series = metrics.iter().map(|&metric| {
            let points = self.measured(metric);
            let name =
                self.evaluations.last().map_or(metric.word().into(), |e| scores::name(metric, &e.scores));
            Series::new(&format!("held-out {name}"), points)
        });
        let series: Vec<Series> = series.filter(|s| s.points.len() > 1).collect();
        (!series.is_empty()).then(|| Chart::new(title, "step", y, series).log(log))
    }

    /// The learning rate, the norm of the gradients and the throughput of every step, each with its title,
    /// the label of its axis, and true if a logarithmic axis is of use.
    pub fn course(&self) -> [(&'static str, &'static str, bool, Series); 3] {
        let rate = |s: &Step| (s.seconds > 0.0).then(|| s.samples as f64 / s.seconds);
        [
            ("Learning rate", "learning rate", true, self.line("learning rate", |s| s.lr)),
            ("Norm of the gradients before clipping", "norm", true, self.line("gradient norm", |s| s.norm)),
            ("Throughput", "samples/s", false, self.line("samples/s", rate)),
        ]
    }

    /// Charts of metrics on held-out data, the loss excepted, learning rate, gradient norm, and throughput.
    pub fn charts(&self) -> Vec<Block> {
        use Metric::*;
        let held_out = [
            ("Held-out accuracy", "share", false, &[Accuracy, TopK][..]),
            ("Held-out precision, recall, F1 and IoU", "share", false, &[Precision, Recall, F1, Iou][..]),
            ("Held-out perplexity", "perplexity", true, &[Perplexity][..]),
            ("Held-out errors", "error", true, &[Mse, Mae][..]),
            ("Held-out R²", "R²", false, &[R2][..]),
        ];
        let held_out = held_out.into_iter().filter_map(|(t, y, log, of)| self.held_out(t, y, log, of));
        let of_steps = self.course().into_iter().filter(|(.., line)| line.points.len() > 1);
        let of_steps =
            of_steps.map(|(title, y, log, line)| Chart::new(title, "step", y, vec![line]).log(log));
        held_out.chain(of_steps).map(|chart| Block::Chart(chart.aside())).collect()
    }
}

/// Hands over the lines of a log, but for those that are too long.
fn each_line(mut from: impl BufRead, mut take: impl FnMut(&[u8])) -> std::io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = from.by_ref().take(LONGEST).read_until(b'\n', &mut line)?;
        match read as u64 {
            0 => return Ok(()),
            LONGEST if !line.ends_with(b"\n") => {
                from.skip_until(b'\n')?;
            }
            _ => take(&line),
        }
    }
}

/// Median; 0 if empty.
pub fn median(of: &mut [f64]) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_has_a_trend() {
        let step = |step| Step { step, loss: Some(step as f64), ..Step::default() };
        let run = |n| History { steps: (1..=n).map(step).collect(), ..History::default() };
        assert!(run(249).trend().is_none());
        let trend = run(300).trend().unwrap();
        assert_eq!(trend.name, "mean of the last 6 steps");
        assert_eq!((trend.points[0], trend.points.len()), ((6.0, 3.5), 295));
        assert_eq!(trend.points[294], (300.0, 297.5));
        // In the chart it is the first line, over the pale losses of the steps.
        let drawn: Vec<(String, Stroke)> =
            run(300).loss_chart().series.into_iter().map(|s| (s.name, s.stroke)).collect();
        let [trend, steps] = ["training loss, mean of the last 6 steps", "training loss, each step"];
        assert_eq!(drawn, [(trend.into(), Stroke::Plain), (steps.into(), Stroke::Faint)]);
        assert_eq!(run(9).loss_chart().series[0].stroke, Stroke::Plain);
    }

    #[test]
    fn metrics_that_were_measured_are_drawn() {
        use crate::runtime::score::{ByClass, Scores};
        let at = |step: u64| {
            let by_class = Some(ByClass { f1: 0.5, confusion: vec![vec![1]], ..ByClass::default() });
            let scores =
                Scores { loss: 1.0 / step as f64, top_k: Some((3, 0.5)), by_class, ..Scores::default() };
            Event::Evaluation(Evaluation {
                step,
                scores,
                left_out: 0,
                seconds: 0.0,
                by_batch: Default::default(),
            })
        };
        let mut history = History::default();
        (1..4).for_each(|step| history.add(&at(step)));
        let charts: Vec<Chart> = history
            .charts()
            .into_iter()
            .filter_map(|b| if let Block::Chart(c) = b { Some(c) } else { None })
            .collect();
        let titles: Vec<&str> = charts.iter().map(|c| c.title.as_str()).collect();
        assert_eq!(titles, ["Held-out accuracy", "Held-out precision, recall, F1 and IoU"]);
        assert_eq!(charts[0].series.len(), 1);
        assert_eq!(charts[0].series[0].name, "held-out top-3 accuracy");
        let loss = history.held_out_loss().unwrap();
        assert_eq!(loss.points, [(1.0, 1.0), (2.0, 0.5), (3.0, 1.0 / 3.0)]);
        // Counts are kept of the last evaluation alone.
        let kept = history.evaluations.iter().map(|e| e.scores.by_class.as_ref().unwrap().confusion.len());
        assert_eq!(kept.collect::<Vec<_>>(), [0, 0, 1]);
    }

    #[test]
    fn lines_that_no_run_writes_are_passed_over() {
        let long = std::io::repeat(b'x').take(3 * LONGEST);
        let all = (&b"one\n\xff\n"[..]).chain(long).chain(&b"\ntwo\nthree"[..]);
        let mut found = Vec::new();
        each_line(BufReader::new(all), |line| found.push(line.to_vec())).unwrap();
        assert_eq!(found, [&b"one\n"[..], b"\xff\n", b"two\n", b"three"]);
    }

    #[test]
    fn a_log_is_read_up_to_a_step() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log.jsonl");
        let text = r#"{"event":"start","steps":9}
{"event":"step","step":1,"loss":2.5,"lr":0.1,"norm":3.0,"scale":1.0,"applied":true,"samples":8,"seconds":0.5}
{"event":"evaluation","step":1,"loss":2.0,"accuracy":0.5,"samples":4,"left_out":0,"seconds":0.1,"by_class":{"precision":0.25,"recall":0.5,"f1":0.375,"iou":0.125}}
{"event":"evaluation","step":2,"loss":null,"samples":4,"left_out":0,"seconds":0.1}
{"event":"step","step":2,"loss":null,"lr":0.1,"norm":null,"scale":1.0,"applied":false,"samples":8,"seconds":0.25,"underflow":{"lost":3,"elements":12,"worst":["mul",0.5]}}
{"event":"step","step":3,"loss":1.0,"lr":0.1,"norm":3.0,"scale":1.0,"applied":true,"samples":8,"seconds":0.5}
{"event":"st"#;
        std::fs::write(&log, text).unwrap();
        let h = History::read(&log, 2).unwrap();
        assert!(h.losses()[0] == 2.5 && h.losses()[1].is_nan() && h.losses().len() == 2);
        assert_eq!((h.step(), h.skipped(), h.evaluations.len()), (2, 1, 2));
        let first = &h.evaluations[0].scores;
        assert_eq!((Metric::F1.of(first), Metric::Accuracy.of(first)), (Some(0.375), Some(0.5)));
        assert!(h.evaluation().is_some_and(|e| e.step == 2 && e.scores.loss.is_nan()));
        assert_eq!(h.loss("x").points, [(1.0, 2.5)]);
        assert_eq!(h.speed(), (0.5, 32.0));
        assert_eq!(h.underflow(), [(2.0, 0.25)]);
        assert!(History::read(&dir.path().join("none"), 2).unwrap().losses().is_empty());
    }
}
