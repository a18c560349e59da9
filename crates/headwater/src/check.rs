//! Comparison of an imported model with PyTorch's recorded results: outputs, every gradient, every recorded
//! intermediate.

pub mod tables;

use crate::core::compile::{self, Instrument, Options};
use crate::core::device::Device;
use crate::core::evaluate;
use crate::core::graph::{InputRole, OutputRole};
use crate::core::pass::bound::{MAGNIFIED, confidence, error_bounds, sampled};
use crate::core::pass::{self, differentiate::NoGradient};
use crate::core::target::Target;
use crate::core::{Builder, DType, Graph, Tensor, ValueId};
use crate::golden::{Golden, Kind};
use crate::model::Model;
use crate::report::text;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// One value compared with its truth.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// Its kind.
    pub kind: Kind,
    /// Its name: output index, parameter, buffer, or node of the exported graph.
    pub name: String,
    /// `‖got − want‖ / size`; for integers the share of elements that differ.
    pub error: f64,
    /// The bound derived for this value by `pass::bound`, at most [`LARGEST_BOUND`]; 0 for integers.
    pub bound: f64,
    /// Euclidean norm of the truth.
    pub norm: f64,
    /// The size that the error is relative to: the norm of the truth, or the size of the terms that cancel in it, if
    /// that is larger.
    pub size: f64,
    /// True if the truth and the value are both zero up to rounding: their terms cancel.
    pub zero: bool,
    /// True if the error is within the bound.
    pub passed: bool,
    /// Place in the model where the value is computed.
    pub origin: String,
    /// Operator of a node, as `headwater op` names it; empty for other kinds.
    pub operator: String,
}

/// Everything a check found.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// Precision that was run.
    pub precision: String,
    /// Every comparison: outputs, gradients and buffers by name, nodes in the order they are computed.
    pub compared: Vec<Compared>,
    /// Gradients PyTorch has and we do not, or the other way round, with the reason.
    pub missing: Vec<String>,
    /// Recorded nodes that have no counterpart in the imported graph.
    pub unmatched: Vec<String>,
    /// Recorded nodes whose elements stand in another order, because they follow the order in which a sort
    /// that is not stable leaves equal keys: PyTorch does not specify it. What is computed from them is
    /// compared.
    pub reordered: Vec<String>,
    /// Operators whose result or gradient PyTorch is known to get wrong, or may, with the place and what it does.
    pub departures: Vec<String>,
    /// The archive that the golden was recorded from, if it is another one.
    pub foreign: Option<String>,
    /// A remark, if the golden does not state that the archive computes what its PyTorch module computes.
    pub module: Option<String>,
    /// The archive that was checked.
    pub archive: String,
    /// The file of the golden.
    pub golden: String,
}

/// Beginnings of the reasons in [`CheckReport::missing`].
const NO_GRADIENT: &str = "PyTorch has a gradient of";
const OWN_GRADIENT: &str = "we have a gradient of";
const NO_BUFFER: &str = "PyTorch writes buffer";

impl CheckReport {
    /// True if everything is within its bound and nothing is missing.
    pub fn passed(&self) -> bool {
        self.missing.is_empty() && self.compared.iter().all(|c| c.passed)
    }

    /// The first node, in the order of computation, that differs.
    pub fn first_difference(&self) -> Option<&Compared> {
        self.of(Kind::Node).find(|c| !c.passed)
    }

    /// The comparisons of one kind.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &Compared> {
        self.compared.iter().filter(move |c| c.kind == kind)
    }

    /// Differences that the comparison shows, their likely cause, and what to try next, in sentences;
    /// nothing where all agree.
    pub fn evidence(&self) -> Vec<String> {
        if self.passed() {
            return vec![];
        }
        let mut said = Vec::new();
        let wrong = |kind: Kind| self.of(kind).filter(|c| !c.passed).count();
        let counts = Kind::ALL.iter().filter(|(k, _)| wrong(*k) > 0).map(|(k, _)| {
            format!("{} of {} {}s", wrong(*k), self.of(*k).count(), format!("{k:?}").to_lowercase())
        });
        let counts: Vec<String> = counts.collect();
        if !counts.is_empty() {
            said.push(format!("out of their bounds in {}: {}", self.precision, counts.join(", ")));
        }
        said.extend(self.departures.iter().map(|d| format!("PyTorch is wrong here: {d}")));
        let forward = wrong(Kind::Output) + wrong(Kind::Node) + wrong(Kind::Buffer);
        let again = |precision: &str| {
            let (archive, golden) = (text::word(&self.archive), text::word(&self.golden));
            format!("`headwater check {archive} {golden} --precision {precision} --all`")
        };
        if self.foreign.is_none() {
            said.extend(self.absence());
        }
        if let Some(foreign) = &self.foreign {
            said.push(format!("likely cause: {foreign}. Next: record the golden of this archive"));
        } else if counts.is_empty() {
            // All that was compared agrees: no operator is suspected.
        } else if self.precision != DType::F64.to_string() {
            said.push(format!(
                "next: run the check in f64, {}. If that agrees, the operators are right and the model magnifies rounding",
                again("f64")
            ));
        } else if let Some(first) = self.first_difference() {
            let alone = match first.operator.as_str() {
                "" => "run it alone with `headwater op`".to_string(),
                op => format!(
                    "run it alone, `headwater op {op} --in in.safetensors --out out.safetensors` (`headwater op {op} \
                     --schema` lists its tensors)"
                ),
            };
            said.push(format!(
                "likely cause: the operator of {}, the first that differs, at {}; what follows from it differs too ({} lists \
                 it). Next: {alone}, or record with intermediates=\"all\" if it stands for a whole module",
                first.name,
                first.origin,
                again("f64")
            ));
        } else if forward == 0 && wrong(Kind::Gradient) > 0 {
            said.push(
                "outputs and intermediates agree: likely cause is the derivative of an operator between these parameters and \
                 the loss. Next: record with intermediates=\"all\", and take the operators beside the parameters through \
                 `headwater op --grad`"
                    .into(),
            );
        } else if forward > 0 {
            said.push(
                "next: record with intermediates=\"modules\", which shows where the first difference is"
                    .into(),
            );
        }
        said
    }

    /// The likely cause of gradients and buffers that one side alone has, and what to try next: a sentence for each kind.
    fn absence(&self) -> Vec<String> {
        let archive = text::word(&self.archive);
        let causes = [
            (
                NO_BUFFER,
                "the archive was exported in eval mode, in which no buffer is written, and recorded in train mode. Next: \
                 export and record in the same mode"
                    .to_string(),
            ),
            (
                NO_GRADIENT,
                format!(
                    "the way from the loss to these parameters is cut: they were frozen when the model was exported, a \
                     detach lies between, or an operator has no derivative here. Next: `headwater inspect {archive}` \
                     lists operators and trained parameters; export with the requires_grad that PyTorch trains with, and \
                     record again"
                ),
            ),
            (
                OWN_GRADIENT,
                "PyTorch recorded with these parameters frozen or unused. Next: record the golden again with the model as \
                 it was exported"
                    .to_string(),
            ),
        ];
        let found =
            causes.into_iter().filter(|(begin, _)| self.missing.iter().any(|m| m.starts_with(*begin)));
        found.map(|(_, cause)| format!("likely cause: {cause}")).collect()
    }

    /// The comparison of a kind with the largest error.
    pub fn worst(&self, kind: Kind) -> Option<&Compared> {
        self.of(kind).max_by(|a, b| a.error.total_cmp(&b.error))
    }
}

/// Operators of a model whose result or gradient PyTorch is known to get wrong.
fn departures(graph: &Graph) -> Vec<String> {
    let said = graph.nodes.iter().filter_map(|node| {
        let what = crate::core::ops::departures::of(graph, node)?;
        Some(format!("{}, at {}: {what}", node.op.name, graph.origin(node)))
    });
    said.collect()
}

/// Runs forward and backward at `precision` and compares with the golden. The proof in f64 and the condition
/// numbers are computed on the CPU, whatever the device: it is judged in its own dtypes.
///
/// # Errors
/// If the golden does not belong to the model, or something cannot run.
pub fn check(model: &Model, golden: &Golden, precision: DType, device: &dyn Device) -> Result<CheckReport> {
    let cpu = crate::devices::prover(device);
    let prover: &dyn Device = cpu.as_ref().map_or(device, |cpu| cpu);
    let device = if precision == DType::F64 { prover } else { device };
    model.verify()?;
    let bound = model.bind_to(golden)?;
    ensure!(
        !golden.values(Kind::Output).is_empty(),
        "the golden records no output: there is nothing to compare"
    );
    let outputs = bound.graph.outputs.iter().filter(|o| o.role == OutputRole::User).count();
    let mut b = Builder::extend(bound.graph.clone());
    // Recorded nodes become outputs, in the order they are computed.
    let mut unmatched = Vec::new();
    let mut nodes: Vec<(ValueId, &str)> = Vec::new();
    for name in golden.values(Kind::Node).into_keys() {
        match bound.names.get(name) {
            Some(&v) => nodes.push((v, name)),
            None => unmatched.push(name.to_string()),
        }
    }
    nodes.sort();
    for &(v, name) in &nodes {
        b.output(format!("node.{name}"), v, OutputRole::User);
    }
    let forward = b.finish();
    let target = device.target();
    let Prepared { graph, run, unfolded, missing: without } = Prepared::new(&forward, precision, target)?;
    let fed = feed(&graph, &bound, golden)?;
    // Bounds are those of the operators that the step is fused from. What was folded to a constant was
    // computed as well: simplification keeps all bits, so the graph before it has the same errors.
    let rounded = precision.epsilon() > DType::F32.epsilon();
    let bounds = error_bounds(&unfolded, target, rounded);
    let confidence = confidence(&unfolded);
    let mut got = evaluate(device, &run, &fed)?;
    // Values that are results are neither sliced nor recognised away, so sums may be in another order than in
    // training: loss, gradients and buffers are those of the plan that trains.
    let trained = trained(&bound.graph, precision, target)?;
    let own = evaluate(device, &trained, &feed(&trained, &bound, golden)?)?;
    for (output, value) in trained.outputs.iter().zip(own) {
        if let Some(i) = graph.outputs.iter().position(|o| o.name == output.name) {
            got[i] = value;
        }
    }
    let exact = Prepared::new(&forward, DType::F64, prover.target())?.graph;
    let deviations = deviations(&exact, precision, rounded, target, prover, confidence, |graph| {
        feed(graph, &bound, golden)
    })?;
    let mut report = CheckReport {
        precision: precision.to_string(),
        compared: vec![],
        missing: vec![],
        unmatched,
        reordered: vec![],
        departures: departures(&bound.graph),
        foreign: golden.of_another(&model.path)?,
        module: golden.unstated(),
        archive: model.path.display().to_string(),
        golden: golden.path().display().to_string(),
    };
    let tied = follows_ties(&graph);
    let by_name: HashMap<&str, usize> =
        graph.outputs.iter().enumerate().map(|(i, o)| (o.name.as_str(), i)).collect();
    let mut compare = |kind: Kind, name: &str, output: usize, want: &Tensor| -> Result<()> {
        let o = &graph.outputs[output];
        let t = &got[output];
        let producer = bound.names.get(name).filter(|_| kind == Kind::Node);
        let producer = producer.and_then(|&v| bound.graph.producer(v));
        let operator = producer.map_or(String::new(), |(node, _)| node.op.name.to_string());
        ensure!(t.shape() == want.shape(), "{name} is {}, the golden has {}", t.ty, want.ty);
        // The size of which the derived bound is the error that was sampled: where terms cancel, that of the
        // terms.
        let derived = bounds[unfolded.outputs[output].value.0 as usize];
        let cancels = if derived > 0.0 { confidence * deviations[output] / derived } else { 0.0 };
        let error = difference(t, want, cancels, target);
        let bound = match t.dtype().is_float() {
            true if derived < LARGEST_BOUND => derived,
            true => LARGEST_BOUND,
            false => 0.0,
        };
        let origin = graph.producer(o.value).map_or(String::new(), |(n, _)| graph.origin(n).to_string());
        let (length, passed) = (norm(&want.to_f64()), error <= bound);
        let size = length.max(cancels);
        let zero = passed && t.dtype().is_float() && cancels > 0.0 && length <= bound * size;
        if kind == Kind::Node && !passed && tied[o.value.0 as usize] && same_multiset(t, want, bound) {
            report.reordered.push(name.to_string());
            return Ok(());
        }
        let name = name.to_string();
        report.compared.push(Compared {
            kind,
            name,
            error,
            bound,
            norm: length,
            size,
            zero,
            passed,
            origin,
            operator,
        });
        Ok(())
    };
    // The model's own; recorded nodes come after them.
    let users: Vec<usize> = (0..graph.outputs.len())
        .filter(|&i| graph.outputs[i].role == OutputRole::User)
        .take(outputs)
        .collect();
    for (name, want) in golden.values(Kind::Output) {
        let i: usize = name.parse().with_context(|| format!("output.{name} of the golden"))?;
        compare(
            Kind::Output,
            name,
            *users.get(i).with_context(|| format!("the model has no output {i}"))?,
            want,
        )?;
    }
    let mut missing = Vec::new();
    for (name, want) in golden.values(Kind::Gradient) {
        match by_name.get(format!("grad.{name}").as_str()) {
            Some(&i) => compare(Kind::Gradient, name, i, want)?,
            None => {
                let reason =
                    without.iter().find(|m| m.parameter == name).map_or("no such parameter", |m| &m.reason);
                missing.push(format!("{NO_GRADIENT} {name}, we have none: {reason}"));
            }
        }
    }
    for o in graph.outputs.iter().filter(|o| matches!(o.role, OutputRole::Gradient(_))) {
        let name = o.name.strip_prefix("grad.").unwrap_or(&o.name);
        if !golden.values(Kind::Gradient).contains_key(name) {
            missing.push(format!("{OWN_GRADIENT} {name}, PyTorch has none"));
        }
    }
    for (name, want) in golden.values(Kind::Buffer) {
        let found = graph.outputs.iter().position(|o| match o.role {
            OutputRole::Mutation(v) => graph.input_index(v).is_some_and(|i| graph.inputs[i].name == name),
            _ => false,
        });
        match found {
            Some(i) => compare(Kind::Buffer, name, i, want)?,
            None => missing.push(format!("{NO_BUFFER} {name}, we do not")),
        }
    }
    let recorded = golden.values(Kind::Node);
    for (_, name) in nodes {
        compare(Kind::Node, name, by_name[format!("node.{name}").as_str()], recorded[name])?;
    }
    report.missing = missing;
    Ok(report)
}

/// The step that trains, in one float dtype.
fn trained(forward: &Graph, precision: DType, target: &Target) -> Result<Graph> {
    let options = Options { upcast: Some(precision), ..Options::default() };
    Ok(compile::optimize(forward.clone(), &options, target)?.graph)
}

/// The step whose values are compared: as it trains, in one float dtype, with every recorded value as a result.
struct Prepared {
    /// Before fusion: errors are sampled in its operators. Inputs and outputs are those of `run`.
    graph: Graph,
    /// Before simplification: bounds are derived from its operators. Outputs are those of `run`.
    unfolded: Graph,
    /// The graph that runs.
    run: Graph,
    missing: Vec<NoGradient>,
}

impl Prepared {
    fn new(forward: &Graph, precision: DType, target: &Target) -> Result<Prepared> {
        let found = RefCell::new(Graph::default());
        let keep = |graph: Graph| {
            *found.borrow_mut() = graph.clone();
            Ok(graph)
        };
        let (unfolded, folded) = (RefCell::new(Graph::default()), Cell::new(false));
        let watch = |stage: &'static compile::Stage, made: &compile::StageResult| match made {
            _ if folded.get() => {}
            _ if stage.name == "simplify" => folded.set(true),
            compile::StageResult::Graph(graph) => *unfolded.borrow_mut() = (*graph).clone(),
            compile::StageResult::Plan(_) => {}
        };
        let options = Options {
            upcast: Some(precision),
            all_outputs: true,
            instrument: Instrument::Custom(&keep),
            watch: Some(&watch),
            ..Options::default()
        };
        let compiled = compile::optimize(forward.clone(), &options, target)?;
        Ok(Prepared {
            graph: found.into_inner(),
            unfolded: pass::simplify::remove_dead(unfolded.into_inner()).0,
            run: compiled.graph,
            missing: compiled.missing,
        })
    }
}

/// A bound above this proves nothing: the error of zeros is 1. Long paths in 8 or 11 bits of precision reach
/// it.
pub const LARGEST_BOUND: f64 = 0.5;

/// Relative size of the roundings by which deviations are sampled: far above f64's own, far below anything's
/// curvature.
const MAGNIFICATION: f64 = 1e-8;

/// Growth of the deviation with the roundings. It doubles with them; where something discrete has flipped
/// it stays.
const GROWTH: f64 = 1.5;

/// Moves by exchanges that are allowed, of the largest of three samples. Exchanges are many and independent, so squares of moves
/// are near their mean: of ten equal ones, four times as many have a chance of 1e-12 (Poisson).
const EXCHANGED: f64 = 2.0;

/// By output, a sample of the standard deviation of its error (Euclidean norm) when the graph, which is in
/// f64, runs at `precision`; 0 where the sample says nothing, because something discrete has flipped. `feed`
/// makes a graph's inputs.
///
/// With `rounded` inputs, in 16 bits, roundings of their true size are sampled too. They exchange the largest of numbers that
/// are nearly equal, and signs of small ones: of a share `p` of the elements that pass a gradient on, which moves it by
/// `√(2p)` of its norm, far more than the roundings. [`EXCHANGED`] times the largest such move is allowed: the deviation is
/// that over `confidence`.
fn deviations(
    graph: &Graph,
    precision: DType,
    rounded: bool,
    target: &Target,
    prover: &dyn Device,
    confidence: f64,
    feed: impl Fn(&Graph) -> Result<Vec<Tensor>>,
) -> Result<Vec<f64>> {
    let graph = pass::fuse(sampled(graph, target, precision, rounded)?, prover.target())?;
    let fed = feed(&graph)?;
    let run = |key: f64, magnified: f64| {
        let inputs = graph.inputs.iter().zip(&fed).map(|(input, tensor)| match input.role {
            InputRole::Rng => Tensor::full(&tensor.ty, key),
            InputRole::State if input.name == MAGNIFIED => Tensor::full(&tensor.ty, magnified),
            _ => tensor.clone(),
        });
        evaluate(prover, &graph, &inputs.collect::<Vec<_>>())
    };
    let exact = run(0.0, 0.0)?;
    let (half, whole, other) =
        (run(0.0, MAGNIFICATION / 2.0)?, run(0.0, MAGNIFICATION)?, run(1.0, MAGNIFICATION)?);
    let moved = |to: &[Tensor], i: usize| match exact[i].dtype().is_float() {
        true => distance(&to[i].to_f64(), &exact[i].to_f64()),
        false => 0.0,
    };
    let unit = precision.epsilon() / 2.0;
    let mut full = Vec::new();
    for key in [2.0, 3.0, 4.0].into_iter().filter(|_| rounded) {
        full.push(run(key, unit)?);
    }
    Ok((0..exact.len())
        .map(|i| {
            let (half, whole) = (moved(&half, i), moved(&whole, i));
            let deviation = whole.max(moved(&other, i)) / MAGNIFICATION * unit;
            let smooth = if deviation.is_finite() && whole >= GROWTH * half { deviation } else { 0.0 };
            let exchanged = full.iter().map(|full| moved(full, i)).fold(0.0, f64::max);
            smooth.max(EXCHANGED * exchanged / confidence)
        })
        .collect())
}

/// Euclidean distance of two tensors where both are finite.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    norm(&a.iter().zip(b).map(|(a, b)| a - b).filter(|d| d.is_finite()).collect::<Vec<_>>())
}

/// By value, true if it depends on the order in which a sort leaves equal keys.
fn follows_ties(graph: &Graph) -> Vec<bool> {
    let mut tied = vec![false; graph.values.len()];
    for node in &graph.nodes {
        if node.op.orders_ties() || node.operands().any(|v| tied[v.0 as usize]) {
            node.outputs.iter().for_each(|v| tied[v.0 as usize] = true);
        }
    }
    tied
}

/// True if two tensors hold the same numbers in some order, up to a relative bound on the largest of them.
fn same_multiset(got: &Tensor, want: &Tensor, bound: f64) -> bool {
    let (mut g, mut w) = (got.to_f64(), want.to_f64());
    g.sort_by(f64::total_cmp);
    w.sort_by(f64::total_cmp);
    let scale = w.iter().fold(0.0f64, |a, b| a.max(b.abs()));
    g.len() == w.len() && g.iter().zip(&w).all(|(a, b)| a == b || (a - b).abs() <= bound * scale)
}

/// The values of a lifted graph's inputs: weights and buffers of the model, user inputs of the golden, in the
/// graph's dtypes.
fn feed(graph: &Graph, bound: &crate::model::BoundModel, golden: &Golden) -> Result<Vec<Tensor>> {
    let inputs = golden.inputs();
    let mut users = 0;
    graph
        .inputs
        .iter()
        .map(|input| {
            let want = graph.ty(input.value);
            let tensor = match input.role {
                InputRole::User => {
                    let position = bound.positions[users];
                    users += 1;
                    let t = inputs.get(&position);
                    (*t.with_context(|| format!("the golden has no input.{position} for {}", input.name))?)
                        .clone()
                }
                InputRole::Rng | InputRole::State => Tensor::full(want, 0.0),
                _ => bound.tensor(&input.name)?,
            };
            ensure!(tensor.shape() == &want.shape, "{} is {}, expected {want}", input.name, tensor.ty);
            Ok(match input.role {
                InputRole::Buffer { .. } | InputRole::Constant => tensor.cast_saturating(want.dtype),
                _ => tensor.cast(want.dtype),
            })
        })
        .collect()
}

fn norm(x: &[f64]) -> f64 {
    // Scaled, so that squares of tiny or huge values neither vanish nor overflow.
    let largest = x.iter().fold(0.0f64, |a, b| a.max(b.abs()));
    if largest == 0.0 || !largest.is_finite() {
        return largest;
    }
    largest * x.iter().map(|v| (v / largest).powi(2)).sum::<f64>().sqrt()
}

/// Norm-wise relative difference; `terms` is the norm of what cancels. NaN equals NaN, infinities equal
/// themselves, and both equal what a target that saturates has in their place.
fn difference(got: &Tensor, want: &Tensor, terms: f64, target: &Target) -> f64 {
    let (g, mut w) = (got.to_f64(), want.to_f64());
    // Numbers beyond the dtype's range are infinite in it: masks add up the most negative numbers.
    let largest = got.dtype().max_value();
    w.iter_mut().filter(|x| x.abs() > largest).for_each(|x| *x *= f64::INFINITY);
    if !got.dtype().is_float() {
        let differ = g.iter().zip(&w).filter(|(a, b)| a != b).count();
        return differ as f64 / g.len().max(1) as f64;
    }
    let dtype = got.dtype();
    let same = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || a == target.result(dtype, b);
    let finite = |x: f64| if x.is_finite() { x } else { 0.0 };
    let apart: Vec<f64> = g.iter().zip(&w).map(|(&a, &b)| if same(a, b) { 0.0 } else { a - b }).collect();
    if apart.iter().any(|d| !d.is_finite()) {
        return f64::INFINITY;
    }
    let scale = norm(&w.iter().map(|&x| finite(x)).collect::<Vec<_>>()).max(terms);
    let apart = norm(&apart);
    if apart == 0.0 { 0.0 } else { apart / scale }
}

#[cfg(test)]
mod tests;
