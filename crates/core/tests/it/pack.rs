//! Buckets of gradients as values of the graph: nothing is copied for them, and what reads one is ordered.

use headwater_core::compile::{Options, compile, optimize};
use headwater_core::graph::{Graph, InputRole, OutputRole, parse, verify};
use headwater_core::ops::pointwise::gelu::GELU;
use headwater_core::pass::{self, check_plan};
use headwater_core::plan::Bindings;
use headwater_core::target::Target;
use headwater_core::train::{self, BucketLayout, BucketSize};
use headwater_core::{Builder, DType, Error, Registry, TensorType};

const LAYERS: usize = 4;

/// Layers, a bias that is used twice, and a parameter that is the loss's addend, so that its gradient is a
/// view.
fn model() -> Graph {
    let mut b = Builder::new();
    let mut x = b.input("x", TensorType::new(DType::F32, [8, 4]), InputRole::User);
    for i in 0..LAYERS {
        let w = b.parameter(&format!("{i}.weight"), DType::F32, &[4, 4]);
        let bias = b.parameter(&format!("{i}.bias"), DType::F32, &[4]);
        let h = b.matmul(x, w).unwrap();
        let h = b.add(h, bias).unwrap();
        x = b.call(&GELU, &[h]).unwrap();
    }
    let last = b.parameter("last", DType::F32, &[8, 4]);
    let x = b.add(x, last).unwrap();
    let loss = b.sum(x, &[0, 1], false).unwrap();
    b.output("loss", loss, OutputRole::User);
    b.finish()
}

#[test]
fn packing_adds_no_step_and_moves_nothing() {
    let target = Target::default();
    for (accumulate, size, buckets) in [
        (false, BucketSize::UNLIMITED, 1),
        (false, BucketSize::of(8 << 10), 5),
        (true, BucketSize::UNLIMITED, 1),
        (true, BucketSize::of(1), 2 * LAYERS + 1),
    ] {
        let options = Options { accumulate, ..Options::default() };
        let bound = |graph: &Graph, gradients: &[headwater_core::compile::ParameterGradient]| {
            let parameters = gradients.iter().map(|g| (g.parameter.as_str(), &g.ty, 0));
            train::bind(graph, &BucketLayout::new(parameters, size))
        };
        let before = optimize(model(), &options, &target).unwrap();
        let bindings = bound(&before.graph, &before.gradients);
        let apart = pass::plan(&before.graph, &bindings, &target).unwrap();
        let bind = |c: &headwater_core::compile::CompiledGraph| Ok::<_, Error>(bound(&c.graph, &c.gradients));
        let packed = compile(model(), &options, &target, bind).unwrap();
        verify(&packed.graph).unwrap();
        let text = packed.graph.to_string();
        assert_eq!(parse(&text, Registry::standard()).unwrap().to_string(), text);
        let spans = packed.graph.outputs.iter().filter(|o| o.role == OutputRole::Gradients).count();
        let nodes = packed.graph.nodes.iter().filter(|n| n.op.name == "pack").count();
        assert_eq!((spans, nodes), (buckets, buckets), "{text}");
        assert!(!packed.graph.outputs.iter().any(|o| matches!(o.role, OutputRole::Gradient(_))));
        // The first bucket is complete before the backward pass is.
        let first = packed.graph.nodes.iter().position(|n| n.op.name == "pack").unwrap();
        assert_eq!(first + 1 == packed.graph.nodes.len(), buckets == 1);
        let plan = packed.into_plan().unwrap();
        assert_eq!(plan.steps.len(), apart.steps.len());
        // The values are numbered anew by packing; bytes and order are not.
        let steps = |text: &str| {
            text.lines().filter(|l| !l.starts_with("place ")).map(str::to_string).collect::<Vec<_>>()
        };
        assert_eq!(steps(&plan.to_string()), steps(&apart.to_string()));
    }
}

#[test]
fn old_content_that_would_be_moved_between_parts_stays_unpacked() {
    // Two states exchanged: a packed bucket would overwrite one before the other is read.
    let mut b = Builder::new();
    let ty = || TensorType::new(DType::F32, [4]);
    let (p, q) = (b.parameter("p", DType::F32, &[4]), b.parameter("q", DType::F32, &[4]));
    let x = b.input("gradient.p", ty(), InputRole::State);
    let y = b.input("gradient.q", ty(), InputRole::State);
    b.output("p", y, OutputRole::Mutation(x));
    b.output("q", x, OutputRole::Mutation(y));
    let graph = b.finish();
    let types = [ty(), ty()];
    let layout = BucketLayout::new([("p", &types[0], 0), ("q", &types[1], 0)], BucketSize::UNLIMITED);
    let mut bindings: Bindings = train::bind(&graph, &layout);
    assert_eq!(bindings.buckets.len(), 1);
    let packed = pass::pack(graph.clone(), &mut bindings).unwrap();
    assert_eq!(packed.to_string(), graph.to_string(), "{p} {q}");
    check_plan(&pass::plan(&packed, &bindings, &Target::default()).unwrap()).unwrap();
}
