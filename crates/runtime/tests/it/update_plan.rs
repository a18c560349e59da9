//! The plan of a step: what it moves, and that fusing it changes no bit.

use headwater_core::device::{Buffer, Content, Device};
use headwater_core::graph::OutputRole;
use headwater_core::ops::update::master::split;
use headwater_core::pass::split_wide::{scalar_bytes, scalar_value};
use headwater_core::plan::{Bindings, Plan};
use headwater_core::target::DTypeSet;
use headwater_core::train::{BucketLayout, BucketSize, Master, update_graph};
use headwater_core::{DType, Graph, Tensor, TensorType, pass};
use headwater_cpu::Cpu;
use headwater_runtime::optim::{Clip, Decay, Groups, Optimizer};
use std::sync::Arc;

/// Every optimizer, and the bytes that a step moves for each f32 parameter. They are 4 to measure the
/// gradients, then each operand once for each pass over the bucket.
const OPTIMIZERS: [(&str, usize); 18] = [
    // Reads parameter, gradient; writes the parameter.
    (r#"{"name": "sgd"}"#, 4 + 12),
    // And a moment, both ways.
    (r#"{"name": "sgd", "momentum": 0.9}"#, 4 + 20),
    (r#"{"name": "adagrad"}"#, 4 + 20),
    (r#"{"name": "rmsprop"}"#, 4 + 20),
    (r#"{"name": "lion"}"#, 4 + 20),
    // Two moments.
    (r#"{"name": "adam", "weight_decay": 0.1}"#, 4 + 28),
    (r#"{"name": "adamw"}"#, 4 + 28),
    (r#"{"name": "adadelta"}"#, 4 + 28),
    (r#"{"name": "adamax"}"#, 4 + 28),
    (r#"{"name": "nadam"}"#, 4 + 28),
    (r#"{"name": "radam"}"#, 4 + 28),
    (r#"{"name": "bertadam"}"#, 4 + 28),
    (r#"{"name": "rmsproptf", "momentum": 0.9}"#, 4 + 28),
    // Three.
    (r#"{"name": "adamw", "amsgrad": true}"#, 4 + 36),
    (r#"{"name": "novograd"}"#, 4 + 20),
    // The moments with both norms, for which the parameter is read, then parameter and moments again.
    (r#"{"name": "lamb"}"#, 4 + 24 + 16),
    // The parameter's norm, then the step.
    (r#"{"name": "larc", "optimizer": {"name": "sgd", "momentum": 0.9}}"#, 4 + 4 + 20),
    // The moments; products of each channel; the projection written and read.
    (r#"{"name": "adamp"}"#, 4 + 20 + 16 + 4 + 24),
];

fn update(optimizer: &str, dtype: DType, shapes: &[&[usize]]) -> Graph {
    update_with(optimizer, dtype, shapes, |layout| layout)
}

fn update_with(
    optimizer: &str,
    dtype: DType,
    shapes: &[&[usize]],
    change: impl Fn(BucketLayout) -> BucketLayout,
) -> Graph {
    let optimizer: Optimizer = serde_json::from_str(optimizer).unwrap();
    let mut groups = Groups::new(optimizer, vec![], Decay::All).unwrap();
    let types: Vec<_> = shapes.iter().map(|s| TensorType::new(dtype, *s)).collect();
    let named: Vec<_> = types.iter().enumerate().map(|(i, t)| (i.to_string(), t)).collect();
    let grouped = named.iter().map(|(name, t)| (name.as_str(), *t, groups.of(name, t).unwrap()));
    let layout = change(BucketLayout::new(grouped.collect::<Vec<_>>(), BucketSize::UNLIMITED).with_masters());
    update_graph(
        &layout,
        |g| groups.rule(g),
        Clip { norm: Some(1.0), value: None },
        false,
        DTypeSet::default(),
    )
    .unwrap()
}

fn planned(graph: &Graph) -> Plan {
    let plan = pass::plan(graph, &Bindings::simple(graph), Cpu::new(1).target()).unwrap();
    pass::check_plan(&plan).unwrap();
    plan
}

#[test]
fn a_step_moves_each_operand_once() {
    let (rows, cols) = (128, 1024);
    // With masters: the gradient, the master in place of the parameter, and the parameter written.
    let f16 = (DType::F16, r#"{"name": "adamw"}"#, 2 + (4 + 2 + 8) + (4 + 8 + 2));
    // In bf16 parameter and rest of the master, both ways; every pass joins them.
    let bf16 = [
        (DType::BF16, r#"{"name": "adamw"}"#, 2 + (2 + 2 + 2 + 8) + (2 + 2 + 8)),
        (DType::BF16, r#"{"name": "lamb"}"#, 2 + (2 + 8 + 8 + 4) + (8 + 4 + 4)),
    ];
    for (dtype, optimizer, want) in
        OPTIMIZERS.map(|(o, bytes)| (DType::F32, o, bytes)).into_iter().chain([f16]).chain(bf16)
    {
        let plan =
            planned(&pass::fuse(update(optimizer, dtype, &[&[rows, cols]]), Cpu::new(2).target()).unwrap());
        let large = |elements: usize| elements >= rows * cols;
        let mut bytes = 0;
        for step in &plan.steps {
            for v in step.reads.iter().flatten().chain(&step.writes) {
                let elements = v.layout.shape.numel();
                if large(elements) {
                    bytes += elements * v.dtype.size();
                }
            }
        }
        assert_eq!(
            bytes,
            want * rows * cols,
            "{optimizer} {dtype}: {:?}",
            plan.steps.iter().map(|s| s.op).collect::<Vec<_>>()
        );
    }
}

/// Runs a step of `graph` on the state, in the order of the graph's inputs, in place.
fn step(graph: &Graph, threads: usize, state: &mut [Vec<u8>]) -> Vec<Vec<u8>> {
    let device = Cpu::new(threads);
    let bindings = Bindings::simple(graph);
    let plan = pass::plan(graph, &bindings, device.target()).unwrap();
    pass::check_plan(&plan).unwrap();
    let alloc = |bytes| device.alloc(bytes, Content::Undefined).unwrap();
    let memory: Vec<Arc<dyn Buffer>> = plan.segments.iter().map(|s| alloc(s.bytes)).collect();
    let stream = device.stream().unwrap();
    for (i, bytes) in state.iter().enumerate() {
        stream.write(&memory[i + 1], 0, bytes).unwrap();
    }
    device.load(&plan).unwrap().submit(stream.as_ref(), &memory, 0..plan.steps.len()).unwrap();
    stream.synchronize().unwrap();
    for (i, bytes) in state.iter_mut().enumerate() {
        stream.read(&memory[i + 1], 0, bytes).unwrap();
    }
    let results = memory.iter().skip(1 + state.len());
    results
        .zip(plan.segments.iter().skip(1 + state.len()))
        .map(|(m, s)| {
            let mut bytes = vec![0; s.bytes];
            stream.read(m, 0, &mut bytes).unwrap();
            bytes
        })
        .collect()
}

/// Parameters, gradients and moments of some size everywhere, the latter positive; scalars that no rule finds
/// strange.
fn state(graph: &Graph, round: usize) -> Vec<Vec<u8>> {
    let value = |name: &str, i: usize| -> f64 {
        let wave = ((i * 7 + round * 3) as f64 * 12.9898).sin();
        match name.split('/').next().unwrap() {
            "parameters" | "masters" | "gradients" => wave,
            "unscale" => 1.0,
            "scalar" if name.ends_with("lr") || name.ends_with("step_size") => 0.01,
            "scalar" => 0.9,
            _ => 0.5 + 0.25 * wave,
        }
    };
    let inputs = graph.inputs.iter().map(|input| {
        let ty = graph.ty(input.value);
        let numbers = (0..ty.shape.numel()).map(|i| value(&input.name, i));
        if ty.dtype == DType::I16 {
            let all = numbers.map(|x| (x * 32767.0) as i64).collect();
            return Tensor::int(DType::I16, ty.shape.clone(), all).to_bytes();
        }
        Tensor::float(ty.dtype, ty.shape.clone(), numbers.collect()).to_bytes()
    });
    inputs.collect()
}

#[test]
fn fused_steps_have_the_bits_of_unfused_ones() {
    let types = [DType::F32, DType::BF16, DType::F16];
    for (optimizer, dtype) in OPTIMIZERS.iter().flat_map(|(o, _)| types.map(|d| (*o, d))) {
        let graph = update(optimizer, dtype, &[&[3, 700], &[5], &[40, 9, 3]]);
        let fused = pass::fuse(graph.clone(), Cpu::new(2).target()).unwrap();
        let (mut a, mut b) = (state(&graph, 0), state(&graph, 0));
        for round in 0..3 {
            let gradients = state(&graph, round);
            for (i, input) in graph.inputs.iter().enumerate() {
                if input.name.starts_with("gradients") {
                    (a[i], b[i]) = (gradients[i].clone(), gradients[i].clone());
                }
            }
            let before = a.clone();
            // Norm, largest magnitude and whether the step was applied.
            assert_eq!(step(&graph, 1, &mut a), step(&fused, 2, &mut b), "{optimizer}");
            for (i, input) in graph.inputs.iter().enumerate() {
                let apart = a[i].iter().zip(&b[i]).position(|(a, b)| a != b);
                assert_eq!(apart, None, "{optimizer} {dtype}, step {round}: {}", input.name);
            }
            for (i, input) in graph.inputs.iter().enumerate() {
                let target = |r: &OutputRole| matches!(r, OutputRole::Mutation(v) if *v == input.value);
                let written = graph.outputs.iter().any(|o| target(&o.role));
                assert!(written || a[i] == before[i], "{optimizer}, {}", input.name);
                let parameters = input.name.starts_with("parameters");
                assert!(!parameters || a[i] != before[i], "{optimizer}, {}", input.name);
            }
        }
    }
}

/// A target without f64 steps in pairs of f32. The norm keeps the bound of double-word arithmetic, and what
/// is stepped differs by roundings of f32 alone.
#[test]
fn steps_without_f64_are_those_with_it() {
    for (optimizer, _) in OPTIMIZERS {
        let graph = update(optimizer, DType::F32, &[&[3, 700], &[5], &[40, 9, 3]]);
        let split = pass::split_wide(graph.clone()).unwrap();
        assert!(split.values.iter().all(|v| v.ty.dtype != DType::F64), "{optimizer}");
        let split = pass::fuse(split, Cpu::new(2).target()).unwrap();
        let mut a = state(&graph, 0);
        let mut b = a.clone();
        for (i, input) in split.inputs.iter().enumerate().filter(|(_, i)| i.name == "unscale") {
            b[i] = scalar_bytes(split.ty(input.value), 1.0);
        }
        let (want, got) = (step(&graph, 1, &mut a), step(&split, 2, &mut b));
        let number = |graph: &Graph, results: &[Vec<u8>], i: usize| {
            scalar_value(&Tensor::from_bytes(graph.ty(graph.outputs[i].value), &results[i]))
        };
        // Norm: two levels of sums of 32 u² each, halved by the root of 4 u², and a product of 7 u².
        let bounds = [f64::exp2(-48.0) * (32.0 + 4.0 + 7.0), 0.0, 0.0];
        for (i, bound) in bounds.into_iter().enumerate() {
            let (want, got) = (number(&graph, &want, i), number(&split, &got, i));
            let near = (got - want).abs() <= bound * want;
            assert!(near, "{optimizer}: {} is {got}, not {want}", graph.outputs[i].name);
        }
        for (i, input) in graph.inputs.iter().enumerate().filter(|(_, i)| i.name != "unscale") {
            let numbers = |bytes: &[u8]| Tensor::from_bytes(graph.ty(input.value), bytes).to_f64();
            for (want, got) in numbers(&a[i]).into_iter().zip(numbers(&b[i])) {
                // The scale of the gradients, and rates of a parameter, may round the other way.
                let near = (got - want).abs() <= 4.0 * f32::EPSILON as f64 * want.abs().max(1.0);
                assert!(near, "{optimizer}: {} is {got}, not {want}", input.name);
            }
        }
    }
}

/// Steps of masters kept as rests beside steps of whole ones: the same masters to the bit, and weights that
/// are their nearest.
#[test]
fn split_masters_are_stepped_as_whole_ones() {
    let whole = |mut layout: BucketLayout| {
        layout.buckets.iter_mut().for_each(|b| b.master = Master::Whole);
        layout
    };
    let (parameters, masters) = ("parameters/0", "masters/0");
    for (optimizer, _) in OPTIMIZERS {
        let shapes: &[&[usize]] = &[&[3, 700], &[5], &[40, 9, 3]];
        let graph = update_with(optimizer, DType::BF16, shapes, whole);
        let halves = update(optimizer, DType::BF16, shapes);
        let at = |g: &Graph, name: &str| g.inputs.iter().position(|i| i.name == name).unwrap();
        let (graph, halves) = (
            pass::fuse(graph, Cpu::new(2).target()).unwrap(),
            pass::fuse(halves, Cpu::new(2).target()).unwrap(),
        );
        let mut a = state(&graph, 0);
        // Every eighth is half way between two weights.
        for (i, x) in a[at(&graph, masters)].chunks_exact_mut(4).enumerate().filter(|(i, _)| i % 8 == 0) {
            x[..2].copy_from_slice(&[0, 0x80]);
            x[2] ^= i as u8 / 8;
        }
        let floats = |bytes: &[u8]| -> Vec<f32> {
            bytes.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect()
        };
        let parts = |masters: &[u8]| -> (Vec<u8>, Vec<u8>) {
            let parts: Vec<_> = floats(masters).into_iter().map(split).collect();
            let weights = parts.iter().flat_map(|p| p.0.to_le_bytes()).collect();
            (weights, parts.iter().flat_map(|p| p.1.to_le_bytes()).collect())
        };
        let mut b = state(&halves, 0);
        for (i, input) in halves.inputs.iter().enumerate() {
            b[i] = a[at(&graph, &input.name)].clone();
        }
        (b[at(&halves, parameters)], b[at(&halves, masters)]) = parts(&a[at(&graph, masters)]);
        for round in 0..3 {
            let gradients = state(&graph, round)[at(&graph, "gradients/0")].clone();
            a[at(&graph, "gradients/0")] = gradients.clone();
            b[at(&halves, "gradients/0")] = gradients;
            assert_eq!(step(&graph, 1, &mut a), step(&halves, 2, &mut b), "{optimizer}");
            let (weights, rests) = parts(&a[at(&graph, masters)]);
            assert_eq!(b[at(&halves, parameters)], weights, "{optimizer}, step {round}");
            assert_eq!(b[at(&halves, masters)], rests, "{optimizer}, step {round}");
        }
    }
}

#[test]
fn steps_too_small_for_bf16_count_on_average_if_rounded_stochastically() {
    let optimizer: Optimizer = serde_json::from_str(r#"{"name": "sgd"}"#).unwrap();
    let mut groups = Groups::new(optimizer, vec![], Decay::All).unwrap();
    let (elements, steps) = (8192, 16);
    let ty = TensorType::new(DType::BF16, [elements]);
    let group = groups.of("p", &ty).unwrap();
    for stochastic in [false, true] {
        let layout = BucketLayout::new([("p", &ty, group)], BucketSize::UNLIMITED);
        let layout = if stochastic { layout.with_stochastic_rounding() } else { layout };
        let graph = pass::fuse(
            update_graph(&layout, |g| groups.rule(g), Clip::default(), false, DTypeSet::default()).unwrap(),
            Cpu::new(2).target(),
        )
        .unwrap();
        let at = |name: &str| graph.inputs.iter().position(|i| i.name.starts_with(name));
        // Below 1, bf16 has the step 2⁻⁸: each update is a sixteenth of it.
        let lr = 2f64.powi(-12);
        let mut state: Vec<Vec<u8>> = graph
            .inputs
            .iter()
            .map(|i| {
                let x = if i.name.ends_with("/lr") { lr } else { 1.0 };
                Tensor::full(graph.ty(i.value), x).to_bytes()
            })
            .collect();
        for n in 0..steps as i64 {
            if let Some(key) = at("rng") {
                state[key] = [7i64, n].iter().flat_map(|x| x.to_le_bytes()).collect();
            }
            step(&graph, 1 + n as usize % 2, &mut state);
        }
        let p = Tensor::from_bytes(&ty, &state[at("parameters").unwrap()][..2 * elements]).to_f64();
        let moved = 1.0 - p.iter().sum::<f64>() / elements as f64;
        if stochastic {
            // A sum of Bernoulli variables: five standard deviations of the mean.
            let (chance, unit) = (1.0 / 16.0, 2f64.powi(-8));
            let sd = unit * (steps as f64 * chance * (1.0 - chance) / elements as f64).sqrt();
            assert!((moved - steps as f64 * lr).abs() < 5.0 * sd, "{moved}");
        } else {
            assert_eq!(moved, 0.0);
        }
    }
}
