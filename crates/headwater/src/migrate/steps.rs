//! The steps that compare and judge. Each takes the results of the one before, and returns those for the
//! next, with its findings.

use super::{Found, Job};
use crate::check::{self, CheckReport, Compared, check};
use crate::core::DType;
use crate::core::device::Device;
use crate::core::pass::precision::PrecisionSettings;
use crate::devices;
use crate::golden::{Golden, Kind};
use crate::import::Dims;
use crate::inspect::{inspect, tables};
use crate::machine::Machine;
use crate::model::{BoundModel, Model, Silenced};
use crate::report::{Block, Chart, Series, Table, Verdict, facts, text};
use crate::runtime::session::Training;
use crate::runtime::{Dataset, adapt};
use anyhow::{Context, Result};
use std::sync::Arc;

/// An opened model with its truth, if the job names one.
pub(super) struct Opened {
    pub(super) model: Model,
    pub(super) golden: Option<Golden>,
    /// Why the golden is not of this archive, if it is of another.
    foreign: Option<String>,
    /// Random operators of the training graph.
    pub(super) silenced: Silenced,
}

impl Opened {
    /// PyTorch's version where the model was exported, and where the golden was recorded.
    pub(super) fn pytorch(&self) -> Vec<(String, String)> {
        let mut facts = vec![(facts::PYTORCH.to_string(), self.model.program.torch_version().to_string())];
        let recorded = self.golden.as_ref().and_then(|g| g.fact("torch"));
        facts.extend(recorded.map(|version| ("PyTorch of the golden".to_string(), version.to_string())));
        facts
    }

    /// A reason beside a failure: numbers of another archive differ for a start.
    pub(super) fn because(&self, failed: bool) -> String {
        let foreign = self.foreign.as_ref().filter(|_| failed);
        foreign.map_or(String::new(), |f| format!("; likely because {f}: record it again"))
    }
}

/// The verdict of a step that needs what the job does not name.
pub(super) fn lacking(summary: &str) -> Found {
    Found::idle(summary)
}

/// Said where there is no golden.
const NO_GOLDEN: &str = "nothing was compared: the job names no golden; record one where PyTorch is (tools/README.md) and \
                         name it under [model]";

/// Said where there is no data.
pub(super) const NO_DATA: &str =
    "nothing was trained: the job names no samples; name them under [train.data]";

/// A model whose numbers have been compared.
pub(super) struct Checked {
    pub(super) opened: Opened,
    reports: Vec<CheckReport>,
    /// f64 in words, with the place where it was computed if that is not the device.
    f64: String,
}

/// 1: what this machine is.
pub(super) fn environment(device: &dyn Device) -> (Vec<(String, String)>, Found) {
    let m = Machine::detect();
    let facts = facts::machine(device, &m);
    let known = |name: &str| facts.iter().find(|f| f.0 == name).map_or("", |f| f.1.as_str());
    let (label, memory) = (known("device"), known("memory"));
    let found = m.libraries.iter().filter(|l| l.path.is_some()).map(|l| l.library).collect::<Vec<_>>();
    let others = if found.is_empty() { "no other device's libraries".to_string() } else { found.join(", ") };
    let summary = format!("device {label}; {}, {} threads, {memory}; {others}", m.processor, m.threads);
    let mut t = Table::new("Machine", &["what", "found"]);
    t.row(["vector instructions".into(), m.features.join(" ")]);
    t.row(["system".into(), m.system]);
    t.row(["memory available".into(), m.available.map_or("unknown".into(), text::bytes)]);
    let found = Found::new(true, summary)
        .value("device", device.name())
        .value("processor", &m.processor)
        .value("threads", m.threads)
        .value("memory_bytes", m.memory);
    (facts, found.with(Block::Table(t)))
}

/// 2: what the model needs, and whether the device has it.
pub(super) fn analysis(job: &Job, device: &dyn Device) -> Result<(Opened, Found)> {
    let model = Model::open(&job.export)?;
    let golden = job.golden.as_deref().map(Golden::read).transpose()?;
    let foreign = golden.as_ref().map(|g| g.of_another(&job.export)).transpose()?.flatten();
    let mut bound = sized(job, &model)?;
    adapt::freeze(&mut bound.graph, &job.train.freeze)?;
    let silenced = Silenced::make(&mut bound.graph.clone());
    // The budget is for the precision that is trained in, which training keeps or refuses by itself.
    let settings = Training {
        memory_budget: None,
        precision: PrecisionSettings::default(),
        stochastic_rounding: false,
        scaled: false,
        ..job.train.training(device.target())?
    };
    let found = inspect(&model, &bound, device, &settings)?;
    let missing: Vec<&str> = found.missing().map(|o| o.name.as_str()).collect();
    let slow = found.operators.iter().filter(|o| o.support == "reference").count();
    let summary = format!(
        "{} parameters, {} operators in a training step of {}FLOP, {} of memory; {}",
        text::count(found.parameters.0 as f64),
        found.operators.iter().map(|o| o.forward + o.backward).sum::<usize>(),
        text::count(found.flops()),
        match found.device_memory {
            Some(has) if found.memory.total() > has => {
                format!("{}, of which the chip has {}", text::bytes(found.memory.total()), text::bytes(has))
            }
            _ => text::bytes(found.memory.total()),
        },
        match (&missing[..], slow) {
            ([], 0) => "all of them run natively".to_string(),
            ([], n) => format!("all of them run, {n} kinds on the host through the slow reference"),
            (names, _) => format!("the device lacks {}", names.join(", ")),
        }
    );
    let summary = found.bound.iter().fold(summary, |summary, bound| format!("{summary}; {bound}"));
    let mut out = Found::new(missing.is_empty(), summary);
    if let (Some(foreign), Verdict::Pass) = (&foreign, out.verdict) {
        out.verdict = Verdict::Note;
        out.summary = format!("{}; {foreign}", out.summary);
    }
    if let (Some(remark), Verdict::Pass) = (golden.as_ref().and_then(Golden::unstated), out.verdict) {
        out.verdict = Verdict::Note;
        out.summary = format!("{}; {remark}", out.summary);
    }
    for remark in bound.remarks() {
        out.verdict = if out.verdict == Verdict::Fail { Verdict::Fail } else { Verdict::Note };
        out.summary = format!("{}; {remark}", out.summary);
    }
    for t in tables::tables(&found, device.name()) {
        out = out.with(Block::Table(t));
    }
    let memory = found.memory;
    out = out
        .next(
            "write the operators that are lacking in terms of others before exporting, or as an operator of your own \
             (CONTRIBUTING.md, \"From outside\")",
        )
        .value("pytorch", &found.torch)
        .value("parameters", found.parameters.0)
        .value("trained_parameters", found.parameters.1)
        .value("operators", found.operators.iter().map(|o| o.forward + o.backward).sum::<usize>())
        .value("flops", found.flops())
        .value("memory_bytes", memory.total())
        .value("arena_bytes", memory.arena)
        .value("lacking", &missing)
        .value("kinds_by_reference", slow);
    let points =
        found.live.iter().enumerate().map(|(i, &b)| (i as f64, b as f64 / (1 << 20) as f64)).collect();
    let title = format!(
        "Memory over a training step, beside {} that is held all the time (weights, gradients, optimizer state)",
        text::bytes(memory.total() - memory.arena)
    );
    let series = vec![Series::new("activations, temporary gradients and workspace", points)];
    let chart = Chart::new(&title, "step of the plan: forward, then backward", "MiB", series).filled(true);
    Ok((Opened { model, golden, foreign, silenced }, out.with(Block::Chart(chart))))
}

/// The model in the sizes of the job: those of its data, where the model leaves some open.
fn sized(job: &Job, model: &Model) -> Result<BoundModel> {
    let batch = job.train.batch;
    let sizes = model.program.symbols().len();
    // One of them is the batch.
    if job.trains() && sizes > 1 {
        let data = Arc::new(Dataset::open(&job.train.data.train)?);
        return Ok(model.bind_to_data(&Dims::new(), data, &job.train)?.0);
    }
    let dims = match batch {
        Some(b) if sizes > 0 => model.batch(Dims::new(), b)?,
        _ => Dims::new(),
    };
    model.bind(&dims.or_exported())
}

/// 3: outputs and intermediates, in f64 to prove the operators and in f32 as it will train.
pub(super) fn forward(_: &Job, opened: Opened, device: &dyn Device) -> Result<(Checked, Found)> {
    let Some(golden) = &opened.golden else {
        return Ok((Checked { opened, reports: vec![], f64: String::new() }, lacking(NO_GOLDEN)));
    };
    let f64 = devices::proved("f64", device);
    let mut reports = Vec::new();
    for precision in [DType::F64, DType::F32] {
        let report = check(&opened.model, golden, precision, device);
        reports.push(report.with_context(|| format!("the comparison cannot run{}", opened.because(true)))?);
    }
    let kinds = [Kind::Output, Kind::Buffer, Kind::Node];
    let good = reports.iter().all(|r| kinds.iter().all(|&k| r.of(k).all(|c| c.passed())));
    let worst =
        |r: &CheckReport| kinds.iter().filter_map(|&k| r.worst(k)).map(|c| c.error).fold(0.0, f64::max);
    // The first node that differs says where; without one, what is computed last does.
    let first = |r: &CheckReport| {
        let last = || kinds.iter().find_map(|&k| r.of(k).find(|c| !c.passed()));
        r.first_difference().or_else(last).map(|c| differs(r, c))
    };
    let summary = match reports.iter().find_map(first) {
        Some(difference) => difference,
        None => format!(
            "{} values agree{}; largest relative error {} in {f64}, {} in f32",
            kinds.iter().map(|&k| reports[0].of(k).count()).sum::<usize>(),
            if golden.without_dropout() {
                format!(" {}, as PyTorch recorded them", opened.silenced.text())
            } else {
                String::new()
            },
            text::error(worst(&reports[0])),
            text::error(worst(&reports[1])),
        ),
    };
    let mut found = with_errors(unproved(Found::new(good, summary), &reports, &kinds), &reports, &kinds);
    for r in &reports {
        let all: Vec<_> = r.compared.iter().filter(|c| c.kind != Kind::Gradient).collect();
        found = found.with(Block::Table(check::tables::listing(
            &format!("Outputs and intermediates in {}", r.precision),
            &all,
        )));
    }
    Ok((Checked { opened, reports, f64 }, found))
}

/// A difference in words: value, size and place.
fn differs(r: &CheckReport, c: &Compared) -> String {
    let kind = format!("{:?}", c.kind).to_lowercase();
    let (error, bound) = (text::error(c.error), text::error(c.bound));
    let at = if c.origin.is_empty() { String::new() } else { format!(", computed at {}", c.origin) };
    format!(
        "in {} the first that differs is {kind} {}: error {error}, bound {bound}{at}",
        r.precision, c.name
    )
}

/// Says how many values of some kinds are not proved, where none differs.
fn unproved(mut found: Found, reports: &[CheckReport], kinds: &[Kind]) -> Found {
    let open = |r: &CheckReport| {
        let of = kinds.iter().flat_map(|&k| r.of(k));
        of.filter(|c| c.verdict == check::Verdict::NotProved).count()
    };
    if let Some(r) = reports.iter().find(|r| open(r) > 0)
        && found.verdict == Verdict::Pass
    {
        found.verdict = Verdict::Note;
        found.summary = format!("{}; in {} {} of them are not proved", found.summary, r.precision, open(r));
    }
    found
}

/// Adds what comparisons found of some kinds, for programs, and what to try where they failed.
fn with_errors(found: Found, reports: &[CheckReport], kinds: &[Kind]) -> Found {
    let of = |r: &CheckReport| -> Vec<Compared> { kinds.iter().flat_map(|&k| r.of(k)).cloned().collect() };
    let worst = |r: &CheckReport| of(r).iter().map(|c| c.error).fold(0.0, f64::max);
    let by_precision = |of: &dyn Fn(&CheckReport) -> serde_json::Value| -> serde_json::Value {
        reports.iter().map(|r| (r.precision.clone(), of(r))).collect::<serde_json::Map<_, _>>().into()
    };
    let differ = by_precision(&|r| {
        let wrong: Vec<Compared> = of(r).into_iter().filter(|c| !c.passed()).collect();
        serde_json::json!(wrong)
    });
    let next = reports.iter().find_map(|r| r.evidence().pop()).unwrap_or_default();
    found
        .next(next)
        .value(
            "proved",
            by_precision(&|r| of(r).iter().filter(|c| c.verdict == check::Verdict::Proved).count().into()),
        )
        .value("values", reports.first().map_or(0, |r| of(r).len()))
        .value("largest_error", by_precision(&|r| worst(r).into()))
        .value("different", differ)
}

/// 4: every gradient by name.
pub(super) fn gradients(c: Checked) -> Result<(Checked, Found)> {
    if c.reports.is_empty() {
        return Ok((c, lacking(NO_GOLDEN)));
    }
    let good = c.reports.iter().all(|r| r.missing.is_empty() && r.of(Kind::Gradient).all(|c| c.passed()));
    let worst = |i: usize| c.reports[i].worst(Kind::Gradient).map_or(0.0, |c| c.error);
    let missing: Vec<&str> = c.reports[0].missing.iter().map(String::as_str).collect();
    let wrong = c.reports.iter().find_map(|r| Some((r, r.of(Kind::Gradient).find(|c| !c.passed())?)));
    let summary = match (&missing[..], wrong) {
        ([], Some((r, wrong))) => differs(r, wrong),
        ([], None) => format!(
            "{} gradients, by name; largest relative error {} in {}, {} in f32",
            c.reports[0].of(Kind::Gradient).count(),
            text::error(worst(0)),
            c.f64,
            text::error(worst(1)),
        ),
        (names, _) => names.join("; ") + &c.opened.because(true),
    };
    let kinds = [Kind::Gradient];
    let mut found = with_errors(unproved(Found::new(good, summary), &c.reports, &kinds), &c.reports, &kinds)
        .took(0.0)
        .value("missing", &c.reports[0].missing);
    for r in &c.reports {
        let rows: Vec<_> = r.of(Kind::Gradient).collect();
        found =
            found.with(Block::Table(check::tables::listing(&format!("Gradients in {}", r.precision), &rows)));
    }
    Ok((c, found))
}
