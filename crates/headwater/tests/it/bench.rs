//! Reports of `headwater bench` add up. Times are not judged: the machine may be busy.

use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

fn headwater(args: &[&str]) -> Value {
    let out = Command::new(env!("CARGO_BIN_EXE_headwater"))
        .args(args)
        .args(["--quick", "--json", "--threads", "2"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn golden(file: &str) -> String {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../goldens").join(file).display().to_string()
}

fn number(v: &Value) -> f64 {
    v.as_f64().unwrap_or_else(|| panic!("no number: {v}"))
}

fn sum(parts: &Value, key: &str) -> f64 {
    parts.as_array().unwrap().iter().map(|p| number(&p[key])).sum()
}

#[test]
fn a_machine_has_limits() {
    let m = headwater(&["bench", "machine"]);
    assert_eq!(m["threads"], 2);
    for rate in ["f32_gflops", "bf16_gflops", "f64_gflops", "copy_gbs", "copy_streaming_gbs", "read_gbs"] {
        assert!(number(&m[rate]) > 0.0, "{rate}");
    }
}

#[test]
fn the_parts_of_a_step_add_up() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json");
    let model = golden("llama/llama.core.pt2");
    let args = ["bench", "step", &model, "--steps", "2", "--trace", trace.to_str().unwrap()];
    let found = headwater(&args);
    let step = &found["step"];
    let trace: Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let trace: Vec<&Value> =
        trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X").collect();
    assert_eq!(step["step"]["runs"], 2);
    assert_eq!(step["precision"], "f32");
    // One step to start, one as warm-up, two measured, two traced; all on one batch, whose loss falls.
    let losses: Vec<f64> = step["losses"].as_array().unwrap().iter().map(number).collect();
    assert_eq!(losses.len(), 6);
    assert!(losses.windows(2).all(|w| w[1] < w[0]), "{losses:?}");
    for parts in ["kinds", "phases", "operators", "modules"] {
        let parts = &step[parts];
        assert_eq!(sum(parts, "count"), trace.len() as f64);
        assert!((sum(parts, "share") - 1.0).abs() < 1e-9);
        assert!((sum(parts, "floor") / number(&step["floor"]) - 1.0).abs() < 1e-9);
        let seconds: f64 = trace.iter().map(|t| number(&t["dur"]) * 1e-6).sum();
        // A span of the trace is less than 3 ns shorter: whole nanoseconds within it, less one.
        let less = sum(parts, "seconds") - seconds;
        assert!((-1e-12..trace.len() as f64 * 3e-9).contains(&less), "{less}");
    }
    let names = |parts: &Value| -> Vec<String> {
        parts.as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap().to_string()).collect()
    };
    let mut phases = names(&step["phases"]);
    phases.sort();
    assert_eq!(phases, ["backward", "forward", "update"]);
    assert!(names(&step["operators"]).contains(&"adamw".to_string()));
    assert!(trace.iter().any(|t| t["args"]["product"] == true && number(&t["args"]["flops"]) > 0.0));
    // Gradients and two moments for each parameter, at least.
    assert!(number(&step["memory"]["planned"]) > 16.0 * number(&step["parameters"]));
    let start = &step["start"];
    let total = ["import", "compile", "step"].iter().map(|k| number(&start[k])).sum::<f64>();
    assert!((number(&start["total"]) - total).abs() < 1e-9);
}

#[test]
fn a_step_is_measured_in_the_precision_asked_for() {
    let found =
        headwater(&["bench", "step", &golden("llama/llama.core.pt2"), "--steps", "1", "--precision", "bf16"]);
    assert_eq!(found["step"]["precision"], "O2 bf16");
    assert_eq!(found["step"]["skipped"], 0);
    let parameters = number(&found["step"]["parameters"]);
    assert!(parameters > 0.0 && number(&found["step"]["memory"]["planned"]) > 12.0 * parameters);
}

/// Other devices have no limits to be held against; a simulated one says that it is.
#[test]
fn a_step_is_measured_on_other_devices() {
    for (device, remark) in [("reference", None), ("ascend-sim:910b1", Some("simulated"))] {
        let model = golden("writes/copies.train.pt2");
        let found = headwater(&["bench", "step", &model, "--steps", "1", "--device", device]);
        let step = &found["step"];
        assert_eq!(step["device"], device);
        assert_eq!(step["remark"].as_str().map(|r| r.contains(remark.unwrap_or(""))), remark.map(|_| true));
        assert!(found["machine"].is_null() && step["floor"].is_null() && step["share"].is_null());
        assert!((sum(&step["operators"], "share") - 1.0).abs() < 1e-9);
        assert!(sum(&step["operators"], "seconds") > 0.0 && sum(&step["operators"], "floor") == 0.0);
        // One step to start, one as warm-up, one measured, one traced.
        let losses: Vec<f64> = step["losses"].as_array().unwrap().iter().map(number).collect();
        assert!(losses.len() == 4 && losses[3] < losses[0], "{losses:?}");
    }
    let refused = Command::new(env!("CARGO_BIN_EXE_headwater"))
        .args(["bench", "machine", "--device", "reference"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).to_string();
    assert!(refused.status.code() == Some(2) && said.contains("reference states none"), "{said}");
}

#[test]
fn operators_are_held_against_the_limits() {
    let found =
        headwater(&["bench", "ops", "--filter", "64×64×64", "--dtypes", "f32,bf16", "--seconds", "0"]);
    let rows = found["operators"].as_array().unwrap();
    let kinds: Vec<_> =
        rows.iter().map(|r| (r["dtype"].as_str().unwrap(), r["direction"].as_str().unwrap())).collect();
    let both = ["forward", "forward+backward"];
    assert_eq!(kinds, [("f32", both[0]), ("f32", both[1]), ("bf16", both[0]), ("bf16", both[1])]);
    for r in rows {
        // One product of 64³ forward, two more backward; two operands and a result, then three and two.
        let backward = r["direction"] == "forward+backward";
        let size = if r["dtype"] == "f32" { 4.0 } else { 2.0 };
        assert_eq!(number(&r["flops"]), 2.0 * 64f64.powi(3) * if backward { 3.0 } else { 1.0 });
        assert_eq!(number(&r["bytes"]), size * 64.0 * 64.0 * if backward { 8.0 } else { 3.0 });
        let gflops = number(&r["flops"]) / number(&r["seconds"]) / 1e9;
        assert!((number(&r["gflops"]) / gflops - 1.0).abs() < 1e-9);
        assert_eq!(r["runs"], 3);
        assert!(number(&r["share"]) > 0.0);
    }
}

#[test]
fn kernels_of_a_chip_are_timed() {
    for device in ["ascend-sim:910b1", "ascend-sim:310p"] {
        for (name, shape) in [
            ("matmul", "256x384x512"),
            ("attention", "1x2x128x64"),
            ("attention", "1x1x512x64"),
            ("gelu", "256x256"),
            ("add", "256x256"),
            ("rms_norm", "64x256"),
            ("embedding_grad", "300x100x64"),
        ] {
            let args = ["bench", "kernel", name, "--shape", shape, "--dtype", "f16", "--device", device];
            let launches = headwater(&args);
            let launches = launches.as_array().unwrap();
            assert!(!launches.is_empty(), "{name} on {device}");
            for launch in launches {
                let task = number(&launch["task_duration"]);
                let busiest = launch["pipes"].as_object().unwrap().values().map(number).fold(0.0, f64::max);
                assert!(busiest > 0.0 && busiest <= task, "{name} on {device}: {launch}");
            }
        }
    }
}
