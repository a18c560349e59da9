//! A plan: a graph made executable. Steps in order, every operand at a fixed place, every byte known
//! beforehand. Plain data; made by `pass::lower`, proved by `pass::check_plan`, run by a device.

pub mod parse;
pub mod text;

pub use parse::parse;

use crate::attr::Attrs;
use crate::diagnostic::{Code, Error, Result};
use crate::dtype::DType;
use crate::graph::{Origin, OriginId, Phase, ValueId};
use crate::ops::collective::{self, is_collective};
use crate::ops::{OpCx, OpDef};
use crate::row::RowProgram;
use crate::shape::Layout;
use crate::tensor::TensorType;
use std::sync::Arc;

/// Index of a segment in a plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct SegmentId(pub u32);

/// Who owns a segment and how long it lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum SegmentKind {
    /// Values of one run of the plan; content is undefined before and after.
    Arena,
    /// Persists from run to run: parameters, gradients, moments, buffers.
    State,
    /// Written by the caller before a run, not changed by it.
    Input,
    /// Written by a run, read by the caller.
    Output,
    /// Never changes: constants of the model.
    Constant,
}

/// A piece of device memory that a plan addresses. Segments are aligned to [`Plan::alignment`] bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct Segment {
    /// Name, e.g. `arena`, `parameters.f32`.
    pub name: String,
    /// Size in bytes.
    pub bytes: usize,
    /// Owner and life.
    pub kind: SegmentKind,
}

/// Least alignment in bytes of segments and of the buffers in them, on any device. Memory that is lent to a
/// device has it too.
pub const ALIGN: usize = 64;

/// A byte position in a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Place {
    /// The segment.
    pub segment: SegmentId,
    /// Bytes from its start; a multiple of the element size.
    pub offset: usize,
}

/// A tensor in memory: element `index` is at
/// `place.offset + (layout.offset + Σ index·strides) · dtype.size()`.
#[derive(Clone, PartialEq, Debug)]
pub struct TensorView {
    /// The buffer's first byte.
    pub place: Place,
    /// Element type.
    pub dtype: DType,
    /// Offsets of its elements in the buffer.
    pub layout: Layout,
}

impl TensorView {
    /// Its dtype and shape.
    pub fn ty(&self) -> TensorType {
        TensorType { dtype: self.dtype, shape: self.layout.shape.clone() }
    }
}

/// The work of a step.
#[derive(Clone, Debug)]
pub enum Work {
    /// Runs a row program; reads and writes are its operands in order.
    Rows(Arc<RowProgram>),
    /// Runs the device's kernel for an operator; reads are the node's inputs (absent ones `None`), writes its
    /// outputs.
    Kernel {
        /// The operator.
        op: &'static OpDef,
        /// Its attributes.
        attrs: Attrs,
    },
}

impl Work {
    /// True if it changes a part of what its first result's memory holds ([`crate::ops::Body::Update`]): then
    /// it has no operand 0, which is just that.
    pub fn is_update(&self) -> bool {
        matches!(self, Work::Kernel { op, .. } if matches!(op.body, crate::ops::Body::Update(_)))
    }
}

impl Plan {
    /// The steps in which ranks meet, with their numbers and attributes, in order.
    pub fn collectives(&self) -> impl Iterator<Item = (usize, &Step, &Attrs)> {
        self.steps.iter().enumerate().filter_map(|(s, step)| match &step.work {
            Work::Kernel { op, attrs } if is_collective(op) => Some((s, step, attrs)),
            _ => None,
        })
    }

    /// Refuses a plan whose collectives are not of the ranks that a device reaches: itself and those of its
    /// transport. A device without one is a world of 1.
    ///
    /// # Errors
    /// `Unsupported`, with the operator and the model's line.
    pub fn check_ranks(&self, reached: usize) -> Result<()> {
        for (_, step, attrs) in self.collectives() {
            let wanted = collective::ranks(attrs);
            if wanted != reached {
                let message = match reached {
                    1 => format!(
                        "it is of {wanted} ranks, and the device was opened without a transport to others"
                    ),
                    _ => format!("it is of {wanted} ranks, and the device reaches {reached}"),
                };
                let origin = self.origins.get(step.origin.0 as usize).cloned().unwrap_or_default();
                return Err(Error::new(Code::Unsupported, message).in_op(step.op).at(&origin));
            }
        }
        Ok(())
    }
}

/// One step of a plan.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its work.
    pub work: Work,
    /// Operands read.
    pub reads: Vec<Option<TensorView>>,
    /// Operands written; they overlap no read unless the planner decided to work in place (same elements,
    /// same order).
    pub writes: Vec<TensorView>,
    /// Scratch memory in the arena: place and bytes, at least as many as the device requested.
    pub workspace: Option<(Place, usize)>,
    /// The operator this step belongs to, by name, for reports.
    pub op: &'static str,
    /// The model's line.
    pub origin: OriginId,
    /// Part of the training step.
    pub phase: Phase,
    /// Floating-point operations.
    pub flops: f64,
    /// The stream it runs on; 0 is the one that the plan is submitted to. Steps of a stream run in their
    /// order, others concurrently except for [`Plan::waits`].
    pub stream: u32,
}

impl Step {
    /// Types of its operands.
    pub fn types(&self) -> StepTypes {
        StepTypes {
            inputs: self.reads.iter().map(|v| v.as_ref().map(TensorView::ty)).collect(),
            outs: self.writes.iter().map(TensorView::ty).collect(),
        }
    }
}

/// Types of a step's operands, for the rules of its operator.
#[derive(Clone, Debug)]
pub struct StepTypes {
    /// Types of its inputs; `None` where an optional one is left out.
    pub inputs: Vec<Option<TensorType>>,
    /// Types of its results.
    pub outs: Vec<TensorType>,
}

impl StepTypes {
    /// The context of the operator's rules, for an operator with such attributes.
    pub fn cx<'a>(&'a self, attrs: &'a Attrs) -> OpCx<'a> {
        OpCx { inputs: self.inputs.iter().map(Option::as_ref).collect(), attrs }
    }
}

/// The caller's buffers for a graph's inputs and outputs.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    /// Segments the caller owns; their ids in the plan are their positions plus one (the arena is segment 0).
    pub segments: Vec<Segment>,
    /// Place of each graph input, in order.
    pub inputs: Vec<Option<Place>>,
    /// Place of each graph output, in order; `Mutation` outputs default to their target's place.
    pub outputs: Vec<Option<Place>>,
    /// Segments of which the plan tells when they are complete ([`Plan::completions`]): buckets of gradients.
    /// The caller has cleared them: no step writes between the gradients.
    pub buckets: Vec<SegmentId>,
}

/// A value's share of the arena, for reports and for the checker.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// The value whose buffer it is (aliases share it).
    pub value: ValueId,
    /// Its place.
    pub place: Place,
    /// Bytes.
    pub bytes: usize,
    /// First step that writes it.
    pub first: usize,
    /// Last step that uses it, or that may run at the same time as one that does.
    pub last: usize,
    /// The model's line that made it.
    pub origin: OriginId,
}

/// A training step in two runs, forward and backward, with the caller in between: as an automatic
/// differentiation of another framework calls a layer. The steps before `boundary` are one run, the rest the
/// other, on the same memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Halves {
    /// First step of the backward half.
    pub boundary: usize,
    /// Values that the backward half reads and the forward half has made or read: their memory is left as it
    /// is between the two runs. The rest of the arena is free for others.
    pub crossing: Vec<Crossing>,
    /// Results of the forward half: their first bytes, and how many. Complete at the boundary, not changed
    /// after it.
    pub returned: Vec<(Place, usize)>,
}

/// A value that crosses from the forward half of a plan to the backward half.
#[derive(Clone, Debug, PartialEq)]
pub struct Crossing {
    /// Name of the input, or module path and operator that made it.
    pub name: String,
    /// Dtype and shape.
    pub ty: TensorType,
    /// First byte of its buffer, which holds its elements without gaps, in an order of the planner's.
    pub place: Place,
}

/// A step that waits for one on another stream: an event recorded after `on`, awaited before `step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The step that waits.
    pub step: usize,
    /// The step that is over before it begins; it comes earlier in the plan.
    pub on: usize,
}

/// The step that completes a segment: it writes there, and none after it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The segment, such as a bucket of gradients.
    pub segment: SegmentId,
    /// The step.
    pub step: usize,
}

/// An executable plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Alignment in bytes of segments and of every buffer in the arena.
    pub alignment: usize,
    /// Segments; the first is the arena.
    pub segments: Vec<Segment>,
    /// Steps in order. Running them sequentially in this order is always valid.
    pub steps: Vec<Step>,
    /// The order between steps of different streams, by the steps that wait.
    pub waits: Vec<Wait>,
    /// The values in the arena, with their places and times.
    pub placements: Vec<Placement>,
    /// When segments that the caller named are complete, in the order of [`Bindings::buckets`]. Those that no
    /// step writes are left out.
    pub completions: Vec<Completion>,
    /// The two halves of a step that is run in two parts.
    pub halves: Option<Halves>,
    /// Origins of the steps.
    pub origins: Arc<Vec<Origin>>,
}

impl Plan {
    /// The model's line that a step comes from; an empty one if it is not known.
    pub fn origin(&self, step: &Step) -> Origin {
        self.origins.get(step.origin.0 as usize).cloned().unwrap_or_default()
    }
}

/// The arena of every plan.
pub const ARENA: SegmentId = SegmentId(0);
