//! Running trained models forward, and taking their weights elsewhere: `eval`, `predict`, `export`,
//! `train --init`.

use headwater::core::Tensor;
use headwater::cpu::Cpu;
use headwater::export::{self, Predictions};
use headwater::import::Dims;
use headwater::infer::{self, Done, InferRequest, Raw};
use headwater::model::Model;
use headwater::runtime::config::InitConfig;
use headwater::runtime::score::{Measured, Scorer, Scores};
use headwater::runtime::{Dataset, TrainConfig};
use headwater::weights::{AverageUse, WeightFiles};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

fn digits(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits-vit").join(file)
}

fn config(steps: u64) -> TrainConfig {
    let mut c = TrainConfig { steps: Some(steps), batch: Some(64), ..TrainConfig::default() };
    (c.data.train, c.data.eval) = (digits("train.safetensors"), Some(digits("heldout.safetensors")));
    c
}

/// Runs the training and returns its losses and the scores on the held-out samples.
fn train(model: &Model, config: TrainConfig) -> (Vec<f64>, Scores) {
    let (device, stop) = (Arc::new(Cpu::new(2)), AtomicBool::new(false));
    let s = headwater::train::run(model, Dims::new(), config, device, false, &mut [], &stop)
        .unwrap_or_else(|e| panic!("{e:#}"));
    let e = s.evaluation.unwrap();
    (s.losses, e.scores)
}

fn weights(path: &Path) -> Option<InitConfig> {
    Some(InitConfig { weights: Some(path.to_owned()), ..InitConfig::default() })
}

/// Logits of all held-out samples.
fn logits(model: &Model, asked: InferRequest) -> Vec<f64> {
    let mut all = Vec::new();
    let asked = InferRequest { outputs: Some(vec![1]), whole: true, ..asked };
    let device = Arc::new(Cpu::new(2));
    infer::run(model, Dims::new(), &digits("heldout.safetensors"), &asked, device, &mut |ran| {
        all.extend(ran.outputs[0].tensor().to_f64());
        Ok(())
    })
    .unwrap_or_else(|e| panic!("{e:#}"));
    all
}

/// Metrics on all held-out samples.
fn scored(model: &Model, asked: &InferRequest) -> (Done, Scores) {
    let bound = model.bind(&Dims::new().or_exported()).unwrap();
    let inputs: Vec<_> = bound.user_inputs().map(|(n, t)| (n.to_string(), t.clone())).collect();
    let outputs: Vec<_> = bound.graph.outputs.iter().map(|o| bound.graph.ty(o.value).clone()).collect();
    let mut scorer = Scorer::new(&inputs, &outputs, None, 5).unwrap();
    let (device, heldout) = (Arc::new(Cpu::new(2)), digits("heldout.safetensors"));
    let done = infer::run(model, Dims::new(), &heldout, asked, device, &mut |ran| {
        let (loss, Raw { ty, bytes }) = (ran.outputs[0].tensor().to_f64()[0], &ran.outputs[1]);
        let measured = Measured { truth: &ran.inputs["labels"].tensor(), ty, bytes };
        scorer.add(ran.samples, loss, Some(measured));
        Ok(())
    })
    .unwrap_or_else(|e| panic!("{e:#}"));
    (done, scorer.finish())
}

#[test]
fn trained_weights_go_everywhere_with_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let (run, model) = (dir.path().join("run"), Model::open(&digits("digits_vit.pt2")).unwrap());
    let mut c = config(4);
    c.checkpoint.dir = Some(run.clone());
    let (losses, evaluated) = train(&model, c);

    // `eval` of the run's folder is the trainer's own evaluation, all metrics of it.
    let asked = InferRequest { batch: Some(64), weights: weights(&run), ..InferRequest::default() };
    let (done, scores) = scored(&model, &asked);
    assert_eq!((done.samples, done.left_out, scores.samples), (360, 0, 360));
    assert_eq!(scores, evaluated);
    assert!(scores.accuracy.is_some() && scores.by_class.is_some() && scores.top_k.is_some());
    assert_eq!(done.mapping.unwrap().missing, Vec::<String>::new());

    // An archive with these weights in it computes the same, and so do the weights in a file of their own.
    let trained = dir.path().join("trained.pt2");
    let files = WeightFiles::open(&run).unwrap();
    export::archive(&model, &files, &trained, false).unwrap();
    let want = logits(&model, asked.clone());
    let untrained = logits(&model, InferRequest { weights: None, ..asked.clone() });
    assert!(want.len() == 3600 && want != untrained, "training changes the logits");
    let opened = Model::open(&trained).unwrap();
    opened.program.verify_checksums().unwrap();
    assert_eq!(logits(&opened, InferRequest { weights: None, ..asked.clone() }), want);
    let refused = export::archive(&model, &files, &trained, false).unwrap_err().to_string();
    assert!(refused.contains("already exists"), "{refused}");
    let file = dir.path().join("w.safetensors");
    let names = export::safetensors(&files, "blocks.", None, &file, false).unwrap();
    assert!(names.contains(&"0.proj.weight".to_string()) && names.len() == files.tensors().count());

    // A pattern that matches none of the file's names would silently do nothing.
    let names = [("block.*".to_string(), "blocks.*".to_string())].into();
    let init = InitConfig { names, ..weights(&run).unwrap() };
    let (wrong, device) = (InferRequest { weights: Some(init), ..asked.clone() }, Arc::new(Cpu::new(1)));
    let heldout = digits("heldout.safetensors");
    let refused = infer::run(&model, Dims::new(), &heldout, &wrong, device, &mut |_| Ok(())).unwrap_err();
    let refused = refused.to_string();
    assert!(refused.contains("the pattern `block.*`") && refused.contains("blocks.0."), "{refused}");

    // A run that begins with them goes on from there: its first loss is not that of the archive's weights.
    let mut c = config(1);
    c.init.weights = Some(run);
    let (resumed, ..) = train(&model, c);
    let (fresh, ..) = train(&model, config(1));
    assert_eq!(fresh[0], losses[0]);
    assert!(resumed[0] < fresh[0], "{resumed:?} {fresh:?}");
}

#[test]
fn averaged_weights_are_those_that_the_run_was_evaluated_with() {
    let dir = tempfile::tempdir().unwrap();
    let (run, model) = (dir.path().join("run"), Model::open(&digits("digits_vit.pt2")).unwrap());
    let mut c = config(4);
    (c.ema, c.checkpoint.dir) = (Some(0.5), Some(run.clone()));
    let (_, evaluated) = train(&model, c);

    let plain = InferRequest { batch: Some(64), weights: weights(&run), ..InferRequest::default() };
    let asked = InferRequest { average: true, ..plain.clone() };
    let (done, scores) = scored(&model, &asked);
    assert_eq!(scores, evaluated);
    let mapping = done.mapping.unwrap();
    assert_eq!((mapping.average, mapping.missing), (AverageUse::Taken, Vec::<String>::new()));
    let (done, scores) = scored(&model, &plain);
    assert!(scores.loss != evaluated.loss && done.mapping.is_some_and(|m| m.average == AverageUse::Left));

    // An archive with the average in it computes the same.
    let averaged = dir.path().join("averaged.pt2");
    export::archive(&model, &WeightFiles::choose(&run, true).unwrap(), &averaged, false).unwrap();
    let want = logits(&model, asked.clone());
    assert_ne!(want, logits(&model, plain));
    assert_eq!(logits(&Model::open(&averaged).unwrap(), InferRequest { weights: None, ..asked }), want);

    // Each command says which weights it takes.
    let at = |path: &Path| path.to_str().unwrap().to_string();
    let (archive, heldout, run) = (at(&model.path), at(&digits("heldout.safetensors")), at(&run));
    let out = |name: &str| at(&dir.path().join(name));
    let commands: [Vec<String>; 3] = [
        ["eval", &archive, "--data", &heldout, "--weights", &run].map(str::to_string).to_vec(),
        ["predict", &archive, "--data", &heldout, "--weights", &run, "--out", &out("p.npz")]
            .map(str::to_string)
            .to_vec(),
        ["export", &run, "--out", &out("w.safetensors")].map(str::to_string).to_vec(),
    ];
    for args in commands {
        for (more, said) in
            [(None, "which --ema takes"), (Some("--ema"), "weights: the average over the run")]
        {
            let args = args.iter().map(String::as_str).chain(more);
            let output = Command::new(env!("CARGO_BIN_EXE_headwater"))
                .args(args.clone())
                .args(Some("--overwrite").filter(|_| args.clone().any(|a| a == "--out")))
                .output()
                .unwrap();
            let (stdout, stderr) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success() && stdout.contains(said), "{stdout}{stderr}");
        }
    }
    let exported = Dataset::open(&dir.path().join("w.safetensors")).unwrap();
    let average = WeightFiles::choose(Path::new(&run), true).unwrap();
    assert_eq!(exported.columns().len(), average.tensors().count());
    for (name, column) in average.tensors() {
        assert_eq!(exported.column(name).unwrap().bytes(), column.bytes(), "{name}");
    }
}

#[test]
fn predictions_are_written_batch_by_batch() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::open(&digits("digits_vit.pt2")).unwrap();
    // Logits do not depend on the labels: data without them will do.
    let all = Dataset::open(&digits("heldout.safetensors")).unwrap();
    let images = all.column("images").unwrap();
    let mut file = headwater::tensors::TensorFile::default();
    file.tensors.insert("images".into(), Tensor::from_bytes(&images.ty, images.bytes()));
    let data = dir.path().join("new.safetensors");
    file.write(&data).unwrap();
    let want = logits(&model, InferRequest { batch: Some(360), ..InferRequest::default() });
    for name in ["p.safetensors", "p.npz"] {
        let out = dir.path().join(name);
        let mut predictions = Predictions::new(&out, false, vec!["output.1".into()]).unwrap();
        let asked =
            InferRequest { batch: Some(100), outputs: Some(vec![1]), whole: true, ..InferRequest::default() };
        let device = Arc::new(Cpu::new(2));
        infer::run(&model, Dims::new(), &data, &asked, device, &mut |ran| {
            predictions.add(ran.samples, &ran.outputs)
        })
        .unwrap_or_else(|e| panic!("{e:#}"));
        predictions.finish().unwrap();
        let read = Dataset::open(&out).unwrap();
        let column = read.column("output.1").unwrap();
        assert_eq!(column.ty.shape[..], [360, 10]);
        let got = Tensor::from_bytes(&column.ty, column.bytes()).to_f64();
        // Products of another batch size may add in another order: f32's rounding over sums of 48.
        let near = |a: &f64, b: &f64| (a - b).abs() <= 1e-5 * b.abs().max(1.0);
        assert!(got.iter().zip(&want).all(|(a, b)| near(a, b)), "{name}");
        assert_eq!(
            std::fs::read_dir(dir.path())
                .unwrap()
                .filter(|e| { e.as_ref().unwrap().file_name().to_string_lossy().contains("part") })
                .count(),
            0,
            "no part is left behind"
        );
    }
    let wrong =
        infer::run(&model, Dims::new(), &data, &InferRequest::default(), Arc::new(Cpu::new(1)), &mut |_| {
            Ok(())
        });
    let message = format!("{:#}", wrong.unwrap_err());
    assert!(message.contains("labels"), "the loss needs them: {message}");
}
