//! Sparse gradients of embeddings: the rows that a batch reads, instead of a table of zeros around them.
//!
//! A table's gradient that is one [`EMBEDDING_DENSE_BACKWARD`] becomes an [`EMBEDDING_SPARSE_BACKWARD`]:
//! numbers of rows and their sums, as PyTorch has them for `sparse=True`. They are written to state, for an
//! update that steps these rows alone ([`super::update_graph`]). Sums are the same.

use super::key::{Kept, StateKey};
use crate::attr::{Attr, Attrs};
use crate::diagnostic::Result;
use crate::graph::{Builder, Def, Graph, InputRole, Node, OutputRole, Phase, ValueId};
use crate::ops::index::embedding::EMBEDDING;
use crate::ops::index::embedding_grad::{EMBEDDING_DENSE_BACKWARD, EMBEDDING_SPARSE_BACKWARD};
use crate::ops::pointwise::to::TO;
use crate::tensor::TensorType;
use crate::{DType, ensure, fail};

/// Tables whose gradients are sparse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SparseEmbeddings<'a> {
    /// Embeddings that the model marks by `sparse=True`.
    Marked,
    /// These, and every other of which a batch reads at most half the rows.
    All,
    /// These parameters, each with the most rows that a batch reads.
    Given(&'a [(String, usize)]),
}

/// A table whose gradient can be sparse.
struct Table {
    /// Position of its gradient among the outputs.
    output: usize,
    parameter: ValueId,
    name: String,
    /// The node of the dense gradient.
    dense: Node,
    /// Most rows that the indices can name.
    rows: usize,
}

/// Makes gradients of embeddings sparse. The dense ones are left for `simplify` to drop.
///
/// # Errors
/// `Graph` if a table that is given has no such gradient, or reads more rows than given.
pub fn sparse_gradients(graph: Graph, which: SparseEmbeddings) -> Result<Graph> {
    let mut b = Builder::extend(graph);
    b.phase = Phase::Backward;
    let mut chosen = Vec::new();
    for table in tables(b.graph())? {
        let (all, marked) = (table.dense_rows(), is_marked(b.graph(), table.parameter));
        let capacity = match which {
            SparseEmbeddings::Marked => marked.then_some(table.rows),
            SparseEmbeddings::All => (marked || table.rows <= all / 2).then_some(table.rows),
            SparseEmbeddings::Given(given) => given.iter().find(|g| g.0 == table.name).map(|g| g.1),
        };
        if let Some(capacity) = capacity {
            let (name, rows) = (&table.name, table.rows);
            ensure!(rows <= capacity, Graph, "{name} may read {rows} rows, there is room for {capacity}");
            chosen.push((table, capacity));
        }
    }
    if let SparseEmbeddings::Given(given) = which {
        let missing = given.iter().find(|g| !chosen.iter().any(|(t, _)| t.name == g.0));
        if let Some((name, _)) = missing {
            return Err(fail!(Graph, "the gradient of {name} is not sparse in this graph"));
        }
    }
    for (table, capacity) in chosen {
        b.origin = table.dense.origin;
        let attrs = ["num_weights", "padding_idx", "scale_grad_by_freq"].into_iter();
        let mut attrs = attrs.fold(Attrs::new(), |attrs, name| match table.dense.attrs.get(name) {
            Some(x) => attrs.with(name, x.clone()),
            None => attrs,
        });
        attrs.set("capacity", capacity as i64);
        let made = b.apply(&EMBEDDING_SPARSE_BACKWARD, &table.dense.inputs, attrs)?;
        let dtype = b.ty(table.parameter).dtype;
        let values = b.cast(made[1], dtype)?;
        let parts =
            [(StateKey::gradient_rows(&table.name), made[0]), (StateKey::gradient(&table.name), values)];
        for (i, (key, value)) in parts.into_iter().enumerate() {
            let ty = b.ty(value).clone();
            let target = b.input(key.to_string(), ty, InputRole::State);
            if i == 0 {
                let output = &mut b.graph_mut().outputs[table.output];
                (output.value, output.role) = (value, OutputRole::Mutation(target));
                output.name = key.to_string();
            } else {
                b.output(key.to_string(), value, OutputRole::Mutation(target));
            }
        }
    }
    Ok(b.finish())
}

impl Table {
    /// Rows of the table.
    fn dense_rows(&self) -> usize {
        self.dense.attrs.get("num_weights").map_or(0, |a| match a {
            Attr::Int(n) => usize::try_from(*n).unwrap_or(0),
            _ => 0,
        })
    }
}

/// Tables whose gradient is one dense gradient of an embedding, perhaps converted.
fn tables(graph: &Graph) -> Result<Vec<Table>> {
    let mut found = Vec::new();
    for (output, o) in graph.outputs.iter().enumerate() {
        let OutputRole::Gradient(parameter) = o.role else { continue };
        let Some(dense) = producer(graph, o.value) else { continue };
        if dense.op.name != EMBEDDING_DENSE_BACKWARD.name {
            continue;
        }
        let input = graph.input_index(parameter).ok_or_else(|| fail!(Graph, "{} is of no input", o.name))?;
        let name = graph.inputs[input].name.clone();
        let mut table = Table { output, parameter, name, dense: dense.clone(), rows: 0 };
        let numbers = table.dense.inputs.get(1).copied().flatten().map_or(0, |v| graph.ty(v).shape.numel());
        table.rows = numbers.min(table.dense_rows());
        found.push(table);
    }
    Ok(found)
}

/// The node that computes a value, looking through conversions of dtype.
fn producer(graph: &Graph, mut v: ValueId) -> Option<&Node> {
    loop {
        let (node, _) = graph.producer(v)?;
        match node.op.name == TO.name {
            true => v = node.operands().next()?,
            false => return Some(node),
        }
    }
}

/// True if an embedding with `sparse=True` reads the parameter.
fn is_marked(graph: &Graph, parameter: ValueId) -> bool {
    let root = |mut v: ValueId| loop {
        match graph.producer(v) {
            Some((node, _)) if node.op.name == TO.name => match node.operands().next() {
                Some(x) => v = x,
                None => return v,
            },
            _ => return v,
        }
    };
    let marks = |n: &&Node| n.op.name == EMBEDDING.name && n.attrs.get("sparse") == Some(&Attr::Bool(true));
    graph.nodes.iter().filter(marks).any(|n| n.operands().next().map(root) == Some(parameter))
}

/// The parameters of a graph whose gradients are sparse: name, type and most rows, in the order of outputs.
pub fn sparse_tables(graph: &Graph) -> Vec<(ValueId, String, TensorType, usize)> {
    let mut found = Vec::new();
    for o in &graph.outputs {
        let OutputRole::Mutation(target) = o.role else { continue };
        let key = graph.input_index(target).and_then(|i| StateKey::of(&graph.inputs[i]));
        let Some(StateKey::Part(name, Kept::GradientRows)) = key else { continue };
        if let Some(parameter) = graph.input(&name) {
            debug_assert_eq!(graph.ty(target).dtype, DType::I64);
            let (ty, rows) = (graph.ty(parameter.value).clone(), graph.ty(target).shape.numel());
            let made = match graph.value(o.value).def {
                Def::Node(..) => o.value,
                Def::Input(_) => target,
            };
            found.push((made, name, ty, rows));
        }
    }
    found
}
