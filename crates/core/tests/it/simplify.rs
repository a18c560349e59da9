//! Simplification is exact: outputs keep their bits in the reference interpreter, for every operator and for
//! random graphs. Each rewrite happens where it should, and not where it would not be exact.

use crate::common::{graphs_of_all_operators, is_alone, same_bits};
use headwater_core::graph::{InputRole, OutputRole, Phase, parse, verify};
use headwater_core::ops::create::constant::CONSTANT;
use headwater_core::pass::{differentiate, simplify};
use headwater_core::{Attrs, Builder, DType, Graph, Registry, Tensor, TensorType, ValueId, ops, reference};
use proptest::prelude::*;
use std::sync::Arc;

/// Simplifies, checks that nothing is left to do and that the outputs keep their bits.
fn check(name: &str, graph: &Graph, inputs: &[Tensor]) -> Graph {
    let before = reference::run(graph, inputs).unwrap_or_else(|e| panic!("{name}: {e}"));
    let once = simplify(graph.clone()).graph;
    verify(&once).unwrap_or_else(|e| panic!("{name}: {e}\n{once}"));
    let after = reference::run(&once, inputs).unwrap_or_else(|e| panic!("{name}: {e}\n{once}"));
    for ((a, b), o) in before.iter().zip(&after).zip(&graph.outputs) {
        assert!(same_bits(a, b), "{name}: output {}: {a:?} became {b:?}\n{graph}\n{once}", o.name);
    }
    let twice = simplify(once.clone());
    assert_eq!(
        (
            twice.folded,
            twice.identities,
            twice.exchanged,
            twice.joined,
            twice.masks,
            twice.merged,
            twice.dead
        ),
        (0, 0, 0, 0, 0, 0, 0),
        "{name}\n{once}"
    );
    once
}

#[test]
fn every_operator_keeps_its_bits() {
    for (name, graph, inputs) in graphs_of_all_operators().into_iter().filter(|g| is_alone(&g.1)) {
        check(&name, &graph, &inputs);
    }
}

#[test]
fn every_operator_on_constants_folds_to_the_same_bits() {
    for (name, graph, inputs) in graphs_of_all_operators().into_iter().filter(|g| is_alone(&g.1)) {
        // The same graph with a constant in the place of every input.
        let mut b = Builder::new();
        let mut map: Vec<Option<ValueId>> = vec![None; graph.values.len()];
        for (input, tensor) in graph.inputs.iter().zip(&inputs) {
            let attrs = Attrs::new().with("value", Arc::new(tensor.clone()));
            map[input.value.0 as usize] = Some(b.one(&CONSTANT, &[], attrs).unwrap());
        }
        for node in &graph.nodes {
            b.phase = node.phase;
            let operands: Vec<_> = node.inputs.iter().map(|v| v.and_then(|v| map[v.0 as usize])).collect();
            let outputs = b.apply(node.op, &operands, node.attrs.clone()).unwrap();
            node.outputs.iter().zip(outputs).for_each(|(old, new)| map[old.0 as usize] = Some(new));
        }
        for o in &graph.outputs {
            b.output(o.name.clone(), map[o.value.0 as usize].unwrap(), OutputRole::User);
        }
        let folded = check(&name, &b.finish(), &[]);
        let left: Vec<_> = folded.nodes.iter().map(|n| n.op.name).collect();
        let constant = |n: &&str| ["full", "constant"].contains(n);
        let decomposed = graph.nodes.iter().any(|n| matches!(n.op.body, ops::Body::Decompose(_)));
        assert!(decomposed || left.iter().all(constant), "{name}: {left:?}");
    }
}

fn parsed(text: &str) -> Graph {
    let graph = parse(&format!("headwater graph 1\n{text}\n@0 = \"\""), Registry::standard()).unwrap();
    verify(&graph).unwrap();
    graph
}

/// The operators left of a graph with input `x` (f32[2, 3]) and the nodes given, whose last value is the
/// output.
#[track_caller]
fn left(nodes: &str) -> Vec<&'static str> {
    let last = nodes.trim().lines().last().unwrap().trim().split(' ').next().unwrap();
    let graph = parsed(&format!("%0 = user \"x\" : f32[2, 3]\n{nodes}\noutput \"y\" = {last}"));
    let x = Tensor::float(DType::F32, [2, 3], vec![0.0, -0.0, 1.5, f64::INFINITY, f64::NAN, -2.25]);
    check(nodes, &graph, &[x]).nodes.iter().map(|n| n.op.name).collect()
}

#[test]
fn identities_go_where_they_are_exact() {
    let none: Vec<&str> = vec![];
    assert_eq!(left("%1 = to(%0, dtype=f32) : f32[2, 3]"), none);
    assert_eq!(left("%1 = reshape(%0, shape=[2, -1]) : f32[2, 3]"), none);
    assert_eq!(left("%1 = permute(%0, dims=[0, 1]) : f32[2, 3]"), none);
    assert_eq!(left("%1 = slice(%0, dim=1, start=0, end=3, step=1) : f32[2, 3]"), none);
    assert_eq!(left("%1 = mul(%0, other=1) : f32[2, 3]"), none);
    assert_eq!(left("%1 = add(%0, other=-0.0) : f32[2, 3]"), none);
    assert_eq!(left("%1 = constant_pad_nd(%0, pad=[0, 0, 0, 0]) : f32[2, 3]"), none);
    let one = "%1 = full(size=[3], fill_value=1.0, dtype=f32) : f32[3]\n";
    assert_eq!(left(&format!("{one}%2 = mul(%1, %0) : f32[2, 3]")), none);
    // These change bits or types.
    assert_eq!(left("%1 = add(%0, other=0) : f32[2, 3]"), ["add"]);
    assert_eq!(left("%1 = permute(%0, dims=[1, 0]) : f32[3, 2]"), ["permute"]);
    assert_eq!(left("%1 = reshape(%0, shape=[6]) : f32[6]"), ["reshape"]);
    assert_eq!(left("%1 = slice(%0, dim=1, start=0, end=2, step=1) : f32[2, 2]"), ["slice"]);
    assert_eq!(left("%1 = constant_pad_nd(%0, pad=[-1, 1]) : f32[2, 3]"), ["constant_pad_nd"]);
    assert_eq!(left("%1 = flip(%0, dims=[1]) : f32[2, 3]"), ["flip"]);
    let large = "%1 = full(size=[1, 2, 3], fill_value=1.0, dtype=f32) : f32[1, 2, 3]\n";
    assert_eq!(left(&format!("{large}%2 = mul(%0, %1) : f32[1, 2, 3]")), ["full", "mul"]);
}

#[test]
fn casts_through_a_wider_dtype_are_shortened() {
    let wide = "%1 = to(%0, dtype=f64) : f64[2, 3]\n";
    assert_eq!(left(&format!("{wide}%2 = to(%1, dtype=f32) : f32[2, 3]")), Vec::<&str>::new());
    assert_eq!(left(&format!("{wide}%2 = to(%1, dtype=f16) : f16[2, 3]")), ["to"]);
    let narrow = "%1 = to(%0, dtype=bf16) : bf16[2, 3]\n";
    assert_eq!(left(&format!("{narrow}%2 = to(%1, dtype=f32) : f32[2, 3]")), ["to", "to"]);
}

#[test]
fn equal_nodes_merge_and_dead_ones_go() {
    let graph = parsed(
        "%0 = user \"x\" : f32[2, 3]
        forward
        %1 = gelu(%0, approximate=\"tanh\") : f32[2, 3]
        %2 = gelu(%0, approximate=\"none\") : f32[2, 3]
        %3 = sum(%0) : f32[]
        backward
        %4 = gelu(%0, approximate=\"tanh\") : f32[2, 3]
        %5 = add(%1, %4) : f32[2, 3]
        %6 = add(%5, %2) : f32[2, 3]
        output \"y\" = %6",
    );
    let s = simplify(graph);
    assert_eq!((s.merged, s.dead), (1, 1));
    assert_eq!(s.graph.nodes.len(), 4);
    assert_eq!(s.graph.nodes[0].phase, Phase::Forward);
}

#[test]
fn a_merged_node_serves_its_earliest_phase() {
    // Backward work may precede forward work; the node that serves both is forward.
    let graph = parsed(
        "%0 = user \"x\" : f32[2]
        backward
        %1 = gelu(%0) : f32[2]
        forward
        %2 = gelu(%0) : f32[2]
        %3 = sum(%2) : f32[]
        output \"y\" = %3
        output \"z\" = %1",
    );
    let s = simplify(graph);
    assert_eq!(s.merged, 1);
    verify(&s.graph).unwrap();
}

#[test]
fn outputs_inputs_and_mutations_stay() {
    let graph = parsed(
        "%0 = buffer \"steps\" : i64[]
        %1 = user \"unused\" : f32[2]
        %2 = add(%0, other=1) : i64[]
        %3 = to(%0, dtype=i64) : i64[]
        output \"steps\" = %2 mutation of %0
        output \"before\" = %3",
    );
    let s = simplify(graph);
    assert_eq!((s.graph.inputs.len(), s.graph.nodes.len(), s.graph.outputs.len()), (2, 1, 2));
    assert_eq!(s.graph.outputs[0].role, OutputRole::Mutation(ValueId(0)));
    assert_eq!(s.graph.outputs[1].value, ValueId(0));
}

#[test]
fn large_constants_are_neither_folded_nor_kept_alive() {
    let graph = parsed(
        "%0 = user \"x\" : f32[]
        %1 = full(size=[100, 100], fill_value=2, dtype=f32) : f32[100, 100]
        %2 = mul(%1, %1) : f32[100, 100]
        %3 = sum(%2) : f32[]
        %4 = full(size=[], fill_value=1.0, dtype=f32) : f32[]
        %5 = expand(%4, size=[100, 100]) : f32[100, 100]
        %6 = full(size=[100, 100], fill_value=4.0, dtype=f32) : f32[100, 100]
        output \"a\" = %3
        output \"b\" = %5
        output \"c\" = %6",
    );
    let s = simplify(graph);
    let names: Vec<_> = s.graph.nodes.iter().map(|n| n.op.name).collect();
    // The product is one number everywhere, and its sum is too large to run now. The view is free, and a
    // second large tensor is cheaper to recompute than to keep.
    assert_eq!(names, ["full", "sum", "full", "expand", "full"]);
}

#[test]
fn integers_beyond_the_floats_stay_exact() {
    let big = Tensor::int(DType::I64, [], vec![(1 << 53) + 1]);
    let mut b = Builder::new();
    let c = b.one(&CONSTANT, &[], Attrs::new().with("value", Arc::new(big))).unwrap();
    let y = b.expand(c, &[3]).unwrap();
    b.output("y", y, OutputRole::User);
    let graph = check("big", &b.finish(), &[]);
    assert_eq!(graph.nodes[0].op.name, "full");
}

#[test]
fn the_seed_of_a_gradient_leaves_no_trace() {
    let mut b = Builder::new();
    let w = b.parameter("w", DType::F64, &[3]);
    let x = b.input("x", TensorType::new(DType::F64, [2, 3]), InputRole::User);
    let y = b.mul(x, w).unwrap();
    let loss = b.sum(y, &[0, 1], false).unwrap();
    b.output("loss", loss, OutputRole::User);
    let d = differentiate(b.finish(), loss).unwrap();
    let s = simplify(d.graph);
    // The gradient of w is the sum of x over the batch: 1 · x is x.
    let names: Vec<_> = s.graph.nodes.iter().map(|n| n.op.name).collect();
    assert_eq!(names, ["mul", "sum", "sum", "reshape"]);
}

/// Attention of 80 queries on `keys` keys and its gradient under a mask that `make` builds.
fn masked(keys: usize, make: impl Fn(&mut Builder) -> ValueId) -> Graph {
    use ops::attention::attention::{ATTENTION, ATTENTION_BACKWARD};
    let mut b = Builder::new();
    let ty = |n: usize| TensorType::new(DType::F64, [2, 1, n, 2]);
    let q = b.input("q", ty(80), InputRole::User);
    let [k, v] = ["k", "v"].map(|name| b.input(name, ty(keys), InputRole::User));
    let mask = make(&mut b);
    let attrs = Attrs::new().with("is_causal", false).with("scale", 0.5);
    let y = b.apply(&ATTENTION, &[Some(q), Some(k), Some(v), Some(mask), None], attrs.clone()).unwrap();
    let inputs = [q, q, k, v, y[0], y[1], y[2], mask].map(Some);
    let inputs: Vec<_> = inputs.into_iter().chain([None]).collect();
    let grads = b.apply(&ATTENTION_BACKWARD, &inputs, attrs.with("mask_grad", false)).unwrap();
    for (i, v) in y.into_iter().chain(grads).enumerate() {
        b.output(format!("y{i}"), v, OutputRole::User);
    }
    b.finish()
}

#[test]
fn masks_known_beforehand_go() {
    let arange = |b: &mut Builder, shape: &[usize]| {
        let n = shape.iter().product::<usize>();
        let x = b.one(&ops::create::arange::ARANGE, &[], Attrs::new().with("end", n as i64)).unwrap();
        b.reshape(x, shape).unwrap()
    };
    let le = &ops::pointwise::compare::LE;
    let number = |name: &'static str| move |n: &&headwater_core::graph::Node| n.op.name == name;
    // Masks that stay and nodes that are causal; 80 × 81 is more than is written into a graph.
    let case = |keys: usize, make: &dyn Fn(&mut Builder) -> ValueId| {
        let graph = masked(keys, make);
        let draw = |seed: usize, n: usize| {
            let data = (0..4 * n).map(|i| (((i * 37 + seed) % 101) as f64) / 50.0 - 1.0).collect();
            Tensor::float(DType::F64, [2, 1, n, 2], data)
        };
        let simple = check("mask", &graph, &[draw(0, 80), draw(5, keys), draw(9, keys)]);
        let attention: Vec<_> = simple.nodes.iter().filter(|n| n.op.name.starts_with("attention")).collect();
        assert_eq!(attention.len(), 2);
        let masks = [attention[0].inputs[3], attention[1].inputs[7]].iter().flatten().count();
        let causal = attention.iter().filter(|n| n.attrs.to_string().contains("is_causal=true")).count();
        assert_eq!(simple.nodes.iter().filter(number("le")).count(), masks / 2, "{simple}");
        (masks, causal)
    };
    let all = |b: &mut Builder| {
        let zero = b.full(&TensorType::new(DType::I64, [2, 1, 80, 1]), 0.0).unwrap();
        let at = arange(b, &[1, 1, 1, 81]);
        let at = b.expand(at, &[2, 1, 80, 81]).unwrap();
        b.call(le, &[zero, at]).unwrap()
    };
    assert_eq!(case(81, &all), (0, 0));
    let earlier = |b: &mut Builder| {
        let (query, key) = (arange(b, &[1, 1, 80, 1]), arange(b, &[1, 1, 1, 81]));
        let seen = b.call(le, &[key, query]).unwrap();
        b.expand(seen, &[2, 1, 80, 81]).unwrap()
    };
    assert_eq!(case(81, &earlier), (0, 2));
    // One key more for every query: neither.
    let shifted = |b: &mut Builder| {
        let (query, key) = (arange(b, &[1, 1, 80, 1]), arange(b, &[1, 1, 1, 81]));
        let query = b.one(&ops::pointwise::add::ADD, &[query], Attrs::new().with("other", 1)).unwrap();
        b.call(le, &[key, query]).unwrap()
    };
    assert_eq!(case(81, &shifted), (2, 0));
    // Broadcast along the queries, it is no triangle.
    let row = |b: &mut Builder| {
        let (zero, key) =
            (b.full(&TensorType::new(DType::I64, [1, 1, 1, 1]), 0.0).unwrap(), arange(b, &[1, 1, 1, 7]));
        b.call(le, &[key, zero]).unwrap()
    };
    // Too large to be known element by element.
    const MANY: usize = 13_200;
    let matrix = |b: &mut Builder, more: i64, op, swapped: bool| {
        let (query, key) = (arange(b, &[80, 1]), arange(b, &[1, MANY]));
        let query = b.one(&ops::pointwise::add::ADD, &[query], Attrs::new().with("other", more)).unwrap();
        let seen = b.call(op, &if swapped { [query, key] } else { [key, query] }).unwrap();
        let seen = b.reshape(seen, &[1, 1, 80, MANY]).unwrap();
        b.expand(seen, &[2, 1, 80, MANY]).unwrap()
    };
    use ops::pointwise::compare::{GE, GT, LT};
    assert_eq!(case(MANY, &|b| matrix(b, 0, le, false)), (0, 2));
    assert_eq!(case(MANY, &|b| matrix(b, 1, &LT, false)), (0, 2));
    assert_eq!(case(MANY, &|b| matrix(b, 0, &GE, true)), (0, 2));
    assert_eq!(case(MANY, &|b| matrix(b, 1, &GT, true)), (0, 2));
    for more in [-1, 1] {
        assert_eq!(case(MANY, &|b| matrix(b, more, le, false)), (2, 0));
    }
    let graph = masked(7, row);
    let attention = simplify(graph).graph;
    let node = attention.nodes.iter().find(number("attention")).unwrap();
    assert!(node.inputs[3].is_some() && !node.attrs.to_string().contains("is_causal=true"));
}

/// Random graphs from few operators on few inputs, so that equal nodes, constants and identities are
/// frequent.
fn random_graph(choices: &[(u8, u8, u8)]) -> Graph {
    let mut b = Builder::new();
    let mut values = vec![];
    for (i, d) in [DType::F32, DType::F32, DType::I64].into_iter().enumerate() {
        values.push(b.input(format!("x{i}"), TensorType::new(d, [2, 3]), InputRole::User));
    }
    for &(op, i, j) in choices {
        let (x, y) = (values[i as usize % values.len()], values[j as usize % values.len()]);
        let number = [0.0, -0.0, 1.0, 2.0, -1.5][j as usize % 5];
        let dtype = [DType::F32, DType::F64, DType::F16, DType::I64, DType::Bool][j as usize % 5];
        let other = Attrs::new().with("other", number);
        let made = match op % 9 {
            0 => b.add(x, y),
            1 => b.mul(x, y),
            2 => b.one(&ops::pointwise::add::ADD, &[x], other),
            3 => b.one(&ops::pointwise::mul::MUL, &[x], other),
            4 => b.one(&ops::pointwise::to::TO, &[x], Attrs::new().with("dtype", dtype)),
            5 => b.reshape(x, if j % 2 == 0 { &[2, 3] } else { &[6] }).and_then(|v| b.reshape(v, &[2, 3])),
            6 => b.full(&TensorType::new(dtype, if j % 2 == 0 { &[2, 3][..] } else { &[] }), number),
            7 => b.one(&ops::reduce::sum::SUM, &[x], Attrs::new().with("dim", [0]).with("keepdim", true)),
            _ => b.one(&ops::pointwise::gelu::GELU, &[x], Attrs::new()),
        };
        // Cases that an operator refuses are left out.
        values.extend(made.ok());
    }
    for (i, &v) in values.iter().rev().take(3).enumerate() {
        b.output(format!("y{i}"), v, OutputRole::User);
    }
    b.finish()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_graphs_keep_their_bits(choices in prop::collection::vec(any::<(u8, u8, u8)>(), 1..40)) {
        let floats = |seed: f64| Tensor::float(DType::F32, [2, 3], vec![seed, -0.0, 0.0, f64::NAN, -1.5, 1e30]);
        let ints = Tensor::int(DType::I64, [2, 3], vec![0, 1, -1, 7, i64::MAX, i64::MIN]);
        check("random", &random_graph(&choices), &[floats(0.1), floats(-3.0), ints]);
    }
}

/// A weight that is stored transposed gets its gradient as it is stored, not transposed afterwards.
#[test]
fn gradients_of_transposed_experts_are_made_as_they_are_stored() {
    let apply = |b: &mut Builder, name: &str, inputs: &[ValueId]| {
        let op = Registry::standard().by_name(name).unwrap();
        b.one(op, inputs, Attrs::new()).unwrap()
    };
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [5, 3]), InputRole::User);
    let offs = b.input("offs", TensorType::new(DType::I32, [2]), InputRole::User);
    let w = b.parameter("w", DType::F32, &[2, 4, 3]);
    let turned = b.permute(w, &[0, 2, 1]).unwrap();
    let y = apply(&mut b, "_grouped_mm", &[x, turned, offs]);
    let loss = b.sum(y, &[0, 1], false).unwrap();
    b.output("loss", loss, OutputRole::User);
    let d = differentiate(b.finish(), loss).unwrap();
    let numbers = |shape: &[usize]| {
        let n: usize = shape.iter().product();
        Tensor::float(DType::F32, shape, (0..n).map(|i| (i as f64 - 5.0) / 4.0).collect())
    };
    let ends = Tensor::int(DType::I32, [2], vec![2, 5]);
    let after = check("experts", &d.graph, &[numbers(&[5, 3]), ends, numbers(&[2, 4, 3])]);
    let gradient = after.outputs.iter().find(|o| matches!(o.role, OutputRole::Gradient(_))).unwrap();
    let maker = after.nodes.iter().find(|n| n.outputs.contains(&gradient.value)).unwrap();
    assert_eq!(maker.op.name, "grouped_mm_weight_backward", "{after}");
}

#[test]
fn gradients_of_transposed_weights_are_made_as_they_are_stored() {
    // GPT-2 multiplies by `[in, out]`, so that the gradient of what it transposes is read transposed.
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [6, 5]), InputRole::User);
    let w = b.parameter("w", DType::F32, &[5, 3]);
    let transposed = b.permute(w, &[1, 0]).unwrap();
    let y =
        b.apply(&ops::linear::linear::LINEAR, &[Some(x), Some(transposed), None], Attrs::new()).unwrap()[0];
    let y = b.mul(y, y).unwrap();
    let loss = b.sum(y, &[0, 1], false).unwrap();
    b.output("loss", loss, OutputRole::User);
    let step = differentiate(b.finish(), loss).unwrap().graph;
    let fed: Vec<Tensor> = step
        .inputs
        .iter()
        .map(|i| {
            let ty = step.ty(i.value);
            let values = (0..ty.shape.numel()).map(|i| ty.dtype.round((i as f64 * 0.7).sin())).collect();
            Tensor::float(ty.dtype, ty.shape.clone(), values)
        })
        .collect();
    let simple = check("transposed weights", &step, &fed);
    let gradient = simple.outputs.iter().find(|o| o.name == "grad.w").unwrap();
    assert_eq!(simple.producer(gradient.value).unwrap().0.op.name, "matmul", "{simple}");
    // A product that is read itself stays as it is.
    let mut b = Builder::extend(step);
    let gradient = b.graph().outputs.iter().find(|o| o.name == "grad.w").unwrap().value;
    let product = b.graph().producer(gradient).unwrap().0.operands().next().unwrap();
    b.output("product", product, OutputRole::User);
    let simple = check("read twice", &b.finish(), &fed);
    assert_eq!(simple.nodes.iter().filter(|n| n.op.name == "matmul").count(), 1, "{simple}");
}

/// Gradients of slices that do not overlap make one tensor, and none of it twice.
#[test]
fn slices_that_do_not_overlap_are_joined() {
    let of = |ranges: &[[i64; 2]], whole: bool| {
        let mut b = Builder::new();
        let x = b.parameter("x", DType::F32, &[2, 7, 3]);
        let slice = |b: &mut Builder, [start, end]: [i64; 2]| {
            let attrs = Attrs::new().with("dim", 1).with("start", start).with("end", end).with("step", 1);
            let part = b.one(&ops::view::slice::SLICE, &[x], attrs).unwrap();
            let square = b.mul(part, part).unwrap();
            b.sum(square, &[0, 1, 2], false).unwrap()
        };
        let parts: Vec<_> = ranges.iter().map(|&r| slice(&mut b, r)).collect();
        let mut loss = parts.into_iter().reduce(|sum, part| b.add(sum, part).unwrap()).unwrap();
        if whole {
            let all = b.sum(x, &[0, 1, 2], false).unwrap();
            loss = b.add(loss, all).unwrap();
        }
        b.output("loss", loss, OutputRole::User);
        let graph = differentiate(b.finish(), loss).unwrap().graph;
        let numbers = (0..42).map(|i| if i % 5 == 0 { -0.0 } else { i as f64 / 8.0 - 2.0 }).collect();
        let after = check("slices", &graph, &[Tensor::float(DType::F32, [2, 7, 3], numbers)]);
        (simplify(graph).joined, after.nodes.iter().filter(|n| n.op.name == "constant_pad_nd").count())
    };
    assert_eq!(of(&[[0, 2], [2, 3], [3, 7]], false), (3, 0));
    assert_eq!(of(&[[4, 5], [0, 2]], true), (2, 0));
    // A slice that overlaps begins another tensor.
    assert_eq!(of(&[[0, 1], [4, 6], [5, 7], [0, 2]], false), (4, 0));
    assert_eq!(of(&[[0, 2], [4, 5], [1, 4], [5, 7]], false), (3, 1));
    assert_eq!(of(&[[0, 2], [1, 4]], true), (0, 2));
    assert_eq!(of(&[[2, 3]], true), (0, 1));
}
