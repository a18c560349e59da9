//! The golden Llama in checked mode: against PyTorch's results, and trained.

use crate::common::{device, machine, skipped};
use headwater::check::check;
use headwater::core::DType;
use headwater::core::device::Device;
use headwater::core::pass::precision::{Level, PrecisionSettings};
use headwater::cpu::Cpu;
use headwater::curve::recorded_training;
use headwater::golden::{Golden, Kind};
use headwater::model::Model;
use headwater::runtime::session::{Session, SessionModel, Training};
use headwater_cuda::host::context::Settings;
use std::path::PathBuf;
use std::sync::Arc;

fn open() -> (Model, Golden) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../goldens/llama");
    let model = Model::open(&folder.join("llama.train.pt2")).unwrap();
    (model, Golden::read(&folder.join("llama.train.golden.safetensors")).unwrap())
}

/// Losses of two steps, and of a third before its update.
fn losses(device: Arc<dyn Device>, precision: &PrecisionSettings) -> Vec<f64> {
    let (model, golden) = open();
    let bound = model.bind_to(&golden).unwrap();
    let weights = SessionModel { graph: &bound.graph, weights: &bound };
    let training = Training { precision: precision.clone(), ..recorded_training(&golden).unwrap() };
    let mut session = Session::new(device, weights, Some(training)).unwrap();
    let program = session.program().unwrap();
    let inputs = golden.inputs();
    let users = bound.user_inputs().zip(&bound.positions);
    let feeds: Vec<_> = users.map(|((_, ty), p)| inputs[p].cast(ty.dtype).to_bytes()).collect();
    let mut losses = Vec::new();
    for _ in 0..3 {
        session.begin_step().unwrap();
        session.gradients(program, &feeds).unwrap();
        losses.push(session.output(program, 0).unwrap().to_f64()[0]);
        session.update(1e-3).unwrap();
    }
    losses
}

#[test]
fn it_agrees_with_pytorch() {
    if skipped("it_agrees_with_pytorch") {
        return;
    }
    let machine = machine(0);
    let gpu = device(&machine, Settings { poison: true, ..Settings::default() });
    let (model, golden) = open();
    for precision in [DType::F32, DType::BF16] {
        let report = check(&model, &golden, precision, &gpu).unwrap();
        assert!(report.of(Kind::Gradient).count() > 5 && report.missing.is_empty(), "{:?}", report.missing);
        let differ: Vec<String> = (report.compared.iter().filter(|c| !c.passed()))
            .map(|c| format!("{:?} {}: error {:e}, bound {:e}", c.kind, c.name, c.error, c.bound))
            .collect();
        assert!(differ.is_empty(), "in {precision}:\n{}", differ.join("\n"));
    }
}

#[test]
fn it_trains() {
    if skipped("it_trains") {
        return;
    }
    let low =
        PrecisionSettings { level: Level::O2, dtype: Some(DType::BF16), ..PrecisionSettings::default() };
    // In f32 as the recorded curves of other devices; in bf16 the loss is a mean of numbers that were rounded
    // to 8 bits on both.
    for (precision, bound) in [(PrecisionSettings::default(), 1e-4), (low, f64::exp2(-7.0))] {
        let machine = machine(11);
        let gpu = losses(Arc::new(device(&machine, Settings::default())), &precision);
        let cpu = losses(Arc::new(Cpu::new(1)), &precision);
        assert!(gpu[2] < gpu[1] && gpu[1] < gpu[0], "{gpu:?}");
        let apart = gpu.iter().zip(&cpu).map(|(a, b)| ((a - b) / b).abs()).fold(0.0, f64::max);
        assert!(apart <= bound, "{gpu:?} here, {cpu:?} on the CPU");
        // A second run, with other orders of threads, blocks and streams: the same bits.
        let other = crate::common::machine(29);
        assert_eq!(losses(Arc::new(device(&other, Settings::default())), &precision), gpu);
        assert!(machine.calls("cuGraphLaunch") > 0, "nothing is replayed");
    }
}
