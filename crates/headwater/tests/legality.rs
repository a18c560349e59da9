//! Graphs of real models stay legal and print exactly through every pass.

use headwater::core::graph::{Graph, OutputRole, parse, verify};
use headwater::core::target::Target;
use headwater::core::{DType, Registry, pass};
use headwater::model::{Model, parse_dims};
use std::path::{Path, PathBuf};

fn models() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder =
        |p: &Path| -> Vec<PathBuf> { std::fs::read_dir(p).unwrap().map(|e| e.unwrap().path()).collect() };
    let mut found: Vec<PathBuf> = folder(&root.join("goldens"))
        .into_iter()
        .chain(folder(&root.join("examples")))
        .filter(|p| p.is_dir())
        .flat_map(|p| folder(&p))
        .filter(|p| p.extension().is_some_and(|e| e == "pt2"))
        .collect();
    found.sort();
    found
}

/// Legal, and the same after printing and parsing.
fn sound(what: &str, graph: &Graph, registry: &Registry) {
    verify(graph).unwrap_or_else(|e| panic!("{what}: {e}"));
    let text = graph.to_string();
    let back = parse(&text, registry).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(back.to_string() == text, "{what} does not print as it parses");
}

#[test]
fn every_pass_keeps_real_models_legal() {
    let models = models();
    assert!(models.len() >= 19, "nine families in two forms and an example, found {models:?}");
    for path in models {
        let model = Model::open(&path).unwrap_or_else(|e| panic!("{e:#}"));
        let bound = model.bind(&parse_dims(&[]).unwrap().or_exported()).unwrap_or_else(|e| panic!("{e:#}"));
        let at = |pass: &str| format!("{} after {pass}", path.file_name().unwrap().display());
        let registry = &model.registry;
        sound(&at("import"), &bound.graph, registry);
        let lifted = pass::lift(&bound.graph, DType::F64).unwrap();
        sound(&at("lift"), &lifted, registry);
        let evaluation = pass::evaluation(&bound.graph).unwrap();
        sound(&at("evaluation"), &evaluation, registry);
        let graph = pass::decompose(bound.graph.clone()).unwrap();
        sound(&at("decompose"), &graph, registry);
        let loss = graph.outputs.iter().find(|o| o.role == OutputRole::User).unwrap().value;
        let d = pass::differentiate(graph, loss).unwrap();
        sound(&at("differentiate"), &d.graph, registry);
        let graph = pass::decompose(d.graph).unwrap();
        sound(&at("decompose again"), &graph, registry);
        let s = pass::simplify(graph);
        sound(&at("simplify"), &s.graph, registry);
        let again = pass::simplify(s.graph.clone());
        let changes = (again.folded, again.identities, again.merged, again.dead);
        assert_eq!(changes, (0, 0, 0, 0), "{}", at("simplify again"));
        let graph = pass::fuse(s.graph, &Target::default()).unwrap();
        sound(&at("fuse"), &graph, registry);
        let graph = pass::recompute(graph, &Target::default()).unwrap();
        sound(&at("recompute"), &graph, registry);
    }
}
