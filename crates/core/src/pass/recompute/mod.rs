//! Recomputation of cheap activations: the backward pass computes values of the forward pass again, instead
//! of keeping them.
//!
//! Candidates are results of row programs, from values that are live in the backward pass in any case:
//! parameters, inputs, and what is kept. The same in small as PyTorch's min-cut partitioner. A recomputation
//! never sums: where a program has stored its sums (the mean of a norm), these are kept and read. So it is
//! one pass over its operands. It becomes part of a pointwise program that uses it, or comes beside one that
//! reads the same (`join`). Products, convolutions, attention and random numbers are never made twice.
//! Neither are casts of weights: each is made once a step, and kept, as `torch.autocast` keeps them.
//!
//! *Exact*: the same operations on the same numbers, where a device computes in the type that sums are kept
//! in. This comes after `fuse`, when it is known what is stored. Nothing is put between what a program reads
//! and its sums, so that no device has a reason to sum in another order.

pub(in crate::pass) mod join;

use super::fuse::merge::{Group, fused_node, merge, reduces};
use super::simplify::remove_dead;
use crate::diagnostic::Result;
use crate::dtype::{Class, DType};
use crate::graph::{Def, Graph, InputRole, Node, NodeId, Phase, ValueId};
use crate::ops::Body;
use crate::row::{Instr, RowProgram};
use crate::target::Target;
use join::{join, keeps_order};
use std::collections::{HashMap, HashSet};

/// Makes a fused graph of forward and backward recompute in the backward pass what need not be kept for it.
/// Inputs and outputs keep their order, names and roles, and their bits.
///
/// # Errors
/// Refusals of an operator's own program rule.
pub fn recompute(mut graph: Graph, target: &Target) -> Result<Graph> {
    let choice = Choice::of(&graph, target)?;
    if choice.dropped.is_empty() {
        return Ok(graph);
    }
    let mut writer = Writer { old: std::mem::take(&mut graph.nodes), choice, made: HashMap::new() };
    for n in 0..writer.old.len() {
        writer.node(&mut graph, n)?;
    }
    writer.shorten(&mut graph)?;
    join(&mut graph, target, &writer.made.into_values().collect())?;
    Ok(remove_dead(graph).0)
}

/// The values that are kept for the backward pass and those that are recomputed.
struct Choice<'a> {
    target: &'a Target,
    /// The value whose elements a value shows: itself, if it is no view.
    root: Vec<ValueId>,
    /// Roots that are live in the backward pass: inputs, and what is kept for it.
    kept: Vec<bool>,
    /// Roots that are recomputed.
    dropped: HashSet<ValueId>,
    /// The programs that recompute them, and what comes on the way.
    again: HashMap<ValueId, Group>,
}

/// The work that recomputes a value.
#[derive(Default)]
struct Chain {
    again: Vec<(ValueId, Group)>,
    /// Roots that are read, each once.
    reads: Vec<ValueId>,
    instructions: usize,
}

impl<'a> Choice<'a> {
    /// Walks in the order of the forward pass: whether a value's operands are kept is settled before the
    /// value's turn.
    fn of(graph: &Graph, target: &'a Target) -> Result<Choice<'a>> {
        let costs = &target.recompute;
        let mut root: Vec<ValueId> = (0..graph.values.len() as u32).map(ValueId).collect();
        let mut kept = vec![false; root.len()];
        graph.inputs.iter().for_each(|i| kept[i.value.0 as usize] = true);
        for node in &graph.nodes {
            if let (Body::View(_), Some(x)) = (node.op.body, node.operands().next()) {
                node.outputs.iter().for_each(|v| root[v.0 as usize] = root[x.0 as usize]);
            } else if node.phase != Phase::Forward {
                node.operands().for_each(|v| kept[root[v.0 as usize].0 as usize] = true);
            }
        }
        let weights = weights(graph)?;
        // A result of the graph is live anyway, and the source of another must stay.
        let mut fixed = vec![false; root.len()];
        graph.outputs.iter().for_each(|o| fixed[root[o.value.0 as usize].0 as usize] = true);
        let forward = || graph.nodes.iter().filter(|n| n.phase == Phase::Forward);
        let candidates = || forward().flat_map(|n| &n.outputs).copied();
        // As floats: of sizes that nothing could hold, sums would overflow.
        let bytes = |v: ValueId| graph.ty(v).bytes() as f64;
        let (count, all) = candidates()
            .filter(|v| kept[v.0 as usize])
            .fold((0.0, 0.0), |(count, all), v| (count + 1.0, all + bytes(v)));
        let mut choice = Choice { target, root, kept, dropped: HashSet::new(), again: HashMap::new() };
        for v in candidates() {
            if !choice.kept[v.0 as usize] || fixed[v.0 as usize] || bytes(v) * count * costs.smallest < all {
                continue;
            }
            if weights[v.0 as usize] {
                continue;
            }
            let mut chain = Chain::default();
            if !choice.extend(graph, v, &mut chain)? {
                continue;
            }
            let read: f64 = chain.reads.iter().map(|&r| bytes(r)).sum();
            let more: f64 =
                chain.reads.iter().filter(|r| !choice.kept[r.0 as usize]).map(|&r| bytes(r)).sum();
            if more < bytes(v) && read <= costs.reads * bytes(v) {
                for r in chain.reads {
                    (choice.kept[r.0 as usize], fixed[r.0 as usize]) = (true, true);
                }
                choice.again.extend(chain.again);
                choice.kept[v.0 as usize] = false;
                choice.dropped.insert(v);
            }
        }
        Ok(choice)
    }

    /// Adds to `chain` what it takes to make `v` again; false, and nothing is added, if that is not cheap.
    fn extend(&self, graph: &Graph, v: ValueId, chain: &mut Chain) -> Result<bool> {
        if chain.again.iter().any(|(made, _)| *made == v) {
            return Ok(true);
        }
        let again = match self.again.get(&v) {
            Some(again) => Some(again.clone()),
            None => self.alone(graph, v)?,
        };
        let Some(again) = again else { return Ok(false) };
        // Every attempt counts, used or not: that bounds the time, and the depth of this recursion.
        chain.instructions += again.program.body.len();
        if chain.instructions > self.target.recompute.instructions {
            return Ok(false);
        }
        for &r in &again.reads {
            let root = self.root[r.0 as usize];
            if !self.kept[root.0 as usize] && r == root && self.extend(graph, r, chain)? {
                continue;
            }
            if !chain.reads.contains(&root) {
                chain.reads.push(root);
            }
        }
        chain.again.push((v, again));
        Ok(true)
    }

    /// The part of `v`'s node that computes only `v`, without sums; `None` if there is none.
    fn alone(&self, graph: &Graph, v: ValueId) -> Result<Option<Group>> {
        let Some((node, result)) = graph.producer(v) else { return Ok(None) };
        let Some(whole) = Group::of(graph, node)? else { return Ok(None) };
        // Without this result, such a program might sum in another order.
        let limits = &self.target.rows;
        if !limits.column_order && !keeps_order(&whole, limits) {
            return Ok(None);
        }
        let kept = |w: usize| self.kept[node.outputs[w].0 as usize];
        Ok(part(&whole, &[result], &kept, false).filter(|g| !reduces(&g.program)))
    }

    /// True if the backward pass must recompute the value.
    fn is_missing(&self, v: ValueId) -> bool {
        self.again.contains_key(&v) && !self.kept[v.0 as usize]
    }

    /// `group` with what makes its missing operands again inside, as far as that makes one program.
    fn filled(&self, graph: &Graph, mut group: Group) -> Group {
        let mut outside = HashSet::new();
        let next = |g: &Group, outside: &HashSet<ValueId>| {
            g.reads.iter().copied().find(|r| self.is_missing(*r) && !outside.contains(r))
        };
        while let Some(v) = next(&group, &outside) {
            match merge(graph, &self.target.rows, &self.again[&v], &group, &|_| false) {
                Some(merged) => group = merged,
                None => {
                    outside.insert(v);
                }
            }
        }
        group
    }
}

/// By value: true for parameters, and for their views, concatenations and casts.
fn weights(graph: &Graph) -> Result<Vec<bool>> {
    let mut weights = vec![false; graph.values.len()];
    for input in &graph.inputs {
        weights[input.value.0 as usize] = matches!(input.role, InputRole::Parameter { .. });
    }
    for node in &graph.nodes {
        if !node.operands().all(|v| weights[v.0 as usize]) || node.operands().next().is_none() {
            continue;
        }
        let casts = |p: &RowProgram| {
            p.body.iter().all(|i| matches!(i, Instr::Load(_) | Instr::Cast(..) | Instr::Store(..)))
        };
        if matches!(node.op.body, Body::View(_) | Body::Copies(_))
            || Group::of(graph, node)?.is_some_and(|g| casts(&g.program))
        {
            node.outputs.iter().for_each(|v| weights[v.0 as usize] = true);
        }
    }
    Ok(weights)
}

/// Writes the graph anew.
struct Writer<'a> {
    old: Vec<Node>,
    choice: Choice<'a>,
    /// The value that replaces, in the backward pass, one that is not kept.
    made: HashMap<ValueId, ValueId>,
}

impl Writer<'_> {
    /// Appends a node of the old graph, before it what makes its operands again.
    fn node(&mut self, graph: &mut Graph, n: usize) -> Result<()> {
        let mut node = self.old[n].clone();
        let lacks = |v: ValueId| self.choice.is_missing(self.choice.root[v.0 as usize]);
        let backward = node.phase != Phase::Forward && !matches!(node.op.body, Body::View(_));
        if backward && node.operands().any(lacks) {
            // Sums over rows add up the same numbers in the same order then.
            let reduced = |g: &Group| g.program.body.iter().any(|i| matches!(i, Instr::Reduce(..)));
            if let Some(group) = Group::of(graph, &node)?.filter(|g| !reduced(g)) {
                let operators = group.label.len();
                let group = self.choice.filled(graph, group);
                if group.label.len() > operators {
                    node = fused_node(graph, group, node.origin, node.phase)?;
                }
            }
            for v in node.inputs.iter_mut().flatten() {
                *v = self.again(graph, *v)?;
            }
        }
        graph.nodes.push(node);
        Ok(())
    }

    /// The value itself, or its recomputation in the backward pass, added now if it does not exist yet.
    fn again(&mut self, graph: &mut Graph, v: ValueId) -> Result<ValueId> {
        if !self.choice.is_missing(self.choice.root[v.0 as usize]) {
            return Ok(v);
        }
        // Views from `v` up to what is made.
        let (mut views, mut at) = (Vec::new(), v);
        while !self.made.contains_key(&at) && at != self.choice.root[at.0 as usize] {
            let Def::Node(NodeId(n), _) = graph.value(at).def else { break };
            views.push(n as usize);
            let Some(x) = self.old[n as usize].operands().next() else { break };
            at = x;
        }
        if let (false, Def::Node(NodeId(n), _)) = (self.made.contains_key(&at), graph.value(at).def) {
            let group = self.choice.filled(graph, self.choice.again[&at].clone());
            let mut node = fused_node(graph, group, self.old[n as usize].origin, Phase::Backward)?;
            for r in node.inputs.iter_mut().flatten() {
                *r = self.again(graph, *r)?;
            }
            self.push_again(graph, node);
        }
        for &n in views.iter().rev() {
            let mut view = Node { phase: Phase::Backward, ..self.old[n].clone() };
            view.inputs.iter_mut().flatten().take(1).for_each(|x| *x = self.made[x]);
            self.push_again(graph, view);
        }
        Ok(self.made[&v])
    }

    /// Appends a node with results of its own.
    fn push_again(&mut self, graph: &mut Graph, mut node: Node) {
        for v in &mut node.outputs {
            let new = ValueId(graph.values.len() as u32);
            graph.values.push(graph.value(*v).clone());
            self.made.insert(*v, new);
            *v = new;
        }
        graph.nodes.push(node);
    }

    /// Takes results that nobody reads any more out of the forward pass's pointwise programs.
    fn shorten(&self, graph: &mut Graph) -> Result<()> {
        let mut used: HashSet<ValueId> = graph.outputs.iter().map(|o| o.value).collect();
        // By nodes whose own results are used.
        for node in graph.nodes.iter().rev() {
            if node.outputs.iter().any(|v| used.contains(v)) {
                used.extend(node.operands());
            }
        }
        for n in 0..graph.nodes.len() {
            let node = &graph.nodes[n];
            let unused = |v: &ValueId| self.choice.dropped.contains(v) && !used.contains(v);
            if !node.outputs.iter().any(unused) || node.outputs.iter().all(unused) {
                continue;
            }
            let rest: Vec<usize> = (0..node.outputs.len()).filter(|&i| !unused(&node.outputs[i])).collect();
            let whole = Group::of(graph, node)?.filter(|g| !reduces(&g.program));
            if let Some(group) = whole.and_then(|g| part(&g, &rest, &|_| false, false)) {
                graph.nodes[n] = fused_node(graph, group, node.origin, node.phase)?;
            }
        }
        Ok(())
    }
}

/// The part of a group that makes the results `wanted`. Sums that it stores to other results which are
/// `kept`, and such results as it goes on with them rounded, are read from there. With `all`, so is whatever
/// else it stores unrounded.
pub(in crate::pass) fn part(
    g: &Group,
    wanted: &[usize],
    kept: &dyn Fn(usize) -> bool,
    all: bool,
) -> Option<Group> {
    let p = &g.program;
    let computing = if p.computes_in_f64() { DType::F64 } else { DType::F32 };
    // Which registers come from sums, and which result stands for a register.
    let mut sums: Vec<bool> = Vec::with_capacity(p.body.len());
    let mut stored: Vec<Option<usize>> = vec![None; p.body.len()];
    let mut needed = vec![false; p.body.len()];
    for (at, instr) in p.body.iter().enumerate() {
        sums.push(matches!(instr, Instr::Reduce(..)) || instr.args().any(|r| sums[r]));
        if let Instr::Store(w, _) | Instr::Columns(w, _) = *instr {
            needed[at] = wanted.contains(&w);
        }
    }
    let classes = if all { p.classes().ok() } else { None };
    for instr in &p.body {
        let Instr::Store(w, r) = *instr else { continue };
        if wanted.contains(&w) || !kept(w) {
            continue;
        }
        let dtype = p.writes[w].dtype;
        let float = || classes.as_ref().is_some_and(|c| c.get(r) == Some(&Some(Class::Float)));
        if dtype == computing && (sums[r] || all && float()) {
            stored[r] = Some(w);
        }
        for (at, later) in p.body.iter().enumerate() {
            if *later == Instr::Cast(dtype, r) {
                stored[at] = Some(w);
            }
        }
    }
    for at in (0..p.body.len()).rev().filter(|&at| stored[at].is_none()).collect::<Vec<_>>() {
        if needed[at] {
            p.body[at].args().for_each(|r| needed[r] = true);
        }
    }
    let program = RowProgram { outer: p.outer.clone(), inner: p.inner.clone(), ..RowProgram::default() };
    let mut out = Group { program, reads: vec![], writes: vec![], label: g.label.clone() };
    for &w in wanted {
        out.program.writes.push(p.writes[w].clone());
        out.writes.push(g.writes[w]);
    }
    let mut regs = vec![usize::MAX; p.body.len()];
    for (at, instr) in p.body.iter().enumerate().filter(|(at, _)| needed[*at]) {
        let load = match (instr, stored[at]) {
            (_, Some(w)) => Some((&p.writes[w], g.writes[w])),
            (Instr::Load(i), None) => Some((&p.reads[*i], g.reads[*i])),
            _ => None,
        };
        let place = |w: &usize| wanted.iter().position(|v| v == w);
        let instr = match (load, instr) {
            (Some((operand, v)), _) => {
                out.program.reads.push(operand.clone());
                out.reads.push(v);
                Instr::Load(out.reads.len() - 1)
            }
            (None, Instr::Store(w, r)) => Instr::Store(place(w)?, regs[*r]),
            (None, Instr::Columns(w, r)) => Instr::Columns(place(w)?, regs[*r]),
            (None, other) => other.map(|r| regs[r]),
        };
        out.program.body.push(instr);
        regs[at] = out.program.body.len() - 1;
    }
    Some(out)
}
