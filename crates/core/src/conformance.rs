//! The conformance suite: every operator on its cases, and training steps of models, on any device. They are
//! judged by the f64 reference within derived bounds. A device's tests call it; so does the check of a
//! machine that has one.

use crate::compile::{self, Options};
use crate::device::Device;
use crate::diagnostic::{Code, Error, Result};
use crate::dtype::DType;
use crate::evaluate::evaluate;
use crate::graph::{Builder, Graph, Input, InputRole, OutputRole};
use crate::ops::{Case, Derivative, OpDef, Registry, Sample};
use crate::pass::bound::{Bound, ROUNDING, Spread, error_bounds, function, rounded};
use crate::pass::decompose;
use crate::pass::differentiate::gradients;
use crate::reference;
use crate::target::Target;
use crate::tensor::{Tensor, TensorType};
use std::collections::BTreeMap;

/// The operators as a device computes them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conformance {
    /// Cases that ran, in each dtype, by operator; and training steps.
    pub ran: BTreeMap<&'static str, usize>,
    /// Refusals of the device, and why, by operator and dtype, or by model.
    pub refused: BTreeMap<String, String>,
    /// Wrong results and failures.
    pub wrong: Vec<String>,
}

/// Runs every operator of the standard registry, with its gradients, on each of its cases in some float
/// dtypes.
pub fn operators(device: &dyn Device, dtypes: &[DType]) -> Conformance {
    let mut all = Conformance::default();
    Registry::standard().operators().into_iter().for_each(|op| cases(device, op, dtypes, &mut all));
    all
}

/// As [`operators`], of one operator, which need not be registered.
pub fn operator(device: &dyn Device, op: &'static OpDef, dtypes: &[DType]) -> Conformance {
    let mut all = Conformance::default();
    cases(device, op, dtypes, &mut all);
    all
}

fn cases(device: &dyn Device, op: &'static OpDef, dtypes: &[DType], all: &mut Conformance) {
    for case in (op.cases)() {
        for &dtype in dtypes {
            let ran = one(device, op, &case, dtype, all);
            *all.ran.entry(op.name).or_default() += ran as usize;
        }
    }
}

/// One case in one dtype. Whether it ran.
fn one(device: &dyn Device, op: &'static OpDef, case: &Case, dtype: DType, all: &mut Conformance) -> bool {
    let name = format!("{} ({}) in {dtype}", op.name, case.name);
    let Some(exact) = graph_of(op, case, DType::F64) else {
        all.wrong.push(format!("{name}: does not take its own case"));
        return false;
    };
    let Some(graph) = graph_of(op, case, dtype) else { return false };
    let inputs = numbers(&graph, case);
    // A case may be about refused numbers.
    let Ok(truth) = Truth::new(&graph, &exact, &inputs, device.target()) else { return false };
    match evaluate(device, &graph, &inputs) {
        Ok(got) => truth.judge(&name, &got, &mut all.wrong),
        Err(e) if e.code == Code::Unsupported => {
            all.refused.insert(format!("{} in {dtype}", op.name), e.message);
            return false;
        }
        Err(e) => all.wrong.push(format!("{name}: {e}")),
    }
    true
}

/// Runs one training step of a model's forward graph in f32, as it is compiled for the device. Its loss,
/// every gradient and every new content of a buffer are judged by the step of the same model in f64, within
/// what runs with random roundings show ([`rounded`]). `tensor` gives the inputs of the compiled graph, in
/// the dtypes that it expects.
///
/// # Errors
/// Refusals of compilation for the generic target and of the reference: the model is at fault then, not the
/// device.
pub fn training_step(
    device: &dyn Device,
    name: &str,
    model: &Graph,
    tensor: impl Fn(&Input, &TensorType) -> Result<Tensor>,
    all: &mut Conformance,
) -> Result<()> {
    // Unfused: each node rounds.
    let unfused = Options { stop_after: Some("simplify"), ..Options::default() };
    let in_f64 = Options { upcast: Some(DType::F64), ..unfused.clone() };
    let exact = compile::optimize(model.clone(), &in_f64, &Target::default())?.graph;
    let mut refuse = |e: Error| match e.code {
        Code::Unsupported => {
            all.refused.insert(name.to_string(), e.to_string());
        }
        _ => all.wrong.push(format!("{name}: {e}")),
    };
    let step = match compile::optimize(model.clone(), &Options::default(), device.target()) {
        Ok(compiled) => compiled.graph,
        Err(e) => {
            refuse(e);
            return Ok(());
        }
    };
    let inputs = step.inputs.iter().map(|i| tensor(i, step.ty(i.value))).collect::<Result<Vec<_>>>()?;
    let mut truth = Truth::new(&step, &exact, &inputs, device.target())?;
    let steps = compile::optimize(model.clone(), &unfused, device.target())?.graph;
    truth.drawn = Some(drawn(&steps, &truth.exact, device.target(), tensor)?);
    match evaluate(device, &step, &inputs) {
        Ok(got) => {
            truth.judge(name, &got, &mut all.wrong);
            *all.ran.entry("training step").or_default() += 1;
        }
        Err(e) => refuse(e),
    }
    Ok(())
}

/// By output of a graph that is `exact` without roundings, the bound of its error as random roundings show
/// it.
fn drawn(
    graph: &Graph,
    exact: &[Tensor],
    target: &Target,
    tensor: impl Fn(&Input, &TensorType) -> Result<Tensor>,
) -> Result<Vec<Bound>> {
    const RUNS: usize = 16;
    let random = rounded(graph, target)?;
    let values = |t: &Tensor| if t.dtype().is_float() { t.floats().to_vec() } else { vec![] };
    let dtypes = graph.outputs.iter().map(|o| graph.ty(o.value).dtype);
    let mut spreads: Vec<Spread> =
        exact.iter().zip(dtypes).map(|(t, d)| Spread::new(values(t), d, 1.0)).collect();
    for run in 0..=RUNS {
        let (function, width) = (function(run), f64::from(u8::from(run > 0)));
        let inputs = random.inputs.iter().map(|i| match ROUNDING.iter().position(|n| *n == i.name) {
            Some(n) => Ok(Tensor::full(random.ty(i.value), [function, width][n])),
            None => {
                let ty = graph.inputs.iter().find(|o| o.name == i.name).map(|o| graph.ty(o.value));
                Ok(tensor(i, ty.unwrap_or(random.ty(i.value)))?.cast(random.ty(i.value).dtype))
            }
        });
        let outputs = reference::run(&random, &inputs.collect::<Result<Vec<_>>>()?)?;
        for (spread, value) in spreads.iter_mut().zip(&outputs) {
            if run == 0 { spread.nearest(&values(value)) } else { spread.add(&values(value)) }
        }
    }
    Ok(spreads.iter().map(|s| s.bound(1.0)).collect())
}

/// An operator on a case, its float inputs in `dtype`, with its gradients where it has a rule. `None` if it
/// does not take that dtype.
pub fn graph_of(op: &'static OpDef, case: &Case, dtype: DType) -> Option<Graph> {
    let mut b = Builder::new();
    let lower = |ty: &TensorType| {
        let dtype = if ty.dtype == DType::F64 { dtype } else { ty.dtype };
        TensorType { dtype, shape: ty.shape.clone() }
    };
    let inputs: Vec<_> = (case.inputs.iter().enumerate())
        .map(|(i, a)| a.as_ref().map(|a| b.input(format!("x{i}"), lower(&a.ty), InputRole::User)))
        .collect();
    let outputs = b.apply(op, &inputs, case.attrs.clone()).ok()?;
    for (i, &v) in outputs.iter().enumerate() {
        b.output(format!("y{i}"), v, OutputRole::User);
    }
    if let Derivative::Rule(_) = op.derivative
        && let Some(&first) = outputs.first()
        && b.ty(first).dtype.is_float()
    {
        let ty = b.ty(first).clone();
        let g = b.input("g", ty, InputRole::User);
        let free = inputs.iter().zip(&case.inputs).filter(|(_, a)| a.as_ref().is_some_and(|a| !a.constant));
        let wanted: Vec<_> = free.filter_map(|(v, _)| *v).filter(|&v| b.ty(v).dtype.is_float()).collect();
        for (v, g) in wanted.iter().zip(gradients(&mut b, &[(first, g)], &wanted).ok()?) {
            if let Some(g) = g {
                b.output(format!("grad.{v}"), g, OutputRole::Gradient(*v));
            }
        }
    }
    decompose(b.finish()).ok()
}

/// Numbers for the inputs, each one its dtype can hold.
pub fn numbers(graph: &Graph, case: &Case) -> Vec<Tensor> {
    let mut drawn: Vec<Tensor> = case.draw(1).into_iter().flatten().collect();
    for input in &graph.inputs[drawn.len()..] {
        let shape = &graph.ty(input.value).shape;
        let cotangent = Case::new("cotangent").arg(DType::F64, shape, Sample::Uniform(-1.0, 1.0));
        drawn.extend(cotangent.draw(2).into_iter().flatten());
    }
    drawn.iter().zip(&graph.inputs).map(|(t, i)| t.cast(graph.ty(i.value).dtype)).collect()
}

/// The distance by which each output moves, relative to a relative change of the float inputs. Errors of the
/// computation count by this where terms cancel. The largest of a few changes of random signs.
fn sensitivities(graph: &Graph, inputs: &[Tensor], want: &[Tensor]) -> Vec<Vec<f64>> {
    const STEP: f64 = 1e-6;
    let mut out: Vec<Vec<f64>> = want.iter().map(|t| vec![0.0; t.shape().numel()]).collect();
    let mut bits = 0x9E37_79B9_7F4A_7C15u64;
    for _ in 0..8 {
        let moved: Vec<Tensor> = inputs
            .iter()
            .map(|t| {
                if !t.dtype().is_float() {
                    return t.clone();
                }
                let mut step = || {
                    bits = bits.wrapping_mul(6364136223846793005).wrapping_add(1);
                    if bits >> 63 == 0 { 1.0 + STEP } else { 1.0 - STEP }
                };
                Tensor::float(DType::F64, t.shape().clone(), t.floats().iter().map(|x| x * step()).collect())
            })
            .collect();
        let Ok(moved) = reference::run(graph, &moved) else { continue };
        for ((out, m), w) in out.iter_mut().zip(&moved).zip(want).filter(|(_, w)| w.dtype().is_float()) {
            for ((o, m), w) in out.iter_mut().zip(m.floats()).zip(w.floats()) {
                let slope = (m - w).abs() / STEP;
                *o = if slope.is_finite() { o.max(slope) } else { *o };
            }
        }
    }
    out
}

/// The right results of a graph in some dtype.
pub struct Truth<'a> {
    graph: &'a Graph,
    /// Results of the reference in the same dtypes.
    own: Vec<Tensor>,
    /// Results of the same graph and numbers in f64.
    exact: Vec<Tensor>,
    slopes: Vec<Vec<f64>>,
    bounds: Vec<f64>,
    /// Bounds that random roundings show, which then count alone.
    drawn: Option<Vec<Bound>>,
    target: &'a Target,
}

impl<'a> Truth<'a> {
    /// Runs the reference on the graph, and on the same in f64 with the same numbers. `target` says how the
    /// device rounds.
    ///
    /// # Errors
    /// Refusals of the reference.
    pub fn new(graph: &'a Graph, exact: &Graph, inputs: &[Tensor], target: &'a Target) -> Result<Self> {
        let own = reference::run(graph, inputs)?;
        let lifted: Vec<Tensor> =
            inputs.iter().zip(&exact.inputs).map(|(t, i)| t.cast(exact.ty(i.value).dtype)).collect();
        let want = reference::run(exact, &lifted)?;
        let slopes = sensitivities(exact, &lifted, &want);
        let bounds = error_bounds(graph, target, false);
        Ok(Truth { graph, own, exact: want, slopes, bounds, drawn: None, target })
    }

    /// Adds to `wrong` a line for each output that is too far off. The bound of an element is relative to the
    /// largest number of the result and to its own sensitivity.
    pub fn judge(&self, name: &str, got: &[Tensor], wrong: &mut Vec<String>) {
        for (k, o) in self.graph.outputs.iter().enumerate() {
            let dtype = got[k].dtype();
            if !dtype.is_float() {
                if got[k] != self.own[k] {
                    wrong.push(format!(
                        "{name}: {} is {:?}, not {:?}",
                        o.name,
                        got[k].ints(),
                        self.own[k].ints()
                    ));
                }
                continue;
            }
            let bound = self.bounds[o.value.0 as usize];
            // Half the distance between subnormal numbers.
            let tiny = match dtype {
                DType::F16 => f64::exp2(-25.0),
                DType::F64 => f64::exp2(-1075.0),
                _ => f64::exp2(-134.0),
            };
            let want = self.exact[k].floats();
            let norm = want.iter().filter(|x| x.is_finite()).fold(0.0, |m: f64, x| m.max(x.abs()));
            for (i, (&g, &w)) in got[k].floats().iter().zip(want).enumerate() {
                let slope = self.slopes[k][i];
                let allowed = match &self.drawn {
                    Some(drawn) => drawn[k].elements[i].max(f64::EPSILON * norm),
                    None => bound * (norm + slope),
                };
                // Runs that are a number here and none there bound nothing.
                let bounded = self.drawn.is_none() || allowed.is_finite();
                let near = bounded && (g - w).abs() <= allowed + tiny;
                // Results of the reference itself in this dtype are right by definition: random numbers,
                // infinities.
                let e = self.own[k].floats()[i];
                // A saturating device goes on with its largest number where this dtype overflows, and nothing
                // bounds results that follow from it.
                let saturated = self.target.saturating.contains(dtype) && !e.is_finite() && g.is_finite();
                let given = g == e || (g.is_nan() && e.is_nan()) || saturated;
                if !(near || given) {
                    let what = format!("{} element {i} is {g}, not {w}", o.name);
                    wrong.push(format!("{name}: {what}; bound {allowed:e}, sensitivity {slope:e}"));
                    break;
                }
            }
        }
    }
}
