//! Short runs on the digits.

use headwater::cpu::Cpu;
use headwater::import::Dims;
use headwater::model::Model;
use headwater::runtime::TrainConfig;
use headwater::train::with_trainer;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What a run ended with.
pub struct Run {
    pub losses: Vec<f64>,
    /// Names and bytes of parameters.
    pub tensors: Vec<(String, Vec<u8>)>,
    /// Bytes of the arena. Not every test asks.
    #[allow(dead_code)]
    pub arena: usize,
    /// Bytes that all of training takes, as planned.
    #[allow(dead_code)]
    pub planned: usize,
}

impl Run {
    /// Whether the losses have the same bits.
    pub fn same_losses(&self, other: &Run) -> bool {
        let bits = |r: &Run| r.losses.iter().map(|l| l.to_bits()).collect::<Vec<_>>();
        bits(self) == bits(other)
    }
}

/// Four steps of two batches of 32, as `set` wants them.
pub fn train(threads: usize, set: impl FnOnce(&mut TrainConfig)) -> Run {
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
    set(&mut config);
    with_trainer(&model, Dims::new(), config, Arc::new(Cpu::new(threads)), false, |trainer, _| {
        let summary = trainer.run(&mut [], &AtomicBool::new(false))?;
        let session = trainer.session();
        let tensors = session.tensors().iter().map(|t| Ok((t.name.clone(), session.read(t)?)));
        let tensors = tensors.collect::<anyhow::Result<_>>()?;
        let (arena, planned) = (session.arena_bytes(), session.planned_bytes());
        Ok(Run { losses: summary.losses, tensors, arena, planned })
    })
    .unwrap()
}
