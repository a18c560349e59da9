//! Comparison of an imported model with PyTorch's recorded truth: outputs, every gradient, every recorded
//! intermediate.

use crate::core::compile::{self, Instrument, Options};
use crate::core::device::Device;
use crate::core::evaluate;
use crate::core::graph::{InputRole, OutputRole};
use crate::core::pass::{bound::error_bounds, diff::NoGradient};
use crate::core::target::Target;
use crate::core::tensor::Data;
use crate::core::{Attrs, Builder, DType, Graph, Tensor, ValueId, ops};
use crate::golden::{Golden, Kind};
use crate::model::Model;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::HashMap;

/// One value compared with its truth.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// What it is.
    pub kind: Kind,
    /// Its name: output index, parameter, buffer, or node of the exported graph.
    pub name: String,
    /// `‖got − want‖ / max(‖want‖, ‖terms‖)`; for integers the share of elements that differ.
    pub error: f64,
    /// The bound derived for this value: `pass::bound` times its measured condition, at most
    /// [`LARGEST_BOUND`]; 0 for integers.
    pub bound: f64,
    /// Euclidean norm of the truth.
    pub norm: f64,
    /// Whether the error is within the bound.
    pub passed: bool,
    /// Where in the model the value is computed.
    pub origin: String,
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
}

impl CheckReport {
    /// Whether everything is within its bound and nothing is missing.
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

    /// The comparison of a kind with the largest error.
    pub fn worst(&self, kind: Kind) -> Option<&Compared> {
        self.of(kind).max_by(|a, b| a.error.total_cmp(&b.error))
    }
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
    let Prepared { graph, run, terms, missing: without } = Prepared::new(&forward, precision, target)?;
    let fed = feed(&graph, &bound, golden)?;
    // Bounds are those of the operators that the step is fused from.
    let bounds = error_bounds(&graph, target, precision.epsilon() > DType::F32.epsilon());
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
    let exact = Prepared::new(&forward, DType::F64, prover.target())?;
    let condition = conditions(&exact, feed(&exact.graph, &bound, golden)?, prover)?;
    let mut report = CheckReport {
        precision: precision.to_string(),
        compared: vec![],
        missing: vec![],
        unmatched,
        reordered: vec![],
    };
    let tied = follows_ties(&graph);
    let by_name: HashMap<&str, usize> =
        graph.outputs.iter().enumerate().map(|(i, o)| (o.name.as_str(), i)).collect();
    let mut compare = |kind: Kind, name: &str, output: usize, want: &Tensor| -> Result<()> {
        let o = &graph.outputs[output];
        let t = &got[output];
        ensure!(t.shape() == want.shape(), "{name} is {}, the golden has {}", t.ty, want.ty);
        let size = terms.get(&output).map_or(0.0, |&i| norm(&got[i].to_f64()));
        let error = difference(t, want, size);
        let derived = bounds[o.value.0 as usize] * condition[output];
        let bound = match t.dtype().is_float() {
            true if derived < LARGEST_BOUND => derived,
            true => LARGEST_BOUND,
            false => 0.0,
        };
        let origin = graph.producer(o.value).map_or(String::new(), |(n, _)| graph.origin(n).to_string());
        let (norm, passed) = (norm(&want.to_f64()), error <= bound);
        if kind == Kind::Node && !passed && tied[o.value.0 as usize] && same_multiset(t, want, bound) {
            report.reordered.push(name.to_string());
            return Ok(());
        }
        report.compared.push(Compared { kind, name: name.to_string(), error, bound, norm, passed, origin });
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
                missing.push(format!("PyTorch has a gradient of {name}, we have none: {reason}"));
            }
        }
    }
    for o in graph.outputs.iter().filter(|o| matches!(o.role, OutputRole::Gradient(_))) {
        let name = o.name.strip_prefix("grad.").unwrap_or(&o.name);
        if !golden.values(Kind::Gradient).contains_key(name) {
            missing.push(format!("we have a gradient of {name}, PyTorch has none"));
        }
    }
    for (name, want) in golden.values(Kind::Buffer) {
        let found = graph.outputs.iter().position(|o| match o.role {
            OutputRole::Mutation(v) => graph.input_index(v).is_some_and(|i| graph.inputs[i].name == name),
            _ => false,
        });
        match found {
            Some(i) => compare(Kind::Buffer, name, i, want)?,
            None => missing.push(format!("PyTorch writes buffer {name}, we do not")),
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

/// The step whose values are compared: as it trains, in one float dtype, with every recorded value as a
/// result and the sums of magnitudes to judge by.
struct Prepared {
    /// Before fusion: bounds are derived from its operators. Inputs and outputs are those of `run`.
    graph: Graph,
    /// What runs.
    run: Graph,
    /// By output, the output that holds the size of the terms it is a sum of.
    terms: HashMap<usize, usize>,
    missing: Vec<NoGradient>,
}

impl Prepared {
    fn new(forward: &Graph, precision: DType, target: &Target) -> Result<Prepared> {
        let found = RefCell::new((Graph::default(), HashMap::new()));
        let add_terms = |graph: Graph| {
            let (graph, terms) = with_terms(graph)?;
            *found.borrow_mut() = (graph.clone(), terms);
            Ok(graph)
        };
        let options = Options {
            upcast: Some(precision),
            all_outputs: true,
            instrument: Instrument::Custom(&add_terms),
            ..Options::default()
        };
        let compiled = compile::optimize(forward.clone(), &options, target)?;
        let (graph, terms) = found.into_inner();
        Ok(Prepared { graph, run: compiled.graph, terms, missing: compiled.missing })
    }
}

/// A bound above this proves nothing: the error of zeros is 1. Long paths in 8 or 11 bits of precision reach
/// it.
pub const LARGEST_BOUND: f64 = 0.5;

/// Relative change of the inputs by which conditions are measured: far above f64's rounding, far below
/// anything's curvature.
const NUDGE: f64 = 1e-8;

/// A condition beyond this is not believed: something discrete has flipped.
const WORST_CONDITION: f64 = 1e4;

/// The condition number of every output, at least 1: how much a relative change of all float inputs is
/// magnified, measured in f64 by changing each element by ±[`NUDGE`]. First-order error bounds scale with it
/// (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 1.6).
fn conditions(p: &Prepared, fed: Vec<Tensor>, device: &dyn Device) -> Result<Vec<f64>> {
    let base = evaluate(device, &p.run, &fed)?;
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut sign = || {
        // Marsaglia's xorshift64 (2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if state >> 63 == 0 { 1.0 } else { -1.0 }
    };
    let nudged: Vec<Tensor> = fed
        .into_iter()
        .map(|t| match t.data {
            Data::Float(v) => {
                Tensor::float(t.ty.dtype, t.ty.shape, v.iter().map(|x| x * (1.0 + NUDGE * sign())).collect())
            }
            Data::Int(_) => t,
        })
        .collect();
    let moved = evaluate(device, &p.run, &nudged)?;
    let of = |i: usize| {
        let terms = p.terms.get(&i).map_or(0.0, |&t| norm(&base[t].to_f64()));
        let change = difference(&moved[i], &base[i], terms) / NUDGE;
        if change.is_finite() { change.clamp(1.0, WORST_CONDITION) } else { 1.0 }
    };
    Ok((0..base.len()).map(of).collect())
}

/// Which values depend on the order in which a sort leaves equal keys.
fn follows_ties(graph: &Graph) -> Vec<bool> {
    let mut tied = vec![false; graph.values.len()];
    for node in &graph.nodes {
        let sorts = matches!(node.op.name, "sort" | "argsort" | "topk");
        if sorts || node.operands().any(|v| tied[v.0 as usize]) {
            node.outputs.iter().for_each(|v| tied[v.0 as usize] = true);
        }
    }
    tied
}

/// Whether two tensors hold the same numbers in some order, up to a relative bound on the largest of them.
fn same_multiset(got: &Tensor, want: &Tensor, bound: f64) -> bool {
    let (mut g, mut w) = (got.to_f64(), want.to_f64());
    g.sort_by(f64::total_cmp);
    w.sort_by(f64::total_cmp);
    let scale = w.iter().fold(0.0f64, |a, b| a.max(b.abs()));
    g.len() == w.len() && g.iter().zip(&w).all(|(a, b)| a == b || (a - b).abs() <= bound * scale)
}

/// The values of a lifted graph's inputs: weights and buffers of the model, user inputs of the golden, in the
/// graph's dtypes.
fn feed(graph: &Graph, bound: &crate::model::Bound, golden: &Golden) -> Result<Vec<Tensor>> {
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
            Ok(tensor.cast(want.dtype))
        })
        .collect()
}

/// Adds, for every gradient that is a sum, the sum of its terms' magnitudes: where terms cancel, an error can
/// only be judged against these. Returns the graph and, by output, the output holding them.
fn with_terms(graph: Graph) -> crate::core::Result<(Graph, HashMap<usize, usize>)> {
    let mut b = Builder::extend(graph);
    let (mut terms, mut known) = (HashMap::new(), Magnitudes::new());
    for i in 0..b.graph().outputs.len() {
        let o = &b.graph().outputs[i];
        if !matches!(o.role, OutputRole::Gradient(_)) {
            continue;
        }
        let (v, name) = (o.value, format!("terms.{}", o.name));
        if let Some(size) = magnitude(&mut b, v, &mut known)? {
            terms.insert(i, b.graph().outputs.len());
            b.output(name, size, OutputRole::User);
        }
    }
    Ok((b.finish(), terms))
}

/// The sums of magnitudes by the value that is a sum, `None` for values that are none: one for each,
/// however many sums it is part of.
type Magnitudes = HashMap<ValueId, Option<ValueId>>;

/// The sum of the magnitudes of what a value is a sum of: through additions, and through what only moves
/// elements. `None` if it is no sum.
fn magnitude(b: &mut Builder, v: ValueId, known: &mut Magnitudes) -> crate::core::Result<Option<ValueId>> {
    // Operands first, by a stack of our own: graphs may be deeper than the system's.
    let mut stack = vec![v];
    while let Some(&v) = stack.last() {
        let operands = match known.contains_key(&v) {
            true => Vec::new(),
            false => summed(b.graph(), v),
        };
        let before = stack.len();
        stack.extend(operands.into_iter().filter(|x| !known.contains_key(x)));
        if stack.len() == before {
            stack.pop();
            if !known.contains_key(&v) {
                let size = own_magnitude(b, v, known)?;
                known.insert(v, size);
            }
        }
    }
    Ok(known[&v])
}

/// The operands whose magnitudes make up that of a value.
fn summed(graph: &Graph, v: ValueId) -> Vec<ValueId> {
    let Some((node, _)) = graph.producer(v) else { return Vec::new() };
    let operands: Vec<ValueId> = node.operands().collect();
    match (node.op.name, operands.len()) {
        ("add", 2) if node.attrs.is_empty() => operands,
        ("reshape" | "permute" | "to", 1) => operands,
        _ => Vec::new(),
    }
}

/// As [`magnitude`], of a value whose operands are known.
fn own_magnitude(b: &mut Builder, v: ValueId, known: &Magnitudes) -> crate::core::Result<Option<ValueId>> {
    let Some((node, result)) = b.graph().producer(v).map(|(n, i)| (n.clone(), i)) else { return Ok(None) };
    let inputs: Vec<ValueId> = node.operands().collect();
    let abs = |b: &mut Builder, x: ValueId| b.one(&ops::pointwise::abs::ABS, &[x], Attrs::new());
    Ok(match (node.op.name, &inputs[..]) {
        ("sum", &[x]) => {
            let size = abs(b, x)?;
            Some(b.one(node.op, &[size], node.attrs.clone())?)
        }
        ("add", &[x, y]) if node.attrs.is_empty() => {
            let mut sizes = [x, y];
            for size in &mut sizes {
                *size = match known[size] {
                    Some(m) => m,
                    None => abs(b, *size)?,
                };
            }
            Some(b.add(sizes[0], sizes[1])?)
        }
        // Weights' gradients are sums over the first operand, in which these are linear.
        (name, &[g, ..]) if name.contains("norm_backward") => {
            let mut inputs = node.inputs.clone();
            inputs[0] = Some(abs(b, g)?);
            let size = b.apply(node.op, &inputs, node.attrs.clone())?[result];
            Some(abs(b, size)?)
        }
        ("reshape" | "permute" | "to", &[x]) => match known[&x] {
            Some(m) => Some(b.one(node.op, &[m], node.attrs.clone())?),
            None => None,
        },
        _ => None,
    })
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
/// themselves.
pub fn difference(got: &Tensor, want: &Tensor, terms: f64) -> f64 {
    let (g, mut w) = (got.to_f64(), want.to_f64());
    // What the dtype cannot hold is infinite in it: masks add up the most negative numbers.
    let largest = got.dtype().max_value();
    w.iter_mut().filter(|x| x.abs() > largest).for_each(|x| *x *= f64::INFINITY);
    if !got.dtype().is_float() {
        let differ = g.iter().zip(&w).filter(|(a, b)| a != b).count();
        return differ as f64 / g.len().max(1) as f64;
    }
    let same = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan());
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
