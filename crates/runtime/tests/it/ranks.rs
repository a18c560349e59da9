//! Runs of several ranks in one process: the bits of one rank, resumption by other numbers of ranks,
//! refusals.

use crate::common::{config, graph, weights, write_data};
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ranks::Transport;
use headwater_core::{Builder, Code, DType, TensorType};
use headwater_cpu::Cpu;
use headwater_ranks::World;
use headwater_runtime::session::Training;
use headwater_runtime::{Error, Result, SessionModel, Summary, TrainConfig, Trainer};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const BATCH: usize = 4;

/// Trains as one rank; alone without a transport.
fn rank(
    transport: Option<Arc<dyn Transport>>,
    config: TrainConfig,
    resume: bool,
    stop: &AtomicBool,
) -> Result<Summary> {
    let (mut graph, weights) = (graph(BATCH, 0.3), weights());
    // Without running statistics, which several ranks refuse.
    graph.outputs.retain(|o| !matches!(o.role, OutputRole::Mutation(_)));
    let model = SessionModel { graph: &graph, weights: &weights };
    let device = match transport {
        Some(transport) => Cpu::new(1).with_transport(transport),
        None => Cpu::new(1),
    };
    Trainer::new(Arc::new(device), model, None, config, resume)?.run(&mut [], stop)
}

/// Trains on so many ranks; each may have settings of its own.
fn world(
    ranks: usize,
    config: impl Fn(usize) -> TrainConfig,
    resume: bool,
    stop: &AtomicBool,
) -> Vec<Result<Summary>> {
    if ranks == 1 {
        return vec![rank(None, config(0), resume, stop)];
    }
    let world = World::new(ranks);
    std::thread::scope(|s| {
        let own = |r: usize| {
            let (transport, config) = (world.rank(r), config(r));
            s.spawn(move || rank(Some(transport), config, resume, stop))
        };
        let all: Vec<_> = (0..ranks).map(own).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn hash(dir: &Path, step: u64) -> String {
    let mut hash = Sha256::new();
    for file in ["model.safetensors", "state.safetensors"] {
        hash.update(
            std::fs::read(dir.join("checkpoints").join(format!("step-{step:08}")).join(file)).unwrap(),
        );
    }
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

fn settings(dir: &Path, lanes: Option<u32>, accumulate: u32, steps: u64) -> TrainConfig {
    write_data(&dir.join("data.safetensors"));
    let mut config = TrainConfig { accumulate, steps: Some(steps), ..config(dir) };
    config.ranks.lanes = lanes;
    config
}

static RUN: AtomicBool = AtomicBool::new(false);

#[test]
fn any_number_of_ranks_has_the_losses_and_the_bytes_of_one() {
    for (lanes, accumulate, worlds) in [(4, 1, 1..=4), (8, 2, 1..=8), (5, 1, 1..=3)] {
        let mut found = Vec::new();
        for ranks in worlds {
            let dir = tempfile::tempdir().unwrap();
            let config = settings(dir.path(), Some(lanes), accumulate, 5);
            let all = world(ranks, |_| config.clone(), false, &RUN);
            let all: Vec<Summary> = all.into_iter().map(Result::unwrap).collect();
            let scores = |s: &Summary| s.evaluation.clone().map(|e| e.scores);
            for other in &all {
                assert_eq!((&other.losses, other.updates), (&all[0].losses, all[0].updates), "{ranks} ranks");
                assert_eq!(scores(other), scores(&all[0]), "{ranks} ranks");
            }
            found.push((all[0].losses.clone(), scores(&all[0]), hash(dir.path(), 5)));
        }
        assert!(found.iter().all(|f| *f == found[0]), "{lanes} lanes: {found:?}");
    }
}

/// Every file of every checkpoint, by name.
fn checkpoints(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let list = |dir: &Path| std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>();
    let folders = list(&dir.join("checkpoints")).into_iter().filter(|p| p.is_dir());
    let files = folders.flat_map(|folder| list(&folder));
    files.map(|f| (f.strip_prefix(dir).unwrap().display().to_string(), std::fs::read(&f).unwrap())).collect()
}

#[test]
fn checkpoints_are_the_same_to_the_byte_whoever_writes_them() {
    let mut found = Vec::new();
    let place = tempfile::tempdir().unwrap();
    for ranks in [1, 2, 4, 3] {
        // One place for all: the settings in a checkpoint name it.
        let dir = place.path().join("run");
        std::fs::create_dir_all(&dir).unwrap();
        let mut config = settings(&dir, Some(4), 1, 5);
        (config.ema, config.checkpoint.every) = (Some(0.9), Some(2));
        (config.eval.every, config.eval.keep_best, config.checkpoint.keep) = (Some(1), true, 9);
        for step in [3, 5] {
            let config = TrainConfig { steps: Some(step), ..config.clone() };
            world(ranks, |_| config.clone(), step > 3, &RUN).into_iter().for_each(|r| drop(r.unwrap()));
        }
        found.push(checkpoints(&dir));
        std::fs::remove_dir_all(&dir).unwrap();
    }
    let names: Vec<&String> = found[0].keys().collect();
    assert!(names.iter().any(|n| n.contains("best-step-")), "{names:?}");
    assert!(names.iter().any(|n| n.ends_with("ema.safetensors")), "{names:?}");
    assert!(names.len() >= 4 * 5, "{names:?}");
    for other in &found[1..] {
        assert_eq!(other.keys().collect::<Vec<_>>(), names);
        let differ: Vec<&String> = names.iter().filter(|n| other[**n] != found[0][**n]).copied().collect();
        assert!(differ.is_empty(), "{differ:?}");
    }
}

#[test]
fn a_run_goes_on_with_other_numbers_of_ranks() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    world(1, |_| settings(whole.path(), Some(4), 1, 8), false, &RUN).remove(0).unwrap();
    for (i, ranks) in [4, 2, 3, 1].into_iter().enumerate() {
        let steps = 2 * (i as u64 + 1);
        // The run keeps the lanes that it began with, though nobody says how many.
        let all = world(ranks, |_| settings(parts.path(), None, 1, steps), i > 0, &RUN);
        all.into_iter().for_each(|s| assert_eq!(s.unwrap().step, steps));
    }
    assert_eq!(hash(parts.path(), 8), hash(whole.path(), 8));
}

#[test]
fn ranks_that_differ_do_not_begin() {
    let dir = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let base = settings(dir.path(), Some(4), 1, 2);
    let same = base.clone();
    settings(other.path(), Some(4), 1, 2);
    let bytes = std::fs::read(other.path().join("data.safetensors")).unwrap();
    let mut changed = bytes.clone();
    *changed.last_mut().unwrap() ^= 1;
    let elsewhere = other.path().join("data.safetensors");
    let with = |change: &dyn Fn(&mut TrainConfig)| {
        let mut config = base.clone();
        change(&mut config);
        config
    };
    let cases: [(TrainConfig, &str); 3] = [
        (with(&|c| c.seed = 7), "the setting `seed`: 3 and 7"),
        (with(&|c| c.optimizer = c.optimizer.with([("lr".into(), 0.5.into())]).unwrap()), "`optimizer.lr`"),
        (with(&|c| c.data.train = elsewhere.clone()), "the training data, in their content"),
    ];
    for (theirs, words) in cases {
        std::fs::write(&elsewhere, &changed).unwrap();
        let all = world(3, |r| if r == 2 { theirs.clone() } else { same.clone() }, false, &RUN);
        let errors: Vec<Error> = all.into_iter().map(|r| r.unwrap_err()).collect();
        let text = errors[0].to_string();
        assert!(text.contains("HW-R013") && text.contains("rank 0 and rank 2"), "{text}");
        assert!(text.contains(words), "{text}");
        assert!(errors[1..].iter().all(|e| matches!(e, Error::AsRankZero)), "{errors:?}");
    }
    // A rank's own error ends all; the same error of all is reported once.
    let missing = with(&|c| c.data.train = other.path().join("nowhere.safetensors"));
    let all = world(2, |r| if r == 1 { missing.clone() } else { same.clone() }, false, &RUN);
    let errors: Vec<String> = all.into_iter().map(|r| r.unwrap_err().to_string()).collect();
    assert!(errors[0].starts_with("HW-R013: rank 1 does not begin: HW-R0"), "{errors:?}");
    assert!(errors[1].contains("nowhere"), "{errors:?}");
    let all = world(2, |_| missing.clone(), false, &RUN);
    let errors: Vec<String> = all.into_iter().map(|r| r.unwrap_err().to_string()).collect();
    assert!(errors[0].contains("nowhere") && errors[1].contains("rank 0"), "{errors:?}");
    // Nothing to resume: rank 0 knows.
    let empty = tempfile::tempdir().unwrap();
    let all = world(2, |_| settings(empty.path(), None, 1, 2), true, &RUN);
    assert!(matches!(all[1], Err(Error::AsRankZero)) && all[0].is_err());
    // More ranks than lanes.
    let all = world(3, |_| with(&|c| c.ranks.lanes = Some(2)), false, &RUN);
    let text = all[0].as_ref().unwrap_err().to_string();
    assert!(text.contains("2 lanes, and 3 ranks"), "{text}");
}

#[test]
fn a_rank_that_is_asked_to_stop_stops_all_at_the_same_step() {
    let dir = tempfile::tempdir().unwrap();
    let stop = AtomicBool::new(false);
    let config = settings(dir.path(), Some(2), 1, 100_000);
    let all = std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(300));
            stop.store(true, Ordering::SeqCst);
        });
        world(2, |_| config.clone(), false, &stop)
    });
    let all: Vec<Summary> = all.into_iter().map(Result::unwrap).collect();
    assert!(!all[0].complete && all[0].step > 0 && all[0] == all[1]);
    hash(dir.path(), all[0].step);
}

#[test]
fn running_statistics_are_refused_on_several_ranks_by_line() {
    let mut b = Builder::new();
    let w = b.parameter("w", DType::F32, &[4]);
    let mean = b.input("norm.mean", TensorType::new(DType::F32, [4]), InputRole::Buffer { persistent: true });
    let x = b.input("x", TensorType::new(DType::F32, [4]), InputRole::User);
    let y = b.mul(x, w).unwrap();
    let loss = b.sum(y, &[0], false).unwrap();
    b.output("loss", loss, OutputRole::User);
    let half = b.scale(mean, 0.5).unwrap();
    let new = b.add(half, x).unwrap();
    b.output("norm.mean", new, OutputRole::Mutation(mean));
    let graph = b.finish();
    let bytes: Vec<u8> = [1f32; 4].iter().flat_map(|x| x.to_le_bytes()).collect();
    let weights: HashMap<String, Vec<u8>> =
        HashMap::from([("w".into(), bytes.clone()), ("norm.mean".into(), bytes)]);
    let model = SessionModel { graph: &graph, weights: &weights };
    let world = World::new(2);
    let device = Arc::new(Cpu::new(1).with_transport(world.rank(0)));
    let mesh = headwater_core::ranks::Mesh::data(2, 0);
    let settings = Training { lanes: 2, mesh, ..Training::default() };
    let e = headwater_runtime::Session::new(device, model, Some(settings)).map(drop).unwrap_err();
    let Error::Core(e) = e else { panic!("{e}") };
    assert!(e.code == Code::Graph && e.message.contains("V14") && e.message.contains("norm.mean"), "{e}");
}
