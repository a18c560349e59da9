//! Mixed precision in whole runs: levels, masters, skipped steps, faults, resumption.

use crate::common::{config, graph, noise, weights, write_data};
use headwater_core::graph::{InputRole, NodeId, Origin, OriginId, OutputRole, Phase};
use headwater_core::pass::instrument::Fault;
use headwater_core::pass::precision::{Level, PrecisionSettings};
use headwater_core::target::Target;
use headwater_core::train::Master;
use headwater_core::{Builder, DType, Graph, TensorType, pass};
use headwater_cpu::Cpu;
use headwater_runtime::config::{FaultConfig, NonFinite};
use headwater_runtime::scaler::{LossScale, ScalerKind};
use headwater_runtime::session::Training;
use headwater_runtime::{Error, Event, Session, SessionModel, Summary, TrainConfig, Trainer};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const BATCH: usize = 4;
const DYNAMIC: LossScale = LossScale::Adaptive(ScalerKind::Dynamic);

fn data() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_data(&dir.path().join("data.safetensors"));
    dir
}

/// The model, every node with an origin of its own.
fn model() -> Graph {
    let mut graph = graph(BATCH, 0.1);
    let origins = (0..graph.nodes.len()).map(|i| Origin { node: format!("node{i}"), ..Origin::default() });
    graph.origins = Arc::new(origins.collect());
    graph.nodes.iter_mut().enumerate().for_each(|(i, n)| n.origin = OriginId(i as u32));
    graph
}

fn trainer(threads: usize, config: &TrainConfig, resume: bool) -> Trainer<'static> {
    let (graph, weights) = (model(), weights());
    let model = SessionModel { graph: &graph, weights: &weights };
    Trainer::new(Arc::new(Cpu::new(threads)), model, None, config.clone(), resume).unwrap()
}

fn run(trainer: &mut Trainer) -> (Result<Summary, Error>, Vec<headwater_runtime::trainer::Step>) {
    let mut steps = Vec::new();
    let mut keep = |e: &Event| {
        if let Event::Step(s) = e {
            steps.push(s.clone());
        }
        Ok(())
    };
    let result = trainer.run(&mut [&mut keep], &AtomicBool::new(false));
    (result, steps)
}

fn at(config: &mut TrainConfig, level: Level, dtype: DType) {
    (config.amp.level, config.amp.dtype) = (level, Some(dtype));
}

#[test]
fn every_level_starts_as_f32_and_learns() {
    let dir = data();
    let mut base = config(dir.path());
    (base.checkpoint.dir, base.steps) = (None, Some(60));
    base.optimizer = serde_json::from_str(r#"{"name": "AdamW", "lr": 0.02}"#).unwrap();
    let (full, _) = run(&mut trainer(1, &base, false));
    let full = full.unwrap();
    for dtype in [DType::F16, DType::BF16] {
        for level in [Level::O1, Level::O2, Level::O3] {
            let mut config = base.clone();
            at(&mut config, level, dtype);
            let mut trainer = trainer(1, &config, false);
            let (low, steps) = run(&mut trainer);
            let low = low.unwrap();
            let named = format!("{level} {dtype}");
            // The first loss: a dozen roundings on the way, each of half an epsilon, doubled by the square.
            let apart = (low.losses[0] / full.losses[0] - 1.0).abs();
            assert!(apart > 0.0 && apart < 12.0 * dtype.epsilon(), "{named}: {apart}");
            let end = low.evaluation.as_ref().unwrap().scores.loss;
            let truth = full.evaluation.as_ref().unwrap().scores.loss;
            // Low precision costs little of what training gains, skipped steps included.
            assert!(end - truth < 0.02 * (full.losses[0] - truth), "{named}: {end}, {truth} in f32");
            assert!(end < 0.5 * low.losses[0], "{named}: {} to {end}", low.losses[0]);
            assert!(steps.iter().filter(|s| s.applied).all(|s| s.norm.is_finite() && s.largest.is_finite()));
            // Low gradients where weights are low; masters in f32 hold what the low copy cannot.
            let session = trainer.session();
            let stored = if level == Level::O1 { DType::F32 } else { dtype };
            assert_eq!(session.gradient("fc1.weight").unwrap().dtype(), stored, "{named}");
            let weight = session.tensors().iter().find(|t| t.name == "fc1.weight").unwrap();
            let kept = if level == Level::O3 { dtype } else { DType::F32 };
            assert_eq!(weight.ty.dtype, kept, "{named}");
            assert_eq!(
                session.layout().buckets.iter().any(|b| b.master != Master::None),
                level == Level::O2,
                "{named}"
            );
        }
    }
}

#[test]
fn results_do_not_depend_on_threads_and_a_resumed_run_ends_the_same() {
    let files = |dir: &std::path::Path| {
        let of = |name: &str| std::fs::read(dir.join("checkpoints/step-00000020").join(name)).unwrap();
        (of("model.safetensors"), of("state.safetensors"))
    };
    for kind in [ScalerKind::Dynamic, ScalerKind::Predictive] {
        let mut ends = Vec::new();
        for (threads, broken) in [(1, false), (2, true)] {
            let dir = data();
            let mut config = config(dir.path());
            at(&mut config, Level::O2, DType::F16);
            config.amp.loss_scale = Some(LossScale::Adaptive(kind));
            // Overflows at first, grows within the run.
            config.amp.scaler.init = (24f64).exp2();
            config.amp.scaler.interval = 3;
            config.checkpoint.every = Some(9);
            let mut steps = Vec::new();
            if broken {
                let mut half = TrainConfig { steps: Some(9), ..config.clone() };
                half.warmup = config.warmup;
                steps.extend(run(&mut trainer(1, &half, false)).1);
            }
            steps.extend(run(&mut trainer(threads, &config, broken)).1);
            let scales: Vec<f64> = steps.iter().map(|s| s.scale).collect();
            assert!(steps.iter().any(|s| !s.applied), "{scales:?}");
            assert_eq!(scales.len(), 20);
            ends.push((scales, files(dir.path())));
        }
        assert!(ends[0] == ends[1], "{kind:?}: {:?} and {:?}", ends[0].0, ends[1].0);
    }
}

/// Everything that lasts but batch norm's statistics, which the forward pass updates, as PyTorch's does.
fn lasting(session: &Session) -> Vec<Vec<u8>> {
    let own = session.tensors().iter().filter(|t| !matches!(t.role, InputRole::Buffer { .. }));
    let tensors = own.map(|t| session.read(t).unwrap());
    tensors.chain(session.moments().iter().map(|(n, _)| session.read_moment(n).unwrap())).collect()
}

/// Nodes of the graph that faults are numbered in.
fn differentiated(graph: &Graph, precision: &PrecisionSettings) -> Graph {
    let mixed =
        pass::precision::apply(graph, &precision.properties(&Target::default()).unwrap()).unwrap().graph;
    let mut decomposed = pass::decompose(mixed).unwrap();
    let mut first = true;
    decomposed.outputs.retain(|o| o.role != OutputRole::User || std::mem::take(&mut first));
    let loss = decomposed.outputs[0].value;
    let mut b = Builder::extend(decomposed);
    let scale = b.input("loss_scale", TensorType::new(DType::F32, [0usize; 0]), InputRole::State);
    let d = pass::differentiate_scaled(b.finish(), loss, Some(scale)).unwrap();
    pass::decompose(d.graph).unwrap()
}

/// A session at O2 in f16 with a fault at a node, at a scale where nothing overflows, and what it is fed.
fn faulty(graph: &Graph, at: usize, fault: Fault) -> (Session, Vec<Vec<u8>>) {
    let training = Training {
        accumulate: 1,
        precision: f16(),
        scaled: true,
        fault: Some((NodeId(at as u32), fault)),
        ..Training::default()
    };
    let model = SessionModel { graph, weights: &weights() };
    let mut session = Session::new(Arc::new(Cpu::new(1)), model, Some(training)).unwrap();
    session.set_loss_scale(1024.0).unwrap();
    let program = session.program().unwrap();
    let feed = |ty: &TensorType| match ty.dtype {
        DType::F32 => noise(ty.shape.numel(), 7.0).into_iter().flat_map(f32::to_le_bytes).collect(),
        _ => vec![0; ty.bytes()],
    };
    let feeds = session.inputs(program).map(|(_, ty)| feed(ty)).collect();
    (session, feeds)
}

fn f16() -> PrecisionSettings {
    PrecisionSettings { level: Level::O2, dtype: Some(DType::F16), ..PrecisionSettings::default() }
}

#[test]
fn a_fault_is_found_at_its_node_and_changes_nothing() {
    let graph = model();
    let nodes = differentiated(&graph, &f16()).nodes;
    let mut found = 0;
    for at in (0..nodes.len()).step_by(3) {
        for fault in [Fault::Inf, Fault::Nan] {
            let (mut session, feeds) = faulty(&graph, at, fault);
            let program = session.program().unwrap();
            let step = |session: &mut Session, fault| {
                session.set_fault(fault).unwrap();
                session.gradients(program, &feeds).unwrap();
                session.update(0.01).unwrap().applied
            };
            assert!(step(&mut session, false));
            assert_eq!(session.culprit(&graph, &feeds).unwrap(), None);
            let before = (lasting(&session), session.applied());
            if step(&mut session, true) {
                continue; // on no way to a gradient
            }
            assert!(before == (lasting(&session), session.applied()), "a fault at node {at} left a trace");
            let culprit = session.culprit(&graph, &feeds).unwrap().unwrap();
            let want = &graph.origins[nodes[at].origin.0 as usize];
            assert_eq!(
                (&culprit.origin, culprit.phase),
                (want, nodes[at].phase),
                "{fault:?} at node {at}: {culprit}"
            );
            assert_eq!(culprit.nan, fault == Fault::Nan, "node {at}");
            assert!(step(&mut session, false), "the run goes on");
            found += 1;
        }
    }
    assert!(found > 20, "only {found} faults reached a gradient");
}

#[test]
fn gradients_below_the_range_of_f16_are_counted_at_the_node_that_loses_them() {
    let graph = model();
    let whole = differentiated(&graph, &f16());
    let mut found = 0;
    for (at, node) in whole.nodes.iter().enumerate() {
        if node.phase != Phase::Backward || whole.ty(node.outputs[0]).dtype != DType::F16 {
            continue;
        }
        let (mut session, feeds) = faulty(&graph, at, Fault::Tiny);
        let (program, counting) = (session.program().unwrap(), session.counting_program(&graph).unwrap());
        let mut run = |program, fault| {
            session.set_fault(fault).unwrap();
            session.gradients(program, &feeds).unwrap();
            let names: Vec<String> = session.layout().entries().map(|(_, e)| e.name.clone()).collect();
            let gradients: Vec<_> = names.iter().map(|n| session.gradient(n).unwrap()).collect();
            (session.underflow(program).ok(), gradients)
        };
        // Counting changes no bit.
        assert_eq!(run(program, false).1, run(counting, false).1, "node {at}");
        let (sound, lost) = (run(counting, false).0.unwrap(), run(counting, true).0.unwrap());
        assert_eq!(run(program, true).0, None);
        assert!(sound.elements > 100 && sound.share() < 0.05, "{sound:?}");
        if lost.lost > sound.lost {
            let (place, share) = lost.worst.clone().unwrap();
            let origin = &graph.origins[node.origin.0 as usize].node;
            assert!(
                place.contains(&format!("of the backward pass at {origin}")),
                "node {at}, {origin}: {lost:?}"
            );
            assert!(share > sound.worst.map_or(0.0, |w| w.1), "node {at}: {lost:?}");
            found += 1;
        }
    }
    assert!(found > 10, "only {found} faults lost anything");
}

#[test]
fn a_run_counts_underflow_where_it_is_asked_to() {
    let dir = data();
    let mut config = config(dir.path());
    config.checkpoint.dir = None;
    at(&mut config, Level::O2, DType::F16);
    config.accumulate = 2;
    config.amp.loss_scale = Some(LossScale::Static(2f64.powi(-22)));
    let run_with = |config: &TrainConfig| run(&mut trainer(1, config, false)).1;
    let never = {
        config.amp.underflow_every = Some(0);
        run_with(&config)
    };
    config.amp.underflow_every = Some(6);
    let some = run_with(&config);
    let counted: Vec<u64> = some.iter().filter(|s| s.underflow.is_some()).map(|s| s.step).collect();
    assert_eq!(counted, [1, 7, 13, 19]);
    assert!(never.iter().all(|s| s.underflow.is_none()));
    let losses =
        |steps: &[headwater_runtime::trainer::Step]| steps.iter().map(|s| s.loss).collect::<Vec<_>>();
    assert_eq!(losses(&never), losses(&some), "counting changes nothing");
    let share = some[0].underflow.as_ref().unwrap().share();
    assert!(share > 0.0, "a scale this low loses gradients");
    // Nothing is lost where the scale is high; where the low precision is bf16 there is nothing to count.
    config.amp.loss_scale = Some(LossScale::Static(4096.0));
    assert!(run_with(&config)[0].underflow.as_ref().unwrap().share() < share);
    at(&mut config, Level::O2, DType::BF16);
    assert!(run_with(&config).iter().all(|s| s.underflow.is_none()));
}

#[test]
fn a_scale_that_sinks_to_its_floor_ends_the_run_with_its_history_and_a_checkpoint() {
    let dir = data();
    let mut config = config(dir.path());
    at(&mut config, Level::O2, DType::F16);
    // Far above what f16 holds, and kept there.
    (config.amp.scaler.init, config.amp.scaler.min) = (2f64.powi(30), 2f64.powi(27));
    let (result, steps) = run(&mut trainer(1, &config, false));
    let stopped = result.unwrap_err().to_string();
    for part in
        ["step 3", "which may not fall further", "no update since step 0", "inf first in", "fc1.weight"]
    {
        assert!(stopped.contains(part), "{part}: {stopped}");
    }
    assert!(steps.len() == 3 && steps.iter().all(|s| !s.applied));
    // A run that was saved goes on with another floor.
    let saved = dir.path().join("checkpoints/step-00000003");
    assert!(saved.join("manifest.json").exists());
    config.amp.scaler.min = 1.0;
    let (result, rest) = run(&mut trainer(1, &config, true));
    assert!(result.unwrap().complete && rest.len() == 17 && rest.last().unwrap().applied);
    assert_eq!(rest[0].scale, 2f64.powi(27));
}

#[test]
fn an_observer_that_fails_costs_no_step() {
    let dir = data();
    let config = config(dir.path());
    let mut full = |e: &Event| match e {
        Event::Step(s) if s.step == 5 => Err(Error::Feed("no room".into())),
        _ => Ok(()),
    };
    let result = trainer(1, &config, false).run(&mut [&mut full], &AtomicBool::new(false));
    assert!(result.unwrap_err().to_string().contains("no room"));
    let mut again = trainer(1, &config, true);
    assert_eq!(again.step(), 5);
    assert!(run(&mut again).0.unwrap().complete);
}

#[test]
fn a_run_reports_skips_and_stops_at_the_floor() {
    let dir = data();
    let mut config = config(dir.path());
    config.checkpoint.dir = None;
    at(&mut config, Level::O1, DType::F16);
    config.amp.trace_skips = true;
    // Low enough that nothing else overflows.
    config.amp.scaler.init = 1024.0;
    config.fault = Some(FaultConfig { step: 6, node: NodeId(3), fault: Fault::Nan });
    let (result, steps) = run(&mut trainer(1, &config, false));
    assert!(result.unwrap().complete);
    let skipped: Vec<_> = steps.iter().filter(|s| !s.applied).collect();
    assert_eq!(skipped.len(), 1);
    assert_eq!((skipped[0].step, steps[7].scale), (7, skipped[0].scale / 2.0));
    let culprit = skipped[0].culprit.as_ref().unwrap();
    assert!(culprit.contains("NaN first in") && culprit.contains("forward pass at node"), "{culprit}");

    // With a scale that may not fall, the same fault ends the run; so it does with a fixed one.
    config.amp.scaler.min = 1024.0;
    let floor = run(&mut trainer(1, &config, false)).0.unwrap_err().to_string();
    for part in [
        "step 6",
        "loss scale 1024, which may not fall",
        "no update since step 6",
        "NaN first in",
        "fc1.weight",
    ] {
        assert!(floor.contains(part), "{part}: {floor}");
    }
    config.amp.scaler = Default::default();
    config.amp.loss_scale = Some(LossScale::Static(128.0));
    let stopped = run(&mut trainer(1, &config, false)).0.unwrap_err().to_string();
    assert!(stopped.contains("at loss scale 128;") && stopped.contains("(NaN first in"), "{stopped}");
    config.nonfinite = NonFinite::Skip;
    assert_eq!(run(&mut trainer(1, &config, false)).1.iter().filter(|s| !s.applied).count(), 1);
    assert_eq!(DYNAMIC, "dynamic".parse().unwrap());
}
