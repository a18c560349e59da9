//! Mixed precision obeys the model: conversions that it states, and constants beyond what 16 bits hold.
//! Judged by PyTorch's losses and its dtypes, node by node.

use headwater::core::DType;
use headwater::core::device::Device;
use headwater::core::pass::{
    self,
    precision::{Level, Policy, PrecisionSettings},
};
use headwater::core::target::Target;
use headwater::cpu::Cpu;
use headwater::devices;
use headwater::import::Dims;
use headwater::model::Model;
use headwater::runtime::TrainConfig;
use headwater::runtime::scaler::LossScale;
use headwater::train::with_trainer;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens")
}

/// PyTorch's losses and dtypes.
#[derive(serde::Deserialize)]
struct Recorded {
    losses: BTreeMap<String, BTreeMap<String, serde_json::Value>>,
    dtypes: BTreeMap<String, BTreeMap<String, String>>,
}

fn recorded() -> Recorded {
    let text = std::fs::read_to_string(goldens().join("precision/dtypes.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn settings(level: Level, dtype: DType) -> PrecisionSettings {
    let policy = (level == Level::O1).then_some(Policy::Torch);
    PrecisionSettings { level, dtype: Some(dtype), policy, ..PrecisionSettings::default() }
}

/// Losses of steps on a file of data, or the error that ended them.
fn losses(
    device: Arc<dyn Device>,
    model: &Path,
    data: &Path,
    (level, dtype): (Level, DType),
    steps: u64,
) -> anyhow::Result<Vec<f64>> {
    let mut config = TrainConfig { steps: Some(steps), seed: 7, ..TrainConfig::default() };
    config.data.train = data.to_owned();
    config.data.sequential = true;
    if dtype == DType::F16 {
        config.amp.loss_scale = Some(LossScale::Static(128.0));
    }
    let s = settings(level, dtype);
    (config.amp.level, config.amp.dtype, config.amp.policy) = (s.level, s.dtype, s.policy);
    let model = Model::open(model)?;
    with_trainer(&model, Dims::new(), config, device, false, |trainer, _| {
        Ok(trainer.run(&mut [], &AtomicBool::new(false))?.losses)
    })
}

/// A loss in 16 bits may be off by a rounding at each of 16 operations, relatively: half an epsilon each.
fn close(got: f64, want: f64, dtype: DType) -> bool {
    (got - want).abs() <= 8.0 * dtype.epsilon() * want.abs()
}

const LEVELS: [(Level, DType); 6] = [
    (Level::O1, DType::BF16),
    (Level::O2, DType::BF16),
    (Level::O3, DType::BF16),
    (Level::O1, DType::F16),
    (Level::O2, DType::F16),
    (Level::O3, DType::F16),
];

/// Compares first losses of all recorded models on a device with PyTorch's in f32.
fn first_losses(device: &Arc<dyn Device>, forms: &[&str], levels: &[(Level, DType)]) {
    let folder = goldens().join("precision/casts");
    let mut wrong = Vec::new();
    for (name, want) in recorded().losses {
        let want = want["f32"].as_f64().unwrap();
        for (form, &level) in forms.iter().flat_map(|f| levels.iter().map(move |l| (f, l))) {
            let (model, data) =
                (folder.join(format!("{name}.{form}.pt2")), folder.join(format!("{name}.train.safetensors")));
            match losses(device.clone(), &model, &data, level, 1) {
                Ok(got) if close(got[0], want, level.1) => {}
                Ok(got) => wrong.push(format!("{name}.{form} at {level:?}: {}, in f32 {want}", got[0])),
                Err(e) => wrong.push(format!("{name}.{form} at {level:?}: {e:#}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", device.target().name, wrong.join("\n"));
}

#[test]
fn losses_are_pytorchs_at_every_level() {
    let cpu: Arc<dyn Device> = Arc::new(Cpu::new(1));
    first_losses(&cpu, &["train", "core"], &LEVELS);
}

#[test]
fn losses_are_pytorchs_on_simulated_npus() {
    let a2 = devices::open("ascend-sim:910b1", 1).unwrap();
    first_losses(&a2, &["train"], &[(Level::O1, DType::BF16), (Level::O2, DType::F16)]);
    let old = devices::open("ascend-sim:310p", 1).unwrap();
    first_losses(&old, &["train"], &[(Level::O1, DType::F16), (Level::O2, DType::F16)]);
}

#[test]
fn reported_models_train_as_in_pytorch() {
    let bugs = |name: &str| {
        (goldens().join(format!("bugs/{name}.pt2")), goldens().join(format!("bugs/{name}.train.safetensors")))
    };
    let cpu: Arc<dyn Device> = Arc::new(Cpu::new(1));
    for name in ["amp_float_variance", "amp_float_kl", "amp_min_masked_fill", "amp_min_where"] {
        let (model, data) = bugs(name);
        let full = losses(cpu.clone(), &model, &data, (Level::O0, DType::BF16), 2).unwrap();
        for level in LEVELS {
            let got = losses(cpu.clone(), &model, &data, level, 1)
                .unwrap_or_else(|e| panic!("{name} {level:?}: {e:#}"));
            assert!(close(got[0], full[0], level.1), "{name} {level:?}: {} and {}", got[0], full[0]);
        }
    }
}

/// Nodes that are in f32 here and low under autocast, by the beginning of their names.
const KNOWN: [(&str, &str); 9] = [
    // A function of the model's file converts; an archive has the line of its caller alone.
    ("casts/helper", "add_1"),
    ("casts/helper", "pow_1"),
    ("casts/helper", "mean_1"),
    ("casts/mask_byproduct", "to"),
    ("casts/mask_byproduct", "rsub"),
    ("casts/mask_byproduct", "mul"),
    ("casts/mask_byproduct", "add"),
    ("casts/mask_byproduct", "softmax"),
    ("casts/mask_byscalar", "full"),
];

/// Dtype of each node's last value at O1 by the lists of `torch.autocast`, against what autocast gives the
/// module.
#[test]
fn dtypes_at_o1_are_autocasts_node_by_node() {
    let (mut compared, mut known, mut apart) = (0, BTreeMap::new(), Vec::new());
    for (name, want) in recorded().dtypes {
        let file = match name.strip_prefix("casts/") {
            Some(_) => goldens().join(format!("precision/{name}.train.pt2")),
            None => goldens().join(&name).join(format!("{name}.train.pt2")),
        };
        let bound = Model::open(&file).unwrap().bind(&Dims::default().or_exported()).unwrap();
        for dtype in [DType::BF16, DType::F16] {
            let p = settings(Level::O1, dtype).properties(&Target::default()).unwrap();
            let graph = pass::mixed(&bound.graph, &p).unwrap().graph;
            let mut found = BTreeMap::new();
            for node in &graph.nodes {
                found.insert(graph.origin(node).node.as_str(), graph.ty(node.outputs[0]).dtype);
            }
            for (node, want) in &want {
                // Views, aliases and what a composed operator stands for may be no nodes here.
                let Some(&got) = found.get(node.as_str()).filter(|d| d.is_float()) else { continue };
                let got = if got == dtype { "low" } else { got.name() };
                compared += 1;
                let wider = got == "f32" && want == "low";
                let of = KNOWN.iter().find(|(model, n)| name == *model && node.starts_with(n));
                match of.filter(|_| wider) {
                    Some(entry) => *known.entry((entry, dtype.name())).or_insert(0) += 1,
                    None if got != want => {
                        apart.push(format!("{name} {dtype}: {node} is {got}, autocast's {want}"));
                    }
                    None => (),
                }
            }
        }
    }
    println!("{compared} nodes compared, {} differ", known.values().sum::<usize>() + apart.len());
    assert!(compared > 2000, "{compared} nodes compared");
    // One node each, in both dtypes.
    assert!(known.len() == 2 * KNOWN.len() && known.values().all(|n| *n == 1), "{known:?}");
    assert!(apart.is_empty(), "{} of {compared} differ:\n{}", apart.len(), apart.join("\n"));
}

fn headwater(args: &[&str]) -> (i32, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_headwater")).args(args).output().unwrap();
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    (out.status.code().unwrap_or(-1), text(&out.stdout), text(&out.stderr))
}

#[test]
fn a_run_of_skipped_steps_is_an_error() {
    // Two halvings leave the scale far beyond what gradients in f16 bear.
    let folder = goldens().join("precision/casts");
    let (model, data) = (folder.join("variance.train.pt2"), folder.join("variance.train.safetensors"));
    let [model, data] = [model.to_str().unwrap(), data.to_str().unwrap()];
    let run = [
        "train",
        model,
        "--data",
        data,
        "--batch",
        "2",
        "--optimizer",
        "sgd",
        "--lr",
        "0.01",
        "--dtype",
        "f16",
    ];
    let fixed = |scale: &'static str| {
        run.iter().copied().chain(["--amp", "O2", "--loss-scale", scale, "--steps", "2"])
    };
    let (code, _, said) = headwater(&fixed("dynamic").collect::<Vec<_>>());
    assert_eq!(code, 0, "{said}");
    let place = std::env::temp_dir().join(format!("headwater-amp-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let file = place.join("scale.toml");
    std::fs::write(&file, "[amp.scaler]\ninit = 1e9\n").unwrap();
    let all = fixed("dynamic").chain(["--config", file.to_str().unwrap()]).collect::<Vec<_>>();
    let (code, _, said) = headwater(&all);
    std::fs::remove_dir_all(&place).unwrap();
    assert_eq!(code, 1, "{said}");
    for words in ["HW-R011", "all 2 steps were skipped", "at loss scales from", "bf16"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn a_check_in_16_bits_has_finite_masks() {
    let file = |end: &str| goldens().join(format!("bugs/alarm_bf16_check_of_min_mask.{end}"));
    let (model, golden) = (file("pt2"), file("golden.safetensors"));
    for precision in ["bf16", "f16"] {
        let (_, out, said) = headwater(&[
            "check",
            model.to_str().unwrap(),
            golden.to_str().unwrap(),
            "--precision",
            precision,
        ]);
        assert!(!out.contains("NaN") && !out.contains("DIFFERS"), "{precision}: {out}{said}");
    }
}

/// `masked_fill(-inf)`, then `logsumexp`, whose gradient computes the infinite scores again: no gradient
/// overflows.
#[test]
fn infinite_masks_are_no_overflow_of_gradients() {
    let file = |end: &str| goldens().join(format!("bugs/amp_infinite_mask_logsumexp.{end}"));
    let (model, golden) = (file("pt2"), file("golden.safetensors"));
    for precision in ["bf16", "f16"] {
        let [model, golden] = [&model, &golden].map(|path| path.to_str().unwrap());
        let (code, out, said) = headwater(&["check", model, golden, "--precision", precision]);
        assert_eq!(code, 0, "{precision}: {out}{said}");
        assert!(!out.contains("whatever the loss scale"), "{out}");
    }
}
