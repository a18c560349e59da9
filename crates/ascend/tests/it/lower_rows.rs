//! Row programs as kernels: every operator's cases, with gradients, on both chips, judged by the reference in
//! f64 within derived bounds. Each kernel runs checked and fast, in several orders and on several numbers of
//! cores, to the same bits, and writes its results alone.

use crate::common::{Memory, Tally, WAYS, run, target};
use headwater_ascend::Chip;
use headwater_core::conformance::{Truth, graph_of, numbers};
use headwater_core::graph::OutputRole;
use headwater_core::ops::Registry;
use headwater_core::plan::{Bindings, Place};
use headwater_core::target::DTypeSet;
use headwater_core::{DType, Graph, Tensor, pass};

/// Runs a graph; its outputs.
fn evaluate(chip: &Chip, graph: &Graph, inputs: &[Tensor], tally: &mut Tally) -> Result<Vec<Tensor>, String> {
    let bindings = Bindings::simple(graph);
    let plan = pass::plan(graph, &bindings, &target()).map_err(|e| e.to_string())?;
    let mut memory = Memory::new(&plan);
    let at = |memory: &Memory, place: Place| memory.starts[place.segment.0 as usize] + place.offset;
    for (tensor, place) in inputs.iter().zip(&bindings.inputs) {
        let Some(place) = *place else { continue };
        let (start, bytes) = (at(&memory, place), tensor.to_bytes());
        memory.bytes[start..start + bytes.len()].copy_from_slice(&bytes);
    }
    run(chip, &plan, &mut memory, &WAYS, tally)?;
    let out = graph.outputs.iter().zip(&bindings.outputs).map(|(o, place)| {
        let place = place.or_else(|| match o.role {
            OutputRole::Mutation(v) => graph.input_index(v).and_then(|i| bindings.inputs[i]),
            _ => None,
        });
        let (ty, start) = (graph.ty(o.value), at(&memory, place.unwrap()));
        Tensor::from_bytes(ty, &memory.bytes[start..start + ty.bytes()])
    });
    Ok(out.collect())
}

fn all_cases(chip: &str, dtypes: &[DType]) {
    let (chip, mut target) = (Chip::from_name(chip).unwrap(), target());
    if chip.arch.saturates() {
        target.saturating = DTypeSet::of(&[DType::F16]);
    }
    let (mut tally, mut wrong, only) = (Tally::default(), Vec::new(), std::env::var("HEADWATER_OP").ok());
    for op in Registry::standard().operators() {
        if only.as_ref().is_some_and(|only| only != op.name) {
            continue;
        }
        for case in (op.cases)() {
            for &dtype in dtypes {
                let Some(exact) = graph_of(op, &case, DType::F64) else { continue };
                let Some(graph) = graph_of(op, &case, dtype) else { continue };
                let inputs = numbers(&graph, &case);
                let Ok(truth) = Truth::new(&graph, &exact, &inputs, &target) else { continue };
                let name = format!("{} ({}) in {dtype}", op.name, case.name);
                // Core refuses integers that may not fit 32 bits before there is a plan.
                let Ok(graph) = pass::narrow_integers(graph.clone(), &target) else { continue };
                match evaluate(chip, &graph, &inputs, &mut tally) {
                    Ok(got) => truth.judge(&name, &got, &mut wrong),
                    Err(e) => wrong.push(format!("{name}: {e}")),
                }
            }
        }
    }
    let refused: usize = tally.refused.values().sum();
    println!(
        "{chip}: {} row programs ran as kernels, {refused} have none: {:#?}",
        tally.lowered, tally.refused
    );
    let few: Vec<&str> = wrong.iter().skip(1).take(40).filter_map(|w| w.lines().next()).collect();
    let first = wrong.first().map_or("", String::as_str);
    assert!(wrong.is_empty(), "{} are wrong:\n{first}\n\n{}", wrong.len(), few.join("\n"));
    assert!(only.is_some() || tally.lowered > 10 * refused, "{refused} row programs have no kernel");
}

#[test]
fn operators_on_910b1() {
    all_cases("910b1", &[DType::F32, DType::F16, DType::BF16]);
}

#[test]
fn operators_on_310p() {
    all_cases("310p", &[DType::F32, DType::F16]);
}
