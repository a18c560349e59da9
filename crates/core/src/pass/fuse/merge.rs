//! Row programs of nodes, and two of them as one.
//!
//! *Exact*: every rounding of the original is kept as a `Cast`, what both compute is computed once, and
//! nothing else changes.

use crate::Attrs;
use crate::diagnostic::{Code, Error, Result};
use crate::graph::{Graph, Node, OriginId, Phase, ValueId};
use crate::ops::control::fused::{FUSED, encode_types};
use crate::row::{Access, Instr, Operand, Reg, RowProgram};
use crate::target::RowProgramLimits;
use crate::tensor::TensorType;
use std::sync::Arc;

/// A program with its operands' values.
#[derive(Clone, Debug)]
pub(in crate::pass) struct Group {
    pub(in crate::pass) program: RowProgram,
    pub(in crate::pass) reads: Vec<ValueId>,
    pub(in crate::pass) writes: Vec<ValueId>,
    /// Names of the operators inside, in order.
    pub(in crate::pass) label: Vec<String>,
}

impl Group {
    /// A node alone, if it is a row program.
    ///
    /// # Errors
    /// Refusals of the operator's own program rule.
    pub(in crate::pass) fn of(graph: &Graph, node: &Node) -> Result<Option<Group>> {
        let Some(program) = program_of(graph, node)? else { return Ok(None) };
        Ok(Some(Group {
            program,
            reads: node.operands().collect(),
            writes: node.outputs.clone(),
            label: vec![graph.cx(node).opt_str("ops")?.unwrap_or(node.op.name).into()],
        }))
    }
}

/// The row program of a node, if it is one.
fn program_of(graph: &Graph, node: &Node) -> Result<Option<RowProgram>> {
    let types: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
    let program = node.op.row_program(&graph.cx(node), &types);
    program.map_err(|e| e.in_op(node.op.name).at(graph.origin(node)))
}

fn has_floats(p: &RowProgram) -> bool {
    p.reads.iter().chain(&p.writes).any(|o| o.dtype.is_float())
}

pub(in crate::pass) fn reduces(p: &RowProgram) -> bool {
    p.body.iter().any(|i| matches!(i, Instr::Reduce(..) | Instr::Columns(..)))
}

/// One program for both, over the consumer's space, or the producer's if only that one reduces; `None` if
/// there is none. The consumer reads something of the producer's; `kept` tells which results must still be
/// stored.
pub(in crate::pass) fn merge(
    graph: &Graph,
    limits: &RowProgramLimits,
    producer: &Group,
    consumer: &Group,
    kept: &dyn Fn(ValueId) -> bool,
) -> Option<Group> {
    let (p, c) = (&producer.program, &consumer.program);
    if has_floats(p) && has_floats(c) && p.computes_in_f64() != c.computes_in_f64() {
        return None;
    }
    if p.body.len() + c.body.len() > limits.instructions
        || p.reads.len() + p.writes.len() + c.reads.len() + c.writes.len() > limits.operands
    {
        return None;
    }
    // Accesses of the consumer to handed-over values, and of the producer that makes them.
    let handed = |v: ValueId| producer.writes.iter().position(|&w| w == v);
    let hands = || {
        let reads = c.reads.iter().zip(&consumer.reads);
        reads.filter_map(|(o, &v)| handed(v).map(|w| (v, &o.access, &p.writes[w].access)))
    };
    let (first, first_way, first_made) = hands().next()?;
    let size = |q: &RowProgram| q.rows() * q.cols();
    // Translations of each program's accesses to the common space.
    let (outer, inner, p_map, c_map): (_, _, Option<Access>, Option<Access>);
    let same_space = p.outer == c.outer && p.inner == c.inner && hands().all(|(_, way, made)| way == made);
    if same_space {
        (outer, inner, p_map, c_map) = (&c.outer, &c.inner, None, None);
    } else if !reduces(p) {
        // The producer is pointwise over what it hands over: follow the consumer's one way of reading that.
        let trivial = p.reads.is_empty();
        let follows = hands().all(|(_, way, made)| way == first_way && is_identity(p, made));
        if !follows || (size(p) != size(c) && !trivial) {
            return None;
        }
        // Stored results are written once for each iteration: only where that is once for each element.
        if size(p) != size(c) && producer.writes.iter().any(|&w| kept(w)) {
            return None;
        }
        (outer, inner, p_map, c_map) = (&c.outer, &c.inner, Some(first_way.clone()), None);
    } else if !reduces(c) && c.writes.iter().all(|o| is_identity(c, &o.access)) && size(p) == size(c) {
        // The consumer is pointwise over what it is given: follow the producer's one way of writing that.
        let follows = hands().all(|(_, way, made)| is_identity(c, way) && made == first_made);
        if !follows || !covers(p, first_made, graph.ty(first)) {
            return None;
        }
        (outer, inner, p_map, c_map) = (&p.outer, &p.inner, None, Some(first_made.clone()));
    } else {
        return None;
    }
    let mut out = Group {
        program: RowProgram { outer: outer.clone(), inner: inner.clone(), ..RowProgram::default() },
        reads: vec![],
        writes: vec![],
        label: producer.label.iter().chain(&consumer.label).cloned().collect(),
    };
    let regs = append(&mut out, producer, p_map.as_ref(), &|_| None, &|w| kept(w))?;
    // Each result that is handed over, rounded as it would be stored.
    let mut given: Vec<(ValueId, Reg)> = Vec::new();
    for (v, ..) in hands() {
        let write = handed(v)?;
        let stored = p.body.iter().find_map(|i| match i {
            Instr::Store(w, r) if *w == write => Some(regs[*r]),
            _ => None,
        })?;
        given.push((v, out.program.compute(Instr::Cast(graph.ty(v).dtype, stored))));
    }
    let inline = |v: ValueId| given.iter().find(|(g, _)| *g == v).map(|(_, reg)| *reg);
    append(&mut out, consumer, c_map.as_ref(), &inline, &|_| true)?;
    debug_assert!(out.program.classes().is_ok(), "{:?}", out.program.classes());
    let has = |what: fn(&Instr) -> bool| out.program.body.iter().any(what);
    let both = has(|i| matches!(i, Instr::Reduce(..))) && has(|i| matches!(i, Instr::Columns(..)));
    let few = out.program.cols() > limits.long_columns && out.program.rows() < limits.few_rows;
    (!both || !few).then_some(out)
}

/// One program for two that go over the same space and hand each other nothing: the first one's, with all
/// results of both.
/// `None` if there is none. The second does not reduce.
pub(in crate::pass) fn beside(limits: &RowProgramLimits, first: &Group, second: &Group) -> Option<Group> {
    let (p, q) = (&first.program, &second.program);
    if has_floats(p) && has_floats(q) && p.computes_in_f64() != q.computes_in_f64() {
        return None;
    }
    let space = |p: &RowProgram| p.outer.iter().chain(&p.inner).copied().collect::<Vec<usize>>();
    let divided = p.outer == q.outer && p.inner == q.inner;
    // Something is read once, not twice.
    let reads = |g: &Group| g.program.reads.iter().cloned().zip(g.reads.clone()).collect::<Vec<_>>();
    let theirs = reads(first);
    if !reads(second).iter().any(|r| theirs.contains(r)) {
        return None;
    }
    if space(p) != space(q) || !divided && !q.writes.iter().all(|o| is_identity(q, &o.access)) {
        return None;
    }
    let mut out = Group {
        program: RowProgram { outer: p.outer.clone(), inner: p.inner.clone(), ..RowProgram::default() },
        reads: vec![],
        writes: vec![],
        label: first.label.iter().chain(&second.label).cloned().collect(),
    };
    append(&mut out, first, None, &|_| None, &|_| true)?;
    append(&mut out, second, None, &|_| None, &|_| true)?;
    debug_assert!(out.program.classes().is_ok(), "{:?}", out.program.classes());
    // Not before: what both compute and read counts once.
    let fits = out.program.body.len() <= limits.instructions
        && out.reads.len() + out.writes.len() <= limits.operands;
    fits.then_some(out)
}

/// True if an access of a program moves along every iteration dimension as over its own, in order.
fn is_identity(p: &RowProgram, a: &Access) -> bool {
    let sizes = || p.outer.iter().chain(&p.inner);
    a.0.iter().zip(sizes()).enumerate().all(|(d, (t, &n))| n == 1 || *t == Some((d, 1)))
        && a.0.len() == sizes().count()
}

/// True if an access moves along every iteration dimension, each along a dimension of its own of the operand.
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

/// Appends a group's body. `inline` gives the register that stands for a read value; `stored` tells which
/// results to keep. Returns the register in `out` of every instruction of the group.
fn append(
    out: &mut Group,
    group: &Group,
    map: Option<&Access>,
    inline: &dyn Fn(ValueId) -> Option<Reg>,
    stored: &dyn Fn(ValueId) -> bool,
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
        if !stored(v) {
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
                out.program.body.push(match instr {
                    Instr::Store(..) => Instr::Store(w, regs[*a]),
                    _ => Instr::Columns(w, regs[*a]),
                });
                regs.push(usize::MAX);
                continue;
            }
            other => other.map(|r| regs[r]),
        };
        regs.push(out.program.compute(moved));
    }
    Some(regs)
}

pub(in crate::pass) fn fused_node(graph: &Graph, g: Group, origin: OriginId, phase: Phase) -> Result<Node> {
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
