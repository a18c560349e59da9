//! Device memory with a shadow: which bytes were written, and by whom each was last written and read.

use std::alloc::{Layout, alloc_zeroed, dealloc};

/// Alignment of addresses: no more than the driver promises.
pub const ALIGN: usize = 256;

/// The last access of a byte.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Access {
    pub launch: u32,
    pub phase: u32,
    pub generation: u32,
    pub block: u32,
    pub thread: u16,
    /// The scope of reads that nothing orders: 1 within a warp, 2 within a block, 3 beyond.
    pub spread: u16,
}

/// Last write and last read.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Cell {
    pub write: Access,
    pub read: Access,
}

/// A piece of memory.
#[derive(Debug)]
pub struct Memory {
    pub start: *mut u8,
    pub bytes: usize,
    room: usize,
    pub written: Vec<bool>,
    /// A [`Cell`] for each byte. Words of zeros take no memory before they are used.
    cells: Vec<u32>,
}

const WORDS: usize = size_of::<Cell>() / 4;

// SAFETY: owned memory; used under the world's lock.
unsafe impl Send for Memory {}

impl Memory {
    /// With a shadow where it is checked; then its bytes are NaN.
    pub fn new(bytes: usize, checked: bool) -> Option<Memory> {
        let room = bytes.max(1).checked_next_multiple_of(ALIGN)?;
        let layout = Layout::from_size_align(room, ALIGN).ok()?;
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            return None;
        }
        let shadow = if checked { bytes } else { 0 };
        if checked {
            // SAFETY: inside the memory.
            unsafe { start.write_bytes(0xff, bytes) };
        }
        Some(Memory { start, bytes, room, written: vec![false; shadow], cells: vec![0; shadow * WORDS] })
    }

    /// True if a range is inside.
    pub fn holds(&self, address: u64, bytes: usize) -> bool {
        let start = self.start as u64;
        address >= start
            && address.checked_add(bytes as u64).is_some_and(|end| end <= start + self.bytes as u64)
    }

    /// Marks bytes as written by no thread of a kernel, or as never written.
    pub fn mark(&mut self, address: u64, bytes: usize, written: bool) {
        let at = (address - self.start as u64) as usize;
        if let Some(range) = self.written.get_mut(at..at + bytes) {
            range.fill(written);
        }
    }

    /// The first byte of a range that nobody has written.
    pub fn unwritten(&self, address: u64, bytes: usize) -> Option<usize> {
        let at = (address - self.start as u64) as usize;
        self.written.get(at..at + bytes)?.iter().position(|w| !w)
    }

    /// The accesses of a byte; there is a shadow.
    pub fn cell(&mut self, at: usize) -> &mut Cell {
        let words = &mut self.cells[at * WORDS..(at + 1) * WORDS];
        // SAFETY: as many words as a cell has, with its alignment; any bits are one.
        unsafe { &mut *words.as_mut_ptr().cast::<Cell>() }
    }

    /// Forgets what happened to the first bytes.
    pub fn clear(&mut self, bytes: usize) {
        self.written[..bytes].fill(false);
        self.cells[..bytes * WORDS].fill(0);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Ok(layout) = Layout::from_size_align(self.room, ALIGN) {
            // SAFETY: allocated with this layout.
            unsafe { dealloc(self.start, layout) };
        }
    }
}
