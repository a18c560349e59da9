//! Scratch memory as kernels take it: they ask for so much at least, and use what they are given so that each
//! thread works where it worked before. A thread's part of the same room then begins at about the same place
//! in every step of a plan, is still in its caches, and is not fetched from another's.

use bytemuck::Pod;

/// A line of the caches, in bytes.
const LINE: usize = 64;

/// All of a workspace as numbers, in whole lines, but at least the bytes that were asked for.
///
/// # Panics
/// If the workspace is smaller, or lies badly.
pub(crate) fn all<T: Pod>(workspace: &mut [u8], needs: usize) -> &mut [T] {
    let bytes = (workspace.len() / LINE * LINE).max(needs);
    bytemuck::cast_slice_mut(&mut workspace[..bytes])
}

/// A workspace of which each thread has a part, of so many elements at least.
///
/// # Panics
/// As [`all`].
pub(crate) fn each<T: Pod>(workspace: &mut [u8], each: usize, threads: usize) -> &mut [T] {
    spread(all(workspace, each * threads * size_of::<T>()), each, threads)
}

/// What threads get of a room, at least so many elements each, in whole lines: as far apart as there is room.
///
/// # Panics
/// If there is not so much.
pub(crate) fn spread<T: Pod>(room: &mut [T], each: usize, threads: usize) -> &mut [T] {
    let line = (LINE / size_of::<T>()).max(1);
    let part = (room.len() / threads / line * line).max(each);
    &mut room[..part * threads]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_get_what_they_need_and_whole_lines_of_what_there_is() {
        let mut room = [0f32; 1000];
        assert_eq!(spread(&mut room, 100, 3).len(), 3 * 320);
        assert_eq!(spread(&mut room, 333, 3).len(), 3 * 333);
        assert_eq!(spread(&mut room[..30], 10, 3).len(), 30);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut room);
        assert_eq!(all::<f32>(&mut bytes[..100], 100).len(), 25);
        assert_eq!(all::<f32>(&mut bytes[..100], 40).len(), 16);
    }
}
