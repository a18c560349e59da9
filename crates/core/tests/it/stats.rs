//! Counts of graphs and plans, against what can be counted by hand.

use headwater_core::graph::{Graph, parse};
use headwater_core::pass::{check_plan, differentiate, plan};
use headwater_core::plan::{Bindings, Plan};
use headwater_core::stats::{Held, live_bytes, modules, operators, peak};
use headwater_core::target::{Operators, Port, Support, Target};
use headwater_core::{OpCx, OpDef, Registry, TensorType};
use std::sync::Arc;

/// A device whose matmul requires 256 bytes of scratch memory.
#[derive(Debug)]
struct Scratch;

impl Operators for Scratch {
    fn support(&self, _: &OpDef, _: &OpCx, _: &[TensorType]) -> Support {
        Support::Native
    }
    fn workspace(&self, op: &OpDef, _: &OpCx, _: &[TensorType]) -> usize {
        if op.name == "matmul" { 256 } else { 0 }
    }
    fn strided(&self, _: &OpDef, _: &OpCx, _: &[TensorType], _: Port) -> bool {
        true
    }
}

/// That device, with workspaces of at most so many bytes in one place.
fn scratch(shared_workspace: usize) -> Target {
    let mut target = Target::generic(Arc::new(Scratch));
    target.memory.shared_workspace = shared_workspace;
    target
}

/// Two products, 4×8 by 8×8, in two modules, and their sum.
fn small() -> Graph {
    let text = r#"headwater graph 1
%0 = parameter "enc.0.fc.weight" : f32[8, 8]
%1 = parameter "head.weight" also "tied.weight" : f32[8, 8]
%2 = user "x" : f32[4, 8]
%3 = matmul(%2, %0) : f32[4, 8]  @1
%4 = matmul(%3, %1) : f32[4, 8]  @2
%5 = sum(%4) : f32[]
output "loss" = %5
@0 = ""
@1 = "mm" module "enc.0.fc"
@2 = "mm_1" module "head"
"#;
    parse(text, Registry::standard()).unwrap()
}

fn planned(graph: &Graph) -> Plan {
    let plan = plan(graph, &Bindings::simple(graph), &scratch(255)).unwrap();
    check_plan(&plan).unwrap();
    plan
}

#[test]
fn operators_by_work() {
    let graph = small();
    let ops = operators(&graph);
    assert_eq!(ops.iter().map(|o| o.op.name).collect::<Vec<_>>(), ["matmul", "sum"]);
    // 2·4·8·8 operations each; 4·8 + 8·8 + 4·8 numbers of 4 bytes each.
    assert_eq!((ops[0].nodes, ops[0].flops, ops[0].bytes), ([2, 0, 0], 1024.0, 1024.0));
    assert_eq!((ops[1].nodes, ops[1].flops, ops[1].bytes), ([1, 0, 0], 32.0, 132.0));
    let loss = graph.outputs[0].value;
    let d = differentiate(graph, loss).unwrap();
    // The first product has but a gradient by its weight, the second by both operands.
    assert_eq!(operators(&d.graph)[0].nodes, [2, 3, 0]);
}

#[test]
fn modules_to_any_depth() {
    let graph = small();
    let paths = |depth: usize| modules(&graph, depth).into_keys().collect::<Vec<_>>();
    assert_eq!(paths(0), [""]);
    assert_eq!(paths(1), ["", "enc", "head"]);
    assert_eq!(paths(2), ["", "enc.0", "head"]);
    assert_eq!(paths(9), ["", "enc.0.fc", "head"]);
    let by_path = modules(&graph, 1);
    assert_eq!((by_path["enc"].parameters, by_path["enc"].flops), (64, 512.0));
    assert_eq!((by_path["head"].parameters, by_path[""].parameters, by_path[""].flops), (64, 0, 32.0));
    assert_eq!(modules(&graph, 0)[""].parameters, 128);
}

#[test]
fn the_peak_by_kind_and_module() {
    let graph = small();
    let p = peak(&planned(&graph), 1).unwrap();
    // The second product reads 128 bytes, writes 128 and has 256 of scratch.
    assert_eq!(p.step, 1);
    assert_eq!(p.held, Held { activations: 256, workspace: 256, ..Held::default() });
    assert_eq!(p.arena, 512);
    let of = |activations, workspace| Held { activations, workspace, ..Held::default() };
    assert_eq!(p.modules, [("head".to_string(), of(128, 256)), ("enc".to_string(), of(128, 0))]);
    let empty = parse("headwater graph 1\n", Registry::standard()).unwrap();
    assert_eq!(peak(&planned(&empty), 1), None);
}

#[test]
fn small_workspaces_share_a_place_and_are_no_activations() {
    let graph = small();
    let plan = plan(&graph, &Bindings::simple(&graph), &scratch(256)).unwrap();
    check_plan(&plan).unwrap();
    let rooms: Vec<_> = plan.steps.iter().filter_map(|s| s.workspace).collect();
    assert_eq!(rooms.len(), 2);
    assert_eq!(rooms[0], rooms[1]);
    let of = |plan: &Plan| plan.placements.iter().filter(|p| p.place == rooms[0].0).count();
    assert_eq!(of(&plan), 1);
    assert_eq!(peak(&plan, 1).unwrap().held, Held { activations: 256, workspace: 256, ..Held::default() });
    // They belong to no module, and no values may be stored there.
    let modules = peak(&plan, 1).unwrap().modules;
    assert!(modules.contains(&(String::new(), Held { workspace: 256, ..Held::default() })), "{modules:?}");
    let refused = |broken: &Plan, why: &str| {
        let error = check_plan(broken).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    let mut broken = plan.clone();
    broken.steps[1].reads[0].as_mut().unwrap().place = rooms[0].0;
    refused(&broken, "before writing");
    let mut broken = plan.clone();
    broken.steps[1].writes[0].place = rooms[0].0;
    refused(&broken, "in its workspace");
    // Each has its own if they are too large.
    let apart = planned(&graph);
    assert_eq!(apart.placements.len(), plan.placements.len() + 1);
}

#[test]
fn the_peak_is_the_fullest_step_of_a_model() {
    let graph = crate::common::large::deep(500);
    let loss = graph.outputs[0].value;
    let plan = planned(&differentiate(graph, loss).unwrap().graph);
    // Counted again, slowly.
    let at = |s: usize| plan.placements.iter().filter(|p| p.first <= s && s <= p.last).map(|p| p.bytes).sum();
    let slow: Vec<usize> = (0..plan.steps.len()).map(at).collect();
    assert_eq!(live_bytes(&plan), slow);
    let p = peak(&plan, 2).unwrap();
    assert_eq!(Some(&slow[p.step]), slow.iter().max());
    assert_eq!(p.held.total(), slow[p.step]);
    assert_eq!(p.modules.iter().map(|m| m.1.total()).sum::<usize>(), slow[p.step]);
    assert!(p.held.activations > 0 && p.held.gradients > 0 && p.arena >= p.held.total(), "{p:?}");
}
