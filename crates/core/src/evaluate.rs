//! A graph run once on a device: for tests, checks and single operators.

use crate::device::{Buffer, Content, Device};
use crate::diagnostic::Result;
use crate::graph::{Graph, Output};
use crate::pass::{self, narrow_integers::check_words};
use crate::plan::Bindings;
use crate::tensor::Tensor;
use crate::{DType, ensure, fail};
use std::sync::Arc;

/// Runs a graph once on a device and returns its outputs in order. Plans with [`Bindings::simple`] and proves
/// the plan before running it.
///
/// # Errors
/// Refusals of planning, the device and the operators; `Graph` if `inputs` are not those of the graph.
pub fn evaluate(device: &dyn Device, graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    ensure!(inputs.len() == graph.inputs.len(), Graph, "{} inputs for {}", inputs.len(), graph.inputs.len());
    let target = device.target();
    let graph = &pass::narrow_integers(pass::on_host(graph.clone(), target)?, target)?;
    let bindings = Bindings::simple(graph);
    let plan = pass::plan(graph, &bindings, target)?;
    pass::check_plan(&plan)?;
    let alloc = |bytes| device.alloc(bytes, Content::Undefined);
    let memory = plan.segments.iter().map(|s| alloc(s.bytes)).collect::<Result<Vec<Arc<dyn Buffer>>>>()?;
    let stream = device.stream()?;
    for ((input, place), tensor) in graph.inputs.iter().zip(&bindings.inputs).zip(inputs) {
        let want = graph.ty(input.value);
        ensure!(tensor.ty == *want, Graph, "input {} is {}, expected {want}", input.name, tensor.ty);
        if let Some(place) = place {
            let bytes = tensor.to_bytes();
            if !target.dtypes.arithmetic.contains(DType::I64) {
                check_words(&input.name, &input.role, want, &bytes)?;
            }
            stream.write(&memory[place.segment.0 as usize], place.offset, &bytes)?;
        }
    }
    device.load(&plan)?.submit(stream.as_ref(), &memory, 0..plan.steps.len())?;
    stream.synchronize()?;
    let read = |(i, output): (usize, &Output)| {
        let place = bindings.output_place(graph, i);
        let place = place.ok_or_else(|| fail!(Graph, "output {} is not bound", output.name))?;
        let ty = graph.ty(output.value);
        let mut bytes = vec![0; ty.bytes()];
        stream.read(&memory[place.segment.0 as usize], place.offset, &mut bytes)?;
        Ok(Tensor::from_bytes(ty, &bytes))
    };
    graph.outputs.iter().enumerate().map(read).collect()
}
