//! Forward and backward passes of a graph on memory that Python lends for each call: `core::callable` for a
//! `torch.autograd.Function`.

use crate::check::{self, Compared, Verdict};
use crate::device::cpu;
use crate::error::{Failure, guarded};
use crate::memory::{Contents, lent};
use crate::program::Program;
use headwater_core::TensorType;
use headwater_core::callable::{self, Callable, Port, Role};
use headwater_core::compile::{Goal, GradientRequest, Options};
use headwater_core::device::{Buffer, Device};
use headwater_core::graph::InputRole;
use headwater_runtime::session::Weights;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// State that the halves of one graph share: stream and arenas. Its passes run one at a time.
#[pyclass(frozen, module = "headwater._headwater")]
pub(crate) struct Context {
    context: Arc<callable::Context>,
    turn: Arc<Mutex<()>>,
}

#[pymethods]
impl Context {
    #[new]
    fn new(py: Python, threads: usize) -> PyResult<Context> {
        guarded(py, move || {
            let context = callable::Context::new(cpu(threads)?)?;
            Ok(Context { context, turn: Arc::default() })
        })
    }

    /// Bytes of activations that no pass in flight uses.
    #[getter]
    fn idle_bytes(&self) -> usize {
        self.context.idle_bytes()
    }
}

/// Activations that a forward pass keeps for its backward pass, which takes them and returns their memory.
#[pyclass(frozen, module = "headwater._headwater")]
pub(crate) struct Activations {
    held: Mutex<Option<callable::Activations>>,
}

/// A tensor: name, role, dtype, sizes, and whether the backward pass reads it.
type Described = (String, String, String, Vec<usize>, bool);

/// Forward and backward pass of a graph.
#[pyclass(frozen, module = "headwater._headwater")]
pub(crate) struct Halves {
    callable: Mutex<Callable>,
    turn: Arc<Mutex<()>>,
    /// Inputs: tensors of role "user", "constant", "rng".
    #[pyo3(get)]
    inputs: Vec<Described>,
    /// Outputs: of role "result", or "written" under the name of the input that is written.
    #[pyo3(get)]
    results: Vec<Described>,
    /// Gradients: name of the input, bucket, first element there, sizes, and the results that the input
    /// depends on.
    #[pyo3(get)]
    gradients: Vec<(String, usize, usize, Vec<usize>, Vec<String>)>,
    /// Dtype and elements of the buckets.
    #[pyo3(get)]
    buckets: Vec<(String, usize)>,
    /// Inputs that get no gradient, and why.
    #[pyo3(get)]
    missing: Vec<(String, String)>,
    /// Bytes taken from a forward pass to its backward pass, and how many of them the backward pass reads.
    #[pyo3(get)]
    activation_bytes: (usize, usize),
}

fn described(port: &Port) -> Described {
    let (name, role) = match &port.role {
        Role::Input(InputRole::Rng) => (&port.name, "rng"),
        Role::Input(InputRole::User) | Role::Cotangent(_) => (&port.name, "user"),
        Role::Input(_) => (&port.name, "constant"),
        Role::Result => (&port.name, "result"),
        Role::NewContent(input) => (input, "written"),
    };
    (name.clone(), role.into(), port.ty.dtype.to_string(), port.ty.shape.to_vec(), port.crosses)
}

#[pymethods]
impl Halves {
    /// `outputs`: names of the results that have cotangents; `wanted`: inputs that get gradients. Without
    /// any, there is a forward pass alone.
    #[new]
    fn new(
        py: Python,
        program: &Program,
        context: &Context,
        outputs: Vec<String>,
        wanted: Vec<String>,
    ) -> PyResult<Halves> {
        let (graph, turn, context) = (program.graph.clone(), context.turn.clone(), context.context.clone());
        guarded(py, move || {
            let (outputs, wanted) = (strs(&outputs), strs(&wanted));
            let options = options(&outputs, &wanted);
            let callable = Callable::new(&context, (*graph).clone(), &options)?;
            let gradient = |g: &callable::Gradient| {
                let first = g.offset / g.ty.dtype.size();
                (g.input.clone(), g.bucket, first, g.ty.shape.to_vec(), g.depends.clone())
            };
            Ok(Halves {
                turn,
                inputs: callable.inputs().iter().map(described).collect(),
                results: callable.results().iter().map(described).collect(),
                gradients: callable.gradients().iter().map(gradient).collect(),
                buckets: (callable.buckets().iter())
                    .map(|b| (b.dtype.to_string(), b.bytes / b.dtype.size()))
                    .collect(),
                missing: (callable.missing().iter())
                    .map(|m| (m.parameter.clone(), m.reason.clone()))
                    .collect(),
                activation_bytes: (callable.arena_bytes(), callable.crossing_bytes()),
                callable: Mutex::new(callable),
            })
        })
    }

    /// Runs the forward pass: addresses of what goes in and comes out, 64-byte aligned.
    fn forward(&self, py: Python, inputs: Vec<usize>, results: Vec<usize>) -> PyResult<Activations> {
        guarded(py, move || {
            let run = |callable: &mut Callable, buffers: &Buffers| {
                let inputs = buffers.all(callable.inputs(), &inputs)?;
                let results = buffers.all(callable.results(), &results)?;
                Ok(callable.forward(&inputs, &results)?)
            };
            Ok(Activations { held: Mutex::new(Some(self.in_turn(run)?)) })
        })
    }

    /// Runs the backward pass, which takes the activations. Addresses of inputs and results that it does not
    /// read may be 0.
    fn backward(
        &self,
        py: Python,
        activations: &Activations,
        inputs: Vec<usize>,
        results: Vec<usize>,
        cotangents: Vec<usize>,
        buckets: Vec<usize>,
    ) -> PyResult<()> {
        guarded(py, move || {
            let taken = activations.held.lock().unwrap_or_else(PoisonError::into_inner).take();
            let gone = || Failure::new("HW-R007", "the activations of this forward pass are taken");
            let activations = taken.ok_or_else(gone)?;
            self.in_turn(|callable, buffers| {
                let inputs = buffers.read(callable.inputs(), &inputs)?;
                let results = buffers.read(callable.results(), &results)?;
                let cotangents = buffers.all(callable.cotangents(), &cotangents)?;
                let bytes = callable.buckets().iter().map(|b| b.bytes);
                let gradients = bytes.zip(buckets).map(|(bytes, at)| buffers.one(at, bytes));
                let gradients = gradients.collect::<Result<Vec<_>, _>>()?;
                Ok(callable.backward(activations, &inputs, &results, &cotangents, &gradients)?)
            })
        })
    }
}

impl Halves {
    /// Submits work and waits for it. Other callers of the graph wait for their turn: an error is that of the
    /// work at hand.
    fn in_turn<T>(
        &self,
        work: impl FnOnce(&mut Callable, &Buffers) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        // A panic left nothing that the next run would read.
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut callable = self.callable.lock().unwrap_or_else(PoisonError::into_inner);
        let device = callable.context().device().clone();
        let done = work(&mut callable, &Buffers(device.as_ref()))?;
        callable.finish()?;
        Ok(done)
    }
}

fn strs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

/// A graph with the gradients of `wanted` inputs for cotangents of `outputs`, or its forward pass alone if
/// there are none.
fn options<'a>(outputs: &'a [&'a str], wanted: &'a [&'a str]) -> Options<'a> {
    let alone = outputs.is_empty() || wanted.is_empty();
    Options {
        goal: if alone { Goal::Forward } else { Goal::Train },
        derivative: GradientRequest::Vjp { outputs, inputs: wanted },
        ..Options::default()
    }
}

/// Compares results and gradients of `outputs` and `wanted` with PyTorch's in eager mode; gives what differs,
/// and what is not proved.
/// `feeds` are addresses of the program's inputs; `tensors` constants, and cotangents under `cotangent.NAME`;
/// `got` and `want` results and gradients (`grad.NAME`). All floats are f32.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "keywords of a Python call")]
pub(crate) fn compare(
    py: Python,
    program: &Program,
    outputs: Vec<String>,
    wanted: Vec<String>,
    feeds: Vec<usize>,
    tensors: HashMap<String, (usize, usize)>,
    got: HashMap<String, (usize, usize)>,
    want: HashMap<String, (usize, usize)>,
) -> PyResult<Verdict> {
    let graph = program.graph.clone();
    guarded(py, move || {
        let (outputs, wanted) = (strs(&outputs), strs(&wanted));
        let options = options(&outputs, &wanted);
        let inputs = check::Inputs { tensors: Contents::new(tensors), feeds };
        let (got, want) = (Contents::new(got), Contents::new(want));
        check::judge(&options, None, &graph, &inputs, |_, name| {
            Ok(match (got.bytes(name), want.bytes(name)) {
                (Some(got), Some(want)) => Compared::Both {
                    name: name.to_string(),
                    got: check::numbers(&got),
                    want: check::numbers(&want),
                },
                (Some(_), None) => Compared::Absent(name.to_string()),
                (None, _) => Compared::Skipped,
            })
        })
    })
}

/// Memory of Python's as buffers of a device.
struct Buffers<'a>(&'a dyn Device);

impl Buffers<'_> {
    fn one(&self, address: usize, bytes: usize) -> Result<Arc<dyn Buffer>, Failure> {
        // SAFETY: Python gives addresses of contiguous tensors, which it holds and leaves alone during the
        // call; the buffers are dropped before the call ends.
        Ok(self.0.borrow(unsafe { lent(address, bytes) }?)?)
    }

    fn all(&self, ports: &[Port], addresses: &[usize]) -> Result<Vec<Arc<dyn Buffer>>, Failure> {
        ports.iter().zip(addresses).map(|(port, &at)| self.one(at, TensorType::bytes(&port.ty))).collect()
    }

    /// Buffers of those that the backward pass reads.
    fn read(&self, ports: &[Port], addresses: &[usize]) -> Result<Vec<Option<Arc<dyn Buffer>>>, Failure> {
        let one = |(port, &at): (&Port, &usize)| {
            port.crosses.then(|| self.one(at, TensorType::bytes(&port.ty))).transpose()
        };
        ports.iter().zip(addresses).map(one).collect()
    }
}
