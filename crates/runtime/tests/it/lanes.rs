//! Lanes: sums of micro-batches in a chain, sums of lanes by halves, whatever the number of threads; runs
//! with lanes that are resumed; models that cannot have them.

use crate::common::{CLASSES, SAMPLES, WIDTH, config, graph, noise, weights, write_data};
use headwater_core::device::Device;
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ranks::halving;
use headwater_core::{Builder, DType, TensorType};
use headwater_cpu::Cpu;
use headwater_runtime::optim::Clip;
use headwater_runtime::session::{Planned, Training};
use headwater_runtime::{Session, SessionModel, TrainConfig, Trainer};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const BATCH: usize = 4;
const PARAMETERS: [&str; 3] = ["fc1.weight", "fc1.bias", "fc2.weight"];

fn bytes(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// Feeds of batch `number`.
fn feeds(number: u64) -> Vec<Vec<u8>> {
    let phase = 0.7 * number as f32;
    vec![bytes(noise(BATCH * WIDTH, phase)), bytes(noise(BATCH * CLASSES, phase + 0.3)), vec![0; BATCH * 8]]
}

fn session(device: Arc<dyn Device>, lanes: u32, accumulate: u32) -> Session {
    let settings =
        Training { lanes, accumulate, clip: Clip { norm: Some(0.5), value: None }, ..Training::default() };
    let (graph, weights) = (graph(BATCH, 0.3), weights());
    Session::new(device, SessionModel { graph: &graph, weights: &weights }, Some(settings)).unwrap()
}

/// Gradients of each parameter.
type Gradients = Vec<Vec<f32>>;

fn gradients(session: &mut Session) -> Gradients {
    let read = |p: &&str| session.gradient(p).unwrap().to_f64().iter().map(|x| *x as f32).collect();
    PARAMETERS.iter().map(read).collect()
}

/// Gradients of single batches, in the order of their numbers, from a session that sums none.
fn single(device: Arc<dyn Device>, batches: u64) -> Vec<Gradients> {
    let mut session = session(device, 1, 1);
    let program = session.program().unwrap();
    let mut own = |number| {
        session.begin_step().unwrap();
        session.set_rng(9, number).unwrap();
        session.gradients(program, &feeds(number)).unwrap();
        gradients(&mut session)
    };
    (0..batches).map(&mut own).collect()
}

fn add(into: &mut Gradients, from: &Gradients) {
    for (a, b) in into.iter_mut().zip(from) {
        a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
    }
}

/// The sum by hand: a chain from zero in each lane, halves over lanes.
fn by_hand(single: &[Gradients], lanes: usize, accumulate: usize) -> Gradients {
    let chain = |own: &[Gradients]| {
        let mut sum: Gradients = own[0].iter().map(|g| vec![0.0; g.len()]).collect();
        own.iter().for_each(|g| add(&mut sum, g));
        sum
    };
    let mut sums: Vec<Gradients> = single[..lanes * accumulate].chunks(accumulate).map(chain).collect();
    for (into, from) in halving(lanes) {
        let other = sums[from].clone();
        add(&mut sums[into], &other);
    }
    sums.swap_remove(0)
}

/// The sum as a session makes it, twice over, so that nothing is left of the step before.
fn by_session(device: Arc<dyn Device>, lanes: usize, accumulate: usize) -> Gradients {
    let mut session = session(device, lanes as u32, accumulate as u32);
    let program = session.program().unwrap();
    let mut found = Vec::new();
    for _ in 0..2 {
        session.begin_step().unwrap();
        for number in 0..(lanes * accumulate) as u64 {
            session.set_rng(9, number).unwrap();
            session.gradients(program, &feeds(number)).unwrap();
            if (number as usize + 1).is_multiple_of(accumulate) {
                session.end_lane().unwrap();
            }
        }
        found.push(gradients(&mut session));
    }
    assert_eq!(found[0], found[1]);
    found.swap_remove(0)
}

#[test]
fn a_step_of_lanes_is_the_tree_over_single_batches_written_by_hand() {
    let cpu = |threads| Arc::new(Cpu::new(threads)) as Arc<dyn Device>;
    let single = single(cpu(1), 24);
    let shapes =
        [(1, 2), (1, 3), (2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (4, 2), (5, 1), (6, 2), (8, 1), (8, 3)];
    for (lanes, accumulate) in shapes {
        let want = by_hand(&single, lanes, accumulate);
        for threads in 1..=4 {
            let got = by_session(cpu(threads), lanes, accumulate);
            assert!(got == want, "{lanes} lanes of {accumulate}, {threads} threads");
        }
    }
    // A chain over all eight would be other bits: the tree is looked at.
    assert!(by_hand(&single, 8, 1) != by_hand(&single, 1, 8));
    assert!(by_hand(&single, 2, 4) != by_hand(&single, 8, 1));
    // Chains of two are halves.
    assert!(by_hand(&single, 4, 2) == by_hand(&single, 8, 1));
}

#[test]
fn the_mean_is_over_all_batches_of_all_lanes() {
    let norm = |lanes, accumulate| {
        let mut session = session(Arc::new(Cpu::new(1)), lanes, accumulate);
        let program = session.program().unwrap();
        session.begin_step().unwrap();
        for number in 0..u64::from(lanes * accumulate) {
            session.set_rng(9, number).unwrap();
            session.gradients(program, &feeds(number)).unwrap();
            if (number + 1) % u64::from(accumulate) == 0 {
                session.end_lane().unwrap();
            }
        }
        session.update(0.1).unwrap().norm
    };
    let (chain, tree) = (norm(1, 8), norm(4, 2));
    // Eight additions in f32, in another order.
    assert!((chain - tree).abs() <= 8.0 * f64::from(f32::EPSILON) * chain, "{chain} {tree}");
}

#[test]
fn a_step_without_all_of_its_lanes_is_not_applied() {
    let mut session = session(Arc::new(Cpu::new(1)), 2, 1);
    let program = session.program().unwrap();
    session.begin_step().unwrap();
    session.set_rng(9, 0).unwrap();
    session.gradients(program, &feeds(0)).unwrap();
    session.end_lane().unwrap();
    assert!(session.update(0.1).unwrap_err().to_string().contains("1 of 2 lanes"));
    session.end_lane().unwrap();
    assert!(session.end_lane().unwrap_err().to_string().contains("no lane 2"));
}

#[test]
fn sums_that_wait_are_planned_and_shown_before_memory_is_taken() {
    let device = Cpu::new(1);
    let planned = |lanes| {
        let settings = Training { lanes, ..Training::default() };
        Planned::training(&graph(BATCH, 0.0), &settings, device.target(), None).unwrap().memory()
    };
    let one = planned(1);
    for (lanes, waiting) in [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3)] {
        assert_eq!(planned(lanes).gradients, one.gradients * (1 + waiting), "{lanes} lanes");
    }
    let refused = Training { lanes: 0, ..Training::default() };
    let e = Planned::training(&graph(BATCH, 0.0), &refused, device.target(), None).err().unwrap();
    assert!(e.to_string().contains("lanes"), "{e}");
}

/// A run in `dir`: its losses, and the hash of the last checkpoint's model and state.
fn run(dir: &Path, config: &TrainConfig, threads: usize, resume: bool) -> (Vec<f64>, String) {
    let (graph, weights) = (graph(BATCH, 0.3), weights());
    let model = SessionModel { graph: &graph, weights: &weights };
    let device = Arc::new(Cpu::new(threads));
    let mut trainer = Trainer::new(device, model, None, config.clone(), resume).unwrap();
    let summary = trainer.run(&mut [], &AtomicBool::new(false)).unwrap();
    assert!(summary.complete);
    let mut hash = Sha256::new();
    let last = dir.join("checkpoints").join(format!("step-{:08}", summary.step));
    for file in ["model.safetensors", "state.safetensors"] {
        hash.update(std::fs::read(last.join(file)).unwrap());
    }
    (summary.losses, hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

fn settings(dir: &Path, lanes: u32, accumulate: u32) -> TrainConfig {
    write_data(&dir.join("data.safetensors"));
    let mut config = TrainConfig { accumulate, steps: Some(6), ..config(dir) };
    config.ranks.lanes = Some(lanes);
    config.data.eval = None;
    config
}

#[test]
fn runs_with_lanes_have_one_hash_for_any_threads_and_when_resumed() {
    for (lanes, accumulate) in [(1, 1), (4, 1), (3, 2)] {
        let mut hashes = Vec::new();
        let mut whole = Vec::new();
        for threads in 1..=3 {
            let dir = tempfile::tempdir().unwrap();
            let (losses, hash) = run(dir.path(), &settings(dir.path(), lanes, accumulate), threads, false);
            hashes.push(hash);
            whole = losses;
        }
        let dir = tempfile::tempdir().unwrap();
        let config = settings(dir.path(), lanes, accumulate);
        let (mut losses, _) = run(dir.path(), &TrainConfig { steps: Some(2), ..config.clone() }, 2, false);
        let (rest, hash) = run(dir.path(), &config, 1, true);
        losses.extend(rest);
        hashes.push(hash);
        assert!(hashes.iter().all(|h| *h == hashes[0]), "{lanes} lanes: {hashes:?}");
        assert_eq!(losses, whole, "{lanes} lanes of {accumulate}");
        assert!(whole.len() == 6 && SAMPLES > BATCH);
    }
}

#[test]
fn a_run_with_other_lanes_is_another_run() {
    let losses = |lanes, accumulate| {
        let dir = tempfile::tempdir().unwrap();
        run(dir.path(), &settings(dir.path(), lanes, accumulate), 1, false)
    };
    let (lanes, chain) = (losses(4, 1), losses(1, 4));
    // The same batches in the same order: the first loss is theirs, bits of the weights differ.
    assert_eq!(lanes.0[0], chain.0[0]);
    assert_ne!(lanes.1, chain.1);
}

#[test]
fn a_model_whose_buffer_reaches_the_loss_has_no_lanes() {
    // A vector that each batch changes and divides by, as spectral norm does.
    let model = |reads: bool| {
        let mut b = Builder::new();
        let w = b.parameter("w", DType::F32, &[4]);
        let u = b.input("norm.u", TensorType::new(DType::F32, [4]), InputRole::Buffer { persistent: true });
        let x = b.input("x", TensorType::new(DType::F32, [4]), InputRole::User);
        let y = b.mul(x, w).unwrap();
        let y = if reads { b.mul(y, u).unwrap() } else { y };
        let loss = b.sum(y, &[0], false).unwrap();
        b.output("loss", loss, OutputRole::User);
        let half = b.scale(u, 0.5).unwrap();
        let new = b.add(half, x).unwrap();
        b.output("norm.u", new, OutputRole::Mutation(u));
        b.finish()
    };
    let weights: HashMap<String, Vec<u8>> =
        HashMap::from([("w".into(), bytes([1.0; 4])), ("norm.u".into(), bytes([1.0; 4]))]);
    let open = |reads, lanes| {
        let settings = Training { lanes, ..Training::default() };
        let graph = model(reads);
        let model = SessionModel { graph: &graph, weights: &weights };
        Session::new(Arc::new(Cpu::new(1)), model, Some(settings)).map(drop)
    };
    open(true, 1).unwrap();
    open(false, 2).unwrap();
    let e = open(true, 2).unwrap_err().to_string();
    assert!(e.contains("lanes") && e.contains("norm.u"), "{e}");
}
