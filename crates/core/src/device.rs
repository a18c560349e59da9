//! What a device must offer. Passes see a device only through its [`Target`]; the runtime through [`Device`].

use crate::diagnostic::Result;
use crate::graph::{Graph, Output, OutputRole};
use crate::pass;
use crate::plan::{Bindings, Place, Plan};
use crate::target::Target;
use crate::tensor::Tensor;
use crate::{ensure, fail};
use std::any::Any;

/// Memory on a device, aligned to [`crate::plan::ALIGN`], zeroed when made.
pub trait Memory: Send {
    /// Size in bytes.
    fn bytes(&self) -> usize;
    /// Copies `data` to byte `offset`.
    ///
    /// # Errors
    /// `Device` if the range is outside.
    fn write(&mut self, offset: usize, data: &[u8]) -> Result<()>;
    /// Copies from byte `offset` into `data`.
    ///
    /// # Errors
    /// `Device` if the range is outside.
    fn read(&self, offset: usize, data: &mut [u8]) -> Result<()>;
    /// For the device to find its own type again.
    fn as_any(&mut self) -> &mut dyn Any;
}

/// A plan loaded onto a device.
pub trait Executable: Send {
    /// Runs the plan once. `memory[i]` is segment `i` (the arena first). With `seconds`, adds each step's
    /// duration to the entry of its index; timing may serialise what would overlap.
    ///
    /// # Errors
    /// `Value` for data out of range (an index), `Device` for failures; the step's operator and origin are
    /// named. After a `Device` error every further run fails with the same error.
    fn run(&mut self, memory: &mut [&mut dyn Memory], seconds: Option<&mut [f64]>) -> Result<()>;
}

/// A place where plans run.
pub trait Device: Send + Sync {
    /// Name, e.g. `cpu`.
    fn name(&self) -> &str;
    /// What it can do and what it costs.
    fn target(&self) -> &Target;
    /// Memory of its own.
    ///
    /// # Errors
    /// `Device` if there is not enough.
    fn alloc(&self, bytes: usize) -> Result<Box<dyn Memory>>;
    /// Prepares a plan: picks kernels, compiles programs.
    ///
    /// # Errors
    /// `Unsupported` or `Device` if a step cannot run here.
    fn load(&self, plan: &Plan) -> Result<Box<dyn Executable>>;
}

/// Runs a graph once on a device and returns its outputs in order: for tests, checks and single operators.
/// Plans with [`Bindings::simple`] and proves the plan before running it.
///
/// # Errors
/// What planning, the device and the operators refuse; `Graph` if `inputs` are not those of the graph.
pub fn evaluate(device: &dyn Device, graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    ensure!(inputs.len() == graph.inputs.len(), Graph, "{} inputs for {}", inputs.len(), graph.inputs.len());
    let bindings = Bindings::simple(graph);
    let plan = pass::plan(graph, &bindings, device.target())?;
    pass::check_plan(&plan)?;
    let mut memory = plan.segments.iter().map(|s| device.alloc(s.bytes)).collect::<Result<Vec<_>>>()?;
    for ((input, place), tensor) in graph.inputs.iter().zip(&bindings.inputs).zip(inputs) {
        let want = graph.ty(input.value);
        ensure!(tensor.ty == *want, Graph, "input {} is {}, expected {want}", input.name, tensor.ty);
        if let Some(place) = place {
            memory[place.segment.0 as usize].write(place.offset, &tensor.to_bytes())?;
        }
    }
    device
        .load(&plan)?
        .run(&mut memory.iter_mut().map(|m| m.as_mut() as &mut dyn Memory).collect::<Vec<_>>(), None)?;
    let read = |(output, place): (&Output, &Option<Place>)| {
        let place = place.or_else(|| match output.role {
            OutputRole::Mutation(v) => graph.input_index(v).and_then(|i| bindings.inputs[i]),
            _ => None,
        });
        let place = place.ok_or_else(|| fail!(Graph, "output {} is not bound", output.name))?;
        let ty = graph.ty(output.value);
        let mut bytes = vec![0; ty.bytes()];
        memory[place.segment.0 as usize].read(place.offset, &mut bytes)?;
        Ok(Tensor::from_bytes(ty, &bytes))
    };
    graph.outputs.iter().zip(&bindings.outputs).map(read).collect()
}
