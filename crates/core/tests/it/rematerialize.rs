//! Rematerialization: the same bits within a memory budget, and what it costs.

use crate::common::same_bits;
use headwater_core::compile::{CompiledGraph, Options, compile};
use headwater_core::graph::{Builder, Graph, InputRole, Node, OutputRole, Phase, verify};
use headwater_core::ops::{self, Body};
use headwater_core::plan::{Bindings, Plan};
use headwater_core::row::Instr;
use headwater_core::stats;
use headwater_core::target::Target;
use headwater_core::{Attrs, Code, DType, Error, Tensor, TensorType, ValueId, reference};

fn compiled(model: &Graph, budget: Option<usize>) -> Result<CompiledGraph, Error> {
    let options = Options { memory_budget: budget, ..Options::default() };
    let bind = |compiled: &CompiledGraph| Ok::<_, Error>(Bindings::simple(&compiled.graph));
    let done = compile(model.clone(), &options, &Target::default(), bind)?;
    verify(&done.graph)?;
    Ok(done)
}

fn total(plan: &Plan) -> usize {
    plan.segments.iter().map(|s| s.bytes).sum()
}

/// Bytes outside of the arena, and in it.
fn memory(done: &CompiledGraph) -> [usize; 2] {
    let plan = done.plan.as_ref().unwrap();
    [total(plan) - plan.segments[0].bytes, plan.segments[0].bytes]
}

fn feed(graph: &Graph) -> Vec<Tensor> {
    let number = |i: usize, k: usize| ((i * 31 + k * 17 + 5) % 23) as f64 / 46.0 - 0.25;
    let tensor = |(k, i): (usize, &headwater_core::graph::Input)| {
        let ty = graph.ty(i.value);
        match ty.dtype.is_float() {
            true => {
                let all = (0..ty.shape.numel()).map(|i| number(i, k)).collect();
                Tensor::float(ty.dtype, ty.shape.clone(), all)
            }
            false => Tensor::full(ty, 3.0),
        }
    };
    graph.inputs.iter().enumerate().map(tensor).collect()
}

fn assert_same(a: &Graph, b: &Graph) {
    let fed = feed(a);
    let (want, got) = (reference::run(a, &fed).unwrap(), reference::run(b, &fed).unwrap());
    for ((o, a), b) in a.outputs.iter().zip(&want).zip(&got) {
        assert!(same_bits(a, b), "{}", o.name);
    }
}

/// Layers of a gated linear unit with a norm, dropout and a residual, as in Llama. They are wide enough for
/// activations to be most of the memory. Numbers are f64, in which the reference computes.
fn gated(layers: usize, tokens: usize) -> Graph {
    let mut b = Builder::new();
    let mut x = b.input("x", TensorType::new(DType::F64, [2, tokens, 16]), InputRole::User);
    let linear = |b: &mut Builder, name: String, x: ValueId, out: usize| {
        let from = b.ty(x).shape[2];
        let w = b.parameter(&name, DType::F64, &[from, out]);
        b.matmul(x, w).unwrap()
    };
    for i in 0..layers {
        let w = b.parameter(&format!("norm{i}"), DType::F64, &[16]);
        let attrs = Attrs::new().with("normalized_shape", [16]).with("eps", 1e-5);
        let h = b.apply(&ops::norm::rms_norm::RMS_NORM, &[Some(x), Some(w)], attrs).unwrap()[0];
        let gate = linear(&mut b, format!("gate{i}"), h, 48);
        let up = linear(&mut b, format!("up{i}"), h, 48);
        let gate = b.call(&ops::pointwise::silu::SILU, &[gate]).unwrap();
        let h = b.mul(gate, up).unwrap();
        let attrs = Attrs::new().with("p", 0.25).with("train", true);
        let h = b.one(&ops::random::dropout::DROPOUT, &[h], attrs).unwrap();
        let h = linear(&mut b, format!("down{i}"), h, 16);
        x = b.add(x, h).unwrap();
    }
    let square = b.mul(x, x).unwrap();
    let loss = b.sum(square, &[0, 1, 2], false).unwrap();
    b.output("loss", loss, OutputRole::User);
    b.finish()
}

fn kernels(graph: &Graph, op: &str) -> usize {
    graph.nodes.iter().filter(|n| n.op.name == op).count()
}

#[test]
fn half_of_the_activations_for_a_quarter_of_the_time() {
    let model = gated(24, 64);
    let plain = compiled(&model, None).unwrap();
    let [outside, arena] = memory(&plain);
    let budget = outside + arena / 2;
    let done = compiled(&model, Some(budget)).unwrap();
    let cost = done.rematerialized.unwrap();
    assert_eq!((cost.before, cost.budget), (outside + arena, budget));
    assert_eq!(cost.after, total(done.plan.as_ref().unwrap()));
    assert!(cost.after <= budget, "{cost:?}");
    assert!(cost.more_seconds <= 0.25 * cost.seconds, "{cost:?}");
    assert!(cost.more_flops <= 0.25 * cost.flops, "{cost:?}");
    // Predictions are of what is really there.
    let flops = |g: &Graph| g.nodes.iter().map(|n| stats::work(g, n).0).sum::<f64>();
    assert_eq!(cost.flops, flops(&plain.graph));
    let more = flops(&done.graph) - flops(&plain.graph);
    assert!((more - cost.more_flops).abs() <= 0.05 * cost.more_flops, "{more} and {cost:?}");
    // Products are among what is recomputed, in the backward pass.
    assert!(kernels(&done.graph, "matmul") > kernels(&plain.graph, "matmul"));
    let forward = |g: &Graph| g.nodes.iter().filter(|n| n.phase == Phase::Forward).count();
    assert!(forward(&done.graph) <= forward(&plain.graph));
    assert_same(&plain.graph, &done.graph);
}

#[test]
fn any_budget_is_kept_with_the_same_bits_or_refused_with_the_least() {
    let model = gated(6, 32);
    let plain = compiled(&model, None).unwrap();
    let [outside, arena] = memory(&plain);
    let mut last = 0.0;
    let mut refused = false;
    for eighths in (0..8).rev() {
        let budget = outside + arena * eighths / 8;
        match compiled(&model, Some(budget)) {
            Ok(done) => {
                assert!(!refused, "{eighths} eighths fit, more did not");
                let cost = done.rematerialized.unwrap();
                assert!(total(done.plan.as_ref().unwrap()) <= budget);
                assert!(cost.more_seconds >= last, "less memory for less time");
                last = cost.more_seconds;
                assert_same(&plain.graph, &done.graph);
            }
            Err(e) => {
                assert_eq!(e.code, Code::Size, "{e}");
                refused = true;
                // The least that it names is reachable.
                let mut words = e.message.split("and ").nth(1).unwrap().split(' ');
                let number: f64 = words.next().unwrap().parse().unwrap();
                let unit = if words.next() == Some("KiB") { 1024.0 } else { 1048576.0 };
                assert!(number * unit < (outside + arena) as f64, "{e}");
                let least = ((number + 0.05) * unit) as usize;
                assert!(compiled(&model, Some(least)).is_ok(), "{e}");
            }
        }
    }
    assert!(refused, "nothing is no budget for anything");
    assert!(last > 0.0);
}

#[test]
fn what_fits_is_left_as_it_is() {
    let model = gated(3, 16);
    let plain = compiled(&model, None).unwrap();
    let fits = compiled(&model, Some(memory(&plain).iter().sum())).unwrap();
    assert_eq!(fits.rematerialized, None);
    assert_eq!(fits.graph.to_string(), plain.graph.to_string());
}

#[test]
fn random_numbers_are_drawn_again_the_same() {
    let model = gated(8, 64);
    let plain = compiled(&model, None).unwrap();
    let [outside, arena] = memory(&plain);
    let done = compiled(&model, Some(outside + arena * 3 / 8)).unwrap();
    let draws = |g: &Graph| g.nodes.iter().filter(|n: &&Node| n.op.name.starts_with("philox")).count();
    assert!(draws(&done.graph) > draws(&plain.graph), "no mask was given up");
    assert_same(&plain.graph, &done.graph);
}

#[test]
fn sums_that_are_computed_again_keep_their_order() {
    // Rows longer than the device reduces in one piece: their programs are run again as they are.
    let mut target = Target::default();
    target.rows.whole_columns = 8;
    let model = gated(6, 64);
    let on = |budget| {
        let options = Options { memory_budget: budget, ..Options::default() };
        let bind = |compiled: &CompiledGraph| Ok::<_, Error>(Bindings::simple(&compiled.graph));
        compile(model.clone(), &options, &target, bind).unwrap()
    };
    let plain = on(None);
    let [outside, arena] = memory(&plain);
    let done = on(Some(outside + arena * 7 / 8));
    let sums = |g: &Graph, phase: Phase| -> Vec<String> {
        let reduces = |n: &&Node| {
            let types: Vec<TensorType> = n.outputs.iter().map(|&v| g.ty(v).clone()).collect();
            let program = n.op.row_program(&g.cx(n), &types).unwrap();
            n.phase == phase && program.is_some_and(|p| p.body.iter().any(|i| matches!(i, Instr::Reduce(..))))
        };
        g.nodes.iter().filter(reduces).map(|n| n.attrs.to_string()).collect()
    };
    let had = sums(&plain.graph, Phase::Forward);
    let again = sums(&done.graph, Phase::Backward);
    let new = again.iter().filter(|program| had.contains(program));
    assert!(new.count() > 0, "no norm was computed again");
    assert_same(&plain.graph, &done.graph);
}

#[test]
fn a_large_graph_is_brought_under_its_budget() {
    let model = crate::common::large::deep(6_000);
    let plain = compiled(&model, None).unwrap();
    let [outside, arena] = memory(&plain);
    let done = compiled(&model, Some(outside + arena * 6 / 10)).unwrap();
    assert!(total(done.plan.as_ref().unwrap()) <= outside + arena * 6 / 10);
    let products = |g: &Graph| g.nodes.iter().filter(|n| matches!(n.op.body, Body::Kernel(_))).count();
    assert!(products(&done.graph) > products(&plain.graph));
}
