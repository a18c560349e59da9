//! Folders of texts and several files as data: the same numbers as the same tokens in one file of tensors.

use headwater::core::{DType, Shape, Tensor};
use headwater::tensors::TensorFile;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn headwater(args: &[&str]) -> (bool, Value, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_headwater")).arg("--json").args(args).output().unwrap();
    let json = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.success(), json, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Writes windows of 64 bytes as tensors.
fn write(path: &Path, windows: &[u8]) {
    let ids = windows.iter().map(|&b| b as f64).collect();
    let ids = Tensor::float(DType::F64, Shape::new(&[windows.len() / 64, 64]), ids).cast(DType::I64);
    let mut file = TensorFile::default();
    file.tensors.insert("labels".into(), ids.clone());
    file.tensors.insert("input_ids".into(), ids);
    file.write(path).unwrap();
}

#[test]
fn a_folder_of_texts_and_shards_train_as_one_file_of_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let text: String = (0..700).map(|i| format!("{i} times {i} is {}.\n", i * i)).collect();
    std::fs::create_dir(at("corpus")).unwrap();
    std::fs::write(at("corpus/text.toml"), "tokenizer = \"bytes\"\nlength = 64\npacked = true\n").unwrap();
    let (first, second) = text.split_at(1000);
    std::fs::write(at("corpus/a.txt"), first).unwrap();
    let line = serde_json::json!({ "text": second }).to_string();
    std::fs::write(at("corpus/b.jsonl"), line).unwrap();
    let windows = &text.as_bytes()[..text.len() / 64 * 64];
    write(&at("all.safetensors"), windows);
    let (some, more) = windows.split_at(64 * 7);
    write(&at("part-1.safetensors"), some);
    write(&at("part-2.safetensors"), more);

    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/bytes-gpt/gpt.pt2");
    let run = |data: PathBuf| {
        let (model, data) = (model.to_str().unwrap(), data.to_str().unwrap());
        let args = ["train", model, "--data", data, "--batch", "16", "--steps", "4", "--lr", "1e-3"];
        let (ok, trained, said) = headwater(&args);
        assert!(ok, "{said}");
        trained["last_loss"].clone()
    };
    let tensors = run(at("all.safetensors"));
    assert!(tensors.is_f64(), "{tensors}");
    assert_eq!(run(at("corpus")), tensors);
    assert_eq!(run(at("part-*.safetensors")), tensors);

    // A token out of the model's vocabulary, here that of padding, is named by the line it is in.
    std::fs::write(at("corpus/text.toml"), "tokenizer = \"bytes\"\nlength = 64\npad = 300\n").unwrap();
    std::fs::write(at("corpus/a.txt"), format!("{}\n{}\n", "a".repeat(64), "b".repeat(63))).unwrap();
    std::fs::remove_file(at("corpus/b.jsonl")).unwrap();
    let (model, corpus) = (model.to_str().unwrap(), at("corpus"));
    let args = ["train", model, "--data", corpus.to_str().unwrap(), "--batch", "2", "--steps", "1"];
    let (ok, _, said) = headwater(&args);
    assert!(
        !ok && said.contains("index 300") && said.contains("line 2 of ") && said.contains("a.txt"),
        "{said}"
    );
}

/// Numbers of a tensor of a file.
fn numbers(file: &Path, name: &str) -> (Vec<usize>, Vec<f64>) {
    let file = TensorFile::read(file).unwrap();
    let t = file.get(name).unwrap();
    (t.shape().to_vec(), t.to_f64())
}

#[test]
fn lengths_are_those_of_the_data_and_buckets_change_rounding_alone() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/lengths");
    let at = |name: &str| example.join(name).to_str().unwrap().to_string();
    let (model, heldout) = (at("classifier.pt2"), at("heldout"));
    let dir = tempfile::tempdir().unwrap();
    // Exported with 24, filled up to 64: no size is named.
    let eval = |more: &[&str]| {
        let (ok, json, said) =
            headwater(&[&["eval", &model, "--data", &heldout, "--batch", "32"], more].concat());
        assert!(ok, "{said}");
        json["scores"].clone()
    };
    let (whole, cut) = (eval(&[]), eval(&["--buckets", "16,32,64"]));
    assert_eq!(whole["samples"], 400);
    assert_eq!(whole["accuracy"], cut["accuracy"]);
    let predict = |name: &str, more: &[&str]| {
        let out = dir.path().join(name);
        let args = ["predict", &model, "--data", &heldout, "--batch", "32", "--out", out.to_str().unwrap()];
        let (ok, _, said) = headwater(&[&args, more].concat());
        assert!(ok, "{said}");
        numbers(&out, "output.1")
    };
    let (whole, cut) =
        (predict("whole.safetensors", &[]), predict("cut.safetensors", &["--buckets", "auto"]));
    assert_eq!((&whole.0, &cut.0), (&vec![400, 2], &vec![400, 2]));
    // Buckets leave out zeros among at most 64 summands of magnitude about one, in two layers.
    let largest = whole.1.iter().fold(0.0, |a: f64, x| a.max(x.abs()));
    for (a, b) in whole.1.iter().zip(&cut.1) {
        assert!((a - b).abs() <= 2.0 * 64.0 * f32::EPSILON as f64 * largest.max(1.0), "{a} and {b}");
    }

    // A length that the model was not exported for is refused with the range that it was.
    std::fs::create_dir(dir.path().join("long")).unwrap();
    std::fs::copy(at("heldout/texts.jsonl"), dir.path().join("long/texts.jsonl")).unwrap();
    let settings = "tokenizer = \"bytes\"\nlength = 65\npad = \" \"\nlabel = \"label\"\n";
    std::fs::write(dir.path().join("long/text.toml"), settings).unwrap();
    let long = dir.path().join("long");
    let (ok, _, said) = headwater(&["train", &model, "--data", long.to_str().unwrap(), "--steps", "1"]);
    assert!(!ok && said.contains("[24]") && said.contains("[65]") && said.contains("2 to 64"), "{said}");
    // As is a bound below it.
    let args = ["train", &model, "--data", &heldout, "--steps", "1", "--buckets", "1,64"];
    let (ok, _, said) = headwater(&args);
    assert!(!ok && said.contains("`data.buckets`") && said.contains("2 to 64"), "{said}");
}
