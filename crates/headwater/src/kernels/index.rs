//! The index of a model's kernels: what is launched in a training step, in order, as `kernels.json`, and how
//! to read it.

use crate::core::plan::{Plan, Step, TensorView};
use headwater_ascend::Chip;
use headwater_ascend::lower::{Lowered, LoweredArg, LoweredLaunch};
use serde::Serialize;

/// A step of the plan.
#[derive(Debug, Serialize)]
struct StepEntry {
    step: usize,
    operator: String,
    /// Path of the module and line of the model that the step comes from; empty for the root, and where it is
    /// unknown.
    module: String,
    line: String,
    /// Operands by their dtype and shape.
    reads: Vec<String>,
    writes: Vec<String>,
    /// Bytes of workspace that its launches share.
    workspace: u64,
    launches: Vec<LaunchEntry>,
    /// Why the step runs on the host, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
}

/// A launch of a kernel.
#[derive(Debug, Serialize)]
struct LaunchEntry {
    kernel: String,
    blocks: u32,
    arguments: Vec<String>,
}

/// Collects the steps of a plan as they are lowered.
#[derive(Debug, Default)]
pub(super) struct Index {
    steps: Vec<StepEntry>,
}

impl Index {
    /// Adds a step that runs on the host, for a reason.
    pub(super) fn host(&mut self, plan: &Plan, step: &Step, why: &str) {
        let mut entry = self.entry(plan, step);
        entry.host = Some(why.to_string());
        self.steps.push(entry);
    }

    /// Adds a step that runs by kernels; `names` are those of its launches' kernels.
    pub(super) fn launches(&mut self, plan: &Plan, step: &Step, lowered: &Lowered, names: &[String]) {
        let mut entry = self.entry(plan, step);
        entry.workspace = lowered.scratch;
        let launch = |(launch, kernel): (&LoweredLaunch, &String)| LaunchEntry {
            kernel: kernel.clone(),
            blocks: launch.blocks,
            arguments: launch
                .args
                .iter()
                .zip(&launch.program.params)
                .map(|(a, p)| argument(a, &p.name))
                .collect(),
        };
        entry.launches = lowered.launches.iter().zip(names).map(launch).collect();
        self.steps.push(entry);
    }

    fn entry(&self, plan: &Plan, step: &Step) -> StepEntry {
        let origin = plan.origin(step);
        let line = if origin.line > 0 { format!("{}:{}", origin.file, origin.line) } else { String::new() };
        let view = |v: &TensorView| format!("{}{:?}", v.dtype, v.layout.shape);
        StepEntry {
            step: self.steps.len(),
            operator: step.op.to_string(),
            module: origin.module,
            line,
            reads: step.reads.iter().map(|v| v.as_ref().map_or("none".into(), view)).collect(),
            writes: step.writes.iter().map(view).collect(),
            workspace: 0,
            launches: Vec::new(),
            host: None,
        }
    }

    /// The files beside the kernels' sources, by name.
    pub(super) fn files(&self, chip: &Chip) -> Vec<(String, String)> {
        let launches: usize = self.steps.iter().map(|s| s.launches.len()).sum();
        let host = self.steps.iter().filter(|s| s.host.is_some()).count();
        let readme = format!(
            "# Kernels of a training step on {chip}\n\n\
             {} steps, {launches} launches, {host} steps on the host. Each `.cpp` is the Ascend C of one distinct kernel, which may be \
             launched several times.\n\n\
             `kernels.json` lists the steps in the order in which they run: the operator, the module and line of the model, the dtypes \
             and shapes of operands, the bytes of workspace, and for each launch the kernel's name, its number of blocks, and its \
             arguments by parameter. `read i` and `write i` are the addresses of the step's operands, `+ n` a byte offset; \
             `workspace` and `constants` are memory that the caller provides. A step on the host has `host`, the reason.\n",
            self.steps.len(),
        );
        let json = serde_json::to_string_pretty(&self.steps).unwrap_or_default();
        vec![("kernels.json".into(), json + "\n"), ("README.md".into(), readme)]
    }
}

/// An argument, by the name of its parameter.
fn argument(arg: &LoweredArg, name: &str) -> String {
    let with = |what: String, bytes: u64| if bytes == 0 { what } else { format!("{what} + {bytes}") };
    let value = match arg {
        LoweredArg::Read { operand, bytes } => with(format!("read {operand}"), *bytes),
        LoweredArg::Write { operand, bytes } => with(format!("write {operand}"), *bytes),
        LoweredArg::Scratch { bytes } => with("workspace".into(), *bytes),
        LoweredArg::Constant { bytes } => with("constants".into(), *bytes),
        LoweredArg::Fault { limit } => format!("report of indices that are not below {limit}"),
        LoweredArg::Int(n) => n.to_string(),
        LoweredArg::Float(x) => x.to_string(),
    };
    format!("{name} = {value}")
}
