//! Memories: bytes, and in checked runs whether each has been written.

use super::Fault;
use crate::finding::Rule;
use crate::kernel::{Base, Program, Space, Value, View};

/// Content of unwritten memory of a core in checked runs: as halves and floats, a number that stands out.
const FILLER: u8 = 0xcd;

/// A piece of GM: the bytes from an address on.
#[derive(Debug)]
pub struct Region<'m> {
    /// Address of the first byte.
    pub start: u64,
    /// The bytes.
    pub bytes: Bytes<'m>,
}

/// Bytes of a piece of GM.
#[derive(Debug)]
pub enum Bytes<'m> {
    /// For kernels that only read them.
    Read(&'m [u8]),
    /// For all.
    Write(&'m mut [u8]),
}

impl Bytes<'_> {
    /// The bytes, to read.
    pub fn get(&self) -> &[u8] {
        match self {
            Bytes::Read(bytes) => bytes,
            Bytes::Write(bytes) => bytes,
        }
    }
}

impl Region<'_> {
    /// The same piece, with writes going to a copy of its bytes.
    pub fn over<'x>(&'x self, copy: &'x mut [u8]) -> Region<'x> {
        let bytes = match &self.bytes {
            Bytes::Read(bytes) => Bytes::Read(bytes),
            Bytes::Write(_) => Bytes::Write(copy),
        };
        Region { start: self.start, bytes }
    }

    /// True if bytes lie in it.
    fn holds(&self, start: u64, len: u64) -> bool {
        let end = start.checked_add(len);
        start >= self.start && end.is_some_and(|end| end - self.start <= self.bytes.get().len() as u64)
    }
}

/// Global memory, shared by all cores.
pub struct Global<'m> {
    /// Its pieces, which do not overlap.
    pub regions: Vec<Region<'m>>,
    /// For each byte of each piece 1 if it has been written; empty in fast runs.
    pub defined: Vec<Vec<u8>>,
    /// Where each parameter begins; 0 for scalars.
    pub params: Vec<u64>,
    /// The piece in which each parameter lies.
    holders: Vec<usize>,
}

impl<'m> Global<'m> {
    /// Memory in which parameters begin at `params`.
    pub fn new(regions: Vec<Region<'m>>, params: Vec<u64>, holders: Vec<usize>) -> Global<'m> {
        Global { regions, defined: Vec::new(), params, holders }
    }
}

/// The piece that holds bytes.
pub fn holder(regions: &[Region], start: u64, len: u64) -> Option<usize> {
    regions.iter().position(|r| r.holds(start, len))
}

/// Memories of one core.
pub struct Local {
    bytes: [Vec<u8>; Space::ALL.len()],
    defined: [Vec<u8>; Space::ALL.len()],
}

impl Local {
    /// Memories as large as the program uses them.
    pub fn new(program: &Program, checked: bool) -> Local {
        let peak = |space: Space| program.peak(space).min(program.arch.capacity(space)) as usize;
        let sized = |fill: u8, wanted: bool| {
            std::array::from_fn(|i| {
                let space = Space::ALL[i];
                vec![fill; if wanted && space != Space::Gm { peak(space) } else { 0 }]
            })
        };
        Local { bytes: sized(if checked { FILLER } else { 0 }, true), defined: sized(0, checked) }
    }

    /// Forgets what a block has left. In fast runs it stays: no result of a program without findings depends on it.
    pub fn reset(&mut self) {
        for (bytes, defined) in self.bytes.iter_mut().zip(&mut self.defined) {
            if !defined.is_empty() {
                bytes.fill(FILLER);
                defined.fill(0);
            }
        }
    }
}

/// A memory: a piece of GM, or one of the core's by its number.
#[derive(Clone, Copy)]
enum Memory {
    Gm(usize),
    Local(usize),
}

/// What one instruction reaches: a core's memories and GM.
pub struct Reach<'x, 'm> {
    /// The program.
    pub program: &'x Program,
    /// The core's memories.
    pub local: &'x mut Local,
    /// GM.
    pub global: &'x mut Global<'m>,
    /// Whether bytes that nothing has written are followed.
    pub checked: bool,
}

impl Reach<'_, '_> {
    fn place(&self, base: Base, byte: i64) -> Option<(Memory, usize)> {
        let (memory, start) = match base {
            Base::Param(p) => {
                let region = *self.global.holders.get(p.0 as usize)?;
                let start = *self.global.params.get(p.0 as usize)?;
                (Memory::Gm(region), start - self.global.regions.get(region)?.start)
            }
            Base::Buffer(b) => {
                let address = self.program.buffers.get(b.0 as usize)?.address?;
                (Memory::Local(self.program.space(base) as usize), address)
            }
        };
        let at = i64::try_from(start).ok()?.checked_add(byte)?;
        Some((memory, usize::try_from(at).ok()?))
    }

    /// Bounds of a range within its base.
    fn range(&self, base: Base, byte: i64, len: usize) -> Result<(Memory, usize), Fault> {
        let size = self.program.size(base);
        let inside = byte >= 0 && (byte as u64).checked_add(len as u64).is_some_and(|end| end <= size);
        self.place(base, byte).filter(|_| inside).ok_or_else(|| {
            let message = format!("{len} bytes at {byte} of {size}");
            Fault::new(Rule::Bounds, message).of(self.program.base_name(base))
        })
    }

    /// Bytes of a base.
    ///
    /// # Errors
    /// `Bounds` outside of it.
    pub fn read(&self, base: Base, byte: i64, len: usize) -> Result<&[u8], Fault> {
        let (memory, at) = self.range(base, byte, len)?;
        let memory: &[u8] = match memory {
            Memory::Gm(region) => self.global.regions[region].bytes.get(),
            Memory::Local(space) => &self.local.bytes[space],
        };
        memory.get(at..at + len).ok_or_else(|| Fault::new(Rule::Bounds, "the memory ends before the buffer"))
    }

    /// Bytes of a base, to write.
    ///
    /// # Errors
    /// `Bounds` outside of it, `Memory` where it is only lent for reading.
    pub fn write(&mut self, base: Base, byte: i64, len: usize) -> Result<&mut [u8], Fault> {
        let (memory, at) = self.range(base, byte, len)?;
        let memory: &mut [u8] = match memory {
            Memory::Gm(region) => match &mut self.global.regions[region].bytes {
                Bytes::Write(bytes) => bytes,
                Bytes::Read(_) => {
                    let fault =
                        Fault::new(Rule::Memory, "the parameter's memory is only read by this kernel");
                    return Err(fault.of(self.program.base_name(base)));
                }
            },
            Memory::Local(space) => &mut self.local.bytes[space],
        };
        memory
            .get_mut(at..at + len)
            .ok_or_else(|| Fault::new(Rule::Bounds, "the memory ends before the buffer"))
    }

    /// Whether bytes are written, each; `None` in fast runs.
    pub fn defined(&self, base: Base, byte: i64, len: usize) -> Option<&[u8]> {
        if !self.checked {
            return None;
        }
        let (memory, at) = self.range(base, byte, len).ok()?;
        let defined = match memory {
            Memory::Gm(region) => self.global.defined.get(region)?,
            Memory::Local(space) => &self.local.defined[space],
        };
        defined.get(at..at + len)
    }

    /// The same, to write.
    pub fn defined_mut(&mut self, base: Base, byte: i64, len: usize) -> Option<&mut [u8]> {
        if !self.checked {
            return None;
        }
        let (memory, at) = self.range(base, byte, len).ok()?;
        let defined = match memory {
            Memory::Gm(region) => self.global.defined.get_mut(region)?,
            Memory::Local(space) => &mut self.local.defined[space],
        };
        defined.get_mut(at..at + len)
    }

    /// Marks bytes as written, or as holding nothing.
    pub fn define(&mut self, base: Base, byte: i64, len: usize, is: bool) {
        if let Some(defined) = self.defined_mut(base, byte, len) {
            defined.fill(u8::from(is));
        }
    }

    /// Fails if one of the bytes has not been written.
    ///
    /// # Errors
    /// `Uninitialised`, with the first such byte.
    pub fn must_be_defined(&self, operand: &str, base: Base, byte: i64, len: usize) -> Result<(), Fault> {
        match self.defined(base, byte, len).and_then(|d| d.iter().position(|&x| x == 0)) {
            None => Ok(()),
            Some(i) => {
                let message = format!("{operand} has byte {}, which nothing has written", byte + i as i64);
                Err(Fault::new(Rule::Uninitialised, message).of(self.program.base_name(base)))
            }
        }
    }

    /// Copies bytes between memories, with whether they are written.
    ///
    /// # Errors
    /// `Bounds`.
    pub fn copy(&mut self, from: (Base, i64), to: (Base, i64), len: usize) -> Result<(), Fault> {
        let (source, target) = (self.range(from.0, from.1, len)?, self.range(to.0, to.1, len)?);
        let ends = || Fault::new(Rule::Bounds, "the memory ends before the buffer");
        let ranges = (source.1..source.1 + len, target.1..target.1 + len);
        match (source.0, target.0) {
            (Memory::Gm(a), Memory::Local(b)) => {
                let bytes = self.global.regions[a].bytes.get().get(ranges.0).ok_or_else(ends)?;
                self.local.bytes[b].get_mut(ranges.1).ok_or_else(ends)?.copy_from_slice(bytes);
            }
            (Memory::Local(a), Memory::Local(b)) if a != b => {
                let [a, b] = self.local.bytes.get_disjoint_mut([a, b]).map_err(|_| ends())?;
                let bytes = a.get(ranges.0).ok_or_else(ends)?;
                b.get_mut(ranges.1).ok_or_else(ends)?.copy_from_slice(bytes);
            }
            (Memory::Local(a), Memory::Local(_)) => {
                let memory = &mut self.local.bytes[a];
                if ranges.0.end.max(ranges.1.end) > memory.len() {
                    return Err(ends());
                }
                memory.copy_within(ranges.0, ranges.1.start);
            }
            (Memory::Local(a), Memory::Gm(_)) => {
                let local = std::mem::take(&mut self.local.bytes[a]);
                let bytes = local.get(ranges.0).ok_or_else(ends);
                let done = self.write(to.0, to.1, len).and_then(|to| {
                    to.copy_from_slice(bytes?);
                    Ok(())
                });
                self.local.bytes[a] = local;
                done?;
            }
            (Memory::Gm(_), Memory::Gm(_)) => {
                let bytes = self.read(from.0, from.1, len)?.to_vec();
                self.write(to.0, to.1, len)?.copy_from_slice(&bytes);
            }
        }
        if let Some(defined) = self.defined(from.0, from.1, len).map(<[u8]>::to_vec)
            && let Some(to) = self.defined_mut(to.0, to.1, len)
        {
            to.copy_from_slice(&defined);
        }
        Ok(())
    }
}

/// Beginning of a view.
pub fn start(view: &View<Value>) -> (Base, i64) {
    (view.base, view.byte())
}
