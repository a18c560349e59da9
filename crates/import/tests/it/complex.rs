//! Complex numbers: what becomes of them, and what is refused.

use crate::support::*;
use headwater_core::graph::verify::verify;
use headwater_core::tensor::Tensor;
use headwater_core::{DType, Registry, reference};
use headwater_import::{Dims, Imported, Program, Result};
use serde_json::{Value, json};

/// PyTorch's code of complex64.
const COMPLEX64: u64 = 10;

fn bind(model: &Value) -> Result<Imported> {
    let imported = Program::from_bytes(Pt2::new(model).bytes())?.bind(&Dims::new(), Registry::standard())?;
    verify(&imported.graph).unwrap();
    Ok(imported)
}

fn refusal(model: &Value) -> (&'static str, String) {
    let e = bind(model).unwrap_err();
    (e.code(), e.to_string())
}

/// A model of `x: f32[3, 2]`, whose `z: complex64[3]` shows it, and of more nodes and values.
fn of_pairs(nodes: Vec<Value>, values: &[(&str, Value)], output: &str) -> Value {
    let shown = node("aten.view_as_complex.default", &[("self", tensor("x"))], &["z"]);
    let own = [("x", meta(7, &[3, 2])), ("z", meta(COMPLEX64, &[3]))];
    let nodes = [shown].into_iter().chain(nodes).collect();
    model(&["x"], nodes, &own.iter().chain(values).cloned().collect::<Vec<_>>(), &[output])
}

fn of(target: &str, name: &str, y: &str) -> Value {
    node(target, &[("self", tensor(name))], &[y])
}

/// A call of two arguments.
fn two(target: &str, a: &str, other: Value, y: &str) -> Value {
    node(target, &[("self", tensor(a)), ("other", other)], &[y])
}

fn number(re: f64, im: f64) -> Value {
    json!({"as_complex": {"real": re, "imag": im}})
}

fn run(imported: &Imported, x: [f64; 6]) -> Vec<f64> {
    let x = Tensor::float(DType::F32, [3, 2], x.to_vec());
    reference::run(&imported.graph, &[x]).unwrap()[0].to_f64()
}

const X: [f64; 6] = [1.0, 2.0, -3.0, 0.5, 0.0, -1.0];

#[test]
fn a_complex_result_is_pairs() {
    let m = of_pairs(
        vec![two("aten.mul.Tensor", "z", number(0.0, 1.0), "y")],
        &[("y", meta(COMPLEX64, &[3]))],
        "y",
    );
    let imported = bind(&m).unwrap();
    assert_eq!(imported.graph.ty(imported.graph.outputs[0].value).to_string(), "f32[3, 2]");
    // Times i: real and imaginary part change places, one changes its sign.
    assert_eq!(run(&imported, X), [-2.0, 1.0, -0.5, -3.0, 1.0, 0.0]);
}

#[test]
fn a_write_to_the_imaginary_part_reaches_the_tensor() {
    let nodes = vec![
        of("aten.imag.default", "z", "im"),
        node("aten.mul_.Tensor", &[("self", tensor("im")), ("other", json!({"as_float": 10.0}))], &["w"]),
        of("aten.view_as_real.default", "z", "y"),
    ];
    let (part, pairs) = (meta(7, &[3]), meta(7, &[3, 2]));
    let m = of_pairs(nodes, &[("im", part.clone()), ("w", part), ("y", pairs)], "y");
    assert_eq!(run(&bind(&m).unwrap(), X), [1.0, 20.0, -3.0, 5.0, 0.0, -10.0]);
}

#[test]
fn a_conjugate_follows_what_it_shows_and_is_not_written_through() {
    let c = meta(COMPLEX64, &[3]);
    let conj = of("aten._conj.default", "z", "c");
    let double = |name: &str| two("aten.mul_.Tensor", name, json!({"as_float": 2.0}), "w");
    let values = [("c", c.clone()), ("w", c.clone()), ("y", meta(7, &[3, 2]))];
    let seen = vec![conj.clone(), double("z"), of("aten.view_as_real.default", "c", "y")];
    let imported = bind(&of_pairs(seen, &values, "y")).unwrap();
    assert_eq!(run(&imported, X), [2.0, -4.0, -6.0, -1.0, 0.0, 2.0]);
    let written = vec![conj, double("c"), of("aten.view_as_real.default", "z", "y")];
    let (code, text) = refusal(&of_pairs(written, &values, "y"));
    assert!(code == "HW-I015" && text.contains("`conj`"), "{text}");
}

#[test]
fn inputs_of_complex_numbers_are_refused_by_name_with_a_way_out() {
    let c = meta(COMPLEX64, &[3]);
    let m = model(&["z"], vec![of("aten.abs.default", "z", "y")], &[("z", c), ("y", meta(7, &[3]))], &["y"]);
    let (code, text) = refusal(&m);
    assert!(code == "HW-I011" && text.contains("`z`") && text.contains("torch.view_as_real"), "{text}");
}

#[test]
fn operators_that_are_not_known_of_pairs_are_refused_with_a_way_out() {
    let c = meta(COMPLEX64, &[3]);
    for target in ["aten.tan.default", "aten.nonesuch.default", "mine.thing.default", "aten.relu_.default"] {
        let (code, text) = refusal(&of_pairs(vec![of(target, "z", "y")], &[("y", c.clone())], "y"));
        assert!(code == "HW-I015" && text.contains("view_as_real"), "{target}: {text}");
    }
    // A number in both parts, a power that is not an integer.
    let half = json!({"as_float": 0.5});
    let pad = node(
        "aten.constant_pad_nd.default",
        &[("self", tensor("z")), ("pad", json!({"as_ints": [0, 1]})), ("value", half.clone())],
        &["y"],
    );
    let pow = node("aten.pow.Tensor_Scalar", &[("self", tensor("z")), ("exponent", half)], &["y"]);
    for (node, y, word) in [(pad, meta(COMPLEX64, &[4]), "both parts"), (pow, c.clone(), "whole numbers")] {
        let (code, text) = refusal(&of_pairs(vec![node], &[("y", y)], "y"));
        assert!(code == "HW-I015" && text.contains(word), "{text}");
    }
    // A complex number that does not fit the result.
    let (code, _) = refusal(&of_pairs(
        vec![two("aten.add.Tensor", "x", number(1.0, 1.0), "y")],
        &[("y", meta(7, &[3, 2]))],
        "y",
    ));
    assert_eq!(code, "HW-I017");
}

#[test]
fn types_that_contradict_each_other_are_refused() {
    // Named complex where a sub-graph is given real numbers.
    for sizes in [&[4][..], &[2, 3], &[]] {
        let nodes = [two("aten.mul.Tensor", "a", tensor("a"), "b")];
        let graph = json!({"as_graph": {"name": "g", "graph": {"inputs": [tensor("a")], "outputs": [tensor("b")],
            "nodes": nodes, "tensor_values": {"a": meta(COMPLEX64, sizes), "b": meta(COMPLEX64, sizes)}}}});
        let inputs = [("", json!({"as_bool": true})), ("", graph), ("", tensor("x"))];
        let wrap = node("higher_order.wrap_with_set_grad_enabled", &inputs, &["y"]);
        let m = model(&["x"], vec![wrap], &[("x", meta(7, sizes)), ("y", meta(COMPLEX64, sizes))], &["y"]);
        assert_eq!(refusal(&m).0, "HW-I016", "{sizes:?}");
    }
    // A part of a pair.
    let odd = of("aten.view_as_complex.default", "x", "z");
    let m = model(&["x"], vec![odd], &[("x", meta(7, &[3])), ("z", meta(COMPLEX64, &[]))], &["z"]);
    assert_eq!(refusal(&m).0, "HW-I016");
}

#[test]
fn weights_of_complex_numbers_are_pairs_in_the_same_bytes() {
    let c = meta(COMPLEX64, &[2]);
    let mut m = model(
        &["x"],
        vec![two("aten.mul.Tensor", "x", tensor("w"), "y"), of("aten.view_as_real.default", "y", "r")],
        &[("x", meta(7, &[2])), ("y", c.clone()), ("r", meta(7, &[2, 2]))],
        &["r"],
    );
    add_state(&mut m, "parameter", "w", "w", c);
    let mut pt2 = Pt2::new(&m);
    // Every second element of a storage.
    let stored = strided(COMPLEX64, &[2], &[2], 1);
    pt2.weights(
        &json!({"config": {"w": {"path_name": "weight_0", "is_param": true, "use_pickle": false, "tensor_meta": stored}}}),
    );
    let bytes: Vec<u8> = (0..8u8).flat_map(|i| f32::from(i).to_le_bytes()).collect();
    pt2.set("data/weights/weight_0", bytes);
    let bound = Program::from_bytes(pt2.bytes()).unwrap().bind(&Dims::new(), Registry::standard()).unwrap();
    let stored = bound.stored[0].as_ref().unwrap();
    assert_eq!((stored.dtype, &stored.layout.shape[..]), (DType::F32, &[2, 2][..]));
    let values: Vec<f32> =
        stored.to_bytes().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(values, [2.0, 3.0, 6.0, 7.0]);
    // One element more than there is.
    let m = strided(COMPLEX64, &[2], &[3], 1);
    pt2.weights(
        &json!({"config": {"w": {"path_name": "weight_0", "is_param": true, "use_pickle": false, "tensor_meta": m}}}),
    );
    let e = Program::from_bytes(pt2.bytes()).unwrap().bind(&Dims::new(), Registry::standard()).unwrap_err();
    assert_eq!(e.code(), "HW-I012");
}
