//! Row programs have the bits of the CPU, where its functions are written for both.

use crate::common::{device, machine, skipped};
use headwater_core::conformance::{graph_of, numbers};
use headwater_core::graph::{Builder, Graph, InputRole, OutputRole};
use headwater_core::{Attrs, DType, Registry, Tensor, TensorType, evaluate};
use headwater_cpu::{Cpu, Tier};
use headwater_cuda::host::context::Settings;

/// Operators whose bodies are row programs of arithmetic, of rounding and of functions that both devices have
/// from one definition.
const SAME: &[&str] = &[
    "add",
    "sub",
    "mul",
    "div",
    "silu",
    "sigmoid",
    "tanh",
    "exp",
    "log",
    "erf",
    "gelu",
    "sqrt",
    "rsqrt",
    "relu",
    "where",
    "floor",
    "round",
    "softmax",
    "log_softmax",
    "rms_norm",
    "layer_norm",
    "cross_entropy_loss",
    "sum",
    "mean",
];

/// An operator on tensors of some shapes.
fn graph(op: &str, shapes: &[&[usize]], attrs: Attrs, dtype: DType) -> Graph {
    let registry = Registry::standard();
    let op = registry.by_name(op).unwrap();
    let mut b = Builder::new();
    let input = |(i, shape): (usize, &&[usize])| {
        Some(b.input(format!("x{i}"), TensorType::new(dtype, *shape), InputRole::User))
    };
    let inputs: Vec<_> = shapes.iter().enumerate().map(input).collect();
    let outs = b.apply(op, &inputs, attrs).unwrap();
    outs.iter().enumerate().for_each(|(i, &v)| b.output(format!("y{i}"), v, OutputRole::User));
    b.finish()
}

fn filled(graph: &Graph) -> Vec<Tensor> {
    let one = |(n, input): (usize, &headwater_core::graph::Input)| {
        let ty = graph.ty(input.value);
        let number = |i: usize| ty.dtype.round((((i * 7919 + n * 104_729) % 4001) as f64 - 2000.0) / 700.0);
        Tensor::float(ty.dtype, ty.shape.clone(), (0..ty.shape.numel()).map(number).collect())
    };
    graph.inputs.iter().enumerate().map(one).collect()
}

#[test]
fn row_programs_have_the_bits_of_the_cpu() {
    if skipped("row_programs_have_the_bits_of_the_cpu") {
        return;
    }
    let machine = machine(3);
    let gpu = device(&machine, Settings::default());
    let cpu = Cpu::new(1).with_tier(Tier::Portable).unwrap();
    let (mut same, mut differ) = (0, Vec::new());
    let mut compare = |name: String, graph: &Graph, inputs: &[Tensor]| {
        let bits = |outs: Vec<Tensor>| outs.iter().map(Tensor::to_bytes).collect::<Vec<_>>();
        let here = bits(evaluate(&gpu, graph, inputs).unwrap_or_else(|e| panic!("{name}: {e}")));
        match here == bits(evaluate(&cpu, graph, inputs).unwrap()) {
            true => same += 1,
            false => differ.push(name),
        }
    };
    for op in Registry::standard().operators().into_iter().filter(|op| SAME.contains(&op.name)) {
        for case in (op.cases)() {
            for dtype in [DType::F32, DType::BF16] {
                let Some(graph) = graph_of(op, &case, dtype) else { continue };
                let inputs = numbers(&graph, &case);
                compare(format!("{} ({}) in {dtype}", op.name, case.name), &graph, &inputs);
            }
        }
    }
    // Rows that fill a warp, tails, rows of several parts, sums over many rows.
    let last = |n: i64| Attrs::new().with("dim", vec![n]).with("keepdim", false);
    for (rows, columns) in [(5, 200), (70, 1000), (3, 9000)] {
        for dtype in [DType::F32, DType::BF16] {
            let shape = [rows, columns];
            let softmax = graph("softmax", &[&shape], Attrs::new().with("dim", 1i64), dtype);
            compare(format!("softmax of {shape:?} in {dtype}"), &softmax, &filled(&softmax));
            let sums = graph("sum", &[&shape], last(0), dtype);
            compare(format!("sums over the rows of {shape:?} in {dtype}"), &sums, &filled(&sums));
        }
    }
    // The CPU sums a dimension that is not contiguous term by term, the GPU in lanes as every other.
    let strided = ["(images, each)", "(middle)", "sums over the rows"];
    let all = same + differ.len();
    let others: Vec<&String> =
        differ.iter().filter(|name| !strided.iter().any(|s| name.contains(s))).collect();
    assert!(others.is_empty(), "{} of {all} differ:\n{others:#?}", others.len());
    assert!(same >= 140, "{same} of {all} have the same bits");
    eprintln!("{same} of {all} cases have the bits of the CPU");
    assert!(all >= 80, "{all} cases");
}
