//! `headwater train`.

use super::alerts::Alerts;
use super::amp::Amp;
use super::console::say;
use super::metrics::Metrics;
use super::progress::Progress;
use super::{Memory, Outcome, Printer, Status, Usage};
use crate::auto;
use crate::core::device::Device;
use crate::core::pass::precision::Level;
use crate::core::ranks::Transport;
use crate::cpu::{Pool, Tier, limits};
use crate::machine::Machine;
use crate::model::{BoundModel, Model, parse_dims};
use crate::report::history::History;
use crate::report::live::Live;
use crate::report::{Block, facts, scores, text};
use crate::runtime::adapt;
use crate::runtime::amp::AmpConfig;
use crate::runtime::config::{AlertConfig, Buckets, Cast, ClassWeights, FlipConfig, LogConfig};
use crate::runtime::optim::Optimizer;
use crate::runtime::schedule::Shape;
use crate::runtime::score::Metric;
use crate::runtime::session::Moments;
use crate::runtime::trainer::{Observer, Trainer};
use crate::runtime::{Error, TrainConfig};
use crate::trace;
use crate::train::with_trainer;
use crate::weights::{Overlay, WeightFiles};
use crate::words::meant;
use anyhow::{Context, Result, bail};
use headwater_ranks::Engine;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater train model.pt2 --data train.safetensors --eval heldout.safetensors --epochs 10 --out run
  headwater train model.pt2 --data train.safetensors --steps 300 --amp auto --budget 1e-2
  headwater train model.pt2 --data train.safetensors --steps 300 --amp O2 --dtype f16 --loss-scale predictive
  headwater train model.pt2 --config train.toml --out run --resume

Data are tensors in .safetensors or .npz, columns of .parquet or .csv, or folders of images or texts (docs/data.md). They are named
like the model's inputs, and their first dimension counts samples. --config names a file of settings (docs/settings.md), which may
be a migrate.toml. Options of the command line win over the file.")]
pub struct Args {
    /// The exported model; it must return its loss first.
    model: PathBuf,
    /// Settings in a TOML file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Samples to train on.
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    data: Option<PathBuf>,
    /// Samples held out for evaluation.
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    eval: Option<PathBuf>,
    /// Weights to begin with: a checkpoint, a .safetensors file, or a folder that save_pretrained wrote (default:
    /// those of the model).
    #[arg(long, value_name = "PATH", conflicts_with = "resume", help_heading = "Data")]
    init: Option<PathBuf>,
    /// Passes over the data.
    #[arg(long, help_heading = "Length")]
    epochs: Option<f64>,
    /// Optimizer steps, in place of --epochs.
    #[arg(long, conflicts_with = "epochs", help_heading = "Length")]
    steps: Option<u64>,
    /// Samples in a batch (default: as exported).
    #[arg(long, help_heading = "Data")]
    batch: Option<usize>,
    /// Batches averaged into one step (default: 1).
    #[arg(long, help_heading = "Length")]
    accumulate: Option<u32>,
    /// Lanes of a step, the parts that ranks share (default: as many as ranks, when a run begins). A step is this many
    /// times --accumulate batches.
    #[arg(long, help_heading = "Ranks")]
    lanes: Option<u32>,
    /// Library that carries bytes between ranks: auto (default: the MPI of the launcher) or mpi.
    #[arg(long, value_name = "NAME", help_heading = "Ranks")]
    engine: Option<String>,
    /// Steps between two comparisons of gradients and weights between ranks (default: 10); 0: never.
    #[arg(long, value_name = "STEPS", help_heading = "Ranks")]
    digests: Option<u64>,
    /// Steps after which a lane is computed on another rank too, and compared bit by bit (default: 0, never).
    #[arg(long, value_name = "STEPS", help_heading = "Ranks")]
    recompute_lanes: Option<u64>,
    /// Flip a bit on one rank, to try out what the run does then: gradient, weight or lane, the step and the rank, as
    /// gradient:12:1, and a parameter after another colon.
    #[arg(long, value_name = "WHERE", help_heading = "Ranks")]
    flip_bit: Option<FlipConfig>,
    #[arg(long, value_name = "NAME", help_heading = "Optimizer", help = optimizers())]
    optimizer: Option<String>,
    /// Peak learning rate (default: the optimizer's; of adamw 1e-3).
    #[arg(long, value_name = "RATE", allow_negative_numbers = true, help_heading = "Optimizer")]
    lr: Option<f64>,
    /// Weight decay (default: the optimizer's; of adamw 1e-2).
    #[arg(long, value_name = "DECAY", allow_negative_numbers = true, help_heading = "Optimizer")]
    weight_decay: Option<f64>,
    /// Parameters with weight decay: matrices (default; not norms and biases), all or none.
    #[arg(long, value_name = "WHICH", help_heading = "Optimizer")]
    decay: Option<String>,
    /// Parameters that are not trained, by PyTorch name with * for any characters; may be given several times.
    #[arg(long, value_name = "PATTERN", help_heading = "Optimizer")]
    freeze: Vec<String>,
    /// Learning rate after the warm-up: constant (default), linear, cosine, polynomial, onecycle, inverse_sqrt or
    /// plateau. Others need settings of their own, in a file.
    #[arg(long, value_name = "NAME", help_heading = "Optimizer")]
    schedule: Option<String>,
    /// Steps over which the learning rate rises (default: 0).
    #[arg(long, value_name = "STEPS", help_heading = "Optimizer")]
    warmup: Option<u64>,
    /// Largest norm of all gradients together; larger ones are scaled down to it (default: no limit).
    #[arg(long, value_name = "NORM", allow_negative_numbers = true, help_heading = "Optimizer")]
    clip_norm: Option<f64>,
    #[command(flatten)]
    amp: Amp,
    #[command(flatten)]
    memory: Memory,
    /// With `--amp auto`: largest relative error of loss and gradients against float64.
    #[arg(long, default_value_t = 1e-2, help_heading = "Mixed precision")]
    budget: f64,
    /// With `--amp auto`: batches to measure on.
    #[arg(long, value_name = "COUNT", default_value_t = 2, help_heading = "Mixed precision")]
    budget_batches: usize,
    /// With `--amp auto`: where to write the policy file that it makes (default: `amp.toml` in --out).
    #[arg(long, value_name = "FILE", help_heading = "Mixed precision")]
    policy_file: Option<PathBuf>,
    /// Write a trace of the first steps, which ui.perfetto.dev opens. Tracing slows each step a little.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    trace: Option<PathBuf>,
    /// With `--trace`: steps to record.
    #[arg(long, value_name = "COUNT", default_value_t = 20, requires = "trace", help_heading = "Output")]
    trace_steps: usize,
    /// Serve loss, gradient norm, learning rate, throughput, memory and evaluations for Prometheus at this address while
    /// the run goes on: 127.0.0.1:9464, or a port that only this machine reaches.
    #[arg(long, value_name = "ADDRESS", help_heading = "Output")]
    metrics: Option<String>,
    /// Let an alert run the command that `alert.command` in the settings names (docs/following.md).
    #[arg(long, help_heading = "Output")]
    allow_command: bool,
    /// Seed of the order of samples and of random numbers (default: 0).
    #[arg(long, help_heading = "Data")]
    seed: Option<u64>,
    /// Folder for checkpoints, logs and the run's report.html.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    out: Option<PathBuf>,
    /// Steps between checkpoints; the newest two are kept. One is always saved at the end, and whenever 30 minutes pass
    /// without one (`checkpoint.minutes` in the settings).
    #[arg(long, value_name = "STEPS", help_heading = "Output")]
    save_every: Option<u64>,
    /// Steps between evaluations on the held-out samples (default: only one, at the end).
    #[arg(long, value_name = "STEPS", help_heading = "Evaluation")]
    eval_every: Option<u64>,
    /// End the run early after so many evaluations without a better one (default: never).
    #[arg(long, value_name = "COUNT", help_heading = "Evaluation")]
    patience: Option<u64>,
    /// Keep a checkpoint of the best evaluation too, as `best-step-<n>` in --out.
    #[arg(long, help_heading = "Evaluation")]
    keep_best: bool,
    /// Metric by which evaluations are compared: loss (default), accuracy, top_k, perplexity, precision, recall, f1, iou,
    /// roc_auc, pr_auc, log_loss, mse, mae or r2, as `headwater eval` measures them.
    #[arg(long, value_name = "NAME", help_heading = "Evaluation")]
    metric: Option<String>,
    /// Keep an exponential moving average of the weights with this decay, such as 0.999. Evaluations use the average;
    /// eval, predict and export take it with their --ema.
    #[arg(long, value_name = "DECAY", help_heading = "Optimizer")]
    ema: Option<f64>,
    /// Go on from the newest checkpoint in --out.
    #[arg(long, help_heading = "Output")]
    resume: bool,
    /// Tensor of the files that feeds an input of another name.
    #[arg(long = "name", value_name = "INPUT=TENSOR", help_heading = "Data")]
    names: Vec<String>,
    /// Values of another dtype than the model's input: `exact` refuses those that it cannot hold, `round` rounds them
    /// (default: `exact`, unless a settings file says otherwise).
    #[arg(long, value_name = "HOW", value_parser = super::cast, help_heading = "Data")]
    cast: Option<Cast>,
    /// Weights of the classes in the loss: balanced, numbers such as 1,3.5, or by name such as cat=1,dog=3.5.
    #[arg(long, value_name = "WEIGHTS", help_heading = "Data")]
    class_weights: Option<ClassWeights>,
    /// Input that holds the labels of evaluations (default: labels, label, targets, target or y).
    #[arg(long, value_name = "INPUT", help_heading = "Evaluation")]
    labels: Option<String>,
    /// Size of a symbolic dimension other than the batch (default: as in the data).
    #[arg(long = "dim", value_name = "NAME=SIZE", help_heading = "Data")]
    dims: Vec<String>,
    /// Length buckets: batches of samples of similar length, each padded to the smallest of these lengths that fits: auto,
    /// or lengths such as 32,64,128.
    #[arg(long, value_name = "LENGTHS", help_heading = "Data")]
    buckets: Option<Buckets>,
}

/// Help of `--optimizer`.
fn optimizers() -> String {
    let names: Vec<String> = Optimizer::all().iter().map(Optimizer::key).collect();
    format!("Optimizer: {} (default: {})", names.join(", "), Optimizer::default().key())
}

/// Opens the device, as a rank among others or alone.
pub type Open<'a> = &'a dyn Fn(Option<Arc<dyn Transport>>) -> Result<Arc<dyn Device>>;

pub fn run(args: &Args, open: Open, printer: Printer) -> Result<Outcome> {
    let config = settings(args)?;
    let Some(ranks) = super::ranks::meet(&config)? else {
        return train(args, config, open(None)?, printer);
    };
    match ranked(args, config, open, &ranks, printer) {
        Ok(done) => {
            ranks.leave();
            Ok(done)
        }
        // Each rank says it before any of them ends: a launcher that sees one end may end the others.
        Err(e) if matches!(e.downcast_ref(), Some(Error::Drift(_))) => {
            let error = format!("{e:#}");
            say(format!("error: {error}"));
            ranks.leave();
            let json = match ranks.rank() {
                0 => serde_json::json!({ "error": error, "code": text::code(&error) }),
                _ => serde_json::Value::Null,
            };
            Ok(Outcome { json, status: Status::Of(u8::try_from(headwater_ranks::LOST).unwrap_or(1)) })
        }
        Err(e) => {
            // Does nothing where all ranks have ended.
            ranks.abort(&format!("{e:#}"));
            Err(e)
        }
    }
}

/// Trains as a rank among others. Rank 0 alone writes and speaks.
fn ranked(
    args: &Args,
    mut config: TrainConfig,
    open: Open,
    ranks: &Arc<Engine>,
    printer: Printer,
) -> Result<Outcome> {
    if args.amp.is_auto() {
        let message = "--amp auto measures in one process: run it without a launcher first, and give its policy file to --amp \
                       when you start ranks";
        bail!(Usage(message.into()));
    }
    if ranks.rank() == 0 {
        return train(args, config, open(Some(ranks.clone()))?, printer);
    }
    (config.log, config.alert) = (LogConfig::default(), AlertConfig::default());
    let done = train(args, config, open(Some(ranks.clone()))?, Printer::silent())?;
    Ok(Outcome { json: serde_json::Value::Null, ..done })
}

fn train(args: &Args, mut config: TrainConfig, device: Arc<dyn Device>, printer: Printer) -> Result<Outcome> {
    // One rank of a run speaks for all.
    let speaks = device.transport().is_none_or(|t| t.rank() == 0);
    let mut metrics = match speaks {
        true => Metrics::start(args.metrics.as_deref(), config.log.metrics.as_deref())?,
        false => None,
    };
    let mut alerts = Alerts::new(args.allow_command);
    let model = Model::open(&args.model)?;
    let exported = model.bind(&parse_dims(&args.dims)?.or_exported())?;
    exported.remarks().iter().for_each(|r| say(format!("note: {r}")));
    // Settings that no file has come from the command line.
    let usage = |e: anyhow::Error| match e.downcast_ref::<crate::runtime::Error>() {
        Some(Error::Config { .. }) if args.config.is_none() => Usage(format!("{e:#}")).into(),
        _ => e,
    };
    if !config.freeze.is_empty() {
        printer.line(frozen(&exported, &config).map_err(usage)?);
    }
    if let Some(path) = config.init.weights.as_deref().filter(|_| !args.resume) {
        let files = WeightFiles::open(path)?;
        let mapping = Overlay::new(&exported, &files, &config.init)?.mapping;
        mapping.lines().iter().for_each(|l| printer.line(l));
    }
    if args.amp.is_auto() {
        config.amp = chosen(args, &config, &model, &*device, printer)?;
    }
    if config.checkpoint.dir.is_none() && speaks {
        say("warning: the trained model will not be saved; name a directory with --out");
    }
    let stop = super::signals::stop()?;
    let mut progress = Progress::new(printer.json, device.clone());
    let metric = config.eval.metric;
    let dims = parse_dims(&args.dims)?;
    let machine = facts::machine(&*device, &Machine::detect());
    let summary = with_trainer(&model, dims, config, device, args.resume, |trainer, config| {
        if args.trace.is_some() {
            trainer.record(args.trace_steps)?;
        }
        let mut page = if speaks { live(&model, trainer, config, machine)? } else { None };
        let mut observers: Vec<&mut dyn Observer> = Vec::new();
        observers.extend(speaks.then_some(&mut progress as &mut dyn Observer));
        observers.extend(page.as_mut().map(|p| p as &mut dyn Observer));
        observers.extend(metrics.as_mut().map(|m| m as &mut dyn Observer));
        observers.extend(speaks.then_some(&mut alerts as &mut dyn Observer));
        let summary = crate::train::run_logged(trainer, config, &mut observers, stop);
        if let Some(path) = args.trace.as_ref().filter(|_| speaks) {
            trace::write(path, trainer.spans())?;
            say(format!("wrote {}: open it in ui.perfetto.dev", path.display()));
        }
        summary
    });
    if let Err(e) = &summary {
        alerts.failed(e);
    }
    let summary = summary.map_err(usage)?;
    if let Some(e) = &summary.evaluation {
        let earlier = match e.step == summary.step {
            true => String::new(),
            false => format!(", at step {}", e.step),
        };
        printer.line(format!("held-out {}{earlier}", scores::line(&e.scores, metric)));
    }
    if let Some(best) = summary.best.filter(|b| b.step != summary.step) {
        let (word, value) = (metric.word(), scores::shown(metric, best.value));
        printer.line(format!("best held-out {word} {value}, at step {}", best.step));
    }
    let result = serde_json::json!({
        "step": summary.step,
        "complete": summary.complete,
        "last_loss": summary.losses.last(),
        "evaluation": summary.evaluation,
        "best": summary.best,
    });
    Outcome::of(result, if summary.complete { Status::Done } else { Status::Interrupted })
}

/// A sentence with the savings of frozen parameters: their elements times the bytes of each, which is what
/// buffers take before the planner shares and pads them.
fn frozen(exported: &BoundModel, config: &TrainConfig) -> Result<String> {
    let found = adapt::freeze(&mut exported.graph.clone(), &config.freeze)?;
    let (tensors, elements) = found.tensors;
    let low = matches!(config.amp.level, Level::O2 | Level::O3);
    let gradient = if low { 2 } else { 4 };
    let moment = match config.moments {
        Moments::F32 => 4,
        Moments::Bf16 => 2,
        Moments::Int8 => 1,
    };
    let moments = config.optimizer.rule().moments().iter().flatten().count();
    Ok(format!(
        "frozen: {tensors} of {} parameters, {} of {} elements; saves about {} of gradients ({gradient} bytes an element) and \
         {} of moments ({moments} of {moment})",
        tensors + found.trained.0,
        text::count(elements as f64),
        text::count((elements + found.trained.1) as f64),
        text::bytes(elements * gradient),
        text::bytes(elements * moments * moment),
    ))
}

/// The page of the run in its folder, if it has one.
fn live(
    model: &Model,
    trainer: &Trainer,
    config: &TrainConfig,
    machine: Vec<(String, String)>,
) -> Result<Option<Live>> {
    let Some(dir) = &config.checkpoint.dir else { return Ok(None) };
    let history = match &config.log.json {
        Some(log) => History::read(log, trainer.step())?,
        None => History::default(),
    };
    let mut facts = facts::run();
    facts.extend(machine);
    facts.push((facts::PYTORCH.into(), model.program.torch_version().to_string()));
    facts.push(facts::file("model", &model.path));
    facts.push(facts::file("training data", &config.data.train));
    facts.extend(config.data.eval.as_ref().map(|p| facts::file("held-out data", p)));
    facts.extend(config.init.weights.as_ref().map(|p| facts::file("first weights", p)));
    let blocks = vec![Block::Table(facts::settings(config))];
    let name = model.path.file_name().unwrap_or_default().to_string_lossy();
    Ok(Some(Live::new(&dir.join("report.html"), format!("Training of {name}"), facts, blocks, history)))
}

/// Chooses the precision of each node by measuring, and writes the choice to a file.
fn chosen(
    args: &Args,
    config: &TrainConfig,
    model: &Model,
    device: &dyn Device,
    printer: Printer,
) -> Result<AmpConfig> {
    let beside = || config.checkpoint.dir.as_deref().unwrap_or(Path::new("")).join("amp.toml");
    let file = args.policy_file.clone().unwrap_or_else(beside);
    if args.policy_file.is_none() && config.checkpoint.dir.is_none() && file.exists() {
        let message =
            "amp.toml, where the choice is written, already exists here: name the file with --policy-file";
        bail!(Usage(message.into()));
    }
    let asked = auto::AutoRequest {
        low: config.amp.properties(device.target())?.dtype,
        budget: args.budget,
        batches: args.budget_batches,
    };
    let (bound, batches) = auto::batches(model, &parse_dims(&args.dims)?, config, asked.batches)?;
    let limits = limits::measure(&Pool::from_env(), Tier::current()?, limits::Workload::default())?;
    let found = auto::choose(&bound, &batches, asked, &limits, device, |what| {
        printer.line(format!("precision: {what}"))
    })?;
    if let Some(dir) = file.parent().filter(|d| !d.as_os_str().is_empty()) {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    std::fs::write(&file, found.policy()).with_context(|| format!("cannot write {}", file.display()))?;
    printer.line(format!(
        "{} of {} nodes run in {}: loss {:.1e} and gradients {:.1e} from float64 (budget {:.1e}; all f32 {:.1e} and {:.1e}, \
         all {} {:.1e} and {:.1e}); written to {}",
        found.names().len(),
        found.choices.len(),
        found.dtype,
        found.errors.loss,
        found.errors.gradients,
        found.budget,
        found.full.loss,
        found.full.gradients,
        found.dtype,
        found.low.loss,
        found.low.gradients,
        file.display()
    ));
    found.config(&config.amp)
}

/// The settings file with the command line laid over it.
fn settings(args: &Args) -> Result<TrainConfig> {
    let mut c: TrainConfig = match &args.config {
        Some(path) => {
            let settings: TrainConfig = crate::settings::read(path)?;
            let log = &settings.log;
            let dir = settings.checkpoint.dir.as_ref().filter(|_| args.out.is_none());
            for (key, place) in [
                ("checkpoint.dir", dir),
                ("log.json", log.json.as_ref()),
                ("log.tensorboard", log.tensorboard.as_ref()),
            ] {
                place.map_or(Ok(()), |place| confined(path, key, place))?;
            }
            settings
        }
        None => TrainConfig::default(),
    };
    if let Some(data) = &args.data {
        c.data.train = data.clone();
    }
    c.data.eval = args.eval.clone().or(c.data.eval);
    c.data.names.extend(super::eval::names(&args.names)?);
    c.data.cast = args.cast.unwrap_or(c.data.cast);
    c.data.class_weights = args.class_weights.clone().or(c.data.class_weights);
    c.freeze.extend(args.freeze.iter().cloned());
    c.eval.labels = args.labels.clone().or(c.eval.labels);
    c.data.buckets = args.buckets.clone().or(c.data.buckets);
    c.init.weights = args.init.clone().or(c.init.weights);
    if args.epochs.is_some() || args.steps.is_some() {
        (c.epochs, c.steps) = (args.epochs, args.steps);
    }
    c.batch = args.batch.or(c.batch);
    c.accumulate = args.accumulate.unwrap_or(c.accumulate);
    c.ranks.lanes = args.lanes.or(c.ranks.lanes);
    if let Some(word) = &args.engine {
        c.ranks.engine = parse_word("--engine", word, &["auto", "mpi"])?;
    }
    c.ranks.digests = args.digests.unwrap_or(c.ranks.digests);
    c.ranks.recompute = args.recompute_lanes.unwrap_or(c.ranks.recompute);
    c.flip = args.flip_bit.clone();
    c.warmup = args.warmup.unwrap_or(c.warmup);
    c.seed = args.seed.unwrap_or(c.seed);
    c.clip_norm = args.clip_norm.or(c.clip_norm);
    c.eval.every = args.eval_every.or(c.eval.every);
    c.checkpoint.every = args.save_every.or(c.checkpoint.every);
    args.amp.over(&mut c.amp)?;
    args.memory.over(&mut c);
    c.eval.patience = args.patience.or(c.eval.patience);
    c.eval.keep_best |= args.keep_best;
    c.ema = args.ema.or(c.ema);
    if let Some(word) = &args.metric {
        c.eval.metric = parse_word("--metric", word, &Metric::ALL.map(Metric::name))?;
    }
    if let Some(word) = &args.decay {
        c.decay = parse_word("--decay", word, &["matrices", "all", "none"])?;
    }
    if let Some(word) = &args.schedule {
        let named = serde_json::json!({ "name": word });
        c.schedule = serde_json::from_value(named).map_err(|e| {
            let known = Shape::NAMES.contains(&word.as_str());
            let why = if known {
                format!("{e}: it needs a settings file, as --config")
            } else {
                meant(word, Shape::NAMES)
            };
            Usage(format!("--schedule {word}: {why}"))
        })?;
    }
    // The optimizer's settings are changed by name, so that only those it has are taken.
    if let Some(name) = &args.optimizer {
        let named = serde_json::json!({ "name": name });
        let keys: Vec<String> = Optimizer::all().iter().map(Optimizer::key).collect();
        c.optimizer = serde_json::from_value(named).map_err(|e| {
            let why = match keys.contains(name) {
                true => e.to_string(),
                false => meant(name, keys.iter().map(String::as_str)),
            };
            Usage(format!("--optimizer {name}: {why}"))
        })?;
    }
    for (option, key, value) in
        [("--lr", "lr", args.lr), ("--weight-decay", "weight_decay", args.weight_decay)]
    {
        let Some(value) = value else { continue };
        if !value.is_finite() {
            bail!(Usage(format!("{option} must be a finite number, it is {value}")));
        }
        let changed = c.optimizer.with([(key.to_string(), serde_json::json!(value))]);
        c.optimizer = changed.map_err(|e| Usage(format!("{option} {value}: {e:#}")))?;
    }
    if let Some(out) = &args.out {
        c.checkpoint.dir = Some(out.clone());
        c.log.json.get_or_insert_with(|| out.join("log.jsonl"));
        c.log.tensorboard.get_or_insert_with(|| out.join("tensorboard"));
    }
    c.log.metrics = args.metrics.clone().or(c.log.metrics);
    if args.allow_command && c.alert.command.is_empty() {
        bail!(Usage("--allow-command does nothing without `alert.command` in the settings".into()));
    }
    let idle = [
        ("--eval-every", args.eval_every.is_some()),
        ("--metric", args.metric.is_some()),
        ("--labels", args.labels.is_some()),
    ];
    if let (None, Some((flag, _))) = (&c.data.eval, idle.iter().find(|(_, given)| *given)) {
        bail!(Usage(format!("{flag} does nothing without held-out samples: name them with --eval")));
    }
    let unused = [("eval.every", c.eval.every.is_some()), ("eval.labels", c.eval.labels.is_some())];
    if let (None, Some((setting, _))) = (&c.data.eval, unused.iter().find(|(_, given)| *given)) {
        say(format!("warning: `{setting}` does nothing without held-out samples: name them with --eval"));
    }
    if !args.amp.is_auto() && args.policy_file.is_some() {
        bail!(Usage("--policy-file does nothing without --amp auto".into()));
    }
    if c.data.train.as_os_str().is_empty() {
        bail!(Usage("name the samples to train on with --data".into()));
    }
    if c.epochs.is_none() && c.steps.is_none() {
        bail!(Usage("say how long to train with --epochs or --steps".into()));
    }
    Ok(c)
}

/// Refuses a place to write to that a settings file names outside of its own folder: files from others may
/// not choose what is written over.
fn confined(settings: &Path, key: &str, place: &Path) -> Result<()> {
    let folder = settings.parent().unwrap_or(Path::new(""));
    let inside = place.strip_prefix(folder).is_ok_and(|rest| {
        rest.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
    });
    if !inside {
        let message = format!(
            "`{key}` in {} names {}, which is outside of that file's folder: name it on the command line, with --out",
            settings.display(),
            place.display()
        );
        bail!(Usage(message));
    }
    Ok(())
}

/// The value of an option that is one of a few words.
fn parse_word<T: serde::de::DeserializeOwned>(option: &str, word: &str, all: &[&str]) -> Result<T> {
    serde_json::from_value(serde_json::Value::String(word.into()))
        .map_err(|_| Usage(format!("{option} {word}: {}", meant(word, all.iter().copied()))).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settings_file_writes_into_its_own_folder_alone() {
        let ok = |file: &str, place: &str| confined(Path::new(file), "log.json", Path::new(place)).is_ok();
        assert!(ok("train.toml", "run/log.jsonl") && ok("jobs/train.toml", "jobs/./log.jsonl"));
        assert!(ok("/home/me/train.toml", "/home/me/log.jsonl"));
        for place in ["/any/path", "../log.jsonl", "run/../../log.jsonl", "/home/other/log.jsonl"] {
            assert!(!ok("train.toml", place) && !ok("/home/me/train.toml", place), "{place}");
        }
    }

    /// The numbers that `--help` calls defaults are those of the settings.
    #[test]
    fn help_states_the_defaults_of_the_settings() {
        use clap::Args as _;
        let settings = toml::Value::try_from(TrainConfig::default()).unwrap();
        let command = Args::augment_args(clap::Command::new("train"));
        let help = |id: &str| {
            let arg = command.get_arguments().find(|a| a.get_id() == id).expect(id);
            arg.get_long_help().or(arg.get_help()).expect(id).to_string()
        };
        for (id, path, before) in [
            ("accumulate", "accumulate", "default: "),
            ("warmup", "warmup", "default: "),
            ("seed", "seed", "default: "),
            ("lr", "optimizer.lr", "of adamw "),
            ("weight_decay", "optimizer.weight_decay", "of adamw "),
            ("save_every", "checkpoint.minutes", "whenever "),
        ] {
            let value = path.split('.').try_fold(&settings, |at, key| at.get(key)).expect(path);
            let want = value.as_float().or(value.as_integer().map(|i| i as f64)).expect(path);
            let help = help(id);
            let (_, rest) = help.split_once(before).unwrap_or_else(|| panic!("{id}: {help}"));
            let stated = rest.split([')', ' ', ';', '\n']).next().unwrap_or_default();
            assert_eq!(stated.parse::<f64>().ok(), Some(want), "{id}: {help}");
        }
    }
}
