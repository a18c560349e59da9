//! Memory of a device, and pinned memory of the host.

use super::context::Context;
use super::error::{Error, Result};
use super::table::Address;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

#[derive(Debug)]
struct Allocation {
    context: Arc<Context>,
    address: Address,
    bytes: usize,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: allocated by this context, freed once; the driver waits for work that uses it.
            unsafe { (self.context.driver().free)(self.address) };
        }
    }
}

/// Memory of the device; clones share it.
#[derive(Clone, Debug)]
pub struct DeviceMemory(Arc<Allocation>);

impl DeviceMemory {
    /// Memory of unknown content. It is a byte larger than requested, so that each has an address.
    ///
    /// # Errors
    /// If there is not enough.
    pub fn alloc(context: &Arc<Context>, bytes: usize) -> Result<DeviceMemory> {
        context.enter()?;
        let mut address = 0;
        // SAFETY: writes an address.
        let code = unsafe { (context.driver().alloc)(&mut address, bytes.max(1)) };
        let failed = |e| match e {
            Error::Call { call, code: 2, .. } => {
                let free = context.memory().map_or(0, |m| m.0);
                let text = format!(
                    "{call}: no memory for {bytes} bytes on cuda:{}, {free} are free",
                    context.ordinal()
                );
                Error::Usage(text)
            }
            other => other,
        };
        context.check("cuMemAlloc", code).map_err(failed)?;
        Ok(DeviceMemory(Arc::new(Allocation { context: context.clone(), address, bytes })))
    }

    /// Its first address.
    pub fn address(&self) -> Address {
        self.0.address
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Its context.
    pub fn context(&self) -> &Arc<Context> {
        &self.0.context
    }

    /// Refuses a range that leaves it.
    ///
    /// # Errors
    /// [`Error::Usage`]
    pub fn check(&self, offset: usize, bytes: usize) -> Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.0.bytes => Ok(()),
            _ => {
                let all = self.0.bytes;
                Err(Error::Usage(format!("bytes {offset} to {offset}+{bytes} of a buffer of {all} bytes")))
            }
        }
    }
}

/// Host memory that the device copies from and to while the host goes on.
#[derive(Debug)]
pub struct PinnedMemory {
    context: Arc<Context>,
    pub(super) start: *mut u8,
    bytes: usize,
}

// SAFETY: owned memory.
unsafe impl Send for PinnedMemory {}

impl PinnedMemory {
    /// So many bytes, at least one.
    ///
    /// # Errors
    /// If there is not enough.
    pub fn alloc(context: &Arc<Context>, bytes: usize) -> Result<PinnedMemory> {
        context.enter()?;
        let (mut start, bytes) = (std::ptr::null_mut(), bytes.max(1));
        // SAFETY: writes a pointer to so many bytes.
        let code = unsafe { (context.driver().alloc_host)(&mut start, bytes) };
        context.check("cuMemAllocHost", code)?;
        // SAFETY: the memory is ours; it is initialised here.
        unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        Ok(PinnedMemory { context: context.clone(), start: start.cast(), bytes })
    }
}

impl Deref for PinnedMemory {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: owned, initialised memory; nobody reads it while a copy writes it, for a copy owns it.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl DerefMut for PinnedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: allocated by the driver, freed once.
            unsafe { (self.context.driver().free_host)(self.start.cast()) };
        }
    }
}
