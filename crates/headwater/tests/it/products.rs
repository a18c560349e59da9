//! Steps of one inner layer of exported models, forward and backward, as they train.

use headwater::core::compile::{Options, optimize};
use headwater::core::device::Device;
use headwater::core::evaluate;
use headwater::core::graph::{Graph, InputRole};
use headwater::core::pass::precision::{Level, PrecisionSettings};
use headwater::core::plan::Plan;
use headwater::core::{DType, Tensor};
use headwater::cpu::{Cpu, Tier};
use headwater::golden::Golden;
use headwater::model::{BoundModel, Model};
use headwater::runtime::session::{Planned, Session, SessionModel, Training};
use std::path::Path;
use std::sync::Arc;

fn open(family: &str) -> (BoundModel, Golden) {
    let file = |ext: &str| {
        let path = format!("../../goldens/{family}/{family}.train.{ext}");
        Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
    };
    let golden = Golden::read(&file("golden.safetensors")).unwrap();
    (Model::open(&file("pt2")).unwrap().bind_to(&golden).unwrap(), golden)
}

/// The plan of a golden's training step.
fn planned(family: &str, settings: &Training) -> Plan {
    let (bound, _) = open(family);
    Planned::training(&bound.graph, settings, Cpu::new(2).target(), None).unwrap().plan().clone()
}

/// Steps of the modules below a path.
fn below(plan: &Plan, path: &str) -> usize {
    plan.steps.iter().filter(|s| plan.origin(s).module.starts_with(path)).count()
}

#[test]
fn an_inner_layer_has_few_steps() {
    // Steps of the first layer: of two, the last one computes less where the loss reads a single token.
    for (family, layer, steps, apart) in [
        ("llama", "model.model.layers.0.", 22, 34),
        ("qwen2", "model.model.layers.0.", 22, 34),
        ("bert", "model.bert.encoder.layer.0.", 20, 26),
        ("vit", "model.vit.layers.0.", 20, 26),
        ("gpt2", "model.transformer.h.0.", 20, 20),
    ] {
        let plan = planned(family, &Training::default());
        let exact = planned(family, &Training { exact_sums: true, ..Training::default() });
        let seen = |plan: &Plan| {
            let own: Vec<String> = plan
                .steps
                .iter()
                .filter(|s| plan.origin(s).module.starts_with(layer))
                .map(|s| format!("{} {}", s.op, plan.origin(s).module))
                .collect();
            own.join("\n")
        };
        assert_eq!(below(&plan, layer), steps, "{family}:\n{}", seen(&plan));
        assert_eq!(below(&exact, layer), apart, "{family}, exact sums:\n{}", seen(&exact));
    }
}

/// The loss of a golden's first batch, and gradients of parameters.
fn gradients(family: &str, names: &[String], settings: Training, tier: Option<Tier>) -> Vec<Tensor> {
    let (bound, golden) = open(family);
    let cpu = Cpu::new(2);
    let device = Arc::new(match tier {
        Some(tier) => cpu.with_tier(tier).unwrap(),
        None => cpu,
    });
    let model = SessionModel { graph: &bound.graph, weights: &bound };
    let mut session = Session::new(device, model, Some(settings)).unwrap();
    let program = session.program().unwrap();
    let inputs = golden.inputs();
    let users = bound.user_inputs().zip(&bound.positions);
    let feeds: Vec<_> = users.map(|((_, ty), p)| inputs[p].cast(ty.dtype).to_bytes()).collect();
    session.begin_step().unwrap();
    session.gradients(program, &feeds).unwrap();
    let loss = session.output(program, 0).unwrap();
    [loss].into_iter().chain(names.iter().map(|name| session.gradient(name).unwrap())).collect()
}

#[test]
fn results_and_gradients_of_joined_weights_keep_their_bits() {
    let low = |level| PrecisionSettings { level, dtype: Some(DType::BF16), ..PrecisionSettings::default() };
    // Weights of the last layer that are joined: what their gradients are made of comes through no other
    // joined product. Products of up to 16 columns, such as those of keys in the other goldens, are dot
    // products on the CPU, whose order is another one.
    for (family, layer, names) in [
        ("bert", "model.bert.encoder.layer.1.attention.self", &["key.weight", "value.weight", "key.bias"]),
        ("vit", "model.vit.layers.1.attention", &["k_proj.weight", "v_proj.weight", "v_proj.bias"]),
    ] {
        let names: Vec<String> = names.iter().map(|name| format!("{layer}.{name}")).collect();
        for precision in [PrecisionSettings::default(), low(Level::O1), low(Level::O2)] {
            for (accumulate, tier) in [(1, None), (1, Some(Tier::Portable)), (2, None)] {
                let settings = Training { precision: precision.clone(), accumulate, ..Training::default() };
                let exact = Training { exact_sums: true, ..settings.clone() };
                let joined = gradients(family, &names, settings, tier);
                let apart = gradients(family, &names, exact, tier);
                for (i, (a, b)) in joined.iter().zip(&apart).enumerate() {
                    let name = if i == 0 { "loss" } else { &names[i - 1] };
                    let what =
                        format!("{family}: {name}, {:?}, {accumulate} batches, {tier:?}", precision.level);
                    assert!(a.to_bytes() == b.to_bytes(), "{what}");
                    assert!(a.to_f64().iter().any(|x| *x != 0.0), "{what} is zero");
                }
            }
        }
    }
}

#[test]
fn gradients_of_biases_have_their_bits_in_the_step_of_the_weight() {
    for family in ["bert", "gpt2", "qwen2", "vit"] {
        let (bound, golden) = open(family);
        for device in [Cpu::new(2), Cpu::new(1).with_tier(Tier::Portable).unwrap()] {
            let compiled = |last: &str| {
                let options = Options { stop_after: Some(last), ..Options::default() };
                optimize(bound.graph.clone(), &options, device.target()).unwrap().graph
            };
            let (apart, together) = (compiled("recompute"), compiled("epilogues"));
            let joined = |g: &Graph| g.nodes.iter().filter(|n| n.op.name == "matmul_sum").count();
            assert!(joined(&apart) == 0 && joined(&together) >= 2, "{family}: {}", joined(&together));
            let recorded = golden.inputs();
            let mut users = bound.positions.iter().map(|p| recorded[p].clone());
            let inputs = apart.inputs.iter().map(|i| match i.role {
                InputRole::User => users.next().unwrap().cast(apart.ty(i.value).dtype),
                InputRole::Rng => Tensor::full(apart.ty(i.value), 3.0),
                _ => bound.tensor(&i.name).unwrap(),
            });
            let inputs: Vec<Tensor> = inputs.collect();
            let [want, got] = [&apart, &together].map(|g| evaluate(&device, g, &inputs).unwrap());
            for ((o, a), b) in apart.outputs.iter().zip(&want).zip(&got) {
                assert!(a.to_bytes() == b.to_bytes(), "{family}: {} has other bits", o.name);
            }
        }
    }
}

#[test]
fn inspection_tells_the_steps_of_a_layer() {
    let (bound, _) = open("llama");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens/llama/llama.train.pt2");
    let model = Model::open(&path).unwrap();
    let cpu = Cpu::new(2);
    let found = headwater::inspect::inspect(&model, &bound, &cpu, &Training::default()).unwrap();
    let of = |class: &str| found.module_types.iter().find(|t| t.class == class).unwrap();
    let plan = planned("llama", &Training::default());
    let layers = [0, 1].map(|i| below(&plan, &format!("model.model.layers.{i}.")));
    // Both layers, each with all that it contains.
    let layer = of("LlamaDecoderLayer");
    assert_eq!((layer.modules, layer.all.0), (2, layers[0] + layers[1]), "{layer:?}");
    assert!(layers.contains(&layer.one.0), "{layer:?}");
    assert!(of("LlamaAttention").all.0 < layer.all.0 && of("LlamaForCausalLM").all.0 > layer.all.0);
}
