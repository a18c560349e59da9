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

    // A token out of the model's vocabulary, here the label of padding, is named by the line it is in.
    std::fs::write(at("corpus/text.toml"), "tokenizer = \"bytes\"\nlength = 64\npad = 0\n").unwrap();
    std::fs::write(at("corpus/a.txt"), format!("{}\n{}\n", "a".repeat(64), "b".repeat(63))).unwrap();
    std::fs::remove_file(at("corpus/b.jsonl")).unwrap();
    let (model, corpus) = (model.to_str().unwrap(), at("corpus"));
    let args = ["train", model, "--data", corpus.to_str().unwrap(), "--batch", "2", "--steps", "1"];
    let (ok, _, said) = headwater(&args);
    assert!(!ok && said.contains("-100") && said.contains("line 2 of ") && said.contains("a.txt"), "{said}");
}
