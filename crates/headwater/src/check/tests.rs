//! The bits of the training plan, and the cost of sampling errors.

use super::*;
use crate::core::{Attrs, ops};
use crate::cpu::Cpu;
use crate::curve::recorded_training;
use crate::runtime::session::{Session, SessionModel};
use std::path::Path;
use std::sync::Arc;

#[test]
fn a_check_has_the_bits_of_the_training_plan() {
    for family in ["vit", "resnet", "bert", "gpt2", "llama", "qwen2", "clip", "deepseek_v3", "internvl"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens").join(family);
        let model = Model::open(&folder.join(format!("{family}.core.pt2"))).unwrap();
        let golden = Golden::read(&folder.join(format!("{family}.core.golden.safetensors"))).unwrap();
        let bound = model.bind_to(&golden).unwrap();
        let device = Arc::new(Cpu::new(2));

        let checked = trained(&bound.graph, DType::F32, device.target()).unwrap();
        let got = evaluate(device.as_ref(), &checked, &feed(&checked, &bound, &golden).unwrap()).unwrap();

        let weights = SessionModel { graph: &bound.graph, weights: &bound };
        let training = recorded_training(&golden).unwrap();
        let mut session = Session::new(device, weights, Some(training)).unwrap();
        let program = session.program().unwrap();
        let inputs = golden.inputs();
        let users = bound.user_inputs().zip(&bound.positions);
        let feeds: Vec<_> = users.map(|((_, ty), p)| inputs[p].cast(ty.dtype).to_bytes()).collect();
        session.gradients(program, &feeds).unwrap();

        let mut gradients = 0;
        for (output, got) in checked.outputs.iter().zip(&got) {
            let want = match output.role {
                OutputRole::User => session.output(program, 0).unwrap(),
                OutputRole::Gradient(p) => {
                    gradients += 1;
                    let input = checked.input_index(p).unwrap();
                    session.gradient(&checked.inputs[input].name).unwrap()
                }
                _ => continue,
            };
            assert!(
                got.to_bytes() == want.to_bytes(),
                "{family}: {} has other bits in training",
                output.name
            );
        }
        assert!(gradients > 5, "{family}: {gradients} gradients");
    }
}

#[test]
fn deviations_of_16_bits_hold_what_roundings_exchange() {
    let mut b = Builder::new();
    let x = b.parameter("x", DType::F64, &[4096]);
    let y = b.shift(x, -1.0).unwrap();
    let y = b.call(&ops::pointwise::sign::SIGN, &[y]).unwrap();
    b.output("y", y, OutputRole::User);
    let graph = b.finish();
    let cpu = Cpu::new(1);
    // Numbers that lie 2e-3 about 1 at most: a rounding of f16, 5e-4, turns signs of many.
    let near =
        Tensor::float(DType::F64, [4096], (0..4096).map(|i| 1.0 + f64::from(i - 2048) * 1e-6).collect());
    let feed = |graph: &Graph| {
        let of = |input: &crate::core::graph::Input| match input.name.as_str() {
            "x" => near.clone(),
            _ => Tensor::full(graph.ty(input.value), 0.0),
        };
        Ok(graph.inputs.iter().map(of).collect())
    };
    let sampled =
        |dtype, rounded| deviations(&graph, dtype, rounded, cpu.target(), &cpu, 1.0, feed).unwrap()[0];
    // In f32 nothing turns; results of norm 64 are rounded.
    assert!(sampled(DType::F32, false) < 64.0 * f64::from(f32::EPSILON));
    // The norm is 64, and each sign that turns moves it by 2. Roundings of 3e-4 on average turn an eighth: 45, twice.
    let moved = sampled(DType::F16, true);
    assert!(moved > 30.0 && moved < 2.0 * 64.0, "{moved}");
}

/// In f16 roundings exchange the largest numbers of ResNet's first pool, and signs in front of ReLU.
#[test]
fn a_gradient_behind_a_pool_that_is_off_by_half_is_seen_in_f16() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens/resnet");
    let model = Model::open(&folder.join("resnet.train.pt2")).unwrap();
    let golden = Golden::read(&folder.join("resnet.train.golden.safetensors")).unwrap();
    let report = check(&model, &golden, DType::F16, &Cpu::new(2)).unwrap();
    let first = |c: &&Compared| {
        c.kind == Kind::Gradient && c.name == "model.resnet.embedder.embedder.convolution.weight"
    };
    let first = report.compared.iter().find(first).unwrap();
    let allowed = first.bound * first.size / first.norm;
    assert!(first.passed && allowed < 0.5, "{allowed} of its norm is allowed");
}

/// A sum of a sum with itself, `depth` times over, and its gradient's output.
fn doubled(depth: usize) -> Graph {
    let mut b = Builder::new();
    let x = b.parameter("x", DType::F64, &[4, 4]);
    let mut w = b.sum(x, &[0], true).unwrap();
    for _ in 0..depth {
        let moved =
            b.one(&ops::view::reshape::RESHAPE, &[w], Attrs::new().with("shape", vec![1i64, 4])).unwrap();
        w = b.add(w, moved).unwrap();
    }
    b.output("grad.x", w, OutputRole::Gradient(x));
    b.finish()
}

#[test]
fn sampling_grows_with_the_graph_and_no_faster() {
    let nodes = |depth| sampled(&doubled(depth), &Target::default(), DType::F64, false).unwrap().nodes.len();
    assert_eq!(nodes(300) - nodes(200), nodes(200) - nodes(100));
    assert!(nodes(20_000) < 50 * 20_000);
}
