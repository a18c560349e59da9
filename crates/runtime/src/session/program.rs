//! A graph compiled against the state: a plan on the device, with memory for what is fed and what comes out.

use super::layout::{Slot, StateLayout};
use super::state::State;
use crate::error::{Error, Result};
use headwater_core::device::{Buffer, Content, Device, Executable, Stream};
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::plan::{Bindings, Place, Plan, Segment, SegmentId, SegmentKind};
use headwater_core::train::{Kept, StateKey};
use headwater_core::{Graph, TensorType};
use std::sync::Arc;

/// A loaded plan and its own segments.
pub(crate) struct Program {
    plan: Plan,
    executable: Box<dyn Executable>,
    /// Fed tensors by name, at places in `fed`.
    inputs: Vec<(String, Slot)>,
    /// User outputs in order, at places in `results`.
    outputs: Vec<(String, Slot)>,
    fed: Arc<dyn Buffer>,
    results: Arc<dyn Buffer>,
    /// Runs since they are measured.
    runs: u64,
}

/// Lays out consecutive tensors in a segment.
struct Packing {
    segment: SegmentId,
    bytes: usize,
    alignment: usize,
}

impl Packing {
    fn place(&mut self, ty: &TensorType) -> Place {
        let place = Place { segment: self.segment, offset: self.bytes };
        self.bytes += ty.bytes().next_multiple_of(self.alignment);
        place
    }
}

/// Places of the inputs and outputs of a graph: in the state, or in segments of its program's own.
pub(crate) struct Interface {
    inputs: Vec<(String, Slot)>,
    outputs: Vec<(String, Slot)>,
    /// Bytes of all that is fed, and of all results.
    pub(super) bytes: [usize; 2],
}

impl Interface {
    /// Binds a graph whose parameters, buffers, constants and state are those of `state`.
    ///
    /// # Errors
    /// `Model` if the state lacks a tensor or has it in another type.
    pub fn bind(state: &StateLayout, graph: &Graph) -> Result<(Interface, Bindings)> {
        let mut bindings = Bindings { segments: state.segments().cloned().collect(), ..Bindings::default() };
        let next = bindings.segments.len() as u32 + 1;
        let mut fed = Packing { segment: SegmentId(next), bytes: 0, alignment: state.alignment };
        let mut results = Packing { segment: SegmentId(next + 1), bytes: 0, alignment: state.alignment };
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for input in &graph.inputs {
            let ty = graph.ty(input.value);
            let place = match input.role {
                InputRole::User => {
                    let place = fed.place(ty);
                    inputs.push((input.name.clone(), Slot { place, ty: ty.clone() }));
                    place
                }
                _ => {
                    let unknown = || Error::Model(format!("no state is called {}", input.name));
                    let slot = state.slot(&StateKey::of(input).ok_or_else(unknown)?)?;
                    if slot.ty != *ty {
                        let (name, have) = (&input.name, &slot.ty);
                        return Err(Error::Model(format!(
                            "{name} is {have} in memory and {ty} in the graph"
                        )));
                    }
                    slot.place
                }
            };
            bindings.inputs.push(Some(place));
        }
        for output in &graph.outputs {
            let ty = graph.ty(output.value);
            bindings.outputs.push(match output.role {
                OutputRole::User => {
                    let place = results.place(ty);
                    outputs.push((output.name.clone(), Slot { place, ty: ty.clone() }));
                    Some(place)
                }
                OutputRole::Gradient(v) => {
                    let at =
                        graph.input_index(v).ok_or_else(|| Error::Model("a gradient of no input".into()))?;
                    Some(state.slot(&StateKey::gradient(&graph.inputs[at].name))?.place)
                }
                OutputRole::Mutation(_) => None,
                OutputRole::Gradients => {
                    return Err(Error::Model("gradients are bound before they are packed".into()));
                }
            });
        }
        bindings.buckets = buckets(state, graph)?;
        for (name, bytes, kind) in
            [("inputs", fed.bytes, SegmentKind::Input), ("outputs", results.bytes, SegmentKind::Output)]
        {
            bindings.segments.push(Segment { name: name.into(), bytes, kind });
        }
        Ok((Interface { inputs, outputs, bytes: [fed.bytes, results.bytes] }, bindings))
    }
}

/// The segments of a graph's gradients, or of their sums over micro-batches.
///
/// # Errors
/// `Model` if the state has no bucket for a gradient.
fn buckets(state: &StateLayout, graph: &Graph) -> Result<Vec<SegmentId>> {
    let input = |v| graph.input_index(v).map(|at| &graph.inputs[at]);
    let sum = |key: &StateKey| matches!(key, StateKey::Part(_, Kept::Gradients));
    let gradients = graph.outputs.iter().filter_map(|o| match o.role {
        OutputRole::Gradient(v) => Some(StateKey::gradient(&input(v)?.name)),
        OutputRole::Mutation(v) => input(v).and_then(StateKey::of).filter(sum),
        OutputRole::User | OutputRole::Gradients => None,
    });
    let segments = gradients.map(|key| Ok(state.slot(&key)?.place.segment));
    let mut segments = segments.collect::<Result<Vec<_>>>()?;
    segments.sort_unstable();
    segments.dedup();
    Ok(segments)
}

impl Program {
    /// Loads a plan that was bound by [`Interface::bind`].
    ///
    /// # Errors
    /// Refusals of the device.
    pub fn load(device: &dyn Device, plan: Plan, interface: Interface) -> Result<Program> {
        let Interface { inputs, outputs, bytes: [fed, results] } = interface;
        Ok(Program {
            executable: device.load(&plan)?,
            fed: device.alloc(fed, Content::Undefined)?,
            results: device.alloc(results, Content::Undefined)?,
            plan,
            inputs,
            outputs,
            runs: 0,
        })
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Bytes of arena it needs.
    pub fn arena(&self) -> usize {
        self.plan.segments[0].bytes
    }

    /// Bytes of what it is fed and returns.
    pub fn own_bytes(&self) -> usize {
        self.fed.bytes() + self.results.bytes()
    }

    /// Inputs that it must be fed: names and types.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        self.inputs.iter().map(|(n, s)| (n.as_str(), &s.ty))
    }

    /// Results that it returns: names and types.
    pub fn outputs(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        self.outputs.iter().map(|(n, s)| (n.as_str(), &s.ty))
    }

    /// Writes a fed tensor.
    pub fn feed(&self, stream: &dyn Stream, i: usize, bytes: &[u8]) -> Result<()> {
        let (name, slot) = &self.inputs[i];
        if bytes.len() != slot.ty.bytes() {
            let message = format!("input {name} is {}, {} bytes were given", slot.ty, bytes.len());
            return Err(Error::Feed(message));
        }
        Ok(stream.write(&self.fed, slot.place.offset, bytes)?)
    }

    /// Reads a result of the last run: its type and its bytes.
    pub fn output(&self, stream: &dyn Stream, i: usize) -> Result<(&TensorType, Vec<u8>)> {
        let slot = &self.outputs[i].1;
        let mut bytes = vec![0; slot.ty.bytes()];
        stream.read(&self.results, slot.place.offset, &mut bytes)?;
        Ok((&slot.ty, bytes))
    }

    /// Runs once, and waits.
    pub fn run(&mut self, state: &mut State, arena: &Arc<dyn Buffer>) -> Result<()> {
        state.send_scalars()?;
        let own = [&self.fed, &self.results];
        let memory: Vec<_> = [arena].into_iter().chain(state.memory()).chain(own).cloned().collect();
        self.runs += 1;
        self.executable.submit(state.stream(), &memory, 0..self.plan.steps.len())?;
        Ok(state.stream().synchronize()?)
    }

    /// Measures every step of later runs.
    pub fn measure(&mut self) {
        self.runs = 0;
        self.executable.measure();
    }

    /// Runs since they are measured, or in all.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Seconds of every step so far; empty if not measured.
    pub fn seconds(&self) -> Vec<f64> {
        self.executable.seconds()
    }
}
