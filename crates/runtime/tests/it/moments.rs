//! Moments in bf16 and in codes of 8 bits. They have the same bits on any threads and for any buckets, in the
//! bytes that were promised, and training goes the way of f32.

use crate::common::noise;
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::train::{BucketSize, StateKey};
use headwater_core::{Builder, DType, Graph, TensorType};
use headwater_cpu::Cpu;
use headwater_runtime::session::{Moments, Planned, Training};
use headwater_runtime::{Session, SessionModel};
use std::collections::HashMap;
use std::sync::Arc;

const FORMS: [Moments; 3] = [Moments::F32, Moments::Bf16, Moments::Int8];
const IN: usize = 40;
const HIDDEN: usize = 60;
const OUT: usize = 3;
const BATCH: usize = 16;

/// The mean square of `tanh(x · a) · b − y`; `a` has three blocks, the last not full.
fn graph() -> Graph {
    let mut b = Builder::new();
    let ty = |n| TensorType::new(DType::F32, [BATCH, n]);
    let x = b.input("x", ty(IN), InputRole::User);
    let y = b.input("y", ty(OUT), InputRole::User);
    let first = b.parameter("a", DType::F32, &[IN, HIDDEN]);
    let second = b.parameter("b", DType::F32, &[HIDDEN, OUT]);
    let h = b.matmul(x, first).unwrap();
    let h = b.call(&headwater_core::ops::pointwise::tanh::TANH, &[h]).unwrap();
    let out = b.matmul(h, second).unwrap();
    let d = b.sub(out, y).unwrap();
    let square = b.mul(d, d).unwrap();
    let sum = b.sum(square, &[0, 1], false).unwrap();
    let loss = b.scale(sum, 1.0 / (BATCH * OUT) as f64).unwrap();
    b.output("loss", loss, OutputRole::User);
    b.finish()
}

fn bytes(x: Vec<f32>) -> Vec<u8> {
    x.into_iter().flat_map(f32::to_le_bytes).collect()
}

fn session(training: Training, threads: usize) -> Session {
    let scaled = |n, seed, by: f32| bytes(noise(n, seed).into_iter().map(|x| x * by).collect());
    let weights = HashMap::from([
        ("a".to_string(), scaled(IN * HIDDEN, 1.0, 0.3)),
        ("b".to_string(), scaled(HIDDEN * OUT, 2.0, 0.3)),
    ]);
    let model = SessionModel { graph: &graph(), weights: &weights };
    Session::new(Arc::new(Cpu::new(threads)), model, Some(training)).unwrap()
}

fn training(moments: Moments) -> Training {
    Training { moments, ..Training::default() }
}

/// Runs steps `from..to` and returns their losses.
fn run(session: &mut Session, from: usize, to: usize) -> Vec<f64> {
    let program = session.program().unwrap();
    let feed = [bytes(noise(BATCH * IN, 5.0)), bytes(noise(BATCH * OUT, 6.0))];
    let step = |t: usize| {
        session.set_rng(7, t as u64).unwrap();
        session.gradients(program, &feed).unwrap();
        let loss = session.output(program, 0).unwrap().to_f64()[0];
        assert!(session.update(0.02).unwrap().applied);
        loss
    };
    (from..to).map(step).collect()
}

/// Bytes of all parameters, and of all moments.
fn state(session: &Session) -> [Vec<(String, Vec<u8>)>; 2] {
    let tensors = session.tensors().iter().map(|t| (t.name.clone(), session.read(t).unwrap())).collect();
    let read = |key: &StateKey| (key.to_string(), session.read_moment(key).unwrap());
    [tensors, session.moments().iter().map(|(key, _)| read(key)).collect()]
}

#[test]
fn threads_and_buckets_change_no_bit() {
    for form in FORMS {
        let mut whole = session(training(form), 1);
        let losses = run(&mut whole, 0, 4);
        for (threads, size) in [(2, BucketSize::UNLIMITED), (7, BucketSize::of(1)), (1, BucketSize::of(4096))]
        {
            let mut other = session(Training { bucket_size: Some(size), ..training(form) }, threads);
            assert_eq!(run(&mut other, 0, 4), losses, "{form:?}, {threads} threads");
            let sorted = |s: &Session| {
                state(s).map(|mut all| {
                    all.sort();
                    all
                })
            };
            assert!(sorted(&other) == sorted(&whole), "{form:?}, {threads} threads");
        }
    }
}

#[test]
fn moments_that_were_read_go_on_with_the_same_bits() {
    for form in FORMS {
        let mut first = session(training(form), 2);
        run(&mut first, 0, 3);
        let mut second = session(training(form), 2);
        for t in first.tensors() {
            second.write(t, &first.read(t).unwrap()).unwrap();
        }
        for (key, ty) in first.moments() {
            let bytes = first.read_moment(&key).unwrap();
            assert_eq!(bytes.len(), ty.bytes());
            second.write_moment(&key, &bytes).unwrap();
        }
        second.set_applied(first.applied());
        assert!(state(&first) == state(&second), "{form:?}");
        assert_eq!(run(&mut first, 3, 6), run(&mut second, 3, 6), "{form:?}");
        assert!(state(&first) == state(&second), "{form:?}");
    }
}

#[test]
fn a_step_that_is_skipped_changes_nothing() {
    for form in FORMS {
        let mut session = session(Training { scaled: true, ..training(form) }, 2);
        run(&mut session, 0, 2);
        let before = state(&session);
        session.set_loss_scale(f64::MAX).unwrap();
        let program = session.program().unwrap();
        let feed = [bytes(noise(BATCH * IN, 5.0)), bytes(noise(BATCH * OUT, 6.0))];
        for t in 0..20 {
            session.set_rng(8, t).unwrap();
            session.gradients(program, &feed).unwrap();
            assert!(!session.update(0.01).unwrap().applied);
        }
        assert!(state(&session) == before, "{form:?}");
    }
}

#[test]
fn moments_take_the_bytes_that_are_planned_and_training_goes_the_same_way() {
    let graph = graph();
    let device = Cpu::new(2);
    let planned = |form| {
        let target = headwater_core::device::Device::target(&device);
        Planned::training(&graph, &training(form), target, None).unwrap().memory().moments
    };
    let [f32, bf16, int8] = FORMS.map(planned);
    // Parameters are stored in blocks of 1024: three and one.
    assert_eq!([f32, bf16, int8], [2 * 4 * 4096, 2 * 2 * 4096, 2 * (4096 + 4 * 4)]);
    let losses = |form| run(&mut session(training(form), 2), 0, 300);
    let [f32, bf16, int8] = FORMS.map(losses);
    let (first, last) = (f32[0], f32[299]);
    assert!(last < 0.9 * first, "{first} to {last}");
    for narrow in [bf16, int8] {
        let other = narrow[299];
        assert!((other - last).abs() < 0.1 * (first - last), "{first} to {other}, in f32 to {last}");
    }
}
