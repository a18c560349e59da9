//! Writes a graph whose backward pass computes the chosen results a second time.

use super::choice::Choice;
use crate::graph::{Def, Graph, Node, Phase, ValueId};
use crate::ops::Body;
use crate::pass::simplify::remove_dead;
use std::collections::HashMap;

/// The graph, and how many results are computed a second time.
pub(super) fn write(graph: &Graph, choice: &Choice) -> (Graph, usize) {
    let mut again = vec![Vec::new(); graph.nodes.len()];
    choice.again().for_each(|(at, node)| again[at].push(node));
    let mut w = Writer { old: graph, choice, out: graph.clone(), second: HashMap::new(), results: 0 };
    w.out.nodes.clear();
    for (at, node) in graph.nodes.iter().enumerate() {
        for node in &again[at] {
            w.again(node);
        }
        let view = matches!(node.op.body, Body::View(_));
        if node.phase == Phase::Forward || !node.operands().any(|v| choice.recomputed(v)) {
            w.out.nodes.push(node.clone());
        } else if !view {
            let node = w.reading_second(node.clone());
            w.out.nodes.push(node);
        }
        // A view of what is recomputed is made where it is used.
    }
    let results = w.results;
    (remove_dead(w.out).0, results)
}

struct Writer<'a> {
    old: &'a Graph,
    choice: &'a Choice,
    out: Graph,
    /// Second copies, and views of them, by the value they stand for.
    second: HashMap<ValueId, ValueId>,
    results: usize,
}

impl Writer<'_> {
    /// Appends what makes results a second time.
    fn again(&mut self, node: &Node) {
        self.results += node.outputs.iter().filter(|v| self.choice.recomputed(**v)).count();
        let mut new = self.reading_second(node.clone());
        new.outputs.iter_mut().for_each(|v| *v = self.stand_in(*v));
        self.out.nodes.push(new);
    }

    /// A node that reads second copies of what is recomputed.
    fn reading_second(&mut self, mut node: Node) -> Node {
        for v in node.inputs.iter_mut().flatten().filter(|v| self.choice.recomputed(**v)) {
            *v = self.second(*v);
        }
        node
    }

    /// The second copy of a value or of what it is a view of, under the same views.
    fn second(&mut self, v: ValueId) -> ValueId {
        let (mut views, mut at) = (Vec::new(), v);
        while !self.second.contains_key(&at) {
            let Def::Node(n, _) = self.old.value(at).def else { return v };
            let Some(x) = self.old.node(n).operands().next() else { return v };
            views.push(n);
            at = x;
        }
        for n in views.into_iter().rev() {
            let mut view = Node { phase: Phase::Backward, ..self.old.node(n).clone() };
            view.inputs.iter_mut().flatten().take(1).for_each(|x| *x = self.second[x]);
            view.outputs.iter_mut().for_each(|o| *o = self.stand_in(*o));
            self.out.nodes.push(view);
        }
        self.second[&v]
    }

    /// A new value that stands for another.
    fn stand_in(&mut self, v: ValueId) -> ValueId {
        let new = ValueId(self.out.values.len() as u32);
        self.out.values.push(self.old.value(v).clone());
        self.second.insert(v, new);
        new
    }
}
