//! A graph run on a device: for tests, checks and single operators.

use crate::device::{Buffer, Content, Device, Executable};
use crate::diagnostic::Result;
use crate::graph::{Graph, Output};
use crate::pass::{self, narrow_integers::check_words};
use crate::plan::{Bindings, Plan};
use crate::tensor::Tensor;
use crate::{DType, ensure, fail};
use std::sync::Arc;

/// Runs a graph once on a device and returns its outputs in order. Plans with [`Bindings::simple`] and proves
/// the plan before running it.
///
/// # Errors
/// Refusals of planning, the device and the operators; `Graph` if `inputs` are not those of the graph.
pub fn evaluate(device: &dyn Device, graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    Loaded::new(device, graph)?.run(inputs)
}

/// A graph on a device, ready to run any number of times.
pub struct Loaded<'a> {
    device: &'a dyn Device,
    graph: Graph,
    bindings: Bindings,
    plan: Plan,
    memory: Vec<Arc<dyn Buffer>>,
    program: Box<dyn Executable>,
}

impl<'a> Loaded<'a> {
    /// Plans a graph, proves the plan, and loads it.
    ///
    /// # Errors
    /// Refusals of planning, the device and the operators.
    pub fn new(device: &'a dyn Device, graph: &Graph) -> Result<Loaded<'a>> {
        let target = device.target();
        let graph = pass::narrow_integers(pass::on_host(graph.clone(), target)?, target)?;
        let bindings = Bindings::simple(&graph);
        let plan = pass::plan(&graph, &bindings, target)?;
        pass::check_plan(&plan)?;
        let alloc = |bytes| device.alloc(bytes, Content::Undefined);
        let memory = plan.segments.iter().map(|s| alloc(s.bytes)).collect::<Result<Vec<_>>>()?;
        let program = device.load(&plan)?;
        Ok(Loaded { device, graph, bindings, plan, memory, program })
    }

    /// The outputs for some inputs, both in order.
    ///
    /// # Errors
    /// Errors of the device; `Graph` if `inputs` are not those of the graph.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (graph, target) = (&self.graph, self.device.target());
        let (given, wanted) = (inputs.len(), graph.inputs.len());
        ensure!(given == wanted, Graph, "{given} inputs for {wanted}");
        let stream = self.device.stream()?;
        for ((input, place), tensor) in graph.inputs.iter().zip(&self.bindings.inputs).zip(inputs) {
            let want = graph.ty(input.value);
            ensure!(tensor.ty == *want, Graph, "input {} is {}, expected {want}", input.name, tensor.ty);
            if let Some(place) = place {
                let bytes = tensor.to_bytes();
                if !target.dtypes.arithmetic.contains(DType::I64) {
                    check_words(&input.name, &input.role, want, &bytes)?;
                }
                stream.write(&self.memory[place.segment.0 as usize], place.offset, &bytes)?;
            }
        }
        self.program.submit(stream.as_ref(), &self.memory, 0..self.plan.steps.len())?;
        stream.synchronize()?;
        let read = |(i, output): (usize, &Output)| {
            let place = self.bindings.output_place(graph, i);
            let place = place.ok_or_else(|| fail!(Graph, "output {} is not bound", output.name))?;
            let ty = graph.ty(output.value);
            let mut bytes = vec![0; ty.bytes()];
            stream.read(&self.memory[place.segment.0 as usize], place.offset, &mut bytes)?;
            Ok(Tensor::from_bytes(ty, &bytes))
        };
        graph.outputs.iter().enumerate().map(read).collect()
    }
}
