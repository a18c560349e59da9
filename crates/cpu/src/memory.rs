//! Blocks of memory: aligned, zeroed when made.

use headwater_core::diagnostic::Result;
use headwater_core::fail;
use headwater_core::plan::ALIGN;
use memmap2::MmapMut;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// A block of memory aligned to [`ALIGN`] bytes, zeroed when made.
#[derive(Debug)]
pub struct CpuMemory {
    ptr: NonNull<u8>,
    bytes: usize,
    /// Holds a large block, which is mapped; others are allocated.
    map: Option<MmapMut>,
}

/// Bytes from which a block is mapped, with a request for pages of that size. They are walked with fewer
/// address translations and touched with fewer page faults.
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

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_and_aligned() {
        let mut m = CpuMemory::new(100).unwrap();
        assert_eq!(m.base() as usize % ALIGN, 0);
        assert!(m.as_slice().iter().all(|&b| b == 0));
        m.as_mut_slice()[99] = 4;
        assert_eq!(m.as_slice()[98..], [0, 4]);
        let mut empty = CpuMemory::new(0).unwrap();
        assert_eq!(empty.base() as usize % ALIGN, 0);
        assert!(empty.as_slice().is_empty());
        assert!(CpuMemory::new(usize::MAX / 2).is_err());
        let mut large = CpuMemory::new(LARGE + 1).unwrap();
        assert_eq!(large.base() as usize % ALIGN, 0);
        assert!(large.as_slice().iter().all(|&b| b == 0) && large.bytes() == LARGE + 1);
        large.as_mut_slice()[LARGE] = 7;
        assert_eq!(large.as_slice()[LARGE], 7);
    }
}
