//! Plans as work on a stream: a task for each step.

use crate::machine::Machine;
use crate::memory::{Memory, ReferenceBuffer, User};
use crate::stream::ReferenceStream;
use headwater_core::device::{Buffer, Executable, Stream};
use headwater_core::diagnostic::{Code, Error, Result};
use headwater_core::plan::{ARENA, Plan, SegmentId, SegmentKind, Step, TensorView, Work};
use headwater_core::reference::memory::{self as interpreter, Segments};
use headwater_core::target::{Support, Target};
use headwater_core::{OpCx, TensorType, ensure, fail};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A plan ready to run.
pub(crate) struct Loaded {
    machine: Arc<Machine>,
    shared: Arc<Shared>,
}

/// What the tasks of a plan share.
struct Shared {
    plan: Plan,
    /// Of each step, the arena bytes that no step uses before it, and those that none uses after it.
    begins: Vec<Vec<Range<usize>>>,
    ends: Vec<Vec<Range<usize>>>,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    failure: Option<Error>,
    /// Of each step, if they are measured.
    seconds: Vec<f64>,
}

impl Loaded {
    pub fn new(machine: Arc<Machine>, target: &Target, plan: &Plan) -> Result<Loaded> {
        let wanted = target.memory.alignment;
        let aligned = plan.alignment.is_multiple_of(wanted);
        ensure!(aligned, Plan, "the plan is aligned to {} bytes, this device to {wanted}", plan.alignment);
        for step in &plan.steps {
            let named = |e: Error| e.in_op(step.op).at(&origin(plan, step));
            check(target, plan, step).map_err(named)?;
        }
        let steps = plan.steps.len();
        let (mut begins, mut ends) = (vec![Vec::new(); steps], vec![Vec::new(); steps]);
        for p in &plan.placements {
            let bytes = p.place.offset..p.place.offset + p.bytes;
            ensure!(p.last < steps && p.first <= p.last, Plan, "a buffer of no step");
            ensure!(bytes.end <= plan.segments[0].bytes, Plan, "a buffer leaves the arena");
            begins[p.first].push(bytes.clone());
            ends[p.last].push(bytes);
        }
        let shared = Shared { plan: plan.clone(), begins, ends, progress: Mutex::default() };
        Ok(Loaded { machine, shared: Arc::new(shared) })
    }
}

/// Where a step comes from.
fn origin(plan: &Plan, step: &Step) -> headwater_core::graph::Origin {
    plan.origins.get(step.origin.0 as usize).cloned().unwrap_or_default()
}

/// Refuses a step that the target does not run, or whose operands lie elsewhere than they may.
fn check(target: &Target, plan: &Plan, step: &Step) -> Result<()> {
    let support = match &step.work {
        Work::Rows(program) => target.program(program),
        Work::Kernel { op, attrs } => {
            let types: Vec<Option<TensorType>> =
                step.reads.iter().map(|v| v.as_ref().map(TensorView::ty)).collect();
            let outs: Vec<TensorType> = step.writes.iter().map(TensorView::ty).collect();
            let cx = OpCx { inputs: types.iter().map(Option::as_ref).collect(), attrs };
            let needs = target.operators.workspace(op, &cx, &outs);
            let has = step.workspace.map_or(0, |(_, bytes)| bytes);
            ensure!(has >= needs, Plan, "the kernel needs {needs} bytes of workspace, the plan gives {has}");
            let contiguous =
                step.reads.iter().flatten().chain(&step.writes).all(|v| v.layout.is_contiguous());
            ensure!(contiguous, Plan, "operands of a kernel must be contiguous");
            target.support(op, &cx, &outs)
        }
    };
    if let Support::Missing(why) = support {
        return Err(Error::new(Code::Unsupported, why));
    }
    for v in step.reads.iter().flatten().chain(&step.writes) {
        interpreter::places(v, bytes_of(plan, v.place.segment)?)?;
    }
    for v in &step.writes {
        let kind = plan.segments[v.place.segment.0 as usize].kind;
        let read_only = matches!(kind, SegmentKind::Input | SegmentKind::Constant);
        ensure!(!read_only, Plan, "a step writes {v:?}, which is only read");
    }
    if let Some((place, bytes)) = step.workspace {
        let inside = place.offset.checked_add(bytes).is_some_and(|end| end <= plan.segments[0].bytes);
        ensure!(place.segment == ARENA && inside, Plan, "the workspace lies outside the arena");
    }
    Ok(())
}

fn bytes_of(plan: &Plan, segment: SegmentId) -> Result<usize> {
    let found = plan.segments.get(segment.0 as usize);
    found.map(|s| s.bytes).ok_or_else(|| fail!(Plan, "there is no segment {}", segment.0))
}

/// The memory of a run, while a step uses it.
struct Locked<'a>(Vec<MutexGuard<'a, Memory>>);

impl Segments for Locked<'_> {
    fn bytes(&self, segment: SegmentId) -> Option<&[u8]> {
        self.0.get(segment.0 as usize).map(|m| m.bytes.as_slice())
    }

    fn bytes_mut(&mut self, segment: SegmentId) -> Option<&mut [u8]> {
        self.0.get_mut(segment.0 as usize).map(|m| m.bytes.as_mut_slice())
    }
}

impl Locked<'_> {
    /// Elements of a view, as ranges of bytes of its segment.
    fn elements(&self, v: &TensorView) -> Result<Vec<Range<usize>>> {
        let bytes = self.0[v.place.segment.0 as usize].bytes.len();
        Ok(interpreter::places(v, bytes)?.into_iter().map(|at| at..at + v.dtype.size()).collect())
    }

    /// Notes the use of a view. Its hull counts where other streams are concerned.
    fn take(&mut self, v: &TensorView, elements: &[Range<usize>], writes: bool, user: User) -> Result<()> {
        let hull = elements.iter().map(|e| e.start).min().zip(elements.iter().map(|e| e.end).max());
        let Some((start, end)) = hull else { return Ok(()) };
        self.0[v.place.segment.0 as usize].take(start..end, writes, user)
    }
}

impl Shared {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes undefined what a run begins with.
    fn begin(&self, all: &mut Locked, user: User) -> Result<()> {
        for (s, memory) in self.plan.segments.iter().zip(&mut all.0) {
            if matches!(s.kind, SegmentKind::Arena | SegmentKind::Output) {
                memory.take(0..s.bytes, true, user)?;
                memory.poison(0..s.bytes);
            }
        }
        Ok(())
    }

    fn step(&self, i: usize, all: &mut Locked, user: User) -> Result<()> {
        let step = &self.plan.steps[i];
        self.begins[i].iter().for_each(|b| all.0[0].poison(b.clone()));
        for v in step.reads.iter().flatten() {
            let elements = all.elements(v)?;
            all.take(v, &elements, false, user)?;
            let memory = &all.0[v.place.segment.0 as usize];
            elements.into_iter().try_for_each(|e| memory.read(e))?;
        }
        for v in &step.writes {
            let elements = all.elements(v)?;
            all.take(v, &elements, true, user)?;
        }
        interpreter::step(step, all)?;
        for v in &step.writes {
            let elements = all.elements(v)?;
            let memory = &mut all.0[v.place.segment.0 as usize];
            elements.into_iter().for_each(|e| memory.written(e));
        }
        if let Some((place, bytes)) = step.workspace {
            let range = place.offset..place.offset + bytes;
            all.0[0].take(range.clone(), true, user)?;
            all.0[0].poison(range);
        }
        self.ends[i].iter().for_each(|b| all.0[0].poison(b.clone()));
        Ok(())
    }
}

impl Executable for Loaded {
    fn submit(&mut self, stream: &dyn Stream, memory: &[Arc<dyn Buffer>], steps: Range<usize>) -> Result<()> {
        if let Some(e) = &self.shared.progress().failure {
            return Err(e.clone());
        }
        let own = stream.as_any().downcast_ref::<ReferenceStream>();
        let own = own.filter(|s| Arc::ptr_eq(&s.machine, &self.machine));
        let stream = own.ok_or_else(|| fail!(Device, "the stream is not one of this device"))?;
        let plan = &self.shared.plan;
        let (got, want) = (memory.len(), plan.segments.len());
        ensure!(got == want, Device, "the plan has {want} segments, the run was given {got}");
        for (i, (buffer, segment)) in memory.iter().zip(&plan.segments).enumerate() {
            let (name, bytes) = (&segment.name, segment.bytes);
            let has = ReferenceBuffer::of(&self.machine, buffer)?.bytes();
            ensure!(has >= bytes, Device, "segment `{name}` has {has} bytes, needs {bytes}");
            let twice = memory[..i].iter().any(|other| Arc::ptr_eq(other, buffer));
            ensure!(!twice, Device, "segment `{name}` is given the memory of another");
        }
        let all = plan.steps.len();
        ensure!(steps.start <= steps.end && steps.end <= all, Device, "the plan has no steps {steps:?}");
        let memory: Arc<[Arc<dyn Buffer>]> = memory.into();
        for i in steps {
            let (shared, machine, memory) = (self.shared.clone(), self.machine.clone(), memory.clone());
            self.machine.submit(stream.id, move |user| {
                let start = Instant::now();
                let locks = memory.iter().map(|b| Ok(ReferenceBuffer::of(&machine, b)?.lock()));
                let mut all = Locked(locks.collect::<Result<_>>()?);
                let begun = if i == 0 { shared.begin(&mut all, user) } else { Ok(()) };
                let result = begun.and_then(|()| shared.step(i, &mut all, user));
                let step = &shared.plan.steps[i];
                let result = result.map_err(|e| e.in_op(step.op).at(&origin(&shared.plan, step)));
                let mut progress = shared.progress();
                if let Some(s) = progress.seconds.get_mut(i) {
                    *s += start.elapsed().as_secs_f64();
                }
                if let Err(e) = &result
                    && e.code == Code::Device
                {
                    progress.failure = Some(e.clone());
                }
                result
            })?;
        }
        Ok(())
    }

    fn measure(&mut self) {
        let steps = self.shared.plan.steps.len();
        self.shared.progress().seconds.resize(steps, 0.0);
    }

    fn seconds(&self) -> Vec<f64> {
        self.shared.progress().seconds.clone()
    }
}
