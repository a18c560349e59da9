//! Mixed precision against what PyTorch computed in it: node by node under autocast, and step by step with
//! masters.

use headwater::core::compile::{Options, optimize};
use headwater::core::device::Device;
use headwater::core::evaluate;
use headwater::core::graph::{InputRole, OutputRole};
use headwater::core::ops::update::master::{join, split};
use headwater::core::pass::bound::error_bounds;
use headwater::core::pass::precision::{Level, Policy, PrecisionSettings, apply};
use headwater::core::target::{DTypeSet, Target};
use headwater::core::train::{Master, StateKey, update_graph};
use headwater::core::{Builder, DType, Graph, Tensor, TensorType, pass};
use headwater::cpu::Cpu;
use headwater::golden::Golden;
use headwater::model::{BoundModel, Model};
use headwater::runtime::optim::{AdamW, Clip, Decay, Groups, Optimizer};
use headwater::runtime::scaler::{LossScale, ScalerKind, ScalerNumbers, ScalerRule, Seen};
use headwater::runtime::session::{Session, SessionModel, Training};
use headwater::tensors::TensorFile;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FAMILIES: [&str; 3] = ["vit", "llama", "resnet"];
const DTYPES: [DType; 2] = [DType::BF16, DType::F16];
const STEPS: usize = 20;

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens")
}

/// A family's model with the inputs that everything is recorded on.
struct Family {
    bound: BoundModel,
    golden: Golden,
    recorded: TensorFile,
}

impl Family {
    fn open(name: &str) -> Family {
        let file = |extension: &str| goldens().join(name).join(format!("{name}.train.{extension}"));
        let golden = Golden::read(&file("golden.safetensors")).unwrap();
        let bound = Model::open(&file("pt2")).unwrap().bind_to(&golden).unwrap();
        let recorded = goldens().join(format!("precision/{name}.safetensors"));
        Family { bound, golden, recorded: TensorFile::read(&recorded).unwrap() }
    }

    fn tensor(&self, name: &str) -> &Tensor {
        self.recorded.tensors.get(name).unwrap_or_else(|| panic!("{name} is not recorded"))
    }

    fn user_inputs(&self) -> Vec<Tensor> {
        let inputs = self.golden.inputs();
        self.bound.positions.iter().map(|p| inputs[p].clone()).collect()
    }

    /// Values of a graph's inputs, rounded to its types.
    fn feed(&self, graph: &Graph) -> Vec<Tensor> {
        let mut users = self.user_inputs().into_iter();
        let inputs = graph.inputs.iter().map(|i| match i.role {
            InputRole::User => users.next().unwrap().cast(graph.ty(i.value).dtype),
            _ => self.bound.tensor(&i.name).unwrap().cast(graph.ty(i.value).dtype),
        });
        inputs.collect()
    }
}

/// Euclidean norm of a difference; equal infinities differ by nothing.
fn distance(a: &Tensor, b: &Tensor) -> f64 {
    let apart = |(x, y): (f64, f64)| if x == y { 0.0 } else { x - y };
    a.to_f64().into_iter().zip(b.to_f64()).map(apart).map(|d| d * d).sum::<f64>().sqrt()
}

/// Draws of the roundings. Where a ReLU's argument is near zero, or a gradient is a small difference of large
/// sums, it is chance which way roundings send a value, and one may be far off. Inputs that are nudged by
/// much less than what they are rounded by draw again; what is wrong is so in most draws.
const DRAWS: usize = 8;

/// Floats moved by at most 1/32 of a rounding; not at all in draw 0.
fn nudged(t: &Tensor, draw: usize, dtype: DType) -> Tensor {
    if draw == 0 || !t.dtype().is_float() {
        return t.clone();
    }
    let by = |i: usize| 1.0 + dtype.epsilon() / 32.0 * ((i * 7919 + draw * 104_729) as f64).sin();
    let moved = t.to_f64().into_iter().enumerate().map(|(i, x)| x * by(i)).collect();
    Tensor::float(t.dtype(), t.ty.shape.clone(), moved)
}

fn norm(a: &Tensor) -> f64 {
    a.to_f64().into_iter().filter(|x| x.is_finite()).map(|x| x * x).sum::<f64>().sqrt()
}

/// Forward and backward of a graph, the gradients among its outputs.
fn differentiated(graph: Graph) -> Graph {
    let options = Options { all_outputs: true, recompute: false, ..Options::default() };
    optimize(graph, &options, Cpu::new(2).target()).unwrap().graph
}

#[test]
fn the_torch_policy_is_autocast_node_by_node() {
    let device = Cpu::new(1);
    for name in FAMILIES {
        let family = Family::open(name);
        for dtype in DTYPES {
            let prefix = format!("{dtype}.O1");
            let mut b = Builder::extend(family.bound.graph.clone());
            let nodes = format!("{prefix}.node.");
            let mut values: Vec<_> = family
                .recorded
                .tensors
                .keys()
                .filter_map(|n| Some((*family.bound.names.get(n.strip_prefix(&nodes)?)?, n.clone())))
                .collect();
            values.sort();
            // Nodes that the importer turns into inputs or leaves out have no value; nearly everything else
            // must be there.
            let recorded = family.recorded.tensors.keys().filter(|n| n.starts_with(&nodes)).count();
            assert!(values.len() * 10 >= recorded * 9, "{name}: {} of {recorded} nodes", values.len());
            for (v, node) in &values {
                b.output(node.clone(), *v, OutputRole::User);
            }
            let forward = b.finish();
            let settings = PrecisionSettings {
                level: Level::O1,
                dtype: Some(dtype),
                policy: Some(Policy::Torch),
                ..PrecisionSettings::default()
            };
            let mixed = apply(&forward, &settings.properties(device.target()).unwrap()).unwrap().graph;
            let ours = differentiated(mixed);
            let exact = differentiated(pass::upcast(&forward, DType::F64).unwrap());
            let inputs = family.feed(&exact);
            // Truths for the unchanged inputs, on which PyTorch's were recorded.
            let mut truths: Vec<Tensor> = Vec::new();
            // Differences, and the number of draws with them; the first draw has the inputs as they are.
            let mut wrong: BTreeMap<usize, (usize, String)> = BTreeMap::new();
            let mut compared = 0;
            for draw in 0..DRAWS {
                let inputs: Vec<Tensor> = inputs.iter().map(|t| nudged(t, draw, dtype)).collect();
                let low = inputs.iter().zip(&ours.inputs).map(|(t, i)| t.cast(ours.ty(i.value).dtype));
                let got = evaluate(&device, &ours, &low.collect::<Vec<_>>()).unwrap();
                let truth = evaluate(&device, &exact, &inputs).unwrap();
                for (i, o) in ours.outputs.iter().enumerate() {
                    let Some(want) = family.recorded.tensors.get(&match o.name.strip_prefix("grad.") {
                        Some(parameter) => format!("{prefix}.grad.{parameter}"),
                        None if i == 0 => format!("{prefix}.loss"),
                        None => o.name.clone(),
                    }) else {
                        continue;
                    };
                    let at = exact.outputs.iter().position(|e| e.name == o.name).unwrap();
                    let told = truths.get(i).unwrap_or(&truth[at]);
                    let (mine, theirs) = (distance(&got[i], &truth[at]), distance(want, told));
                    // As near to the truth as PyTorch is; where PyTorch happens to be nearer, by a rounding
                    // of each element.
                    let bound = 2.0 * theirs + dtype.epsilon() * norm(&truth[at]);
                    compared += (draw == 0) as usize;
                    if got[i].dtype() != want.dtype() || mine.is_nan() || mine > bound {
                        let types = (got[i].dtype(), want.dtype());
                        let said = format!("{}: {types:?}, error {mine:e}, PyTorch's {theirs:e}", o.name);
                        wrong.entry(i).or_insert((0, said)).0 += 1;
                    }
                }
                if truths.is_empty() {
                    truths = ours
                        .outputs
                        .iter()
                        .map(|o| truth[exact.outputs.iter().position(|e| e.name == o.name).unwrap()].clone())
                        .collect();
                }
                if wrong.is_empty() {
                    break;
                }
            }
            let wrong: Vec<String> =
                wrong.into_values().filter(|(n, _)| 2 * n > DRAWS).map(|(_, said)| said).collect();
            assert!(compared > recorded, "{compared}");
            // Outputs are in the order of the model: the first difference is where it begins.
            assert!(wrong.is_empty(), "{name} in {dtype}: {} of {compared}, first {}", wrong.len(), wrong[0]);
        }
    }
}

/// Learning rate of every step.
const LR: f64 = 1e-3;

/// As recorded: so that growth is seen in 20 steps.
const GROWTH_INTERVAL: u32 = 5;

/// The loss of each step, the scales, whether each was skipped, and the weights at the end by name, masters
/// where there are some.
#[derive(Default)]
struct Run {
    losses: Vec<f64>,
    scales: Vec<f64>,
    skipped: Vec<f64>,
    weights: BTreeMap<String, Tensor>,
}

impl Run {
    /// Distances of curve and weights from those of another run.
    fn apart(&self, losses: &[f64], weights: &BTreeMap<String, Tensor>) -> (f64, f64) {
        let losses = self.losses.iter().zip(losses).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        let weights = self.weights.iter().map(|(name, a)| distance(a, &weights[name]).powi(2)).sum::<f64>();
        (losses, weights.sqrt())
    }
}

fn optimizer() -> Optimizer {
    Optimizer::AdamW(AdamW { lr: LR, ..AdamW::default() })
}

fn session(
    family: &Family,
    settings: &PrecisionSettings,
    scaled: bool,
) -> headwater::runtime::Result<Session> {
    let training = Training {
        optimizer: optimizer(),
        decay: Decay::All,
        accumulate: 1,
        precision: settings.clone(),
        scaled,
        ..Training::default()
    };
    let device: Arc<dyn Device> = Arc::new(Cpu::new(2));
    let model = SessionModel { graph: &family.bound.graph, weights: &family.bound };
    Session::new(device, model, Some(training))
}

/// Some steps on a family's inputs. With `unfused`, every update is also computed by the graph before fusion.
fn run(family: &Family, settings: &PrecisionSettings, scale: LossScale, steps: usize, unfused: bool) -> Run {
    let rule = ScalerRule {
        scale,
        numbers: ScalerNumbers { interval: GROWTH_INTERVAL, ..ScalerNumbers::default() },
    };
    let mut session = session(family, settings, rule.scales()).unwrap();
    let program = session.program().unwrap();
    let types: Vec<DType> = session.inputs(program).map(|(_, t)| t.dtype).collect();
    let feeds: Vec<Vec<u8>> =
        family.user_inputs().into_iter().zip(types).map(|(t, d)| t.cast(d).to_bytes()).collect();
    let mut state = rule.start();
    let mut out = Run::default();
    for _ in 0..steps {
        session.begin_step().unwrap();
        session.set_loss_scale(state.scale).unwrap();
        session.gradients(program, &feeds).unwrap();
        out.losses.push(session.output(program, 0).unwrap().to_f64()[0]);
        let expected = unfused.then(|| updated(&session, state.scale));
        let update = session.update(LR).unwrap();
        if let Some((norm, tensors)) = expected {
            assert_eq!(update.norm.to_bits(), norm.to_bits(), "{settings:?} {scale:?}");
            for (name, bytes) in tensors {
                assert!(read(&session, &name) == bytes, "{settings:?} {scale:?}: {name}");
            }
        }
        out.scales.push(state.scale);
        out.skipped.push(!update.applied as u8 as f64);
        state = rule.next(&state, Seen { found_inf: !update.applied, largest: update.largest }).0;
    }
    let names: Vec<String> = session.layout().entries().map(|(_, e)| e.name.clone()).collect();
    let weight = |name: String| {
        let ty = &session.tensors().iter().find(|t| t.name == name).unwrap().ty;
        let value = Tensor::from_bytes(ty, &read(&session, &name));
        (name, value)
    };
    out.weights = names.into_iter().map(weight).collect();
    out
}

/// Bytes of a weight (its master, where it has one) or of a moment.
fn read(session: &Session, name: &str) -> Vec<u8> {
    match session.tensors().iter().find(|t| t.name == name) {
        Some(t) => session.read(t).unwrap(),
        None => {
            let (moment, parameter) = name.split_once('.').unwrap();
            session.read_moment(&StateKey::moment(moment, parameter)).unwrap()
        }
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()))
}

/// The update that a session is about to do, by its graph as it is before fusion: the norm, and the weights
/// and moments after it by name.
fn updated(session: &Session, scale: f64) -> (f64, Vec<(String, Vec<u8>)>) {
    let layout = session.layout();
    let mut groups = Groups::new(optimizer(), vec![], Decay::All).unwrap();
    layout.buckets.iter().for_each(|b| {
        b.entries.iter().for_each(|e| drop(groups.of(&e.name, &TensorType::new(b.dtype, e.shape.clone()))))
    });
    let graph =
        update_graph(layout, |g| groups.rule(g), Clip::default(), false, DTypeSet::default()).unwrap();
    let numbers: BTreeMap<&str, f64> =
        groups.rule(0).scalars().into_iter().zip(groups.values(0, session.applied() + 1, LR)).collect();
    // `kind/bucket`: what a state of that kind holds for a parameter.
    let held = |kind: &str, parameter: &str| match kind {
        "parameters" | "masters" => read(session, parameter),
        "gradients" => session.gradient(parameter).unwrap().to_bytes(),
        moment => session.read_moment(&StateKey::moment(moment, parameter)).unwrap(),
    };
    let feed = |name: &str, ty: &TensorType| {
        let mut parts = name.split('/');
        let (kind, bucket) = (parts.next().unwrap(), parts.next());
        let Some(bucket) = bucket else { return Tensor::full(ty, 1.0 / scale) };
        if kind == "scalar" {
            return Tensor::full(ty, numbers[parts.next().unwrap()]);
        }
        let bucket = &layout.buckets[bucket.parse::<usize>().unwrap()];
        let mut bytes = vec![0; ty.bytes()];
        for e in &bucket.entries {
            let mut own = held(kind, &e.name);
            own = match (kind, bucket.master) {
                ("parameters", Master::Whole) => {
                    let master = Tensor::from_bytes(&TensorType::new(DType::F32, e.shape.clone()), &own);
                    master.cast(bucket.dtype).to_bytes()
                }
                ("parameters", Master::Rest) => floats(&own).flat_map(|x| split(x).0.to_le_bytes()).collect(),
                ("masters", Master::Rest) => floats(&own).flat_map(|x| split(x).1.to_le_bytes()).collect(),
                _ => own,
            };
            bytes[e.offset * ty.dtype.size()..][..own.len()].copy_from_slice(&own);
        }
        Tensor::from_bytes(ty, &bytes)
    };
    let inputs: Vec<Tensor> = graph.inputs.iter().map(|i| feed(&i.name, graph.ty(i.value))).collect();
    let out = evaluate(&Cpu::new(1), &graph, &inputs).unwrap();
    let mut after = Vec::new();
    for (o, t) in graph.outputs.iter().zip(&out).filter(|(o, _)| o.role != OutputRole::User) {
        let (kind, number) = o.name.split_once('/').unwrap();
        let bucket = &layout.buckets[number.parse::<usize>().unwrap()];
        if kind == "parameters" && bucket.master != Master::None {
            continue; // the master, rounded
        }
        let (mut bytes, mut size) = (t.to_bytes(), t.dtype().size());
        if kind == "masters" && bucket.master == Master::Rest {
            let weights =
                graph.outputs.iter().position(|o| o.name == format!("parameters/{number}")).unwrap();
            let halves = out[weights].to_f64().into_iter().zip(t.ints());
            let join = |(w, &r): (f64, &i64)| join((w as f32).to_bits().wrapping_shr(16) as u16, r as i16);
            (bytes, size) = (halves.flat_map(|x| join(x).to_le_bytes()).collect(), 4);
        }
        for e in &bucket.entries {
            let weight = matches!(kind, "parameters" | "masters");
            let name = if weight { e.name.clone() } else { format!("{kind}.{}", e.name) };
            after.push((name, bytes[e.offset * size..][..e.shape.numel() * size].to_vec()));
        }
    }
    (out[0].to_f64()[0], after)
}

const FIXED: [LossScale; 2] = [LossScale::Static(1.0), LossScale::Static(128.0)];
const DYNAMIC: LossScale = LossScale::Adaptive(ScalerKind::Dynamic);
const PREDICTIVE: LossScale = LossScale::Adaptive(ScalerKind::Predictive);

#[test]
fn masters_and_autocast_follow_pytorchs_loop() {
    for name in FAMILIES {
        let family = Family::open(name);
        let full = run(&family, &PrecisionSettings::default(), FIXED[0], STEPS, false);
        for (dtype, level) in DTYPES.into_iter().flat_map(|d| [(d, Level::O1), (d, Level::O2)]) {
            let mut variants: Vec<(LossScale, &str, Option<bool>)> = vec![(FIXED[0], "1", None)];
            if level == Level::O2 {
                variants.push((FIXED[1], "128", None));
                if name == "resnet" {
                    variants.push((FIXED[1], "128", Some(false)));
                }
            }
            variants.push((DYNAMIC, "dynamic", None));
            let mut first: Option<Run> = None;
            for (scale, called, keep_batchnorm) in variants {
                let policy = (level == Level::O1).then_some(Policy::Torch);
                let settings = PrecisionSettings {
                    level,
                    dtype: Some(dtype),
                    policy,
                    keep_batchnorm,
                    ..PrecisionSettings::default()
                };
                let ours = run(&family, &settings, scale, STEPS, false);
                let suffix = if keep_batchnorm == Some(false) { ".low_batchnorm" } else { "" };
                let prefix = format!("{dtype}.{level}.{called}{suffix}");
                let named = format!("{name} {prefix}");
                let curve = |of: &str| family.tensor(&format!("{prefix}.curve.{of}")).to_f64();
                let told = curve("loss");
                let (mine, moved) = full.apart(&ours.losses, &ours.weights);
                let theirs = full.apart(&told, &full.weights).0;
                // Low precision moves the curve; ours not more than twice as far as PyTorch's at its
                // farthest.
                let bound = 2.0 * theirs + dtype.epsilon() * full.losses[0];
                assert!(
                    mine <= bound,
                    "{named}: {mine} from f32, PyTorch {theirs}; {:?} {told:?}",
                    ours.losses
                );
                // A scale of 65536 is inf in PyTorch's gradient where its loss is f16; ours is computed in
                // f32, as apex casts a model's results. From there on the scales are others.
                let (scales, skipped) = (curve("scale"), curve("skipped"));
                let apart =
                    (0..STEPS).find(|&i| (ours.scales[i], ours.skipped[i]) != (scales[i], skipped[i]));
                if let Some(i) = apart {
                    let told = (level, dtype, scales[i], skipped[i]);
                    assert_eq!(
                        told,
                        (Level::O2, DType::F16, 65536.0, 1.0),
                        "{named}, step {i}: {:?}",
                        ours.scales
                    );
                    assert_eq!(ours.scales[i], 65536.0, "{named}, step {i}");
                }
                if called == "128" {
                    let weight =
                        |n: &String| (n.clone(), family.tensor(&format!("{prefix}.weight.{n}")).clone());
                    let weights = ours.weights.keys().map(weight).collect();
                    let theirs = full.apart(&told, &weights).1;
                    assert!(moved <= 2.0 * theirs, "{named}: weights {moved} from f32, PyTorch {theirs}");
                }
                // A power of two changes no bit of bf16, which has the range of f32.
                match &first {
                    Some(first) if dtype == DType::BF16 && keep_batchnorm.is_none() => {
                        assert_eq!(first.losses, ours.losses, "{named}");
                        assert_eq!(first.weights, ours.weights, "{named}");
                    }
                    Some(_) => {}
                    None => first = Some(ours),
                }
            }
        }
    }
}

#[test]
fn every_combination_trains_and_fusing_the_update_changes_no_bit() {
    let levels = [Level::O0, Level::O1, Level::O2, Level::O3];
    for name in FAMILIES {
        let family = Family::open(name);
        let steps = 4;
        let full = run(&family, &PrecisionSettings::default(), FIXED[0], steps, true);
        assert!(full.losses[steps - 1] < full.losses[0], "{name}: {:?}", full.losses);
        for (level, dtype) in levels.into_iter().flat_map(|l| DTYPES.map(|d| (l, d))) {
            for keep_batchnorm in [None, Some(true), Some(false)] {
                let settings = PrecisionSettings {
                    level,
                    dtype: Some(dtype),
                    keep_batchnorm,
                    ..PrecisionSettings::default()
                };
                if level < Level::O2 && keep_batchnorm.is_some() {
                    // All weights are f32 there, those of batch norm like the others: nonsense, and refused
                    // as such.
                    assert!(session(&family, &settings, false).is_err());
                    continue;
                }
                let mixed = apply(&family.bound.graph, &settings.properties(&Target::default()).unwrap())
                    .unwrap()
                    .graph;
                let mixed = pass::decompose(mixed).unwrap();
                let limit =
                    error_bounds(&mixed, Cpu::new(1).target(), true)[mixed.outputs[0].value.0 as usize];
                let mut first: Option<Run> = None;
                for scale in [FIXED[0], FIXED[1], DYNAMIC, PREDICTIVE] {
                    let ours = run(&family, &settings, scale, steps, true);
                    let named = format!("{name} {level} {dtype} {keep_batchnorm:?} {scale:?}");
                    let first =
                        first.get_or_insert_with(|| Run { losses: ours.losses.clone(), ..Run::default() });
                    if level == Level::O0 {
                        assert_eq!(ours.losses, full.losses, "{named}");
                        continue;
                    }
                    // The same forward pass on the same weights, until the first update.
                    assert_eq!(ours.losses[0], first.losses[0], "{named}");
                    let apart = (ours.losses[0] / full.losses[0] - 1.0).abs();
                    assert!(apart <= limit, "{named}: {apart}, bound {limit}");
                    // And it falls, from the first step on that is not skipped.
                    let applied = ours.skipped.iter().position(|&s| s == 0.0).unwrap_or(steps);
                    assert!(
                        applied + 1 >= steps || ours.losses[steps - 1] < ours.losses[0],
                        "{named}: {:?}",
                        ours.losses
                    );
                }
            }
        }
    }
}

/// Steps skipped and elements of gradients lost to underflow in a run at O2 in f16, and of how many.
fn losses_of(family: &Family, numbers: ScalerNumbers, kind: ScalerKind, steps: usize) -> (usize, u64, u64) {
    let settings =
        PrecisionSettings { level: Level::O2, dtype: Some(DType::F16), ..PrecisionSettings::default() };
    let rule = ScalerRule { scale: LossScale::Adaptive(kind), numbers };
    let mut session = session(family, &settings, true).unwrap();
    let program = session.counting_program(&family.bound.graph).unwrap();
    let types: Vec<DType> = session.inputs(program).map(|(_, t)| t.dtype).collect();
    let feeds: Vec<Vec<u8>> =
        family.user_inputs().into_iter().zip(types).map(|(t, d)| t.cast(d).to_bytes()).collect();
    let (mut state, mut skipped, mut lost, mut elements) = (rule.start(), 0, 0, 0);
    for _ in 0..steps {
        session.set_loss_scale(state.scale).unwrap();
        session.gradients(program, &feeds).unwrap();
        let found = session.underflow(program).unwrap();
        let update = session.update(LR).unwrap();
        skipped += !update.applied as usize;
        (lost, elements) = (lost + found.lost, elements + found.elements);
        state = rule.next(&state, Seen { found_inf: !update.applied, largest: update.largest }).0;
    }
    (skipped, lost, elements)
}

#[test]
fn looking_ahead_skips_fewer_steps_and_loses_fewer_gradients_than_waiting_for_a_crash() {
    // Enough steps that what is lost is more than chance.
    const STEPS: usize = 1000;
    // The rule as it is, and growing so often that it shows in a short run.
    let often = ScalerNumbers { interval: 20, ..ScalerNumbers::default() };
    let (mut waiting, mut growing, mut ahead) = ((0, 0), (0, 0), (0, 0));
    for name in FAMILIES {
        let family = Family::open(name);
        let run = |label: &str, numbers: ScalerNumbers, kind: ScalerKind, sum: &mut (usize, u64)| {
            let (skipped, lost, of) = losses_of(&family, numbers, kind, STEPS);
            println!("{name} {label}: {skipped} of {STEPS} steps skipped, {lost} of {of} elements lost");
            *sum = (sum.0 + skipped, sum.1 + lost);
            (skipped, lost)
        };
        let dynamic = run("dynamic", ScalerNumbers::default(), ScalerKind::Dynamic, &mut waiting);
        run("dynamic, interval 20", often, ScalerKind::Dynamic, &mut growing);
        let predictive = run("predictive", ScalerNumbers::default(), ScalerKind::Predictive, &mut ahead);
        assert!(
            predictive.0 <= dynamic.0 && predictive.1 <= dynamic.1,
            "{name}: {predictive:?}, dynamic {dynamic:?}"
        );
    }
    assert!(ahead.0 < waiting.0 && ahead.1 < waiting.1, "{ahead:?}, dynamic {waiting:?}");
    assert!(ahead.0 < growing.0, "{ahead:?}, dynamic with interval 20 {growing:?}");
}
