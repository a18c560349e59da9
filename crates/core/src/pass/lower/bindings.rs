//! Places of inputs and outputs that nobody chose.

use crate::graph::{Graph, OutputRole};
use crate::plan::{Bindings, Place, Segment, SegmentId, SegmentKind};
use crate::target::Port;

impl Bindings {
    /// Place of an output: its own, or for a mutation its target's.
    pub(crate) fn output_place(&self, graph: &Graph, output: usize) -> Option<Place> {
        self.outputs[output].or_else(|| match graph.outputs[output].role {
            OutputRole::Mutation(v) => graph.input_index(v).and_then(|i| self.inputs[i]),
            _ => None,
        })
    }

    /// Every input in a segment of its own kind and every output in one: for tests and single runs.
    pub fn simple(graph: &Graph) -> Bindings {
        Bindings::around(graph, Vec::new(), |_| None)
    }

    /// The same for all inputs and outputs that `given` gives no place in the first segments.
    pub fn around(graph: &Graph, segments: Vec<Segment>, given: impl Fn(Port) -> Option<Place>) -> Bindings {
        let mut b = Bindings { segments, ..Bindings::default() };
        let mut add = |name: &str, bytes: usize, kind| {
            b.segments.push(Segment { name: name.to_string(), bytes, kind });
            Some(Place { segment: SegmentId(b.segments.len() as u32), offset: 0 })
        };
        let mut inputs = Vec::with_capacity(graph.inputs.len());
        for (i, input) in graph.inputs.iter().enumerate() {
            let bytes = graph.ty(input.value).bytes();
            inputs.push(given(Port::Read(i)).or_else(|| add(&input.name, bytes, SegmentKind::State)));
        }
        let mut outputs = Vec::with_capacity(graph.outputs.len());
        for (i, output) in graph.outputs.iter().enumerate() {
            let bytes = graph.ty(output.value).bytes();
            outputs.push(match output.role {
                OutputRole::Mutation(_) => None,
                _ => given(Port::Write(i)).or_else(|| add(&output.name, bytes, SegmentKind::Output)),
            });
        }
        Bindings { inputs, outputs, ..b }
    }
}
