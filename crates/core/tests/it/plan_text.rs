//! The text form of plans: an exact round trip for every plan, and no panic for any text.

use crate::common::graphs_of_all_operators;
use headwater_core::graph::{InputRole, Origin, OriginId};
use headwater_core::plan::{Bindings, Completion, Place, Plan, SegmentId, Wait, parse};
use headwater_core::target::{Operators, Port, Support, Target};
use headwater_core::{Builder, Code, DType, OpCx, OpDef, Registry, TensorType, pass};
use proptest::prelude::*;
use std::sync::{Arc, OnceLock};

/// A device that reads contiguous operands alone and works in scratch memory.
#[derive(Debug)]
struct Particular;

impl Operators for Particular {
    fn support(&self, _: &OpDef, _: &OpCx, _: &[TensorType]) -> Support {
        Support::Native
    }
    fn workspace(&self, _: &OpDef, _: &OpCx, _: &[TensorType]) -> usize {
        100
    }
    fn strided(&self, _: &OpDef, _: &OpCx, _: &[TensorType], _: Port) -> bool {
        false
    }
}

/// Plans of every operator with its gradient, plain and fused, for two devices.
fn plans() -> &'static [(String, Plan)] {
    static PLANS: OnceLock<Vec<(String, Plan)>> = OnceLock::new();
    PLANS.get_or_init(|| {
        let targets = [Target::default(), Target::generic(Arc::new(Particular))];
        let mut all = Vec::new();
        for (name, graph, _) in graphs_of_all_operators() {
            let graph = pass::decompose(graph).unwrap();
            for (form, graph) in
                [("plain", graph.clone()), ("fused", pass::fuse(graph, &targets[0]).unwrap())]
            {
                for target in &targets {
                    let plan = pass::plan(&graph, &Bindings::simple(&graph), target).unwrap();
                    all.push((format!("{name}, {form}"), plan));
                }
            }
        }
        all
    })
}

fn round_trip(name: &str, plan: &Plan) {
    let text = plan.to_string();
    let back = parse(&text, Registry::standard()).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
    assert_eq!(back.to_string(), text, "{name}");
    // The text of attributes and programs is exact; Debug shows every field of the rest.
    assert_eq!(format!("{back:?}"), format!("{plan:?}"), "{name}");
}

#[test]
fn every_operators_plan_reads_back() {
    assert!(plans().iter().any(|(_, p)| p.steps.iter().any(|s| s.workspace.is_some())));
    assert!(plans().iter().any(|(_, p)| p.steps.iter().any(|s| s.reads.contains(&None))));
    plans().iter().for_each(|(name, plan)| round_trip(name, plan));
}

#[test]
fn every_field_reads_back() {
    let (_, plan) = plans().iter().find(|(_, p)| p.steps.len() > 1 && !p.placements.is_empty()).unwrap();
    let mut plan = plan.clone();
    let mut origins = plan.origins.to_vec();
    origins.push(Origin {
        node: "n \"quoted\"".into(),
        module: "a\n# b".into(),
        line: 7,
        ..Origin::default()
    });
    let last = OriginId(origins.len() as u32 - 1);
    plan.origins = origins.into();
    plan.segments[0].name = "odd \" name\n".into();
    plan.placements[0].origin = last;
    let step = &mut plan.steps[0];
    (step.origin, step.flops) = (last, 0.1);
    step.workspace = Some((Place { segment: SegmentId(0), offset: 192 }, 77));
    step.reads.push(None);
    step.stream = 3;
    plan.waits = vec![Wait { step: 1, on: 0 }];
    plan.completions = vec![Completion { segment: SegmentId(1), step: 1 }];
    let step = &mut plan.steps[0];
    step.writes[0].layout.offset = -3;
    step.writes[0].layout.strides.iter_mut().for_each(|s| *s = -*s);
    round_trip("every field", &plan);
}

#[test]
fn the_text_is_what_people_read() {
    let mut b = Builder::new();
    let w = b.parameter("fc.weight", DType::F32, &[4, 3]);
    let x = b.input("x", TensorType::new(DType::F32, [2, 3]), InputRole::User);
    b.at(Origin { node: "linear".into(), module: "fc".into(), ..Origin::default() });
    let wt = b.transpose_last(w).unwrap();
    let y = b.matmul(x, wt).unwrap();
    let y = b.neg(y).unwrap();
    b.output("y", y, headwater_core::graph::OutputRole::User);
    let graph = b.finish();
    let plan = pass::plan(&graph, &Bindings::simple(&graph), &Target::default()).unwrap();
    let want = r#"headwater plan 1

alignment 64
$0 = arena "arena" 64
$1 = state "fc.weight" 48
$2 = state "x" 24
$3 = output "y" 32

forward
step matmul kernel matmul() ($2[0] f32[2, 3]{3, 1}, $1[0] f32[3, 4]{1, 3}) -> ($0[0] f32[2, 4]{4, 1}) flops 48.0  @1  # fc
step neg rows[2][4] (f32(0 1)) -> (f32(0 1)) { %0 = load 0; %1 = Neg %0; %2 = store 0 %1; } ($0[0] f32[2, 4]{4, 1}) -> ($3[0] f32[2, 4]{4, 1}) flops 8.0  @1  # fc

place %3 $0[0] 32 steps 0 to 1  @1  # fc

@0 = ""
@1 = "linear" module "fc"
"#;
    assert_eq!(plan.to_string(), want);
}

#[test]
fn errors_name_line_and_column() {
    let cases = [
        ("", "line 1, column 1: expected `headwater plan 1`, found the end of the line"),
        ("headwater plan 1\n$1 = arena \"arena\" 0", "line 2, column 2: expected segment $0 here"),
        (
            "headwater plan 1\n$0 = heap \"arena\" 0",
            "line 2, column 6: expected a kind of segment such as state, found `heap`",
        ),
        ("headwater plan 1\nstep neg loop", "line 2, column 10: expected `rows` or `kernel`, found `loop`"),
        (
            "headwater plan 1\nstep neg kernel neg() ($0[0] f32[2]{}",
            "line 2, column 38: expected 1 strides before this, found the end of the line",
        ),
        ("headwater plan 1\nplace %0 $0[0] 4 steps 0 to 1 @3", "line 2, column 31: @3 is not defined"),
        (
            "headwater plan 1\nnothing",
            "line 2, column 1: expected a segment, a step, a place, an origin or a phase, found `nothing`",
        ),
    ];
    for (text, want) in cases {
        let e = parse(text, Registry::standard()).expect_err(text);
        assert_eq!((e.code, e.message.as_str()), (Code::Parse, want), "{text}");
    }
}

/// Pieces that may occur anywhere in a text.
const PIECES: &[&str] = &[
    "%0",
    "_",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    ",",
    "=",
    "@0",
    "@9",
    "\"",
    "\n",
    "#",
    "f16",
    "i64[2]",
    "-1",
    "0",
    "$0",
    "$9[8]",
    "18446744073709551615",
    "9223372036854775808",
    "NaN",
    "é",
    "rows",
    "kernel",
    "step",
    "place",
    "flops",
    "workspace",
    "stream",
    "wait",
    "complete",
    "+ 3",
];

fn survives(text: &str) {
    if let Ok(plan) = parse(text, Registry::standard()) {
        // A plan that parses prints, is checked (with any verdict), and parses again to the same text.
        let _ = pass::check_plan(&plan);
        let text = plan.to_string();
        assert_eq!(parse(&text, Registry::standard()).unwrap().to_string(), text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_panics(text in "(headwater plan 1\n)?(\\PC|\n){0,200}") {
        survives(&text);
    }

    #[test]
    fn no_spoiled_plan_panics(
        which in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..12, any::<prop::sample::Index>()), 1..4),
    ) {
        let mut text = which.get(plans()).1.to_string();
        for (at, remove, piece) in edits {
            let mut start = at.index(text.len());
            while !text.is_char_boundary(start) { start -= 1 }
            let mut end = (start + remove).min(text.len());
            while !text.is_char_boundary(end) { end += 1 }
            let piece: &&str = piece.get(PIECES);
            text.replace_range(start..end, piece);
        }
        survives(&text);
    }
}
