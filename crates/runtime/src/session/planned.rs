//! A training step before any memory is taken: the layout of its state, its plans, and the bytes of each
//! kind.

use super::Training;
use super::graphs;
use super::layout::{Holds, StateLayout};
use super::model::{ModelTensor, tensors, written};
use super::program::Interface;
use crate::error::{self, Error, Result};
use crate::optim::{Clip, Groups};
use headwater_core::Graph;
use headwater_core::compile::{self, CompiledGraph, Goal, Options, ParameterGradient, Watch};
use headwater_core::pass::Rematerialized;
use headwater_core::pass::differentiate::NoGradient;
use headwater_core::pass::precision::Properties;
use headwater_core::plan::{Bindings, Plan};
use headwater_core::target::Target;
use headwater_core::train::{
    BucketLayout, BucketSize, carried, join_graph, sum_graph, update_graph, zero_graph,
};
use serde::Serialize;

/// A plan and the places of what it is fed and returns.
pub(super) struct BoundProgram {
    pub(super) plan: Plan,
    pub(super) interface: Interface,
    pub(super) rematerialized: Option<Rematerialized>,
}

/// Compiles a graph; `interface` binds it when it is known what is compiled.
pub(super) fn bound(
    graph: Graph,
    options: &Options,
    target: &Target,
    interface: impl FnOnce(&CompiledGraph) -> Result<(Interface, Bindings)>,
) -> Result<BoundProgram> {
    let mut own = None;
    let compiled = compile::compile(graph, options, target, |compiled| {
        let (interface, bindings) = interface(compiled)?;
        own = Some(interface);
        Ok::<_, Error>(bindings)
    })?;
    let interface = own.ok_or_else(|| Error::Model("a graph was not bound".into()))?;
    Ok(BoundProgram { rematerialized: compiled.rematerialized, plan: compiled.into_plan()?, interface })
}

/// Plans a graph that works on the state alone.
fn updating(graph: Graph, options: &Options, state: &StateLayout, target: &Target) -> Result<BoundProgram> {
    bound(graph, options, target, |compiled| Interface::bind(state, &compiled.graph))
}

/// Plans the update with the settings of `groups`.
pub(super) fn update(
    layout: &BucketLayout,
    groups: &Groups,
    settings: &Training,
    state: &StateLayout,
    target: &Target,
) -> Result<BoundProgram> {
    let sums = settings.sums();
    let graph = update_graph(layout, |g| groups.update_rule(g), settings.clip, sums, target.saturating)?;
    updating(graph, &graphs::update(&settings.mesh), state, target)
}

/// Memory by kind, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryUse {
    /// Parameters.
    pub parameters: usize,
    /// Buffers and constants.
    pub buffers: usize,
    /// Gradients.
    pub gradients: usize,
    /// f32 copies of low-precision weights.
    pub masters: usize,
    /// The optimizer's moments, in f32 or wider.
    pub moments: usize,
    /// The arena: activations, temporary gradients and workspaces at their peak.
    pub arena: usize,
    /// Numbers and tensors that a step is fed, and its results.
    pub inputs_outputs: usize,
}

impl MemoryUse {
    /// Bytes by kind, of a state, the arena, and inputs and outputs of programs.
    pub(super) fn of(state: &StateLayout, arena: usize, own: usize) -> MemoryUse {
        let held = |holds| state.bytes(holds);
        MemoryUse {
            parameters: held(Holds::Parameters),
            buffers: held(Holds::Buffers),
            gradients: held(Holds::Gradients),
            masters: held(Holds::Masters),
            moments: held(Holds::Moments),
            arena,
            inputs_outputs: held(Holds::Scalars) + own,
        }
    }

    /// All of it.
    pub fn total(&self) -> usize {
        self.parameters
            + self.buffers
            + self.masters
            + self.gradients
            + self.moments
            + self.arena
            + self.inputs_outputs
    }

    /// Each kind that there is, the largest first.
    pub fn kinds(&self) -> Vec<(&'static str, usize)> {
        let mut kinds = vec![
            ("parameters", self.parameters),
            ("buffers and constants", self.buffers),
            ("f32 master weights", self.masters),
            ("gradients", self.gradients),
            ("moments", self.moments),
            ("activations and workspace", self.arena),
            ("inputs and outputs", self.inputs_outputs),
        ];
        kinds.retain(|(_, bytes)| *bytes > 0);
        kinds.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        kinds
    }
}

/// See the module's description. Of a model that is not trained, its forward pass.
pub struct Planned {
    pub(super) state: StateLayout,
    pub(super) layout: BucketLayout,
    pub(super) tensors: Vec<ModelTensor>,
    pub(super) precision: Properties,
    pub(super) groups: Option<Groups>,
    /// Tables with sparse gradients, and the most rows of these.
    pub(super) sparse: Vec<(String, usize)>,
    pub(super) missing: Vec<NoGradient>,
    pub(super) program: BoundProgram,
    pub(super) update: Option<BoundProgram>,
    pub(super) zero: Option<BoundProgram>,
    /// Programs that add the gradients to a sum of earlier lanes, by its number.
    pub(super) joins: Vec<BoundProgram>,
    /// The program that adds up the lanes of all ranks, if there are several.
    pub(super) sum: Option<BoundProgram>,
}

impl Planned {
    /// Plans a training step on a target. `watch` sees every stage of the compilation of its gradients.
    ///
    /// # Errors
    /// `Config` for settings out of range, and what the passes refuse.
    pub fn training(
        graph: &Graph,
        settings: &Training,
        target: &Target,
        watch: Option<Watch>,
    ) -> Result<Planned> {
        let precision = settings.precision.properties(target)?;
        let mut groups = graphs::groups(settings)?;
        check_clip(settings.clip)?;
        if settings.accumulate == 0 {
            return Err(Error::config("accumulate", "must be at least 1"));
        }
        if settings.lanes == 0 {
            return Err(Error::config("ranks.lanes", "must be at least 1"));
        }
        if settings.mesh.ranks() > settings.lanes as usize {
            let message = format!(
                "the run has {} lanes, and {} ranks were started: some would have nothing to do. Start at most {0} ranks, or begin a \
                 run with --lanes {1} (other lanes give other bits)",
                settings.lanes,
                settings.mesh.ranks()
            );
            return Err(Error::config("ranks.lanes", message));
        }
        let accumulate = settings.sums();
        // Flat storage follows from the gradients: the state is laid out when they are known, before the step
        // is planned.
        let sparse = settings.sparse_embeddings.choice().filter(|_| !accumulate && groups.by_element());
        let adjacent = graphs::may_be_adjacent(settings, &groups);
        let options =
            Options { accumulate, sparse, watch, ..graphs::training(&precision, settings, &[], &adjacent) };
        let mut made = None;
        let program = bound(graph.clone(), &options, target, |compiled| {
            check_lanes(settings, &compiled.graph)?;
            let layout = lay_out(compiled, settings, precision.masters, &mut groups)?;
            let tensors = tensors(&compiled.graph);
            let state = {
                let written = written(&compiled.graph);
                StateLayout::new(target, &layout, &tensors, &written, Some((settings, &groups)))
            };
            let bound = Interface::bind(&state, &compiled.graph)?;
            let rows = |g: &ParameterGradient| Some((g.parameter.clone(), g.rows?));
            let sparse: Vec<(String, usize)> = compiled.gradients.iter().filter_map(rows).collect();
            made = Some((layout, tensors, state, sparse, compiled.missing.clone()));
            Ok(bound)
        })?;
        let unbound = || Error::Model("a graph was not bound".into());
        let (layout, tensors, state, sparse, missing) = made.ok_or_else(unbound)?;
        let update = update(&layout, &groups, settings, &state, target)?;
        let (mesh, lanes, pending) = (&settings.mesh, settings.lanes as usize, settings.pending());
        let alike = graphs::update(mesh);
        let zero = accumulate.then(|| updating(zero_graph(&layout)?, &alike, &state, target)).transpose()?;
        let join = |number| updating(join_graph(&layout, number)?, &alike, &state, target);
        let joins = (0..pending).map(join).collect::<Result<_>>()?;
        let together = Options { reduce: true, ..graphs::update(mesh) };
        let sum = || updating(sum_graph(&layout, pending, lanes, mesh)?, &together, &state, target);
        let sum = (mesh.ranks() > 1).then(sum).transpose()?;
        let (groups, update) = (Some(groups), Some(update));
        let planned = Planned {
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
        };
        let total = planned.memory().total();
        // The gradients keep to the budget; the update or its results alone may exceed it.
        match settings.memory_budget.filter(|b| total > *b) {
            Some(budget) => Err(Error::config(
                "memory_budget",
                format!("is {budget} bytes, training with its update takes {total}: raise it"),
            )),
            None => Ok(planned),
        }
    }

    /// Plans a forward pass as the model was exported.
    ///
    /// # Errors
    /// Refusals of the passes.
    pub fn forward(
        graph: &Graph,
        precision: &Properties,
        target: &Target,
        watch: Option<Watch>,
    ) -> Result<Planned> {
        let options =
            Options { goal: Goal::Forward, precision: precision.clone(), watch, ..Options::default() };
        let (layout, tensors) = (BucketLayout::default(), tensors(graph));
        let mut made = None;
        let program = bound(graph.clone(), &options, target, |compiled| {
            let state = {
                let (held, written) = (self::tensors(&compiled.graph), written(&compiled.graph));
                StateLayout::new(target, &layout, &held, &written, None)
            };
            let bound = Interface::bind(&state, &compiled.graph)?;
            made = Some(state);
            Ok(bound)
        })?;
        let state = made.ok_or_else(|| Error::Model("a graph was not bound".into()))?;
        let (groups, sparse, missing) = (None, Vec::new(), Vec::new());
        let (update, zero, joins, sum, precision) = (None, None, Vec::new(), None, precision.clone());
        Ok(Planned {
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
        })
    }

    /// Refuses a step that takes more than the bytes that are free, before any of it is taken.
    ///
    /// # Errors
    /// `Memory`, with the kinds that hold most.
    pub fn fits(&self, free: Option<usize>) -> Result<()> {
        let memory = self.memory();
        let need = memory.total();
        let Some(free) = free.filter(|free| need > *free) else { return Ok(()) };
        let held: Vec<String> =
            memory.kinds().iter().take(4).map(|(kind, n)| format!("{kind} {}", error::bytes(*n))).collect();
        Err(Error::Memory { need, free, held: held.join(", ") })
    }

    /// The plan of the gradients, or of the forward pass.
    pub fn plan(&self) -> &Plan {
        &self.program.plan
    }

    /// The plan of the update.
    pub fn update_plan(&self) -> Option<&Plan> {
        self.update.as_ref().map(|u| &u.plan)
    }

    /// Trainable parameters that get no gradient, and why.
    pub fn missing(&self) -> &[NoGradient] {
        &self.missing
    }

    /// Cost of keeping [`Training::memory_budget`]; `None` if there is none, or nothing had to be done.
    pub fn rematerialized(&self) -> Option<Rematerialized> {
        self.program.rematerialized
    }

    /// Bytes that a step will hold: the state, the arena that its plans share, what they are fed and return.
    pub fn memory(&self) -> MemoryUse {
        let all = || {
            [&self.program]
                .into_iter()
                .chain(&self.update)
                .chain(&self.zero)
                .chain(&self.joins)
                .chain(&self.sum)
        };
        let own = all().flat_map(|b| b.interface.bytes).sum();
        MemoryUse::of(&self.state, all().map(|b| b.plan.segments[0].bytes).max().unwrap_or(0), own)
    }
}

/// The flat layout of gradients, with the masters and the rounding that the settings request.
fn lay_out(
    compiled: &CompiledGraph,
    t: &Training,
    masters: bool,
    groups: &mut Groups,
) -> Result<BucketLayout> {
    let size = t.bucket_size.unwrap_or_else(|| BucketSize::of_ranks(t.mesh.ranks()));
    let layout = graphs::layout(&compiled.gradients, &compiled.adjacent, groups, size)?;
    let layout = layout.with_moments(t.moments.form());
    let layout = if masters { layout.with_masters() } else { layout };
    let layout = if t.stochastic_rounding { layout.with_stochastic_rounding() } else { layout };
    if t.stochastic_rounding && layout.buckets.iter().all(|b| !b.stochastic) {
        let message = "is for low-precision weights without masters, as at O3; here there are none";
        return Err(Error::config("amp.stochastic_rounding", message));
    }
    if layout.buckets.is_empty() {
        let message = "no trainable parameter gets a gradient: there is nothing to train. The loss was exported without \
                       gradients, as reentrant checkpointing is (export with use_reentrant=False), or forward computes it \
                       under no_grad or from detached tensors";
        return Err(Error::Model(message.into()));
    }
    Ok(layout)
}

/// Refuses lanes where a batch's gradients depend on the batches before it.
fn check_lanes(settings: &Training, graph: &Graph) -> Result<()> {
    if settings.lanes == 1 {
        return Ok(());
    }
    match carried(graph)?.as_slice() {
        [] => Ok(()),
        names => {
            let message = format!(
                "must be 1 for this model: a batch changes {}, and the loss or the gradients of the next one depend \
                 on that, so lanes are not independent of each other",
                names.join(", ")
            );
            Err(Error::config("ranks.lanes", message))
        }
    }
}

fn check_clip(clip: Clip) -> Result<()> {
    for (setting, limit) in [("clip_norm", clip.norm), ("clip_value", clip.value)] {
        if limit.is_some_and(|x| x.is_nan() || x <= 0.0) {
            return Err(Error::config(setting, "must be positive"));
        }
    }
    if clip.norm.is_some() && clip.value.is_some() {
        return Err(Error::config("clip_value", "cannot be combined with clip_norm: choose one"));
    }
    Ok(())
}
