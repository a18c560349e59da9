//! Nine families of real models, in both exported forms, against what PyTorch computed.

use headwater::check::{Compared, Verdict, check};
use headwater::core::DType;
use headwater::core::device::Device;
use headwater::cpu::Cpu;
use headwater::curve::follow;
use headwater::devices;
use headwater::golden::{Golden, Kind};
use headwater::model::Model;
use std::path::PathBuf;
use std::sync::Arc;

const FAMILIES: [&str; 9] =
    ["vit", "resnet", "bert", "gpt2", "llama", "qwen2", "clip", "deepseek_v3", "internvl"];

fn open(family: &str, form: &str) -> (Model, Golden) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../goldens").join(family);
    let model = Model::open(&folder.join(format!("{family}.{form}.pt2"))).unwrap_or_else(|e| panic!("{e:#}"));
    let golden = Golden::read(&folder.join(format!("{family}.{form}.golden.safetensors")))
        .unwrap_or_else(|e| panic!("{e:#}"));
    (model, golden)
}

/// Faults of a family's model at a precision on a device: everything must be within its derived bound,
/// nothing missing, and outputs, gradients and buffers are within `limit`.
fn wrong(family: &str, form: &str, precision: DType, device: &dyn Device, limit: f64) -> Vec<String> {
    let (model, golden) = open(family, form);
    let name = format!("{family}.{form} in {precision} on {}", device.name());
    let report = check(&model, &golden, precision, device).unwrap_or_else(|e| panic!("{name}: {e:#}"));
    assert!(report.of(Kind::Gradient).count() > 5, "{name}: compared too few gradients");
    assert!(report.of(Kind::Node).count() > 5, "{name}: compared too few nodes");
    let missing = report.missing.iter().map(|m| format!("{name}: {m}"));
    let unmatched = report.unmatched.iter().map(|m| format!("{name}: no node {m}"));
    // In f32 and f64 all is proved.
    let low = precision.epsilon() > DType::F32.epsilon();
    let agrees = |c: &Compared| if low { c.passed() } else { c.verdict == Verdict::Proved };
    let differs = |c: &&Compared| !agrees(c) || (c.kind != Kind::Node && c.error > limit);
    let differ = report
        .compared
        .iter()
        .filter(differs)
        .map(|c| format!("{name}: {:?} {}: error {:e}, bound {:e}", c.kind, c.name, c.error, c.bound));
    missing.chain(unmatched).chain(differ).collect()
}

/// Every family in both forms on the CPU.
fn agrees(precision: DType, limit: f64) {
    let cpu = Cpu::new(2);
    let all = FAMILIES.iter().flat_map(|family| ["train", "core"].map(|form| (family, form)));
    let wrong: Vec<String> =
        all.flat_map(|(family, form)| wrong(family, form, precision, &cpu, limit)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Some families on simulated NPUs, in every precision that their products have. Derived bounds are all that
/// limits them: of 8 and 11 bits they are wide.
fn agree_on_chips(families: &[&str]) {
    let mut found = Vec::new();
    for (chip, precisions) in
        [("910b1", &[DType::F32, DType::F16, DType::BF16][..]), ("310p", &[DType::F32, DType::F16])]
    {
        let device = devices::open(&format!("ascend-sim:{chip}"), 2).unwrap();
        for &precision in precisions {
            for family in families {
                found.extend(wrong(family, "train", precision, device.as_ref(), f64::INFINITY));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_family_agrees_in_f64() {
    agrees(DType::F64, 1e-9);
}

#[test]
fn every_family_agrees_in_f32() {
    agrees(DType::F32, 1e-4);
}

#[test]
fn two_families_agree_on_simulated_chips() {
    agree_on_chips(&["vit", "llama"]);
}

/// Takes minutes: `.ci/long` runs it.
#[test]
#[ignore = "minutes"]
fn every_family_agrees_on_simulated_chips() {
    agree_on_chips(&FAMILIES);
}

#[test]
fn every_family_follows_the_recorded_training() {
    for family in FAMILIES {
        for form in ["train", "core"] {
            let (model, golden) = open(family, form);
            let run = follow(&model, &golden, Arc::new(Cpu::new(2)))
                .unwrap_or_else(|e| panic!("{family}.{form}: {e:#}"));
            assert!(run.ours.len() >= 20, "{family}.{form}: only {} steps are recorded", run.ours.len());
            let (step, apart) = run.worst(20);
            assert!(apart <= 1e-4, "{family}.{form}: step {step} is {apart:e} away");
        }
    }
}
