//! The tensor whose dtype a conversion takes, `.to(x.dtype)`, where an export in f32 says f32. Source lines
//! and modules tell, as far as they are recorded. Knows no levels.

use crate::dtype::DType;
use crate::graph::{Graph, InputRole, NamedDType, Node, Origin, ValueId};
use crate::ops::pointwise::to::is_idle;

/// Nodes before a conversion that are looked at.
const REACH: usize = 4096;

/// The value whose dtype node `n`, a conversion of f32 to f32, takes; `None` if that is not known.
///
/// In `y.to(x.dtype)`, `x` is what the last line `x = …` of the module makes; without one it is an argument
/// of the module, and so what the module reads first. In `y.to(dtype)` it is what the module's last
/// conversion to f32 has read: models note the dtype before they widen.
pub(super) fn like(graph: &Graph, n: usize) -> Option<ValueId> {
    let node = &graph.nodes[n];
    if let Some(&Some(other)) = node.inputs.get(1) {
        return Some(before_conversions(graph, other));
    }
    let origin = graph.origin(node);
    if origin.named_dtype() != NamedDType::Other {
        return None;
    }
    let module = &origin.module;
    let inside = |o: &Origin| {
        module.is_empty()
            || o.module.strip_prefix(&module[..]).is_some_and(|r| r.is_empty() || r.starts_with('.'))
    };
    let before = &graph.nodes[n.saturating_sub(REACH)..n];
    let own = |node: &&Node| inside(graph.origin(node));
    let Some(name) = variable(&origin.code) else {
        let widens = |n: &&Node| {
            is_idle(graph, n)
                && graph.origin(n).module == *module
                && graph.origin(n).named_dtype() != NamedDType::Other
        };
        let last = before.iter().rev().find(widens)?;
        return last.inputs.first().copied().flatten().map(|v| before_conversions(graph, v));
    };
    // A parameter, f32 wherever this is asked.
    if name.starts_with("self.") {
        return None;
    }
    if let Some(made) = before.iter().rev().filter(own).find(|n| assigns(&graph.origin(n).code, name)) {
        return made.outputs.first().copied();
    }
    let argument = |v: &ValueId| {
        let state = |i: usize| !matches!(graph.inputs[i].role, InputRole::User);
        let made = graph.producer(*v).is_some_and(|(n, _)| inside(graph.origin(n)));
        graph.ty(*v).dtype.is_float() && !made && !graph.input_index(*v).is_some_and(state)
    };
    let mut read = before.iter().filter(own).flat_map(Node::operands);
    read.find(argument).map(|v| before_conversions(graph, v))
}

/// The value that conversions of f32 to f32 have made `v` of.
fn before_conversions(graph: &Graph, mut v: ValueId) -> ValueId {
    while let Some((node, _)) = graph.producer(v).filter(|(n, _)| is_idle(graph, n))
        && let Some(&Some(x)) = node.inputs.first()
        && graph.ty(x).dtype == DType::F32
    {
        v = x;
    }
    v
}

/// `x` of the last `x.dtype` in a line.
fn variable(code: &str) -> Option<&str> {
    let end = code.rfind(".dtype")?;
    let start =
        code[..end].rfind(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')).map_or(0, |i| i + 1);
    Some(&code[start..end]).filter(|name| !name.is_empty())
}

/// True for a line that assigns to a variable, among others.
fn assigns(code: &str, name: &str) -> bool {
    let Some((left, _)) = code.split_once(" = ") else { return false };
    left.split(',').any(|target| target.trim() == name)
}
