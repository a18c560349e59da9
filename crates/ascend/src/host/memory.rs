//! Memory of a device, and memory of the host that the device reads and writes by itself.
#![allow(unsafe_code)]

use super::acl::types::{MALLOC_HUGE_FIRST, memcpy_kind};
use super::codes::{self, Severity};
use super::device::{Device, MemoryInfo};
use super::error::{Error, Result};
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Alignment of device memory in bytes: that of the largest unit which a copy of the cube unit takes. CANN
/// promises 64. An allocation is followed by bytes that nobody else has, up to the next multiple and as many
/// more.
pub const ALIGN: usize = 512;
/// Padding after the last byte that kernels may read; CANN requires 32 bytes.
const TAIL: usize = 32;

/// Bytes of device memory. Clones share them; they are freed when the last clone is dropped and no work that
/// uses one is in flight.
#[derive(Clone, Debug)]
pub struct DeviceMemory(Arc<Allocation>);

/// A reference to device memory that does not keep it.
#[derive(Clone, Debug)]
pub(super) struct WeakMemory(Weak<Allocation>);

impl WeakMemory {
    /// The memory, if it was not freed.
    pub fn upgrade(&self) -> Option<DeviceMemory> {
        self.0.upgrade().map(DeviceMemory)
    }
}

#[derive(Debug)]
struct Allocation {
    device: Arc<Device>,
    /// Address that the runtime returned, and frees.
    base: usize,
    /// The first aligned address.
    address: u64,
    bytes: usize,
}

impl DeviceMemory {
    /// Memory of `bytes` bytes, aligned to [`ALIGN`], of unknown content.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with what is free; the device's first error.
    pub fn alloc(device: &Arc<Device>, bytes: usize) -> Result<DeviceMemory> {
        device.enter()?;
        let room = bytes
            .max(1)
            .checked_next_multiple_of(ALIGN)
            .and_then(|bytes| bytes.checked_add(2 * ALIGN + TAIL))
            .ok_or_else(|| Error::Usage(format!("{bytes} bytes of device memory")))?;
        let runtime = device.runtime();
        let mut base: *mut c_void = std::ptr::null_mut();
        // SAFETY: writes one address, which is never dereferenced on this side.
        let status = unsafe { (runtime.acl.base.aclrtMalloc)(&mut base, room, MALLOC_HUGE_FIRST) };
        if codes::severity(status) == Severity::OutOfMemory {
            let detail = runtime.acl.recent_message();
            let MemoryInfo { free, total } = device.memory().unwrap_or(MemoryInfo { free: 0, total: 0 });
            return Err(Error::OutOfMemory { device: device.name(), bytes, free, total, detail });
        }
        device.check("aclrtMalloc", status)?;
        runtime.counts.device_allocations.fetch_add(1, Ordering::SeqCst);
        runtime.counts.device_bytes.fetch_add(bytes, Ordering::SeqCst);
        let base = base as usize;
        let address = base.next_multiple_of(ALIGN) as u64;
        Ok(DeviceMemory(Arc::new(Allocation { device: device.clone(), base, address, bytes })))
    }

    /// A reference that does not keep it.
    pub(super) fn downgrade(&self) -> WeakMemory {
        WeakMemory(Arc::downgrade(&self.0))
    }

    /// The device it is on.
    pub fn device(&self) -> &Arc<Device> {
        &self.0.device
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Address of the first byte, as kernels see it.
    pub fn address(&self) -> u64 {
        self.0.address
    }

    /// Copies `data` to byte `offset`, and waits for it. Not ordered with the work of any stream.
    ///
    /// # Errors
    /// [`Error::Usage`] for a range outside, the device's first error.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<()> {
        let address = self.range(offset, data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        let device = &self.0.device;
        device.enter()?;
        // SAFETY: the range was checked against the allocation; `data` is read before the call returns.
        let status = unsafe {
            (device.runtime.acl.base.aclrtMemcpy)(
                address,
                data.len(),
                data.as_ptr().cast(),
                data.len(),
                memcpy_kind::HOST_TO_DEVICE,
            )
        };
        device.check("aclrtMemcpy", status)
    }

    /// Copies from byte `offset` into `data`, and waits for it. Not ordered with the work of any stream.
    ///
    /// # Errors
    /// [`Error::Usage`] for a range outside, the device's first error.
    pub fn read(&self, offset: usize, data: &mut [u8]) -> Result<()> {
        let address = self.range(offset, data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        let device = &self.0.device;
        device.enter()?;
        // SAFETY: the range was checked against the allocation; `data` is written before the call returns.
        let status = unsafe {
            (device.runtime.acl.base.aclrtMemcpy)(
                data.as_mut_ptr().cast(),
                data.len(),
                address,
                data.len(),
                memcpy_kind::DEVICE_TO_HOST,
            )
        };
        device.check("aclrtMemcpy", status)
    }

    /// Checks that `bytes` bytes from byte `offset` are inside.
    ///
    /// # Errors
    /// [`Error::Usage`] if they are not.
    pub fn check(&self, offset: usize, bytes: usize) -> Result<()> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.0.bytes) {
            return Err(Error::Usage(format!(
                "bytes {offset} to {offset}+{bytes} of a device memory of {} bytes",
                self.0.bytes
            )));
        }
        Ok(())
    }

    /// Address of byte `offset`, from which `bytes` bytes must be inside.
    pub(super) fn range(&self, offset: usize, bytes: usize) -> Result<*mut c_void> {
        self.check(offset, bytes)?;
        Ok((self.0.address + offset as u64) as *mut c_void)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let runtime = &self.device.runtime;
        self.device.set_context();
        // SAFETY: the address is the runtime's own, freed once. Work that uses it holds a clone until it is
        // done.
        let status = unsafe { (runtime.acl.base.aclrtFree)(self.base as *mut c_void) };
        runtime.counts.device_bytes.fetch_sub(self.bytes, Ordering::SeqCst);
        runtime.released("aclrtFree", status, &runtime.counts.device_allocations);
    }
}

/// Pinned memory of the host: what asynchronous copies read and write.
#[derive(Debug)]
pub struct PinnedMemory(pub(super) Arc<Pinned>);

#[derive(Debug)]
pub(super) struct Pinned {
    device: Arc<Device>,
    pub address: usize,
    pub bytes: usize,
}

impl PinnedMemory {
    /// Zeroed memory of `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Call`] if the system has none to give, the device's first error.
    pub fn alloc(device: &Arc<Device>, bytes: usize) -> Result<PinnedMemory> {
        device.enter()?;
        let runtime = device.runtime();
        let mut address: *mut c_void = std::ptr::null_mut();
        // SAFETY: writes one address.
        let status = unsafe { (runtime.acl.base.aclrtMallocHost)(&mut address, bytes.max(1)) };
        device.check("aclrtMallocHost", status)?;
        runtime.counts.host_allocations.fetch_add(1, Ordering::SeqCst);
        let pinned = Pinned { device: device.clone(), address: address as usize, bytes };
        // SAFETY: `bytes` bytes of host memory that nothing else knows yet.
        unsafe { std::ptr::write_bytes(address.cast::<u8>(), 0, bytes) };
        Ok(PinnedMemory(Arc::new(pinned)))
    }
}

impl Pinned {
    /// Checks that it has so many bytes.
    pub fn check(&self, bytes: usize) -> Result<()> {
        if bytes <= self.bytes {
            return Ok(());
        }
        Err(Error::Usage(format!("{bytes} bytes of a pinned memory of {}", self.bytes)))
    }
}

impl std::ops::Deref for PinnedMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `bytes` initialised bytes, alive as long as this value. A copy that writes them owns the
        // value (`Pending`) until it is done.
        unsafe { std::slice::from_raw_parts(self.0.address as *const u8, self.0.bytes) }
    }
}

impl std::ops::DerefMut for PinnedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and this is the only value through which the bytes are reached: streams hold the
        // allocation for its life alone.
        unsafe { std::slice::from_raw_parts_mut(self.0.address as *mut u8, self.0.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let runtime = &self.device.runtime;
        self.device.set_context();
        // SAFETY: the address is the runtime's own, freed once; copies that use it hold the value until they
        // are done.
        let status = unsafe { (runtime.acl.base.aclrtFreeHost)(self.address as *mut c_void) };
        runtime.released("aclrtFreeHost", status, &runtime.counts.host_allocations);
    }
}
