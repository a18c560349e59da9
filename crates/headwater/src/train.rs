//! Training of an exported model: ties the importer's graph to the runtime's trainer.

use crate::core::device::Device;
use crate::core::target::Target;
use crate::fit::{FitRequest, Way};
use crate::import::Dims;
use crate::model::Model;
use crate::report::text;
use crate::runtime::data::Shapes;
use crate::runtime::log::{JsonLines, TensorBoard};
use crate::runtime::session::SessionModel;
use crate::runtime::trainer::{Event, Observer, Step, Summary, Trainer};
use crate::runtime::{Error, TrainConfig};
use crate::weights::{Overlay, WeightFiles};
use anyhow::{Result, anyhow};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Trains a model as `config` says, telling `observers` and the logs it names.
///
/// # Errors
/// Whatever is wrong with model, settings, data, device or disk.
pub fn run(
    model: &Model,
    dims: Dims,
    config: TrainConfig,
    device: Arc<dyn Device>,
    resume: bool,
    observers: &mut [&mut dyn Observer],
    stop: &AtomicBool,
) -> Result<Summary> {
    with_trainer(model, dims, config, device, resume, |trainer, config| {
        run_logged(trainer, config, observers, stop)
    })
}

/// Runs a prepared trainer with the logs its settings name.
///
/// # Errors
/// Errors of the trainer, the observers and the disk.
pub fn run_logged(
    trainer: &mut Trainer,
    config: &TrainConfig,
    observers: &mut [&mut dyn Observer],
    stop: &AtomicBool,
) -> Result<Summary> {
    // Lines after the step that is resumed belong to a run that never was.
    let step = trainer.step();
    let mut json = config.log.json.as_deref().map(|p| JsonLines::resume(p, step)).transpose()?;
    let mut board = config.log.tensorboard.as_deref().map(|p| TensorBoard::create(p, step)).transpose()?;
    let mut all: Vec<&mut dyn Observer> = Vec::new();
    all.extend(json.as_mut().map(|o| o as &mut dyn Observer));
    all.extend(board.as_mut().map(|o| o as &mut dyn Observer));
    all.extend(observers.iter_mut().map(|o| &mut **o as &mut dyn Observer));
    let mut losses = Losses::default();
    all.push(&mut losses);
    trainer.run(&mut all, stop).map_err(|e| match (&e, losses.course()) {
        (Error::NotFinite { diverged: true, .. }, Some(course)) => {
            let lr = config.optimizer.rule().lr();
            anyhow!(e).context(format!(
                "{course}: lower the learning rate, which is {lr} (--lr), or limit the gradients (--clip-norm 1)"
            ))
        }
        _ => e.into(),
    })
}

/// The first and the last losses of a run.
#[derive(Default)]
struct Losses {
    first: Option<Step>,
    last: Option<Step>,
}

impl Losses {
    /// The course of a run that diverged, in words; `None` if it did no step, so that the rate is not to
    /// blame.
    fn course(&self) -> Option<String> {
        let (first, last) = (self.first.as_ref()?, self.last.as_ref()?);
        let of = |s: &Step| text::number(s.loss);
        Some(match last.step - first.step {
            0 => format!("the run diverged after a step from a loss of {}", of(first)),
            n if last.loss > first.loss => {
                format!("the loss rose from {} to {} in {n} steps", of(first), of(last))
            }
            n => format!("the run diverged after {} steps, from a loss of {}", n + 1, of(last)),
        })
    }
}

impl Observer for Losses {
    fn essential(&self) -> bool {
        false
    }

    fn event(&mut self, event: &Event) -> crate::runtime::Result<()> {
        if let Event::Step(s) = event {
            self.first.get_or_insert_with(|| s.clone());
            self.last = Some(s.clone());
        }
        Ok(())
    }
}

/// Prepares a trainer and hands it to `work`.
///
/// # Errors
/// As [`run`], and those of `work`.
pub fn with_trainer<T>(
    model: &Model,
    dims: Dims,
    config: TrainConfig,
    device: Arc<dyn Device>,
    resume: bool,
    work: impl FnOnce(&mut Trainer, &TrainConfig) -> Result<T>,
) -> Result<T> {
    model.verify()?;
    let bound = model.bind(&dims.clone().or_exported())?;
    let rebind = |shapes: &Shapes| -> Result<_, Box<dyn std::error::Error + Send + Sync>> {
        let bound = model.shaped(dims.clone(), shapes).and_then(|dims| model.bind(&dims.or_exported()));
        // With all causes: the error is a part of a sentence.
        Ok(bound.map_err(|e| format!("{e:#}"))?.graph)
    };
    // A run that is resumed has its weights from the checkpoint.
    let files = config.init.weights.as_deref().filter(|_| !resume).map(WeightFiles::open).transpose()?;
    let overlay = match &files {
        Some(files) => Overlay::new(&bound, files, &config.init)?,
        None => Overlay::none(&bound),
    };
    let session = SessionModel { graph: &bound.graph, weights: &overlay };
    let target = device.target().clone();
    let trainer = Trainer::new(device, session, Some(Box::new(rebind)), config.clone(), resume);
    let mut trainer = trainer.map_err(|e| match e {
        Error::Memory { need, free, .. } => advised(e, model, &dims, &config, &target, (need, free)),
        e => e.into(),
    })?;
    model.release();
    work(&mut trainer, &config)
}

/// A step that does not fit, with what needs less.
fn advised(
    error: Error,
    model: &Model,
    dims: &Dims,
    config: &TrainConfig,
    target: &Target,
    (need, free): (usize, usize),
) -> anyhow::Error {
    let settings = match config.training(target) {
        Ok(settings) => settings,
        Err(e) => return e.into(),
    };
    let dims = match config.batch.map(|batch| model.batch(dims.clone(), batch)) {
        Some(Ok(dims)) => dims,
        _ => dims.clone(),
    };
    let ways = FitRequest { model, dims: &dims, settings: &settings, target }.ways(need, Some(free));
    let one = |w: &Way| {
        let fits = if w.bytes <= free { "fits" } else { "does not fit" };
        format!("`{}` takes {} and {fits}", w.options, text::bytes(w.bytes))
    };
    match ways.is_empty() {
        true => error.into(),
        false => anyhow!("{error}: {}", ways.iter().map(one).collect::<Vec<_>>().join(", ")),
    }
}
