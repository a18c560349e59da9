//! The simulator as a device: plans run on a simulated chip, by the instructions that the chip would run.
//!
//! Work is done while it is submitted. Memory is the process's own; each buffer has a range of addresses for
//! itself, so that what one kernel does beyond its operand is never another operand by chance.

use super::survey::predicted;
use super::target;
use crate::chip::{Arch, Chip};
use crate::host::Site;
use crate::host::memory::ALIGN;
use crate::kernel::{Access, ParamKind, Program, verify};
use crate::lower::{self, Lowered, Refusal};
use crate::sim::{self, Arg, Bytes, Mode, Region};
use headwater_core::device::{
    Buffer, Content, Device, Event, Executable, Fetched, Foreign, Predicted, StepUse, Stream,
};
use headwater_core::diagnostic::{Code, Error, Result};
use headwater_core::graph::Origin;
use headwater_core::plan::{Plan, Step};
use headwater_core::target::Target;
use headwater_core::{ensure, fail};
use headwater_launch::{
    BoundArgument, BoundLaunch, Driver, IndexFault, LibraryStep, Loaded, Queue, Used, survey,
};
use std::any::Any;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Contents of memory that nobody wrote, in checked runs: as f32 and f16 a NaN.
const POISON: u8 = 0xff;

/// A simulated NPU.
#[derive(Debug)]
pub struct AscendSim {
    chip: Arc<Simulated>,
    target: Target,
}

/// Shared by the parts of a simulated NPU.
#[derive(Debug)]
struct Simulated {
    name: String,
    chip: &'static Chip,
    mode: Mode,
    threads: usize,
    /// The first address that no buffer had yet.
    next: AtomicU64,
    /// Bytes of all buffers.
    used: AtomicU64,
}

impl AscendSim {
    /// A chip, whose kernels are run on so many threads; with `checked`, by the simulator with every check,
    /// on one.
    pub fn new(chip: &'static Chip, checked: bool, threads: usize) -> AscendSim {
        let mode = if checked { Mode::Checked { seed: 0 } } else { Mode::Fast };
        let name = format!("ascend-sim:{chip}{}", if checked { ",checked" } else { "" });
        let target = target::target(&name, chip.arch, Some(chip), chip.memory);
        let (next, used) = (AtomicU64::new(1 << 32), AtomicU64::new(0));
        AscendSim { chip: Arc::new(Simulated { name, chip, mode, threads, next, used }), target }
    }

    /// The chip that `CHIP` or `CHIP,checked` names, as it follows `ascend-sim:`.
    ///
    /// # Errors
    /// `Unsupported` with the names that there are.
    pub fn from_name(name: &str, threads: usize) -> Result<AscendSim> {
        let (chip, mode) = name.split_once(',').unwrap_or((name, ""));
        let known: Vec<&str> = crate::chip::CHIPS.iter().map(|c| c.name).collect();
        let found = Chip::from_name(chip);
        let found = found.ok_or_else(|| {
            fail!(Unsupported, "there is no chip `{chip}` to simulate: use one of {}", known.join(", "))
        })?;
        ensure!(
            matches!(mode, "" | "fast" | "checked"),
            Unsupported,
            "`{mode}` is no mode of the simulator: use `ascend-sim:{found}` or `ascend-sim:{found},checked`"
        );
        Ok(AscendSim::new(found, mode == "checked", threads))
    }

    /// The chip.
    pub fn chip(&self) -> &'static Chip {
        self.chip.chip
    }
}

/// Memory of the simulated chip.
#[derive(Debug)]
struct SimBuffer {
    owner: Arc<Simulated>,
    start: u64,
    bytes: usize,
    /// The bytes and those after them that may be read.
    memory: Mutex<Vec<u8>>,
}

impl SimBuffer {
    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A range of bytes that is inside.
    fn range(&self, offset: usize, bytes: usize) -> Result<Range<usize>> {
        let end = offset.checked_add(bytes).filter(|&end| end <= self.bytes);
        let end = end.ok_or_else(|| {
            fail!(Device, "bytes {offset} to {offset}+{bytes} of a buffer of {} bytes", self.bytes)
        })?;
        Ok(offset..end)
    }
}

impl Drop for SimBuffer {
    fn drop(&mut self) {
        self.owner.used.fetch_sub(self.bytes as u64, Ordering::SeqCst);
    }
}

impl Simulated {
    fn buffer(self: &Arc<Self>, bytes: usize, content: Content) -> Result<Arc<SimBuffer>> {
        let room = bytes.checked_next_multiple_of(ALIGN).and_then(|room| room.checked_add(ALIGN));
        let room = room.ok_or_else(|| fail!(Device, "a buffer of {bytes} bytes"))?;
        let all = self.used.fetch_add(bytes as u64, Ordering::SeqCst).saturating_add(bytes as u64);
        if all > self.chip.memory {
            self.used.fetch_sub(bytes as u64, Ordering::SeqCst);
            let free = self.chip.memory.saturating_sub(all - bytes as u64);
            let total = self.chip.memory;
            return Err(fail!(
                Device,
                "{} has no room for {bytes} bytes: {free} of {total} are free",
                self.name
            ));
        }
        let poisoned = content == Content::Undefined && self.mode != Mode::Fast;
        let memory = Mutex::new(vec![if poisoned { POISON } else { 0 }; room]);
        let start = self.next.fetch_add(room as u64, Ordering::SeqCst);
        Ok(Arc::new(SimBuffer { owner: self.clone(), start, bytes, memory }))
    }

    fn own(self: &Arc<Self>, buffer: &Arc<dyn Buffer>) -> Result<Arc<SimBuffer>> {
        let own = self.memory(buffer).cloned();
        own.ok_or_else(|| fail!(Device, "a buffer is not one of {}", self.name))
    }
}

/// A handle of memory, as the contract has them.
#[derive(Debug)]
struct Handle(Arc<SimBuffer>);

impl Buffer for Handle {
    fn bytes(&self) -> usize {
        self.0.bytes
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A stream, which does its work at once.
struct SimStream {
    chip: Arc<Simulated>,
    error: Mutex<Option<Error>>,
}

impl SimStream {
    fn error(&self) -> MutexGuard<'_, Option<Error>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if work is done: not after an error in data that has not been reported.
    ///
    /// # Errors
    /// A failure of the device.
    fn works(&self) -> Result<bool> {
        match &*self.error() {
            None => Ok(true),
            Some(e) if e.code == Code::Device => Err(e.clone()),
            Some(_) => Ok(false),
        }
    }

    /// Reports what went wrong; an error in data is over then.
    fn report(&self) -> Result<()> {
        let mut error = self.error();
        match &*error {
            Some(e) if e.code == Code::Device => Err(e.clone()),
            _ => error.take().map_or(Ok(()), Err),
        }
    }
}

struct SimEvent {
    chip: Arc<Simulated>,
    error: Option<Error>,
}

impl Event for SimEvent {
    fn is_done(&self) -> bool {
        true
    }

    fn synchronize(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct Copied(Result<Vec<u8>>);

impl Fetched for Copied {
    fn wait(self: Box<Self>) -> Result<Vec<u8>> {
        self.0
    }
}

impl Stream for SimStream {
    fn write(&self, to: &Arc<dyn Buffer>, offset: usize, data: &[u8]) -> Result<()> {
        let to = self.chip.own(to)?;
        let range = to.range(offset, data.len())?;
        if self.works()? {
            to.lock()[range].copy_from_slice(data);
        }
        Ok(())
    }

    fn fetch(&self, from: &Arc<dyn Buffer>, offset: usize, bytes: usize) -> Result<Box<dyn Fetched>> {
        let from = self.chip.own(from)?;
        let range = from.range(offset, bytes)?;
        let data = self.report().map(|()| from.lock()[range].to_vec());
        Ok(Box::new(Copied(data)))
    }

    fn copy(
        &self,
        from: &Arc<dyn Buffer>,
        from_offset: usize,
        to: &Arc<dyn Buffer>,
        to_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        let (from, to) = (self.chip.own(from)?, self.chip.own(to)?);
        let (source, target) = (from.range(from_offset, bytes)?, to.range(to_offset, bytes)?);
        if self.works()? {
            let data = from.lock()[source].to_vec();
            to.lock()[target].copy_from_slice(&data);
        }
        Ok(())
    }

    fn fill(&self, to: &Arc<dyn Buffer>, offset: usize, bytes: usize, value: u8) -> Result<()> {
        let to = self.chip.own(to)?;
        let range = to.range(offset, bytes)?;
        if self.works()? {
            to.lock()[range].fill(value);
        }
        Ok(())
    }

    fn record(&self) -> Result<Arc<dyn Event>> {
        Ok(Arc::new(SimEvent { chip: self.chip.clone(), error: self.error().clone() }))
    }

    fn wait(&self, event: &Arc<dyn Event>) -> Result<()> {
        let own = event.as_any().downcast_ref::<SimEvent>();
        let own = own.filter(|e| Arc::ptr_eq(&e.chip, &self.chip));
        ensure!(own.is_some(), Device, "the event is not one of {}", self.chip.name);
        self.works().map(drop)
    }

    fn synchronize(&self) -> Result<()> {
        self.report()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Queue<Arc<SimBuffer>> for SimStream {
    fn report(&self, faults: &Arc<SimBuffer>, at: usize, fault: IndexFault) -> Result<()> {
        let range = faults.range(at, fault.bytes)?;
        fault.check(&faults.lock()[range])
    }

    fn hear(&self) -> Result<()> {
        self.works().map(drop)
    }

    fn settle(&self) -> Result<()> {
        self.works().map(drop)
    }

    fn is_dropping(&self) -> bool {
        self.error().is_some()
    }

    fn keep(&self, error: Error) {
        self.error().get_or_insert(error);
    }
}

impl Driver for Simulated {
    const ALIGN: usize = ALIGN;

    type Program = Program;
    type Memory = Arc<SimBuffer>;
    type Stream = SimStream;
    type Kernel = Arc<Program>;
    type Graph = Infallible;
    /// The vendor's library is not simulated.
    type Operator = Infallible;
    type Workspace = ();

    fn name(&self) -> &str {
        &self.name
    }

    fn lower(&self, step: &Step, origin: &Origin) -> Result<Lowered, Refusal> {
        lower::step(self.chip, true, step, origin)
    }

    fn library(&self, _: &Step, _: &Origin) -> Option<Result<LibraryStep<Infallible, Program>, Refusal>> {
        None
    }

    fn predict(&self, step: &Step, lowered: &Lowered) -> Option<Predicted> {
        predicted(self.chip, step, lowered)
    }

    fn memory<'a>(&self, buffer: &'a Arc<dyn Buffer>) -> Option<&'a Arc<SimBuffer>> {
        let own = buffer.as_any().downcast_ref::<Handle>().map(|handle| &handle.0);
        own.filter(|buffer| std::ptr::eq(&*buffer.owner, self))
    }

    fn stream<'a>(&self, stream: &'a dyn Stream) -> Option<&'a SimStream> {
        let own = stream.as_any().downcast_ref::<SimStream>();
        own.filter(|stream| std::ptr::eq(&*stream.chip, self))
    }

    fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Arc<SimBuffer>> {
        self.buffer(bytes, Content::Undefined)
    }

    fn load(&self, programs: &[Arc<Program>]) -> Result<Vec<Arc<Program>>> {
        for program in programs {
            if let Err(found) = verify(program) {
                return Err(failed(&found));
            }
        }
        Ok(programs.to_vec())
    }

    fn needs(&self, operator: &Infallible) -> usize {
        match *operator {}
    }

    fn workspace(&self, _: &[&Infallible]) -> Result<()> {
        Ok(())
    }

    fn call(
        &self,
        _: &SimStream,
        operator: &Infallible,
        _: &[(&Arc<SimBuffer>, usize)],
        (): &(),
        _: &Arc<Site>,
    ) -> Result<()> {
        match *operator {}
    }

    fn tell(&self, _: Used, (): &()) {}

    fn launch(&self, _: &SimStream, launch: &BoundLaunch<Self>) -> Result<()> {
        let mut given = launch.args.iter();
        let mut args = Vec::new();
        // Byte ranges of buffers that parameters span, and whether one is written.
        let mut spans: Vec<(&Arc<SimBuffer>, Range<usize>, bool)> = Vec::new();
        for param in &launch.kernel.params {
            let ParamKind::Pointer { access, .. } = param.kind else {
                args.push(match (&param.kind, given.as_slice().first()) {
                    // No kernel that is run here uses the address itself.
                    (ParamKind::Sync, _) => Arg::Pointer(0),
                    (_, Some(BoundArgument::Int(x))) => Arg::Int(*x),
                    (_, Some(BoundArgument::Float(x))) => Arg::Float(*x),
                    _ => return Err(fail!(Device, "no argument for `{}`", param.name)),
                });
                if param.kind != ParamKind::Sync {
                    given.next();
                }
                continue;
            };
            let Some(BoundArgument::Memory(buffer, at)) = given.next() else {
                return Err(fail!(Device, "no argument for `{}`", param.name));
            };
            args.push(Arg::Pointer(buffer.start + *at as u64));
            spans.push((buffer, *at..at.saturating_add(param.bytes() as usize), access != Access::In));
        }
        // Ranges that meet become one.
        spans.sort_by_key(|(buffer, range, _)| (buffer.start, range.start));
        let mut pieces: Vec<(&Arc<SimBuffer>, Range<usize>, bool)> = Vec::new();
        for (buffer, range, written) in spans {
            match pieces.last_mut() {
                Some((last, held, writes)) if Arc::ptr_eq(last, buffer) && range.start < held.end => {
                    held.end = held.end.max(range.end);
                    *writes |= written;
                }
                _ => pieces.push((buffer, range, written)),
            }
        }
        let mut buffers: Vec<&Arc<SimBuffer>> = pieces.iter().map(|(buffer, _, _)| *buffer).collect();
        buffers.dedup_by(|a, b| Arc::ptr_eq(a, b));
        // In the order of addresses, so that two streams do not wait for each other.
        let mut guards: Vec<MutexGuard<Vec<u8>>> = buffers.iter().map(|buffer| buffer.lock()).collect();
        let mut regions = Vec::new();
        let mut pieces = pieces.into_iter().peekable();
        for (buffer, guard) in buffers.iter().zip(&mut guards) {
            let (mut rest, mut begin) = (guard.as_mut_slice(), 0);
            while let Some((_, range, written)) = pieces.next_if(|(b, _, _)| Arc::ptr_eq(b, buffer)) {
                let (_, tail) = rest.split_at_mut((range.start - begin).min(rest.len()));
                let (piece, tail) = tail.split_at_mut(range.len().min(tail.len()));
                (rest, begin) = (tail, range.end);
                let bytes = if written { Bytes::Write(piece) } else { Bytes::Read(piece) };
                regions.push(Region { start: buffer.start + range.start as u64, bytes });
            }
        }
        let run = sim::Launch::new(launch.kernel, self.chip, launch.blocks, &args, self.mode);
        sim::launch_verified(&run, regions, self.threads).map_err(|found| failed(&found))?;
        Ok(())
    }

    fn records(&self) -> bool {
        // Launches have no cost here that a recording would save.
        false
    }

    fn record(&self, _: &[BoundLaunch<Self>]) -> Result<Option<Infallible>> {
        Ok(None)
    }

    fn replay(&self, _: &SimStream, graph: &Infallible) -> Result<bool> {
        match *graph {}
    }

    fn address(&self, memory: &Arc<SimBuffer>) -> u64 {
        memory.start
    }

    fn bytes(&self, memory: &Arc<SimBuffer>) -> usize {
        memory.bytes
    }

    fn read(&self, from: &Arc<SimBuffer>, offset: usize, data: &mut [u8]) -> Result<()> {
        data.copy_from_slice(&from.lock()[from.range(offset, data.len())?]);
        Ok(())
    }

    fn write(&self, to: &Arc<SimBuffer>, offset: usize, data: &[u8]) -> Result<()> {
        let range = to.range(offset, data.len())?;
        to.lock()[range].copy_from_slice(data);
        Ok(())
    }
}

/// The failure of a launch: what was found, at most three of it.
fn failed(found: &[crate::Finding]) -> Error {
    let lines = found.iter().take(3).map(|finding| {
        // The step that is run names its own operator and line.
        let finding = crate::Finding { op: String::new(), origin: None, ..finding.clone() };
        finding.to_string().replace("\n  ", "; ")
    });
    Error::new(Code::Device, lines.collect::<Vec<_>>().join("\n"))
}

impl Device for AscendSim {
    fn name(&self) -> &str {
        &self.chip.name
    }

    fn target(&self) -> &Target {
        &self.target
    }

    fn alloc(&self, bytes: usize, content: Content) -> Result<Arc<dyn Buffer>> {
        Ok(Arc::new(Handle(self.chip.buffer(bytes, content)?)))
    }

    fn borrow(&self, _: Box<dyn Foreign>) -> Result<Arc<dyn Buffer>> {
        Err(fail!(Unsupported, "{} does not address host memory", self.chip.name))
    }

    fn stream(&self) -> Result<Box<dyn Stream>> {
        Ok(Box::new(SimStream { chip: self.chip.clone(), error: Mutex::default() }))
    }

    fn load(&self, plan: &Plan) -> Result<Box<dyn Executable>> {
        Ok(Box::new(Loaded::new(&self.chip, &self.target, plan)?))
    }

    fn survey(&self, plan: &Plan) -> Vec<StepUse> {
        survey(&*self.chip, plan)
    }

    fn remark(&self) -> Option<&str> {
        Some(match self.chip.chip.arch {
            Arch::A2 => "simulated; times are predicted by a model, none is measured on hardware",
            Arch::P310 => {
                "simulated; times are scaled from the chip's table, not calibrated: no measurement of it is public"
            }
        })
    }
}
