//! Random masks as their means, as dropout is the identity: stochastic depth multiplies a branch by a mask of
//! mean 1. Two programs draw different numbers; with the means they compute the same.
//!
//! A mask is drawn by `bernoulli`, or from uniform numbers by a comparison with a number or by
//! `floor(p + u)`. Its mean is its probability, which takes the mask's place in products, in `where` and in
//! `masked_fill`. Numbers on which anything else depends, such as an order sorted by them, stay random.
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
    /// A mask of bools, with this number, becomes its mean in a product.
    Product(usize, f64),
    /// A choice: of the first with this probability, else of the second.
    Mixed(Side, Side, f64),
}

#[derive(Clone, Copy)]
enum Side {
    Tensor(ValueId),
    Number(f64),
}

/// Replaces masks by their means. Values keep their ids and types. Returns the number of masks.
pub fn masks_as_means(graph: &mut Graph) -> usize {
    let mut found = Search { graph, drawn: HashMap::new(), spoiled: HashSet::new(), changes: HashMap::new() };
    for n in 0..found.graph.nodes.len() {
        found.visit(n);
    }
    let Search { spoiled, mut changes, .. } = found;
    changes.retain(|_, (root, _)| !spoiled.contains(root));
    let roots: HashSet<ValueId> = changes.values().map(|(root, _)| *root).collect();
    if !roots.is_empty() {
        apply(graph, &mut changes);
    }
    roots.len()
}

struct Search<'a> {
    graph: &'a Graph,
    drawn: HashMap<ValueId, Drawn>,
    /// Draws on which something depends that has no mean.
    spoiled: HashSet<ValueId>,
    changes: HashMap<usize, (ValueId, Change)>,
}

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
        let known: Vec<ValueId> = node.operands().filter(|v| self.drawn.contains_key(v)).collect();
        if known.is_empty() {
            return;
        }
        let bool = |v: ValueId| graph.ty(v).dtype == DType::Bool;
        let followed = match of(self, 0) {
            Some(x) if !node.inputs[0].is_some_and(bool) => self.numbers(n, node, out, x),
            x => self.bools(n, node, out, x),
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
        self.drawn.insert(out, Drawn { root: out, v, scale, shift });
        true
    }

    /// Follows floats: `None` if the node is none that is known.
    fn numbers(&mut self, n: usize, node: &Node, out: ValueId, x: Drawn) -> Option<()> {
        if others_drawn(node, &self.drawn) {
            return None;
        }
        if same(node.op) || casts(node) && self.graph.ty(out).dtype.is_float() {
            self.drawn.insert(out, x);
            return Some(());
        }
        let mask = |p: f64| Drawn { root: x.root, v: Source::Mask(Some(p)), scale: 1.0, shift: 0.0 };
        if casts(node) {
            let p = (self.graph.ty(out).dtype == DType::Bool).then(|| x.holds(|v| v != 0.0)).flatten()?;
            self.drawn.insert(out, mask(p));
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
            self.drawn.insert(out, mask(p));
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
    fn bools(&mut self, n: usize, node: &Node, out: ValueId, first: Option<Drawn>) -> Option<()> {
        let graph = self.graph;
        let at = node.inputs.iter().position(|v| {
            v.is_some_and(|v| graph.ty(v).dtype == DType::Bool && self.drawn.contains_key(&v))
        })?;
        let mask = self.drawn[&node.inputs[at].expect("found")];
        let Source::Mask(Some(p)) = mask.v else { return None };
        if node.operands().filter(|v| self.drawn.contains_key(v)).count() > 1 {
            return None;
        }
        let dtype = graph.ty(out).dtype;
        let change = match (node.op.name, first) {
            ("bitwise_not" | "logical_not", Some(_)) => {
                self.drawn.insert(out, Drawn { v: Source::Mask(Some(1.0 - p)), ..mask });
                return Some(());
            }
            _ if first.is_some() && (same(node.op) || casts(node) && dtype == DType::Bool) => {
                self.drawn.insert(out, mask);
                return Some(());
            }
            _ if first.is_some() && casts(node) && dtype.is_float() => {
                self.drawn.insert(out, Drawn { scale: 1.0, shift: 0.0, ..mask });
                Change::Full(p)
            }
            ("mul", _) | ("div", Some(_)) => {
                let other = node.inputs.get(1 - at).copied().flatten().map(|v| graph.ty(v).dtype);
                let float = match other {
                    Some(other) => other.is_float(),
                    None => matches!(node.attrs.get("other"), Some(Attr::Float(_))),
                };
                if !float {
                    return None;
                }
                Change::Product(at, p)
            }
            ("where", Some(_)) => {
                let mut rest = node.inputs.iter().skip(1).copied().flatten();
                let mut side = |name| match number(node, name) {
                    Some(x) => Some(Side::Number(x)),
                    None => rest.next().map(Side::Tensor),
                };
                let (yes, no) = (side("self")?, side("other")?);
                self.mixed(yes, no, p, out)?
            }
            ("masked_fill", None) if at == 1 => {
                let value = match number(node, "value") {
                    Some(x) => Side::Number(x),
                    None => Side::Tensor(node.inputs.get(2).copied().flatten()?),
                };
                self.mixed(value, Side::Tensor(node.inputs[0]?), p, out)?
            }
            _ => return None,
        };
        self.changes.insert(n, (mask.root, change));
        Some(())
    }

    /// A choice whose result a sum of products has too, in dtype and shape.
    fn mixed(&self, yes: Side, no: Side, p: f64, out: ValueId) -> Option<Change> {
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
        whole.then_some(Change::Mixed(yes, no, p))
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

/// True if a second operand was drawn too.
fn others_drawn(node: &Node, drawn: &HashMap<ValueId, Drawn>) -> bool {
    node.operands().skip(1).any(|v| drawn.contains_key(&v))
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
                    let dtype = match node.inputs.get(1 - at).copied().flatten() {
                        Some(v) => graph.ty(v).dtype,
                        None => ty.dtype,
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
mod tests {
    use super::*;
    use crate::graph::{InputRole, OutputRole, verify};
    use crate::{Builder, Tensor, pass, reference};

    type Recipe = fn(&mut Builder, ValueId) -> crate::diagnostic::Result<ValueId>;

    fn op(name: &str) -> &'static OpDef {
        crate::ops::Registry::standard().by_name(name).unwrap_or_else(|| panic!("no operator {name}"))
    }

    fn rows() -> Attrs {
        Attrs::new().with("size", [4, 1]).with("dtype", DType::F64)
    }

    fn number(x: f64) -> Attrs {
        Attrs::new().with("other", x)
    }

    /// The recipe's result for x with masks as their means, and the number of masks.
    fn means(recipe: Recipe) -> (Vec<f64>, usize) {
        let mut b = Builder::new();
        let x = b.input("x", TensorType::new(DType::F64, [4, 3]), InputRole::User);
        let y = recipe(&mut b, x).unwrap();
        b.output("y", y, OutputRole::User);
        let mut graph = b.finish();
        let before = graph.ty(y).clone();
        let count = masks_as_means(&mut graph);
        assert_eq!((graph.outputs[0].value, graph.ty(y)), (y, &before), "ids and types stay");
        verify(&graph).unwrap();
        (computed(graph), count)
    }

    /// The graph's result for x from 0 to 11, [4, 3].
    fn computed(graph: Graph) -> Vec<f64> {
        let graph = pass::simplify(pass::decompose(graph).unwrap()).graph;
        let x = Tensor::float(DType::F64, [4, 3], (0..12).map(f64::from).collect::<Vec<_>>());
        let key = Tensor::int(DType::I64, [2], vec![1, 2]);
        let inputs: Vec<Tensor> = graph
            .inputs
            .iter()
            .map(|i| if i.role == InputRole::Rng { key.clone() } else { x.clone() })
            .collect();
        reference::run(&graph, &inputs).unwrap()[0].floats().to_vec()
    }

    fn close(found: &[f64], expected: impl Fn(f64) -> f64) {
        for (i, y) in found.iter().enumerate() {
            let e = expected(i as f64);
            assert!((y - e).abs() < 1e-14, "{i}: {y} and not {e}");
        }
    }

    #[test]
    fn stochastic_depth_becomes_the_identity() {
        // timm and torchvision.
        let (y, count) = means(|b, x| {
            let empty = b.one(op("empty"), &[], rows())?;
            let mask = b.one(op("bernoulli"), &[empty], Attrs::new().with("p", 0.9))?;
            let mask = b.one(op("div"), &[mask], number(0.9))?;
            b.mul(x, mask)
        });
        assert_eq!(count, 1);
        close(&y, |x| x);
        // transformers.
        let (y, count) = means(|b, x| {
            let u = b.apply(op("rand"), &[], rows())?[0];
            let u = b.one(op("add"), &[u], number(0.7))?;
            let mask = b.call(op("floor"), &[u])?;
            let x = b.one(op("div"), &[x], number(0.7))?;
            b.mul(x, mask)
        });
        assert_eq!(count, 1);
        close(&y, |x| x);
    }

    #[test]
    fn evaluation_draws_nothing() {
        let mut b = Builder::new();
        let x = b.input("x", TensorType::new(DType::F64, [4, 3]), InputRole::User);
        let u = b.apply(op("rand"), &[], rows()).unwrap()[0];
        let u = b.one(op("add"), &[u], number(0.7)).unwrap();
        let mask = b.call(op("floor"), &[u]).unwrap();
        let y = b.mul(x, mask).unwrap();
        b.output("y", y, OutputRole::User);
        close(&computed(pass::evaluation(&b.finish()).unwrap()), |x| 0.7 * x);
    }

    #[test]
    fn masks_by_comparison_have_their_probability() {
        let (y, count) = means(|b, x| {
            let u = b.apply(op("rand"), &[], rows())?[0];
            let mask = b.one(op("gt"), &[u], number(0.25))?;
            let y = b.mul(x, mask)?;
            b.one(op("div"), &[y], number(0.75))
        });
        assert_eq!(count, 1);
        close(&y, |x| x);
        // 0.4 + 2u < 1 where u < 0.3; dropped is what is not.
        let (y, _) = means(|b, x| {
            let u = b.apply(op("rand"), &[], rows())?[0];
            let u = b.one(op("mul"), &[u], number(2.0))?;
            let u = b.one(op("add"), &[u], number(0.4))?;
            let mask = b.one(op("lt"), &[u], number(1.0))?;
            let mask = b.call(op("bitwise_not"), &[mask])?;
            b.one(op("masked_fill"), &[x, mask], Attrs::new().with("value", 10.0))
        });
        close(&y, |x| 0.3 * x + 0.7 * 10.0);
        // 1 - bernoulli(0.9), as truth values.
        let (y, _) = means(|b, x| {
            let p = b.full(&TensorType::new(DType::F64, [4, 3]), 0.9)?;
            let mask = b.one(op("bernoulli"), &[p], Attrs::new().with("p", 0.9))?;
            let mask = b.one(op("rsub"), &[mask], number(1.0))?;
            let mask = b.one(op("to"), &[mask], Attrs::new().with("dtype", DType::Bool))?;
            let zeros = b.full(&TensorType::new(DType::F64, [4, 3]), 0.0)?;
            b.one(op("where"), &[mask, zeros, x], Attrs::new())
        });
        close(&y, |x| 0.9 * x);
    }

    #[test]
    fn numbers_of_a_mask_are_followed_to_truth_values() {
        let (y, count) = means(|b, x| {
            let u = b.apply(op("rand"), &[], rows())?[0];
            let u = b.one(op("add"), &[u], number(0.25))?;
            let mask = b.call(op("floor"), &[u])?;
            let mask = b.one(op("to"), &[mask], Attrs::new().with("dtype", DType::Bool))?;
            let mask = b.one(op("to"), &[mask], Attrs::new().with("dtype", DType::F64))?;
            let mask = b.one(op("gt"), &[mask], number(0.5))?;
            b.one(op("masked_fill"), &[x, mask], Attrs::new().with("value", 8.0))
        });
        assert_eq!(count, 1);
        close(&y, |x| 0.75 * x + 0.25 * 8.0);
    }

    #[test]
    fn probabilities_may_be_a_tensor() {
        let (y, count) = means(|b, x| {
            let p = b.full(&TensorType::new(DType::F64, [3]), 0.5)?;
            let mask = b.one(op("bernoulli"), &[x, p], Attrs::new())?;
            b.mul(x, mask)
        });
        assert_eq!(count, 1);
        close(&y, |x| 0.5 * x);
    }

    #[test]
    fn other_random_numbers_stay() {
        let noise: Recipe = |b, x| {
            let u = b.one(op("rand"), &[x], Attrs::new())?;
            b.add(x, u)
        };
        let order: Recipe = |b, x| {
            let u = b.one(op("rand"), &[x], Attrs::new())?;
            let mask = b.one(op("lt"), &[u], number(0.5))?;
            let sorted = b.one(op("sort"), &[u], Attrs::new().with("dim", 1).with("descending", false))?;
            let y = b.mul(x, mask)?;
            b.mul(y, sorted)
        };
        // Integers have no mean: 0.5 would be 0.
        let integers: Recipe = |b, x| {
            let u = b.apply(op("rand"), &[], rows())?[0];
            let u = b.one(op("add"), &[u], number(0.5))?;
            let mask = b.call(op("floor"), &[u])?;
            let mask = b.one(op("to"), &[mask], Attrs::new().with("dtype", DType::I64))?;
            b.mul(x, mask)
        };
        for recipe in [noise, order, integers] {
            assert_eq!(means(recipe).1, 0);
        }
    }
}
