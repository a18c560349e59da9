//! The program among faults: readers that leave, full disks, signals, pipes, folders in use. What it says,
//! what it saves, and its exit status.
#![cfg(unix)]

use headwater::tensors::TensorFile;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

fn example(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits-vit").join(file)
}

fn headwater() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// `train` on the digits, into `out`.
fn train(out: &Path, more: &[&str]) -> Command {
    let mut command = headwater();
    command.arg("train").arg(example("digits_vit.pt2")).arg("--data").arg(example("train.safetensors"));
    command.arg("--out").arg(out).args(["--batch", "16"]).args(more);
    command
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn checkpoints(out: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(out).into_iter().flatten();
    let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut steps: Vec<String> = names.filter(|n| n.starts_with("step-")).collect();
    steps.sort();
    steps
}

/// Sends a signal by its name.
fn signal(child: &Child, name: &str) {
    assert!(
        Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status().unwrap().success()
    );
}

/// Waits for the run's first evaluation or checkpoint, which it says on standard error.
fn wait_for(child: &mut Child, word: &str) -> std::thread::JoinHandle<String> {
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut seen = String::new();
    while !seen.contains(word) {
        assert!(lines.read_line(&mut seen).unwrap() > 0, "it ended before it said {word:?}: {seen}");
    }
    std::thread::spawn(move || {
        while lines.read_line(&mut seen).is_ok_and(|n| n > 0) {}
        seen
    })
}

#[test]
fn a_reader_of_messages_that_leaves_does_not_end_training() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let heldout = example("heldout.safetensors");
    let eval = ["--steps", "4", "--eval", heldout.to_str().unwrap(), "--eval-every", "1"];
    let mut child = train(&out, &eval).spawn().unwrap();
    drop((child.stderr.take(), child.stdout.take()));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(checkpoints(&out), ["step-00000004"]);
}

#[test]
fn a_full_disk_below_the_terminal_loses_the_result_but_not_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let mut command = train(&out, &["--steps", "2", "--json"]);
    assert_eq!(command.stderr(full()).stdout(full()).status().unwrap().code(), Some(1));
    assert_eq!(checkpoints(&out), ["step-00000002"]);
    let output = headwater().arg("doctor").stdout(full()).output().unwrap();
    assert_eq!(code(&output), Some(1));
    assert!(stderr(&output).contains("could not be written to standard output"), "{}", stderr(&output));
}

#[test]
fn an_interrupted_run_saves_and_says_so_in_its_status() {
    // A hangup is ignored by everything that these tests start if they run under nohup.
    let state = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = state.lines().find_map(|l| l.strip_prefix("SigIgn:")).unwrap_or("0").trim();
    let nohup = u64::from_str_radix(ignored, 16).unwrap() & 1 == 1;
    let signals = [("TERM", 143), ("INT", 130), ("HUP", 129)];
    for (name, status) in signals.into_iter().filter(|(name, _)| *name != "HUP" || !nohup) {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("run");
        let mut child = train(&out, &["--steps", "1000000", "--save-every", "2"]).spawn().unwrap();
        let rest = wait_for(&mut child, "saved");
        signal(&child, name);
        let output = child.wait().unwrap();
        let said = rest.join().unwrap();
        assert_eq!(output.code(), Some(status), "{name}: {said}");
        assert!(said.contains("go on with --resume") && !checkpoints(&out).is_empty(), "{said}");
    }
}

#[test]
fn a_step_of_many_batches_does_not_delay_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    // One step of these takes hours.
    let mut child = train(&out, &["--steps", "2", "--accumulate", "10000000"]).spawn().unwrap();
    let rest = wait_for(&mut child, "samples, batch");
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143), "{}", rest.join().unwrap());
    assert_eq!(checkpoints(&out), ["step-00000000"]);
}

#[test]
fn nohup_is_respected() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let (model, data) = (example("digits_vit.pt2"), example("train.safetensors"));
    let script =
        r#"trap '' HUP; exec "$0" train "$1" --data "$2" --out "$3" --batch 16 --steps 40 --save-every 2"#;
    let mut child = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_headwater")])
        .args([&model, &data, &out])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let rest = wait_for(&mut child, "saved");
    signal(&child, "HUP");
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", rest.join().unwrap());
    assert_eq!(checkpoints(&out).last().unwrap(), "step-00000040");
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("data.safetensors");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (model, data) in [(example("digits_vit.pt2"), pipe.clone()), (pipe, example("train.safetensors"))] {
        let output = headwater()
            .arg("train")
            .arg(model)
            .arg("--data")
            .arg(data)
            .args(["--steps", "1"])
            .output()
            .unwrap();
        assert_eq!(code(&output), Some(1));
        assert!(stderr(&output).contains("not a file"), "{}", stderr(&output));
    }
}

#[test]
fn every_kind_of_end_has_its_status() {
    let model = example("digits_vit.pt2");
    let status = |args: &[&str]| {
        let output = headwater().args(args).output().unwrap();
        (code(&output), stderr(&output))
    };
    let path = model.to_str().unwrap();
    assert_eq!(status(&["doctor"]).0, Some(0));
    assert_eq!(status(&["no-such-command"]).0, Some(2));
    let (code, said) = status(&["train", path, "--steps", "1"]);
    assert!(code == Some(2) && said.contains("--data"), "{said}");
    assert_eq!(status(&["train", path, "--data", "no/such/file.npz", "--steps", "1"]).0, Some(1));
    let data = example("train.safetensors");
    let data = data.to_str().unwrap();
    let (code, said) = status(&["train", path, "--data", data, "--steps", "1", "--schedule", "cosine"]);
    assert_eq!(code, Some(0), "{said}");

    let dir = tempfile::tempdir().unwrap();
    let wrong = dir.path().join("wrong.golden.safetensors");
    let mut golden = TensorFile::read(&example("digits_vit.golden.safetensors")).unwrap();
    let loss = golden.get("output.0").unwrap().clone();
    let other = loss.to_f64()[0] + 1.0;
    golden.tensors.insert("output.0".into(), headwater::core::Tensor::full(&loss.ty, other));
    golden.write(&wrong).unwrap();
    assert_eq!(status(&["check", path, wrong.to_str().unwrap()]).0, Some(3));
}

#[test]
fn a_migration_refuses_a_folder_that_exists_or_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("report.html"), "an earlier one").unwrap();
    let migrate = || {
        let job = example("");
        let output = headwater().arg("migrate").arg(job).arg("--out").arg(dir.path()).output().unwrap();
        (code(&output), stderr(&output))
    };
    let (code, said) = migrate();
    assert!(code == Some(1) && said.contains("--overwrite"), "{said}");
    assert_eq!(std::fs::read_to_string(dir.path().join("report.html")).unwrap(), "an earlier one");
    let lock = File::options().append(true).open(dir.path().join(".lock")).unwrap();
    lock.try_lock().unwrap();
    let (code, said) = migrate();
    assert!(code == Some(1) && said.contains("another migration is working in"), "{said}");
}

#[test]
fn resuming_what_is_not_there_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let output = train(&dir.path().join("tpyo"), &["--steps", "1", "--resume"]).output().unwrap();
    assert_eq!(code(&output), Some(1));
    assert!(stderr(&output).contains("no checkpoint to resume"), "{}", stderr(&output));
}

#[test]
fn weights_that_are_damaged_are_not_trained_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged.pt2");
    let mut bytes = std::fs::read(example("digits_vit.pt2")).unwrap();
    // The first weight's content follows its name in its local header, and some padding.
    let name = b"data/weights/weight_0";
    let at = bytes.windows(name.len()).position(|w| w == name).unwrap();
    bytes[at + 400] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let (train, heldout) = (example("train.safetensors"), example("heldout.safetensors"));
    let golden = example("digits_vit.golden.safetensors");
    for (command, arguments) in [
        ("train", vec!["--data".as_ref(), train.as_os_str(), "--steps".as_ref(), "1".as_ref()]),
        ("eval", vec!["--data".as_ref(), heldout.as_os_str()]),
        ("check", vec![golden.as_os_str()]),
    ] {
        let output = headwater().arg(command).arg(&path).args(arguments).output().unwrap();
        assert_eq!(code(&output), Some(1), "{command}");
        assert!(stderr(&output).contains("is damaged"), "{command}: {}", stderr(&output));
    }
}

#[test]
fn a_run_leaves_its_page_and_its_trace() {
    let dir = tempfile::tempdir().unwrap();
    let (out, trace) = (dir.path().join("run"), dir.path().join("trace.json"));
    let more =
        ["--steps", "4", "--accumulate", "2", "--trace-steps", "3", "--trace", trace.to_str().unwrap()];
    let output = train(&out, &more).output().unwrap();
    assert_eq!(code(&output), Some(0), "{}", stderr(&output));
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(
        page.contains("complete: step 4 of 4")
            && page.contains("optimizer.lr")
            && !page.contains("http-equiv")
    );
    for fact in ["device", "processor", "PyTorch of the export", "training data"] {
        assert!(page.contains(fact), "the page says nothing of {fact}");
    }
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |category: &str| events.iter().filter(|e| e["cat"] == category).collect::<Vec<_>>();
    let number = |e: &serde_json::Value, key: &str| e[key].as_f64().unwrap();
    let within = |inner: &serde_json::Value, outer: &serde_json::Value| {
        let end = |e| number(e, "ts") + number(e, "dur");
        number(inner, "ts") >= number(outer, "ts") && end(inner) <= end(outer) + 1e-3
    };
    assert_eq!(of("step").len(), 3);
    // Two batches waited for and run, and one update a step.
    assert_eq!(of("host").len(), 3 * 5);
    for category in ["host", "forward", "backward", "update"] {
        let events = of(category);
        assert!(
            !events.is_empty() && events.iter().all(|e| of("step").iter().any(|s| within(e, s))),
            "{category}"
        );
    }
}

#[test]
fn threads_that_the_system_does_not_start_are_an_error() {
    // The stacks of 1024 threads take more than this address space, in KiB.
    let script = r#"ulimit -v 1200000 && exec "$0" inspect "$1" --threads 1024"#;
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_headwater")]).arg(example("digits_vit.pt2"));
    let output = command.output().unwrap();
    let said = stderr(&output);
    assert_eq!(code(&output), Some(1), "{said}");
    assert!(said.contains("does not start 1024 threads") && said.contains("ask for fewer"), "{said}");
}

#[test]
fn rows_without_columns_are_no_work() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.safetensors"), dir.path().join("out.safetensors"));
    // A file of 80 bytes: 2^40 rows of nothing.
    let header =
        format!("{:<72}", r#"{"self":{"dtype":"F32","shape":[1099511627776,0],"data_offsets":[0,0]}}"#);
    std::fs::write(&input, [&72u64.to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
    for op in ["gelu", "cumsum", "softmax"] {
        let mut command = headwater();
        command.args(["op", op, "--in"]).arg(&input).arg("--out").arg(&output);
        if op != "gelu" {
            command.args(["--attr", "dim=-1"]);
        }
        let done = command.output().unwrap();
        assert_eq!(code(&done), Some(0), "{op}: {}", stderr(&done));
    }
}

#[test]
fn a_mapped_file_that_shrinks_ends_in_a_message() {
    let dir = tempfile::tempdir().unwrap();
    let (data, out) = (dir.path().join("large.safetensors"), dir.path().join("run"));
    // Sparse samples, of more bytes than are read into memory.
    let samples = 400_000usize;
    let (image, label) = (samples * 256, samples * 8);
    let header = format!(
        r#"{{"images":{{"dtype":"F32","shape":[{samples},1,8,8],"data_offsets":[0,{image}]}},"labels":{{"dtype":"I64","shape":[{samples}],"data_offsets":[{image},{}]}}}}"#,
        image + label
    );
    std::fs::write(&data, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
    let file = File::options().write(true).open(&data).unwrap();
    file.set_len((8 + header.len() + image + label) as u64).unwrap();
    let mut command = headwater();
    command.arg("train").arg(example("digits_vit.pt2")).arg("--data").arg(&data).arg("--out").arg(&out);
    let mut child =
        command.args(["--batch", "16", "--steps", "1000000", "--save-every", "2"]).spawn().unwrap();
    let rest = wait_for(&mut child, "saved");
    file.set_len(100).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let said = rest.join().unwrap();
    assert!(said.contains("HW-R002") && said.contains("was changed while in use"), "{said}");
    assert!(!checkpoints(&out).is_empty());
}

/// The golden is a pipe: the model is mapped when somebody writes to it.
#[cfg(target_os = "linux")]
#[test]
fn a_model_that_shrinks_ends_in_a_message() {
    let dir = tempfile::tempdir().unwrap();
    let (model, golden) = (dir.path().join("model.pt2"), dir.path().join("model.golden.safetensors"));
    std::fs::copy(example("digits_vit.pt2"), &model).unwrap();
    assert!(Command::new("mkfifo").arg(&golden).status().unwrap().success());
    let child = headwater().arg("check").arg(&model).arg(&golden).spawn().unwrap();
    let maps = format!("/proc/{}/maps", child.id());
    let mapped = || std::fs::read_to_string(&maps).unwrap_or_default().contains("model.pt2");
    let begun = std::time::Instant::now();
    while !mapped() {
        assert!(begun.elapsed().as_secs() < 60, "the model was not mapped before the golden was read");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    // Opening the pipe waits until the program reads it, which it does when the model is open.
    let mut pipe = File::options().write(true).open(&golden).unwrap();
    File::options().write(true).open(&model).unwrap().set_len(0).unwrap();
    let bytes = std::fs::read(example("digits_vit.golden.safetensors")).unwrap();
    std::io::Write::write_all(&mut pipe, &bytes).unwrap();
    drop(pipe);
    let output = child.wait_with_output().unwrap();
    let said = stderr(&output);
    assert!(code(&output) == Some(1) && said.contains("HW-I001") && said.contains("was shortened"), "{said}");
}
