//! Memory of the CPU as a device buffer: its own or lent, and used by one writer or several readers at a
//! time.

use crate::memory::CpuMemory;
use headwater_core::device::{Buffer, Content, Foreign};
use headwater_core::diagnostic::Result;
use headwater_core::plan::ALIGN;
use headwater_core::{ensure, fail};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};

/// A buffer of the CPU.
pub struct CpuBuffer {
    base: NonNull<u8>,
    bytes: usize,
    /// Readers at the moment, or -1 for a writer.
    users: AtomicIsize,
    owner: Owner,
}

/// Whose memory it is.
enum Owner {
    /// Freed with the buffer.
    Own(#[allow(dead_code, reason = "holds the memory")] CpuMemory),
    /// Given back with the buffer.
    Lent(#[allow(dead_code, reason = "holds the memory")] Box<dyn Foreign>),
}

// SAFETY: the memory is read and written under `users` alone, as a lock that any thread may take. Lent memory
// is nobody else's meanwhile, as `Foreign` promises. The owner is `Send`, and is not touched before it is
// dropped.
unsafe impl Send for CpuBuffer {}
// SAFETY: as above.
unsafe impl Sync for CpuBuffer {}

impl fmt::Debug for CpuBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lent = matches!(self.owner, Owner::Lent(_));
        f.debug_struct("CpuBuffer").field("bytes", &self.bytes).field("lent", &lent).finish_non_exhaustive()
    }
}

impl CpuBuffer {
    /// Fresh memory. The CPU's is always zero, and its pages are mapped when they are first touched.
    ///
    /// # Errors
    /// `Device` if there is not enough.
    pub fn new(bytes: usize, _: Content) -> Result<CpuBuffer> {
        let mut memory = CpuMemory::new(bytes)?;
        let base = NonNull::new(memory.base()).ok_or_else(|| fail!(Device, "memory without an address"))?;
        Ok(CpuBuffer { base, bytes, users: AtomicIsize::new(0), owner: Owner::Own(memory) })
    }

    /// Memory of somebody else.
    ///
    /// # Errors
    /// `Device` if it is not aligned to [`ALIGN`] bytes.
    pub fn lent(owner: Box<dyn Foreign>) -> Result<CpuBuffer> {
        let memory = owner.memory();
        let (base, bytes) = (memory.cast::<u8>(), memory.len());
        let aligned = bytes == 0 || base.as_ptr().addr().is_multiple_of(ALIGN);
        ensure!(aligned, Device, "lent memory must be aligned to {ALIGN} bytes, {base:p} is not");
        Ok(CpuBuffer { base, bytes, users: AtomicIsize::new(0), owner: Owner::Lent(owner) })
    }

    /// This device's buffer of a handle.
    ///
    /// # Errors
    /// `Device` if it is another device's.
    pub(crate) fn of(buffer: &Arc<dyn Buffer>) -> Result<&CpuBuffer> {
        let own = buffer.as_any().downcast_ref::<CpuBuffer>();
        own.ok_or_else(|| fail!(Device, "the buffer {buffer:?} is not in the CPU's memory"))
    }

    /// First byte. What is done through it is right only between [`CpuBuffer::take`] and
    /// [`CpuBuffer::release`].
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Takes the memory to read, or alone to write; false if others have it in a way that forbids that.
    pub(crate) fn take(&self, write: bool) -> bool {
        let next = |users: isize| match (write, users) {
            (true, 0) => Some(-1),
            (false, 0..) => Some(users + 1),
            _ => None,
        };
        self.users.fetch_update(Ordering::Acquire, Ordering::Relaxed, next).is_ok()
    }

    /// Gives back what [`CpuBuffer::take`] took.
    pub(crate) fn release(&self, write: bool) {
        self.users.fetch_sub(if write { -1 } else { 1 }, Ordering::Release);
    }

    /// Takes the memory, waiting until others have given it back.
    fn hold(&self, write: bool) -> Held<'_> {
        while !self.take(write) {
            std::thread::yield_now();
        }
        Held(self, write)
    }

    /// Copies host memory to byte `offset`.
    ///
    /// # Errors
    /// `Device` if the range is outside.
    pub(crate) fn write(&self, offset: usize, data: &[u8]) -> Result<()> {
        self.check(offset, data.len())?;
        let _held = self.hold(true);
        // SAFETY: the range is inside, and nobody else uses the memory while it is held.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.base().add(offset), data.len()) };
        Ok(())
    }

    /// Copies from byte `offset` to host memory.
    ///
    /// # Errors
    /// `Device` if the range is outside.
    pub(crate) fn read(&self, offset: usize, data: &mut [u8]) -> Result<()> {
        self.check(offset, data.len())?;
        let _held = self.hold(false);
        // SAFETY: the range is inside, and nobody writes the memory while it is held.
        unsafe { std::ptr::copy_nonoverlapping(self.base().add(offset), data.as_mut_ptr(), data.len()) };
        Ok(())
    }

    /// Sets every byte of a range.
    ///
    /// # Errors
    /// `Device` if the range is outside.
    pub(crate) fn fill(&self, offset: usize, bytes: usize, value: u8) -> Result<()> {
        self.check(offset, bytes)?;
        let _held = self.hold(true);
        // SAFETY: as in `write`.
        unsafe { std::ptr::write_bytes(self.base().add(offset), value, bytes) };
        Ok(())
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

/// Gives the memory back when dropped.
struct Held<'a>(&'a CpuBuffer, bool);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.release(self.1);
    }
}

impl Buffer for CpuBuffer {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[repr(align(64))]
    struct Block(#[allow(dead_code, reason = "seen through its address")] [u8; 128]);

    /// Lends its block from `skip` on, and says when it is dropped.
    struct Lender {
        block: NonNull<Block>,
        skip: usize,
        gone: Arc<AtomicBool>,
    }

    // SAFETY: the block is this value's own, and is touched by nobody else.
    unsafe impl Send for Lender {}

    // SAFETY: the block lives until this value is dropped, and no test touches it while it is written or
    // read.
    unsafe impl Foreign for Lender {
        fn memory(&self) -> NonNull<[u8]> {
            let bytes = size_of::<Block>() - self.skip;
            // SAFETY: `skip` is within the block.
            NonNull::slice_from_raw_parts(unsafe { self.block.cast::<u8>().add(self.skip) }, bytes)
        }
    }

    impl Drop for Lender {
        fn drop(&mut self) {
            // SAFETY: leaked in `lender`, and freed here alone.
            drop(unsafe { Box::from_raw(self.block.as_ptr()) });
            self.gone.store(true, Ordering::SeqCst);
        }
    }

    fn lender(skip: usize) -> (Box<Lender>, Arc<AtomicBool>) {
        let gone = Arc::new(AtomicBool::new(false));
        let block = NonNull::from(Box::leak(Box::new(Block([7; 128]))));
        (Box::new(Lender { block, skip, gone: gone.clone() }), gone)
    }

    #[test]
    fn lent_memory_is_used_in_place_and_given_back() {
        let (lent, gone) = lender(64);
        let outside = lent.memory().cast::<u8>();
        let buffer = CpuBuffer::lent(lent).unwrap();
        assert_eq!(buffer.bytes(), 64);
        buffer.write(8, &[1, 2]).unwrap();
        let mut back = [0; 4];
        buffer.read(7, &mut back).unwrap();
        assert_eq!(back, [7, 1, 2, 7]);
        // Between pieces of work the owner sees what was written, and what he writes is seen.
        // SAFETY: within the block, which lives; nothing else touches it now.
        unsafe { assert_eq!(outside.add(9).replace(5), 2) };
        buffer.read(7, &mut back).unwrap();
        assert_eq!(back, [7, 1, 5, 7]);
        assert!(buffer.write(63, &[0; 2]).is_err() && buffer.read(usize::MAX, &mut back).is_err());
        assert!(!gone.load(Ordering::SeqCst));
        drop(buffer);
        assert!(gone.load(Ordering::SeqCst));
        let (lent, gone) = lender(8);
        assert!(CpuBuffer::lent(lent).is_err());
        assert!(gone.load(Ordering::SeqCst), "what is refused is given back too");
    }

    #[test]
    fn one_writes_or_many_read() {
        let buffer = CpuBuffer::new(8, Content::Zero).unwrap();
        assert!(buffer.take(false) && buffer.take(false) && !buffer.take(true));
        buffer.release(false);
        buffer.release(false);
        assert!(buffer.take(true) && !buffer.take(false) && !buffer.take(true));
        buffer.release(true);
        assert!(buffer.take(false));
    }
}
