//! The compiler: a forward graph to a plan, by one table of named stages.
//!
//! Every caller compiles here: sessions, reports, checks, benchmarks, tests. They differ in [`Options`]
//! alone, so that what is inspected and proved is what trains. [`STAGES`] is the order of passes, written
//! once.

mod stages;

pub use stages::{Form, STAGES, Stage, stage};

use crate::diagnostic::{Error, Result};
use crate::graph::{Graph, NodeId, OutputRole};
use crate::pass::instrument::{Fault, Probe};
use crate::pass::precision::Properties;
use crate::pass::products::Adjacent;
use crate::pass::{self, differentiate::NoGradient};
use crate::plan::{Bindings, Plan};
use crate::ranks::Mesh;
use crate::target::Target;
use crate::tensor::TensorType;
use crate::train::SparseEmbeddings;
use crate::{DType, ValueId, fail};
use std::cell::{Cell, RefCell};

/// The purpose of a compilation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Goal {
    /// Forward and backward: the gradients of [`Options::derivative`].
    #[default]
    Train,
    /// Forward alone, as the model was exported.
    Forward,
    /// Forward alone, as after `module.eval()`: no dropout, running statistics, no buffer written.
    Evaluate,
    /// A graph that already holds its backward nodes, or needs none.
    Step,
    /// A graph built from the operators that are to run, such as an optimizer's update: fused and planned as
    /// it is.
    Update,
}

/// The gradients that [`Goal::Train`] computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GradientRequest<'a> {
    /// Gradients of the loss, the first user output, a scalar float, for every trainable parameter.
    #[default]
    Loss,
    /// A vector-Jacobian product of user outputs. Every user output is returned.
    Vjp {
        /// Names of float user outputs. For each there is a further user input, named by [`cotangent`], of
        /// the type that the output has in the compiled graph.
        outputs: &'a [&'a str],
        /// Names of float inputs, of any role, that get a gradient.
        inputs: &'a [&'a str],
    },
}

/// Name of the input that takes the cotangent of a user output.
pub fn cotangent(output: &str) -> String {
    format!("cotangent.{output}")
}

/// Nodes added to the differentiated graph to look at it.
#[derive(Clone, Copy, Default)]
pub enum Instrument<'a> {
    /// None: the plan that trains.
    #[default]
    None,
    /// A probe of every node that tells whether its result is finite: the only output is a vector of them.
    Probes,
    /// A count, at every gradient rounded to this dtype, of elements that the rounding flushed to zero.
    Underflow(DType),
    /// The caller's own nodes.
    Custom(&'a dyn Fn(Graph) -> Result<Graph>),
}

/// Called with the graph or plan that a stage has made.
pub type Watch<'a> = &'a dyn Fn(&'static Stage, &StageResult);

/// Settings in which compilations of a model differ. The default trains in f32 with recomputation.
#[derive(Clone)]
pub struct Options<'a> {
    /// The purpose.
    pub goal: Goal,
    /// Outputs that are differentiated and inputs that get gradients, if [`Goal::Train`] is the goal.
    pub derivative: GradientRequest<'a>,
    /// Casts of mixed precision.
    pub precision: Properties,
    /// One float dtype for every float of the model instead, as the proof in f64 has it.
    pub upcast: Option<DType>,
    /// True if a training step returns every user output, not its loss alone. [`GradientRequest::Vjp`]
    /// returns all.
    pub all_outputs: bool,
    /// Type of the input that the loss is multiplied by before it is differentiated: `StateKey::LossScale`.
    pub loss_scale: Option<TensorType>,
    /// A fault at a node of the differentiated graph, switched on by an input.
    pub fault: Option<(NodeId, Fault)>,
    /// Nodes added to look at the step.
    pub instrument: Instrument<'a>,
    /// True if the backward pass recomputes what is cheap, rather than read what the forward pass saved.
    pub recompute: bool,
    /// True if a training step is planned as two runs, forward and backward ([`Plan::halves`]). Not together
    /// with a memory budget.
    pub halves: bool,
    /// The ranks that run the step jointly, and which of them this is.
    pub mesh: Mesh,
    /// True if gradients are summed over the ranks: in the program of the last batch that a rank adds to a
    /// step, or in one of their own ([`crate::train::sum_graph`], which is a [`Goal::Update`]).
    pub reduce: bool,
    /// Bytes that a training step may take: all segments of its plan and the arena. What does not fit is
    /// computed a second time in the backward pass.
    pub memory_budget: Option<usize>,
    /// True if gradients are added to sums over micro-batches, in f32 or wider.
    pub accumulate: bool,
    /// Embeddings whose gradients have only the rows that are read. Not together with
    /// [`Options::accumulate`].
    pub sparse: Option<SparseEmbeddings<'a>>,
    /// Tells which parameters are adjacent in memory, or are going to be: products of such weights that share
    /// their other operand become one ([`CompiledGraph::adjacent`]). `None` keeps all products, and the order
    /// of their sums.
    pub adjacent: Option<Adjacent<'a>>,
    /// Name of the last stage to run.
    pub stop_after: Option<&'a str>,
    /// Observer of every stage that runs.
    pub watch: Option<Watch<'a>>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options {
            goal: Goal::default(),
            derivative: GradientRequest::default(),
            precision: Properties::default(),
            upcast: None,
            all_outputs: false,
            loss_scale: None,
            fault: None,
            instrument: Instrument::None,
            recompute: true,
            halves: false,
            mesh: Mesh::default(),
            reduce: false,
            memory_budget: None,
            accumulate: false,
            sparse: None,
            adjacent: None,
            stop_after: None,
            watch: None,
        }
    }
}

/// The result of a stage.
#[derive(Clone, Copy, Debug)]
pub enum StageResult<'a> {
    /// A graph.
    Graph(&'a Graph),
    /// A plan.
    Plan(&'a Plan),
}

impl StageResult<'_> {
    /// Nodes of a graph, steps of a plan.
    pub fn size(&self) -> usize {
        match self {
            StageResult::Graph(graph) => graph.nodes.len(),
            StageResult::Plan(plan) => plan.steps.len(),
        }
    }
}

/// A gradient that a training step computes.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterGradient {
    /// Name of the parameter, or of the input that [`GradientRequest::Vjp`] names.
    pub parameter: String,
    /// Type of the parameter, and of its gradient unless that is sparse.
    pub ty: TensorType,
    /// Most rows that a sparse gradient has ([`Options::sparse`]).
    pub rows: Option<usize>,
}

/// The work that a stage did.
#[derive(Clone, Copy, Debug)]
pub struct StageReport {
    /// The stage.
    pub stage: &'static Stage,
    /// Nodes it was given.
    pub before: usize,
    /// Nodes, or steps of the plan, that it made.
    pub after: usize,
}

/// A compiled graph.
#[derive(Debug, Default)]
pub struct CompiledGraph {
    /// The graph after the last graph stage: what was planned.
    pub graph: Graph,
    /// The plan, unless [`Options::stop_after`] names an earlier stage.
    pub plan: Option<Plan>,
    /// Gradients in the order in which the backward pass completes them.
    pub gradients: Vec<ParameterGradient>,
    /// Parameters that products read as one: where each directly follows the one before, no copy is made.
    pub adjacent: Vec<Vec<String>>,
    /// Trainable parameters, or inputs that [`GradientRequest::Vjp`] names, that get no gradient, and why.
    pub missing: Vec<NoGradient>,
    /// Inputs that get a gradient, each with the names of the differentiated outputs that it depends on:
    /// without a cotangent of one of these, an eager framework has no gradient of the input. Of
    /// [`GradientRequest::Vjp`] alone.
    pub depends: Vec<(String, Vec<String>)>,
    /// Cost of what [`Options::memory_budget`] demanded; `None` if the step fits as it is.
    pub rematerialized: Option<pass::Rematerialized>,
    /// Probes of [`Instrument::Probes`] and [`Instrument::Underflow`], each with the elements it looks at.
    pub probes: Vec<(Probe, usize)>,
    /// One entry for each stage that ran.
    pub report: Vec<StageReport>,
    /// Places of inputs and outputs, once they are known.
    bindings: Bindings,
}

impl CompiledGraph {
    /// The plan.
    ///
    /// # Errors
    /// `Plan` if the compilation was stopped before it.
    pub fn into_plan(self) -> Result<Plan> {
        self.plan.ok_or_else(|| fail!(Plan, "the compilation was stopped before the plan"))
    }
}

/// Compiles a model's forward graph for a device. `bind` places inputs and outputs of the graph that is
/// planned; it is not called if the compilation stops earlier. [`Bindings::simple`] serves where nothing else
/// shares the memory.
///
/// # Errors
/// Refusals of the stages, the operators and `bind`; `Attribute` for a stage to stop after that there is not.
pub fn compile<E: From<Error>>(
    model: Graph,
    options: &Options,
    target: &Target,
    bind: impl FnOnce(&CompiledGraph) -> Result<Bindings, E>,
) -> Result<CompiledGraph, E> {
    let last = match options.stop_after {
        Some(name) => Some(stage(name).ok_or_else(|| unknown_stage(name))?),
        None => None,
    };
    if options.halves && options.memory_budget.is_some() {
        let message = "a memory budget is not kept by a step that is run in halves: choose one";
        return Err(fail!(Attribute, "{message}").into());
    }
    if options.sparse.is_some() && options.accumulate {
        return Err(fail!(Attribute, "sparse gradients are not summed over micro-batches: choose one").into());
    }
    let mut done = CompiledGraph { graph: model, ..CompiledGraph::default() };
    let mut bind = Some(bind);
    for stage in &STAGES {
        if (stage.runs)(options, target) {
            let before = done.graph.nodes.len();
            if stage.is_bound()
                && let Some(bind) = bind.take()
            {
                done.bindings = bind(&done)?;
            }
            (stage.run)(&mut done, options, target)?;
            let snapshot = match &done.plan {
                Some(plan) => StageResult::Plan(plan),
                None => StageResult::Graph(&done.graph),
            };
            let after = snapshot.size();
            if let Some(watch) = options.watch {
                watch(stage, &snapshot);
            }
            done.report.push(StageReport { stage, before, after });
        }
        if last.is_some_and(|last| last.name == stage.name) {
            break;
        }
    }
    Ok(done)
}

/// Compiles as far as the graph that is planned.
///
/// # Errors
/// As [`compile`].
pub fn optimize(model: Graph, options: &Options, target: &Target) -> Result<CompiledGraph> {
    let options =
        Options { stop_after: Some(options.stop_after.unwrap_or(LAST_OF_GRAPHS)), ..options.clone() };
    compile(model, &options, target, |done| Ok::<_, Error>(Bindings::simple(&done.graph)))
}

/// Compiles as far as the graph that is planned; gives also the graph before simplification, without what is
/// dead. What is folded to a constant later is computed there too, and has its roundings.
///
/// # Errors
/// As [`compile`].
pub fn unfolded(model: Graph, options: &Options, target: &Target) -> Result<(Graph, CompiledGraph)> {
    let (unfolded, folded) = (RefCell::new(Graph::default()), Cell::new(false));
    let watch = |stage: &'static Stage, made: &StageResult| match made {
        _ if folded.get() => {}
        _ if stage.name == "simplify" => folded.set(true),
        StageResult::Graph(graph) => *unfolded.borrow_mut() = (*graph).clone(),
        StageResult::Plan(_) => {}
    };
    let compiled = optimize(model, &Options { watch: Some(&watch), ..options.clone() }, target)?;
    Ok((pass::simplify::remove_dead(unfolded.into_inner()).0, compiled))
}

/// The stage whose graph is planned.
const LAST_OF_GRAPHS: &str = "narrow-integers";

fn unknown_stage(name: &str) -> Error {
    let names: Vec<&str> = STAGES.iter().map(|s| s.name).collect();
    fail!(Attribute, "there is no stage `{name}`; the stages are {}", names.join(", "))
}

/// True if the first user output of a graph can be trained: it is one float.
pub fn has_loss(graph: &Graph) -> bool {
    let first = graph.outputs.iter().find(|o| o.role == OutputRole::User);
    first.map(|o| graph.ty(o.value)).is_some_and(|ty| ty.dtype.is_float() && ty.shape.numel() == 1)
}

/// The value of the loss: the first user output.
fn loss(graph: &Graph) -> Result<ValueId> {
    let first = graph.outputs.iter().find(|o| o.role == OutputRole::User);
    first
        .map(|o| o.value)
        .ok_or_else(|| fail!(Graph, "the model returns nothing; its first output must be the loss"))
}
