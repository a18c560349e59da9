//! Training of an exported model: ties the importer's graph to the runtime's trainer.

use crate::core::device::Device;
use crate::import::Dims;
use crate::model::Model;
use crate::runtime::TrainConfig;
use crate::runtime::data::Shapes;
use crate::runtime::log::{JsonLines, TensorBoard};
use crate::runtime::session::Model as SessionModel;
use crate::runtime::trainer::{Observer, Summary, Trainer};
use crate::weights::{Overlay, WeightFiles};
use anyhow::{Context, Result};
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
/// What the trainer, the observers and the disk report.
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
    Ok(trainer.run(&mut all, stop)?)
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
    model.program.verify_checksums().with_context(|| format!("{} is damaged", model.path.display()))?;
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
    let mut trainer = Trainer::new(device, session, Some(Box::new(rebind)), config.clone(), resume)?;
    model.release();
    work(&mut trainer, &config)
}
