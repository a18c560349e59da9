//! Plans of differentiated graphs: sound by the independent checker, written in place only where that is
//! safe.

use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ops::{self, OpCx, OpDef};
use headwater_core::pass::{check_plan, decompose, differentiate, plan};
use headwater_core::plan::{Bindings, SegmentKind};
use headwater_core::target::{Operators, Port, Support, Target};
use headwater_core::{Attrs, Builder, DType, Graph, TensorType, ValueId};
use std::sync::Arc;

/// A device whose kernels require contiguous inputs and some scratch memory.
#[derive(Debug)]
struct Plain;

impl Operators for Plain {
    fn support(&self, _: &OpDef, _: &OpCx, _: &[TensorType]) -> Support {
        Support::Native
    }
    fn workspace(&self, _: &OpDef, _: &OpCx, outs: &[TensorType]) -> usize {
        outs[0].bytes() / 2
    }
    fn strided(&self, _: &OpDef, _: &OpCx, _: &[TensorType], _: Port) -> bool {
        false
    }
}

fn plain() -> Target {
    Target::generic(Arc::new(Plain))
}

fn user(b: &mut Builder, name: &str, shape: &[usize]) -> ValueId {
    b.input(name, TensorType::new(DType::F32, shape), InputRole::User)
}

fn mlp(layers: usize) -> Graph {
    let mut b = Builder::new();
    let mut x = user(&mut b, "x", &[4, 8]);
    for i in 0..layers {
        let w = b.parameter(&format!("w{i}"), DType::F32, &[8, 8]);
        let wt = b.transpose_last(w).unwrap();
        let h = b.matmul(x, wt).unwrap();
        let h = b.one(&ops::pointwise::gelu::GELU, &[h], Attrs::new()).unwrap();
        x = b.add(x, h).unwrap();
    }
    let loss = b.sum(x, &[0, 1], false).unwrap();
    b.output("loss", loss, OutputRole::User);
    b.finish()
}

#[test]
fn a_differentiated_graph_plans_soundly_and_reuses_memory() {
    let graph = decompose(mlp(12)).unwrap();
    let loss = graph.outputs[0].value;
    let d = differentiate(graph, loss).unwrap();
    assert!(d.missing.is_empty());
    let plan = plan(&d.graph, &Bindings::simple(&d.graph), &plain()).unwrap();
    check_plan(&plan).unwrap();
    let total: usize = plan.placements.iter().map(|p| p.bytes).sum();
    assert!(
        plan.segments[0].bytes < total,
        "{} of {total} bytes: nothing was reused",
        plan.segments[0].bytes
    );
}

#[test]
fn the_checker_finds_overlaps() {
    let graph = mlp(3);
    let mut plan = plan(&graph, &Bindings::simple(&graph), &plain()).unwrap();
    check_plan(&plan).unwrap();
    // Two buffers that are live at the same time are put on top of each other.
    let (i, j) = (0..plan.placements.len())
        .flat_map(|i| (0..i).map(move |j| (i, j)))
        .find(|&(i, j)| {
            plan.placements[i].first <= plan.placements[j].last
                && plan.placements[j].first <= plan.placements[i].first
        })
        .unwrap();
    plan.placements[i].place = plan.placements[j].place;
    assert!(check_plan(&plan).is_err());
}

#[test]
fn mutations_are_written_in_place_only_after_the_last_read() {
    // state' = state + x, and the old state is read by y before (safe) or after (a copy at the end is
    // needed).
    let build = |late: bool| {
        let mut b = Builder::new();
        let state = b.input("state", TensorType::new(DType::F32, [4]), InputRole::State);
        let x = user(&mut b, "x", &[4]);
        let early = b.mul(state, x).unwrap();
        let new = b.add(state, x).unwrap();
        let y = if late { b.mul(early, state).unwrap() } else { b.mul(early, x).unwrap() };
        b.output("state", new, OutputRole::Mutation(state));
        b.output("y", y, OutputRole::User);
        b.finish()
    };
    for (late, steps) in [(false, 3), (true, 4)] {
        let graph = build(late);
        let plan = plan(&graph, &Bindings::simple(&graph), &plain()).unwrap();
        check_plan(&plan).unwrap();
        assert_eq!(plan.steps.len(), steps, "late read: {late}");
    }
}

#[test]
fn exchanged_states_are_saved_before_they_are_overwritten() {
    let mut b = Builder::new();
    let p = b.input("p", TensorType::new(DType::F32, [4]), InputRole::State);
    let q = b.input("q", TensorType::new(DType::F32, [4]), InputRole::State);
    b.output("p", q, OutputRole::Mutation(p));
    b.output("q", p, OutputRole::Mutation(q));
    let graph = b.finish();
    let plan = plan(&graph, &Bindings::simple(&graph), &plain()).unwrap();
    check_plan(&plan).unwrap();
    // Both sources are saved, then both written.
    assert_eq!(plan.steps.len(), 4);
}

#[test]
fn results_take_the_place_of_what_nobody_reads_any_more() {
    let gelu = |b: &mut Builder, v| b.one(&ops::pointwise::gelu::GELU, &[v], Attrs::new()).unwrap();
    // A graph built on x, and the number of buffers of x's size that it takes.
    type Build = fn(&mut Builder, ValueId, &dyn Fn(&mut Builder, ValueId) -> ValueId) -> ValueId;
    let cases: [(&str, Build, usize); 5] = [
        ("a chain goes in place", |b, x, f| (0..5).fold(x, |v, _| f(b, v)), 1),
        (
            "an operand that is read again stays",
            |b, x, f| {
                let y = f(b, x);
                let z = f(b, y);
                let z = f(b, z);
                b.add(y, z).unwrap()
            },
            2,
        ),
        (
            "another order of the same elements",
            |b, x, f| {
                let y = f(b, x);
                let t = b.permute(y, &[1, 0]).unwrap();
                let t = b.add(y, t).unwrap();
                f(b, t)
            },
            2,
        ),
        (
            "norms read a row before they write it",
            |b, x, f| {
                let y = f(b, x);
                b.one(&ops::norm::softmax::SOFTMAX, &[y], Attrs::new().with("dim", 1i64)).unwrap()
            },
            1,
        ),
        (
            "smaller results",
            |b, x, f| {
                let y = f(b, x);
                let s = b.sum(y, &[1], true).unwrap();
                b.add(s, x).unwrap()
            },
            2,
        ),
    ];
    for (name, build, buffers) in cases {
        let mut b = Builder::new();
        let x = user(&mut b, "x", &[64, 64]);
        let x = b.scale(x, 2.0).unwrap();
        let y = build(&mut b, x, &gelu);
        // The last result is the caller's.
        let y = gelu(&mut b, y);
        b.output("y", y, OutputRole::User);
        let graph = b.finish();
        let plan = plan(&graph, &Bindings::simple(&graph), &plain()).unwrap();
        check_plan(&plan).unwrap();
        let large = plan.placements.iter().filter(|p| p.bytes == 64 * 64 * 4).count();
        let arena = plan.segments[0].bytes;
        assert!(arena / (64 * 64 * 4) == buffers, "{name}: {large} placements, {arena} bytes");
    }
}

#[test]
fn what_lies_turned_is_copied_where_that_pays() {
    use headwater_core::plan::Work;
    // Rows that every step of the plan reads, and whether those of x are contiguous.
    let steps = |op: &'static OpDef, attrs: Attrs, permuted: bool| {
        let mut b = Builder::new();
        let x = user(&mut b, "x", &[2, 8, 5, 4]);
        let seen = match permuted {
            true => {
                let dims = Attrs::new().with("dims", [0i64, 2, 3, 1]);
                b.one(&ops::view::permute::PERMUTE, &[x], dims).unwrap()
            }
            false => x,
        };
        let y = b.one(op, &[seen], attrs).unwrap();
        b.output("y", y, OutputRole::User);
        let graph = b.finish();
        let plan = plan(&graph, &Bindings::simple(&graph), &plain()).unwrap();
        check_plan(&plan).unwrap();
        assert!(plan.steps.iter().all(|s| matches!(s.work, Work::Rows(_))));
        plan.steps.iter().map(|s| s.reads[0].as_ref().unwrap().layout.is_contiguous()).collect::<Vec<_>>()
    };
    let along = |dim: i64| Attrs::new().with("dim", dim);
    let norm = || Attrs::new().with("normalized_shape", [8i64]).with("eps", 1e-5);
    use ops::norm::layer_norm::LAYER_NORM;
    use ops::pointwise::{gelu::GELU, neg::NEG};
    // A transposition, then a norm that reads its columns.
    assert_eq!(steps(&LAYER_NORM, norm(), true), [false, true]);
    assert_eq!(steps(&GELU, Attrs::new(), true), [false, true]);
    // Too little to do; nothing transposed; and rows that are all contiguous, of what is read and written.
    assert_eq!(steps(&NEG, Attrs::new(), true), [false]);
    assert_eq!(steps(&GELU, Attrs::new(), false), [true]);
    assert_eq!(steps(&ops::norm::softmax::SOFTMAX, along(1), false), [true]);
}

#[test]
fn what_is_repeated_is_never_copied_for_lying_turned() {
    use headwater_core::plan::Work;
    use ops::view::{expand::EXPAND, permute::PERMUTE};
    let mut b = Builder::new();
    let x = user(&mut b, "x", &[8, 400]);
    let turned = b.one(&PERMUTE, &[x], Attrs::new().with("dims", [1i64, 0])).unwrap();
    let seen = b.one(&EXPAND, &[turned], Attrs::new().with("size", [64i64, 400, 8])).unwrap();
    let y = b.one(&ops::pointwise::exp::EXP, &[seen], Attrs::new()).unwrap();
    b.output("y", y, OutputRole::User);
    let graph = b.finish();
    let plan = plan(&graph, &Bindings::simple(&graph), &plain()).unwrap();
    check_plan(&plan).unwrap();
    assert!(matches!(plan.steps[..], [ref s] if matches!(s.work, Work::Rows(_))), "{:?}", plan.steps);
}

#[test]
fn gradients_that_are_views_are_delivered_when_they_are_there() {
    // The weights are used transposed, and so are the gradients that the backward pass makes of them.
    let graph = decompose(mlp(4)).unwrap();
    let loss = graph.outputs[0].value;
    let graph = differentiate(graph, loss).unwrap().graph;
    let plan = plan(&graph, &Bindings::simple(&graph), &plain()).unwrap();
    check_plan(&plan).unwrap();
    let of = |name: &str| {
        plan.segments.iter().position(|s| s.name.contains(name) && s.kind == SegmentKind::Output)
    };
    let written = |name: &str| {
        let segment = of(name).unwrap_or_else(|| panic!("{:?}", plan.segments));
        plan.steps
            .iter()
            .rposition(|s| s.writes.iter().any(|w| w.place.segment.0 as usize == segment))
            .unwrap()
    };
    let [last, first] = ["w3", "w0"].map(written);
    let between = plan.steps[last..first].iter().filter(|s| s.op == "matmul").count();
    assert!(
        between >= 3,
        "{last} {first}: {between} products of earlier layers come behind the last one's gradient"
    );
}
