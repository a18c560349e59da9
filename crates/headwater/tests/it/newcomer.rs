//! Files and wishes of somebody who begins: models exported the wrong way, weights that are none, masks
//! beside images, stochastic depth. `python -m headwater_tools.newcomer crates/headwater/tests/newcomer` made
//! the files.

use crate::common::command::{file, headwater, json};
use headwater::core::{DType, Tensor};
use headwater::tensors::TensorFile;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Writes tensors to a file of a folder.
fn write(dir: &Path, name: &str, tensors: &[(&str, Tensor)]) -> PathBuf {
    let tensors = tensors.iter().map(|(n, t)| (n.to_string(), t.clone())).collect();
    let path = dir.join(name);
    TensorFile { tensors, ..TensorFile::default() }.write(&path).unwrap();
    path
}

fn floats(shape: &[usize]) -> Tensor {
    let n = shape.iter().product::<usize>();
    Tensor::float(DType::F32, shape, (0..n).map(|i| (i * 37 % 101) as f64 / 64.0 - 0.75).collect())
}

fn classes(shape: &[usize], of: usize) -> Tensor {
    Tensor::int(
        DType::I64,
        shape,
        (0..shape.iter().product::<usize>()).map(|i| (i * 7 % of) as i64).collect(),
    )
}

#[test]
fn what_is_likely_not_meant_about_an_export_is_said() {
    let (_, shown, _) = headwater(&["inspect", &file("unread.pt2")]);
    assert!(shown.contains("note: input `weight` is read by nothing"), "{shown}");
    let (_, shown, _) = headwater(&["inspect", &file("evaluation_mode.pt2")]);
    let frozen = "batch norm runs on its stored statistics, in 1 places (exported in evaluation mode)";
    let dropped = "dropout is switched off (exported in evaluation mode)";
    assert!(shown.contains(frozen) && shown.contains(dropped), "{shown}");
    let (_, shown, _) = headwater(&["inspect", &file("table.pt2")]);
    assert!(!shown.contains("note:"), "{shown}");

    let dir = tempfile::tempdir().unwrap();
    let tensors = [("x", floats(&[8, 6])), ("weight", floats(&[8])), ("labels", classes(&[8], 2))];
    let data = write(dir.path(), "d.safetensors", &tensors);
    let (status, _, said) =
        headwater(&["train", &file("unread.pt2"), "--data", data.to_str().unwrap(), "--steps", "1"]);
    assert!(status == 0 && said.contains("input `weight` is read by nothing"), "{said}");

    // The second step of a migration is no longer a plain pass.
    let job = format!("[model]\nexport = {:?}\n", file("evaluation_mode.pt2"));
    std::fs::write(dir.path().join("migrate.toml"), job).unwrap();
    let out = dir.path().join("out");
    let (status, shown, said) =
        headwater(&["migrate", dir.path().to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert!(status == 0 && shown.contains(frozen), "{shown} {said}");
    assert!(
        shown.contains("1 passed; 3 proved nothing: forward, gradients, training; 1 with a note: analysis;"),
        "{shown}"
    );
}

#[test]
fn a_model_without_a_loss_is_predicted_and_not_evaluated() {
    let dir = tempfile::tempdir().unwrap();
    let data = write(dir.path(), "d.safetensors", &[("x", floats(&[8, 6])), ("labels", classes(&[8], 2))]);
    let (model, data) = (file("no_loss.pt2"), data.to_str().unwrap().to_string());
    let (status, shown, said) = headwater(&["eval", &model, "--data", &data]);
    assert!(status == 1 && shown.is_empty() && said.contains("is f32[4, 2] and no loss"), "{shown} {said}");
    let out = dir.path().join("p.safetensors");
    json(&["predict", &model, "--data", &data, "--out", out.to_str().unwrap()]);
    assert_eq!(TensorFile::read(&out).unwrap().get("output.0").unwrap().shape()[..], [8, 2]);
}

#[test]
fn what_is_no_weight_is_refused_and_what_is_missing_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let (model, data) = (file("digits_vit.pt2"), file("heldout.safetensors"));
    let eval = |weights: &str, more: &[&str]| {
        headwater(&[&["eval", &model, "--data", &data, "--weights", weights], more].concat())
    };
    let golden = file("digits_vit.golden.safetensors");
    // By its content, whatever its name is.
    let renamed = dir.path().join("renamed.safetensors");
    std::fs::copy(&golden, &renamed).unwrap();
    for weights in [golden.as_str(), renamed.to_str().unwrap()] {
        let (status, shown, said) = eval(weights, &[]);
        assert!(status == 1 && shown.is_empty() && said.contains("is a golden"), "{said}");
        let out = dir.path().join("x.safetensors");
        let (status, _, said) = headwater(&["export", weights, "--out", out.to_str().unwrap()]);
        assert!(status == 1 && said.contains("is a golden") && !out.exists(), "{said}");
    }
    // Gradients alone, without the golden's header.
    let all = TensorFile::read(Path::new(&golden)).unwrap();
    let grads: Vec<(&str, Tensor)> = all
        .tensors
        .iter()
        .filter(|(n, _)| n.starts_with("grad."))
        .map(|(n, t)| (n.as_str(), t.clone()))
        .collect();
    let grads = write(dir.path(), "grads.safetensors", &grads);
    let (status, _, said) = eval(grads.to_str().unwrap(), &[]);
    assert!(status == 1 && said.contains("holds gradients or moments, as the prefix `grad.` says"), "{said}");

    // A file of some weights: of the names that gradients have, one.
    let (name, tensor) = all.tensors.iter().find(|(n, _)| n.starts_with("grad.")).unwrap();
    let some =
        write(dir.path(), "some.safetensors", &[(name.strip_prefix("grad.").unwrap(), tensor.clone())]);
    for command in ["eval", "predict"] {
        let out = dir.path().join("p.npz");
        let mut args = vec![command, &model, "--data", &data, "--weights", some.to_str().unwrap()];
        if command == "predict" {
            args.extend(["--out", out.to_str().unwrap()]);
        }
        let (status, _, said) = headwater(&args);
        assert!(
            status == 1
                && said.contains("39 of the model's 40 tensors are not in")
                && said.contains("--partial"),
            "{said}"
        );
        assert!(!out.exists());
        args.push("--partial");
        let (status, shown, said) = headwater(&args);
        assert!(status == 0 && shown.contains("1 tensors taken from"), "{shown} {said}");
    }
}

#[test]
fn a_run_that_diverges_names_the_learning_rate() {
    let (model, data) = (file("digits_vit.pt2"), file("train.safetensors"));
    let train =
        |more: &[&str]| headwater(&[&["train", &model, "--data", &data, "--steps", "40"], more].concat());
    let (status, _, said) = train(&["--optimizer", "sgd", "--lr", "1e6"]);
    assert!(status == 1 && said.contains("error: the run diverged after a step from a loss of 2."), "{said}");
    assert!(
        said.contains("lower the learning rate, which is 1000000 (--lr)") && said.contains("HW-R006"),
        "{said}"
    );
    let (_, shown, _) = train(&["--optimizer", "sgd", "--lr", "1e6", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&shown).unwrap()["code"], "HW-R006");
}

#[cfg(unix)]
#[test]
fn exported_weights_are_as_readable_as_other_files() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("x.safetensors");
    let weights = write(dir.path(), "w.safetensors", &[("w", floats(&[2]))]);
    json(&["export", weights.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    std::fs::write(dir.path().join("plain"), "").unwrap();
    let mode = |name: &str| dir.path().join(name).metadata().unwrap().permissions().mode();
    assert_eq!(mode("x.safetensors"), mode("plain"));
}

#[test]
fn lines_are_as_wide_as_the_terminal() {
    let model = file("digits_vit.pt2");
    for columns in [80, 120, 200] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
        let output = command
            .args(["inspect", &model, "--device", "ascend-sim:910b3"])
            .env("COLUMNS", columns.to_string());
        let text = String::from_utf8(output.output().unwrap().stdout).unwrap();
        let widest = text.lines().map(|l| l.chars().count()).max().unwrap();
        assert!(widest <= columns && widest > columns - 30, "{columns}: {widest}");
    }
}

#[test]
fn a_mask_is_changed_with_its_image_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let tensors = [("image", floats(&[8, 3, 8, 8])), ("mask", classes(&[8, 8, 8], 4))];
    let data = write(dir.path(), "d.safetensors", &tensors);
    let run = |augment: &str| {
        let settings = dir.path().join("t.toml");
        std::fs::write(&settings, format!("steps = 3\n[data.augment]\n{augment}\n")).unwrap();
        let args = ["train", &file("segment.pt2"), "--data", data.to_str().unwrap(), "--config"];
        headwater(&[&args[..], &[settings.to_str().unwrap(), "--json"]].concat())
    };
    let refused = |augment: &str, why: &str| {
        let (status, _, said) = run(augment);
        assert!(status == 1 && said.contains("HW-R004") && said.contains(why), "{augment}: {said}");
    };
    refused("flip = 0.5", "mask has the height and width of image: name both, [\"image\", \"mask\"]");
    refused(
        "crop = 2\ninputs = ['image', 'mask']",
        "`data.augment.fill`: mask holds i64: say what a crop fills",
    );
    refused("crop = 2\ninputs = ['image', 'mask']\nfill = { mask = 0.5 }", "0.5 is no value of mask");
    refused("flip = 0.5\ninputs = ['image']\nfill = { mask = 255 }", "mask is not changed");
    let loss = |augment: &str| {
        let (status, shown, said) = run(augment);
        assert_eq!(status, 0, "{augment}: {said}");
        serde_json::from_str::<Value>(&shown).unwrap()["last_loss"].as_f64().unwrap()
    };
    loss("flip = 0.5\ninputs = ['image']");
    // The border is a class, or is ignored: other losses.
    let of = |fill: u8| loss(&format!("crop = 4\ninputs = ['image', 'mask']\nfill = {{ mask = {fill} }}"));
    assert_ne!(of(0), of(255));
}

#[test]
fn a_migration_takes_as_few_steps_as_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let tensors = [("image", floats(&[32, 3, 8, 8])), ("mask", classes(&[32, 8, 8], 4))];
    let data = write(dir.path(), "d.safetensors", &tensors);
    let (job, out) = (dir.path().join("job"), dir.path().join("out"));
    let (job, out) = (job.to_str().unwrap(), out.to_str().unwrap());
    let new = ["migrate", "--new", &file("segment.pt2"), "--data", data.to_str().unwrap(), job];
    let (status, _, said) = headwater(&new);
    assert_eq!(status, 0, "{said}");
    let (_, shown, said) = headwater(&["migrate", job, "--out", out, "--steps", "2"]);
    assert!(said.contains(", 2 steps;") && said.contains("2 steps in "), "{shown} {said}");
    let (status, _, said) = headwater(&["migrate", job, "--out", out, "--steps", "0", "--overwrite"]);
    assert!(status == 2 && said.contains("--steps"), "{said}");
}

#[test]
fn shells_and_manuals_know_the_commands() {
    for (shell, part) in
        [("bash", "complete -F _headwater"), ("zsh", "#compdef headwater"), ("fish", "complete -c headwater")]
    {
        let (status, shown, _) = headwater(&["completions", shell]);
        assert!(status == 0 && shown.contains(part) && shown.contains("memory-budget"), "{shell}");
    }
    let (status, _, said) = headwater(&["completions", "csh"]);
    assert!(status == 2 && said.contains("bash") && said.contains("fish"), "{said}");
    let (_, shown, _) = headwater(&["man"]);
    assert!(shown.starts_with(".ie") || shown.starts_with(".TH"), "{}", &shown[..40]);
    assert!(shown.contains("headwater\\-migrate(1)"), "{shown}");
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("man1");
    let pages = json(&["man", "--out", out.to_str().unwrap()]);
    let page = std::fs::read_to_string(out.join("headwater-train.1")).unwrap();
    assert!(page.contains("clip\\-norm") && pages["files"].as_array().unwrap().len() > 15, "{pages}");
    // A build of a release adds its revision.
    let (_, shown, _) = headwater(&["--version"]);
    assert!(shown.starts_with(&format!("headwater {}", env!("CARGO_PKG_VERSION"))), "{shown}");
    assert_eq!(&shown["headwater ".len()..], headwater::report::facts::version());
}

#[test]
fn stochastic_depth_is_compared_as_its_mean() {
    let (dir, newcomer) =
        (tempfile::tempdir().unwrap(), Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/newcomer"));
    for end in ["pt2", "golden.safetensors", "train.safetensors", "eval.safetensors"] {
        std::fs::copy(newcomer.join(format!("depth.{end}")), dir.path().join(format!("depth.{end}")))
            .unwrap();
    }
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    // Every node is compared, the means of three libraries' masks among them.
    let found = json(&["check", &path("depth.pt2"), &path("depth.golden.safetensors")]);
    let compared = found["compared"].as_array().unwrap();
    let masks = ["bernoulli_", "floor", "bernoulli__1", "masked_fill", "mul_3"];
    assert!(masks.iter().all(|name| compared.iter().any(|c| c["name"] == *name)), "{found}");
    assert!(
        compared.iter().all(|c| c["verdict"] == "proved" && c["error"].as_f64().unwrap() < 1e-14),
        "{found}"
    );
    // The last mask is not divided by its probability: evaluation has its mean, and says so.
    let note = "note: 1 of 5 random masks are not divided by their probability: they are kept as their mean";
    let (model, data, out) = (path("depth.pt2"), path("depth.eval.safetensors"), path("p.safetensors"));
    let found = json(&["eval", &model, "--data", &data]);
    assert!(
        found["scores"]["notes"][0].as_str().is_some_and(|n| n.starts_with("1 of 5 random masks")),
        "{found}"
    );
    for line in [&["eval", &model, "--data", &data][..], &["predict", &model, "--data", &data, "--out", &out]]
    {
        let (status, shown, said) = headwater(line);
        assert!(status == 0 && shown.contains(note), "{status} {shown} {said}");
    }
    assert_eq!(headwater(&["migrate", "--new", &path("depth.pt2"), dir.path().to_str().unwrap()]).0, 0);
    let (status, shown, said) = headwater(&["migrate", dir.path().to_str().unwrap(), "--out", &path("out")]);
    let how = "over the first 40 steps with random masks as their means, in a run of their own, the loss is at most";
    assert!(status == 0 && (shown.contains(how) || said.contains(how)), "{shown} {said}");
}
