//! The state of the stand-in, under one lock.
//!
//! Work waits in its stream until something waits for it, or until a number drawn by the seed has some of it
//! done earlier. Streams are ordered by events alone.

use crate::machine::{Entry, Machine};
use crate::memory::Memory;
use crate::product::{Product, Reach};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A result of the driver: 0 is none.
pub type Status = i32;

pub const INVALID: Status = 1;
pub const OUT_OF_MEMORY: Status = 2;
pub const NOT_FOUND: Status = 500;
pub const NOT_READY: Status = 600;
pub const ILLEGAL_ADDRESS: Status = 700;
pub const LAUNCH_FAILED: Status = 719;
pub const CAPTURING: Status = 900;

/// A piece of work.
#[derive(Clone, Debug)]
pub enum Work {
    ToDevice { to: u64, from: usize, bytes: usize },
    ToHost { to: usize, from: u64, bytes: usize },
    Copy { to: u64, from: u64, bytes: usize },
    Fill { to: u64, bytes: usize, value: u8 },
    Launch { entry: Entry, blocks: u32, shared: usize, args: Vec<u64> },
    Product(Box<Product>),
    Record { event: usize, mark: u64 },
    Wait { event: usize, mark: u64 },
}

#[derive(Debug, Default)]
struct Stream {
    queue: VecDeque<Work>,
    recording: Option<Vec<Work>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Event {
    stream: usize,
    recorded: u64,
    done: u64,
}

/// The state.
pub struct World {
    pub checked: bool,
    pub seed: u64,
    /// Bytes of device memory.
    pub capacity: usize,
    pub used: usize,
    pub memories: BTreeMap<u64, Memory>,
    pub pinned: HashMap<usize, Vec<u8>>,
    streams: HashMap<usize, Stream>,
    events: HashMap<usize, Event>,
    pub graphs: HashMap<usize, Vec<Work>>,
    pub modules: HashMap<usize, libloading::Library>,
    pub functions: HashMap<usize, Entry>,
    machine: Box<Machine>,
    pub failure: Status,
    pub finding: String,
    /// Failures to come: calls left until then, and the result.
    pub injected: HashMap<String, (u64, Status)>,
    pub calls: HashMap<String, u64>,
    /// A part of a kernel's text that is compiled as another one, and how often that was done.
    pub replaced: Option<(String, String, u64)>,
    next: usize,
    random: u64,
}

static WORLD: Mutex<Option<World>> = Mutex::new(None);

/// The world, for the length of a call.
pub struct Held(MutexGuard<'static, Option<World>>);

impl std::ops::Deref for Held {
    type Target = World;
    fn deref(&self) -> &World {
        self.0.as_ref().unwrap_or_else(|| std::process::abort())
    }
}

impl std::ops::DerefMut for Held {
    fn deref_mut(&mut self) -> &mut World {
        self.0.as_mut().unwrap_or_else(|| std::process::abort())
    }
}

/// Locks the world.
pub fn world() -> Held {
    let mut held = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    held.get_or_insert_with(|| World {
        // For the command line, which has nobody who could configure it.
        checked: std::env::var_os("HEADWATER_STANDIN_FAST").is_none(),
        seed: 0,
        capacity: 4 << 30,
        used: 0,
        memories: BTreeMap::new(),
        pinned: HashMap::new(),
        streams: HashMap::new(),
        events: HashMap::new(),
        graphs: HashMap::new(),
        modules: HashMap::new(),
        functions: HashMap::new(),
        machine: Box::new(Machine::default()),
        failure: 0,
        finding: String::new(),
        injected: HashMap::new(),
        calls: HashMap::new(),
        replaced: None,
        next: 0,
        random: 0x2545_f491_4f6c_dd1d,
    });
    Held(held)
}

impl World {
    /// Notes a call, and fails if a failure was planted there, or if the context has failed.
    pub fn call(&mut self, name: &str, needs_context: bool) -> Result<(), Status> {
        *self.calls.entry(name.into()).or_default() += 1;
        if let Some((left, status)) = self.injected.get_mut(name) {
            *left -= 1;
            if *left == 0 {
                let status = *status;
                self.injected.remove(name);
                return Err(status);
            }
        }
        if needs_context && self.failure != 0 { Err(self.failure) } else { Ok(()) }
    }

    /// Resets after a failure. Older handles are invalid.
    pub fn revive(&mut self) {
        (self.failure, self.used) = (0, 0);
        self.finding.clear();
        self.memories.clear();
        self.pinned.clear();
        self.streams.clear();
        self.events.clear();
        self.graphs.clear();
        self.functions.clear();
        self.modules.clear();
    }

    /// A number for a handle; never 0.
    pub fn handle(&mut self) -> usize {
        self.next += 16;
        self.next
    }

    /// The table that compiled kernels use.
    pub fn table(&mut self) -> *mut crate::machine::Table {
        &mut self.machine.table
    }

    /// Handles that are alive: memories, pinned pieces, streams, events, graphs, modules.
    pub fn live(&self) -> [usize; 6] {
        [
            self.memories.len(),
            self.pinned.len(),
            self.streams.len(),
            self.events.len(),
            self.graphs.len(),
            self.modules.len(),
        ]
    }

    pub fn alloc(&mut self, bytes: usize) -> Result<u64, Status> {
        if bytes == 0 || bytes > self.capacity - self.used {
            return Err(if bytes == 0 { INVALID } else { OUT_OF_MEMORY });
        }
        let memory = Memory::new(bytes, self.checked).ok_or(OUT_OF_MEMORY)?;
        let start = memory.start as u64;
        self.used += bytes;
        self.memories.insert(start, memory);
        Ok(start)
    }

    /// Frees memory, after all work.
    pub fn free(&mut self, start: u64) -> Result<(), Status> {
        self.drain_all();
        let memory = self.memories.remove(&start).ok_or(INVALID)?;
        self.used -= memory.bytes;
        Ok(())
    }

    pub fn new_stream(&mut self) -> usize {
        let handle = self.handle();
        self.streams.insert(handle, Stream::default());
        handle
    }

    pub fn end_stream(&mut self, stream: usize) -> Result<(), Status> {
        self.drain(stream);
        self.streams.remove(&stream).map(drop).ok_or(INVALID)
    }

    pub fn new_event(&mut self) -> usize {
        let handle = self.handle();
        self.events.insert(handle, Event::default());
        handle
    }

    pub fn end_event(&mut self, event: usize) -> Result<(), Status> {
        let stream = self.events.get(&event).ok_or(INVALID)?.stream;
        self.drain(stream);
        self.events.remove(&event);
        Ok(())
    }

    /// Gives work to a stream.
    pub fn give(&mut self, stream: usize, work: Work) -> Result<(), Status> {
        let own = self.streams.get_mut(&stream).ok_or(INVALID)?;
        match &mut own.recording {
            Some(recording) => recording.push(work),
            None => own.queue.push_back(work),
        }
        if self.seed != 0 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            if self.random.wrapping_mul(self.seed).is_multiple_of(3) {
                self.step(stream);
            }
        }
        Ok(())
    }

    pub fn record(&mut self, event: usize, stream: usize) -> Result<(), Status> {
        let own = self.events.get_mut(&event).ok_or(INVALID)?;
        own.recorded += 1;
        own.stream = stream;
        let mark = own.recorded;
        self.give(stream, Work::Record { event, mark })
    }

    pub fn wait(&mut self, stream: usize, event: usize) -> Result<(), Status> {
        let mark = self.events.get(&event).ok_or(INVALID)?.recorded;
        self.give(stream, Work::Wait { event, mark })
    }

    /// True if an event has come; its stream goes on a little.
    pub fn has_come(&mut self, event: usize) -> Result<bool, Status> {
        let own = *self.events.get(&event).ok_or(INVALID)?;
        self.step(own.stream);
        Ok(self.events.get(&event).is_some_and(|e| e.done >= own.recorded))
    }

    pub fn wait_host(&mut self, event: usize) -> Result<(), Status> {
        let own = *self.events.get(&event).ok_or(INVALID)?;
        self.until(event, own.recorded);
        Ok(())
    }

    pub fn synchronize(&mut self, stream: usize) -> Result<(), Status> {
        let own = self.streams.get(&stream).ok_or(INVALID)?;
        if own.recording.is_some() {
            return Err(CAPTURING);
        }
        self.drain(stream);
        if self.failure != 0 { Err(self.failure) } else { Ok(()) }
    }

    pub fn begin_recording(&mut self, stream: usize) -> Result<(), Status> {
        let own = self.streams.get_mut(&stream).ok_or(INVALID)?;
        if own.recording.is_some() {
            return Err(CAPTURING);
        }
        own.recording = Some(Vec::new());
        Ok(())
    }

    pub fn end_recording(&mut self, stream: usize) -> Result<usize, Status> {
        let own = self.streams.get_mut(&stream).ok_or(INVALID)?;
        let work = own.recording.take().ok_or(INVALID)?;
        let handle = self.handle();
        self.graphs.insert(handle, work);
        Ok(handle)
    }

    pub fn drain(&mut self, stream: usize) {
        while self.step(stream) {}
    }

    pub fn drain_all(&mut self) {
        let streams: Vec<usize> = self.streams.keys().copied().collect();
        streams.into_iter().for_each(|s| self.drain(s));
    }

    fn until(&mut self, event: usize, mark: u64) {
        while let Some(own) = self.events.get(&event).copied().filter(|e| e.done < mark) {
            if !self.step(own.stream) {
                return;
            }
        }
    }

    /// Does the first piece of work of a stream; false if there is none.
    fn step(&mut self, stream: usize) -> bool {
        let Some(work) = self.streams.get_mut(&stream).and_then(|s| s.queue.pop_front()) else {
            return false;
        };
        match work {
            Work::Record { event, mark } => {
                if let Some(event) = self.events.get_mut(&event) {
                    event.done = event.done.max(mark);
                }
            }
            Work::Wait { event, mark } => self.until(event, mark),
            // After a failure no work is done.
            _ if self.failure != 0 => {}
            work => {
                if let Err((status, finding)) = self.work(work) {
                    self.failure = status;
                    self.finding = finding;
                }
            }
        }
        true
    }

    fn work(&mut self, work: Work) -> Result<(), (Status, String)> {
        let outside = |what: &str| (ILLEGAL_ADDRESS, format!("{what} outside of memory"));
        match work {
            Work::ToDevice { to, from, bytes } => {
                let memory = self.memory(to, bytes).ok_or_else(|| outside("a copy to the device writes"))?;
                // SAFETY: both ranges are inside; the caller keeps its own until the copy is done.
                unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
                memory.mark(to, bytes, true);
            }
            Work::ToHost { to, from, bytes } => {
                self.memory(from, bytes).ok_or_else(|| outside("a copy to the host reads"))?;
                // SAFETY: as above.
                unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
            }
            Work::Copy { to, from, bytes } => {
                self.memory(from, bytes).ok_or_else(|| outside("a copy reads"))?;
                let memory = self.memory(to, bytes).ok_or_else(|| outside("a copy writes"))?;
                // SAFETY: both ranges are inside.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
                memory.mark(to, bytes, true);
            }
            Work::Fill { to, bytes, value } => {
                let memory = self.memory(to, bytes).ok_or_else(|| outside("a fill writes"))?;
                // SAFETY: the range is inside.
                unsafe { (to as *mut u8).write_bytes(value, bytes) };
                memory.mark(to, bytes, true);
            }
            Work::Launch { entry, blocks, shared, args } => {
                let found = self.machine.run(
                    &entry,
                    (blocks, shared),
                    args,
                    &mut self.memories,
                    (self.checked, self.seed),
                );
                if let Some(finding) = found {
                    return Err((LAUNCH_FAILED, finding));
                }
            }
            Work::Product(product) => product.run(self).map_err(|finding| (LAUNCH_FAILED, finding))?,
            Work::Record { .. } | Work::Wait { .. } => {}
        }
        Ok(())
    }
}

impl Reach for World {
    fn memory(&mut self, address: u64, bytes: usize) -> Option<&mut Memory> {
        self.memories.range_mut(..=address).next_back().map(|(_, m)| m).filter(|m| m.holds(address, bytes))
    }

    fn checked(&self) -> bool {
        self.checked
    }
}
