//! Memory of the CPU device: aligned, zeroed, bounds-checked from outside.

use headwater_core::device::Memory;
use headwater_core::diagnostic::Result;
use headwater_core::plan::ALIGN;
use headwater_core::{ensure, fail};
use memmap2::MmapMut;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::ptr::NonNull;

/// A block of memory aligned to [`ALIGN`] bytes, zeroed when made.
#[derive(Debug)]
pub struct CpuMemory {
    ptr: NonNull<u8>,
    bytes: usize,
    /// Holds a large block, which is mapped; others are allocated.
    map: Option<MmapMut>,
}

/// Bytes from which a block is mapped, and asks for pages of that size: they are walked with fewer address
/// translations and touched with fewer page faults.
const LARGE: usize = 2 << 20;

// SAFETY: the block is owned by this value alone; shared access is read-only.
unsafe impl Send for CpuMemory {}
// SAFETY: as above.
unsafe impl Sync for CpuMemory {}

impl CpuMemory {
    /// A zeroed block. Pages are mapped by the system on first touch.
    ///
    /// # Errors
    /// `Device` if there is not enough memory.
    pub fn new(bytes: usize) -> Result<Self> {
        let none = || fail!(Device, "the CPU has no {bytes} bytes of memory left");
        if bytes == 0 {
            return Ok(CpuMemory { ptr: NonNull::<Aligned>::dangling().cast(), bytes, map: None });
        }
        if bytes >= LARGE {
            let mut map = MmapMut::map_anon(bytes).map_err(|_| none())?;
            // Only a wish: without it the block works as well, more slowly.
            #[cfg(target_os = "linux")]
            let _ = map.advise(memmap2::Advice::HugePage);
            let ptr = NonNull::new(map.as_mut_ptr()).ok_or_else(none)?;
            return Ok(CpuMemory { ptr, bytes, map: Some(map) });
        }
        let layout = Layout::from_size_align(bytes, ALIGN).map_err(|_| none())?;
        // SAFETY: the layout's size is not zero.
        let ptr = unsafe { alloc_zeroed(layout) };
        Ok(CpuMemory { ptr: NonNull::new(ptr).ok_or_else(none)?, bytes, map: None })
    }

    /// The whole block.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `ptr` points to `bytes` initialised bytes (zeroed, then only overwritten) that live as long
        // as `self`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.bytes) }
    }

    /// The whole block, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.bytes) }
    }

    /// First byte. Valid for `bytes()` bytes; what is done through it must respect who else borrows the
    /// block.
    pub(crate) fn base(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }
}

/// Carries the alignment of an empty block's pointer.
#[repr(align(64))]
struct Aligned;
const _: () = assert!(align_of::<Aligned>() == ALIGN);

impl Drop for CpuMemory {
    fn drop(&mut self) {
        if self.bytes > 0 && self.map.is_none() {
            // SAFETY: allocated in `new` with this very layout, which was valid there.
            unsafe { dealloc(self.ptr.as_ptr(), Layout::from_size_align_unchecked(self.bytes, ALIGN)) }
        }
    }
}

fn check(offset: usize, count: usize, bytes: usize) -> Result<()> {
    let inside = offset.checked_add(count).is_some_and(|end| end <= bytes);
    ensure!(inside, Device, "{count} bytes at {offset} lie outside a memory of {bytes}");
    Ok(())
}

impl Memory for CpuMemory {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn write(&mut self, offset: usize, data: &[u8]) -> Result<()> {
        check(offset, data.len(), self.bytes)?;
        self.as_mut_slice()[offset..offset + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn read(&self, offset: usize, data: &mut [u8]) -> Result<()> {
        check(offset, data.len(), self.bytes)?;
        data.copy_from_slice(&self.as_slice()[offset..offset + data.len()]);
        Ok(())
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_aligned_and_bounded() {
        let mut m = CpuMemory::new(100).unwrap();
        assert_eq!(m.base() as usize % ALIGN, 0);
        assert!(m.as_slice().iter().all(|&b| b == 0));
        m.write(96, &[1, 2, 3, 4]).unwrap();
        let mut back = [0; 4];
        m.read(96, &mut back).unwrap();
        assert_eq!(back, [1, 2, 3, 4]);
        assert!(m.write(97, &[0; 4]).is_err());
        assert!(m.read(usize::MAX, &mut back).is_err());
        let mut empty = CpuMemory::new(0).unwrap();
        assert_eq!(empty.base() as usize % ALIGN, 0);
        assert!(empty.as_slice().is_empty() && empty.write(0, &[]).is_ok());
        assert!(CpuMemory::new(usize::MAX / 2).is_err());
        let mut large = CpuMemory::new(LARGE + 1).unwrap();
        assert_eq!(large.base() as usize % ALIGN, 0);
        assert!(large.as_slice().iter().all(|&b| b == 0) && large.bytes() == LARGE + 1);
        large.write(LARGE, &[7]).unwrap();
        assert_eq!(large.as_slice()[LARGE], 7);
    }
}
