//! The interface between this runtime and a device.

use crate::{LibraryStep, Lowered, Program, Refusal, Site, Used};
use headwater_core::device::{Buffer, Predicted, Stream};
use headwater_core::diagnostic::{Error, Result};
use headwater_core::fail;
use headwater_core::graph::Origin;
use headwater_core::plan::Step;
use std::sync::Arc;

/// A place where launches run.
pub trait Driver: Send + Sync + 'static {
    /// Alignment of memory in bytes. After the end of a memory, the bytes up to the next multiple and as many
    /// more may be read.
    const ALIGN: usize;

    /// Its kernels before they are compiled.
    type Program: Program;
    /// Memory of the device; clones share it.
    type Memory: Clone + Send;
    /// Its streams.
    type Stream: Queue<Self::Memory>;
    /// A kernel that is ready to be launched.
    type Kernel: Send;
    /// Launches that were recorded, to be run again by one call.
    type Graph: Send;
    /// An operator of the vendor's library.
    type Operator: Send;
    /// Memory that such operators request.
    type Workspace: Send;

    /// Name of the device.
    fn name(&self) -> &str;

    /// The launches of a step. `origin` is the model's line.
    ///
    /// # Errors
    /// The construct that has no kernel.
    fn lower(&self, step: &Step, origin: &Origin) -> Result<Lowered<Self::Program>, Refusal>;

    /// The step as a call of the vendor's library, if that is requested: `None` for steps that it has no
    /// function for.
    fn library(&self, step: &Step, origin: &Origin) -> Option<LibraryChoice<Self>>
    where
        Self: Sized;

    /// Predicted times of a step's launches, where the device has a model of them.
    fn predict(&self, step: &Step, lowered: &Lowered<Self::Program>) -> Option<Predicted>;

    /// The memory of one of its buffers.
    fn memory<'a>(&self, buffer: &'a Arc<dyn Buffer>) -> Option<&'a Self::Memory>;

    /// One of its streams.
    fn stream<'a>(&self, stream: &'a dyn Stream) -> Option<&'a Self::Stream>;

    /// Takes memory of unknown content.
    ///
    /// # Errors
    /// `Device` if there is not enough.
    fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Self::Memory>;

    /// Makes kernels of programs, whose names differ.
    ///
    /// # Errors
    /// `Device` with the kernel that does not compile or load.
    fn load(&self, programs: &[Arc<Self::Program>]) -> Result<Vec<Self::Kernel>>;

    /// Gives a launch to a stream.
    ///
    /// # Errors
    /// `Device` if it is refused, or with what the kernel failed with.
    fn launch(&self, stream: &Self::Stream, launch: &BoundLaunch<Self>) -> Result<()>
    where
        Self: Sized;

    /// True where launches that come again are worth recording.
    fn records(&self) -> bool;

    /// Records launches; `None` where that fails, and the launches are to be given one by one from now on.
    ///
    /// # Errors
    /// A failure after which the device does nothing more.
    fn record(&self, launches: &[BoundLaunch<Self>]) -> Result<Option<Self::Graph>>
    where
        Self: Sized;

    /// Gives recorded launches to a stream; false where that is refused, and nothing of them runs.
    ///
    /// # Errors
    /// As [`Driver::launch`].
    fn replay(&self, stream: &Self::Stream, graph: &Self::Graph) -> Result<bool>;

    /// Bytes of workspace that an operator requests.
    fn needs(&self, operator: &Self::Operator) -> usize;

    /// Workspace of operators, as much as any of them needs.
    ///
    /// # Errors
    /// `Device` if there is not enough.
    fn workspace(&self, operators: &[&Self::Operator]) -> Result<Self::Workspace>;

    /// Gives the work of an operator to a stream, on operands in memory.
    ///
    /// # Errors
    /// As [`Driver::launch`].
    fn call(
        &self,
        stream: &Self::Stream,
        operator: &Self::Operator,
        operands: &[(&Self::Memory, usize)],
        workspace: &Self::Workspace,
        site: &Arc<Site>,
    ) -> Result<()>;

    /// Notes the operators that a plan uses, with the bytes of their workspace.
    fn tell(&self, used: Used, workspace: &Self::Workspace);

    /// Address of a memory: no other one's while it lives.
    fn address(&self, memory: &Self::Memory) -> u64;

    /// Bytes of a memory.
    fn bytes(&self, memory: &Self::Memory) -> usize;

    /// Reads bytes, without order.
    ///
    /// # Errors
    /// `Device`
    fn read(&self, from: &Self::Memory, offset: usize, data: &mut [u8]) -> Result<()>;

    /// Writes bytes, without order.
    ///
    /// # Errors
    /// `Device`
    fn write(&self, to: &Self::Memory, offset: usize, data: &[u8]) -> Result<()>;
}

/// The errors of a stream: those in data, which steps on the host and kernels that check indices find.
pub trait Queue<M>: 'static {
    /// Reports an [`IndexFault`] that the launch before leaves at byte `at` of `faults`, once that is known:
    /// at once, or with the next call that waits.
    ///
    /// # Errors
    /// The fault; the device's failure.
    fn report(&self, faults: &M, at: usize, fault: IndexFault) -> Result<()>;

    /// Waits for reports of kernels that were launched before, and keeps the first error among them.
    ///
    /// # Errors
    /// The device's failure.
    fn hear(&self) -> Result<()>;

    /// Waits for all work of the stream. An error that is kept stays.
    ///
    /// # Errors
    /// The device's failure.
    fn settle(&self) -> Result<()>;

    /// True while the stream drops work, because of an error that no call has reported.
    fn is_dropping(&self) -> bool;

    /// Keeps an error in data until a call that waits.
    fn keep(&self, error: Error);
}

/// A step by the vendor's library, or the reason why it is not.
pub type LibraryChoice<D> = Result<LibraryStep<<D as Driver>::Operator, <D as Driver>::Program>, Refusal>;

/// A launch with its arguments at hand.
pub struct BoundLaunch<'a, M: Driver> {
    /// The kernel.
    pub kernel: &'a M::Kernel,
    /// Blocks.
    pub blocks: u32,
    /// An argument for each parameter but the synchronisation address.
    pub args: Vec<BoundArgument<'a, M::Memory>>,
    /// Kernel, operator and line of the model.
    pub site: &'a Arc<Site>,
}

/// An argument of a launch.
pub enum BoundArgument<'a, T> {
    /// Address of a byte of memory.
    Memory(&'a T, usize),
    /// An integer.
    Int(i64),
    /// A float.
    Float(f32),
}

/// A bound on the indices that a kernel checks, for the error about one outside.
#[derive(Clone, Debug)]
pub struct IndexFault {
    /// Indices are below it.
    pub limit: u64,
    /// Bytes of the kernel's reports.
    pub bytes: usize,
    /// Operator and line.
    pub site: Arc<Site>,
}

impl IndexFault {
    /// Bytes of a report: the number of wrong indices, the position of the first, its low and its high half,
    /// and zeros.
    pub const REPORT: usize = 32;

    /// The error that the reports of a kernel stand for: of the first wrong index.
    ///
    /// # Errors
    /// `Value` if an index was out of range.
    pub fn check(&self, reports: &[u8]) -> Result<()> {
        let number = |report: &[u8], i: usize| {
            let bytes = report.get(4 * i..4 * i + 4).and_then(|b| b.try_into().ok());
            bytes.map_or(0, i32::from_le_bytes)
        };
        let wrong = reports.chunks(IndexFault::REPORT).find(|report| number(report, 0) != 0);
        let Some(report) = wrong else { return Ok(()) };
        let word = |i| number(report, i);
        let (low, high) = (word(2) as u32, word(3));
        let index = (i64::from(high) << 32) | i64::from(low);
        let error = fail!(Value, "index {index} at position {} is outside 0..{}", word(1), self.limit);
        Err(self.site.named(error))
    }
}
