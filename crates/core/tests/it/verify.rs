//! The verifier accepts what operators and passes make, and each of its rules is broken alone by a graph
//! here.

use headwater_core::graph::verify::{Rule, violations};
use headwater_core::graph::{Def, Graph, InputRole, OriginId, ValueId, parse, verify};
use headwater_core::{Builder, Code, DType, Registry, TensorType};

/// A legal graph with something for every rule to look at.
const LEGAL: &str = r#"headwater graph 1
%0 = parameter "fc.weight" also "tied.weight" : f32[4, 3]
%1 = user "x" : f32[2, 3]
%2 = buffer "mean" : f32[2]
%3 = rng "rng" : i64[2]

forward
%4 = permute(%0, dims=[1, 0]) : f32[3, 4]
%5 = matmul(%1, %4) : f32[2, 4]  @1
%6 = sum(%5, dim=[1]) : f32[2]
%7 = sum(%5) : f32[]
%8 = full(fill_value=0.5, size=[4, 3], dtype=f32) : f32[4, 3]

output "loss" = %7
output "mean" = %6 mutation of %2
output "grad" = %8 gradient of %0

@0 = ""
@1 = "linear" module "fc"
"#;

fn graph(text: &str) -> Graph {
    parse(text, Registry::standard()).unwrap()
}

fn rules(graph: &Graph) -> Vec<Rule> {
    let mut rules: Vec<_> = violations(graph).into_iter().map(|v| v.rule).collect();
    rules.dedup();
    rules
}

/// The legal graph with `from` replaced breaks `rule` and no other.
#[track_caller]
fn breaks(rule: Rule, from: &str, to: &str) {
    assert!(LEGAL.contains(from), "{from}");
    assert_eq!(rules(&graph(&LEGAL.replace(from, to))), [rule]);
}

#[track_caller]
fn breaks_when(rule: Rule, change: impl FnOnce(&mut Graph)) {
    let mut graph = graph(LEGAL);
    change(&mut graph);
    assert_eq!(rules(&graph), [rule]);
}

#[test]
fn what_operators_and_differentiation_make_is_legal() {
    verify(&graph(LEGAL)).unwrap();
    for (name, graph, _) in crate::common::graphs_of_all_operators() {
        let found: Vec<_> = violations(&graph).into_iter().map(|v| v.error.to_string()).collect();
        assert!(found.is_empty(), "{name}: {found:?}\n{graph}");
    }
}

#[test]
fn v01_one_definition_each() {
    breaks_when(Rule::V01Definition, |g| g.values[5].def = Def::Input(1));
    breaks_when(Rule::V01Definition, |g| g.values.push(g.values[7].clone()));
    breaks_when(Rule::V01Definition, |g| g.nodes[2].outputs[0] = ValueId(7));
    breaks_when(Rule::V01Definition, |g| g.inputs[1].value = ValueId(99));
}

#[test]
fn v02_use_after_definition() {
    breaks(Rule::V02Order, "permute(%0", "permute(%8");
    breaks_when(Rule::V02Order, |g| g.nodes[3].inputs[0] = Some(ValueId(99)));
}

#[test]
fn v03_origins_exist() {
    breaks_when(Rule::V03Origin, |g| g.nodes[0].origin = OriginId(2));
}

#[test]
fn v04_outputs_and_their_targets() {
    breaks_when(Rule::V04Outputs, |g| g.outputs[0].value = ValueId(99));
    breaks(Rule::V04Outputs, "mutation of %2", "mutation of %6");
    breaks(Rule::V04Outputs, "%6 mutation of %2", "%7 mutation of %2");
    breaks(Rule::V04Outputs, "gradient of %0", "gradient of %1");
}

#[test]
fn v05_one_gradient_and_one_new_content() {
    breaks(Rule::V05Single, "output \"grad\"", "output \"again\" = %8 gradient of %0\noutput \"grad\"");
    breaks(Rule::V05Single, "output \"mean\"", "output \"again\" = %6 mutation of %2\noutput \"mean\"");
}

#[test]
fn v06_sizes_that_memory_can_hold() {
    breaks_when(Rule::V06Size, |g| {
        let mut b = Builder::extend(std::mem::take(g));
        b.input("y", TensorType::new(DType::U8, [usize::MAX, 2]), InputRole::User);
        *g = b.finish();
    });
}

#[test]
fn v07_inputs_fit_a_schema() {
    breaks(Rule::V07Arity, "matmul(%1, %4)", "matmul(%1, %4, %4)");
    breaks(Rule::V07Arity, "sum(%5)", "sum(%5, _)");
    // The key of random numbers may follow the schema's inputs.
    verify(&graph(&LEGAL.replace("matmul(%1, %4)", "matmul(%1, %4, %3)"))).unwrap();
}

#[test]
fn v08_attributes_that_schemas_name() {
    breaks(Rule::V08Attributes, "sum(%5)", "sum(%5, fill_value=1)");
}

#[test]
fn v09_types_are_inferred() {
    breaks(Rule::V09Types, "full(fill_value=0.5, size=[4, 3]", "full(fill_value=0.5, size=[3, 4]");
    breaks(Rule::V09Types, "dims=[1, 0]", "dims=[1, 1]");
    let e = verify(&graph(&LEGAL.replace(": f32[2, 4]", ": f32[2, 5]"))).unwrap_err();
    assert_eq!((e.code, e.op), (Code::Graph, Some("matmul")));
    assert_eq!(e.origin.unwrap().module, "fc");
}

#[test]
fn v10_programs_are_legal() {
    let legal =
        r#"fused(outputs="f32[]", program=rows[][] () -> (f32()) { %0 = float 1.0; %1 = store 0 %0; })"#;
    verify(&graph(&LEGAL.replace("sum(%5) ", &format!("{legal} ")))).unwrap();
    breaks(Rule::V10Programs, "sum(%5) ", &format!("{} ", legal.replace("float 1.0", "int 1")));
}

#[test]
fn v11_state_has_names_of_its_own() {
    breaks(Rule::V11Names, "\"mean\" : f32[2]", "\"tied.weight\" : f32[2]");
    breaks(Rule::V11Names, "buffer \"mean\"", "buffer \"\"");
}

#[test]
fn v12_one_key_of_random_numbers() {
    breaks(Rule::V12Key, "i64[2]", "i64[3]");
    breaks(Rule::V12Key, "user \"x\" : f32[2, 3]", "user \"x\" : f32[2, 3]\n%9 = rng \"again\" : i64[2]");
}

#[test]
fn v13_phases_flow_forward() {
    breaks(Rule::V13Phases, "forward", "backward\n%9 = sum(%0) : f32[]\nforward\n%10 = sum(%9) : f32[]");
}

#[test]
fn rules_print_their_number_and_name() {
    assert_eq!(Rule::V07Arity.to_string(), "V07 arity");
    assert_eq!(Rule::V05Single.to_string(), "V05 single");
}
