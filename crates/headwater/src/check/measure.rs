//! What a device computes of a step, and how far rounding may take it: all that comparing needs, whatever it
//! is compared with.

use super::judge::Value;
use super::scale::{self, Scale};
use super::step::{Given, Precision, Recorded, Step, feed, trained};
use crate::core::device::Device;
use crate::core::evaluate::{Loaded, evaluate};
use crate::core::graph::OutputRole;
use crate::core::pass::differentiate::NoGradient;
use crate::core::pass::{self, bound};
use crate::core::{DType, Graph, Tensor};
use crate::golden::{Golden, Kind};
use crate::model::{BoundModel, Model};
use anyhow::{Context, Result, ensure};

/// Runs with random roundings at first, and where something is not proved by them.
const RUNS: [usize; 2] = [16, 48];

/// The values of a step that can be compared with a golden.
pub struct Measured {
    /// In the order of the golden's kinds.
    pub(super) values: Vec<Value>,
    pub(super) precision: Precision,
    /// Names of gradients without a value, with the reason.
    pub(super) without: Vec<NoGradient>,
    /// Names of gradients that the step has.
    pub(super) gradients: Vec<String>,
    pub(super) unmatched: Vec<String>,
    /// Runs with random roundings.
    pub(super) runs: usize,
    pub(super) scale: Option<Scale>,
    pub(super) bound: BoundModel,
}

impl Measured {
    /// Runs the step of a model on a device, and with random roundings. These, as the step in f64, run on the
    /// CPU, whatever the device: it is judged in its own dtypes.
    ///
    /// # Errors
    /// If the golden does not belong to the model, or something cannot run.
    pub fn new(
        model: &Model,
        golden: &Golden,
        precision: &Precision,
        device: &dyn Device,
    ) -> Result<Measured> {
        let cpu = crate::devices::prover(device);
        let prover: &dyn Device = cpu.as_ref().map_or(device, |cpu| cpu);
        let device = if precision.dtype == DType::F64 { prover } else { device };
        model.verify()?;
        let bound = model.bind_to(golden)?;
        ensure!(
            !golden.values(Kind::Output).is_empty(),
            "the golden records no output: there is nothing to compare"
        );
        let recorded = Recorded::new(&bound, golden);
        let target = device.target();
        let step = Step::new(&recorded.graph, precision, target)?;
        let scale = match precision.scales() {
            true => Some(scale::choose(&recorded.graph, precision, &bound, golden, device)?),
            false => None,
        };
        let given = Given { scale: scale.as_ref().map_or(1.0, |s| s.factor), rounding: [0.0, 0.0] };
        let fed = |graph: &Graph, own: &Graph, given| feed(graph, own, &bound, golden, given);

        let mut got = evaluate(device, &step.run, &fed(&step.run, &step.run, given)?)?;
        // Values that are results are neither sliced nor recognised away, so sums may be in another order
        // than in training: loss, gradients and buffers are those of the plan that trains.
        let trained = trained(&bound.graph, precision, target)?;
        let own = evaluate(device, &trained, &fed(&trained, &trained, given)?)?;
        for (output, value) in trained.outputs.iter().zip(own) {
            if let Some(i) = step.graph.outputs.iter().position(|o| o.name == output.name) {
                got[i] = value;
            }
        }

        let in_f64 = Precision { exact_sums: precision.exact_sums, ..Precision::from(DType::F64) };
        let exact = Step::new(&recorded.graph, &in_f64, prover.target())?;
        let exact = evaluate(prover, &exact.run, &fed(&exact.run, &exact.run, given)?)?;
        let mut values = places(&step.graph, &recorded, &bound, golden)?;
        let unscaled = |t: &Tensor, i: usize| -> Vec<f64> {
            let by = match step.graph.outputs[i].role {
                OutputRole::Gradient(_) => given.scale,
                _ => 1.0,
            };
            t.to_f64().into_iter().map(|x| x / by).collect()
        };
        for v in &mut values {
            let ty = &got[v.output].ty;
            v.got = unscaled(&got[v.output], v.output);
            v.result = ty.clone();
            let exact = if ty.dtype.is_float() { exact[v.output].to_f64() } else { vec![] };
            let scale = match step.graph.outputs[v.output].role {
                OutputRole::Gradient(_) => given.scale,
                _ => 1.0,
            };
            v.spread = bound::Spread::new(exact, ty.dtype, scale);
        }

        let random = pass::fuse(bound::rounded(&step.graph, target)?, prover.target())?;
        let mut loaded = Loaded::new(prover, &random)?;
        let mut done = 0;
        let saturates = target.saturating.contains(precision.dtype);
        let magnified = if precision.dtype == DType::F64 { bound::magnification() } else { 1.0 };
        for runs in RUNS {
            for run in done..=runs {
                let rounding = match run {
                    0 => [0.0, 0.0],
                    n => [bound::function(n), 1.0],
                };
                let out = loaded.run(&fed(&random, &step.graph, Given { rounding, ..given })?)?;
                for v in values.iter_mut().filter(|v| v.result.dtype.is_float()) {
                    let value = unscaled(&out[v.output], v.output);
                    match run {
                        0 if saturates => v.spread.nearest_saturated(&value),
                        0 => v.spread.nearest(&value),
                        _ => v.spread.add(&value),
                    }
                }
            }
            done = runs + 1;
            // In f64 PyTorch's result has roundings as ours has.
            let scale = if magnified > 1.0 { 2f64.sqrt() / magnified } else { 1.0 };
            values.iter_mut().for_each(|v| v.bound = v.spread.bound(scale));
            if values.iter().all(|v| v.is_tight(precision)) {
                break;
            }
        }
        let gradients = step.graph.outputs.iter().filter(|o| matches!(o.role, OutputRole::Gradient(_)));
        let name = |name: &str| name.strip_prefix("grad.").unwrap_or(name).to_string();
        Ok(Measured {
            values,
            precision: precision.clone(),
            without: step.missing,
            gradients: gradients.map(|o| name(&o.name)).collect(),
            unmatched: recorded.unmatched,
            runs: done - 1,
            scale,
            bound,
        })
    }
}

/// The values of a step that the golden records too.
fn places(graph: &Graph, recorded: &Recorded, bound: &BoundModel, golden: &Golden) -> Result<Vec<Value>> {
    let tied = follows_ties(graph);
    let named = |name: String| graph.outputs.iter().position(|o| o.name == name);
    let value = |kind: Kind, name: &str, output: usize| {
        let value = graph.outputs[output].value;
        let producer = bound.names.get(name).filter(|_| kind == Kind::Node);
        let producer = producer.and_then(|&v| bound.graph.producer(v));
        Value {
            kind,
            name: name.to_string(),
            output,
            origin: graph.producer(value).map_or(String::new(), |(n, _)| graph.origin(n).to_string()),
            operator: producer.map_or(String::new(), |(node, _)| node.op.name.to_string()),
            tied: tied[value.0 as usize],
            ..Value::default()
        }
    };
    let mut found = Vec::new();
    // The model's own; recorded nodes come after them.
    let users = (0..graph.outputs.len()).filter(|&i| graph.outputs[i].role == OutputRole::User);
    let users: Vec<usize> = users.take(recorded.outputs).collect();
    for name in golden.values(Kind::Output).into_keys() {
        let i: usize = name.parse().with_context(|| format!("output.{name} of the golden"))?;
        ensure!(i.to_string() == name, "output.{name} of the golden is no output: they are numbered from 0");
        found.push(value(
            Kind::Output,
            name,
            *users.get(i).with_context(|| format!("the model has no output {i}"))?,
        ));
    }
    for name in golden.values(Kind::Gradient).into_keys() {
        found.extend(named(format!("grad.{name}")).map(|i| value(Kind::Gradient, name, i)));
    }
    for name in golden.values(Kind::Buffer).into_keys() {
        let written = graph.outputs.iter().position(|o| match o.role {
            OutputRole::Mutation(v) => graph.input_index(v).is_some_and(|i| graph.inputs[i].name == name),
            _ => false,
        });
        found.extend(written.map(|i| value(Kind::Buffer, name, i)));
    }
    for &name in &recorded.nodes {
        found.extend(named(format!("node.{name}")).map(|i| value(Kind::Node, name, i)));
    }
    Ok(found)
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
