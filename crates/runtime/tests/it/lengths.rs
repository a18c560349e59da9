//! Samples of several lengths in buckets. A run over them is the run of its batches one by one, each cut by
//! hand, and resumes to the same bits.

use headwater_core::device::Device;
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::{Builder, DType, Graph, TensorType};
use headwater_cpu::Cpu;
use headwater_runtime::config::{AugmentConfig, Auto, Buckets, DataConfig};
use headwater_runtime::data::{Dataset, Feeding, LastBatch, Loader, Order, Shapes};
use headwater_runtime::{Event, Session, SessionModel, Summary, TrainConfig, Trainer};
use safetensors::tensor::{Dtype, TensorView};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SAMPLES: usize = 22;
const LONGEST: usize = 12;
const FEATURES: usize = 3;
const BATCH: usize = 4;

/// `mean((Σ over the length of x · mask · w − target)²)` for `x` `[batch, length, 3]` and `mask`
/// `[batch, length, 1]`.
fn graph(batch: usize, length: usize) -> Graph {
    let mut b = Builder::new();
    let w = b.parameter("w", DType::F32, &[FEATURES, 2]);
    let f32_of = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let x = b.input("x", f32_of(&[batch, length, FEATURES]), InputRole::User);
    let mask = b.input("mask", f32_of(&[batch, length, 1]), InputRole::User);
    let target = b.input("target", f32_of(&[batch, 2]), InputRole::User);
    let kept = b.mul(x, mask).unwrap();
    let pooled = b.sum(kept, &[1], false).unwrap();
    let out = b.matmul(pooled, w).unwrap();
    let minus = b.scale(target, -1.0).unwrap();
    let error = b.add(out, minus).unwrap();
    let square = b.mul(error, error).unwrap();
    let sum = b.sum(square, &[0, 1], false).unwrap();
    let loss = b.scale(sum, 1.0 / batch as f64).unwrap();
    b.output("loss", loss, OutputRole::User);
    b.finish()
}

fn shaped(shapes: &Shapes) -> Graph {
    graph(shapes.batch, shapes.samples["x"][0])
}

fn noise(n: usize, phase: f32) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 12.9898 + phase).sin() * 0.5).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Samples of 1 to 12 elements, filled up with numbers that must not be read.
struct Data {
    x: Vec<f32>,
    mask: Vec<f32>,
    target: Vec<f32>,
    lengths: Vec<usize>,
}

impl Data {
    fn new() -> Data {
        let lengths: Vec<usize> = (0..SAMPLES).map(|i| 1 + i * i * 5 % LONGEST).collect();
        let place = |i: usize| (i / LONGEST, i % LONGEST);
        let inside = |i: usize| place(i).1 < lengths[place(i).0];
        let mask = (0..SAMPLES * LONGEST).map(|i| inside(i) as u8 as f32).collect();
        Data { x: noise(SAMPLES * LONGEST * FEATURES, 3.0), mask, target: noise(SAMPLES * 2, 1.0), lengths }
    }

    fn write(&self, path: &Path) {
        let lengths: Vec<u8> = self.lengths.iter().flat_map(|&l| (l as i32).to_le_bytes()).collect();
        let (x, mask, target) = (bytes(&self.x), bytes(&self.mask), bytes(&self.target));
        let view = |shape: &[usize], b| TensorView::new(Dtype::F32, shape.to_vec(), b).unwrap();
        let tensors = [
            ("x", view(&[SAMPLES, LONGEST, FEATURES], &x)),
            ("mask", view(&[SAMPLES, LONGEST, 1], &mask)),
            ("target", view(&[SAMPLES, 2], &target)),
            ("lengths", TensorView::new(Dtype::I32, vec![SAMPLES], &lengths).unwrap()),
        ];
        safetensors::serialize_to_file(tensors, None, path).unwrap();
    }

    /// The inputs of a batch of these samples, each cut to `length`.
    fn cut(&self, samples: &[u32], length: usize) -> [Vec<u8>; 3] {
        let of = |values: &[f32], width: usize| {
            let one = |&s: &u32| &values[s as usize * LONGEST * width..][..length * width];
            bytes(&samples.iter().flat_map(one).copied().collect::<Vec<_>>())
        };
        let target = samples.iter().flat_map(|&s| &self.target[s as usize * 2..][..2]).copied();
        [of(&self.x, FEATURES), of(&self.mask, 1), bytes(&target.collect::<Vec<_>>())]
    }
}

fn config(dir: &Path) -> TrainConfig {
    let mut config = TrainConfig { steps: Some(12), seed: 9, batch: Some(BATCH), ..TrainConfig::default() };
    config.data.train = dir.join("data.safetensors");
    config.data.eval = Some(dir.join("data.safetensors"));
    config.data.buckets = Some(Buckets::Bounds(vec![3, 7, LONGEST]));
    config.data.lengths = Some("lengths".into());
    config.checkpoint.dir = Some(dir.join("checkpoints"));
    config
}

fn weights() -> HashMap<String, Vec<u8>> {
    HashMap::from([("w".to_string(), bytes(&noise(FEATURES * 2, 0.3)))])
}

/// A trainer of the model as exported for five samples of five elements.
fn trainer(config: &TrainConfig, resume: bool) -> Trainer<'static> {
    let (graph, weights) = (graph(5, 5), weights());
    let model = SessionModel { graph: &graph, weights: &weights };
    let rebind = |shapes: &Shapes| Ok(shaped(shapes));
    Trainer::new(Arc::new(Cpu::new(2)), model, Some(Box::new(rebind)), config.clone(), resume).unwrap()
}

fn run(trainer: &mut Trainer) -> Summary {
    trainer.run(&mut [], &AtomicBool::new(false)).unwrap()
}

#[test]
fn a_run_over_lengths_is_its_batches_one_by_one() {
    let (dir, data) = (tempfile::tempdir().unwrap(), Data::new());
    data.write(&dir.path().join("data.safetensors"));
    let config = config(dir.path());
    let mut buckets = None;
    let mut watch = |e: &Event| {
        if let Event::Start(start) = e {
            buckets = Some(start.buckets.clone());
        }
        Ok(())
    };
    let mut whole = trainer(&config, false);
    let (mut sampler, rates) = (whole.sampler(), (0..12).map(|s| whole.rate(s)).collect::<Vec<_>>());
    let summary = whole.run(&mut [&mut watch], &AtomicBool::new(false)).unwrap();
    let up_to = |bound: usize| data.lengths.iter().filter(|&&l| l <= bound).count();
    let counts = [(3, up_to(3)), (7, up_to(7) - up_to(3)), (LONGEST, SAMPLES - up_to(7))];
    assert!(counts.iter().all(|c| c.1 >= BATCH), "{counts:?}");
    assert_eq!(buckets.unwrap(), counts);

    // The same without the trainer.
    let (first, weights) = (graph(BATCH, LONGEST), weights());
    let model = SessionModel { graph: &first, weights: &weights };
    let device = Arc::new(Cpu::new(1));
    let settings = config.training(device.target()).unwrap();
    let mut session = Session::new(device, model, Some(settings)).unwrap();
    let (mut losses, mut lengths) = (Vec::new(), Vec::new());
    for (step, &rate) in rates.iter().enumerate() {
        let samples = sampler.batch(step as u64).unwrap();
        let longest = samples.iter().map(|&s| data.lengths[s as usize]).max().unwrap();
        let length = [3, 7, LONGEST].into_iter().find(|b| longest <= *b).unwrap();
        let program = session.training_program(&graph(BATCH, length)).unwrap();
        session.gradients(program, &data.cut(&samples, length)).unwrap();
        losses.push(session.output(program, 0).unwrap().to_f64()[0]);
        session.update(rate).unwrap();
        lengths.push(length);
    }
    assert!([3, 7, LONGEST].iter().all(|b| lengths.contains(b)), "{lengths:?}");
    assert_eq!(summary.losses, losses);
    let w = |s: &Session| s.read(s.tensors().iter().find(|t| t.name == "w").unwrap()).unwrap();
    assert_eq!(w(whole.session()), w(&session));

    // Evaluation without buckets sums further zeros: up to 12 · 3 of them, at magnitudes of about one.
    let mut padded = config.clone();
    (padded.data.buckets, padded.data.lengths, padded.steps) = (None, None, Some(1));
    padded.checkpoint.dir = None;
    let cut = TrainConfig { steps: Some(1), ..config.clone() };
    let without = trainer(&padded, false).evaluate().unwrap();
    let with = trainer(&TrainConfig { checkpoint: Default::default(), ..cut }, false).evaluate().unwrap();
    assert_eq!((with.scores.samples, with.left_out), (SAMPLES, 0));
    let (with, without) = (with.scores, without.scores);
    let bound = (LONGEST * FEATURES) as f64 * f32::EPSILON as f64;
    assert!((with.loss - without.loss).abs() <= bound * without.loss, "{} and {}", with.loss, without.loss);
}

#[test]
fn an_interrupted_run_over_lengths_resumes_to_the_same_bits() {
    let ends = [None, Some(5u64)].map(|interrupt| {
        let (dir, data) = (tempfile::tempdir().unwrap(), Data::new());
        data.write(&dir.path().join("data.safetensors"));
        // Micro-batches of different lengths in one step.
        let config = TrainConfig { accumulate: 2, ..config(dir.path()) };
        if let Some(step) = interrupt {
            let stop = AtomicBool::new(false);
            let mut watch = |e: &Event| {
                stop.fetch_or(matches!(e, Event::Step(s) if s.step == step), Ordering::Relaxed);
                Ok(())
            };
            let summary = trainer(&config, false).run(&mut [&mut watch], &stop).unwrap();
            assert_eq!((summary.step, summary.complete), (step, false));
        }
        let summary = run(&mut trainer(&config, interrupt.is_some()));
        assert_eq!(summary.step, 12);
        std::fs::read(dir.path().join("checkpoints/step-00000012/state.safetensors")).unwrap()
    });
    assert_eq!(ends[0], ends[1]);
}

#[test]
fn buckets_that_cannot_be_are_refused_by_name() {
    let (dir, data) = (tempfile::tempdir().unwrap(), Data::new());
    data.write(&dir.path().join("data.safetensors"));
    let said = |set: &dyn Fn(&mut TrainConfig), fixed: bool| {
        let mut config = config(dir.path());
        set(&mut config);
        let (graph, weights) = (graph(5, LONGEST), weights());
        let model = SessionModel { graph: &graph, weights: &weights };
        let rebind = move |shapes: &Shapes| match fixed {
            true => Ok(self::graph(shapes.batch, LONGEST)),
            false if shapes.samples["x"][0] < 5 => Err("lengths are at least 5".into()),
            false => Ok(shaped(shapes)),
        };
        let made = Trainer::new(Arc::new(Cpu::new(1)), model, Some(Box::new(rebind)), config, false);
        made.map(|t| t.session().planned_bytes()).map_err(|e| e.to_string())
    };
    let buckets =
        |c: &mut TrainConfig, bounds: &[usize]| c.data.buckets = Some(Buckets::Bounds(bounds.to_vec()));
    for (set, fixed, want) in [
        (
            &(|c: &mut TrainConfig| buckets(c, &[])) as &dyn Fn(&mut TrainConfig),
            false,
            "from 1 to 64 lengths",
        ),
        (&|c| buckets(c, &[7, 3, 12]), false, "ascending"),
        (&|c| buckets(c, &[0, 12]), false, "at least 1"),
        (&|c| buckets(c, &[6, 7]), false, "more than the largest bound 7"),
        (&|c| buckets(c, &[3, 12]), false, "at the length 3 of `data.buckets`: lengths are at least 5"),
        (&|c| buckets(c, &[6, 12]), true, "exported for one length"),
        (&|c| c.data.lengths = Some("none".into()), false, "has no tensor none"),
        (&|c| c.data.lengths = Some("x".into()), false, "must be integers [samples]"),
        (&|c| c.data.lengths = None, false, "does not say how long"),
        (&|c| c.data.buckets = None, false, "set data.buckets too"),
    ] {
        let refused = said(set, fixed).unwrap_err();
        assert!(refused.starts_with("HW-") && refused.contains(want), "{want}: {refused}");
    }
    // Bounds that nobody named are those that the model takes: 6 and 12, not 2 and 3.
    let auto = said(&|c| c.data.buckets = Some(Buckets::Auto(Auto::Auto)), false);
    assert!(auto.is_ok(), "{auto:?}");
}

#[test]
fn images_beside_sequences_are_changed_and_those_that_are_cut_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.safetensors");
    let (n, length) = (6, 4);
    let numbers = |of: usize| bytes(&(0..of).map(|i| i as f32).collect::<Vec<_>>());
    let (tokens, image, film, flat) =
        (numbers(n * length), numbers(n * 2 * 3), numbers(n * length * 2 * 3), numbers(n * length * 2));
    let lengths: Vec<u8> = (0..n as i32).flat_map(|i| (1 + i % 4).to_le_bytes()).collect();
    let view = |shape: &[usize], b| TensorView::new(Dtype::F32, shape.to_vec(), b).unwrap();
    let tensors = [
        ("tokens", view(&[n, length], &tokens)),
        ("image", view(&[n, 1, 2, 3], &image)),
        ("film", view(&[n, length, 2, 3], &film)),
        ("flat", view(&[n, length, 2], &flat)),
        ("lengths", TensorView::new(Dtype::I32, vec![n], &lengths).unwrap()),
    ];
    safetensors::serialize_to_file(tensors, None, &path).unwrap();
    let data = Arc::new(Dataset::open(&path).unwrap());
    let settings = DataConfig {
        buckets: Some(Buckets::Bounds(vec![2, length])),
        lengths: Some("lengths".into()),
        ..DataConfig::default()
    };
    let types = |shapes: &Shapes| {
        let ty = |(name, sizes): (&String, &Vec<usize>)| {
            let shape = std::iter::once(shapes.batch).chain(sizes.iter().copied()).collect::<Vec<_>>();
            (name.clone(), TensorType::new(DType::F32, shape))
        };
        Ok(shapes.samples.iter().map(ty).collect::<Vec<_>>())
    };
    let feeding = |inputs: &[(&str, &[usize])], change: &str| {
        let exported: Vec<(String, TensorType)> =
            inputs.iter().map(|(n, s)| (n.to_string(), TensorType::new(DType::F32, s.to_vec()))).collect();
        let flip = AugmentConfig { inputs: vec![change.into()], flip: 1.0, ..AugmentConfig::default() };
        Feeding::new(data.clone(), &settings, &exported, Some(1), &types)?.augmented(&flip, 7)
    };
    // Rows of three, each reversed: of an image of one size, and of as many frames as the bucket has.
    let turned = |values: &[f32]| -> Vec<f32> {
        values.chunks(3).flat_map(|row| row.iter().rev().copied().collect::<Vec<_>>()).collect()
    };
    for (name, sizes) in [("image", [1, 1, 2, 3]), ("film", [1, length, 2, 3])] {
        let feeding = feeding(&[(name, &sizes), ("tokens", &[1, length])], name).unwrap();
        let sampler = feeding.sampler(Order::Sequential, LastBatch::Drop).unwrap();
        let at = feeding.feeds(0).iter().position(|f| f.input == name).unwrap();
        for (sample, batch) in Loader::new(feeding, sampler, 0).unwrap().take(n).enumerate() {
            let words = 1 + sample % 4;
            let planes = match name {
                "image" => 1,
                _ if words <= 2 => 2,
                _ => length,
            };
            let stored = sizes[1] * 6;
            let first = (sample * stored) as f32;
            let own: Vec<f32> = (0..planes * 6).map(|i| first + i as f32).collect();
            assert_eq!(batch.unwrap().inputs[at], bytes(&turned(&own)), "{name} {sample}");
        }
    }
    let refused = feeding(&[("flat", &[1, length, 2]), ("tokens", &[1, length])], "flat").unwrap_err();
    assert!(refused.to_string().contains("the height of flat is the length"), "{refused}");
}
