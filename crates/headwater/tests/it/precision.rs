//! Precision levels on real models, and PyTorch's lists.

use headwater::core::graph::InputRole;
use headwater::core::ops::{Precision, Registry, schema::Schema};
use headwater::core::pass::bound::error_bounds;
use headwater::core::pass::{
    self,
    precision::{Level, Policy, PrecisionSettings},
};
use headwater::core::target::Target;
use headwater::core::{DType, Tensor, TensorType, graph, reference};
use headwater::golden::Golden;
use headwater::import::Dims;
use headwater::model::Model;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens")
}

#[test]
fn autocast_lists_are_pytorchs() {
    // Each overload as PyTorch's autocast treats it, recorded from it; what it leaves alone is left out.
    #[derive(serde::Deserialize)]
    struct Recorded {
        cpu: BTreeMap<String, String>,
        cuda: BTreeMap<String, String>,
    }
    let text = std::fs::read_to_string(goldens().join("precision/autocast.json")).unwrap();
    let recorded: Recorded = serde_json::from_str(&text).unwrap();
    let registry = Registry::standard();
    // `dot` is one operator with `matmul` here. `gru_cell` is on PyTorch's list; the recorder's fake tensors
    // lack its kernel.
    let deviations = [(Policy::TorchCuda, "aten.dot.default"), (Policy::TorchCuda, "aten.gru_cell.default")];
    for (policy, choices) in [(Policy::Torch, &recorded.cpu), (Policy::TorchCuda, &recorded.cuda)] {
        for (target, kind) in
            choices.iter().filter(|(t, _)| !deviations.contains(&(policy.clone(), t.as_str())))
        {
            let Some(found) = registry.resolve(target) else { panic!("{target} is not known") };
            let same = match policy.class(found.op) {
                Some(Precision::Low) => kind == "low",
                Some(Precision::Full) => kind == "full",
                Some(Precision::Widest) => kind == "widest",
                Some(Precision::Refused(_)) => kind == "refused",
                _ => false,
            };
            assert!(same, "{policy}: {target} is {:?}, PyTorch's is {kind}", policy.class(found.op));
        }
        // Operators that were recorded and are on no list of PyTorch's are on none of ours, but for these:
        // `convolution` is what an export of core ATen has where autocast saw `conv2d`; `cross_entropy_loss`
        // is `log_softmax` and `nll_loss`, which both are listed; `upsample_bicubic2d` was recorded through
        // `.vec`, which calls the overload that autocast sees.
        let named = [
            (Policy::Torch, "convolution"),
            (Policy::TorchCuda, "cross_entropy_loss"),
            (Policy::TorchCuda, "upsample_bicubic2d"),
            // On PyTorch's list (2.13 gives f32 under autocast on the CPU), but the recorded choices are
            // older than the operators.
            (Policy::Torch, "_adaptive_avg_pool3d"),
            (Policy::Torch, "avg_pool3d"),
            (Policy::Torch, "max_pool3d"),
            (Policy::Torch, "max_pool3d_with_indices"),
            (Policy::Torch, "grid_sampler"),
            (Policy::Torch, "grid_sampler_2d"),
            (Policy::Torch, "grid_sampler_3d"),
            // On PyTorch's list, but the recorder's fake tensors lack the lengths that it reads.
            (Policy::Torch, "ctc_loss"),
            // On PyTorch's list, but a rank is an integer at any precision.
            (Policy::Torch, "linalg_matrix_rank"),
            // On PyTorch's list, but the recorder's fake tensors lack its results, whose shapes depend on
            // data.
            (Policy::Torch, "linalg_lstsq"),
            // On PyTorch's list as `fft_fft` and the others that these are made of here.
            (Policy::Torch, "_fft_c2c"),
            (Policy::Torch, "_fft_c2r"),
            (Policy::Torch, "_fft_r2c"),
            // On PyTorch's documented list, as `grid_sample`.
            (Policy::TorchCuda, "grid_sampler"),
        ];
        for op in registry.operators() {
            let targets: Vec<String> =
                op.schemas.iter().filter_map(|s| Schema::parse(s).ok()).map(|s| s.target).collect();
            let name = |t: &str| t.split('.').nth(1).unwrap_or(t).to_string();
            let was_recorded = |t: &&String| goldens().join(format!("ops/{}.safetensors", name(t))).exists();
            if targets.is_empty() || !targets.iter().any(|t| was_recorded(&t)) {
                continue;
            }
            let listed = targets
                .iter()
                .any(|t| choices.contains_key(t) || named.contains(&(policy.clone(), &name(t))));
            let class = policy.class(op);
            assert!(listed || class.is_none(), "{policy}: {} is {class:?}, PyTorch leaves it alone", op.name);
        }
    }
}

#[test]
fn every_family_takes_every_level() {
    for family in ["vit", "resnet", "bert", "gpt2", "llama", "qwen2", "clip", "deepseek_v3", "internvl"] {
        for form in ["train", "core"] {
            let path = goldens().join(family).join(format!("{family}.{form}.pt2"));
            let bound = Model::open(&path).unwrap().bind(&Dims::default().or_exported()).unwrap();
            let base = PrecisionSettings::default();
            let all = [
                PrecisionSettings { level: Level::O1, policy: Some(Policy::Apex), ..base.clone() },
                PrecisionSettings { level: Level::O1, policy: Some(Policy::Torch), ..base.clone() },
                PrecisionSettings { level: Level::O1, policy: Some(Policy::TorchCuda), ..base.clone() },
                PrecisionSettings { level: Level::O2, ..base.clone() },
                PrecisionSettings { level: Level::O2, keep_batchnorm: Some(false), ..base.clone() },
                PrecisionSettings { level: Level::O3, ..base },
            ];
            for settings in all {
                let settings = PrecisionSettings { dtype: Some(DType::F16), ..settings };
                let named = format!("{family}.{form} at {settings:?}");
                let mixed =
                    pass::precision::apply(&bound.graph, &settings.properties(&Target::default()).unwrap())
                        .unwrap_or_else(|e| panic!("{named}: {e}"));
                graph::verify(&mixed.graph).unwrap_or_else(|e| panic!("{named}: {e:?}"));
                let low = mixed.decisions.iter().filter(|d| d.dtype == Some(DType::F16)).count();
                assert!(low > 3, "{named}: only {low} nodes in f16");
                let graph = pass::decompose(mixed.graph).unwrap();
                let loss = graph.outputs[0].value;
                assert_eq!(graph.ty(loss).dtype, DType::F32, "{named}");
                let d = pass::differentiate(graph, loss);
                let missing = d.unwrap_or_else(|e| panic!("{named}: {e}")).missing;
                assert!(
                    missing
                        .iter()
                        .all(|m| m.reason.contains("never uses") || m.reason.contains("does not depend")),
                    "{named}: {missing:?}"
                );
            }
        }
    }
}

#[test]
fn the_torch_policy_computes_what_autocast_does() {
    for (family, dtype) in
        ["vit", "resnet", "llama"].into_iter().flat_map(|f| [(f, DType::BF16), (f, DType::F16)])
    {
        let folder = goldens().join(family);
        let golden = Golden::read(&folder.join(format!("{family}.train.golden.safetensors"))).unwrap();
        let bound = Model::open(&folder.join(format!("{family}.train.pt2"))).unwrap();
        let bound = bound.bind(&Dims::default().or_exported()).unwrap();
        let settings = PrecisionSettings {
            level: Level::O1,
            dtype: Some(dtype),
            policy: Some(Policy::Torch),
            ..PrecisionSettings::default()
        };
        let mixed = pass::precision::apply(&bound.graph, &settings.properties(&Target::default()).unwrap())
            .unwrap()
            .graph;
        let graph = pass::decompose(mixed).unwrap();
        let mut users = bound.positions.iter();
        let inputs: Vec<Tensor> = graph
            .inputs
            .iter()
            .map(|i| match i.role {
                InputRole::User => golden.inputs()[users.next().unwrap()].cast(graph.ty(i.value).dtype),
                InputRole::Rng | InputRole::State => Tensor::full(graph.ty(i.value), 0.0),
                _ => bound.tensor(&i.name).unwrap(),
            })
            .collect();
        let values = reference::trace(&graph, &inputs).unwrap();
        // Both sides have rounded as often.
        let bounds = error_bounds(&graph, &Target::default(), false);

        let bytes = std::fs::read(goldens().join(format!("precision/{family}.safetensors"))).unwrap();
        let recorded = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let prefix = format!("{dtype}.O1.node.");
        let mut compared = 0;
        for (name, view) in recorded.tensors().iter().filter_map(|(n, v)| Some((n.strip_prefix(&prefix)?, v)))
        {
            let want = match view.dtype() {
                safetensors::Dtype::F16 => DType::F16,
                safetensors::Dtype::BF16 => DType::BF16,
                safetensors::Dtype::F32 => DType::F32,
                other => panic!("{family}: {name} is {other:?}"),
            };
            let ty = TensorType::new(want, view.shape().to_vec());
            let want = Tensor::from_bytes(&ty, view.data());
            // The last value made for the exporter's node, of its shape: attention has statistics of rows
            // too.
            let made = graph
                .nodes
                .iter()
                .rev()
                .find(|n| graph.origin(n).node == name && graph.ty(n.outputs[0]).shape == ty.shape);
            let Some(v) = made.map(|n| n.outputs[0]) else {
                continue; // simplified away when importing
            };
            let got = &values[v.0 as usize];
            assert_eq!(got.ty, ty, "{family} {dtype}: {name}");
            let norm = |t: &[f64]| t.iter().map(|x| x * x).sum::<f64>().sqrt();
            let apart: Vec<f64> = got.floats().iter().zip(want.floats()).map(|(a, b)| a - b).collect();
            let error = norm(&apart) / norm(want.floats()).max(f64::MIN_POSITIVE);
            let limit = 2.0 * bounds[v.0 as usize];
            assert!(error <= limit, "{family} {dtype}: {name} is {error:e} away, its bound is {limit:e}");
            compared += 1;
        }
        assert!(compared > 20, "{family} {dtype}: only {compared} nodes compared");
    }
}
