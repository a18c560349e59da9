//! The host side of an NPU as the runtime of devices takes it.

use crate::host::{self, Device, DeviceMemory, Event, Pending, PinnedMemory, Stream};
use headwater_core::diagnostic::Result;
use headwater_launch::{Host, HostStream};
use std::sync::Arc;

/// A stream of an NPU.
pub(super) type AscendStream = HostStream<Device>;

impl Host for Device {
    type Memory = DeviceMemory;
    type Pinned = PinnedMemory;
    type Stream = Stream;
    type Event = Event;
    type Pending = Pending;

    fn name(&self) -> String {
        host::Device::name(self)
    }

    fn owner(memory: &DeviceMemory) -> &Arc<Device> {
        memory.device()
    }

    fn bytes(memory: &DeviceMemory) -> usize {
        memory.bytes()
    }

    fn check(memory: &DeviceMemory, offset: usize, bytes: usize) -> Result<()> {
        Ok(memory.check(offset, bytes)?)
    }

    fn open_stream(self: &Arc<Self>) -> Result<Stream> {
        Ok(Stream::new(self)?)
    }

    fn pin(self: &Arc<Self>, bytes: usize) -> Result<PinnedMemory> {
        Ok(PinnedMemory::alloc(self, bytes)?)
    }

    fn upload(
        stream: &Stream,
        to: &DeviceMemory,
        offset: usize,
        from: PinnedMemory,
        bytes: usize,
    ) -> Result<Pending> {
        Ok(stream.write_part(to, offset, from, bytes)?)
    }

    fn download(
        stream: &Stream,
        from: &DeviceMemory,
        offset: usize,
        to: PinnedMemory,
        bytes: usize,
    ) -> Result<Pending> {
        Ok(stream.read_part(from, offset, to, bytes)?)
    }

    fn has_arrived(copy: &Pending) -> Result<bool> {
        Ok(copy.is_done()?)
    }

    fn arrived(copy: Pending) -> Result<PinnedMemory> {
        Ok(copy.wait(None)?)
    }

    fn copy(
        stream: &Stream,
        from: (&DeviceMemory, usize),
        to: (&DeviceMemory, usize),
        bytes: usize,
    ) -> Result<()> {
        Ok(stream.copy(from, to, bytes)?)
    }

    fn fill(stream: &Stream, to: &DeviceMemory, offset: usize, bytes: usize, value: u8) -> Result<()> {
        Ok(stream.fill(to, offset, bytes, value)?)
    }

    fn record(stream: &Stream) -> Result<Event> {
        Ok(stream.record()?)
    }

    fn wait(stream: &Stream, event: &Event) -> Result<()> {
        Ok(stream.wait(event)?)
    }

    fn is_done(event: &Event) -> Result<bool> {
        Ok(event.is_done()?)
    }

    fn finish(event: &Event) -> Result<()> {
        Ok(event.wait(None)?)
    }

    fn synchronize(stream: &Stream) -> Result<()> {
        Ok(stream.synchronize(None)?)
    }
}
