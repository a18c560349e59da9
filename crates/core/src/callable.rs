//! A compiled graph that its caller runs on memory of his own: a layer of another framework, or one part of a
//! larger program.
//!
//! [`Callable::new`] compiles, places every input and result in a segment of its own, and loads the plan.
//! With [`Goal::Train`] the plan is of two runs: [`Callable::forward`] gives the [`Activations`] that
//! [`Callable::backward`] takes, and between the two the caller does what he likes, further forward passes
//! included. With another goal there is a forward pass alone. Work is submitted; [`Callable::finish`] waits
//! for it. New contents of inputs ([`OutputRole::Mutation`]) are results too: the inputs themselves are never
//! written, so a forward pass may be run again.
//!
//! ```
//! use headwater_core::callable::{Callable, Context};
//! use headwater_core::compile::{GradientRequest, Options};
//! use headwater_core::device::{Buffer, Content, Device};
//! use headwater_core::graph::{InputRole, OutputRole};
//! use headwater_core::{Builder, DType, Result, TensorType};
//! use headwater_reference::Reference;
//! use std::sync::Arc;
//!
//! # fn main() -> Result<()> {
//! // y = x · x
//! let mut b = Builder::new();
//! let x = b.input("x", TensorType::new(DType::F32, [2]), InputRole::User);
//! let y = b.mul(x, x)?;
//! b.output("y", y, OutputRole::User);
//!
//! let device: Arc<dyn Device> = Arc::new(Reference::new(0));
//! let context = Context::new(device.clone())?;
//! let derivative = GradientRequest::Vjp { outputs: &["y"], inputs: &["x"] };
//! let options = Options { derivative, ..Options::default() };
//! let mut square = Callable::new(&context, b.finish(), &options)?;
//! assert_eq!(square.gradients()[0].depends, ["y"]);
//!
//! // Memory of the caller, here on the device: x, y, the cotangent of y, the gradients.
//! let alloc = |bytes| device.alloc(bytes, Content::Undefined);
//! let (x, y, dy, dx) = (alloc(8)?, alloc(8)?, alloc(8)?, alloc(square.buckets()[0].bytes)?);
//! let stream = context.stream();
//! let bytes = |v: [f32; 2]| v.map(f32::to_le_bytes).concat();
//! stream.write(&x, 0, &bytes([3.0, -1.0]))?;
//! let activations = square.forward(&[x.clone()], &[y.clone()])?;
//!
//! stream.write(&dy, 0, &bytes([1.0, 10.0]))?;
//! square.backward(activations, &[Some(x)], &[Some(y)], &[dy], &[dx.clone()])?;
//! square.finish()?;
//! let mut gradient = [0; 8];
//! stream.read(&dx, square.gradients()[0].offset, &mut gradient)?;
//! assert_eq!(gradient.to_vec(), bytes([6.0, -20.0]));
//! # Ok(())
//! # }
//! ```

use crate::compile::{self, CompiledGraph, Goal, GradientRequest, Options, cotangent};
use crate::device::{Buffer, Content, Device, Executable, Stream};
use crate::diagnostic::Result;
use crate::graph::{Graph, InputRole, OutputRole};
use crate::pass::differentiate::NoGradient;
use crate::plan::{ALIGN, ARENA, Bindings, Place, Plan, Segment, SegmentId, SegmentKind};
use crate::tensor::TensorType;
use crate::{DType, ensure, fail};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// A device with a stream, on which the work of all callables of this context is done in order, and the
/// arenas that they share.
pub struct Context {
    device: Arc<dyn Device>,
    stream: Box<dyn Stream>,
    /// Arenas that no pass in flight uses.
    free: Mutex<Vec<Arc<dyn Buffer>>>,
}

impl Context {
    /// A context with a stream of its own.
    ///
    /// # Errors
    /// `Device` if there are no more streams.
    pub fn new(device: Arc<dyn Device>) -> Result<Arc<Context>> {
        let stream = device.stream()?;
        Ok(Arc::new(Context { device, stream, free: Mutex::default() }))
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The stream that work is submitted to.
    pub fn stream(&self) -> &dyn Stream {
        self.stream.as_ref()
    }

    /// Bytes of arenas that no pass in flight uses.
    pub fn idle_bytes(&self) -> usize {
        self.lock().iter().map(|arena| arena.bytes()).sum()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<dyn Buffer>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The smallest free arena of so many bytes. If all are smaller, a new one takes the place of one of
    /// them: there are never more than passes in flight at one time.
    fn arena(&self, bytes: usize) -> Result<Arc<dyn Buffer>> {
        let mut free = self.lock();
        let fits = free.iter().enumerate().filter(|(_, a)| a.bytes() >= bytes).min_by_key(|(_, a)| a.bytes());
        if let Some((at, _)) = fits {
            return Ok(free.swap_remove(at));
        }
        free.pop();
        self.device.alloc(bytes, Content::Undefined)
    }
}

/// Activations that a forward pass keeps for its backward pass. When dropped, their memory is reused by the
/// next forward pass.
pub struct Activations {
    context: Arc<Context>,
    arena: Option<Arc<dyn Buffer>>,
    /// The executable that filled them.
    owner: Arc<()>,
}

impl Drop for Activations {
    fn drop(&mut self) {
        let arena = self.arena.take();
        // Work of the stream that still uses it comes before all that will.
        self.context.lock().extend(arena);
    }
}

/// A tensor that goes in or comes out, contiguous and at the beginning of its buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Name in the graph.
    pub name: String,
    /// Dtype and shape.
    pub ty: TensorType,
    /// Its role in the graph: of an input, or of a result.
    pub role: Role,
    /// True if the backward half reads it.
    pub crosses: bool,
    segment: usize,
}

/// The role of a [`Port`].
#[derive(Clone, Debug, PartialEq)]
pub enum Role {
    /// An input of the graph.
    Input(InputRole),
    /// A result of the model.
    Result,
    /// The new content of the input of this name.
    NewContent(String),
    /// The cotangent of the result of this name.
    Cotangent(String),
}

/// A gradient, contiguous, in a bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradient {
    /// The input that it is of.
    pub input: String,
    /// Dtype and shape, those of the input.
    pub ty: TensorType,
    /// Position in [`Callable::buckets`].
    pub bucket: usize,
    /// First byte in the bucket, a multiple of [`ALIGN`].
    pub offset: usize,
    /// Names of the results that the input depends on: the gradient is of these alone.
    pub depends: Vec<String>,
}

/// A buffer for the gradients of one dtype.
#[derive(Clone, Debug, PartialEq)]
pub struct Bucket {
    /// Element type.
    pub dtype: DType,
    /// Size in bytes.
    pub bytes: usize,
    segment: usize,
}

/// A compiled graph, ready to run on memory of the caller.
pub struct Callable {
    context: Arc<Context>,
    run: Box<dyn Executable>,
    inputs: Vec<Port>,
    results: Vec<Port>,
    cotangents: Vec<Port>,
    gradients: Vec<Gradient>,
    buckets: Vec<Bucket>,
    missing: Vec<NoGradient>,
    /// Bytes of each segment.
    segments: Vec<usize>,
    /// First step of the backward half, and the number of steps.
    boundary: usize,
    steps: usize,
    crossing_bytes: usize,
    /// Placeholders for segments of which a half touches no byte: a device requires every segment.
    idle: Vec<Option<Arc<dyn Buffer>>>,
    identity: Arc<()>,
}

impl Callable {
    /// Compiles a forward graph. With [`Goal::Train`], [`Options::derivative`] must be a
    /// [`GradientRequest::Vjp`]; [`Options::halves`] is taken as set.
    ///
    /// # Errors
    /// As [`compile::compile`]; `Attribute` for another derivative; what the device refuses.
    pub fn new(context: &Arc<Context>, graph: Graph, options: &Options) -> Result<Callable> {
        let train = options.goal == Goal::Train;
        let vjp = match options.derivative {
            GradientRequest::Vjp { outputs, .. } => Some(outputs),
            GradientRequest::Loss => None,
        };
        ensure!(
            !train || vjp.is_some(),
            Attribute,
            "a callable takes cotangents: ask for GradientRequest::Vjp"
        );
        let options = Options { halves: train, stop_after: None, ..options.clone() };
        let given = vjp.filter(|_| train).unwrap_or_default();
        let device = &context.device;
        let mut made = Interface::default();
        let mut compiled = compile::compile(graph, &options, device.target(), |c| {
            Ok::<_, crate::Error>(made.bind(c, given))
        })?;
        let missing = std::mem::take(&mut compiled.missing);
        let plan = compiled.into_plan()?;
        let run = device.load(&plan)?;
        let crossing_bytes = made.cross(&plan);
        let steps = plan.steps.len();
        let boundary = plan.halves.as_ref().map_or(steps, |halves| halves.boundary);
        let segments: Vec<usize> = plan.segments.iter().map(|s| s.bytes).collect();
        let idle = vec![None; segments.len()];
        let Interface { inputs, results, cotangents, gradients, buckets } = made;
        let (context, identity) = (context.clone(), Arc::new(()));
        Ok(Callable {
            context,
            run,
            inputs,
            results,
            cotangents,
            gradients,
            buckets,
            missing,
            segments,
            boundary,
            steps,
            crossing_bytes,
            idle,
            identity,
        })
    }

    /// The context that it runs in.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Inputs, in the order of the graph's inputs.
    pub fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    /// Results of the forward pass, in the order of the graph's outputs.
    pub fn results(&self) -> &[Port] {
        &self.results
    }

    /// Cotangents that the backward pass takes, in the order in which the outputs were named.
    pub fn cotangents(&self) -> &[Port] {
        &self.cotangents
    }

    /// Gradients that the backward pass returns.
    pub fn gradients(&self) -> &[Gradient] {
        &self.gradients
    }

    /// The buffers of gradients.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Inputs that were to get a gradient and do not, and why.
    pub fn missing(&self) -> &[NoGradient] {
        &self.missing
    }

    /// Bytes of the arena, which is taken from a forward pass to its backward pass.
    pub fn arena_bytes(&self) -> usize {
        self.segments[ARENA.0 as usize]
    }

    /// Bytes of the values in the arena that the backward half reads of the forward half.
    pub fn crossing_bytes(&self) -> usize {
        self.crossing_bytes
    }

    /// Submits the forward pass. `inputs` and `results` are buffers of the ports, in their order; results
    /// overlap nothing else.
    ///
    /// # Errors
    /// `Device` for too few or too small buffers, and as [`crate::device`] says.
    pub fn forward(
        &mut self,
        inputs: &[Arc<dyn Buffer>],
        results: &[Arc<dyn Buffer>],
    ) -> Result<Activations> {
        let arena = self.context.arena(self.arena_bytes())?;
        let activations = Activations {
            context: self.context.clone(),
            arena: Some(arena.clone()),
            owner: self.identity.clone(),
        };
        let mut memory = Memory::new(self.segments.len(), arena);
        memory.put("inputs", &self.inputs, inputs.iter().map(Some))?;
        memory.put("results", &self.results, results.iter().map(Some))?;
        self.submit(memory, 0..self.boundary)?;
        Ok(activations)
    }

    /// Submits the backward pass of a forward pass. `inputs` and `results` are those of the forward pass with
    /// the same contents; where a port does not cross, none is needed. A second backward pass needs a second
    /// forward pass, for this one writes over the activations.
    ///
    /// # Errors
    /// `Device` for buffers that are missing or too small, and for activations of another callable.
    pub fn backward(
        &mut self,
        activations: Activations,
        inputs: &[Option<Arc<dyn Buffer>>],
        results: &[Option<Arc<dyn Buffer>>],
        cotangents: &[Arc<dyn Buffer>],
        gradients: &[Arc<dyn Buffer>],
    ) -> Result<()> {
        let own = Arc::ptr_eq(&activations.owner, &self.identity);
        let arena = activations.arena.clone().filter(|_| own);
        let arena = arena.ok_or_else(|| fail!(Device, "the activations are of another callable"))?;
        let mut memory = Memory::new(self.segments.len(), arena);
        for (what, ports, given) in [("inputs", &self.inputs, inputs), ("results", &self.results, results)] {
            let lost = ports.iter().zip(given).find(|(port, given)| port.crosses && given.is_none());
            ensure!(lost.is_none(), Device, "the backward pass reads {}", lost.map_or("", |(p, _)| &p.name));
            memory.put(what, ports, given.iter().map(Option::as_ref))?;
        }
        memory.put("cotangents", &self.cotangents, cotangents.iter().map(Some))?;
        let (got, want) = (gradients.len(), self.buckets.len());
        ensure!(got == want, Device, "{got} buckets of gradients were given, there are {want}");
        for (bucket, buffer) in self.buckets.iter().zip(gradients) {
            memory.0[bucket.segment] = Some(buffer.clone());
        }
        self.submit(memory, self.boundary..self.steps)
    }

    /// Waits for all work that was submitted to the context, and reports what went wrong in it.
    ///
    /// # Errors
    /// As [`Stream::synchronize`].
    pub fn finish(&self) -> Result<()> {
        self.context.stream.synchronize()
    }

    fn submit(&mut self, memory: Memory, steps: Range<usize>) -> Result<()> {
        let mut all = Vec::with_capacity(memory.0.len());
        for ((given, bytes), idle) in memory.0.into_iter().zip(&self.segments).zip(&mut self.idle) {
            all.push(match (given, &*idle) {
                (Some(given), _) => given,
                (None, Some(idle)) => idle.clone(),
                (None, None) => idle.insert(self.context.device.alloc(*bytes, Content::Undefined)?).clone(),
            });
        }
        self.run.submit(self.context.stream.as_ref(), &all, steps)
    }
}

/// Buffers by segment.
struct Memory(Vec<Option<Arc<dyn Buffer>>>);

impl Memory {
    fn new(segments: usize, arena: Arc<dyn Buffer>) -> Memory {
        let mut memory = vec![None; segments];
        memory[ARENA.0 as usize] = Some(arena);
        Memory(memory)
    }

    fn put<'a>(
        &mut self,
        what: &str,
        ports: &[Port],
        given: impl ExactSizeIterator<Item = Option<&'a Arc<dyn Buffer>>>,
    ) -> Result<()> {
        let (got, want) = (given.len(), ports.len());
        ensure!(got == want, Device, "{got} {what} were given, there are {want}");
        for (port, buffer) in ports.iter().zip(given) {
            self.0[port.segment] = buffer.cloned();
        }
        Ok(())
    }
}

/// Ports and their segments, as they are placed.
#[derive(Default)]
struct Interface {
    inputs: Vec<Port>,
    results: Vec<Port>,
    cotangents: Vec<Port>,
    gradients: Vec<Gradient>,
    buckets: Vec<Bucket>,
}

impl Interface {
    /// Places the inputs and outputs of a graph; `given` names the outputs that have cotangents.
    fn bind(&mut self, c: &CompiledGraph, given: &[&str]) -> Bindings {
        let graph = &c.graph;
        let mut b = Bindings::default();
        let segment = |b: &mut Bindings, name: &str, bytes: usize, kind| {
            b.segments.push(Segment { name: name.to_string(), bytes, kind });
            b.segments.len()
        };
        let place = |segment: usize, offset| Some(Place { segment: SegmentId(segment as u32), offset });
        let cotangents: Vec<String> = given.iter().map(|name| cotangent(name)).collect();
        for input in &graph.inputs {
            let ty = graph.ty(input.value).clone();
            let segment = segment(&mut b, &input.name, ty.bytes(), SegmentKind::Input);
            b.inputs.push(place(segment, 0));
            let of = cotangents.iter().position(|name| *name == input.name);
            let role =
                of.map_or(Role::Input(input.role.clone()), |at| Role::Cotangent(given[at].to_string()));
            let ports = if of.is_some() { &mut self.cotangents } else { &mut self.inputs };
            ports.push(Port { name: input.name.clone(), ty, role, crosses: false, segment });
        }
        self.cotangents.sort_by_key(|port| cotangents.iter().position(|name| *name == port.name));
        let input = |v| graph.input_index(v).map_or_else(String::new, |at| graph.inputs[at].name.clone());
        let mut buckets: Vec<Bucket> = Vec::new();
        // Places of gradients, by position among the outputs, bucket and byte.
        let mut placed = Vec::new();
        for (at, output) in graph.outputs.iter().enumerate() {
            let ty = graph.ty(output.value).clone();
            let role = match output.role {
                OutputRole::User | OutputRole::Gradients => Role::Result,
                OutputRole::Mutation(v) => Role::NewContent(input(v)),
                OutputRole::Gradient(v) => {
                    let bucket = buckets.iter().position(|bucket| bucket.dtype == ty.dtype);
                    let bucket = bucket.unwrap_or_else(|| {
                        buckets.push(Bucket { dtype: ty.dtype, bytes: 0, segment: 0 });
                        buckets.len() - 1
                    });
                    let (name, offset) = (input(v), buckets[bucket].bytes);
                    buckets[bucket].bytes += ty.bytes().next_multiple_of(ALIGN);
                    placed.push((at, bucket, offset));
                    b.outputs.push(None);
                    let depends =
                        c.depends.iter().find(|d| d.0 == name).map_or_else(Vec::new, |d| d.1.clone());
                    self.gradients.push(Gradient { input: name, ty, bucket, offset, depends });
                    continue;
                }
            };
            let segment = segment(&mut b, &output.name, ty.bytes(), SegmentKind::Output);
            b.outputs.push(place(segment, 0));
            self.results.push(Port { name: output.name.clone(), ty, role, crosses: false, segment });
        }
        for bucket in &mut buckets {
            let name = format!("gradients.{}", bucket.dtype);
            bucket.segment = segment(&mut b, &name, bucket.bytes, SegmentKind::Output);
        }
        for (at, bucket, offset) in placed {
            b.outputs[at] = place(buckets[bucket].segment, offset);
        }
        self.buckets = buckets;
        b
    }

    /// Marks what the backward half of a plan reads; gives the bytes of that in the arena.
    fn cross(&mut self, plan: &Plan) -> usize {
        let crossing = plan.halves.iter().flat_map(|halves| &halves.crossing);
        let mut bytes = 0;
        let mut late = vec![false; plan.segments.len()];
        for c in crossing {
            match c.place.segment {
                ARENA => bytes += c.ty.bytes(),
                other => late[other.0 as usize] = true,
            }
        }
        let boundary = plan.halves.as_ref().map_or(plan.steps.len(), |halves| halves.boundary);
        // An input that the forward half does not touch does not cross, but is read.
        for view in plan.steps[boundary..].iter().flat_map(|s| s.reads.iter().flatten()) {
            late[view.place.segment.0 as usize] = true;
        }
        for port in self.inputs.iter_mut().chain(&mut self.results) {
            port.crosses = late[port.segment] && port.ty.bytes() > 0;
        }
        bytes
    }
}
