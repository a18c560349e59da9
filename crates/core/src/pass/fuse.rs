//! Fusion: neighbouring pointwise operators and row programs become one row program, so that what lies between them never
//! goes to memory.
//!
//! A node is absorbed into the first of its users when nothing else needs its results before that user runs. Results that
//! others use later are still stored. Every rounding of the original is kept as a `Cast`, so the rewrite is *exact*: the
//! same bits as unfused, on a device that computes in the same type.

use super::regroup::{sum_early, widen_late};
use crate::Attrs;
use crate::diagnostic::{Code, Error, Result};
use crate::dtype::DType;
use crate::graph::{Def, Graph, Node, NodeId, OriginId, Phase, ValueId};
use crate::ops::Body;
use crate::ops::control::fused::{FUSED, encode_types};
use crate::row::{Access, Instr, Operand, Reg, RowProgram};
use crate::tensor::TensorType;
use std::sync::Arc;

/// Instructions and operands of one program beyond which a tile no longer fits the registers and cache of any device.
const MAX_INSTRUCTIONS: usize = 96;
const MAX_OPERANDS: usize = 20;

/// Fuses a graph whose operators have been decomposed. Order, inputs and outputs are kept.
///
/// # Errors
/// What an operator's own program rule refuses.
pub fn fuse(graph: Graph) -> Result<Graph> {
    let graph = sum_early(widen_late(graph)?)?;
    let mut fuser = Fuser::new(&graph)?;
    for n in 0..graph.nodes.len() {
        fuser.absorb_producers(n);
    }
    let groups = fuser.groups;
    rebuild(graph, groups)
}

/// A program with its operands' values.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) program: RowProgram,
    pub(super) reads: Vec<ValueId>,
    pub(super) writes: Vec<ValueId>,
    /// Names of the operators inside, in order.
    pub(super) label: Vec<String>,
}

impl Group {
    /// A node alone, if it is a row program.
    ///
    /// # Errors
    /// What the operator's own program rule refuses.
    pub(super) fn of(graph: &Graph, node: &Node) -> Result<Option<Group>> {
        let Some(program) = program_of(graph, node)? else { return Ok(None) };
        Ok(Some(Group {
            program,
            reads: node.operands().collect(),
            writes: node.outputs.clone(),
            label: vec![graph.cx(node).opt_str("ops")?.unwrap_or(node.op.name).into()],
        }))
    }
}

enum Slot {
    /// Not a row program; stays as it is.
    Other,
    /// A row program, alone or with what it has absorbed.
    Group(Box<Group>),
    /// Absorbed into a later node.
    Gone,
}

struct Fuser<'a> {
    graph: &'a Graph,
    groups: Vec<Slot>,
    /// Node that originally computes a value.
    home: Vec<Option<usize>>,
    /// Node that a node has been absorbed into, directly; itself if none.
    into: Vec<usize>,
    /// Nodes that use a value, ascending.
    users: Vec<Vec<usize>>,
    is_output: Vec<bool>,
}

impl<'a> Fuser<'a> {
    fn new(graph: &'a Graph) -> Result<Self> {
        let mut users = vec![Vec::new(); graph.values.len()];
        let mut home = vec![None; graph.values.len()];
        let mut groups = Vec::with_capacity(graph.nodes.len());
        for (n, node) in graph.nodes.iter().enumerate() {
            node.operands().for_each(|v| users[v.0 as usize].push(n));
            node.outputs.iter().for_each(|v| home[v.0 as usize] = Some(n));
            groups.push(match Group::of(graph, node)? {
                Some(group) => Slot::Group(Box::new(group)),
                None => Slot::Other,
            });
        }
        let mut is_output = vec![false; graph.values.len()];
        graph.outputs.iter().for_each(|o| is_output[o.value.0 as usize] = true);
        Ok(Fuser { graph, groups, home, into: (0..graph.nodes.len()).collect(), users, is_output })
    }

    /// Absorbs into node `n` every producer that may move there.
    fn absorb_producers(&mut self, n: usize) {
        // Absorbing changes the list of reads: go on until nothing more can be taken in.
        loop {
            let Slot::Group(group) = &self.groups[n] else { return };
            let candidates: Vec<(usize, ValueId)> = group
                .reads
                .iter()
                .filter_map(|&v| self.home[v.0 as usize].map(|p| (self.place(p), v)))
                .collect();
            let taken = candidates.into_iter().any(|(p, v)| self.absorb(n, p, v));
            if !taken {
                return;
            }
        }
    }

    /// Moves the group at `p`, which computes `v`, into the group at `n`, which reads it; false if that may not be.
    fn absorb(&mut self, n: usize, p: usize, v: ValueId) -> bool {
        let (Slot::Group(producer), Slot::Group(consumer)) = (&self.groups[p], &self.groups[n]) else {
            return false;
        };
        // Nobody may need a result of the producer before node `n` runs.
        let inside = |u: usize| self.place(u) == n || self.place(u) == p;
        let early = |w: &ValueId| self.users[w.0 as usize].iter().any(|&u| u < n && !inside(u));
        // A second result of the producer that is read here would be read before it is stored.
        let crossed = |w: &ValueId| *w != v && consumer.reads.contains(w);
        if producer.writes.iter().any(|w| early(w) || crossed(w)) {
            return false;
        }
        let kept =
            |w: ValueId| self.is_output[w.0 as usize] || self.users[w.0 as usize].iter().any(|&u| u > n);
        let Some(merged) = merge(producer, consumer, v, self.graph.ty(v), &kept) else { return false };
        self.into[p] = n;
        self.groups[p] = Slot::Gone;
        self.groups[n] = Slot::Group(Box::new(merged));
        true
    }

    /// Where a node is computed now.
    fn place(&self, mut n: usize) -> usize {
        while self.into[n] != n {
            n = self.into[n];
        }
        n
    }
}

/// The row program of a node, if it is one.
fn program_of(graph: &Graph, node: &Node) -> Result<Option<RowProgram>> {
    let types: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
    let cx = graph.cx(node);
    let program = match node.op.body {
        Body::Pointwise(f) => f(&cx).map(|exprs| {
            let inputs: Vec<_> = cx.present().map(|t| (t.dtype, &t.shape[..])).collect();
            let dtypes: Vec<_> = types.iter().map(|t| t.dtype).collect();
            Some(RowProgram::pointwise(&inputs, &types[0].shape, &dtypes, &exprs))
        }),
        Body::Rows(f) => f(&cx, &types).map(Some),
        _ => Ok(None),
    };
    program.map_err(|e| e.in_op(node.op.name).at(graph.origin(node)))
}

/// Whether a device computes this program's floats in f64.
pub(super) fn wide(p: &RowProgram) -> bool {
    p.reads.iter().chain(&p.writes).any(|o| o.dtype == DType::F64)
        || p.body.iter().any(|i| matches!(i, Instr::Cast(DType::F64, _)))
}

fn has_floats(p: &RowProgram) -> bool {
    p.reads.iter().chain(&p.writes).any(|o| o.dtype.is_float())
}

pub(super) fn reduces(p: &RowProgram) -> bool {
    p.body.iter().any(|i| matches!(i, Instr::Reduce(..) | Instr::Columns(..)))
}

/// One program for both, over the consumer's space, or the producer's if only that one reduces.
/// `v` is the value handed over; `kept` tells which results must still be stored.
pub(super) fn merge(
    producer: &Group,
    consumer: &Group,
    v: ValueId,
    ty: &TensorType,
    kept: &dyn Fn(ValueId) -> bool,
) -> Option<Group> {
    let (p, c) = (&producer.program, &consumer.program);
    if has_floats(p) && has_floats(c) && wide(p) != wide(c) {
        return None;
    }
    if p.body.len() + c.body.len() > MAX_INSTRUCTIONS
        || p.reads.len() + p.writes.len() + c.reads.len() + c.writes.len() > MAX_OPERANDS
    {
        return None;
    }
    let write = producer.writes.iter().position(|&w| w == v)?;
    let made = &p.writes[write].access;
    let size = |q: &RowProgram| q.rows() * q.cols();
    // How each program's accesses translate to the common space.
    let (outer, inner, p_map, c_map): (_, _, Option<Access>, Option<Access>);
    let reads_v = || c.reads.iter().zip(&consumer.reads).filter(|(_, w)| **w == v).map(|(o, _)| &o.access);
    let same_space = p.outer == c.outer && p.inner == c.inner && reads_v().all(|a| a == made);
    if same_space {
        (outer, inner, p_map, c_map) = (&c.outer, &c.inner, None, None);
    } else if !reduces(p) {
        // The producer is pointwise over v's shape: follow the consumer's one way of reading v.
        let mut ways = reads_v();
        let way = ways.next()?;
        let trivial = p.reads.is_empty();
        if ways.any(|a| a != way) || (size(p) != size(c) && !trivial) || !is_identity(p, made) {
            return None;
        }
        // Stored results are written once for each iteration: only where that is once for each element.
        if size(p) != size(c) && producer.writes.iter().any(|&w| kept(w)) {
            return None;
        }
        (outer, inner, p_map, c_map) = (&c.outer, &c.inner, Some(way.clone()), None);
    } else if !reduces(c) && c.writes.iter().all(|o| is_identity(c, &o.access)) && size(p) == size(c) {
        // The consumer is pointwise over v's shape: follow the producer's way of writing v.
        if !reads_v().all(|a| is_identity(c, a)) || !covers(p, made, ty) {
            return None;
        }
        (outer, inner, p_map, c_map) = (&p.outer, &p.inner, None, Some(made.clone()));
    } else {
        return None;
    }
    let mut out = Group {
        program: RowProgram { outer: outer.clone(), inner: inner.clone(), ..RowProgram::default() },
        reads: vec![],
        writes: vec![],
        label: producer.label.iter().chain(&consumer.label).cloned().collect(),
    };
    let no_inline = |_: ValueId| None;
    let stored = |w: ValueId, _: &Access| kept(w);
    let regs = append(&mut out, producer, p_map.as_ref(), &no_inline, &stored)?;
    // The register stored to v, rounded to v's dtype.
    let stored_reg = p.body.iter().find_map(|i| match i {
        Instr::Store(w, r) if *w == write => Some(*r),
        _ => None,
    })?;
    out.program.body.push(Instr::Cast(ty.dtype, regs[stored_reg]));
    let handed = out.program.body.len() - 1;
    let inline = |w: ValueId| (w == v).then_some(handed);
    append(&mut out, consumer, c_map.as_ref(), &inline, &|_, _| true)?;
    debug_assert!(out.program.classes().is_ok(), "{:?}", out.program.classes());
    Some(out)
}

/// Whether an access of a program moves along every iteration dimension as over its own, in order.
fn is_identity(p: &RowProgram, a: &Access) -> bool {
    let sizes = || p.outer.iter().chain(&p.inner);
    a.0.iter().zip(sizes()).enumerate().all(|(d, (t, &n))| n == 1 || *t == Some((d, 1)))
        && a.0.len() == sizes().count()
}

/// Whether an access moves along every iteration dimension, each along a dimension of its own of the operand.
fn covers(p: &RowProgram, a: &Access, ty: &TensorType) -> bool {
    let mut seen = vec![false; ty.shape.rank()];
    a.0.iter().zip(p.outer.iter().chain(&p.inner)).all(|(t, &n)| match t {
        Some((d, 1)) => !std::mem::replace(&mut seen[*d], true) && ty.shape[*d] == n,
        Some(_) => false,
        None => n == 1,
    })
}

/// Translates an access over `v`'s dimensions into one over the space in which `v` is walked by `way`.
fn translate(a: &Access, way: &Access) -> Option<Access> {
    let term = |t: &Option<(usize, usize)>| -> Option<Option<(usize, usize)>> {
        let Some((d, m)) = t else { return Some(None) };
        match a.0.get(*d)? {
            None => Some(None),
            Some((e, k)) => Some(Some((*e, k * m))),
        }
    };
    way.0.iter().map(term).collect::<Option<Vec<_>>>().map(Access)
}

/// Appends a group's body. `inline` gives the register that stands for a read value; `stored` tells which writes to keep.
/// Returns the register in `out` of every instruction of the group.
fn append(
    out: &mut Group,
    group: &Group,
    map: Option<&Access>,
    inline: &dyn Fn(ValueId) -> Option<Reg>,
    stored: &dyn Fn(ValueId, &Access) -> bool,
) -> Option<Vec<Reg>> {
    let translated = |o: &Operand| -> Option<Operand> {
        let access = match map {
            None => o.access.clone(),
            Some(way) => translate(&o.access, way)?,
        };
        Some(Operand { dtype: o.dtype, access })
    };
    let mut read_at = Vec::with_capacity(group.reads.len());
    for (o, &v) in group.program.reads.iter().zip(&group.reads) {
        if inline(v).is_some() {
            read_at.push(usize::MAX);
            continue;
        }
        let o = translated(o)?;
        // The same value read the same way is one operand.
        let same = out.program.reads.iter().zip(&out.reads).position(|(have, &w)| w == v && *have == o);
        read_at.push(same.unwrap_or_else(|| {
            out.program.reads.push(o);
            out.reads.push(v);
            out.reads.len() - 1
        }));
    }
    let mut write_at = Vec::with_capacity(group.writes.len());
    for (o, &v) in group.program.writes.iter().zip(&group.writes) {
        if !stored(v, &o.access) {
            write_at.push(None);
            continue;
        }
        out.program.writes.push(translated(o)?);
        out.writes.push(v);
        write_at.push(Some(out.writes.len() - 1));
    }
    let mut regs: Vec<Reg> = Vec::with_capacity(group.program.body.len());
    for instr in &group.program.body {
        let moved = match instr {
            Instr::Load(i) => match inline(group.reads[*i]) {
                Some(reg) => {
                    regs.push(reg);
                    continue;
                }
                None => Instr::Load(read_at[*i]),
            },
            Instr::Iota(c) => Instr::Iota(match map {
                None => c.clone(),
                Some(way) => {
                    let term =
                        |t: &Option<(usize, usize)>| t.map_or(Some(0), |(d, m)| Some(c.get(d)? * m as i64));
                    way.0.iter().map(term).collect::<Option<Vec<_>>>()?
                }
            }),
            Instr::Store(w, a) | Instr::Columns(w, a) => {
                let Some(w) = write_at[*w] else {
                    regs.push(usize::MAX);
                    continue;
                };
                match instr {
                    Instr::Store(..) => Instr::Store(w, regs[*a]),
                    _ => Instr::Columns(w, regs[*a]),
                }
            }
            other => other.map(|r| regs[r]),
        };
        out.program.body.push(moved);
        regs.push(out.program.body.len() - 1);
    }
    Some(regs)
}

/// The graph with every group that has grown as one node at the place of its last member.
fn rebuild(mut graph: Graph, groups: Vec<Slot>) -> Result<Graph> {
    let nodes = std::mem::take(&mut graph.nodes);
    for (node, slot) in nodes.into_iter().zip(groups) {
        let node = match slot {
            Slot::Gone => continue,
            Slot::Group(g) if g.label.len() > 1 => fused_node(&graph, *g, node.origin, node.phase)?,
            _ => node,
        };
        let id = NodeId(graph.nodes.len() as u32);
        for (i, v) in node.outputs.iter().enumerate() {
            graph.values[v.0 as usize].def = Def::Node(id, i as u32);
        }
        graph.nodes.push(node);
    }
    compact(graph)
}

pub(super) fn fused_node(graph: &Graph, g: Group, origin: OriginId, phase: Phase) -> Result<Node> {
    let types: Vec<TensorType> = g.writes.iter().map(|&v| graph.ty(v).clone()).collect();
    let mut label = g.label;
    label.dedup();
    let attrs = Attrs::new()
        .with("outputs", encode_types(&types))
        .with("ops", label.join("+"))
        .with("program", Arc::new(g.program));
    if g.writes.is_empty() {
        return Err(Error::new(Code::Graph, "a fused program without results"));
    }
    Ok(Node {
        op: &FUSED,
        inputs: g.reads.into_iter().map(Some).collect(),
        attrs,
        outputs: g.writes,
        origin,
        phase,
    })
}

/// Renumbers values after some have lost their definition.
fn compact(mut graph: Graph) -> Result<Graph> {
    let mut map: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    let mut values = Vec::with_capacity(graph.values.len());
    let mut define = |v: ValueId, map: &mut Vec<Option<ValueId>>| {
        map[v.0 as usize] = Some(ValueId(values.len() as u32));
        values.push(graph.values[v.0 as usize].clone());
    };
    graph.inputs.iter().for_each(|i| define(i.value, &mut map));
    for node in &graph.nodes {
        node.outputs.iter().for_each(|&v| define(v, &mut map));
    }
    let lost =
        |v: ValueId| map[v.0 as usize].ok_or_else(|| Error::new(Code::Graph, format!("fusion lost {v}")));
    graph.inputs.iter_mut().try_for_each(|i| lost(i.value).map(|v| i.value = v))?;
    for node in &mut graph.nodes {
        node.inputs.iter_mut().flatten().try_for_each(|v| lost(*v).map(|w| *v = w))?;
        node.outputs.iter_mut().try_for_each(|v| lost(*v).map(|w| *v = w))?;
    }
    for o in &mut graph.outputs {
        o.value = lost(o.value)?;
        match &mut o.role {
            crate::graph::OutputRole::Mutation(v) | crate::graph::OutputRole::Gradient(v) => *v = lost(*v)?,
            crate::graph::OutputRole::User => {}
        }
    }
    graph.values = values;
    Ok(graph)
}
