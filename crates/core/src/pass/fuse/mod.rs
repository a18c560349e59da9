//! Loop fusion: neighbouring pointwise operators and row programs become one row program. Values between them
//! then never go to memory.
//!
//! A node is absorbed into the first of its users when nothing else needs its results before that user runs.
//! Any other node that would, and leads nowhere near that user, such as the mean of a loss, waits until the
//! user has run: so the terms of a loss and their gradient, which reads the same numbers, are one program.
//! Results that others use later are still stored. The rewrite is *exact*: the same bits as unfused, on a
//! device that computes in the same type (`merge`).

pub(in crate::pass) mod merge;
mod regroup;

use super::phases::{in_order_of_phases, made_forward};
use crate::diagnostic::{Code, Error, Result};
use crate::graph::{Def, Graph, Node, NodeId, Phase, ValueId};
use crate::ops::Body;
use crate::ops::movement::cat::CAT;
use crate::target::{RowProgramLimits, Target};
use merge::{Group, beside, fused_node, merge};
use regroup::{sum_early, widen_late};

/// So many nodes may wait for one, at most.
const WAITING: usize = 8;

/// Fuses a graph whose operators have been decomposed, within the target's limits of row programs. Order,
/// inputs and outputs are kept.
///
/// # Errors
/// Refusals of an operator's own program rule.
pub fn fuse(graph: Graph, target: &Target) -> Result<Graph> {
    let graph = sum_early(widen_late(graph)?, &target.rows)?;
    let held = vec![false; graph.values.len()];
    fuse_around(graph, target, held)
}

/// As [`fuse`], of a step that is run in halves: results of the forward pass that the graph returns are made
/// there, and forward comes before backward.
///
/// # Errors
/// As [`fuse`]; `Unsupported` for a result that only the backward pass makes.
pub fn fuse_halves(graph: Graph, target: &Target) -> Result<Graph> {
    let graph = in_order_of_phases(sum_early(widen_late(graph)?, &target.rows)?);
    let mut held = vec![false; graph.values.len()];
    for (o, forward) in graph.outputs.iter().zip(made_forward(&graph)?) {
        held[o.value.0 as usize] = forward;
    }
    fuse_around(graph, target, held)
}

fn fuse_around(graph: Graph, target: &Target, held: Vec<bool>) -> Result<Graph> {
    let mut fuser = Fuser::new(&graph, &target.rows, held)?;
    for n in 0..graph.nodes.len() {
        fuser.absorb_producers(n);
    }
    for n in 0..graph.nodes.len() {
        fuser.join_parts(n);
    }
    let (groups, order) = (std::mem::take(&mut fuser.groups), fuser.order());
    rebuild(graph, groups, &order)
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
    limits: &'a RowProgramLimits,
    groups: Vec<Slot>,
    /// Node that originally computes a value.
    home: Vec<Option<usize>>,
    /// Node that a node has been absorbed into, directly; itself if none.
    into: Vec<usize>,
    /// When a node runs: in whose place, at first its own, and as which of those that wait for that one.
    when: Vec<(usize, usize)>,
    /// Number of nodes that have been made to wait.
    waited: usize,
    /// Nodes that use a value, ascending.
    users: Vec<Vec<usize>>,
    is_output: Vec<bool>,
    /// Values that may not move from their phase into a later one.
    held: Vec<bool>,
}

impl<'a> Fuser<'a> {
    fn new(graph: &'a Graph, limits: &'a RowProgramLimits, held: Vec<bool>) -> Result<Self> {
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
        let into: Vec<usize> = (0..graph.nodes.len()).collect();
        let when = into.iter().map(|&n| (n, 0)).collect();
        Ok(Fuser { graph, limits, groups, home, into, when, waited: 0, users, is_output, held })
    }

    /// Absorbs into node `n` every producer that may move there.
    fn absorb_producers(&mut self, n: usize) {
        // Absorbing changes the list of reads: go on until nothing more can be taken in.
        loop {
            let Slot::Group(group) = &self.groups[n] else { return };
            let home = |v: &ValueId| self.home[v.0 as usize].map(|p| self.place(p));
            let candidates: Vec<usize> = group.reads.iter().filter_map(home).collect();
            let taken = candidates.into_iter().any(|p| self.absorb(n, p));
            if !taken {
                return;
            }
        }
    }

    /// Joins the groups that make the parts of a concatenation, where they go over one space and read
    /// something in common.
    fn join_parts(&mut self, n: usize) {
        let node = &self.graph.nodes[n];
        if *node.op != CAT {
            return;
        }
        let mut makers: Vec<usize> =
            node.operands().filter_map(|v| self.home[v.0 as usize].map(|p| self.place(p))).collect();
        makers.sort_unstable_by_key(|&p| self.when[p]);
        makers.dedup();
        for two in makers.windows(2) {
            let (first, second) = (two[0], two[1]);
            let (Slot::Group(a), Slot::Group(b)) = (&self.groups[first], &self.groups[second]) else {
                continue;
            };
            // Nobody needs a result of the first before the second runs.
            let users = |v: &ValueId| self.users[v.0 as usize].iter().map(|&u| self.place(u));
            let later = a.writes.iter().flat_map(users).all(|u| self.when[u] > self.when[second]);
            if !later || self.phase(first) != self.phase(second) {
                continue;
            }
            let Some(both) = beside(self.limits, a, b) else { continue };
            self.into[first] = second;
            self.groups[first] = Slot::Gone;
            self.groups[second] = Slot::Group(Box::new(both));
        }
    }

    /// Moves the group at `p` into the group at `n`, which reads what it computes; false if that may not be.
    fn absorb(&mut self, n: usize, p: usize) -> bool {
        let (Slot::Group(producer), Slot::Group(consumer)) = (&self.groups[p], &self.groups[n]) else {
            return false;
        };
        // Nobody may need a result of the producer before node `n` runs.
        let Some(waiting) = self.waiting(n, p) else { return false };
        let leaves = |u: usize| {
            self.phase(u) != self.phase(n) && self.results(u).iter().any(|v| self.held[v.0 as usize])
        };
        if waiting.iter().chain([&p]).any(|&u| leaves(u)) {
            return false;
        }
        let later = |u: usize| self.when[self.place(u)] > self.when[n] || waiting.contains(&self.place(u));
        let kept =
            |w: ValueId| self.is_output[w.0 as usize] || self.users[w.0 as usize].iter().any(|&u| later(u));
        let Some(merged) = merge(self.graph, self.limits, producer, consumer, &kept) else { return false };
        self.into[p] = n;
        self.groups[p] = Slot::Gone;
        self.groups[n] = Slot::Group(Box::new(merged));
        for u in waiting {
            self.waited += 1;
            self.when[u] = (n, self.waited);
        }
        true
    }

    /// Nodes that run before node `n`, or wait for it, and must wait for it if the group at `p` runs only
    /// there: those who use its results, and those who use theirs. `None` if `n` itself is among these, or if
    /// too much would wait, or be held for it.
    fn waiting(&self, n: usize, p: usize) -> Option<Vec<usize>> {
        let mut waiting = Vec::new();
        let mut at = p;
        loop {
            for &v in self.results(at) {
                for u in self.users[v.0 as usize].iter().map(|&u| self.place(u)) {
                    if u == n && at != p {
                        return None;
                    }
                    if u != n && u != p && self.when[u].0 <= n && !waiting.contains(&u) {
                        // At once: a result may have thousands of users.
                        if waiting.len() == WAITING {
                            return None;
                        }
                        waiting.push(u);
                    }
                }
            }
            // In the order in which they run, results come after what they are made from.
            let next = waiting
                .iter()
                .copied()
                .filter(|&u| self.when[u] > self.when[at])
                .min_by_key(|&u| self.when[u]);
            match next {
                Some(u) => at = u,
                None => break,
            }
        }
        // Never delay kernels: it would extend large live ranges.
        let light = |u: usize| {
            matches!(self.groups[u], Slot::Group(_)) || matches!(self.graph.nodes[u].op.body, Body::View(_))
        };
        if !waiting.iter().all(|&u| light(u)) {
            return None;
        }
        waiting.sort_unstable_by_key(|&u| self.when[u]);
        // Delaying extends no live range that does not extend so far already.
        let held = |v: &ValueId| match self.home[v.0 as usize].map(|m| self.place(m)) {
            None => true,
            Some(m) => {
                let users = self.users[v.0 as usize].iter().map(|&u| self.place(u));
                let mut others = users.filter(|u| !waiting.contains(u));
                m == p || waiting.contains(&m) || others.any(|u| u == p || self.when[u] >= self.when[n])
            }
        };
        waiting.iter().all(|&u| self.operands(u).iter().all(held)).then_some(waiting)
    }

    /// Values that the group or node at `n` reads.
    fn operands(&self, n: usize) -> Vec<ValueId> {
        match &self.groups[n] {
            Slot::Group(group) => group.reads.clone(),
            _ => self.graph.nodes[n].operands().collect(),
        }
    }

    /// Values that the group or node at `n` computes.
    fn results(&self, n: usize) -> &[ValueId] {
        match &self.groups[n] {
            Slot::Group(group) => &group.writes,
            _ => &self.graph.nodes[n].outputs,
        }
    }

    /// The nodes in the order in which they run, each with that in whose place it does.
    fn order(&self) -> Vec<(usize, usize)> {
        let mut order: Vec<usize> = (0..self.graph.nodes.len()).collect();
        order.sort_by_key(|&n| self.when[n]);
        order.into_iter().map(|n| (n, self.when[n].0)).collect()
    }

    /// The phase in which the group or node at `n` runs.
    fn phase(&self, n: usize) -> Phase {
        self.graph.nodes[n].phase.max(self.graph.nodes[self.when[n].0].phase)
    }

    /// The place at which a node is computed now.
    fn place(&self, mut n: usize) -> usize {
        while self.into[n] != n {
            n = self.into[n];
        }
        n
    }
}

/// The graph in this order, with every group that has grown as one node at the place of its last member.
fn rebuild(mut graph: Graph, mut groups: Vec<Slot>, order: &[(usize, usize)]) -> Result<Graph> {
    let nodes = std::mem::take(&mut graph.nodes);
    for &(n, place) in order {
        // A node that waits for another phase belongs to it.
        let (node, phase) = (&nodes[n], nodes[n].phase.max(nodes[place].phase));
        let node = match std::mem::replace(&mut groups[n], Slot::Gone) {
            Slot::Gone => continue,
            Slot::Group(g) if g.label.len() > 1 => fused_node(&graph, *g, node.origin, phase)?,
            _ => Node { phase, ..node.clone() },
        };
        let id = NodeId(graph.nodes.len() as u32);
        for (i, v) in node.outputs.iter().enumerate() {
            graph.values[v.0 as usize].def = Def::Node(id, i as u32);
        }
        graph.nodes.push(node);
    }
    compact(graph)
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
            crate::graph::OutputRole::User | crate::graph::OutputRole::Gradients => {}
        }
    }
    graph.values = values;
    Ok(graph)
}
