//! The loop of training: batches to gradients to updates, evaluation, checkpoints, events. Everything in it
//! is a function of the settings and the number of steps done. So a run that resumes is the run that was
//! interrupted.

mod blame;
mod drift;
mod evaluate;
mod event;
mod lanes;
mod resume;
mod room;
mod spans;
mod step;
mod world;

pub use crate::course::{Best, Course};
pub use crate::evaluation::Evaluation;
use event::Observers;
pub use event::{Alert, Event, Lane, Observer, Recomputation, Start, Step};
use resume::Opened;
use spans::Recorder;
pub use spans::Span;
use world::World;

use crate::adapt::{self, Changes, parameters};
use crate::average::Average;
use crate::checkpoint::{Found, Progress, Snapshot, Store, assist};
use crate::config::TrainConfig;
use crate::data::{Dataset, Feeding, Loader, Order, Sampler, Shapes};
use crate::error::{Error, Result};
use crate::optim::Groups;
use crate::scaler::{ScalerRule, ScalerState};
use crate::schedule::Schedule;
use crate::session::{ModelTensor, ProgramId, Session, SessionModel};
use headwater_core::device::Device;
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::{Graph, TensorType};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Makes the model's graph for inputs of other shapes. Sizes that the model does not leave open stay as
/// exported.
pub type Rebind<'a> = dyn Fn(&Shapes) -> Result<Graph, Box<dyn std::error::Error + Send + Sync>> + 'a;

/// A run: model, data, settings, and how far it is.
pub struct Trainer<'a> {
    session: Session,
    graph: Graph,
    rebind: Option<Box<Rebind<'a>>>,
    changes: Changes,
    config: TrainConfig,
    schedule: Schedule,
    train: Feeding,
    eval: Option<Feeding>,
    sampler: Sampler,
    /// Shapes that `graph` is bound to: those of the largest batch.
    shapes: Shapes,
    /// Buffers that micro-batches change, such as running statistics; empty where a step is one batch.
    running: Vec<ModelTensor>,
    /// Programs by what they are fed: for training, for evaluation.
    training: HashMap<Shapes, ProgramId>,
    evaluation: HashMap<Shapes, ProgramId>,
    /// Programs for training that count underflow.
    counting: HashMap<Shapes, ProgramId>,
    store: Option<Store>,
    /// Weights averaged over the steps, if the settings request it.
    average: Option<Average>,
    course: Course,
    recorder: Option<Recorder>,
    /// True if programs are measured.
    measures: bool,
    rule: ScalerRule,
    /// State of each loss.
    scaler: Vec<ScalerState>,
    /// When the present row of steps without an update began.
    skipping: Option<u64>,
    /// Loss scales of the first and the last step that this process has skipped.
    skipped: Option<[f64; 2]>,
    /// Steps done, and at the newest checkpoint.
    step: u64,
    saved: Option<u64>,
    resumed: Option<Event>,
    /// The other ranks, if there are any, and what all have agreed on at the last step: to stop, and to save.
    world: Option<World>,
    agreed: [bool; 2],
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Steps done.
    pub step: u64,
    /// True if all steps, and the evaluation that follows, were done; false if it was asked to stop.
    pub complete: bool,
    /// Loss of every step of this process.
    pub losses: Vec<f64>,
    /// Steps of this process that have updated the parameters.
    pub updates: u64,
    /// The last evaluation.
    pub evaluation: Option<Evaluation>,
    /// The best evaluation of the run, by the settings' metric.
    pub best: Option<Best>,
}

impl<'a> Trainer<'a> {
    /// Prepares a run: opens the data, compiles the model, opens the directory of checkpoints. With
    /// `resume`, goes on from the newest whole checkpoint of that directory.
    ///
    /// # Errors
    /// Whatever is wrong with settings, data, model, device or checkpoints, before anything runs. Ranks start
    /// jointly: if one of them does not, or differs from the others, none does (`Ranks`).
    pub fn new(
        device: Arc<dyn Device>,
        model: SessionModel,
        rebind: Option<Box<Rebind<'a>>>,
        config: TrainConfig,
        resume: bool,
    ) -> Result<Trainer<'a>> {
        let Some(world) = World::of(&*device) else {
            let (mut trainer, found) = Trainer::prepared(device, model, rebind, config, resume, None)?;
            trainer.restore(found)?;
            return Ok(trainer);
        };
        world.at("prepares the run");
        let opened = world.open(&config, resume)?;
        let made = Trainer::prepared(device, model, rebind, config, resume, Some((world.clone(), opened)));
        let (made, found) = made.map_or_else(|e| (Err(e), None), |(trainer, found)| (Ok(trainer), found));
        let mut trainer = world.agreed(made, Trainer::facts)?;
        let restored = trainer.restore(found);
        world.agreed(restored.map(|()| trainer), Trainer::beginnings)
    }

    /// As [`Trainer::new`], on this rank alone, without what was found to go on from; `ranks`: the others,
    /// and the checkpoints as they are opened.
    fn prepared(
        device: Arc<dyn Device>,
        model: SessionModel,
        rebind: Option<Box<Rebind<'a>>>,
        mut config: TrainConfig,
        resume: bool,
        ranks: Option<(World, Opened)>,
    ) -> Result<(Trainer<'a>, Option<Found>)> {
        config.check(device.target())?;
        let (world, mut opened) = ranks.map_or((None, None), |(world, opened)| (Some(world), Some(opened)));
        if resume && opened.is_none() {
            opened = Some(Opened::of(&config, true, None)?);
        }
        let found = opened.as_mut().and_then(|o| o.found.take());
        if config.ranks.lanes.is_none() {
            let before = found.as_ref().and_then(|f| f.checkpoint.as_ref());
            let before = before.map(|c| c.progress().config.ranks.lanes());
            config.ranks.lanes = before.or_else(|| world.as_ref().map(|w| w.ranks() as u32)).or(Some(1));
        }
        let names = &config.data.names;
        let wanted: HashSet<&str> =
            fed(model.graph).map(|(input, _)| names.get(input).map_or(input, String::as_str)).collect();
        let beside = [&config.data.lengths, &config.data.balance, &config.data.weights];
        let beside = |c: &str| beside.iter().any(|name| name.as_deref() == Some(c));
        let open = |p: &Path| Dataset::open_columns(p, &|c| wanted.contains(c) || beside(c)).map(Arc::new);
        let train = open(&config.data.train)?;
        let eval = config.data.eval.as_deref().map(open).transpose()?;
        same_classes(&train, eval.as_deref())?;
        let exported: Vec<(String, TensorType)> =
            fed(model.graph).map(|(name, ty)| (name.to_string(), ty.clone())).collect();
        let types = |shapes: &Shapes| {
            let graph = rebound(rebind.as_deref(), shapes)?;
            Ok(fed(&graph).map(|(name, ty)| (name.to_string(), ty.clone())).collect())
        };
        let train = Feeding::new(train, &config.data, &exported, config.batch, &types)?
            .augmented(&config.data.augment, config.seed)?
            .weighted(&config.data)?;
        let eval = eval
            .map(|e| Feeding::new(e, &config.data, &exported, Some(train.batch()), &types))
            .transpose()?;
        let (batch, shapes) = (train.batch(), train.largest());
        let graph = match shapes == Shapes::of(fed(model.graph)) {
            true => model.graph.clone(),
            false => rebound(rebind.as_deref(), &shapes)?,
        };
        let order = match &config.data.order {
            Some(order) => recorded(order, batch)?,
            None if config.data.sequential => Order::Sequential,
            None => Order::Shuffled { seed: config.seed },
        };
        let finite = matches!(order, Order::Recorded { .. });
        let sampler = train.sampler(order, config.data.last)?;
        let steps = config.total_steps(sampler.per_epoch())?;
        let want = config.batches().of_steps(steps);
        let want = want.ok_or_else(|| Error::config("steps", "the run would have more than 2^64 batches"))?;
        if finite && want > sampler.per_epoch() {
            let have = sampler.per_epoch();
            return Err(Error::Feed(format!("the recorded order has {have} batches, the run needs {want}")));
        }
        let schedule = config.schedule(steps)?;
        if eval.is_some() {
            evaluate::scorer(&graph, &config.eval)?;
        }
        Groups::check_patterns(&config.groups, parameters(&graph))?;
        let changes = Changes::new(&config, &graph, &train)?;
        let graph = changes.freeze(graph)?;
        let trained = changes.weigh(graph.clone())?;
        let rule = config.amp.rule(device.target())?;
        let mut settings = config.training(device.target())?;
        settings.mesh = world.as_ref().map_or(settings.mesh, World::mesh);
        let session = Session::new(device, SessionModel { graph: &trained, ..model }, Some(settings))?;
        let average = config.ema.map(|decay| Average::new(&session, decay));
        let store = match opened {
            Some(opened) => opened.store,
            None => Opened::of(&config, resume, None)?.store,
        };
        let program = session.program()?;
        let several = config.batches().per_step() > 1;
        let running = if several { mutated(&graph, &session) } else { Vec::new() };
        let trainer = Trainer {
            training: HashMap::from([(shapes.clone(), program)]),
            evaluation: HashMap::new(),
            counting: HashMap::new(),
            saved: None,
            session,
            graph,
            rebind,
            changes,
            config,
            schedule,
            train,
            eval,
            sampler,
            shapes,
            running,
            store,
            average,
            course: Course::default(),
            recorder: None,
            measures: false,
            scaler: vec![rule.start()],
            rule,
            skipping: None,
            skipped: None,
            step: 0,
            resumed: None,
            world,
            agreed: [false; 2],
        };
        Ok((trainer, found))
    }

    /// Goes on from what was found, if anything was, and makes sure that there is space for the next
    /// checkpoint.
    fn restore(&mut self, found: Option<Found>) -> Result<()> {
        if let Some(found) = found {
            if let Some(checkpoint) = &found.checkpoint {
                let Progress { course, scaler, config: old, classes, .. } = checkpoint.progress();
                if let Some(message) = self.train.data().unlike(classes) {
                    return Err(Error::config("data.train", message));
                }
                self.scaler = self.rule.resumed(scaler);
                self.course = match old.eval.metric == self.config.eval.metric {
                    true => course.clone(),
                    false => course.clone().compared_anew(),
                };
            }
            let (steps, store) = (self.steps(), self.store.as_ref());
            let (session, average) = (&mut self.session, self.average.as_mut());
            (self.resumed, self.step) =
                resume::resumption(session, &self.graph, average, &self.config, steps, store, found)?;
            self.saved = self.resumed.as_ref().map(|_| self.step);
        }
        self.store.as_ref().map_or(Ok(()), |store| store.room(&self.session, self.average.as_ref()))
    }

    /// Steps done.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Steps of the whole run.
    pub fn steps(&self) -> u64 {
        self.schedule.steps
    }

    /// The learning rate of a step, counted from 0.
    pub fn rate(&self, step: u64) -> f64 {
        self.schedule.rate(step)
    }

    /// Which samples make which batch.
    pub fn sampler(&self) -> Sampler {
        self.sampler.clone()
    }

    /// The batches of the run from the first one on, as they are fed.
    ///
    /// # Errors
    /// `Io` if the system starts no thread to read.
    pub fn batches(&self) -> Result<Loader> {
        Loader::new(self.train.clone(), self.sampler.clone(), 0)
    }

    /// The model on its device.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The program that computes gradients, for reports: that of the largest batch.
    pub fn program(&self) -> ProgramId {
        self.training[&self.shapes]
    }

    /// The programs that compute gradients so far, one for each size of batch.
    pub fn programs(&self) -> impl Iterator<Item = ProgramId> {
        self.training.values().copied()
    }

    /// Measures every kernel of later steps, for [`Session::seconds`].
    pub fn measure(&mut self) {
        self.measures = true;
        self.training.values().for_each(|&p| self.session.measure(p));
    }

    /// Trains until all steps are done or `stop` is set. The flag is looked at before each batch, of training
    /// and of evaluation. A step that is half done then is dropped, and the run ends with a checkpoint.
    ///
    /// # Errors
    /// `NotFinite` if gradients are not and the settings say to stop; `NoUpdate` if every step was skipped;
    /// what data, device, observers and disk report. Whatever ends the run, the steps done so far are saved,
    /// if the device still gives them. Running statistics may then have seen the batch that failed.
    pub fn run(&mut self, observers: &mut [&mut dyn Observer], stop: &AtomicBool) -> Result<Summary> {
        let begin = Instant::now();
        let mut observers = Observers::new(observers);
        let mut tell = |event: &Event| observers.tell(event);
        tell(&Event::Start(Box::new(self.start())))?;
        for message in self.remarks() {
            tell(&Event::Warning { message })?;
        }
        if let Some(event) = self.resumed.take() {
            tell(&event)?;
        }
        let mut summary = Summary {
            step: self.step,
            complete: true,
            losses: Vec::new(),
            updates: 0,
            evaluation: None,
            best: self.course.best,
        };
        if let Err(e) = self.advance(&mut summary, &mut tell, stop) {
            // All ranks have found the same; of ranks that differ, each says so before it leaves.
            if matches!(e, Error::Drift(_)) {
                return Err(e);
            }
            if let Some(world) = self.world.as_ref().filter(|_| matches!(e, Error::NotFinite { .. })) {
                world.leave();
                return Err(if world.rank() == 0 { e } else { Error::AsRankZero });
            }
            // A checkpoint that cannot be written is no reason to try again; what has diverged is saved
            // already.
            if self.step > 0
                && !matches!(e, Error::Checkpoint { .. } | Error::NotFinite { .. } | Error::AsRankZero)
            {
                // The others do not know of it.
                let saved = self.save_alone(&mut tell, stop);
                let unsaved = |cause| Event::Warning { message: format!("the run is not saved: {cause}") };
                // An observer that fails does not hide the error that counts.
                let _ = saved.or_else(|cause| tell(&unsaved(cause)));
            }
            return Err(e);
        }
        self.save(&mut tell, stop)?;
        // Steps before a resumed run's first may have been applied.
        let whole = summary.losses.len() as u64 == self.step;
        if let (true, true, 0, Some(scales)) = (summary.complete, whole, summary.updates, self.skipped) {
            let error = self.no_update(summary.losses.len() as u64, scales)?;
            self.world.iter().for_each(World::leave);
            let speaks = self.world.as_ref().is_none_or(|w| w.rank() == 0);
            return Err(if speaks { error } else { Error::AsRankZero });
        }
        summary.step = self.step;
        if summary.complete && self.step < self.steps() {
            let (step, best, since) = (self.step, self.course.best, self.course.since);
            tell(&Event::EarlyStop { step, best, since })?;
        }
        tell(&match summary.complete {
            true => Event::End { step: self.step, seconds: begin.elapsed().as_secs_f64() },
            false => Event::Interrupted { step: self.step },
        })?;
        Ok(summary)
    }

    /// Steps, evaluations and checkpoints, until nothing is left to train or `stop` is set.
    fn advance(
        &mut self,
        summary: &mut Summary,
        tell: &mut dyn FnMut(&Event) -> Result<()>,
        stop: &AtomicBool,
    ) -> Result<()> {
        let mut loader = Loader::of(self.train.clone(), self.sampler.clone(), self.numbers())?;
        // A rank that was asked to stop does so with the others, at the end of a step.
        let never = AtomicBool::new(false);
        let together = self.world.is_some();
        let evaluation_stop = if together { &never } else { stop };
        let interval =
            Duration::try_from_secs_f64(60.0 * self.config.checkpoint.minutes).unwrap_or(Duration::MAX);
        let mut saved = Instant::now();
        // A run that is resumed at its end still owes its evaluation.
        let mut owes = self.eval.is_some() && self.ended();
        loop {
            if owes || self.owes_evaluation() {
                owes = false;
                self.at(|t| format!("evaluates after {} steps", t.step));
                let Some(evaluation) = self.evaluate_and_tell(tell, evaluation_stop)? else {
                    summary.complete = false;
                    return Ok(());
                };
                (summary.evaluation, summary.best) = (Some(evaluation), self.course.best);
            }
            let own = !interval.is_zero() && saved.elapsed() >= interval;
            let late = if together { self.agreed[1] } else { own };
            if self.step > 0 && (late || due(self.config.checkpoint.every, self.step)) {
                self.save(tell, stop)?;
                saved = Instant::now();
            }
            if self.ended() {
                return Ok(());
            }
            self.agreed[1] = own;
            let done = match self.train_step(&mut loader, stop) {
                // The step left everything as it was: what was learned before is kept.
                Err(Error::NotFinite { step, detail, diverged }) => {
                    let saved = match diverged {
                        false => self.save_alone(tell, stop).map(|()| None)?,
                        true => self.save_diverged(tell, stop)?,
                    };
                    let saved = saved.map_or(String::new(), |path| {
                        format!("; saved in {}, from which no run resumes", path.display())
                    });
                    return Err(Error::NotFinite { step, detail: detail + &saved, diverged });
                }
                done => done?,
            };
            let Some(done) = done else {
                summary.complete = false;
                return Ok(());
            };
            summary.losses.push(done.loss);
            summary.updates += done.applied as u64;
            tell(&Event::Step(done))?;
        }
    }

    /// Remarks on the data for the user, in sentences.
    fn remarks(&self) -> Vec<String> {
        let mut data: Vec<&Arc<Dataset>> = vec![self.train.data()];
        data.extend(self.eval.as_ref().map(Feeding::data).filter(|e| e.path() != self.train.data().path()));
        data.into_iter().filter_map(|d| d.remark()).collect()
    }

    /// True when nothing is left to train: all steps are done, or evaluations have ended the run.
    fn ended(&self) -> bool {
        self.step == self.steps() || self.course.ends(&self.config.eval)
    }

    /// True when an evaluation is due at this step and was not done yet.
    fn owes_evaluation(&self) -> bool {
        let due = self.step == self.steps() || due(self.config.eval.every, self.step);
        self.eval.is_some() && self.step > 0 && due && self.course.evaluated != Some(self.step)
    }

    /// Evaluates; `None` if `stop` was set before it was done. The best so far is saved, if it is to be kept.
    fn evaluate_and_tell(
        &mut self,
        tell: &mut dyn FnMut(&Event) -> Result<()>,
        stop: &AtomicBool,
    ) -> Result<Option<Evaluation>> {
        let evaluation = self.evaluate_until(stop)?;
        if let Some(evaluation) = &evaluation {
            tell(&Event::Evaluation(evaluation.clone()))?;
            let (eval, shape) = (&self.config.eval, &self.config.schedule);
            let better = self.course.add(evaluation, eval, shape, self.schedule.lr);
            if better && eval.keep_best {
                let saved = self.save_by(self.world.as_ref(), tell, stop, Store::save_best)?;
                let step = self.step;
                saved.map_or(Ok(()), |path| tell(&Event::Checkpoint { step, path, best: true }))?;
            }
        }
        Ok(evaluation)
    }

    /// The forward graph for these shapes.
    fn bound(&self, shapes: &Shapes) -> Result<Graph> {
        match *shapes == self.shapes {
            true => Ok(self.graph.clone()),
            false => self.changes.freeze(rebound(self.rebind.as_deref(), shapes)?),
        }
    }

    /// The same as it is trained.
    fn trained(&self, shapes: &Shapes) -> Result<Graph> {
        self.changes.weigh(self.bound(shapes)?)
    }

    fn training_program(&mut self, shapes: Shapes) -> Result<ProgramId> {
        if let Some(&program) = self.training.get(&shapes) {
            return Ok(program);
        }
        let program = self.session.training_program(&self.trained(&shapes)?)?;
        if self.measures {
            self.session.measure(program);
        }
        self.training.insert(shapes, program);
        Ok(program)
    }

    fn counting_program(&mut self, shapes: Shapes) -> Result<ProgramId> {
        if let Some(&program) = self.counting.get(&shapes) {
            return Ok(program);
        }
        let program = self.session.counting_program(&self.trained(&shapes)?)?;
        self.counting.insert(shapes, program);
        Ok(program)
    }

    /// Waits for space for a checkpoint on a full disk, as long as the settings allow.
    fn wait_for_room(&self, tell: &mut dyn FnMut(&Event) -> Result<()>, stop: &AtomicBool) -> Result<()> {
        let Some(store) = &self.store else { return Ok(()) };
        let average = self.average.as_ref().filter(|a| a.begun());
        let room = || store.room(&self.session, average);
        let patience =
            Duration::try_from_secs_f64(60.0 * self.config.checkpoint.wait).unwrap_or(Duration::MAX);
        room::wait(room, patience, room::PAUSE, tell, stop)
    }

    /// Saves the run, if it is not saved at this step; ranks do so jointly.
    fn save(&mut self, tell: &mut dyn FnMut(&Event) -> Result<()>, stop: &AtomicBool) -> Result<()> {
        let world = self.world.clone();
        self.save_with(world.as_ref(), tell, stop)
    }

    /// The same by one rank alone, of which others may know nothing.
    fn save_alone(&mut self, tell: &mut dyn FnMut(&Event) -> Result<()>, stop: &AtomicBool) -> Result<()> {
        self.save_with(None, tell, stop)
    }

    fn save_with(
        &mut self,
        world: Option<&World>,
        tell: &mut dyn FnMut(&Event) -> Result<()>,
        stop: &AtomicBool,
    ) -> Result<()> {
        if self.saved == Some(self.step) {
            return Ok(());
        }
        self.at(|t| format!("saves the checkpoint of step {}", t.step));
        let saved = self.save_by(world, tell, stop, Store::save)?;
        self.saved = Some(self.step);
        let step = self.step;
        saved.map_or(Ok(()), |path| tell(&Event::Checkpoint { step, path, best: false }))
    }

    /// Saves by a function of the store, with the ranks of `world`: rank 0 has the store, if there is one,
    /// and says where the checkpoint is.
    fn save_by(
        &self,
        world: Option<&World>,
        tell: &mut dyn FnMut(&Event) -> Result<()>,
        stop: &AtomicBool,
        save: fn(&Store, Snapshot) -> Result<PathBuf>,
    ) -> Result<Option<PathBuf>> {
        if self.config.checkpoint.dir.is_none() {
            return Ok(None);
        }
        let ready = self.wait_for_room(tell, stop);
        match world {
            None => ready?,
            Some(world) => {
                world.all(ready, |m| Error::checkpoint(Path::new("the checkpoint"), m))?;
                self.agree_on_state()?;
            }
        }
        let progress = self.progress();
        let snapshot = Snapshot { ranks: world.map(World::transport), ..self.snapshot(&progress) };
        match (&self.store, world) {
            (Some(store), _) => save(store, snapshot).map(Some),
            (None, Some(_)) => assist(snapshot).map(|()| None),
            (None, None) => Ok(None),
        }
    }

    fn progress(&self) -> Progress {
        Progress {
            step: self.step,
            applied: self.session.applied(),
            scaler: self.scaler.clone(),
            course: self.course.clone(),
            classes: self.train.data().all_classes(),
            trained: adapt::trained(&self.graph),
            config: self.config.clone(),
        }
    }

    fn snapshot<'b>(&'b self, progress: &'b Progress) -> Snapshot<'b> {
        let average = self.average.as_ref().filter(|a| a.begun());
        Snapshot { session: &self.session, progress, average, ranks: None }
    }

    /// Saves parameters from which no further step can be made, apart from the checkpoints of the run:
    /// nobody should take them for a result. Returns where.
    fn save_diverged(
        &self,
        tell: &mut dyn FnMut(&Event) -> Result<()>,
        stop: &AtomicBool,
    ) -> Result<Option<PathBuf>> {
        let Some(store) = self.store.as_ref().filter(|_| self.saved != Some(self.step)) else {
            return Ok(None);
        };
        self.wait_for_room(tell, stop)?;
        store.save_diverged(self.snapshot(&self.progress())).map(Some)
    }

    fn start(&self) -> Start {
        let layout = self.session.layout();
        let named = |decays: bool| {
            let of = layout.entries().filter(|(b, _)| self.session.decays(*b) == decays);
            of.map(|(_, e)| e.name.clone()).collect()
        };
        Start {
            steps: self.steps(),
            batch: self.train.batch(),
            batches_per_epoch: self.sampler.per_epoch(),
            samples: self.train.samples(),
            buckets: self.train.counts(),
            parameters: layout.entries().map(|(_, e)| e.shape.numel()).sum(),
            decayed: named(true),
            undecayed: named(false),
            unreached: self
                .session
                .missing()
                .iter()
                .map(|m| format!("{}: {}", m.parameter, m.reason))
                .collect(),
            planned_bytes: self.session.planned_bytes(),
            rematerialized: self.session.rematerialized().map(Recomputation::from),
            config: self.config.clone(),
        }
    }
}

/// Refuses held-out samples whose labels mean other classes than those trained on.
fn same_classes(train: &Dataset, eval: Option<&Dataset>) -> Result<()> {
    let Some((ours, theirs)) = eval.and_then(|eval| train.other_classes(eval)) else { return Ok(()) };
    let message = format!(
        "the classes are {} here, {} in {}: name the same `classes` in both folders' images.toml, text.toml or table.toml",
        theirs.join(", "),
        ours.join(", "),
        train.path().display()
    );
    Err(Error::config("data.eval", message))
}

/// Inputs that the user feeds: names and types.
fn fed(graph: &Graph) -> impl Iterator<Item = (&str, &TensorType)> {
    let user = graph.inputs.iter().filter(|i| i.role == InputRole::User);
    user.map(|i| (i.name.as_str(), graph.ty(i.value)))
}

/// Types of what the model returns.
fn returned(graph: &Graph) -> impl Iterator<Item = &TensorType> {
    graph.outputs.iter().filter(|o| o.role == OutputRole::User).map(|o| graph.ty(o.value))
}

fn rebound(rebind: Option<&Rebind>, shapes: &Shapes) -> Result<Graph> {
    let none = || Err("it was exported for a fixed batch; export it with a dynamic first dimension".into());
    let batch = shapes.batch;
    rebind.map_or_else(none, |f| f(shapes)).map_err(|cause| Error::Rebind { batch, cause })
}

fn due(every: Option<u64>, step: u64) -> bool {
    every.is_some_and(|n| step.is_multiple_of(n))
}

/// Reads a recorded order, `file:tensor`.
fn recorded(order: &str, batch: usize) -> Result<Order> {
    let refuse = |m: String| Error::config("data.order", m);
    let (file, tensor) =
        order.rsplit_once(':').ok_or_else(|| refuse(format!("must be file:tensor, it is {order}")))?;
    let data = Dataset::open(Path::new(file))?;
    let column = data.column(tensor).ok_or_else(|| refuse(format!("{file} has no tensor {tensor}")))?;
    if column.ty.dtype.is_float() || column.ty.shape.rank() != 2 || column.ty.shape[1] != batch {
        return Err(refuse(format!("{tensor} must be integers [batches, {batch}], it is {}", column.ty)));
    }
    if column.bytes().len() != column.ty.bytes() {
        return Err(refuse(format!("{tensor} must lie in one file, {file} names several")));
    }
    let tensor = headwater_core::Tensor::from_bytes(&column.ty, column.bytes());
    let index = |&i: &i64| u32::try_from(i).map_err(|_| refuse(format!("{i} is no index of a sample")));
    Ok(Order::Recorded { indices: Arc::new(tensor.ints().iter().map(index).collect::<Result<_>>()?) })
}

/// Buffers that a run of the graph changes.
fn mutated(graph: &Graph, session: &Session) -> Vec<ModelTensor> {
    let changed = graph.outputs.iter().filter_map(|o| match o.role {
        OutputRole::Mutation(of) => graph.input_index(of).map(|i| graph.inputs[i].name.as_str()),
        _ => None,
    });
    let changed: Vec<&str> = changed.collect();
    session.tensors().iter().filter(|t| changed.contains(&t.name.as_str())).cloned().collect()
}
