//! A launch: blocks one by one, their threads as fibers, every access checked.
//!
//! Two accesses are ordered if they are of one thread, or an earlier barrier of the block, or an earlier
//! exchange of the warp is between them; else they race. For the inputs that run, that is exact in kernels
//! without atomics.

use crate::fiber::Fiber;
use crate::memory::{Access, Memory};
use std::collections::BTreeMap;
use std::ffi::c_void;

/// The table that compiled kernels use, as `simt.h` declares it.
#[repr(C)]
#[derive(Debug)]
pub struct Table {
    thread: i32,
    block: i64,
    shared: *mut u8,
    sync: extern "C" fn(i32),
    lane_xor: extern "C" fn(u64, i32, i32) -> u64,
    touch: Option<extern "C" fn(*const c_void, u32, u32, i32, i32) -> i32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Ready,
    /// At the barrier of the block, or at the exchange of the warp.
    Barrier,
    Exchange,
    Over,
}

#[derive(Clone, Debug)]
struct Warp {
    arrived: u32,
    generation: u32,
    alive: u32,
    values: [[u64; 32]; 2],
}

/// A kernel that was loaded.
#[derive(Clone, Debug)]
pub struct Entry {
    pub name: String,
    pub function: extern "C" fn(*const u64),
    pub threads: u32,
    pub pointers: usize,
    /// Bytes of each operand, and true for those that are written; empty where the text does not say.
    pub extents: Vec<(u64, bool)>,
}

/// The function that runs a launch.
pub struct Machine {
    pub table: Table,
    fibers: Vec<Fiber>,
    states: Vec<State>,
    warps: Vec<Warp>,
    scheduler: usize,
    alive: u32,
    arrived: u32,
    phase: u32,
    barrier_line: i32,
    launch: u32,
    shared: Memory,
    memories: *mut BTreeMap<u64, Memory>,
    entry: Option<Entry>,
    args: Vec<u64>,
    finding: Option<String>,
}

// SAFETY: used under the world's lock.
unsafe impl Send for Machine {}

static mut CURRENT: *mut Machine = std::ptr::null_mut();

/// The machine of the launch that runs.
fn current() -> &'static mut Machine {
    // SAFETY: set for the length of a launch, by the thread that holds the world; fibers never run
    // concurrently.
    unsafe { &mut *CURRENT }
}

extern "C" fn body() {
    let machine = current();
    let function = machine.entry.as_ref().map(|e| e.function);
    if let Some(function) = function {
        function(machine.args.as_ptr());
    }
    let machine = current();
    let me = machine.table.thread as usize;
    machine.states[me] = State::Over;
    machine.alive -= 1;
    machine.warps[me / 32].alive -= 1;
    machine.release_block();
    machine.release_warp(me / 32);
    leave(me);
}

/// Goes back to the scheduler.
fn leave(me: usize) {
    let machine = current();
    let scheduler = machine.scheduler;
    let fiber: *mut Fiber = &mut machine.fibers[me];
    // SAFETY: this fiber runs.
    unsafe { (*fiber).leave(scheduler) };
    current().table.thread = me as i32;
}

extern "C" fn sync(line: i32) {
    let machine = current();
    if machine.arrived > 0 && line != machine.barrier_line {
        let other = machine.barrier_line;
        machine.report(
            &format!("waits at another barrier than the rest of the block, which is at line {other}"),
            line,
        );
    }
    machine.barrier_line = line;
    let me = machine.table.thread as usize;
    machine.states[me] = State::Barrier;
    machine.arrived += 1;
    machine.release_block();
    if machine.states[me] != State::Ready {
        leave(me);
    }
}

extern "C" fn lane_xor(x: u64, mask: i32, line: i32) -> u64 {
    let machine = current();
    let me = machine.table.thread as usize;
    let other = (me & 31) ^ mask as usize;
    if machine.states.get(me / 32 * 32 + other).is_none_or(|s| *s == State::Over) {
        machine.report("reads the register of a thread that is over", line);
    }
    let half = (machine.warps[me / 32].generation & 1) as usize;
    let warp = &mut machine.warps[me / 32];
    warp.values[half][me & 31] = x;
    warp.arrived += 1;
    machine.states[me] = State::Exchange;
    machine.release_warp(me / 32);
    if machine.states[me] != State::Ready {
        leave(me);
    }
    // The next exchange uses the other half.
    current().warps[me / 32].values[half][other & 31]
}

extern "C" fn touch(address: *const c_void, bytes: u32, unit: u32, write: i32, line: i32) -> i32 {
    i32::from(current().touch(address as u64, bytes as usize, unit as usize, write != 0, line))
}

impl Default for Machine {
    fn default() -> Machine {
        let shared = Memory::new(48 << 10, true).unwrap_or_else(|| std::process::abort());
        let table = Table { thread: 0, block: 0, shared: shared.start, sync, lane_xor, touch: Some(touch) };
        Machine {
            table,
            fibers: Vec::new(),
            states: Vec::new(),
            warps: Vec::new(),
            scheduler: 0,
            alive: 0,
            arrived: 0,
            phase: 0,
            barrier_line: 0,
            launch: 0,
            shared,
            memories: std::ptr::null_mut(),
            entry: None,
            args: Vec::new(),
            finding: None,
        }
    }
}

impl Machine {
    fn report(&mut self, what: &str, line: i32) {
        let name = self.entry.as_ref().map_or("", |e| e.name.as_str());
        let (block, thread) = (self.table.block, self.table.thread);
        let text = format!("{name}: block {block} thread {thread} line {line}: {what}");
        self.finding.get_or_insert(text);
    }

    fn release_block(&mut self) {
        if self.arrived > 0 && self.arrived == self.alive {
            self.arrived = 0;
            self.phase += 1;
            self.states.iter_mut().filter(|s| **s == State::Barrier).for_each(|s| *s = State::Ready);
        }
    }

    fn release_warp(&mut self, number: usize) {
        let warp = &mut self.warps[number];
        if warp.arrived > 0 && warp.arrived == warp.alive {
            warp.arrived = 0;
            warp.generation += 1;
            let end = self.states.len().min(number * 32 + 32);
            let own = &mut self.states[number * 32..end];
            own.iter_mut().filter(|s| **s == State::Exchange).for_each(|s| *s = State::Ready);
        }
    }

    /// True if bytes belong to one of the operands that the kernel states, which it writes if this is a
    /// write.
    fn is_operand(&self, address: u64, bytes: u64, write: bool) -> bool {
        let extents = self.entry.as_ref().map_or(&[][..], |e| &e.extents);
        let holds = |(start, (size, written)): (&u64, &(u64, bool))| {
            address >= *start && address + bytes <= start + size && (*written || !write)
        };
        extents.is_empty() || self.args.iter().zip(extents).any(holds)
    }

    /// Checks an access; false if it must not be made.
    fn touch(&mut self, address: u64, bytes: usize, unit: usize, write: bool, line: i32) -> bool {
        let thread = self.table.thread as usize;
        let now = Access {
            launch: self.launch,
            phase: self.phase,
            generation: self.warps[thread / 32].generation,
            block: self.table.block as u32,
            thread: thread as u16,
            spread: 0,
        };
        let verb = if write { "writes" } else { "reads" };
        if !address.is_multiple_of(unit as u64) {
            self.report(&format!("{verb} {bytes} bytes at an address that is no multiple of {unit}"), line);
            return false;
        }
        // SAFETY: the world's memories, which outlive the launch; nothing else uses them meanwhile.
        let memories = unsafe { &mut *self.memories };
        let in_shared = self.shared.holds(address, bytes);
        if !in_shared && !self.is_operand(address, bytes as u64, write) {
            self.report(&format!("{verb} outside of the operands that it may use so"), line);
            return false;
        }
        let found = match in_shared {
            true => Some(&mut self.shared),
            false => {
                memories.range_mut(..=address).next_back().map(|(_, m)| m).filter(|m| m.holds(address, bytes))
            }
        };
        let Some(memory) = found else {
            self.report(&format!("{verb} outside of memory"), line);
            return false;
        };
        let ordered = |a: &Access| {
            if a.launch != now.launch {
                return true;
            }
            if a.block != now.block || a.spread == 3 {
                return false;
            }
            if a.phase != now.phase || (a.thread == now.thread && a.spread == 0) {
                return true;
            }
            a.thread / 32 == now.thread / 32 && a.spread < 2 && a.generation != now.generation
        };
        let mut found = None;
        let at = (address - memory.start as u64) as usize;
        for i in at..at + bytes {
            let written = memory.written[i];
            memory.written[i] |= write;
            let cell = memory.cell(i);
            if !write && !written {
                found.get_or_insert(format!(
                    "reads {}bytes that nobody wrote",
                    if in_shared { "shared " } else { "" }
                ));
            }
            if !ordered(&cell.write) {
                let other = cell.write.thread;
                found.get_or_insert(format!(
                    "{verb} what was written by thread {other} of block {}",
                    cell.write.block
                ));
            }
            if write {
                if !ordered(&cell.read) {
                    let other = cell.read.thread;
                    found.get_or_insert(format!(
                        "writes what was read by thread {other} of block {}",
                        cell.read.block
                    ));
                }
                cell.write = now;
            } else if ordered(&cell.read) {
                cell.read = now;
            } else {
                let apart = match () {
                    () if cell.read.block != now.block => 3,
                    () if cell.read.thread / 32 != now.thread / 32 => 2,
                    () => 1,
                };
                cell.read.spread = cell.read.spread.max(apart);
            }
        }
        if let Some(found) = found {
            self.report(&found, line);
        }
        true
    }

    /// Runs a launch; a finding if there was one. Blocks and threads run in an order of the seed's; 0:
    /// ascending.
    pub fn run(
        &mut self,
        entry: &Entry,
        (blocks, shared): (u32, usize),
        args: Vec<u64>,
        memories: &mut BTreeMap<u64, Memory>,
        (checked, seed): (bool, u64),
    ) -> Option<String> {
        let threads = entry.threads as usize;
        self.table.touch = checked.then_some(touch as _);
        self.launch += 1;
        (self.entry, self.args, self.memories) = (Some(entry.clone()), args, memories);
        self.finding =
            (shared > self.shared.bytes).then(|| format!("{}: {shared} bytes of shared memory", entry.name));
        while self.fibers.len() < threads {
            self.fibers.push(Fiber::new());
        }
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        // SAFETY: this machine lives through the launch, and no other runs meanwhile: the world is locked.
        unsafe { CURRENT = self };
        for n in 0..blocks {
            if self.finding.is_some() {
                break;
            }
            self.table.block = i64::from(if seed == 0 { n } else { blocks - 1 - n });
            // SAFETY: the whole of the shared memory.
            unsafe { self.shared.start.write_bytes(0xff, shared.min(self.shared.bytes)) };
            self.shared.bytes = shared.min(48 << 10);
            if checked {
                self.shared.clear(self.shared.bytes);
            }
            self.warps = vec![
                Warp { arrived: 0, generation: 0, alive: 0, values: [[0; 32]; 2] };
                threads.div_ceil(32)
            ];
            self.states = vec![State::Ready; threads];
            (self.alive, self.arrived, self.phase) = (threads as u32, 0, 0);
            for t in 0..threads {
                self.warps[t / 32].alive += 1;
                self.fibers[t].begin(body);
            }
            while current().alive > 0 {
                let (mut moved, start) = (false, if seed == 0 { 0 } else { next() as usize % threads });
                for k in 0..threads {
                    let t = if seed == 0 { k } else { (start + threads - k) % threads };
                    if current().states[t] != State::Ready {
                        continue;
                    }
                    moved = true;
                    current().table.thread = t as i32;
                    let machine = current();
                    // SAFETY: the fiber has begun and is not over; both parts of the machine live on.
                    unsafe { machine.fibers[t].run(&mut machine.scheduler) };
                }
                if !moved {
                    let text = format!(
                        "{}: threads wait at a barrier or an exchange that others do not reach",
                        entry.name
                    );
                    current().finding.get_or_insert(text);
                    break;
                }
            }
            self.shared.bytes = 48 << 10;
        }
        self.finding.take()
    }
}
