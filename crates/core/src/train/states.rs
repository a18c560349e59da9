//! States of values on an axis of ranks, and the rule that keeps ranks from diverging (V14).
//!
//! Every value of a graph that several ranks run is the *same* on all of them, a known part of one that is
//! *split* among them, or each rank's *own*. Batches and keys of random numbers are own, and so is what is
//! computed from them. A sum over ranks takes own values: the same value would count once for each rank. What
//! a run keeps, and what the host takes for the run's, must be the same, or split where that is declared.
//!
//! The analysis is conservative: a value of which it does not know that it is the same, or split, is own. (Of
//! parts, sums are own: they are partial.)

use super::key::{Kept, StateKey};
use crate::diagnostic::{Code, Error, Result};
use crate::graph::verify::{Rule, Violation};
use crate::graph::{Graph, Input, InputRole, Node, Origin, OutputRole, ValueId};
use crate::ops::Body;
use crate::ops::collective::{
    all_gather::ALL_GATHER, all_reduce::ALL_REDUCE, broadcast::BROADCAST, ranks,
    reduce_scatter::REDUCE_SCATTER, shard::SHARD, sum_lanes::SUM_LANES,
};
use crate::row::Instr;
use std::fmt;

/// State of a value on an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum State {
    /// The same on all ranks.
    Same,
    /// A rank has a known part of it.
    Split,
    /// Each rank has its own.
    Own,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Same => "the same on all ranks",
            State::Split => "split among the ranks",
            State::Own => "each rank's own",
        })
    }
}

/// States that roles alone do not tell.
#[derive(Clone, Copy, Debug)]
pub struct Declared<'a> {
    /// Names of inputs that are split, and stay so where they are written.
    pub split: &'a [&'a str],
    /// The key of random numbers.
    pub key: State,
    /// Sums of gradients over batches, as they are given.
    pub sums: State,
    /// Gradients, and their sums, as they are returned.
    pub gradients: State,
    /// Other results of the user's.
    pub results: State,
}

impl Default for Declared<'_> {
    /// A whole step: batches and keys are own, all that it returns and keeps is the same.
    fn default() -> Self {
        Declared {
            split: &[],
            key: State::Own,
            sums: State::Own,
            gradients: State::Same,
            results: State::Same,
        }
    }
}

/// True for a sum of gradients.
fn is_sum(input: &Input) -> bool {
    let key = StateKey::of(input);
    let kept = |k: &Kept| matches!(k, Kept::Gradients | Kept::GradientRows | Kept::Pending(_));
    matches!(key, Some(StateKey::Part(_, k) | StateKey::Bucket(_, k)) if kept(&k))
}

impl Declared<'_> {
    /// The state of an input.
    fn input(&self, input: &Input) -> State {
        match input.role {
            _ if self.split.contains(&input.name.as_str()) => State::Split,
            InputRole::User => State::Own,
            InputRole::Rng => self.key,
            InputRole::State if is_sum(input) => self.sums,
            _ => State::Same,
        }
    }
}

/// The states of all values, by [`ValueId`], and what breaks the rule.
struct Walk<'a> {
    graph: &'a Graph,
    states: Vec<State>,
    found: Vec<Violation>,
}

/// The states of all values.
pub fn states(graph: &Graph, declared: &Declared) -> Vec<State> {
    walk(graph, declared).states
}

/// Checks rule V14 of a graph that several ranks run; `declared`: what is known of its inputs and asked of
/// its outputs.
///
/// # Errors
/// `Graph`: the first violation, with the operator and the model's line that make it.
pub fn on_ranks(graph: &Graph, declared: &Declared) -> Result<()> {
    match violations(graph, declared).into_iter().next() {
        Some(v) => Err(v.error),
        None => Ok(()),
    }
}

/// All that breaks rule V14; empty if nothing does. The graph keeps the other rules.
pub fn violations(graph: &Graph, declared: &Declared) -> Vec<Violation> {
    let mut walk = walk(graph, declared);
    walk.outputs(declared);
    walk.found
}

fn walk<'a>(graph: &'a Graph, declared: &Declared) -> Walk<'a> {
    let mut walk = Walk { graph, states: vec![State::Same; graph.values.len()], found: Vec::new() };
    for input in &graph.inputs {
        walk.states[input.value.0 as usize] = declared.input(input);
    }
    // Collectives of one graph are of one world.
    let world = graph.nodes.iter().find(|n| matches!(n.op.body, Body::Collective(_)));
    let world = world.map_or(1, |n| ranks(&n.attrs));
    for node in &graph.nodes {
        let state = match node.op.body {
            Body::Collective(_) => {
                let own = ranks(&node.attrs);
                if own != world {
                    walk.broken(node, format!("it is of {own} ranks, others of this graph are of {world}"));
                }
                walk.collective(node)
            }
            _ => walk.computed(node),
        };
        node.outputs.iter().for_each(|v| walk.states[v.0 as usize] = state);
    }
    walk
}

impl Walk<'_> {
    fn state(&self, v: ValueId) -> State {
        self.states[v.0 as usize]
    }

    fn broken(&mut self, node: &Node, what: String) {
        let error = Error::new(Code::Graph, format!("{}: {what}", Rule::V14Ranks)).in_op(node.op.name);
        self.found.push(Violation { rule: Rule::V14Ranks, error: error.at(self.graph.origin(node)) });
    }

    /// The state of what a rank computes by itself.
    fn computed(&self, node: &Node) -> State {
        let most = node.operands().map(|v| self.state(v)).max().unwrap_or(State::Same);
        match most {
            State::Split if !by_element(self.graph, node) => State::Own,
            most => most,
        }
    }

    /// The state of a collective's results; refuses operands that it must not have.
    fn collective(&mut self, node: &Node) -> State {
        let (takes, gives): (&[State], State) = match node.op {
            op if *op == ALL_REDUCE || *op == SUM_LANES => (&[State::Own], State::Same),
            op if *op == REDUCE_SCATTER => (&[State::Own], State::Split),
            op if *op == ALL_GATHER => (&[State::Split, State::Own], State::Same),
            op if *op == BROADCAST => (&[State::Same, State::Own], State::Same),
            op if *op == SHARD => (&[State::Same], State::Split),
            // Parts of other ranks, in an order of their own.
            _ => (&[State::Split, State::Own], State::Own),
        };
        for v in node.operands() {
            let given = self.state(v);
            if takes.contains(&given) {
                continue;
            }
            let why = match (given, gives) {
                (State::Same, State::Same | State::Split) if takes == [State::Own] => {
                    "it is summed twice: every rank adds the same, and the sum is a multiple of it"
                }
                (State::Same, _) => "every rank has all of it already",
                (State::Split, _) if takes == [State::Own] => {
                    "parts of other elements would be added to each other: gather them"
                }
                _ => "parts of what differs from rank to rank are parts of no whole",
            };
            self.broken(node, format!("its operand {} is {given}: {why}", self.named(v)));
        }
        gives
    }

    /// A value in words: an input by its name, others by what makes them.
    fn named(&self, v: ValueId) -> String {
        match self.graph.producer(v) {
            Some((node, _)) => format!("{v} of {}", node.op.name),
            None => self
                .graph
                .input_index(v)
                .map_or(v.to_string(), |i| format!("`{}`", self.graph.inputs[i].name)),
        }
    }

    fn outputs(&mut self, declared: &Declared) {
        for o in &self.graph.outputs {
            let have = self.state(o.value);
            let (want, what) = match o.role {
                OutputRole::User => {
                    (declared.results, "is a result that the host takes for the run's".into())
                }
                OutputRole::Gradient(_) | OutputRole::Gradients => {
                    (declared.gradients, "is a gradient that the update takes for the run's".into())
                }
                OutputRole::Mutation(target) => {
                    let input = self.graph.input_index(target).map(|i| &self.graph.inputs[i]);
                    match input {
                        Some(i) if is_sum(i) => {
                            (declared.gradients, "is a sum that the update takes for the run's".into())
                        }
                        Some(i) if declared.split.contains(&i.name.as_str()) => {
                            (State::Split, "is kept in parts by the ranks".into())
                        }
                        _ => (State::Same, format!("is kept from step to step, as {}", kind(input))),
                    }
                }
            };
            if have == want || want == State::Own {
                continue;
            }
            let message = format!("`{}` {what}: it must be {want}, and is {have}", o.name);
            match self.cause(o.value, have).cloned() {
                Some(node) => self.broken(&node, message),
                None => {
                    let error = Error::new(Code::Graph, format!("{}: {message}", Rule::V14Ranks));
                    self.found.push(Violation { rule: Rule::V14Ranks, error });
                }
            }
        }
    }

    /// The node to name for a value: the nearest before it that has a line of the model.
    fn cause(&self, mut v: ValueId, have: State) -> Option<&'_ Node> {
        let (first, _) = self.graph.producer(v)?;
        loop {
            let Some((node, _)) = self.graph.producer(v) else { return Some(first) };
            if *self.graph.origin(node) != Origin::default() {
                return Some(node);
            }
            match node.operands().find(|w| self.state(*w) == have).or_else(|| node.operands().next()) {
                Some(w) => v = w,
                None => return Some(first),
            }
        }
    }
}

/// The kind of state in words.
fn kind(input: Option<&Input>) -> &'static str {
    match input.map(|i| &i.role) {
        Some(InputRole::Parameter { .. }) => "a parameter",
        Some(InputRole::Buffer { .. }) => "a buffer",
        _ => "state",
    }
}

/// True if a node computes each element, or copies it, without looking at another.
fn by_element(graph: &Graph, node: &Node) -> bool {
    let reduces = |i: &Instr| matches!(i, Instr::Reduce(..) | Instr::Columns(..));
    match node.op.body {
        Body::Pointwise(_) => true,
        Body::Rows(f) => {
            let types: Vec<_> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
            f(&graph.cx(node), &types).is_ok_and(|p| !p.body.iter().any(reduces))
        }
        _ => false,
    }
}
