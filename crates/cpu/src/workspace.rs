//! Workspaces of kernels, and their slices for threads. A kernel requests a least size and uses all that it
//! is given. It is spread so that each thread works where it worked before: its slice is then still in its
//! caches.

use crate::pool::Pool;
use bytemuck::Pod;

/// A line of the caches, in bytes.
const LINE: usize = 64;

/// All of a workspace as numbers, in whole cache lines, but at least the bytes that were requested.
///
/// # Panics
/// If the workspace is smaller, or not aligned.
pub(crate) fn all<T: Pod>(workspace: &mut [u8], needs: usize) -> &mut [T] {
    let bytes = (workspace.len() / LINE * LINE).max(needs);
    bytemuck::cast_slice_mut(&mut workspace[..bytes])
}

/// Slices of one size for threads, spread over a workspace that may be far larger. A task gets a slice and
/// nothing between slices, so that its work cannot grow with the workspace.
#[derive(Debug)]
pub struct Scratch<'a, T> {
    room: &'a mut [T],
    /// Elements from the beginning of a slice to the next, and of a slice.
    apart: usize,
    size: usize,
}

/// A workspace of which each thread has a part of so many elements.
///
/// # Panics
/// As [`all`].
pub fn each<T: Pod>(workspace: &mut [u8], size: usize, threads: usize) -> Scratch<'_, T> {
    spread(all(workspace, size * threads * size_of::<T>()), size, threads)
}

/// Slices of so many elements for threads, in whole cache lines with the largest stride that the workspace
/// allows.
///
/// # Panics
/// If there is not so much.
pub(crate) fn spread<T: Pod>(room: &mut [T], size: usize, threads: usize) -> Scratch<'_, T> {
    let line = (LINE / size_of::<T>()).max(1);
    let apart = (room.len() / threads / line * line).max(size);
    Scratch { room: &mut room[..apart * threads], apart, size }
}

impl<T: Send> Scratch<'_, T> {
    /// The parts of all threads.
    pub fn parts(&mut self) -> impl Iterator<Item = &mut [T]> {
        let size = self.size;
        self.room.chunks_exact_mut(self.apart.max(1)).map(move |part| &mut part[..size])
    }

    /// As [`Pool::each`], giving each running block a part of its own, of undefined content.
    pub fn run(&mut self, pool: &Pool, blocks: usize, f: impl Fn(usize, &mut [T]) + Sync) {
        let size = self.size;
        pool.each_with(blocks, self.room, |block, part| f(block, &mut part[..size]));
    }
}

/// Scratch memory handed out piece by piece, each aligned to a cache line.
pub(crate) struct Pieces<'a, W>(pub &'a mut [W]);

impl<'a, W> Pieces<'a, W> {
    pub fn take(&mut self, n: usize) -> &'a mut [W] {
        let (piece, rest) = std::mem::take(&mut self.0).split_at_mut(n.next_multiple_of(16));
        self.0 = rest;
        &mut piece[..n]
    }
}

/// Elements that [`Pieces`] of these sizes take.
pub(crate) fn total(pieces: &[usize]) -> usize {
    pieces.iter().map(|n| n.next_multiple_of(16)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_get_what_they_need_and_whole_lines_of_what_there_is() {
        let mut room = [0f32; 1000];
        assert_eq!(spread(&mut room, 100, 3).room.len(), 3 * 320);
        assert_eq!(spread(&mut room, 333, 3).room.len(), 3 * 333);
        assert_eq!(spread(&mut room[..30], 10, 3).room.len(), 30);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut room);
        assert_eq!(all::<f32>(&mut bytes[..100], 100).len(), 25);
        assert_eq!(all::<f32>(&mut bytes[..100], 40).len(), 16);
    }

    #[test]
    fn what_lies_between_parts_is_given_to_nobody() {
        let mut room = vec![0u64; 8 * 64];
        let pool = Pool::new(2);
        let mut scratch = spread(&mut room, 10, 2);
        scratch.run(&pool, 20, |_, part| {
            assert_eq!(part.len(), 10);
            part.fill(1);
        });
        assert_eq!(scratch.parts().map(|part| part.len()).collect::<Vec<_>>(), [10, 10]);
        scratch.parts().for_each(|part| part.fill(2));
        let written: Vec<usize> = (0..room.len()).filter(|&i| room[i] != 0).collect();
        assert_eq!(written, (0..10).chain(256..266).collect::<Vec<_>>());
    }
}
