//! Every operator on every one of its cases, with its gradients, in every float dtype: planned, run on the CPU, and judged
//! against the reference in f64. One, two and seven threads and every tier must give the same bits.

use headwater_core::device::{Device, Executable, Memory};
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ops::{Body, Case, Derivative, OpDef, Sample};
use headwater_core::pass::bound::error_bounds;
use headwater_core::pass::diff::gradients;
use headwater_core::pass::{check_plan, decompose, plan};
use headwater_core::plan::Bindings;
use headwater_core::{Builder, DType, Graph, Registry, Tensor, TensorType, reference};
use headwater_cpu::{Cpu, Tier};
use std::collections::BTreeMap;

/// An operator on a case, its float inputs in `dtype`, with its gradients where it has a rule. `None` if it does not take
/// that dtype.
fn graph_of(op: &'static OpDef, case: &Case, dtype: DType) -> Option<Graph> {
    let mut b = Builder::new();
    let lower = |ty: &TensorType| {
        let dtype = if ty.dtype == DType::F64 { dtype } else { ty.dtype };
        TensorType { dtype, shape: ty.shape.clone() }
    };
    let inputs: Vec<_> = (case.inputs.iter().enumerate())
        .map(|(i, a)| a.as_ref().map(|a| b.input(format!("x{i}"), lower(&a.ty), InputRole::User)))
        .collect();
    let outputs = b.apply(op, &inputs, case.attrs.clone()).ok()?;
    for (i, &v) in outputs.iter().enumerate() {
        b.output(format!("y{i}"), v, OutputRole::User);
    }
    if let Derivative::Rule(_) = op.derivative
        && b.ty(outputs[0]).dtype.is_float()
    {
        let ty = b.ty(outputs[0]).clone();
        let g = b.input("g", ty, InputRole::User);
        let wanted: Vec<_> = inputs.iter().copied().flatten().filter(|&v| b.ty(v).dtype.is_float()).collect();
        for (v, g) in wanted.iter().zip(gradients(&mut b, &[(outputs[0], g)], &wanted).ok()?) {
            if let Some(g) = g {
                b.output(format!("grad.{v}"), g, OutputRole::Gradient(*v));
            }
        }
    }
    decompose(b.finish()).ok()
}

/// Numbers for the inputs, each one its dtype can hold.
fn numbers(graph: &Graph, case: &Case) -> Vec<Tensor> {
    let mut drawn: Vec<Tensor> = case.draw(1).into_iter().flatten().collect();
    for input in &graph.inputs[drawn.len()..] {
        let shape = &graph.ty(input.value).shape;
        let cotangent = Case::new("cotangent").arg(DType::F64, shape, Sample::Uniform(-1.0, 1.0));
        drawn.extend(cotangent.draw(2).into_iter().flatten());
    }
    drawn.iter().zip(&graph.inputs).map(|(t, i)| t.cast(graph.ty(i.value).dtype)).collect()
}

/// Runs a graph on a device and returns its outputs.
fn run(device: &Cpu, graph: &Graph, inputs: &[Tensor]) -> headwater_core::Result<Vec<Tensor>> {
    let bindings = Bindings::simple(graph);
    let plan = plan(graph, &bindings, device.caps())?;
    check_plan(&plan)?;
    let mut memory: Vec<Box<dyn Memory>> =
        plan.segments.iter().map(|s| device.alloc(s.bytes)).collect::<headwater_core::Result<_>>()?;
    for (tensor, place) in inputs.iter().zip(&bindings.inputs) {
        let place = place.expect("bound");
        memory[place.segment.0 as usize].write(place.offset, &tensor.to_bytes())?;
    }
    let mut loaded: Box<dyn Executable> = device.load(&plan)?;
    // What a run leaves in the arena must not matter to the next.
    for _ in 0..2 {
        let mut views: Vec<&mut dyn Memory> =
            memory.iter_mut().map(|m| &mut **m as &mut dyn Memory).collect();
        loaded.run(&mut views, None)?;
    }
    let read = |(o, place): (&headwater_core::graph::Output, &Option<headwater_core::plan::Place>)| {
        let place = place.expect("bound");
        let mut bytes = vec![0; graph.ty(o.value).bytes()];
        memory[place.segment.0 as usize].read(place.offset, &mut bytes)?;
        Ok(Tensor::from_bytes(graph.ty(o.value), &bytes))
    };
    graph.outputs.iter().zip(&bindings.outputs).map(read).collect()
}

/// How much each output moves, relative to a relative change of the float inputs: errors of the computation count by this
/// where terms cancel. The largest of a few changes of random signs.
fn sensitivities(graph: &Graph, inputs: &[Tensor], want: &[Tensor]) -> Vec<Vec<f64>> {
    const STEP: f64 = 1e-6;
    let mut out: Vec<Vec<f64>> = want.iter().map(|t| vec![0.0; t.shape().numel()]).collect();
    let mut bits = 0x9E37_79B9_7F4A_7C15u64;
    for _ in 0..8 {
        let moved: Vec<Tensor> = inputs
            .iter()
            .map(|t| {
                if !t.dtype().is_float() {
                    return t.clone();
                }
                let mut step = || {
                    bits = bits.wrapping_mul(6364136223846793005).wrapping_add(1);
                    if bits >> 63 == 0 { 1.0 + STEP } else { 1.0 - STEP }
                };
                Tensor::float(DType::F64, t.shape().clone(), t.floats().iter().map(|x| x * step()).collect())
            })
            .collect();
        let Ok(moved) = reference::run(graph, &moved) else { continue };
        for ((out, m), w) in out.iter_mut().zip(&moved).zip(want).filter(|(_, w)| w.dtype().is_float()) {
            for ((o, m), w) in out.iter_mut().zip(m.floats()).zip(w.floats()) {
                let slope = (m - w).abs() / STEP;
                *o = if slope.is_finite() { o.max(slope) } else { *o };
            }
        }
    }
    out
}

/// Compares with the truth in f64 of the same inputs; the bound is relative to the largest number of the result and to the
/// sensitivity of each.
fn judge(
    name: &str,
    graph: &Graph,
    exact: &Graph,
    inputs: &[Tensor],
    got: &[Tensor],
    wrong: &mut Vec<String>,
) {
    let own = reference::run(graph, inputs).expect("the reference takes what the rule takes");
    let lifted: Vec<Tensor> =
        (inputs.iter().zip(&exact.inputs)).map(|(t, i)| t.cast(exact.ty(i.value).dtype)).collect();
    let want = reference::run(exact, &lifted).expect("as in the lower dtype");
    let bounds = error_bounds(graph, false);
    let slopes = sensitivities(exact, &lifted, &want);
    for (k, o) in graph.outputs.iter().enumerate() {
        let dtype = got[k].dtype();
        if !dtype.is_float() {
            if got[k] != own[k] {
                wrong.push(format!("{name}: {} is {:?}, not {:?}", o.name, got[k].ints(), own[k].ints()));
            }
            continue;
        }
        let bound = bounds[o.value.0 as usize];
        // Half the distance between subnormal numbers.
        let tiny = match dtype {
            DType::F16 => f64::exp2(-25.0),
            DType::F64 => f64::exp2(-1075.0),
            _ => f64::exp2(-134.0),
        };
        let norm = want[k].floats().iter().filter(|x| x.is_finite()).fold(0.0, |m: f64, x| m.max(x.abs()));
        for (i, (&g, &w)) in got[k].floats().iter().zip(want[k].floats()).enumerate() {
            let near = (g - w).abs() <= bound * (norm + slopes[k][i]) + tiny;
            // What the reference itself gives in this dtype is right by definition: random numbers, infinities.
            let e = own[k].floats()[i];
            let same = g == e || (g.is_nan() && e.is_nan());
            if !(near || same) {
                let of = slopes[k][i];
                wrong.push(format!(
                    "{name}: {} element {i} is {g}, not {w}; bound {bound:e}, sensitivity {of:e}",
                    o.name
                ));
                break;
            }
        }
    }
}

#[test]
fn every_operator_agrees_with_the_reference_in_every_dtype() {
    let (mut wrong, mut ran) = (Vec::new(), BTreeMap::<&str, usize>::new());
    let cpus = [Cpu::new(1), Cpu::new(2), Cpu::new(7)];
    for op in Registry::standard().operators() {
        for case in (op.cases)() {
            for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
                let name = format!("{} ({}) in {dtype}", op.name, case.name);
                let Some(exact) = graph_of(op, &case, DType::F64) else {
                    wrong.push(format!("{name}: does not take its own case"));
                    continue;
                };
                let Some(graph) = graph_of(op, &case, dtype) else { continue };
                let inputs = numbers(&graph, &case);
                if reference::run(&graph, &inputs).is_err() {
                    continue; // The case is about refused numbers.
                }
                let got = match run(&cpus[0], &graph, &inputs) {
                    Ok(got) => got,
                    Err(e) => {
                        wrong.push(format!("{name}: {e}"));
                        continue;
                    }
                };
                judge(&name, &graph, &exact, &inputs, &got, &mut wrong);
                for cpu in &cpus[1..] {
                    let again = run(cpu, &graph, &inputs).expect("ran on one thread");
                    let bits = |ts: &[Tensor]| ts.iter().map(Tensor::to_bytes).collect::<Vec<_>>();
                    if bits(&again) != bits(&got) {
                        wrong.push(format!("{name}: {} threads give other bits", cpu.pool().threads()));
                    }
                }
                let tiers = Tier::ALL.into_iter().filter(|&t| t <= Tier::detect());
                for cpu in tiers.map(|t| cpus[1].clone().with_tier(t).expect("detected")) {
                    let again = run(&cpu, &graph, &inputs).expect("ran in another tier");
                    judge(&format!("{name}, another tier"), &graph, &exact, &inputs, &again, &mut wrong);
                }
                *ran.entry(op.name).or_default() += 1;
            }
        }
    }
    let refused = |op: &&'static OpDef| !ran.contains_key(op.name) && !matches!(op.body, Body::Decompose(_));
    let missing: Vec<_> = Registry::standard().operators().into_iter().filter(refused).collect();
    assert!(missing.is_empty(), "never ran: {missing:?}");
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}
