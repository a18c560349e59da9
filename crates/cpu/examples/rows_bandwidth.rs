//! How near row programs come to the bandwidth of memory: `cargo run --release -p headwater-cpu --example rows_bandwidth`
//! [filter]. Every program reads and writes more than the last-level cache holds. Printed are the median time, the bytes
//! that must be moved (each operand once), and their rate as a share of that of a plain copy measured in turn with it.
#![allow(unsafe_code)]

use headwater_core::device::{Device, Executable, Memory};
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ops::loss::cross_entropy::CROSS_ENTROPY_LOSS;
use headwater_core::ops::norm::{layer_norm::LAYER_NORM, rms_norm::RMS_NORM, softmax::SOFTMAX};
use headwater_core::ops::pointwise::gelu::GELU;
use headwater_core::ops::pointwise::silu::SILU;
use headwater_core::pass::diff::gradients;
use headwater_core::pass::{decompose, fuse, plan, simplify};
use headwater_core::plan::{Bindings, Work};
use headwater_core::{Attrs, Builder, DType, Graph, Tensor, TensorType, ValueId};
use headwater_cpu::{Cpu, Pool};
use std::time::Instant;

/// Copies as many bytes as a program moves: the rate that counts as all of the machine's.
struct Copy {
    from: Vec<u64>,
    to: Vec<u64>,
}

impl Copy {
    const BYTES: usize = 64 << 20;

    fn new() -> Copy {
        Copy { from: vec![1; Self::BYTES / 8], to: vec![2; Self::BYTES / 8] }
    }

    /// Seconds for reading and writing `BYTES` each.
    fn run(&mut self, pool: &Pool) -> f64 {
        let from = &self.from;
        let start = Instant::now();
        let part = 1 << 17;
        pool.chunks(&mut self.to, part, |i, to| to.copy_from_slice(&from[i * part..i * part + to.len()]));
        start.elapsed().as_secs_f64()
    }
}

struct Bench {
    name: String,
    graph: Graph,
}

fn ty(dtype: DType, shape: &[usize]) -> TensorType {
    TensorType::new(dtype, shape)
}

/// One operator over inputs of the given types; with gradients of those in `wanted` unless that is empty.
fn op(
    name: String,
    inputs: &[TensorType],
    wanted: &[usize],
    f: impl Fn(&mut Builder, &[ValueId]) -> ValueId,
) -> Bench {
    let mut b = Builder::new();
    let ins: Vec<ValueId> = inputs
        .iter()
        .enumerate()
        .map(|(i, t)| b.input(format!("x{i}"), t.clone(), InputRole::User))
        .collect();
    let y = f(&mut b, &ins);
    b.output("y", y, OutputRole::User);
    let mut b = Builder::extend(decompose(b.finish()).unwrap());
    let y = b.graph().outputs[0].value;
    if !wanted.is_empty() {
        let of = b.ty(y).clone();
        let g = b.input("g", of, InputRole::User);
        let wanted: Vec<_> = wanted.iter().map(|&i| ins[i]).collect();
        for (v, g) in wanted.iter().zip(gradients(&mut b, &[(y, g)], &wanted).unwrap()) {
            b.output(format!("grad.{v}"), g.unwrap(), OutputRole::Gradient(*v));
        }
    }
    let graph = simplify(decompose(b.finish()).unwrap()).graph;
    Bench { name, graph: fuse(graph).unwrap() }
}

fn benches() -> Vec<Bench> {
    let mut out = Vec::new();
    for d in [DType::F32, DType::BF16, DType::F16] {
        let n = if d == DType::F32 { 4096 } else { 8192 };
        for cols in [2048usize, 1024] {
            let rows = n * 2048 / cols;
            let x = ty(d, &[rows, cols]);
            let w = ty(d, &[cols]);
            let shape = [cols as i64];
            let rms = move |b: &mut Builder, v: &[ValueId]| {
                b.one(&RMS_NORM, v, Attrs::new().with("normalized_shape", shape).with("eps", 1e-6)).unwrap()
            };
            let layer = move |b: &mut Builder, v: &[ValueId]| {
                b.one(&LAYER_NORM, v, Attrs::new().with("normalized_shape", shape).with("eps", 1e-5)).unwrap()
            };
            let softmax =
                |b: &mut Builder, v: &[ValueId]| b.one(&SOFTMAX, v, Attrs::new().with("dim", -1i64)).unwrap();
            let label = |what: &str| format!("{what} {d} {rows}x{cols}");
            out.push(op(label("rms_norm forward"), &[x.clone(), w.clone()], &[], rms));
            out.push(op(label("rms_norm forward+backward"), &[x.clone(), w.clone()], &[0, 1], rms));
            let three = [x.clone(), w.clone(), w.clone()];
            out.push(op(label("layer_norm forward"), &three, &[], layer));
            out.push(op(label("layer_norm forward+backward"), &three, &[0, 1, 2], layer));
            out.push(op(label("softmax forward"), &[x.clone()], &[], softmax));
            out.push(op(label("softmax forward+backward"), &[x.clone()], &[0], softmax));
            if cols == 2048 {
                let copy = |b: &mut Builder, v: &[ValueId]| b.scale(v[0], 2.0).unwrap();
                out.push(op(label("scale"), &[x.clone()], &[], copy));
                let gelu = |b: &mut Builder, v: &[ValueId]| b.one(&GELU, v, Attrs::new()).unwrap();
                out.push(op(label("gelu forward"), &[x.clone()], &[], gelu));
                out.push(op(label("gelu forward+backward"), &[x.clone()], &[0], gelu));
                let swiglu = |b: &mut Builder, v: &[ValueId]| {
                    let s = b.one(&SILU, &v[..1], Attrs::new()).unwrap();
                    b.mul(s, v[1]).unwrap()
                };
                out.push(op(label("swiglu forward+backward"), &[x.clone(), x.clone()], &[0, 1], swiglu));
                let residual = move |b: &mut Builder, v: &[ValueId]| {
                    let h = b.add(v[0], v[2]).unwrap();
                    let y = b.one(
                        &RMS_NORM,
                        &[h, v[1]],
                        Attrs::new().with("normalized_shape", shape).with("eps", 1e-6),
                    );
                    let y = y.unwrap();
                    b.output("h", h, OutputRole::User);
                    y
                };
                out.push(op(
                    label("add+rms_norm forward"),
                    &[x.clone(), w.clone(), x.clone()],
                    &[],
                    residual,
                ));
            }
        }
        let (rows, cols) = (n / 8, 32_000usize);
        let loss = |b: &mut Builder, v: &[ValueId]| {
            let a = Attrs::new()
                .with("reduction", 1i64)
                .with("ignore_index", -100i64)
                .with("label_smoothing", 0.0);
            b.one(&CROSS_ENTROPY_LOSS, v, a).unwrap()
        };
        let ins = [ty(d, &[rows, cols]), ty(DType::I64, &[rows])];
        out.push(op(format!("cross_entropy forward {d} {rows}x{cols}"), &ins, &[], loss));
        out.push(op(format!("cross_entropy forward+backward {d} {rows}x{cols}"), &ins, &[0], loss));
    }
    let (r, c) = (4096, 2048);
    let turn = |b: &mut Builder, v: &[ValueId]| {
        let t = b.permute(v[0], &[1, 0]).unwrap();
        b.add(t, v[1]).unwrap()
    };
    out.push(op(
        format!("transposed add f32 {r}x{c}"),
        &[ty(DType::F32, &[r, c]), ty(DType::F32, &[c, r])],
        &[],
        turn,
    ));
    out
}

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let device = Cpu::default();
    let mut copy = Copy::new();
    let copied = |copy: &mut Copy| 2.0 * Copy::BYTES as f64 / copy.run(device.pool()) / 1e9;
    (0..3).for_each(|_| _ = copied(&mut copy));
    for bench in benches().into_iter().filter(|b| b.name.contains(&filter)) {
        let graph = &bench.graph;
        let bindings = Bindings::simple(graph);
        let plan = plan(graph, &bindings, device.caps()).unwrap();
        let mut memory: Vec<_> = plan.segments.iter().map(|s| device.alloc(s.bytes).unwrap()).collect();
        for (input, place) in graph.inputs.iter().zip(&bindings.inputs) {
            let (t, place) = (graph.ty(input.value), place.unwrap());
            let n = t.shape.numel();
            let tensor = match t.dtype.is_float() {
                true => {
                    let data = (0..n).map(|i| ((i * 7919) % 1009) as f64 / 400.0 - 1.2).collect();
                    Tensor::float(t.dtype, t.shape.clone(), data)
                }
                false => {
                    Tensor::int(t.dtype, t.shape.clone(), (0..n).map(|i| (i * 31 % 997) as i64).collect())
                }
            };
            memory[place.segment.0 as usize].write(place.offset, &tensor.to_bytes()).unwrap();
        }
        let mut loaded: Box<dyn Executable> = device.load(&plan).unwrap();
        let (mut times, mut rates) = (Vec::new(), Vec::new());
        let mut steps = vec![0.0; plan.steps.len()];
        for i in 0..12 {
            let mut views: Vec<&mut dyn Memory> =
                memory.iter_mut().map(|m| &mut **m as &mut dyn Memory).collect();
            let start = Instant::now();
            if i == 2 {
                steps.fill(0.0);
            }
            loaded.run(&mut views, Some(&mut steps)).unwrap();
            times.push(start.elapsed().as_secs_f64());
            rates.push(copied(&mut copy));
        }
        let median = |v: &mut Vec<f64>| {
            v.drain(..2);
            v.sort_by(f64::total_cmp);
            v[v.len() / 2]
        };
        let (time, rate) = (median(&mut times), median(&mut rates));
        // Each step reads and writes each of its operands once.
        let bytes = |s: &headwater_core::plan::Step| {
            let views = s.reads.iter().flatten().chain(&s.writes);
            views.map(|v| v.layout.shape.iter().product::<usize>() * v.dtype.size()).sum::<usize>() as f64
        };
        let all: f64 = plan.steps.iter().map(bytes).sum();
        let share = |bytes: f64, time: f64| 100.0 * bytes / time / 1e9 / rate;
        println!(
            "{:44} {:7.2} ms {:6.1} GB/s {:4.0} % of copy ({rate:.1})",
            bench.name,
            time * 1e3,
            all / time / 1e9,
            share(all, time)
        );
        for (s, t) in plan.steps.iter().zip(&steps).filter(|_| plan.steps.len() > 1) {
            let t = t / 10.0;
            let what = if matches!(s.work, Work::Rows(_)) { "rows" } else { "kernel" };
            println!("    {:40} {:7.2} ms {:26.0} % {what}", s.op, t * 1e3, share(bytes(s), t));
        }
    }
}
