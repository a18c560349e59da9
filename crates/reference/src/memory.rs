//! Memory that knows which of its bytes somebody has written, and who uses them.

use crate::machine::{Machine, StreamId, User};
use headwater_core::device::{Buffer, Content};
use headwater_core::diagnostic::Result;
use headwater_core::{ensure, fail};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The content of bytes that nobody wrote: as f32, f16 or bf16 a NaN that is easily recognised.
pub const POISON: u8 = 0xFF;

/// A buffer of the reference device.
pub struct ReferenceBuffer {
    pub(crate) machine: Arc<Machine>,
    bytes: usize,
    memory: Mutex<Memory>,
}

/// The bytes of a buffer.
#[derive(Debug)]
pub(crate) struct Memory {
    pub bytes: Vec<u8>,
    /// For each byte, true if somebody has written it.
    written: Vec<bool>,
    uses: Vec<Use>,
}

/// A use of some bytes by work on a stream.
#[derive(Clone, Debug, PartialEq)]
struct Use {
    bytes: Range<usize>,
    stream: StreamId,
    /// Number of the work on its stream.
    time: u64,
    writes: bool,
}

impl fmt::Debug for ReferenceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReferenceBuffer").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl ReferenceBuffer {
    /// Fresh memory.
    pub(crate) fn new(machine: Arc<Machine>, bytes: usize, content: Content) -> ReferenceBuffer {
        let (byte, written) = match content {
            Content::Zero => (0, true),
            Content::Undefined => (POISON, false),
        };
        let memory = Memory { bytes: vec![byte; bytes], written: vec![written; bytes], uses: Vec::new() };
        ReferenceBuffer { machine, bytes, memory: Mutex::new(memory) }
    }

    /// The machine's buffer of a handle.
    ///
    /// # Errors
    /// `Device` if it is another device's.
    pub(crate) fn of<'a>(machine: &Arc<Machine>, buffer: &'a Arc<dyn Buffer>) -> Result<&'a ReferenceBuffer> {
        let own = buffer.as_any().downcast_ref::<ReferenceBuffer>();
        own.filter(|b| Arc::ptr_eq(&b.machine, machine))
            .ok_or_else(|| fail!(Device, "the buffer {buffer:?} is not in this device's memory"))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a range that is outside.
    ///
    /// # Errors
    /// `Device`.
    pub(crate) fn check(&self, offset: usize, count: usize) -> Result<()> {
        let inside = offset.checked_add(count).is_some_and(|end| end <= self.bytes);
        ensure!(inside, Device, "{count} bytes at {offset} lie outside a buffer of {}", self.bytes);
        Ok(())
    }
}

impl Buffer for ReferenceBuffer {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Memory {
    /// Notes a use of bytes, of which all from first to last count.
    ///
    /// # Errors
    /// `Device` if work on another stream uses some of them, either writes, and nothing orders the two.
    pub fn take(&mut self, bytes: Range<usize>, writes: bool, user: User) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let meet = |u: &Use| u.bytes.start < bytes.end && bytes.start < u.bytes.end;
        let before = |u: &Use| u.stream == user.stream || user.clock.knows(u.stream, u.time);
        let race = self.uses.iter().find(|u| meet(u) && (writes || u.writes) && !before(u));
        if let Some(u) = race {
            let verb = |writes| if writes { "writes" } else { "reads" };
            return Err(fail!(
                Device,
                "{} bytes {}..{}, which work {} of stream {} {}, and no event orders the two: a wait is missing",
                verb(writes),
                bytes.start,
                bytes.end,
                u.time,
                u.stream,
                verb(u.writes)
            ));
        }
        // A use that races with a covered use also races with this one, so covered uses can be dropped.
        let covered = |u: &Use| bytes.start <= u.bytes.start && u.bytes.end <= bytes.end;
        self.uses.retain(|u| !(covered(u) && before(u) && (writes || !u.writes)));
        self.uses.push(Use { bytes, stream: user.stream, time: user.time, writes });
        Ok(())
    }

    /// Refuses to read bytes that nobody has written.
    ///
    /// # Errors
    /// `Device`.
    pub fn read(&self, bytes: Range<usize>) -> Result<()> {
        match self.written[bytes.clone()].iter().position(|w| !w) {
            None => Ok(()),
            Some(at) => {
                let at = bytes.start + at;
                Err(fail!(Device, "reads byte {at}, which nothing has written or which is free again"))
            }
        }
    }

    /// Notes that bytes are written.
    pub fn written(&mut self, bytes: Range<usize>) {
        self.written[bytes].fill(true);
    }

    /// Makes bytes undefined.
    pub fn poison(&mut self, bytes: Range<usize>) {
        self.bytes[bytes.clone()].fill(POISON);
        self.written[bytes].fill(false);
    }
}
