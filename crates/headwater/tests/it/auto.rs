//! Adaptive precision on the example: the choice keeps its budget, and its file repeats it.

use headwater::auto::{AutoRequest, batches, choose};
use headwater::core::DType;
use headwater::core::pass::precision::Level;
use headwater::cpu::limits::{Workload, measure};
use headwater::cpu::{Cpu, Pool, Tier};
use headwater::import::Dims;
use headwater::model::Model;
use headwater::runtime::TrainConfig;
use headwater::runtime::amp::AmpConfig;
use headwater::runtime::data::ClassWeights;
use headwater_reference::Reference;
use std::path::Path;

#[test]
fn the_choice_keeps_its_budget_and_its_file_repeats_it() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits-vit");
    let model = Model::open(&example.join("digits_vit.pt2")).unwrap();
    let mut config = TrainConfig { batch: Some(16), ..TrainConfig::default() };
    config.data.train = example.join("train.safetensors");
    let (bound, batches) = batches(&model, &Dims::new(), &config, 2).unwrap();
    assert_eq!(batches.len(), 2);
    let (pool, device) = (Pool::new(2), Cpu::new(2));
    let workload = Workload { runs: 1, rounds: 1000, bytes: 1 << 20 };
    let limits = measure(&pool, Tier::current().unwrap(), workload).unwrap();
    let run = |budget: f64| {
        choose(
            &bound,
            &batches,
            AutoRequest { low: DType::BF16, budget, batches: 2 },
            &limits,
            &device,
            |_| {},
        )
    };
    // Everything low, to know what there is to save.
    let all = run(1.0).unwrap();
    assert!(all.choices.iter().all(|c| c.low) && all.errors == all.low);
    assert!(all.low.gradients > 100.0 * all.full.gradients, "bf16 must be seen: {all:?}");
    let budget = 0.7 * all.low.loss.max(all.low.gradients);
    let some = run(budget).unwrap();
    let names = some.names();
    assert!(
        !names.is_empty() && names.len() < some.choices.len(),
        "{} of {}",
        names.len(),
        some.choices.len()
    );
    assert!(some.errors.loss <= budget && some.errors.gradients <= budget, "{:?}", some.errors);
    assert!(some.errors.gradients > some.full.gradients);
    // The policy file that people read and edit says the same as the choice.
    let read: AmpConfig = toml::from_str(&some.policy()).unwrap();
    assert_eq!(read, some.config(&AmpConfig::default()).unwrap());
    assert_eq!((read.level, read.dtype), (Level::O1, Some(DType::BF16)));
    assert_eq!(read.low.unwrap().len(), names.len());
    // f32 itself is further away than this.
    let refused = run(1e-12).unwrap_err().to_string();
    assert!(refused.contains("cannot be met"), "{refused}");
}

/// The step that is measured is the one that is trained.
#[test]
fn weights_of_classes_and_frozen_parameters_are_in_the_measured_step() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits-vit");
    let model = Model::open(&example.join("digits_vit.pt2")).unwrap();
    let workload = Workload { runs: 1, rounds: 1000, bytes: 1 << 20 };
    let limits = measure(&Pool::new(2), Tier::current().unwrap(), workload).unwrap();
    let run = |set: &dyn Fn(&mut TrainConfig)| {
        let mut config = TrainConfig { batch: Some(16), ..TrainConfig::default() };
        config.data.train = example.join("train.safetensors");
        set(&mut config);
        let (bound, batches) = batches(&model, &Dims::new(), &config, 1).unwrap();
        let asked = AutoRequest { low: DType::BF16, budget: 1.0, batches: 1 };
        choose(&bound, &batches, asked, &limits, &Cpu::new(2), |_| {}).unwrap()
    };
    let weights = |w: f64| ClassWeights::Listed((0..10).map(|i| if i == 3 { w } else { 1.0 }).collect());
    let plain = run(&|_| {});
    let even = run(&|c| c.data.class_weights = Some(weights(1.0)));
    let steep = run(&|c| c.data.class_weights = Some(weights(100.0)));
    let near = |a: f64, b: f64| (a - b).abs() < 0.05 * b;
    assert!(near(even.low.gradients, plain.low.gradients), "{:?} and {:?}", even.low, plain.low);
    assert!(!near(steep.low.gradients, plain.low.gradients), "{:?} and {:?}", steep.low, plain.low);
    let frozen = run(&|c| c.freeze = vec!["blocks.*".into()]);
    assert!(!near(frozen.low.gradients, plain.low.gradients), "{:?} and {:?}", frozen.low, plain.low);
}

/// The truth of every node is in f64, whatever the device computes in.
#[test]
fn a_device_without_f64_can_have_its_precision_chosen() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits-vit");
    let model = Model::open(&example.join("digits_vit.pt2")).unwrap();
    let mut config = TrainConfig { batch: Some(2), ..TrainConfig::default() };
    config.data.train = example.join("train.safetensors");
    let (bound, batches) = batches(&model, &Dims::new(), &config, 1).unwrap();
    let workload = Workload { runs: 1, rounds: 1000, bytes: 1 << 20 };
    let limits = measure(&Pool::new(1), Tier::current().unwrap(), workload).unwrap();
    let asked = AutoRequest { low: DType::BF16, budget: 1.0, batches: 1 };
    let chosen = choose(&bound, &batches, asked, &limits, &Reference::new(0), |_| {}).unwrap();
    assert!(chosen.choices.iter().all(|c| c.low) && chosen.full.gradients < chosen.low.gradients);
}
