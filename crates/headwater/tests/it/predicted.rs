//! Predicted times of a training step, as `headwater inspect` states them for simulated chips.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Seconds of the host for one launch.
const LAUNCH: f64 = 20e-6;

fn inspect(device: &str, args: &[&str]) -> Value {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens/llama/llama.train.pt2");
    let out = Command::new(env!("CARGO_BIN_EXE_headwater"))
        .args(["inspect", model.to_str().unwrap(), "--device", device, "--json"])
        .args(args)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn number(v: &Value) -> f64 {
    v.as_f64().unwrap_or_else(|| panic!("no number: {v}"))
}

/// No unit is busy for longer than kernels run, and the parts of a step add up.
#[test]
fn a_step_on_a_chip_has_a_time_and_busy_units() {
    for device in ["ascend-sim:910b1", "ascend-sim:310p"] {
        let found = inspect(device, &["--amp", "O2"]);
        assert!(found["remark"].as_str().unwrap().starts_with("simulated"), "{}", found["remark"]);
        let (mut kernels, mut launches) = (0.0, 0.0);
        for step in found["steps"].as_array().unwrap() {
            let Some(own) = step["kernels"].as_f64() else { continue };
            kernels += own;
            launches += number(&step["launches"]);
            let with = own + LAUNCH * number(&step["launches"]);
            assert!((number(&step["predicted"]) / with - 1.0).abs() < 1e-9, "{device}: {step}");
            let busy: Vec<f64> = step["busy"].as_object().unwrap().values().map(number).collect();
            let most = busy.iter().copied().fold(0.0, f64::max);
            assert!(most > 0.0 && most <= own * (1.0 + 1e-9), "{device}: {step}");
        }
        let time = &found["predicted"];
        let [seconds, alone, launching] = ["seconds", "kernels", "launching"].map(|key| number(&time[key]));
        assert!((alone / kernels - 1.0).abs() < 1e-9, "{device}: {time}");
        assert!((launching / (LAUNCH * launches) - 1.0).abs() < 1e-9, "{device}: {time}");
        assert!(alone.max(launching) < seconds && seconds < alone + launching, "{device}: {time}");
        // L2 is warm at each launch: the memory's time and the bytes of all operands are printed next to each
        // other.
        let memory: f64 =
            found["steps"].as_array().unwrap().iter().filter_map(|s| s["busy"]["memory"].as_f64()).sum();
        assert!(
            (number(&time["memory"]) - memory).abs() <= 1e-9 * alone && memory <= alone,
            "{device}: {time}"
        );
        assert!(number(&time["operand_bytes"]) > 4.0 * number(&found["parameters"][0]), "{device}: {time}");
        // The bound of the step, the memory of the chip, and the kernels' time by module.
        let bound = found["bound"].as_str().unwrap();
        let (word, of) = match launching > alone {
            true => ("launch-bound: of ", "replay them (predicted: "),
            false => ("bound", "% of it"),
        };
        assert!(bound.contains(word) && bound.contains(of), "{device}: {bound}");
        assert_eq!(
            found["device_memory"],
            if device.ends_with("310p") { 24u64 << 30 } else { 64 << 30 },
            "{device}"
        );
        let modules = found["modules"].as_array().unwrap().iter().filter_map(|m| m["kernels"].as_f64());
        let modules: f64 = modules.sum();
        assert!(
            modules > 0.3 * alone && modules < alone,
            "{device}: {modules} of {alone}, without the update"
        );
        // Masters of bf16 weights included, everything has a kernel.
        assert_eq!(time["host"], 0, "{device}: {found}");
    }
}

/// The command prints the figure that BENCHMARKS.md has for it, of the kernel that projects have.
#[test]
fn the_sum_takes_what_benchmarks_say() {
    let benchmarks = include_str!("../../../../BENCHMARKS.md");
    let row = benchmarks.lines().find(|line| line.starts_with("| add 8192² |")).unwrap();
    let said: f64 = row.split('|').nth(3).unwrap().trim().trim_end_matches(" µs").parse().unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_headwater"))
        .args(["bench", "kernel", "add", "--shape", "8192x8192", "--dtype", "f16"])
        .args(["--device", "ascend-sim:910b1", "--json"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let found: Value = serde_json::from_slice(&out.stdout).unwrap();
    let took = number(&found[0]["task_duration"]);
    assert!((took - said).abs() < 0.06, "{took} µs, {said} in BENCHMARKS.md");
}

/// The optimizer's update is a part of it: moments in another form change nothing else, and the time.
#[test]
fn the_update_is_counted() {
    let time = |form| number(&inspect("ascend-sim:910b1", &["--moments", form])["predicted"]["kernels"]);
    let (whole, halved) = (time("f32"), time("bf16"));
    assert!(whole > 0.0 && halved > 0.0 && whole != halved, "{whole} {halved}");
}

#[test]
fn a_processor_has_no_prediction() {
    let found = inspect("cpu", &[]);
    assert!(found["bound"].is_null() && found["device_memory"].is_null(), "{found}");
    assert!(found["predicted"].is_null() && found["steps"][0]["kernels"].is_null(), "{found}");
}
