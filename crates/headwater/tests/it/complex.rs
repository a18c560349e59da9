//! Models that compute complex numbers, in both exported forms, against what PyTorch computed.

use crate::common::agrees;
use headwater::check::check;
use headwater::core::DType;
use headwater::core::pass;
use headwater::core::pass::precision::{Level, PrecisionSettings};
use headwater::core::target::Target;
use headwater::cpu::Cpu;
use headwater::curve::follow;
use headwater::golden::{Golden, Kind};
use headwater::import::Dims;
use headwater::model::Model;
use std::path::PathBuf;
use std::sync::Arc;

const MODELS: [&str; 11] = [
    "arithmetic",
    "products",
    "shapes",
    "writes",
    "transforms",
    "rotary",
    "fnet",
    "gfnet",
    "fno",
    "afno",
    "spectrogram",
];

fn open(name: &str, form: &str) -> (Model, Golden) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../goldens/complex");
    let model = Model::open(&folder.join(format!("{name}.{form}.pt2"))).unwrap_or_else(|e| panic!("{e:#}"));
    let golden = Golden::read(&folder.join(format!("{name}.{form}.golden.safetensors")));
    (model, golden.unwrap_or_else(|e| panic!("{e:#}")))
}

fn all() -> impl Iterator<Item = (String, Model, Golden)> {
    MODELS.into_iter().flat_map(|name| {
        ["train", "core"].map(|form| {
            let (model, golden) = open(name, form);
            (format!("{name}.{form}"), model, golden)
        })
    })
}

#[test]
fn outputs_gradients_and_intermediate_values_agree() {
    let mut wrong = Vec::new();
    for (name, model, golden) in all() {
        for precision in [DType::F64, DType::F32] {
            let report = check(&model, &golden, precision, &Cpu::new(2));
            let report = report.unwrap_or_else(|e| panic!("{name} in {precision}: {e:#}"));
            assert!(report.of(Kind::Gradient).count() > 0, "{name} compared no gradients");
            assert!(report.of(Kind::Node).count() > 2, "{name} compared too few nodes");
            wrong.extend(report.missing.iter().map(|m| format!("{name} in {precision}: {m}")));
            wrong.extend(report.unmatched.iter().map(|m| format!("{name} in {precision}: no node {m}")));
            for c in report.compared.iter().filter(|c| !agrees(c, precision)) {
                let (value, error, bound) = (&c.name, c.error, c.bound);
                wrong.push(format!(
                    "{name} in {precision}: {:?} {value}: error {error:e}, bound {bound:e}",
                    c.kind
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn training_follows_pytorchs() {
    for (name, model, golden) in all() {
        let run = follow(&model, &golden, Arc::new(Cpu::new(2))).unwrap_or_else(|e| panic!("{name}: {e:#}"));
        assert!(run.ours.len() >= 10, "{name}: only {} steps are recorded", run.ours.len());
        let (step, apart) = run.worst(10);
        assert!(apart <= 1e-4, "{name}: step {step} is {apart:e} away");
    }
}

#[test]
fn every_level_of_mixed_precision_takes_them() {
    for (name, model, _) in all() {
        let bound = model.bind(&Dims::default().or_exported()).unwrap();
        for level in [Level::O1, Level::O2, Level::O3] {
            for dtype in [DType::F16, DType::BF16] {
                let settings =
                    PrecisionSettings { level, dtype: Some(dtype), ..PrecisionSettings::default() };
                let mixed =
                    pass::precision::apply(&bound.graph, &settings.properties(&Target::default()).unwrap())
                        .unwrap_or_else(|e| panic!("{name} at {settings:?}: {e}"));
                let graph = pass::decompose(mixed.graph).unwrap();
                let loss = graph.outputs[0].value;
                pass::differentiate(graph, loss).unwrap_or_else(|e| panic!("{name} at {settings:?}: {e}"));
            }
        }
    }
}
