//! Programs from JSON alone, whose tensors the caller keeps: the same graphs as from archives, and the same
//! refusals.

use crate::support::*;
use headwater_core::graph::verify::verify;
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::{DType, Layout, Registry, Shape};
use headwater_import::{Archive, Dims, GivenTensor, Imported, Program, Result};
use serde_json::Value;

const KINDS: [&str; 2] =
    ["data/weights/model_weights_config.json", "data/constants/model_constants_config.json"];

/// The tensors that an archive stores, as somebody would give them who has them in memory.
fn stored(archive: &Archive, program: &Program) -> Vec<GivenTensor> {
    let mut given = Vec::new();
    let mut entries: Vec<String> = Vec::new();
    for config in KINDS.into_iter().filter(|name| archive.contains(name)) {
        let config: Value = serde_json::from_slice(&archive.entry(config).unwrap()).unwrap();
        for name in config["config"].as_object().unwrap().keys() {
            let stored = program.stored(name).unwrap();
            let at = entries.iter().position(|e| *e == stored.entry).unwrap_or_else(|| {
                entries.push(stored.entry.clone());
                entries.len() - 1
            });
            let (dtype, layout) = (stored.dtype, stored.layout.clone());
            let (storage, storage_bytes) = (at as u64, stored.storage.len());
            given.push(GivenTensor { name: name.clone(), dtype, layout, storage, storage_bytes });
        }
    }
    given
}

#[test]
fn every_golden_is_the_same_graph_without_its_archive() {
    let (mut compared, mut tied) = (0, 0);
    for path in goldens() {
        let archive = Archive::open(&path).unwrap();
        let program = Program::open(&path).unwrap();
        let json = archive.entry("models/model.json").unwrap();
        let dims = Dims::new().or_exported();
        let Ok(want) = program.bind(&dims, Registry::standard()) else { continue };
        let given = Program::from_json(&json, stored(&archive, &program)).unwrap();
        let got = given.bind(&dims, Registry::standard()).unwrap();
        assert_eq!(got.graph.to_string(), want.graph.to_string(), "{}", path.display());
        assert!(got.stored.len() == got.graph.inputs.len() && got.stored.iter().all(Option::is_none));
        let aliases =
            |role: &InputRole| matches!(role, InputRole::Parameter { aliases, .. } if !aliases.is_empty());
        tied += got.graph.inputs.iter().any(|i| aliases(&i.role)) as usize;
        compared += 1;
    }
    assert!(compared >= 18 && tied > 0, "{compared} graphs, {tied} with tied weights");
}

fn given(name: &str, sizes: &[usize], strides: &[isize], offset: isize, storage: u64) -> GivenTensor {
    let strides = strides.iter().copied().collect();
    let layout = Layout { shape: Shape::from(sizes.to_vec()), strides, offset };
    GivenTensor { name: name.into(), dtype: DType::F32, layout, storage, storage_bytes: 32 }
}

/// `w + v` of two parameters f32[4].
fn sum() -> Value {
    let add = node("aten.add.Tensor", &[("self", tensor("p_w")), ("other", tensor("p_v"))], &["y"]);
    let m = meta(7, &[4]);
    let mut doc = model(&[], vec![add], &[("y", m.clone())], &["y"]);
    let mut trained = m;
    trained["requires_grad"] = true.into();
    add_state(&mut doc, "parameter", "p_v", "v", trained.clone());
    add_state(&mut doc, "parameter", "p_w", "w", trained);
    doc
}

fn bind(doc: &Value, tensors: Vec<GivenTensor>) -> Result<Imported> {
    let bound =
        Program::from_json(doc.to_string().as_bytes(), tensors)?.bind(&Dims::new(), Registry::standard())?;
    verify(&bound.graph).unwrap();
    Ok(bound)
}

#[test]
fn tensors_of_one_memory_are_tied_and_those_that_overlap_are_refused() {
    let w = || given("w", &[4], &[1], 0, 7);
    let both = |v: GivenTensor| bind(&sum(), vec![w(), v]);
    assert_eq!(both(given("v", &[4], &[1], 0, 8)).unwrap().graph.inputs.len(), 2);
    assert_eq!(both(given("v", &[4], &[1], 4, 7)).unwrap().graph.inputs.len(), 2, "side by side");
    let tied = both(given("v", &[4], &[1], 0, 7)).unwrap().graph;
    let InputRole::Parameter { trainable: true, aliases } = &tied.inputs[0].role else { panic!() };
    assert_eq!(
        (tied.inputs.len(), tied.inputs[0].name.as_str(), &aliases[..]),
        (1, "w", &["v".to_string()][..])
    );
    let e = both(given("v", &[4], &[1], 1, 7)).unwrap_err();
    assert!(e.code() == "HW-I012" && e.to_string().contains("shares part of its memory"), "{e}");
}

#[test]
fn what_is_given_wrongly_is_refused() {
    let code = |tensors| bind(&sum(), tensors).unwrap_err().code();
    let w = || given("w", &[4], &[1], 0, 1);
    assert_eq!(code(vec![w()]), "HW-I005", "v is missing");
    assert_eq!(code(vec![w(), w()]), "HW-I010");
    for bad in [
        given("v", &[5], &[1], 0, 2),
        given("v", &[4], &[1], 5, 2),
        given("v", &[4], &[3], 0, 2),
        given("v", &[4], &[-1], 3, 2),
        given("v", &[4], &[1], -1, 2),
        given("v", &[4], &[], 0, 2),
        given("v", &[usize::MAX, 2], &[1, 1], 0, 2),
        given("v", &[4], &[isize::MAX], 0, 2),
        given("v", &[1 << 40], &[0], 0, 2),
        GivenTensor { dtype: DType::F16, ..given("v", &[4], &[1], 0, 2) },
    ] {
        let said = format!("{bad:?}");
        assert_eq!(code(vec![w(), bad]), "HW-I012", "{said}");
    }
    let text = sum().to_string();
    let open = |json: &str| Program::from_json(json.as_bytes(), []).unwrap_err().code();
    assert_eq!(open(&text[1..]), "HW-I008");
    assert_eq!(open(&text.replace(r#""major":8"#, r#""major":9"#)), "HW-I007");
    let program = Program::from_json(text.as_bytes(), [w()]).unwrap();
    assert_eq!(program.stored("w").unwrap_err().code(), "HW-I005", "its memory is the caller's");
    program.verify_checksums().unwrap();
    program.release();
}

#[test]
fn a_function_of_its_inputs_returns_what_it_writes_and_ends_gradients_where_the_model_does() {
    let m = meta(7, &[4]);
    let add = node("aten.add_.Tensor", &[("self", tensor("x")), ("other", tensor("x"))], &["h"]);
    let detach = node("aten.detach.default", &[("self", tensor("h"))], &["d"]);
    let mul = node("aten.mul.Tensor", &[("self", tensor("d")), ("other", tensor("d"))], &["y"]);
    let values = ["x", "h", "d", "y"].map(|name| (name, m.clone()));
    let doc = model(&["x"], vec![add, detach, mul], &values, &["y"]).to_string();
    let program = || Program::from_json(doc.as_bytes(), vec![]).unwrap();
    let bind = |program: Program| program.bind(&Dims::new(), Registry::standard()).unwrap();
    let (plain, function) = (bind(program()), bind(program().as_function()));
    verify(&function.graph).unwrap();
    let new = |graph: &headwater_core::Graph| {
        graph.outputs.iter().filter(|o| o.role == OutputRole::Mutation(graph.inputs[0].value)).count()
    };
    assert_eq!((new(&plain.graph), plain.notes.len()), (0, 1));
    assert_eq!((new(&function.graph), function.notes.len()), (1, 0));
    let ends = |graph: &headwater_core::Graph| graph.nodes.iter().filter(|n| n.op.name == "detach").count();
    assert_eq!((ends(&plain.graph), ends(&function.graph)), (0, 1));
}
