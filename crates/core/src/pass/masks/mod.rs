//! Random masks as their means, as dropout is the identity: stochastic depth multiplies a branch by a mask of
//! mean 1. Two programs draw different numbers; with the means they compute the same.
//!
//! A mask is drawn by `bernoulli`, or from uniform numbers by a comparison with a number or by
//! `floor(p + u)`. Its mean is its probability, which takes the mask's place in products, in `where` and in
//! `masked_fill`. Numbers on which anything else depends, such as an order sorted by them, stay random.
//!
//! A product with a mask counts it once: the square of a mask of 0 and 1 is the mask. Other functions of what
//! is masked are those of the mean, as for dropout.
//!
//! `tools/headwater_tools/masks.py` records PyTorch's results so; both must know the same operators.

use crate::attr::{Attr, Attrs};
use crate::dtype::DType;
use crate::graph::{Def, Graph, Node, NodeId, Value, ValueId};
use crate::ops::OpDef;
use crate::ops::control::detach::DETACH;
use crate::ops::create::full::FULL;
use crate::ops::pointwise::{add::ADD, copy::COPY, mul::MUL};
use crate::tensor::TensorType;
use std::collections::{HashMap, HashSet};

/// A random value, `shift + scale · v`.
#[derive(Clone, Copy)]
struct Drawn {
    /// The node's result that drew v.
    root: ValueId,
    /// The value whose elements are v, place by place from the last dimension: two of one event are equal,
    /// others of one root are not independent.
    event: ValueId,
    /// Uniform in `[0, 1)`, or 1 with a probability, else 0.
    v: Source,
    scale: f64,
    shift: f64,
}

#[derive(Clone, Copy, PartialEq)]
enum Source {
    Uniform,
    /// `None`: probabilities that are a tensor.
    Mask(Option<f64>),
}

/// The replacement of a node. All values keep their ids.
enum Change {
    /// One number everywhere.
    Full(f64),
    /// The input with this number, through which no gradient flows.
    Probabilities(usize),
    /// A mask, with this number, becomes this constant in a product.
    Product(usize, f64),
    /// A choice: of the first with this probability, else of the second.
    Mixed(Side, Side, f64),
}

#[derive(Clone, Copy)]
enum Side {
    Tensor(ValueId),
    Number(f64),
}

/// Counts of masks that are their means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Means {
    /// All of them.
    pub count: usize,
    /// Masks that the model does not divide by their probability: their mean is a factor, or mixes two
    /// values.
    pub undivided: usize,
}

/// Replaces masks by their means. Values keep their ids and types.
pub fn masks_as_means(graph: &mut Graph) -> Means {
    let mut found = Search {
        graph,
        drawn: HashMap::new(),
        spoiled: HashSet::new(),
        changes: HashMap::new(),
        factors: HashMap::new(),
        used: Vec::new(),
    };
    for n in 0..found.graph.nodes.len() {
        found.visit(n);
    }
    let undivided = found.undivided();
    let Search { spoiled, mut changes, .. } = found;
    changes.retain(|_, (root, _)| !spoiled.contains(root));
    let roots: HashSet<ValueId> = changes.values().map(|(root, _)| *root).collect();
    let undivided = roots.intersection(&undivided).count();
    if !roots.is_empty() {
        apply(graph, &mut changes);
    }
    Means { count: roots.len(), undivided }
}

struct Search<'a> {
    graph: &'a Graph,
    drawn: HashMap<ValueId, Drawn>,
    /// Draws on which something depends that has no mean.
    spoiled: HashSet<ValueId>,
    changes: HashMap<usize, (ValueId, Change)>,
    /// Masks that values are products with, by their root and their event; without one they count as
    /// dependent.
    factors: HashMap<ValueId, Vec<(ValueId, Option<ValueId>)>>,
    /// Results that a mask scales: its root, the result, what it scales, and the factor.
    used: Vec<(ValueId, ValueId, Option<ValueId>, f64)>,
}

/// Masks of which a product's account is kept.
const FACTORS: usize = 16;

impl Search<'_> {
    fn visit(&mut self, n: usize) {
        let graph = self.graph;
        let node = &graph.nodes[n];
        let Some(&out) = node.outputs.first() else { return };
        if self.draws(n, node, out) {
            return;
        }
        let of = |this: &Self, i: usize| {
            node.inputs.get(i).copied().flatten().and_then(|v| this.drawn.get(&v)).copied()
        };
        let known: Vec<ValueId> = read(node).filter(|v| self.drawn.contains_key(v)).collect();
        self.products(n, node, out);
        if known.is_empty() {
            return;
        }
        let bool = |v: ValueId| graph.ty(v).dtype == DType::Bool;
        let followed = match of(self, 0) {
            Some(x) if !known.iter().any(|v| bool(*v)) => self.numbers(n, node, out, x),
            _ => self.bools(n, node, out),
        };
        // Floats of a mask may go anywhere: what is computed from them is computed from the mean. Truth
        // values of them are not.
        let floats = |v: &ValueId| !bool(*v) && self.drawn[v].v != Source::Uniform;
        let spoils = casts(node) || compared(node).is_some() || !known.iter().all(floats);
        if followed.is_none() && spoils {
            let roots: Vec<ValueId> = known.iter().map(|v| self.drawn[v].root).collect();
            self.spoiled.extend(roots);
        }
    }

    /// Notes a node that draws.
    fn draws(&mut self, n: usize, node: &Node, out: ValueId) -> bool {
        let float = |name: &str| number(node, name);
        let (v, scale, shift) = match node.op.name {
            "rand" => (Source::Uniform, 1.0, 0.0),
            "uniform" => {
                let (from, to) = (float("from").unwrap_or(0.0), float("to").unwrap_or(1.0));
                (Source::Uniform, to - from, from)
            }
            "bernoulli" if self.graph.ty(out).dtype.is_float() => {
                let p = float("p");
                let change = match (p, node.inputs.get(1).copied().flatten()) {
                    (_, Some(_)) => Change::Probabilities(1),
                    (Some(p), None) => Change::Full(p),
                    (None, None) => Change::Probabilities(0),
                };
                let p = p.filter(|_| matches!(change, Change::Full(_)));
                self.changes.insert(n, (out, change));
                (Source::Mask(p), 1.0, 0.0)
            }
            _ => return false,
        };
        self.drawn.insert(out, Drawn { root: out, event: out, v, scale, shift });
        true
    }

    /// Keeps account of masks in products. A mask that is in the other factor already counts as what it is
    /// where that is not 0.
    fn products(&mut self, n: usize, node: &Node, out: ValueId) {
        let input = |i: usize| node.inputs.get(i).copied().flatten();
        let Some(first) = input(0) else { return };
        let mut all: Vec<(ValueId, Option<ValueId>)> = Vec::new();
        let of = |this: &Self, v: ValueId| this.factors.get(&v).cloned().unwrap_or_default();
        match (node.op.name, input(1)) {
            ("mul", Some(second)) => {
                for (at, mask, other) in [(0, first, second), (1, second, first)] {
                    all.extend(of(self, mask));
                    let Some(d) = self.drawn.get(&mask).copied() else { continue };
                    if d.v == Source::Uniform || self.drawn.contains_key(&other) {
                        continue;
                    }
                    match of(self, other).iter().find(|f| f.0 == d.root) {
                        Some((_, event)) if *event == Some(d.event) => {
                            self.changes.insert(n, (d.root, Change::Product(at, d.scale + d.shift)));
                        }
                        Some(_) => {
                            self.spoiled.insert(d.root);
                        }
                        None => {
                            all.push((d.root, (d.shift == 0.0).then_some(d.event)));
                            if let Source::Mask(Some(p)) = d.v {
                                self.used.push((d.root, out, Some(other), d.shift + d.scale * p));
                            }
                        }
                    }
                }
            }
            ("div", _) | ("mul" | "neg", None) => all = of(self, first),
            _ if same(node.op) || casts(node) => {
                all = of(self, first);
                if !self.aligned(node, out) {
                    all.iter_mut().for_each(|f| f.1 = None);
                }
            }
            _ => {}
        }
        all.dedup();
        if !all.is_empty() {
            self.factors.insert(out, all.split_off(all.len().saturating_sub(FACTORS)));
        }
    }

    /// True if a node that keeps its input's numbers keeps their places too, counted from the last dimension.
    fn aligned(&self, node: &Node, out: ValueId) -> bool {
        let shape = |v: ValueId| &self.graph.ty(v).shape;
        matches!(node.op.name, "expand" | "expand_as")
            || node.inputs[0].is_some_and(|v| shape(v) == shape(out))
    }

    /// Roots of masks that scale something by another factor than 1, by which the model does not divide.
    fn undivided(&self) -> HashSet<ValueId> {
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.abs();
        // The number by which a node divides.
        let divisor = |node: &Node| {
            let by = number(node, "other").filter(|_| node.operands().count() == 1)?;
            match node.op.name {
                "div" => Some(by),
                "mul" => Some(1.0 / by),
                _ => None,
            }
        };
        let mut after: HashMap<ValueId, f64> = HashMap::new();
        for node in &self.graph.nodes {
            if let (Some(v), Some(by)) = (node.inputs.first().copied().flatten(), divisor(node)) {
                after.insert(v, by);
            }
        }
        let before = |v: ValueId| match self.graph.value(v).def {
            Def::Node(NodeId(n), _) => divisor(&self.graph.nodes[n as usize]),
            _ => None,
        };
        let divided = |out: &ValueId, scaled: &Option<ValueId>, mean: f64| {
            near(mean, 1.0)
                || after.get(out).is_some_and(|by| near(*by, mean))
                || scaled.and_then(before).is_some_and(|by| near(by, mean))
        };
        let all = self.used.iter().filter(|(_, out, scaled, mean)| !divided(out, scaled, *mean));
        all.map(|(root, ..)| *root).collect()
    }

    /// The product of two masks of floats of one root.
    fn square(&mut self, n: usize, node: &Node, out: ValueId, (x, y): (Drawn, Drawn)) -> Option<()> {
        let plain = |d: Drawn| d.scale == 1.0 && d.shift == 0.0;
        let drawn = match x.v {
            Source::Mask(Some(p)) if x.event == y.event => {
                let (no, yes) = (x.shift * y.shift, (x.scale + x.shift) * (y.scale + y.shift));
                self.changes.insert(n, (x.root, Change::Full(no + (yes - no) * p)));
                Drawn { scale: yes - no, shift: no, ..x }
            }
            // Its own square.
            Source::Mask(None)
                if x.event == y.event && plain(x) && plain(y) && node.inputs[0] == node.inputs[1] =>
            {
                self.changes.insert(n, (x.root, Change::Probabilities(0)));
                x
            }
            _ => {
                self.spoiled.insert(x.root);
                return None;
            }
        };
        self.drawn.insert(out, drawn);
        Some(())
    }

    /// Follows floats: `None` if the node is none that is known.
    fn numbers(&mut self, n: usize, node: &Node, out: ValueId, x: Drawn) -> Option<()> {
        if let Some(y) = read(node).skip(1).find_map(|v| self.drawn.get(&v).copied()) {
            return match node.op.name {
                "mul" if y.root == x.root && x.v != Source::Uniform => self.square(n, node, out, (x, y)),
                "div" if y.root == x.root => {
                    self.spoiled.insert(x.root);
                    None
                }
                _ => None,
            };
        }
        if node.op.name == "square" || node.op.name == "pow" && number(node, "exponent") == Some(2.0) {
            return if x.v == Source::Uniform { None } else { self.square(n, node, out, (x, x)) };
        }
        if same(node.op) || casts(node) && self.graph.ty(out).dtype.is_float() {
            let event = if self.aligned(node, out) { x.event } else { out };
            self.drawn.insert(out, Drawn { event, ..x });
            return Some(());
        }
        let mask =
            |p: f64| Drawn { root: x.root, event: out, v: Source::Mask(Some(p)), scale: 1.0, shift: 0.0 };
        // The mask itself as truth values, or another.
        let truth = |p: f64, holds: &dyn Fn(f64) -> bool| {
            let itself = x.v != Source::Uniform && holds(x.scale + x.shift) && !holds(x.shift);
            Drawn { event: if itself { x.event } else { out }, ..mask(p) }
        };
        if casts(node) {
            let p = (self.graph.ty(out).dtype == DType::Bool).then(|| x.holds(|v| v != 0.0)).flatten()?;
            self.drawn.insert(out, truth(p, &|v| v != 0.0));
            return Some(());
        }
        if let Some(holds) = compared(node) {
            let other = number(node, "other")?;
            let p = match x.v {
                Source::Mask(_) => x.holds(|v| holds(v, other))?,
                Source::Uniform => match node.op.name {
                    "lt" | "le" => x.below(other)?,
                    "gt" | "ge" => 1.0 - x.below(other)?,
                    _ => return None,
                },
            };
            self.drawn.insert(out, truth(p, &|v| holds(v, other)));
            return Some(());
        }
        if node.op.name == "floor" && x.v == Source::Uniform && x.scale == 1.0 {
            let p = Some(x.shift).filter(|p| (0.0..=1.0).contains(p))?;
            self.changes.insert(n, (x.root, Change::Full(p)));
            self.drawn.insert(out, mask(p));
            return Some(());
        }
        if node.attrs.get("alpha").is_some() && number(node, "alpha") != Some(1.0)
            || node.attrs.get("rounding_mode").is_some_and(|a| matches!(a, Attr::Str(_)))
        {
            return None;
        }
        let other = number(node, "other");
        let (scale, shift) = match (node.op.name, other) {
            ("add", Some(o)) => (x.scale, x.shift + o),
            ("sub", Some(o)) => (x.scale, x.shift - o),
            ("rsub", Some(o)) => (-x.scale, o - x.shift),
            ("mul", Some(o)) => (x.scale * o, x.shift * o),
            ("div", Some(o)) => (x.scale / o, x.shift / o),
            ("neg", None) => (-x.scale, -x.shift),
            _ => return None,
        };
        self.drawn.insert(out, Drawn { scale, shift, ..x });
        Some(())
    }

    /// Follows a mask of bools: `None` if there is none, or the node is none that is known.
    fn bools(&mut self, n: usize, node: &Node, out: ValueId) -> Option<()> {
        let graph = self.graph;
        let at = node.inputs.iter().position(|v| {
            v.is_some_and(|v| graph.ty(v).dtype == DType::Bool && self.drawn.contains_key(&v))
        })?;
        let mask = self.drawn[&node.inputs[at].expect("found")];
        let Source::Mask(Some(p)) = mask.v else { return None };
        // A second mask is a number like any other, if it is one of floats and independent.
        let alone = |(i, v): (usize, &Option<ValueId>)| {
            let other = v.filter(|_| i != at).and_then(|v| Some((graph.ty(v).dtype, self.drawn.get(&v)?)));
            other.is_none_or(|(dtype, d)| dtype.is_float() && d.v != Source::Uniform && d.root != mask.root)
        };
        let by_itself = at == 0 && read(node).count() == 1;
        if !by_itself && !node.inputs.iter().enumerate().all(alone) {
            return None;
        }
        let dtype = graph.ty(out).dtype;
        let first = at == 0;
        let change = match node.op.name {
            "bitwise_not" | "logical_not" if first => {
                let not = Source::Mask(Some(1.0 - p));
                self.drawn.insert(out, Drawn { v: not, event: out, ..mask });
                return Some(());
            }
            _ if first && (same(node.op) || casts(node) && dtype == DType::Bool) => {
                let event = if self.aligned(node, out) { mask.event } else { out };
                self.drawn.insert(out, Drawn { event, ..mask });
                return Some(());
            }
            _ if first && casts(node) && dtype.is_float() => {
                let event = if self.aligned(node, out) { mask.event } else { out };
                self.drawn.insert(out, Drawn { scale: 1.0, shift: 0.0, event, ..mask });
                Change::Full(p)
            }
            "mul" | "div" if first || node.op.name == "mul" => {
                let other = node.inputs.get(1 - at).copied().flatten().map(|v| graph.ty(v).dtype);
                let float = match other {
                    Some(other) => other.is_float(),
                    None => matches!(node.attrs.get("other"), Some(Attr::Float(_))),
                };
                if !float {
                    return None;
                }
                // Noted before if the other factor has this mask already, as in x·m·m.
                match self.changes.remove(&n) {
                    Some((_, noted)) => noted,
                    None => Change::Product(at, p),
                }
            }
            "where" if first => {
                let mut rest = node.inputs.iter().skip(1).copied().flatten();
                let mut side = |name| match number(node, name) {
                    Some(x) => Some(Side::Number(x)),
                    None => rest.next().map(Side::Tensor),
                };
                let (yes, no) = (side("self")?, side("other")?);
                self.mixed(mask.root, (yes, no, p), out)?
            }
            "masked_fill" if at == 1 => {
                let value = match number(node, "value") {
                    Some(x) => Side::Number(x),
                    None => Side::Tensor(node.inputs.get(2).copied().flatten()?),
                };
                self.mixed(mask.root, (value, Side::Tensor(node.inputs[0]?), p), out)?
            }
            _ => return None,
        };
        self.changes.insert(n, (mask.root, change));
        Some(())
    }

    /// A choice whose result a sum of products has too, in dtype and shape.
    fn mixed(&mut self, root: ValueId, (yes, no, p): (Side, Side, f64), out: ValueId) -> Option<Change> {
        let mut whole = false;
        for side in [yes, no] {
            match side {
                Side::Number(x) if !x.is_finite() => return None,
                Side::Number(_) => {}
                Side::Tensor(v) => {
                    let (ty, out) = (self.graph.ty(v), self.graph.ty(out));
                    if ty.dtype != out.dtype || !ty.dtype.is_float() {
                        return None;
                    }
                    whole |= ty.shape == out.shape;
                }
            }
        }
        if !whole {
            return None;
        }
        match (yes, no) {
            (Side::Tensor(v), Side::Number(0.0)) => self.used.push((root, out, Some(v), p)),
            (Side::Number(0.0), Side::Tensor(v)) => self.used.push((root, out, Some(v), 1.0 - p)),
            // Nothing divides it.
            _ => self.used.push((root, out, None, f64::NAN)),
        }
        Some(Change::Mixed(yes, no, p))
    }
}

impl Drawn {
    /// The probability that something holds of a mask's number.
    fn holds(&self, holds: impl Fn(f64) -> bool) -> Option<f64> {
        let Source::Mask(Some(p)) = self.v else { return None };
        Some(p * f64::from(holds(self.shift + self.scale)) + (1.0 - p) * f64::from(holds(self.shift)))
    }

    /// The probability that a uniform number is below another.
    fn below(&self, other: f64) -> Option<f64> {
        let at = ((other - self.shift) / self.scale).clamp(0.0, 1.0);
        (self.scale != 0.0).then_some(if self.scale > 0.0 { at } else { 1.0 - at })
    }
}

/// The operands whose numbers a node reads: of what only moves or casts numbers, the first.
fn read(node: &Node) -> impl Iterator<Item = ValueId> + '_ {
    let only = same(node.op) || casts(node);
    node.operands().take(if only { 1 } else { usize::MAX })
}

fn number(node: &Node, name: &str) -> Option<f64> {
    match node.attrs.get(name) {
        Some(Attr::Float(x)) => Some(*x),
        Some(Attr::Int(i)) => Some(*i as f64),
        _ => None,
    }
}

/// The same numbers, elsewhere or in another shape.
fn same(op: &OpDef) -> bool {
    matches!(
        op.name,
        "clone"
            | "detach"
            | "alias"
            | "reshape"
            | "reshape_as"
            | "expand"
            | "expand_as"
            | "unsqueeze"
            | "squeeze"
            | "flatten"
            | "unflatten"
    )
}

fn casts(node: &Node) -> bool {
    matches!(node.op.name, "to" | "type_as")
}

fn compared(node: &Node) -> Option<fn(f64, f64) -> bool> {
    Some(match node.op.name {
        "lt" => |a, b| a < b,
        "le" => |a, b| a <= b,
        "gt" => |a, b| a > b,
        "ge" => |a, b| a >= b,
        "eq" => |a, b| a == b,
        "ne" => |a, b| a != b,
        _ => return None,
    })
}

/// Makes the changes. What is added precedes the node that reads it.
fn apply(graph: &mut Graph, changes: &mut HashMap<usize, (ValueId, Change)>) {
    let nodes = std::mem::take(&mut graph.nodes);
    for (n, mut node) in nodes.into_iter().enumerate() {
        let out = node.outputs.first().copied();
        if let (Some((_, change)), Some(out)) = (changes.remove(&n), out) {
            let ty = graph.ty(out).clone();
            match change {
                Change::Full(x) => {
                    (node.op, node.inputs, node.attrs) = (&FULL, Vec::new(), full(&ty, x));
                }
                Change::Probabilities(i) => {
                    let p = node.inputs[i].expect("found");
                    if i == 0 {
                        (node.op, node.inputs, node.attrs) = (&DETACH, vec![Some(p)], Attrs::new());
                    } else {
                        let detached = graph.ty(p).clone();
                        let p = add(graph, &node, &DETACH, vec![Some(p)], Attrs::new(), detached);
                        (node.op, node.attrs) = (&COPY, Attrs::new());
                        node.inputs = vec![node.inputs[0], Some(p)];
                    }
                }
                Change::Product(at, p) => {
                    let mask = node.inputs[at].expect("found");
                    let dtype = match (graph.ty(mask).dtype, node.inputs.get(1 - at).copied().flatten()) {
                        (own, _) if own.is_float() => own,
                        (_, Some(v)) => graph.ty(v).dtype,
                        (_, None) => ty.dtype,
                    };
                    let mean = TensorType::new(dtype, graph.ty(mask).shape.clone());
                    let attrs = full(&mean, p);
                    node.inputs[at] = Some(add(graph, &node, &FULL, Vec::new(), attrs, mean));
                }
                Change::Mixed(yes, no, p) => {
                    let mut part = |side, p| match side {
                        Side::Number(x) => Side::Number(x * p),
                        Side::Tensor(v) => {
                            let ty = graph.ty(v).clone();
                            let attrs = Attrs::new().with("other", p);
                            Side::Tensor(add(graph, &node, &MUL, vec![Some(v)], attrs, ty))
                        }
                    };
                    let (a, b) = (part(yes, p), part(no, 1.0 - p));
                    (node.op, node.attrs) = (&ADD, Attrs::new());
                    node.inputs = match (a, b) {
                        (Side::Tensor(a), Side::Tensor(b)) => vec![Some(a), Some(b)],
                        (Side::Tensor(v), Side::Number(x)) | (Side::Number(x), Side::Tensor(v)) => {
                            node.attrs.set("other", x);
                            vec![Some(v)]
                        }
                        (Side::Number(_), Side::Number(_)) => unreachable!("one side has the result's shape"),
                    };
                }
            }
        }
        graph.nodes.push(node);
    }
    graph.sort_nodes(|n, _| n);
}

fn full(ty: &TensorType, x: f64) -> Attrs {
    Attrs::new().with("size", ty.shape.to_ints()).with("fill_value", x).with("dtype", ty.dtype)
}

/// Adds a node with `like`'s origin and phase.
fn add(
    graph: &mut Graph,
    like: &Node,
    op: &'static OpDef,
    inputs: Vec<Option<ValueId>>,
    attrs: Attrs,
    ty: TensorType,
) -> ValueId {
    let value = ValueId(graph.values.len() as u32);
    graph.values.push(Value { ty, def: Def::Node(NodeId(graph.nodes.len() as u32), 0) });
    let (origin, phase) = (like.origin, like.phase);
    graph.nodes.push(Node { op, inputs, attrs, outputs: vec![value], origin, phase });
    value
}

#[cfg(test)]
mod tests;
