//! Short runs on the digits.

pub mod command;
pub mod op;

use headwater::check::{Compared, Verdict};
use headwater::core::DType;
use headwater::core::device::Device;
use headwater::cpu::Cpu;
use headwater::import::Dims;
use headwater::model::Model;
use headwater::runtime::TrainConfig;
use headwater::runtime::trainer::Event;
use headwater::train::with_trainer;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// True if a value agrees with PyTorch's. In f64 and f32 it is proved, unless nothing can prove it: NaN where
/// PyTorch has it, and zeros beside which there is nothing. In lower precision it is within its bound, which
/// may be wider than the value.
pub fn agrees(c: &Compared, precision: DType) -> bool {
    let low = precision.epsilon() > DType::F32.epsilon();
    let unprovable = c.zero || c.nans.0 > 0 && c.nans.0 == c.nans.1;
    c.verdict == Verdict::Proved || c.passed() && (low || unprovable)
}

/// End of a run.
pub struct Run {
    pub losses: Vec<f64>,
    /// True for each step that was applied. Not every test asks.
    #[allow(dead_code)]
    pub applied: Vec<bool>,
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
    /// True if the losses have the same bits.
    pub fn same_losses(&self, other: &Run) -> bool {
        let bits = |r: &Run| r.losses.iter().map(|l| l.to_bits()).collect::<Vec<_>>();
        bits(self) == bits(other)
    }
}

/// Four steps of two batches of 32 on the CPU, as `set` configures them.
#[allow(dead_code)]
pub fn train(threads: usize, set: impl FnOnce(&mut TrainConfig)) -> Run {
    train_on(Arc::new(Cpu::new(threads)), set)
}

/// The same on a device.
pub fn train_on(device: Arc<dyn Device>, set: impl FnOnce(&mut TrainConfig)) -> Run {
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
    with_trainer(&model, Dims::new(), config, device, false, |trainer, _| {
        let mut applied = Vec::new();
        let mut note = |event: &Event| -> headwater::runtime::Result<()> {
            if let Event::Step(step) = event {
                applied.push(step.applied);
            }
            Ok(())
        };
        let summary = trainer.run(&mut [&mut note], &AtomicBool::new(false))?;
        let session = trainer.session();
        let tensors = session.tensors().iter().map(|t| Ok((t.name.clone(), session.read(t)?)));
        let tensors = tensors.collect::<anyhow::Result<_>>()?;
        let (arena, planned) = (session.arena_bytes(), session.planned_bytes());
        Ok(Run { losses: summary.losses, applied, tensors, arena, planned })
    })
    .unwrap()
}
