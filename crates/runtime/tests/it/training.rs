//! Whole runs on the CPU: learning, exact resumption, accumulation, batch sizes, and what happens when things
//! go wrong.

use crate::common::{config, graph, weights, write_data};
use headwater_core::device::Device;
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::{Builder, DType, Tensor, TensorType};
use headwater_cpu::Cpu;
use headwater_runtime::config::{Metric, NonFinite};
use headwater_runtime::data::{Dataset, LastBatch, Shapes};
use headwater_runtime::log::{JsonLines, TensorBoard};
use headwater_runtime::optim::Optimizer;
use headwater_runtime::session::Training;
use headwater_runtime::{Bytes, Error, Event, Session, SessionModel, Summary, TrainConfig, Trainer};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const BATCH: usize = 4;

fn data() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_data(&dir.path().join("data.safetensors"));
    dir
}

fn cpu(threads: usize) -> Arc<dyn Device> {
    Arc::new(Cpu::new(threads))
}

fn trainer(
    threads: usize,
    config: &TrainConfig,
    dropout: f64,
    resume: bool,
) -> Result<Trainer<'static>, Error> {
    let (graph, weights) = (graph(BATCH, dropout), weights());
    let model = SessionModel { graph: &graph, weights: &weights };
    let rebind = move |shapes: &Shapes| Ok(crate::common::graph(shapes.batch, dropout));
    Trainer::new(cpu(threads), model, Some(Box::new(rebind)), config.clone(), resume)
}

fn run(trainer: &mut Trainer) -> Summary {
    trainer.run(&mut [], &AtomicBool::new(false)).unwrap()
}

fn model(dir: &Path, step: u64) -> Vec<u8> {
    std::fs::read(dir.join(format!("checkpoints/step-{step:08}/model.safetensors"))).unwrap()
}

#[test]
fn training_learns_and_has_the_same_bits_for_any_number_of_threads() {
    let mut models = Vec::new();
    for threads in [1, 2] {
        let dir = data();
        let mut config = config(dir.path());
        (config.steps, config.epochs) = (None, Some(40.0));
        config.optimizer = serde_json::from_str(r#"{"name": "AdamW", "lr": 0.02}"#).unwrap();
        let summary = run(&mut trainer(threads, &config, 0.1, false).unwrap());
        assert_eq!(summary.losses.len(), 40 * (crate::common::SAMPLES / BATCH));
        let evaluation = summary.evaluation.unwrap();
        let scores = &evaluation.scores;
        assert!(scores.loss < 0.25 * summary.losses[0], "{} to {}", summary.losses[0], scores.loss);
        assert!(scores.accuracy.unwrap() > 0.8, "{scores:?}");
        // The last two samples fill no batch of four, but the model can be bound to two.
        assert_eq!((scores.samples, evaluation.left_out), (crate::common::SAMPLES, 0));
        models.push((model(dir.path(), summary.step), summary.losses));
    }
    assert_eq!(models[0], models[1]);
}

#[test]
fn an_interrupted_run_ends_as_an_undisturbed_one_would() {
    let whole = data();
    let mut all = run(&mut trainer(1, &config(whole.path()), 0.3, false).unwrap()).losses;

    let dir = data();
    let mut config = config(dir.path());
    config.accumulate = 1;
    config.checkpoint.every = Some(3);
    let log = dir.path().join("log.jsonl");
    let stop = AtomicBool::new(false);
    let mut json = JsonLines::create(&log).unwrap();
    let mut at_seven = |e: &Event| {
        if matches!(e, Event::Step(s) if s.step == 7) {
            stop.store(true, Ordering::Relaxed);
        }
        Ok(())
    };
    let mut first = trainer(1, &config, 0.3, false).unwrap();
    let summary = first.run(&mut [&mut json, &mut at_seven], &stop).unwrap();
    assert_eq!((summary.step, summary.complete), (7, false));
    let first_buckets = first.session().layout().buckets.len();
    drop(first);
    // A line of a later step, as a run killed after its checkpoint leaves it, and one cut off.
    let mut text = std::fs::read_to_string(&log).unwrap();
    text.push_str("{\"event\":\"step\",\"step\":8}\n{\"event\":\"st");
    std::fs::write(&log, text).unwrap();

    // Settings that change no number may be changed on the way.
    config.recompute = true;
    assert_eq!(first_buckets, 2, "one for each group of settings, as where nothing limits them");
    config.bucket_size = Some(Bytes(1));
    let mut resumed = None;
    let mut seen = |e: &Event| {
        if let Event::Resume { changed, .. } = e {
            resumed = Some(changed.clone());
        }
        Ok(())
    };
    let mut second = trainer(2, &config, 0.3, true).unwrap();
    assert_eq!(second.step(), 7);
    assert_eq!(second.session().layout().buckets.len(), 3, "one for each parameter");
    let mut json = JsonLines::resume(&log, 7).unwrap();
    let mut board = TensorBoard::create(&dir.path().join("board"), 7).unwrap();
    let summary = second.run(&mut [&mut json, &mut board, &mut seen], &AtomicBool::new(false)).unwrap();
    assert!(summary.complete);
    assert_eq!(resumed, Some(vec![]));
    assert_eq!(summary.losses, all.split_off(7));
    assert_eq!(model(dir.path(), 20), model(whole.path(), 20));
    let state = |dir: &Path| std::fs::read(dir.join("checkpoints/step-00000020/state.safetensors")).unwrap();
    assert_eq!(state(dir.path()), state(whole.path()));

    let lines = std::fs::read_to_string(&log).unwrap();
    let steps: Vec<u64> = lines
        .lines()
        .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap())
        .filter(|v| v["event"] == "step")
        .map(|v| v["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, (1..=20).collect::<Vec<_>>());
}

#[test]
fn the_saved_model_is_a_state_dict() {
    let dir = data();
    run(&mut trainer(1, &config(dir.path()), 0.0, false).unwrap());
    let file = Dataset::open(&dir.path().join("checkpoints/step-00000020/model.safetensors")).unwrap();
    let names: Vec<&str> = file.columns().iter().map(|c| c.name.as_str()).collect();
    assert_eq!(
        names,
        ["bn.running_mean", "fc1.bias", "fc1.weight", "fc2.weight", "frozen", "head.tied", "unused"]
    );
    let bytes = |name: &str| file.column(name).unwrap().bytes().to_vec();
    assert_eq!(bytes("head.tied"), bytes("fc2.weight"));
    // Frozen and unreached parameters are as they came; running statistics are not.
    for name in ["frozen", "unused"] {
        assert_eq!(bytes(name), weights()[name], "{name}");
    }
    for name in ["bn.running_mean", "fc1.weight"] {
        assert_ne!(bytes(name), weights()[name], "{name}");
    }
}

#[test]
fn micro_batches_average_to_the_whole_batch() {
    // Batch statistics would need the same sample four times in each micro-batch. So only the plain sums are
    // compared, by one step of SGD with a recorded order.
    let order = |dir: &Path, shape: [usize; 2]| {
        let indices: Vec<u8> = (0..8i64).map(|i| i % 4).flat_map(i64::to_le_bytes).collect();
        let view =
            safetensors::tensor::TensorView::new(safetensors::Dtype::I64, shape.to_vec(), &indices).unwrap();
        let path = dir.join("order.safetensors");
        safetensors::serialize_to_file([("order", view)], None, &path).unwrap();
        format!("{}:order", path.display())
    };
    let mut models = Vec::new();
    for (batch, accumulate) in [(8, 1), (4, 2)] {
        let dir = data();
        let mut config = config(dir.path());
        config.steps = Some(1);
        (config.warmup, config.clip_norm) = (0, None);
        config.optimizer = serde_json::from_str(r#"{"name": "sgd", "lr": 1.0}"#).unwrap();
        (config.batch, config.accumulate) = (Some(batch), accumulate);
        config.data.order = Some(order(dir.path(), [8 / batch, batch]));
        let mut trainer = trainer(1, &config, 0.0, false).unwrap();
        let summary = run(&mut trainer);
        let session = trainer.session();
        let w = session.tensors().iter().find(|t| t.name == "fc1.weight").unwrap();
        let bytes = session.read(w).unwrap();
        let w: Vec<f32> = bytes.chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect();
        models.push((w, summary.losses[0]));
    }
    // Both batches hold the same four samples twice over, so batch statistics agree too. The sums differ in
    // their order: some hundred f32 roundings of numbers of size 1.
    let close = |a: f64, b: f64| (a - b).abs() < 100.0 * f32::EPSILON as f64;
    assert!(close(models[0].1, models[1].1));
    assert!(models[0].0.iter().zip(&models[1].0).all(|(a, b)| close(*a as f64, *b as f64)), "{models:?}");
    assert_ne!(models[0].0, crate::common::noise(48, 0.1));
}

#[test]
fn every_float_dtype_trains_with_wide_moments() {
    // The loss is the sum of all parameters times their coefficients, so each gradient is exactly its
    // coefficients.
    let n = 40;
    let dtypes = [DType::F64, DType::F32, DType::BF16, DType::F16];
    let mut b = Builder::new();
    let mut weights = HashMap::new();
    let mut sum = None;
    for dtype in dtypes {
        let w = b.parameter(&format!("w.{dtype}"), dtype, &[n]);
        let c = b.input(format!("c.{dtype}"), TensorType::new(dtype, [n]), InputRole::Constant);
        let product = b.mul(w, c).unwrap();
        let own = b.sum(product, &[0], false).unwrap();
        let own = b.cast(own, DType::F64).unwrap();
        sum = Some(sum.map_or(own, |s| b.add(s, own).unwrap()));
        let random = |phase| {
            Tensor::float(dtype, [n], crate::common::noise(n, phase).iter().map(|&x| x as f64).collect())
        };
        weights.insert(format!("w.{dtype}"), random(1.0).to_bytes());
        weights.insert(format!("c.{dtype}"), random(2.0).to_bytes());
    }
    b.output("loss", sum.unwrap(), OutputRole::User);
    let graph = b.finish();
    let optimizer: Optimizer =
        serde_json::from_str(r#"{"name": "sgd", "lr": 1.0, "momentum": 0.5}"#).unwrap();
    for accumulate in [1, 2] {
        let training = Training { optimizer: optimizer.clone(), accumulate, ..Training::default() };
        let model = SessionModel { graph: &graph, weights: &weights };
        let mut session = Session::new(cpu(2), model, Some(training)).unwrap();
        let program = session.program().unwrap();
        for _ in 0..2 {
            session.begin_step().unwrap();
            for _ in 0..accumulate {
                session.gradients(program, &[] as &[&[u8]]).unwrap();
            }
            assert!(session.update(0.25).unwrap().applied);
        }
        for dtype in dtypes {
            let ty = TensorType::new(dtype, [n]);
            let read = |name: String| Tensor::from_bytes(&ty, &weights[&name]).floats().to_vec();
            let t = session.tensors().iter().find(|t| t.name == format!("w.{dtype}")).unwrap();
            let got = Tensor::from_bytes(&ty, &session.read(t).unwrap());
            // First step: the buffer is g; second: 1.5 g. Everything is computed wide and rounded once a
            // step.
            let wide = |x: f64| if dtype == DType::F64 { x } else { x as f32 as f64 };
            let step = |p: f64, m: f64| dtype.round(wide(p - wide(0.25 * m)));
            let want = read(format!("w.{dtype}")).into_iter().zip(read(format!("c.{dtype}")));
            let want: Vec<f64> = want.map(|(p, g)| step(step(p, g), wide(1.5 * g))).collect();
            assert_eq!(got.floats(), want, "{dtype}, {accumulate} micro-batches");
        }
        let moments = session.moments();
        assert!(
            moments.iter().all(|(name, ty)| (ty.dtype == DType::F64) == name.to_string().ends_with("f64")),
            "{moments:?}"
        );
        assert!(session.update_plan().unwrap().segments[0].bytes < 64 << 10, "the update works in place");
    }
}

#[test]
fn a_smaller_last_batch_is_kept_or_refused() {
    let dir = data();
    let mut config = config(dir.path());
    config.checkpoint.dir = None;
    config.data.last = LastBatch::Keep;
    (config.steps, config.epochs) = (None, Some(1.0));
    let mut sizes = Vec::new();
    let mut see = |e: &Event| {
        if let Event::Step(s) = e {
            sizes.push(s.samples);
        }
        Ok(())
    };
    trainer(1, &config, 0.0, false).unwrap().run(&mut [&mut see], &AtomicBool::new(false)).unwrap();
    assert_eq!(sizes, [4, 4, 4, 4, 4, 2]);

    // Without a way to bind the model to two samples, they are refused in training and left out in
    // evaluation.
    let fixed = |config: &TrainConfig| {
        let (graph, weights) = (graph(BATCH, 0.0), weights());
        Trainer::new(cpu(1), SessionModel { graph: &graph, weights: &weights }, None, config.clone(), false)
            .unwrap()
    };
    let e = fixed(&config).run(&mut [], &AtomicBool::new(false)).unwrap_err();
    assert!(matches!(e, Error::Rebind { batch: 2, .. }), "{e}");
    config.data.last = LastBatch::Drop;
    let evaluation = run(&mut fixed(&config)).evaluation.unwrap();
    assert_eq!((evaluation.scores.samples, evaluation.left_out), (20, 2));
    config.data.last = LastBatch::Error;
    assert!(matches!(trainer(1, &config, 0.0, false), Err(Error::Feed(_))));
}

#[test]
fn gradients_that_are_not_finite_change_nothing() {
    let dir = data();
    let mut config = config(dir.path());
    config.checkpoint.dir = None;
    config.data.eval = None;
    config.data.sequential = true;
    // Sample 9 is not a number: the third batch of every epoch.
    let mut bytes = std::fs::read(&config.data.train).unwrap();
    let x = Dataset::open(&config.data.train).unwrap().column("x").unwrap().bytes().to_vec();
    let at = bytes.windows(x.len()).position(|w| w == x).unwrap() + 9 * crate::common::WIDTH * 4;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    config.data.train = dir.path().join("broken.safetensors");
    std::fs::write(&config.data.train, bytes).unwrap();

    let mut stopped = trainer(1, &config, 0.0, false).unwrap();
    let e = stopped.run(&mut [], &AtomicBool::new(false)).unwrap_err();
    let Error::NotFinite { step: 2, detail, diverged: false } = &e else { panic!("{e}") };
    assert!(detail.contains("fc2.weight: 24 NaN and 0 inf of 24"), "{e}");
    // The data are to blame, and named first: sample 9, its first number.
    assert!(detail.starts_with("sample 9 of `x` in ") && detail.contains("is NaN (its element 0)"), "{e}");
    assert!(detail.len() < 500, "{e}");

    config.nonfinite = NonFinite::Skip;
    let mut applied = Vec::new();
    let mut skipping = trainer(1, &config, 0.0, false).unwrap();
    let mut after_three = None;
    let stop = AtomicBool::new(false);
    let mut see = |event: &Event| {
        if let Event::Step(s) = event {
            applied.push(s.applied);
            stop.store(s.step == 3, Ordering::Relaxed);
        }
        Ok(())
    };
    while skipping.step() < 20 {
        skipping.run(&mut [&mut see], &stop).unwrap();
        after_three.get_or_insert_with(|| parameters(&skipping));
        stop.store(false, Ordering::Relaxed);
    }
    let skipped: Vec<usize> = (0..20).filter(|&i| !applied[i]).collect();
    assert_eq!(skipped, [2, 7, 12, 17]);
    assert_eq!(skipping.session().applied(), 16);
    // Both have the parameters before the step that failed.
    assert_eq!(parameters(&stopped), after_three.unwrap());
}

fn parameters(trainer: &Trainer) -> Vec<Vec<u8>> {
    let session = trainer.session();
    session
        .layout()
        .entries()
        .map(|(_, e)| session.read(session.tensors().iter().find(|t| t.name == e.name).unwrap()).unwrap())
        .collect()
}

#[test]
fn settings_and_directories_that_make_no_sense_are_refused() {
    let dir = data();
    let good = config(dir.path());
    let refused = |change: &dyn Fn(&mut TrainConfig)| {
        let mut config = good.clone();
        change(&mut config);
        trainer(1, &config, 0.0, false).err().map(|e| e.code())
    };
    assert_eq!(refused(&|c| c.epochs = Some(1.0)), Some("HW-R004"));
    assert_eq!(refused(&|c| c.accumulate = 0), Some("HW-R004"));
    assert_eq!(refused(&|c| c.clip_value = Some(1.0)), Some("HW-R004"));
    assert_eq!(refused(&|c| c.clip_norm = Some(-1.0)), Some("HW-R004"));
    assert_eq!(refused(&|c| c.end = 2.0), Some("HW-R004"));
    assert_eq!(refused(&|c| c.data.names = [("x".into(), "y".into())].into()), Some("HW-R003"));
    assert_eq!(refused(&|c| c.data.order = Some("nothing".into())), Some("HW-R004"));
    // The directory of a finished run is not silently written over.
    run(&mut trainer(1, &good, 0.0, false).unwrap());
    assert_eq!(refused(&|_| ()), Some("HW-R005"));
    let complete = run(&mut trainer(1, &good, 0.0, true).unwrap());
    assert_eq!((complete.step, complete.losses.len()), (20, 0));
}

#[test]
fn every_optimizer_resumes_with_the_same_bits() {
    let optimizers = [
        r#"{"name": "sgd", "lr": 0.05, "momentum": 0.9}"#,
        r#"{"name": "adam", "amsgrad": true}"#,
        r#"{"name": "adamw"}"#,
        r#"{"name": "adamp", "weight_decay": 0.1, "delta": 0.5}"#,
        r#"{"name": "adagrad", "initial_accumulator_value": 0.1}"#,
        r#"{"name": "adadelta"}"#,
        r#"{"name": "adamax"}"#,
        r#"{"name": "nadam", "weight_decay": 0.1}"#,
        r#"{"name": "radam", "weight_decay": 0.1, "decoupled_weight_decay": true}"#,
        r#"{"name": "lion", "weight_decay": 0.1}"#,
        r#"{"name": "rmsprop", "centered": true, "momentum": 0.9, "eps": 1e-3}"#,
        r#"{"name": "rmsproptf", "centered": true, "momentum": 0.9}"#,
        r#"{"name": "bertadam"}"#,
        r#"{"name": "lamb"}"#,
        r#"{"name": "novograd", "weight_decay": 0.01}"#,
        r#"{"name": "larc", "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}}"#,
    ];
    for text in optimizers {
        let set = |dir: &Path| {
            let mut config = config(dir);
            config.steps = Some(8);
            config.optimizer = serde_json::from_str(text).unwrap();
            // The decay of some and the rate of others differ: three groups with buckets of their own.
            config.groups = serde_json::from_str(r#"[{"parameters": "fc2.*", "lr": 0.01}]"#).unwrap();
            config
        };
        let whole = data();
        let losses = run(&mut trainer(1, &set(whole.path()), 0.1, false).unwrap()).losses;
        assert!(losses.iter().all(|l| l.is_finite()), "{text}: {losses:?}");

        let dir = data();
        let stop = AtomicBool::new(false);
        let mut at_five = |e: &Event| {
            if matches!(e, Event::Step(s) if s.step == 5) {
                stop.store(true, Ordering::Relaxed);
            }
            Ok(())
        };
        let summary =
            trainer(1, &set(dir.path()), 0.1, false).unwrap().run(&mut [&mut at_five], &stop).unwrap();
        assert_eq!(summary.step, 5);
        let mut second = trainer(2, &set(dir.path()), 0.1, true).unwrap();
        assert_eq!(run(&mut second).losses, losses[5..], "{text}");
        for file in ["model", "state"] {
            let bytes = |dir: &Path| {
                std::fs::read(dir.join(format!("checkpoints/step-00000008/{file}.safetensors"))).unwrap()
            };
            assert_eq!(bytes(dir.path()), bytes(whole.path()), "{file} of {text}");
        }
    }
}

/// Writes the samples `range` of the file `from` to `to`.
fn write_part(from: &Path, to: &Path, range: std::ops::Range<usize>) {
    let bytes = std::fs::read(from).unwrap();
    let whole = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let parts = whole.tensors().into_iter().map(|(name, t)| {
        let width = t.data().len() / t.shape()[0];
        let mut shape = t.shape().to_vec();
        shape[0] = range.len();
        let data = t.data()[range.start * width..range.end * width].to_vec();
        (name, t.dtype(), shape, data)
    });
    let parts: Vec<_> = parts.collect();
    let views = parts.iter().map(|(name, dtype, shape, data)| {
        (name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    safetensors::serialize_to_file(views, None, to).unwrap();
}

#[test]
fn a_run_over_shards_resumes_with_the_bits_of_one_file() {
    let shards = |dir: &Path| {
        // The second has one sample, and batches reach over all three.
        for (name, range) in [("part-1", 0..9), ("part-2", 9..10), ("part-3", 10..crate::common::SAMPLES)] {
            write_part(&dir.join("data.safetensors"), &dir.join(format!("{name}.safetensors")), range);
        }
        let mut config = config(dir);
        // Twice the data and more.
        config.steps = Some(12);
        config.data.train = dir.join("part-*.safetensors");
        config
    };
    let whole = data();
    let one = TrainConfig { steps: Some(12), ..config(whole.path()) };
    let losses = run(&mut trainer(1, &one, 0.1, false).unwrap()).losses;
    let end = |dir: &Path, file: &str| {
        std::fs::read(dir.join(format!("checkpoints/step-00000012/{file}.safetensors"))).unwrap()
    };
    // In the first epoch, and in the second.
    for interrupt in [2, 8] {
        let dir = data();
        let config = shards(dir.path());
        let stop = AtomicBool::new(false);
        let mut watch = |e: &Event| {
            stop.fetch_or(matches!(e, Event::Step(s) if s.step == interrupt), Ordering::Relaxed);
            Ok(())
        };
        let first = trainer(1, &config, 0.1, false).unwrap().run(&mut [&mut watch], &stop).unwrap();
        assert_eq!((first.step, first.complete), (interrupt, false));
        assert_eq!(first.losses, losses[..interrupt as usize]);
        let second = run(&mut trainer(2, &config, 0.1, true).unwrap());
        assert_eq!(second.losses, losses[interrupt as usize..]);
        for file in ["model", "state"] {
            assert!(end(dir.path(), file) == end(whole.path(), file), "{file}, resumed at {interrupt}");
        }
    }
}

/// Losses of the run's evaluations, and what else it told.
fn told(trainer: &mut Trainer, stop_after: Option<u64>) -> (Vec<Event>, Summary) {
    let (stop, mut events) = (AtomicBool::new(false), Vec::new());
    let mut hear = |e: &Event| {
        if matches!(e, Event::Step(s) if Some(s.step) == stop_after) {
            stop.store(true, Ordering::Relaxed);
        }
        events.push(e.clone());
        Ok(())
    };
    let summary = trainer.run(&mut [&mut hear], &stop).unwrap();
    (events, summary)
}

#[test]
fn a_run_ends_early_and_keeps_its_best_evaluation_also_when_interrupted() {
    // At this rate the loss soon gets worse.
    let settings = |dir: &Path| {
        let mut config = config(dir);
        config.steps = Some(200);
        config.schedule =
            serde_json::from_str(r#"{"name": "plateau", "factor": 0.5, "patience": 0}"#).unwrap();
        config.optimizer = serde_json::from_str(r#"{"name": "sgd", "lr": 1.5, "momentum": 0.9}"#).unwrap();
        (config.eval.every, config.eval.patience, config.eval.keep_best) = (Some(2), Some(4), true);
        config
    };
    let whole = data();
    let (events, summary) = told(&mut trainer(1, &settings(whole.path()), 0.3, false).unwrap(), None);
    let evaluations: Vec<_> = events
        .iter()
        .filter_map(|e| match e {
            Event::Evaluation(e) => Some((e.step, e.scores.loss)),
            _ => None,
        })
        .collect();
    let best = *evaluations.iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    assert!(summary.complete && summary.step < 200, "{}", summary.step);
    assert_eq!(summary.best.map(|b| (b.step, b.value)), Some(best));
    assert_eq!(evaluations[evaluations.len() - 5], best, "four evaluations follow the best");
    assert!(events.iter().any(|e| matches!(e, Event::EarlyStop { since: 4, .. })));
    let kept = |dir: &Path| -> Vec<String> {
        let names = std::fs::read_dir(dir.join("checkpoints")).unwrap();
        names
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .filter(|n| n.starts_with("best-"))
            .collect()
    };
    assert_eq!(kept(whole.path()), [format!("best-step-{:08}", best.0)]);
    // The rate fell by half after each evaluation that was not better.
    let rates: Vec<f64> =
        events.iter().filter_map(|e| if let Event::Step(s) = e { Some(s.lr) } else { None }).collect();
    let falls = evaluations[..evaluations.len() - 1]
        .iter()
        .scan(f64::INFINITY, |level, e| {
            let better = e.1 < *level * (1.0 - 1e-4);
            *level = if better { e.1 } else { *level };
            Some(!better as i32)
        })
        .sum::<i32>();
    assert_eq!(rates.last(), Some(&(1.5 * 0.5f64.powi(falls))));

    // Interrupted in the middle and at an evaluation that is then owed: the same end.
    for at in [best.0, best.0 + 3] {
        let dir = data();
        let (_, first) = told(&mut trainer(1, &settings(dir.path()), 0.3, false).unwrap(), Some(at));
        assert_eq!((first.step, first.complete), (at, false));
        let (_, second) = told(&mut trainer(1, &settings(dir.path()), 0.3, true).unwrap(), None);
        assert_eq!((second.step, second.best), (summary.step, summary.best));
        assert_eq!(model(dir.path(), second.step), model(whole.path(), summary.step));
        assert_eq!(kept(dir.path()), kept(whole.path()));
        // Resumed once more, the run is over and says so.
        let (_, third) = told(&mut trainer(1, &settings(dir.path()), 0.3, true).unwrap(), None);
        assert!(third.complete && third.losses.is_empty() && third.evaluation.is_some());
    }
}

#[test]
fn every_metric_of_evaluations_can_choose_the_best() {
    let dir = data();
    let mut config = config(dir.path());
    (config.eval.every, config.eval.keep_best) = (Some(2), true);
    config.optimizer = serde_json::from_str(r#"{"name": "AdamW", "lr": 0.02}"#).unwrap();
    (config.log.json, config.log.tensorboard) = (None, None);
    for metric in [Metric::Accuracy, Metric::F1, Metric::Iou] {
        config.eval.metric = metric;
        config.checkpoint.dir = Some(dir.path().join(metric.name()).join("checkpoints"));
        let log = dir.path().join(metric.name()).join("log.jsonl");
        let mut trainer = trainer(1, &config, 0.0, false).unwrap();
        let mut json = JsonLines::create(&log).unwrap();
        let mut evaluations = Vec::new();
        let mut hear = |e: &Event| {
            if let Event::Evaluation(e) = e {
                evaluations.push(e.clone());
            }
            Ok(())
        };
        let summary = trainer.run(&mut [&mut json, &mut hear], &AtomicBool::new(false)).unwrap();
        // The first of several that are equally good.
        let best = evaluations
            .iter()
            .rev()
            .max_by(|a, b| metric.of(&a.scores).unwrap().total_cmp(&metric.of(&b.scores).unwrap()));
        let best = best.map(|e| (e.step, metric.of(&e.scores).unwrap()));
        assert_eq!(summary.best.map(|b| (b.step, b.value)), best, "{metric:?}");
        let kept =
            dir.path().join(metric.name()).join(format!("checkpoints/best-step-{:08}", best.unwrap().0));
        assert!(kept.is_dir(), "{metric:?}");
        // The log has the metrics, and not the counts by class.
        let text = std::fs::read_to_string(&log).unwrap();
        let line = text.lines().rfind(|l| l.contains("\"evaluation\"")).unwrap();
        let logged: headwater_runtime::trainer::Evaluation = serde_json::from_str(line).unwrap();
        assert_eq!(&logged, &evaluations.last().unwrap().brief());
        assert!(!evaluations.last().unwrap().scores.by_class.as_ref().unwrap().confusion.is_empty());
    }
    // A best value by another metric says nothing when a run goes on.
    (config.eval.metric, config.steps) = (Metric::Loss, Some(24));
    let (events, summary) = told(&mut trainer(1, &config, 0.0, true).unwrap(), None);
    let losses = events.iter().filter_map(|e| match e {
        Event::Evaluation(e) => Some(e.scores.loss),
        _ => None,
    });
    assert_eq!(summary.best.map(|b| b.value), losses.min_by(f64::total_cmp));
}

#[test]
fn averaged_weights_are_those_of_the_formula_and_resume() {
    let settings = |dir: &Path| {
        let mut config = config(dir);
        config.ema = Some(0.75);
        (config.checkpoint.every, config.checkpoint.keep) = (Some(1), 100);
        config
    };
    let whole = data();
    let summary = run(&mut trainer(1, &settings(whole.path()), 0.0, false).unwrap());
    let file = |dir: &Path, step: u64, name: &str| {
        Dataset::open(&dir.join(format!("checkpoints/step-{step:08}/{name}.safetensors"))).unwrap()
    };
    let floats = |d: &Dataset, name: &str| {
        let c = d.column(name).unwrap();
        Tensor::from_bytes(&c.ty, c.bytes()).floats().to_vec()
    };
    for name in ["fc1.weight", "fc2.weight", "head.tied"] {
        let mut want = floats(&file(whole.path(), 1, "model"), name);
        for step in 2..=20 {
            let p = floats(&file(whole.path(), step, "model"), name);
            want.iter_mut().zip(p).for_each(|(e, p)| *e += 0.25 * (p - *e));
        }
        let got = floats(&file(whole.path(), 20, "ema"), name);
        // Three roundings a step to f32, of values below 1, each damped by 0.75 in every later step.
        let bound = 3.0 * f32::EPSILON as f64 / 2.0 / (1.0 - 0.75);
        assert!(want.iter().zip(&got).all(|(a, b)| (a - b).abs() <= bound), "{name}");
        assert!(
            want.iter()
                .zip(floats(&file(whole.path(), 20, "model"), name))
                .any(|(a, b)| (a - b).abs() > bound)
        );
    }
    // A frozen parameter and buffers are as they are; evaluation is of the average, and changes nothing.
    for name in ["frozen", "bn.running_mean"] {
        let (a, b) = (file(whole.path(), 20, "ema"), file(whole.path(), 20, "model"));
        assert_eq!(a.column(name).unwrap().bytes(), b.column(name).unwrap().bytes());
    }
    let plain = data();
    let without = run(&mut trainer(1, &config(plain.path()), 0.0, false).unwrap());
    assert_eq!(model(plain.path(), 20), model(whole.path(), 20));
    assert_ne!(without.evaluation.unwrap().scores.loss, summary.evaluation.unwrap().scores.loss);

    let dir = data();
    told(&mut trainer(1, &settings(dir.path()), 0.0, false).unwrap(), Some(7));
    told(&mut trainer(1, &settings(dir.path()), 0.0, true).unwrap(), None);
    let bytes = |dir: &Path| std::fs::read(dir.join("checkpoints/step-00000020/ema.safetensors")).unwrap();
    assert_eq!(bytes(dir.path()), bytes(whole.path()));
    let mut wrong = config(dir.path());
    wrong.ema = Some(1.0);
    assert_eq!(trainer(1, &wrong, 0.0, false).err().unwrap().code(), "HW-R004");
}

#[test]
fn settings_that_differ_on_resuming_are_named_one_by_one() {
    let dir = data();
    let mut config = TrainConfig { steps: Some(4), ..config(dir.path()) };
    run(&mut trainer(1, &config, 0.0, false).unwrap());
    config.steps = Some(6);
    config.optimizer = serde_json::from_str(r#"{"name": "AdamW", "lr": 0.002}"#).unwrap();
    let (events, _) = told(&mut trainer(1, &config, 0.0, true).unwrap(), None);
    let mut changed = events.iter().find_map(|e| match e {
        Event::Resume { changed, .. } => Some(changed.clone()),
        _ => None,
    });
    changed.as_mut().unwrap().sort();
    assert_eq!(changed.unwrap(), ["optimizer.lr: 0.001 then, 0.002 now", "steps: 4 then, 6 now"]);
}
