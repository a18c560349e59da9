//! GPUs that are not in this machine: plans are made for them, and kernels compiled or written as text.

use crate::host::compile::{Compiled, Compiler, Source};
use crate::lower;
use crate::program::{CudaProgram, Work};
use crate::target::target;
use headwater_core::device::{Buffer, Content, Device, Executable, Foreign, StepUse, Stream};
use headwater_core::diagnostic::{Error, Result};
use headwater_core::fail;
use headwater_core::graph::Origin;
use headwater_core::plan::Plan;
use headwater_core::target::Target;
use headwater_launch::{Distinct, Program, Refusal};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of memory that plans are made for: those of an H100.
const BYTES: u64 = 80 << 30;
/// Launches whose lines a kernel's text names.
const LINES: usize = 3;

/// A kind of GPU, such as `sm_90`. Nothing runs there; its plans are those of a GPU of that kind with all
/// libraries.
#[derive(Debug)]
pub struct Offline {
    name: String,
    arch: String,
    target: Target,
}

/// Kernels of plans, each once.
#[derive(Debug, Default)]
pub struct Kernels {
    distinct: Distinct<CudaProgram>,
    /// The model's lines of the first launches of each kernel, by its number.
    lines: Vec<Vec<String>>,
    /// Steps of the plans, and those by kernels or by cuBLASLt.
    pub steps: (usize, usize),
    /// Steps on the host, by operator and reason.
    pub host: BTreeMap<String, usize>,
}

impl Offline {
    /// The kind of GPU of that name: `sm_` and its compute capability.
    ///
    /// # Errors
    /// `Device` for a name that is none of an architecture.
    pub fn new(arch: &str) -> Result<Offline> {
        let digits = arch.strip_prefix("sm_").and_then(|d| d.strip_suffix('a').or(Some(d)));
        let capability = digits.and_then(|d| d.parse::<u32>().ok());
        match capability {
            Some(80..) => {}
            Some(_) => return Err(fail!(Device, "`{arch}`: GPUs from sm_80 on are supported")),
            None => return Err(fail!(Device, "`{arch}` is no kind of GPU: use one such as sm_90")),
        }
        let name = format!("cuda:{arch}");
        let target = target(&name, BYTES, true, true);
        Ok(Offline { name, arch: arch.into(), target })
    }

    /// The architecture's name.
    pub fn arch(&self) -> &str {
        &self.arch
    }

    fn absent<T>(&self) -> Result<T> {
        let name = &self.name;
        Err(fail!(
            Unsupported,
            "{name} is a kind of GPU, for which plans are made and kernels compiled; nothing runs there: use --device cuda"
        ))
    }
}

impl Kernels {
    /// The kernels of plans.
    pub fn of<'a>(plans: impl IntoIterator<Item = &'a Plan>) -> Kernels {
        let mut all = Kernels::default();
        for plan in plans {
            for step in &plan.steps {
                all.steps.0 += 1;
                let lowered = match lower::step(step) {
                    Ok(lowered) => lowered,
                    Err(Refusal(why)) => {
                        *all.host.entry(format!("{}: {why}", step.op)).or_default() += 1;
                        continue;
                    }
                };
                all.steps.1 += 1;
                for launch in &lowered.launches {
                    let number = all.distinct.number(&launch.program);
                    all.lines.resize_with(all.distinct.programs().len(), Vec::new);
                    let origin =
                        plan.origins.get(step.origin.0 as usize).filter(|o| **o != Origin::default());
                    let origin = origin.map(ToString::to_string);
                    let lines = &mut all.lines[number];
                    if let Some(line) = origin.filter(|l| !lines.contains(l))
                        && lines.len() < LINES
                    {
                        lines.push(line);
                    }
                }
            }
        }
        all
    }

    /// The programs that are text, with their numbers.
    fn texts(&self) -> impl Iterator<Item = (usize, &Arc<CudaProgram>)> {
        let own = |(_, p): &(usize, &Arc<CudaProgram>)| matches!(p.work, Work::Text { .. });
        self.distinct.programs().iter().enumerate().filter(own)
    }

    /// Compiles them for an architecture, into the compiler's cache.
    ///
    /// # Errors
    /// A kernel that does not compile; a cache that cannot be written.
    pub fn compile(&self, compiler: &Compiler) -> Result<Compiled> {
        let source = |(_, p): (usize, &Arc<CudaProgram>)| Source { name: p.name().into(), text: p.source() };
        let sources: Vec<Source> = self.texts().map(source).collect();
        compiler.compile(&sources).map_err(Error::from)
    }

    /// Files of CUDA C, one for each kernel, and those that they include. Each compiles by itself.
    pub fn files(&self) -> Vec<(String, String)> {
        let unit = |(number, program): (usize, &Arc<CudaProgram>)| {
            let mut text = String::new();
            self.lines[number].iter().for_each(|line| text += &format!("// {line}\n"));
            let unit = crate::text::unit(&[program.source()]);
            (format!("{}.cu", program.name()), text + &unit)
        };
        let headers = crate::text::HEADERS.iter().map(|(name, text)| (name.to_string(), text.to_string()));
        headers.chain(self.texts().map(unit)).collect()
    }
}

impl Device for Offline {
    fn name(&self) -> &str {
        &self.name
    }

    fn target(&self) -> &Target {
        &self.target
    }

    fn alloc(&self, _: usize, _: Content) -> Result<Arc<dyn Buffer>> {
        self.absent()
    }

    fn borrow(&self, _: Box<dyn Foreign>) -> Result<Arc<dyn Buffer>> {
        self.absent()
    }

    fn stream(&self) -> Result<Box<dyn Stream>> {
        self.absent()
    }

    fn load(&self, _: &Plan) -> Result<Box<dyn Executable>> {
        self.absent()
    }

    fn survey(&self, plan: &Plan) -> Vec<StepUse> {
        let used = |step| match lower::step(step) {
            Ok(lowered) => StepUse { launches: lowered.launches.len(), ..StepUse::default() },
            Err(Refusal(why)) => StepUse { host: Some(why), ..StepUse::default() },
        };
        plan.steps.iter().map(used).collect()
    }
}
