//! Conversions of f32 to f32, which an export names in the place of what it converts.

use headwater_core::graph::{Graph, Node};
use headwater_core::ops::pointwise::to::is_idle;
use headwater_core::{Registry, ValueId};
use headwater_import::{Dims, Program};
use std::path::Path;

fn graph(name: &str) -> Graph {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../goldens/precision/casts/{name}.pt2"));
    let program = Program::from_bytes(std::fs::read(file).unwrap()).unwrap();
    program.bind(&Dims::new().or_exported(), Registry::standard()).unwrap().graph
}

fn node<'a>(graph: &'a Graph, name: &str) -> &'a Node {
    graph.nodes.iter().find(|n| graph.origin(n).node == name).unwrap_or_else(|| panic!("no {name}"))
}

/// True if a value is the result of a conversion to the dtype that there is.
fn converted(graph: &Graph, v: ValueId) -> bool {
    graph.producer(v).is_some_and(|(n, _)| is_idle(graph, n))
}

#[test]
fn both_forms_of_an_export_keep_them() {
    let idle = |name: &str| {
        let graph = graph(name);
        graph.nodes.iter().filter(|n| is_idle(&graph, n)).count()
    };
    for (name, count) in [
        ("variance", 1),
        ("divergence", 2),
        ("llama_norm", 2),
        ("apex_norm", 2),
        ("attention", 2),
        ("layer_scale", 3),
    ] {
        for form in ["train", "core"] {
            assert_eq!(idle(&format!("{name}.{form}")), count, "{name}.{form}");
        }
    }
}

#[test]
fn a_module_that_converts_its_argument_leaves_it_to_others_as_it_was() {
    for form in ["train", "core"] {
        let g = graph(&format!("llama_norm.{form}"));
        // Inside of the norm.
        let square = node(&g, "pow_1").operands().next().unwrap();
        assert!(converted(&g, square), "{form}");
        // Outside, where the export names the same value: `h + outer(norm(h))`.
        let mut residual = node(&g, "add_1").operands();
        assert!(residual.all(|v| !converted(&g, v)), "{form}");
        // The module that reads it is the one that converts.
        let g = graph(&format!("variance.{form}"));
        assert!(node(&g, "add").operands().all(|v| converted(&g, v)), "{form}");
    }
}
