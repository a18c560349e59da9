//! Loads plans and runs them: checks every operand once, prepares each step, then runs the steps in order.

use crate::buffer::CpuBuffer;
use crate::kernels::{Args, Kernels, Prepared, Site, matmul};
use crate::pool::{Pool, Shared};
use crate::rows::{Program, Scratch, ScratchSize};
use crate::stream::CpuStream;
use crate::tier::Tier;
use crate::view::{View, ViewMut};
use headwater_core::carry::Carrier;
use headwater_core::device::{Buffer, Executable, Stream};
use headwater_core::diagnostic::{Code, Error, Result};
use headwater_core::graph::Origin;
use headwater_core::ops::collective::is_collective;
use headwater_core::ops::linear::matmul_sum::MATMUL_SUM;
use headwater_core::plan::{Plan, SegmentId, Step, Work};
use headwater_core::ranks::Transport;
use headwater_core::target::Port;
use headwater_core::{Attrs, OpCx, OpDef, TensorType, ensure, fail, reference};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// A plan ready to run on the CPU.
pub(crate) struct Loaded {
    steps: Vec<LoadedStep>,
    segments: Vec<LoadedSegment>,
    /// Addresses of the segments in the current run.
    bases: Vec<Shared<u8>>,
    /// Reused by every run, to see whether a buffer is given twice.
    order: Vec<(usize, usize)>,
    pool: Pool,
    scratch: Scratch,
    failure: Option<Error>,
    /// Seconds of each step, if they are measured.
    seconds: Vec<f64>,
}

struct LoadedSegment {
    name: String,
    /// Least size.
    bytes: usize,
    /// True if a step writes there.
    written: bool,
}

struct LoadedStep {
    work: LoadedWork,
    op: &'static str,
    origin: Origin,
}

enum LoadedWork {
    Rows(Box<Program>),
    Kernel {
        run: Prepared,
        reads: Vec<Option<View>>,
        writes: Vec<ViewMut>,
        workspace: Option<Workspace>,
        /// Sums of an operand, of a product that has them: run after it, in the order that they have alone.
        sums: Option<Box<Program>>,
    },
    /// Together with the other ranks.
    Collective {
        op: &'static OpDef,
        attrs: Attrs,
        reads: Vec<View>,
        write: ViewMut,
        transport: Arc<dyn Transport>,
        /// Operator and line, for others to say where this rank is.
        named: String,
    },
    /// Through the core's interpreter: slowly, correctly, on one thread.
    Reference(Box<Step>),
    /// Every result has no elements: there is nothing to compute, however many rows they count.
    Nothing,
}

impl LoadedWork {
    /// The row program that it runs, if there is one.
    fn program(&self) -> Option<&Program> {
        match self {
            LoadedWork::Rows(p) | LoadedWork::Kernel { sums: Some(p), .. } => Some(p),
            _ => None,
        }
    }
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
    pub(crate) fn new(
        plan: &Plan,
        pool: &Pool,
        tier: Tier,
        kernels: &Kernels,
        transport: Option<Arc<dyn Transport>>,
    ) -> Result<Self> {
        plan.check_ranks(transport.as_ref().map_or(1, |t| t.ranks()))?;
        let mut steps = Vec::with_capacity(plan.steps.len());
        let mut size = ScratchSize::default();
        for step in &plan.steps {
            let origin = plan.origin(step);
            let work = match (&step.work, &transport) {
                (Work::Kernel { op, attrs }, Some(transport)) if is_collective(op) => {
                    meeting(plan, step, op, attrs, transport)
                }
                _ => load(plan, step, pool, tier, kernels),
            };
            let work = work.map_err(|e| e.in_op(step.op).at(&origin))?;
            if let Some(p) = work.program() {
                size = size.max(p.scratch());
            }
            steps.push(LoadedStep { work, op: step.op, origin });
        }
        let mut scratch = Scratch::new(size, pool.threads())?;
        for step in &steps {
            if let Some(p) = step.work.program() {
                scratch.reserve(p);
            }
        }
        let written = |segment: usize| {
            let places = plan
                .steps
                .iter()
                .flat_map(|s| s.writes.iter().map(|w| w.place).chain(s.workspace.map(|(place, _)| place)));
            places.into_iter().any(|p| p.segment.0 as usize == segment)
        };
        let segments: Vec<LoadedSegment> = (plan.segments.iter().enumerate())
            .map(|(i, s)| LoadedSegment { name: s.name.clone(), bytes: s.bytes, written: written(i) })
            .collect();
        let bases = vec![Shared(std::ptr::null_mut()); segments.len()];
        let (pool, seconds) = (pool.clone(), Vec::new());
        let order = Vec::with_capacity(segments.len());
        Ok(Loaded { steps, segments, bases, order, pool, scratch, failure: None, seconds })
    }

    /// Checks the memory of a run and notes its addresses.
    fn bind(&mut self, memory: &[Arc<dyn Buffer>]) -> Result<()> {
        let (got, want) = (memory.len(), self.segments.len());
        ensure!(got == want, Device, "the plan has {want} segments, the run was given {got}");
        for (i, (buffer, segment)) in memory.iter().zip(&self.segments).enumerate() {
            let LoadedSegment { name, bytes, .. } = segment;
            let own = CpuBuffer::of(buffer)?;
            ensure!(
                own.bytes() >= *bytes,
                Device,
                "segment `{name}` has {} bytes, needs {bytes}",
                own.bytes()
            );
            self.bases[i] = Shared(own.base());
        }
        // By the address of the buffer, with its segment: equal ones become adjacent.
        self.order.clear();
        self.order.extend(memory.iter().enumerate().map(|(i, b)| (Arc::as_ptr(b).cast::<u8>().addr(), i)));
        self.order.sort_unstable();
        if let Some(pair) = self.order.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let name = &self.segments[pair[1].1].name;
            return Err(fail!(Device, "segment `{name}` is given the memory of another"));
        }
        Ok(())
    }
}

/// The memory of a run, taken: to write where a step writes, else to read. Given back when dropped.
struct Taken<'a> {
    memory: &'a [Arc<dyn Buffer>],
    segments: &'a [LoadedSegment],
    /// Number of the first that are taken.
    count: usize,
}

impl<'a> Taken<'a> {
    /// Takes all, or none and tries again until others have given theirs back: so nobody waits for who waits
    /// for him.
    fn new(memory: &'a [Arc<dyn Buffer>], segments: &'a [LoadedSegment]) -> Result<Taken<'a>> {
        loop {
            let mut taken = Taken { memory, segments, count: 0 };
            for (buffer, segment) in memory.iter().zip(segments) {
                if !CpuBuffer::of(buffer)?.take(segment.written) {
                    break;
                }
                taken.count += 1;
            }
            if taken.count == segments.len() {
                return Ok(taken);
            }
            drop(taken);
            std::thread::yield_now();
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        for (buffer, segment) in self.memory.iter().zip(self.segments).take(self.count) {
            if let Ok(buffer) = CpuBuffer::of(buffer) {
                buffer.release(segment.written);
            }
        }
    }
}

/// Checks a step in which ranks meet.
fn meeting(
    plan: &Plan,
    step: &Step,
    op: &'static OpDef,
    attrs: &Attrs,
    transport: &Arc<dyn Transport>,
) -> Result<LoadedWork> {
    let reads = step.reads.iter().flatten().map(|v| View::checked(plan, v));
    let reads = reads.collect::<Result<Vec<View>>>()?;
    let writes = step.writes.iter().map(|v| View::checked_mut(plan, v)).collect::<Result<Vec<ViewMut>>>()?;
    let [write] = <[ViewMut; 1]>::try_from(writes).map_err(|_| fail!(Plan, "a collective has one result"))?;
    let dense = write.is_contiguous() && reads.iter().all(View::is_contiguous);
    ensure!(dense, Plan, "operands of a collective must be contiguous");
    ensure!(!reads.iter().any(|r| write.meets(r)), Plan, "the result of a collective overlaps an operand");
    let origin = plan.origin(step);
    let named = if origin == Origin::default() { step.op.into() } else { format!("{} at {origin}", step.op) };
    Ok(LoadedWork::Collective { op, attrs: attrs.clone(), reads, write, transport: transport.clone(), named })
}

/// Checks and prepares one step.
fn load(plan: &Plan, step: &Step, pool: &Pool, tier: Tier, kernels: &Kernels) -> Result<LoadedWork> {
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
    if !writes.is_empty() && writes.iter().all(|w| w.shape().contains(&0)) {
        return Ok(LoadedWork::Nothing);
    }
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
            let run = match kernels.choose(op, &site) {
                None => return Ok(LoadedWork::Reference(Box::new(step.clone()))),
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
            let sums = match **op == MATMUL_SUM {
                true => {
                    let (program, view) = matmul::sums(step, attrs)?;
                    let (from, to) = (View::checked(plan, &view)?, View::checked_mut(plan, &step.writes[1])?);
                    Some(Box::new(Program::new(plan, &program, &[&from], &[to], tier)?))
                }
                false => None,
            };
            Ok(LoadedWork::Kernel { run, reads, writes, workspace, sums })
        }
    }
}

/// True if the elements of a row follow each other, and no two indices share an element.
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
        let apart = writes[..i].iter().all(|v| w.apart(v));
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
    /// `bases` are the segments of the plan, at least of their sizes, taken for this run; `scratch` is large
    /// enough.
    unsafe fn run(
        &mut self,
        bases: &[Shared<u8>],
        segments: &[LoadedSegment],
        pool: &Pool,
        scratch: &mut Scratch,
    ) -> Result<()> {
        match &mut self.work {
            LoadedWork::Rows(program) => {
                // SAFETY: the caller's promise.
                unsafe { program.run(bases, pool, scratch) };
                Ok(())
            }
            LoadedWork::Kernel { run, reads, writes, workspace, sums } => {
                reads.iter_mut().flatten().for_each(|v| v.bind(bases));
                writes.iter_mut().for_each(|v| v.bind(bases));
                let mut none = Empty([]);
                let workspace: &mut [u8] = match workspace {
                    None => &mut none.0,
                    // SAFETY: the range was checked to be in its segment and to overlap no operand.
                    Some(s) => unsafe {
                        std::slice::from_raw_parts_mut(bases[s.segment].get().add(s.byte), s.bytes)
                    },
                };
                run(&mut Args { reads, writes, workspace, pool })?;
                if let Some(program) = sums {
                    // SAFETY: the caller's promise.
                    unsafe { program.run(bases, pool, scratch) };
                }
                Ok(())
            }
            LoadedWork::Collective { op, attrs, reads, write, transport, named } => {
                reads.iter_mut().for_each(|v| v.bind(bases));
                write.bind(bases);
                transport.inside(named);
                let dtype = write.dtype();
                let carrier = Carrier { transport: transport.as_ref(), op, attrs, dtype };
                let operands: Vec<&[u8]> = reads.iter().map(View::bytes).collect();
                carrier.run(&operands, write.bytes_mut())
            }
            LoadedWork::Nothing => Ok(()),
            LoadedWork::Reference(step) => {
                // SAFETY: the caller's promise.
                let mut all = unsafe { Segments::new(bases, segments) };
                reference::memory::step(step, &mut all)
            }
        }
        .map_err(|e| e.in_op(self.op).at(&self.origin))
    }
}

/// The segments of a run, for the interpreter.
struct Segments<'a> {
    bases: &'a [Shared<u8>],
    segments: &'a [LoadedSegment],
}

impl<'a> Segments<'a> {
    /// # Safety
    /// `bases` are the segments of the plan, at least of their sizes, taken for this run; nobody else uses
    /// them while this lives.
    unsafe fn new(bases: &'a [Shared<u8>], segments: &'a [LoadedSegment]) -> Segments<'a> {
        Segments { bases, segments }
    }
}

impl reference::memory::Segments for Segments<'_> {
    fn bytes(&self, segment: SegmentId) -> Option<&[u8]> {
        let at = segment.0 as usize;
        let (base, bytes) = (self.bases.get(at)?, self.segments.get(at)?.bytes);
        // SAFETY: by the promise of `new` the segment has so many bytes, and is borrowed as `self` is.
        Some(unsafe { std::slice::from_raw_parts(base.get(), bytes) })
    }

    fn bytes_mut(&mut self, segment: SegmentId) -> Option<&mut [u8]> {
        let at = segment.0 as usize;
        // Others may read what no step writes.
        let LoadedSegment { bytes, .. } = self.segments.get(at).filter(|s| s.written)?;
        // SAFETY: as above, and a segment that is written was taken to write.
        Some(unsafe { std::slice::from_raw_parts_mut(self.bases.get(at)?.get(), *bytes) })
    }
}

impl Executable for Loaded {
    fn submit(&mut self, stream: &dyn Stream, memory: &[Arc<dyn Buffer>], steps: Range<usize>) -> Result<()> {
        if let Some(e) = &self.failure {
            return Err(e.clone());
        }
        let stream = stream.as_any().downcast_ref::<CpuStream>();
        let stream = stream.ok_or_else(|| fail!(Device, "the stream is not one of the CPU"))?;
        let all = self.steps.len();
        ensure!(steps.start <= steps.end && steps.end <= all, Device, "the plan has no steps {steps:?}");
        self.bind(memory)?;
        let Loaded { steps: loaded, segments, bases, pool, scratch, seconds, failure, .. } = self;
        stream.submit(|| {
            let _taken = Taken::new(memory, segments)?;
            for i in steps {
                let start = (!seconds.is_empty()).then(Instant::now);
                // SAFETY: `bind` has checked the memory, which is taken as the steps use it; the scratch
                // memory was made for all steps.
                let result = unsafe { loaded[i].run(bases, segments, pool, scratch) };
                if let Err(e) = result {
                    *failure = (e.code == Code::Device).then(|| e.clone());
                    return Err(e);
                }
                if let Some(start) = start {
                    seconds[i] += start.elapsed().as_secs_f64();
                }
            }
            Ok(())
        })
    }

    fn measure(&mut self) {
        self.seconds.resize(self.steps.len(), 0.0);
    }

    fn seconds(&self) -> Vec<f64> {
        self.seconds.clone()
    }
}
