//! A training run on the terminal: a bar with loss, rate and time left; evaluations and checkpoints as lines.

use crate::report::text;
use crate::runtime::trainer::{Event, Observer};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// Draws a run's events on standard error, where it is a terminal; otherwise prints a line now and then.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Loss as an exponential mean, so that the number can be read.
    smooth: Option<f64>,
    quiet: bool,
}

/// Weight of a new loss in the mean shown.
const FRESH: f64 = 0.1;

impl Progress {
    /// Nothing is drawn with `quiet`.
    pub fn new(quiet: bool) -> Self {
        Progress { bar: ProgressBar::hidden(), smooth: None, quiet }
    }
}

impl Observer for Progress {
    fn event(&mut self, event: &Event) -> crate::runtime::Result<()> {
        if self.quiet {
            return Ok(());
        }
        match event {
            Event::Start(s) => {
                let style = "{spinner} {bar:32} {pos}/{len} · {msg} · {elapsed} gone, {eta} left";
                let style =
                    ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
                self.bar = ProgressBar::new(s.steps).with_style(style);
                self.bar.enable_steady_tick(Duration::from_millis(200));
                self.bar.println(format!(
                    "{} samples, batch {}, {} steps; {} parameters in {} tensors, {} of them with weight decay",
                    s.samples,
                    s.batch,
                    s.steps,
                    text::count(s.parameters as f64),
                    s.decayed.len() + s.undecayed.len(),
                    s.decayed.len(),
                ));
                s.unreached
                    .iter()
                    .for_each(|u| self.bar.println(format!("not trained, it gets no gradient: {u}")));
            }
            Event::Resume { step, path, changed, damaged } => {
                self.bar.println(format!("resumed at step {step} from {}", path.display()));
                changed.iter().for_each(|c| self.bar.println(format!("warning: the settings differ: {c}")));
                damaged
                    .iter()
                    .for_each(|d| self.bar.println(format!("removed damaged checkpoint {}", d.display())));
                self.bar.set_position(*step);
            }
            Event::Step(s) => {
                let mean = self.smooth.map_or(s.loss, |m| m + FRESH * (s.loss - m));
                self.smooth = Some(mean);
                let rate = s.samples as f64 / s.seconds;
                self.bar.set_message(format!("loss {mean:.4} · {rate:.0} samples/s"));
                self.bar.set_position(s.step);
                if !s.applied {
                    self.bar.println(format!("step {}: the gradients are not finite; skipped", s.step));
                }
            }
            Event::Evaluation(e) => {
                let accuracy = e.accuracy.map_or(String::new(), |a| format!(", accuracy {a:.4}"));
                self.bar.println(format!(
                    "step {}: held-out loss {:.4}{accuracy} on {} samples",
                    e.step, e.loss, e.samples
                ));
            }
            Event::Checkpoint { step, path } => {
                self.bar.println(format!("step {step}: saved {}", path.display()))
            }
            Event::Interrupted { step } => {
                self.bar.finish();
                eprintln!("stopped at step {step}; go on with --resume");
            }
            Event::End { step, seconds } => {
                self.bar.finish();
                eprintln!("{step} steps in {}", text::seconds(*seconds));
            }
        }
        Ok(())
    }
}
