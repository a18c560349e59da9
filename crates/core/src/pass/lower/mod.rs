//! Lowers a graph to steps on buffers. Views become layouts, copies become row programs, outputs go straight
//! to their places where that is safe (`outputs`). `streams` orders steps that run concurrently, `arena`
//! decides which bytes each buffer gets, and `check` proves the finished plan.

mod adjacent;
mod arena;
mod bindings;
mod check;
mod draft;
mod expansion;
mod halves;
mod in_place;
mod layouts;
mod order;
mod outputs;
mod parts;
mod streams;
mod transpose;

pub use check::check_plan;
pub use order::STREAMS;

use super::phases;
use crate::diagnostic::{Code, Error, Result};
use crate::ensure;
use crate::graph::{Def, Graph, Node, Phase, ValueId};
use crate::ops::collective::is_collective;
use crate::ops::update::pack::PACK;
use crate::ops::{Body, RegionCopy, Source};
use crate::plan::{
    Bindings, Completion, Halves, Place, Plan, Segment, SegmentId, SegmentKind, Step, TensorView, Work,
};
use crate::row::RowProgram;
use crate::shape::Layout;
use crate::target::{Port, Support, Target};
use crate::tensor::TensorType;
use draft::{Buffer, Draft, Storage};
use layouts::layouts;
use outputs::Delivery;
use std::collections::HashMap;
use std::sync::Arc;
use transpose::turned;

/// Makes a plan of a graph for a target: steps, then the arena. Collectives run on a stream of their own, in
/// the graph's order, so that the rest goes on beside them: waits order what uses the same bytes.
///
/// # Errors
/// `Unsupported` for what the target does not run, `Graph` if an operator still has to be decomposed or a
/// binding is missing. `Plan` if bindings are outside their segments, and refusals of operators.
pub fn plan(graph: &Graph, bindings: &Bindings, target: &Target) -> Result<Plan> {
    let mut lowering = Lowering::new(graph, bindings, target)?;
    lowering.nodes(&graph.nodes)?;
    lowering.deliver(&|_| true, Phase::Update)?;
    lowering.finish(None)
}

/// As [`plan`], of a step that is run in halves. What the forward pass returns is complete before the
/// backward pass begins, and the plan lists what crosses. The graph's forward nodes come first, as
/// [`super::fuse_halves`] leaves them.
///
/// # Errors
/// As [`plan`]; `Unsupported` for a result that the forward pass writes over what the backward pass reads,
/// such as changed state. So is one that only the backward pass makes, and a collective.
pub fn plan_halves(graph: &Graph, bindings: &Bindings, target: &Target) -> Result<Plan> {
    if let Some(node) = graph.nodes.iter().find(|n| is_collective(n.op)) {
        let message = "a step that is run in halves is planned on one stream, a collective needs its own";
        return Err(Error::new(Code::Unsupported, message).in_op(node.op.name).at(graph.origin(node)));
    }
    let (first, made) = (phases::backward(graph)?, phases::made_forward(graph)?);
    halves::check_overwritten(graph, bindings, first, &made)?;
    let mut lowering = Lowering::new(graph, bindings, target)?;
    // The forward half writes what it returns and the arena, nothing else.
    for d in lowering.deliveries.iter().filter(|d| !made[d.output]) {
        if graph.producer(d.value).is_some_and(|(node, _)| node.phase == Phase::Forward) {
            lowering.targets.remove(&d.value);
        }
    }
    lowering.early.clear();
    lowering.nodes(&graph.nodes[..first])?;
    let mut returned = lowering.deliver(&|o| made[o], Phase::Forward)?;
    let boundary = lowering.steps.len();
    lowering.nodes(&graph.nodes[first..])?;
    lowering.deliver(&|o| !made[o], Phase::Update)?;
    returned.retain(|(_, bytes)| *bytes > 0);
    lowering.finish(Some((boundary, returned)))
}

/// The stream that collectives run on.
const COLLECTIVES: u32 = 1;

/// The stream that the steps of a node run on.
fn stream(node: &Node) -> u32 {
    if is_collective(node.op) { COLLECTIVES } else { 0 }
}

struct Lowering<'a> {
    graph: &'a Graph,
    bindings: &'a Bindings,
    target: &'a Target,
    buffers: Vec<Buffer>,
    steps: Vec<Draft>,
    storage: Vec<Option<Storage>>,
    /// Contiguous copies made of values that a kernel could not read strided.
    copies: HashMap<ValueId, Storage>,
    /// Values with places that the caller chose.
    deliveries: Vec<Delivery>,
    /// Place of its delivery that a value may be written to directly.
    targets: HashMap<ValueId, Place>,
    /// Values that are not laid out in row-major order.
    layouts: HashMap<ValueId, Layout>,
    /// Concatenations that are adjacent in memory already.
    adjacent: HashMap<ValueId, Place>,
    /// Values that are computed as parts of others.
    parts: HashMap<ValueId, parts::Part>,
    /// The buffer that small workspaces share, on each stream.
    common: HashMap<u32, usize>,
    /// Early deliveries by value.
    early: HashMap<ValueId, Vec<usize>>,
    /// Deliveries that are done.
    delivered: Vec<bool>,
}

impl<'a> Lowering<'a> {
    fn new(graph: &'a Graph, bindings: &'a Bindings, target: &'a Target) -> Result<Self> {
        ensure!(bindings.inputs.len() == graph.inputs.len(), Graph, "every input must be bound");
        ensure!(bindings.outputs.len() == graph.outputs.len(), Graph, "every output must be bound");
        let mut buffers = Vec::new();
        let mut storage = vec![None; graph.values.len()];
        for (input, place) in graph.inputs.iter().zip(&bindings.inputs) {
            let ty = graph.ty(input.value);
            let Some(place) = *place else { continue };
            outputs::check_place(bindings, place, ty)?;
            storage[input.value.0 as usize] = Some(Storage {
                buffer: buffers.len(),
                dtype: ty.dtype,
                layout: Layout::contiguous(&ty.shape),
            });
            buffers.push(Buffer { value: input.value, bytes: ty.bytes(), place: Some(place) });
        }
        let deliveries = outputs::deliveries(graph, bindings)?;
        let targets = outputs::targets(graph, bindings, &deliveries);
        let layouts = layouts(graph, target, &|v| targets.contains_key(&v))?;
        let adjacent = adjacent::adjacent(graph, bindings, &deliveries)?;
        let placed = |v| targets.contains_key(&v) || adjacent.contains_key(&v);
        let parts = parts::parts(graph, target, &placed)?;
        let (copies, steps) = (HashMap::new(), Vec::new());
        let common = HashMap::new();
        let mut early: HashMap<ValueId, Vec<usize>> = HashMap::new();
        for (i, delivery) in deliveries.iter().enumerate().filter(|(_, d)| d.early) {
            early.entry(delivery.value).or_default().push(i);
        }
        let delivered = vec![false; deliveries.len()];
        Ok(Lowering {
            graph,
            bindings,
            target,
            buffers,
            steps,
            storage,
            copies,
            deliveries,
            targets,
            layouts,
            adjacent,
            parts,
            common,
            early,
            delivered,
        })
    }

    fn nodes(&mut self, nodes: &'a [Node]) -> Result<()> {
        nodes.iter().try_for_each(|node| {
            let lowered = self.node(node).and_then(|()| self.deliver_early(node));
            lowered.map_err(|e| e.in_op(node.op.name).at(self.graph.origin(node)))
        })
    }

    fn storage(&self, v: ValueId) -> Result<&Storage> {
        self.storage[v.0 as usize].as_ref().ok_or_else(|| match self.graph.value(v).def {
            Def::Input(i) => Error::new(
                Code::Graph,
                format!("input {} is used but not bound", self.graph.inputs[i as usize].name),
            ),
            Def::Node(..) => Error::new(Code::Graph, format!("{v} is used before it is defined")),
        })
    }

    /// A new contiguous buffer for a value; at its output's place if it may be written there directly.
    fn allocate(&mut self, v: ValueId, ty: &TensorType, place: Option<Place>) -> Storage {
        self.buffers.push(Buffer { value: v, bytes: ty.bytes(), place });
        Storage { buffer: self.buffers.len() - 1, dtype: ty.dtype, layout: Layout::contiguous(&ty.shape) }
    }

    /// The place of a value that is about to be computed.
    fn define(&mut self, v: ValueId) -> Storage {
        if let Some(begun) = &self.storage[v.0 as usize] {
            // A part of it has been written already.
            return begun.clone();
        }
        if let Some(part) = self.parts.remove(&v) {
            let whole = self.define(part.whole);
            let seen = parts::region_of(&whole, &part.region);
            // The order of its elements in which views of it fill the box, if there is one.
            if let Some(layout) = parts::beneath(self.graph, &part.views, seen.layout) {
                let own = Storage { layout, ..whole };
                self.storage[v.0 as usize] = Some(own.clone());
                return own;
            }
        }
        let ty = self.graph.ty(v).clone();
        let place = self.targets.get(&v).copied();
        let mut s = self.allocate(v, &ty, place);
        if let Some(layout) = self.layouts.get(&v) {
            s.layout = layout.clone();
        }
        self.storage[v.0 as usize] = Some(s.clone());
        s
    }

    fn node(&mut self, node: &'a Node) -> Result<()> {
        if *node.op == PACK && self.pack(node)? {
            return Ok(());
        }
        let types: Vec<TensorType> = node.outputs.iter().map(|&v| self.graph.ty(v).clone()).collect();
        let cx = self.graph.cx(node);
        let (flops, _) = node.op.cost_of(&cx, &types);
        match node.op.body {
            Body::Decompose(_) => {
                return Err(Error::new(Code::Graph, "it must be decomposed before it is planned"));
            }
            Body::View(view) => {
                let x = node.operands().next().ok_or_else(|| Error::new(Code::Graph, "a view of nothing"))?;
                for (i, &v) in node.outputs.iter().enumerate() {
                    let mut base = self.storage(x)?.clone();
                    let layout = match (view.layout)(&cx, &base.layout, i)? {
                        Some(layout) => layout,
                        None => {
                            base = self.contiguous(x, node)?;
                            (view.layout)(&cx, &base.layout, i)?.ok_or_else(|| {
                                Error::new(Code::Graph, "a contiguous tensor cannot be viewed")
                            })?
                        }
                    };
                    self.storage[v.0 as usize] = Some(Storage { layout, ..base });
                }
            }
            Body::Pointwise(_) | Body::Rows(_) => {
                if let Some(program) = node.op.row_program(&cx, &types)? {
                    self.rows(node, program, flops)?;
                }
            }
            Body::Copies(_) if self.adjacent.contains_key(&node.outputs[0]) => {
                let place = self.adjacent.get(&node.outputs[0]).copied();
                let whole = self.allocate(node.outputs[0], &types[0], place);
                self.storage[node.outputs[0].0 as usize] = Some(whole);
            }
            Body::Copies(f) => {
                let copies = f(&cx, &types[0])?;
                let out = self.define(node.outputs[0]);
                for copy in &copies {
                    self.region(node, copy, &out)?;
                }
            }
            Body::Kernel(_) | Body::Collective(_) => {
                let support = self.target.support(node.op, &cx, &types);
                self.supported(&support)?;
                let operators = &self.target.operators;
                let mut reads = Vec::with_capacity(node.inputs.len());
                for (i, v) in node.inputs.iter().enumerate() {
                    reads.push(match *v {
                        None => None,
                        Some(v) if operators.strided(node.op, &cx, &types, Port::Read(i)) => {
                            Some(self.storage(v)?.clone())
                        }
                        Some(v) => Some(self.contiguous(v, node)?),
                    });
                }
                let mut writes = None;
                if support == Support::Expand {
                    let own = self.written(node, &types);
                    if self.expanded(node, &cx, &reads, &own, flops)? {
                        return Ok(());
                    }
                    // Layouts that it does not take.
                    for (read, v) in reads.iter_mut().zip(&node.inputs) {
                        *read = v.map(|v| self.contiguous(v, node)).transpose()?;
                    }
                    if self.expanded(node, &cx, &reads, &own, flops)? {
                        return Ok(());
                    }
                    writes = Some(own);
                }
                let bytes = operators.workspace(node.op, &cx, &types);
                let workspace = (bytes > 0).then(|| self.workspace(node, bytes));
                let writes = writes.unwrap_or_else(|| self.written(node, &types));
                let work = Work::Kernel { op: node.op, attrs: node.attrs.clone() };
                self.push(node, work, reads, writes, workspace, flops);
            }
            Body::Update(_) => {
                self.supported(&self.target.support(node.op, &cx, &types))?;
                let operands: Vec<ValueId> = node.operands().collect();
                let from = self.storage(operands[0])?.clone();
                let out = self.define(node.outputs[0]);
                let place = |s: &Storage| self.buffers[s.buffer].place;
                if place(&from).is_none() || place(&from) != place(&out) || !from.layout.is_contiguous() {
                    self.copy(node, from, out.clone());
                }
                let mut reads = vec![None];
                for &v in &operands[1..] {
                    reads.push(Some(self.contiguous(v, node)?));
                }
                let work = Work::Kernel { op: node.op, attrs: node.attrs.clone() };
                self.push(node, work, reads, vec![out], None, flops);
            }
        }
        Ok(())
    }

    /// A buffer of at least so many bytes, for one step: one of its own, or that which others have as well.
    fn workspace(&mut self, node: &Node, bytes: usize) -> usize {
        let shared = bytes <= self.target.memory.shared_workspace;
        let stream = stream(node);
        if let Some(&buffer) = self.common.get(&stream).filter(|_| shared) {
            let room = &mut self.buffers[buffer].bytes;
            *room = bytes.max(*room);
            return buffer;
        }
        self.buffers.push(Buffer { value: node.outputs[0], bytes, place: None });
        let buffer = self.buffers.len() - 1;
        if shared {
            self.common.insert(stream, buffer);
        }
        buffer
    }

    /// The storage of a node's outputs: a bucket that is summed over the ranks has its place already.
    fn written(&mut self, node: &Node, types: &[TensorType]) -> Vec<Storage> {
        match self.reduced_bucket(node) {
            Some(place) => {
                let own = self.allocate(node.outputs[0], &types[0], Some(place));
                self.storage[node.outputs[0].0 as usize] = Some(own.clone());
                vec![own]
            }
            None => node.outputs.iter().map(|&v| self.define(v)).collect(),
        }
    }

    /// Refuses what the device does not run at all.
    fn supported(&self, support: &Support) -> Result<()> {
        match support {
            Support::Native | Support::Expand | Support::Reference => Ok(()),
            Support::Missing(why) => Err(Error::new(Code::Unsupported, why.clone())),
        }
    }

    fn push(
        &mut self,
        node: &Node,
        work: Work,
        reads: Vec<Option<Storage>>,
        writes: Vec<Storage>,
        workspace: Option<usize>,
        flops: f64,
    ) {
        let (op, origin, phase) = (node.op.name, node.origin, node.phase);
        let stream = stream(node);
        self.steps.push(Draft { work, reads, writes, workspace, op, origin, phase, flops, stream });
    }

    fn rows(&mut self, node: &Node, program: RowProgram, flops: f64) -> Result<()> {
        self.supported(&self.target.program(&program))?;
        let writes: Vec<Storage> = node.outputs.iter().map(|&v| self.define(v)).collect();
        let operands: Vec<ValueId> = node.operands().collect();
        let mut reads =
            operands.iter().map(|&v| self.storage(v).cloned()).collect::<Result<Vec<Storage>>>()?;
        let layouts = |all: &[Storage]| all.iter().map(|s| s.layout.clone()).collect::<Vec<_>>();
        for i in turned(&program, &self.target.transpose, &layouts(&reads), &layouts(&writes)) {
            reads[i] = self.contiguous(operands[i], node)?;
        }
        let reads = reads.into_iter().map(Some).collect();
        self.push(node, Work::Rows(Arc::new(program)), reads, writes, None, flops);
        Ok(())
    }

    /// The value in a buffer in which it is contiguous: its own, or a copy made now and kept for later users.
    fn contiguous(&mut self, v: ValueId, node: &Node) -> Result<Storage> {
        let s = self.storage(v)?.clone();
        if s.layout.is_contiguous() {
            return Ok(s);
        }
        if let Some(copy) = self.copies.get(&v) {
            return Ok(copy.clone());
        }
        let ty = self.graph.ty(v).clone();
        let copy = self.allocate(v, &ty, None);
        self.copy(node, s, copy.clone());
        self.copies.insert(v, copy.clone());
        Ok(copy)
    }

    fn copy(&mut self, node: &Node, from: Storage, to: Storage) {
        let program = RowProgram::copy(from.dtype, to.dtype, &to.layout.shape);
        self.push(node, Work::Rows(Arc::new(program)), vec![Some(from)], vec![to], None, 0.0);
    }

    /// Copies a box, unless it was computed where it is copied to.
    fn region(&mut self, node: &'a Node, copy: &RegionCopy, out: &Storage) -> Result<()> {
        let to = parts::region_of(out, copy);
        let shape = to.layout.shape.clone();
        match copy.source {
            Source::Fill(x) => {
                let value = crate::ops::pointwise::number(x, out.dtype);
                let program = RowProgram::pointwise(&[], &shape, &[out.dtype], &[value]);
                self.push(node, Work::Rows(Arc::new(program)), vec![], vec![to], None, 0.0);
            }
            Source::Input(i) => {
                let v =
                    node.inputs[i].ok_or_else(|| Error::new(Code::Graph, format!("input {i} is missing")))?;
                let from = self.storage(v)?.clone();
                if from.buffer == to.buffer {
                    return Ok(());
                }
                let lead = shape.rank() - from.layout.shape.rank();
                let stride = |d: usize| if d < lead { 0 } else { from.layout.strides[d - lead] };
                let begin: isize = (0..shape.rank()).map(|d| stride(d) * copy.source_start[d] as isize).sum();
                let layout = Layout {
                    strides: (0..shape.rank()).map(|d| stride(d) * copy.source_step[d]).collect(),
                    offset: from.layout.offset + begin,
                    shape,
                };
                self.copy(node, Storage { layout, ..from }, to);
            }
        }
        Ok(())
    }

    /// Places the arena. `halves`: the first step of the backward half, and places and bytes of what the
    /// forward half returns.
    fn finish(self, halves: Option<(usize, Vec<(Place, usize)>)>) -> Result<Plan> {
        let graph = self.graph;
        let Lowering { buffers, steps: drafts, bindings, target, .. } = self;
        let roots = in_place::roots(&buffers, &drafts);
        let uses: Vec<Vec<usize>> = drafts.iter().map(|d| d.buffers().map(|b| roots[b]).collect()).collect();
        let (waits, beside) = streams::waits(&buffers, &drafts, &roots, &bindings.buckets)?;
        let (places, placements, bytes) = arena::place(
            &buffers,
            &uses,
            &beside,
            target.memory.alignment,
            &drafts.iter().map(|d| d.origin).collect::<Vec<_>>(),
        );
        let halves = halves.map(|(boundary, returned)| {
            let place = |buffer: usize| places[roots[buffer]];
            let crossing = halves::crossing(graph, &buffers, drafts.split_at(boundary), &place);
            Halves { boundary, crossing, returned }
        });
        let view = |s: &Storage| TensorView {
            place: places[roots[s.buffer]],
            dtype: s.dtype,
            layout: s.layout.clone(),
        };
        let steps: Vec<Step> = drafts
            .into_iter()
            .map(|d| Step {
                reads: d.reads.iter().map(|r| r.as_ref().map(view)).collect(),
                writes: d.writes.iter().map(view).collect(),
                workspace: d.workspace.map(|b| (places[b], buffers[b].bytes)),
                work: d.work,
                op: d.op,
                origin: d.origin,
                phase: d.phase,
                flops: d.flops,
                stream: d.stream,
            })
            .collect();
        let completions = completions(&steps, &bindings.buckets);
        let mut segments = vec![Segment { name: "arena".into(), bytes, kind: SegmentKind::Arena }];
        segments.extend(bindings.segments.iter().cloned());
        Ok(Plan {
            alignment: target.memory.alignment,
            segments,
            steps,
            waits,
            placements,
            completions,
            halves,
            origins: graph.origins.clone(),
        })
    }
}

/// The last step that writes each segment, for those that some step writes.
fn completions(steps: &[Step], segments: &[SegmentId]) -> Vec<Completion> {
    let mut last: HashMap<SegmentId, usize> = HashMap::new();
    for (s, step) in steps.iter().enumerate() {
        for v in step.writes.iter().filter(|v| !v.layout.shape.contains(&0)) {
            last.insert(v.place.segment, s);
        }
    }
    let of = |segment: &SegmentId| Some(Completion { segment: *segment, step: *last.get(segment)? });
    segments.iter().filter_map(of).collect()
}
