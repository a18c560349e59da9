//! The first step beside PyTorch's eager mode: loss and gradients within bounds derived from the graph.
//!
//! Both sides compute in f32, and each may be off by its bound. A bound relative to a value's own size is
//! tried first. What exceeds it is judged by runs that round at random ([`bound::rounded`]), which show what
//! roundings do to a gradient whose terms cancel.

use crate::error::Failure;
use crate::memory::{Contents, view};
use headwater_core::compile::{self, CompiledGraph, Options};
use headwater_core::device::Device;
use headwater_core::evaluate::{Loaded, evaluate};
use headwater_core::graph::{Graph, InputRole};
use headwater_core::pass::{self, bound};
use headwater_core::target::Target;
use headwater_core::{DType, Tensor, TensorType};
use headwater_cpu::Cpu;
use headwater_runtime::session::{Session, Weights};

/// Name, relative error, and the bound that it exceeds.
pub(crate) type Difference = (String, f64, f64);

/// The differences, and values that are not proved: they are within bounds that are wider than the values.
pub(crate) type Verdict = (Vec<Difference>, Vec<Difference>);

/// Name of the loss among the differences.
const LOSS: &str = "loss";

/// The batch, and the model's tensors before it.
pub(crate) struct Inputs {
    pub tensors: Contents,
    /// Addresses of what the user feeds, in order.
    pub feeds: Vec<usize>,
}

/// An output of the step's graph, ours beside PyTorch's.
pub(crate) enum Compared {
    /// It is of no account.
    Skipped,
    /// PyTorch has none, which is a difference.
    Absent(String),
    /// Both, under the name that a user knows.
    Both { name: String, got: Vec<f64>, want: Vec<f64> },
}

/// Numbers of a contiguous f32 tensor.
pub(crate) fn numbers(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]]) as f64).collect()
}

/// Compares the loss `got` and the gradients in `session`, which runs on a device of `target`, with
/// PyTorch's. `forward` is the graph that was run; all tensors of `gradients` are contiguous and f32.
pub(crate) fn compare(
    session: &Session,
    target: &Target,
    forward: &Graph,
    inputs: &Inputs,
    got: f64,
    loss: f64,
    gradients: &Contents,
) -> Result<Verdict, Failure> {
    judge(&Options::default(), Some(target), forward, inputs, |at, output| {
        if at == 0 {
            return Ok(Compared::Both { name: LOSS.to_string(), got: vec![got], want: vec![loss] });
        }
        let Some(name) = output.strip_prefix("grad.") else { return Ok(Compared::Skipped) };
        Ok(match gradients.bytes(name) {
            None => Compared::Absent(name.to_string()),
            Some(bytes) => {
                let got = session.gradient(name)?.to_f64();
                Compared::Both { name: name.to_string(), got, want: numbers(&bytes) }
            }
        })
    })
}

/// Compares outputs of the step that a forward graph becomes with `options`, by their positions and names.
/// PyTorch computes as the CPU does, and ours on `target`, or on the CPU too.
pub(crate) fn judge(
    options: &Options,
    target: Option<&Target>,
    forward: &Graph,
    inputs: &Inputs,
    both: impl Fn(usize, &str) -> Result<Compared, Failure>,
) -> Result<Verdict, Failure> {
    let cpu = Cpu::start(1)?;
    let (step, _) = compiled(options, forward, DType::F32, &cpu)?;
    let target = target.unwrap_or(cpu.target());
    let ours = bound::error_bounds(&step, target, false);
    let theirs = bound::error_bounds(&step, cpu.target(), false);
    let (mut found, mut unproved) = (Vec::new(), Vec::new());
    // Position among the outputs, the distance, the size of PyTorch's, and what it allows.
    let mut suspects: Vec<(usize, String, f64, f64, f64)> = Vec::new();
    // Relative to PyTorch's own size, where it has one.
    let relative = |x: f64, size: f64| if size > 0.0 { x / size } else { x };
    for (at, output) in step.outputs.iter().enumerate() {
        let bound = ours[output.value.0 as usize] + theirs[output.value.0 as usize];
        let (name, got, want) = match both(at, &output.name)? {
            Compared::Skipped => continue,
            Compared::Absent(name) => {
                found.push((format!("{name}: PyTorch has no gradient"), f64::INFINITY, bound));
                continue;
            }
            Compared::Both { name, got, want } => (name, got, want),
        };
        let (apart, size) = (distance(&got, &want), norm(&want));
        let within = apart <= bound * size;
        if !within {
            suspects.push((at, name, apart, size, bound * size));
        } else if bound >= 1.0 && size > 0.0 {
            unproved.push((name, apart / size, bound));
        }
    }
    if suspects.is_empty() {
        return Ok((found, unproved));
    }
    let drawn = drawn(options, target, forward, &step, inputs, &cpu)?;
    for (at, name, apart, size, allowed) in suspects {
        let allowed = allowed.max(drawn[at].norm);
        // An infinite bound allows everything, so nothing would have been compared.
        let within = allowed.is_finite() && apart <= allowed;
        let proved = within && allowed < size;
        if !proved {
            let list = if within { &mut unproved } else { &mut found };
            list.push((name, relative(apart, size), relative(allowed, size)));
        }
    }
    Ok((found, unproved))
}

/// The training step of a graph in one float dtype: before simplification, and as it runs.
fn compiled(
    options: &Options,
    forward: &Graph,
    dtype: DType,
    cpu: &Cpu,
) -> Result<(Graph, CompiledGraph), Failure> {
    let options = Options { upcast: Some(dtype), ..options.clone() };
    Ok(compile::unfolded(forward.clone(), &options, cpu.target())?)
}

/// Runs that round at random.
const RUNS: usize = 16;

/// By output of `step`, a bound of the distance of two results in f32 that round as `target` does.
fn drawn(
    options: &Options,
    target: &Target,
    forward: &Graph,
    step: &Graph,
    inputs: &Inputs,
    cpu: &Cpu,
) -> Result<Vec<bound::Bound>, Failure> {
    let exact = compiled(options, forward, DType::F64, cpu)?.1.graph;
    let exact = evaluate(cpu, &exact, &feed(forward, &exact, inputs, [0.0, 0.0])?)?;
    // Without a loss scale.
    let spread =
        |(i, t): (usize, &Tensor)| bound::Spread::new(t.to_f64(), step.ty(step.outputs[i].value).dtype, 1.0);
    let mut spreads: Vec<bound::Spread> = exact.iter().enumerate().map(spread).collect();
    let random = pass::fuse(bound::rounded(step, target)?, cpu.target())?;
    let mut loaded = Loaded::new(cpu, &random)?;
    for run in 0..=RUNS {
        // The first rounds to nearest.
        let rounding = if run == 0 { [0.0, 0.0] } else { [bound::function(run), 1.0] };
        let results = loaded.run(&feed(forward, &random, inputs, rounding)?)?;
        for (spread, t) in spreads.iter_mut().zip(&results) {
            if run == 0 { spread.nearest(&t.to_f64()) } else { spread.add(&t.to_f64()) }
        }
    }
    // One bound for each side.
    Ok(spreads.iter().map(|s| s.bound(2.0)).collect())
}

/// The inputs of a step's graph: the model's tensors and the batch, in the graph's dtypes, and the rounding.
fn feed(forward: &Graph, graph: &Graph, inputs: &Inputs, rounding: [f64; 2]) -> Result<Vec<Tensor>, Failure> {
    let users = forward.inputs.iter().filter(|i| i.role == InputRole::User);
    let mut users = users.zip(&inputs.feeds);
    let one = |input: &headwater_core::graph::Input| {
        let want = graph.ty(input.value);
        let lacks = || Failure::new("HW-R003", format!("the check lacks {}", input.name));
        let own = || forward.input(&input.name).map(|i| forward.ty(i.value)).ok_or_else(lacks);
        Ok(match input.role {
            InputRole::Rng | InputRole::State => {
                let number = bound::ROUNDING.iter().position(|n| *n == input.name);
                Tensor::full(want, number.map_or(0.0, |n| rounding[n]))
            }
            // A cotangent.
            InputRole::User if forward.input(&input.name).is_none() => {
                let ty = TensorType { dtype: DType::F32, ..want.clone() };
                inputs.tensors.tensor(&input.name, &ty)?.cast(want.dtype)
            }
            InputRole::User => {
                let (given, &at) = users.next().ok_or_else(lacks)?;
                let ty = forward.ty(given.value);
                // SAFETY: Python keeps the batch for the call; its sizes are the graph's.
                Tensor::from_bytes(ty, unsafe { view(at, ty.bytes()) }).cast(want.dtype)
            }
            // As a session stores them: numbers of masks beyond f32 become its largest.
            InputRole::Buffer { .. } | InputRole::Constant => {
                let tensor = inputs.tensors.tensor(&input.name, own()?)?;
                let stored = if tensor.dtype().is_float() { DType::F32 } else { tensor.dtype() };
                tensor.cast_saturating(stored).cast(want.dtype)
            }
            _ => inputs.tensors.tensor(&input.name, own()?)?.cast(want.dtype),
        })
    };
    graph.inputs.iter().map(one).collect()
}

/// Euclidean distance; infinite where one is not finite and the other differs.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    let apart = |(a, b): (&f64, &f64)| if a == b || (a.is_nan() && b.is_nan()) { 0.0 } else { a - b };
    let apart: Vec<f64> = a.iter().zip(b).map(apart).collect();
    if apart.iter().all(|x| x.is_finite()) { norm(&apart) } else { f64::INFINITY }
}

fn norm(x: &[f64]) -> f64 {
    let largest = x.iter().fold(0.0f64, |a, b| a.max(b.abs()));
    if largest == 0.0 || !largest.is_finite() {
        return largest;
    }
    largest * x.iter().map(|v| (v / largest).powi(2)).sum::<f64>().sqrt()
}
