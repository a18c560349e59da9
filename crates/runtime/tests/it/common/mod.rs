//! A small model with everything that a resumed run must continue: dropout, batch statistics, a tied weight,
//! a frozen one.
#![allow(dead_code)]

use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ops::norm::batch_norm::BATCH_NORM;
use headwater_core::ops::pointwise::gelu::GELU;
use headwater_core::ops::random::dropout::DROPOUT;
use headwater_core::{Attrs, Builder, DType, Graph, TensorType, ValueId};
use headwater_runtime::TrainConfig;
use std::collections::HashMap;
use std::path::Path;

pub const WIDTH: usize = 6;
pub const CLASSES: usize = 3;
pub const SAMPLES: usize = 22;

/// `(loss, logits)` of a batch: `linear(dropout(gelu(batch_norm(x · w1ᵀ + b1)))) · frozen`, squared error to
/// one-hot targets.
pub fn graph(batch: usize, dropout: f64) -> Graph {
    let mut b = Builder::new();
    let w1 = b.parameter("fc1.weight", DType::F32, &[8, WIDTH]);
    let b1 = b.parameter("fc1.bias", DType::F32, &[8]);
    let role = InputRole::Parameter { trainable: true, aliases: vec!["head.tied".into()] };
    let w2 = b.input("fc2.weight", TensorType::new(DType::F32, [CLASSES, 8]), role);
    let role = InputRole::Parameter { trainable: false, aliases: vec![] };
    let frozen = b.input("frozen", TensorType::new(DType::F32, [CLASSES]), role);
    let unused = b.parameter("unused", DType::F32, &[4]);
    let _ = unused;
    let buffer = |b: &mut Builder, name: &str| {
        b.input(
            name,
            TensorType::new(DType::F32, [8]),
            InputRole::Buffer { persistent: name != "bn.running_var" },
        )
    };
    let (mean, var) = (buffer(&mut b, "bn.running_mean"), buffer(&mut b, "bn.running_var"));
    let x = b.input("x", TensorType::new(DType::F32, [batch, WIDTH]), InputRole::User);
    let target = b.input("target", TensorType::new(DType::F32, [batch, CLASSES]), InputRole::User);
    b.input("label", TensorType::new(DType::I64, [batch]), InputRole::User);

    let linear = |b: &mut Builder, x: ValueId, w: ValueId| {
        let w = b.transpose_last(w).unwrap();
        b.matmul(x, w).unwrap()
    };
    let h = linear(&mut b, x, w1);
    let h = b.add(h, b1).unwrap();
    let attrs = Attrs::new().with("training", true).with("momentum", 0.1).with("eps", 1e-5);
    let norm = b.apply(&BATCH_NORM, &[Some(h), None, None, Some(mean), Some(var)], attrs).unwrap();
    let h = b.one(&GELU, &[norm[0]], Attrs::new()).unwrap();
    let h = b.one(&DROPOUT, &[h], Attrs::new().with("p", dropout).with("train", true)).unwrap();
    let logits = linear(&mut b, h, w2);
    let logits = b.mul(logits, frozen).unwrap();
    let minus = b.scale(target, -1.0).unwrap();
    let error = b.add(logits, minus).unwrap();
    let square = b.mul(error, error).unwrap();
    let sum = b.sum(square, &[0, 1], false).unwrap();
    let loss = b.scale(sum, 1.0 / batch as f64).unwrap();
    b.output("loss", loss, OutputRole::User);
    b.output("logits", logits, OutputRole::User);
    b.output("bn.running_mean", norm[3], OutputRole::Mutation(mean));
    b.output("bn.running_var", norm[4], OutputRole::Mutation(var));
    b.finish()
}

fn floats(v: impl IntoIterator<Item = f32>) -> Vec<u8> {
    v.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// A smooth sequence that looks random.
pub fn noise(n: usize, phase: f32) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 12.9898 + phase).sin() * 0.5).collect()
}

pub fn weights() -> HashMap<String, Vec<u8>> {
    HashMap::from([
        ("fc1.weight".into(), floats(noise(8 * WIDTH, 0.1))),
        ("fc1.bias".into(), floats(noise(8, 0.2))),
        ("fc2.weight".into(), floats(noise(CLASSES * 8, 0.3))),
        ("frozen".into(), floats([1.0, 1.5, 0.5])),
        ("unused".into(), floats([1.0; 4])),
        ("bn.running_mean".into(), floats([0.0; 8])),
        ("bn.running_var".into(), floats([1.0; 8])),
    ])
}

/// Writes `SAMPLES` samples whose class is the largest of their first three numbers.
pub fn write_data(path: &Path) {
    let x = noise(SAMPLES * WIDTH, 7.0);
    let label: Vec<usize> =
        x.chunks(WIDTH).map(|row| (0..CLASSES).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap()).collect();
    let target = label.iter().flat_map(|&l| (0..CLASSES).map(move |c| (c == l) as u8 as f32));
    let target = floats(target);
    let x = floats(x);
    let label: Vec<u8> = label.iter().flat_map(|&l| (l as i64).to_le_bytes()).collect();
    let view =
        |dtype, shape: &[usize], bytes| safetensors::tensor::TensorView::new(dtype, shape.to_vec(), bytes);
    use safetensors::Dtype::{F32, I64};
    let tensors = [
        ("x", view(F32, &[SAMPLES, WIDTH], &x).unwrap()),
        ("target", view(F32, &[SAMPLES, CLASSES], &target).unwrap()),
        ("label", view(I64, &[SAMPLES], &label).unwrap()),
    ];
    safetensors::serialize_to_file(tensors, None, path).unwrap();
}

/// Settings of a run on the data in `dir`, saving below it.
pub fn config(dir: &Path) -> TrainConfig {
    let mut config =
        TrainConfig { steps: Some(20), seed: 3, clip_norm: Some(1.0), warmup: 4, ..Default::default() };
    config.data.train = dir.join("data.safetensors");
    config.data.eval = Some(dir.join("data.safetensors"));
    config.checkpoint.dir = Some(dir.join("checkpoints"));
    config
}
