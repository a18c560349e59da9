//! Adaptive precision: measures the effect of low precision on every node, on real batches. It chooses the
//! nodes that run low so that loss and gradients stay within a budget, at the best predicted speed.
//!
//! The measurement orders the nodes: by the error each adds alone (in its result, and in the loss to first
//! order) over the time it saves. How many of them may run low is then found by bisection, each candidate set
//! being *run* and its loss and gradients compared with float64: what is promised has been seen.

use crate::core::compile::{self, Goal, Options};
use crate::core::device::Device;
use crate::core::evaluate;
use crate::core::graph::{InputRole, OutputRole};
use crate::core::pass::products::anywhere;
use crate::core::pass::{self, precision, precision::PrecisionSettings};
use crate::core::{DType, Graph, Tensor, TensorType, stats};
use crate::cpu::limits::Limits;
use crate::import::Dims;
use crate::model::{BoundModel, Model};
use crate::runtime::TrainConfig;
use crate::runtime::adapt::Changes;
use crate::runtime::amp::AmpConfig;
use crate::runtime::data::{Dataset, Loader, Order};
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::sync::Arc;

/// The request.
#[derive(Clone, Copy, Debug)]
pub struct AutoRequest {
    /// The low precision, f16 or bf16.
    pub low: DType,
    /// Largest relative error of the loss, and of the vector of all gradients (Euclidean norm), against
    /// float64.
    pub budget: f64,
    /// Batches to measure on.
    pub batches: usize,
}

/// Relative errors against float64, the largest over the batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Errors {
    /// `|loss − truth| / |truth|`
    pub loss: f64,
    /// `‖gradients − truth‖ / ‖truth‖` over all parameters.
    pub gradients: f64,
}

impl Errors {
    fn within(&self, budget: f64) -> bool {
        // A NaN is not within anything.
        self.loss <= budget && self.gradients <= budget
    }

    fn worst(self, other: Errors) -> Errors {
        let larger = |a: f64, b: f64| if a.is_nan() || a > b { a } else { b };
        Errors { loss: larger(self.loss, other.loss), gradients: larger(self.gradients, other.gradients) }
    }
}

/// A node of the exported graph: what was measured and decided.
#[derive(Clone, Debug, Serialize)]
pub struct Choice {
    /// Its name in the exported graph.
    pub node: String,
    /// Its operators.
    pub op: String,
    /// Path of its module.
    pub module: String,
    /// True if it runs in low precision.
    pub low: bool,
    /// Relative error of its result when it alone is low.
    pub error: f64,
    /// Relative change of the loss that this makes, to first order.
    pub effect: f64,
    /// Seconds of a training step that low precision is predicted to save.
    pub saved: f64,
}

/// The choice and its measurements.
#[derive(Clone, Debug, Serialize)]
pub struct Chosen {
    /// The low precision.
    pub dtype: String,
    /// As asked.
    pub budget: f64,
    /// Every node that rounds, the cheapest error first.
    pub choices: Vec<Choice>,
    /// Errors of the chosen set, as it ran.
    pub errors: Errors,
    /// With every node in f32.
    pub full: Errors,
    /// With every node low.
    pub low: Errors,
    /// Sets that were run.
    pub trials: usize,
}

impl Chosen {
    /// Names of the nodes that run low.
    pub fn names(&self) -> Vec<String> {
        self.choices.iter().filter(|c| c.low).map(|c| c.node.clone()).collect()
    }

    /// The settings that repeat the choice.
    pub fn config(&self, base: &AmpConfig) -> Result<AmpConfig> {
        let dtype = self.dtype.parse().ok();
        ensure!(dtype.is_some(), "{} is no dtype", self.dtype);
        Ok(AmpConfig {
            level: precision::Level::O1,
            dtype,
            policy: None,
            low: Some(self.names().into_iter().collect()),
            ..base.clone()
        })
    }

    /// As a policy file: settings of mixed precision for `--amp FILE`, to be read and edited by people.
    pub fn policy(&self) -> String {
        let mut s = String::new();
        let write = |s: &mut String| -> std::fmt::Result {
            let (d, e) = (&self.dtype, &self.errors);
            writeln!(
                s,
                "# Which nodes of the exported graph run in {d}; every other node that rounds runs in f32."
            )?;
            writeln!(
                s,
                "# Measured against float64, relative: loss {:.1e}, gradients {:.1e}",
                e.loss, e.gradients
            )?;
            writeln!(
                s,
                "# (budget {:.1e}; with all nodes in {d} {:.1e} and {:.1e}).",
                self.budget, self.low.loss, self.low.gradients
            )?;
            writeln!(
                s,
                "# Move a node by moving its name in or out of the comment. Use with --amp and the name of this file."
            )?;
            writeln!(s, "level = \"O1\"\ndtype = \"{d}\"\nlow = [")?;
            for c in &self.choices {
                // Escaped as JSON, which TOML takes: a name may hold quotes and line ends.
                let name = format!("{},", serde_json::Value::from(c.node.as_str()));
                let mark = if c.low { "  " } else { "# " };
                let place = match c.module.is_empty() {
                    true => String::new(),
                    false => format!(" in {}", c.module.escape_debug()),
                };
                writeln!(
                    s,
                    "  {mark}{name:<32} # {}{place}: error {:.1e}, loss {:+.1e}, saves {:.1} µs",
                    c.op,
                    c.error,
                    c.effect,
                    c.saved * 1e6
                )?;
            }
            writeln!(s, "]")
        };
        write(&mut s).expect("writing to a string does not fail");
        s
    }
}

/// Reads the first batches of the training data, in the order of the run, and binds the model to them, with
/// the parameters that the settings freeze and their weights of classes. Samples keep their padding.
///
/// # Errors
/// Refusals of the data.
pub fn batches(
    model: &Model,
    dims: &Dims,
    config: &TrainConfig,
    count: usize,
) -> Result<(BoundModel, Vec<Vec<Tensor>>)> {
    let data = Arc::new(Dataset::open(&config.data.train)?);
    let (mut bound, feeding) = model.bind_to_data(dims, data, config)?;
    let changes = Changes::new(config, &bound.graph, &feeding)?;
    bound.graph = changes.weigh(changes.freeze(std::mem::take(&mut bound.graph))?)?;
    let batch = feeding.batch();
    let order =
        if config.data.sequential { Order::Sequential } else { Order::Shuffled { seed: config.seed } };
    let sampler = feeding.sampler(order, config.data.last)?;
    let types: Vec<TensorType> = bound.user_inputs().map(|(_, ty)| ty.clone()).collect();
    let whole = |b: &crate::runtime::data::Batch| b.samples == batch;
    let batches: Vec<Vec<Tensor>> = Loader::new(feeding, sampler, 0)?
        .take(count)
        .collect::<crate::runtime::Result<Vec<_>>>()?
        .into_iter()
        .filter(whole)
        .map(|b| types.iter().zip(&b.inputs).map(|(ty, bytes)| Tensor::from_bytes(ty, bytes)).collect())
        .collect();
    ensure!(!batches.is_empty(), "the training data has no whole batch of {batch} samples");
    Ok((bound, batches))
}

/// Loss and gradients.
struct Step {
    loss: f64,
    gradients: Vec<(String, Vec<f64>)>,
}

/// Chooses which nodes run low.
///
/// # Errors
/// If all-f32 is outside the budget already, and what passes and the device refuse.
pub fn choose(
    bound: &BoundModel,
    batches: &[Vec<Tensor>],
    asked: AutoRequest,
    limits: &Limits,
    device: &dyn Device,
    mut progress: impl FnMut(&str),
) -> Result<Chosen> {
    ensure!(asked.budget > 0.0, "the budget must be positive, it is {}", asked.budget);
    let forward = training(&bound.graph)?;
    let graph = pass::decompose_forward(forward.clone())?;
    progress("measuring every node in float64");
    // The truth is in f64, which not every device has.
    let cpu = crate::devices::prover(device);
    let prover: &dyn Device = cpu.as_ref().map_or(device, |cpu| cpu);
    let (mut choices, truth) = measure(bound, &graph, batches, asked.low, limits, prover)?;
    // Nodes that cost least error for the time they save come first. Errors of many nodes add in squares.
    let price = |c: &Choice| (c.error * c.error + c.effect * c.effect) / c.saved.max(1e-12);
    choices.sort_by(|a, b| price(a).total_cmp(&price(b)).then_with(|| a.node.cmp(&b.node)));
    let mut trials = 0;
    let mut run = |count: usize| -> Result<Errors> {
        trials += 1;
        progress(&format!("running with {count} of {} nodes in {}", choices.len(), asked.low));
        let low: BTreeSet<String> = choices[..count].iter().map(|c| c.node.clone()).collect();
        tried(bound, &forward, batches, &truth, low, asked.low, device)
    };
    let (full, all) = (run(0)?, run(choices.len())?);
    if !full.within(asked.budget) {
        bail!(
            "with every node in f32 the loss is {:.1e} and the gradients {:.1e} from float64 (relative): \
             a budget of {:.1e} cannot be met in mixed precision",
            full.loss,
            full.gradients,
            asked.budget
        );
    }
    let (mut good, mut errors) = (0, full);
    if all.within(asked.budget) {
        (good, errors) = (choices.len(), all);
    } else {
        let mut bad = choices.len();
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            let e = run(middle)?;
            if e.within(asked.budget) { (good, errors) = (middle, e) } else { bad = middle }
        }
    }
    choices.iter_mut().enumerate().for_each(|(i, c)| c.low = i < good);
    Ok(Chosen { dtype: asked.low.to_string(), budget: asked.budget, choices, errors, full, low: all, trials })
}

/// The forward graph with its loss as the only result.
fn training(graph: &Graph) -> Result<Graph> {
    let mut graph = graph.clone();
    let at = graph.outputs.iter().position(|o| o.role == OutputRole::User);
    let loss = graph
        .outputs
        .swap_remove(at.context("the model returns nothing; its first output must be the loss")?);
    graph.outputs = vec![loss];
    Ok(graph)
}

/// Measures every node on its own, and the truth of every batch.
fn measure(
    bound: &BoundModel,
    graph: &Graph,
    batches: &[Vec<Tensor>],
    low: DType,
    limits: &Limits,
    device: &dyn Device,
) -> Result<(Vec<Choice>, Vec<Step>)> {
    let s = pass::precision::sensitivity(graph, low)?;
    let options = Options { goal: Goal::Step, ..Options::default() };
    let run = compile::optimize(s.graph, &options, device.target())?.graph;
    let mut groups: HashMap<&str, usize> = HashMap::new();
    let mut choices: Vec<Choice> = Vec::new();
    // By probe: sums over the batches.
    let mut sums = vec![[0.0f64; 3]; s.probes.len()];
    let mut truth = Vec::new();
    for batch in batches {
        let out = evaluate(device, &run, &feed(&run, bound, batch)?)?;
        let number = |i: &usize| out[*i].to_f64()[0];
        let step = step(&run, &out, 1.0);
        for (p, sums) in s.probes.iter().zip(&mut sums) {
            sums[0] += p.size.iter().map(number).sum::<f64>();
            sums[1] += p.error.iter().map(number).sum::<f64>();
            sums[2] +=
                p.effect.iter().map(number).sum::<f64>().abs() / step.loss.abs().max(f64::MIN_POSITIVE);
        }
        truth.push(step);
    }
    for (p, [size, error, effect]) in s.probes.iter().zip(sums) {
        let node = &graph.nodes[p.node];
        let origin = graph.origin(node);
        let at = *groups.entry(origin.node.as_str()).or_insert_with(|| {
            choices.push(Choice {
                node: origin.node.clone(),
                op: String::new(),
                module: origin.module.clone(),
                low: false,
                error: 0.0,
                effect: 0.0,
                saved: 0.0,
            });
            choices.len() - 1
        });
        let c = &mut choices[at];
        if !c.op.split(' ').any(|o| o == node.op.name) {
            c.op = format!("{} {}", c.op, node.op.name).trim().to_string();
        }
        c.error = c.error.max(if size > 0.0 { (error / size).sqrt() } else { error.sqrt() });
        c.effect = c.effect.max(effect / batches.len() as f64);
        let (flops, bytes) = stats::work(graph, node);
        let seconds = |dtype: DType, bytes: f64| flops / limits.flops(dtype) + bytes / limits.bandwidth();
        // The backward pass of a node does about twice the work of the forward pass.
        c.saved += 3.0 * (seconds(DType::F32, bytes) - seconds(low, bytes / 2.0));
    }
    Ok((choices, truth))
}

/// Scale of the loss where gradients are in f16: without it small ones would underflow.
const F16_SCALE: f64 = 1024.0;

/// Runs the batches with some nodes low and compares with the truth.
fn tried(
    bound: &BoundModel,
    forward: &Graph,
    batches: &[Vec<Tensor>],
    truth: &[Step],
    low: BTreeSet<String>,
    dtype: DType,
    device: &dyn Device,
) -> Result<Errors> {
    let policy = precision::Policy::Chosen(Arc::new(low));
    let settings = PrecisionSettings {
        level: precision::Level::O1,
        dtype: Some(dtype),
        policy: Some(policy),
        ..PrecisionSettings::default()
    };
    // As a training session makes it.
    let scalar = TensorType::new(DType::F32, [0usize; 0]);
    let options = Options {
        precision: settings.properties(device.target())?,
        loss_scale: (dtype == DType::F16).then_some(scalar),
        adjacent: Some(&anywhere),
        ..Options::default()
    };
    let graph = compile::optimize(forward.clone(), &options, device.target())?.graph;
    let scale = if options.loss_scale.is_some() { F16_SCALE } else { 1.0 };
    let mut worst = Errors::default();
    for (batch, truth) in batches.iter().zip(truth) {
        let out = evaluate(device, &graph, &feed(&graph, bound, batch)?)?;
        let got = step(&graph, &out, scale);
        worst = worst.worst(difference(&got, truth)?);
    }
    Ok(worst)
}

fn difference(got: &Step, truth: &Step) -> Result<Errors> {
    let (mut apart, mut size) = (0.0, 0.0);
    for (name, want) in &truth.gradients {
        let found = got.gradients.iter().find(|(n, _)| n == name);
        let (_, g) = found.with_context(|| format!("{name} has no gradient in mixed precision"))?;
        apart += g.iter().zip(want).map(|(g, w)| (g - w).powi(2)).sum::<f64>();
        size += want.iter().map(|w| w * w).sum::<f64>();
    }
    let relative = |apart: f64, size: f64| if apart == 0.0 { 0.0 } else { apart / size };
    Ok(Errors {
        loss: relative((got.loss - truth.loss).abs(), truth.loss.abs()),
        gradients: relative(apart.sqrt(), size.sqrt()),
    })
}

/// Loss and gradients among a graph's results; gradients are divided by the loss scale.
fn step(graph: &Graph, out: &[Tensor], scale: f64) -> Step {
    let gradients = graph.outputs.iter().zip(out).filter(|(o, _)| matches!(o.role, OutputRole::Gradient(_)));
    let divided = |t: &Tensor| t.to_f64().into_iter().map(|x| x / scale).collect();
    Step {
        loss: out[0].to_f64()[0],
        gradients: gradients.map(|(o, t)| (o.name.clone(), divided(t))).collect(),
    }
}

/// The inputs of a graph in its dtypes: stored tensors, the batch, the first random numbers.
fn feed(graph: &Graph, bound: &BoundModel, batch: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut users = batch.iter();
    let one = |input: &crate::core::graph::Input| {
        let want = graph.ty(input.value);
        let tensor = match input.role {
            InputRole::User => users.next().context("a batch lacks an input")?.clone(),
            InputRole::Rng => Tensor::full(want, 0.0),
            InputRole::State => Tensor::full(want, F16_SCALE),
            _ => bound.tensor(&input.name)?,
        };
        Ok(tensor.cast(want.dtype))
    };
    graph.inputs.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_a_model_add_no_line_to_a_policy() {
        let choice = |node: &str, module: &str, low: bool| Choice {
            node: node.into(),
            op: "linear".into(),
            module: module.into(),
            low,
            error: 0.0,
            effect: 0.0,
            saved: 0.0,
        };
        let errors = Errors { loss: 0.0, gradients: 0.0 };
        let hostile = "a[\n  \"injected_node\", #]";
        let chosen = Chosen {
            dtype: "bf16".into(),
            budget: 1.0,
            choices: vec![
                choice("plain", hostile, true),
                choice(hostile, "m", true),
                choice(hostile, "m", false),
            ],
            errors,
            full: errors,
            low: errors,
            trials: 1,
        };
        let policy = chosen.policy();
        let read: AmpConfig = toml::from_str(&policy).unwrap();
        assert_eq!(read.low.unwrap(), [hostile.to_string(), "plain".into()].into());
        assert_eq!(policy.lines().count(), 6 + 1 + 3 + 1, "{policy}");
    }
}
