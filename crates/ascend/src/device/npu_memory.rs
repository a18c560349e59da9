//! Memory of an NPU as buffers of the contract.

use crate::host::{self, DeviceMemory};
use headwater_core::device::Buffer;
use std::any::Any;
use std::sync::Arc;

/// Memory of the device as a buffer.
#[derive(Debug)]
pub(super) struct AscendBuffer(pub DeviceMemory);

impl Buffer for AscendBuffer {
    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The device memory of a buffer.
pub(super) fn memory_of<'a>(
    device: &Arc<host::Device>,
    buffer: &'a Arc<dyn Buffer>,
) -> Option<&'a DeviceMemory> {
    let own = buffer.as_any().downcast_ref::<AscendBuffer>().map(|b| &b.0);
    own.filter(|memory| Arc::ptr_eq(memory.device(), device))
}
