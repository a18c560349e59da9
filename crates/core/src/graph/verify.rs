//! The verifier: what makes a graph legal, as rules that can be run. Each is independent of the others and
//! tested by a graph that breaks it alone. Passes may assume every rule of the graphs they get and keep it in
//! those they make.
//!
//! Time is linear in the graph's size, apart from sorting names.

use super::{Def, Graph, InputRole, Node, OutputRole, ValueId};
use crate::attr::Attr;
use crate::diagnostic::{Code, Error, Result};
use crate::dtype::DType;
use crate::ops::Registry;
use crate::ops::schema::Schema;
use crate::tensor::TensorType;
use std::collections::{HashMap, HashSet};
use std::fmt;

/// A rule of legal graphs. The number never changes its meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// Every value has exactly one definition, which is the one it names: an input or an output of a node.
    V01Definition,
    /// A node uses only inputs and results of nodes before it.
    V02Order,
    /// Every node's origin exists.
    V03Origin,
    /// Outputs name values that exist; what they change or differentiate is an input of the same type.
    V04Outputs,
    /// An input has at most one gradient and one new content.
    V05Single,
    /// Types have sizes that memory can hold.
    V06Size,
    /// The inputs of a node fit a schema of its operator, where it has one: their number, and which may be
    /// absent. An operator that draws random numbers takes the key after them.
    V07Arity,
    /// Attributes have names that the operator knows (`OpDef::attr_names`). One without schemas, a gradient,
    /// may have those of any other too: it takes over the forward operator's.
    V08Attributes,
    /// The operator's rule accepts the inputs' types, and infers the types that the results have.
    V09Types,
    /// Row programs among the attributes are legal.
    V10Programs,
    /// Names of state (parameters with their aliases, buffers, constants, state) are unique and not empty.
    V11Names,
    /// There is at most one key of random numbers, an `i64[2]`.
    V12Key,
    /// A node uses only values of its own phase or an earlier one.
    V13Phases,
    /// In a graph of several ranks, state and results of the run are the same on all of them, or declared as
    /// split ([`crate::train::states`]).
    V14Ranks,
}

impl fmt::Display for Rule {
    /// `V01 definition`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("{self:?}");
        let (number, word) = name.split_at(3);
        write!(f, "{number} {}", word.to_lowercase())
    }
}

/// A rule broken, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// A `Graph` error for what breaks it, with the operator and its origin where there is one.
    pub error: Error,
}

/// Checks every rule.
///
/// # Errors
/// `Graph`: the first violation.
pub fn verify(graph: &Graph) -> Result<()> {
    match violations(graph).into_iter().next() {
        Some(v) => Err(v.error),
        None => Ok(()),
    }
}

/// Everything that is wrong with a graph; empty if nothing is. If values or origins are dangling (`V01` to
/// `V04`), the rest cannot be looked at.
pub fn violations(graph: &Graph) -> Vec<Violation> {
    let mut check = Check { graph, found: Vec::new() };
    check.definitions();
    check.order();
    check.origins();
    check.outputs();
    if check.found.is_empty() {
        check.sizes();
        check.nodes();
        check.names();
        check.key();
        check.phases();
    }
    check.found
}

struct Check<'a> {
    graph: &'a Graph,
    found: Vec<Violation>,
}

impl Check<'_> {
    fn broken(&mut self, rule: Rule, what: impl fmt::Display) {
        let error = Error::new(Code::Graph, format!("{rule}: {what}"));
        self.found.push(Violation { rule, error });
    }

    fn broken_at(&mut self, rule: Rule, node: &Node, what: impl fmt::Display) {
        self.broken(rule, what);
        let mut violation = self.found.pop().expect("just pushed");
        violation.error = violation.error.in_op(node.op.name);
        if let Some(origin) = self.graph.origins.get(node.origin.0 as usize) {
            violation.error = violation.error.at(origin);
        }
        self.found.push(violation);
    }

    fn exists(&self, v: ValueId) -> bool {
        (v.0 as usize) < self.graph.values.len()
    }

    fn definitions(&mut self) {
        let graph = self.graph;
        let mut times = vec![0usize; graph.values.len()];
        let mut define = |this: &mut Self, v: ValueId, def: Def| match graph.values.get(v.0 as usize) {
            None => this.broken(Rule::V01Definition, format_args!("{v} is defined but not among the values")),
            Some(value) => {
                times[v.0 as usize] += 1;
                if value.def != def {
                    this.broken(
                        Rule::V01Definition,
                        format_args!("{v} says it is {:?}, but is {def:?}", value.def),
                    );
                }
            }
        };
        for (i, input) in graph.inputs.iter().enumerate() {
            define(self, input.value, Def::Input(i as u32));
        }
        for (n, node) in graph.nodes.iter().enumerate() {
            for (i, &v) in node.outputs.iter().enumerate() {
                define(self, v, Def::Node(super::NodeId(n as u32), i as u32));
            }
        }
        // A second definition is found above, since the value can name but one.
        for (i, _) in times.iter().enumerate().filter(|(_, n)| **n == 0) {
            self.broken(Rule::V01Definition, format_args!("%{i} has no definition"));
        }
    }

    fn order(&mut self) {
        for (n, node) in self.graph.nodes.iter().enumerate() {
            for v in node.operands() {
                let early = match self.graph.values.get(v.0 as usize).map(|v| v.def) {
                    Some(Def::Input(_)) => true,
                    Some(Def::Node(by, _)) => (by.0 as usize) < n,
                    None => false,
                };
                if !early {
                    self.broken_at(
                        Rule::V02Order,
                        node,
                        format_args!("node {n} uses {v} before it is defined"),
                    );
                }
            }
        }
    }

    fn origins(&mut self) {
        for (n, node) in self.graph.nodes.iter().enumerate() {
            if node.origin.0 as usize >= self.graph.origins.len() {
                self.broken_at(Rule::V03Origin, node, format_args!("node {n} has origin @{}", node.origin.0));
            }
        }
    }

    fn outputs(&mut self) {
        let (mut changed, mut differentiated) = (HashSet::new(), HashSet::new());
        for output in &self.graph.outputs {
            let (name, v) = (&output.name, output.value);
            if !self.exists(v) {
                self.broken(Rule::V04Outputs, format_args!("output {name} is {v}, which is not there"));
                continue;
            }
            let (target, what, seen) = match output.role {
                OutputRole::User | OutputRole::Gradients => continue,
                OutputRole::Mutation(t) => (t, "the new content", &mut changed),
                OutputRole::Gradient(t) => (t, "the gradient", &mut differentiated),
            };
            let again = !seen.insert(target);
            if !self.exists(target) || self.graph.input_index(target).is_none() {
                self.broken(
                    Rule::V04Outputs,
                    format_args!("{name} is {what} of {target}, which is no input"),
                );
            } else if self.graph.ty(target) != self.graph.ty(v) {
                let (have, want) = (self.graph.ty(v), self.graph.ty(target));
                self.broken(Rule::V04Outputs, format_args!("{name} is {what} of a {want}, but is a {have}"));
            }
            if again {
                self.broken(Rule::V05Single, format_args!("{name} is {what} of {target} once more"));
            }
        }
    }

    fn sizes(&mut self) {
        for (i, value) in self.graph.values.iter().enumerate() {
            if value.ty.shape.checked_numel().is_none() {
                self.broken(
                    Rule::V06Size,
                    format_args!("%{i} is {}, larger than memory can be", value.ty.shape),
                );
            }
        }
    }

    fn nodes(&mut self) {
        let mut known: HashMap<&str, (Vec<Schema>, HashSet<&str>)> = HashMap::new();
        for node in &self.graph.nodes {
            let (schemas, attr_names) = known.entry(node.op.name).or_insert_with(|| {
                let schemas = node.op.schemas.iter().filter_map(|s| Schema::parse(s).ok());
                (schemas.collect(), node.op.attr_names())
            });
            if !schemas.is_empty() && !schemas.iter().any(|s| self.fits(s, node)) {
                let given = node.inputs.len();
                self.broken_at(Rule::V07Arity, node, format_args!("no schema takes these {given} inputs"));
            }
            for (name, attr) in node.attrs.iter() {
                let taken_over = schemas.is_empty() && Registry::standard().attr_name(name).is_some();
                if !attr_names.contains(name) && !taken_over {
                    self.broken_at(Rule::V08Attributes, node, format_args!("it has no `{name}`"));
                }
                if let Attr::Program(program) = attr
                    && let Err(what) = program.classes()
                {
                    self.broken_at(Rule::V10Programs, node, what);
                }
            }
            self.types(node);
        }
    }

    /// True if a schema takes the node's inputs.
    fn fits(&self, schema: &Schema, node: &Node) -> bool {
        let is_key = |v: &Option<ValueId>| {
            v.and_then(|v| self.graph.input_index(v))
                .is_some_and(|i| self.graph.inputs[i].role == InputRole::Rng)
        };
        // The source of random numbers itself has the key in its schema.
        let keyed = node.inputs.split_last().filter(|(last, _)| is_key(last));
        schema.accepts(&node.inputs) || keyed.is_some_and(|(_, rest)| schema.accepts(rest))
    }

    fn types(&mut self, node: &Node) {
        match (node.op.infer)(&self.graph.cx(node)) {
            Err(e) => self.broken_at(Rule::V09Types, node, e.message),
            Ok(types) => {
                let stored: Vec<&TensorType> = node.outputs.iter().map(|&v| self.graph.ty(v)).collect();
                if !types.iter().eq(stored.iter().copied()) {
                    self.broken_at(
                        Rule::V09Types,
                        node,
                        format_args!("results are {stored:?}, not {types:?}"),
                    );
                }
            }
        }
    }

    fn names(&mut self) {
        let mut seen = HashSet::new();
        for input in &self.graph.inputs {
            let aliases = match &input.role {
                InputRole::User | InputRole::Rng => continue,
                InputRole::Parameter { aliases, .. } => &aliases[..],
                _ => &[],
            };
            for name in std::iter::once(&input.name).chain(aliases) {
                if name.is_empty() {
                    self.broken(Rule::V11Names, format_args!("{} has no name", input.value));
                } else if !seen.insert(name) {
                    self.broken(Rule::V11Names, format_args!("two inputs are named {name}"));
                }
            }
        }
    }

    fn key(&mut self) {
        let mut keys = 0;
        for input in self.graph.inputs.iter().filter(|i| i.role == InputRole::Rng) {
            keys += 1;
            let ty = self.graph.ty(input.value);
            if keys > 1 {
                self.broken(Rule::V12Key, format_args!("{} is a second key", input.value));
            }
            if *ty != TensorType::new(DType::I64, [2]) {
                self.broken(Rule::V12Key, format_args!("the key is {ty}, not i64[2]"));
            }
        }
    }

    fn phases(&mut self) {
        for node in &self.graph.nodes {
            for v in node.operands() {
                if let Some((maker, _)) = self.graph.producer(v)
                    && maker.phase > node.phase
                {
                    self.broken_at(
                        Rule::V13Phases,
                        node,
                        format_args!("a {} node uses {v} of the {} phase", node.phase, maker.phase),
                    );
                }
            }
        }
    }
}
