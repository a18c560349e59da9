//! The same bits for any number of threads, and for every run.

use headwater::cpu::Cpu;
use headwater::import::Dims;
use headwater::model::Model;
use headwater::runtime::TrainConfig;
use headwater::train::with_trainer;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Losses and final parameters of a short run on the digits.
fn train(threads: usize) -> (Vec<f64>, Vec<(String, Vec<u8>)>) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits-vit");
    let model = Model::open(&folder.join("digits_vit.pt2")).unwrap();
    let mut config = TrainConfig {
        steps: Some(4),
        batch: Some(32),
        seed: 7,
        clip_norm: Some(1.0),
        ..TrainConfig::default()
    };
    config.data.train = folder.join("train.safetensors");
    config.accumulate = 2;
    with_trainer(&model, Dims::new(), config, Arc::new(Cpu::new(threads)), false, |trainer, _| {
        let summary = trainer.run(&mut [], &AtomicBool::new(false))?;
        let session = trainer.session();
        let tensors = session.tensors().iter().map(|t| Ok((t.name.clone(), session.read(t)?)));
        Ok((summary.losses, tensors.collect::<anyhow::Result<_>>()?))
    })
    .unwrap()
}

#[test]
fn training_gives_the_same_bits_for_any_number_of_threads_and_every_run() {
    let one = train(1);
    assert_eq!(one.0.len(), 4);
    assert!(one.1.len() > 30);
    for threads in [1, 2, 7] {
        let other = train(threads);
        assert!(
            one.0.iter().zip(&other.0).all(|(a, b)| a.to_bits() == b.to_bits()),
            "{threads} threads: other losses"
        );
        assert!(one.1 == other.1, "{threads} threads: other parameters");
    }
}
