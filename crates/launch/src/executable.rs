//! Plans on a device: steps as launches of kernels, the rest on the host.

use crate::driver::Queue;
use crate::host_step::HostStep;
use crate::place::{PlacedLaunch, Where, check, operand};
use crate::{
    BoundArgument, BoundLaunch, Distinct, Driver, LibraryStep, Lowered, Program, Refusal, Site, Used,
};
use headwater_core::device::{Buffer, Executable, Stream};
use headwater_core::diagnostic::{Code, Error, Result};
use headwater_core::plan::Plan;
use headwater_core::target::Target;
use headwater_core::{ensure, fail};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// A plan ready to run.
pub struct Loaded<D: Driver> {
    driver: Arc<D>,
    /// Name and bytes of each segment.
    segments: Vec<(String, usize)>,
    steps: Vec<Prepared<D>>,
    kernels: Vec<D::Kernel>,
    /// Memory for partial results, which all launches share, for constants of steps, and for reports of
    /// kernels.
    scratch: Option<D::Memory>,
    constants: Option<D::Memory>,
    faults: Option<D::Memory>,
    /// Workspace of the vendor's operators.
    workspace: D::Workspace,
    /// Recordings of launches, by the steps that they are of.
    recordings: HashMap<Range<usize>, Recording<D::Graph>>,
    seconds: Vec<f64>,
    failure: Option<Error>,
}

/// A maximal run of own kernels: launched once, captured, then replayed for the same memory. So what runs
/// once is not captured.
struct Recording<G> {
    /// Addresses of the segments.
    memory: Vec<u64>,
    graph: Option<G>,
}

/// A step ready to run.
struct Prepared<D: Driver> {
    work: Work<D>,
    /// The step, for errors.
    site: Arc<Site>,
}

enum Work<D: Driver> {
    Kernels(Vec<PlacedLaunch>),
    Vendor(Box<Vendor<D>>),
    Host(HostStep),
}

/// A call of the vendor's, between launches of ours.
struct Vendor<D: Driver> {
    before: Vec<PlacedLaunch>,
    operator: D::Operator,
    operands: Vec<Where>,
    site: Arc<Site>,
    behind: Vec<PlacedLaunch>,
}

impl<D: Driver> std::fmt::Debug for Loaded<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded").field("steps", &self.steps.len()).finish_non_exhaustive()
    }
}

impl<D: Driver> Loaded<D> {
    /// Lowers the steps of a plan, compiles the kernels and takes their memory.
    ///
    /// # Errors
    /// `Plan` if the plan is not sound, `Device` if a kernel does not compile or memory is short.
    pub fn new(driver: &Arc<D>, target: &Target, plan: &Plan) -> Result<Loaded<D>> {
        let (name, wanted) = (driver.name(), target.memory.alignment);
        let aligned = plan.alignment.is_multiple_of(wanted);
        ensure!(aligned, Plan, "the plan is aligned to {} bytes, {name} to {wanted}", plan.alignment);
        plan.check_ranks(1)?;
        let (mut distinct, mut scratch, mut faults) = (Distinct::<D::Program>::default(), 0, 0);
        // Steps with the same constants share them.
        let (mut constants, mut known) = (Vec::<u8>::new(), HashMap::<Vec<u8>, Range<usize>>::new());
        let (mut steps, mut used) = (Vec::with_capacity(plan.steps.len()), Used::default());
        for step in &plan.steps {
            let origin = plan.origin(step);
            let site = |kernel: &str| {
                Arc::new(Site { kernel: kernel.into(), op: Some(step.op), origin: Some(origin.clone()) })
            };
            let named = |e: Error| e.in_op(step.op).at(&origin);
            check(plan, step).map_err(named)?;
            let (mut vendor, mut lowered) = (None, None);
            match driver.library(step, &origin) {
                Some(Ok(LibraryStep { operator, function, operands, lowered: own, before })) => {
                    used.add(step.op, Ok(function));
                    lowered = Some(Ok(own));
                    vendor = Some((operator, function, operands, before));
                }
                Some(Err(Refusal(why))) => used.add(step.op, Err(why)),
                None => {}
            }
            let lowered = lowered.unwrap_or_else(|| driver.lower(step, &origin));
            let work = match lowered {
                Ok(Lowered { launches, scratch: needs, constants: own }) => {
                    scratch = needs.max(scratch);
                    let held = known.get(&own).cloned().unwrap_or_else(|| {
                        constants.resize(constants.len().next_multiple_of(D::ALIGN), 0);
                        let held = constants.len()..constants.len() + own.len();
                        constants.extend(&own);
                        held
                    });
                    known.insert(own, held.clone());
                    let mut bound = Vec::with_capacity(launches.len());
                    for launch in &launches {
                        let kernel = distinct.number(&launch.program);
                        let place = (kernel, site(distinct.programs()[kernel].name()));
                        let launch =
                            PlacedLaunch::new(plan, step, launch, needs, place, (faults, D::ALIGN), &held)
                                .map_err(named)?;
                        faults +=
                            launch.fault.as_ref().map_or(0, |(_, f)| f.bytes.next_multiple_of(D::ALIGN));
                        bound.push(launch);
                    }
                    match vendor {
                        None => Work::Kernels(bound),
                        Some((operator, function, operands, before)) => {
                            let place = |of| operand(plan, step, of, needs, &held);
                            let operands = operands.iter().map(place);
                            let operands = operands.collect::<Result<_>>().map_err(named)?;
                            let (behind, site) = (bound.split_off(before), site(function));
                            Work::Vendor(Box::new(Vendor { before: bound, operator, operands, site, behind }))
                        }
                    }
                }
                Err(Refusal(_)) => Work::Host(HostStep::new(plan, step).map_err(named)?),
            };
            steps.push(Prepared { work, site: site("") });
        }
        let kernels = driver.load(distinct.programs())?;
        let operators = steps.iter().filter_map(|step: &Prepared<D>| match &step.work {
            Work::Vendor(vendor) => Some(&vendor.operator),
            _ => None,
        });
        let workspace = driver.workspace(&operators.collect::<Vec<_>>())?;
        driver.tell(used, &workspace);
        let alloc = |bytes: usize| (bytes > 0).then(|| driver.alloc(bytes)).transpose();
        let given = alloc(constants.len())?;
        if let Some(memory) = &given {
            driver.write(memory, 0, &constants)?;
        }
        let scratch =
            usize::try_from(scratch).map_err(|_| fail!(Device, "{scratch} bytes of scratch memory"))?;
        Ok(Loaded {
            segments: plan.segments.iter().map(|s| (s.name.clone(), s.bytes)).collect(),
            steps,
            kernels,
            scratch: alloc(scratch)?,
            constants: given,
            faults: alloc(faults)?,
            workspace,
            recordings: HashMap::new(),
            seconds: Vec::new(),
            failure: None,
            driver: driver.clone(),
        })
    }

    /// Does a step, or gives its launches to the stream.
    fn step(&self, step: &Prepared<D>, stream: &D::Stream, segments: &[&D::Memory]) -> Result<()> {
        let give = |bound: &[PlacedLaunch]| {
            bound.iter().try_for_each(|launch| {
                self.driver.launch(stream, &self.launch(launch, segments)?)?;
                self.report(launch, stream)
            })
        };
        match &step.work {
            Work::Host(host) => {
                stream.settle()?;
                if stream.is_dropping() {
                    return Ok(());
                }
                host.run(&*self.driver, segments)
            }
            Work::Kernels(bound) => give(bound),
            Work::Vendor(vendor) => {
                give(&vendor.before)?;
                let place = |place: &Where| match self.argument(*place, segments, &vendor.site)? {
                    BoundArgument::Memory(memory, at) => Ok((memory, at)),
                    _ => Err(fail!(Device, "a number is no operand of {}", vendor.site)),
                };
                let operands = vendor.operands.iter().map(place).collect::<Result<Vec<_>>>()?;
                self.driver.call(stream, &vendor.operator, &operands, &self.workspace, &vendor.site)?;
                give(&vendor.behind)
            }
        }
    }

    /// An argument at its place.
    fn argument<'a>(
        &'a self,
        place: Where,
        segments: &[&'a D::Memory],
        site: &Site,
    ) -> Result<BoundArgument<'a, D::Memory>> {
        let lacks = || fail!(Device, "kernel `{}` has no memory", site.kernel);
        Ok(match place {
            Where::Segment(id, at) => BoundArgument::Memory(segments[id.0 as usize], at),
            Where::Scratch(at) => BoundArgument::Memory(self.scratch.as_ref().ok_or_else(lacks)?, at),
            Where::Constant(at) => BoundArgument::Memory(self.constants.as_ref().ok_or_else(lacks)?, at),
            Where::Fault(at) => BoundArgument::Memory(self.faults.as_ref().ok_or_else(lacks)?, at),
            Where::Int(x) => BoundArgument::Int(x),
            Where::Float(x) => BoundArgument::Float(x),
        })
    }

    /// A launch with its arguments at hand.
    fn launch<'a>(
        &'a self,
        launch: &'a PlacedLaunch,
        segments: &[&'a D::Memory],
    ) -> Result<BoundLaunch<'a, D>> {
        let place = |place: &Where| self.argument(*place, segments, &launch.site);
        Ok(BoundLaunch {
            kernel: &self.kernels[launch.kernel],
            blocks: launch.blocks,
            args: launch.args.iter().map(place).collect::<Result<_>>()?,
            site: &launch.site,
        })
    }

    /// Has the stream report what a launch before found, if it looks for faults.
    fn report(&self, launch: &PlacedLaunch, stream: &D::Stream) -> Result<()> {
        let Some((at, fault)) = &launch.fault else { return Ok(()) };
        let lacks = || fail!(Device, "kernel `{}` has no memory", launch.site.kernel);
        let faults = self.faults.as_ref().ok_or_else(lacks)?;
        stream.report(faults, *at, fault.clone())
    }

    /// Steps from `at` on, before `end`, that are launches of ours; a step on the host or of the vendor's is
    /// alone.
    fn part(&self, at: usize, end: usize) -> Range<usize> {
        let own = |step: &Prepared<D>| matches!(step.work, Work::Kernels(_));
        let launched = self.steps[at..end].iter().take_while(|step| own(step)).count();
        at..at + launched.max(1)
    }

    /// Launches of steps.
    fn launches(&self, steps: &Range<usize>) -> impl Iterator<Item = &PlacedLaunch> {
        self.steps[steps.clone()].iter().flat_map(|step| match &step.work {
            Work::Kernels(bound) => bound.as_slice(),
            Work::Host(_) | Work::Vendor(_) => &[],
        })
    }

    /// Replays the launches of steps, if they were given with this memory before; false where they are to be
    /// given one by one. Inputs and scalars of a step are in memory, so a replay reads their current values.
    fn replay(&mut self, steps: &Range<usize>, stream: &D::Stream, segments: &[&D::Memory]) -> Result<bool> {
        // A recording of one launch saves nothing.
        if !self.driver.records() {
            self.recordings.clear();
            return Ok(false);
        }
        if !self.seconds.is_empty() || self.launches(steps).nth(1).is_none() {
            return Ok(false);
        }
        let memory: Vec<u64> = segments.iter().map(|m| self.driver.address(m)).collect();
        let graph = match self.recordings.remove(steps) {
            Some(Recording { memory: seen, graph }) if seen == memory => graph,
            _ => {
                self.recordings.insert(steps.clone(), Recording { memory, graph: None });
                return Ok(false);
            }
        };
        let graph = match graph {
            Some(graph) => Some(graph),
            None => {
                let launches = self.launches(steps).map(|launch| self.launch(launch, segments));
                self.driver.record(&launches.collect::<Result<Vec<_>>>()?)?
            }
        };
        let Some(graph) = graph else { return Ok(false) };
        if !self.driver.replay(stream, &graph)? {
            return Ok(false);
        }
        // Each launch has bytes of its own for reports, so they are still there.
        self.launches(steps).try_for_each(|launch| self.report(launch, stream))?;
        self.recordings.insert(steps.clone(), Recording { memory, graph: Some(graph) });
        Ok(true)
    }
}

impl<D: Driver> Executable for Loaded<D> {
    fn submit(&mut self, stream: &dyn Stream, memory: &[Arc<dyn Buffer>], steps: Range<usize>) -> Result<()> {
        if let Some(e) = &self.failure {
            return Err(e.clone());
        }
        let driver = self.driver.clone();
        let foreign = || fail!(Device, "the stream is not one of {}", driver.name());
        let stream = driver.stream(stream).ok_or_else(foreign)?;
        let (got, want) = (memory.len(), self.segments.len());
        ensure!(got == want, Device, "the plan has {want} segments, the run was given {got}");
        let all = self.steps.len();
        ensure!(steps.start <= steps.end && steps.end <= all, Device, "the plan has no steps {steps:?}");
        let mut segments = Vec::with_capacity(want);
        for (i, (buffer, (name, bytes))) in memory.iter().zip(&self.segments).enumerate() {
            let foreign =
                || fail!(Device, "segment `{name}` is given a buffer that is not one of {}", driver.name());
            let own = driver.memory(buffer).ok_or_else(foreign)?;
            let has = driver.bytes(own);
            ensure!(has >= *bytes, Device, "segment `{name}` has {has} bytes, needs {bytes}");
            let twice = memory[..i].iter().any(|other| Arc::ptr_eq(other, buffer));
            ensure!(!twice, Device, "segment `{name}` is given the memory of another");
            segments.push(own);
        }
        stream.hear()?;
        let mut next = steps.start;
        while next < steps.end {
            let part = self.part(next, steps.end);
            next = part.end;
            if stream.is_dropping() {
                return Ok(());
            }
            match self.replay(&part, stream, &segments) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(e) => {
                    self.failure = Some(e.clone());
                    return Err(e);
                }
            }
            for i in part {
                if stream.is_dropping() {
                    return Ok(());
                }
                let start = Instant::now();
                let mut result = self.step(&self.steps[i], stream, &segments);
                if !self.seconds.is_empty() {
                    result = result.and_then(|()| stream.settle());
                    self.seconds[i] += start.elapsed().as_secs_f64();
                }
                if let Err(e) = result {
                    let e = self.steps[i].site.named(e);
                    if e.code == Code::Device {
                        self.failure = Some(e.clone());
                        return Err(e);
                    }
                    stream.keep(e);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn measure(&mut self) {
        self.seconds = vec![0.0; self.steps.len()];
    }

    fn seconds(&self) -> Vec<f64> {
        self.seconds.clone()
    }
}
