//! A compilation that is watched: the text after each stage, and a line about each.

use crate::core::compile::{self, CompiledGraph, Form, Goal, Options, STAGES, Stage, StageResult};
use crate::core::pass::precision::Properties;
use crate::core::plan::{Bindings, Segment, SegmentKind};
use crate::core::target::Target;
use crate::core::train::{self, BucketLayout, BucketSize};
use crate::core::{DType, Graph, TensorType};
use crate::inspect::{BucketUse, buckets};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::time::Instant;

/// A stage that ran.
#[derive(Clone, Debug, Serialize)]
pub struct StageRun {
    /// Its name.
    pub stage: &'static str,
    /// Nodes of the graph it was given.
    pub before: usize,
    /// Nodes of the graph, or steps of the plan, that it made.
    pub after: usize,
    /// True if it made the plan.
    pub plan: bool,
    /// Seconds it took.
    pub seconds: f64,
    /// Its exactness label.
    pub exactness: &'static str,
    /// One sentence.
    pub summary: &'static str,
}

/// A compilation.
#[derive(Clone, Debug, Serialize)]
pub struct Compilation {
    /// Stages, in their order.
    pub stages: Vec<StageRun>,
    /// Buckets of gradients, in the order in which the plan completes them.
    pub buckets: Vec<BucketUse>,
}

/// Which texts to write, and where.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dump<'a> {
    /// Names of stages, or `all`.
    pub after: &'a [String],
    /// A folder; without one the texts are printed.
    pub out: Option<&'a Path>,
}

/// Compiles a forward graph stage by stage. The goal is training if none is given and the first output is a
/// loss, else the forward pass. `print` takes the texts for which there is no folder.
///
/// # Errors
/// For a stage that there is not, what the stages refuse, and what the system refuses to write.
pub fn compile(
    graph: &Graph,
    goal: Option<Goal>,
    options: Options,
    size: BucketSize,
    dump: Dump,
    target: &Target,
    print: impl Fn(&str),
) -> Result<Compilation> {
    if let Some(name) = dump.after.iter().find(|n| *n != "all" && compile::stage(n).is_none()) {
        let names: Vec<&str> = STAGES.iter().map(|s| s.name).collect();
        bail!("there is no stage `{name}`; the stages are {}", names.join(", "));
    }
    if let Some(out) = dump.out {
        std::fs::create_dir_all(out).with_context(|| format!("cannot make the folder {}", out.display()))?;
    }
    let fallback = if compile::has_loss(graph) { Goal::Train } else { Goal::Forward };
    let (clock, seconds, failed) = (Cell::new(Instant::now()), RefCell::new(Vec::new()), RefCell::new(None));
    let watch = |stage: &'static Stage, made: &StageResult| {
        seconds.borrow_mut().push(clock.get().elapsed().as_secs_f64());
        let wanted = dump.after.iter().any(|n| n == "all" || n == stage.name);
        if wanted && failed.borrow().is_none() {
            // Stages are numbered as in the table, so that files sort in their order.
            let number = STAGES.iter().position(|s| s.name == stage.name).unwrap_or(0) + 1;
            let result = write(number, stage, made, dump.out, &print);
            *failed.borrow_mut() = result.err();
        }
        clock.set(Instant::now());
    };
    let options = Options { goal: goal.unwrap_or(fallback), watch: Some(&watch), ..options };
    let bind = |c: &CompiledGraph| Ok::<_, anyhow::Error>(bindings(c, &options, size));
    let compiled = compile::compile(graph.clone(), &options, target, bind)?;
    if let Some(e) = failed.take() {
        return Err(e);
    }
    let run = |(r, seconds): (&compile::StageReport, f64)| StageRun {
        stage: r.stage.name,
        before: r.before,
        after: r.after,
        plan: r.stage.output == Form::Plan,
        seconds,
        exactness: r.stage.label(),
        summary: r.stage.summary,
    };
    let stages = compiled.report.iter().zip(seconds.take()).map(run).collect();
    Ok(Compilation { stages, buckets: compiled.plan.as_ref().map_or(vec![], buckets) })
}

/// Places of inputs and outputs: gradients in buckets, all else in segments of their own. Where there is a
/// memory budget, AdamW's state counts in it; no graph has that as an input here.
pub(crate) fn bindings(compiled: &CompiledGraph, options: &Options, size: BucketSize) -> Bindings {
    let dense = compiled.gradients.iter().filter(|g| g.rows.is_none());
    let parameters = dense.map(|g| (g.parameter.as_str(), &g.ty, 0));
    let mut bindings =
        train::bind(&compiled.graph, &BucketLayout::with_adjacent(parameters, &compiled.adjacent, size));
    if options.memory_budget.is_some() {
        let bytes = optimizer_bytes(compiled, &options.precision).iter().sum();
        bindings.segments.push(Segment { name: "optimizer".into(), bytes, kind: SegmentKind::State });
    }
    bindings
}

/// Bytes of masters and of AdamW's two moments.
fn optimizer_bytes(compiled: &CompiledGraph, p: &Properties) -> [usize; 2] {
    let wide = |t: &TensorType| t.shape.numel() * t.dtype.size().max(DType::F32.size());
    // The master of a bf16 weight is kept as what the weight lacks of it.
    let master = |t: &TensorType| match t.dtype {
        _ if !p.masters => 0,
        DType::BF16 => t.bytes(),
        _ if wide(t) > t.bytes() => wide(t),
        _ => 0,
    };
    let types = || compiled.gradients.iter().map(|g| &g.ty);
    [types().map(master).sum(), types().map(|t| 2 * wide(t)).sum()]
}

fn write(
    number: usize,
    stage: &Stage,
    made: &StageResult,
    out: Option<&Path>,
    print: &impl Fn(&str),
) -> Result<()> {
    let (text, ending) = match made {
        StageResult::Graph(graph) => (graph.to_string(), "graph"),
        StageResult::Plan(plan) => (plan.to_string(), "plan"),
    };
    let Some(out) = out else {
        print(&format!("# after {}\n{text}", stage.name));
        return Ok(());
    };
    let file = out.join(format!("{number:02}-{}.{ending}", stage.name));
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
}
