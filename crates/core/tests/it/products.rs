//! Products that share an operand as one: the same numbers, fewer steps, nothing copied.

use crate::common::same_bits;
use headwater_core::compile::{CompiledGraph, Goal, Options, compile, optimize};
use headwater_core::graph::{InputRole, Origin, OutputRole, verify};
use headwater_core::ops::linear::linear::LINEAR;
use headwater_core::ops::pointwise::gelu::GELU;
use headwater_core::ops::view::alias::ALIAS;
use headwater_core::pass::differentiate::differentiate;
use headwater_core::pass::precision::{Level, PrecisionSettings, Properties};
use headwater_core::pass::products::{Parameter, anywhere};
use headwater_core::pass::{check_plan, join_products};
use headwater_core::plan::{Plan, Work};
use headwater_core::target::Target;
use headwater_core::train::{self, BucketLayout, BucketSize};
use headwater_core::{Attrs, Builder, DType, Error, Graph, Tensor, TensorType, ValueId, reference};
use std::collections::HashSet;

/// Rows, inputs, and outputs of each product.
const SIZES: (usize, usize, [usize; 3]) = (6, 5, [16, 32, 24]);

fn linear(b: &mut Builder, x: ValueId, name: &str, out: usize, bias: bool, dtype: DType) -> ValueId {
    b.at(Origin { module: format!("layer.{name}"), node: name.into(), ..Origin::default() });
    let k = b.ty(x).shape[b.ty(x).shape.rank() - 1];
    let w = b.parameter(&format!("layer.{name}.weight"), dtype, &[out, k]);
    let bias = bias.then(|| b.parameter(&format!("layer.{name}.bias"), dtype, &[out]));
    b.apply(&LINEAR, &[Some(x), Some(w), bias], Attrs::new()).unwrap()[0]
}

/// `Σ gelu(q) · (1 + …)` of three products of one input, which is itself a product of a parameter.
fn model(dtype: DType, bias: bool) -> Graph {
    let (m, k, outs) = SIZES;
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(dtype, [2, m / 2, k]), InputRole::User);
    let scale = b.parameter("scale", dtype, &[k]);
    let x = b.mul(x, scale).unwrap();
    let mut losses = Vec::new();
    for (name, out) in ["q", "k", "v"].iter().zip(outs) {
        let y = linear(&mut b, x, name, out, bias, dtype);
        let y = b.call(&GELU, &[y]).unwrap();
        losses.push(b.sum(y, &[0, 1, 2], false).unwrap());
    }
    let two = b.add(losses[0], losses[1]).unwrap();
    let loss = b.mul(two, losses[2]).unwrap();
    b.output("loss", loss, OutputRole::User);
    b.finish()
}

fn inputs(graph: &Graph) -> Vec<Tensor> {
    let number = |at: usize, i: usize| (((at * 7919 + i * 104_729) % 2000) as f64 / 1000.0) - 1.0;
    let one = |(at, input): (usize, &headwater_core::graph::Input)| {
        let ty = graph.ty(input.value);
        let values = (0..ty.shape.numel()).map(|i| ty.dtype.round(number(at, i))).collect();
        Tensor::float(ty.dtype, ty.shape.clone(), values)
    };
    graph.inputs.iter().enumerate().map(one).collect()
}

fn products(graph: &Graph) -> usize {
    graph.nodes.iter().filter(|n| ["linear", "matmul"].contains(&n.op.name)).count()
}

fn options<'a>() -> Options<'a> {
    Options { adjacent: Some(&anywhere), ..Options::default() }
}

#[test]
fn joined_products_have_the_same_results_and_weight_gradients() {
    for (dtype, bias) in [(DType::F64, true), (DType::F32, true), (DType::F32, false)] {
        let apart = model(dtype, bias);
        let joined = join_products(apart.clone(), &anywhere, &HashSet::new()).unwrap();
        verify(&joined.graph).unwrap();
        let weights: Vec<String> = ["q", "k", "v"].map(|n| format!("layer.{n}.weight")).into();
        let biases: Vec<String> = ["q", "k", "v"].map(|n| format!("layer.{n}.bias")).into();
        let lists = if bias { vec![weights, biases] } else { vec![weights] };
        assert_eq!(joined.adjacent, lists);
        assert_eq!((products(&apart), products(&joined.graph)), (3, 1));
        let line = joined.graph.nodes.iter().find(|n| n.op.name == "linear").unwrap();
        assert_eq!(joined.graph.origin(line).module, "layer.q+k+v");
        let step = |g: Graph| {
            let loss = g.outputs[0].value;
            differentiate(g, loss).unwrap().graph
        };
        let (apart, joined) = (step(apart), step(joined.graph));
        // Forward, weight gradient and input gradient of each; of all.
        assert_eq!((products(&apart), products(&joined)), (9, 3), "{joined}");
        let fed = inputs(&apart);
        let (one, other) = (reference::run(&apart, &fed).unwrap(), reference::run(&joined, &fed).unwrap());
        for ((a, b), output) in one.iter().zip(&other).zip(&apart.outputs) {
            // The gradient of the input is what sums are reordered in.
            if output.name == "grad.scale" {
                let (a, b) = (a.to_f64(), b.to_f64());
                let size = a.iter().fold(0.0f64, |m, x| m.max(x.abs()));
                let terms = SIZES.2.iter().sum::<usize>() * SIZES.0;
                let bound = terms as f64 * dtype.epsilon() * size;
                assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= bound), "{dtype}: {a:?} {b:?}");
            } else {
                assert!(same_bits(a, b), "{dtype}: {}", output.name);
            }
        }
    }
}

#[test]
fn gradients_of_joined_products_are_those_of_central_differences() {
    let joined = join_products(model(DType::F64, true), &anywhere, &HashSet::new()).unwrap().graph;
    let fed = inputs(&joined);
    let loss = joined.outputs[0].value;
    let step = differentiate(joined.clone(), loss).unwrap().graph;
    let got = reference::run(&step, &fed).unwrap();
    let at = |fed: &[Tensor]| reference::run(&joined, fed).unwrap()[0].to_f64()[0];
    let mut compared = 0;
    for (i, input) in joined.inputs.iter().enumerate().skip(1) {
        let output = step.outputs.iter().position(|o| o.name == format!("grad.{}", input.name)).unwrap();
        let gradient = got[output].to_f64();
        for (e, g) in gradient.iter().enumerate() {
            let moved = |by: f64| {
                let mut fed = fed.clone();
                let mut values = fed[i].to_f64();
                values[e] += by;
                fed[i] = Tensor::float(DType::F64, fed[i].shape().clone(), values);
                at(&fed)
            };
            let h = 1e-5;
            let slope = (moved(h) - moved(-h)) / (2.0 * h);
            // The error of central differences is h² times a third derivative, and rounding over h.
            assert!((slope - g).abs() <= 1e-6 * (1.0 + g.abs()), "{} {e}: {slope} {g}", input.name);
            compared += 1;
        }
    }
    assert_eq!(compared, 5 + SIZES.2.iter().sum::<usize>() * 6);
}

/// Names that are joined in a model of two products.
fn joined(change: impl Fn(&mut Builder, ValueId)) -> Vec<Vec<String>> {
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [4, 8]), InputRole::User);
    change(&mut b, x);
    join_products(b.finish(), &anywhere, &HashSet::new()).unwrap().adjacent
}

fn returned(b: &mut Builder, v: ValueId) {
    b.output(format!("out{}", v.0), v, OutputRole::User);
}

#[test]
fn only_products_of_a_kind_are_joined() {
    let two =
        |b: &mut Builder, x| [("a", 8), ("b", 8)].map(|(n, out)| linear(b, x, n, out, false, DType::F32));
    let both = joined(|b, x| two(b, x).into_iter().for_each(|v| returned(b, v)));
    assert_eq!(both, [["layer.a.weight", "layer.b.weight"]]);
    // One has a bias.
    let one = joined(|b, x| {
        for (name, bias) in [("a", true), ("b", false)] {
            let v = linear(b, x, name, 8, bias, DType::F32);
            returned(b, v);
        }
    });
    assert!(one.is_empty());
    // Other operands.
    let other = joined(|b, x| {
        let y = b.call(&ALIAS, &[x]).unwrap();
        for (name, x) in [("a", x), ("b", y)] {
            let v = linear(b, x, name, 8, false, DType::F32);
            returned(b, v);
        }
    });
    assert!(other.is_empty());
    // Modules of different ones.
    let far = joined(|b, x| {
        two(b, x).into_iter().for_each(|v| returned(b, v));
        let origins = std::sync::Arc::make_mut(&mut b.graph_mut().origins);
        origins.last_mut().unwrap().module = "elsewhere.b".into();
    });
    assert!(far.is_empty());
    // A weight that something else reads too.
    let tied = joined(|b, x| {
        two(b, x).into_iter().for_each(|v| returned(b, v));
        let w = b.graph().input("layer.a.weight").unwrap().value;
        let s = b.sum(w, &[0, 1], false).unwrap();
        returned(b, s);
    });
    assert!(tied.is_empty());
    // One that is not trained.
    let frozen = joined(|b, x| {
        two(b, x).into_iter().for_each(|v| returned(b, v));
        let inputs = &mut b.graph_mut().inputs;
        inputs[1].role = InputRole::Parameter { trainable: false, aliases: vec![] };
    });
    assert!(frozen.is_empty());
    // 36 bytes: the parameter after it would begin within a vector.
    let odd = joined(|b, x| {
        for (name, out) in [("a", 9), ("b", 8)] {
            let y = b.sum(x, &[1], true).unwrap();
            let y = if name == "a" { y } else { b.graph().nodes[0].outputs[0] };
            let v = linear(b, y, name, out, false, DType::F32);
            returned(b, v);
        }
    });
    assert!(odd.is_empty());
}

#[test]
fn a_parameter_without_gradient_keeps_its_reason() {
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [4, 8]), InputRole::User);
    let [q, k, v] = ["q", "k", "v"].map(|n| linear(&mut b, x, n, 8, false, DType::F32));
    let k = b.call(&headwater_core::ops::control::detach::DETACH, &[k]).unwrap();
    let y = b.mul(q, k).unwrap();
    let y = b.mul(y, v).unwrap();
    let loss = b.sum(y, &[0, 1], false).unwrap();
    b.output("loss", loss, OutputRole::User);
    let model = b.finish();
    let made = optimize(model, &options(), &Target::default()).unwrap();
    // Queries and values are not neighbours in the graph but may be in memory.
    assert_eq!(made.adjacent, [["layer.q.weight", "layer.v.weight"]]);
    assert_eq!(made.missing.len(), 1);
    let missing = &made.missing[0];
    assert_eq!(missing.parameter, "layer.k.weight");
    assert!(missing.reason.contains("detach"), "{}", missing.reason);
}

/// The plan of a step whose parameters and gradients are in buckets.
fn planned(options: &Options, model: Graph, together: bool) -> (Plan, CompiledGraph) {
    let bind = |c: &CompiledGraph| {
        let parameters = c.gradients.iter().map(|g| (g.parameter.as_str(), &g.ty, 0));
        let adjacent = if together { &c.adjacent[..] } else { &[] };
        let layout = BucketLayout::with_adjacent(parameters, adjacent, BucketSize::UNLIMITED);
        Ok::<_, Error>(train::bind(&c.graph, &layout))
    };
    let mut made = compile(model, options, &Target::default(), bind).unwrap();
    let plan = made.plan.take().unwrap();
    check_plan(&plan).unwrap();
    (plan, made)
}

/// Steps by operator: products, and copies of whole operands.
fn counted(plan: &Plan) -> (usize, usize) {
    let kernel = |s: &headwater_core::plan::Step| matches!(s.work, Work::Kernel { .. });
    let copies = plan.steps.iter().filter(|s| ["cat", "slice", "split_with_sizes"].contains(&s.op)).count();
    (plan.steps.iter().filter(|s| kernel(s)).count(), copies)
}

#[test]
fn parameters_that_lie_side_by_side_are_one_operand() {
    let low = PrecisionSettings { dtype: Some(DType::BF16), ..PrecisionSettings::default() };
    let precision = |level| -> Properties {
        PrecisionSettings { level, ..low.clone() }.properties(&Target::default()).unwrap()
    };
    for (precision, accumulate) in [
        (Properties::default(), false),
        (Properties::default(), true),
        (precision(Level::O1), false),
        (precision(Level::O2), false),
    ] {
        let settings = Options { precision, accumulate, ..options() };
        let apart = Options { adjacent: None, ..settings.clone() };
        let (before, _) = planned(&apart, model(DType::F32, true), false);
        let (plan, made) = planned(&settings, model(DType::F32, true), true);
        assert_eq!(counted(&before).0, 9);
        assert_eq!(counted(&plan), (3, 0), "{plan}");
        assert!(plan.steps.len() < before.steps.len());
        // One conversion of all weights, and one of all biases, where there are any.
        let casts = |plan: &Plan| plan.steps.iter().filter(|s| s.op == "to").count();
        assert!(casts(&plan) <= casts(&before), "{plan}");
        // Elsewhere, they are concatenated by a copy, to the same results.
        let (copied, _) = planned(&settings, model(DType::F32, true), false);
        assert_eq!(counted(&copied).0, 3);
        assert!(counted(&copied).1 > 0, "{copied}");
        assert_eq!(made.adjacent.len(), 2);
    }
}

#[test]
fn evaluation_joins_what_training_has_placed() {
    let (_, made) = planned(&options(), model(DType::F32, true), true);
    let parameters = made.gradients.iter().map(|g| (g.parameter.as_str(), &g.ty, 0));
    let layout = BucketLayout::with_adjacent(parameters, &made.adjacent, BucketSize::UNLIMITED);
    let adjacent = |before: Parameter, after: Parameter| layout.adjacent(before.0, after.0);
    let evaluation = Options { goal: Goal::Evaluate, adjacent: Some(&adjacent), ..Options::default() };
    let bind = |c: &CompiledGraph| Ok::<_, Error>(train::bind(&c.graph, &layout));
    let plan = compile(model(DType::F32, true), &evaluation, &Target::default(), bind).unwrap();
    let plan = plan.into_plan().unwrap();
    assert_eq!(counted(&plan), (1, 0), "{plan}");
}

#[test]
fn what_the_plan_writes_is_not_read_as_one() {
    // The new content of one of two neighbours: a view of both would show it too early.
    let mut b = Builder::new();
    let ty = || TensorType::new(DType::F32, [8]);
    let p = b.input("p", ty(), InputRole::State);
    let q = b.input("q", ty(), InputRole::State);
    let both = b.one(&headwater_core::ops::movement::cat::CAT, &[p, q], Attrs::new().with("dim", 0)).unwrap();
    let new = b.call(&GELU, &[p]).unwrap();
    let twice = b.scale(both, 2.0).unwrap();
    b.output("p", new, OutputRole::Mutation(p));
    b.output("both", twice, OutputRole::User);
    let graph = b.finish();
    let segment = |name: &str, bytes| headwater_core::plan::Segment {
        name: name.into(),
        bytes,
        kind: headwater_core::plan::SegmentKind::State,
    };
    let place = |segment, offset| {
        Some(headwater_core::plan::Place { segment: headwater_core::plan::SegmentId(segment), offset })
    };
    let bindings = |written| headwater_core::plan::Bindings {
        segments: vec![segment("state", 64), segment("out", 64), segment("new", 32)],
        inputs: vec![place(1, 0), place(1, 32)],
        outputs: vec![if written { None } else { place(3, 0) }, place(2, 0)],
        buckets: vec![],
    };
    let copies = |written| {
        let plan = headwater_core::pass::plan(&graph, &bindings(written), &Target::default()).unwrap();
        check_plan(&plan).unwrap();
        plan.steps.iter().filter(|s| s.op == "cat").count()
    };
    assert_eq!((copies(false), copies(true)), (0, 2));
}

/// Queries and keys of 4 and 2 heads of 8, rotated as in rotary embeddings, times values of 2 heads.
fn rotary(dtype: DType) -> Graph {
    let (samples, length, size) = (2, 3, 8);
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(dtype, [samples, length, 16]), InputRole::User);
    let tables = ["cos", "sin"].map(|n| b.input(n, TensorType::new(dtype, [length, size]), InputRole::User));
    let heads = |b: &mut Builder, name: &str, count: usize| {
        let y = linear(b, x, name, count * size, false, dtype);
        b.at(Origin { module: "layer".into(), node: format!("turn_{name}"), ..Origin::default() });
        let y = b.reshape(y, &[samples, length, count, size]).unwrap();
        b.permute(y, &[0, 2, 1, 3]).unwrap()
    };
    let [q, k, v] = [("q", 4), ("k", 2), ("v", 2)].map(|(name, count)| heads(&mut b, name, count));
    let half = |b: &mut Builder, x, start: i64, end: i64| {
        let range = Attrs::new().with("dim", 3).with("start", start).with("end", end).with("step", 1);
        b.one(&headwater_core::ops::view::slice::SLICE, &[x], range).unwrap()
    };
    let turn = |b: &mut Builder, x: ValueId| {
        let straight = b.mul(x, tables[0]).unwrap();
        let (low, high) = (half(b, x, 0, 4), half(b, x, 4, 8));
        let high = b.call(&headwater_core::ops::pointwise::neg::NEG, &[high]).unwrap();
        let cat = &headwater_core::ops::movement::cat::CAT;
        let rotated = b.one(cat, &[high, low], Attrs::new().with("dim", 3)).unwrap();
        let rotated = b.mul(rotated, tables[1]).unwrap();
        b.add(straight, rotated).unwrap()
    };
    let (q, k) = (turn(&mut b, q), turn(&mut b, k));
    let q = b.sum(q, &[1], true).unwrap();
    let y = b.mul(q, k).unwrap();
    let y = b.mul(y, v).unwrap();
    let loss = b.sum(y, &[0, 1, 2, 3], false).unwrap();
    b.output("loss", loss, OutputRole::User);
    b.finish()
}

#[test]
fn neighbours_that_go_the_same_way_go_it_together() {
    let apart = rotary(DType::F32);
    let joined = join_products(apart.clone(), &anywhere, &HashSet::new()).unwrap().graph;
    verify(&joined).unwrap();
    let live = |graph: &Graph, op: &str| graph.nodes.iter().filter(|n| n.op.name == op).count();
    // Queries and keys share two products, one sum and one concatenation; values go their own way.
    for (op, two, one) in [("neg", 2, 1), ("cat", 2, 2), ("add", 2, 1), ("mul", 6, 4), ("linear", 3, 1)] {
        assert_eq!((live(&apart, op), live(&joined, op)), (two, one), "{op}: {joined}");
    }
    let step = |g: Graph| {
        let loss = g.outputs[0].value;
        differentiate(g, loss).unwrap().graph
    };
    let (apart, joined) = (step(apart), step(joined));
    let fed = inputs(&apart);
    let (one, other) = (reference::run(&apart, &fed).unwrap(), reference::run(&joined, &fed).unwrap());
    for ((a, b), output) in one.iter().zip(&other).zip(&apart.outputs) {
        assert!(same_bits(a, b), "{}", output.name);
    }
}

#[test]
fn programs_over_queries_and_keys_are_one() {
    let rows = |plan: &Plan| {
        let turning = |s: &&headwater_core::plan::Step| plan.origin(s).node.starts_with("turn_");
        plan.steps.iter().filter(turning).count()
    };
    let (before, _) = planned(&Options { adjacent: None, ..options() }, rotary(DType::F32), false);
    let (plan, _) = planned(&options(), rotary(DType::F32), true);
    assert_eq!((counted(&before).0, counted(&plan).0), (6, 2), "{plan}");
    assert!(rows(&plan) < rows(&before), "{plan}");
}

#[test]
fn neighbours_that_differ_stay_apart() {
    // Another table, another order of dimensions, another operator.
    let changed = |change: &dyn Fn(&mut Builder, ValueId, bool) -> ValueId| {
        let mut b = Builder::new();
        let x = b.input("x", TensorType::new(DType::F32, [4, 8]), InputRole::User);
        for name in ["a", "b"] {
            let y = linear(&mut b, x, name, 8, false, DType::F32);
            let y = change(&mut b, y, name == "b");
            let y = b.scale(y, 2.0).unwrap();
            returned(&mut b, y);
        }
        let joined = join_products(b.finish(), &anywhere, &HashSet::new()).unwrap().graph;
        verify(&joined).unwrap();
        joined.nodes.iter().filter(|n| n.op.name == "mul").count()
    };
    let twice = |b: &mut Builder, y, by: f64| b.scale(y, by).unwrap();
    assert_eq!(changed(&|b, y, _| twice(b, y, 3.0)), 3, "the last of the two are results of the graph");
    assert_eq!(changed(&|b, y, second| twice(b, y, if second { 4.0 } else { 3.0 })), 4);
    let other = |b: &mut Builder, y, second: bool| match second {
        true => b.call(&GELU, &[y]).unwrap(),
        false => b.call(&headwater_core::ops::pointwise::neg::NEG, &[y]).unwrap(),
    };
    assert_eq!(changed(&other), 2);
    // A table of as many rows as the two have columns each.
    let tables = std::cell::RefCell::new(Vec::new());
    let table = |b: &mut Builder, y, _: bool| {
        let mut tables = tables.borrow_mut();
        if tables.is_empty() {
            tables.push(b.input("table", TensorType::new(DType::F32, [8]), InputRole::User));
        }
        b.mul(y, tables[0]).unwrap()
    };
    assert_eq!(changed(&table), 4);
}
