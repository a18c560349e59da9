//! Memories: bytes, and in checked runs whether each has been written.

use super::Fault;
use super::lane_room::LaneRoom;
use super::numbers::saturated;
use crate::kernel::finding::Rule;
use crate::kernel::{Base, Buffer, Elem, Param, Program, Space, Value, View};
use std::ops::Range;

/// Content of unwritten memory of a core in checked runs: as halves and floats, a conspicuous number.
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

impl<'m> Region<'m> {
    /// The same piece, with writes going to a copy of its bytes.
    pub fn over<'x>(&self, copy: &'x mut [u8]) -> Region<'x>
    where
        'm: 'x,
    {
        let bytes = match &self.bytes {
            Bytes::Read(bytes) => Bytes::Read(bytes),
            Bytes::Write(_) => Bytes::Write(copy),
        };
        Region { start: self.start, bytes }
    }

    /// The same piece, lent.
    pub fn again(&mut self) -> Region<'_> {
        let bytes = match &mut self.bytes {
            Bytes::Read(bytes) => Bytes::Read(bytes),
            Bytes::Write(bytes) => Bytes::Write(bytes),
        };
        Region { start: self.start, bytes }
    }

    /// True if it contains the bytes.
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
    /// Address of each parameter; 0 for scalars.
    pub params: Vec<u64>,
    /// Pieces and byte ranges in them that instructions have written, in order; `None` where nobody asks.
    pub written: Option<Vec<(usize, Range<usize>)>>,
}

impl<'m> Global<'m> {
    /// Memory in which parameters begin at `params`.
    pub fn new(regions: Vec<Region<'m>>, params: Vec<u64>) -> Global<'m> {
        Global { regions, defined: Vec::new(), params, written: None }
    }

    /// Bytes of a piece, to write; `None` where they do not exist or are borrowed read-only.
    fn bytes_mut(&mut self, region: usize, range: Range<usize>) -> Option<&mut [u8]> {
        let Bytes::Write(bytes) = &mut self.regions.get_mut(region)?.bytes else { return None };
        if let Some(written) = &mut self.written {
            match written.last_mut() {
                Some((last, held)) if *last == region && held.end == range.start => held.end = range.end,
                _ => written.push((region, range.clone())),
            }
        }
        bytes.get_mut(range)
    }
}

/// Place of a parameter or a buffer.
#[derive(Clone, Copy)]
struct Spot {
    memory: Memory,
    start: usize,
    bytes: u64,
}

/// Places of all parameters and buffers of a program; `None` for those that have no memory.
pub struct Spots {
    params: Vec<Option<Spot>>,
    buffers: Vec<Option<Spot>>,
}

impl Spots {
    /// The places where parameters begin at `params` in the pieces `holders`.
    pub fn new(program: &Program, regions: &[Region], params: &[u64], holders: &[usize]) -> Spots {
        let param = |((param, &start), &holder): ((&Param, &u64), &usize)| {
            let start = usize::try_from(start.checked_sub(regions.get(holder)?.start)?).ok()?;
            Some(Spot { memory: Memory::Gm(holder), start, bytes: param.bytes() })
        };
        let buffer = |buffer: &Buffer| {
            let start = usize::try_from(buffer.address?).ok()?;
            Some(Spot { memory: Memory::Local(buffer.space as usize), start, bytes: buffer.bytes })
        };
        Spots {
            params: program.params.iter().zip(params).zip(holders).map(param).collect(),
            buffers: program.buffers.iter().map(buffer).collect(),
        }
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
    /// Scratch buffers of the simulator: lanes of the vector unit.
    pub lanes: LaneRoom,
    /// Offsets of a gather.
    pub offsets: Vec<i64>,
    /// The same of the cube unit: its left operand by rows, its right one by columns of fractals.
    pub panels: [Vec<f32>; 2],
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
        Local {
            bytes: sized(if checked { FILLER } else { 0 }, true),
            defined: sized(0, checked),
            lanes: LaneRoom::default(),
            offsets: Vec::new(),
            panels: Default::default(),
        }
    }

    /// Forgets what a block has left. In fast runs it stays: no result of a program without findings depends
    /// on it.
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

/// Memory that one instruction reaches: a core's memories and GM.
pub struct Reach<'x, 'm> {
    /// The program.
    pub program: &'x Program,
    /// The core's memories.
    pub local: &'x mut Local,
    /// GM.
    pub global: &'x mut Global<'m>,
    /// Places of the program's parameters and buffers.
    pub spots: &'x Spots,
    /// True if bytes that nothing has written are followed.
    pub checked: bool,
}

impl Reach<'_, '_> {
    /// Bounds of a range within its base: the memory, and where the range begins in it.
    #[inline]
    fn range(&self, base: Base, byte: i64, len: usize) -> Result<(Memory, usize), Fault> {
        let spot = match base {
            Base::Param(p) => self.spots.params.get(p.0 as usize),
            Base::Buffer(b) => self.spots.buffers.get(b.0 as usize),
        };
        match spot {
            Some(Some(spot))
                if byte >= 0
                    && (byte as u64).checked_add(len as u64).is_some_and(|end| end <= spot.bytes) =>
            {
                Ok((spot.memory, spot.start + byte as usize))
            }
            _ => Err(self.outside(base, byte, len)),
        }
    }

    #[cold]
    fn outside(&self, base: Base, byte: i64, len: usize) -> Fault {
        let message = format!("{len} bytes at {byte} of {}", self.program.size(base));
        Fault::new(Rule::Bounds, message).of(self.program.base_name(base))
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
        memory.get(at..at + len).ok_or_else(ends)
    }

    /// Bytes of a base, to write.
    ///
    /// # Errors
    /// `Bounds` outside of it, `Memory` where it is only lent for reading.
    pub fn write(&mut self, base: Base, byte: i64, len: usize) -> Result<&mut [u8], Fault> {
        let (memory, at) = self.range(base, byte, len)?;
        let program = self.program;
        let bytes = match memory {
            Memory::Gm(region) => {
                if let Some(Region { bytes: Bytes::Read(_), .. }) = self.global.regions.get(region) {
                    let message = "the parameter's memory is only read by this kernel";
                    return Err(Fault::new(Rule::Memory, message).of(program.base_name(base)));
                }
                self.global.bytes_mut(region, at..at + len)
            }
            Memory::Local(space) => self.local.bytes[space].get_mut(at..at + len),
        };
        bytes.ok_or_else(ends)
    }

    /// Bytes to read and bytes of another memory to write; `None` where both are in one memory, or not to be
    /// written.
    ///
    /// # Errors
    /// `Bounds` outside of a base.
    pub fn between(
        &mut self,
        from: (Base, i64, usize),
        to: (Base, i64, usize),
    ) -> Result<Option<(&[u8], &mut [u8])>, Fault> {
        let (source, target) = (self.range(from.0, from.1, from.2)?, self.range(to.0, to.1, to.2)?);
        let (read, write) = (source.1..source.1 + from.2, target.1..target.1 + to.2);
        Ok(match (source.0, target.0) {
            (Memory::Gm(a), Memory::Local(b)) => {
                let bytes = self.global.regions[a].bytes.get().get(read);
                bytes.zip(self.local.bytes[b].get_mut(write))
            }
            (Memory::Local(a), Memory::Gm(b)) => {
                self.local.bytes[a].get(read).zip(self.global.bytes_mut(b, write))
            }
            (Memory::Local(a), Memory::Local(b)) => {
                let pair = self.local.bytes.get_disjoint_mut([a, b]);
                pair.ok().and_then(|[a, b]| a.get(read).zip(b.get_mut(write)))
            }
            (Memory::Gm(_), Memory::Gm(_)) => None,
        })
    }

    /// Marks of the bytes that are written; `None` in fast runs.
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

    /// True for results that saturate on the program's chip.
    #[inline]
    pub fn saturates(&self, elem: Elem) -> bool {
        elem == Elem::F16 && self.program.arch.saturates()
    }

    /// A result as its type has it, but for rounding.
    pub fn result(&self, elem: Elem, x: f64) -> f64 {
        if self.saturates(elem) { saturated(x) } else { x }
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
        match self.between((from.0, from.1, len), (to.0, to.1, len))? {
            Some((from, to)) => to.copy_from_slice(from),
            None => {
                let (source, target) = (self.range(from.0, from.1, len)?, self.range(to.0, to.1, len)?);
                match (source.0, target.0) {
                    (Memory::Local(a), Memory::Local(b)) if a == b => {
                        let memory = &mut self.local.bytes[a];
                        if (source.1 + len).max(target.1 + len) > memory.len() {
                            return Err(ends());
                        }
                        memory.copy_within(source.1..source.1 + len, target.1);
                    }
                    _ => {
                        let bytes = self.read(from.0, from.1, len)?.to_vec();
                        self.write(to.0, to.1, len)?.copy_from_slice(&bytes);
                    }
                }
            }
        }
        if !self.checked {
            return Ok(());
        }
        if let Some(defined) = self.defined(from.0, from.1, len).map(<[u8]>::to_vec)
            && let Some(to) = self.defined_mut(to.0, to.1, len)
        {
            to.copy_from_slice(&defined);
        }
        Ok(())
    }
}

#[cold]
fn ends() -> Fault {
    Fault::new(Rule::Bounds, "the memory ends before the buffer")
}

/// Beginning of a view.
pub fn start(view: &View<Value>) -> (Base, i64) {
    (view.base, view.byte())
}
