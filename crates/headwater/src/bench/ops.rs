//! `bench ops`: single operators on the shapes that models have, forward and with their gradients.

use super::{Rated, Repetitions, feed, time};
use crate::core::compile::{self, Goal, Options};
use crate::core::device::{Buffer, Content, Device, Executable, Stream};
use crate::core::graph::{InputRole, OutputRole};
use crate::core::ops::case::Sample;
use crate::core::ops::{Case, attention, complex, conv, create, index, linear, loss, norm, pointwise, view};
use crate::core::plan::Bindings;
use crate::core::target::{DTypeSet, Target};
use crate::core::train::{BucketLayout, BucketSize, Master, update_graph};
use crate::core::{Builder, DType, Graph, OpDef, TensorType, ValueId, pass};
use crate::cpu::limits::Limits;
use crate::runtime::optim::{Clip, Decay, Groups, Optimizer};
use anyhow::{Context, Result};
use serde::Serialize;
use std::sync::Arc;

/// The work that is measured.
enum Work {
    /// An operator on the case's inputs, which are of f64 and lowered.
    Operator(&'static OpDef, Case),
    /// Statistics of the gradients, clipping and AdamW over this many parameters, of which there are f32
    /// masters or not.
    Update(usize, bool),
}

/// The dtype in which numbers of a dtype are computed.
fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { dtype } else { DType::F32 }
}

/// One line of the table.
pub struct Entry {
    /// Kind of operator.
    pub family: &'static str,
    /// Shapes, as people say them.
    pub shape: &'static str,
    work: Work,
    /// True if gradients are measured as well.
    gradients: bool,
}

/// A measured line.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Kind of operator.
    pub family: &'static str,
    /// Shapes.
    pub shape: &'static str,
    /// Dtype of the operands.
    pub dtype: String,
    /// `forward`, or `forward+backward`.
    pub direction: &'static str,
    /// True if any part ran through the slow reference.
    pub reference: bool,
    /// Time, rates and share of the limit. Bytes count every operand once in each direction.
    #[serde(flatten)]
    pub rated: Rated,
}

/// All lines.
pub fn table() -> Vec<Entry> {
    let entry = |family, shape, op, case, gradients| Entry {
        family,
        shape,
        work: Work::Operator(op, case),
        gradients,
    };
    let product = |shape, left: &[usize], right: &[usize]| {
        entry("matmul", shape, &linear::matmul::MATMUL, Case::new("").f(left).f(right), true)
    };
    let layer = |shape, rows: usize, k: usize, n: usize| {
        entry("linear", shape, &linear::linear::LINEAR, Case::new("").f(&[rows, k]).f(&[n, k]).f(&[n]), true)
    };
    let normed = |n: i64| Case::new("").f(&[4096, n as usize]).f(&[n as usize]).attr("normalized_shape", [n]);
    let heads = |shape, q: [usize; 4], k: [usize; 4], causal: bool| {
        let case = Case::new("").f(&q).f(&k).f(&k).none().none().attr("is_causal", causal);
        entry("attention", shape, &attention::attention::ATTENTION, case.attr("scale", 0.125), true)
    };
    let grouped = |shape, input: [usize; 4], weight: [usize; 4], stride: i64, padding: i64| {
        let case = Case::new("").f(&input).f(&weight).none().attr("groups", (input[1] / weight[1]) as i64);
        let case = case.attr("stride", [stride; 2]).attr("padding", [padding; 2]).attr("dilation", [1, 1]);
        entry("convolution", shape, &conv::convolution::CONVOLUTION, case, true)
    };
    let window = |shape, input: [usize; 4], filters: usize, size: usize, stride: i64, padding: i64| {
        grouped(shape, input, [filters, input[1], size, size], stride, padding)
    };
    let scores = |shape, rows: usize, classes: usize| {
        let case = Case::new("").f(&[rows, classes]).index(&[rows], classes).none();
        let case = case.attr("reduction", 1).attr("ignore_index", -100).attr("label_smoothing", 0.0);
        entry("cross_entropy", shape, &loss::cross_entropy::CROSS_ENTROPY_LOSS, case, true)
    };
    // Frames, signals and images; complex numbers are pairs.
    let real = |shape, input: &[usize]| {
        let case = Case::new("").f(input).attr("dim", [-1]).attr("normalization", 0).attr("onesided", true);
        entry("rfft", shape, &complex::fft_r2c::FFT_R2C, case, true)
    };
    let pairs = |shape, input: &[usize], dims: &[i64]| {
        let case = Case::new("").f(input).attr("dim", dims).attr("normalization", 0).attr("forward", true);
        entry("fft", shape, &complex::fft_c2c::FFT_C2C, case, true)
    };
    let gradient = Case::new("").f(&[16384, 768]).index(&[16384], 50_000);
    let gradient =
        gradient.attr("num_weights", 50_000).attr("padding_idx", -1).attr("scale_grad_by_freq", false);
    vec![
        product("4096×4096×4096", &[4096, 4096], &[4096, 4096]),
        product("1024×1024×1024", &[1024, 1024], &[1024, 1024]),
        product("64×64×64", &[64, 64], &[64, 64]),
        product("512×512×2048", &[512, 512], &[512, 2048]),
        product("96 × 512×64×512 (heads)", &[96, 512, 64], &[96, 64, 512]),
        product("1×4096×4096 (batch 1)", &[1, 4096], &[4096, 4096]),
        product("4096×16×4096 (skinny)", &[4096, 16], &[16, 4096]),
        layer("1024×512→32000 (vocabulary)", 1024, 512, 32_000),
        layer("3152×192→768", 3152, 192, 768),
        layer("2048×384→1536", 2048, 384, 1536),
        entry("rms_norm", "4096×2048", &norm::rms_norm::RMS_NORM, normed(2048).attr("eps", 1e-6), true),
        entry(
            "layer_norm",
            "4096×2048",
            &norm::layer_norm::LAYER_NORM,
            normed(2048).f(&[2048]).attr("eps", 1e-5).attr("cudnn_enable", false),
            true,
        ),
        entry(
            "softmax",
            "4096×2048",
            &norm::softmax::SOFTMAX,
            Case::new("").f(&[4096, 2048]).attr("dim", -1),
            true,
        ),
        scores("1024×32000", 1024, 32_000),
        scores("2048×30522", 2048, 30_522),
        entry(
            "gelu",
            "4096×2048",
            &pointwise::gelu::GELU,
            Case::new("").f(&[4096, 2048]).attr("approximate", "none"),
            true,
        ),
        heads("8×12×512×64 causal", [8, 12, 512, 64], [8, 12, 512, 64], true),
        heads("16×3×197×64", [16, 3, 197, 64], [16, 3, 197, 64], false),
        heads("4×8×256×64 causal, 4 key heads", [4, 8, 256, 64], [4, 4, 256, 64], true),
        window("1×1, 16×64×32×32→256", [16, 64, 32, 32], 256, 1, 1, 0),
        window("3×3, 16×64×32×32→64", [16, 64, 32, 32], 64, 3, 1, 1),
        window("3×3, 16×512×4×4→512", [16, 512, 4, 4], 512, 3, 1, 1),
        window("3×3/2, 16×64×32×32→128", [16, 64, 32, 32], 128, 3, 2, 1),
        window("3×3/2, 16×256×8×8→512", [16, 256, 8, 8], 512, 3, 2, 1),
        window("7×7/2, 16×3×128×128→64", [16, 3, 128, 128], 64, 7, 2, 3),
        window("16×16/16, 16×3×224×224→192", [16, 3, 224, 224], 192, 16, 16, 0),
        grouped("3×3 of each channel, 16×128×32×32", [16, 128, 32, 32], [128, 1, 3, 3], 1, 1),
        grouped("7×7 of each channel, 8×384×14×14", [8, 384, 14, 14], [384, 1, 7, 7], 1, 3),
        real("16000×400", &[16_000, 400]),
        real("4096×1024", &[4096, 1024]),
        real("16×65536", &[16, 65_536]),
        pairs("8192×512", &[8192, 512, 2], &[1]),
        pairs("64×128×128", &[64, 128, 128, 2], &[1, 2]),
        entry(
            "embedding",
            "50000×768, 16384 rows",
            &index::embedding::EMBEDDING,
            Case::new("").f(&[50_000, 768]).index(&[16384], 50_000).attr("padding_idx", -1),
            false,
        ),
        entry(
            "embedding gradient",
            "50000×768, 16384 rows",
            &index::embedding_grad::EMBEDDING_DENSE_BACKWARD,
            gradient,
            false,
        ),
        entry(
            "gather",
            "4096×2048 along rows",
            &index::gather::GATHER,
            Case::new("")
                .f(&[4096, 2048])
                .index(&[4096, 2048], 2048)
                .attr("dim", 1)
                .attr("sparse_grad", false),
            false,
        ),
        entry(
            "transpose copy",
            "4096×2048",
            &view::transpose::TRANSPOSE,
            Case::new("").f(&[4096, 2048]).attr("dim0", 0).attr("dim1", 1),
            false,
        ),
        entry(
            "heads copy",
            "8×512×12×64→8×12×512×64",
            &view::transpose::TRANSPOSE,
            Case::new("").f(&[8, 512, 12, 64]).attr("dim0", 1).attr("dim1", 2),
            false,
        ),
        entry(
            "fill",
            "4096×2048",
            &create::full::FULL,
            Case::new("").attr("size", [4096, 2048]).attr("fill_value", 0.5),
            false,
        ),
        Entry {
            family: "adamw update",
            shape: "21 M parameters",
            work: Work::Update(21 << 20, false),
            gradients: false,
        },
        Entry {
            family: "adamw update",
            shape: "21 M parameters, masters",
            work: Work::Update(21 << 20, true),
            gradients: false,
        },
    ]
}

impl Entry {
    /// The text that a filter searches.
    pub fn label(&self) -> String {
        format!("{} {}", self.family, self.shape)
    }

    /// True if the work is products of operands.
    fn product(&self) -> bool {
        ["matmul", "linear", "convolution", "attention"].contains(&self.family)
    }

    /// Measures this line in a dtype.
    ///
    /// # Errors
    /// Refusals of the operator or the device.
    pub fn measure(
        &self,
        device: &dyn Device,
        dtype: DType,
        repetitions: Repetitions,
        limits: &Limits,
    ) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        let mut directions = vec!["forward"];
        directions.extend(self.gradients.then_some("forward+backward"));
        for direction in directions {
            let (graph, bytes) = self.graph(dtype, direction != "forward", device.target())?;
            let mut runner = Runner::new(device, &graph, self)?;
            let times = time(repetitions, || runner.run())?;
            rows.push(Row {
                family: self.family,
                shape: self.shape,
                dtype: dtype.to_string(),
                direction,
                reference: runner.reference,
                // Operators that are no product compute in f32.
                rated: Rated::new(
                    times,
                    if self.product() { dtype } else { wide(dtype) },
                    runner.flops,
                    bytes,
                    limits,
                ),
            });
        }
        Ok(rows)
    }

    /// The graph as a session would run it, and the bytes it cannot help moving.
    fn graph(&self, dtype: DType, gradients: bool, target: &Target) -> Result<(Graph, f64)> {
        let step = Options { goal: Goal::Step, ..Options::default() };
        let (op, case) = match &self.work {
            Work::Operator(op, case) => (op, case),
            Work::Update(parameters, masters) => {
                let ty = TensorType::new(dtype, [*parameters]);
                let mut groups = Groups::new(Optimizer::default(), Vec::new(), Decay::All)?;
                let parameters = [("weight", &ty, groups.of("weight", &ty)?)];
                let layout = BucketLayout::new(parameters, BucketSize::UNLIMITED);
                let layout = if *masters { layout.with_masters() } else { layout };
                let clip = Clip { norm: Some(1.0), value: None };
                let graph = update_graph(&layout, |g| groups.rule(g), clip, false, DTypeSet::default())?;
                // The gradient is read twice: it must all be seen before any of it is used. Moments are f32.
                let bucket = &layout.buckets[0];
                let weight = match bucket.master {
                    // The weight follows from its master.
                    Master::Whole => 8.0 + dtype.size() as f64,
                    Master::Rest => 4.0 + 2.0 * dtype.size() as f64,
                    Master::None => 2.0 * dtype.size() as f64,
                };
                let bytes = bucket.elements as f64 * (2.0 * dtype.size() as f64 + weight + 4.0 * 4.0);
                let update = Options { goal: Goal::Update, ..Options::default() };
                return Ok((compile::optimize(graph, &update, target)?.graph, bytes));
            }
        };
        let mut b = Builder::new();
        let mut attrs = case.attrs.clone();
        if op.name == "full" {
            attrs.set("dtype", dtype);
        }
        let mut inputs: Vec<Option<ValueId>> = Vec::new();
        for (i, arg) in case.inputs.iter().enumerate() {
            let Some(arg) = arg else {
                inputs.push(None);
                continue;
            };
            let lowered = if arg.ty.dtype.is_float() { dtype } else { arg.ty.dtype };
            let ty = TensorType::new(lowered, arg.ty.shape.clone());
            inputs.push(Some(b.input(format!("x{i}"), ty, InputRole::User)));
        }
        let outputs = b.apply(op, &inputs, attrs)?;
        b.output("y", outputs[0], OutputRole::User);
        let size = |b: &Builder, vs: &[ValueId]| vs.iter().map(|&v| b.ty(v).bytes()).sum::<usize>();
        let given: Vec<ValueId> = inputs.iter().copied().flatten().collect();
        let mut bytes = size(&b, &given) + size(&b, &outputs[..1]);
        if matches!(op.name, "embedding" | "gather") {
            // No more of the table is read than is written.
            let (table, read) = (size(&b, &given[..1]), size(&b, &outputs[..1]));
            bytes -= table - table.min(read);
        }
        if gradients {
            let seed = b.input("grad", b.ty(outputs[0]).clone(), InputRole::User);
            let forward =
                Options { goal: Goal::Forward, stop_after: Some("decompose"), ..Options::default() };
            let mut wide = Builder::extend(compile::optimize(b.finish(), &forward, target)?.graph);
            wide.phase = crate::core::graph::Phase::Backward;
            let (y, find) = (wide.graph().outputs[0].value, |b: &Builder, name: &str| {
                b.graph().input(name).map(|i| i.value)
            });
            let seed = find(&wide, "grad").unwrap_or(seed);
            let floats: Vec<ValueId> = wide.graph().inputs.iter().map(|i| i.value).collect();
            let wanted: Vec<ValueId> =
                floats.into_iter().filter(|&v| v != seed && wide.ty(v).dtype.is_float()).collect();
            let grads = pass::differentiate::gradients(&mut wide, &[(y, seed)], &wanted)?;
            let grads: Vec<ValueId> = grads.into_iter().flatten().collect();
            bytes += size(&wide, &given) + size(&wide, &[seed]) + size(&wide, &grads);
            for (i, g) in grads.into_iter().enumerate() {
                wide.output(format!("grad.{i}"), g, OutputRole::User);
            }
            b = wide;
        }
        Ok((compile::optimize(b.finish(), &step, target)?.graph, bytes as f64))
    }

    /// Limit of an integer input, by its name.
    fn limit(&self, input: &str) -> Option<usize> {
        let Work::Operator(_, case) = &self.work else { return None };
        let at: usize = input.strip_prefix('x')?.parse().ok()?;
        match case.inputs.get(at)?.as_ref()?.sample {
            Sample::Uniform(_, limit) => Some(limit as usize),
            _ => None,
        }
    }
}

/// A graph loaded onto a device with its memory, to be run again and again.
struct Runner {
    executable: Box<dyn Executable>,
    stream: Box<dyn Stream>,
    memory: Vec<Arc<dyn Buffer>>,
    steps: usize,
    flops: f64,
    reference: bool,
}

impl Runner {
    fn new(device: &dyn Device, graph: &Graph, entry: &Entry) -> Result<Runner> {
        let bindings = Bindings::simple(graph);
        let plan = pass::plan(graph, &bindings, device.target())?;
        let memory = plan
            .segments
            .iter()
            .map(|s| device.alloc(s.bytes, Content::Undefined))
            .collect::<Result<Vec<_>, _>>()?;
        let runner = Runner {
            executable: device.load(&plan)?,
            stream: device.stream()?,
            memory,
            steps: plan.steps.len(),
            flops: plan.steps.iter().map(|s| s.flops).sum(),
            reference: crate::inspect::operators(graph, device).iter().any(|o| o.support == "reference"),
        };
        for (i, (input, place)) in graph.inputs.iter().zip(&bindings.inputs).enumerate() {
            let place = place.context("an input without a place")?;
            // State is positive: second moments are squares.
            let ty = graph.ty(input.value);
            let tensor = match input.role {
                InputRole::State => crate::core::Tensor::full(ty, 0.5),
                _ => feed::draw(ty, entry.limit(&input.name), i as u64),
            };
            let memory = &runner.memory[place.segment.0 as usize];
            runner.stream.write(memory, place.offset, &tensor.to_bytes())?;
        }
        Ok(runner)
    }

    fn run(&mut self) -> Result<()> {
        self.executable.submit(self.stream.as_ref(), &self.memory, 0..self.steps)?;
        Ok(self.stream.synchronize()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_makes_a_legal_graph_in_every_dtype() {
        let target = Target::default();
        for entry in table() {
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                for gradients in [false, entry.gradients] {
                    let (graph, bytes) = entry
                        .graph(dtype, gradients, &target)
                        .unwrap_or_else(|e| panic!("{}: {e:#}", entry.label()));
                    crate::core::graph::verify(&graph).unwrap_or_else(|e| panic!("{}: {e}", entry.label()));
                    let outputs: usize = graph.outputs.iter().map(|o| graph.ty(o.value).bytes()).sum();
                    assert!(bytes >= outputs as f64, "{}", entry.label());
                }
            }
        }
    }
}
