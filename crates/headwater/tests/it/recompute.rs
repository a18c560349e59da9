//! Recomputation on exports of real models: the same gradients to the bit and the same training, in less
//! memory.

use crate::common::train;
use headwater::core::compile::{Options, optimize};
use headwater::core::device::Device;
use headwater::core::evaluate;
use headwater::core::graph::{Graph, InputRole, OutputRole, verify};
use headwater::core::pass::precision::Level;
use headwater::core::plan::Bindings;
use headwater::core::target::Target;
use headwater::core::{Attrs, Builder, DType, Tensor, TensorType, ValueId, ops, pass};
use headwater::cpu::Cpu;
use headwater::devices;
use headwater::golden::Golden;
use headwater::import::Dims;
use headwater::inspect::inspect;
use headwater::model::Model;
use headwater::runtime::Bytes;
use headwater::runtime::optim::Optimizer;
use std::path::{Path, PathBuf};

const FAMILIES: [&str; 9] =
    ["vit", "resnet", "bert", "gpt2", "llama", "qwen2", "clip", "deepseek_v3", "internvl"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Forward and backward of a graph, fused for a device, without recomputation.
fn saving(device: &dyn Device, graph: Graph) -> Graph {
    let options = Options { recompute: false, ..Options::default() };
    optimize(graph, &options, device.target()).unwrap().graph
}

/// Forward and backward of a family's model, and what the golden feeds it.
fn open(device: &dyn Device, family: &str) -> (Graph, Vec<Tensor>) {
    let file = |ext: &str| root().join("goldens").join(family).join(format!("{family}.core.{ext}"));
    let golden = Golden::read(&file("golden.safetensors")).unwrap();
    let bound = Model::open(&file("pt2")).unwrap().bind_to(&golden).unwrap();
    let graph = saving(device, bound.graph.clone());
    let recorded = golden.inputs();
    let mut users = bound.positions.iter().map(|p| recorded[p].clone());
    let inputs = graph.inputs.iter().map(|i| match i.role {
        InputRole::User => users.next().unwrap().cast(graph.ty(i.value).dtype),
        InputRole::Rng => Tensor::full(graph.ty(i.value), 3.0),
        _ => bound.tensor(&i.name).unwrap(),
    });
    let inputs = inputs.collect();
    (graph, inputs)
}

/// Runs a fused graph with and without recomputation: the same bits. Returns the bytes of the arena, without
/// and with.
fn compared(device: &dyn Device, name: &str, kept: &Graph, fed: &[Tensor]) -> (usize, usize) {
    let again = pass::recompute(kept.clone(), device.target()).unwrap();
    verify(&again).unwrap_or_else(|e| panic!("{name}: {e}"));
    let arena = |g: &Graph| {
        let plan = pass::plan(g, &Bindings::simple(g), device.target()).unwrap();
        pass::check_plan(&plan).unwrap();
        plan.segments[0].bytes
    };
    let [want, got] = [kept, &again].map(|g| evaluate(device, g, fed).unwrap());
    for ((o, a), b) in kept.outputs.iter().zip(&want).zip(&got) {
        assert!(a.to_bytes() == b.to_bytes(), "{name}: {} has other bits", o.name);
    }
    (arena(kept), arena(&again))
}

#[test]
fn every_family_has_the_same_gradients_in_less_memory() {
    let (device, mut all) = (Cpu::new(2), (0, 0));
    for family in FAMILIES {
        let (graph, fed) = open(&device, family);
        assert!(graph.outputs.len() > 5);
        let (before, after) = compared(&device, family, &graph, &fed);
        assert!(after <= before, "{family}: {before} bytes, {after} with recomputation");
        all = (all.0 + before, all.1 + after);
    }
    assert!(all.1 < all.0, "{} bytes, {} with recomputation", all.0, all.1);
}

/// Numbers between -1 and 1 for every input.
fn drawn(graph: &Graph) -> Vec<Tensor> {
    let mut state = 7u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1u64 << 23) as f64 - 1.0
    };
    let inputs = graph.inputs.iter().map(|i| graph.ty(i.value));
    inputs
        .map(|t| Tensor::float(t.dtype, t.shape.clone(), (0..t.shape.numel()).map(|_| next()).collect()))
        .collect()
}

/// Layers with rows so long that a device cuts them: `layer` takes what the one before has made.
fn stacked(
    device: &dyn Device,
    dtype: DType,
    x: &[usize],
    layer: impl Fn(&mut Builder, ValueId, usize) -> ValueId,
) -> Graph {
    let mut b = Builder::new();
    let mut y = b.input("x", TensorType::new(dtype, x), InputRole::User);
    for i in 0..3 {
        y = layer(&mut b, y, i);
    }
    let square = b.mul(y, y).unwrap();
    let loss = b.sum(square, &(0..x.len()).collect::<Vec<_>>(), false).unwrap();
    b.output("loss", loss, OutputRole::User);
    saving(device, b.finish())
}

/// A norm of rows of `n` elements, a product with bias, GELU, a product, SiLU and a sum with what came in.
fn feed_forward(b: &mut Builder, x: ValueId, i: usize, n: usize, approximate: &str) -> ValueId {
    let dtype = b.ty(x).dtype;
    let w = b.parameter(&format!("norm{i}"), dtype, &[n]);
    let attrs = Attrs::new().with("normalized_shape", [n as i64]).with("eps", 1e-5);
    let y = b.apply(&ops::norm::layer_norm::LAYER_NORM, &[Some(x), Some(w), None], attrs).unwrap()[0];
    let [up, down] = [("up", [n, 40]), ("down", [40, n])]
        .map(|(name, shape)| b.parameter(&format!("{name}{i}"), dtype, &shape));
    let bias = b.parameter(&format!("bias{i}"), dtype, &[40]);
    let h = b.matmul(y, up).unwrap();
    let h = b.add(h, bias).unwrap();
    let attrs = Attrs::new().with("approximate", approximate);
    let h = b.apply(&ops::pointwise::gelu::GELU, &[Some(h)], attrs).unwrap()[0];
    let h = b.matmul(h, down).unwrap();
    let h = b.call(&ops::pointwise::silu::SILU, &[h]).unwrap();
    let scaled = b.mul(h, y).unwrap();
    b.add(x, scaled).unwrap()
}

#[test]
fn long_rows_are_summed_in_the_same_order() {
    // Rows that are summed in one piece, and such as are cut.
    let sizes = [(3000, [6, 4, 40, 40]), (5000, [17, 4, 17, 40])];
    let device = Cpu::new(2);
    let dtypes = [DType::F32, DType::BF16, DType::F16];
    for (dtype, (n, images)) in dtypes.into_iter().flat_map(|d| sizes.map(|s| (d, s))) {
        for approximate in ["none", "tanh"] {
            let layer = |b: &mut Builder, x: ValueId, i: usize| feed_forward(b, x, i, n, approximate);
            let graph = stacked(&device, dtype, &[2, 24, n], layer);
            let (before, after) = compared(&device, "norms", &graph, &drawn(&graph));
            assert!(after < before, "{before} bytes, {after} with recomputation");
        }
        let channels = |b: &mut Builder, x: ValueId, i: usize| {
            let w = b.parameter(&format!("w{i}"), dtype, &[4, 4, 3, 3]);
            let attrs = Attrs::new()
                .with("stride", [1, 1])
                .with("padding", [1, 1])
                .with("dilation", [1, 1])
                .with("groups", 1);
            let y =
                b.apply(&ops::conv::convolution::CONVOLUTION, &[Some(x), Some(w), None], attrs).unwrap()[0];
            let weight = b.parameter(&format!("weight{i}"), DType::F32, &[4]);
            let attrs = Attrs::new().with("eps", 1e-5).with("momentum", 0.1);
            let inputs = [Some(y), Some(weight), None, None, None];
            let y = b.apply(&ops::norm::batch_norm::BATCH_NORM_TRAIN, &inputs, attrs).unwrap()[0];
            let y = b.add(y, x).unwrap();
            b.call(&ops::pointwise::relu::RELU, &[y]).unwrap()
        };
        let graph = stacked(&device, dtype, &images, channels);
        let (before, after) = compared(&device, "channels", &graph, &drawn(&graph));
        assert!(after < before, "{before} bytes, {after} with recomputation");
    }
}

/// What recomputation joins has the bits of the separate programs on simulated NPUs too: bias gradients are
/// sums over rows in an order of the sizes alone, and functions are evaluated as exactly in one program as in
/// the other.
#[test]
fn an_npu_computes_the_same_bits_whatever_is_joined() {
    let chips = [
        ("ascend-sim:910b1", &[DType::F32, DType::BF16, DType::F16][..]),
        ("ascend-sim:310p", &[DType::F32, DType::F16][..]),
    ];
    for (chip, dtypes) in chips {
        let device = devices::open(chip, 2).unwrap();
        for (&dtype, approximate) in dtypes.iter().flat_map(|d| ["none", "tanh"].map(|a| (d, a))) {
            let layer = |b: &mut Builder, x: ValueId, i: usize| feed_forward(b, x, i, 320, approximate);
            let graph = stacked(&*device, dtype, &[2, 24, 320], layer);
            let name = format!("{chip} {dtype} {approximate}");
            let (before, after) = compared(&*device, &name, &graph, &drawn(&graph));
            assert!(after < before, "{name}: {before} bytes, {after} with recomputation");
        }
        for family in ["bert", "gpt2", "llama"] {
            let (graph, fed) = open(&*device, family);
            compared(&*device, &format!("{chip} {family}"), &graph, &fed);
        }
    }
}

#[test]
fn a_run_with_recomputation_ends_with_the_same_bits() {
    for amp in ["", "level = \"O1\"", "level = \"O2\"\ndtype = \"bf16\"", "level = \"O2\"\ndtype = \"f16\""] {
        let run = |recompute: bool| {
            train(2, |config| {
                config.clip_norm = Some(0.5);
                config.amp = toml::from_str(amp).unwrap();
                config.recompute = recompute;
            })
        };
        let (kept, again) = (run(false), run(true));
        assert!(kept.same_losses(&again), "{amp}: other losses");
        assert!(kept.tensors == again.tensors, "{amp}: other parameters");
        assert!(again.arena < kept.arena, "{amp}: {} bytes, {} with recomputation", kept.arena, again.arena);
    }
}

#[test]
fn a_memory_budget_is_kept_and_ends_with_the_same_bits() {
    for amp in ["", "level = \"O2\"\ndtype = \"bf16\""] {
        let run = |budget: Option<usize>| {
            train(2, |config| {
                config.amp = toml::from_str(amp).unwrap();
                config.memory_budget = budget.map(Bytes);
            })
        };
        let plain = run(None);
        let budget = plain.planned - plain.arena / 5;
        let tight = run(Some(budget));
        assert!(tight.planned <= budget, "{amp}: {} bytes, {budget} allowed", tight.planned);
        assert!(plain.same_losses(&tight), "{amp}: other losses");
        assert!(plain.tensors == tight.tensors, "{amp}: other parameters");
    }
}

#[test]
fn inspect_plans_the_memory_that_a_run_takes() {
    let model = Model::open(&root().join("examples/digits-vit/digits_vit.pt2")).unwrap();
    let bound = model.bind(&model.batch(Dims::new(), 32).unwrap().or_exported()).unwrap();
    let sgd: Optimizer = serde_json::from_str(r#"{"name": "sgd", "momentum": 0.9}"#).unwrap();
    for (level, accumulate, optimizer) in [
        (Level::O0, 1, Optimizer::default()),
        (Level::O0, 2, sgd),
        (Level::O2, 1, Optimizer::default()),
        (Level::O3, 2, Optimizer::default()),
    ] {
        let mut settings = None;
        let run = train(2, |c| {
            (c.amp.level, c.accumulate, c.optimizer) = (level, accumulate, optimizer);
            settings = Some(c.training(&Target::default()).unwrap());
        });
        let found = inspect(&model, &bound, &Cpu::new(2), &settings.unwrap()).unwrap();
        assert_eq!(found.memory.total(), run.planned, "{level:?}, {accumulate} micro-batches");
        assert!(found.memory.gradients > 0 && found.memory.moments > 0 && found.memory.arena > 0);
        assert_eq!(found.memory.masters > 0, level == Level::O2);
    }
}
