//! Numbers that a run serves for Prometheus, and alerts with their commands.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Training of the digits with evaluations, for `steps` steps, into a folder.
fn train(out: &Path, steps: u64) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits-vit");
    let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
    command.arg("train").arg(root.join("digits_vit.pt2"));
    command
        .arg("--data")
        .arg(root.join("train.safetensors"))
        .arg("--eval")
        .arg(root.join("heldout.safetensors"));
    command.args(["--batch", "32", "--eval-every", "3", "--steps", &steps.to_string()]).arg("--out").arg(out);
    command
}

/// The events of a kind in the log of a folder.
fn events(out: &Path, kind: &str) -> Vec<Value> {
    let log = std::fs::read_to_string(out.join("log.jsonl")).unwrap();
    let whole = log.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    whole.filter(|e| e["event"] == kind).collect()
}

/// A child that does not outlive its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Status line, head and body of the answer to a request.
fn request(address: &str, text: &str) -> (String, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let (status, head) = head.split_once("\r\n").unwrap();
    let length = head.lines().find_map(|l| l.strip_prefix("Content-Length: ")).unwrap();
    assert!(text.starts_with("HEAD") || length.parse::<usize>().unwrap() == body.len(), "{answer}");
    (status.to_string(), head.to_string(), body.to_string())
}

/// Samples of a text in Prometheus's format 0.0.4, each by its name with its labels. Every one belongs to a
/// family that was declared before, with a help text and a type, once; counters end in `_total`.
fn parse(text: &str) -> BTreeMap<String, f64> {
    assert!(text.ends_with('\n'), "the last line has an end");
    let name_of = |name: &str| {
        let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_' || c == ':');
        assert!(first && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':'), "{name}");
        name.to_string()
    };
    let (mut helped, mut typed, mut samples) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
    let mut family = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(!help.is_empty() && helped.insert(name_of(name)), "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            family = name_of(name);
            assert!(helped.contains(&family) && ["gauge", "counter"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(typed.insert(family.clone(), kind.to_string()).is_none(), "{line}");
        } else {
            let (key, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?}"));
            let (name, labels) = key.split_once('{').unwrap_or((key, "}"));
            assert_eq!(name_of(name), family, "{line}");
            let labels = labels.strip_suffix('}').unwrap_or_else(|| panic!("{line:?}"));
            for label in labels.split(',').filter(|l| !l.is_empty()) {
                let (label, value) = label.split_once('=').unwrap();
                name_of(label);
                assert!(value.len() > 1 && value.starts_with('"') && value.ends_with('"'), "{line}");
            }
            let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line:?}"));
            assert!(samples.insert(key.to_string(), value).is_none(), "{line} is there twice");
        }
    }
    samples
}

#[test]
fn a_run_serves_its_numbers_for_prometheus() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let child = train(&out, 1_000_000).args(["--metrics", "0"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut child = Running(child);
    let mut lines = BufReader::new(child.0.stderr.take().unwrap()).lines();
    let said = lines.find_map(|l| Some(l.ok()?.strip_prefix("metrics: http://")?.to_string())).unwrap();
    let address = said.strip_suffix("/metrics").unwrap().to_string();
    assert!(address.starts_with("127.0.0.1:"), "a port alone is reached from this machine: {address}");
    // The child's output is read, so that it does not wait for a reader.
    let reader = std::thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>());

    let get = |path: &str| request(&address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
    let begin = Instant::now();
    let (head, found) = loop {
        let (status, head, body) = get("/metrics");
        assert_eq!(status, "HTTP/1.1 200 OK");
        let found = parse(&body);
        if found.get("headwater_evaluation_step").is_some_and(|s| *s >= 3.0) {
            break (head, found);
        }
        assert!(
            !found.contains_key("headwater_loss") || found["headwater_step"] >= 1.0,
            "no number before it is known"
        );
        assert!(begin.elapsed() < Duration::from_secs(120), "{body}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(head.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    for name in [
        "headwater_loss",
        "headwater_gradient_norm",
        "headwater_learning_rate",
        "headwater_loss_scale",
        "headwater_samples_per_second",
        "headwater_planned_memory_bytes",
        "headwater_remaining_seconds",
        "headwater_samples_total",
        "headwater_evaluation{metric=\"accuracy\"}",
    ] {
        assert!(found.get(name).is_some_and(|x| *x > 0.0), "{name} in {found:?}");
    }
    assert_eq!((found["headwater_steps"], found["headwater_running"]), (1e6, 1.0));
    assert_eq!(found["headwater_skipped_steps_total"], 0.0);
    #[cfg(target_os = "linux")]
    assert!(found["process_resident_memory_bytes"] > 1e7, "{found:?}");
    // The numbers are those of the log. A step that ended while the answer was written may be in part of it.
    let step = found["headwater_step"] as u64;
    let near = events(&out, "step").into_iter().filter(|e| e["step"].as_u64().unwrap().abs_diff(step) <= 1);
    let losses: Vec<f64> = near.map(|e| e["loss"].as_f64().unwrap()).collect();
    assert!(losses.contains(&found["headwater_loss"]), "{} in {losses:?}", found["headwater_loss"]);
    let measured = events(&out, "evaluation");
    let accuracy = found["headwater_evaluation{metric=\"accuracy\"}"];
    assert!(measured.iter().any(|e| e["accuracy"].as_f64() == Some(accuracy)), "{accuracy}");

    // Everything else is refused, and a client that says nothing stops nobody for long.
    assert_eq!(get("/").0, "HTTP/1.1 404 Not Found");
    assert_eq!(request(&address, "POST /metrics HTTP/1.1\r\n\r\n").0, "HTTP/1.1 405 Method Not Allowed");
    let (status, _, body) = request(&address, "HEAD /metrics HTTP/1.1\r\n\r\n");
    assert_eq!((&status[..], &body[..]), ("HTTP/1.1 200 OK", ""));
    let silent = TcpStream::connect(&address).unwrap();
    assert_eq!(get("/metrics?x=1").0, "HTTP/1.1 200 OK");
    drop(silent);

    // The port that is taken, and what is no address.
    let refused = |address: &str| {
        let done = train(&dir.path().join("other"), 1).args(["--metrics", address]).output().unwrap();
        (
            done.status.code(),
            String::from_utf8_lossy(&done.stderr).split_whitespace().collect::<Vec<_>>().join(" "),
        )
    };
    let (status, said) = refused(&address);
    assert!(
        status == Some(1) && said.contains("another process has that port: stop it, or name another port"),
        "{said}"
    );
    let (status, said) = refused("localhost");
    assert!(status == Some(2) && said.contains("an address with a port, such as 127.0.0.1:9464"), "{said}");
    drop(child);
    reader.join().unwrap();
}

/// A file of settings opens no port to others: the command line does.
#[test]
fn an_address_that_others_reach_is_named_on_the_command_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("train.toml");
    let run = |address: &str, more: &[&str]| {
        std::fs::write(&file, format!("[log]\nmetrics = \"{address}\"\n")).unwrap();
        let _ = std::fs::remove_dir_all(dir.path().join("run"));
        let done = train(&dir.path().join("run"), 1).arg("--config").arg(&file).args(more).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
        (done.status.code(), said)
    };
    for open in ["0.0.0.0:0", "[::]:0"] {
        let (status, said) = run(open, &[]);
        let way = format!("name it on the command line, --metrics {open}");
        assert!(
            status == Some(2) && said.contains(&way) && said.contains("127.0.0.1:9464"),
            "{status:?} {said}"
        );
    }
    let (status, said) = run("0.0.0.0:0", &["--metrics", "0.0.0.0:0"]);
    assert!(status == Some(0) && said.contains("metrics: http://0.0.0.0:"), "{said}");
    assert!(said.contains("other machines can read the metrics at that address"), "{said}");
    for local in ["0", "127.0.0.1:0"] {
        let (status, said) = run(local, &[]);
        assert!(status == Some(0) && said.contains("metrics: http://127.0.0.1:"), "{said}");
        assert!(!said.contains("other machines"), "{said}");
    }
    // The same in a job.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits-vit");
    let job = format!(
        "[model]\nexport = {:?}\n[train]\nsteps = 1\n[train.data]\ntrain = {:?}\n[train.log]\nmetrics = \"0.0.0.0:0\"\n",
        root.join("digits_vit.pt2"),
        root.join("train.safetensors"),
    );
    std::fs::write(dir.path().join("migrate.toml"), job).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
    let done =
        command.arg("migrate").arg(dir.path()).arg("--out").arg(dir.path().join("out")).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(2) && said.contains("--metrics 0.0.0.0:0"), "{said}");
}

#[cfg(unix)]
mod alerts {
    use super::*;

    /// Trains with a file of settings; what it says, and its events of a kind.
    fn run(dir: &Path, settings: &str, more: &[&str]) -> (String, bool) {
        let file = dir.join("train.toml");
        // That of an earlier run, into which no new one goes.
        let _ = std::fs::remove_dir_all(dir.join("run"));
        std::fs::write(&file, settings).unwrap();
        let done = train(&dir.join("run"), 8).arg("--config").arg(&file).args(more).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
        (said, done.status.success())
    }

    /// A command that adds a line of what it was given to a file, and its arguments.
    fn noting(file: &Path) -> String {
        let script = "printf '%s|' \"$HEADWATER_ALERT\" \"$HEADWATER_ALERT_STEP\" \"$HEADWATER_ALERT_LOSS\" \
                      \"$HEADWATER_ALERT_RUN\" \"$@\" >> \"$0\"; echo >> \"$0\"";
        let command = ["sh", "-c", script, file.to_str().unwrap(), "$HOME; a b"];
        format!("command = {}\n", serde_json::to_string(&command).unwrap())
    }

    #[test]
    fn a_high_loss_calls_a_command_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("called");
        let settings = format!("[alert]\nloss_above = 0.5\n{}", noting(&file));
        let (said, done) = run(dir.path(), &settings, &["--allow-command"]);
        assert!(done && said.matches("alert at step").count() == 1, "{said}");
        assert!(said.contains("warning: alert at step 1: the loss is"), "{said}");
        let out = dir.path().join("run");
        let (alerts, steps) = (events(&out, "alert"), events(&out, "step"));
        assert_eq!(alerts.len(), 1, "{alerts:?}");
        assert_eq!((&alerts[0]["alert"], &alerts[0]["step"]), (&"loss_above".into(), &1.into()));
        assert_eq!(alerts[0]["loss"], steps[0]["loss"]);
        assert!(alerts[0]["time"].as_f64().unwrap() > 1.7e9 && alerts[0]["message"].is_string());
        // Words reach the program as they stand in the file: no shell has read them.
        let called = std::fs::read_to_string(&file).unwrap();
        let loss = steps[0]["loss"].as_f64().unwrap();
        let folder = std::path::absolute(&out).unwrap();
        assert_eq!(called, format!("loss_above|1|{loss}|{}|$HOME; a b|\n", folder.display()));
    }

    #[test]
    fn a_migration_whose_run_ends_in_numbers_that_are_not_finite_raises_one() {
        let dir = tempfile::tempdir().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits-vit");
        let job = format!(
            "[model]\nexport = {:?}\n[train]\nsteps = 8\nbatch = 32\nnonfinite = \"stop\"\n[train.optimizer]\nname = \"sgd\"\nlr = 1e30\n\
             [train.data]\ntrain = {:?}\n[train.alert]\nloss_above = 1e300\n",
            root.join("digits_vit.pt2"),
            root.join("train.safetensors"),
        );
        std::fs::write(dir.path().join("migrate.toml"), job).unwrap();
        let out = dir.path().join("out");
        let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
        let done = command.arg("migrate").arg(dir.path()).arg("--out").arg(&out).output().unwrap();
        let said =
            String::from_utf8_lossy(&done.stderr).into_owned() + &String::from_utf8_lossy(&done.stdout);
        assert!(!done.status.success() && said.contains("not finite"), "{said}");
        let alerts = events(&out, "alert");
        assert!(alerts.len() == 1 && alerts[0]["alert"] == "loss_above", "{alerts:?} {said}");
    }

    #[test]
    fn a_run_that_does_nothing_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("called");
        // 60 µs: less than any step.
        let settings = format!("[alert]\nno_progress_minutes = 1e-6\n{}", noting(&file));
        let (said, done) = run(dir.path(), &settings, &["--allow-command"]);
        assert!(done && said.contains("nothing was done after step"), "{said}");
        let alerts = events(&dir.path().join("run"), "alert");
        assert_eq!((alerts.len(), &alerts[0]["alert"]), (1, &"no_progress".into()));
        let called = std::fs::read_to_string(&file).unwrap();
        assert!(called.starts_with("no_progress|") && called.lines().count() == 1, "{called}");
        // Nothing happens within a minute where nothing should.
        let quiet = "[alert]\nno_progress_minutes = 1000\nloss_above = 1000\n";
        let (said, done) = run(dir.path(), quiet, &[]);
        assert!(
            done && !said.contains("alert at") && events(&dir.path().join("run"), "alert").is_empty(),
            "{said}"
        );
    }

    #[test]
    fn no_step_waits_for_a_command() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("called");
        // It ends when the run has, and so never if the run waited for it.
        let script = "until grep -q '\"event\":\"end\"' \"$HEADWATER_ALERT_RUN/log.jsonl\"; do sleep 0.1; done; echo done > \"$0\"";
        let command = serde_json::to_string(&["sh", "-c", script, file.to_str().unwrap()]).unwrap();
        let settings = format!("[alert]\nloss_above = 0.5\ncommand = {command}\n");
        let (said, done) = run(dir.path(), &settings, &["--allow-command"]);
        assert!(done && said.contains("alert at step 1"), "{said}");
        assert_eq!(
            std::fs::read_to_string(&file).unwrap(),
            "done\n",
            "the end of the process has waited for it"
        );
    }

    #[test]
    fn a_command_that_fails_ends_nothing_and_one_that_is_not_allowed_does_not_run() {
        let dir = tempfile::tempdir().unwrap();
        let warnings = || {
            let all = events(&dir.path().join("run"), "warning");
            all.iter().map(|w| w["message"].as_str().unwrap().to_string()).collect::<Vec<_>>().join("\n")
        };
        let failing = "[alert]\nloss_above = 0.5\ncommand = [\"sh\", \"-c\", \"echo no mail >&2; exit 3\"]\n";
        let (said, done) = run(dir.path(), failing, &["--allow-command"]);
        let why = "the command of the alert `loss_above`, sh, failed: exit status: 3: no mail";
        assert!(done && said.contains(why) && warnings().contains(why), "{said}");
        let missing = "[alert]\nloss_above = 0.5\ncommand = [\"no-such-program\"]\n";
        let (said, done) = run(dir.path(), missing, &["--allow-command"]);
        assert!(done && said.contains("no-such-program, failed: it cannot be started"), "{said}");

        let file = dir.path().join("called");
        let (said, done) = run(dir.path(), &format!("[alert]\nloss_above = 0.5\n{}", noting(&file)), &[]);
        assert!(
            done && said.contains("`alert.command` is not run") && said.contains("--allow-command"),
            "{said}"
        );
        assert!(said.contains("alert at step 1") && !file.exists(), "{said}");

        for (settings, more, says) in [
            ("[alert]\ncommand = [\"x\"]\n", &[][..], "`alert.command`: would never run"),
            ("[alert]\nno_progress_minutes = 0\n", &[], "`alert.no_progress_minutes`: must be more than 0"),
            ("[alert]\nloss_above = 1\n", &["--allow-command"], "--allow-command does nothing"),
        ] {
            let (said, done) = run(dir.path(), settings, more);
            assert!(!done && said.contains(says), "{said}");
        }
    }
}
