//! Results and their places: which are computed straight into them, and the copies of all others.

use super::Lowering;
use super::draft::{output_place, overlap};
use super::in_place;
use crate::attr::Attrs;
use crate::diagnostic::{Code, Error, Result};
use crate::ensure;
use crate::graph::{Def, Graph, Node, OriginId, OutputRole, Phase, ValueId};
use crate::ops::Body;
use crate::ops::pointwise::to::TO;
use crate::plan::{ARENA, Bindings, Place, SegmentId};
use crate::tensor::TensorType;
use std::collections::{HashMap, HashSet};

impl Lowering<'_> {
    /// Brings to their places those of a node's results that need not wait for the end.
    pub(super) fn deliver_early(&mut self, node: &Node) -> Result<()> {
        for &v in &node.outputs {
            for i in self.early.remove(&v).unwrap_or_default() {
                let Some(place) = self.bindings.outputs[i] else { continue };
                let from = self.storage(v)?.clone();
                if self.buffers[from.buffer].place != Some(place) || !from.layout.is_contiguous() {
                    let ty = self.graph.ty(v).clone();
                    let to = self.allocate(v, &ty, Some(place));
                    self.copy(node, from, to);
                }
                self.delivered[i] = true;
            }
        }
        Ok(())
    }

    /// Brings the outputs that are asked for, by number, to their places. Returns places and bytes of those that
    /// steps have written.
    pub(super) fn deliver(
        &mut self,
        asked: &dyn Fn(usize) -> bool,
        phase: Phase,
    ) -> Result<Vec<(Place, usize)>> {
        let graph = self.graph;
        let (mut moves, mut delivered) = (Vec::new(), Vec::new());
        let outputs = graph.outputs.iter().zip(&self.bindings.outputs).enumerate();
        let early = self.delivered.clone();
        for (_, (o, place)) in outputs.filter(|(i, _)| asked(*i) && !early[*i]) {
            let Some(place) = output_place(graph, self.bindings, o.role, *place) else { continue };
            let from = self.storage(o.value)?.clone();
            let there = self.buffers[from.buffer].place == Some(place) && from.layout.is_contiguous();
            let given = there && graph.inputs.iter().any(|i| i.value == self.buffers[from.buffer].value);
            if !given {
                delivered.push((place, graph.ty(o.value).bytes()));
            }
            if !there {
                moves.push((o, place, from));
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
        let written: Vec<(Place, usize)> =
            moves.iter().map(|(o, p, _)| (*p, graph.ty(o.value).bytes())).collect();
        for (_, own, from) in &mut moves {
            let source = &self.buffers[from.buffer];
            let hit =
                |p: Place, bytes: usize| source.place.is_some_and(|s| overlap(s, source.bytes, p, bytes));
            if written.iter().any(|&(p, bytes)| p != *own && hit(p, bytes)) {
                let ty = TensorType::new(from.dtype, from.layout.shape.clone());
                let value = source.value;
                let saved = self.allocate(value, &ty, None);
                self.copy(&end, from.clone(), saved.clone());
                *from = saved;
            }
        }
        for (o, place, from) in moves {
            let ty = graph.ty(o.value).clone();
            let to = self.allocate(o.value, &ty, Some(place));
            self.copy(&end, from, to);
        }
        Ok(delivered)
    }
}

/// Gradients in segments that hold no input, by value. They should not wait for the end of the backward pass,
/// nor hold memory until then.
pub(super) fn early(graph: &Graph, bindings: &Bindings) -> HashMap<ValueId, Vec<usize>> {
    let read: HashSet<SegmentId> = bindings.inputs.iter().flatten().map(|place| place.segment).collect();
    let mut out: HashMap<ValueId, Vec<usize>> = HashMap::new();
    for (i, (o, place)) in graph.outputs.iter().zip(&bindings.outputs).enumerate() {
        let apart = place.is_some_and(|place| !read.contains(&place.segment));
        if matches!(o.role, OutputRole::Gradient(_)) && apart {
            out.entry(o.value).or_default().push(i);
        }
    }
    out
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
/// Safe if nothing that lies there is read afterwards. Either no input overlaps the place, or the last node
/// that reads such an input (through any view) comes before. It may also be this very node, if that works
/// element by element.
pub(super) fn targets(graph: &Graph, bindings: &Bindings) -> Result<HashMap<ValueId, Place>> {
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
    graph.outputs.iter().for_each(|o| outputs_of[root[o.value.0 as usize] as usize] += 1);
    // Inputs by where they lie, to find those that overlap a place.
    let mut bound: Vec<(Place, usize, ValueId)> = Vec::new();
    for (input, place) in graph.inputs.iter().zip(&bindings.inputs) {
        if let Some(p) = place {
            bound.push((*p, graph.ty(input.value).bytes(), input.value));
        }
    }
    bound.sort_by_key(|(p, ..)| (p.segment, p.offset));
    let mut out = HashMap::new();
    for (o, place) in graph.outputs.iter().zip(&bindings.outputs) {
        let Some(place) = output_place(graph, bindings, o.role, *place) else { continue };
        let ty = graph.ty(o.value);
        check_place(bindings, place, ty)?;
        let Def::Node(n, _) = graph.value(o.value).def else { continue };
        let node = graph.node(n);
        if matches!(node.op.body, Body::View(_)) || out.contains_key(&o.value) {
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
                    Some(last) => {
                        last == n.0 as usize && *p == place && elementwise(graph, node, *v, o.value)
                    }
                };
                before && outputs_of[v.0 as usize] == 0
            });
        if safe {
            out.insert(o.value, place);
        }
    }
    Ok(out)
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
