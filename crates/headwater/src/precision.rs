//! Summary of mixed precision in a model: which operator and which module computes in what, and why.

use crate::core::graph::Graph;
use crate::core::pass::precision::{Decision, Mixed};
use serde::Serialize;
use std::collections::BTreeMap;

/// Uses of an operator that were treated alike.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OperatorPrecision {
    /// ATen name.
    pub name: String,
    /// The float dtype it computes in.
    pub dtype: String,
    /// Why.
    pub reason: String,
    /// Number of uses.
    pub uses: usize,
    /// Path of the module of the first.
    pub first: String,
}

/// Operators of a module and all modules inside it, by dtype.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModulePrecision {
    /// Path, `(root)` for the model itself.
    pub path: String,
    /// Number of operators that compute in each dtype.
    pub uses: BTreeMap<String, usize>,
}

/// Dtypes of a model's operators in mixed precision.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PrecisionUse {
    /// By operator.
    pub operators: Vec<OperatorPrecision>,
    /// By module.
    pub modules: Vec<ModulePrecision>,
    /// Conversions in the graph, those included that the model spells out.
    pub casts: usize,
}

/// Sums up the decisions of the precision pass. Operators that handle no floats are left out. Module paths
/// are cut after `depth` names.
pub fn summary(mixed: &Mixed, depth: usize) -> PrecisionUse {
    let graph = &mixed.graph;
    let mut operators: BTreeMap<(&str, &str, String), (usize, String)> = BTreeMap::new();
    let mut modules: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    for d in &mixed.decisions {
        let Some(dtype) = d.dtype else { continue };
        let path = module(graph, d, depth);
        let entry = operators.entry((d.op.name, dtype.name(), d.reason.to_string()));
        entry.or_insert_with(|| (0, path.clone())).0 += 1;
        *modules.entry(path).or_default().entry(dtype.name().to_string()).or_default() += 1;
    }
    let operators = operators.into_iter().map(|((name, dtype, reason), (uses, first))| OperatorPrecision {
        name: name.to_string(),
        dtype: dtype.to_string(),
        reason,
        uses,
        first,
    });
    PrecisionUse {
        operators: operators.collect(),
        modules: modules.into_iter().map(|(path, uses)| ModulePrecision { path, uses }).collect(),
        casts: graph.nodes.iter().filter(|n| n.op.name == "to").count(),
    }
}

fn module(graph: &Graph, d: &Decision, depth: usize) -> String {
    let path = &graph.origins[d.origin.0 as usize].module;
    let cut = path.split('.').take(depth).collect::<Vec<_>>().join(".");
    if cut.is_empty() { "(root)".into() } else { cut }
}
