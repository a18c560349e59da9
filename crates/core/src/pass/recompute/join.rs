//! Recomputed values are made by a program of the backward pass that reads the same and comes soon. Operands
//! are then read once, and what both compute is computed once, as an activation and its slope. What uses it
//! waits for that program.
//!
//! *Exact*: the same operations on the same numbers. The program that takes it in may sum, but only in an
//! order that its other results do not change. Such are short rows, and sums over rows.

use crate::diagnostic::Result;
use crate::graph::{Graph, Node, Phase, ValueId};
use crate::ops::Body;
use crate::pass::fuse::merge::{Group, beside, fused_node, reduces};
use crate::row::Instr;
use crate::target::{RowProgramLimits, Target};
use std::collections::{HashMap, HashSet};

/// Search window in nodes, and nodes that may be delayed; delaying extends live ranges.
const WINDOW: usize = 24;
const WAITING: usize = 8;

/// Joins the programs whose results are all among `made` with such ones.
///
/// # Errors
/// Refusals of an operator's own program rule.
pub(super) fn join(graph: &mut Graph, target: &Target, made: &HashSet<ValueId>) -> Result<()> {
    let lives = Lives::of(graph);
    // Places that nodes left when they were joined.
    let mut left = vec![false; graph.nodes.len()];
    for at in 0..graph.nodes.len() {
        if left[at] {
            continue;
        }
        if let Some((last, nodes)) = joined(graph, target, at, made, &lives, &left)? {
            let first = last + 1 - nodes.len();
            for (i, node) in (first..).zip(nodes) {
                (graph.nodes[i], left[i]) = (node, false);
            }
            left[at..first].fill(true);
        }
    }
    let mut left = left.into_iter();
    graph.nodes.retain(|_| left.next() == Some(false));
    Ok(())
}

/// If node `at` is joined with a later one: the place of that, and all nodes from `at` up to there anew.
fn joined(
    graph: &Graph,
    target: &Target,
    at: usize,
    made: &HashSet<ValueId>,
    lives: &Lives,
    left: &[bool],
) -> Result<Option<(usize, Vec<Node>)>> {
    let node = &graph.nodes[at];
    if !node.outputs.iter().all(|v| made.contains(v)) {
        return Ok(None);
    }
    let Some(group) = Group::of(graph, node)?.filter(|g| !reduces(&g.program)) else { return Ok(None) };
    // Values that depend on it, and the nodes that make them.
    let mut waiting: Vec<usize> = Vec::new();
    let mut late: HashSet<ValueId> = node.outputs.iter().copied().collect();
    let end = graph.nodes.len().min(at + 1 + WINDOW);
    for p in (at + 1..end).filter(|&p| !left[p]) {
        let other = &graph.nodes[p];
        if other.operands().any(|v| late.contains(&v)) {
            late.extend(&other.outputs);
            waiting.push(p);
            if waiting.len() > WAITING {
                return Ok(None);
            }
            continue;
        }
        // A recomputed value is joined for its own sake: together with it this would come later and later.
        let backward = other.phase == Phase::Backward && !other.outputs.iter().all(|v| made.contains(v));
        if !backward || !other.operands().any(|v| group.reads.contains(&v)) {
            continue;
        }
        // Values that are read for the last time while nodes wait are kept longer.
        let mut longer: HashSet<ValueId> = HashSet::new();
        for v in waiting.iter().flat_map(|&i| graph.nodes[i].operands()).filter(|v| !late.contains(v)) {
            longer.extend(lives.root(v).filter(|r| lives.last[r] <= p));
        }
        // As floats: of sizes that nothing could hold, sums would overflow.
        let bytes = |v: &ValueId| graph.ty(*v).bytes() as f64;
        if longer.iter().map(bytes).sum::<f64>()
            > target.recompute.longer_lives * node.outputs.iter().map(bytes).sum::<f64>()
        {
            return Ok(None);
        }
        let other = Group::of(graph, other)?.filter(|g| keeps_order(g, &target.rows));
        let Some(both) = other.and_then(|g| beside(&target.rows, &g, &group)) else { continue };
        let Node { origin, phase, .. } = graph.nodes[p];
        let both = fused_node(graph, both, origin, phase)?;
        let before = (at + 1..p).filter(|i| !left[*i] && !waiting.contains(i));
        let before = before.map(|i| graph.nodes[i].clone());
        let behind = waiting.iter().map(|&i| graph.nodes[i].clone());
        return Ok(Some((p, before.chain([both]).chain(behind).collect())));
    }
    Ok(None)
}

/// Which node reads a value or a view of it last, of values that are neither inputs nor outputs.
struct Lives {
    root: HashMap<ValueId, ValueId>,
    last: HashMap<ValueId, usize>,
}

impl Lives {
    fn of(graph: &Graph) -> Lives {
        let mut lives = Lives { root: HashMap::new(), last: HashMap::new() };
        for (n, node) in graph.nodes.iter().enumerate() {
            let roots: Vec<ValueId> = node.operands().filter_map(|v| lives.root(v)).collect();
            lives.last.extend(roots.iter().map(|&r| (r, n)));
            for &v in &node.outputs {
                match (node.op.body, roots.first()) {
                    (Body::View(_), Some(&r)) => drop(lives.root.insert(v, r)),
                    (Body::View(_), None) => {}
                    _ => drop(lives.root.insert(v, v)),
                }
                lives.last.entry(v).or_insert(n);
            }
        }
        for o in &graph.outputs {
            lives.root(o.value).map(|r| lives.last.insert(r, usize::MAX));
        }
        lives
    }

    /// The value whose elements a value shows; none of inputs.
    fn root(&self, v: ValueId) -> Option<ValueId> {
        self.root.get(&v).copied()
    }
}

/// True if the order of a program's sums does not depend on its other results: sums of rows that the device
/// reduces in one piece, and sums over rows where the device orders them by sizes alone. The rewrite is exact
/// because of it.
pub(in crate::pass) fn keeps_order(g: &Group, limits: &RowProgramLimits) -> bool {
    g.program.body.iter().all(|instr| match instr {
        Instr::Reduce(..) => g.program.cols() <= limits.whole_columns,
        Instr::Columns(..) => limits.column_order,
        _ => true,
    })
}
