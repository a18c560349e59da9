//! `headwater bench`.

use super::amp::Amp;
use super::op::parse_dtype;
use super::{Memory, Outcome, Printer, Usage, kernel_times};
use crate::bench::Repetitions;
use crate::bench::embedding_grad::{self, Distribution, Problem};
use crate::bench::machine::{self, Measured};
use crate::bench::ops;
use crate::bench::step::{self, Measure, Part, StepReport, StepSettings};
use crate::core::DType;
use crate::core::device::Device;
use crate::core::ops::index::embedding_grad::Method;
use crate::core::pass::precision::{Level, PrecisionSettings};
use crate::cpu::Cpu;
use crate::cpu::limits::{Arithmetic, Limits, Workload};
use crate::devices;
use crate::model::parse_dims;
use crate::report::{Table, text};
use crate::runtime::amp::AmpConfig;
use crate::tensors::TensorFile;
use anyhow::{Context, Result, bail, ensure};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[derive(clap::Args, Debug)]
#[command(
    arg_required_else_help = true,
    after_help = "\
Times are medians of single runs. Beside each stands its share of the roofline: the time that arithmetic and memory traffic
would take at the CPU's measured peak, over the time measured. On other devices `step` reports times alone;
`kernel` runs nothing, it predicts.

Examples:
  headwater bench machine
  headwater bench machine --threads 1 --json
  headwater bench ops --filter norm --dtypes f32
  headwater bench step model.pt2 --batch 16
  headwater bench step model.pt2 --precision bf16 --trace steps.json
  headwater bench step model.pt2 --amp O1 --policy torch
  headwater bench step model.pt2 --steps 1 --device reference
  headwater bench embedding-grad
  headwater bench kernel rms_norm --shape 4096x4096 --dtype f16 --device ascend-sim:910b1
  headwater bench kernel embedding_grad --rung all --shape 16384x32000x1024 --device ascend-sim:310p
  headwater bench embedding-grad --rows 151936 --width 4096 --indices 65536 --dtype bf16 --distribution zipf"
)]
pub struct Args {
    #[command(subcommand)]
    what: What,
    /// Measure the machine's limits quickly and roughly.
    #[arg(long, global = true)]
    quick: bool,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    #[command(flatten)]
    Cpu(OnCpu),
    /// Whole training steps of a model: forward, backward, clip, AdamW.
    Step(Box<StepArgs>),
    /// A kernel of an Ascend chip, predicted by the timing model (--device ascend-sim:CHIP).
    Kernel(kernel_times::Args),
}

#[derive(clap::Subcommand, Debug)]
enum OnCpu {
    /// Peak rates of this machine: multiply-adds, copies, reads.
    Machine,
    /// Single operators, forward and with their gradients, on shapes of common models.
    Ops(OpsArgs),
    /// Variants of an embedding's gradient, from a plain loop to the kernel in use.
    EmbeddingGrad(EmbeddingArgs),
}

#[derive(clap::Args, Debug)]
struct EmbeddingArgs {
    /// Rows of the table.
    #[arg(long, default_value_t = 50_000)]
    rows: usize,
    /// Elements of a row.
    #[arg(long, default_value_t = 768)]
    width: usize,
    /// Number of indices.
    #[arg(long, default_value_t = 16_384)]
    indices: usize,
    /// Type of gradient and result: f32, f16, bf16 or f64.
    #[arg(long, default_value = "f32")]
    dtype: String,
    /// Distribution of the indices (default: each in turn).
    #[arg(long)]
    distribution: Option<Distribution>,
    /// Method that groups positions by row: auto, direct (counting), radix (sort) or hash.
    #[arg(long, default_value = "auto")]
    method: String,
    /// Shards of the table in the sharded variant; 1 leaves that variant out.
    #[arg(long, default_value_t = 4)]
    shards: usize,
    /// Measure the kernel alone, without the simpler variants.
    #[arg(long)]
    last: bool,
}

impl EmbeddingArgs {
    fn problems(&self) -> Result<Vec<Problem>> {
        let dtype = parse_dtype(&self.dtype)?;
        ensure!(dtype.is_float(), "a gradient is of floats, not of {dtype}");
        let method = Method::NAMES.into_iter().find(|(name, _)| *name == self.method);
        let Some((_, method)) = method else {
            bail!("`{}` is not one of auto, direct, radix, hash", self.method)
        };
        let EmbeddingArgs { rows, width, indices: positions, shards, .. } = *self;
        let all = [Distribution::Uniform, Distribution::Zipf, Distribution::Heavy];
        let distributions = self.distribution.map_or(all.to_vec(), |one| vec![one]).into_iter();
        Ok(distributions
            .map(|indices| Problem { rows, width, positions, dtype, indices, method, shards })
            .collect())
    }
}

#[derive(clap::Args, Debug)]
struct OpsArgs {
    /// Measure only operators and shapes that contain this text, such as `norm` or `4096`.
    #[arg(long, default_value = "")]
    filter: String,
    /// Dtypes of the operands.
    #[arg(long, default_value = "f32,bf16,f16")]
    dtypes: String,
    /// Most seconds for one operator, shape, dtype and direction.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
}

#[derive(clap::Args, Debug)]
struct StepArgs {
    /// The exported model; it must return its loss first.
    model: PathBuf,
    /// Precision: f32, bf16 or f16. bf16 and f16 mean `--amp O2 --dtype ...`: weights, activations and gradients
    /// in that type, beside f32 masters.
    #[arg(long, conflicts_with_all = ["level", "dtype"])]
    precision: Option<String>,
    #[command(flatten)]
    amp: Amp,
    #[command(flatten)]
    memory: Memory,
    /// Samples in a batch (default: as exported).
    #[arg(long)]
    batch: Option<usize>,
    /// Size of another symbolic dimension.
    #[arg(long = "dim", value_name = "NAME=SIZE")]
    dims: Vec<String>,
    /// Safetensors file with the batch, by the inputs' names; inputs that it lacks are drawn at random.
    #[arg(long, value_name = "FILE")]
    inputs: Option<PathBuf>,
    /// Steps to measure as a whole; as many again are timed part by part.
    #[arg(long, default_value_t = 7)]
    steps: usize,
    /// Learning rate.
    #[arg(long, default_value_t = 1e-3)]
    lr: f64,
    /// Largest norm of all gradients together; larger ones are scaled down to it.
    #[arg(long, default_value_t = 1.0)]
    clip_norm: f64,
    /// Write the time of every single step of the plans to this file, as a trace that ui.perfetto.dev opens.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

impl StepArgs {
    fn precision(&self) -> Result<PrecisionSettings> {
        let mut amp = AmpConfig::default();
        self.amp.over(&mut amp)?;
        ensure!(!self.amp.is_auto(), "`train --amp auto` chooses and writes a file, which --amp takes here");
        match self.precision.as_deref().map(parse_dtype).transpose()? {
            None | Some(DType::F32) => {}
            Some(low @ (DType::BF16 | DType::F16)) => (amp.level, amp.dtype) = (Level::O2, Some(low)),
            Some(other) => bail!("a step is measured in f32, bf16 or f16, not {other}"),
        }
        Ok(amp.settings())
    }
}

pub fn run(args: &Args, device: Arc<dyn Device>, threads: usize, printer: Printer) -> Result<Outcome> {
    let workload = if args.quick { Workload::QUICK } else { Workload::default() };
    let cpu = || -> Result<Machine> { Ok(Machine { cpu: devices::cpu(threads)?, workload }) };
    let name = device.name().to_string();
    let what = match &args.what {
        What::Kernel(kernel) => return kernel_times::run(kernel, &name, printer),
        What::Step(step) if name == "cpu" => {
            let machine = cpu()?;
            return steps(step, Arc::new(machine.cpu.clone()), Some(&machine), printer);
        }
        What::Step(step) => return steps(step, device, None, printer),
        What::Cpu(what) => what,
    };
    if name != "cpu" {
        bail!(Usage(format!("this benchmark rates against the CPU's limits: {name} states none")));
    }
    let machine = cpu()?;
    let limits = machine.limits()?;
    match what {
        OnCpu::Machine => {
            let measured = Measured::new(&limits);
            printer.table(&measured.table());
            Outcome::of(measured, true)
        }
        OnCpu::Ops(ops) => operators(ops, &machine.cpu, &limits, printer),
        OnCpu::EmbeddingGrad(embedding) => ladders(embedding, args.quick, &machine.cpu, &limits, printer),
    }
}

/// The CPU's limits, measured by a workload.
struct Machine {
    cpu: Cpu,
    workload: Workload,
}

impl Measure for Machine {
    fn limits(&self) -> Result<Limits> {
        machine::measure(&self.cpu, self.workload)
    }

    fn arithmetic(&self) -> Result<Arithmetic> {
        machine::arithmetic(&self.cpu, self.workload)
    }
}

fn ladders(
    args: &EmbeddingArgs,
    quick: bool,
    device: &Cpu,
    limits: &Limits,
    printer: Printer,
) -> Result<Outcome> {
    let measured = Measured::new(limits);
    printer.table(&measured.table());
    let repetitions = match quick {
        true => Repetitions { warm_up: 1, least: 3, most: 3, limit: Duration::ZERO },
        false => Repetitions::default(),
    };
    let mut ladders = Vec::new();
    for problem in args.problems()? {
        let ladder = embedding_grad::climb(device, limits, problem, repetitions, args.last)?;
        printer.table(&ladder.table());
        ladders.push(ladder);
    }
    Outcome::of(serde_json::json!({ "machine": measured, "ladders": ladders }), true)
}

fn operators(args: &OpsArgs, device: &Cpu, limits: &Limits, printer: Printer) -> Result<Outcome> {
    let dtypes = args.dtypes.split(',').map(parse_dtype).collect::<Result<Vec<_>>>()?;
    let limit = Duration::try_from_secs_f64(args.seconds).context("--seconds must be a number of seconds")?;
    let repetitions = Repetitions { warm_up: 1, least: 3, most: 100, limit };
    let measured = Measured::new(limits);
    printer.table(&measured.table());
    let columns = ["operator", "shape", "dtype", "what", ">time", ">GFLOP/s", ">GB/s", "limit", ">share"];
    let (mut table, mut rows) = (Table::new("Operators", &columns), Vec::new());
    for entry in ops::table().iter().filter(|e| e.label().contains(&args.filter)) {
        for &dtype in &dtypes {
            rows.extend(entry.measure(device, dtype, repetitions, limits)?);
        }
    }
    ensure!(!rows.is_empty(), "no line contains `{}`", args.filter);
    for r in &rows {
        let reference = if r.reference { " (reference)" } else { "" };
        table.row([
            r.family.into(),
            r.shape.into(),
            r.dtype.clone(),
            format!("{}{reference}", r.direction),
            text::seconds(r.rated.times.seconds),
            format!("{:.1}", r.rated.gflops),
            format!("{:.1}", r.rated.gbs),
            format!("{:?}", r.rated.bound).to_lowercase(),
            percent(r.rated.share),
        ]);
    }
    printer.table(&table);
    Outcome::of(serde_json::json!({ "machine": measured, "operators": rows }), true)
}

fn steps(
    args: &StepArgs,
    device: Arc<dyn Device>,
    machine: Option<&dyn Measure>,
    printer: Printer,
) -> Result<Outcome> {
    let inputs = args.inputs.as_deref().map(TensorFile::read).transpose()?;
    let settings = StepSettings {
        dims: parse_dims(&args.dims)?,
        batch: args.batch,
        precision: args.precision()?,
        recompute: args.memory.recompute(true),
        exact_sums: args.memory.exact_sums,
        memory_budget: args.memory.budget(),
        bucket_size: args.memory.buckets(),
        sparse_embeddings: args.memory.sparse(),
        moments: args.memory.moments(),
        lr: args.lr,
        clip: args.clip_norm,
        repetitions: Repetitions { warm_up: 1, least: args.steps, most: args.steps, limit: Duration::ZERO },
        traced: args.steps,
    };
    let report = step::run(&args.model, inputs.as_ref(), &settings, device, machine)?;
    let measured = report.limits.as_ref().map(Measured::new);
    if let Some(path) = &args.trace {
        crate::trace::write(path, &report.spans())?;
    }
    if let Some(measured) = &measured {
        printer.table(&measured.table());
    }
    for t in tables(&report) {
        printer.table(&t);
    }
    Outcome::of(serde_json::json!({ "machine": measured, "step": report }), true)
}

/// A report as tables.
fn tables(r: &StepReport) -> Vec<Table> {
    let mut facts = Table::new("Training step", &["what", ">found"]);
    let known = |b: Option<usize>| b.map_or("unknown".to_string(), text::bytes);
    facts.row(["device".into(), r.device.clone()]);
    if let Some(remark) = &r.remark {
        facts.row(["remark".into(), format!("{remark}; durations are this machine's")]);
    }
    for (name, ty) in &r.inputs {
        facts.row([format!("input {name}"), ty.clone()]);
    }
    facts.row([
        "parameters trained".into(),
        format!("{} in {}", text::count(r.parameters as f64), r.precision),
    ]);
    facts.row(["recomputation".into(), if r.recompute { "of what is cheap" } else { "none" }.into()]);
    if r.skipped > 0 {
        facts.row(["steps without finite gradients: no update".into(), r.skipped.to_string()]);
    }
    facts.row([format!("step, median of {}", r.step.runs), text::seconds(r.step.seconds)]);
    facts.row(["  forward and backward".into(), text::seconds(r.gradients)]);
    facts.row(["  clip and update".into(), text::seconds(r.update)]);
    if let (Some(floor), Some(share)) = (r.floor, r.share) {
        facts.row(["at the machine's limit".into(), text::seconds(floor)]);
        facts.row(["share of the limit".into(), percent(share)]);
    }
    facts.row(["memory planned".into(), text::bytes(r.memory.planned)]);
    facts.row(["  activations and workspace".into(), text::bytes(r.memory.arena)]);
    facts.row(["resident".into(), known(r.memory.resident)]);
    facts.row(["resident at the most".into(), known(r.memory.resident_peak)]);
    facts.row(["from file to first step done".into(), text::seconds(r.start.total)]);
    facts.row(["  import".into(), text::seconds(r.start.import)]);
    facts.row(["  passes, plans, memory".into(), text::seconds(r.start.compile)]);
    facts.row(["  first step".into(), text::seconds(r.start.step)]);
    let mut slowest = Table::new(
        "Slowest steps of the plan",
        &["operator", "phase", ">time", ">limit", "module", "operands"],
    );
    let mut order: Vec<&step::Traced> = r.trace.iter().collect();
    order.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    for t in order.into_iter().take(15) {
        slowest.row([
            t.op.into(),
            t.phase.into(),
            text::seconds(t.seconds),
            limit(t.floor, t.seconds),
            t.module.clone(),
            shorten(&t.operands, 90),
        ]);
    }
    let some = |parts: &[Part]| parts[..parts.len().min(20)].to_vec();
    let fused = r.fused.iter().take(10).map(|p| Part { name: shorten(&p.name, 90), ..p.clone() });
    let fused: Vec<Part> = fused.collect();
    vec![
        facts,
        parts("Products, attention and the rest", &r.kinds),
        parts("Phases", &r.phases),
        parts("Operators", &some(&r.operators)),
        parts("Inside fused operators", &fused),
        parts("Modules", &some(&r.modules)),
        slowest,
    ]
}

fn parts(title: &str, parts: &[Part]) -> Table {
    let columns = ["what", ">steps", ">time", ">of the step", ">GFLOP/s", ">GB/s", ">of the limit"];
    let mut t = Table::new(title, &columns);
    for p in parts {
        let rate = |x: f64| format!("{:.1}", x / p.seconds.max(1e-12) / 1e9);
        t.row([
            if p.name.is_empty() { "(root)".into() } else { p.name.clone() },
            p.count.to_string(),
            text::seconds(p.seconds),
            percent(p.share),
            rate(p.flops),
            rate(p.bytes),
            limit(p.floor, p.seconds),
        ]);
    }
    t
}

/// At most `limit` characters.
fn shorten(s: &str, limit: usize) -> String {
    if s.chars().count() <= limit { s.into() } else { s.chars().take(limit - 1).chain(['…']).collect() }
}

/// Share of a time that it takes at the limit, if that is known.
fn limit(floor: f64, seconds: f64) -> String {
    if floor > 0.0 { percent(floor / seconds.max(1e-12)) } else { String::new() }
}

fn percent(x: f64) -> String {
    format!("{:.0} %", 100.0 * x)
}
