//! Plans as work on a stream: a task for each step.

use crate::machine::User;
use crate::machine::{Machine, StreamId};
use crate::meeting::Issue;
use crate::memory::{Memory, ReferenceBuffer};
use crate::stream::ReferenceStream;
use headwater_core::device::{Buffer, Executable, Stream};
use headwater_core::diagnostic::{Code, Error, Result};
use headwater_core::ops::collective::is_collective;
use headwater_core::pass::STREAMS;
use headwater_core::plan::{ARENA, Plan, SegmentId, SegmentKind, Step, TensorView, Work};
use headwater_core::reference::memory::{self as interpreter, Segments};
use headwater_core::target::{Support, Target};
use headwater_core::{Attrs, OpDef, Tensor, ensure, fail};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A plan ready to run.
pub(crate) struct Loaded {
    machine: Arc<Machine>,
    shared: Arc<Shared>,
}

/// State that the tasks of a plan share.
struct Shared {
    plan: Plan,
    /// For each step, the arena bytes that no step uses before it, and those that none uses after it.
    begins: Vec<Vec<Range<usize>>>,
    ends: Vec<Vec<Range<usize>>>,
    /// The plan's streams beside the one that it is submitted to, from number 1.
    side: Vec<StreamId>,
    progress: Mutex<Progress>,
}

/// Shared by the tasks of one submission: a failure on one of the plan's streams stops all.
type Failure = Arc<Mutex<Option<Error>>>;

#[derive(Default)]
struct Progress {
    failure: Option<Error>,
    /// Seconds of each step, if they are measured.
    seconds: Vec<f64>,
}

impl Loaded {
    pub fn new(machine: Arc<Machine>, target: &Target, plan: &Plan) -> Result<Loaded> {
        let wanted = target.memory.alignment;
        let aligned = plan.alignment.is_multiple_of(wanted);
        ensure!(aligned, Plan, "the plan is aligned to {} bytes, this device to {wanted}", plan.alignment);
        plan.check_ranks(machine.ranks())?;
        for step in &plan.steps {
            let named = |e: Error| e.in_op(step.op).at(&plan.origin(step));
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
        let streams = plan.steps.iter().map(|s| s.stream).max().unwrap_or(0);
        ensure!((streams as usize) < STREAMS, Plan, "stream {streams}, of {STREAMS} that a plan may have");
        for w in &plan.waits {
            ensure!(w.on < w.step && w.step < steps, Plan, "step {} waits for step {}", w.step, w.on);
        }
        if streams > 0 {
            // The last step of a buffer in the plan's order may not be the last that runs.
            ends.iter_mut().for_each(Vec::clear);
        }
        let side = (0..streams).map(|_| machine.stream()).collect();
        let shared = Shared { plan: plan.clone(), begins, ends, side, progress: Mutex::default() };
        Ok(Loaded { machine, shared: Arc::new(shared) })
    }
}

/// Refuses a step that the target does not run, or whose operands are in memory that they may not use.
fn check(target: &Target, plan: &Plan, step: &Step) -> Result<()> {
    let support = match &step.work {
        Work::Rows(program) => target.program(program),
        Work::Kernel { op, attrs } => {
            let types = step.types();
            let cx = types.cx(attrs);
            let needs = target.operators.workspace(op, &cx, &types.outs);
            let has = step.workspace.map_or(0, |(_, bytes)| bytes);
            ensure!(has >= needs, Plan, "the kernel needs {needs} bytes of workspace, the plan gives {has}");
            let contiguous =
                step.reads.iter().flatten().chain(&step.writes).all(|v| v.layout.is_contiguous());
            ensure!(contiguous, Plan, "operands of a kernel must be contiguous");
            target.support(op, &cx, &types.outs)
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

    /// Runs a step and adds the time it takes.
    fn timed(&self, i: usize, all: &mut Locked, user: User) -> Result<()> {
        let start = Instant::now();
        let result = self.step(i, all, user);
        if let Some(s) = self.progress().seconds.get_mut(i) {
            *s += start.elapsed().as_secs_f64();
        }
        result
    }

    fn step(&self, i: usize, all: &mut Locked, user: User) -> Result<()> {
        let step = &self.plan.steps[i];
        self.take_reads(i, all, user)?;
        self.take_writes(i, all, user)?;
        interpreter::step(step, all)?;
        self.end(i, all, user)
    }

    /// The operands of a step that is a collective.
    fn read(&self, i: usize, all: &mut Locked, user: User) -> Result<Vec<Option<Tensor>>> {
        self.take_reads(i, all, user)?;
        let loaded = |v: &Option<TensorView>| v.as_ref().map(|v| interpreter::load(v, all)).transpose();
        self.plan.steps[i].reads.iter().map(loaded).collect()
    }

    /// Writes the results of a step that is a collective.
    fn write(&self, i: usize, results: &[Tensor], all: &mut Locked, user: User) -> Result<()> {
        self.take_writes(i, all, user)?;
        let mut written = self.plan.steps[i].writes.iter().zip(results);
        written.try_for_each(|(v, t)| interpreter::store(v, t, all))?;
        self.end(i, all, user)
    }

    fn take_reads(&self, i: usize, all: &mut Locked, user: User) -> Result<()> {
        self.begins[i].iter().for_each(|b| all.0[0].poison(b.clone()));
        for v in self.plan.steps[i].reads.iter().flatten() {
            let elements = all.elements(v)?;
            all.take(v, &elements, false, user)?;
            let memory = &all.0[v.place.segment.0 as usize];
            elements.into_iter().try_for_each(|e| memory.read(e))?;
        }
        Ok(())
    }

    fn take_writes(&self, i: usize, all: &mut Locked, user: User) -> Result<()> {
        for v in &self.plan.steps[i].writes {
            let elements = all.elements(v)?;
            all.take(v, &elements, true, user)?;
        }
        Ok(())
    }

    /// Notes what a step has written, and makes undefined what ends with it.
    fn end(&self, i: usize, all: &mut Locked, user: User) -> Result<()> {
        let step = &self.plan.steps[i];
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

/// One submission.
#[derive(Clone)]
struct Run {
    shared: Arc<Shared>,
    machine: Arc<Machine>,
    memory: Arc<[Arc<dyn Buffer>]>,
    failure: Failure,
}

impl Run {
    /// Submits steps: the plan's own streams begin after the work of `stream`, which waits for them at the
    /// end.
    fn submit(self, stream: StreamId, steps: Range<usize>) -> Result<()> {
        let plan = &self.shared.plan;
        let on = |i: usize| match plan.steps[i].stream as usize {
            0 => stream,
            own => self.shared.side[own - 1],
        };
        let mut side: Vec<StreamId> = steps.clone().map(on).filter(|s| *s != stream).collect();
        side.sort_unstable();
        side.dedup();
        if steps.start == 0 && !steps.is_empty() {
            self.task(stream, 0, |run, all, user| run.shared.begin(all, user))?;
        }
        if !side.is_empty() {
            let begin = self.machine.mark(stream)?;
            side.iter().try_for_each(|s| self.machine.wait(*s, begin))?;
        }
        let mut marks = HashMap::new();
        for i in steps.clone() {
            // Parts of a run that are submitted before are over.
            for w in plan.waits.iter().filter(|w| w.step == i && w.on >= steps.start) {
                if let Some(mark) = marks.get(&w.on) {
                    self.machine.wait(on(i), *mark)?;
                }
            }
            match &plan.steps[i].work {
                Work::Kernel { op, attrs } if is_collective(op) => self.meet(on(i), i, op, attrs)?,
                _ => self.task(on(i), i, move |run, all, user| run.shared.timed(i, all, user))?,
            }
            if plan.waits.iter().any(|w| w.on == i) {
                marks.insert(i, self.machine.mark(on(i))?);
            }
        }
        for s in &side {
            let end = self.machine.mark(*s)?;
            self.machine.wait(stream, end)?;
        }
        if !side.is_empty() {
            // A failure on a stream of the plan's own is one of the stream that it was submitted to.
            let failure = self.failure.clone();
            self.machine.submit(stream, move |_| locked(&failure).clone().map_or(Ok(()), Err))?;
        }
        Ok(())
    }

    /// Appends a collective step.
    fn meet(&self, stream: StreamId, step: usize, op: &'static OpDef, attrs: &Attrs) -> Result<()> {
        let planned = &self.shared.plan.steps[step];
        let (reader, writer) = (self.clone(), self.clone());
        let issue = Issue {
            rank: self.machine.rank(),
            op,
            attrs: attrs.clone(),
            inputs: planned.reads.iter().map(|v| v.as_ref().map(TensorView::ty)).collect(),
            outputs: planned.writes.iter().map(TensorView::ty).collect(),
            origin: self.shared.plan.origin(planned),
            gather: Some(Box::new(move |user| {
                if let Some(e) = &*locked(&reader.failure) {
                    return Err(e.clone());
                }
                reader.shared.read(step, &mut reader.memory()?, user)
            })),
            scatter: Some(Box::new(move |user, results| {
                let results =
                    results.and_then(|all| writer.shared.write(step, &all, &mut writer.memory()?, user));
                let own = writer.shared.side.contains(&stream);
                match results {
                    Ok(()) => Ok(()),
                    Err(e) => writer.failed(step, own, e),
                }
            })),
        };
        self.machine.meet(stream, issue)
    }

    /// The memory of the run, locked.
    fn memory(&self) -> Result<Locked<'_>> {
        let locks = self.memory.iter().map(|b| Ok(ReferenceBuffer::of(&self.machine, b)?.lock()));
        Ok(Locked(locks.collect::<Result<_>>()?))
    }

    /// Notes the failure of a step, unless there is one. Returns that of its stream.
    fn failed(&self, step: usize, own: bool, e: Error) -> Result<()> {
        let step = &self.shared.plan.steps[step];
        let e = e.in_op(step.op).at(&self.shared.plan.origin(step));
        let mut noted = locked(&self.failure);
        if noted.is_none() {
            if e.code == Code::Device {
                self.shared.progress().failure = Some(e.clone());
            }
            *noted = Some(e.clone());
        }
        // The streams of the plan's own take work again in the next run.
        if own { Ok(()) } else { Err(e) }
    }

    /// Appends work on the memory of the run, for a step.
    fn task(
        &self,
        stream: StreamId,
        step: usize,
        work: impl FnOnce(&Run, &mut Locked, User) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let run = self.clone();
        let own = self.shared.side.contains(&stream);
        self.machine.submit(stream, move |user| {
            if locked(&run.failure).is_some() {
                return Ok(());
            }
            match work(&run, &mut run.memory()?, user) {
                Ok(()) => Ok(()),
                Err(e) => run.failed(step, own, e),
            }
        })
    }
}

fn locked(failure: &Failure) -> MutexGuard<'_, Option<Error>> {
    failure.lock().unwrap_or_else(PoisonError::into_inner)
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
        let run = Run {
            shared: self.shared.clone(),
            machine: self.machine.clone(),
            memory: memory.into(),
            failure: Failure::default(),
        };
        run.submit(stream.id, steps)
    }

    fn measure(&mut self) {
        let steps = self.shared.plan.steps.len();
        self.shared.progress().seconds.resize(steps, 0.0);
    }

    fn seconds(&self) -> Vec<f64> {
        self.shared.progress().seconds.clone()
    }
}
