//! The memory of a device: one range of addresses, as a device has, which holds its allocations.

use std::alloc::{Layout, alloc_zeroed};
use std::collections::BTreeMap;

/// Alignment that CANN promises. Addresses have it and no better one.
const ALIGN: usize = 64;
/// Granule of allocations.
const UNIT: usize = 512;
/// Byte that fills memory before it is written.
const PATTERN: u8 = 0xA5;

/// The memory of a device.
#[derive(Debug)]
pub struct Arena {
    base: usize,
    /// Free blocks: offset and bytes.
    free: BTreeMap<usize, usize>,
}

impl Arena {
    /// Capacity of `bytes` bytes in allocations of any size; lives as long as the process.
    pub fn new(bytes: usize) -> Option<Arena> {
        // Allocations are rounded up, and leave gaps.
        let bytes = (bytes + bytes / 4 + (1 << 20)).next_multiple_of(4096);
        let layout = Layout::from_size_align(bytes, 4096).ok()?;
        // SAFETY: the size is not 0.
        let base = unsafe { alloc_zeroed(layout) } as usize;
        (base != 0).then(|| Arena { base, free: BTreeMap::from([(0, bytes)]) })
    }

    /// An allocation of `bytes` bytes, filled with a pattern.
    pub fn take(&mut self, bytes: usize) -> Option<usize> {
        let block = bytes.checked_add(UNIT)?.next_multiple_of(UNIT);
        let (&offset, &room) = self.free.iter().find(|(_, room)| **room >= block)?;
        self.free.remove(&offset);
        if room > block {
            self.free.insert(offset + block, room - block);
        }
        let address = self.base + offset + ALIGN;
        // SAFETY: the range is in a block of the arena that was just taken.
        unsafe { std::ptr::write_bytes(address as *mut u8, PATTERN, bytes) };
        Some(address)
    }

    /// Gives back what `take` gave for so many bytes.
    pub fn give_back(&mut self, address: usize, bytes: usize) {
        let (mut offset, mut block) = (address - ALIGN - self.base, (bytes + UNIT).next_multiple_of(UNIT));
        if let Some(behind) = self.free.remove(&(offset + block)) {
            block += behind;
        }
        if let Some((&before, &room)) = self.free.range(..offset).next_back()
            && before + room == offset
        {
            offset = before;
            block += room;
        }
        self.free.insert(offset, block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_given_again_and_join() {
        let mut arena = Arena::new(4096).unwrap();
        let whole = arena.free.clone();
        let blocks: Vec<_> = [1, 64, 512, 700].map(|n| (arena.take(n).unwrap(), n)).into();
        for (i, (a, n)) in blocks.iter().enumerate() {
            assert_eq!(a % UNIT, ALIGN);
            assert!(blocks[..i].iter().all(|(b, m)| a + n <= *b || b + m <= *a));
        }
        for &(address, bytes) in [2, 0, 3, 1].map(|i: usize| &blocks[i]) {
            arena.give_back(address, bytes);
        }
        assert_eq!(arena.free, whole);
        assert!(arena.take(usize::MAX / 2).is_none());
    }
}
