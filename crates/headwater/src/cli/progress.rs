//! A training run on the terminal: a bar with loss, rate and time left; evaluations and checkpoints as lines.

use super::console::{draws, say, stderr_width};
use crate::core::device::Device;
use crate::report::scores;
use crate::report::text;
use crate::runtime::score::Metric;
use crate::runtime::trainer::{Event, Observer, Step};
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Draws a run's events on standard error, where it is a terminal; otherwise prints a line now and then.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Loss as an exponential mean, so that the number can be read.
    smooth: Option<f64>,
    /// When a step was last told where no bar is drawn.
    told: Instant,
    quiet: bool,
    /// By which evaluations are compared.
    metric: Metric,
    /// Steps done before, of a run that is resumed.
    before: u64,
    /// True if the length of a long run is printed once, with the option that shortens it.
    shortens: bool,
    /// The steps of the run, and when it began.
    run: (u64, Instant),
    /// The device, whose notes are lines too.
    device: Arc<dyn Device>,
}

/// Weight of a new loss in the mean shown.
const FRESH: f64 = 0.1;

/// Interval between lines where no bar is drawn.
const NOW_AND_THEN: Duration = Duration::from_secs(10);

/// A run's time after which an estimate of its length is made, and the remaining time that is worth a line.
const ESTIMATED_AFTER: Duration = Duration::from_secs(15);
const LONG: f64 = 600.0;

/// The estimate of a run that has done some of its steps, in words; `None` where it is too early, or the run
/// is short.
fn estimate(done: u64, steps: u64, elapsed: Duration) -> Option<String> {
    let left = elapsed.as_secs_f64() / done.max(1) as f64 * steps.saturating_sub(done) as f64;
    (done > 0 && elapsed >= ESTIMATED_AFTER && left > LONG).then(|| {
        format!(
            "this run takes about {:.0} minutes more ({done} of {steps} steps in {:.0} s), and others may follow; \
             `--steps N` makes them short",
            left / 60.0,
            elapsed.as_secs_f64()
        )
    })
}

impl Progress {
    /// Nothing is drawn with `quiet`.
    pub fn new(quiet: bool, device: Arc<dyn Device>) -> Self {
        let (bar, metric) = (ProgressBar::hidden(), Metric::default());
        let now = Instant::now();
        let run = (0, now);
        Progress { bar, smooth: None, told: now, quiet, metric, before: 0, shortens: false, run, device }
    }

    /// Says once, after some steps, how long a run of many minutes will take, and that `--steps` shortens it.
    pub fn shortened_by_steps(mut self) -> Self {
        self.shortens = true;
        self
    }
}

/// Columns of all figures next to the bar, and of those without learning rate and norm, for runs of up to
/// 99,999 steps.
const FIGURES: [usize; 2] = [120, 94];
/// Columns of the shortest and of the longest bar.
const BAR: [usize; 2] = [4, 32];

/// The figures of a step in a terminal of `width` columns: where they do not fit into a line, those that
/// change little are left out.
fn figures(s: &Step, mean: f64, width: Option<usize>) -> String {
    let epoch = format!("epoch {:.2} · ", s.epoch);
    let loss = format!("loss {mean:.4} · ");
    let gradients = format!("lr {:.2e} · norm {:.3} · ", s.lr, s.norm);
    let rate = format!("{:.0} samples/s", s.samples as f64 / s.seconds);
    match width.unwrap_or(usize::MAX).saturating_sub(BAR[0]) {
        room if room >= FIGURES[0] => epoch + &loss + &gradients + &rate,
        room if room >= FIGURES[1] => epoch + &loss + &rate,
        _ => loss + &rate,
    }
}

/// The bar, what the last step found, and the time it took, followed by `end`.
fn style(end: &str) -> ProgressStyle {
    // The bar takes what the figures leave.
    let room = |w: usize| FIGURES.iter().find(|f| w >= **f + BAR[0]).map_or(BAR[0], |f| w - f);
    let bar = stderr_width().map_or(BAR[1], |w| room(w).min(BAR[1]));
    let template = format!("{{spinner}} {{bar:{bar}}} {{pos}}/{{len}} · {{msg}} · elapsed {{elapsed}}{end}");
    ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl Drop for Progress {
    fn drop(&mut self) {
        draws(None);
    }
}

impl Observer for Progress {
    fn event(&mut self, event: &Event) -> crate::runtime::Result<()> {
        if self.quiet {
            return Ok(());
        }
        for note in self.device.notes() {
            say(format!("{}: {note}", self.device.name()));
        }
        match event {
            Event::Start(s) => {
                // A migration trains several times.
                (self.smooth, self.metric, self.before) = (None, s.config.eval.metric, 0);
                self.run = (s.steps, Instant::now());
                self.bar = ProgressBar::new(s.steps).with_style(style(", remaining {eta}"));
                draws(Some(self.bar.clone()));
                self.bar.enable_steady_tick(Duration::from_millis(200));
                let each = s.config.batches().per_step();
                let batch = match (each, s.config.batch) {
                    (1, Some(_)) => s.batch.to_string(),
                    (1, None) => format!("{} (as exported; --batch takes another)", s.batch),
                    (n, _) => format!("{} × {n} = {} a step", s.batch, s.batch as u64 * n),
                };
                say(format!(
                    "{} samples, batch {batch}, {} steps; {} parameters in {} tensors, {} of them with weight decay",
                    s.samples,
                    s.steps,
                    text::count(s.parameters as f64),
                    s.decayed.len() + s.undecayed.len(),
                    s.decayed.len(),
                ));
                if !s.buckets.is_empty() {
                    let bucket = |(bound, n): &(usize, usize)| format!("{n} up to {bound}");
                    let buckets: Vec<String> = s.buckets.iter().map(bucket).collect();
                    say(format!("samples by length: {}", buckets.join(", ")));
                }
                if let Some(r) = s.rematerialized {
                    say(format!(
                        "memory budget: {} planned instead of {}; {} results are computed a second time, which adds {:.1} % \
                         operations and about {:.1} % time to forward and backward (predicted from nominal rates)",
                        text::bytes(r.after),
                        text::bytes(r.before),
                        r.results,
                        100.0 * r.more_operations,
                        100.0 * r.more_time,
                    ));
                }
                s.unreached.iter().for_each(|u| say(format!("not trained, it gets no gradient: {u}")));
            }
            Event::Resume { step, path, changed, damaged } => {
                say(format!("resumed at step {step} from {}", path.display()));
                changed.iter().for_each(|c| say(format!("warning: the settings differ: {c}")));
                damaged.iter().for_each(|d| {
                    say(format!("warning: a checkpoint is damaged; it is now {}", d.display()))
                });
                self.bar.set_position(*step);
                self.before = *step;
            }
            // `Alerts`, which raises it, says it.
            Event::Alert { .. } => {}
            Event::Warning { message } => say(format!("warning: {message}")),
            Event::Step(s) => {
                let mean = self.smooth.map_or(s.loss, |m| m + FRESH * (s.loss - m));
                self.smooth = Some(mean);
                let shown = stderr_width().filter(|_| !self.bar.is_hidden());
                let now = figures(s, mean, shown);
                if self.bar.is_hidden() && self.told.elapsed() >= NOW_AND_THEN {
                    self.told = Instant::now();
                    say(format!("step {}: {now}", s.step));
                }
                let (steps, began) = self.run;
                let done = s.step.saturating_sub(self.before);
                let said = estimate(done, steps.saturating_sub(self.before), began.elapsed());
                if let Some(line) = said.filter(|_| self.shortens) {
                    self.shortens = false;
                    say(line);
                }
                self.bar.set_message(now);
                self.bar.set_position(s.step);
                if !s.applied {
                    say(format!(
                        "step {}: the gradients are not finite at loss scale {}; skipped",
                        s.step, s.scale
                    ));
                }
            }
            Event::Evaluation(e) => {
                let found = scores::line(&e.scores, self.metric);
                say(format!("step {}: held-out {found} on {} samples", e.step, e.scores.samples));
            }
            Event::Checkpoint { step, path, best } => {
                let what = if *best { "the best so far, saved" } else { "saved" };
                say(format!("step {step}: {what} {}", path.display()));
            }
            Event::EarlyStop { step, best, since } => {
                let best = best.map_or("none was finite".to_string(), |b| {
                    let value = scores::shown(self.metric, b.value);
                    format!("the best, {} {value}, was at step {}", self.metric.word(), b.step)
                });
                say(format!("step {step}: ends early, {since} evaluations without a better one; {best}"));
            }
            Event::Interrupted { step } => {
                self.bar.set_style(style(""));
                self.bar.abandon();
                say(format!("stopped at step {step}; go on with --resume"));
            }
            Event::End { step, seconds } => {
                self.bar.finish();
                let which = match self.before {
                    0 => format!("{step} steps"),
                    before => format!("{} steps, up to step {step},", step - before),
                };
                say(format!("{which} in {}", text::seconds(*seconds)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_has_the_figures_that_change() {
        let step = Step {
            step: 183,
            epoch: 0.33,
            loss: 0.5,
            lr: 1.92e-3,
            norm: 3.11,
            largest: 1.0,
            applied: true,
            culprit: None,
            underflow: None,
            scale: 1.0,
            samples: 64,
            seconds: 0.04,
            lanes: Vec::new(),
        };
        let of = |width| figures(&step, 0.5699, width);
        let all = "epoch 0.33 · loss 0.5699 · lr 1.92e-3 · norm 3.110 · 1600 samples/s";
        assert_eq!((of(None), of(Some(200))), (all.into(), all.into()));
        assert_eq!(of(Some(100)), "epoch 0.33 · loss 0.5699 · 1600 samples/s");
        assert_eq!(of(Some(80)), "loss 0.5699 · 1600 samples/s");
    }

    #[test]
    fn a_long_run_is_estimated_by_its_first_steps() {
        let of = |done, steps, seconds| estimate(done, steps, Duration::from_secs(seconds));
        // 2 s a step, 190 steps left: 380 s. 20 s a step: 3800 s, 63 minutes.
        assert_eq!((of(10, 200, 20), of(10, 200, 10), of(0, 200, 60)), (None, None, None));
        assert!(
            of(10, 200, 200)
                .unwrap()
                .starts_with("this run takes about 63 minutes more (10 of 200 steps in 200 s)")
        );
    }
}
