//! Nine families of real models, in both exported forms, against what PyTorch computed.

use headwater::check::{CheckReport, check};
use headwater::core::DType;
use headwater::cpu::Cpu;
use headwater::curve::follow;
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

fn run(family: &str, form: &str, precision: DType) -> CheckReport {
    let (model, golden) = open(family, form);
    check(&model, &golden, precision, &Cpu::new(2)).unwrap_or_else(|e| panic!("{family}.{form}: {e:#}"))
}

/// Everything is within its derived bound, nothing is missing, and outputs, gradients and buffers are within
/// `limit`.
fn agrees(precision: DType, limit: f64) {
    let mut wrong = Vec::new();
    for family in FAMILIES {
        for form in ["train", "core"] {
            let report = run(family, form, precision);
            assert!(report.of(Kind::Gradient).count() > 5, "{family}.{form} compared too few gradients");
            assert!(report.of(Kind::Node).count() > 5, "{family}.{form} compared too few nodes");
            wrong.extend(report.missing.iter().map(|m| format!("{family}.{form}: {m}")));
            wrong.extend(report.unmatched.iter().map(|m| format!("{family}.{form}: no node {m}")));
            for c in &report.compared {
                if !c.passed || (c.kind != Kind::Node && c.error > limit) {
                    let (name, error, bound) = (&c.name, c.error, c.bound);
                    wrong.push(format!(
                        "{family}.{form}: {:?} {name}: error {error:e}, bound {bound:e}",
                        c.kind
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
