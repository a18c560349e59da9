//! Writes kernels for row programs: buffers that are used again, barriers where the vector unit needs them, loops.

use crate::chip::Arch;
use crate::kernel::{Barrier, Base, Buf, BufferId, Builder, Elem, Instr, Over, Pipe, Program, Scalar, Unit};
use std::collections::{HashMap, HashSet};

/// A kernel being written.
pub(super) struct Writer {
    pub k: Builder,
    /// Buffers that are not in use, and their sizes in bytes.
    free: Vec<(BufferId, u64)>,
    /// Buffers in use: size in bytes and number of holders.
    held: HashMap<BufferId, (u64, u32)>,
    /// Buffers that vector instructions read and wrote since the last barrier.
    read: HashSet<BufferId>,
    written: HashSet<BufferId>,
    /// Every buffer that was made, and its size in bytes.
    made: Vec<(BufferId, u64)>,
    /// True if single bits are computed. Eight of them are a byte, which counts as written when all elements are.
    pub bits: bool,
}

impl Writer {
    pub fn new(name: &str, arch: Arch) -> Writer {
        Writer {
            k: Builder::new(name, arch, unit(arch)),
            free: Vec::new(),
            held: HashMap::new(),
            read: HashSet::new(),
            written: HashSet::new(),
            made: Vec::new(),
            bits: false,
        }
    }

    /// A buffer of `len` elements, whole repeats, with any contents.
    pub fn take(&mut self, elem: Elem, len: u64) -> Buf {
        let bytes = (len * elem.size()).next_multiple_of(256);
        let best = (self.free.iter().enumerate())
            .filter(|(_, (_, size))| (bytes..=bytes.saturating_mul(2)).contains(size))
            .min_by_key(|(_, (_, size))| *size)
            .map(|(i, _)| i);
        let Some(i) = best else { return self.fresh(elem, len) };
        let (id, bytes) = self.free.swap_remove(i);
        self.held.insert(id, (bytes, 1));
        Buf { id, elem, len: bytes / elem.size() }
    }

    /// The same in a buffer that nothing has used before.
    pub fn fresh(&mut self, elem: Elem, len: u64) -> Buf {
        let bytes = (len * elem.size()).next_multiple_of(256);
        let Buf { id, .. } = self.k.ub(&format!("v{}", self.made.len() + 1), Elem::U8, bytes);
        self.made.push((id, bytes));
        self.held.insert(id, (bytes, 1));
        Buf { id, elem, len: bytes / elem.size() }
    }

    /// One more holder of a buffer.
    pub fn retain(&mut self, buf: Buf) {
        if let Some((_, holders)) = self.held.get_mut(&buf.id) {
            *holders += 1;
        }
    }

    /// Number of holders of a buffer.
    pub fn holders(&self, buf: Buf) -> u32 {
        self.held.get(&buf.id).map_or(0, |h| h.1)
    }

    /// One holder less; the last one leaves the buffer free.
    pub fn release(&mut self, buf: Buf) {
        if let Some((bytes, holders)) = self.held.get_mut(&buf.id) {
            *holders -= 1;
            if *holders == 0 {
                self.free.push((buf.id, *bytes));
                self.held.remove(&buf.id);
            }
        }
    }

    /// Lets a vector instruction come behind those that it depends on.
    pub fn order(&mut self, instr: &Instr) {
        let operands: Vec<(bool, BufferId)> = (instr.operands().into_iter())
            .filter_map(|(name, base, _)| match base {
                Base::Buffer(id) => Some((name == "dst", id)),
                Base::Param(_) => None,
            })
            .collect();
        let waits = operands
            .iter()
            .any(|(writes, id)| self.written.contains(id) || (*writes && self.read.contains(id)));
        if waits {
            self.barrier();
        }
        for (writes, id) in operands {
            if writes { &mut self.written } else { &mut self.read }.insert(id);
        }
    }

    /// Issues a vector instruction.
    pub fn vector(&mut self, instr: impl Into<Instr>) {
        let instr = instr.into();
        self.order(&instr);
        self.k.issue(instr);
    }

    /// Vector instructions from here on come behind all before.
    pub fn barrier(&mut self) {
        if !(self.read.is_empty() && self.written.is_empty()) {
            self.k.barrier(Barrier::V);
            self.read.clear();
            self.written.clear();
        }
    }

    /// Ends the kernel.
    ///
    /// # Errors
    /// As of [`Builder::finish`].
    pub fn finish(mut self) -> crate::finding::Result<Program> {
        if self.bits {
            let made = self.made;
            self.k.at_start(|k| {
                k.note("elements behind the ends of rows have values too");
                for (id, bytes) in made {
                    let buf = Buf { id, elem: Elem::I32, len: bytes / 4 };
                    k.duplicate(buf.at(0), 0, Over::count(buf.len));
                }
                k.barrier(Barrier::V);
            });
        }
        self.k.finish()
    }

    /// `to` goes on when `from` is done. The flag is another than those of [`super::loops`]' sets.
    pub fn flag(&mut self, from: Pipe, to: Pipe) {
        self.k.flag(from, to, 4);
    }

    /// A loop; barriers stand at its begin and end.
    pub fn for_each(
        &mut self,
        name: &str,
        from: impl Into<Scalar>,
        to: impl Into<Scalar>,
        step: impl Into<Scalar>,
        write: impl FnOnce(&mut Writer, Scalar),
    ) {
        self.barrier();
        let arch = self.k.arch();
        let mut k = std::mem::replace(&mut self.k, Builder::new("none", arch, unit(arch)));
        k.for_each(name, from, to, step, |k, i| {
            std::mem::swap(k, &mut self.k);
            write(self, i);
            self.barrier();
            std::mem::swap(k, &mut self.k);
        });
        self.k = k;
    }

    /// Statements that run if `cond` is not 0; barriers stand before and at their end.
    pub fn if_(&mut self, cond: impl Into<Scalar>, write: impl FnOnce(&mut Writer)) {
        self.barrier();
        let arch = self.k.arch();
        let mut k = std::mem::replace(&mut self.k, Builder::new("none", arch, unit(arch)));
        k.if_(cond, |k| {
            std::mem::swap(k, &mut self.k);
            write(self);
            self.barrier();
            std::mem::swap(k, &mut self.k);
        });
        self.k = k;
    }
}

/// The kind of core that has the vector unit.
pub(super) const fn unit(arch: Arch) -> Unit {
    if arch.split() { Unit::Vector } else { Unit::Whole }
}
