//! Passes stay linear: what they make of a model twice as large is twice as large. Counted in nodes, steps
//! and bytes, not in time; `cargo run --release -p headwater-core --example large_graph` measures that.

use headwater_core::Graph;
use headwater_core::graph::verify;
use headwater_core::pass::{check_plan, differentiate, fuse, plan, simplify};
use headwater_core::plan::Bindings;
use headwater_core::stats::operators;
use headwater_core::target::Target;

/// Sizes after each pass: nodes, operands of all nodes, steps, placements, and floating-point operations.
fn sizes(graph: Graph) -> (usize, Vec<(&'static str, f64)>) {
    let operands = |g: &Graph| g.nodes.iter().map(|n| n.operands().count()).sum::<usize>() as f64;
    let flops = |g: &Graph| operators(g).iter().map(|o| o.flops).sum::<f64>();
    let forward = graph.nodes.len();
    let loss = graph.outputs[0].value;
    let d = differentiate(graph, loss).unwrap();
    assert!(d.missing.is_empty());
    let mut out =
        vec![("differentiated nodes", d.graph.nodes.len() as f64), ("operands", operands(&d.graph))];
    out.push(("operations", flops(&d.graph)));
    let s = simplify(d.graph);
    out.push(("simplified nodes", s.graph.nodes.len() as f64));
    verify(&s.graph).unwrap();
    let fused = fuse(s.graph, &Target::default()).unwrap();
    verify(&fused).unwrap();
    out.push(("fused nodes", fused.nodes.len() as f64));
    out.push(("operands of fused nodes", operands(&fused)));
    let plan = plan(&fused, &Bindings::simple(&fused), &Target::default()).unwrap();
    check_plan(&plan).unwrap();
    out.push(("steps", plan.steps.len() as f64));
    out.push(("placements", plan.placements.len() as f64));
    (forward, out)
}

fn check(build: fn(usize) -> Graph) {
    let (small, large) = (sizes(build(1250)), sizes(build(5000)));
    let factor = large.0 as f64 / small.0 as f64;
    for ((what, a), (_, b)) in small.1.into_iter().zip(large.1) {
        // The ends of the model count once, so the larger model is never more than in proportion.
        assert!(b <= a * factor * 1.01, "{what}: {a} of {} nodes became {b} of {}", small.0, large.0);
        assert!(b >= a * factor * 0.9, "{what}: {a} of {} nodes became {b} of {}", small.0, large.0);
    }
}

#[test]
fn a_deep_model() {
    check(crate::common::large::deep);
}

#[test]
fn a_wide_model() {
    check(crate::common::large::wide);
}
