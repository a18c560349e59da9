//! Demand analysis for slices: computes only the parts of values that are read. All users of a value may read
//! the same range of one dimension, as a classifier does that reads the first token alone. Then only that
//! range of it is made, and of its operands likewise. This goes back through operators that treat the indices
//! of that dimension independently. Of the last layer of such a transformer little more is left than its keys
//! and values. Comes before differentiation, so that the backward pass is narrow as well.
//!
//! The rewrite is [`Reordered`](super::recognize::Exactness::Reordered): a product of fewer rows may sum in
//! another order. What is not computed cannot be infinite or NaN either.

use super::rebuild::{rebuild, same};
use super::simplify::live;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::expr::Expr;
use crate::graph::{Builder, Graph, Node, ValueId};
use crate::ops::attention::attention::{ATTENTION, Attention};
use crate::ops::linear::linear::LINEAR;
use crate::ops::norm::{layer_norm::LAYER_NORM, rms_norm::RMS_NORM};
use crate::ops::view::alias::ALIAS;
use crate::ops::view::permute::PERMUTE;
use crate::ops::view::reshape::RESHAPE;
use crate::ops::view::select::{SELECT, place};
use crate::ops::view::slice::{Range, SLICE};
use crate::ops::view::transpose::TRANSPOSE;
use crate::ops::view::unsqueeze::UNSQUEEZE;
use crate::ops::{Body, OpCx, OpDef};
use crate::shape::{Layout, Shape};
use crate::tensor::TensorType;

/// A range of a dimension that is shorter than the dimension.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Part {
    dim: usize,
    start: usize,
    len: usize,
}

/// The way a node makes a part of its first result: its attributes then, and which parts of its operands that
/// takes; none is all.
struct Narrowed {
    attrs: Attrs,
    parts: Vec<Option<Part>>,
}

/// Narrows a forward graph in canonical form. Inputs and outputs keep their order, names and types; nodes on
/// which no output depends stay, unless they read what is not made any more. Time is linear in its size.
///
/// # Errors
/// Errors of the operators' type rules: none for a legal graph.
pub fn demand(graph: Graph) -> Result<Graph> {
    let live = live(&graph);
    let parts = parts(&graph, &live);
    if parts.iter().all(Option::is_none) {
        return Ok(graph);
    }
    let mut unmade = vec![false; graph.values.len()];
    rebuild(&graph, same, |b, node, operands| {
        let part = |v: ValueId| parts[v.0 as usize];
        let gone = |v: ValueId| part(v).is_some() || unmade[v.0 as usize];
        if !node.outputs.iter().any(|v| live[v.0 as usize]) && node.operands().any(gone) {
            // Nobody reads what stands for its results.
            node.outputs.iter().for_each(|v| unmade[v.0 as usize] = true);
            return Ok(operands.iter().flatten().cycle().take(node.outputs.len()).copied().collect());
        }
        if let ([Some(x)], [Some(new)]) = (&node.inputs[..], operands)
            && let (Some(seen), Some(_)) = (looks_at(&graph, node), part(*x))
        {
            let only = Attrs::new().with("dim", seen.dim as i64).with("index", 0);
            return Ok(vec![if is(node, &SELECT) { b.one(&SELECT, &[*new], only)? } else { *new }]);
        }
        let made = node.outputs.first().and_then(|&v| part(v));
        let Some(Narrowed { attrs, parts: wanted }) = made.and_then(|p| narrowed(&graph, node, p)) else {
            return b.apply(node.op, operands, node.attrs.clone());
        };
        // Nobody reads its further results, which are narrower too.
        node.outputs[1..].iter().for_each(|v| unmade[v.0 as usize] = true);
        let mut narrow = operands.to_vec();
        for (i, v) in narrow.iter_mut().enumerate() {
            if let (Some(p), Some(old), Some(v)) = (wanted[i], node.inputs[i], v)
                && part(old).is_none()
            {
                *v = cut(b, *v, p)?;
            }
        }
        b.apply(node.op, &narrow, attrs)
    })
}

fn cut(b: &mut Builder, x: ValueId, p: Part) -> Result<ValueId> {
    let attrs = Attrs::new().with("dim", p.dim as i64).with("start", p.start as i64);
    b.one(&SLICE, &[x], attrs.with("end", (p.start + p.len) as i64).with("step", 1))
}

fn is(node: &Node, op: &'static OpDef) -> bool {
    std::ptr::eq(node.op, op)
}

/// The part of each value that is made; none is all of it.
fn parts(graph: &Graph, live: &[bool]) -> Vec<Option<Part>> {
    // The range that later nodes read of it; none is nothing.
    let mut wanted: Vec<Option<Option<Part>>> = vec![None; graph.values.len()];
    graph.outputs.iter().for_each(|o| wanted[o.value.0 as usize] = Some(None));
    for node in graph.nodes.iter().rev().filter(|n| n.outputs.iter().any(|v| live[v.0 as usize])) {
        let Some((first, others)) = node.outputs.split_first() else { continue };
        let alone = others.iter().all(|v| wanted[v.0 as usize].is_none());
        // Further results are always made as a whole.
        others.iter().for_each(|v| wanted[v.0 as usize] = Some(None));
        let first = &mut wanted[first.0 as usize];
        let part = first.flatten().filter(|_| alone);
        let narrowed = part.and_then(|p| narrowed(graph, node, p));
        if narrowed.is_none() {
            *first = Some(None);
        }
        for (i, v) in node.inputs.iter().enumerate() {
            let Some(v) = *v else { continue };
            let part = narrowed.as_ref().map_or_else(|| looks_at(graph, node), |n| n.parts[i]);
            let all = &mut wanted[v.0 as usize];
            *all = Some(match *all {
                None => part,
                Some(before) => part.filter(|&p| before == Some(p)),
            });
        }
    }
    // An input is what it is.
    graph.inputs.iter().for_each(|i| wanted[i.value.0 as usize] = None);
    wanted.into_iter().map(Option::flatten).collect()
}

/// The part of its operand that a selection reads.
fn looks_at(graph: &Graph, node: &Node) -> Option<Part> {
    let cx = graph.cx(node);
    let part = if is(node, &SELECT) {
        let (dim, start) = place(&cx).ok()?;
        Part { dim, start, len: 1 }
    } else if is(node, &SLICE) {
        let r = Range::of(&cx).ok().filter(|r| r.step == 1)?;
        Part { dim: r.dim, start: r.start, len: r.len }
    } else {
        return None;
    };
    (part.len < cx.shape(0).ok()?[part.dim]).then_some(part)
}

/// The way a node makes only a part of its first result; none if it does not treat the indices of that
/// dimension independently.
fn narrowed(graph: &Graph, node: &Node, part: Part) -> Option<Narrowed> {
    let cx = graph.cx(node);
    let out = &graph.ty(node.outputs[0]).shape;
    let mut parts = vec![None; node.inputs.len()];
    let mut attrs = node.attrs.clone();
    if is(node, &LINEAR) {
        let rows = cx.shape(0).ok()?.rank() == out.rank() && part.dim + 1 < out.rank();
        parts[0] = rows.then_some(part);
    } else if is(node, &LAYER_NORM) || is(node, &RMS_NORM) {
        let apart = part.dim + cx.ints("normalized_shape").ok()?.len() < out.rank();
        parts[0] = apart.then_some(part);
    } else if is(node, &ATTENTION) {
        // Queries do not look at each other; but which keys they see may depend on their number, and so does
        // chance.
        let a = Attention::of(&cx, [0, 1, 2, 3, 4]).ok()?;
        parts[0] = (part.dim == 2 && !a.causal && a.dropout == 0.0).then_some(part);
        parts[3] = cx.opt(3).and_then(|mask| broadcast(&mask.shape, out, part));
    } else if let Body::Pointwise(of) = node.op.body {
        if of(&cx).ok()?.iter().any(counts) {
            return None;
        }
        for (i, p) in parts.iter_mut().enumerate() {
            *p = cx.opt(i).and_then(|x| broadcast(&x.shape, out, part));
        }
    } else if [&RESHAPE, &PERMUTE, &TRANSPOSE, &UNSQUEEZE, &ALIAS].iter().any(|&op| is(node, op)) {
        let Body::View(view) = node.op.body else { return None };
        let whole = Layout::contiguous(cx.shape(0).ok()?);
        let seen = (view.layout)(&cx, &whole, 0).ok()??;
        // The dimension that the result's is: of as many indices, with the same stride.
        let as_ours =
            |&d: &usize| (whole.shape[d], whole.strides[d]) == (seen.shape[part.dim], seen.strides[part.dim]);
        let dim = (0..whole.shape.rank()).find(as_ours)?;
        parts[0] = Some(Part { dim, ..part });
        if is(node, &RESHAPE) {
            let shape = shortened(out, part).iter().map(|&d| d as i64).collect::<Vec<_>>();
            attrs.set(if attrs.get("shape").is_some() { "shape" } else { "size" }, shape);
        }
    }
    // Something must be narrower, and the result be the requested range.
    parts.iter().any(Option::is_some).then_some(())?;
    let narrow = |(ty, part): (Option<&TensorType>, &Option<Part>)| match (ty, part) {
        (Some(t), &Some(p)) => Some(TensorType { dtype: t.dtype, shape: shortened(&t.shape, p) }),
        (t, _) => t.cloned(),
    };
    let types: Vec<_> = cx.inputs.iter().copied().zip(&parts).map(narrow).collect();
    let inputs = types.iter().map(Option::as_ref).collect();
    let found = (node.op.infer)(&OpCx { inputs, attrs: &attrs }).ok()?;
    let fits = found.first()?.shape == shortened(out, part);
    fits.then_some(Narrowed { attrs, parts })
}

/// The range of a broadcast operand that a part of the result is made from; none if all of it.
fn broadcast(operand: &Shape, result: &Shape, part: Part) -> Option<Part> {
    let dim = (part.dim + operand.rank()).checked_sub(result.rank())?;
    (operand[dim] == result[part.dim]).then_some(Part { dim, ..part })
}

fn shortened(shape: &Shape, part: Part) -> Shape {
    shape.iter().enumerate().map(|(d, &n)| if d == part.dim { part.len } else { n }).collect()
}

/// True if an expression depends on its position in the result.
pub(super) fn counts(e: &Expr) -> bool {
    match e {
        Expr::Coord(_) => true,
        Expr::Input(_) | Expr::Float(_) | Expr::Int(_) | Expr::Bool(_) => false,
        Expr::Unary(_, a) | Expr::Cast(_, a) => counts(a),
        Expr::Binary(_, a, b) => counts(a) || counts(b),
        Expr::Select(a, b, c) => counts(a) || counts(b) || counts(c),
    }
}
