//! A vendor's runtime as this crate sees it: memory, streams, events and copies in the background.

use headwater_core::device::Buffer;
use headwater_core::diagnostic::Result;
use std::any::Any;
use std::fmt::Debug;
use std::ops::DerefMut;
use std::sync::Arc;

/// A device of a vendor's runtime. Its calls give the first failure of the device again once there was one.
pub trait Host: Debug + Send + Sync + Sized + 'static {
    /// Memory of the device; clones share it.
    type Memory: Clone + Debug + Send + Sync + 'static;
    /// Host memory that the device copies from and to while the host goes on.
    type Pinned: DerefMut<Target = [u8]> + Send + 'static;
    /// A queue of work.
    type Stream: Debug + Send + Sync + 'static;
    /// An event after work of a stream.
    type Event: Send + Sync + 'static;
    /// A copy under way. It owns its host memory until it is done, also where it is dropped.
    type Pending: Send + 'static;

    /// Name of the device, e.g. `cuda:0`.
    fn name(&self) -> String;

    /// The device that a memory belongs to.
    fn owner(memory: &Self::Memory) -> &Arc<Self>;

    /// Size of a memory.
    fn bytes(memory: &Self::Memory) -> usize;

    /// Refuses a range that leaves a memory.
    ///
    /// # Errors
    /// `Device` with the range.
    fn check(memory: &Self::Memory, offset: usize, bytes: usize) -> Result<()>;

    /// A new stream.
    ///
    /// # Errors
    /// `Device` if there is none.
    fn open_stream(self: &Arc<Self>) -> Result<Self::Stream>;

    /// Pinned memory of at least so many bytes.
    ///
    /// # Errors
    /// `Device` if there is not enough.
    fn pin(self: &Arc<Self>, bytes: usize) -> Result<Self::Pinned>;

    /// Copies the first `bytes` bytes of pinned memory to the device.
    ///
    /// # Errors
    /// `Device` for a range outside, or the device's failure.
    fn upload(
        stream: &Self::Stream,
        to: &Self::Memory,
        offset: usize,
        from: Self::Pinned,
        bytes: usize,
    ) -> Result<Self::Pending>;

    /// Copies to the first `bytes` bytes of pinned memory.
    ///
    /// # Errors
    /// As [`Host::upload`].
    fn download(
        stream: &Self::Stream,
        from: &Self::Memory,
        offset: usize,
        to: Self::Pinned,
        bytes: usize,
    ) -> Result<Self::Pending>;

    /// True if a copy is done.
    ///
    /// # Errors
    /// The device's failure.
    fn has_arrived(copy: &Self::Pending) -> Result<bool>;

    /// Waits for a copy and gives its pinned memory back.
    ///
    /// # Errors
    /// The device's failure.
    fn arrived(copy: Self::Pending) -> Result<Self::Pinned>;

    /// Copies from one memory of the device to another.
    ///
    /// # Errors
    /// As [`Host::upload`].
    fn copy(
        stream: &Self::Stream,
        from: (&Self::Memory, usize),
        to: (&Self::Memory, usize),
        bytes: usize,
    ) -> Result<()>;

    /// Sets bytes.
    ///
    /// # Errors
    /// As [`Host::upload`].
    fn fill(stream: &Self::Stream, to: &Self::Memory, offset: usize, bytes: usize, value: u8) -> Result<()>;

    /// An event after all work that the stream has been given.
    ///
    /// # Errors
    /// `Device` if there is none, or the device's failure.
    fn record(stream: &Self::Stream) -> Result<Self::Event>;

    /// Has later work of a stream wait for an event.
    ///
    /// # Errors
    /// The device's failure.
    fn wait(stream: &Self::Stream, event: &Self::Event) -> Result<()>;

    /// True if the work before an event is done.
    ///
    /// # Errors
    /// The device's failure.
    fn is_done(event: &Self::Event) -> Result<bool>;

    /// Waits for the work before an event.
    ///
    /// # Errors
    /// The device's failure.
    fn finish(event: &Self::Event) -> Result<()>;

    /// Waits for all work of a stream.
    ///
    /// # Errors
    /// The device's failure.
    fn synchronize(stream: &Self::Stream) -> Result<()>;
}

/// Memory of a device as a buffer of the contract.
#[derive(Debug)]
pub struct HostBuffer<H: Host>(pub H::Memory);

impl<H: Host> Buffer for HostBuffer<H> {
    fn bytes(&self) -> usize {
        H::bytes(&self.0)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The memory of a buffer, if it is one of this device.
pub fn memory_of<'a, H: Host>(host: &Arc<H>, buffer: &'a Arc<dyn Buffer>) -> Option<&'a H::Memory> {
    let own = buffer.as_any().downcast_ref::<HostBuffer<H>>().map(|b| &b.0);
    own.filter(|memory| Arc::ptr_eq(H::owner(memory), host))
}
