//! Binding: what becomes of nodes, names, state and sizes, and what is refused.

use crate::support::*;
use headwater_core::graph::{Graph, InputRole, OutputRole, verify::verify};
use headwater_core::pass::{decompose, differentiate};
use headwater_core::tensor::Tensor;
use headwater_core::{DType, Registry, reference};
use headwater_import::{Dims, Error, Imported, Program, Result};
use serde_json::{Value, json};

fn bind_bytes(bytes: Vec<u8>, dims: &Dims) -> Result<Imported> {
    let imported = Program::from_bytes(bytes)?.bind(dims, Registry::standard())?;
    verify(&imported.graph).unwrap();
    Ok(imported)
}

fn bind(model: &Value) -> Result<Imported> {
    bind_bytes(Pt2::new(model).bytes(), &Dims::new())
}

fn code(model: &Value) -> &'static str {
    bind(model).err().map_or("bound", |e| e.code())
}

/// Runs a graph of f32 user inputs and returns its outputs as numbers.
fn run(graph: &Graph, inputs: &[&[f64]]) -> Vec<Vec<f64>> {
    let inputs: Vec<Tensor> = graph
        .inputs
        .iter()
        .zip(inputs)
        .map(|(i, v)| Tensor::float(graph.ty(i.value).dtype, graph.ty(i.value).shape.clone(), v.to_vec()))
        .collect();
    reference::run(graph, &inputs).unwrap().iter().map(Tensor::to_f64).collect()
}

fn int(i: i64) -> Value {
    json!({"as_int": i})
}

fn float(x: f64) -> Value {
    json!({"as_float": x})
}

fn add(a: &str, b: &str, y: &str) -> Value {
    node("aten.add.Tensor", &[("self", tensor(a)), ("other", tensor(b))], &[y])
}

fn plus(x: &str, c: f64, y: &str) -> Value {
    node("aten.add.Tensor", &[("self", tensor(x)), ("other", float(c))], &[y])
}

/// `x += c`; its result has another name.
fn plus_in_place(x: &str, c: f64, y: &str) -> Value {
    node("aten.add_.Tensor", &[("self", tensor(x)), ("other", float(c))], &[y])
}

/// A model of `x: f32[4]` whose values all have that type.
fn vectors(nodes: Vec<Value>, names: &[&str], outputs: &[&str]) -> Value {
    let m = meta(7, &[4]);
    let values: Vec<_> = names.iter().map(|n| (*n, m.clone())).collect();
    model(&["x"], nodes, &values, outputs)
}

#[test]
fn everything_unsupported_is_reported_at_once_with_places() {
    let odd = |y| node("aten.nonesuch.default", &[("self", tensor("x"))], &[y]);
    let custom = node("mine.thing.default", &[("self", tensor("a"))], &["c"]);
    let m = vectors(
        vec![odd("a"), add("a", "x", "s"), odd("b"), custom, add("c", "b", "y")],
        &["x", "a", "s", "b", "c", "y"],
        &["y"],
    );
    let Err(Error::Unsupported(report)) = bind(&m) else { panic!() };
    let uses: Vec<_> = report.uses().collect();
    assert_eq!(uses.len(), 2);
    assert_eq!((uses[0].target.as_str(), uses[0].count), ("aten.nonesuch.default", 2));
    assert_eq!((uses[1].target.as_str(), uses[1].count), ("mine.thing.default", 1));
    let place = &uses[0].places[0];
    assert_eq!((place.module.as_str(), place.class.as_str(), place.line), ("block.0", "Block", 7));
    assert!(report.to_string().contains("/net.py:7"), "{report}");
}

#[test]
fn operators_that_nothing_depends_on_are_not_asked_for() {
    let odd = node("aten.nonesuch.default", &[("self", tensor("x"))], &["a"]);
    let m = vectors(vec![odd, plus("x", 1.0, "y")], &["x", "a", "y"], &["y"]);
    assert_eq!(bind(&m).unwrap().graph.nodes.len(), 1);
}

#[test]
fn custom_operators_register_from_outside() {
    use headwater_core::expr::Expr;
    use headwater_core::ops::{Body, Cost, Derivative, OpDef, Precision};
    static TWICE: OpDef = OpDef {
        name: "mine_twice",
        schemas: &["mine::twice(Tensor x, float by=2.0) -> Tensor"],
        infer: |cx| Ok(vec![cx.ty(0)?.clone()]),
        derivative: Derivative::NotDifferentiable("a test"),
        precision: Precision::Same,
        cost: Cost::PerOutput(1),
        body: Body::Pointwise(|_| Ok(vec![Expr::Input(0) + Expr::Input(0)])),
        cases: Vec::new,
    };
    let m = vectors(vec![node("mine.twice.default", &[("x", tensor("x"))], &["y"])], &["x", "y"], &["y"]);
    assert_eq!(code(&m), "HW-I015");
    let mut registry = Registry::standard().clone();
    registry.register(&TWICE).unwrap();
    let imported = Program::from_bytes(Pt2::new(&m).bytes()).unwrap().bind(&Dims::new(), &registry).unwrap();
    assert_eq!(run(&imported.graph, &[&[1., 2., 3., 4.]]), [[2., 4., 6., 8.]]);
}

#[test]
fn results_must_be_what_pytorch_recorded() {
    let wrong = |m: Value| {
        let nodes = vec![plus("x", 1.0, "y")];
        bind(&model(&["x"], nodes, &[("x", meta(7, &[4])), ("y", m)], &["y"])).unwrap_err()
    };
    for m in [meta(7, &[5]), meta(8, &[4]), meta(7, &[4, 1]), meta(7, &[])] {
        let e = wrong(m);
        assert_eq!(e.code(), "HW-I016");
        assert!(e.to_string().contains("`y` is f32[4] here"), "{e}");
        assert!(e.to_string().contains("block.0"), "{e}");
    }
}

#[test]
fn arguments_must_fit_the_operator() {
    let call = |inputs: &[(&str, Value)]| {
        code(&vectors(vec![node("aten.add.Tensor", inputs, &["y"])], &["x", "y"], &["y"]))
    };
    let (x, two) = (tensor("x"), int(2));
    assert_eq!(call(&[("self", x.clone()), ("other", x.clone()), ("alpha", two.clone())]), "bound");
    assert_eq!(call(&[("", x.clone()), ("", x.clone())]), "bound");
    assert_eq!(call(&[("self", x.clone())]), "HW-I017");
    assert_eq!(call(&[("self", x.clone()), ("self", x.clone()), ("other", x.clone())]), "HW-I017");
    assert_eq!(call(&[("self", x.clone()), ("other", json!({"as_string": "s"}))]), "HW-I017");
    assert_eq!(call(&[("self", x.clone()), ("other", x.clone()), ("alpha", x.clone())]), "HW-I017");
    assert_eq!(call(&[("self", x.clone()), ("other", x.clone()), ("unheard", two)]), "HW-I015");
    assert_eq!(
        call(&[
            ("self", x.clone()),
            ("other", x.clone()),
            ("alpha", json!({"as_complex": {"real": 1.0, "imag": 0.0}}))
        ]),
        "HW-I015"
    );
    // Infinity is spelled as a string.
    assert_eq!(call(&[("self", x.clone()), ("other", json!({"as_float": "-Infinity"}))]), "bound");
    // More results than the operator has.
    let twice = node("aten.add.Tensor", &[("self", x.clone()), ("other", x)], &["y", "z"]);
    assert_eq!(code(&vectors(vec![twice], &["x", "y", "z"], &["y"])), "HW-I017");
}

#[test]
fn writes_reach_every_name_of_the_memory() {
    let (same, copy) = (|t, y| node(t, &[("self", tensor("x"))], &[y]), "aten.clone.default");
    // alias and a conversion to the dtype there is are the same tensor; clone is not.
    for (target, shared) in
        [("aten.alias.default", true), (copy, false), ("aten.lift_fresh_copy.default", false)]
    {
        let m = vectors(
            vec![same(target, "a"), plus_in_place("a", 1.0, "b"), add("x", "a", "y")],
            &["x", "a", "b", "y"],
            &["y"],
        );
        let want = if shared { 4.0 } else { 3.0 };
        assert_eq!(run(&bind(&m).unwrap().graph, &[&[1.; 4]])[0], [want; 4], "{target}");
    }
    let f32 = json!({"as_scalar_type": 7});
    let to = |extra: &[(&str, Value)]| {
        let mut inputs = vec![("self", tensor("x")), ("dtype", f32.clone())];
        inputs.extend_from_slice(extra);
        let m = vectors(
            vec![node("aten.to.dtype", &inputs, &["a"]), plus_in_place("a", 1.0, "b"), plus("x", 0.0, "y")],
            &["x", "a", "b", "y"],
            &["y"],
        );
        run(&bind(&m).unwrap().graph, &[&[1.; 4]])[0][0]
    };
    assert_eq!(to(&[]), 2.0);
    assert_eq!(to(&[("copy", json!({"as_bool": true}))]), 1.0);
    // A switched-off dropout gives back its input.
    let off = node(
        "aten.dropout.default",
        &[("input", tensor("x")), ("p", float(0.5)), ("train", json!({"as_bool": false}))],
        &["a"],
    );
    let m =
        vectors(vec![off, plus_in_place("a", 1.0, "b"), plus("x", 0.0, "y")], &["x", "a", "b", "y"], &["y"]);
    assert_eq!(run(&bind(&m).unwrap().graph, &[&[1.; 4]])[0][0], 2.0);
}

#[test]
fn the_result_of_an_out_form_is_the_tensor_written() {
    let div = |a: &str, b: &str, out: &str, y: &str| {
        node("aten.div.out", &[("self", tensor(a)), ("other", tensor(b)), ("out", tensor(out))], &[y])
    };
    // Through its result the second quotient is written over `o` too.
    let nodes = vec![
        plus("x", 1.0, "a"),
        plus("x", 0.0, "o"),
        div("x", "a", "o", "p"),
        div("a", "x", "p", "q"),
        add("o", "p", "r"),
        add("r", "q", "y"),
    ];
    let m = vectors(nodes, &["x", "a", "o", "p", "q", "r", "y"], &["y"]);
    let y = run(&bind(&m).unwrap().graph, &[&[1.0, 2.0, 4.0, 8.0]]);
    assert_eq!(y[0], [6.0, 4.5, 3.75, 3.375]);
}

#[test]
fn what_is_written_to_an_input_is_seen_by_the_model_alone() {
    let m = vectors(vec![plus_in_place("x", 1.0, "n"), add("x", "n", "y")], &["x", "n", "y"], &["y"]);
    // In the functional form the signature says so.
    let mut core = vectors(vec![plus("x", 1.0, "n"), add("n", "n", "y")], &["x", "n", "y"], &["y"]);
    let gm = &mut core["graph_module"];
    gm["graph"]["outputs"].as_array_mut().unwrap().insert(0, tensor("n"));
    let spec = json!({"user_input_mutation": {"arg": {"name": "n"}, "user_input_name": "x"}});
    gm["signature"]["output_specs"].as_array_mut().unwrap().insert(0, spec);
    for m in [m, core] {
        let imported = bind(&m).unwrap();
        assert_eq!(run(&imported.graph, &[&[1.; 4]]), [[4.; 4]]);
        assert!(imported.notes[0].to_string().contains("writes its input `x`"), "{:?}", imported.notes);
    }
}

#[test]
fn a_reshape_is_a_view_where_the_recorded_strides_allow_one() {
    let through = |strides: &[i64]| {
        let x = strided(7, &[2, 3], strides, 0);
        let (flat, out) = (meta(7, &[6]), meta(7, &[2, 3]));
        let nodes = vec![
            node(
                "aten.reshape.default",
                &[("self", tensor("x")), ("shape", json!({"as_ints": [6]}))],
                &["f"],
            ),
            plus_in_place("f", 1.0, "g"),
            plus("x", 0.0, "y"),
        ];
        let m = model(&["x"], nodes, &[("x", x), ("f", flat.clone()), ("g", flat), ("y", out)], &["y"]);
        run(&bind(&m).unwrap().graph, &[&[0.; 6]])[0][0]
    };
    assert_eq!(through(&[3, 1]), 1.0);
    assert_eq!(through(&[1, 2]), 0.0);
}

/// PyTorch writes `x * 2` as `mul.Tensor` with a number; a call in which no tensor is left is none of ATen's.
#[test]
fn a_number_for_a_tensor_needs_an_overload_that_takes_it() {
    let two = || json!({"as_float": 2.0});
    let call = |x: Value, y: Value| {
        let m = meta(7, &[2, 3]);
        let n = node("aten.mul.Tensor", &[("self", x), ("other", y)], &["y"]);
        bind(&model(&["x"], vec![n], &[("x", m.clone()), ("y", m)], &["y"]))
    };
    assert_eq!(call(tensor("x"), two()).unwrap().graph.nodes.len(), 1);
    let refused = call(two(), two()).unwrap_err();
    assert!(refused.to_string().contains("argument `other` cannot be a number"), "{refused}");
}

/// `torch.sub(2, x, alpha=3)`: the number is promoted as a plain number is, and stays first.
#[test]
fn a_number_stands_for_the_first_tensor() {
    let call = |name: &str, number: Value, x: Value, y: Value, alpha: f64| {
        let args = [("self", number), ("other", tensor("x")), ("alpha", float(alpha))];
        let with_alpha = ["aten.add.Tensor", "aten.sub.Tensor"].contains(&name);
        let n = node(name, &args[..if with_alpha { 3 } else { 2 }], &["y"]);
        bind(&model(&["x"], vec![n], &[("x", x), ("y", y)], &["y"]))
    };
    let (m, x) = (|| meta(7, &[4]), [1.0, 2.0, -4.0, 0.5]);
    for (name, alpha, want) in [
        ("aten.add.Tensor", 3.0, [5.0, 8.0, -10.0, 3.5]),
        ("aten.sub.Tensor", 3.0, [-1.0, -4.0, 14.0, 0.5]),
        ("aten.mul.Tensor", 1.0, [2.0, 4.0, -8.0, 1.0]),
        ("aten.div.Tensor", 1.0, [2.0, 1.0, -0.5, 4.0]),
    ] {
        let got = run(&call(name, float(2.0), m(), m(), alpha).unwrap().graph, &[&x]);
        assert_eq!(got, [want], "{name}");
    }
    // A float makes bools and integers f32; an integer leaves the dtype of floats, and makes bools integers.
    for (number, x, y) in [(float(0.5), 12, 7), (float(0.5), 5, 7), (int(2), 7, 7), (int(2), 12, 5)] {
        assert!(call("aten.add.Tensor", number, meta(x, &[4]), meta(y, &[4]), 0.25).is_ok(), "{x}");
    }
}

#[test]
fn writes_through_expand_are_refused_by_name() {
    let wide = strided(7, &[3, 4], &[0, 1], 0);
    let nodes = vec![
        node("aten.expand.default", &[("self", tensor("x")), ("size", json!({"as_ints": [3, 4]}))], &["e"]),
        plus_in_place("e", 1.0, "f"),
        plus("e", 0.0, "y"),
    ];
    let values = [("x", meta(7, &[4])), ("e", wide.clone()), ("f", wide), ("y", meta(7, &[3, 4]))];
    let e = bind(&model(&["x"], nodes, &values, &["y"])).unwrap_err();
    assert_eq!(e.code(), "HW-I015");
    assert!(e.to_string().contains("aten.add_.Tensor") && e.to_string().contains("`expand`"), "{e}");
}

#[test]
fn in_place_keeps_dtype_and_shape() {
    // i64 += f32 is refused as PyTorch refuses it... by what PyTorch records; a wider shape is a fault of the
    // file.
    let m = model(
        &["x", "w"],
        vec![node("aten.add_.Tensor", &[("self", tensor("x")), ("other", tensor("w"))], &["y"])],
        &[("x", meta(7, &[4])), ("w", meta(7, &[2, 4])), ("y", meta(7, &[4]))],
        &["y"],
    );
    assert_eq!(code(&m), "HW-I016");
    // f16 += f32 stays f16.
    let m = model(
        &["x", "w"],
        vec![node("aten.add_.Tensor", &[("self", tensor("x")), ("other", tensor("w"))], &["y"])],
        &[("x", meta(6, &[4])), ("w", meta(7, &[4])), ("y", meta(6, &[4]))],
        &["y"],
    );
    assert_eq!(bind(&m).unwrap().graph.outputs[0].role, OutputRole::User);
    // Views in place change what other names show of the shape.
    let m = model(
        &["x"],
        vec![node("aten.unsqueeze_.default", &[("self", tensor("x")), ("dim", int(0))], &["y"])],
        &[("x", meta(7, &[4])), ("y", meta(7, &[1, 4]))],
        &["y"],
    );
    assert_eq!(code(&m), "HW-I015");
}

fn mutations(graph: &Graph) -> Vec<(&str, &str)> {
    let target = |v| graph.inputs[graph.input_index(v).unwrap()].name.as_str();
    graph
        .outputs
        .iter()
        .filter_map(|o| match o.role {
            OutputRole::Mutation(v) => Some((o.name.as_str(), target(v))),
            _ => None,
        })
        .collect()
}

/// Adds stored state to a model: `(kind, argument, name, storage, metadata)`, the first added is last.
fn with_state(mut m: Value, state: &[(&str, &str, &str, &str, Value)], trainable: bool) -> Pt2 {
    let mut config = serde_json::Map::new();
    for (kind, arg, name, storage, meta) in state {
        let mut meta = meta.clone();
        meta["requires_grad"] = json!(trainable && *kind == "parameter");
        add_state(&mut m, kind, arg, name, meta.clone());
        config.insert(name.to_string(), json!({"path_name": storage, "is_param": *kind == "parameter", "use_pickle": false, "tensor_meta": meta}));
    }
    let mut pt2 = Pt2::new(&m);
    pt2.weights(&json!({"config": config}));
    for (.., storage, _) in state {
        pt2.set(&format!("data/weights/{storage}"), [1.0f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat());
    }
    pt2
}

#[test]
fn written_buffers_are_state() {
    let view = node(
        "aten.slice.Tensor",
        &[("self", tensor("b")), ("dim", int(0)), ("start", int(1)), ("end", int(3))],
        &["v"],
    );
    let two = strided(7, &[2], &[1], 1);
    let mut m = vectors(vec![view, plus_in_place("v", 10.0, "w"), add("x", "b", "y")], &["x", "y"], &["y"]);
    m["graph_module"]["graph"]["tensor_values"]["v"] = two.clone();
    m["graph_module"]["graph"]["tensor_values"]["w"] = two;
    let pt2 = with_state(m, &[("buffer", "b", "net.b", "weight_0", meta(7, &[4]))], false);
    let imported = bind_bytes(pt2.bytes(), &Dims::new()).unwrap();
    assert_eq!(mutations(&imported.graph), [("net.b", "net.b")]);
    let out = run(&imported.graph, &[&[1., 2., 3., 4.], &[0.; 4]]);
    assert_eq!(out, [[1., 12., 13., 4.]; 2]);
    assert_eq!(imported.stored[0].as_ref().unwrap().to_bytes().len(), 16);
    assert!(imported.stored[1].is_none());
}

#[test]
fn the_functional_form_names_its_mutations() {
    let mut m = vectors(vec![plus("b", 1.0, "n"), add("x", "n", "y")], &["x", "n", "y"], &["y"]);
    let gm = &mut m["graph_module"];
    gm["graph"]["outputs"].as_array_mut().unwrap().insert(0, tensor("n"));
    let spec = json!({"buffer_mutation": {"arg": {"name": "n"}, "buffer_name": "net.b"}});
    gm["signature"]["output_specs"].as_array_mut().unwrap().insert(0, spec);
    let state = [("buffer", "b", "net.b", "weight_0", meta(7, &[4]))];
    let imported = bind_bytes(with_state(m.clone(), &state, false).bytes(), &Dims::new()).unwrap();
    assert_eq!(mutations(&imported.graph), [("net.b", "net.b")]);
    assert_eq!(imported.graph.outputs[0].name, "output.0");
    m["graph_module"]["signature"]["output_specs"][0]["buffer_mutation"]["buffer_name"] = json!("other");
    assert_eq!(bind_bytes(with_state(m, &state, false).bytes(), &Dims::new()).unwrap_err().code(), "HW-I018");
}

#[test]
fn tied_weights_are_one_input_and_partly_shared_ones_are_refused() {
    let m = || vectors(vec![add("p", "q", "s"), add("s", "x", "y")], &["x", "s", "y"], &["y"]);
    let tie = |meta_q: Value, trainable, kind| {
        let state = [
            ("parameter", "q", "head.w", "weight_0", meta_q),
            (kind, "p", "emb.w", "weight_0", meta(7, &[4])),
        ];
        bind_bytes(with_state(m(), &state, trainable).bytes(), &Dims::new())
    };
    let tied = tie(meta(7, &[4]), true, "parameter").unwrap();
    assert_eq!(tied.graph.inputs.len(), 2);
    let InputRole::Parameter { trainable: true, aliases } = &tied.graph.inputs[0].role else { panic!() };
    assert_eq!((tied.graph.inputs[0].name.as_str(), &aliases[..]), ("emb.w", &["head.w".to_string()][..]));
    assert_eq!(run(&tied.graph, &[&[1., 2., 3., 4.], &[0.; 4]])[0], [2., 4., 6., 8.]);

    let frozen = tie(meta(7, &[4]), false, "parameter").unwrap();
    assert!(matches!(frozen.graph.inputs[0].role, InputRole::Parameter { trainable: false, .. }));

    // Another part of the same storage: a part of a weight cannot follow its training.
    let one = strided(7, &[1], &[1], 2);
    assert_eq!(tie(one.clone(), true, "parameter").unwrap_err().code(), "HW-I012");
    assert_eq!(tie(one.clone(), true, "buffer").unwrap_err().code(), "HW-I012");
    assert!(tie(one, false, "buffer").is_ok());
}

#[test]
fn gradients_stop_where_the_model_turns_them_off() {
    // y = x * 2 with gradients off, in a sub-graph whose names are its own; z = p + y.
    let (x, m4) = (tensor("x"), meta(7, &[4]));
    let inner = json!({
        "inputs": [tensor("a")], "outputs": [tensor("x")],
        "nodes": [node("aten.mul.Tensor", &[("self", tensor("a")), ("other", float(2.0))], &["x"])],
        "tensor_values": {"a": m4, "x": m4}, "sym_int_values": {}, "sym_bool_values": {},
    });
    let graph = |on: bool, operand: Value| {
        let wrap = node(
            "higher_order.wrap_with_set_grad_enabled",
            &[
                ("", json!({"as_bool": on})),
                ("", json!({"as_graph": {"name": "g", "graph": inner}})),
                ("", operand),
            ],
            &["y"],
        );
        let m = vectors(
            vec![wrap, add("y", "x", "s"), node("aten.sum.default", &[("self", tensor("s"))], &["z"])],
            &["x", "y", "s"],
            &["z"],
        );
        let mut m = m;
        m["graph_module"]["graph"]["tensor_values"]["z"] = meta(7, &[]);
        let state = [("parameter", "p", "p", "weight_0", meta(7, &[4]))];
        bind_bytes(with_state(m, &state, true).bytes(), &Dims::new()).unwrap().graph
    };
    let gradient = |g: Graph| {
        let d = differentiate(decompose(g.clone()).unwrap(), g.outputs[0].value).unwrap();
        (d.graph.outputs.len() > 1, d.missing)
    };
    assert!(gradient(graph(true, tensor("p"))).0);
    let (has, missing) = gradient(graph(false, tensor("p")));
    assert!(!has && missing[0].reason.contains("no_grad"), "{missing:?}");
    // Nothing needs to be detached of what no parameter reaches.
    assert!(graph(false, x).nodes.iter().all(|n| n.op.name != "detach"));
}

#[test]
fn autocast_and_other_sub_graphs_are_refused() {
    let graph = json!({"as_graph": {"name": "g", "graph": {"inputs": [tensor("a")], "outputs": [tensor("a")], "nodes": [],
        "tensor_values": {"a": meta(7, &[4])}}}});
    let wrap = |target: &str, head: Vec<Value>| {
        let inputs: Vec<_> = head.into_iter().chain([graph.clone(), tensor("x")]).map(|v| ("", v)).collect();
        code(&vectors(vec![node(target, &inputs, &["y"])], &["x", "y"], &["y"]))
    };
    let cast = |on: bool| {
        vec![
            json!({"as_string": "cpu"}),
            json!({"as_scalar_type": 13}),
            json!({"as_bool": on}),
            json!({"as_bool": false}),
        ]
    };
    assert_eq!(wrap("higher_order.wrap_with_autocast", cast(true)), "HW-I015");
    assert_eq!(wrap("higher_order.wrap_with_autocast", cast(false)), "bound");
    assert_eq!(wrap("higher_order.while_loop", vec![]), "HW-I015");
    // It needs a predicate and two branches.
    assert_eq!(wrap("higher_order.cond", vec![]), "HW-I017");
    assert_eq!(wrap("higher_order.wrap_with_set_grad_enabled", vec![int(1)]), "HW-I017");
    assert_eq!(
        wrap("higher_order.wrap_with_set_grad_enabled", vec![json!({"as_bool": true}), graph.clone()]),
        "HW-I017"
    );
}

#[test]
fn a_predicate_chooses_between_branches_that_write_nothing() {
    let branch = |nodes: Vec<Value>| {
        json!({"as_graph": {"name": "g", "graph": {"inputs": [tensor("a")], "outputs": [tensor("b")], "nodes": nodes,
            "tensor_values": {"a": meta(7, &[2]), "b": meta(7, &[2])}}}})
    };
    let cond = |yes: Value, no: Value| {
        let operands = json!({"as_tensors": [{"name": "x"}]});
        let inputs = [("", tensor("p")), ("", yes), ("", no), ("", operands)];
        let values = [("p", meta(12, &[])), ("x", meta(7, &[2])), ("y", meta(7, &[2]))];
        model(&["p", "x"], vec![node("higher_order.cond", &inputs, &["y"])], &values, &["y"])
    };
    let imported = bind(&cond(branch(vec![plus("a", 1.0, "b")]), branch(vec![add("a", "a", "b")]))).unwrap();
    assert!(imported.notes.iter().any(|n| n.message.contains("both branches")), "{:?}", imported.notes);
    let of = |p: i64| {
        let inputs = [
            Tensor::int(DType::Bool, [0usize; 0], vec![p]),
            Tensor::float(DType::F32, [2usize], vec![3.0, -1.0]),
        ];
        reference::run(&imported.graph, &inputs).unwrap()[0].to_f64()
    };
    assert_eq!((of(1), of(0)), (vec![4.0, 0.0], vec![6.0, -2.0]));
    let writes = cond(branch(vec![plus_in_place("a", 1.0, "b")]), branch(vec![add("a", "a", "b")]));
    let e = bind(&writes).unwrap_err();
    assert!(e.code() == "HW-I015" && e.to_string().contains("writes a tensor in place"), "{e}");
}

#[test]
fn loops_of_known_length_are_unrolled() {
    // A step takes the sum so far, a row and a factor; it gives the new sum, and the sum times the factor.
    let values = json!({"s": meta(7, &[2]), "r": meta(7, &[2]), "f": meta(7, &[2]), "t": meta(7, &[2]), "y": meta(7, &[2])});
    let nodes = vec![
        add("s", "r", "t"),
        node("aten.mul.Tensor", &[("self", tensor("t")), ("other", tensor("f"))], &["y"]),
    ];
    let names = |list: &[&str]| list.iter().map(|n| tensor(n)).collect::<Vec<_>>();
    let body = |inputs: &[&str], outputs: &[&str], nodes: &[Value]| {
        json!({"as_graph": {"name": "g", "graph": {"inputs": names(inputs), "outputs": names(outputs), "nodes": nodes,
            "tensor_values": values}}})
    };
    let list =
        |names: &[&str]| json!({"as_tensors": names.iter().map(|n| json!({"name": n})).collect::<Vec<_>>()});
    let types = |rows: usize| {
        let rows = rows as i64;
        [("a", meta(7, &[2])), ("x", meta(7, &[rows, 2])), ("b", meta(7, &[2])), ("ys", meta(7, &[rows, 2]))]
    };
    let scan = |rows: usize, nodes: &[Value]| {
        let inputs = [
            ("", body(&["s", "r", "f"], &["t", "y"], nodes)),
            ("", list(&["a"])),
            ("", list(&["x"])),
            ("", list(&["a"])),
        ];
        model(&["a", "x"], vec![node("higher_order.scan", &inputs, &["b", "ys"])], &types(rows), &["b", "ys"])
    };
    let run = |model: &Value| {
        let imported = bind(model).unwrap();
        assert!(
            imported.notes.iter().any(|n| n.message.contains("unrolled: 3 steps")),
            "{:?}",
            imported.notes
        );
        let inputs = [
            Tensor::float(DType::F32, [2usize], vec![1.0, -1.0]),
            Tensor::float(DType::F32, [3usize, 2], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        ];
        let results = reference::run(&imported.graph, &inputs).unwrap();
        results.iter().map(Tensor::to_f64).collect::<Vec<_>>()
    };
    let done = run(&scan(3, &nodes));
    assert_eq!(done, [vec![10.0, 11.0], vec![2.0, -1.0, 5.0, -5.0, 10.0, -11.0]]);
    // Without a state, each step is by itself.
    let mapped = [add("r", "f", "t")];
    let inputs = [("", body(&["r", "f"], &["t"], &mapped)), ("", list(&["x"])), ("", list(&["a"]))];
    let map = model(&["a", "x"], vec![node("higher_order.map_impl", &inputs, &["ys"])], &types(3), &["ys"]);
    assert_eq!(run(&map), [vec![2.0, 1.0, 4.0, 3.0, 6.0, 5.0]]);
    let refused = |model: &Value| {
        let e = bind(model).unwrap_err();
        (e.code(), e.to_string())
    };
    let (code, said) = refused(&scan(0, &nodes));
    assert!(code == "HW-I015" && said.contains("without steps"), "{said}");
    let writes = vec![plus_in_place("s", 1.0, "t"), nodes[1].clone()];
    let (code, said) = refused(&scan(3, &writes));
    assert!(code == "HW-I015" && said.contains("writes a tensor in place"), "{said}");
}

fn sym(kind: &str, name: &str) -> Value {
    json!({kind: {"as_name": name}})
}

#[test]
fn assertions_are_checked_where_sizes_tell_and_dropped_where_data_does() {
    let base = |value: Value, expect: Value| {
        let mut m = vectors(vec![plus("x", 1.0, "y")], &["x", "y"], &["y"]);
        let g = &mut m["graph_module"]["graph"];
        let mut size = node("aten.sym_size.int", &[("self", tensor("x")), ("dim", int(0))], &[]);
        size["outputs"] = json!([sym("as_sym_int", "n")]);
        let mut cond = node("x", &[("a", value), ("b", expect)], &[]);
        cond["target"] = json!("_operator.le");
        cond["outputs"] = json!([sym("as_sym_bool", "ok")]);
        let message = json!({"as_string": "too long"});
        let check = node(
            "aten._assert_scalar.default",
            &[("self", sym("as_sym_bool", "ok")), ("assert_msg", message)],
            &[],
        );
        let mut item = node("aten.item.default", &[("self", tensor("x"))], &[]);
        item["outputs"] = json!([sym("as_sym_int", "u")]);
        let nodes = g["nodes"].as_array_mut().unwrap();
        nodes.splice(0..0, [item, size, cond, check]);
        let u = json!({"as_expr": {"expr_str": "Symbol('u0', integer=True)", "hint": null}});
        g["sym_int_values"] = json!({"n": {"as_int": 4}, "u": u});
        g["sym_bool_values"] =
            json!({"ok": {"as_expr": {"expr_str": "LessThan(Symbol('u0', integer=True), Integer(4))"}}});
        m
    };
    let mut fixed = base(sym("as_sym_int", "n"), int(4));
    assert!(bind(&fixed).unwrap().notes.is_empty());
    fixed = base(sym("as_sym_int", "n"), int(3));
    let e = bind(&fixed).unwrap_err();
    assert_eq!(e.code(), "HW-I019");
    assert!(e.to_string().contains("too long"), "{e}");
    let data = bind(&base(sym("as_sym_int", "u"), int(3))).unwrap();
    assert_eq!(data.notes.len(), 1);
    assert!(data.notes[0].to_string().contains("_assert_scalar"), "{}", data.notes[0]);
    // A recorded number that the node does not compute is a fault.
    let mut wrong = base(sym("as_sym_int", "n"), int(4));
    wrong["graph_module"]["graph"]["sym_int_values"]["n"] = int(5);
    assert_eq!(code(&wrong), "HW-I016");
    // A shape that depends on data is refused by name.
    let mut shape = base(sym("as_sym_int", "u"), int(3));
    let g = &mut shape["graph_module"]["graph"];
    let size = json!({"as_sym_ints": [{"as_name": "u"}]});
    g["nodes"].as_array_mut().unwrap().push(node(
        "aten.full.default",
        &[("size", size), ("fill_value", float(0.0))],
        &["f"],
    ));
    g["tensor_values"]["f"] = json!({"dtype": 7, "sizes": [g["sym_int_values"]["u"]], "requires_grad": false,
        "strides": ints(&[1]), "storage_offset": int(0), "layout": 7});
    g["outputs"] = json!([tensor("f")]);
    shape["graph_module"]["signature"]["output_specs"] = json!([{"user_output": {"arg": tensor("f")}}]);
    let e = bind(&shape).unwrap_err();
    assert!(e.code() == "HW-I015" && e.to_string().contains("`size` depends on data"), "{e}");
}

/// `y = x + 1` for `x: f32[s0, 2*s1]`.
fn symbolic() -> Value {
    let double = json!({"as_expr": {"expr_str": "Mul(Integer(2), Symbol('s1', positive=True, integer=True))", "hint": {"as_int": 6}}});
    let m = json!({"dtype": 7, "sizes": [symbol("s0", 5), double.clone()], "requires_grad": false,
        "strides": [double, {"as_int": 1}], "storage_offset": {"as_int": 0}, "layout": 7});
    let mut m = model(&["x"], vec![plus("x", 1.0, "y")], &[("x", m.clone()), ("y", m)], &["y"]);
    m["range_constraints"] =
        json!({"s0": {"min_val": 2, "max_val": 8}, "s1": {"min_val": 1, "max_val": null}});
    m["guards_code"] =
        json!(["L['x'].size()[0] % 2 == 0 or L['x'].size()[0] == 5", "something[that] is not read"]);
    m
}

#[test]
fn symbolic_sizes_are_bound_by_name_by_place_by_data_or_as_exported() {
    let program = Program::from_bytes(Pt2::new(&symbolic()).bytes()).unwrap();
    let names: Vec<_> = program.symbols().iter().map(|s| s.to_string()).collect();
    assert_eq!(names, ["s0 (x.0; 2 to 8; exported with 5)", "s1 (x.1; 1 to …)"]);
    let shape = |dims: Dims| {
        let i = program.bind(&dims, Registry::standard())?;
        Ok::<_, Error>(i.graph.ty(i.graph.outputs[0].value).shape.to_vec())
    };
    assert_eq!(shape(Dims::new().set("s0", 4).set("s1", 3)).unwrap(), [4, 6]);
    assert_eq!(shape(Dims::new().set("x.0", 4).set("x.1", 10)).unwrap(), [4, 10]);
    assert_eq!(shape(Dims::new().shape("x", &[8, 2])).unwrap(), [8, 2]);
    assert_eq!(shape(Dims::new().set("s1", 1).or_exported()).unwrap(), [5, 2]);
    for (dims, what) in [
        (Dims::new(), "s0"),
        (Dims::new().set("s0", 4), "s1"),
        (Dims::new().or_exported(), "s1"),
        (Dims::new().set("s0", 9).set("s1", 1), "2 to 8"),
        (Dims::new().set("s0", 1).set("s1", 1), "2 to 8"),
        (Dims::new().set("s0", 3).set("s1", 1), "guard"),
        (Dims::new().set("s0", 4).set("s1", 0), "1 to"),
        (Dims::new().shape("x", &[4, 3]), "x.1 is 3"),
        (Dims::new().shape("x", &[4]), "dimensions"),
        (Dims::new().shape("z", &[4]), "no input"),
        (Dims::new().set("batch", 4), "it has: s0"),
        (Dims::new().set("s0", 4).set("s1", i64::MAX), "Mul"),
    ] {
        let e = shape(dims).unwrap_err();
        assert!(matches!(e.code(), "HW-I014" | "HW-I013") && e.to_string().contains(what), "{what}: {e}");
    }
    let notes = program.bind(&Dims::new().set("s0", 4).set("s1", 3), Registry::standard()).unwrap().notes;
    assert!(notes.len() == 1 && notes[0].to_string().contains("is not checked"));
}

#[test]
fn sizes_that_overflow_are_errors() {
    let minus = json!({"as_expr": {"expr_str": "Mul(Integer(-1), Symbol('s1'))", "hint": null}});
    let mut m = symbolic();
    for tensor in ["x", "y"] {
        m["graph_module"]["graph"]["tensor_values"][tensor]["sizes"][1] = minus.clone();
    }
    let program = Program::from_bytes(Pt2::new(&m).bytes()).unwrap();
    let dims = Dims::new().set("s0", 4).set("x.1", i64::MIN);
    assert_eq!(program.bind(&dims, Registry::standard()).unwrap_err().code(), "HW-I014");
}

#[test]
fn graphs_do_not_grow_out_of_proportion() {
    // Each write at the bottom of a tower of views costs a node a level.
    let mut nodes = Vec::new();
    let mut names = vec!["x".to_string()];
    for i in 0..200 {
        let name = format!("v{i}");
        nodes.push(node(
            "aten.view.default",
            &[("self", tensor(names.last().unwrap())), ("size", json!({"as_ints": [4]}))],
            &[&name],
        ));
        names.push(name);
    }
    nodes.push(plus_in_place("v199", 1.0, "w"));
    nodes.push(plus("x", 0.0, "y"));
    names.extend(["w".into(), "y".into()]);
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(code(&vectors(nodes, &all, &["y"])), "HW-I020");
}

#[test]
fn intermediate_values_keep_their_exported_names() {
    let m = vectors(
        vec![plus("x", 1.0, "a"), plus_in_place("a", 1.0, "b"), add("a", "x", "y")],
        &["x", "a", "b", "y"],
        &["y"],
    );
    let i = bind(&m).unwrap();
    assert_ne!(i.values["a"], i.values["b"]);
    assert_eq!(i.values["y"], i.graph.outputs[0].value);
    assert_eq!(i.graph.ty(i.values["a"]).dtype, DType::F32);
}

#[test]
fn results_that_an_operator_lacks_may_be_named_if_nothing_reads_them() {
    let bags = |sparse: bool, outputs: &[&str]| {
        let arguments = [
            ("weight", tensor("w")),
            ("indices", tensor("i")),
            ("offsets", tensor("o")),
            ("sparse", json!({"as_bool": sparse})),
        ];
        let bag = node("aten.embedding_bag.default", &arguments, &["y", "a", "b", "c"]);
        let (rows, numbers) = (meta(7, &[2, 3]), meta(5, &[2]));
        let values = [("w", meta(7, &[4, 3])), ("i", meta(5, &[5])), ("o", numbers.clone()), ("y", rows)];
        let unread = ["a", "b", "c"].map(|n| (n, numbers.clone()));
        model(&["w", "i", "o"], vec![bag], &[&values[..], &unread].concat(), outputs)
    };
    assert!(bind(&bags(false, &["y"])).unwrap().notes.is_empty());
    let e = bind(&bags(false, &["y", "b"])).unwrap_err();
    assert!(e.to_string().contains("reads result 2, of which only the first 1 are made here"), "{e}");
    let notes = bind(&bags(true, &["y"])).unwrap().notes;
    assert!(
        notes.len() == 1 && notes[0].to_string().contains("updates only the rows that its batch reads"),
        "{notes:?}"
    );
}
