//! Operators of nothing: each case of each operator with the dimensions of one size emptied, with its
//! gradients, judged by the reference. Models have such operands where a slice, a batch or a list of indices
//! is empty.

use crate::common::run;
use headwater_core::conformance::{Truth, graph_of, numbers};
use headwater_core::device::Device;
use headwater_core::ops::{Case, Sample};
use headwater_core::{DType, Registry, Shape, reference};
use headwater_cpu::Cpu;

/// The case with all dimensions of a size as dimensions of 0.
fn emptied(case: &Case, size: usize) -> Case {
    let mut case = case.clone();
    for input in case.inputs.iter_mut().flatten() {
        let sizes: Vec<usize> = input.ty.shape.iter().map(|&n| if n == size { 0 } else { n }).collect();
        input.ty.shape = Shape::new(&sizes);
        if let Sample::Values(values) = &mut input.sample {
            values.truncate(input.ty.shape.numel());
        }
    }
    case
}

#[test]
fn operators_of_nothing_agree_with_the_reference() {
    let (mut wrong, mut ran, mut reduced) = (vec![], 0, 0);
    let cpu = Cpu::new(2);
    for op in Registry::standard().operators() {
        for case in (op.cases)() {
            let shapes = case.inputs.iter().flatten().map(|i| i.ty.shape.to_vec());
            let mut sizes: Vec<usize> = shapes.flatten().filter(|&n| n > 0).collect();
            sizes.sort_unstable();
            sizes.dedup();
            for (size, dtype) in
                sizes.into_iter().flat_map(|n| [(n, DType::F64), (n, DType::F32), (n, DType::BF16)])
            {
                let case = emptied(&case, size);
                let name = format!("{} ({}, {size} emptied) in {dtype}", op.name, case.name);
                // Most rules take it; a case may have values, indices or attributes that no longer fit.
                let (Some(exact), Some(graph)) =
                    (graph_of(op, &case, DType::F64), graph_of(op, &case, dtype))
                else {
                    continue;
                };
                let inputs = numbers(&graph, &case);
                let Ok(want) = reference::run(&graph, &inputs) else { continue };
                let truth = Truth::new(&graph, &exact, &inputs, cpu.target()).unwrap();
                match run(&cpu, &graph, &inputs) {
                    Ok(got) => truth.judge(&name, &got, &mut wrong),
                    Err(e) => wrong.push(format!("{name}: {e}")),
                }
                ran += 1;
                reduced += want.iter().any(|t| t.shape().numel() > 0) as usize;
            }
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    // Results that are not themselves empty are what a program has to compute of nothing.
    assert!(ran > 500 && reduced > 100, "{ran} ran, {reduced} with results");
}
