//! State in memory that somebody else keeps, and groups whose settings change from step to step.
#![allow(unsafe_code)]

use crate::common::noise;
use headwater_core::device::Foreign;
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::plan::{ALIGN, Segment};
use headwater_core::train::StateKey;
use headwater_core::{Builder, DType, Graph, TensorType};
use headwater_cpu::Cpu;
use headwater_runtime::optim::{Decay, ListedGroup, Optimizer};
use headwater_runtime::session::Training;
use headwater_runtime::{Session, SessionModel};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;

/// Zeroed memory whose owner keeps its address.
struct Lent {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the block is this value's own.
unsafe impl Send for Lent {}

// SAFETY: the block lives until this value is dropped; the tests touch it between the session's calls alone.
unsafe impl Foreign for Lent {
    fn memory(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.base, self.layout.size())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: allocated in `lend` with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

fn lend(bytes: usize) -> (Box<Lent>, NonNull<u8>) {
    let layout = Layout::from_size_align(bytes, ALIGN).unwrap();
    // SAFETY: `bytes` is not 0.
    let base = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
    (Box::new(Lent { base, layout }), base)
}

const BATCH: usize = 8;

/// The mean square of `x · a · b`.
fn graph() -> Graph {
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [BATCH, 5]), InputRole::User);
    let first = b.parameter("a", DType::F32, &[5, 7]);
    let second = b.parameter("b", DType::F32, &[7, 3]);
    let h = b.matmul(x, first).unwrap();
    let y = b.matmul(h, second).unwrap();
    let square = b.mul(y, y).unwrap();
    let sum = b.sum(square, &[0, 1], false).unwrap();
    b.output("loss", sum, OutputRole::User);
    b.finish()
}

fn bytes(x: Vec<f32>) -> Vec<u8> {
    x.into_iter().flat_map(f32::to_le_bytes).collect()
}

fn optimizer(json: &str) -> Optimizer {
    serde_json::from_str(json).unwrap()
}

/// A session with a group for each parameter.
fn session(
    settings: [&str; 2],
    lend: headwater_runtime::session::Lend,
) -> headwater_runtime::Result<Session> {
    let listed = ["a", "b"].into_iter().zip(settings);
    let listed = listed
        .map(|(name, json)| ListedGroup { parameters: vec![name.to_string()], optimizer: optimizer(json) });
    trained(Training { listed: Some(listed.collect()), ..Training::default() }, lend)
}

fn trained(training: Training, lend: headwater_runtime::session::Lend) -> headwater_runtime::Result<Session> {
    let weights =
        HashMap::from([("a".to_string(), bytes(noise(35, 1.0))), ("b".to_string(), bytes(noise(21, 2.0)))]);
    let model = SessionModel { graph: &graph(), weights: &weights };
    Session::with_memory(Arc::new(Cpu::new(2)), model, Some(training), lend)
}

fn gradients(session: &mut Session) {
    let program = session.program().unwrap();
    session.begin_step().unwrap();
    session.gradients(program, &[bytes(noise(BATCH * 5, 3.0))]).unwrap();
}

fn step(session: &mut Session, steps: [(f64, u64); 2]) {
    gradients(session);
    assert!(session.update_groups(&steps).unwrap().applied);
}

fn parameters(session: &Session) -> Vec<Vec<u8>> {
    session.tensors().iter().map(|t| session.read(t).unwrap()).collect()
}

const ADAMW: &str = r#"{"name": "adamw", "weight_decay": 0.1}"#;

#[test]
fn state_lies_in_lent_memory_where_its_owner_reads_and_writes_it() {
    let mut lent: HashMap<String, NonNull<u8>> = HashMap::new();
    let mut lender = |s: &Segment| -> Option<Box<dyn Foreign>> {
        (s.bytes > 0 && s.name != "scalars").then(|| {
            let (memory, base) = lend(s.bytes);
            lent.insert(s.name.clone(), base);
            memory as Box<dyn Foreign>
        })
    };
    let mut shared = session([ADAMW; 2], &mut lender).unwrap();
    let mut own = session([ADAMW; 2], &mut |_| None).unwrap();
    let find = |session: &Session, key: &StateKey| {
        let (segment, byte, ty) = session.place(key).unwrap();
        let name = session.segments().nth(segment).unwrap().name.clone();
        // SAFETY: the location is in its segment, whose memory the session keeps.
        (unsafe { lent[&name].add(byte) }, ty.bytes())
    };
    let key = StateKey::Parameter("b".into());
    let (at, bytes) = find(&shared, &key);
    for t in 1..4 {
        step(&mut shared, [(0.01, t), (0.02, t)]);
        step(&mut own, [(0.01, t), (0.02, t)]);
        // SAFETY: no work is under way.
        let seen = unsafe { std::slice::from_raw_parts(at.as_ptr(), bytes) };
        assert_eq!(seen, parameters(&own)[1], "after step {t}");
    }
    assert_eq!(parameters(&shared), parameters(&own));
    let (moment, _) = find(&shared, &StateKey::moment("exp_avg", "a"));
    // SAFETY: as above.
    assert!(unsafe { moment.cast::<f32>().read() } != 0.0);
    // The next step begins with the bytes that the owner writes.
    // SAFETY: as above.
    unsafe { at.as_ptr().write_bytes(0, bytes) };
    step(&mut shared, [(0.0, 4), (0.0, 4)]);
    assert_eq!(parameters(&shared)[1], vec![0; bytes]);
    assert!(shared.place(&StateKey::Parameter("c".into())).is_err());
    let mut short = |s: &Segment| (s.bytes > 64).then(|| lend(s.bytes / 2).0 as Box<dyn Foreign>);
    let refused = session([ADAMW; 2], &mut short).err().unwrap().to_string();
    assert!(refused.contains("were lent"), "{refused}");
}

#[test]
fn settings_of_listed_groups_change_each_by_itself() {
    let run = |change: bool| {
        let mut s = session([ADAMW; 2], &mut |_| None).unwrap();
        step(&mut s, [(0.01, 1), (0.01, 1)]);
        let before = parameters(&s);
        if change {
            let other = optimizer(r#"{"name": "adamw", "weight_decay": 0.1, "betas": [0.5, 0.9]}"#);
            s.set_groups(&[optimizer(ADAMW), other]).unwrap();
            assert!(s.set_groups(&[optimizer(ADAMW)]).is_err());
            assert!(s.set_groups(&[optimizer(ADAMW), optimizer(r#"{"name": "sgd"}"#)]).is_err());
        }
        assert_eq!(parameters(&s), before, "nothing is stepped by new settings");
        step(&mut s, [(0.01, 2), (0.01, 2)]);
        parameters(&s)
    };
    let (same, changed) = (run(false), run(true));
    assert_eq!(same[0], changed[0]);
    assert_ne!(same[1], changed[1]);
    // A rate of 0 for one group leaves it alone; steps are counted by group.
    let mut s = session([ADAMW, r#"{"name": "sgd", "momentum": 0.9}"#], &mut |_| None).unwrap();
    let before = parameters(&s);
    step(&mut s, [(0.0, 1), (0.1, 1)]);
    assert_eq!(parameters(&s)[0], before[0]);
    assert_ne!(parameters(&s)[1], before[1]);
    assert!(s.update_groups(&[(0.1, 2)]).is_err());
}

/// Settings of every optimizer that takes some as numbers of the step; those of the second line differ in
/// these alone.
const BY_STEP: [[&str; 2]; 5] = [
    [
        r#"{"name": "adamw", "betas": [0.9, 0.99], "weight_decay": 0.1}"#,
        r#"{"name": "adamw", "betas": [0.3, 0.9], "weight_decay": 0.0}"#,
    ],
    [
        r#"{"name": "adam", "betas": [0.9, 0.99], "weight_decay": 0.1, "amsgrad": true}"#,
        r#"{"name": "adam", "betas": [0.0, 0.9], "weight_decay": 0.0, "amsgrad": true}"#,
    ],
    [
        r#"{"name": "sgd", "momentum": 0.9, "weight_decay": 0.1, "nesterov": true}"#,
        r#"{"name": "sgd", "momentum": 0.4, "weight_decay": 0.0, "nesterov": true}"#,
    ],
    [r#"{"name": "sgd", "weight_decay": 0.1}"#, r#"{"name": "sgd"}"#],
    [
        r#"{"name": "rmsprop", "alpha": 0.9, "weight_decay": 0.1, "momentum": 0.5, "centered": true}"#,
        r#"{"name": "rmsprop", "alpha": 0.3, "momentum": 0.9, "centered": true}"#,
    ],
];

#[test]
fn settings_as_numbers_of_the_step_give_the_bits_of_constants_and_one_plan() {
    for [first, second] in BY_STEP {
        // Two steps with constants: the moments of the second start from those of the first.
        let constant = |json: &str| {
            let optimizer = optimizer(json);
            let training = Training { optimizer, decay: Decay::All, ..Training::default() };
            let mut s = trained(training, &mut |_| None).unwrap();
            for rate in [0.01, 0.02] {
                gradients(&mut s);
                assert!(s.update(rate).unwrap().applied);
            }
            parameters(&s)
        };
        let by_step = |settings: [&str; 2]| {
            let mut s = session([settings[0]; 2], &mut |_| None).unwrap();
            for (t, (rate, json)) in (1..).zip([0.01, 0.02].into_iter().zip(settings)) {
                s.set_groups(&[optimizer(json), optimizer(json)]).unwrap();
                step(&mut s, [(rate, t); 2]);
            }
            assert_eq!(s.update_plans(), 1, "{first}");
            parameters(&s)
        };
        assert_eq!(by_step([first, first]), constant(first), "{first}");
        assert_eq!(by_step([second, second]), constant(second), "{second}");
        let changed = by_step([first, second]);
        assert!(changed != constant(first) && changed != constant(second), "{first}");
    }
    // What is not a number of the step is planned anew.
    let mut s = session([ADAMW; 2], &mut |_| None).unwrap();
    let wider = optimizer(r#"{"name": "adamw", "weight_decay": 0.1, "eps": 1e-6}"#);
    s.set_groups(&[optimizer(ADAMW), wider.clone()]).unwrap();
    assert_eq!(s.update_plans(), 2);
    s.set_groups(&[optimizer(ADAMW), wider]).unwrap();
    assert_eq!(s.update_plans(), 2);
}
