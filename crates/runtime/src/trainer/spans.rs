//! The time of steps by its parts: waiting for data, running programs, each step of their plans.

use crate::error::Result;
use crate::session::{ProgramId, Session};
use headwater_core::graph::Phase;
use std::time::Instant;

/// Something that took time.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// An operator, or a part of the training step.
    pub name: String,
    /// `step`, `host` for parts of it, or the phase of a plan's step.
    pub category: &'static str,
    /// More about it, by name.
    pub args: Vec<(&'static str, serde_json::Value)>,
    /// Seconds since the recording began.
    pub start: f64,
    /// Seconds.
    pub seconds: f64,
}

/// Records the spans of a run's first steps.
#[derive(Debug)]
pub(super) struct Recorder {
    begun: Instant,
    /// Steps that are still to be recorded.
    left: usize,
    pub spans: Vec<Span>,
}

impl Recorder {
    pub fn new(steps: usize) -> Recorder {
        Recorder { begun: Instant::now(), left: steps, spans: Vec::new() }
    }

    /// Seconds since the recording began.
    pub fn now(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// True while steps are recorded.
    pub fn on(&self) -> bool {
        self.left > 0
    }

    /// A part of a step that began at `start` and ends now.
    pub fn part(&mut self, name: &str, category: &'static str, start: f64) {
        let seconds = self.now() - start;
        self.spans.push(Span { name: name.into(), category, args: Vec::new(), start, seconds });
    }

    /// The step that began at `start` ends now.
    pub fn step(&mut self, step: u64, start: f64) {
        self.part(&format!("step {step}"), "step", start);
        self.left -= 1;
    }

    /// The steps of a program's plan in the run that began at `start`, given the seconds of each before it.
    /// They run sequentially: each is taken to begin where the one before ends.
    pub fn plan(&mut self, session: &Session, program: ProgramId, before: &[f64], start: f64) {
        let mut at = start;
        let after = session.seconds(program);
        let plan = session.plan(program);
        for ((step, after), before) in plan.steps.iter().zip(after).zip(before) {
            let origin = plan.origins.get(step.origin.0 as usize).map(|o| ("model", o.to_string().into()));
            let args = origin.into_iter().collect();
            let category = match step.phase {
                Phase::Forward => "forward",
                Phase::Backward => "backward",
                Phase::Update => "update",
            };
            let seconds = after - before;
            self.spans.push(Span { name: step.op.into(), category, args, start: at, seconds });
            at += seconds;
        }
    }
}

impl super::Trainer<'_> {
    /// Records the time of the next `steps` steps by its parts; see
    /// [`Trainer::spans`](super::Trainer::spans). Every step of the plans is measured from now on.
    ///
    /// # Errors
    /// `Model` if the session does not train.
    pub fn record(&mut self, steps: usize) -> Result<()> {
        let update = self.session.update_program()?;
        self.session.measure(update);
        self.measure();
        self.recorder = Some(Recorder::new(steps));
        Ok(())
    }

    /// The spans recorded so far.
    pub fn spans(&self) -> &[Span] {
        self.recorder.as_ref().map_or(&[], |r| &r.spans)
    }

    /// Runs `work` as a part of the step, recorded if steps are; `program` is what it runs on the device.
    pub(super) fn timed<T>(
        &mut self,
        name: &str,
        program: Option<ProgramId>,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        self.at(|t| format!("step {}, {name}", t.step + 1));
        if !self.recorder.as_ref().is_some_and(Recorder::on) {
            return work(self);
        }
        let Some(mut recorder) = self.recorder.take() else { return work(self) };
        let before = program.map(|p| self.session.seconds(p));
        let start = recorder.now();
        let done = work(self);
        recorder.part(name, "host", start);
        if let (Some(program), Some(before)) = (program, before) {
            recorder.plan(&self.session, program, &before, start);
        }
        self.recorder = Some(recorder);
        done
    }
}
