//! Neighbouring parts of one product that go through the same operators, computed as one: queries and keys on
//! their way to rotary embeddings. `f(a)` and `f(b)` are the parts of `f(cat(a, b))`, and `a` and `b` are
//! parts of one value already. So one program reads both, forward and backward.
//!
//! *Exact*: each element is computed by the same operations from the same numbers.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::graph::{Builder, Graph, Node, ValueId};
use crate::ops::movement::cat::CAT;
use crate::ops::view::permute::PERMUTE;
use crate::ops::view::reshape::RESHAPE;
use crate::ops::view::slice::{Range, SLICE};
use crate::ops::view::split::SPLIT_WITH_SIZES;
use crate::ops::view::transpose::TRANSPOSE;
use crate::ops::{Body, OpCx};
use crate::shape::{Layout, Shape};
use crate::tensor::TensorType;
use std::collections::{HashMap, HashSet};

/// Two values that are neighbours in a third.
type Pair = (ValueId, ValueId);

/// Two nodes that become one.
struct Both {
    first: usize,
    second: usize,
    /// For each operand, the dimension in which the first's and the second's are neighbours; none if both
    /// have the same.
    operands: Vec<Option<usize>>,
    attrs: Attrs,
    /// The dimension in which the results are neighbours.
    dim: usize,
}

/// Joins such nodes after the divisions `splits` of products, given by their first results.
///
/// # Errors
/// Refusals of type rules: none for a legal graph.
pub(super) fn join(graph: Graph, splits: &HashSet<ValueId>) -> Result<Graph> {
    let mut search = Search::of(&graph, splits);
    (0..graph.nodes.len()).for_each(|at| search.node(at));
    let found = search.worth();
    if found.is_empty() {
        return Ok(graph);
    }
    let pairs: HashSet<Pair> = found
        .iter()
        .flat_map(|both| {
            let [one, two] = [both.first, both.second].map(|n| graph.nodes[n].inputs.clone());
            let joined = both.operands.iter().zip(one).zip(two).filter(|((dim, _), _)| dim.is_some());
            joined.filter_map(|((_, a), b)| a.zip(b)).collect::<Vec<_>>()
        })
        .collect();
    let gone: HashSet<usize> = found.iter().flat_map(|both| [both.first, both.second]).collect();
    let mut at_first: HashMap<usize, Both> =
        found.into_iter().map(|both| (both.first.min(both.second), both)).collect();
    let nodes = graph.nodes.clone();
    let mut b = Builder::extend(Graph { nodes: Vec::new(), ..graph });
    // The values that pairs are parts of.
    let mut wholes: HashMap<Pair, ValueId> = HashMap::new();
    for (at, node) in nodes.iter().enumerate() {
        (b.origin, b.phase) = (node.origin, node.phase);
        if node.outputs.first().is_some_and(|v| splits.contains(v)) {
            divide(&mut b, node, &pairs, &mut wholes)?;
            continue;
        }
        let Some(both) = at_first.remove(&at) else {
            if !gone.contains(&at) {
                b.graph_mut().nodes.push(node.clone());
            }
            continue;
        };
        let (first, second) = (&nodes[both.first], &nodes[both.second]);
        let operand = |((dim, a), c): ((&Option<usize>, &Option<ValueId>), &Option<ValueId>)| match dim {
            Some(_) => a.zip(*c).and_then(|pair| wholes.get(&pair).copied()),
            None => *a,
        };
        let operands: Vec<_> =
            both.operands.iter().zip(&first.inputs).zip(&second.inputs).map(operand).collect();
        let whole = b.apply(first.op, &operands, both.attrs)?[0];
        let pair = (first.outputs[0], second.outputs[0]);
        wholes.insert(pair, whole);
        split(&mut b, whole, both.dim, &[pair.0, pair.1]);
    }
    let mut graph = b.finish();
    graph.sort_nodes(|n, _| n);
    Ok(graph)
}

/// Divides a product's result into pairs that stay joined and other parts, then pairs.
fn divide(
    b: &mut Builder,
    node: &Node,
    pairs: &HashSet<Pair>,
    wholes: &mut HashMap<Pair, ValueId>,
) -> Result<()> {
    let parts = &node.outputs;
    let dim = b.ty(parts[0]).shape.rank() - 1;
    let size = |b: &Builder, v: ValueId| b.ty(v).shape[dim];
    let Some(whole) = node.operands().next() else { return Ok(()) };
    let (mut at, mut groups): (usize, Vec<&[ValueId]>) = (0, Vec::new());
    while at < parts.len() {
        let count = if at + 1 < parts.len() && pairs.contains(&(parts[at], parts[at + 1])) { 2 } else { 1 };
        groups.push(&parts[at..at + count]);
        at += count;
    }
    let mut made = Vec::with_capacity(groups.len());
    for group in &groups {
        made.push(match group {
            [one] => *one,
            _ if groups.len() == 1 => whole,
            _ => {
                let mut ty = b.ty(group[0]).clone();
                let mut shape = ty.shape.to_vec();
                shape[dim] = group.iter().map(|&v| size(b, v)).sum();
                ty.shape = shape.into();
                let value = ValueId(b.graph().values.len() as u32);
                let def = b.graph().value(group[0]).def;
                b.graph_mut().values.push(crate::graph::Value { ty, def });
                value
            }
        });
    }
    if groups.len() > 1 {
        split(b, whole, dim, &made);
    }
    for (group, &value) in groups.iter().zip(&made).filter(|(g, _)| g.len() == 2) {
        split(b, value, dim, group);
        wholes.insert((group[0], group[1]), value);
    }
    Ok(())
}

/// Appends a division of a value into given parts.
fn split(b: &mut Builder, whole: ValueId, dim: usize, parts: &[ValueId]) {
    let sizes: Vec<i64> = parts.iter().map(|&v| b.ty(v).shape[dim] as i64).collect();
    let attrs = Attrs::new().with("split_sizes", sizes).with("dim", dim as i64);
    let (origin, phase) = (b.origin, b.phase);
    let (op, inputs, outputs) = (&SPLIT_WITH_SIZES, vec![Some(whole)], parts.to_vec());
    b.graph_mut().nodes.push(Node { op, inputs, attrs, outputs, origin, phase });
}

struct Search<'a> {
    graph: &'a Graph,
    users: Vec<Vec<usize>>,
    /// Neighbours of values that are parts of a product: the one before and the one after.
    roots: HashMap<ValueId, [Option<ValueId>; 2]>,
    /// Neighbours that have been decided on, with the dimension.
    pairs: HashMap<Pair, usize>,
    /// The one that a value is a neighbour of, and whether that is the second of the two.
    partner: HashMap<ValueId, (ValueId, bool)>,
    taken: HashSet<usize>,
    found: Vec<Both>,
}

impl<'a> Search<'a> {
    fn of(graph: &'a Graph, splits: &HashSet<ValueId>) -> Search<'a> {
        let mut users = vec![Vec::new(); graph.values.len()];
        for (n, node) in graph.nodes.iter().enumerate() {
            node.operands().for_each(|v| users[v.0 as usize].push(n));
        }
        let mut roots: HashMap<ValueId, [Option<ValueId>; 2]> = HashMap::new();
        for node in graph.nodes.iter().filter(|n| n.outputs.first().is_some_and(|v| splits.contains(v))) {
            for two in node.outputs.windows(2) {
                roots.entry(two[0]).or_default()[1] = Some(two[1]);
                roots.entry(two[1]).or_default()[0] = Some(two[0]);
            }
        }
        let (pairs, partner) = (HashMap::new(), HashMap::new());
        Search { graph, users, roots, pairs, partner, taken: HashSet::new(), found: Vec::new() }
    }

    /// Looks for a later node that does the same to neighbours of a node's operands.
    fn node(&mut self, at: usize) {
        if self.taken.contains(&at) || self.graph.nodes[at].outputs.len() != 1 {
            return;
        }
        for v in self.graph.nodes[at].operands() {
            let decided = self.partner.get(&v).copied();
            let [before, after] = self.roots.get(&v).copied().unwrap_or_default();
            let free = |w: &ValueId| !self.partner.contains_key(w);
            let roots = [after.filter(free).map(|w| (w, true)), before.filter(free).map(|w| (w, false))];
            let roots = if decided.is_some() { [None, None] } else { roots };
            for (other, is_second) in decided.into_iter().chain(roots.into_iter().flatten()) {
                let users = self.users[other.0 as usize].clone();
                for user in users.into_iter().filter(|&u| u > at && !self.taken.contains(&u)) {
                    let (first, second) = if is_second { (at, user) } else { (user, at) };
                    let new = decided.is_none().then_some(if is_second { (v, other) } else { (other, v) });
                    if let Some(both) = self.both(first, second, new) {
                        self.decide(both, new);
                        return;
                    }
                }
            }
        }
    }

    fn decide(&mut self, both: Both, new: Option<Pair>) {
        let outputs = [both.first, both.second].map(|n| self.graph.nodes[n].outputs[0]);
        let rank = |v: ValueId| self.graph.ty(v).shape.rank();
        let root = new.map(|pair| (pair, rank(pair.0) - 1));
        for (pair, dim) in root.into_iter().chain([((outputs[0], outputs[1]), both.dim)]) {
            self.pairs.insert(pair, dim);
            self.partner.insert(pair.0, (pair.1, true));
            self.partner.insert(pair.1, (pair.0, false));
        }
        self.taken.extend([both.first, both.second]);
        self.found.push(both);
    }

    /// Two nodes as one, if they do the same to neighbours; `new` are neighbours that are not decided on yet.
    fn both(&self, first: usize, second: usize, new: Option<Pair>) -> Option<Both> {
        let (one, two) = (&self.graph.nodes[first], &self.graph.nodes[second]);
        let alike = one.op == two.op && one.inputs.len() == two.inputs.len() && one.phase == two.phase;
        if !alike || two.outputs.len() != 1 || self.is_output(one) || self.is_output(two) {
            return None;
        }
        let mut operands = Vec::with_capacity(one.inputs.len());
        for pair in one.inputs.iter().zip(&two.inputs) {
            operands.push(match pair {
                (a, b) if a == b => None,
                (&Some(a), &Some(b)) if new == Some((a, b)) => Some(self.graph.ty(a).shape.rank() - 1),
                (&Some(a), &Some(b)) => Some(*self.pairs.get(&(a, b))?),
                _ => return None,
            });
        }
        let (attrs, dim) = self.result(one, two, &operands)?;
        // The operator's own rule has the last word.
        let whole = |(i, v): (usize, &Option<ValueId>)| {
            let ty = self.graph.ty((*v)?);
            Some(match operands[i] {
                Some(dim) => with(ty, dim, self.graph.ty(two.inputs[i]?).shape[dim]),
                None => ty.clone(),
            })
        };
        let types: Vec<Option<TensorType>> = one.inputs.iter().enumerate().map(whole).collect();
        let cx = OpCx { inputs: types.iter().map(Option::as_ref).collect(), attrs: &attrs };
        let [own, others] = [one, two].map(|n| self.graph.ty(n.outputs[0]));
        let made = (one.op.infer)(&cx).ok()?;
        let whole = with(own, dim, others.shape[dim]);
        (whole == with(others, dim, own.shape[dim]) && made == [whole]).then_some(Both {
            first,
            second,
            operands,
            attrs,
            dim,
        })
    }

    fn is_output(&self, node: &Node) -> bool {
        self.graph.outputs.iter().any(|o| node.outputs.contains(&o.value))
    }

    /// Attributes of two nodes as one, and the dimension in which their results are neighbours.
    fn result(&self, one: &Node, two: &Node, operands: &[Option<usize>]) -> Option<(Attrs, usize)> {
        let shape = |n: &Node| self.graph.ty(n.outputs[0]).shape.clone();
        let rank = shape(one).rank();
        let dim = (*operands.first()?)?;
        if *one.op == RESHAPE {
            let from = [one, two].map(|n| self.graph.cx(n).shape(0).ok().cloned());
            let [Some(a), Some(b)] = from else { return None };
            let (to, other) = (shape(one), shape(two));
            let at = reshaped(&a, &b, dim, &to, &other)?;
            let mut whole = to.to_vec();
            whole[at] += other[at];
            return Some((Attrs::new().with("shape", Shape::new(&whole).to_ints()), at));
        }
        if one.attrs.to_string() != two.attrs.to_string() {
            return None;
        }
        let cx = self.graph.cx(one);
        let out = match one.op.body {
            Body::View(view) if *one.op == PERMUTE || *one.op == TRANSPOSE => {
                // Strides that tell which dimension each is of.
                let shape = cx.shape(0).ok()?.clone();
                let strides = (0..shape.rank() as isize).collect();
                let seen = (view.layout)(&cx, &Layout { shape, strides, offset: 0 }, 0).ok()??;
                seen.strides.iter().position(|&s| s == dim as isize)?
            }
            Body::View(_) if *one.op == SLICE => {
                Some(dim).filter(|&d| Range::of(&cx).is_ok_and(|r| r.dim != d))?
            }
            Body::Copies(_) if *one.op == CAT => {
                let all = operands.iter().all(|&d| d == Some(dim));
                let along = if cx.opt_int("dim").ok()?.is_some() { cx.dim("dim", rank).ok()? } else { 0 };
                Some(dim).filter(|&d| all && along != d)?
            }
            Body::Pointwise(of) if !of(&cx).ok()?.iter().any(super::super::demand::counts) => {
                // Dimensions are counted from the last.
                let mut back = None;
                for (i, d) in operands.iter().enumerate() {
                    let Some(d) = d else { continue };
                    let own = cx.shape(i).ok()?.rank() - d;
                    if *back.get_or_insert(own) != own {
                        return None;
                    }
                }
                rank.checked_sub(back?)?
            }
            _ => return None,
        };
        Some((one.attrs.clone(), out))
    }

    /// The joined nodes that compute something, and those that lead to them: views alone gain nothing.
    fn worth(self) -> Vec<Both> {
        let mut wanted: HashSet<Pair> = HashSet::new();
        let mut kept = Vec::new();
        for both in self.found.into_iter().rev() {
            let (one, two) = (&self.graph.nodes[both.first], &self.graph.nodes[both.second]);
            let computes = matches!(one.op.body, Body::Pointwise(_));
            if !computes && !wanted.contains(&(one.outputs[0], two.outputs[0])) {
                continue;
            }
            let operands = one.inputs.iter().zip(&two.inputs).filter(|(a, b)| a != b);
            wanted.extend(operands.filter_map(|(a, b)| a.zip(*b)));
            kept.push(both);
        }
        kept.reverse();
        kept
    }
}

/// A type with more indices of a dimension.
fn with(ty: &TensorType, dim: usize, more: usize) -> TensorType {
    let mut shape = ty.shape.to_vec();
    shape[dim] += more;
    TensorType::new(ty.dtype, shape)
}

/// The dimension of the shapes `to` and `other` in which tensors of the shapes `a` and `b`, neighbours in
/// dimension `dim`, are neighbours under these.
fn reshaped(a: &Shape, b: &Shape, dim: usize, to: &Shape, other: &Shape) -> Option<usize> {
    let product = |s: &[usize]| s.iter().product::<usize>();
    let at = to.iter().zip(other.iter()).position(|(x, y)| x != y);
    // Equal shapes differ nowhere: theirs is the dimension with as many elements before and after it.
    let fits = |at: usize| {
        to.len() == other.len()
            && product(&to[..at]) == product(&a[..dim])
            && to[..at] == other[..at]
            && to[at + 1..] == other[at + 1..]
            && to[at] * product(&to[at + 1..]) == a[dim] * product(&a[dim + 1..])
            && other[at] * product(&other[at + 1..]) == b[dim] * product(&b[dim + 1..])
    };
    match at {
        Some(at) => Some(at).filter(|&at| fits(at)),
        None => (0..to.len()).find(|&at| to[at] > 1 && fits(at)),
    }
}
