//! Writes kernels for row programs: buffers that are used again, barriers where the vector unit needs them,
//! loops.

use crate::chip::Arch;
use crate::kernel::{Barrier, Base, Buf, BufferId, Builder, Elem, Instr, Over, Pipe, Program, Scalar, Unit};
use std::collections::{HashMap, HashSet};

/// A half of a row of UB's banks. Operands of one instruction that are in different halves are read in the
/// same cycle.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Half {
    #[default]
    Near,
    Far,
}

impl Half {
    pub const fn other(self) -> Half {
        match self {
            Half::Near => Half::Far,
            Half::Far => Half::Near,
        }
    }
}

/// A buffer, and its size in bytes.
#[derive(Clone, Copy)]
struct Room {
    id: BufferId,
    bytes: u64,
    half: Half,
}

/// Bytes from which on a buffer begins in a half of a row of banks.
const LARGE: u64 = 2 << 10;

/// A kernel being written.
pub(super) struct Writer {
    pub k: Builder,
    /// Buffers that are not in use.
    free: Vec<Room>,
    /// Buffers in use, and number of holders.
    held: HashMap<BufferId, (Room, u32)>,
    /// Buffers that vector instructions read and wrote since the last barrier.
    read: HashSet<BufferId>,
    written: HashSet<BufferId>,
    /// Every buffer that was made.
    made: Vec<Room>,
    /// The half of a row of banks that buffers are taken in from here on, as far as there is a choice.
    pub half: Half,
    /// True if single bits are computed. Eight of them are a byte, which counts as written when all elements
    /// are.
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
            half: Half::Near,
            bits: false,
        }
    }

    /// A buffer of `len` elements, whole repeats, with any contents.
    pub fn take(&mut self, elem: Elem, len: u64) -> Buf {
        let bytes = (len * elem.size()).next_multiple_of(256);
        let best = (self.free.iter().enumerate())
            .filter(|(_, room)| (bytes..=bytes.saturating_mul(2)).contains(&room.bytes))
            .min_by_key(|(_, room)| (room.half != self.half, room.bytes))
            .map(|(i, _)| i);
        let Some(i) = best else { return self.fresh(elem, len) };
        let room = self.free.swap_remove(i);
        self.held.insert(room.id, (room, 1));
        Buf { id: room.id, elem, len: room.bytes / elem.size() }
    }

    /// The same in a buffer that nothing has used before.
    pub fn fresh(&mut self, elem: Elem, len: u64) -> Buf {
        let bytes = (len * elem.size()).next_multiple_of(256);
        let name = format!("v{}", self.made.len() + 1);
        let phase = if self.half == Half::Near { 0 } else { 256 };
        // Small buffers fill gaps; the banks of 310P are not known.
        let Buf { id, .. } = match bytes >= LARGE && self.k.arch() == Arch::A2 {
            true => self.k.ub_phase(&name, Elem::U8, bytes, phase),
            false => self.k.ub(&name, Elem::U8, bytes),
        };
        let room = Room { id, bytes, half: self.half };
        self.made.push(room);
        self.held.insert(id, (room, 1));
        Buf { id, elem, len: bytes / elem.size() }
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> u64 {
        self.made.iter().map(|room| room.bytes).sum()
    }

    /// The largest buffer, in use or not.
    pub fn largest(&self) -> Option<Buf> {
        let room = self.made.iter().max_by_key(|room| room.bytes)?;
        Some(Buf { id: room.id, elem: Elem::F32, len: room.bytes / Elem::F32.size() })
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
        if let Some((room, holders)) = self.held.get_mut(&buf.id) {
            *holders -= 1;
            if *holders == 0 {
                self.free.push(*room);
                self.held.remove(&buf.id);
            }
        }
    }

    /// Orders a vector instruction after those that it depends on.
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

    /// Vector instructions from here on are ordered after all earlier ones.
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
    pub fn finish(mut self) -> crate::kernel::finding::Result<Program> {
        if self.bits {
            let made = self.made;
            self.k.at_start(|k| {
                k.note("elements behind the ends of rows have values too");
                for Room { id, bytes, .. } in made {
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

    /// A loop; with barriers at its beginning and end.
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

    /// Statements that run if `cond` is not 0; with barriers before and at their end.
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
