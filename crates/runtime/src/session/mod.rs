//! A model in training on a device: compiles its graphs, owns its state, runs its steps.
//!
//! A step is one or more runs of a gradient program (a micro-batch each), then one of the update program.
//! Evaluation and other batch sizes are further programs on the same state. All programs share one arena.

mod digests;
mod graphs;
mod layout;
mod model;
mod planned;
mod program;
mod settings;
mod state;
mod tensors;
mod trace;
mod underflow;
mod update;

pub(crate) use digests::Part;
pub use model::ModelTensor;
pub use planned::{MemoryUse, Planned};
pub use settings::{Moments, Sparse, Training};
pub use state::Lend;
pub use trace::Culprit;
pub use underflow::Underflow;
pub use update::Update;

use crate::batches::Batches;
use crate::error::{Error, Result};
use crate::optim::Groups;
use headwater_core::compile::{CompiledGraph, Options};
use headwater_core::device::{Buffer, Content, Device};
use headwater_core::graph::{InputRole, Origin};
use headwater_core::pass::Rematerialized;
use headwater_core::pass::differentiate::NoGradient;
use headwater_core::pass::instrument::{FAULT, Probe};
use headwater_core::pass::narrow_integers::check_words;
use headwater_core::pass::precision::Properties;
use headwater_core::plan::{Plan, Segment};
use headwater_core::train::{BucketLayout, Kept, Master, StateKey};
use headwater_core::{DType, Graph, Tensor, TensorType, ranks};
use layout::StateLayout;
use model::{tensors, written};
use planned::{BoundProgram, bound};
use program::{Interface, Program};
use state::State;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use trace::Trace;
use underflow::Counts;

/// A forward graph as imported, and where its tensors come from.
#[derive(Clone, Copy)]
pub struct SessionModel<'a> {
    /// Inputs with roles; the first `User` output is the loss.
    pub graph: &'a Graph,
    /// Its parameters, buffers and constants.
    pub weights: &'a dyn Weights,
}

/// The source of a model's tensors.
pub trait Weights {
    /// Row-major little-endian bytes of a parameter, buffer or constant, by its name in the graph.
    fn bytes(&self, name: &str) -> Option<Cow<'_, [u8]>>;
}

impl Weights for HashMap<String, Vec<u8>> {
    fn bytes(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        self.get(name).map(|b| b.as_slice().into())
    }
}

/// A compiled graph of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramId(usize);

/// See the module's description.
pub struct Session {
    device: Arc<dyn Device>,
    state: State,
    arena: Arc<dyn Buffer>,
    programs: Vec<Program>,
    layout: BucketLayout,
    /// Tables with sparse gradients, and the most rows of these.
    sparse: Vec<(String, usize)>,
    training: Option<TrainingState>,
    /// Parameters, buffers and constants as the first graph has them.
    tensors: Vec<ModelTensor>,
    precision: Properties,
    missing: Vec<NoGradient>,
    /// Cost of keeping the memory budget.
    rematerialized: Option<Rematerialized>,
    traces: Vec<Trace>,
    counts: Vec<Counts>,
}

/// Probes, each with the elements that it looks at.
type Probes = Vec<(Probe, usize)>;

/// The training side of a session.
struct TrainingState {
    settings: Training,
    groups: Groups,
    program: ProgramId,
    update: ProgramId,
    zero: Option<ProgramId>,
    /// Programs that add the gradients to a sum of earlier lanes, by its number.
    joins: Vec<ProgramId>,
    /// The program that adds up the lanes of all ranks, if there are several.
    sum: Option<ProgramId>,
    /// Lanes of the present step that are over, from lane 0 on, and sums of them that wait for others.
    lanes: usize,
    pending: usize,
    /// Times that the update was planned.
    update_plans: u64,
    /// Optimizer steps applied.
    applied: u64,
    /// The factor of the loss.
    loss_scale: f64,
    /// The number that sums of gradients are divided by.
    micro_batches: u64,
}

impl Session {
    /// Puts a model on a device, for evaluation alone or with `training` also for training.
    ///
    /// # Errors
    /// `Model` if a tensor is missing or has the wrong size, `Config` for settings out of range, and what the
    /// passes and the device refuse.
    pub fn new(device: Arc<dyn Device>, model: SessionModel, training: Option<Training>) -> Result<Session> {
        Session::with_memory(device, model, training, &mut |_| None)
    }

    /// As [`Session::new`], with segments of the state in memory of somebody else, who keeps it:
    /// [`Session::place`] returns the location of a tensor. What is written there between two calls of the
    /// session's methods is read by the next.
    ///
    /// # Errors
    /// As [`Session::new`]; refusals of [`Device::borrow`].
    pub fn with_memory(
        device: Arc<dyn Device>,
        model: SessionModel,
        training: Option<Training>,
        lend: Lend,
    ) -> Result<Session> {
        let Some(settings) = training else {
            let (layout, tensors) = (BucketLayout::default(), tensors(model.graph));
            let state = StateLayout::new(device.target(), &layout, &tensors, &written(model.graph), None);
            let mut session = Session::empty(device, state, layout, tensors, Properties::default(), lend)?;
            session.load(model)?;
            return Ok(session);
        };
        let planned = Planned::training(model.graph, &settings, device.target(), None)?;
        planned.fits(device.free_memory())?;
        let Planned {
            state,
            layout,
            tensors,
            precision,
            groups,
            sparse,
            missing,
            program,
            update,
            zero,
            joins,
            sum,
        } = planned;
        let (Some(groups), Some(update)) = (groups, update) else {
            return Err(Error::Model("a step was planned without its update".into()));
        };
        let mut session = Session::empty(device, state, layout, tensors, precision, lend)?;
        (session.sparse, session.missing) = (sparse, missing);
        let program = session.add(program)?;
        session.load(model)?;
        let update = session.add(update)?;
        let zero = zero.map(|zero| session.add(zero)).transpose()?;
        let micro_batches = Batches::new(settings.lanes, settings.accumulate).per_step();
        let joins = joins.into_iter().map(|join| session.add(join)).collect::<Result<Vec<_>>>()?;
        let sum = sum.map(|sum| session.add(sum)).transpose()?;
        session.training = Some(TrainingState {
            settings,
            groups,
            program,
            update,
            zero,
            joins,
            sum,
            lanes: 0,
            pending: 0,
            update_plans: 1,
            applied: 0,
            loss_scale: 1.0,
            micro_batches,
        });
        session.set_loss_scale(1.0)?;
        Ok(session)
    }

    /// A session without programs, whose state is zero.
    fn empty(
        device: Arc<dyn Device>,
        state: StateLayout,
        layout: BucketLayout,
        tensors: Vec<ModelTensor>,
        precision: Properties,
        lend: Lend,
    ) -> Result<Session> {
        Ok(Session {
            arena: device.alloc(0, Content::Undefined)?,
            state: State::new(device.as_ref(), state, lend)?,
            programs: Vec::new(),
            layout,
            sparse: Vec::new(),
            training: None,
            tensors,
            precision,
            missing: Vec::new(),
            rematerialized: None,
            traces: Vec::new(),
            counts: Vec::new(),
            device,
        })
    }

    fn load(&mut self, model: SessionModel) -> Result<()> {
        let exported = tensors(model.graph);
        for t in exported {
            let bytes = model
                .weights
                .bytes(&t.name)
                .ok_or_else(|| Error::Model(format!("the model comes without the tensor {}", t.name)))?;
            if bytes.len() != t.ty.bytes() {
                let (name, ty) = (&t.name, &t.ty);
                return Err(Error::Model(format!("{name} is {ty}, {} bytes were given", bytes.len())));
            }
            self.write(&t, &bytes)?;
        }
        // A parameter with a master has the master's value, and reports its type and bytes.
        for t in &mut self.tensors {
            if let Some((bucket, _)) = self.layout.find(&t.name) {
                let bucket = &self.layout.buckets[bucket];
                t.ty.dtype = if bucket.master == Master::None { bucket.dtype } else { bucket.wide() };
            }
        }
        Ok(())
    }

    fn compile(&mut self, graph: Graph, options: &Options) -> Result<ProgramId> {
        self.compile_with(graph, options, |_, _| Ok(()))
    }

    /// Compiles a graph against the state and loads it. `prepare` sees what is compiled before it is bound to
    /// the state.
    fn compile_with(
        &mut self,
        graph: Graph,
        options: &Options,
        prepare: impl FnOnce(&mut Session, &CompiledGraph) -> Result<()>,
    ) -> Result<ProgramId> {
        let device = self.device.clone();
        let bound = bound(graph, options, device.target(), |compiled| {
            prepare(self, compiled)?;
            Interface::bind(self.state.layout(), &compiled.graph)
        })?;
        self.add(bound)
    }

    /// Loads a plan, with an arena that is large enough.
    fn add(&mut self, bound: BoundProgram) -> Result<ProgramId> {
        self.rematerialized = bound.rematerialized.or(self.rematerialized);
        let program = self.loaded(bound)?;
        self.programs.push(program);
        Ok(ProgramId(self.programs.len() - 1))
    }

    fn loaded(&mut self, bound: BoundProgram) -> Result<Program> {
        let program = Program::load(self.device.as_ref(), bound.plan, bound.interface)?;
        if program.arena() > self.arena.bytes() {
            // The old arena goes first: both would not always fit.
            self.arena = self.device.alloc(0, Content::Undefined)?;
            self.arena = self.device.alloc(program.arena(), Content::Undefined)?;
        }
        Ok(program)
    }

    /// Compiles a graph with probes; also returns these and the origins that they name.
    fn compile_probed(
        &mut self,
        graph: &Graph,
        options: &Options,
    ) -> Result<(ProgramId, Probes, Arc<Vec<Origin>>)> {
        let (mut probes, mut origins) = (Vec::new(), Arc::default());
        let program = self.compile_with(graph.clone(), options, |_, compiled| {
            (probes, origins) = (compiled.probes.clone(), compiled.graph.origins.clone());
            Ok(())
        })?;
        Ok((program, probes, origins))
    }

    fn training(&self) -> Result<&TrainingState> {
        let none = || Error::Model("the session was made for evaluation only".into());
        self.training.as_ref().ok_or_else(none)
    }

    /// The program for [`Session::gradients`] of the graph that the session was made from.
    ///
    /// # Errors
    /// `Model` in a session for evaluation.
    pub fn program(&self) -> Result<ProgramId> {
        Ok(self.training()?.program)
    }

    /// The program of [`Session::update`], for reports.
    ///
    /// # Errors
    /// `Model` in a session for evaluation.
    pub fn update_program(&self) -> Result<ProgramId> {
        Ok(self.training()?.update)
    }

    /// Compiles the model's forward graph bound to another batch size for [`Session::gradients`].
    ///
    /// # Errors
    /// As [`Session::new`]; `Model` if other parameters get gradients than in the first graph.
    pub fn training_program(&mut self, graph: &Graph) -> Result<ProgramId> {
        let (settings, sparse) = (&self.training()?.settings, self.sparse.clone());
        let accumulate = settings.sums();
        let layout = self.layout.clone();
        let adjacent = graphs::adjacent(&layout);
        let training = graphs::training(&self.precision, settings, &sparse, &adjacent);
        let options = Options { accumulate, ..training };
        self.compile_with(graph.clone(), &options, |session, compiled| {
            if compiled.gradients.len() == session.layout.entries().count() {
                return Ok(());
            }
            let message = "the graph's gradients are not those of the graph the session was made from";
            Err(Error::Model(message.into()))
        })
    }

    /// Compiles a forward graph for [`Session::evaluate`], in evaluation mode: no dropout, running
    /// statistics, nothing changed.
    ///
    /// # Errors
    /// As [`Session::new`].
    pub fn evaluation_program(&mut self, graph: &Graph) -> Result<ProgramId> {
        let layout = self.layout.clone();
        let adjacent = graphs::adjacent(&layout);
        let options = graphs::evaluation(&self.precision, &adjacent);
        self.compile(graph.clone(), &options)
    }

    /// Starts a step: empties the sum of the gradients, if micro-batches are summed.
    pub fn begin_step(&mut self) -> Result<()> {
        let Some(t) = &mut self.training else { return Ok(()) };
        (t.lanes, t.pending) = (t.settings.own_lanes().start, 0);
        t.zero.map_or(Ok(()), |zero| self.run(zero))
    }

    /// Ends a lane: adds its gradients to those of the lanes before it, as far as the order of halving goes,
    /// and keeps them for later lanes. After the last lane of a rank among several, adds up the lanes of all
    /// ranks, which wait for each other. Does nothing where a step is one lane.
    ///
    /// # Errors
    /// `Model` in a session for evaluation, and after the last of the rank's lanes; `Device` if a rank is
    /// lost.
    pub fn end_lane(&mut self) -> Result<()> {
        let t = self.training()?;
        let (lanes, lane, mut pending) = (t.settings.lanes as usize, t.lanes, t.pending);
        if lanes <= 1 {
            return Ok(());
        }
        let own = t.settings.own_lanes();
        if lane >= own.end {
            return Err(Error::Model(format!("this rank has no lane {lane} of a step of {lanes} lanes")));
        }
        let (joins, zero, sum) = (t.joins.clone(), t.zero, t.sum);
        for _ in 0..ranks::joins(lanes, own.start, lane) {
            pending -= 1;
            self.run(joins[pending])?;
        }
        if lane + 1 == own.end {
            sum.map_or(Ok(()), |sum| self.run(sum))?;
        } else {
            for i in 0..self.layout.buckets.len() {
                let (from, to) = (Kept::Gradients, Kept::Pending(pending));
                self.state.copy(&StateKey::Bucket(i, from), &StateKey::Bucket(i, to))?;
            }
            pending += 1;
            zero.map_or(Ok(()), |zero| self.run(zero))?;
        }
        if let Some(t) = &mut self.training {
            (t.lanes, t.pending) = (lane + 1, pending);
        }
        Ok(())
    }

    /// Runs forward and backward on a micro-batch: one slice of bytes for each of [`Session::inputs`], in
    /// order.
    pub fn gradients(&mut self, program: ProgramId, feeds: &[impl AsRef<[u8]>]) -> Result<()> {
        self.feed(program, feeds)?;
        self.run(program)
    }

    /// Runs forward.
    pub fn evaluate(&mut self, program: ProgramId, feeds: &[impl AsRef<[u8]>]) -> Result<()> {
        self.gradients(program, feeds)
    }

    fn feed(&mut self, program: ProgramId, feeds: &[impl AsRef<[u8]>]) -> Result<()> {
        let (program, stream) = (&self.programs[program.0], self.state.stream());
        let want = program.inputs().count();
        if feeds.len() != want {
            return Err(Error::Feed(format!(
                "{} tensors were fed to a program of {want} inputs",
                feeds.len()
            )));
        }
        for (feed, (name, ty)) in feeds.iter().zip(program.inputs()) {
            self.check_integers(name, &InputRole::User, ty, feed.as_ref())?;
        }
        feeds.iter().enumerate().try_for_each(|(i, bytes)| program.feed(stream, i, bytes.as_ref()))
    }

    /// Refuses integers that a device without i64 arithmetic would not compute with.
    fn check_integers(&self, name: &str, role: &InputRole, ty: &TensorType, bytes: &[u8]) -> Result<()> {
        match self.device.target().dtypes.arithmetic.contains(DType::I64) {
            true => Ok(()),
            false => Ok(check_words(name, role, ty, bytes)?),
        }
    }

    fn run(&mut self, program: ProgramId) -> Result<()> {
        self.programs[program.0].run(&mut self.state, &self.arena)
    }

    /// Sets what the loss is multiplied by in the next runs, and its gradients divided by in the next update.
    /// Has an effect in sessions whose [`Training::scaled`] is set; in others it must stay 1.
    ///
    /// # Errors
    /// `Model` in a session for evaluation, or for a scale other than 1 where nothing is scaled.
    pub fn set_loss_scale(&mut self, scale: f64) -> Result<()> {
        if !self.training()?.settings.scaled && scale != 1.0 {
            return Err(Error::Model(format!("a loss scale of {scale} for gradients that are not scaled")));
        }
        let Some(t) = &mut self.training else { return Ok(()) };
        t.loss_scale = scale;
        let unscale = t.unscale();
        for (key, x) in [(StateKey::Unscale, unscale), (StateKey::LossScale, scale)] {
            let slot = self.state.slot(&key)?.clone();
            self.state.write_number(&slot, x)?;
        }
        Ok(())
    }

    /// Sets the number of micro-batches whose mean the next updates take, in place of
    /// [`Training::accumulate`]; with 1 they take the sum of as many as there were. Only where micro-batches
    /// are summed.
    ///
    /// # Errors
    /// `Config` for none, or where each is a step.
    pub fn set_micro_batches(&mut self, count: u32) -> Result<()> {
        if count == 0 || self.training()?.settings.accumulate <= 1 {
            return Err(Error::config("accumulate", "only sums of micro-batches are divided, by 1 or more"));
        }
        let Some(t) = &mut self.training else { return Ok(()) };
        t.micro_batches = count.into();
        let unscale = t.unscale();
        let slot = self.state.slot(&StateKey::Unscale)?.clone();
        self.state.write_number(&slot, unscale)
    }

    /// Place of a tensor of the state: the position of its segment among [`Session::segments`], its first
    /// byte there, its type.
    ///
    /// # Errors
    /// `Model` if there is no such tensor.
    pub fn place(&self, key: &StateKey) -> Result<(usize, usize, &TensorType)> {
        let slot = self.state.slot(key)?;
        Ok((slot.place.segment.0 as usize - 1, slot.place.offset, &slot.ty))
    }

    /// Turns the fault of [`Training::fault`] on or off.
    pub fn set_fault(&mut self, on: bool) -> Result<()> {
        let slot = self.state.slot(&StateKey::Fault)?.clone();
        self.state.write(&slot, FAULT, &[on as u8])
    }

    /// Sets the key of all random numbers of the next runs.
    pub fn set_rng(&mut self, seed: u64, draw: u64) -> Result<()> {
        let slot = self.state.slot(&StateKey::Rng)?.clone();
        let bytes: Vec<u8> = seed.to_le_bytes().into_iter().chain(draw.to_le_bytes()).collect();
        self.state.write(&slot, "rng", &bytes)
    }

    /// Inputs that a program must be fed: names and types, in order.
    pub fn inputs(&self, program: ProgramId) -> impl Iterator<Item = (&str, &TensorType)> {
        self.programs[program.0].inputs()
    }

    /// Results that a program returns: names and types, in order; the first is the loss.
    pub fn outputs(&self, program: ProgramId) -> impl Iterator<Item = (&str, &TensorType)> {
        self.programs[program.0].outputs()
    }

    /// A result of a program's last run.
    pub fn output(&self, program: ProgramId, i: usize) -> Result<Tensor> {
        let (ty, bytes) = self.raw_output(program, i)?;
        Ok(Tensor::from_bytes(ty, &bytes))
    }

    /// A result of a program's last run as the device has it: its type and its row-major little-endian bytes.
    pub fn raw_output(&self, program: ProgramId, i: usize) -> Result<(&TensorType, Vec<u8>)> {
        self.programs[program.0].output(self.state.stream(), i)
    }

    /// A program's plan, for reports.
    pub fn plan(&self, program: ProgramId) -> &Plan {
        self.programs[program.0].plan()
    }

    /// All that its bits depend on beside plans and state ([`Device::arithmetic`]).
    pub fn arithmetic(&self) -> String {
        self.device.arithmetic()
    }

    /// The plan of the update, if the session trains.
    pub fn update_plan(&self) -> Option<&Plan> {
        self.training.as_ref().map(|t| self.plan(t.update))
    }

    /// Measures every step of a program's later runs, for [`Session::seconds`].
    pub fn measure(&mut self, program: ProgramId) {
        self.programs[program.0].measure();
    }

    /// Seconds that every step of a program's plan has taken since [`Session::measure`].
    pub fn seconds(&self, program: ProgramId) -> Vec<f64> {
        self.programs[program.0].seconds()
    }

    /// Runs of a program since [`Session::measure`].
    pub fn runs(&self, program: ProgramId) -> u64 {
        self.programs[program.0].runs()
    }

    /// The place of every trained parameter.
    pub fn layout(&self) -> &BucketLayout {
        &self.layout
    }

    /// True if the parameters of a bucket decay.
    pub fn decays(&self, bucket: usize) -> bool {
        let group = self.layout.buckets[bucket].group;
        self.training.as_ref().is_some_and(|t| t.groups.rule(group).weight_decay() != 0.0)
    }

    /// Tables with sparse gradients, and the most rows that these have.
    pub fn sparse(&self) -> &[(String, usize)] {
        &self.sparse
    }

    /// Trainable parameters that get no gradient, and why; they are not updated, weight decay included.
    pub fn missing(&self) -> &[NoGradient] {
        &self.missing
    }

    /// Parameters, buffers and constants.
    pub fn tensors(&self) -> &[ModelTensor] {
        &self.tensors
    }

    /// Memory held for the model's and the optimizer's state.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.state.segments()
    }

    /// Cost of keeping [`Training::memory_budget`]; `None` if there is none, or nothing had to be done.
    pub fn rematerialized(&self) -> Option<Rematerialized> {
        self.rematerialized
    }

    /// Bytes that the session holds, by kind: the state, the arena, what its programs are fed and return.
    pub fn memory(&self) -> MemoryUse {
        let own = self.programs.iter().map(Program::own_bytes).sum();
        MemoryUse::of(self.state.layout(), self.arena_bytes(), own)
    }

    /// Bytes of memory that training uses: state, arena, what the two programs of a step are fed and return.
    /// Known before anything runs.
    pub fn planned_bytes(&self) -> usize {
        let state: usize = self.segments().map(|s| s.bytes).sum();
        // A plan's segments: the arena, the state's, its own.
        let shared = 1 + self.state.segments().count();
        let own = |p: ProgramId| self.plan(p).segments[shared..].iter().map(|s| s.bytes).sum::<usize>();
        let programs = self.training.as_ref().map_or(0, |t| own(t.program) + own(t.update));
        state + self.arena_bytes() + programs
    }

    /// Bytes of the arena, which all programs share.
    pub fn arena_bytes(&self) -> usize {
        self.arena.bytes()
    }

    /// Times that the update was planned: once, and again for some of [`Session::set_groups`].
    pub fn update_plans(&self) -> u64 {
        self.training.as_ref().map_or(0, |t| t.update_plans)
    }

    /// Optimizer steps applied so far.
    pub fn applied(&self) -> u64 {
        self.training.as_ref().map_or(0, |t| t.applied)
    }

    /// Sets the count of optimizer steps, on resuming.
    pub fn set_applied(&mut self, steps: u64) {
        if let Some(t) = &mut self.training {
            t.applied = steps;
        }
    }
}

impl TrainingState {
    /// The factor of the gradients in memory.
    fn unscale(&self) -> f64 {
        1.0 / (self.micro_batches as f64 * self.loss_scale)
    }
}
