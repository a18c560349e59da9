//! `headwater migrate`.

use super::alerts::Alerts;
use super::amp::Amp;
use super::console::stdout_width;
use super::metrics::Metrics;
use super::progress::Progress;
use super::{Memory, Outcome, Printer, Status, Usage};
use crate::core::device::Device;
use crate::migrate::{Begin, New, Watcher, migrate, write_new};
use crate::report::{Block, Section, Series, text};
use crate::runtime::trainer::{Event, Observer};
use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater migrate examples/digits-vit
  headwater migrate --new model.pt2 --data train.safetensors --eval heldout.safetensors
  headwater migrate --new model.pt2 --data table.csv --name labels=clicked
  headwater migrate my-job --out results --json
  headwater migrate my-job --amp O2 --dtype f16 --loss-scale predictive

DIR holds a migrate.toml, which names the exported model, PyTorch's golden, the data and the training settings. --new writes one that
runs as it is. Only the model must be named: steps that need more become notes. The options of mixed precision are those of the
seventh step, which trains a second time; in the file they are the table [amp].")]
pub struct Args {
    /// The job's folder, or its file.
    #[arg(required_unless_present = "new")]
    dir: Option<PathBuf>,
    /// Write a migrate.toml for this exported model into DIR (default: the model's folder), and run nothing.
    #[arg(long, value_name = "MODEL", help_heading = "New job")]
    new: Option<PathBuf>,
    /// Samples to train on (default: those of the golden).
    #[arg(long, value_name = "FILE", requires = "new", help_heading = "New job")]
    data: Option<PathBuf>,
    /// Samples held out for evaluation.
    #[arg(long, value_name = "FILE", requires = "new", help_heading = "New job")]
    eval: Option<PathBuf>,
    /// Column that feeds an input of the model which is called otherwise: `input=column`; may be repeated.
    #[arg(long = "name", value_name = "INPUT=COLUMN", requires = "new", help_heading = "New job")]
    names: Vec<String>,
    /// File with what PyTorch computed (default: the .golden.safetensors beside the model, if it is there).
    #[arg(long, value_name = "FILE", requires = "new", help_heading = "New job")]
    golden: Option<PathBuf>,
    /// Folder for the results (default: `out/<name of DIR>`).
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Replace the results of an earlier migration in --out.
    #[arg(long)]
    overwrite: bool,
    /// Go on with a migration in --out that was interrupted; training goes on from its newest checkpoint.
    #[arg(long, conflicts_with = "overwrite")]
    resume: bool,
    /// Steps of the training runs, in place of the job's `steps` or `epochs`: a simulated device takes
    /// seconds for each.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "new")]
    steps: Option<u64>,
    /// Serve the numbers of training runs for Prometheus at this address: 127.0.0.1:9464, or a port that only this machine
    /// reaches.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "new")]
    metrics: Option<String>,
    /// Let an alert run the command that `alert.command` in the job names (docs/following.md).
    #[arg(long, conflicts_with = "new")]
    allow_command: bool,
    #[command(flatten)]
    amp: Amp,
    #[command(flatten)]
    memory: Memory,
}

/// Observers of the training runs.
struct Followers {
    progress: Progress,
    metrics: Option<Metrics>,
    alerts: Alerts,
}

impl Observer for Followers {
    fn event(&mut self, event: &Event) -> crate::runtime::Result<()> {
        self.progress.event(event)?;
        self.metrics.as_mut().map_or(Ok(()), |metrics| metrics.event(event))?;
        self.alerts.event(event)
    }
}

/// Prints the steps of a migration as they are done.
struct StepPrinter {
    printer: Printer,
    followers: Followers,
}

impl Watcher for StepPrinter {
    fn begin(&mut self, number: usize, title: &str) {
        self.printer.line(format!("{number}  {title}"));
    }

    fn end(&mut self, _: usize, section: &Section) {
        let time = section.time().map_or(String::new(), |time| format!("  ({time})"));
        self.printer.line(format!("   {}  {}{time}", section.verdict.word(), section.summary));
        if let Some(next) = &section.next {
            self.printer.line(format!("         next: {next}"));
        }
        // Curves over the steps of a run, in a line each: short ones where the terminal is narrow.
        let columns = if stdout_width().is_some_and(|w| w < 100) { 20 } else { 40 };
        for block in &section.blocks {
            let Block::Chart(chart) = block else { continue };
            // Numbers over decades are drawn by their logarithm, a loss as it is.
            let by_log = chart.log && chart.y != "loss";
            let shown = |s: &&Series| chart.x == "step" && !chart.aside && s.points.len() > 1;
            for s in chart.series.iter().filter(shown) {
                let (Some(first), Some(last)) = (s.points.first(), s.points.last()) else { continue };
                let line =
                    text::sparkline(s.points.iter().map(|p| if by_log { p.1.log10() } else { p.1 }), columns);
                let (first, last) = match by_log {
                    true => (text::number(first.1), text::number(last.1)),
                    false => (format!("{:.4}", first.1), format!("{:.4}", last.1)),
                };
                self.printer
                    .line(format!("         {line:<columns$}  {first} → {last}  {} ({})", s.name, chart.y));
            }
        }
    }

    fn training(&mut self) -> &mut dyn Observer {
        &mut self.followers
    }

    fn failed(&mut self, error: &anyhow::Error) {
        self.followers.alerts.failed(error);
        self.followers.metrics.iter_mut().for_each(Metrics::ended);
    }
}

pub fn run(args: &Args, device: Arc<dyn Device>, printer: Printer) -> Result<Outcome> {
    if let Some(model) = &args.new {
        return new(args, model, printer);
    }
    let place = args.dir.as_deref().unwrap_or(Path::new("."));
    let job = crate::migrate::Job::read(place)?;
    let idle = args.allow_command && job.train.alert.command.is_empty();
    ensure!(!idle, Usage("--allow-command does nothing without `alert.command` in the job".into()));
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from("out").join(job.name));
    let followers = Followers {
        progress: Progress::new(printer.json, device.clone()).shortened_by_steps(),
        metrics: Metrics::start(args.metrics.as_deref(), job.train.log.metrics.as_deref())?,
        alerts: Alerts::new(args.allow_command),
    };
    let mut watcher = StepPrinter { printer, followers };
    let adjust = |job: &mut crate::migrate::Job| {
        args.memory.over(&mut job.train);
        if args.steps.is_some() {
            (job.train.steps, job.train.epochs) = (args.steps, None);
        }
        args.amp.over(&mut job.amp)
    };
    let stop = super::signals::stop()?;
    let begin = match (args.overwrite, args.resume) {
        (true, _) => Begin::Overwrite,
        (_, true) => Begin::Resume,
        _ => Begin::Anew,
    };
    let (report, page) = migrate(place, &out, begin, device, adjust, &mut watcher, stop)?;
    printer.line(format!("\n{}; the report is {}", report.conclusion(), page.display()));
    let status = match (report.passed(), stop.load(Ordering::SeqCst)) {
        (true, _) => Status::Done,
        (false, true) => Status::Interrupted,
        (false, false) => Status::Differs,
    };
    Outcome::of(report.results(), status)
}

/// Writes a new job's file.
fn new(args: &Args, model: &Path, printer: Printer) -> Result<Outcome> {
    let written = write_new(&New {
        model: model.to_path_buf(),
        golden: args.golden.clone(),
        data: args.data.clone(),
        eval: args.eval.clone(),
        dir: args.dir.clone(),
        names: super::eval::names(&args.names)?,
    })?;
    written.notes.iter().for_each(|n| printer.line(format!("note: {n}")));
    printer.line(format!("wrote {}", written.path.display()));
    printer.line(format!(
        "run it: headwater migrate {}",
        written.path.parent().unwrap_or(Path::new(".")).display()
    ));
    Outcome::of(written, true)
}
