//! Memory that does not suffice: said before a run, with what needs less.
#![cfg(target_os = "linux")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn example(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits-vit").join(file)
}

fn headwater(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
    command.stdin(Stdio::null()).args(["--json", "--threads", "1"]).args(args);
    command.output().unwrap()
}

fn json(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"))
}

#[test]
fn doctor_ranks_what_needs_less_by_figures_that_runs_have() {
    let model = example("digits_vit.pt2");
    let doctor = |available: &str| {
        let model = model.to_str().unwrap();
        headwater(&["doctor", "--model", model, "--batch", "64", "--available", available])
    };
    let enough = doctor("1GiB");
    assert_eq!(enough.status.code(), Some(0));
    assert_eq!(json(&enough)["model"]["fits"], true);

    let short = doctor("4MiB");
    assert_ne!(short.status.code(), Some(0));
    let found = &json(&short)["model"];
    assert_eq!((found["fits"].as_bool(), found["available"].as_u64()), (Some(false), Some(4 << 20)));
    let need = found["bytes"].as_u64().unwrap();
    let kinds: u64 = found["memory"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(kinds, need);
    let ways = found["ways"].as_array().unwrap();
    let bytes: Vec<u64> = ways.iter().map(|w| w["bytes"].as_u64().unwrap()).collect();
    assert!(bytes.is_sorted() && bytes.iter().all(|b| *b < need), "{bytes:?} of {need}");
    for options in ["--amp O2 --dtype bf16", "--moments int8"] {
        let way = ways.iter().find(|w| w["options"] == options).expect(options);
        let mut args = vec!["inspect", model.to_str().unwrap(), "--batch", "64"];
        args.extend(options.split(' '));
        let memory = json(&headwater(&args))["memory"].clone();
        let planned: u64 = memory.as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!(way["bytes"].as_u64(), Some(planned), "{options}");
    }
    let together = ways
        .iter()
        .find(|w| w["what"] == "mixed precision, moments, recomputation and micro-batches together")
        .unwrap();
    assert!(together["options"].as_str().unwrap().contains("--batch 1 --accumulate 64"), "{together}");
}

/// A run below a limit of address space, in KiB.
fn limited(kib: u64, args: &[&str]) -> Output {
    let script = format!(r#"ulimit -v {kib} && exec "$0" "$@""#);
    let mut command = Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_headwater"), "--json", "--threads", "1"]).args(args);
    command.stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_step_that_does_not_fit_is_refused_before_the_run() {
    let (model, data) = (example("digits_vit.pt2"), example("train.safetensors"));
    const MOST: u64 = 4 << 20;
    let free = json(&limited(MOST, &["doctor"]))["available"].as_u64().unwrap() >> 10;
    assert!(free < MOST);
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let args = [
        "train",
        model.to_str().unwrap(),
        "--data",
        data.to_str().unwrap(),
        "--batch",
        "1437",
        "--steps",
        "1",
    ];
    // The process itself, and 150 MiB: a step of all samples takes more.
    let run = limited(MOST - free + (150 << 10), &[&args[..], &["--out", out.to_str().unwrap()]].concat());
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{said}");
    for words in ["HW-R010", "activations and workspace", "`--amp O2 --dtype bf16` takes", "--accumulate"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

/// A million rows of a number and one of two words: 5 MB of text, 16 MB of numbers and labels. It takes 40
/// MiB; strings by row took 112.
#[test]
fn labels_of_a_text_take_memory_by_the_row_and_not_by_the_word() {
    const MOST: u64 = 4 << 20;
    let free = json(&limited(MOST, &["doctor"]))["available"].as_u64().unwrap() >> 10;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.csv"), "x,c\n".to_string() + &"1,xy\n2,z\n".repeat(500_000)).unwrap();
    std::fs::write(dir.path().join("table.toml"), "[classes]\nc = \"auto\"\n").unwrap();
    let listed = limited(MOST - free + (64 << 10), &["data", dir.path().to_str().unwrap()]);
    let said = String::from_utf8_lossy(&listed.stderr);
    assert!(listed.status.success(), "{said}");
}
