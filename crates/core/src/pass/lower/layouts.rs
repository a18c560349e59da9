//! Layout assignment: the order in which the dimensions of a result have in memory. A model may compute
//! `[batch, heads, length, size]` and then read `[batch, length, heads · size]`. The result is written that
//! way at once, and the operators after it become views.

use crate::diagnostic::Result;
use crate::graph::{Graph, Node, ValueId};
use crate::ops::Body;
use crate::row::Instr;
use crate::shape::Layout;
use crate::target::{Port, Target};
use crate::tensor::TensorType;
use std::collections::HashMap;

/// The values that are better laid out otherwise than in row-major order, and how: without gaps, the last
/// dimension as it is. Values that `bound` says have a buffer of the caller are excluded.
///
/// The first user decides that can see the value, through views that only reorder, only if these are
/// contiguous. It does not if another needs the value itself in order.
pub(super) fn layouts(
    graph: &Graph,
    target: &Target,
    bound: &dyn Fn(ValueId) -> bool,
) -> Result<HashMap<ValueId, Layout>> {
    let search = Search::new(graph, target);
    let mut out = HashMap::new();
    for node in &graph.nodes {
        for (i, &v) in node.outputs.iter().enumerate() {
            if graph.ty(v).shape.rank() < 3 || bound(v) || !search.free(node, i)? {
                continue;
            }
            if let Some(layout) = search.wanted(v)? {
                out.insert(v, layout);
            }
        }
    }
    Ok(out)
}

pub(super) struct Search<'a> {
    graph: &'a Graph,
    target: &'a Target,
    /// Nodes that use a value, and as which operand.
    pub(super) users: Vec<Vec<(usize, usize)>>,
}

impl<'a> Search<'a> {
    pub(super) fn new(graph: &'a Graph, target: &'a Target) -> Search<'a> {
        let mut users = vec![Vec::new(); graph.values.len()];
        for (n, node) in graph.nodes.iter().enumerate() {
            for (i, v) in node.inputs.iter().enumerate() {
                v.iter().for_each(|v| users[v.0 as usize].push((n, i)));
            }
        }
        Search { graph, target, users }
    }

    /// True if a node's kernel takes an operand in any layout.
    fn strided(&self, node: &Node, port: Port) -> bool {
        let types: Vec<TensorType> = node.outputs.iter().map(|&v| self.graph.ty(v).clone()).collect();
        self.target.operators.strided(node.op, &self.graph.cx(node), &types, port)
    }

    /// True if a node can write an output in another order, and with gaps.
    pub(super) fn free(&self, node: &Node, i: usize) -> Result<bool> {
        Ok(match node.op.body {
            Body::Kernel(_) => self.strided(node, Port::Write(i)),
            Body::Pointwise(_) => true,
            Body::Rows(f) => {
                let types: Vec<_> = node.outputs.iter().map(|&v| self.graph.ty(v).clone()).collect();
                let program = f(&self.graph.cx(node), &types)?;
                // Sums over rows go to a vector.
                !program.body.iter().any(|k| matches!(k, Instr::Columns(w, _) if *w == i))
            }
            Body::Copies(_) => true,
            Body::View(_) | Body::Update(_) | Body::Decompose(_) | Body::Collective(_) => false,
        })
    }

    /// The layout of `v` that its users prefer.
    fn wanted(&self, v: ValueId) -> Result<Option<Layout>> {
        let own = Layout::contiguous(&self.graph.ty(v).shape);
        let mut found = None;
        let mut seen = vec![(v, own.clone())];
        while let Some((w, layout)) = seen.pop() {
            for &(n, i) in &self.users[w.0 as usize] {
                let node = &self.graph.nodes[n];
                let needs_order = match node.op.body {
                    Body::View(view) => {
                        let mut copied = false;
                        for (o, &y) in node.outputs.iter().enumerate() {
                            match (view.layout)(&self.graph.cx(node), &layout, o)? {
                                Some(l) if reordered(&own, &l).is_some() => seen.push((y, l)),
                                Some(_) => {}
                                None => copied = true,
                            }
                        }
                        copied
                    }
                    Body::Kernel(_) => !self.strided(node, Port::Read(i)),
                    Body::Update(_) | Body::Collective(_) => true,
                    _ => false,
                };
                if needs_order {
                    match layout.is_contiguous() {
                        true => return Ok(None),
                        false => found = found.or_else(|| reordered(&own, &layout)),
                    }
                }
            }
        }
        Ok(found)
    }
}

/// The layout of a value under which `seen`, made by views of its row-major layout `own`, is contiguous.
/// `None` if `seen` is more than another order of dimensions, or the last would not stay the last.
fn reordered(own: &Layout, seen: &Layout) -> Option<Layout> {
    if seen.offset != 0 {
        return None;
    }
    // Dimensions of size 1 do not matter; of all others the strides differ.
    let large = |l: &Layout| (0..l.shape.rank()).filter(|&d| l.shape[d] != 1).collect::<Vec<_>>();
    let (from, to) = (large(own), large(seen));
    let goal = Layout::contiguous(&seen.shape);
    let mut out = own.clone();
    out.strides.iter_mut().for_each(|s| *s = 1);
    for &d in &to {
        let at =
            from.iter().find(|&&e| own.strides[e] == seen.strides[d] && own.shape[e] == seen.shape[d])?;
        out.strides[*at] = goal.strides[d];
    }
    (from.len() == to.len() && from.last().map(|&d| out.strides[d]) == Some(1)).then_some(out)
}
