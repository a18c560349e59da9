//! Training steps of the goldens' models on every device: loss, gradients and buffers against the same step
//! in f64, within derived bounds.

use headwater::conformance::chosen;
use headwater::core::conformance::{Conformance, training_step};
use headwater::core::graph::{Input, InputRole};
use headwater::core::{Tensor, TensorType};
use headwater::devices;
use headwater::golden::Golden;
use headwater::model::Model;
use std::path::Path;

const FAMILIES: [&str; 9] =
    ["vit", "resnet", "bert", "gpt2", "llama", "qwen2", "clip", "deepseek_v3", "internvl"];

/// The nine families on one device.
fn on(device: &str) -> Conformance {
    let device = devices::open(device, 2).unwrap();
    let mut all = Conformance::default();
    for family in FAMILIES {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens").join(family);
        let model = Model::open(&folder.join(format!("{family}.train.pt2"))).unwrap();
        let golden = Golden::read(&folder.join(format!("{family}.train.golden.safetensors"))).unwrap();
        let bound = model.bind_to(&golden).unwrap();
        let inputs = golden.inputs();
        let fed: Vec<(&str, usize)> =
            bound.user_inputs().map(|(name, _)| name).zip(bound.positions.iter().copied()).collect();
        let tensor = |input: &Input, ty: &TensorType| {
            Ok(match input.role {
                InputRole::User => {
                    let at = fed.iter().find(|f| f.0 == input.name).unwrap().1;
                    inputs[&at].cast(ty.dtype)
                }
                InputRole::Rng => Tensor::int(ty.dtype, ty.shape.clone(), vec![7, 3]),
                _ => bound.tensor(&input.name).unwrap().cast(ty.dtype),
            })
        };
        training_step(device.as_ref(), family, &bound.graph, tensor, &mut all).unwrap();
    }
    all
}

fn conforms(device: &str) {
    let all = on(device);
    assert!(all.wrong.is_empty(), "{}", all.wrong.join("\n"));
    assert!(all.refused.is_empty(), "{:?}", all.refused);
    assert_eq!(all.ran["training step"], FAMILIES.len());
}

#[test]
fn the_cpu_trains_every_family() {
    conforms("cpu");
}

/// Without f64 and i64 arithmetic.
#[test]
fn the_reference_device_trains_every_family() {
    conforms("reference");
}

/// By the kernels of simulated NPUs, but for what they lack.
#[test]
fn a_simulated_910b1_trains_every_family() {
    conforms("ascend-sim:910b1");
}

/// Its cube has no f32: products are made of f16.
#[test]
fn a_simulated_310p_trains_every_family() {
    conforms("ascend-sim:310p");
}

#[test]
fn operators_are_chosen_by_name() {
    let names = |list: &str| chosen(list).map(|ops| ops.iter().map(|op| op.name).collect::<Vec<_>>());
    assert_eq!(names("softmax, add").unwrap(), ["softmax", "add"]);
    assert!(names("all").unwrap().len() > 500);
    let refused = names("add,sofmax").unwrap_err().to_string();
    assert!(refused.contains("no operator `sofmax`, did you mean softmax?"), "{refused}");
    assert!(names(",").unwrap_err().to_string().contains("no operator is named"));
}
