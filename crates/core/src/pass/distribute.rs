//! Pointwise operators over concatenations, computed part by part; the concatenation moves after them.
//!
//! `rotate_half(x) · sin + x · cos` of rotary embeddings is `cat(−x₂, x₁) · sin + x · cos`. It becomes
//! `cat(−x₂ · sin₁ + x₁ · cos₁, x₁ · sin₂ + x₂ · cos₂)`: each part is a chain that fuses, both are one row
//! program where they have one iteration space (`fuse`), and planning lets it write straight into the two
//! halves of the result (`lower::parts`). Nothing is copied, and no pattern is searched for. Slices of a
//! pointwise result likewise become results of slices, which is what the gradient consists of.
//!
//! *Exact*: each element is computed by the same operations from the same numbers.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::graph::{Builder, Def, Graph, Node, Phase, ValueId};
use crate::ops::movement::cat::CAT;
use crate::ops::view::slice::{Range, SLICE};
use crate::ops::view::unsqueeze::UNSQUEEZE;
use crate::ops::{Body, OpCx};
use crate::row::Instr;
use crate::tensor::TensorType;
use std::collections::{HashMap, HashSet};

/// Most parts of a concatenation that is moved: each is a program of its own if it does not fuse.
const PARTS: usize = 4;

/// Longest chain of pointwise operators that a slice is moved ahead of.
const CHAIN: usize = 16;

/// A range of indices of one dimension, which is counted from the last, so that operands with fewer
/// dimensions have it at the same number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Cut {
    /// 1 for the last dimension.
    back: usize,
    start: usize,
    len: usize,
}

/// Moves concatenations after the pointwise operators that read them, and slices ahead of those whose results
/// are read slice by slice. Order, names and roles of inputs and outputs are kept.
///
/// # Errors
/// Refusals of an operator's own rules.
pub fn distribute(graph: Graph) -> Result<Graph> {
    if !graph.nodes.iter().any(|n| *n.op == CAT || *n.op == SLICE) {
        return Ok(graph);
    }
    let nodes = graph.nodes.clone();
    let uses = Uses::new(&graph)?;
    let alias = (0..graph.values.len() as u32).map(ValueId).collect();
    let b = Builder::extend(Graph { nodes: Vec::new(), ..graph });
    let mut pass = Distribution {
        nodes: &nodes,
        uses,
        b,
        alias,
        parts: HashMap::new(),
        moves: HashSet::new(),
        cuts: HashMap::new(),
        seen: HashMap::new(),
    };
    for at in 0..nodes.len() {
        pass.node(at)?;
    }
    let Distribution { b, alias, .. } = pass;
    let mut graph = b.finish();
    graph
        .outputs
        .iter_mut()
        .for_each(|o| o.value = alias.get(o.value.0 as usize).copied().unwrap_or(o.value));
    Ok(super::simplify::remove_dead(graph).0)
}

/// Makers and users in the graph as it was.
struct Uses {
    /// The node that makes a value.
    maker: Vec<Option<usize>>,
    /// Nodes that use a value, each once.
    users: Vec<Vec<usize>>,
    is_output: Vec<bool>,
    /// Nodes that compute one result element by element, whatever its index.
    pointwise: Vec<bool>,
}

impl Uses {
    fn new(graph: &Graph) -> Result<Uses> {
        let mut uses = Uses {
            maker: vec![None; graph.values.len()],
            users: vec![Vec::new(); graph.values.len()],
            is_output: vec![false; graph.values.len()],
            pointwise: Vec::with_capacity(graph.nodes.len()),
        };
        for (n, node) in graph.nodes.iter().enumerate() {
            node.outputs.iter().for_each(|v| uses.maker[v.0 as usize] = Some(n));
            for v in node.operands() {
                let users = &mut uses.users[v.0 as usize];
                if users.last() != Some(&n) {
                    users.push(n);
                }
            }
            uses.pointwise.push(pointwise(graph, node)?);
        }
        graph.outputs.iter().for_each(|o| uses.is_output[o.value.0 as usize] = true);
        Ok(uses)
    }
}

/// True if a node has one result, of which each element depends on its operands' elements alone.
fn pointwise(graph: &Graph, node: &Node) -> Result<bool> {
    if !matches!(node.op.body, Body::Pointwise(_)) || node.outputs.len() != 1 || node.inputs.is_empty() {
        return Ok(false);
    }
    let out = graph.ty(node.outputs[0]).clone();
    let program = node.op.row_program(&graph.cx(node), &[out]);
    let program = program.map_err(|e| e.in_op(node.op.name).at(graph.origin(node)))?;
    Ok(program.is_some_and(|p| !p.body.iter().any(|i| matches!(i, Instr::Iota(_)))))
}

struct Distribution<'a> {
    /// The nodes as they were.
    nodes: &'a [Node],
    uses: Uses,
    b: Builder,
    /// The value that stands for one of the graph as it was.
    alias: Vec<ValueId>,
    /// Concatenations of a few tensors: where each part begins.
    parts: HashMap<ValueId, Vec<(Cut, ValueId)>>,
    /// Concatenations whose users are all pointwise, over as many elements: they move after these.
    moves: HashSet<ValueId>,
    /// Parts of values, and the phase in which each is computed.
    cuts: HashMap<(ValueId, Cut), (ValueId, Phase)>,
    /// Parts with a further dimension, by its place, and their phases.
    seen: HashMap<(ValueId, usize), (ValueId, Phase)>,
}

impl Distribution<'_> {
    fn node(&mut self, at: usize) -> Result<()> {
        let mut node = self.nodes[at].clone();
        for v in node.inputs.iter_mut().flatten() {
            *v = self.alias[v.0 as usize];
        }
        (self.b.origin, self.b.phase) = (node.origin, node.phase);
        if *node.op == SLICE {
            return self.slice(at, node);
        }
        let moved = match self.uses.pointwise[at] {
            true => self.pointwise(&node)?,
            false => None,
        };
        if let Some(parts) = moved {
            let out = node.outputs[0];
            let dim = self.b.ty(out).shape.rank() - parts[0].0.back;
            let values: Vec<ValueId> = parts.iter().map(|p| p.1).collect();
            self.b.one(&CAT, &values, Attrs::new().with("dim", dim as i64))?;
            self.b.graph_mut().nodes.last_mut().expect("it was built").outputs = vec![out];
            self.keep(out, parts);
            return Ok(());
        }
        let made = node.outputs.first().copied();
        let parts = if *node.op == CAT { self.joined(&node)? } else { None };
        self.b.graph_mut().nodes.push(node);
        if let (Some(parts), Some(out)) = (parts, made) {
            self.keep(out, parts);
        }
        Ok(())
    }

    /// Remembers the parts of a concatenation, and whether it moves after its users.
    fn keep(&mut self, out: ValueId, parts: Vec<(Cut, ValueId)>) {
        let users = &self.uses.users[out.0 as usize];
        let maker = self.uses.maker[out.0 as usize];
        let follows = |&u: &usize| {
            let user = &self.nodes[u];
            let same = self.b.ty(user.outputs[0]).shape == self.b.ty(out).shape;
            self.uses.pointwise[u] && same && maker.is_some_and(|m| self.nodes[m].phase == user.phase)
        };
        // Inputs may be adjacent in memory, where they are concatenated already.
        let made = |(_, v): &(Cut, ValueId)| matches!(self.b.graph().value(*v).def, Def::Node(..));
        let free = !self.uses.is_output[out.0 as usize] && parts.iter().any(made);
        if free && !users.is_empty() && users.iter().all(follows) {
            self.moves.insert(out);
        }
        self.parts.insert(out, parts);
    }

    /// The parts of a concatenation of a few tensors of one dtype.
    fn joined(&self, node: &Node) -> Result<Option<Vec<(Cut, ValueId)>>> {
        let out = self.b.ty(node.outputs[0]).clone();
        let operands: Vec<ValueId> = node.operands().filter(|&v| !self.b.ty(v).shape.contains(&0)).collect();
        let alike = |&v: &ValueId| {
            let ty = self.b.ty(v);
            ty.dtype == out.dtype && ty.shape.rank() == out.shape.rank()
        };
        if !(2..=PARTS).contains(&operands.len()) || !operands.iter().all(alike) {
            return Ok(None);
        }
        let rank = out.shape.rank();
        let dim =
            if node.attrs.get("dim").is_some() { self.b.graph().cx(node).dim("dim", rank)? } else { 0 };
        let mut start = 0;
        let part = |v: ValueId| {
            let len = self.b.ty(v).shape[dim];
            start += len;
            (Cut { back: rank - dim, start: start - len, len }, v)
        };
        Ok(Some(operands.into_iter().map(part).collect()))
    }

    /// The results of a pointwise node by the parts of an operand, if that is a concatenation.
    fn pointwise(&mut self, node: &Node) -> Result<Option<Vec<(Cut, ValueId)>>> {
        let moves = node.operands().find(|v| self.moves.contains(v));
        let Some(cuts) = moves.and_then(|v| self.parts.get(&v)) else { return Ok(None) };
        let cuts: Vec<Cut> = cuts.iter().map(|p| p.0).collect();
        let whole = self.b.ty(node.outputs[0]).clone();
        if !cuts.iter().all(|&cut| self.divides(node, &whole, cut)) {
            return Ok(None);
        }
        let mut parts: Vec<(Cut, ValueId)> = Vec::with_capacity(cuts.len());
        let mut made: Vec<Vec<Option<ValueId>>> = Vec::new();
        for cut in cuts {
            let operands = self.operands(node, cut, CHAIN)?;
            // Equal parts of equal operands are computed once.
            let part = match made.iter().position(|m| *m == operands) {
                Some(same) => parts[same].1,
                None => self.b.apply(node.op, &operands, node.attrs.clone())?[0],
            };
            made.push(operands);
            parts.push((cut, part));
        }
        Ok(Some(parts))
    }

    /// A slice: of what it was cut from before, or moved ahead of the operator that makes it.
    fn slice(&mut self, at: usize, node: Node) -> Result<()> {
        let (from, out) = (node.operands().next(), node.outputs[0]);
        let range = Range::of(&self.b.graph().cx(&node))?;
        let Some(from) = from.filter(|_| range.step == 1) else {
            self.b.graph_mut().nodes.push(node);
            return Ok(());
        };
        let cut = Cut { back: self.b.ty(from).shape.rank() - range.dim, start: range.start, len: range.len };
        let known = self.known(from, cut);
        let found = match known {
            None if self.sliced_only(at) => self.ahead(from, cut, CHAIN)?,
            known => known,
        };
        match found.filter(|_| !self.uses.is_output[out.0 as usize]) {
            Some(v) => self.alias[out.0 as usize] = v,
            None => {
                self.cuts.insert((from, cut), (out, self.b.phase));
                self.b.graph_mut().nodes.push(node);
            }
        }
        Ok(())
    }

    /// True if what a slice is cut from is read by slices alone, of which none overlap, and those by what a
    /// row program can be part of, all in one phase.
    fn sliced_only(&self, at: usize) -> bool {
        let node = &self.nodes[at];
        let Some(from) = node.operands().next() else { return false };
        let users = &self.uses.users[from.0 as usize];
        let maker = self.uses.maker[from.0 as usize];
        let Some(maker) = maker.filter(|&m| self.uses.pointwise[m]) else { return false };
        if self.uses.is_output[from.0 as usize] || users.len() > PARTS {
            return false;
        }
        let phase = self.nodes[maker].phase;
        let mut ranges = Vec::with_capacity(users.len());
        for &u in users {
            let user = &self.nodes[u];
            if *user.op != SLICE || user.phase != phase {
                return false;
            }
            let cx = OpCx { inputs: vec![Some(self.b.ty(from))], attrs: &user.attrs };
            let Ok(range) = Range::of(&cx) else { return false };
            let out = user.outputs[0].0 as usize;
            let light = |&w: &usize| {
                let rows =
                    matches!(self.nodes[w].op.body, Body::Pointwise(_) | Body::Rows(_) | Body::Copies(_));
                rows && self.nodes[w].phase == phase
            };
            if range.step != 1 || self.uses.is_output[out] || !self.uses.users[out].iter().all(light) {
                return false;
            }
            ranges.push((range.dim, range.start, range.start + range.len));
        }
        ranges.sort_unstable();
        ranges.windows(2).all(|two| two[0].0 == two[1].0 && two[0].2 <= two[1].1)
    }

    /// True if an operator gives a part of its result for the same parts of its operands.
    fn divides(&self, node: &Node, whole: &TensorType, cut: Cut) -> bool {
        let types: Vec<Option<TensorType>> =
            node.inputs.iter().map(|v| v.map(|v| cut_type(self.b.ty(v), cut))).collect();
        let inputs = types.iter().map(Option::as_ref).collect();
        let made = (node.op.infer)(&OpCx { inputs, attrs: &node.attrs });
        made.is_ok_and(|made| made == [cut_type(whole, cut)])
    }

    /// The part of each operand.
    fn operands(&mut self, node: &Node, cut: Cut, chain: usize) -> Result<Vec<Option<ValueId>>> {
        let operands = node.inputs.iter();
        operands.map(|v| v.map(|v| self.part(v, cut, chain)).transpose()).collect()
    }

    /// A part that was made before, in this phase or an earlier one: a later one's does not exist yet where
    /// the step is run in halves.
    fn known(&self, v: ValueId, cut: Cut) -> Option<ValueId> {
        self.cuts.get(&(v, cut)).filter(|(_, phase)| *phase <= self.b.phase).map(|(part, _)| *part)
    }

    /// A part of a value, or the value if it is broadcast along that dimension.
    fn part(&mut self, v: ValueId, cut: Cut, chain: usize) -> Result<ValueId> {
        let ty = self.b.ty(v);
        let rank = ty.shape.rank();
        if cut.back > rank || ty.shape[rank - cut.back] == 1 {
            return Ok(v);
        }
        if let Some(known) = self.known(v, cut) {
            return Ok(known);
        }
        if let Some((_, part)) = self.parts.get(&v).and_then(|parts| parts.iter().find(|p| p.0 == cut)) {
            return Ok(*part);
        }
        if let Some(part) = self.beneath(v, cut)? {
            return Ok(part);
        }
        let alone = self.uses.users.get(v.0 as usize).is_some_and(|users| users.len() == 1)
            && !self.uses.is_output[v.0 as usize];
        if alone && let Some(part) = self.ahead(v, cut, chain)? {
            return Ok(part);
        }
        let (dim, end) = ((rank - cut.back) as i64, (cut.start + cut.len) as i64);
        let range =
            Attrs::new().with("dim", dim).with("start", cut.start as i64).with("end", end).with("step", 1);
        let slice = self.b.one(&SLICE, &[v], range)?;
        self.cuts.insert((v, cut), (slice, self.b.phase));
        Ok(slice)
    }

    /// A part of a concatenation that is seen through further dimensions of size 1 before the one it joins.
    fn beneath(&mut self, v: ValueId, cut: Cut) -> Result<Option<ValueId>> {
        let maker = self.uses.maker.get(v.0 as usize).copied().flatten();
        let Some(node) = maker.map(|m| &self.nodes[m]).filter(|n| *n.op == UNSQUEEZE) else {
            return Ok(None);
        };
        let Some(from) = node.operands().next().map(|v| self.alias[v.0 as usize]) else { return Ok(None) };
        let rank = self.b.ty(v).shape.rank();
        let dim = OpCx { inputs: vec![], attrs: &node.attrs }.dim("dim", rank)?;
        let found = self.parts.get(&from).and_then(|parts| parts.iter().find(|p| p.0 == cut));
        let Some(&(_, part)) = found.filter(|_| dim < rank - cut.back) else { return Ok(None) };
        if let Some(&(seen, _)) = self.seen.get(&(part, dim)).filter(|(_, phase)| *phase <= self.b.phase) {
            return Ok(Some(seen));
        }
        let seen = self.b.one(&UNSQUEEZE, &[part], Attrs::new().with("dim", dim as i64))?;
        self.seen.insert((part, dim), (seen, self.b.phase));
        Ok(Some(seen))
    }

    /// A part of a pointwise result, computed from parts of the operands; `None` if that is not possible.
    fn ahead(&mut self, v: ValueId, cut: Cut, chain: usize) -> Result<Option<ValueId>> {
        let maker = self.uses.maker.get(v.0 as usize).copied().flatten();
        let Some(maker) = maker.filter(|&m| self.uses.pointwise[m] && chain > 0) else { return Ok(None) };
        let mut node = self.nodes[maker].clone();
        for v in node.inputs.iter_mut().flatten() {
            *v = self.alias[v.0 as usize];
        }
        let whole = self.b.ty(v).clone();
        if node.phase != self.b.phase || !self.divides(&node, &whole, cut) {
            return Ok(None);
        }
        let operands = self.operands(&node, cut, chain - 1)?;
        let origin = std::mem::replace(&mut self.b.origin, node.origin);
        let part = self.b.apply(node.op, &operands, node.attrs)?[0];
        self.b.origin = origin;
        self.cuts.insert((v, cut), (part, self.b.phase));
        Ok(Some(part))
    }
}

/// The type of a part.
fn cut_type(ty: &TensorType, cut: Cut) -> TensorType {
    let rank = ty.shape.rank();
    let mut shape = ty.shape.to_vec();
    if cut.back <= rank && shape[rank - cut.back] != 1 {
        shape[rank - cut.back] = cut.len;
    }
    TensorType::new(ty.dtype, shape)
}
