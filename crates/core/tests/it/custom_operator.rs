//! A pointwise operator from outside is one file (`custom_operator/quick_gelu.rs`) and one line (`register`
//! below). It is then imported, differentiated, fused, planned and tested like Headwater's own, and no device
//! knows of it.

#[path = "custom_operator/quick_gelu.rs"]
mod quick_gelu;

use headwater_core::graph::{Graph, OutputRole, parse, verify};
use headwater_core::ops::schema::ArgType;
use headwater_core::pass::{check_plan, differentiate, fuse, plan, simplify, upcast};
use headwater_core::plan::{Bindings, Work};
use headwater_core::target::{Operators, Port, Support, Target};
use headwater_core::tensor::Data;
use headwater_core::{DType, OpCx, OpDef, Registry, Tensor, TensorType, reference};
use quick_gelu::QUICK_GELU;
use std::sync::Arc;

fn registry() -> Registry {
    let mut registry = Registry::standard().clone();
    registry.register(&QUICK_GELU).unwrap();
    registry
}

/// A device without a single kernel.
#[derive(Debug)]
struct Bare;

impl Operators for Bare {
    fn support(&self, op: &OpDef, _: &OpCx, _: &[TensorType]) -> Support {
        Support::Missing(format!("no {}", op.name))
    }
    fn workspace(&self, _: &OpDef, _: &OpCx, _: &[TensorType]) -> usize {
        0
    }
    fn strided(&self, _: &OpDef, _: &OpCx, _: &[TensorType], _: Port) -> bool {
        false
    }
}

/// The sum of `scale · quick_gelu(x · w)`.
fn model() -> Graph {
    let text = r#"headwater graph 1
%0 = parameter "w" : f64[4]
%1 = user "x" : f64[3, 4]
%2 = mul(%1, %0) : f64[3, 4]
%3 = quick_gelu(%2) : f64[3, 4]
%4 = mul(%3, other=0.5) : f64[3, 4]
%5 = sum(%4) : f64[]
output "loss" = %5
@0 = ""
"#;
    let graph = parse(text, &registry()).unwrap();
    verify(&graph).unwrap();
    graph
}

#[test]
fn exported_calls_resolve_to_it() {
    let registry = registry();
    for (target, in_place) in
        [("mylib.quick_gelu.default", false), ("torch.ops.mylib.quick_gelu_.default", true)]
    {
        let found = registry.resolve(target).unwrap();
        assert_eq!((found.op, found.in_place), (&QUICK_GELU, in_place));
        assert_eq!(found.schema.args[0].ty, ArgType::Tensor);
    }
    assert!(Registry::standard().resolve("mylib.quick_gelu.default").is_none());
    // A name or target is taken once.
    assert!(registry.clone().register(&QUICK_GELU).is_err());
}

#[test]
fn it_trains_by_every_pass_and_needs_no_kernel() {
    let graph = model();
    let loss = graph.outputs[0].value;
    let d = differentiate(graph, loss).unwrap();
    assert!(d.missing.is_empty());
    let numbers = |n: usize| (0..n).map(|i| ((i * 7 + 3) % 11) as f64 / 4.0 - 1.3).collect();
    let inputs = [Tensor::float(DType::F64, [4], numbers(4)), Tensor::float(DType::F64, [3, 4], numbers(12))];
    let plain = reference::run(&d.graph, &inputs).unwrap();

    let fused = fuse(simplify(d.graph).graph, &Target::default()).unwrap();
    verify(&fused).unwrap();
    let alone = fused.nodes.iter().filter(|n| n.op.name.starts_with("quick_gelu")).count();
    assert_eq!(alone, 0, "fused with its neighbours\n{fused}");
    assert_eq!(reference::run(&fused, &inputs).unwrap(), plain, "fused or not, the same bits");
    let plan = plan(&fused, &Bindings::simple(&fused), &Target::generic(Arc::new(Bare))).unwrap();
    check_plan(&plan).unwrap();
    assert!(plan.steps.iter().all(|s| matches!(s.work, Work::Rows(_))), "row programs alone");

    // The gradient of w agrees with central differences.
    let at = d_gradient(&fused);
    for e in 0..4 {
        let loss = |x: f64| {
            let mut inputs = inputs.clone();
            let Data::Float(w) = &mut inputs[0].data else { unreachable!() };
            w[e] = x;
            reference::run(&fused, &inputs).unwrap()[0].floats()[0]
        };
        let (x, h) = (inputs[0].floats()[e], 1e-5);
        let want = (loss(x + h) - loss(x - h)) / (2.0 * h);
        let got = plain[at].floats()[e];
        assert!((got - want).abs() <= 1e-8 * want.abs().max(1.0), "w[{e}]: {got}, not {want}");
    }
}

fn d_gradient(graph: &Graph) -> usize {
    graph.outputs.iter().position(|o| matches!(o.role, OutputRole::Gradient(_))).unwrap()
}

#[test]
fn it_has_a_text_form_and_lifts() {
    let graph = model();
    let back = parse(&graph.to_string(), &registry()).unwrap();
    assert_eq!(back.to_string(), graph.to_string());
    verify(&upcast(&graph, DType::F16).unwrap()).unwrap();
}

/// The page that explains this shows the very files.
#[test]
fn the_contributors_page_shows_real_files() {
    let page = include_str!("../../../../CONTRIBUTING.md");
    let silu = include_str!("../../src/ops/pointwise/silu.rs");
    assert!(page.contains(silu.trim_end()), "CONTRIBUTING.md must show ops/pointwise/silu.rs as it is");
    assert!(include_str!("../../src/ops/pointwise/mod.rs").contains("    silu: SILU, SILU_BACKWARD;\n"));
    assert!(page.contains("registry.register(&QUICK_GELU)?"));
}
