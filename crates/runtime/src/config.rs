//! All settings of a training run, as written in a file or on the command line.

use crate::Bytes;
use crate::amp::AmpConfig;
use crate::batches::Batches;
pub use crate::data::{AugmentConfig, Auto, Buckets, Cast, ClassWeights, DataConfig};
use crate::error::{Error, Result};
use crate::optim::{Clip, Decay, Group, Groups, Optimizer};
use crate::schedule::{Schedule, Shape, spelled};
pub use crate::score::Metric;
use crate::score::TOP_K;
use crate::session::{Moments, Sparse, Training};
use headwater_core::graph::NodeId;
use headwater_core::pass::instrument::Fault;
use headwater_core::ranks::{MOST, Mesh};
use headwater_core::target::Target;
use headwater_core::train::BucketSize;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Settings of a training run. Everything has a default but the length of the run and the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// Optimizer steps; either this or `epochs`.
    pub steps: Option<u64>,
    /// Passes over the data; either this or `steps`.
    pub epochs: Option<f64>,
    /// Samples in a batch; the model must have been exported for it or be bindable to it. Default: as
    /// exported.
    pub batch: Option<usize>,
    /// Batches whose gradients are averaged into one step.
    pub accumulate: u32,
    /// Seed of the order of samples and of the model's random numbers.
    pub seed: u64,
    /// Optimizer and its settings.
    pub optimizer: Optimizer,
    /// Parameters with settings of their own: `[[groups]]` in a file.
    pub groups: Vec<Group>,
    /// Which parameters decay.
    pub decay: Decay,
    /// Parameters that are not trained, by their PyTorch names with `*` for any characters: `["model.encoder.*"]`. They have
    /// neither gradients nor moments.
    pub freeze: Vec<String>,
    /// Course of the learning rate after the warm-up.
    #[serde(with = "spelled")]
    pub schedule: Shape,
    /// Steps over which the learning rate rises.
    pub warmup: u64,
    /// Share of the learning rate that linear, cosine, polynomial and restarts end at.
    pub end: f64,
    /// Largest global norm of the gradients; larger ones are scaled down to it. `max_grad_norm` is the same setting.
    #[serde(alias = "max_grad_norm")]
    pub clip_norm: Option<f64>,
    /// Largest magnitude of an element of the gradients.
    pub clip_value: Option<f64>,
    /// Decay of an exponential moving average of the weights, as `AveragedModel` with `get_ema_multi_avg_fn` has it:
    /// 0.999 is usual. Evaluations then use the average, and checkpoints have it as `ema.safetensors`. Each step
    /// reads the weights from the device. Default: no average.
    pub ema: Option<f64>,
    /// Mixed precision.
    pub amp: AmpConfig,
    /// Cheap activations are recomputed in the backward pass rather than kept: the same bits in less memory.
    pub recompute: bool,
    /// Products of one input with several weights (queries, keys and values; gate and up) are computed
    /// separately, as PyTorch does. By default they are one product of weights that are adjacent in memory:
    /// the gradient of the input is one longer sum then, where it was a sum of rounded ones.
    pub exact_sums: bool,
    /// Bytes that training may take, as `inspect` shows them: parameters, optimizer, activations, inputs. To keep it,
    /// more of the forward pass is computed a second time, matrix products included: the same bits in more time. A
    /// budget that cannot be kept is refused before anything runs. Evaluation, and steps that look for underflow or
    /// NaN, are not bound by it. Default: no limit.
    pub memory_budget: Option<Bytes>,
    /// Bytes of gradients, in the parameters' dtype, at which a bucket is closed, as `bucket_cap_mb` of
    /// PyTorch's `DistributedDataParallel`. The first bucket is closed at 1 MiB at most. Changes no number.
    /// Default: 25 MiB with several ranks; 1 GiB with one, the first bucket too.
    pub bucket_size: Option<Bytes>,
    /// Embeddings whose gradients have only the rows that a batch reads, and whose update steps only these.
    /// They are `marked` (those with `sparse=True` in the model), `all` (also others of which a batch reads
    /// at most half the rows) or `none`. Rows that a step does not read keep their values, moments and decay,
    /// as with SparseAdam. Gradients are dense where batches are accumulated, and for optimizers that do not
    /// step each element by itself, as the sections on them say.
    pub sparse_embeddings: Sparse,
    /// Form in which the optimizer keeps its moments between steps: `f32`, `bf16` or `int8`. With AdamW a parameter takes
    /// 16 bytes in f32, 12 with moments in bf16, 10 with moments in 8 bits. Steps are computed in f32 and rounded
    /// stochastically.
    pub moments: Moments,
    /// The reaction when gradients are not finite and no rule adapts the loss scale.
    pub nonfinite: NonFinite,
    /// A fault to try out what the run does then; not part of the settings that are written.
    #[serde(skip)]
    pub fault: Option<FaultConfig>,
    /// A bit that a rank flips, to try out what the run does then; not part of the settings that are written.
    #[serde(skip)]
    pub flip: Option<FlipConfig>,
    /// The data.
    pub data: DataConfig,
    /// Weights to begin with, in place of the archive's.
    pub init: InitConfig,
    /// Ranks that train together, and the lanes that they share.
    pub ranks: RanksConfig,
    /// Evaluation.
    pub eval: EvalConfig,
    /// Checkpoints.
    pub checkpoint: CheckpointConfig,
    /// Logs.
    pub log: LogConfig,
    /// Alerts.
    pub alert: AlertConfig,
}

/// A fault at one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultConfig {
    /// The step, counted from 0.
    pub step: u64,
    /// Position of a node in the model's differentiated graph.
    pub node: NodeId,
    /// The fault there.
    pub fault: Fault,
}

/// A flipped bit on one rank: the lowest of the middle element of a parameter, or of its gradient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlipConfig {
    /// The place in the step.
    pub at: Flip,
    /// The step, counted from 1.
    pub step: u64,
    /// The rank.
    pub rank: usize,
    /// The parameter; default: that of the middle entry.
    pub parameter: Option<String>,
}

/// The place of a flipped bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flip {
    /// The gradient, after it was summed over the ranks.
    Gradient,
    /// The weight, before the ranks compare theirs.
    Weight,
    /// The gradient of a lane that is recomputed, each time that the rank computes it.
    Lane,
}

impl std::str::FromStr for FlipConfig {
    type Err = String;

    /// Reads `gradient:STEP:RANK` or `gradient:STEP:RANK:PARAMETER`; likewise `weight` and `lane`.
    fn from_str(text: &str) -> std::result::Result<FlipConfig, String> {
        let mut parts = text.splitn(4, ':');
        let at = match parts.next() {
            Some("gradient") => Flip::Gradient,
            Some("weight") => Flip::Weight,
            Some("lane") => Flip::Lane,
            _ => return Err("must begin with gradient, weight or lane".into()),
        };
        let mut number = |what: &str| {
            let text = parts.next().ok_or(format!("lacks a {what}: gradient:STEP:RANK"))?;
            text.parse::<u64>().map_err(|_| format!("{text} is no number of a {what}"))
        };
        let (step, rank) = (number("step")?, number("rank")? as usize);
        Ok(FlipConfig { at, step, rank, parameter: parts.next().map(str::to_string) })
    }
}

/// The reaction when the gradients of a step are not finite. The parameters are left as they were in both
/// cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NonFinite {
    /// The run ends with an error that names step and parameters.
    #[default]
    Stop,
    /// The run goes on with the next batch.
    Skip,
}

/// Weights to begin a run with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table [init] with `weights`")]
pub struct InitConfig {
    /// A `.safetensors` or `.npz` file, a checkpoint, or a run's folder (its newest checkpoint). Or a folder
    /// as `save_pretrained` writes it, of one file or of shards. Tensors it does not have stay as exported.
    pub weights: Option<PathBuf>,
    /// Names of the model by those of the file, with one `*` for any characters on both sides:
    /// `"bert.*" = "model.bert.*"`. Of several that match, the closest counts: the name itself, or else the pattern with most
    /// characters beside its `*`. Default: as they are, or with the one prefix by which most names differ.
    pub names: BTreeMap<String, String>,
    /// True if a tensor that is missing or left over ends the run before it begins.
    pub strict: bool,
}

/// Ranks that train together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table [ranks]")]
pub struct RanksConfig {
    /// Lanes of a step, as the documentation on ranks explains them: the parts that ranks may share. Each adds
    /// up the gradients of `accumulate` batches, and the sums of lanes are added up two by two, so that bits do
    /// not depend on who computes which lane. A run keeps the number of lanes that it begins with. Default: that of the
    /// ranks with which it begins.
    pub lanes: Option<u32>,
    /// The library that carries bytes between ranks: `mpi`, or `auto` for the one that belongs to the launcher. With `mpi`,
    /// a run that no launcher has started is refused.
    pub engine: EngineChoice,
    /// Sums of gradients over the ranks: `tree`, in an order that does not depend on their number.
    pub reduce: Reduce,
    /// Seconds without a heartbeat after which another rank is taken for gone.
    pub silent: f64,
    /// Seconds after which a rank that lives, but for which others wait, is taken for hung.
    pub stalled: f64,
    /// Steps between two comparisons of what must be the same on all ranks: digests of the reduced gradients and of the
    /// weights. Moments are compared too before each checkpoint. 0: never.
    pub digests: u64,
    /// Steps between two recomputations: a lane of the step is computed on another rank too, and compared bit by bit. Lanes
    /// and ranks take turns. 0: never.
    pub recompute: u64,
    /// Numbers of each lane that the log of a step has.
    pub lane_log: LaneLog,
}

/// Numbers of each lane of a step in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LaneLog {
    /// None.
    None,
    /// Samples, mean and deviation of what was fed, and the loss.
    #[default]
    Fed,
    /// The norm of its gradient too, which takes one more pass over the gradients a lane.
    Norm,
}

/// The library that carries bytes between ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineChoice {
    /// The one that belongs to the launcher.
    #[default]
    Auto,
    /// MPI.
    Mpi,
}

/// Order of the sums of gradients over the ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reduce {
    /// By halves over the lanes: the bits do not depend on the number of ranks.
    #[default]
    Tree,
}

impl Default for RanksConfig {
    fn default() -> Self {
        RanksConfig {
            lanes: None,
            engine: EngineChoice::default(),
            reduce: Reduce::default(),
            silent: 8.0,
            stalled: 600.0,
            digests: 10,
            recompute: 0,
            lane_log: LaneLog::default(),
        }
    }
}

impl RanksConfig {
    /// Lanes of a step.
    pub fn lanes(&self) -> u32 {
        self.lanes.unwrap_or(1)
    }

    fn check(&self) -> Result<()> {
        let lanes = self.lanes();
        if !(1..=MOST as u32).contains(&lanes) {
            return Err(Error::config("ranks.lanes", format!("must be 1 to {MOST}, it is {lanes}")));
        }
        // Heartbeats come each second.
        let times = [("ranks.silent", self.silent, 2.0), ("ranks.stalled", self.stalled, 2.0)];
        match times.into_iter().find(|(_, seconds, least)| !(seconds >= least && seconds.is_finite())) {
            Some((name, seconds, least)) => {
                Err(Error::config(name, format!("must be {least} seconds or more, it is {seconds}")))
            }
            None => Ok(()),
        }
    }
}

/// When and what to evaluate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table [eval]")]
pub struct EvalConfig {
    /// Steps between evaluations; one more at the end. Default: only at the end.
    pub every: Option<u64>,
    /// Input that holds the truth: classes of samples, tokens or pixels, or numbers. Default: the one called labels,
    /// label, targets, target or y (of several one of integers), or the only integer input that fits an output.
    pub labels: Option<String>,
    /// Number of the largest logits that count for the metric `top_k`.
    pub top_k: usize,
    /// Metric by which evaluations are compared, for the settings below and for the plateau schedule.
    pub metric: Metric,
    /// Evaluations without a better one after which the run ends early. Default: it never does.
    pub patience: Option<u64>,
    /// Difference by which an evaluation must be better to count as such.
    pub min_delta: f64,
    /// Keep the checkpoint of the best evaluation, as `best-step-<n>` beside the others.
    pub keep_best: bool,
}

impl Default for EvalConfig {
    fn default() -> Self {
        EvalConfig {
            every: None,
            labels: None,
            top_k: TOP_K,
            metric: Metric::default(),
            patience: None,
            min_delta: 0.0,
            keep_best: false,
        }
    }
}

/// When and where to save.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table [checkpoint]")]
pub struct CheckpointConfig {
    /// Directory of the checkpoints; none: nothing is saved.
    pub dir: Option<PathBuf>,
    /// Steps between checkpoints; one more at the end.
    pub every: Option<u64>,
    /// Minutes after which the run is saved if no other checkpoint was; 0: never for that reason.
    pub minutes: f64,
    /// Number of checkpoints that are kept.
    pub keep: usize,
    /// Minutes that the run waits for free space on a full disk before it ends with an error; 0: it does not wait.
    pub wait: f64,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        CheckpointConfig { dir: None, every: None, minutes: 30.0, keep: 2, wait: 10.0 }
    }
}

/// Logs of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table [log]")]
pub struct LogConfig {
    /// File of JSON lines, one an event.
    pub json: Option<PathBuf>,
    /// Directory of TensorBoard event files.
    pub tensorboard: Option<PathBuf>,
    /// Address and port at which the run serves its numbers for Prometheus, such as `127.0.0.1:9464`, or a port of
    /// this machine alone. Addresses that other machines reach are for the command line, as `--metrics`. Default: it
    /// serves none.
    pub metrics: Option<String>,
}

/// Conditions that raise an alert, each at most once between the start of a run, or its resumption, and its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table [alert]")]
pub struct AlertConfig {
    /// Alert when the loss of a step is higher than this, or NaN. Default: never.
    pub loss_above: Option<f64>,
    /// Alert when no step, evaluation or checkpoint was done for so many minutes. Default: never.
    pub no_progress_minutes: Option<f64>,
    /// Program to run at an alert, and its arguments: `["notify", "me"]`. No shell reads them. It is run only where
    /// the command line has `--allow-command`, beside the training, for at most 60 seconds: then it is ended, with
    /// what it started. Default: none; alerts are then messages and events of the log.
    pub command: Vec<String>,
}

impl AlertConfig {
    fn check(&self) -> Result<()> {
        if let Some(loss) = self.loss_above.filter(|l| !l.is_finite()) {
            return Err(Error::config("alert.loss_above", format!("must be finite, it is {loss}")));
        }
        if let Some(minutes) = self.no_progress_minutes.filter(|m| !(*m > 0.0 && m.is_finite())) {
            let message = format!("must be more than 0, it is {minutes}");
            return Err(Error::config("alert.no_progress_minutes", message));
        }
        if !self.command.is_empty() && self.loss_above.is_none() && self.no_progress_minutes.is_none() {
            let message = "would never run: set alert.loss_above or alert.no_progress_minutes";
            return Err(Error::config("alert.command", message));
        }
        match self.command.first() {
            Some(program) if program.is_empty() => {
                Err(Error::config("alert.command", "names no program: its first text is empty"))
            }
            _ => Ok(()),
        }
    }
}

impl Default for TrainConfig {
    fn default() -> Self {
        TrainConfig {
            steps: None,
            epochs: None,
            batch: None,
            accumulate: 1,
            seed: 0,
            optimizer: Optimizer::default(),
            groups: Vec::new(),
            decay: Decay::default(),
            freeze: Vec::new(),
            schedule: Shape::default(),
            warmup: 0,
            end: 0.0,
            clip_norm: None,
            clip_value: None,
            ema: None,
            amp: AmpConfig::default(),
            recompute: true,
            exact_sums: false,
            memory_budget: None,
            bucket_size: None,
            sparse_embeddings: Sparse::default(),
            moments: Moments::default(),
            nonfinite: NonFinite::default(),
            fault: None,
            flip: None,
            data: DataConfig::default(),
            init: InitConfig::default(),
            ranks: RanksConfig::default(),
            eval: EvalConfig::default(),
            checkpoint: CheckpointConfig::default(),
            log: LogConfig::default(),
            alert: AlertConfig::default(),
        }
    }
}

impl TrainConfig {
    /// Optimizer steps of the run, given the batches of an epoch.
    ///
    /// # Errors
    /// `Config` unless exactly one of `steps` and `epochs` is given, and positive.
    pub fn total_steps(&self, batches_per_epoch: u64) -> Result<u64> {
        let steps = match (self.steps, self.epochs) {
            (Some(steps), None) => steps,
            (None, Some(epochs)) if epochs.is_finite() && epochs > 0.0 => {
                // Rounded down, but a part of a step too short for f64 is not lost.
                (self.batches().steps(epochs * batches_per_epoch as f64) + 1e-9) as u64
            }
            (None, Some(epochs)) => {
                return Err(Error::config("epochs", format!("must be positive, it is {epochs}")));
            }
            _ => return Err(Error::config("steps", "give either steps or epochs")),
        };
        if steps == 0 {
            return Err(Error::config("steps", "the run would have no step"));
        }
        Ok(steps)
    }

    /// Numbers of the run's batches.
    pub fn batches(&self) -> Batches {
        Batches::new(self.ranks.lanes(), self.accumulate)
    }

    /// The learning rate over a run of `steps`.
    ///
    /// # Errors
    /// `Config` for settings of the schedule out of range.
    pub fn schedule(&self, steps: u64) -> Result<Schedule> {
        let lr = self.optimizer.rule().lr();
        Schedule::new(lr, self.schedule.clone(), self.warmup, steps, self.end)
    }

    /// Makes all paths relative to `dir`, the folder of the file that they were read from.
    pub fn relative_to(&mut self, dir: &Path) {
        let join = |p: &mut PathBuf| *p = dir.join(&p);
        if !self.data.train.as_os_str().is_empty() {
            join(&mut self.data.train);
        }
        let others = [
            &mut self.data.eval,
            &mut self.init.weights,
            &mut self.checkpoint.dir,
            &mut self.log.json,
            &mut self.log.tensorboard,
        ];
        others.into_iter().flatten().for_each(join);
        if let Some(order) = &mut self.data.order {
            *order = dir.join(&order).to_string_lossy().into_owned();
        }
    }

    /// Settings that the session needs, on a target.
    ///
    /// # Errors
    /// `Config` for mixed precision that makes no sense there.
    pub fn training(&self, target: &Target) -> Result<Training> {
        Ok(Training {
            optimizer: self.optimizer.clone(),
            groups: self.groups.clone(),
            decay: self.decay,
            listed: None,
            clip: Clip { norm: self.clip_norm, value: self.clip_value },
            accumulate: self.accumulate,
            lanes: self.ranks.lanes(),
            mesh: Mesh::default(),
            precision: self.amp.settings(),
            stochastic_rounding: self.amp.stochastic_rounding,
            recompute: self.recompute,
            exact_sums: self.exact_sums,
            memory_budget: self.memory_budget.map(|b| b.0),
            bucket_size: self.bucket_size.map(|b| BucketSize::of(b.0)),
            sparse_embeddings: self.sparse_embeddings,
            moments: self.moments,
            scaled: self.amp.rule(target)?.scales(),
            fault: self.fault.map(|f| (f.node, f.fault)),
        })
    }

    /// Refuses settings that need evaluations which the run does not have.
    fn check_course(&self) -> Result<()> {
        let eval = &self.eval;
        if eval.patience == Some(0) {
            return Err(Error::config("eval.patience", "must be at least 1"));
        }
        if !(eval.min_delta >= 0.0 && eval.min_delta.is_finite()) {
            let message = format!("must be 0 or more, it is {}", eval.min_delta);
            return Err(Error::config("eval.min_delta", message));
        }
        let plateau = matches!(self.schedule, Shape::Plateau { .. });
        let needs = [
            (eval.patience.is_some(), "eval.patience"),
            (eval.keep_best, "eval.keep_best"),
            (plateau, "schedule"),
        ];
        for (_, setting) in needs.into_iter().filter(|(given, _)| *given) {
            if self.data.eval.is_none() {
                return Err(Error::config(setting, "needs held-out data: name them with data.eval"));
            }
            if eval.every.is_none() {
                let message = "needs evaluations on the way: say how often with eval.every";
                return Err(Error::config(setting, message));
            }
        }
        if eval.keep_best && self.checkpoint.dir.is_none() {
            return Err(Error::config("eval.keep_best", "needs a directory: name one with checkpoint.dir"));
        }
        Ok(())
    }

    /// Refuses settings that cannot be meant on a target, before anything is read.
    ///
    /// # Errors
    /// `Config`, naming the setting.
    pub fn check(&self, target: &Target) -> Result<()> {
        let zero = |x: Option<u64>, setting| match x {
            Some(0) => Err(Error::config(setting, "must be at least 1")),
            _ => Ok(()),
        };
        zero(self.eval.every, "eval.every")?;
        zero(Some(self.eval.top_k as u64), "eval.top_k")?;
        zero(self.checkpoint.every, "checkpoint.every")?;
        let times =
            [("checkpoint.minutes", self.checkpoint.minutes), ("checkpoint.wait", self.checkpoint.wait)];
        if let Some((name, minutes)) = times.into_iter().find(|(_, m)| !(*m >= 0.0 && m.is_finite())) {
            return Err(Error::config(name, format!("must be 0 or more, it is {minutes}")));
        }
        zero(Some(self.checkpoint.keep as u64), "checkpoint.keep")?;
        zero(Some(self.accumulate as u64), "accumulate")?;
        self.ranks.check()?;
        zero(self.batch.map(|b| b as u64), "batch")?;
        if self.data.train.as_os_str().is_empty() {
            return Err(Error::config("data.train", "must name the samples to train on"));
        }
        if self.data.lengths.is_some() && self.data.buckets.is_none() {
            return Err(Error::config("data.lengths", "is for buckets of length: set data.buckets too"));
        }
        if self.checkpoint.every.is_some() && self.checkpoint.dir.is_none() {
            return Err(Error::config(
                "checkpoint.dir",
                "must name a directory, as checkpoint.every is given",
            ));
        }
        self.check_course()?;
        self.alert.check()?;
        crate::average::check(self.ema)?;
        self.amp.rule(target)?;
        Groups::new(self.optimizer.clone(), self.groups.clone(), self.decay).map(drop)
    }
}
