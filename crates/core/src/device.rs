//! The device contract: memory, streams of work, and plans that run on them.
//!
//! Work is submitted to a [`Stream`], which runs it in order, some time later. Two streams are not ordered,
//! except where one waits for an [`Event`] of the other. The host sees nothing of it before it waits. A
//! device that does its work while it is submitted is the trivial case, and fulfils the same contract.
//!
//! Failures. What can be checked at once (a range, a foreign buffer) is refused at once. What goes wrong
//! while work runs is kept by the stream. The work after it on that stream is dropped, and the next call that
//! waits reports it. An error in data (`Value`, such as an index out of range) is then over, and the stream
//! takes work again. A failure of the device (`Device`) is sticky. Every later call on the stream, and every
//! later run of the same executable, reports it again. Errors of a plan name the operator and the model's
//! line.
//!
//! Passes see a device through its [`Target`] alone. The interface knows no pass.

use crate::diagnostic::Result;
use crate::plan::{Plan, Step};
use crate::ranks::Transport;
use crate::target::{Support, Target};
use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// The content of fresh memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Anything: it is written before it is read.
    Undefined,
    /// Zeros.
    Zero,
}

/// A place where plans run.
pub trait Device: Send + Sync {
    /// Name, e.g. `cpu`, `ascend:0`.
    fn name(&self) -> &str;

    /// Its abilities and costs.
    fn target(&self) -> &Target;

    /// Memory of its own, aligned as the target says. The device frees it when the last handle is dropped and
    /// no submitted work uses it any more.
    ///
    /// # Errors
    /// `Device` if there is not enough.
    fn alloc(&self, bytes: usize, content: Content) -> Result<Arc<dyn Buffer>>;

    /// Bytes that buffers can still take, where the device can tell.
    fn free_memory(&self) -> Option<usize> {
        None
    }

    /// Host memory of somebody else as a buffer, without a copy. Plans read and write it in place. Memory of
    /// the device itself that others own is wrapped by the device's own crate.
    ///
    /// # Errors
    /// `Unsupported` if the device does not address host memory, `Device` if the first byte is not aligned to
    /// [`crate::plan::ALIGN`] bytes.
    fn borrow(&self, memory: Box<dyn Foreign>) -> Result<Arc<dyn Buffer>>;

    /// A new stream, empty.
    ///
    /// # Errors
    /// `Device` if there are no more.
    fn stream(&self) -> Result<Box<dyn Stream>>;

    /// Prepares a plan: picks kernels, compiles programs, checks every operand against its segment.
    ///
    /// # Errors
    /// `Unsupported` or `Device` if a step cannot run here, `Plan` if the plan is not sound.
    fn load(&self, plan: &Plan) -> Result<Box<dyn Executable>>;

    /// The way it would run each step of a plan, for reports; nothing is compiled or run.
    fn survey(&self, plan: &Plan) -> Vec<StepUse> {
        let used = |step: &Step| match self.target().step(step) {
            Support::Native => StepUse { launches: 1, ..StepUse::default() },
            Support::Expand | Support::Reference => {
                StepUse { host: Some("no kernel".into()), ..StepUse::default() }
            }
            Support::Missing(why) => StepUse { host: Some(why), ..StepUse::default() },
        };
        plan.steps.iter().map(used).collect()
    }

    /// The other ranks that its plans meet in collectives; `None` if there is none.
    fn transport(&self) -> Option<Arc<dyn Transport>> {
        None
    }

    /// All that the bits of its results depend on in addition to the plan, such as the processor's
    /// instructions: ranks that differ in it cannot train one model.
    fn arithmetic(&self) -> String {
        self.name().into()
    }

    /// Remarks on plans that were loaded and run, each given once, such as the time that compiling took.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// A remark that belongs beside every figure of this device, such as that it is simulated, or rounds
    /// otherwise.
    fn remark(&self) -> Option<&str> {
        None
    }
}

/// The way a device runs a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepUse {
    /// The reason why it runs through the reference, if it does.
    pub host: Option<String>,
    /// Kernels that it launches.
    pub launches: usize,
    /// The function that computes it, or the reason why none does, if operators of a vendor's library are
    /// requested.
    pub vendor: Option<Result<&'static str, String>>,
    /// Bytes of workspace that this function requests, in addition to the plan's memory. Steps share them.
    pub workspace: usize,
    /// Times of the kernels, where the device predicts them.
    pub predicted: Option<Predicted>,
}

/// Predicted times of a step's kernels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Predicted {
    /// Seconds of each kernel, in their order.
    pub kernels: Vec<f64>,
    /// Seconds that the host needs to launch one.
    pub launch: f64,
    /// Seconds that the host needs to replay the recorded launches which begin with this step; 0 where none
    /// do.
    pub replay: f64,
    /// Seconds for which each unit of the device is busy, by its name: means over all its cores.
    pub busy: Vec<(&'static str, f64)>,
}

/// Memory on a device. Handles are shared: submitted work holds those that it uses.
pub trait Buffer: Debug + Send + Sync {
    /// Size in bytes.
    fn bytes(&self) -> usize;
    /// For the device to find its own type again.
    fn as_any(&self) -> &dyn Any;
}

/// Contiguous host memory that is lent to a device for as long as the buffer made of it lives. Its owner
/// keeps it: between pieces of work he may read and write it, as an array of another library that a plan
/// updates in place.
///
/// # Safety
/// [`Foreign::memory`] gives the same memory at every call. Its bytes are initialised, and any thread may
/// read and write them until this value is dropped. From the moment when work that uses the memory is
/// submitted until that work has been waited for, nobody else writes the memory, or reads what the work
/// writes.
#[allow(unsafe_code, reason = "a contract for those who implement it; nothing unsafe is done here")]
pub unsafe trait Foreign: Send {
    /// The memory.
    fn memory(&self) -> NonNull<[u8]>;
}

/// A queue of work on a device, done in the order in which it was submitted. Ranges are in bytes and are
/// checked when work is submitted; one that is outside is a `Device` error at once.
pub trait Stream: Send + Sync {
    /// Copies host memory to a buffer. `data` is taken before this returns, so it may be reused at once.
    ///
    /// # Errors
    /// As the module says.
    fn write(&self, to: &Arc<dyn Buffer>, offset: usize, data: &[u8]) -> Result<()>;

    /// Copies from a buffer to host memory, to be taken when it is complete.
    ///
    /// # Errors
    /// As the module says.
    fn fetch(&self, from: &Arc<dyn Buffer>, offset: usize, bytes: usize) -> Result<Box<dyn Fetched>>;

    /// Copies from a buffer to host memory, and waits for it and all work before.
    ///
    /// # Errors
    /// As the module says.
    fn read(&self, from: &Arc<dyn Buffer>, offset: usize, data: &mut [u8]) -> Result<()> {
        data.copy_from_slice(&self.fetch(from, offset, data.len())?.wait()?);
        Ok(())
    }

    /// Copies between buffers of the device; the ranges do not overlap.
    ///
    /// # Errors
    /// As the module says.
    fn copy(
        &self,
        from: &Arc<dyn Buffer>,
        from_offset: usize,
        to: &Arc<dyn Buffer>,
        to_offset: usize,
        bytes: usize,
    ) -> Result<()>;

    /// Sets every byte of a range.
    ///
    /// # Errors
    /// As the module says.
    fn fill(&self, to: &Arc<dyn Buffer>, offset: usize, bytes: usize, value: u8) -> Result<()>;

    /// A mark after all work submitted so far.
    ///
    /// # Errors
    /// As the module says.
    fn record(&self) -> Result<Arc<dyn Event>>;

    /// Holds the work submitted from now on until an event of another stream of the same device has come.
    /// Does not hold the host.
    ///
    /// # Errors
    /// As the module says; `Device` for an event of another device.
    fn wait(&self, event: &Arc<dyn Event>) -> Result<()>;

    /// Waits until all work submitted so far is done, and reports what went wrong.
    ///
    /// # Errors
    /// As the module says.
    fn synchronize(&self) -> Result<()>;

    /// For the device to find its own type again.
    fn as_any(&self) -> &dyn Any;
}

/// A mark in a stream.
pub trait Event: Send + Sync {
    /// True if the work before it is done. Does not wait.
    fn is_done(&self) -> bool;
    /// Waits for the work before it.
    ///
    /// # Errors
    /// The failure before it in its stream, which keeps it to report it too.
    fn synchronize(&self) -> Result<()>;
    /// For the device to find its own type again.
    fn as_any(&self) -> &dyn Any;
}

/// Bytes on their way to the host.
pub trait Fetched: Send {
    /// Waits for them.
    ///
    /// # Errors
    /// The failure before it in the stream.
    fn wait(self: Box<Self>) -> Result<Vec<u8>>;
}

/// A plan loaded onto a device.
pub trait Executable: Send {
    /// Submits a part of the plan: the steps of a range, in order; `0..steps` is all of it. `memory[i]` is
    /// segment `i`, the arena first, each a buffer of its own. Parts of one run, in order and on the same
    /// memory, do what the whole does. The plan's own streams begin after the work of `stream`, and what is
    /// submitted to it next waits for all of them. A device may as well run all steps on it in their order.
    ///
    /// # Errors
    /// `Device` if the memory is not this device's, too small or too little, and as the module of [`Device`]
    /// says.
    fn submit(&mut self, stream: &dyn Stream, memory: &[Arc<dyn Buffer>], steps: Range<usize>) -> Result<()>;

    /// Measures the duration of every step from now on. That may order what would overlap.
    fn measure(&mut self);

    /// Seconds that each step has taken in runs that are done, since [`Executable::measure`]; empty before.
    fn seconds(&self) -> Vec<f64>;
}

impl Plan {
    /// The steps from the first of a phase to its last; phases follow each other.
    pub fn steps_of(&self, phase: crate::graph::Phase) -> Range<usize> {
        let first = self.steps.iter().position(|s| s.phase == phase);
        let last = self.steps.iter().rposition(|s| s.phase == phase);
        first.zip(last).map_or(0..0, |(first, last)| first..last + 1)
    }
}
