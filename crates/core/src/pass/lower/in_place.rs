//! Buffer reuse: results that take the place of an operand. A row program writes over an operand that nobody
//! reads afterwards, where both are walked alike. This takes less memory, and nothing is fetched only to be
//! overwritten.

use super::draft::{Buffer, Draft, Storage};
use crate::plan::Work;
use crate::row::RowProgram;

/// For each buffer the one whose bytes it has: itself, or that of an operand it takes the place of.
pub(super) fn roots(buffers: &[Buffer], steps: &[Draft]) -> Vec<usize> {
    let mut root: Vec<usize> = (0..buffers.len()).collect();
    let mut life: Vec<Option<(usize, usize)>> = vec![None; buffers.len()];
    // The one stream on which all steps that use it run, if there is one.
    let mut stream: Vec<Option<u32>> = vec![None; buffers.len()];
    for (s, step) in steps.iter().enumerate() {
        for b in step.buffers() {
            let first = life[b].is_none();
            stream[b] = if first { Some(step.stream) } else { stream[b].filter(|own| *own == step.stream) };
            life[b] = Some((life[b].map_or(s, |l| l.0), s));
        }
    }
    for (s, step) in steps.iter().enumerate() {
        let Work::Rows(program) = &step.work else { continue };
        for (w, to) in step.writes.iter().enumerate() {
            let own = to.buffer;
            let begins = buffers[own].place.is_none() && life[own].is_some_and(|l| l.0 == s);
            if !begins || !whole(to, &buffers[own]) || !covers(program, w) {
                continue;
            }
            let old = step.reads.iter().flatten().enumerate().find_map(|(r, from)| {
                let old = root[from.buffer];
                let last = life[old].is_some_and(|l| l.1 == s);
                let dies = buffers[old].place.is_none() && last && stream[old].is_some();
                // Every other read here is at the same elements, and no other result is stored there.
                let alone = step.writes.iter().all(|v| root[v.buffer] != old);
                let alike = step.reads.iter().flatten().enumerate().all(|(q, v)| {
                    let same = program.reads[q].access == program.writes[w].access
                        && v.dtype == to.dtype
                        && v.layout == to.layout;
                    root[v.buffer] != old || same
                });
                let fits = buffers[old].bytes == buffers[own].bytes && program.reads[r].dtype == to.dtype;
                (dies && alone && alike && fits).then_some(old)
            });
            if let Some(old) = old {
                root[own] = old;
                stream[old] = stream[old].filter(|own_stream| stream[own] == Some(*own_stream));
                life[old] = life[old].zip(life[own]).map(|(a, b)| (a.0, b.1));
            }
        }
    }
    // Chains have been followed: an operand's root was settled at an earlier step.
    root
}

/// True if an operand is all of its buffer, without gaps.
fn whole(s: &Storage, buffer: &Buffer) -> bool {
    s.layout.offset == 0 && s.layout.shape.numel() * s.dtype.size() == buffer.bytes
}

/// True if a result is written once for each index of the program, not once for a row or as a sum over rows.
pub(super) fn covers(program: &RowProgram, w: usize) -> bool {
    let sizes = program.outer.iter().chain(&program.inner);
    program.writes[w].access.0.iter().zip(sizes).all(|(a, &n)| a.is_some() || n == 1)
}
