//! The scalar units' data caches: lines of 64 bytes of GM, which copies do not see and which do not see
//! copies.

use super::Fault;
use crate::kernel::finding::Rule;
use std::collections::HashMap;

/// Bytes of a line.
const LINE: u64 = 64;

/// Lines that cores have in their caches.
#[derive(Default)]
pub struct Caches {
    /// By line: the cores that have it, and what became of it since.
    lines: HashMap<u64, Vec<Cached>>,
}

struct Cached {
    core: usize,
    dirty: bool,
    stale: bool,
}

fn stale(what: &str) -> Fault {
    Fault::new(Rule::Hazard, format!("{what}; `cache_flush` the line in between"))
}

impl Caches {
    /// The scalar unit of a core reads or writes bytes of GM.
    pub fn scalar(&mut self, core: usize, from: u64, len: u64, write: bool) -> Result<(), Fault> {
        for line in from / LINE..(from + len).div_ceil(LINE) {
            let holders = self.lines.entry(line).or_default();
            if write && holders.iter().any(|c| c.core != core && c.dirty) {
                return Err(stale(
                    "two scalar units write one cache line: what is flushed last wins for all of it",
                ));
            }
            match holders.iter_mut().find(|c| c.core == core) {
                Some(c) if c.stale => {
                    return Err(stale(
                        "the scalar unit has the line in its cache as it was before a copy wrote it",
                    ));
                }
                Some(c) => c.dirty |= write,
                None => holders.push(Cached { core, dirty: write, stale: false }),
            }
        }
        Ok(())
    }

    /// A copy reads or writes bytes of GM.
    pub fn copy(&mut self, from: u64, len: u64, write: bool) -> Result<(), Fault> {
        if self.lines.is_empty() {
            return Ok(());
        }
        for line in from / LINE..(from + len).div_ceil(LINE) {
            for c in self.lines.get_mut(&line).into_iter().flatten() {
                if c.dirty {
                    return Err(stale("a scalar unit has written the line in its cache alone"));
                }
                c.stale |= write;
            }
        }
        Ok(())
    }

    /// A core writes a line back and forgets it.
    pub fn flush(&mut self, core: usize, byte: u64) {
        if let Some(holders) = self.lines.get_mut(&(byte / LINE)) {
            let wrote = holders.iter().any(|c| c.core == core && c.dirty);
            holders.retain(|c| c.core != core);
            holders.iter_mut().for_each(|c| c.stale |= wrote);
        }
    }

    /// Refuses lines that a core has not written back at its end; forgets its lines.
    pub fn end(&mut self, core: usize) -> Result<(), Fault> {
        let mut dirty = false;
        for holders in self.lines.values_mut() {
            dirty |= holders.iter().any(|c| c.core == core && c.dirty);
            holders.retain(|c| c.core != core);
        }
        self.lines.retain(|_, holders| !holders.is_empty());
        match dirty {
            false => Ok(()),
            true => Err(stale("the core ends with scalars in its cache that GM does not have")),
        }
    }
}
