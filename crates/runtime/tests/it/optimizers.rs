//! Optimizers against PyTorch's recorded steps, and what clipping and skipping do, on the reference
//! interpreter in f64.

use headwater_core::target::DTypeSet;
use headwater_core::train::{BucketLayout, BucketSize, update_graph};
use headwater_core::{DType, Graph, Tensor, TensorType, reference};
use headwater_runtime::optim::{Clip, Decay, Groups, Optimizer};
use safetensors::SafeTensors;
use std::collections::HashMap;

/// An optimizer's state by the names of the update graph's inputs, and the graph. Two parameters in one
/// bucket.
struct Run {
    groups: Groups,
    graph: Graph,
    layout: BucketLayout,
    state: HashMap<String, Tensor>,
    step: u64,
}

const SHAPES: [&[usize]; 2] = [&[3, 5], &[7]];

impl Run {
    fn new(optimizer: Optimizer, clip: Clip, start: &[Vec<f64>]) -> Run {
        let mut groups = Groups::new(optimizer, vec![], Decay::All).unwrap();
        let types = SHAPES.map(|s| TensorType::new(DType::F64, s));
        let group = groups.of("0", &types[0]).unwrap();
        let layout =
            BucketLayout::new([("0", &types[0], group), ("1", &types[1], group)], BucketSize::UNLIMITED);
        let graph = update_graph(&layout, |g| groups.rule(g), clip, false, DTypeSet::default()).unwrap();
        let mut state: HashMap<String, Tensor> =
            graph.inputs.iter().map(|i| (i.name.clone(), Tensor::full(graph.ty(i.value), 0.0))).collect();
        for m in groups.rule(group).moments().into_iter().flatten() {
            let moment = state.get_mut(&format!("{}/0", m.name)).unwrap();
            *moment = Tensor::full(&moment.ty, m.initial);
        }
        state.insert("unscale".into(), Tensor::float(DType::F64, [0usize; 0], vec![1.0]));
        let mut run = Run { groups, graph, layout, state, step: 1 };
        run.set("parameters/0", start);
        run
    }

    /// Writes the parameters' own elements of a flat bucket, zeros between them.
    fn set(&mut self, name: &str, values: &[Vec<f64>]) {
        let bucket = &self.layout.buckets[0];
        let mut all = vec![0.0; bucket.elements];
        for (e, v) in bucket.entries.iter().zip(values) {
            all[e.offset..e.offset + v.len()].copy_from_slice(v);
        }
        self.state.insert(name.into(), Tensor::float(DType::F64, bucket.span(DType::F64).shape, all));
    }

    /// Runs a step and returns norm, largest magnitude, and whether it was applied.
    fn step(&mut self, lr: f64, gradient: &[Vec<f64>]) -> (f64, f64, bool) {
        self.set("gradients/0", gradient);
        let scalars = self.groups.rule(0).scalars();
        for (name, x) in scalars.iter().zip(self.groups.values(0, self.step, lr)) {
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

    /// The parameters, concatenated.
    fn parameters(&self) -> Vec<f64> {
        let mut all = self.state["parameters/0"].floats().to_vec();
        let mut own = Vec::new();
        for e in &self.layout.buckets[0].entries {
            let place = e.offset..e.offset + e.shape.numel();
            own.extend(&all[place.clone()]);
            all[place].fill(0.0);
        }
        assert!(all.iter().all(|&x| x == 0.0), "what lies between parameters must stay zero");
        own
    }
}

#[test]
fn steps_are_the_recorded_ones() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../goldens/optimizers.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let rows = |name: String, size: usize| -> Vec<Vec<f64>> {
        let t = file.tensor(&name).unwrap();
        let t = Tensor::from_bytes(&TensorType::new(DType::F64, t.shape()), t.data());
        t.floats().chunks(size).map(<[f64]>::to_vec).collect()
    };
    // By step, then parameter.
    let both = |name: &str| -> Vec<Vec<Vec<f64>>> {
        let [a, b] = [0, 1].map(|i| rows(format!("{name}.{i}"), SHAPES[i].iter().product()));
        a.into_iter().zip(b).map(|(a, b)| vec![a, b]).collect()
    };
    let (start, gradients) = (&both("parameter")[0], both("grad"));
    let cases: serde_json::Value =
        serde_json::from_str(&header.metadata().as_ref().unwrap()["cases"]).unwrap();
    let recorded = |o: &Optimizer| cases.as_array().unwrap().iter().any(|c| c["optimizer"] == o.name());
    let missing: Vec<_> = Optimizer::all().into_iter().filter(|o| !recorded(o)).collect();
    assert!(missing.is_empty() && cases.as_array().unwrap().len() >= 49, "never recorded: {missing:?}");
    for case in cases.as_array().unwrap() {
        let mut settings = case["settings"].clone();
        settings["name"] = case["optimizer"].clone();
        let optimizer: Optimizer = serde_json::from_value(settings).unwrap();
        let lr = optimizer.rule().lr();
        let mut run = Run::new(optimizer, Clip::default(), start);
        let after = both(&format!("{}.parameter", case["case"].as_str().unwrap()));
        assert!(after.len() >= 50);
        for (t, (gradient, want)) in gradients.iter().zip(&after).enumerate() {
            let (_, _, applied) = run.step(lr, gradient);
            assert!(applied);
            // Each step rounds some ten operations on numbers of size 1; a step repeats the errors of those
            // before.
            let tolerance = 16.0 * (t + 1) as f64 * f64::EPSILON;
            for (got, want) in run.parameters().iter().zip(want.iter().flatten()) {
                let error = (got - want).abs();
                assert!(error <= tolerance * want.abs().max(1.0), "{case}, step {t}: {got} for {want}");
            }
        }
    }
}

#[test]
fn clipping_and_skipping() {
    let gradient = vec![(0..15).map(|i| (i as f64 - 7.0) / 4.0).collect(), vec![0.5; 7]];
    let flat: Vec<f64> = gradient.concat();
    let norm = flat.iter().map(|g| g * g).sum::<f64>().sqrt();
    let sgd = || Optimizer::Sgd(headwater_runtime::optim::Sgd { lr: 1.0, ..Default::default() });
    let start = [vec![0.0; 15], vec![0.0; 7]];

    // As clip_grad_norm_: multiplied by max_norm / (norm + 1e-6) if that is below 1.
    for limit in [0.5, 100.0] {
        let mut run = Run::new(sgd(), Clip { norm: Some(limit), value: None }, &start);
        let (got, largest, _) = run.step(1.0, &gradient);
        assert!((got - norm).abs() < 4.0 * f64::EPSILON * norm);
        assert_eq!(largest, 1.75);
        let factor = (limit / (norm + 1e-6)).min(1.0);
        for (p, g) in run.parameters().iter().zip(&flat) {
            assert!((p + factor * g).abs() <= 4.0 * f64::EPSILON * g.abs(), "{p} {g}");
        }
    }

    let mut run = Run::new(sgd(), Clip { norm: None, value: Some(0.5) }, &start);
    run.step(1.0, &gradient);
    assert!(run.parameters().iter().zip(&flat).all(|(p, g)| *p == -g.clamp(-0.5, 0.5)));

    // A gradient that is not finite leaves parameters and moments as they are, bit for bit.
    let mut run = Run::new(Optimizer::default(), Clip::default(), &start);
    run.step(1e-3, &gradient);
    let before = run.state.clone();
    for bad in [f64::NAN, f64::INFINITY] {
        let mut broken = gradient.clone();
        broken[0][3] = bad;
        let (_, largest, applied) = run.step(1e-3, &broken);
        assert!(!applied && !largest.is_finite());
        for name in ["parameters/0", "exp_avg/0", "exp_avg_sq/0"] {
            assert_eq!(run.state[name], before[name], "{name}");
        }
    }
}
