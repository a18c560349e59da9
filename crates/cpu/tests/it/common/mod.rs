//! Helpers that tests of kernels share.

use headwater_core::device::{Buffer, Content, Device, Executable};
use headwater_core::pass::{check_plan, plan};
use headwater_core::plan::{Bindings, Plan};
use headwater_core::{Graph, Tensor};
use headwater_cpu::Cpu;
use std::sync::Arc;

/// Runs a graph on a device and returns its outputs. It runs also with larger workspaces than were requested,
/// as those that share an offset have; that must not change a bit.
pub fn run(device: &Cpu, graph: &Graph, inputs: &[Tensor]) -> headwater_core::Result<Vec<Tensor>> {
    let bindings = Bindings::simple(graph);
    let mut plan = plan(graph, &bindings, device.target())?;
    check_plan(&plan)?;
    let outputs = run_plan(device, graph, &plan, &bindings, inputs)?;
    let mut roomy = false;
    for step in &mut plan.steps {
        if let Some((place, bytes)) = &mut step.workspace {
            roomy = true;
            place.offset = plan.segments[0].bytes.next_multiple_of(64);
            *bytes += MORE;
            plan.segments[0].bytes = place.offset + *bytes;
        }
    }
    if roomy {
        let bytes = |all: &[Tensor]| all.iter().map(Tensor::to_bytes).collect::<Vec<_>>();
        let again = run_plan(device, graph, &plan, &bindings, inputs)?;
        assert!(bytes(&again) == bytes(&outputs), "a larger workspace changes the results");
    }
    Ok(outputs)
}

/// Bytes of workspace more than were requested; not a multiple of what threads share.
const MORE: usize = 64 * 1001 + 8;

fn run_plan(
    device: &Cpu,
    graph: &Graph,
    plan: &Plan,
    bindings: &Bindings,
    inputs: &[Tensor],
) -> headwater_core::Result<Vec<Tensor>> {
    let alloc = |bytes| device.alloc(bytes, Content::Undefined);
    let memory: Vec<Arc<dyn Buffer>> =
        plan.segments.iter().map(|s| alloc(s.bytes)).collect::<headwater_core::Result<_>>()?;
    let stream = device.stream()?;
    let mut loaded: Box<dyn Executable> = device.load(plan)?;
    // Memory that nobody wrote must not matter, nor what a run leaves in scratch memory. Both hold NaN, the
    // latter after a run on such inputs. Integers may be indices, so they are always given.
    for real in [false, true] {
        for (segment, memory) in plan.segments.iter().zip(&memory) {
            stream.fill(memory, 0, segment.bytes, 0xff)?;
        }
        for (tensor, place) in inputs.iter().zip(&bindings.inputs) {
            let place = place.expect("bound");
            if real || !tensor.ty.dtype.is_float() {
                stream.write(&memory[place.segment.0 as usize], place.offset, &tensor.to_bytes())?;
            }
        }
        loaded.submit(stream.as_ref(), &memory, 0..plan.steps.len())?;
        let ran = stream.synchronize();
        // Some operators refuse NaN.
        if real {
            ran?;
        }
    }
    let read = |(o, place): (&headwater_core::graph::Output, &Option<headwater_core::plan::Place>)| {
        let place = place.expect("bound");
        let mut bytes = vec![0; graph.ty(o.value).bytes()];
        stream.read(&memory[place.segment.0 as usize], place.offset, &mut bytes)?;
        Ok(Tensor::from_bytes(graph.ty(o.value), &bytes))
    };
    graph.outputs.iter().zip(&bindings.outputs).map(read).collect()
}
