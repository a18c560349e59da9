//! Runs of several ranks in one process: the bits of one rank, resumption by other numbers of ranks,
//! refusals.

use crate::common::{config, graph, weights, write_data};
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ranks::Transport;
use headwater_core::{Builder, Code, DType, TensorType};
use headwater_cpu::Cpu;
use headwater_ranks::World;
use headwater_runtime::config::LaneLog;
use headwater_runtime::session::Training;
use headwater_runtime::{Error, Event, Observer, Result, SessionModel, Summary, TrainConfig, Trainer};
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
    rank_observed(transport, config, resume, &mut [], stop)
}

/// The same, with observers of its events.
fn rank_observed(
    transport: Option<Arc<dyn Transport>>,
    config: TrainConfig,
    resume: bool,
    observers: &mut [&mut dyn Observer],
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
    Trainer::new(Arc::new(device), model, None, config, resume)?.run(observers, stop)
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

/// Trains with a flipped bit, as `gradient:STEP:RANK`; the error of each rank, or none.
fn flipped(
    ranks: usize,
    flip: &str,
    change: impl Fn(&mut TrainConfig),
) -> (Vec<Option<String>>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = settings(dir.path(), Some(4), 1, 8);
    (config.flip, config.ranks.digests) = (Some(flip.parse().unwrap()), 1);
    change(&mut config);
    let all = world(ranks, |_| config.clone(), false, &RUN);
    let drift = |e: Error| {
        assert!(matches!(e, Error::Drift(_)), "{e}");
        e.to_string()
    };
    (all.into_iter().map(|r| r.err().map(drift)).collect(), dir)
}

/// The one error of all ranks.
fn same(all: &[Option<String>]) -> &str {
    assert!(all.iter().all(|e| *e == all[0]), "{all:?}");
    all[0].as_deref().expect("no rank has found it")
}

#[test]
fn a_flipped_bit_is_named_by_step_parameter_and_rank() {
    for ranks in [3, 4] {
        for wrong in 0..ranks {
            for (flip, words) in [
                (
                    format!("gradient:3:{wrong}:fc1.bias"),
                    "HW-R014: the reduced gradients of ranks differ in step 3",
                ),
                (format!("weight:3:{wrong}:fc1.bias"), "HW-R014: the weights of ranks differ before step 3"),
            ] {
                let (all, dir) = flipped(ranks, &flip, |_| {});
                let text = same(&all);
                let rank =
                    format!("first in `fc1.bias` (bucket 0 of 2): rank {wrong} differs from the other");
                for words in [words, "step 3", &rank] {
                    assert!(text.contains(words), "{flip} of {ranks}: {text}");
                }
                // The directory has its lock file, and no checkpoint.
                let saved: Vec<String> = std::fs::read_dir(dir.path().join("checkpoints"))
                    .unwrap()
                    .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                    .filter(|name| name.contains("step"))
                    .collect();
                assert!(saved.is_empty(), "{saved:?}");
            }
        }
    }
    // Of two ranks, either may be wrong.
    let (all, _) = flipped(2, "gradient:2:1", |_| {});
    let text = same(&all);
    assert!(text.contains("rank 0 (lanes 0 to 1) and rank 1 (lanes 2 to 3) differ"), "{text}");
    assert!(text.contains("nothing tells which is wrong") && text.contains("in step 2"), "{text}");
}

#[test]
fn digests_that_are_rare_find_it_later_and_before_a_checkpoint() {
    let (all, _) = flipped(3, "weight:3:1:fc2.weight", |c| c.ranks.digests = 5);
    let text = same(&all);
    assert!(text.contains("before step 6, in one of the last 5 steps") && text.contains("rank 1"), "{text}");
    let (all, dir) = flipped(3, "weight:3:2:fc2.weight", |c| {
        (c.ranks.digests, c.checkpoint.every) = (1000, Some(2));
    });
    let text = same(&all);
    assert!(text.contains("after 4 steps") && text.contains("`fc2.weight`"), "{text}");
    hash(dir.path(), 2);
    assert!(!dir.path().join("checkpoints/step-00000004").exists());
    // Without digests nobody notices: the ranks have diverged.
    let (all, _) = flipped(3, "weight:3:2", |c| c.ranks.digests = 0);
    assert_eq!(all, [None, None, None]);
}

#[test]
fn a_lane_computed_wrongly_each_time_is_found_on_another_rank() {
    // Step 3 computes lane 2 twice: rank 2 of 3 has it, and rank 0 computes it too.
    for wrong in [0, 2] {
        let flip = format!("lane:3:{wrong}:fc1.weight");
        let (all, _) = flipped(3, &flip, |c| c.ranks.recompute = 1);
        let text = same(&all);
        let words = "in step 3, lane 2 of rank 2 has other gradients, first of `fc1.weight`, when rank 0";
        assert!(text.contains(words), "{text}");
        assert!(text.contains(&format!("it; rank {wrong} differs from the other 2")), "{text}");
    }
    let (all, _) = flipped(2, "lane:2:0", |c| c.ranks.recompute = 1);
    assert!(same(&all).contains("nothing tells which is wrong"), "{all:?}");
    // What all add up is the same on all ranks: digests alone do not find it.
    let (all, _) = flipped(3, "lane:3:2", |_| {});
    assert_eq!(all, [None, None, None]);
}

#[test]
fn lanes_that_are_recomputed_change_no_bit() {
    let run = |ranks, recompute| {
        let dir = tempfile::tempdir().unwrap();
        let mut config = settings(dir.path(), Some(5), 2, 12);
        config.ranks.recompute = recompute;
        // Interrupted on the way: the loader begins anew.
        for (steps, resume) in [(7, false), (12, true)] {
            let config = TrainConfig { steps: Some(steps), ..config.clone() };
            world(ranks, |_| config.clone(), resume, &RUN).into_iter().for_each(|r| drop(r.unwrap()));
        }
        hash(dir.path(), 12)
    };
    let alone = run(1, 1);
    for (ranks, recompute) in [(2, 0), (2, 1), (3, 1), (5, 2)] {
        assert_eq!(run(ranks, recompute), alone, "{ranks} ranks, each {recompute} steps");
    }
}

#[test]
fn a_rank_that_is_fed_other_data_is_found_by_recomputation() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = settings(dir.path(), Some(4), 1, 4);
    (config.data.sequential, config.data.eval, config.ranks.recompute) = (true, None, 1);
    let file = std::fs::read(&config.data.train).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    // Enough samples that not all are compared when ranks begin: 64 at equal distances.
    let paths = ["same.safetensors", "other.safetensors"].map(|name| dir.path().join(name));
    for (i, path) in paths.iter().enumerate() {
        let tiled: Vec<_> = tensors
            .iter()
            .map(|(name, t)| {
                let mut bytes = t.data().repeat(8);
                let sample = bytes.len() / (8 * t.shape()[0]);
                if i == 1 && name == "x" {
                    bytes[21 * sample] ^= 1;
                }
                let shape = [&[8 * t.shape()[0]], &t.shape()[1..]].concat();
                (name, t.dtype(), shape, bytes)
            })
            .collect();
        let views = tiled.iter().map(|(name, dtype, shape, bytes)| {
            (*name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        safetensors::serialize_to_file(views, None, path).unwrap();
    }
    // Sample 21 is of batch 5: lane 1 of step 2, which rank 1 of 4 has.
    let with = |r: usize| {
        let mut config = config.clone();
        config.data.train = paths[usize::from(r == 1)].clone();
        config
    };
    let all = world(4, with, false, &RUN);
    let texts: Vec<String> = all.into_iter().map(|r| r.unwrap_err().to_string()).collect();
    assert!(texts.iter().all(|t| *t == texts[0]), "{texts:?}");
    assert!(
        texts[0].contains(
            "in step 2, lane 1 of rank 1 is fed other data when rank 2 computes it; rank 1 differs"
        ),
        "{}",
        texts[0]
    );
}

#[test]
fn the_log_has_each_lane_whoever_computes_it() {
    let logged = |ranks: usize, lane_log| {
        let dir = tempfile::tempdir().unwrap();
        let mut config = settings(dir.path(), Some(4), 2, 3);
        config.ranks.lane_log = lane_log;
        config.log.json = Some(dir.path().join("log.jsonl"));
        let steps = std::sync::Mutex::new(Vec::new());
        let one = |transport: Option<Arc<dyn Transport>>| {
            let speaks = transport.as_ref().is_none_or(|t| t.rank() == 0);
            let mut keep = |event: &Event| {
                if let (Event::Step(step), true) = (event, speaks) {
                    steps.lock().unwrap().push((step.lanes.clone(), step.loss, step.samples));
                }
                Ok(())
            };
            rank_observed(transport, config.clone(), false, &mut [&mut keep], &RUN).unwrap();
        };
        match ranks {
            1 => one(None),
            _ => {
                let world = World::new(ranks);
                std::thread::scope(|s| {
                    for r in 0..ranks {
                        let (world, one) = (&world, &one);
                        s.spawn(move || one(Some(world.rank(r))));
                    }
                });
            }
        }
        steps.into_inner().unwrap()
    };
    let alone = logged(1, LaneLog::Norm);
    for (lanes, loss, samples) in &alone {
        assert_eq!(lanes.iter().map(|l| l.lane).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(lanes.iter().map(|l| l.samples).sum::<usize>(), *samples);
        assert!((lanes.iter().map(|l| l.loss).sum::<f64>() / 4.0 - loss).abs() < 1e-12);
        assert!(lanes.iter().all(|l| l.norm.is_some_and(|n| n > 0.0) && l.deviation > 0.0), "{lanes:?}");
        assert!(lanes[1..].iter().all(|l| l.mean != lanes[0].mean), "{lanes:?}");
    }
    for ranks in [2, 3] {
        assert_eq!(logged(ranks, LaneLog::Norm), alone, "{ranks} ranks");
    }
    assert!(logged(2, LaneLog::Fed).iter().all(|(lanes, ..)| lanes.iter().all(|l| l.norm.is_none())));
    assert!(logged(2, LaneLog::None).iter().all(|(lanes, ..)| lanes.is_empty()));
}
