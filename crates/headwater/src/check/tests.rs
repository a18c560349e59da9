//! The bits of the training plan, and the magnitudes that errors are judged by.

use super::*;
use crate::cpu::Cpu;
use crate::curve::recorded_training;
use crate::runtime::session::{Model as SessionModel, Session};
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
fn magnitudes_are_made_once_for_each_value() {
    let (small, large) = (with_terms(doubled(100)).unwrap(), with_terms(doubled(20_000)).unwrap());
    // A sum and its moved self each get one of their own: as many nodes again, and the magnitude of x.
    assert_eq!(small.0.nodes.len(), 2 * 201 + 1);
    assert_eq!(large.0.nodes.len(), 2 * 40_001 + 1);
    assert_eq!(large.1[&0], 1);
}

#[test]
fn the_magnitude_of_a_sum_is_that_of_its_terms() {
    let (graph, terms) = with_terms(doubled(3)).unwrap();
    let x = Tensor::float(
        DType::F64,
        [4, 4],
        (0..16).map(|i| if i / 4 % 2 == 0 { 1.0 } else { -1.0 } * i as f64).collect(),
    );
    let out = evaluate(&crate::cpu::Cpu::new(1), &graph, &[x]).unwrap();
    // Column j is j - (4 + j) + (8 + j) - (12 + j), of magnitudes that sum to 24 + 4 j, three times
    // doubled.
    let want: Vec<f64> = (0..4).map(|j| 8.0 * (24.0 + 4.0 * j as f64)).collect();
    assert_eq!(out[terms[&0]].to_f64(), want);
}
