//! The table of stages.

use super::{CompiledGraph, Goal, GradientRequest, Instrument, Options, ParameterGradient, cotangent, loss};
use crate::diagnostic::Result;
use crate::graph::{Builder, Def, Graph, InputRole, Output, OutputRole};
use crate::pass::differentiate::Differentiated;
use crate::pass::precision::Level;
use crate::pass::{self, recognize::Exactness};
use crate::target::Target;
use crate::train::states::{self, Declared, State};
use crate::train::{self, StateKey};
use crate::{DType, ensure, fail};
use std::collections::HashSet;

/// The form of a graph between stages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// The forward graph of a model.
    Forward,
    /// Forward and backward.
    Step,
    /// A graph of fused row programs.
    Fused,
    /// Steps on bytes.
    Plan,
}

/// A named step of the compilation.
pub struct Stage {
    /// Its name, for `--dump-after` and reports.
    pub name: &'static str,
    /// The form that it is given. A graph compiled without differentiation stays in its form.
    pub input: Form,
    /// The form that it makes.
    pub output: Form,
    /// Changes that it may make in results; `None` where the settings request other results, or results are
    /// added.
    pub exactness: Option<Exactness>,
    /// One sentence.
    pub summary: &'static str,
    /// True if the options request it, or the target needs it.
    pub(super) runs: fn(&Options, &Target) -> bool,
    /// Does it.
    pub(super) run: fn(&mut CompiledGraph, &Options, &Target) -> Result<()>,
}

impl std::fmt::Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Stage {
    /// True if it needs the places of inputs and outputs.
    pub(super) fn is_bound(&self) -> bool {
        matches!(self.name, "rematerialize" | "pack" | "reduce" | "plan")
    }

    /// The exactness label in words.
    pub fn label(&self) -> &'static str {
        match self.exactness {
            Some(Exactness::Exact) => "exact",
            Some(Exactness::SameAccumulator) => "same accumulators",
            Some(Exactness::Reordered) => "sums reordered",
            Some(Exactness::ChangesRounding) => "changes rounding",
            None => "as asked",
        }
    }
}

/// The stage of a name.
pub fn stage(name: &str) -> Option<&'static Stage> {
    STAGES.iter().find(|s| s.name == name)
}

use Form::{Forward, Fused, Plan, Step};

/// Every stage, in order.
pub static STAGES: [Stage; 25] = [
    Stage {
        name: "evaluation",
        input: Forward,
        output: Forward,
        exactness: None,
        summary: "turns dropout off and batch norm to running statistics, as `module.eval()` does, and random masks to their means",
        runs: |o, _| o.goal == Goal::Evaluate,
        run: |c, _, _| rewrite(c, |g| pass::evaluation(&g)),
    },
    Stage {
        name: "upcast",
        input: Forward,
        output: Forward,
        exactness: None,
        summary: "gives every float one dtype, as the proof in f64 needs",
        runs: |o, _| o.upcast.is_some(),
        run: |c, o, _| match o.upcast {
            Some(dtype) => rewrite(c, |g| pass::upcast(&g, dtype)),
            None => Ok(()),
        },
    },
    Stage {
        name: "precision",
        input: Forward,
        output: Forward,
        exactness: None,
        summary: "inserts the casts of a level of mixed precision",
        runs: |o, _| o.precision.level != Level::O0,
        run: |c, o, _| rewrite(c, |g| Ok(pass::mixed(&g, &o.precision)?.graph)),
    },
    Stage {
        name: "recognize",
        input: Forward,
        output: Forward,
        exactness: Some(Exactness::Reordered),
        summary: "replaces decomposed norms, attention, padding and pooling by single operators",
        runs: |o, _| !matches!(o.goal, Goal::Step | Goal::Update),
        run: |c, _, _| rewrite(c, |g| Ok(pass::recognize(g)?.graph)),
    },
    Stage {
        name: "decompose",
        input: Forward,
        output: Forward,
        exactness: Some(Exactness::Exact),
        summary: "expands operators that stand for others",
        runs: |o, _| o.goal != Goal::Update,
        run: |c, o, _| {
            let waits = o.goal == Goal::Train;
            rewrite(c, if waits { pass::decompose_forward } else { pass::decompose })
        },
    },
    Stage {
        name: "demand",
        input: Forward,
        output: Forward,
        exactness: Some(Exactness::Reordered),
        summary: "drops results that training does not read, and computes only demanded slices of others",
        runs: |o, _| o.goal == Goal::Train,
        run: |c, o, _| rewrite(c, |g| pass::demand(if all_outputs(o) { g } else { loss_alone(g) })),
    },
    Stage {
        name: "products",
        input: Forward,
        output: Forward,
        exactness: Some(Exactness::Reordered),
        summary: "makes products that share an operand one product, of weights that are adjacent in memory",
        runs: |o, _| o.adjacent.is_some() && !matches!(o.goal, Goal::Step | Goal::Update),
        run: join_products,
    },
    Stage {
        name: "differentiate",
        input: Forward,
        output: Step,
        exactness: None,
        summary: "appends the backward pass: gradients of the loss, or of given outputs from given cotangents",
        runs: |o, _| o.goal == Goal::Train,
        run: differentiate,
    },
    Stage {
        name: "decompose-gradients",
        input: Step,
        output: Step,
        exactness: Some(Exactness::Exact),
        summary: "expands what derivative rules are written in",
        runs: |o, _| o.goal == Goal::Train,
        run: |c, _, _| rewrite(c, pass::decompose),
    },
    Stage {
        name: "sparse-gradients",
        input: Step,
        output: Step,
        exactness: Some(Exactness::Exact),
        summary: "gives embeddings gradients of only the rows that are read",
        runs: |o, _| o.goal == Goal::Train && o.sparse.is_some(),
        run: |c, o, _| match o.sparse {
            Some(which) => rewrite(c, |g| train::sparse_gradients(g, which)),
            None => Ok(()),
        },
    },
    Stage {
        name: "inject-fault",
        input: Step,
        output: Step,
        exactness: None,
        summary: "lets one node fail on purpose, to try out what a run does then",
        runs: |o, _| o.fault.is_some(),
        run: |c, o, _| match o.fault {
            Some((node, fault)) => rewrite(c, |g| pass::inject(&g, node, fault)),
            None => Ok(()),
        },
    },
    Stage {
        name: "simplify",
        input: Step,
        output: Step,
        exactness: Some(Exactness::Exact),
        summary: "folds constants, merges equal nodes, removes identities and dead code",
        runs: |o, _| o.goal != Goal::Update,
        run: |c, _, _| rewrite(c, |g| Ok(pass::simplify(g).graph)),
    },
    Stage {
        name: "instrument",
        input: Step,
        output: Step,
        exactness: Some(Exactness::Exact),
        summary: "adds probes: what each node makes, what rounding flushes to zero, magnitudes of terms",
        runs: |o, _| !matches!(o.instrument, Instrument::None),
        run: instrument,
    },
    Stage {
        name: "split-wide",
        input: Step,
        output: Step,
        exactness: Some(Exactness::ChangesRounding),
        summary: "computes an update's f64 in pairs of f32, where the target has no f64 arithmetic",
        runs: |o, t| o.goal == Goal::Update && !t.dtypes.arithmetic.contains(DType::F64),
        run: |c, _, _| rewrite(c, pass::split_wide),
    },
    Stage {
        name: "host",
        input: Step,
        output: Step,
        exactness: Some(Exactness::Exact),
        summary: "gives the host, operator by operator, the row programs that the target does not compute",
        runs: |_, t| t.has_host && !t.computes_all(),
        run: |c, _, target| rewrite(c, |g| pass::on_host(g, target)),
    },
    Stage {
        name: "distribute",
        input: Step,
        output: Step,
        exactness: Some(Exactness::Exact),
        summary: "computes pointwise operators over concatenations part by part, and slices of their results",
        runs: |o, _| o.goal != Goal::Update,
        run: |c, _, _| rewrite(c, pass::distribute),
    },
    Stage {
        name: "fuse",
        input: Step,
        output: Fused,
        exactness: Some(Exactness::Exact),
        summary: "joins neighbouring row programs, a loss with its gradient among them",
        runs: |_, _| true,
        run: |c, o, target| match in_halves(o) {
            true => rewrite(c, |g| pass::fuse_halves(g, target)),
            false => rewrite(c, |g| pass::fuse(g, target)),
        },
    },
    Stage {
        name: "recompute",
        input: Fused,
        output: Fused,
        exactness: Some(Exactness::SameAccumulator),
        summary: "recomputes cheap activations in the backward pass rather than save them",
        runs: |o, _| o.goal == Goal::Train && o.recompute,
        run: |c, _, target| rewrite(c, |g| pass::recompute(g, target)),
    },
    Stage {
        name: "epilogues",
        input: Fused,
        output: Fused,
        exactness: Some(Exactness::Exact),
        summary: "joins a bias's gradient with the product that is the weight's, where one kernel has both",
        runs: |o, _| matches!(o.goal, Goal::Train | Goal::Step),
        run: |c, _, target| rewrite(c, |g| pass::epilogues(g, target)),
    },
    Stage {
        name: "accumulate",
        input: Fused,
        output: Fused,
        exactness: None,
        summary: "adds gradients to sums over micro-batches, in f32 or wider",
        runs: |o, _| o.goal == Goal::Train,
        run: |c, o, target| {
            c.gradients = gradients(&c.graph)?;
            match o.accumulate {
                true => rewrite(c, |g| train::accumulate(g, target.saturating)),
                false => Ok(()),
            }
        },
    },
    Stage {
        name: "narrow-integers",
        input: Fused,
        output: Fused,
        exactness: Some(Exactness::Exact),
        summary: "computes integers in i32 where the target has no i64 arithmetic, and proves that they fit",
        runs: |_, t| !t.dtypes.arithmetic.contains(DType::I64),
        run: |c, _, target| rewrite(c, |g| pass::narrow_integers(g, target)),
    },
    Stage {
        name: "rematerialize",
        input: Fused,
        output: Fused,
        exactness: Some(Exactness::SameAccumulator),
        summary: "computes more of the forward pass a second time, to keep a memory budget",
        runs: |o, _| o.goal == Goal::Train && o.memory_budget.is_some(),
        run: |c, o, target| {
            let Some(budget) = o.memory_budget else { return Ok(()) };
            let graph = std::mem::take(&mut c.graph);
            (c.graph, c.rematerialized) = pass::rematerialize(graph, &c.bindings, budget, target)?;
            Ok(())
        },
    },
    Stage {
        name: "pack",
        input: Fused,
        output: Fused,
        exactness: Some(Exactness::Exact),
        summary: "makes each bucket of gradients one value, computed part by part in its place",
        runs: |o, _| o.goal == Goal::Train,
        run: |c, _, _| {
            c.graph = pass::pack(std::mem::take(&mut c.graph), &mut c.bindings)?;
            Ok(())
        },
    },
    Stage {
        name: "reduce",
        input: Fused,
        output: Fused,
        exactness: None,
        summary: "sums each bucket over the ranks, and proves that no rank's own numbers pass for the run's",
        runs: |o, _| o.mesh.ranks() > 1,
        run: |c, o, _| {
            if o.reduce && o.goal == Goal::Train {
                c.graph = train::reduce(std::mem::take(&mut c.graph), &c.bindings, &o.mesh)?;
            }
            states::on_ranks(&c.graph, &declared(o.goal, o.reduce))
        },
    },
    Stage {
        name: "plan",
        input: Fused,
        output: Plan,
        exactness: Some(Exactness::Exact),
        summary: "lowers nodes to steps on bytes: layouts, results in place, the arena; and proves the plan",
        runs: |_, _| true,
        run: |c, o, target| {
            let plan = match in_halves(o) {
                true => pass::plan_halves(&c.graph, &c.bindings, target)?,
                false => pass::plan(&c.graph, &c.bindings, target)?,
            };
            pass::check_plan(&plan)?;
            c.plan = Some(plan);
            Ok(())
        },
    },
];

/// States on the axis that the runtime gives a graph's inputs, and takes its results for. It gathers the
/// results of a batch itself, loss included. Gradients that are not summed over the ranks yet are the rank's
/// own.
fn declared(goal: Goal, reduced: bool) -> Declared<'static> {
    match goal {
        Goal::Train => Declared {
            results: State::Own,
            gradients: if reduced { State::Same } else { State::Own },
            ..Declared::default()
        },
        // Sums of a rank's own lanes, where they are added up over the ranks.
        Goal::Update => {
            let sums = if reduced { State::Own } else { State::Same };
            Declared { key: State::Same, sums, ..Declared::default() }
        }
        // Results of a batch.
        Goal::Forward | Goal::Evaluate | Goal::Step => {
            Declared { results: State::Own, ..Declared::default() }
        }
    }
}

fn rewrite(c: &mut CompiledGraph, pass: impl FnOnce(Graph) -> Result<Graph>) -> Result<()> {
    c.graph = pass(std::mem::take(&mut c.graph))?;
    Ok(())
}

/// True if the plan is one of two runs.
fn in_halves(o: &Options) -> bool {
    o.halves && o.goal == Goal::Train
}

/// True if a training step returns every user output.
fn all_outputs(o: &Options) -> bool {
    o.all_outputs || o.derivative != GradientRequest::Loss
}

/// Drops all user outputs but the first: what only leads to them is not computed.
fn loss_alone(mut graph: Graph) -> Graph {
    let mut first = true;
    graph.outputs.retain(|o| o.role != OutputRole::User || std::mem::take(&mut first));
    graph
}

/// Joins products, but for those of parameters that get no gradient: joined, these would get one of zeros.
fn join_products(c: &mut CompiledGraph, o: &Options, _: &Target) -> Result<()> {
    let Some(adjacent) = o.adjacent else { return Ok(()) };
    let mut apart = HashSet::new();
    if o.goal == Goal::Train && pass::products::any(&c.graph, adjacent) {
        // A graph that cannot be differentiated is refused by `differentiate`.
        let Ok(d) = differentiated(c.graph.clone(), o) else { return Ok(()) };
        apart.extend(d.missing.into_iter().map(|m| m.parameter));
    }
    let joined = pass::join_products(std::mem::take(&mut c.graph), adjacent, &apart)?;
    (c.graph, c.adjacent) = (joined.graph, joined.adjacent);
    Ok(())
}

fn differentiate(c: &mut CompiledGraph, o: &Options, _: &Target) -> Result<()> {
    let d = differentiated(std::mem::take(&mut c.graph), o)?;
    if let GradientRequest::Vjp { outputs, .. } = o.derivative {
        let named = |ends: Vec<usize>| ends.into_iter().map(|at| outputs[at].to_string()).collect();
        c.depends = d.depends.into_iter().map(|(input, ends)| (input, named(ends))).collect();
    }
    (c.graph, c.missing) = (d.graph, d.missing);
    Ok(())
}

/// The forward graph with the gradients that the options request.
fn differentiated(graph: Graph, o: &Options) -> Result<Differentiated> {
    Ok(match o.derivative {
        GradientRequest::Loss => {
            let loss = loss(&graph)?;
            let mut b = Builder::extend(graph);
            let name = StateKey::LossScale.to_string();
            let scale = o.loss_scale.clone().map(|ty| b.input(name, ty, InputRole::State));
            pass::differentiate_scaled(b.finish(), loss, scale)?
        }
        GradientRequest::Vjp { outputs, inputs } => {
            ensure!(o.loss_scale.is_none(), Attribute, "cotangents that are given carry the loss scale");
            let mut b = Builder::extend(graph);
            let mut cotangents = Vec::with_capacity(outputs.len());
            for name in outputs {
                let user = |o: &&Output| o.role == OutputRole::User && o.name == *name;
                let output = b.graph().outputs.iter().find(user);
                let unknown = || fail!(Attribute, "there is no user output `{name}` to differentiate");
                let value = output.ok_or_else(unknown)?.value;
                let ty = b.ty(value).clone();
                cotangents.push((value, b.input(cotangent(name), ty, InputRole::User)));
            }
            let wanted = inputs.iter().map(|name| {
                let unknown = || fail!(Attribute, "there is no input `{name}` to compute a gradient for");
                b.graph().input(name).map(|i| i.value).ok_or_else(unknown)
            });
            let wanted = wanted.collect::<Result<Vec<_>>>()?;
            pass::vjp(b.finish(), &cotangents, &wanted)?
        }
    })
}

fn instrument(c: &mut CompiledGraph, o: &Options, _: &Target) -> Result<()> {
    let scale = c.graph.input(&StateKey::LossScale.to_string()).map(|i| i.value);
    match o.instrument {
        Instrument::None => Ok(()),
        Instrument::Probes => {
            let (graph, probes) = pass::probes(&c.graph, scale)?;
            (c.graph, c.probes) = (graph, probes.into_iter().map(|probe| (probe, 1)).collect());
            Ok(())
        }
        Instrument::Underflow(dtype) => {
            (c.graph, c.probes) = pass::underflow(&c.graph, dtype, scale)?;
            Ok(())
        }
        Instrument::Custom(add) => rewrite(c, add),
    }
}

/// The gradients of a graph in the order in which its nodes complete them.
fn gradients(graph: &Graph) -> Result<Vec<ParameterGradient>> {
    let mut found = Vec::new();
    for o in &graph.outputs {
        let OutputRole::Gradient(p) = o.role else { continue };
        let completed = graph.computed(o.value).0.map_or(0, |n| n.0);
        let input =
            graph.input_index(p).ok_or_else(|| fail!(Graph, "{} is a gradient of no input", o.name))?;
        let parameter = graph.inputs[input].name.clone();
        found.push((completed, ParameterGradient { parameter, ty: graph.ty(p).clone(), rows: None }));
    }
    for (made, parameter, ty, rows) in train::sparse_tables(graph) {
        let completed = match graph.value(made).def {
            Def::Node(n, _) => n.0,
            Def::Input(_) => 0,
        };
        found.push((completed, ParameterGradient { parameter, ty, rows: Some(rows) }));
    }
    found.sort_by_key(|f| f.0);
    Ok(found.into_iter().map(|(_, gradient)| gradient).collect())
}
