//! Interruptions, logs that fail, bad samples and settings that do nothing: what a run does when the world
//! around it fails.

use crate::common::{config, graph, weights, write_data};
use headwater_core::graph::NodeId;
use headwater_core::pass::instrument::Fault;
use headwater_cpu::Cpu;
use headwater_runtime::config::{FaultConfig, Metric};
use headwater_runtime::data::{Dataset, Shapes};
use headwater_runtime::log::{JsonLines, TensorBoard};
use headwater_runtime::{Error, Event, Observer, Result, SessionModel, Summary, TrainConfig, Trainer};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn data() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_data(&dir.path().join("data.safetensors"));
    dir
}

fn trainer(config: &TrainConfig, resume: bool) -> Result<Trainer<'static>> {
    let (graph, weights) = (graph(4, 0.2), weights());
    let rebind = move |shapes: &Shapes| Ok(crate::common::graph(shapes.batch, 0.2));
    let model = SessionModel { graph: &graph, weights: &weights };
    Trainer::new(Arc::new(Cpu::new(1)), model, Some(Box::new(rebind)), config.clone(), resume)
}

fn run(trainer: &mut Trainer) -> Summary {
    trainer.run(&mut [], &AtomicBool::new(false)).unwrap()
}

/// Every tensor of the model, buffers included.
fn tensors(trainer: &Trainer) -> Vec<Vec<u8>> {
    let session = trainer.session();
    session.tensors().iter().map(|t| session.read(t).unwrap()).collect()
}

fn saved(dir: &Path, step: u64) -> [Vec<u8>; 2] {
    let dir = dir.join(format!("checkpoints/step-{step:08}"));
    ["model.safetensors", "state.safetensors"].map(|f| std::fs::read(dir.join(f)).unwrap())
}

#[test]
fn a_step_that_is_interrupted_between_its_batches_never_happened() {
    let whole = data();
    let mut config_whole = config(whole.path());
    (config_whole.accumulate, config_whole.steps) = (500, Some(3));
    config_whole.data.eval = None;
    let all = run(&mut trainer(&config_whole, false).unwrap());

    let dir = data();
    let mut config = config(dir.path());
    (config.accumulate, config.steps, config.data.eval) = (500, Some(3), None);
    let mut first = trainer(&config, false).unwrap();
    let before = tensors(&first);
    let stop = AtomicBool::new(false);
    let summary = std::thread::scope(|threads| {
        // The flag is set once the first step runs; 500 batches take far longer than this thread needs.
        let mut at_start = |e: &Event| {
            if matches!(e, Event::Start(_)) {
                threads.spawn(|| {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                    stop.store(true, Ordering::SeqCst);
                });
            }
            Ok(())
        };
        first.run(&mut [&mut at_start], &stop).unwrap()
    });
    assert!(!summary.complete && summary.step < 3, "{summary:?}");
    if summary.step == 0 {
        // Running statistics too, which every batch changes.
        assert_eq!(tensors(&first), before);
    }
    drop(first);
    let rest = run(&mut trainer(&config, true).unwrap());
    assert_eq!(rest.losses, all.losses[summary.step as usize..]);
    assert_eq!(saved(dir.path(), 3), saved(whole.path(), 3));
}

#[test]
fn an_evaluation_that_was_interrupted_is_made_up_for_on_resuming() {
    let dir = data();
    let config = config(dir.path());
    let stop = AtomicBool::new(false);
    let mut at_last = |e: &Event| {
        stop.store(matches!(e, Event::Step(s) if s.step == 20), Ordering::SeqCst);
        Ok(())
    };
    let summary = trainer(&config, false).unwrap().run(&mut [&mut at_last], &stop).unwrap();
    assert_eq!((summary.step, summary.complete, summary.evaluation), (20, false, None));
    let again = run(&mut trainer(&config, true).unwrap());
    assert!(again.complete && again.losses.is_empty());
    assert_eq!(again.evaluation.unwrap().scores.samples, crate::common::SAMPLES);
}

#[test]
fn a_run_with_fewer_steps_than_its_checkpoint_is_refused() {
    let dir = data();
    let mut config = config(dir.path());
    run(&mut trainer(&config, false).unwrap());
    config.steps = Some(19);
    let e = trainer(&config, true).err().unwrap().to_string();
    assert!(e.contains("has done 20 steps, but the run has only 19"), "{e}");
}

#[test]
fn resuming_from_nothing_is_refused() {
    let dir = data();
    let e = trainer(&config(dir.path()), true).err().unwrap();
    assert!(e.code() == "HW-R005" && e.to_string().contains("no checkpoint to resume"), "{e}");
    assert!(!dir.path().join("checkpoints").exists());
}

#[test]
fn too_many_batches_are_refused_and_not_wrapped() {
    let dir = data();
    let mut config = config(dir.path());
    (config.steps, config.accumulate) = (Some(u64::MAX / 2), 3);
    assert_eq!(trainer(&config, false).err().unwrap().code(), "HW-R004");
}

#[test]
fn groups_that_match_nothing_are_refused() {
    let dir = data();
    let mut config = config(dir.path());
    config.groups = serde_json::from_str(r#"[{"parameters": "fc9.*", "lr": 0.0}]"#).unwrap();
    let e = trainer(&config, false).err().unwrap().to_string();
    assert!(e.contains("`fc9.*` matches no parameter") && e.contains("fc1.weight"), "{e}");
    // A parameter that is frozen, and the other name of one that is tied, are matches.
    for pattern in ["frozen", "head.tied"] {
        config.groups[0].parameters = pattern.into();
        trainer(&config, false).unwrap();
    }
}

/// A log on a disk that is full from some event on.
struct Full<'a>(usize, &'a mut usize);

impl Observer for Full<'_> {
    fn event(&mut self, _: &Event) -> Result<()> {
        *self.1 += 1;
        match *self.1 > self.0 {
            true => Err(Error::Feed("no room for a line".into())),
            false => Ok(()),
        }
    }

    fn essential(&self) -> bool {
        false
    }
}

#[test]
fn a_log_that_cannot_be_written_does_not_end_the_run() {
    let dir = data();
    let (mut told, mut warnings) = (0, Vec::new());
    let mut see = |e: &Event| {
        if let Event::Warning { message } = e {
            warnings.push(message.clone());
        }
        Ok(())
    };
    let mut trainer = trainer(&config(dir.path()), false).unwrap();
    let mut full = Full(5, &mut told);
    let summary = trainer.run(&mut [&mut full, &mut see], &AtomicBool::new(false)).unwrap();
    assert!(summary.complete);
    assert_eq!(told, 6, "it is asked once after it has failed, and never again");
    assert_eq!(warnings, ["HW-R003: no room for a line; the run goes on without this log"]);
    assert!(!JsonLines::create(&dir.path().join("a.jsonl")).unwrap().essential());
    assert!(!TensorBoard::create(&dir.path().join("board"), 0).unwrap().essential());
}

#[test]
fn a_run_saves_after_some_time_without_being_asked() {
    let dir = data();
    let mut config = config(dir.path());
    assert_eq!(config.checkpoint.minutes, 30.0);
    let saves = |config: &TrainConfig| {
        let mut saved = Vec::new();
        let mut see = |e: &Event| {
            if let Event::Checkpoint { step, .. } = e {
                saved.push(*step);
            }
            Ok(())
        };
        trainer(config, false).unwrap().run(&mut [&mut see], &AtomicBool::new(false)).unwrap();
        saved
    };
    for (minutes, want) in [(1e-9, (1..=20).collect()), (0.0, vec![20]), (1e300, vec![20])] {
        config.checkpoint.dir = Some(dir.path().join(format!("{minutes:e}")));
        config.checkpoint.minutes = minutes;
        assert_eq!(saves(&config), want, "{minutes}");
    }
    config.checkpoint.minutes = f64::NAN;
    assert_eq!(trainer(&config, false).err().unwrap().code(), "HW-R004");
}

#[test]
fn parameters_that_diverged_are_no_checkpoint() {
    let dir = data();
    let mut config = config(dir.path());
    // Finite data, no loss scale, and a NaN in the middle: as parameters make it that a learning rate blew
    // up.
    config.fault = Some(FaultConfig { step: 6, node: NodeId(3), fault: Fault::Nan });
    let e = trainer(&config, false).unwrap().run(&mut [], &AtomicBool::new(false)).unwrap_err();
    assert!(matches!(e, Error::NotFinite { diverged: true, .. }), "{e}");
    assert!(e.to_string().contains("from which no run resumes"), "{e}");
    let checkpoints = dir.path().join("checkpoints");
    let names: Vec<_> = std::fs::read_dir(&checkpoints)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n != ".lock")
        .collect();
    assert!(names == ["diverged-step-00000006"], "{names:?}");
    assert_eq!(trainer(&config, true).err().unwrap().code(), "HW-R005");
}

#[test]
fn a_class_out_of_range_is_named_by_file_column_and_sample() {
    use headwater_core::graph::{InputRole, OutputRole};
    use headwater_core::{Attrs, Builder, DType, TensorType, ops};
    let dir = data();
    let mut b = Builder::new();
    let table = b.parameter("table", DType::F32, &[2, 3]);
    let label = b.input("label", TensorType::new(DType::I64, [4]), InputRole::User);
    let attrs =
        Attrs::new().with("padding_idx", -1i64).with("scale_grad_by_freq", false).with("sparse", false);
    let rows = b.one(&ops::index::embedding::EMBEDDING, &[table, label], attrs).unwrap();
    let loss = b.sum(rows, &[0, 1], false).unwrap();
    b.output("loss", loss, OutputRole::User);
    let graph = b.finish();
    let weights = std::collections::HashMap::from([("table".to_string(), vec![0; 24])]);
    let mut config = config(dir.path());
    (config.data.sequential, config.data.eval) = (true, None);
    let file = Dataset::open(&config.data.train).unwrap();
    let label = file.column("label").unwrap().bytes();
    let first = label.chunks(8).position(|l| l[0] == 2).unwrap();
    let refused = |config: &TrainConfig| {
        let model = SessionModel { graph: &graph, weights: &weights };
        let mut trainer = Trainer::new(Arc::new(Cpu::new(1)), model, None, config.clone(), false).unwrap();
        trainer.run(&mut [], &AtomicBool::new(false)).unwrap_err().to_string()
    };
    let e = refused(&config);
    assert!(e.contains(&format!("2 in sample {first} of `label` in ")), "{e}");
    // After a step on batches of other classes the run so far is kept.
    let good: Vec<u32> =
        (0..).zip(label.chunks(8)).filter(|(_, l)| l[0] < 2).map(|(i, _)| i).take(4).collect();
    let order: Vec<u8> =
        good.iter().chain(&[first as u32; 4]).flat_map(|i| (*i as i64).to_le_bytes()).collect();
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::I64, vec![2, 4], &order).unwrap();
    let path = dir.path().join("order.safetensors");
    safetensors::serialize_to_file([("order", view)], None, &path).unwrap();
    config.data.order = Some(format!("{}:order", path.display()));
    (config.steps, config.checkpoint.dir) = (Some(2), Some(dir.path().join("second/checkpoints")));
    assert!(refused(&config).contains(&format!("2 in sample {first} of `label` in ")));
    assert!(!saved(&dir.path().join("second"), 1)[0].is_empty());
}

#[test]
fn a_metric_that_the_model_does_not_have_is_refused_before_the_run() {
    let dir = data();
    let mut config = config(dir.path());
    for (metric, why) in
        [(Metric::Perplexity, "no tokens"), (Metric::R2, "classes"), (Metric::TopK, "3 classes")]
    {
        config.eval.metric = metric;
        let e = trainer(&config, false).err().unwrap();
        let said = e.to_string();
        assert!(e.code() == "HW-R004" && said.contains("`eval.metric`") && said.contains(why), "{said}");
    }
    config.eval.labels = Some("x".into());
    let said = trainer(&config, false).err().unwrap().to_string();
    assert!(said.contains("`eval.labels`") && said.contains("for x"), "{said}");
}

#[test]
fn data_that_cannot_be_read_end_the_run_with_a_checkpoint() {
    use headwater_core::graph::{InputRole, OutputRole};
    use headwater_core::{Builder, DType, TensorType};
    let dir = tempfile::tempdir().unwrap();
    let images = |name: &str, damaged: Option<u8>| {
        let folder = dir.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("images.toml"), "channels = 1\nheight = 1\nwidth = 2").unwrap();
        for i in 0..8u8 {
            let mut bytes = Vec::new();
            let mut encoder = png::Encoder::new(&mut bytes, 2, 1);
            encoder.set_color(png::ColorType::Grayscale);
            encoder.write_header().unwrap().write_image_data(&[i, 255]).unwrap();
            let bytes = if damaged == Some(i) { b"no image".to_vec() } else { bytes };
            std::fs::write(folder.join(format!("{i}.png")), bytes).unwrap();
        }
        folder
    };
    // In batches of two the third one fails.
    let (whole, broken) = (images("whole", None), images("broken", Some(5)));
    let mut b = Builder::new();
    let w = b.parameter("w", DType::F32, &[2]);
    let x = b.input("images", TensorType::new(DType::F32, [2, 1, 1, 2]), InputRole::User);
    let y = b.mul(x, w).unwrap();
    let loss = b.sum(y, &[0, 1, 2, 3], false).unwrap();
    b.output("loss", loss, OutputRole::User);
    let graph = b.finish();
    let weights = std::collections::HashMap::from([("w".to_string(), vec![0; 8])]);
    let ends = |train: &Path, eval: Option<&Path>, place: &str| {
        let mut config = config(&dir.path().join(place));
        (config.data.train, config.data.eval) = (train.to_owned(), eval.map(Path::to_owned));
        (config.data.sequential, config.warmup) = (true, 0);
        config.eval.every = eval.map(|_| 3);
        let model = SessionModel { graph: &graph, weights: &weights };
        let mut trainer = Trainer::new(Arc::new(Cpu::new(1)), model, None, config, false).unwrap();
        let e = trainer.run(&mut [], &AtomicBool::new(false)).unwrap_err();
        assert!(e.code() == "HW-R002" && e.to_string().contains("broken/5.png"), "{e}");
    };
    ends(&broken, None, "training");
    assert!(!saved(&dir.path().join("training"), 2)[0].is_empty());
    ends(&whole, Some(&broken), "evaluation");
    assert!(!saved(&dir.path().join("evaluation"), 3)[0].is_empty());
}
