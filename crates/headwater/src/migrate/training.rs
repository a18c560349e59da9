//! The step that trains the job, beside the run that PyTorch recorded.

use super::comparable::differences;
use super::steps::{Checked, Opened};
use super::times::{StepTimes, yardstick};
use super::{Begin, Found, Job, Watcher};
use crate::core::device::Device;
use crate::golden::{Curve, Golden};
use crate::import::Dims;
use crate::report::history::History;
use crate::report::{Block, Chart, Series, Stroke, facts, text};
use crate::runtime::session::Session;
use crate::runtime::trainer::{Event, Observer, Summary, Trainer};
use crate::runtime::{Store, TrainConfig};
use crate::train::with_trainer;
use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Steps over which two correct f32 runs agree, and their largest relative difference. Later they diverge in
/// any case: training amplifies every rounding.
const CURVE_STEPS: usize = 100;
const CURVE_LIMIT: f64 = 1e-3;

/// A model that has been trained.
pub(super) struct Trained {
    pub(super) opened: Opened,
    pub(super) summary: Summary,
    /// All steps of the run, those before it was resumed included.
    pub(super) history: History,
    /// Bytes of memory that the plans use.
    pub(super) held: usize,
    pub(super) curve: Option<Curve>,
    pub(super) checkpoint: Option<PathBuf>,
}

/// Keeps what a run tells, beside the observer that draws.
pub(super) struct Note<'a> {
    inner: &'a mut dyn Observer,
    pub(super) history: History,
    checkpoint: Option<PathBuf>,
    /// Steps done when the run was resumed, and settings that differ from those it began with.
    pub(super) resumed: Option<(u64, Vec<String>)>,
}

impl Note<'_> {
    fn new(inner: &mut dyn Observer) -> Note<'_> {
        Note { inner, history: History::default(), checkpoint: None, resumed: None }
    }
}

impl Observer for Note<'_> {
    fn event(&mut self, event: &Event) -> crate::runtime::Result<()> {
        self.history.add(event);
        match event {
            Event::Checkpoint { path, best: false, .. } => self.checkpoint = Some(path.clone()),
            Event::Resume { step, path, changed, .. } => {
                self.checkpoint = Some(path.clone());
                self.resumed = Some((*step, changed.clone()));
            }
            _ => {}
        }
        self.inner.event(event)
    }
}

/// The results of a run of the job.
pub(super) struct Ran<'a, T> {
    pub(super) summary: Summary,
    pub(super) note: Note<'a>,
    /// Bytes of memory that the plans use.
    pub(super) held: usize,
    /// The answer of `last`.
    pub(super) last: T,
}

/// The frame of every run of a migration.
pub(super) struct Frame<'a> {
    /// The migration's folder.
    pub(super) out: &'a Path,
    pub(super) begin: Begin,
    pub(super) device: Arc<dyn Device>,
    /// Set when the user asks to stop.
    pub(super) stop: &'a AtomicBool,
}

/// The names under which a run of the job keeps its checkpoints and its log.
pub(super) struct Places {
    pub(super) run: &'static str,
    pub(super) log: &'static str,
}

/// Trains as `config` says, with checkpoints and log in the folder `out`; an existing run is resumed, where
/// the migration is resumed. `first` looks at the trainer before the run and `last` after it.
///
/// # Errors
/// Errors of trainer and disk, and if the run was stopped.
pub(super) fn run<'w, T>(
    opened: &Opened,
    mut config: TrainConfig,
    frame: &Frame,
    places: Places,
    watcher: &'w mut dyn Watcher,
    first: impl FnOnce(&mut Trainer, &TrainConfig) -> Result<()>,
    last: impl FnOnce(&Session, &Trainer) -> T,
) -> Result<Ran<'w, T>> {
    let (dir, log) = (frame.out.join(places.run), frame.out.join(places.log));
    let resume = frame.begin == Begin::Resume && Store::any(&dir)?;
    config.checkpoint.dir = Some(dir);
    config.log.json = Some(log.clone());
    let mut note = Note::new(watcher.training());
    let ran =
        with_trainer(&opened.model, Dims::new(), config, frame.device.clone(), resume, |trainer, config| {
            note.history = History::read(&log, trainer.step())?;
            first(trainer, config)?;
            let summary = crate::train::run_logged(trainer, config, &mut [&mut note], frame.stop)?;
            Ok((summary, trainer.session().planned_bytes(), last(trainer.session(), trainer)))
        });
    let (summary, held, last) = ran?;
    ensure!(
        summary.complete,
        "the run was stopped at step {}; the steps that follow were not run: go on with --resume",
        summary.step
    );
    Ok(Ran { summary, note, held, last })
}

/// A run's first losses with dropout as the identity: what a recorded curve of a model with dropout is
/// compared with.
fn without_dropout(
    opened: &mut Opened,
    mut config: TrainConfig,
    steps: usize,
    frame: &Frame,
) -> Result<Vec<f64>> {
    (config.checkpoint.dir, config.checkpoint.every) = (None, None);
    (config.eval, config.ema) = (Default::default(), None);
    (config.log.json, config.log.tensorboard) = (None, None);
    let enough = AtomicBool::new(false);
    let mut count = 0;
    let mut counter = |event: &Event| -> crate::runtime::Result<()> {
        count += matches!(event, Event::Step(_)) as usize;
        enough.store(count >= steps || frame.stop.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    };
    opened.model.without_dropout = true;
    let run = with_trainer(&opened.model, Dims::new(), config, frame.device.clone(), false, |trainer, _| {
        Ok(trainer.run(&mut [&mut counter], &enough)?.losses)
    });
    opened.model.without_dropout = false;
    run
}

/// 5: the training run, beside the one PyTorch recorded.
pub(super) fn training(
    job: &Job,
    checked: Checked,
    frame: &Frame,
    watcher: &mut dyn Watcher,
) -> Result<(Trained, Found)> {
    let Checked { mut opened, .. } = checked;
    let curve = opened.golden.as_ref().map(Golden::curve).transpose()?.flatten();
    let mut config = job.train.clone();
    config.log.tensorboard = Some(frame.out.join("tensorboard"));
    let mut apart = Vec::new();
    let places = Places { run: "run", log: "log.jsonl" };
    let first = |trainer: &mut Trainer, config: &TrainConfig| {
        if let (Some(golden), Some(curve)) = (&opened.golden, &curve) {
            let steps = CURVE_STEPS.min(usize::try_from(trainer.steps()).unwrap_or(CURVE_STEPS));
            apart = differences(golden, curve, config, &opened.model, trainer, steps)?;
        }
        trainer.measure();
        Ok(())
    };
    let ran = run(&opened, config, frame, places, watcher, first, |session, trainer| {
        StepTimes::of(session, trainer, yardstick(&*frame.device))
    })?;
    let Ran { summary, note, held, last: times } = ran;
    let Note { history, checkpoint, resumed, .. } = note;
    let (seconds, speed) = history.speed();
    let losses = history.losses();
    let (steps, last) = (losses.len(), losses.last().copied().unwrap_or(f64::NAN));
    let line = |name: &str, loss: &[f64]| {
        Series::new(name, loss.iter().enumerate().map(|(i, &l)| (i as f64 + 1.0, l)).collect())
    };
    let resumption = resumed.as_ref().map_or(String::new(), |(step, changed)| {
        let changed = if changed.is_empty() {
            String::new()
        } else {
            format!(" with other settings ({})", changed.join("; "))
        };
        format!(", resumed after step {step}{changed}")
    });
    let trained = format!("{} steps{resumption}, last loss {last:.4}; {speed:.0} samples/s", summary.step);
    let mut series = vec![history.loss("Headwater, f32")];
    // A run whose first steps are not in the log cannot be laid beside a curve.
    let whole = steps as u64 == summary.step;
    // Compared is this run, or its beginning again without dropout where PyTorch's curve is without it.
    let (mut compared, mut again) = (&losses, None);
    let mut compare = None;
    let mut found = match &curve {
        None => {
            let summary = format!("{trained}; there is no curve of PyTorch's to compare with");
            Found::idle(summary)
        }
        Some(_) if !whole => Found::idle(format!(
            "{trained}; the log does not have the run's first steps, so that they cannot be compared with PyTorch's"
        )),
        Some(c) if !apart.is_empty() => {
            series.push(line("PyTorch, another run", &c.loss).stroke(Stroke::Faint));
            Found::idle(format!(
                "{trained}; PyTorch's curve is of another run and proves nothing about this one: {}. To compare, record \
                 this job's run (`record` with `data=`, in tools/README.md)",
                apart.join("; ")
            ))
        }
        Some(c) => {
            series.push(line("PyTorch, f32, recorded", &c.loss).stroke(Stroke::Wide));
            let mut how = String::new();
            let count = CURVE_STEPS.min(c.loss.len()).min(steps);
            if !opened.silenced.is_empty() && opened.golden.as_ref().is_some_and(Golden::without_dropout) {
                how = format!(" {}, in a run of their own,", opened.silenced.text());
                let proof = without_dropout(&mut opened, job.train.clone(), count, frame)?;
                series.push(line(&format!("Headwater, f32, {}", opened.silenced.text()), &proof));
                compared = again.insert(proof);
            }
            let (at, distance) = crate::curve::worst(compared, &c.loss, CURVE_STEPS);
            compare = Some((distance, at + 1, count));
            let text = format!(
                "{trained}; over the first {count} steps{how} the loss is at most {} from PyTorch's (relative, step {}; limit \
                 {}){}",
                text::error(distance),
                at + 1,
                text::error(CURVE_LIMIT),
                opened.because(distance > CURVE_LIMIT),
            );
            let next = "the steps before prove outputs and gradients of one batch: what remains is the optimizer, the order of \
                        the batches, or a part of the model that this batch does not reach. Compare the learning rates and norms \
                        of log.jsonl with the golden's curve.lr and curve.norm";
            Found::new(distance <= CURVE_LIMIT && count > 0, text).next(next)
        }
    };
    if let Some(trend) = history.trend() {
        series[0].stroke = Stroke::Faint;
        series[0].colour = Some(0);
        series.push(trend.colour(0));
    }
    series.extend(history.held_out_loss().map(|held_out| held_out.colour(3)));
    found = found.with(Block::Chart(Chart::new("Loss of each step", "step", "loss", series).log(true)));
    if let (Some(c), Some(_)) = (&curve, compare) {
        let ratio =
            compared.iter().zip(&c.loss).enumerate().map(|(i, (a, b))| (i as f64 + 1.0, ((a - b) / b).abs()));
        let different: Vec<(f64, f64)> = ratio.take(CURVE_STEPS).filter(|(_, d)| *d != 0.0).collect();
        let title = format!(
            "Relative distance of the two curves over the first {CURVE_STEPS} steps (equal losses left out)"
        );
        let series = vec![Series::new("distance", different)];
        found = found.with(Block::Chart(Chart::new(&title, "step", "relative", series).log(true)));
    }
    drop(again);
    for block in history.charts().into_iter().chain(times.blocks()) {
        found = found.with(block);
    }
    found = found
        .with(Block::Table(facts::settings(&job.train)))
        .value("steps", summary.step)
        .value("last_loss", last)
        .value("losses", &losses)
        .value("samples_per_second", speed)
        .value("step_seconds", seconds)
        .value("planned_bytes", held)
        .value("resumed_at", resumed.map(|(step, _)| step))
        .value("curve_distance", compare.map(|c| c.0))
        .value("curve_step", compare.map(|c| c.1))
        .value("curve_steps", compare.map(|c| c.2))
        .value("curve_limit", CURVE_LIMIT)
        .value("curve_differences", &apart);
    let curve = curve.filter(|_| compare.is_some());
    Ok((Trained { opened, summary, history, held, curve, checkpoint }, found))
}
