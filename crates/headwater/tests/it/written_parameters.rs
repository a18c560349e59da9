//! Parameters that the forward pass writes, against what PyTorch computed.

use crate::common::agrees;
use headwater::check::check;
use headwater::core::DType;
use headwater::cpu::Cpu;
use headwater::curve::follow;
use headwater::golden::{Golden, Kind};
use headwater::model::Model;
use std::path::Path;
use std::sync::Arc;

#[test]
fn rows_held_to_a_norm_train_as_in_pytorch() {
    trains_as_in_pytorch("embeddings", 2);
}

/// Its momentum encoder's weights are trainable by name, and have no gradient.
#[test]
fn a_momentum_encoder_trains_as_in_pytorch() {
    trains_as_in_pytorch("momentum", 3);
}

fn trains_as_in_pytorch(name: &str, gradients: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens/writes");
    let model = Model::open(&folder.join(format!("{name}.train.pt2"))).unwrap();
    let golden = Golden::read(&folder.join(format!("{name}.train.golden.safetensors"))).unwrap();
    for precision in [DType::F64, DType::F32] {
        let report = check(&model, &golden, precision, &Cpu::new(2)).unwrap();
        assert_eq!(report.of(Kind::Gradient).count(), gradients, "gradients in {precision}");
        let wrong: Vec<_> =
            report.compared.iter().filter(|c| !agrees(c, precision)).map(|c| &c.name).collect();
        assert!(
            wrong.is_empty() && report.missing.is_empty(),
            "in {precision}: {wrong:?}, {:?}",
            report.missing
        );
    }
    let run = follow(&model, &golden, Arc::new(Cpu::new(2))).unwrap();
    assert_eq!(run.ours.len(), 12);
    // The losses of twelve steps of 0.1, in f32: what is kept of the old rows would move them by percents.
    let (step, apart) = run.worst(12);
    assert!(apart <= 1e-4, "step {step} is {apart:e} away");
}
