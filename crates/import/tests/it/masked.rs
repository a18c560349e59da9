//! Elements that a mask selects: sums and means of them, and what is refused.

use crate::support::*;
use headwater_core::graph::{InputRole, verify::verify};
use headwater_core::pass::{decompose, differentiate};
use headwater_core::tensor::Tensor;
use headwater_core::{DType, Registry, reference};
use headwater_import::{Dims, Imported, Program, Result};
use serde_json::{Value, json};

fn bind(model: &Value) -> Result<Imported> {
    let imported = Program::from_bytes(Pt2::new(model).bytes())?.bind(&Dims::new(), Registry::standard())?;
    verify(&imported.graph).unwrap();
    Ok(imported)
}

/// Metadata of a tensor of as many elements as a mask selects.
fn selected() -> Value {
    let mut m = meta(7, &[1]);
    m["sizes"] = json!([symbol("u0", 2)]);
    m
}

fn of(target: &str, x: &str, y: &str) -> Value {
    node(target, &[("self", tensor(x))], &[y])
}

fn two(target: &str, x: &str, other: &str, y: &str) -> Value {
    node(target, &[("self", tensor(x)), ("other", tensor(other))], &[y])
}

fn index(x: &str, mask: &str, y: &str) -> Value {
    let mask = json!({"as_optional_tensors": [{"as_tensor": {"name": mask}}]});
    node("aten.index.Tensor", &[("self", tensor(x)), ("indices", mask)], &[y])
}

/// A model of `x: f32[4]` and the masks `m` and `n`; `y` is `x[m]`, `z` `x[n]`.
fn of_masks(nodes: Vec<Value>, output: &str) -> Value {
    let mask = meta(12, &[4]);
    let mut values = vec![("x", meta(7, &[4])), ("m", mask.clone()), ("n", mask)];
    values.extend(["y", "z", "a", "b"].map(|name| (name, selected())));
    values.extend(["s", "t"].map(|name| (name, meta(7, &[]))));
    let nodes = [index("x", "m", "y"), index("x", "n", "z")].into_iter().chain(nodes).collect();
    model(&["x", "m", "n"], nodes, &values, &[output])
}

/// Value and gradient of the result, for this `x` and mask.
fn run(model: &Value, x: [f64; 4], mask: [i64; 4]) -> (f64, Vec<f64>) {
    let mut graph = bind(model).unwrap().graph;
    graph.inputs[0].role = InputRole::Parameter { trainable: true, aliases: vec![] };
    let graph = decompose(graph).unwrap();
    let loss = graph.outputs[0].value;
    let step = differentiate(graph, loss).unwrap();
    let x = Tensor::float(DType::F32, [4], x.to_vec());
    let [m, n] = [mask, [1; 4]].map(|m| Tensor::int(DType::Bool, [4], m.to_vec()));
    let fed = step.graph.inputs.iter().map(|i| match i.name.as_str() {
        "x" => x.clone(),
        "m" => m.clone(),
        _ => n.clone(),
    });
    let out = reference::run(&step.graph, &fed.collect::<Vec<_>>()).unwrap();
    (out[0].to_f64()[0], out[1].to_f64())
}

#[test]
fn sums_and_means_are_of_what_is_selected() {
    // There is no logarithm of what is left out.
    let log = of("aten.log.default", "y", "a");
    for (target, share) in [("aten.sum.default", 1.0), ("aten.mean.default", 0.5)] {
        let m = of_masks(vec![log.clone(), of(target, "a", "s")], "s");
        let (value, gradient) = run(&m, [-1.0, 2.0, 0.0, 4.0], [0, 1, 0, 1]);
        assert!((value - share * 8f64.ln()).abs() < 1e-6, "{target}: {value}");
        assert_eq!(gradient, [0.0, share / 2.0, 0.0, share / 4.0], "{target}");
    }
    let sum = of_masks(vec![of("aten.sum.default", "y", "s")], "s");
    assert_eq!(run(&sum, [1.0; 4], [0; 4]), (0.0, vec![0.0; 4]));
    // The mean of nothing, as PyTorch's.
    let mean = of_masks(vec![of("aten.mean.default", "y", "s")], "s");
    assert!(run(&mean, [1.0; 4], [0; 4]).0.is_nan());
}

#[test]
fn truth_values_are_counted_as_integers() {
    let positive = node("aten.gt.Scalar", &[("self", tensor("y")), ("other", json!({"as_int": 1}))], &["a"]);
    let mut m = of_masks(vec![positive, of("aten.sum.default", "a", "s")], "s");
    let values = &mut m["graph_module"]["graph"]["tensor_values"];
    values["a"]["dtype"] = json!(12);
    values["s"]["dtype"] = json!(5);
    let graph = bind(&m).unwrap().graph;
    let fed = graph.inputs.iter().map(|i| match i.name.as_str() {
        "x" => Tensor::float(DType::F32, [4], vec![3.0, 2.0, 0.0, 4.0]),
        _ => Tensor::int(DType::Bool, [4], vec![0, 1, 1, 1]),
    });
    let out = reference::run(&graph, &fed.collect::<Vec<_>>()).unwrap();
    assert_eq!((out[0].dtype(), out[0].to_f64()), (DType::I64, vec![2.0]));
}

#[test]
fn whatever_else_is_refused_with_a_way_out() {
    let size = |y: &str| {
        let dim = json!({"as_int": 0});
        let mut n = node("aten.sym_size.int", &[("self", tensor("y")), ("dim", dim)], &[]);
        n["outputs"] = json!([{"as_sym_int": {"as_name": y}}]);
        n
    };
    let cases = [
        // Rows of two masks, of a whole tensor, in another order; a write.
        vec![two("aten.add.Tensor", "y", "z", "a"), of("aten.sum.default", "a", "s")],
        vec![two("aten.add.Tensor", "y", "x", "a"), of("aten.sum.default", "a", "s")],
        vec![
            node("aten.flip.default", &[("self", tensor("y")), ("dims", json!({"as_ints": [0]}))], &["a"]),
            of("aten.sum.default", "a", "s"),
        ],
        vec![of("aten.relu_.default", "y", "a"), of("aten.sum.default", "a", "s")],
        vec![of("aten.prod.default", "y", "s")],
        vec![index("y", "m", "a"), of("aten.sum.default", "a", "s")],
    ];
    for nodes in cases {
        let e = bind(&of_masks(nodes.clone(), "s")).unwrap_err();
        assert!(e.code() == "HW-I015" && e.to_string().contains("torch.where"), "{nodes:?}: {e}");
    }
    // Their number as a factor; the elements as a result.
    let by_size = node(
        "aten.mul.Tensor",
        &[("self", tensor("t")), ("other", json!({"as_sym_int": {"as_name": "u"}}))],
        &["s"],
    );
    let mut m = of_masks(vec![of("aten.sum.default", "y", "t"), size("u"), by_size], "s");
    m["graph_module"]["graph"]["sym_int_values"] = json!({"u": symbol("u0", 2)});
    let e = bind(&m).unwrap_err();
    assert!(e.code() == "HW-I015" && e.to_string().contains("depends on data"), "{e}");
    let e = bind(&of_masks(vec![of("aten.exp.default", "y", "a")], "a")).unwrap_err();
    assert!(e.code() == "HW-I015" && e.to_string().contains("a mask selects"), "{e}");
}
