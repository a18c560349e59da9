//! Loads plans and runs them: checks every operand once, prepares each step, then runs the steps in order.

use crate::kernels::{self, Args, Prepared, Site};
use crate::memory::CpuMemory;
use crate::pool::{Pool, Shared};
use crate::rows::{Program, Scratch, ScratchSize};
use crate::tier::Tier;
use crate::view::{View, ViewMut};
use headwater_core::device::{Executable, Memory};
use headwater_core::diagnostic::{Code, Error, Result};
use headwater_core::graph::Origin;
use headwater_core::plan::{Plan, Step, Work};
use headwater_core::target::Port;
use headwater_core::{OpCx, TensorType, ensure, fail};
use std::time::Instant;

/// A plan ready to run on the CPU.
pub(crate) struct Loaded {
    steps: Vec<LoadedStep>,
    /// Smallest size of each segment, and its name.
    segments: Vec<(usize, String)>,
    /// Addresses of the segments in the current run.
    bases: Vec<Shared<u8>>,
    pool: Pool,
    scratch: Scratch,
    failure: Option<Error>,
}

struct LoadedStep {
    work: LoadedWork,
    op: &'static str,
    origin: Origin,
}

enum LoadedWork {
    Rows(Box<Program>),
    Kernel { run: Prepared, reads: Vec<Option<View>>, writes: Vec<ViewMut>, workspace: Option<Workspace> },
}

/// No workspace: aligned as any other, so that kernels may view it as what they like.
#[repr(align(64))]
struct Empty([u8; 0]);

/// Scratch memory of a kernel, in the arena.
struct Workspace {
    segment: usize,
    byte: usize,
    bytes: usize,
}

impl Loaded {
    pub(crate) fn new(plan: &Plan, pool: &Pool, tier: Tier) -> Result<Self> {
        let mut steps = Vec::with_capacity(plan.steps.len());
        let mut size = ScratchSize::default();
        for step in &plan.steps {
            let origin = plan.origins.get(step.origin.0 as usize).cloned().unwrap_or_default();
            let work = load(plan, step, pool, tier).map_err(|e| e.in_op(step.op).at(&origin))?;
            if let LoadedWork::Rows(p) = &work {
                size = size.max(p.scratch());
            }
            steps.push(LoadedStep { work, op: step.op, origin });
        }
        let mut scratch = Scratch::new(size, pool.threads())?;
        for step in &steps {
            if let LoadedWork::Rows(p) = &step.work {
                scratch.reserve(p);
            }
        }
        let segments: Vec<_> = plan.segments.iter().map(|s| (s.bytes, s.name.clone())).collect();
        let bases = vec![Shared(std::ptr::null_mut()); segments.len()];
        Ok(Loaded { steps, segments, bases, pool: pool.clone(), scratch, failure: None })
    }

    fn bind(&mut self, memory: &mut [&mut dyn Memory]) -> Result<()> {
        let (got, want) = (memory.len(), self.segments.len());
        ensure!(got == want, Device, "the plan has {want} segments, the run was given {got}");
        for ((m, (bytes, name)), base) in memory.iter_mut().zip(&self.segments).zip(&mut self.bases) {
            let m = m.as_any().downcast_mut::<CpuMemory>();
            let m = m.ok_or_else(|| fail!(Device, "segment `{name}` is not in the CPU's memory"))?;
            ensure!(m.bytes() >= *bytes, Device, "segment `{name}` has {} bytes, needs {bytes}", m.bytes());
            *base = Shared(m.base());
        }
        Ok(())
    }
}

/// Checks and prepares one step.
fn load(plan: &Plan, step: &Step, pool: &Pool, tier: Tier) -> Result<LoadedWork> {
    let reads = step.reads.iter().map(|v| v.as_ref().map(|v| View::checked(plan, v)).transpose());
    let reads = reads.collect::<Result<Vec<Option<View>>>>()?;
    let writes = step.writes.iter().map(|v| View::checked_mut(plan, v)).collect::<Result<Vec<ViewMut>>>()?;
    let workspace = step.workspace.map(|(place, bytes)| {
        let segment = place.segment.0 as usize;
        let inside = plan.segments.get(segment).is_some_and(|s| {
            place.offset.checked_add(bytes).is_some_and(|end| end <= s.bytes)
                && place.offset.is_multiple_of(64)
        });
        ensure!(inside, Plan, "the workspace {place:?} of {bytes} bytes lies outside its segment");
        Ok(Workspace { segment, byte: place.offset, bytes })
    });
    let workspace = workspace.transpose()?;
    match &step.work {
        Work::Rows(program) => {
            let reads: Vec<&View> = reads.iter().flatten().collect();
            Ok(LoadedWork::Rows(Box::new(Program::new(plan, program, &reads, &writes, tier)?)))
        }
        Work::Kernel { op, attrs } => {
            check_apart(&reads, &writes, workspace.as_ref())?;
            let types: Vec<Option<TensorType>> = reads.iter().map(|v| v.as_ref().map(View::ty)).collect();
            let outs: Vec<TensorType> = writes.iter().map(|v| v.ty()).collect();
            let cx = OpCx { inputs: types.iter().map(Option::as_ref).collect(), attrs };
            let site = Site { cx, outs: &outs, threads: pool.threads(), tier };
            let run = match kernels::choose(op.name, &site) {
                None => kernels::reference(op, attrs, &outs)?,
                Some(kernel) => {
                    for (i, v) in reads.iter().enumerate() {
                        let fits =
                            v.as_ref().is_none_or(|v| v.is_contiguous() || (kernel.strided)(Port::Read(i)));
                        ensure!(fits, Plan, "input {i} must be contiguous for this kernel");
                    }
                    for (i, w) in writes.iter().enumerate() {
                        let fits = w.is_contiguous() || (kernel.strided)(Port::Write(i)) && rows_are_dense(w);
                        ensure!(fits, Plan, "output {i} must be contiguous for this kernel");
                    }
                    let needs = (kernel.workspace)(&site);
                    let has = workspace.as_ref().map_or(0, |w| w.bytes);
                    ensure!(
                        has >= needs,
                        Plan,
                        "the kernel needs {needs} bytes of workspace, the plan gives {has}"
                    );
                    (kernel.prepare)(&site)?
                }
            };
            Ok(LoadedWork::Kernel { run, reads, writes, workspace })
        }
    }
}

/// Whether the elements of a row follow each other, and no two indices share an element.
fn rows_are_dense(w: &View) -> bool {
    let mut dims: Vec<_> = w.shape().iter().zip(w.strides()).filter(|(n, _)| **n != 1).collect();
    let last = w.shape().last().is_none_or(|&n| n == 1) || w.strides().last() == Some(&1);
    dims.sort_by_key(|(_, s)| **s);
    // Each stride reaches past all that the smaller ones reach.
    let mut reach = 0;
    let apart = dims.iter().all(|(n, s)| {
        let beyond = **s > reach;
        reach += **s * (**n as isize - 1);
        beyond
    });
    last && apart
}

/// Kernels hold references to their operands: no output may overlap another operand.
fn check_apart(reads: &[Option<View>], writes: &[ViewMut], workspace: Option<&Workspace>) -> Result<()> {
    for (i, w) in writes.iter().enumerate() {
        for (j, r) in reads.iter().enumerate() {
            let apart = r.as_ref().is_none_or(|r| !w.meets(r));
            ensure!(apart, Plan, "output {i} of a kernel overlaps input {j}");
        }
        let apart = writes[..i].iter().all(|v| !w.meets(v));
        ensure!(apart, Plan, "output {i} of a kernel overlaps another output");
    }
    if let Some(s) = workspace {
        let scratch = s.byte..s.byte + s.bytes;
        for v in reads.iter().flatten().chain(writes.iter().map(|w| &**w)) {
            let meets = v
                .hull()
                .is_some_and(|(g, h)| g == s.segment && h.start < scratch.end && scratch.start < h.end);
            ensure!(!meets, Plan, "the workspace overlaps an operand");
        }
    }
    Ok(())
}

impl LoadedStep {
    /// # Safety
    /// `bases` are the segments of the plan, at least of their sizes, held exclusively; `scratch` is large
    /// enough.
    unsafe fn run(&mut self, bases: &[Shared<u8>], pool: &Pool, scratch: &mut Scratch) -> Result<()> {
        match &mut self.work {
            LoadedWork::Rows(program) => {
                // SAFETY: the caller's promise.
                unsafe { program.run(bases, pool, scratch) };
                Ok(())
            }
            LoadedWork::Kernel { run, reads, writes, workspace } => {
                reads.iter_mut().flatten().for_each(|v| v.bind(bases));
                writes.iter_mut().for_each(|v| v.bind(bases));
                let mut none = Empty([]);
                let workspace: &mut [u8] = match workspace {
                    None => &mut none.0,
                    // SAFETY: the range was checked to lie in its segment and to overlap no operand.
                    Some(s) => unsafe {
                        std::slice::from_raw_parts_mut(bases[s.segment].get().add(s.byte), s.bytes)
                    },
                };
                run(&mut Args { reads, writes, workspace, pool })
            }
        }
        .map_err(|e| e.in_op(self.op).at(&self.origin))
    }
}

impl Executable for Loaded {
    fn run(&mut self, memory: &mut [&mut dyn Memory], mut seconds: Option<&mut [f64]>) -> Result<()> {
        if let Some(e) = &self.failure {
            return Err(e.clone());
        }
        self.bind(memory)?;
        let Loaded { steps, bases, pool, scratch, .. } = self;
        let (bases, pool) = (&*bases, &*pool);
        let result: Result<()> = steps.iter_mut().enumerate().try_for_each(|(i, step)| {
            let start = seconds.is_some().then(Instant::now);
            // SAFETY: `bind` has checked the memory, which is borrowed exclusively; the scratch memory was
            // made for all steps.
            unsafe { step.run(bases, pool, scratch) }?;
            if let (Some(s), Some(start)) = (seconds.as_mut().and_then(|s| s.get_mut(i)), start) {
                *s += start.elapsed().as_secs_f64();
            }
            Ok(())
        });
        if let Err(e) = &result
            && e.code == Code::Device
        {
            self.failure = Some(e.clone());
        }
        result
    }
}
