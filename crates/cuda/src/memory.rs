//! Memory of a GPU as buffers of the contract.

use crate::host::{Context, DeviceMemory};
use headwater_core::device::Buffer;
use std::any::Any;
use std::sync::Arc;

/// Memory of the device as a buffer.
#[derive(Debug)]
pub(crate) struct CudaBuffer(pub DeviceMemory);

impl Buffer for CudaBuffer {
    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The memory of a buffer of this context.
pub(crate) fn memory_of<'a>(context: &Arc<Context>, buffer: &'a Arc<dyn Buffer>) -> Option<&'a DeviceMemory> {
    let own = buffer.as_any().downcast_ref::<CudaBuffer>().map(|b| &b.0);
    own.filter(|memory| Arc::ptr_eq(memory.context(), context))
}
