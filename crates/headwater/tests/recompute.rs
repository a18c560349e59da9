//! Recomputation on exports of real models: the same gradients to the bit and the same training, in less memory.

use headwater::core::device::{Device, evaluate};
use headwater::core::graph::{Graph, InputRole, OutputRole, verify};
use headwater::core::plan::Bindings;
use headwater::core::{Tensor, pass};
use headwater::cpu::Cpu;
use headwater::golden::Golden;
use headwater::import::Dims;
use headwater::model::Model;
use headwater::runtime::TrainConfig;
use headwater::train::with_trainer;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const FAMILIES: [&str; 9] =
    ["vit", "resnet", "bert", "gpt2", "llama", "qwen2", "clip", "deepseek_v3", "internvl"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Forward and backward of a family's model, and what the golden feeds it.
fn open(family: &str) -> (Graph, Vec<Tensor>) {
    let file = |ext: &str| root().join("goldens").join(family).join(format!("{family}.core.{ext}"));
    let golden = Golden::read(&file("golden.safetensors")).unwrap();
    let bound = Model::open(&file("pt2")).unwrap().bind_to(&golden).unwrap();
    let mut graph = pass::canonical(bound.graph.clone()).unwrap();
    let mut first = true;
    graph.outputs.retain(|o| o.role != OutputRole::User || std::mem::take(&mut first));
    let loss = graph.outputs.iter().find(|o| o.role == OutputRole::User).unwrap().value;
    let d = pass::differentiate(graph, loss).unwrap();
    let graph = pass::simplify(pass::decompose(d.graph).unwrap()).graph;
    let recorded = golden.inputs();
    let mut users = bound.positions.iter().map(|p| recorded[p].clone());
    let inputs = graph.inputs.iter().map(|i| match i.role {
        InputRole::User => users.next().unwrap().cast(graph.ty(i.value).dtype),
        InputRole::Rng => Tensor::full(graph.ty(i.value), 3.0),
        _ => bound.tensor(&i.name).unwrap(),
    });
    let inputs = inputs.collect();
    (graph, inputs)
}

#[test]
fn every_family_has_the_same_gradients_in_less_memory() {
    let device = Cpu::new(2);
    let mut all = (0, 0);
    for family in FAMILIES {
        let (graph, fed) = open(family);
        let kept = pass::fuse(graph).unwrap();
        let again = pass::recompute(kept.clone()).unwrap();
        verify(&again).unwrap_or_else(|e| panic!("{family}: {e}"));
        let arena = |g: &Graph| {
            let plan = pass::plan(g, &Bindings::simple(g), device.caps()).unwrap();
            pass::check_plan(&plan).unwrap();
            plan.segments[0].bytes
        };
        let (before, after) = (arena(&kept), arena(&again));
        assert!(after <= before, "{family}: {before} bytes, {after} with recomputation");
        all = (all.0 + before, all.1 + after);
        let [want, got] = [&kept, &again].map(|g| evaluate(&device, g, &fed).unwrap());
        assert!(kept.outputs.len() > 5);
        for ((o, a), b) in kept.outputs.iter().zip(&want).zip(&got) {
            assert!(a.to_bytes() == b.to_bytes(), "{family}: {} has other bits", o.name);
        }
    }
    assert!(all.1 < all.0, "{} bytes, {} with recomputation", all.0, all.1);
}

/// Losses and parameters of a short run on the digits, and the bytes of the arena.
fn train(recompute: bool, amp: &str) -> (Vec<f64>, Vec<Vec<u8>>, usize) {
    let folder = root().join("examples/digits-vit");
    let model = Model::open(&folder.join("digits_vit.pt2")).unwrap();
    let mut config = TrainConfig {
        steps: Some(4),
        batch: Some(32),
        seed: 7,
        clip_norm: Some(0.5),
        amp: toml::from_str(amp).unwrap(),
        recompute,
        ..TrainConfig::default()
    };
    config.data.train = folder.join("train.safetensors");
    config.accumulate = 2;
    with_trainer(&model, Dims::new(), config, Arc::new(Cpu::new(2)), false, |trainer, _| {
        let summary = trainer.run(&mut [], &AtomicBool::new(false))?;
        let session = trainer.session();
        let tensors = session.tensors().iter().map(|t| session.read(t).map_err(Into::into));
        Ok((summary.losses, tensors.collect::<anyhow::Result<_>>()?, session.arena_bytes()))
    })
    .unwrap()
}

#[test]
fn a_run_with_recomputation_ends_with_the_same_bits() {
    for amp in ["", "level = \"O1\"", "level = \"O2\"\ndtype = \"bf16\"", "level = \"O2\"\ndtype = \"f16\""] {
        let (kept, again) = (train(false, amp), train(true, amp));
        assert!(kept.0.iter().zip(&again.0).all(|(a, b)| a.to_bits() == b.to_bits()), "{amp}: other losses");
        assert!(kept.1 == again.1, "{amp}: other parameters");
        assert!(again.2 < kept.2, "{amp}: {} bytes, {} with recomputation", kept.2, again.2);
    }
}
