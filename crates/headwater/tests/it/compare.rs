//! `headwater compare`: runs that the tool itself made, of different learning rates.

use crate::json::{at, fits, tables};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A command, in a terminal of so many columns.
fn headwater(args: &[&str], columns: usize) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
    command.args(args).env("COLUMNS", columns.to_string()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Trains the digits at a learning rate into a folder of that name.
fn train(dir: &Path, lr: &str, more: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits-vit");
    let [model, data, heldout] = ["digits_vit.pt2", "train.safetensors", "heldout.safetensors"]
        .map(|name| root.join(name).to_str().unwrap().to_string());
    let out = dir.join(format!("lr-{lr}")).to_str().unwrap().to_string();
    let mut args = vec!["train", &model, "--data", &data, "--eval", &heldout, "--out", &out, "--lr", lr];
    args.extend(["--batch", "32", "--eval-every", "10"]);
    args.extend(more);
    let done = headwater(&args, 80);
    assert!(done.status.success(), "{}", text(&done.stderr));
    out
}

/// The lines of a log.
fn events(run: &str) -> Vec<Value> {
    let log = std::fs::read_to_string(PathBuf::from(run).join("log.jsonl")).unwrap();
    log.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

#[test]
fn runs_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let rates = ["1e-5", "3e-4", "3e-3"];
    let runs: Vec<String> = rates.iter().map(|lr| train(dir.path(), lr, &["--steps", "30"])).collect();
    let page = dir.path().join("compare.html").to_str().unwrap().to_string();
    let args = ["compare", &runs[0], &runs[1], &runs[2]];

    // For programs: what the logs say.
    let done = headwater(&[&args[..], &["--json", "--out", &page]].concat(), 80);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let found: Value = serde_json::from_slice(&done.stdout).unwrap();
    let setting = &found["settings"][0];
    assert_eq!((found["settings"].as_array().unwrap().len(), &setting["name"]), (1, &"optimizer.lr".into()));
    assert_eq!(setting["values"], serde_json::json!(["0.00001", "0.0003", "0.003"]));
    for (i, run) in runs.iter().enumerate() {
        let log = events(run);
        let evaluations: Vec<&Value> = log.iter().filter(|e| e["event"] == "evaluation").collect();
        let best = evaluations
            .iter()
            .min_by(|a, b| a["loss"].as_f64().unwrap().total_cmp(&b["loss"].as_f64().unwrap()));
        let last_step = log.iter().rfind(|e| e["event"] == "step").unwrap();
        let of = &found["runs"][i];
        assert_eq!(of["name"], format!("lr-{}", rates[i]));
        assert_eq!((&of["state"], &of["step"], &of["steps"]), (&"complete".into(), &30.into(), &30.into()));
        assert_eq!(of["last_loss"], last_step["loss"]);
        assert_eq!(of["end_loss"], last_step["loss"], "a fiftieth of 30 steps is the last one");
        assert_eq!(of["evaluation"]["loss"], evaluations.last().unwrap()["loss"]);
        assert_eq!(of["best"]["value"], best.unwrap()["loss"]);
        assert_eq!(of["best"]["step"], best.unwrap()["step"]);
    }
    let losses: Vec<f64> =
        found["runs"].as_array().unwrap().iter().map(|r| r["best"]["value"].as_f64().unwrap()).collect();
    assert!(losses[2] < losses[1] && losses[1] < losses[0], "a higher rate learns faster here: {losses:?}");

    // For people: 80 columns, and the run that is the best.
    let shown = text(&headwater(&args, 80).stdout);
    assert!(shown.lines().all(|l| l.chars().count() <= 80), "{shown}");
    let words: Vec<&str> = shown.split_whitespace().collect();
    let row = ["optimizer.lr", "0.00001", "0.0003", "0.003"];
    assert!(words.windows(4).any(|w| w == row), "{shown}");
    assert!(
        shown.contains(&format!("best held-out loss: {:.4} by lr-3e-3, at step 30", losses[2])),
        "{shown}"
    );
    assert!(shown.contains('█') && shown.contains('▁'), "{shown}");

    // The page: a line for each run, of its colour, in every chart.
    let html = std::fs::read_to_string(&page).unwrap();
    for chart in ["Training loss", "Held-out loss", "Held-out accuracy", "Learning rate"] {
        let drawn =
            html.split("<figure>").find(|f| f.starts_with(&format!("<figcaption>{chart}</figcaption>")));
        let drawn = drawn.unwrap_or_else(|| panic!("no chart {chart}"));
        for (i, lr) in rates.iter().enumerate() {
            let line = format!("<path class=\"line s{i}\"");
            let named = drawn.split("<path").filter(|p| p.contains(&format!("data-name=\"lr-{lr}\"")));
            assert!(named.clone().count() > 0 && drawn.contains(&line), "{chart}: {lr}");
        }
    }
    assert!(!html.contains("class=\"badge"), "there is no verdict on runs");
}

#[test]
fn runs_that_go_on_and_runs_of_other_lengths_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let whole = train(dir.path(), "1e-3", &["--steps", "20"]);
    let other = train(dir.path(), "2e-3", &["--steps", "10", "--optimizer", "sgd"]);
    // A run that was killed: its log ends within a line.
    let killed = dir.path().join("killed");
    std::fs::create_dir(&killed).unwrap();
    let log = std::fs::read_to_string(PathBuf::from(&whole).join("log.jsonl")).unwrap();
    let end = log.match_indices("\"event\":\"step\"").nth(6).unwrap().0;
    std::fs::write(killed.join("log.jsonl"), &log[..end]).unwrap();
    let done = headwater(&["compare", &whole, &other, killed.to_str().unwrap(), "--json"], 80);
    let found: Value = serde_json::from_slice(&done.stdout).unwrap();
    let states: Vec<&str> =
        found["runs"].as_array().unwrap().iter().map(|r| r["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["complete", "complete", "unfinished"]);
    assert_eq!(found["runs"][2]["step"], 6);
    let settings = found["settings"].as_array().unwrap();
    let values = |name: &str| &settings.iter().find(|s| s["name"] == name).unwrap()["values"];
    assert_eq!(values("optimizer.name"), &serde_json::json!(["adamw", "sgd", "adamw"]));
    assert_eq!(values("optimizer.betas")[1], Value::Null);
    assert!(settings.iter().all(|s| s["name"] != "checkpoint.dir"), "{settings:?}");

    // More runs than a table has columns: further tables.
    let mut args = vec!["compare".to_string()];
    for i in 0..8 {
        let copy = dir.path().join(format!("copy-{i}.jsonl"));
        std::fs::write(&copy, &log).unwrap();
        args.push(copy.to_str().unwrap().to_string());
    }
    let shown = headwater(&args.iter().map(String::as_str).collect::<Vec<_>>(), 80);
    let shown = text(&shown.stdout);
    assert_eq!(shown.matches("Results").count(), 2, "{shown}");
    assert!(
        shown.contains("no setting differs") && shown.lines().all(|l| l.chars().count() <= 80),
        "{shown}"
    );
}

#[test]
fn what_is_no_run_is_refused_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    std::fs::create_dir(path("empty")).unwrap();
    std::fs::write(path("x.jsonl"), "{\"event\":\"start\",\"steps\":3,\"config\":{}}\n").unwrap();
    let refused = |args: &[&str], status: i32, says: &[&str]| {
        let done = headwater(args, 400);
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(status), "{said}");
        says.iter().for_each(|s| assert!(said.contains(s), "{s}: {said}"));
    };
    let [empty, x, y] = ["empty", "x.jsonl", "y.jsonl"].map(path);
    refused(&["compare", &empty, &x], 1, &["has no log.jsonl", "headwater train --out"]);
    refused(&["compare", &y, &x], 1, &["y.jsonl does not exist; did you mean", "x.jsonl?"]);
    refused(&["compare", &x, &x], 1, &["is named twice"]);
    std::fs::write(&y, "").unwrap();
    refused(&["compare", &x, &y], 1, &["has no step of a training run"]);
    refused(&["compare", &x], 2, &["RUN"]);
    refused(&["compare", &x, &y, "--out", "page.txt"], 2, &["ends in .html"]);
}

#[test]
fn the_result_is_as_the_page_documents_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/json.md")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let runs = ["1e-3", "2e-3"].map(|lr| train(dir.path(), lr, &["--steps", "2"]));
    let file = dir.path().join("page.html").to_str().unwrap().to_string();
    let done = headwater(&["compare", &runs[0], &runs[1], "--json", "--out", &file], 80);
    let found: Value = serde_json::from_slice(&done.stdout).unwrap();
    let table = &tables(&page, "compare")[0];
    assert!(table.len() > 12);
    for (key, ty) in table {
        assert!(fits(at(&found, key), ty), "`{key}` is {}, no {ty}", at(&found, key));
    }
}

/// A pipe has its lines once.
#[cfg(unix)]
#[test]
fn a_log_is_read_once() {
    let dir = tempfile::tempdir().unwrap();
    let (pipe, file) = (dir.path().join("pipe.jsonl"), dir.path().join("file.jsonl"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let step = |n: u64| {
        format!(
            "{{\"event\":\"step\",\"step\":{n},\"loss\":{}.5,\"lr\":0.1,\"norm\":1.0,\"scale\":1.0,\"applied\":true,\"samples\":4,\
             \"seconds\":0.5}}\n",
            9 - n
        )
    };
    let log = format!(
        "{{\"event\":\"start\",\"steps\":2,\"config\":{{\"seed\":3}}}}\n{}{}{{\"event\":\"end\"}}\n",
        step(1),
        step(2)
    );
    std::fs::write(&file, &log).unwrap();
    let writer = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::write(pipe, log)
    });
    let mut child = Command::new(env!("CARGO_BIN_EXE_headwater"))
        .args(["compare", "--json"])
        .args([&pipe, &file])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let begin = std::time::Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > std::time::Duration::from_secs(120) {
            child.kill().unwrap();
            panic!("it waits for lines that it has read");
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    writer.join().unwrap().unwrap();
    let found: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    for run in found["runs"].as_array().unwrap() {
        assert_eq!(
            (&run["state"], &run["step"], &run["last_loss"]),
            (&"complete".into(), &2.into(), &7.5.into())
        );
    }
}
