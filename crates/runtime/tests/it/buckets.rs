//! Sizes of buckets: where flat storage is cut changes no bit of losses, weights and moments.

use crate::common::noise;
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ops::pointwise::gelu::GELU;
use headwater_core::pass::precision::{Level, PrecisionSettings};
use headwater_core::train::BucketSize;
use headwater_core::{Attrs, Builder, DType, Graph, TensorType};
use headwater_cpu::Cpu;
use headwater_runtime::optim::Clip;
use headwater_runtime::session::Training;
use headwater_runtime::{Session, SessionModel};
use std::collections::HashMap;
use std::sync::Arc;

const WIDTH: usize = 40;
const LAYERS: usize = 5;

/// Layers `x + gelu(x · wᵀ + b)`, and the mean square.
fn model() -> (Graph, HashMap<String, Vec<u8>>) {
    let mut weights = HashMap::new();
    let mut b = Builder::new();
    let mut x = b.input("x", TensorType::new(DType::F32, [4, WIDTH]), InputRole::User);
    for i in 0..LAYERS {
        let mut parameter = |b: &mut Builder, name: String, shape: &[usize]| {
            let values = noise(shape.iter().product(), i as f32).into_iter();
            weights.insert(name.clone(), values.flat_map(f32::to_le_bytes).collect());
            b.parameter(&name, DType::F32, shape)
        };
        let w = parameter(&mut b, format!("{i}.weight"), &[WIDTH, WIDTH]);
        let bias = parameter(&mut b, format!("{i}.bias"), &[WIDTH]);
        let w = b.transpose_last(w).unwrap();
        let h = b.matmul(x, w).unwrap();
        let h = b.add(h, bias).unwrap();
        let h = b.one(&GELU, &[h], Attrs::new()).unwrap();
        x = b.add(x, h).unwrap();
    }
    let square = b.mul(x, x).unwrap();
    let sum = b.sum(square, &[0, 1], false).unwrap();
    let loss = b.scale(sum, 1.0 / (4 * WIDTH) as f64).unwrap();
    b.output("loss", loss, OutputRole::User);
    (b.finish(), weights)
}

fn session(training: &Training, size: BucketSize) -> Session {
    let (graph, weights) = model();
    let training = Training { bucket_size: Some(size), ..training.clone() };
    let model = SessionModel { graph: &graph, weights: &weights };
    Session::new(Arc::new(Cpu::new(2)), model, Some(training)).unwrap()
}

/// Bits of four steps' losses and norms, and of everything that lasts, by name; and the number of buckets.
fn run(training: &Training, size: BucketSize) -> (Vec<u64>, Vec<(String, Vec<u8>)>, usize) {
    let mut session = session(training, size);
    let program = session.program().unwrap();
    let mut bits = Vec::new();
    for step in 0..4u64 {
        session.set_rng(7, step).unwrap();
        session.begin_step().unwrap();
        for micro in 0..training.accumulate {
            let x = noise(4 * WIDTH, step as f32 + 10.0 * micro as f32);
            let x: Vec<u8> = x.into_iter().flat_map(f32::to_le_bytes).collect();
            session.gradients(program, &[x]).unwrap();
            bits.push(session.output(program, 0).unwrap().to_f64()[0].to_bits());
        }
        let update = session.update(0.01).unwrap();
        assert!(update.applied && update.norm > 0.0);
        bits.extend([update.norm.to_bits(), update.largest.to_bits()]);
    }
    let tensors = session.tensors().iter().map(|t| (t.name.clone(), session.read(t).unwrap()));
    let moments = session.moments();
    let moments = moments.iter().map(|(key, _)| (key.to_string(), session.read_moment(key).unwrap()));
    let mut state: Vec<_> = tensors.chain(moments).collect();
    state.sort();
    // The plan names the step that completes each bucket, in their order.
    let buckets = &session.layout().buckets;
    let plan = session.plan(program);
    let complete: Vec<&str> =
        plan.completions.iter().map(|c| plan.segments[c.segment.0 as usize].name.as_str()).collect();
    let names: Vec<String> = buckets.iter().map(|b| format!("gradients.{}", b.name())).collect();
    assert_eq!(complete, names);
    assert!(plan.completions.is_sorted_by_key(|c| c.step), "{:?}", plan.completions);
    assert!(plan.completions.is_sorted_by_key(|c| c.step), "{:?}", plan.completions);
    (bits, state, buckets.len())
}

#[test]
fn where_buckets_end_changes_no_bit() {
    let low = |level| PrecisionSettings { level, dtype: Some(DType::BF16), ..PrecisionSettings::default() };
    let clip = Clip { norm: Some(0.5), value: None };
    let optimizer = |text: &str| Training {
        optimizer: serde_json::from_str(text).unwrap(),
        groups: serde_json::from_str(r#"[{"parameters": "*.bias", "lr": 0.02}]"#).unwrap(),
        clip,
        ..Training::default()
    };
    let adamw = || optimizer(r#"{"name": "adamw"}"#);
    let cases = [
        ("adamw", adamw()),
        ("adamw, two micro-batches", Training { accumulate: 2, ..adamw() }),
        ("adamw with masters", Training { precision: low(Level::O2), ..adamw() }),
        (
            "adamw, rounded stochastically",
            Training { precision: low(Level::O3), stochastic_rounding: true, ..adamw() },
        ),
        ("lamb", optimizer(r#"{"name": "lamb"}"#)),
        ("adamp", optimizer(r#"{"name": "adamp", "weight_decay": 0.1, "delta": 0.5}"#)),
        ("novograd, a moment for each parameter", optimizer(r#"{"name": "novograd"}"#)),
    ];
    for (name, training) in cases {
        let (losses, state, kinds) = run(&training, BucketSize::UNLIMITED);
        assert_eq!(kinds, 2, "{name}");
        let one_each = BucketSize::of(1);
        let some = BucketSize { first: 1, rest: 3 * WIDTH * WIDTH * 2 };
        let mut counts = Vec::new();
        for size in [BucketSize::of_ranks(1), some, one_each] {
            let cut = run(&training, size);
            assert!(cut.0 == losses, "{name}, {size:?}: other losses or norms");
            for (own, whole) in cut.1.iter().zip(&state) {
                assert!(own == whole, "{name}, {size:?}: other bits of {}", whole.0);
            }
            assert_eq!(cut.1.len(), state.len());
            counts.push(cut.2);
        }
        assert_eq!(counts[0], 2, "{name}: small models have no more buckets than kinds");
        assert!(counts[0] < counts[1] && counts[1] < counts[2], "{name}: {counts:?}");
        assert_eq!(counts[2], 2 * LAYERS, "{name}");
    }
}

#[test]
fn sums_are_divided_by_the_number_that_is_set() {
    let norm = |divisor: u32, batches: u32| {
        let training = Training { accumulate: 2, ..Training::default() };
        let mut session = session(&training, BucketSize::of_ranks(1));
        session.set_micro_batches(divisor).unwrap();
        let program = session.program().unwrap();
        let x: Vec<u8> = noise(4 * WIDTH, 1.0).into_iter().flat_map(f32::to_le_bytes).collect();
        session.begin_step().unwrap();
        (0..batches).for_each(|_| session.gradients(program, &[&x]).unwrap());
        session.update(0.01).unwrap().norm
    };
    // Powers of two round nothing.
    assert_eq!(norm(1, 4), 4.0 * norm(1, 1));
    assert_eq!(norm(4, 4), norm(1, 1));
    let mut summed = session(&Training { accumulate: 2, ..Training::default() }, BucketSize::of_ranks(1));
    assert_eq!(summed.set_micro_batches(0).unwrap_err().code(), "HW-R004");
    let mut single = session(&Training::default(), BucketSize::of_ranks(1));
    assert_eq!(single.set_micro_batches(1).unwrap_err().code(), "HW-R004");
}
