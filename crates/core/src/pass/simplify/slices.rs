//! Sums of slices that do not overlap, each embedded in a tensor of zeros. They are gradients of a value that
//! is read slice by slice, as by the steps of a scan. Such a sum takes a pass over the whole tensor for each
//! slice. Here it becomes one concatenation, with zeros where there is no slice.
//!
//! To be exact, a zero is added at the end: a sum with zeros turns −0 into 0.

use crate::attr::{Attr, Attrs};
use crate::diagnostic::Result;
use crate::graph::{Builder, Graph, Node, ValueId};
use crate::ops::create::full::FULL;
use crate::ops::movement::cat::CAT;
use crate::ops::pointwise::add::ADD;
use crate::ops::{Body, RegionCopy, Source};
use crate::tensor::TensorType;
use std::collections::{BTreeMap, HashMap};

/// A value that is zero but for a range of one dimension.
#[derive(Clone, Copy)]
struct Slice {
    dim: usize,
    start: usize,
    len: usize,
    source: ValueId,
}

/// A term of a sum.
enum Term {
    Value(ValueId),
    /// Slices of one dimension that do not overlap, by their start, and one of the tensors that they are
    /// embedded in.
    Slices(BTreeMap<usize, Slice>, ValueId),
}

/// Joins such slices; also says how many were.
pub(super) fn join(graph: Graph) -> (Graph, usize) {
    let sums = Search::new(&graph).sums();
    if sums.is_empty() {
        return (graph, 0);
    }
    let mut joined = 0;
    let nodes = graph.nodes.clone();
    let mut b = Builder::extend(Graph { nodes: Vec::new(), ..graph });
    for node in nodes {
        if let [out] = node.outputs[..]
            && let Some(terms) = sums.get(&out)
        {
            (b.origin, b.phase) = (node.origin, node.phase);
            let before = b.graph().nodes.len();
            match total(&mut b, terms) {
                Ok(()) => {
                    let last = b.graph_mut().nodes.last_mut().expect("a sum was built");
                    last.outputs = vec![out];
                    let of = |t: &Term| if let Term::Slices(slices, _) = t { slices.len() } else { 0 };
                    joined += terms.iter().map(of).sum::<usize>();
                    continue;
                }
                // A rule refuses no such sum; if one did, the sum would stay as it is.
                Err(_) => b.graph_mut().nodes.truncate(before),
            }
        }
        b.graph_mut().nodes.push(node);
    }
    (b.finish(), joined)
}

/// Builds a sum, whose last node gives it.
fn total(b: &mut Builder, terms: &[Term]) -> Result<()> {
    let mut sum = None;
    for term in terms {
        let term = match term {
            Term::Value(v) => *v,
            Term::Slices(slices, of) => concatenation(b, slices, *of)?,
        };
        sum = Some(match sum {
            None => term,
            Some(sum) => b.add(sum, term)?,
        });
    }
    Ok(())
}

/// The slices with zeros between them.
fn concatenation(b: &mut Builder, slices: &BTreeMap<usize, Slice>, of: ValueId) -> Result<ValueId> {
    let whole = b.ty(of).clone();
    let mut parts = Vec::with_capacity(slices.len());
    let (mut at, mut dim) = (0, 0);
    let gap = |b: &mut Builder, dim: usize, from: usize, to: usize| -> Result<Option<ValueId>> {
        let mut shape = whole.shape.to_vec();
        shape[dim] = to - from;
        let ty = TensorType::new(whole.dtype, shape);
        Ok(if from < to { Some(b.full(&ty, 0.0)?) } else { None })
    };
    for slice in slices.values() {
        dim = slice.dim;
        parts.extend(gap(b, dim, at, slice.start)?);
        parts.push(slice.source);
        at = slice.start + slice.len;
    }
    let end = b.ty(of).shape[dim];
    parts.extend(gap(b, dim, at, end)?);
    let all = b.one(&CAT, &parts, Attrs::new().with("dim", dim as i64))?;
    b.one(&ADD, &[all], Attrs::new().with("other", 0.0))
}

struct Search<'a> {
    graph: &'a Graph,
    /// The node that makes each value.
    makers: Vec<Option<&'a Node>>,
    /// The number of times that each value is an operand or an output.
    uses: Vec<u32>,
}

impl<'a> Search<'a> {
    fn new(graph: &'a Graph) -> Self {
        let (mut makers, mut uses) = (vec![None; graph.values.len()], vec![0; graph.values.len()]);
        for node in &graph.nodes {
            node.operands().for_each(|v| uses[v.0 as usize] += 1);
            node.outputs.iter().for_each(|v| makers[v.0 as usize] = Some(node));
        }
        graph.outputs.iter().for_each(|o| uses[o.value.0 as usize] += 1);
        Search { graph, makers, uses }
    }

    /// The operands of a plain sum of two tensors of one type.
    fn sum(&self, v: ValueId) -> Option<(ValueId, ValueId)> {
        let node = self.makers[v.0 as usize].filter(|n| n.op == &ADD)?;
        let &[Some(x), Some(y)] = &node.inputs[..] else { return None };
        let ty = self.graph.ty(v);
        let plain = [x, y].iter().all(|&x| self.graph.ty(x) == ty) && ty.dtype.is_float();
        let alpha = self.graph.cx(node).opt_float("alpha").ok()?.unwrap_or(1.0);
        (plain && alpha == 1.0).then_some((x, y))
    }

    /// The terms of sums that have slices to be joined, by the sum's value. Sums are chains that begin on
    /// their left, as gradients are added; who reads a part of one ends it.
    fn sums(&self) -> HashMap<ValueId, Vec<Term>> {
        let mut part = vec![false; self.graph.values.len()];
        let all: Vec<ValueId> = self.graph.nodes.iter().flat_map(|n| n.outputs.first().copied()).collect();
        let chains: Vec<ValueId> = all.into_iter().filter(|&v| self.sum(v).is_some()).collect();
        for (x, _) in chains.iter().filter_map(|&v| self.sum(v)) {
            part[x.0 as usize] = self.uses[x.0 as usize] == 1;
        }
        let mut found = HashMap::new();
        for &v in chains.iter().filter(|v| !part[v.0 as usize]) {
            let (mut leaves, mut at) = (Vec::new(), v);
            while let Some((x, y)) = self.sum(at).filter(|_| at == v || part[at.0 as usize]) {
                leaves.push(y);
                at = x;
            }
            leaves.push(at);
            leaves.reverse();
            let terms = self.terms(&leaves);
            if terms.len() < leaves.len() {
                found.insert(v, terms);
            }
        }
        found
    }

    /// Terms of a sum, neighbouring slices that do not overlap as one.
    fn terms(&self, leaves: &[ValueId]) -> Vec<Term> {
        let mut terms = Vec::new();
        for &v in leaves {
            let Some(slice) = self.slice(v) else {
                terms.push(Term::Value(v));
                continue;
            };
            match terms.last_mut() {
                Some(Term::Slices(slices, _)) if fits(slices, &slice) => {
                    slices.insert(slice.start, slice);
                }
                _ => terms.push(Term::Slices(BTreeMap::from([(slice.start, slice)]), v)),
            }
        }
        let alone = |t: Term| match t {
            Term::Slices(slices, v) if slices.len() == 1 => Term::Value(v),
            term => term,
        };
        terms.into_iter().map(alone).collect()
    }

    /// A value as a slice in zeros.
    fn slice(&self, v: ValueId) -> Option<Slice> {
        let node = self.makers[v.0 as usize]?;
        let Body::Copies(copies) = node.op.body else { return None };
        let out = self.graph.ty(v);
        let [zeros, part] = &copies(&self.graph.cx(node), out).ok()?[..] else { return None };
        let Source::Input(i) = part.source else { return None };
        let source = node.inputs.get(i).copied().flatten()?;
        let from = self.graph.ty(source);
        let whole = RegionCopy::whole(part.source, &from.shape);
        let mut cut = (0..out.shape.rank()).filter(|&d| part.extent[d] != out.shape[d]);
        let (dim, start) = (cut.next()?, part.start.clone());
        let beyond = cut.next().is_some() || (0..start.len()).any(|d| d != dim && start[d] != 0);
        let moved = RegionCopy { start, ..whole } == *part && from.dtype == out.dtype && part.extent[dim] > 0;
        (self.zeros(node, zeros, out) && moved && !beyond).then_some(Slice {
            dim,
            start: part.start[dim],
            len: part.extent[dim],
            source,
        })
    }

    /// True if a copy fills all of a result with zeros.
    fn zeros(&self, node: &Node, copy: &RegionCopy, out: &TensorType) -> bool {
        let zero = |x: f64| x.to_bits() == 0;
        let number = match copy.source {
            Source::Fill(x) => zero(x),
            Source::Input(i) => {
                let maker = node.inputs.get(i).copied().flatten().and_then(|v| self.makers[v.0 as usize]);
                maker.is_some_and(|n| {
                    n.op == &FULL
                        && match n.attrs.get("fill_value") {
                            Some(Attr::Float(x)) => zero(*x),
                            Some(Attr::Int(0)) => true,
                            _ => false,
                        }
                })
            }
        };
        number && *copy == RegionCopy::whole(copy.source, &out.shape)
    }
}

/// True if a slice is of the same dimension as others and overlaps none of them.
fn fits(slices: &BTreeMap<usize, Slice>, slice: &Slice) -> bool {
    let before = slices.range(..=slice.start).next_back().map(|(_, s)| s);
    let after = slices.range(slice.start..).next().map(|(_, s)| s);
    let dim = slices.values().next().is_some_and(|s| s.dim == slice.dim);
    dim && before.is_none_or(|s| s.start + s.len <= slice.start)
        && after.is_none_or(|s| slice.start + slice.len <= s.start)
}
