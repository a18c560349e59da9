//! The command line: arguments, and one file a command. Commands compute plain reports; printing is here.

mod alerts;
mod amp;
mod bench;
pub(crate) mod check;
mod compare;
mod compile;
mod console;
mod data;
mod doctor;
mod eval;
mod explain;
mod export;
pub(crate) mod inspect;
mod kernel_times;
mod kernels;
mod launch;
mod metrics;
mod migrate;
mod op;
mod panics;
mod predict;
mod progress;
mod ranks;
mod shell;
mod signals;
mod train;

use crate::core::device::Device;
use crate::core::pass::products::{Adjacent, anywhere};
use crate::core::ranks::Transport;
use crate::core::train::BucketSize;
use crate::devices::{self, DeviceOptions};
use crate::runtime::config::Cast;
use crate::runtime::session::{Moments, Sparse};
use crate::runtime::{Bytes, TrainConfig};
use crate::words::meant;
use anyhow::Result;
use clap::{Parser, Subcommand};
use console::{print, say, show, show_table};
use headwater_ascend::device::AscendOps;
use std::cell::RefCell;
use std::ffi::OsString;
use std::sync::Arc;

/// Train models exported by PyTorch on another machine, checked number by number against PyTorch.
#[derive(Parser, Debug)]
#[command(name = "headwater", version = crate::report::facts::version(), about, long_about = None, arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print the result as JSON on standard output.
    #[arg(long, global = true, help_heading = COMMON, display_order = LAST)]
    json: bool,
    /// Device to run on: `cpu`, `ascend:N` (an NPU), `ascend-sim:CHIP` or `reference`. CHIP is a simulated Ascend chip:
    /// `910b1` to `910b4`, `910_9391` or `310p`; `CHIP,checked` checks every access. `reference` is the reference
    /// interpreter without f64 and i64 arithmetic, as an NPU; `reference:wide` has both.
    #[arg(
        long, global = true, value_name = "NAME[:QUALIFIER]", default_value = "cpu", help_heading = COMMON,
        display_order = LAST
    )]
    device: String,
    /// Kernels of matrix products, attention and convolutions on `ascend:N`: Headwater's `own`, or CANN's operators (aclnn)
    /// with `vendor`, on Atlas A2 and A3. `vendor` changes rounding. A step that CANN has no operator for runs by our own.
    #[arg(
        long, global = true, value_name = "WHOSE", default_value = "own", value_parser = ascend_ops,
        help_heading = COMMON, display_order = LAST
    )]
    ascend_ops: AscendOps,
    /// Threads of the CPU device; results do not depend on it (default: all cores).
    #[arg(
        long, global = true, env = "HEADWATER_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024),
        help_heading = COMMON, display_order = LAST
    )]
    threads: Option<u16>,
}

const EXAMPLES: &str = "\
Examples:
  headwater migrate examples/digits-vit        the whole move, step by step, with a report
  headwater inspect model.pt2                  operators, parameters and memory of a model
  headwater compile model.pt2 --dump-after all --out stages
  headwater check model.pt2 model.golden.safetensors --precision f32
  headwater train model.pt2 --data train.safetensors --eval heldout.safetensors --epochs 10 --out run
  headwater eval model.pt2 --data heldout.safetensors --weights run
  headwater predict model.pt2 --data new.safetensors --weights run --out predictions.safetensors
  headwater op softmax --in in.safetensors --out out.safetensors --attr dim=-1
  headwater bench machine                      peak arithmetic and bandwidth of this machine

Exit status: 0 done; 1 error, or the model would not run; 2 wrong arguments; 3 numbers differ from PyTorch's, or a step of a
migration failed; 4 `check` found no difference but cannot prove every value, or `train` has lost a rank or found that ranks
differ; 101 a bug of Headwater; 128 + signal for a run that was interrupted (130 after Ctrl-C, 143 after SIGTERM).";

/// Heading of the options that all commands have, which follow a command's own.
const COMMON: &str = "All commands";
const LAST: usize = 1000;

/// Options of commands that plan the memory of a training step.
#[derive(clap::Args, Debug)]
struct Memory {
    /// Compute cheap activations again in the backward pass instead of keeping them: less memory, the same bits
    /// (default: true, unless a settings file says otherwise).
    #[arg(long, value_name = "BOOL", help_heading = "Memory")]
    recompute: Option<bool>,
    /// Keep products of one input with several weights apart, as PyTorch computes them, rather than make them
    /// one. The gradient of the input is a sum of rounded products then (default: one product, unless a
    /// settings file says otherwise).
    #[arg(long, help_heading = "Numbers")]
    exact_sums: bool,
    /// Memory that training may take, such as 8GiB. To keep it, the backward pass recomputes more, matrix products
    /// included. Bits stay the same, steps take longer (default: no limit, unless a settings file has one).
    #[arg(long, value_name = "SIZE", help_heading = "Memory")]
    memory_budget: Option<Bytes>,
    /// Size of a gradient bucket, as DistributedDataParallel's bucket_cap_mb; the first has at most 1MiB. Changes no
    /// number (default: 25MiB with several ranks, else 1GiB; unless a settings file says otherwise).
    #[arg(long, value_name = "SIZE", help_heading = "Memory")]
    bucket_size: Option<Bytes>,
    /// Embeddings whose update touches only the rows that a batch reads. `marked`: those with `sparse=True` in the model.
    /// `all`: also those of which a batch reads at most half the rows. `none`: no embedding. Rows not read keep their values
    /// and moments, unlike in a dense update (default: `marked`, unless a settings file says otherwise).
    #[arg(long, value_name = "WHICH", value_parser = sparse, help_heading = "Memory")]
    sparse_embeddings: Option<Sparse>,
    /// Form in which the optimizer keeps its moments: `f32`, `bf16` (2 bytes an element) or `int8` (1 byte). The latter
    /// two are rounded stochastically (default: `f32`, unless a settings file says otherwise).
    #[arg(long, value_name = "FORM", value_parser = moments, help_heading = "Memory")]
    moments: Option<Moments>,
}

/// Reads whose kernels are meant.
fn ascend_ops(text: &str) -> Result<AscendOps, String> {
    choice(text, &[("own", AscendOps::Own), ("vendor", AscendOps::Vendor)])
}

/// Reads a form of moments.
fn moments(text: &str) -> Result<Moments, String> {
    choice(text, &[("f32", Moments::F32), ("bf16", Moments::Bf16), ("int8", Moments::Int8)])
}

/// Reads a choice of embeddings.
fn sparse(text: &str) -> Result<Sparse, String> {
    choice(text, &[("marked", Sparse::Marked), ("all", Sparse::All), ("none", Sparse::None)])
}

/// Reads the treatment of values of another dtype.
fn cast(text: &str) -> Result<Cast, String> {
    choice(text, &[("exact", Cast::Exact), ("round", Cast::Round)])
}

/// The value of a word, one of a few.
fn choice<T: Copy>(text: &str, all: &[(&str, T)]) -> Result<T, String> {
    let found = all.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    found.ok_or_else(|| meant(text, all.iter().map(|(word, _)| *word)))
}

impl Memory {
    /// The switch, as given or else as it was.
    fn recompute(&self, before: bool) -> bool {
        self.recompute.unwrap_or(before)
    }

    /// Products that may become one.
    fn adjacent(&self) -> Option<Adjacent<'static>> {
        (!self.exact_sums).then_some(&anywhere)
    }

    /// The budget in bytes.
    fn budget(&self) -> Option<usize> {
        self.memory_budget.map(|b| b.0)
    }

    /// Sizes of buckets, as given or else those of one rank.
    fn buckets(&self) -> BucketSize {
        self.bucket_size.map_or(BucketSize::of_ranks(1), |b| BucketSize::of(b.0))
    }

    /// Embeddings with sparse gradients, as given or else those that are marked.
    fn sparse(&self) -> Sparse {
        self.sparse_embeddings.unwrap_or_default()
    }

    /// Form of the moments, as given or else f32.
    fn moments(&self) -> Moments {
        self.moments.unwrap_or_default()
    }

    /// Lays the options over settings.
    fn over(&self, c: &mut TrainConfig) {
        c.recompute = self.recompute(c.recompute);
        c.exact_sums |= self.exact_sums;
        c.memory_budget = self.memory_budget.or(c.memory_budget);
        c.bucket_size = self.bucket_size.or(c.bucket_size);
        c.sparse_embeddings = self.sparse_embeddings.unwrap_or(c.sparse_embeddings);
        c.moments = self.moments.unwrap_or(c.moments);
    }
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Show what this machine offers: processor, memory, threads, device libraries.
    Doctor(doctor::Args),
    /// List a model's operators, parameters and memory, and the operators that would not run.
    Inspect(inspect::Args),
    /// Compile a model stage by stage, and write the graph or plan after each stage.
    Compile(compile::Args),
    /// Compare a model's outputs, gradients and intermediates with PyTorch's recorded ones.
    Check(check::Args),
    /// Move a model to this machine in eight steps, each with a verdict: the main command.
    Migrate(migrate::Args),
    /// Train a model on your data.
    Train(Box<train::Args>),
    /// Train on several ranks, by the launcher that is installed.
    Launch(launch::Args),
    /// Compare training runs: settings that differ, metrics, curves over each other.
    Compare(compare::Args),
    /// Measure a model on held-out samples: loss, accuracy, perplexity, F1, R² and more.
    Eval(eval::Args),
    /// Write a model's outputs for the samples of a file.
    Predict(predict::Args),
    /// List the columns of a data set, or write its samples as tensors.
    Data(data::Args),
    /// Write trained weights as safetensors under their PyTorch names, or as a .pt2.
    Export(export::Args),
    /// Run one operator, forward or gradient, on tensors from a file.
    Op(op::Args),
    /// Write the kernels of a model or an operator as Ascend C sources; --project adds an extension for torch_npu.
    Kernels(kernels::Args),
    /// Print a script that completes commands and options in a shell.
    Completions(shell::CompletionsArgs),
    /// Print the manual page of the program, or write those of all commands.
    Man(shell::ManArgs),
    /// Explain an error code: its meaning, usual causes, and what to do.
    Explain(explain::Args),
    /// Measure this machine's limits, and operators and training steps against them.
    Bench(bench::Args),
}

/// End of a command, for its exit status; errors are separate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// All of it was done.
    Done,
    /// The answer is no, such as a model that would not run here.
    Failed,
    /// Numbers are not those that PyTorch computes, or a step of a migration failed.
    Differs,
    /// No value differs from PyTorch's, but bounds are too wide to prove all of them.
    NotProved,
    /// A signal ended it before it was complete.
    Interrupted,
    /// Ranks were lost or differ, or a program that it started has ended: the exit status.
    Of(u8),
}

impl Status {
    fn code(self) -> u8 {
        match self {
            Status::Done => 0,
            Status::Failed => 1,
            Status::Differs => 3,
            Status::NotProved => 4,
            Status::Interrupted => signals::status(),
            Status::Of(code) => code,
        }
    }
}

impl From<bool> for Status {
    fn from(success: bool) -> Status {
        if success { Status::Done } else { Status::Failed }
    }
}

/// Arguments that fit no command, found after they were parsed.
#[derive(Debug)]
pub(crate) struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Result of a command: its JSON, and its end.
pub(crate) struct Outcome {
    json: serde_json::Value,
    status: Status,
}

impl Outcome {
    fn of(value: impl serde::Serialize, status: impl Into<Status>) -> Result<Outcome> {
        Ok(Outcome { json: serde_json::to_value(value)?, status: status.into() })
    }
}

/// Output of a command while it runs: lines for people, or none when JSON is requested.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printer {
    json: bool,
}

impl Printer {
    /// Prints nothing.
    fn silent() -> Printer {
        Printer { json: true }
    }

    /// Prints a line for people.
    fn line(&self, s: impl AsRef<str>) {
        if !self.json {
            show(s.as_ref());
        }
    }

    /// Prints a text that other programs read, as it is.
    fn text(&self, s: &str) {
        if !self.json {
            print(s.trim_end());
        }
    }

    /// Prints a table for people.
    fn table(&self, t: &crate::report::Table) {
        if !self.json {
            show_table(t);
        }
    }
}

/// Runs the command line of this process, handles its signals, and returns the exit status.
pub fn run() -> std::process::ExitCode {
    let cli = Cli::parse();
    signals::own_process();
    signals::explain_lost_files();
    panics::explain();
    panics::guarded(cli.json, || printed(&cli)).into()
}

/// Runs a command line, the program's name first, as a part of a process of somebody else: no signal is
/// handled, and nothing ends the process. Returns the exit status. [`interrupt`] ends it in order.
pub fn run_from(args: impl IntoIterator<Item = OsString>) -> u8 {
    signals::forget();
    match Cli::try_parse_from(args) {
        Ok(cli) => printed(&cli),
        Err(e) => {
            let code = u8::try_from(e.exit_code()).unwrap_or(2);
            // A closed stream is no error.
            let _ = e.print();
            code
        }
    }
}

/// Runs a command line as [`run_from`], and returns what `--json` prints instead of printing it.
///
/// # Errors
/// The message of `error` in that JSON.
pub fn json_from(args: impl IntoIterator<Item = OsString>) -> Result<serde_json::Value> {
    signals::forget();
    let cli = Cli::try_parse_from(args)?;
    Ok(execute(&cli, Printer { json: true })?.json)
}

/// Asks a command that runs in this process to end in order, as the first signal of this number does:
/// training saves a checkpoint.
pub fn interrupt(signal: i32) {
    signals::interrupt(signal);
}

/// Runs a command and prints its result; returns the exit status.
fn printed(cli: &Cli) -> u8 {
    let printer = Printer { json: cli.json };
    let code = match execute(cli, printer) {
        Ok(o) => {
            if cli.json && !o.json.is_null() {
                print(&serde_json::to_string_pretty(&o.json).unwrap_or_default());
            }
            o.status.code()
        }
        // Rank 0 says why, if it is given the time: a launcher that sees one rank end may end the others.
        Err(e) if matches!(e.downcast_ref(), Some(crate::runtime::Error::AsRankZero)) => {
            std::thread::sleep(std::time::Duration::from_secs(1));
            1
        }
        Err(e) => {
            if cli.json {
                let text = format!("{e:#}");
                let code = crate::report::text::code(&text);
                print(&serde_json::json!({ "error": text, "code": code }).to_string());
            }
            say(format!("error: {e:#}"));
            if e.is::<Usage>() { 2 } else { 1 }
        }
    };
    match console::lost() {
        Some(why) if code == 0 => {
            say(format!("error: part of the result could not be written to standard output: {why}"));
            1
        }
        _ => code,
    }
}

/// Runs the command, on a device if it needs one.
fn execute(cli: &Cli, printer: Printer) -> Result<Outcome> {
    let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = cli.threads.map_or_else(cores, usize::from);
    let opened: RefCell<Option<Arc<dyn Device>>> = RefCell::default();
    let open = |transport: Option<Arc<dyn Transport>>| {
        let shared = transport.is_some() && cli.threads.is_none();
        let threads = if shared { ranks::threads(threads) } else { threads };
        let options = DeviceOptions { threads, ascend_ops: cli.ascend_ops };
        let device = match transport {
            None => devices::open(&cli.device, options),
            Some(transport) => devices::open_rank(&cli.device, options, transport),
        };
        let device = device.map_err(|e| match e.is::<crate::core::Error>() {
            true => e,
            false => Usage(format!("{e:#}")).into(),
        })?;
        if let Some(remark) = device.remark() {
            let name = device.name();
            say(format!("{name}: {remark}; durations of a run are this machine's"));
        }
        opened.replace(Some(device.clone()));
        anyhow::Ok(device)
    };
    let device = || open(None);
    let outcome = match &cli.command {
        Command::Doctor(args) => doctor::run(args, &device, printer),
        Command::Inspect(args) => inspect::run(args, &*device()?, printer),
        Command::Compile(args) => compile::run(args, &*device()?, printer),
        Command::Check(args) => check::run(args, &*device()?, printer),
        Command::Migrate(args) => migrate::run(args, device()?, printer),
        Command::Train(args) => train::run(args, &open, printer),
        Command::Launch(args) => launch::run(args),
        Command::Compare(args) => compare::run(args, printer),
        Command::Eval(args) => eval::run(args, device()?, printer),
        Command::Predict(args) => predict::run(args, device()?, printer),
        Command::Data(args) => data::run(args, printer),
        Command::Export(args) => export::run(args, printer),
        Command::Op(args) => op::run(args, &*device()?, printer),
        Command::Completions(args) => shell::completions(args, printer),
        Command::Man(args) => shell::man(args, printer),
        Command::Explain(args) => explain::run(args, printer),
        Command::Kernels(args) => kernels::run(args, printer),
        Command::Bench(args) => bench::run(args, device()?, threads, printer),
    };
    if let Some(device) = &*opened.borrow() {
        console::notes(&**device);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::path::Path;

    /// Commands of a text, one a line, each with its line: `headwater …`, without the comment after it.
    fn commands(text: &str) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        let mut open = false;
        for line in text.lines() {
            let (part, more) =
                line.trim().strip_suffix('\\').map_or((line.trim(), false), |part| (part, true));
            match lines.last_mut().filter(|_| open) {
                Some(last) => last.push_str(part),
                None => lines.push(part.to_string()),
            }
            open = more;
        }
        // Explanations come after a sign or a gap; files for the output after `>`.
        let first = |l: &str, gap: &str| l.split(gap).next().unwrap_or(l).to_string();
        let commands = lines.iter().filter(|l| l.starts_with("headwater "));
        commands.map(|l| [" #", "   ", " > "].iter().fold(l.to_string(), |l, gap| first(&l, gap))).collect()
    }

    /// Markdown files of a folder and those below it.
    fn pages(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pages(&path, found);
            } else if path.extension().is_some_and(|e| e == "md") {
                found.push(path);
            }
        }
    }

    #[test]
    fn commands_in_documents_and_help_are_understood() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut files = Vec::new();
        for folder in ["docs", "examples", "tools"] {
            pages(&root.join(folder), &mut files);
        }
        for file in ["README.md", "README.zh-CN.md", "BENCHMARKS.md", "CONTRIBUTING.md", "ARCHITECTURE.md"] {
            files.push(root.join(file));
        }
        let mut texts: Vec<(String, String)> = Vec::new();
        for file in files {
            texts.push((file.display().to_string(), std::fs::read_to_string(&file).unwrap()));
        }
        let mut all = vec![Cli::command()];
        while let Some(command) = all.pop() {
            if let Some(help) = command.get_after_help() {
                texts.push((format!("{} --help", command.get_name()), help.to_string()));
            }
            all.extend(command.get_subcommands().cloned());
        }
        let (mut count, mut refused) = (0, Vec::new());
        for (place, text) in &texts {
            for command in commands(text) {
                count += 1;
                if let Err(e) = Cli::try_parse_from(command.split_whitespace()) {
                    refused.push(format!(
                        "{place}: `{command}`: {}",
                        e.to_string().lines().next().unwrap_or("")
                    ));
                }
            }
        }
        assert!(count > 60, "only {count} commands were found");
        assert!(refused.is_empty(), "{}", refused.join("\n"));
    }

    #[test]
    fn ways_out_of_errors_name_options_that_there_are() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors.md");
        let page = std::fs::read_to_string(page).unwrap();
        let mut known = std::collections::BTreeSet::new();
        let mut all = vec![Cli::command()];
        while let Some(command) = all.pop() {
            known.extend(command.get_arguments().filter_map(|a| a.get_long()).map(str::to_string));
            all.extend(command.get_subcommands().cloned());
        }
        let word =
            |text: &str| text.split(|c: char| c != '-' && !c.is_ascii_lowercase()).next().map(str::to_string);
        let named: Vec<String> = page.split(['`', ' ']).filter_map(|w| word(w.strip_prefix("--")?)).collect();
        assert!(named.len() > 15, "only {} options were found", named.len());
        for option in named {
            assert!(known.contains(&option), "no command has --{option}");
        }
    }
}
