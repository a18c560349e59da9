//! Sparse gradients of embeddings. Steps are those with dense ones where rows without a gradient would stay,
//! and otherwise steps of the rows that are read alone.

use crate::common::noise;
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ops::index::embedding::EMBEDDING;
use headwater_core::pass::precision::{Level, PrecisionSettings};
use headwater_core::{Attrs, Builder, DType, Graph, TensorType};
use headwater_cpu::Cpu;
use headwater_runtime::optim::Clip;
use headwater_runtime::session::{Sparse, Training};
use headwater_runtime::{Session, SessionModel};
use std::collections::HashMap;
use std::sync::Arc;

const ROWS: usize = 50;
const WIDTH: usize = 6;
const BATCH: usize = 8;
const TABLE: &str = "table.weight";

/// The mean square of `embedding(ids) · w`, of a batch of so many ids. `marked`: the embedding is
/// `sparse=True`.
fn graph(batch: usize, marked: bool) -> Graph {
    let mut b = Builder::new();
    let ids = b.input("ids", TensorType::new(DType::I64, [batch]), InputRole::User);
    let table = b.parameter(TABLE, DType::F32, &[ROWS, WIDTH]);
    let w = b.parameter("w", DType::F32, &[WIDTH, 3]);
    let attrs = Attrs::new().with("padding_idx", -1i64).with("sparse", marked);
    let x = b.one(&EMBEDDING, &[table, ids], attrs).unwrap();
    let y = b.matmul(x, w).unwrap();
    let square = b.mul(y, y).unwrap();
    let sum = b.sum(square, &[0, 1], false).unwrap();
    let loss = b.scale(sum, 1.0 / batch as f64).unwrap();
    b.output("loss", loss, OutputRole::User);
    b.finish()
}

fn session(training: Training, threads: usize, marked: bool) -> Session {
    let bytes = |n, seed| noise(n, seed).into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
    let weights = HashMap::from([
        (TABLE.to_string(), bytes(ROWS * WIDTH, 1.0)),
        ("w".to_string(), bytes(WIDTH * 3, 2.0)),
    ]);
    let model = SessionModel { graph: &graph(BATCH, marked), weights: &weights };
    Session::new(Arc::new(Cpu::new(threads)), model, Some(training)).unwrap()
}

/// Ids of step `t`, some of them twice, of the first half of the table.
fn ids(t: usize, batch: usize) -> Vec<i64> {
    (0..batch).map(|i| ((i / 2 * 7 + t * 3) % (ROWS / 2)) as i64).collect()
}

fn feed(ids: &[i64]) -> [Vec<u8>; 1] {
    [ids.iter().flat_map(|i| i.to_le_bytes()).collect()]
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
}

fn read(session: &Session, name: &str) -> Vec<f32> {
    let tensor = session.tensors().iter().find(|t| t.name == name).unwrap();
    floats(&session.read(tensor).unwrap())
}

/// Losses and norms of some steps, and the weights after each.
fn run(session: &mut Session, steps: usize) -> (Vec<f64>, Vec<[Vec<f32>; 2]>) {
    let program = session.program().unwrap();
    let (mut numbers, mut weights) = (Vec::new(), Vec::new());
    for t in 0..steps {
        session.set_rng(7, t as u64).unwrap();
        session.gradients(program, &feed(&ids(t, BATCH))).unwrap();
        numbers.push(session.output(program, 0).unwrap().to_f64()[0]);
        let update = session.update(0.05).unwrap();
        assert!(update.applied);
        numbers.push(update.norm);
        weights.push([read(session, TABLE), read(session, "w")]);
    }
    (numbers, weights)
}

fn training(optimizer: &str, sparse: Sparse) -> Training {
    Training {
        optimizer: serde_json::from_str(optimizer).unwrap(),
        clip: Clip { norm: Some(0.5), value: None },
        sparse_embeddings: sparse,
        ..Training::default()
    }
}

#[test]
fn where_rows_without_gradient_stay_the_steps_are_the_dense_ones() {
    for optimizer in [
        r#"{"name": "sgd", "momentum": 0.0, "weight_decay": 0.0}"#,
        r#"{"name": "adagrad", "weight_decay": 0.0}"#,
    ] {
        let mut dense = session(training(optimizer, Sparse::None), 1, true);
        assert!(dense.sparse().is_empty());
        let want = run(&mut dense, 5);
        for threads in [1, 2] {
            let mut sparse = session(training(optimizer, Sparse::Marked), threads, true);
            assert_eq!(sparse.sparse(), [(TABLE.to_string(), BATCH)]);
            let got = run(&mut sparse, 5);
            // Norms are sums over other blocks, and scale what is clipped: a few units in the last place
            // each.
            for (x, y) in got.0.iter().zip(&want.0) {
                assert!((x - y).abs() <= 1e-5 * y.abs(), "{optimizer}: {x} {y}");
            }
            for (x, y) in got.1.iter().flatten().flatten().zip(want.1.iter().flatten().flatten()) {
                assert!((x - y).abs() <= 1e-5 * y.abs().max(1e-2), "{optimizer}: {x} {y}");
            }
        }
    }
}

#[test]
fn without_clipping_they_have_the_bits_of_the_dense_ones_on_any_threads() {
    let optimizer = r#"{"name": "sgd", "momentum": 0.0, "weight_decay": 0.0}"#;
    let free = |sparse| Training { clip: Clip::default(), ..training(optimizer, sparse) };
    let want = run(&mut session(free(Sparse::None), 1, false), 5).1;
    for threads in [1, 2, 7] {
        assert!(run(&mut session(free(Sparse::All), threads, false), 5).1 == want, "{threads} threads");
    }
}

/// Adam of the rows that are read, in f64: `SparseAdam` except for the position of `eps`.
struct Lazy {
    table: Vec<f64>,
    moments: [Vec<f64>; 2],
    steps: i32,
}

impl Lazy {
    fn step(&mut self, rows: &[(usize, Vec<f64>)], lr: f64) {
        self.steps += 1;
        let (b1, b2) = (0.9f64, 0.999f64);
        let (c1, c2) = (1.0 - b1.powi(self.steps), (1.0 - b2.powi(self.steps)).sqrt());
        for (row, gradient) in rows {
            for (j, &g) in gradient.iter().enumerate() {
                let i = row * WIDTH + j;
                self.moments[0][i] = b1 * self.moments[0][i] + (1.0 - b1) * g;
                self.moments[1][i] = b2 * self.moments[1][i] + (1.0 - b2) * g * g;
                let denominator = self.moments[1][i].sqrt() / c2 + 1e-8;
                self.table[i] -= lr / c1 * self.moments[0][i] / denominator;
            }
        }
    }
}

#[test]
fn adam_steps_the_rows_that_are_read_and_no_others() {
    let optimizer = r#"{"name": "adam", "weight_decay": 0.0, "eps": 1e-8}"#;
    let free = Training { clip: Clip::default(), ..training(optimizer, Sparse::Marked) };
    let mut session = session(free, 2, true);
    let program = session.program().unwrap();
    let before = read(&session, TABLE);
    let mut lazy = Lazy {
        table: before.iter().map(|&x| x as f64).collect(),
        moments: [vec![0.0; ROWS * WIDTH], vec![0.0; ROWS * WIDTH]],
        steps: 0,
    };
    for t in 0..6 {
        let ids = ids(t, BATCH);
        session.gradients(program, &feed(&ids)).unwrap();
        let mut rows: Vec<usize> = ids.iter().map(|&i| i as usize).collect();
        rows.sort_unstable();
        rows.dedup();
        let gradient = session.gradient(TABLE).unwrap();
        assert_eq!(gradient.shape()[..], [BATCH, WIDTH]);
        let values = gradient.to_f64();
        let own = rows.iter().enumerate().map(|(i, &r)| (r, values[i * WIDTH..][..WIDTH].to_vec()));
        assert!(values[rows.len() * WIDTH..].iter().all(|&x| x == 0.0), "rows that are not there");
        lazy.step(&own.collect::<Vec<_>>(), 0.05);
        assert!(session.update(0.05).unwrap().applied);
        for (i, (&x, &y)) in read(&session, TABLE).iter().zip(&lazy.table).enumerate() {
            // A step is at most the rate, and has a few roundings of f32.
            assert!((x as f64 - y).abs() <= 1e-6 * (t + 1) as f64, "step {t}, element {i}: {x} {y}");
        }
    }
    let after = read(&session, TABLE);
    let half = ROWS / 2 * WIDTH;
    assert!(after[half..] == before[half..] && after[..half] != before[..half]);
    for (key, _) in session.moments().iter().filter(|(key, _)| key.to_string().ends_with(TABLE)) {
        let moment = floats(&session.read_moment(key).unwrap());
        assert_eq!(moment.len(), ROWS * WIDTH, "{key}");
        assert!(
            moment[half..].iter().all(|&x| x == 0.0) && moment[..half].iter().any(|&x| x != 0.0),
            "{key}"
        );
    }
}

#[test]
fn smaller_batches_masters_and_gradients_that_are_not_finite() {
    for (level, stochastic) in [(Level::O0, false), (Level::O2, false), (Level::O3, true)] {
        let precision = match level {
            Level::O0 => PrecisionSettings::default(),
            level => PrecisionSettings { level, dtype: Some(DType::BF16), ..PrecisionSettings::default() },
        };
        let training = Training {
            precision,
            stochastic_rounding: stochastic,
            ..training(r#"{"name": "adamw", "weight_decay": 0.1}"#, Sparse::Marked)
        };
        let mut session = session(training, 2, true);
        let (numbers, weights) = run(&mut session, 4);
        assert!(numbers.iter().all(|x| x.is_finite()));
        assert_ne!(weights[0][0], weights[3][0], "{level:?}");
        // The last batch of an epoch: fewer rows than the capacity.
        let program = session.training_program(&graph(3, true)).unwrap();
        session.gradients(program, &feed(&ids(9, 3))).unwrap();
        assert!(session.update(0.05).unwrap().applied);
        assert_ne!(read(&session, TABLE), weights[3][0]);
        // More than the capacity.
        assert!(session.training_program(&graph(2 * BATCH, true)).is_err());
        // A row with NaN stops the step.
        let tensor = session.tensors().iter().find(|t| t.name == TABLE).unwrap().clone();
        let mut poisoned = session.read(&tensor).unwrap();
        poisoned[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        session.write(&tensor, &poisoned).unwrap();
        let before = session.read(&tensor).unwrap();
        session.gradients(program, &feed(&[0, 1, 2])).unwrap();
        assert!(!session.update(0.05).unwrap().applied);
        assert!(session.read(&tensor).unwrap() == before, "{level:?}");
    }
}

#[test]
fn what_cannot_be_sparse_stays_dense() {
    let dense = |training: Training, marked| assert!(session(training, 1, marked).sparse().is_empty());
    let adam = r#"{"name": "adam"}"#;
    dense(training(adam, Sparse::Marked), false);
    dense(training(adam, Sparse::None), true);
    dense(Training { accumulate: 2, ..training(adam, Sparse::All) }, true);
    dense(Training { lanes: 2, ..training(adam, Sparse::All) }, true);
    dense(training(r#"{"name": "lamb"}"#, Sparse::All), true);
    dense(training(r#"{"name": "sgd", "momentum": 0.9}"#, Sparse::All), true);
    let groups = r#"[{"parameters": "w", "momentum": 0.9}]"#;
    let groups = serde_json::from_str(groups).unwrap();
    dense(Training { groups, ..training(r#"{"name": "sgd", "momentum": 0.0}"#, Sparse::All) }, true);
}
