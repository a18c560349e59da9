//! `headwater doctor`.

use super::amp::Amp;
use super::op::parse_dtype;
use super::ranks::Ranks;
use super::{Memory, Outcome, Printer};
use crate::conformance::{self, Conforms, chosen};
use crate::core::DType;
use crate::core::device::Device;
use crate::fit::{self, FitRequest, Way};
use crate::inspect::{inspect, tables};
use crate::machine::Machine;
use crate::model::{Model, parse_dims};
use crate::report::{Table, text};
use crate::runtime::session::MemoryUse;
use crate::runtime::{Bytes, TrainConfig};
use anyhow::{Result, ensure};
use headwater_ascend::host::{CompilerOptions, Installation, RuntimeSettings, Survey};
use headwater_cuda::host::Survey as CudaSurvey;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater doctor
  headwater doctor --model model.pt2 --batch 64
  headwater doctor --model model.pt2 --config train.toml --available 16GiB
  headwater doctor --conformance all --device cuda
  headwater doctor --conformance softmax,linear --dtypes bf16 --device cuda
  headwater doctor --json")]
pub struct Args {
    /// Say whether a training step of this model fits into memory, what takes most of it, and what would need less.
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Settings of its training: a TOML file as for `train`, or a migrate.toml.
    #[arg(long, value_name = "FILE", requires = "model")]
    config: Option<PathBuf>,
    /// Memory to fit into, such as 16GiB (default: what is free on the device).
    #[arg(long, value_name = "SIZE", requires = "model")]
    available: Option<Bytes>,
    /// Samples in a batch (default: as exported, unless --config says otherwise).
    #[arg(long, requires = "model")]
    batch: Option<usize>,
    /// Size of a symbolic dimension, by its name or place.
    #[arg(long = "dim", value_name = "NAME=SIZE", requires = "model")]
    dims: Vec<String>,
    #[command(flatten)]
    amp: Amp,
    #[command(flatten)]
    memory: Memory,
    /// Run these operators, or `all`, with their gradients on the cases on which they are tested, and judge the results of
    /// --device by the reference in f64, within derived bounds.
    #[arg(long, value_name = "NAMES|all", conflicts_with = "model")]
    conformance: Option<String>,
    /// Dtypes of these cases.
    #[arg(long, value_name = "DTYPES", default_value = "f32,f16,bf16", requires = "conformance")]
    dtypes: String,
}

/// Findings, as `--json` prints them.
#[derive(Serialize)]
struct Findings {
    #[serde(flatten)]
    machine: Machine,
    /// Launcher and libraries for runs of several ranks.
    ranks: Ranks,
    /// Absent where there is nothing of Ascend.
    ascend: Option<Survey>,
    /// Absent where there is nothing of CUDA.
    cuda: Option<Cuda>,
    /// Absent where no model is named.
    model: Option<Fit>,
}

/// Libraries and GPUs of NVIDIA's.
#[derive(Serialize)]
struct Cuda {
    /// The driver, NVRTC and cuBLASLt.
    libraries: Vec<CudaLibrary>,
    /// GPUs that the driver knows.
    gpus: Vec<CudaGpu>,
}

#[derive(Serialize)]
struct CudaLibrary {
    name: &'static str,
    path: Option<PathBuf>,
    /// Its version, or what is wrong with it.
    state: String,
}

#[derive(Serialize)]
struct CudaGpu {
    name: String,
    chip: String,
    free: usize,
    total: usize,
}

/// Memory of a model's training step.
#[derive(Serialize)]
struct Fit {
    /// Bytes by kind.
    memory: MemoryUse,
    /// All of them.
    bytes: usize,
    /// Bytes that it may take, if they are known.
    available: Option<usize>,
    /// True if it fits, or if nobody knows.
    fits: bool,
    /// Ways that need less, the least first.
    ways: Vec<Way>,
}

pub fn run(args: &Args, device: &dyn Fn() -> Result<Arc<dyn Device>>, printer: Printer) -> Result<Outcome> {
    if let Some(names) = &args.conformance {
        let dtypes = args.dtypes.split(',').map(parse_dtype).collect::<Result<Vec<DType>>>()?;
        ensure!(dtypes.iter().all(|d| d.is_float()), "--dtypes are types of floats: f32, f16, bf16 or f64");
        let found = conformance::run(&*device()?, &chosen(names)?, &dtypes)?;
        show_conformance(&found, printer);
        let good = found.wrong.is_empty();
        return Outcome::of(found, good);
    }
    let m = Machine::detect();
    let mut t = Table::new("Machine", &["what", "found"]);
    let known = |b: Option<usize>| b.map_or("unknown".to_string(), text::bytes);
    t.row(["processor".into(), format!("{} ({})", m.processor, m.architecture)]);
    t.row([
        "vector instructions".into(),
        if m.features.is_empty() { "none known".into() } else { m.features.join(" ") },
    ]);
    t.row(["threads".into(), m.threads.to_string()]);
    t.row(["memory".into(), format!("{}, {} available", known(m.memory), known(m.available))]);
    t.row(["system".into(), m.system.clone()]);
    printer.table(&t);
    let mut t = Table::new("Devices", &["device", "library", "found"]);
    let chips: Vec<&str> = headwater_ascend::chip::CHIPS.iter().map(|c| c.name).collect();
    for (device, state) in [
        ("cpu", "ready".to_string()),
        ("ascend-sim", format!("ready, simulates {}", chips.join(", "))),
        ("reference", "ready, for proofs".to_string()),
    ] {
        t.row([device.into(), "(none needed)".into(), state]);
    }
    for l in &m.libraries {
        let at = l.path.as_ref().map_or("not found".to_string(), |p| p.display().to_string());
        t.row([l.device.into(), l.library.into(), at]);
    }
    printer.table(&t);
    let ranks = Ranks::detect();
    let mut t = Table::new("Ranks", &["what", "found"]);
    ranks.rows().into_iter().for_each(|row| t.row(row));
    printer.table(&t);
    let ascend = Survey::of(&Installation::find(), RuntimeSettings::from_env()?, CompilerOptions::from_env());
    let ascend = Some(ascend).filter(|s| !s.is_empty());
    if let Some(survey) = &ascend {
        show_ascend(survey, printer);
    }
    let cuda = CudaSurvey::of(&headwater_cuda::host::Installation::find());
    let cuda = Some(cuda).filter(|s| !s.is_empty()).map(|survey| show_cuda(&survey, printer));
    let model = args.model.as_deref().map(|path| fits(args, path, &*device()?, printer)).transpose()?;
    let good = model.as_ref().is_none_or(|m| m.fits);
    Outcome::of(&Findings { machine: m, ranks, ascend, cuda, model }, good)
}

/// Memory of a training step of the model beside what there is.
fn fits(args: &Args, path: &Path, device: &dyn Device, printer: Printer) -> Result<Fit> {
    let mut config = match &args.config {
        Some(file) => crate::settings::read(file)?,
        None => TrainConfig::default(),
    };
    args.amp.over(&mut config.amp)?;
    args.memory.over(&mut config);
    let model = Model::open(path)?;
    let dims = parse_dims(&args.dims)?;
    let dims = match args.batch.or(config.batch) {
        Some(batch) => model.batch(dims, batch)?,
        None => dims,
    };
    let bound = model.bind(&dims.clone().or_exported())?;
    model.needs_loss(&bound)?;
    let settings = config.training(device.target())?;
    let found = inspect(&model, &bound, device, &settings)?;
    let (bytes, available) =
        (found.memory.total(), args.available.map_or(device.free_memory(), |b| Some(b.0)));
    let asked = FitRequest { model: &model, dims: &dims, settings: &settings, target: device.target() };
    let ways = asked.ways(bytes, available);
    let fits = available.is_none_or(|free| bytes <= free);
    printer.line(format!(
        "a training step of {} takes {}, {}: it {}\n",
        path.display(),
        text::bytes(bytes),
        available.map_or("what is free is unknown".into(), |free| format!("{} are free", text::bytes(free))),
        match (available, fits) {
            (None, _) => "may fit",
            (_, true) => "fits",
            (_, false) => "does not fit",
        }
    ));
    printer.table(&tables::memory(&found));
    printer.table(&tables::peak(&found));
    printer.table(&fit::table(&ways, bytes, available));
    Ok(Fit { memory: found.memory, bytes, available, fits, ways })
}

/// The operators' results: how many, and the lines of what is not as it should be.
fn show_conformance(found: &Conforms, printer: Printer) {
    let mut t = Table::new(&format!("Operators on {}", found.device), &["what", ">found"]);
    let ran: Vec<usize> = found.ran.values().copied().filter(|&cases| cases > 0).collect();
    t.row([format!("operators in {}", found.dtypes.join(", ")), ran.len().to_string()]);
    t.row(["  of them with steps on the host".into(), found.host.len().to_string()]);
    t.row(["cases, with their gradients".into(), ran.iter().sum::<usize>().to_string()]);
    t.row(["refused, by operator and dtype".into(), found.refused.len().to_string()]);
    t.row(["wrong".into(), found.wrong.len().to_string()]);
    printer.table(&t);
    found.refused.iter().for_each(|(what, why)| printer.line(format!("refused: {what}: {why}")));
    found.wrong.iter().for_each(|line| printer.line(format!("wrong: {line}")));
}

/// Tables of an Ascend installation: versions, devices, and what is missing.
fn show_ascend(survey: &Survey, printer: Printer) {
    let stated = |text: &Option<String>| text.clone().unwrap_or_else(|| "not found".into());
    let path = |path: &Option<std::path::PathBuf>| stated(&path.as_ref().map(|p| p.display().to_string()));
    let operators = match survey.operators.is_empty() {
        true => "not found".into(),
        false => format!("{} ({})", survey.operators.join(", "), stated(&survey.operators_version)),
    };
    let mut t = Table::new("Ascend", &["what", "found"]);
    t.row(["driver".into(), stated(&survey.driver)]);
    t.row(["firmware".into(), stated(&survey.firmware)]);
    t.row(["CANN".into(), format!("{} in {}", stated(&survey.toolkit), path(&survey.home))]);
    t.row(["runtime".into(), path(&survey.library)]);
    t.row(["launch".into(), stated(&survey.launches.first().map(|f| f.to_string()))]);
    t.row(["compiler for A2, A3".into(), stated(&survey.compiler_a2)]);
    t.row(["compiler for 310P".into(), stated(&survey.compiler_310p)]);
    t.row(["vendor's operators".into(), operators]);
    let functions = match survey.vendor.is_empty() {
        true => "none".into(),
        false => format!("{}; used with --ascend-ops vendor, on A2 and A3", survey.vendor.join(", ")),
    };
    t.row(["their functions".into(), functions]);
    for d in &survey.devices {
        let cores = d.cores.map_or(String::new(), |(v, c)| format!(", {c} cube and {v} vector cores"));
        let memory = format!("{} of {} free", text::bytes(d.free), text::bytes(d.total));
        t.row([d.name.clone(), format!("{}, {memory}{cores}", d.chip)]);
        let replay = d.unrecorded.as_deref().unwrap_or("recorded once, then replayed");
        t.row([format!("steps on {}", d.name), replay.into()]);
    }
    printer.table(&t);
    if !survey.missing.is_empty() {
        let mut t = Table::new("Missing for Ascend", &["what", "needed for", "to do"]);
        for m in &survey.missing {
            t.row([m.what.clone(), m.needed_for.clone(), m.advice.clone()]);
        }
        printer.table(&t);
    }
}

/// Tables of NVIDIA's libraries and GPUs, and of what is missing.
fn show_cuda(survey: &CudaSurvey, printer: Printer) -> Cuda {
    let mut t = Table::new("CUDA (not yet measured on hardware)", &["what", "found"]);
    for l in &survey.libraries {
        let place = l.path.as_ref().map_or(String::new(), |p| format!(", {}", p.display()));
        t.row([l.name.into(), format!("{}{place}", l.state)]);
    }
    for gpu in &survey.gpus {
        let (free, total) = gpu.memory;
        let memory = format!("{} of {} free", text::bytes(free), text::bytes(total));
        t.row([gpu.name.clone(), format!("{}, {memory}", gpu.chip)]);
    }
    printer.table(&t);
    let missing: Vec<_> = survey.libraries.iter().filter(|l| !l.usable).collect();
    if !missing.is_empty() {
        let mut t = Table::new("Missing for CUDA", &["what", "without it", "to do"]);
        for l in missing {
            let advice = "install it, or name its folder in HEADWATER_CUDA_PATH (docs/cuda.md)";
            t.row([l.name.into(), l.without.into(), advice.into()]);
        }
        printer.table(&t);
    }
    let library = |l: &headwater_cuda::host::survey::Library| CudaLibrary {
        name: l.name,
        path: l.path.clone(),
        state: l.state.clone(),
    };
    let gpu = |g: &headwater_cuda::host::survey::Gpu| CudaGpu {
        name: g.name.clone(),
        chip: g.chip.clone(),
        free: g.memory.0,
        total: g.memory.1,
    };
    Cuda {
        libraries: survey.libraries.iter().map(library).collect(),
        gpus: survey.gpus.iter().map(gpu).collect(),
    }
}
