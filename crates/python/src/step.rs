//! A training step on memory that Python lends: programs of several captures on one state.

use crate::check::{self, Verdict};
use crate::device::device as open;
use crate::error::{Failure, guarded};
use crate::memory::{Contents, lend, view, view_mut};
use crate::program::{Program, draws};
use headwater_core::device::{Device, Foreign};
use headwater_core::graph::InputRole;
use headwater_core::plan::Segment;
use headwater_core::train::{Kept, StateKey};
use headwater_runtime::optim::{Clip, ListedGroup, Optimizer};
use headwater_runtime::session::{
    MemoryUse, ModelTensor, Planned, ProgramId, Session, SessionModel, Training,
};
use pyo3::prelude::*;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Name to address and size in bytes.
type Addresses = HashMap<String, (usize, usize)>;

/// Role of a tensor and its name, to segment and byte.
type Places = HashMap<(String, String), (usize, usize)>;

fn optimizer(json: &str) -> Result<Optimizer, Failure> {
    serde_json::from_str(json).map_err(|e| Failure::new("HW-R004", format!("optimizer: {e}")))
}

/// Settings of the optimizer, in JSON, each with names of parameters.
type Settings = Vec<(String, Vec<String>)>;

fn training(
    groups: Settings,
    clip: Clip,
    accumulate: u32,
    sum: bool,
    scaled: bool,
) -> Result<Training, Failure> {
    let listed = groups
        .into_iter()
        .map(|(json, parameters)| Ok(ListedGroup { parameters, optimizer: optimizer(&json)? }));
    Ok(Training {
        listed: Some(listed.collect::<Result<_, Failure>>()?),
        clip,
        // A sum of any number of batches is one that is not divided.
        accumulate: if sum { accumulate.max(2) } else { accumulate },
        scaled,
        ..Training::default()
    })
}

/// Bytes by kind.
type Bytes = Vec<(&'static str, usize)>;

fn bytes(memory: MemoryUse) -> Bytes {
    let MemoryUse { parameters, buffers, gradients, masters, moments, arena, inputs_outputs } = memory;
    vec![
        ("parameters", parameters + masters),
        ("buffers", buffers),
        ("gradients", gradients),
        ("moments", moments),
        ("arena", arena),
        ("inputs_outputs", inputs_outputs),
    ]
}

/// Bytes by kind that a step of these settings will hold; nothing is made. See [`Step`].
#[pyfunction]
#[pyo3(signature = (program, groups, *, clip_norm, clip_value, accumulate, sum, scaled, device, threads))]
#[allow(clippy::too_many_arguments, reason = "keywords of a Python call")]
pub(crate) fn planned_memory(
    py: Python,
    program: &Program,
    groups: Settings,
    clip_norm: Option<f64>,
    clip_value: Option<f64>,
    accumulate: u32,
    sum: bool,
    scaled: bool,
    device: String,
    threads: usize,
) -> PyResult<Bytes> {
    let graph = program.graph.clone();
    guarded(py, move || {
        let clip = Clip { norm: clip_norm, value: clip_value };
        let settings = training(groups, clip, accumulate, sum, scaled)?;
        let planned = Planned::training(&graph, &settings, open(&device, threads)?.target(), None)?;
        Ok(bytes(planned.memory()))
    })
}

struct Inner {
    session: Session,
    programs: Vec<ProgramId>,
}

impl Inner {
    /// Runs forward and backward on a micro-batch, which is the first of a step if `begins`, and gives the
    /// loss.
    fn gradients(
        &mut self,
        program: ProgramId,
        feeds: &[usize],
        key: (u64, u64),
        begins: bool,
    ) -> Result<f64, Failure> {
        self.session.set_rng(key.0, key.1)?;
        let types: Vec<usize> = self.session.inputs(program).map(|(_, ty)| ty.bytes()).collect();
        if types.len() != feeds.len() {
            let message = format!("{} tensors were fed to a program of {}", feeds.len(), types.len());
            return Err(Failure::new("HW-R003", message));
        }
        // SAFETY: Python feeds contiguous tensors of the sizes that the program was captured with, which
        // dynamo's guards watch, and keeps them for the call.
        let feeds = feeds.iter().zip(types).map(|(&at, bytes)| unsafe { view(at, bytes) });
        let feeds: Vec<&[u8]> = feeds.collect();
        if begins {
            self.session.begin_step()?;
        }
        self.session.gradients(program, &feeds)?;
        let loss = self.session.output(program, 0)?.to_f64();
        loss.first().copied().ok_or_else(|| Failure::new("HW-R007", "the loss has no element"))
    }

    fn program(&self, number: usize) -> Result<ProgramId, Failure> {
        let found = self.programs.get(number).copied();
        found.ok_or_else(|| Failure::new("HW-R007", format!("there is no program {number}")))
    }
}

/// Forward, backward and update as plans on shared state.
#[pyclass(frozen, module = "headwater._headwater")]
pub(crate) struct Step {
    inner: Mutex<Inner>,
    device: Arc<dyn Device>,
    /// Places of parameters, buffers, gradients and moments in the segments that were lent.
    #[pyo3(get)]
    places: Places,
    /// Names of the segments, in their order.
    #[pyo3(get)]
    segments: Vec<String>,
    /// Parameters that are trained.
    #[pyo3(get)]
    trained: Vec<String>,
    /// Parameters that get no gradient, and why.
    #[pyo3(get)]
    missing: Vec<(String, String)>,
}

impl Step {
    fn lock(&self) -> Result<MutexGuard<'_, Inner>, Failure> {
        let broken = |_| {
            Failure::new(
                "HW-R007",
                "an earlier call of this step failed by a fault of Headwater: make a new step",
            )
        };
        self.inner.lock().map_err(broken)
    }
}

#[pymethods]
impl Step {
    /// `tensors` are the first contents of the program's parameters, buffers and constants; `groups` the
    /// optimizer's settings, in JSON, with names of parameters; `memory(name, bytes)` gives an address and
    /// the object that holds it. Gradients of `accumulate` batches are averaged, or with `sum` those of any
    /// number are added up. If `scaled`, gradients are of the loss times the scale that is set. Only the
    /// CPU computes on memory that is lent: another `device` has the state in its own, see
    /// [`Step::upload`].
    #[new]
    #[pyo3(signature = (program, tensors, groups, *, clip_norm, clip_value, accumulate, sum, scaled, device, threads, memory))]
    #[allow(clippy::too_many_arguments, reason = "keywords of a Python call")]
    fn new(
        py: Python,
        program: &Program,
        tensors: Addresses,
        groups: Settings,
        clip_norm: Option<f64>,
        clip_value: Option<f64>,
        accumulate: u32,
        sum: bool,
        scaled: bool,
        device: String,
        threads: usize,
        memory: Py<PyAny>,
    ) -> PyResult<Step> {
        let graph = program.graph.clone();
        guarded(py, move || {
            let clip = Clip { norm: clip_norm, value: clip_value };
            let training = training(groups, clip, accumulate, sum, scaled)?;
            let refused = RefCell::new(None);
            let mut lender = |segment: &Segment| -> Option<Box<dyn Foreign>> {
                // Numbers of the step are the session's own.
                if device != "cpu"
                    || segment.bytes == 0
                    || segment.name == "scalars"
                    || refused.borrow().is_some()
                {
                    return None;
                }
                lend(&memory, segment).map_err(|e| *refused.borrow_mut() = Some(e)).ok()
            };
            let contents = Contents::new(tensors);
            let model = SessionModel { graph: &graph, weights: &contents };
            let opened = open(&device, threads)?;
            let session = Session::with_memory(opened.clone(), model, Some(training), &mut lender);
            if let Some(e) = refused.into_inner() {
                return Err(Failure::Python(e));
            }
            let mut session = session?;
            if sum {
                session.set_micro_batches(1)?;
            }
            let programs = vec![session.program()?];
            let trained = session.layout().entries().map(|(_, e)| e.name.clone()).collect();
            let missing = session.missing().iter().map(|m| (m.parameter.clone(), m.reason.clone())).collect();
            let segments = session.segments().map(|s| s.name.clone()).collect();
            let places = places(&session)?;
            let inner = Mutex::new(Inner { session, programs });
            Ok(Step { inner, device: opened, places, segments, trained, missing })
        })
    }

    /// Adds the program of another capture on the same state, and gives its number.
    fn add(&self, py: Python, program: &Program) -> PyResult<usize> {
        let graph = program.graph.clone();
        guarded(py, move || {
            let mut inner = self.lock()?;
            let added = inner.session.training_program(&graph)?;
            inner.programs.push(added);
            Ok(inner.programs.len() - 1)
        })
    }

    /// Runs forward and backward on a micro-batch; gives the loss. `key`: of random numbers.
    fn gradients(
        &self,
        py: Python,
        program: usize,
        feeds: Vec<usize>,
        key: (u64, u64),
        begins: bool,
    ) -> PyResult<f64> {
        guarded(py, move || {
            let mut inner = self.lock()?;
            let program = inner.program(program)?;
            inner.gradients(program, &feeds, key, begins)
        })
    }

    /// Updates with the rate and the number of the step of each group; gives the norm of the gradients, their
    /// largest magnitude, and whether they were finite: if not, nothing was changed.
    fn update(&self, py: Python, groups: Vec<(f64, u64)>) -> PyResult<(f64, f64, bool)> {
        guarded(py, move || {
            let update = self.lock()?.session.update_groups(&groups)?;
            Ok((update.norm, update.largest, update.applied))
        })
    }

    /// Sets the factor of the loss in the next runs, which the next update divides out.
    fn set_loss_scale(&self, py: Python, scale: f64) -> PyResult<()> {
        guarded(py, move || Ok(self.lock()?.session.set_loss_scale(scale)?))
    }

    /// Other settings of the groups: the update is planned anew for those that are constants of its plan.
    fn set_groups(&self, py: Python, settings: Vec<String>) -> PyResult<()> {
        guarded(py, move || {
            let settings = settings.iter().map(|json| optimizer(json)).collect::<Result<Vec<_>, _>>()?;
            Ok(self.lock()?.session.set_groups(&settings)?)
        })
    }

    /// Copies tensors of torch's to the device that holds the state: role, name, address and bytes of each.
    fn upload(&self, py: Python, tensors: Vec<Located>) -> PyResult<()> {
        guarded(py, move || {
            let session = &mut self.lock()?.session;
            for (role, name, address, bytes) in tensors {
                // SAFETY: Python gives contiguous tensors and keeps them for the call.
                let contents = unsafe { view(address, bytes) };
                match model_tensor(session, &role, &name) {
                    Some(tensor) => session.write(&tensor, contents)?,
                    None => session.write_moment(&moment(&role, &name), contents)?,
                }
            }
            Ok(())
        })
    }

    /// Copies tensors of the state to torch's: see [`Step::upload`].
    fn download(&self, py: Python, tensors: Vec<Located>) -> PyResult<()> {
        guarded(py, move || {
            let session = &self.lock()?.session;
            for (role, name, address, bytes) in tensors {
                let held = match model_tensor(session, &role, &name) {
                    Some(tensor) => session.read(&tensor)?,
                    None => session.read_moment(&moment(&role, &name))?,
                };
                if held.len() != bytes {
                    let message =
                        format!("{name} has {} bytes in the state, and {bytes} were given", held.len());
                    return Err(Failure::new("HW-R007", message));
                }
                // SAFETY: Python gives contiguous tensors, keeps them for the call, and holds them for
                // itself alone: they are the step's mirror of its state, which one call at a time writes.
                unsafe { view_mut(address, bytes) }.copy_from_slice(&held);
            }
            Ok(())
        })
    }

    /// Bytes that the step holds, by kind.
    fn memory(&self, py: Python) -> PyResult<Bytes> {
        guarded(py, || Ok(bytes(self.lock()?.session.memory())))
    }

    /// Times that the update was planned.
    fn update_plans(&self, py: Python) -> PyResult<u64> {
        guarded(py, || Ok(self.lock()?.session.update_plans()))
    }

    /// Compares the loss and gradients of a batch, without dropout, with those of PyTorch in eager mode;
    /// gives what differs, and what is not proved. `number` is that of `program` here, if it has one;
    /// `tensors` are the contents of the model's tensors before the batch.
    #[allow(clippy::too_many_arguments, reason = "keywords of a Python call")]
    fn check(
        &self,
        py: Python,
        number: Option<usize>,
        program: &Program,
        feeds: Vec<usize>,
        tensors: Addresses,
        loss: f64,
        gradients: Addresses,
    ) -> PyResult<Verdict> {
        let graph = program.graph.clone();
        guarded(py, move || {
            let mut inner = self.lock()?;
            let mut still = (*graph).clone();
            let same = headwater_core::pass::without_dropout(&mut still) == 0;
            if draws(&still)? {
                let what = "random numbers other than dropout: eager mode draws others, so the first step cannot be compared; \
                            pass check=False";
                return Err(Failure::Unsupported(vec![(what.into(), String::new(), String::new())]));
            }
            let program = match number {
                Some(number) if same => inner.program(number)?,
                _ => inner.session.training_program(&still)?,
            };
            let got = inner.gradients(program, &feeds, (0, 0), true)?;
            let inputs = check::Inputs { tensors: Contents::new(tensors), feeds };
            check::compare(
                &inner.session,
                self.device.target(),
                &still,
                &inputs,
                got,
                loss,
                &Contents::new(gradients),
            )
        })
    }
}

/// Role of a tensor of the state, name, address and bytes of torch's.
type Located = (String, String, usize, usize);

/// The model's tensor of a role and name; none is called by the name of a moment.
fn model_tensor(session: &Session, role: &str, name: &str) -> Option<ModelTensor> {
    let own = matches!(role, "parameter" | "buffer");
    session.tensors().iter().find(|t| own && t.name == name).cloned()
}

fn moment(role: &str, name: &str) -> StateKey {
    StateKey::Part(name.into(), Kept::Moment(role.into()))
}

/// Places of all that Python sees.
fn places(session: &Session) -> Result<Places, Failure> {
    let mut places = Places::new();
    let mut add = |role: &str, name: &str, key: &StateKey| -> Result<(), Failure> {
        let (segment, byte, _) = session.place(key)?;
        places.insert((role.to_string(), name.to_string()), (segment, byte));
        Ok(())
    };
    for t in session.tensors() {
        match t.role {
            InputRole::Parameter { .. } => add("parameter", &t.name, &StateKey::Parameter(t.name.clone()))?,
            InputRole::Buffer { .. } => add("buffer", &t.name, &StateKey::Buffer(t.name.clone()))?,
            _ => {}
        }
    }
    for (key, _) in session.moments() {
        if let StateKey::Part(name, Kept::Moment(moment)) = &key {
            add(moment, name, &key)?;
        }
    }
    Ok(places)
}
