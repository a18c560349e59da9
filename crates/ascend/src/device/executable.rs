//! Plans on the device. A step without a kernel runs on the host: the bytes that its operands lie in are read, the
//! reference interpreter computes, and what it wrote goes back.

use super::memory_of;
use super::stream::AscendStream;
use crate::host::{self, DeviceMemory};
use headwater_core::device::{Buffer, Executable, Stream};
use headwater_core::diagnostic::{Code, Error, Result};
use headwater_core::graph::Origin;
use headwater_core::plan::{Plan, SegmentId, SegmentKind, Step, TensorView, Work};
use headwater_core::reference::memory as interpreter;
use headwater_core::target::{Support, Target};
use headwater_core::{OpCx, TensorType, ensure, fail};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// A plan ready to run.
pub(super) struct Loaded {
    device: Arc<host::Device>,
    plan: Plan,
    steps: Vec<HostStep>,
    seconds: Vec<f64>,
    failure: Option<Error>,
}

/// A step on the host. Its views are moved to bytes that are gathered for it.
struct HostStep {
    step: Step,
    /// Bytes of segments, one range for each segment that the step touches.
    ranges: Vec<(SegmentId, Range<usize>)>,
    /// Ranges of bytes that are written, of the gathered segment of the same number.
    written: Vec<(SegmentId, Range<usize>)>,
}

impl Loaded {
    pub fn new(device: &Arc<host::Device>, target: &Target, plan: &Plan) -> Result<Loaded> {
        let wanted = target.memory.alignment;
        let aligned = plan.alignment.is_multiple_of(wanted);
        ensure!(
            aligned,
            Plan,
            "the plan is aligned to {} bytes, {} to {wanted}",
            plan.alignment,
            device.name()
        );
        let steps = plan.steps.iter().map(|step| {
            check(target, step)
                .and_then(|()| HostStep::new(plan, step))
                .map_err(|e| e.in_op(step.op).at(&origin(plan, step)))
        });
        let steps = steps.collect::<Result<_>>()?;
        Ok(Loaded { device: device.clone(), plan: plan.clone(), steps, seconds: Vec::new(), failure: None })
    }
}

/// Where a step comes from.
fn origin(plan: &Plan, step: &Step) -> Origin {
    plan.origins.get(step.origin.0 as usize).cloned().unwrap_or_default()
}

/// Refuses a step that the target does not run at all.
fn check(target: &Target, step: &Step) -> Result<()> {
    let support = match &step.work {
        Work::Rows(program) => target.program(program),
        Work::Kernel { op, attrs } => {
            let types: Vec<Option<TensorType>> =
                step.reads.iter().map(|v| v.as_ref().map(TensorView::ty)).collect();
            let outs: Vec<TensorType> = step.writes.iter().map(TensorView::ty).collect();
            let cx = OpCx { inputs: types.iter().map(Option::as_ref).collect(), attrs };
            target.support(op, &cx, &outs)
        }
    };
    match support {
        Support::Missing(why) => Err(Error::new(Code::Unsupported, why)),
        Support::Native | Support::Reference => Ok(()),
    }
}

impl HostStep {
    fn new(plan: &Plan, step: &Step) -> Result<HostStep> {
        let mut ranges: Vec<(SegmentId, Range<usize>)> = Vec::new();
        let mut written = Vec::new();
        let reads = step.reads.iter().flatten().map(|view| (view, false));
        for (view, writes) in reads.chain(step.writes.iter().map(|view| (view, true))) {
            let segment = plan.segments.get(view.place.segment.0 as usize);
            let segment =
                segment.ok_or_else(|| fail!(Plan, "there is no segment {}", view.place.segment.0))?;
            let read_only = matches!(segment.kind, SegmentKind::Input | SegmentKind::Constant);
            ensure!(!writes || !read_only, Plan, "a step writes {view:?}, which is only read");
            let places = interpreter::places(view, segment.bytes)?;
            let hull = places.iter().min().zip(places.iter().max());
            let hull = hull.map_or(0..0, |(first, last)| *first..last + view.dtype.size());
            if writes && hull.start < hull.end {
                written.push((view.place.segment, hull.clone()));
            }
            match ranges.iter_mut().find(|(id, _)| *id == view.place.segment) {
                None => ranges.push((view.place.segment, hull)),
                Some((_, range)) if range.start == range.end => *range = hull,
                Some((_, range)) if hull.start < hull.end => {
                    *range = range.start.min(hull.start)..range.end.max(hull.end);
                }
                Some(_) => {}
            }
        }
        let gathered = |id: SegmentId| ranges.iter().position(|r| r.0 == id).unwrap_or(0);
        let mut step = step.clone();
        let views = step.reads.iter_mut().flatten().chain(&mut step.writes);
        for view in views {
            let number = gathered(view.place.segment);
            // The first element lies in the gathered bytes; a view without elements lies anywhere.
            let first = view.layout.offset * view.dtype.size() as isize;
            let start = view.place.offset as isize + first - ranges[number].1.start as isize;
            view.place.offset = usize::try_from(start).unwrap_or(0);
            view.layout.offset = 0;
            view.place.segment = SegmentId(number as u32);
        }
        Ok(HostStep { step, ranges, written })
    }

    /// Reads, computes, writes. Everything given to the device before is done.
    fn run(&self, memory: &[&DeviceMemory]) -> Result<()> {
        let mut bytes: Vec<Vec<u8>> = Vec::with_capacity(self.ranges.len());
        for (segment, range) in &self.ranges {
            let mut data = vec![0; range.len()];
            memory[segment.0 as usize].read(range.start, &mut data)?;
            bytes.push(data);
        }
        interpreter::step(&self.step, &mut bytes)?;
        for (segment, range) in &self.written {
            let Some(number) = self.ranges.iter().position(|r| r.0 == *segment) else { continue };
            let start = range.start - self.ranges[number].1.start;
            memory[segment.0 as usize].write(range.start, &bytes[number][start..start + range.len()])?;
        }
        Ok(())
    }
}

impl Executable for Loaded {
    fn submit(&mut self, stream: &dyn Stream, memory: &[Arc<dyn Buffer>], steps: Range<usize>) -> Result<()> {
        if let Some(e) = &self.failure {
            return Err(e.clone());
        }
        let own = stream.as_any().downcast_ref::<AscendStream>();
        let own = own.filter(|s| Arc::ptr_eq(&s.device, &self.device));
        let stream = own.ok_or_else(|| fail!(Device, "the stream is not one of {}", self.device.name()))?;
        let (got, want) = (memory.len(), self.plan.segments.len());
        ensure!(got == want, Device, "the plan has {want} segments, the run was given {got}");
        let all = self.plan.steps.len();
        ensure!(steps.start <= steps.end && steps.end <= all, Device, "the plan has no steps {steps:?}");
        let mut segments = Vec::with_capacity(want);
        for (i, (buffer, segment)) in memory.iter().zip(&self.plan.segments).enumerate() {
            let (name, bytes) = (&segment.name, segment.bytes);
            let own = memory_of(&self.device, buffer)?;
            ensure!(
                own.bytes() >= bytes,
                Device,
                "segment `{name}` has {} bytes, needs {bytes}",
                own.bytes()
            );
            let twice = memory[..i].iter().any(|other| Arc::ptr_eq(other, buffer));
            ensure!(!twice, Device, "segment `{name}` is given the memory of another");
            segments.push(own);
        }
        if steps.is_empty() || stream.is_dropping() {
            return Ok(());
        }
        stream.stream.synchronize(None)?;
        for i in steps {
            let start = Instant::now();
            let result = self.steps[i].run(&segments);
            if let Some(seconds) = self.seconds.get_mut(i) {
                *seconds += start.elapsed().as_secs_f64();
            }
            if let Err(e) = result {
                let step = &self.plan.steps[i];
                let e = e.in_op(step.op).at(&origin(&self.plan, step));
                if e.code == Code::Device {
                    self.failure = Some(e.clone());
                    return Err(e);
                }
                stream.keep(e);
                return Ok(());
            }
        }
        Ok(())
    }

    fn measure(&mut self) {
        self.seconds = vec![0.0; self.plan.steps.len()];
    }

    fn seconds(&self) -> Vec<f64> {
        self.seconds.clone()
    }
}
