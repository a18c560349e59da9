//! Places of results: those that are computed straight into them, and copies of all others.

use super::Lowering;
use super::draft::{Storage, overlap};
use super::in_place;
use crate::attr::Attrs;
use crate::diagnostic::{Code, Error, Result};
use crate::ensure;
use crate::graph::{Def, Graph, Node, OriginId, OutputRole, Phase, ValueId};
use crate::ops::Body;
use crate::ops::collective::all_reduce::ALL_REDUCE;
use crate::ops::pointwise::to::TO;
use crate::ops::update::pack::{self, PACK};
use crate::plan::{ARENA, Bindings, Place, SegmentId};
use crate::shape::Layout;
use crate::tensor::TensorType;
use std::collections::{HashMap, HashSet};

/// A value with a place that the caller chose: an output, or a part of one that is packed from several.
pub(super) struct Delivery {
    pub(super) value: ValueId,
    pub(super) place: Place,
    /// Number of the output.
    pub(super) output: usize,
    /// It is part of a bucket ([`PACK`]).
    pub(super) part: bool,
    /// It is copied to its destination as soon as it is computed, not at the end: it should not wait for the
    /// end of the backward pass, nor hold memory until then.
    pub(super) early: bool,
}

/// The deliveries of a graph, in the order of its outputs. Gradients in segments that hold no input are
/// early.
pub(super) fn deliveries(graph: &Graph, bindings: &Bindings) -> Result<Vec<Delivery>> {
    let read: HashSet<SegmentId> = bindings.inputs.iter().flatten().map(|place| place.segment).collect();
    let mut out = Vec::new();
    for (output, o) in graph.outputs.iter().enumerate() {
        let Some(place) = bindings.output_place(graph, output) else { continue };
        check_place(bindings, place, graph.ty(o.value))?;
        let gradient = matches!(o.role, OutputRole::Gradient(_) | OutputRole::Gradients);
        let early = gradient && bindings.outputs[output].is_some() && !read.contains(&place.segment);
        match bucket(graph, bindings, output) {
            None => out.push(Delivery { value: o.value, place, output, part: false, early }),
            Some(node) => {
                for (v, (ty, from)) in node.operands().zip(pack::parts(&graph.cx(node))?) {
                    let offset = place.offset + from as usize * ty.dtype.size();
                    out.push(Delivery {
                        value: v,
                        place: Place { offset, ..place },
                        output,
                        part: true,
                        early,
                    });
                }
            }
        }
    }
    Ok(out)
}

/// The node that packs an output, if that is a bucket, whose memory is clear between the parts. Between the
/// two may be the bucket's sum over the ranks.
fn bucket<'g>(graph: &'g Graph, bindings: &Bindings, output: usize) -> Option<&'g Node> {
    let place = bindings.outputs[output].filter(|place| bindings.buckets.contains(&place.segment))?;
    let (node, _) = graph.producer(packed(graph, graph.outputs[output].value))?;
    (*node.op == PACK && place.offset == 0).then_some(node)
}

/// The value that is summed over the ranks to make another, or that itself.
fn packed(graph: &Graph, v: ValueId) -> ValueId {
    match graph.producer(v) {
        Some((node, _)) if *node.op == ALL_REDUCE => node.operands().next().unwrap_or(v),
        _ => v,
    }
}

impl Lowering<'_> {
    /// True if a value is at a place, its elements in order.
    fn is_at(&self, s: &Storage, place: Place) -> bool {
        let begin = (s.layout.offset * s.dtype.size() as isize) as usize;
        let own = self.buffers[s.buffer].place.map(|p| Place { offset: p.offset.wrapping_add(begin), ..p });
        own == Some(place) && s.layout.is_contiguous()
    }

    /// Copies an output that has not been delivered yet to its destination. `node`: the node that the copy
    /// belongs to.
    fn bring(&mut self, delivery: usize, node: &Node) -> Result<()> {
        let (v, place) = (self.deliveries[delivery].value, self.deliveries[delivery].place);
        let from = self.storage(v)?.clone();
        if !self.is_at(&from, place) {
            let ty = self.graph.ty(v).clone();
            let to = self.allocate(v, &ty, Some(place));
            self.copy(node, from, to);
        }
        self.delivered[delivery] = true;
        Ok(())
    }

    /// Brings to their places those of a node's results that need not wait for the end.
    pub(super) fn deliver_early(&mut self, node: &Node) -> Result<()> {
        for &v in &node.outputs {
            for i in self.early.remove(&v).unwrap_or_default() {
                self.bring(i, node)?;
            }
        }
        Ok(())
    }

    /// A bucket: its parts are computed in their places, or brought there. False if the node makes no bucket.
    pub(super) fn pack(&mut self, node: &Node) -> Result<bool> {
        let made = node.outputs[0];
        let is_made = |d: &Delivery| d.part && packed(self.graph, self.graph.outputs[d.output].value) == made;
        let parts: Vec<usize> =
            (0..self.deliveries.len()).filter(|&i| is_made(&self.deliveries[i])).collect();
        let Some(&first) = parts.first() else { return Ok(false) };
        for i in parts {
            if !self.delivered[i] {
                self.bring(i, node)?;
            }
        }
        let place = self.bindings.outputs[self.deliveries[first].output];
        let ty = self.graph.ty(made).clone();
        let whole = self.allocate(made, &ty, place);
        self.storage[made.0 as usize] = Some(whole);
        Ok(true)
    }

    /// The place of a bucket that a node sums over the ranks: the sum takes it, element by element.
    pub(super) fn reduced_bucket(&self, node: &Node) -> Option<Place> {
        let made = node.outputs[0];
        if *node.op != ALL_REDUCE {
            return None;
        }
        let own = self.deliveries.iter().find(|d| d.part && self.graph.outputs[d.output].value == made)?;
        self.bindings.outputs[own.output]
    }

    /// Brings the outputs that are requested, by number, to their destinations. Returns places and bytes of
    /// those that steps have written.
    pub(super) fn deliver(
        &mut self,
        asked: &dyn Fn(usize) -> bool,
        phase: Phase,
    ) -> Result<Vec<(Place, usize)>> {
        let graph = self.graph;
        let inputs: HashSet<ValueId> = graph.inputs.iter().map(|i| i.value).collect();
        let (mut moves, mut written) = (Vec::new(), Vec::new());
        for (i, delivery) in self.deliveries.iter().enumerate() {
            let &Delivery { value, place, output, part, .. } = delivery;
            if part || self.delivered[i] || !asked(output) {
                continue;
            }
            let from = self.storage(value)?.clone();
            let there = self.is_at(&from, place);
            let given = there && inputs.contains(&self.buffers[from.buffer].value);
            if !given {
                written.push((place, graph.ty(value).bytes()));
            }
            if !there {
                moves.push((value, place, from));
            }
        }
        // A move may overwrite what a later one still reads (two buffers exchanged): such sources are saved
        // first.
        let end = Node {
            op: &TO,
            inputs: vec![],
            attrs: Attrs::new(),
            outputs: vec![],
            origin: OriginId(0),
            phase,
        };
        let moved = Spans::new(moves.iter().map(|(v, p, _)| (*p, graph.ty(*v).bytes())).collect());
        for (_, own, from) in &mut moves {
            let source = &self.buffers[from.buffer];
            if source.place.is_some_and(|s| moved.overlapping(s, source.bytes).any(|p| p != *own)) {
                let ty = TensorType::new(from.dtype, from.layout.shape.clone());
                let value = source.value;
                let saved = self.allocate(value, &ty, None);
                self.copy(&end, from.clone(), saved.clone());
                *from = saved;
            }
        }
        for (v, place, from) in moves {
            let ty = graph.ty(v).clone();
            let to = self.allocate(v, &ty, Some(place));
            self.copy(&end, from, to);
        }
        Ok(written)
    }
}

/// Places with their bytes, in the order of memory. With each, the furthest end of all up to it in its
/// segment, so that those which overlap a place are found without looking at the others.
struct Spans(Vec<(Place, usize, usize)>);

impl Spans {
    fn new(mut places: Vec<(Place, usize)>) -> Spans {
        places.sort_unstable_by_key(|(p, _)| (p.segment, p.offset));
        let mut before: Option<(SegmentId, usize)> = None;
        let reach = |(p, bytes): (Place, usize)| {
            let end = p.offset.saturating_add(bytes);
            let furthest = before.filter(|(s, _)| *s == p.segment).map_or(end, |(_, e)| end.max(e));
            before = Some((p.segment, furthest));
            (p, bytes, furthest)
        };
        Spans(places.into_iter().map(reach).collect())
    }

    fn overlapping(&self, place: Place, bytes: usize) -> impl Iterator<Item = Place> {
        let end = (place.segment, place.offset.saturating_add(bytes));
        let below = self.0.partition_point(|(p, ..)| (p.segment, p.offset) < end);
        let near = self.0[..below].iter().rev();
        near.take_while(move |(p, _, reach)| p.segment == place.segment && *reach > place.offset)
            .filter(move |(p, b, _)| overlap(place, bytes, *p, *b))
            .map(|(p, ..)| *p)
    }
}

pub(super) fn check_place(bindings: &Bindings, place: Place, ty: &TensorType) -> Result<()> {
    ensure!(place.segment != ARENA, Plan, "nothing can be bound to the arena");
    let Some(segment) = bindings.segments.get(place.segment.0 as usize - 1) else {
        return Err(Error::new(Code::Plan, format!("segment {} does not exist", place.segment.0)));
    };
    let fits = place.offset.checked_add(ty.bytes()).is_some_and(|end| end <= segment.bytes);
    ensure!(
        fits,
        Plan,
        "{ty} at byte {} lies outside segment {} of {} bytes",
        place.offset,
        segment.name,
        segment.bytes
    );
    ensure!(
        place.offset.is_multiple_of(ty.dtype.size()),
        Plan,
        "{ty} at byte {} is not aligned",
        place.offset
    );
    Ok(())
}

/// Values that may be computed straight into their output's place.
///
/// Safe if none of the old content is read afterwards. Either no input overlaps the place, or the last node
/// that reads such an input (through any view) comes before. It may also be this very node, if that works
/// element by element.
pub(super) fn targets(
    graph: &Graph,
    bindings: &Bindings,
    deliveries: &[Delivery],
) -> HashMap<ValueId, Place> {
    // Root input of a value that may be a view of an input, and the last node that reads any view of each
    // root.
    let mut root: Vec<u32> = (0..graph.values.len() as u32).collect();
    let mut last_read: Vec<Option<usize>> = vec![None; graph.values.len()];
    for (n, node) in graph.nodes.iter().enumerate() {
        for v in node.operands() {
            last_read[root[v.0 as usize] as usize] = Some(n);
        }
        if let (Body::View(_), Some(x)) = (node.op.body, node.operands().next()) {
            node.outputs.iter().for_each(|v| root[v.0 as usize] = root[x.0 as usize]);
        }
    }
    let mut outputs_of = vec![0u32; graph.values.len()];
    deliveries.iter().for_each(|d| outputs_of[root[d.value.0 as usize] as usize] += 1);
    // Inputs by their addresses, to find those that overlap a place.
    let mut bound: Vec<(Place, usize, ValueId)> = Vec::new();
    for (input, place) in graph.inputs.iter().zip(&bindings.inputs) {
        if let Some(p) = place {
            bound.push((*p, graph.ty(input.value).bytes(), input.value));
        }
    }
    bound.sort_by_key(|(p, ..)| (p.segment, p.offset));
    let mut out = HashMap::new();
    let own = deliveries.iter().map(|d| (d.value, d.place));
    for (value, place) in own.chain(divided(graph, deliveries)) {
        let ty = graph.ty(value);
        let Def::Node(n, _) = graph.value(value).def else { continue };
        let node = graph.node(n);
        if matches!(node.op.body, Body::View(_)) || out.contains_key(&value) {
            continue;
        }
        let end = place.offset + ty.bytes();
        // Bound inputs do not overlap each other except when equal, so those that can reach `place` are
        // neighbours.
        let from = bound
            .partition_point(|(p, bytes, _)| (p.segment, p.offset + bytes) <= (place.segment, place.offset));
        let safe = bound[from..]
            .iter()
            .take_while(|(p, ..)| p.segment == place.segment && p.offset < end)
            .all(|(p, _, v)| {
                let before = match last_read[v.0 as usize] {
                    None => true,
                    Some(last) if last < n.0 as usize => true,
                    Some(last) => last == n.0 as usize && *p == place && elementwise(graph, node, *v, value),
                };
                before && outputs_of[v.0 as usize] == 0
            });
        if safe {
            out.insert(value, place);
        }
    }
    out
}

/// Values that are delivered in parts to adjacent places, in the order of the value: each with the place of
/// the first.
fn divided(graph: &Graph, deliveries: &[Delivery]) -> Vec<(ValueId, Place)> {
    /// First byte of a part in the value, the byte after it, and its place.
    type Span = (usize, usize, Place);
    let mut parts: HashMap<ValueId, Vec<Span>> = HashMap::new();
    let mut order = Vec::new();
    for &Delivery { value, place, .. } in deliveries {
        let Some((node, at)) = graph.producer(value) else { continue };
        let (Body::View(view), Some(whole)) = (node.op.body, node.operands().next()) else { continue };
        let ty = graph.ty(whole);
        let seen = (view.layout)(&graph.cx(node), &Layout::contiguous(&ty.shape), at);
        let Ok(Some(layout)) = seen else { continue };
        if !layout.is_contiguous() || layout.shape.numel() == 0 {
            continue;
        }
        let own = parts.entry(whole).or_insert_with(|| {
            order.push(whole);
            Vec::new()
        });
        let begin = layout.offset as usize * ty.dtype.size();
        own.push((begin, begin + graph.ty(value).bytes(), place));
    }
    let whole = |v: ValueId| {
        let mut all = parts.remove(&v)?;
        all.sort_unstable_by_key(|p| p.0);
        let (first, last) = (all[0], all[all.len() - 1]);
        let all_there = first.0 == 0 && last.1 == graph.ty(v).bytes();
        let follow = all.windows(2).all(|two| {
            let next = Place { offset: two[0].2.offset + (two[0].1 - two[0].0), ..two[0].2 };
            two[1].0 == two[0].1 && two[1].2 == next
        });
        (all.len() > 1 && all_there && follow).then_some((v, first.2))
    };
    order.into_iter().filter_map(whole).collect()
}

/// True if a node reads input `v` (itself, not a view of it) only in the row of `out` that it writes. Then
/// `out` may take `v`'s place.
fn elementwise(graph: &Graph, node: &Node, v: ValueId, out: ValueId) -> bool {
    let direct = node.operands().all(|w| w == v || !is_view_of(graph, w, v));
    let alike = match node.op.body {
        Body::Pointwise(_) => true,
        // An element is written once, after all that its row needs has been read, if both are walked in the
        // same way.
        Body::Rows(f) => {
            let types: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
            f(&graph.cx(node), &types).is_ok_and(|p| {
                let Some(w) = node.outputs.iter().position(|&w| w == out) else { return false };
                let mut reads = p.reads.iter().zip(node.operands()).filter(|(_, w)| *w == v);
                in_place::covers(&p, w) && reads.all(|(r, _)| r.access == p.writes[w].access)
            })
        }
        // The rest of it stays as it is.
        Body::Update(_) => {
            node.operands().next() == Some(v) && node.operands().filter(|w| *w == v).count() == 1
        }
        _ => false,
    };
    direct && alike && graph.ty(out) == graph.ty(v)
}

/// True if `w` is `v` under other layouts.
fn is_view_of(graph: &Graph, mut w: ValueId, v: ValueId) -> bool {
    while let Some((node, _)) = graph.producer(w) {
        match node.operands().next() {
            Some(x) if matches!(node.op.body, Body::View(_)) => w = x,
            _ => break,
        }
    }
    w == v
}
