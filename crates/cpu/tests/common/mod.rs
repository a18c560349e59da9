//! What tests of kernels share.

use headwater_core::device::{Device, Executable, Memory};
use headwater_core::pass::{check_plan, plan};
use headwater_core::plan::{Bindings, Plan};
use headwater_core::{Graph, Tensor};
use headwater_cpu::Cpu;

/// Runs a graph on a device and returns its outputs; also with larger workspaces than were asked for, as
/// those that share their place are, which must not change a bit.
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

/// Bytes of workspace more than were asked for; no multiple of what threads share.
const MORE: usize = 64 * 1001 + 8;

fn run_plan(
    device: &Cpu,
    graph: &Graph,
    plan: &Plan,
    bindings: &Bindings,
    inputs: &[Tensor],
) -> headwater_core::Result<Vec<Tensor>> {
    let mut memory: Vec<Box<dyn Memory>> =
        plan.segments.iter().map(|s| device.alloc(s.bytes)).collect::<headwater_core::Result<_>>()?;
    let mut loaded: Box<dyn Executable> = device.load(plan)?;
    // What lies in memory that nobody wrote must not matter, nor what a run leaves in scratch memory: both
    // are no numbers, the latter after a run on such inputs. Integers may be indices, so they are always
    // given.
    for real in [false, true] {
        for (segment, memory) in plan.segments.iter().zip(&mut memory) {
            memory.write(0, &vec![0xff; segment.bytes])?;
        }
        for (tensor, place) in inputs.iter().zip(&bindings.inputs) {
            let place = place.expect("bound");
            if real || !tensor.ty.dtype.is_float() {
                memory[place.segment.0 as usize].write(place.offset, &tensor.to_bytes())?;
            }
        }
        let mut views: Vec<&mut dyn Memory> =
            memory.iter_mut().map(|m| &mut **m as &mut dyn Memory).collect();
        let ran = loaded.run(&mut views, None);
        // Some operators refuse what is no number.
        if real {
            ran?;
        }
    }
    let read = |(o, place): (&headwater_core::graph::Output, &Option<headwater_core::plan::Place>)| {
        let place = place.expect("bound");
        let mut bytes = vec![0; graph.ty(o.value).bytes()];
        memory[place.segment.0 as usize].read(place.offset, &mut bytes)?;
        Ok(Tensor::from_bytes(graph.ty(o.value), &bytes))
    };
    graph.outputs.iter().zip(&bindings.outputs).map(read).collect()
}
