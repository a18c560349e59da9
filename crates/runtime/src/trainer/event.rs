//! The events that a run reports while it goes on.

use crate::config::TrainConfig;
use crate::course::Best;
use crate::error::Result;
use crate::evaluation::Evaluation;
use crate::session::Underflow;
use headwater_core::pass::Rematerialized;
use serde::Serialize;
use std::path::PathBuf;

/// Something that happened. Steps are counted from 1: `step` is the number of steps done.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Training begins.
    Start(Box<Start>),
    /// A run goes on from a checkpoint.
    Resume {
        /// Steps done before.
        step: u64,
        /// The checkpoint.
        path: PathBuf,
        /// Settings that differ from those the checkpoint was made with: the run is no longer the one it was.
        changed: Vec<String>,
        /// Damaged newer checkpoints, where they have been set aside.
        damaged: Vec<PathBuf>,
    },
    /// Something that does not end the run, but that the user should know.
    Warning {
        /// A sentence.
        message: String,
    },
    /// An alert of the settings. It is noticed beside the run, also where that is stuck, and written to the
    /// log.
    Alert {
        /// The setting.
        alert: Alert,
        /// Steps done.
        step: u64,
        /// Loss of the last step, if there was one.
        loss: Option<f64>,
        /// A sentence.
        message: String,
    },
    /// A step was done.
    Step(Step),
    /// Held-out data was evaluated.
    Evaluation(Evaluation),
    /// A checkpoint was saved.
    Checkpoint {
        /// Steps done.
        step: u64,
        /// Its directory.
        path: PathBuf,
        /// True for that of the best evaluation, which is kept apart from the others.
        best: bool,
    },
    /// Evaluations have not got better for as long as the settings bear it: the run ends early.
    EarlyStop {
        /// Steps done.
        step: u64,
        /// The best evaluation, if any had a finite metric.
        best: Option<Best>,
        /// Evaluations since.
        since: u64,
    },
    /// The run was asked to stop, and did.
    Interrupted {
        /// Steps done.
        step: u64,
    },
    /// The run is complete.
    End {
        /// Steps done.
        step: u64,
        /// Seconds since `Start`.
        seconds: f64,
    },
}

/// The reason for an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Alert {
    /// The loss is higher than `alert.loss_above`, or not finite.
    LossAbove,
    /// Nothing was done for `alert.no_progress_minutes`.
    NoProgress,
}

impl Alert {
    /// Its name in logs, and for commands.
    pub fn name(self) -> &'static str {
        match self {
            Alert::LossAbove => "loss_above",
            Alert::NoProgress => "no_progress",
        }
    }
}

/// Cost of keeping a memory budget.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Recomputation {
    /// Bytes planned without.
    pub before: usize,
    /// Bytes planned now.
    pub after: usize,
    /// Results of the forward pass that are computed a second time.
    pub results: usize,
    /// Floating-point operations added, as a share of forward and backward.
    pub more_operations: f64,
    /// Time added, as a share of forward and backward: predicted from nominal rates, not measured.
    pub more_time: f64,
}

impl From<Rematerialized> for Recomputation {
    fn from(r: Rematerialized) -> Recomputation {
        let share = |part: f64, all: f64| if all > 0.0 { part / all } else { 0.0 };
        Recomputation {
            before: r.before,
            after: r.after,
            results: r.results,
            more_operations: share(r.more_flops, r.flops),
            more_time: share(r.more_seconds, r.seconds),
        }
    }
}

/// Facts that are known before the first step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Start {
    /// Steps the run will have when complete.
    pub steps: u64,
    /// Samples of a batch.
    pub batch: usize,
    /// Batches in an epoch.
    pub batches_per_epoch: u64,
    /// Samples in the training data.
    pub samples: usize,
    /// Bounds of the buckets of length, each with its samples; empty if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<(usize, usize)>,
    /// Elements of all trained parameters.
    pub parameters: usize,
    /// Bytes that training uses, as planned.
    pub planned_bytes: usize,
    /// Cost of the memory budget, if it demanded anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rematerialized: Option<Recomputation>,
    /// Names of the parameters that weight decay applies to.
    pub decayed: Vec<String>,
    /// Names of those it does not apply to.
    pub undecayed: Vec<String>,
    /// Trainable parameters that get no gradient and are not updated, with the reason.
    pub unreached: Vec<String>,
    /// All settings.
    pub config: TrainConfig,
}

/// A step of training.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Steps done, this one included.
    pub step: u64,
    /// Passes over the data done.
    pub epoch: f64,
    /// Loss before the update, mean over the micro-batches.
    pub loss: f64,
    /// Learning rate.
    pub lr: f64,
    /// Global L2 norm of the gradients before clipping.
    pub norm: f64,
    /// Largest magnitude of a gradient's element.
    pub largest: f64,
    /// True if the parameters were updated: not if a gradient was not finite.
    pub applied: bool,
    /// The first node that was not finite, if the step was skipped and the settings request it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub culprit: Option<String>,
    /// The share of the gradients that f16 flushed to zero, in the steps where that is counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub underflow: Option<Underflow>,
    /// The factor of the loss; the norm and the largest magnitude have it divided out.
    pub scale: f64,
    /// Samples in the step.
    pub samples: usize,
    /// Seconds it took, waiting for data included.
    pub seconds: f64,
    /// Its lanes, if there are several and the settings request them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<Lane>,
}

/// A lane of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lane {
    /// Its number.
    pub lane: usize,
    /// Samples that it was fed.
    pub samples: usize,
    /// Mean of all elements of these, of the inputs that are floats, or of all if none is.
    pub mean: f64,
    /// Their standard deviation.
    pub deviation: f64,
    /// Mean loss of its batches.
    pub loss: f64,
    /// L2 norm of its gradient, the mean over its batches, if the settings request it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm: Option<f64>,
}

/// A receiver of events.
pub trait Observer {
    /// Called for every event, in order.
    ///
    /// # Errors
    /// An error of an essential observer ends the run; one that is not receives no further events.
    fn event(&mut self, event: &Event) -> Result<()>;

    /// True if the run ends when this one fails. A log that cannot be written is no reason to stop training.
    fn essential(&self) -> bool {
        true
    }
}

/// All observers of a run.
pub(super) struct Observers<'a, 'b> {
    all: &'a mut [&'b mut dyn Observer],
    /// By observer, whether it has failed and is left out.
    failed: Vec<bool>,
}

impl<'a, 'b> Observers<'a, 'b> {
    pub fn new(all: &'a mut [&'b mut dyn Observer]) -> Self {
        let failed = vec![false; all.len()];
        Observers { all, failed }
    }

    /// Tells everybody; what a log could not write becomes a warning to the others.
    ///
    /// # Errors
    /// The first one of an essential observer.
    pub fn tell(&mut self, event: &Event) -> Result<()> {
        let mut events = std::collections::VecDeque::from([event.clone()]);
        while let Some(event) = events.pop_front() {
            for (observer, failed) in
                self.all.iter_mut().zip(&mut self.failed).filter(|(_, failed)| !**failed)
            {
                let Err(e) = observer.event(&event) else { continue };
                if observer.essential() {
                    return Err(e);
                }
                *failed = true;
                let message = format!("{e}; the run goes on without this log");
                events.push_back(Event::Warning { message });
            }
        }
        Ok(())
    }
}

impl<F: FnMut(&Event) -> Result<()>> Observer for F {
    fn event(&mut self, event: &Event) -> Result<()> {
        self(event)
    }
}
