//! Optimizers against PyTorch's recorded steps, and what clipping and skipping do, on the reference interpreter in f64.

use headwater_core::{DType, Graph, Tensor, TensorType, reference};
use headwater_runtime::BucketLayout;
use headwater_runtime::layout::BLOCK;
use headwater_runtime::optim::{Clip, Optimizer, update_graph};
use safetensors::SafeTensors;
use std::collections::HashMap;

/// An optimizer's state by the names of the update graph's inputs, and the graph.
struct Run {
    optimizer: Optimizer,
    graph: Graph,
    state: HashMap<String, Tensor>,
    step: u64,
}

/// One parameter of 15 elements in one bucket that decays.
fn layout() -> BucketLayout {
    BucketLayout::new([("w", &TensorType::new(DType::F64, [3, 5]), true)])
}

/// A flat bucket that begins with `values`.
fn flat(values: &[f64]) -> Tensor {
    let mut all = values.to_vec();
    all.resize(BLOCK, 0.0);
    Tensor::float(DType::F64, [BLOCK], all)
}

impl Run {
    fn new(optimizer: Optimizer, clip: Clip, start: &[f64]) -> Run {
        let graph = update_graph(&layout(), optimizer.rule(), clip, false).unwrap();
        let mut state: HashMap<String, Tensor> =
            graph.inputs.iter().map(|i| (i.name.clone(), Tensor::full(graph.ty(i.value), 0.0))).collect();
        state.insert("parameters/0".into(), flat(start));
        state.insert("unscale".into(), Tensor::float(DType::F64, [0usize; 0], vec![1.0]));
        Run { optimizer, graph, state, step: 1 }
    }

    /// Runs a step and returns norm, largest magnitude, and whether it was applied.
    fn step(&mut self, lr: f64, gradient: &[f64]) -> (f64, f64, bool) {
        self.state.insert("gradients/0".into(), flat(gradient));
        let rule = self.optimizer.rule();
        for (name, x) in rule.scalars().iter().zip(rule.values(self.step, lr, true)) {
            self.state.insert(format!("scalar/0/{name}"), Tensor::float(DType::F64, [0usize; 0], vec![x]));
        }
        let inputs: Vec<Tensor> = self.graph.inputs.iter().map(|i| self.state[&i.name].clone()).collect();
        let outputs = reference::run(&self.graph, &inputs).unwrap();
        let applied = outputs[2].ints()[0] != 0;
        let report = (outputs[0].floats()[0], outputs[1].floats()[0], applied);
        for (o, t) in self.graph.outputs.iter().zip(outputs).skip(3) {
            self.state.insert(o.name.clone(), t);
        }
        self.step += applied as u64;
        report
    }

    fn parameter(&self) -> &[f64] {
        let all = self.state["parameters/0"].floats();
        assert!(all[15..].iter().all(|&x| x == 0.0), "what lies between parameters must stay zero");
        &all[..15]
    }
}

#[test]
fn steps_are_pytorchs() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../goldens/optimizers.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |name: String| {
        let t = file.tensor(&name).unwrap();
        Tensor::from_bytes(&TensorType::new(DType::F64, t.shape()), t.data()).floats().to_vec()
    };
    let cases: serde_json::Value =
        serde_json::from_str(&header.metadata().as_ref().unwrap()["cases"]).unwrap();
    let mut tested = 0;
    for case in cases.as_array().unwrap() {
        let mut settings = case["settings"].clone();
        settings["name"] = case["optimizer"].clone();
        // Optimizers we do not have are not named in the settings' type.
        let Ok(optimizer) = serde_json::from_value::<Optimizer>(settings) else {
            assert!(!["SGD", "AdamW"].contains(&case["optimizer"].as_str().unwrap()), "{case}");
            continue;
        };
        let (id, lr) = (case["case"].as_str().unwrap(), optimizer.rule().lr());
        let mut run = Run::new(optimizer, Clip::default(), &tensor(format!("{id}.parameter.0")));
        for t in 0..case["steps"].as_u64().unwrap() {
            let (_, _, applied) = run.step(lr, &tensor(format!("{id}.grad.{t}")));
            assert!(applied);
            // Each step rounds some ten operations on numbers of size 1; a step repeats the errors of those before.
            let tolerance = 16.0 * (t + 1) as f64 * f64::EPSILON;
            for (got, want) in run.parameter().iter().zip(tensor(format!("{id}.parameter.{}", t + 1))) {
                assert!(
                    (got - want).abs() <= tolerance * want.abs().max(1.0),
                    "{case}, step {t}: {got} for {want}"
                );
            }
        }
        tested += 1;
    }
    assert!(tested >= 8, "{tested}");
}

#[test]
fn clipping_and_skipping() {
    let gradient: Vec<f64> = (0..15).map(|i| (i as f64 - 7.0) / 4.0).collect();
    let norm = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
    let sgd = || Optimizer::Sgd(headwater_runtime::optim::Sgd { lr: 1.0, ..Default::default() });
    let start = vec![0.0; 15];

    // As clip_grad_norm_: multiplied by max_norm / (norm + 1e-6) if that is below 1.
    for limit in [0.5, 100.0] {
        let mut run = Run::new(sgd(), Clip { norm: Some(limit), value: None }, &start);
        let (got, largest, _) = run.step(1.0, &gradient);
        assert!((got - norm).abs() < 4.0 * f64::EPSILON * norm);
        assert_eq!(largest, 1.75);
        let factor = (limit / (norm + 1e-6)).min(1.0);
        for (p, g) in run.parameter().iter().zip(&gradient) {
            assert!((p + factor * g).abs() <= 4.0 * f64::EPSILON * g.abs(), "{p} {g}");
        }
    }

    let mut run = Run::new(sgd(), Clip { norm: None, value: Some(0.5) }, &start);
    run.step(1.0, &gradient);
    assert!(run.parameter().iter().zip(&gradient).all(|(p, g)| *p == -g.clamp(-0.5, 0.5)));

    // A gradient that is not finite leaves parameters and moments as they are, bit for bit.
    let mut run = Run::new(Optimizer::default(), Clip::default(), &start);
    run.step(1e-3, &gradient);
    let before = run.state.clone();
    for bad in [f64::NAN, f64::INFINITY] {
        let mut broken = gradient.clone();
        broken[3] = bad;
        let (_, largest, applied) = run.step(1e-3, &broken);
        assert!(!applied && !largest.is_finite());
        for name in ["parameters/0", "exp_avg/0", "exp_avg_sq/0"] {
            assert_eq!(run.state[name], before[name], "{name}");
        }
    }
}
