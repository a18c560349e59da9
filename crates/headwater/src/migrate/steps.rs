//! The steps but one. Each takes what the one before left and returns what the next needs, with what it
//! found.

use super::comparable::differences;
use super::job::Accept;
use super::{Found, Job, Watcher};
use crate::check::{CheckReport, Compared, check};
use crate::cli::{check as check_tables, inspect as inspect_tables};
use crate::core::device::Device;
use crate::core::pass::precision::Settings;
use crate::core::{DType, pass};
use crate::golden::{Curve, Golden, Kind};
use crate::import::Dims;
use crate::inspect::inspect;
use crate::machine::Machine;
use crate::model::Model;
use crate::report::{Bars, Block, Chart, Series, Table, Verdict, text};
use crate::runtime::trainer::{Evaluation, Event, Observer, Summary};
use crate::runtime::{Dataset, TrainConfig};
use crate::train::with_trainer;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Steps over which two correct f32 runs stay together, and how far apart they may be (relative). Later they
/// part ways whatever one does: training amplifies every rounding.
const CURVE_STEPS: usize = 100;
const CURVE_LIMIT: f64 = 1e-3;

/// An opened model with its truth, if the job names one.
pub(super) struct Opened {
    pub(super) model: Model,
    golden: Option<Golden>,
    /// Why the golden is not of this archive, if it is of another.
    foreign: Option<String>,
    /// Nodes that drop out in training.
    dropouts: usize,
}

impl Opened {
    /// A reason beside a failure: numbers of another archive differ for a start.
    fn because(&self) -> String {
        self.foreign.as_ref().map_or(String::new(), |f| format!("; likely because {f}: record it again"))
    }
}

/// The verdict of a step that needs what the job does not name.
pub(super) fn lacking(summary: &str) -> Found {
    Found { verdict: Verdict::Note, summary: summary.into(), blocks: vec![] }
}

/// Said where there is no golden.
const NO_GOLDEN: &str = "nothing was compared: the job names no golden; record one where PyTorch is (tools/README.md) and \
                         name it under [model]";

/// Said where there is no data.
pub(super) const NO_DATA: &str =
    "nothing was trained: the job names no samples; name them under [train.data]";

/// A model whose numbers have been compared.
pub(super) struct Checked {
    opened: Opened,
    reports: Vec<CheckReport>,
}

/// A model that has been trained.
pub(super) struct Trained {
    pub(super) opened: Opened,
    pub(super) summary: Summary,
    /// Bytes of memory that the plans use, and the median seconds of a step.
    pub(super) held: usize,
    pub(super) seconds: f64,
    curve: Option<Curve>,
    checkpoint: Option<PathBuf>,
}

/// Of seconds or rates; 0 for none.
pub(super) fn median(of: &mut [f64]) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(0.0)
}

/// 1: what this machine is.
pub(super) fn environment(device: &dyn Device) -> (Vec<(String, String)>, Found) {
    let m = Machine::detect();
    let memory = m.memory.map_or("unknown".to_string(), text::bytes);
    let facts = vec![
        ("headwater".to_string(), env!("CARGO_PKG_VERSION").to_string()),
        ("processor".to_string(), m.processor.clone()),
        ("threads".to_string(), m.threads.to_string()),
        ("memory".to_string(), memory.clone()),
    ];
    let found = m.libraries.iter().filter(|l| l.path.is_some()).map(|l| l.library).collect::<Vec<_>>();
    let others = if found.is_empty() { "no other device's libraries".to_string() } else { found.join(", ") };
    let summary =
        format!("device {}; {}, {} threads, {memory}; {others}", device.name(), m.processor, m.threads);
    let mut t = Table::new("Machine", &["what", "found"]);
    t.row(["vector instructions".into(), m.features.join(" ")]);
    t.row(["system".into(), m.system]);
    t.row(["memory available".into(), m.available.map_or("unknown".into(), text::bytes)]);
    (facts, Found::new(true, summary).with(Block::Table(t)))
}

/// 2: what the model needs, and whether the device has it.
pub(super) fn analysis(job: &Job, device: &dyn Device) -> Result<(Opened, Found)> {
    let model = Model::open(&job.export)?;
    let golden = job.golden.as_deref().map(Golden::read).transpose()?;
    let foreign = golden.as_ref().map(|g| g.of_another(&job.export)).transpose()?.flatten();
    let dims = match job.train.batch {
        Some(b) if !model.program.symbols().is_empty() => model.batch(Dims::new(), b)?,
        _ => Dims::new(),
    };
    let dims = dims.or_exported();
    let bound = model.bind(&dims)?;
    let dropouts = pass::without_dropout(&mut bound.graph.clone());
    let found = inspect(&model, &bound, device, &Settings::default().properties()?, job.train.recompute)?;
    let missing: Vec<&str> = found.missing().map(|o| o.name.as_str()).collect();
    let slow = found.operators.iter().filter(|o| o.support == "reference").count();
    let summary = format!(
        "{} parameters, {} operators in a training step of {}FLOP, {} of memory; {}",
        text::count(found.parameters.0 as f64),
        found.operators.iter().map(|o| o.forward + o.backward).sum::<usize>(),
        text::count(found.flops()),
        text::bytes(found.memory.total()),
        match (&missing[..], slow) {
            ([], 0) => "every one runs natively".to_string(),
            ([], n) => format!("every one runs, {n} kinds through the slow reference"),
            (names, _) => format!("the device lacks {}", names.join(", ")),
        }
    );
    let mut out = Found::new(missing.is_empty(), summary);
    if let (Some(foreign), Verdict::Pass) = (&foreign, out.verdict) {
        out.verdict = Verdict::Note;
        out.summary = format!("{}; {foreign}", out.summary);
    }
    for t in inspect_tables::tables(&found, device.name()) {
        out = out.with(Block::Table(t));
    }
    let points =
        found.live.iter().enumerate().map(|(i, &b)| (i as f64, b as f64 / (1 << 20) as f64)).collect();
    let chart = Chart {
        title: "Memory over a training step".into(),
        x: "step of the plan: forward, then backward".into(),
        y: "MiB".into(),
        series: vec![Series { name: "activations, temporary gradients and workspace".into(), points }],
        filled: true,
    };
    Ok((Opened { model, golden, foreign, dropouts }, out.with(Block::Chart(chart))))
}

/// 3: outputs and intermediates, in f64 to prove the operators and in f32 as it will train.
pub(super) fn forward(_: &Job, opened: Opened, device: &dyn Device) -> Result<(Checked, Found)> {
    let Some(golden) = &opened.golden else {
        return Ok((Checked { opened, reports: vec![] }, lacking(NO_GOLDEN)));
    };
    let mut reports = Vec::new();
    for precision in [DType::F64, DType::F32] {
        let report = check(&opened.model, golden, precision, device);
        reports.push(report.with_context(|| format!("the comparison cannot run{}", opened.because()))?);
    }
    let kinds = [Kind::Output, Kind::Buffer, Kind::Node];
    let good = reports.iter().all(|r| kinds.iter().all(|&k| r.of(k).all(|c| c.passed)));
    let worst =
        |r: &CheckReport| kinds.iter().filter_map(|&k| r.worst(k)).map(|c| c.error).fold(0.0, f64::max);
    // The first node that differs says where; without one, what is computed last does.
    let first = |r: &CheckReport| {
        let last = || kinds.iter().find_map(|&k| r.of(k).find(|c| !c.passed));
        r.first_difference().or_else(last).map(|c| differs(r, c))
    };
    let summary = match reports.iter().find_map(first) {
        Some(difference) => difference,
        None => format!(
            "{} values agree{}; largest relative error {} in f64, {} in f32",
            kinds.iter().map(|&k| reports[0].of(k).count()).sum::<usize>(),
            if golden.without_dropout() {
                " with dropout as the identity, as PyTorch recorded them"
            } else {
                ""
            },
            text::error(worst(&reports[0])),
            text::error(worst(&reports[1])),
        ),
    };
    let mut found = Found::new(good, summary);
    for r in &reports {
        let all: Vec<_> = r.compared.iter().filter(|c| c.kind != Kind::Gradient).collect();
        found = found.with(Block::Table(check_tables::listing(
            &format!("Outputs and intermediates in {}", r.precision),
            &all,
        )));
    }
    Ok((Checked { opened, reports }, found))
}

/// What differs, by how much and where.
fn differs(r: &CheckReport, c: &Compared) -> String {
    let kind = format!("{:?}", c.kind).to_lowercase();
    let (error, bound) = (text::error(c.error), text::error(c.bound));
    let at = if c.origin.is_empty() { String::new() } else { format!(", computed at {}", c.origin) };
    let next = r.evidence().last().map_or(String::new(), |e| format!("; {e}"));
    format!(
        "in {} the first that differs is {kind} {}: error {error}, bound {bound}{at}{next}",
        r.precision, c.name
    )
}

/// 4: every gradient by name.
pub(super) fn gradients(c: Checked) -> Result<(Checked, Found)> {
    if c.reports.is_empty() {
        return Ok((c, lacking(NO_GOLDEN)));
    }
    let good = c.reports.iter().all(|r| r.missing.is_empty() && r.of(Kind::Gradient).all(|c| c.passed));
    let worst = |i: usize| c.reports[i].worst(Kind::Gradient).map_or(0.0, |c| c.error);
    let missing: Vec<&str> = c.reports[0].missing.iter().map(String::as_str).collect();
    let wrong = c.reports.iter().find_map(|r| Some((r, r.of(Kind::Gradient).find(|c| !c.passed)?)));
    let summary = match (&missing[..], wrong) {
        ([], Some((r, wrong))) => differs(r, wrong),
        ([], None) => format!(
            "{} gradients, by name; largest relative error {} in f64, {} in f32",
            c.reports[0].of(Kind::Gradient).count(),
            text::error(worst(0)),
            text::error(worst(1)),
        ),
        (names, _) => names.join("; ") + &c.opened.because(),
    };
    let mut found = Found::new(good, summary);
    for r in &c.reports {
        let rows: Vec<_> = r.of(Kind::Gradient).collect();
        found =
            found.with(Block::Table(check_tables::listing(&format!("Gradients in {}", r.precision), &rows)));
    }
    Ok((c, found))
}

/// Notes where checkpoints went, beside the observer that draws.
struct Note<'a> {
    inner: &'a mut dyn Observer,
    checkpoint: Option<PathBuf>,
    rate: Vec<f64>,
    seconds: Vec<f64>,
}

impl Observer for Note<'_> {
    fn event(&mut self, event: &Event) -> crate::runtime::Result<()> {
        match event {
            Event::Checkpoint { path, best: false, .. } => self.checkpoint = Some(path.clone()),
            Event::Step(s) => {
                self.rate.push(s.samples as f64 / s.seconds);
                self.seconds.push(s.seconds);
            }
            _ => {}
        }
        self.inner.event(event)
    }
}

/// A run's first losses with dropout as the identity: what a recorded curve of a model with dropout is
/// compared with.
fn without_dropout(
    opened: &mut Opened,
    mut config: TrainConfig,
    steps: usize,
    device: Arc<dyn Device>,
    stop: &AtomicBool,
) -> Result<Vec<f64>> {
    (config.checkpoint.dir, config.checkpoint.every) = (None, None);
    (config.eval.every, config.log.json, config.log.tensorboard) = (None, None, None);
    let enough = AtomicBool::new(false);
    let mut count = 0;
    let mut counter = |event: &Event| -> crate::runtime::Result<()> {
        count += matches!(event, Event::Step(_)) as usize;
        enough.store(count >= steps || stop.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    };
    opened.model.without_dropout = true;
    let run = with_trainer(&opened.model, Dims::new(), config, device, false, |trainer, _| {
        Ok(trainer.run(&mut [&mut counter], &enough)?.losses)
    });
    opened.model.without_dropout = false;
    run
}

/// 5: the training run, beside the one PyTorch recorded.
pub(super) fn training(
    job: &Job,
    checked: Checked,
    out: &Path,
    device: Arc<dyn Device>,
    watcher: &mut dyn Watcher,
    stop: &AtomicBool,
) -> Result<(Trained, Found)> {
    let Checked { mut opened, .. } = checked;
    let curve = opened.golden.as_ref().map(Golden::curve).transpose()?.flatten();
    let mut config = job.train.clone();
    let run = out.join("run");
    config.checkpoint.dir = Some(run.clone());
    config.log.json = Some(out.join("log.jsonl"));
    config.log.tensorboard = Some(out.join("tensorboard"));
    let mut note = Note { inner: watcher.training(), checkpoint: None, rate: vec![], seconds: vec![] };
    let mut apart = Vec::new();
    let measured =
        with_trainer(&opened.model, Dims::new(), config, device.clone(), false, |trainer, config| {
            if let (Some(golden), Some(curve)) = (&opened.golden, &curve) {
                let steps = CURVE_STEPS.min(usize::try_from(trainer.steps()).unwrap_or(CURVE_STEPS));
                apart = differences(golden, curve, config, &opened.model, trainer, steps)?;
            }
            trainer.measure();
            let summary = crate::train::run_logged(trainer, config, &mut [&mut note], stop)?;
            let program = trainer.program();
            let session = trainer.session();
            let mut time: BTreeMap<&str, f64> = BTreeMap::new();
            for (step, s) in session.plan(program).steps.iter().zip(session.seconds(program)) {
                *time.entry(step.op).or_default() += s;
            }
            let time: Vec<(String, f64)> = time.into_iter().map(|(n, s)| (n.to_string(), s)).collect();
            Ok((summary, time, session.planned_bytes()))
        });
    let (summary, mut time, held) = measured?;
    ensure!(summary.complete, "the run was stopped at step {}", summary.step);
    let Note { checkpoint, mut rate, mut seconds, .. } = note;
    let (speed, seconds) = (median(&mut rate), median(&mut seconds));
    let steps = summary.losses.len();
    let last = summary.losses.last().copied().unwrap_or(f64::NAN);
    let line = |name: &str, loss: &[f64]| Series {
        name: name.into(),
        points: loss.iter().enumerate().map(|(i, &l)| (i as f64 + 1.0, l)).collect(),
    };
    let trained = format!("{steps} steps, last loss {last:.4}; {speed:.0} samples/s");
    let mut series = vec![line("Headwater, f32", &summary.losses)];
    // What is compared: this run, or its beginning again without dropout where PyTorch's curve is without it.
    let (mut compared, mut again) = (&summary.losses, None);
    let mut found = match &curve {
        None => {
            let summary = format!("{trained}; there is no curve of PyTorch's to compare with");
            Found { verdict: Verdict::Note, summary, blocks: vec![] }
        }
        Some(c) if !apart.is_empty() => {
            series.push(line("PyTorch, another run", &c.loss));
            let summary = format!(
                "{trained}; PyTorch's curve is of another run and proves nothing about this one: {}. To compare, record \
                 this job's run (`record` with `data=`, in tools/README.md)",
                apart.join("; ")
            );
            Found { verdict: Verdict::Note, summary, blocks: vec![] }
        }
        Some(c) => {
            series.push(line("PyTorch, f32, recorded", &c.loss));
            let mut how = "";
            let count = CURVE_STEPS.min(c.loss.len()).min(steps);
            if opened.dropouts > 0 && opened.golden.as_ref().is_some_and(Golden::without_dropout) {
                how = " with dropout as the identity, in a run of their own,";
                let proof = without_dropout(&mut opened, job.train.clone(), count, device, stop)?;
                series.push(line("Headwater, f32, without dropout", &proof));
                compared = again.insert(proof);
            }
            let (at, distance) = crate::curve::worst(compared, &c.loss, CURVE_STEPS);
            let good = distance <= CURVE_LIMIT && count > 0;
            let text = format!(
                "{trained}; over the first {count} steps{how} the loss is at most {} from PyTorch's (relative, step {}; limit \
                 {}){}",
                text::error(distance),
                at + 1,
                text::error(CURVE_LIMIT),
                if good { String::new() } else { opened.because() },
            );
            Found::new(good, text)
        }
    };
    let chart = |title: &str, series, filled| {
        Block::Chart(Chart { title: title.into(), x: "step".into(), y: "loss".into(), series, filled })
    };
    found = found.with(chart("Loss of each step", series, false));
    if let (Some(c), true) = (&curve, apart.is_empty()) {
        let ratio =
            compared.iter().zip(&c.loss).enumerate().map(|(i, (a, b))| (i as f64 + 1.0, ((a - b) / b).abs()));
        let different = ratio.take(CURVE_STEPS).filter(|(_, d)| *d != 0.0);
        let first: Vec<(f64, f64)> = different.map(|(x, y)| (x, y.log10())).collect();
        found = found.with(Block::Chart(Chart {
            title: format!("Relative distance of the two curves over the first {CURVE_STEPS} steps (equal losses left out)"),
            x: "step".into(),
            y: "log₁₀".into(),
            series: vec![Series { name: "distance".into(), points: first }],
            filled: false,
        }));
    }
    drop(again);
    time.sort_by(|a, b| b.1.total_cmp(&a.1));
    time.truncate(16);
    let bars = Bars { title: "Time by operator, all steps".into(), unit: "s".into(), bars: time };
    let curve = curve.filter(|_| apart.is_empty());
    Ok((Trained { opened, summary, held, seconds, curve, checkpoint }, found.with(Block::Bars(bars))))
}

/// 6: how well the trained model does on held-out data.
pub(super) fn evaluation(job: &Job, t: Trained) -> Result<(Trained, Found)> {
    let Some(e): Option<&Evaluation> = t.summary.evaluation.as_ref() else {
        ensure!(
            job.accept == Accept::default(),
            "[accept] demands something of held-out data, but the job names none: name it under [train.data] as `eval`"
        );
        let summary =
            "the job names no held-out data: nothing says how well the model does on other samples".into();
        return Ok((t, Found { verdict: Verdict::Note, summary, blocks: vec![] }));
    };
    let mut table = Table::new("Held-out data", &["what", ">Headwater", ">PyTorch, recorded"]);
    let theirs = t.curve.as_ref().and_then(|c| c.accuracy);
    let shown = |x: Option<f64>| x.map_or("—".to_string(), |x| format!("{x:.4}"));
    table.row(["accuracy".into(), shown(e.accuracy), shown(theirs)]);
    table.row(["loss".into(), format!("{:.4}", e.loss), shown(t.curve.as_ref().and_then(|c| c.eval_loss))]);
    table.row(["samples".into(), e.samples.to_string(), "".into()]);
    let mut good = e.loss.is_finite();
    let mut said = Vec::new();
    match (e.accuracy, job.accept.accuracy) {
        (Some(a), Some(want)) => {
            good &= a >= want;
            said.push(format!("accuracy {a:.4} ({want} is demanded)"));
        }
        (None, Some(want)) => {
            good = false;
            said.push(format!("accuracy {want} is demanded, but the model has no logits and labels"));
        }
        (Some(a), None) => said.push(format!("accuracy {a:.4}")),
        (None, None) => {}
    }
    match job.accept.loss {
        Some(most) => {
            good &= e.loss <= most;
            said.push(format!("loss {:.4} (at most {most} is demanded)", e.loss));
        }
        None => said.push(format!("loss {:.4}", e.loss)),
    }
    let text = format!("{} on {} samples", said.join(", "), e.samples);
    Ok((t, Found::new(good, text).with(Block::Table(table))))
}

/// 8: what is left to use: the checkpoint in PyTorch's names, read back from disk.
pub(super) fn bundle(_: &Job, t: Trained, out: &Path) -> Result<((), Found)> {
    let checkpoint = t.checkpoint.context("no checkpoint was written")?;
    let weights = checkpoint.join("model.safetensors");
    let file = Dataset::open(&weights)?;
    let finite = file.columns().iter().all(|c| finite(c.ty.dtype, c.bytes()));
    let mut table = Table::new("Files", &["file", ">bytes", "what"]);
    let mut list = |path: PathBuf, what: &str| {
        let bytes = std::fs::metadata(&path).map_or(0, |m| m.len() as usize);
        table.row([path.display().to_string(), text::bytes(bytes), what.to_string()]);
    };
    list(weights, "parameters and buffers under their PyTorch names: load_state_dict takes them");
    list(checkpoint.join("state.safetensors"), "the optimizer's moments, for --resume");
    list(out.join("log.jsonl"), "every event of the run");
    let summary = format!(
        "{} tensors in {}, {}",
        file.columns().len(),
        checkpoint.display(),
        if finite { "all finite" } else { "SOME NOT FINITE" }
    );
    Ok(((), Found::new(finite && !file.columns().is_empty(), summary).with(Block::Table(table))))
}

/// Whether no element is inf or NaN, by its bits and in place: a checkpoint may be larger than what memory is
/// left.
fn finite(dtype: DType, bytes: &[u8]) -> bool {
    let size = dtype.size();
    // The exponent, all ones, in the element's last bytes.
    let mask: u64 = match dtype {
        DType::F16 => 0x7c00,
        DType::BF16 => 0x7f80,
        DType::F32 => 0x7f80_0000,
        DType::F64 => 0x7ff0_0000_0000_0000,
        _ => return true,
    };
    bytes.chunks_exact(size).all(|element| {
        let mut bits = [0; 8];
        bits[..size].copy_from_slice(element);
        u64::from_le_bytes(bits) & mask != mask
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Tensor;

    #[test]
    fn what_is_not_finite_is_seen_in_every_dtype() {
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            let of = |x: f64| finite(dtype, &Tensor::float(dtype, [3], vec![0.0, x, -1.0]).to_bytes());
            assert!(of(1.5) && of(-0.0) && of(if dtype == DType::F16 { 65504.0 } else { 1e38 }), "{dtype}");
            assert!(!of(f64::INFINITY) && !of(f64::NEG_INFINITY) && !of(f64::NAN), "{dtype}");
        }
        assert!(finite(DType::I64, &[0xff; 16]));
    }
}
