//! A model that is trained in part, classes with weights, and the names of classes from training to
//! predictions.

use crate::common::command::{file, headwater, json};
use headwater::tensors::TensorFile;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Tensors of a file as numbers.
fn tensors(path: PathBuf) -> BTreeMap<String, Vec<f64>> {
    let file = TensorFile::read(&path).unwrap();
    file.tensors.iter().map(|(name, t)| (name.clone(), t.to_f64())).collect()
}

#[test]
fn frozen_parameters_stay_and_the_others_are_exported_alone() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let (model, data) = (file("digits_vit.pt2"), file("train.safetensors"));
    let train = ["train", &model, "--data", &data, "--steps", "2", "--batch", "32"];
    let frozen = ["--freeze", "blocks.*", "--freeze", "position", "--out", &at("run")];
    let (status, shown, said) = headwater(&[&train[..], &frozen].concat());
    assert_eq!(status, 0, "{said}");
    assert!(
        shown.starts_with("frozen: 34 of 40 parameters, ")
            && shown.contains("of gradients (4 bytes an element) and")
            && shown.contains("of moments (2 of 4)"),
        "{shown}"
    );
    // 3 × 11 parameters of blocks and the position have neither updates nor moments.
    assert_eq!(headwater(&["export", &model, "--out", &at("x.safetensors")]).0, 1);
    let (_, _, said) = headwater(&[&train[..], &["--out", &at("whole")]].concat());
    assert!(!said.contains("frozen"), "{said}");
    let run = PathBuf::from(at("run/step-00000002"));
    let (trained, whole) = (
        tensors(run.join("model.safetensors")),
        tensors(PathBuf::from(at("whole/step-00000002/model.safetensors"))),
    );
    let state = tensors(run.join("state.safetensors"));
    assert_eq!(
        trained.keys().collect::<Vec<_>>(),
        whole.keys().collect::<Vec<_>>(),
        "a checkpoint has all of the model"
    );
    let mut kept = 0;
    for name in trained.keys() {
        let moments = state.keys().any(|key| key == &format!("exp_avg.{name}"));
        let is_frozen = name.starts_with("blocks.") || name == "position";
        assert_eq!(moments, !is_frozen, "{name}");
        kept += !is_frozen as usize;
    }
    let first = |name: &str| {
        let out = at("first.safetensors");
        let _ = headwater(&[
            "train",
            &model,
            "--data",
            &data,
            "--steps",
            "1",
            "--lr",
            "0",
            "--weight-decay",
            "0",
            "--out",
            &at("first"),
        ]);
        let _ = headwater(&["export", &at("first"), "--out", &out, "--overwrite"]);
        tensors(PathBuf::from(out))[name].clone()
    };
    assert_eq!(first("blocks.1.fc1.weight"), trained["blocks.1.fc1.weight"]);
    assert_ne!(first("head.weight"), trained["head.weight"]);
    // The run says what it trained; an archive says it of a run that froze nothing.
    let done = json(&["export", &at("run"), "--trainable", "--out", &at("part.safetensors")]);
    assert_eq!(done["tensors"], kept);
    let part = tensors(PathBuf::from(at("part.safetensors")));
    assert!(
        part.keys().all(|name| part[name] == trained[name]) && part.contains_key("head.weight"),
        "{:?}",
        part.keys()
    );
    let (status, _, said) =
        headwater(&["export", &at("whole"), "--trainable", "--out", &at("y.safetensors")]);
    assert!(status == 1 && said.contains("name the model with --model"), "{said}");
    let done =
        json(&["export", &at("whole"), "--trainable", "--model", &model, "--out", &at("y.safetensors")]);
    assert_eq!(done["tensors"], 40);
    let (status, _, said) =
        headwater(&["export", &at("run"), "--trainable", "--model", &model, "--out", &at("y.pt2")]);
    assert!(status == 2 && said.contains("--trainable is for .safetensors"), "{said}");
    let idle = ["export", &at("run"), "--trainable", "--model", &model, "--out", &at("z.safetensors")];
    let (status, _, said) = headwater(&idle);
    assert!(status == 2 && said.contains("run says itself which parameters were trained"), "{status} {said}");
    assert!(!PathBuf::from(at("z.safetensors")).exists());
    let (status, _, said) =
        headwater(&["export", &at("run"), "--model", &model, "--out", &at("z.safetensors")]);
    assert!(status == 2 && said.contains("--model is for a .pt2, or for --trainable"), "{said}");
    // Settings that contradict themselves.
    let (status, _, said) = headwater(&[&train[..], &["--freeze", "block"]].concat());
    assert!(
        status == 2 && said.contains("`block` matches no parameter; the model has position, patches.weight"),
        "{said}"
    );
    let (status, _, said) = headwater(&[&train[..], &["--freeze", "*"]].concat());
    assert!(status == 2 && said.contains("nothing is left to train"), "{said}");
}

#[test]
fn a_run_is_resumed_with_the_parameters_that_it_trained() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run").to_str().unwrap().to_string();
    let (model, data) = (file("digits_vit.pt2"), file("train.safetensors"));
    let train = |steps: &str, more: &[&str]| {
        let line = ["train", &model, "--data", &data, "--batch", "32", "--out", &run, "--steps", steps];
        headwater(&[&line[..], more].concat())
    };
    assert_eq!(train("2", &["--freeze", "blocks.*"]).0, 0);
    for (patterns, said_first) in [
        (&[][..], "`freeze`: freezes nothing now, and blocks.* when"),
        (&["--freeze", "head.*"], "`freeze`: freezes head.* now, and blocks.* when"),
    ] {
        let (status, _, said) = train("4", &[&["--resume"], patterns].concat());
        assert!(status == 2 && said.contains(said_first) && said.contains("--init"), "{status} {said}");
    }
    // Other patterns of the same parameters are as good.
    let blocks = ["--freeze", "blocks.0.*", "--freeze", "blocks.1.*", "--freeze", "blocks.2.*"];
    let (status, _, said) = train("4", &[&["--resume"], &blocks[..]].concat());
    assert!(status == 0 && said.contains("freeze: [\"blocks.*\"] then, [\"blocks.0.*\""), "{status} {said}");
    // Nor has another optimizer the same moments.
    let other = [&["--resume", "--optimizer", "lion"], &blocks[..]].concat();
    let (status, _, said) = train("6", &other);
    assert!(status == 1 && said.contains("whose settings differ: optimizer: {"), "{status} {said}");
    assert!(said.contains("\"adamw\"") && said.contains("\"lion\"") && said.contains("--init"), "{said}");
    // The way out that is named.
    let (init, new) = (format!("{run}/step-00000004"), dir.path().join("new"));
    let line = ["train", &model, "--data", &data, "--steps", "1", "--init", &init, "--out"];
    let (status, _, said) = headwater(&[&line[..], &[new.to_str().unwrap()]].concat());
    assert_eq!(status, 0, "{said}");
}

/// Writes a folder with a table of cats and dogs, and its `table.toml`.
fn folder(dir: &Path, name: &str, rows: &[(&str, f64)], classes: &str) -> String {
    let place = dir.join(name);
    std::fs::create_dir(&place).unwrap();
    let mut text = "a,b,c,d,e,f,labels\n".to_string();
    for (i, (label, x)) in rows.iter().enumerate() {
        let y = i as f64 * 0.25 - 1.0;
        text += &format!("{x},{y},0.5,{},-0.25,{x},{label}\n", y * x);
    }
    std::fs::write(place.join("t.csv"), text).unwrap();
    let settings =
        format!("[classes]\nlabels = {classes}\n[vectors]\nx = [\"a\", \"b\", \"c\", \"d\", \"e\", \"f\"]\n");
    std::fs::write(place.join("table.toml"), settings).unwrap();
    place.to_str().unwrap().to_string()
}

const ANIMALS: [(&str, f64); 8] = [
    ("cat", 0.5),
    ("dog", -0.5),
    ("cat", 0.75),
    ("cat", 1.25),
    ("cat", 0.25),
    ("cat", 1.5),
    ("dog", -1.0),
    ("cat", 0.125),
];

#[test]
fn classes_have_weights_in_the_loss() {
    let dir = tempfile::tempdir().unwrap();
    let data = folder(dir.path(), "animals", &ANIMALS, "\"auto\"");
    let (model, cast) = (file("table.pt2"), "--cast=round");
    let loss = |weights: &[&str]| {
        let line = ["train", &model, "--data", &data, "--steps", "1", "--batch", "8", cast];
        json(&[&line[..], weights].concat())["last_loss"].as_f64().unwrap()
    };
    // The model's own logits, weighed by hand: the mean over samples is weighted too, as in PyTorch.
    let out = dir.path().join("p.safetensors");
    let predict = ["predict", &model, "--data", &data, cast, "--out", out.to_str().unwrap()];
    json(&predict);
    let logits = tensors(out).remove("output.1").unwrap();
    let by_hand = |cat: f64, dog: f64| {
        let (mut sum, mut total) = (0.0, 0.0);
        for (row, (label, _)) in logits.chunks(2).zip(ANIMALS) {
            let (own, w) = if label == "cat" { (row[0], cat) } else { (row[1], dog) };
            (sum, total) = (sum + w * ((row[0].exp() + row[1].exp()).ln() - own), total + w);
        }
        sum / total
    };
    let close = |found: f64, want: f64| assert!((found - want).abs() < 1e-5, "{found} and not {want}");
    close(loss(&[]), by_hand(1.0, 1.0));
    // 6 cats and 2 dogs: 8 / (2 · 6) and 8 / (2 · 2).
    close(loss(&["--class-weights", "balanced"]), by_hand(8.0 / 12.0, 2.0));
    close(loss(&["--class-weights", "1,5.5"]), by_hand(1.0, 5.5));
    close(loss(&["--class-weights", "dog=5.5"]), by_hand(1.0, 5.5));
    assert!((by_hand(1.0, 5.5) - by_hand(1.0, 1.0)).abs() > 1e-2, "the weights show");
    let refused = |model: &str, data: &str, weights: &str, part: &str| {
        let line = ["train", model, "--data", data, "--steps", "1", cast, "--class-weights", weights];
        let (status, _, said) = headwater(&line);
        assert!(status == 2 && said.contains(part), "{weights}: {status} {said}");
    };
    refused(&model, &data, "1,2,3", "3 weights, and the loss is of 2 classes");
    refused(&model, &data, "emu=2", "no class emu; the classes are cat, dog");
    refused(&model, &data, "1,-2", "-2 of class 1 is no weight");
    refused(&model, &data, "0,0", "no weight above 0");
    refused(&model, &data, "balance", "neither balanced, nor weights such as 1,3.5");
    // A run goes on with others, and says so.
    let run = dir.path().join("run").to_str().unwrap().to_string();
    let resumed = |steps: &str, more: &[&str]| {
        let line = ["train", &model, "--data", &data, "--batch", "8", cast, "--out", &run, "--steps", steps];
        headwater(&[&line[..], more].concat())
    };
    assert_eq!(resumed("1", &["--class-weights", "1,5.5"]).0, 0);
    let (status, _, said) = resumed("2", &["--resume", "--class-weights", "dog=2"]);
    let differ = "the settings differ: data.class_weights: [1.0,5.5] then, {\"dog\":2.0} now";
    assert!(status == 0 && said.contains(differ), "{status} {said}");
    let (status, _, said) = resumed("3", &["--resume"]);
    assert!(status == 0 && said.contains("{\"dog\":2.0} then, none now"), "{status} {said}");
    // Held-out samples are measured by the model's own loss.
    let eval = |weights: &[&str]| {
        let line = [
            "train", &model, "--data", &data, "--eval", &data, "--steps", "1", "--batch", "8", "--lr", "0",
            cast,
        ];
        json(&[&line[..], weights].concat())["evaluation"]["loss"].as_f64().unwrap()
    };
    close(eval(&["--class-weights", "1,5.5"]), eval(&[]));
}

#[test]
fn names_of_classes_go_from_training_to_predictions() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let data = folder(dir.path(), "animals", &ANIMALS, "\"auto\"");
    // Another folder, of dogs alone: by itself, dog would be class 0.
    let dogs: Vec<_> = ANIMALS.iter().copied().filter(|(label, _)| *label == "dog").collect();
    let other = folder(dir.path(), "dogs", &dogs, "\"auto\"");
    let (model, cast, run) = (file("table.pt2"), "--cast=round", at("run"));
    let train = ["train", &model, "--data", &data, "--steps", "3", "--batch", "2", cast, "--out", &run];
    assert_eq!(headwater(&train).0, 0);
    let (status, _, said) = headwater(&["eval", &model, "--data", &other, cast, "--weights", &run]);
    let why = "the classes of labels are dog in";
    let way = "cat, dog where the model was trained: their numbers are not the same. Write `classes = [\"cat\", \"dog\"]`";
    assert!(status == 1 && said.contains(why) && said.contains(way), "{status} {said}");
    // Predictions need no labels: their names are those of training.
    let predict = |data: &str, out: &str| {
        let line =
            ["predict", &model, "--data", data, cast, "--weights", &run, "--out", out, "--outputs", "1"];
        json(&line);
        std::fs::read_to_string(out).unwrap()
    };
    let (all, few) = (predict(&data, &at("all.csv")), predict(&other, &at("few.csv")));
    let classes = |text: &str| {
        let head: Vec<String> = text.lines().next().unwrap().split(',').map(str::to_string).collect();
        let column = head.iter().position(|h| h == "class").unwrap();
        (
            head.clone(),
            text.lines().skip(1).map(|l| l.split(',').nth(column).unwrap().to_string()).collect::<Vec<_>>(),
        )
    };
    let ((head, every), (same, some)) = (classes(&all), classes(&few));
    assert_eq!(head, same, "the same columns, of cat and of dog");
    assert!(
        every.iter().chain(&some).all(|c| c == "cat" || c == "dog") && some.len() == 2,
        "{every:?} {some:?}"
    );
    // Listed in both, all agrees; and a run is not resumed on others.
    let listed = folder(dir.path(), "listed", &dogs, "[\"cat\", \"dog\"]");
    let shown = json(&["eval", &model, "--data", &listed, cast, "--weights", &run]);
    assert!(shown["scores"]["loss"].is_number(), "{shown}");
    let resume =
        ["train", &model, "--data", &other, "--steps", "4", "--batch", "2", cast, "--out", &run, "--resume"];
    let (status, _, said) = headwater(&resume);
    assert!(status != 0 && said.contains(why), "{status} {said}");
}
