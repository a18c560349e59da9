//! Cores, pipes and flags in time: a discrete-event simulation of one launch.
//!
//! Each core's scalar unit issues instructions into in-order queues, one for each pipe. A pipe takes the next
//! instruction when it is free; waits for flags hold it up. Transfers share memory with those of all cores.

use super::address::Addresses;
use super::bank::Banks;
use super::cost::{Cost, Port, Transfer, cost};
use super::gm::{Bandwidth, L2};
use super::{BlockLoads, Rates};
use crate::chip::{Arch, Chip};
use crate::kernel::finding::{Finding, Result, Rule};
use crate::kernel::{Barrier, Instr, Pipe, Program, Unit, Value};
use crate::sim::{Code, Issued, Issuer, Place, sub_blocks};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// Instructions that a pipe's queue takes before the scalar unit has to wait (MTE1's is 32 deep; others
/// assumed alike).
const QUEUE: usize = 32;
/// Cycles of a barrier of all cores in hardware. Assumed.
const CORES: f64 = 500.0;
/// Cycles from a flag's setting to its arrival at another core. Assumed: what the scalar unit waits for a
/// line of L2.
const CROSS: f64 = 200.0;
/// Steps of one block after which a loop is taken for endless.
const ENDLESS: u64 = 1_000_000_000;
/// Cycles that the scalar unit takes for a statement: to compute its operands, to branch, to issue. Assumed:
/// no public measurement distinguishes them.
const STATEMENT: u64 = 4;

/// The scalar unit's part of a launch: the statements of each part, and the values of scalar parameters.
pub struct Issue<'p> {
    /// By part of the program.
    pub codes: &'p [Code<'p>],
    /// By parameter; `None` for pointers.
    pub args: &'p [Option<Value>],
    /// Number of blocks.
    pub blocks: u32,
}

/// Cycles, ordered.
#[derive(PartialEq)]
struct Time(f64);

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Eq for Time {}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// An instruction in a pipe's queue.
enum Queued {
    /// Keeps the pipe so many cycles.
    Busy { busy: u64, tail: u64 },
    /// Moves bytes.
    Move(Transfer),
    /// Sets a flag.
    Set(Flag),
    /// Waits for a flag.
    Wait(Flag),
    /// Sets a flag between cores.
    CrossSet(Cross),
    /// Waits for a flag between cores.
    CrossWait(Cross),
    /// Lets the scalar unit go on.
    Resume,
}

/// From, to and number.
type Flag = (Pipe, Pipe, i64);

/// Mode and number of a flag between cores.
type Cross = (u32, i64);

/// The part of the program that a core runs, and its block there.
type Seat = (usize, u32);

#[derive(Default)]
struct Lane {
    queue: VecDeque<Queued>,
    /// Something is under way.
    working: bool,
    /// Results of all that is done are available at this time.
    settled: f64,
    /// Busy cycles so far, waits not counted.
    busy: f64,
    /// A transfer under way: its least end, and the time after its last byte.
    transfer: Option<(f64, f64, f64)>,
}

/// Events that the scalar unit waits for.
#[derive(PartialEq)]
enum Held {
    No,
    /// Free slots in a pipe's queue.
    Room(usize),
    /// All pipes idle.
    Drain,
    /// All pipes idle, then all cores.
    Cores,
    /// An instruction of its own pipe, or a flag.
    Own,
    Done,
}

struct Core<'p> {
    issuer: Option<Issuer<'p>>,
    lanes: [Lane; 7],
    /// Flags that are set, and from when.
    flags: HashMap<Flag, VecDeque<f64>>,
    held: Held,
    /// When the scalar unit was last free, and the steps that it had left then.
    time: f64,
    fuel: u64,
    scalar: f64,
    blocks: VecDeque<i64>,
    /// The block that it runs.
    block: u32,
    ended: f64,
    /// The next instruction that the scalar unit issues, at `time`.
    ready: Option<Option<Box<Issued<'p>>>>,
    /// An instruction that waits for a free slot.
    pending: Option<(usize, Queued)>,
    unit: Unit,
    /// Which part of the program it runs.
    part: usize,
}

/// Busy cycles of a core by pipe, in the order of [`Pipe::ALL`], and when it was done.
pub struct CoreTime {
    /// Kind of core.
    pub unit: Unit,
    /// Cycles by pipe.
    pub busy: [f64; 7],
    /// Cycles from the launch to the end.
    pub cycles: f64,
}

pub struct Engine<'p, 'l> {
    program: &'p Program,
    at: &'p Addresses,
    issue: Issue<'p>,
    cores: Vec<Core<'p>>,
    memory: Bandwidth,
    l2: &'l mut L2,
    banks: &'l mut Banks,
    events: BinaryHeap<Reverse<(Time, usize, usize)>>,
    loads: &'l mut BlockLoads<'p>,
    waiting: usize,
    /// Flags between cores that have not been waited for, by who waits and who sets, and when they come.
    cross: HashMap<(Cross, Seat, Seat), VecDeque<f64>>,
    /// Bytes over HBM's interface so far, and bytes of all transfers.
    pub hbm: f64,
    pub moved: f64,
}

/// The scalar unit's place among a core's event targets, after the pipes.
const SCALAR: usize = 7;

impl<'p, 'l> Engine<'p, 'l> {
    pub fn new(
        program: &'p Program,
        (chip, rates): (&Chip, Rates),
        issue: Issue<'p>,
        at: &'p Addresses,
        l2: &'l mut L2,
        banks: &'l mut Banks,
        loads: &'l mut BlockLoads<'p>,
    ) -> Self {
        let mut cores = Vec::new();
        for (index, part) in program.parts.iter().enumerate() {
            let (count, each) = match part.unit {
                Unit::Vector if program.mixed() => (chip.vector_cores, 2),
                Unit::Vector => (chip.vector_cores, 1),
                Unit::Cube | Unit::Whole => (chip.cube_cores, 1),
            };
            let blocks = i64::from(issue.blocks) * each;
            let used = i64::from(count).min(blocks);
            for c in 0..used {
                cores.push(Core {
                    issuer: None,
                    lanes: Default::default(),
                    flags: HashMap::new(),
                    held: Held::No,
                    time: 0.0,
                    fuel: 0,
                    part: index,
                    scalar: 0.0,
                    blocks: (c..blocks).step_by(used.max(1) as usize).collect(),
                    block: c as u32,
                    ended: 0.0,
                    ready: None,
                    pending: None,
                    unit: part.unit,
                });
            }
        }
        let [hbm, l2_rate] = rates.map(|rate| rate / (f64::from(chip.mhz) * 1e6));
        Engine {
            program,
            at,
            issue,
            cores,
            memory: Bandwidth::new(hbm, l2_rate),
            l2,
            banks,
            events: BinaryHeap::new(),
            loads,
            waiting: 0,
            cross: HashMap::new(),
            hbm: 0.0,
            moved: 0.0,
        }
    }

    /// Runs the launch to its end.
    pub fn run(&mut self) -> Result<Vec<CoreTime>> {
        for c in 0..self.cores.len() {
            self.scalar(c, 0.0)?;
        }
        loop {
            let event = self.events.peek().map(|e| e.0.0.0);
            let (now, transfer) = match (event, self.memory.next()) {
                (Some(e), Some(m)) if m <= e => (m, true),
                (Some(e), _) => (e, false),
                (None, Some(m)) => (m, true),
                (None, None) => break,
            };
            if transfer {
                for owner in self.memory.end(now) {
                    self.arrived(owner / 8, owner % 8, now);
                }
            } else if let Some(Reverse((_, core, what))) = self.events.pop() {
                match what {
                    SCALAR => self.scalar(core, now)?,
                    lane => self.finished(core, lane, now)?,
                }
            }
        }
        if let Some(core) = self.cores.iter().position(|c| c.held != Held::Done) {
            let message =
                format!("core {core} waits for a flag, a barrier or room in a queue that never comes");
            return Err(Finding::new(Rule::Deadlock, self.program, message));
        }
        let time = |c: &Core| CoreTime {
            unit: c.unit,
            busy: std::array::from_fn(|i| if i == 0 { c.scalar } else { c.lanes[i].busy }),
            cycles: c.ended,
        };
        Ok(self.cores.iter().map(time).collect())
    }

    fn wake(&mut self, core: usize, what: usize, at: f64) {
        self.events.push(Reverse((Time(at), core, what)));
    }

    /// Lets the scalar unit of a core go on at time `now`.
    fn scalar(&mut self, c: usize, now: f64) -> Result<()> {
        let core = &mut self.cores[c];
        core.time = core.time.max(now);
        core.held = Held::No;
        if let Some((lane, op)) = core.pending.take() {
            self.enqueue(c, lane, op)?;
        }
        while self.cores[c].held == Held::No {
            // Never ahead of the others: what is issued later is issued by a later event.
            let time = self.cores[c].time;
            if time > now {
                self.cores[c].held = Held::Own;
                self.wake(c, SCALAR, time);
                return Ok(());
            }
            match self.cores[c].ready.take() {
                Some(next) => self.issue(c, next)?,
                None => self.advance(c)?,
            }
        }
        Ok(())
    }

    /// Runs the scalar unit up to the next instruction.
    fn advance(&mut self, c: usize) -> Result<()> {
        let program = self.program;
        let core = &mut self.cores[c];
        let Some(issuer) = &mut core.issuer else {
            let Some(block) = core.blocks.pop_front() else {
                core.held = Held::Done;
                core.ended = core.time;
                return Ok(());
            };
            core.block = block as u32;
            let pairs = program.mixed() && core.unit == Unit::Vector;
            let place = Place {
                block: block as u32,
                blocks: self.issue.blocks,
                sub_block: if pairs { block as u32 % 2 } else { 0 },
            };
            let code = &self.issue.codes[core.part];
            core.issuer = Some(Issuer::new(program, code, place, self.issue.args, ENDLESS));
            core.fuel = ENDLESS;
            return Ok(());
        };
        let next = issuer.next()?;
        let spent = ((core.fuel - issuer.fuel()) * STATEMENT) as f64;
        core.fuel = issuer.fuel();
        core.time += spent;
        core.scalar += spent;
        core.ready = Some(next.map(Box::new));
        Ok(())
    }

    /// Issues what the scalar unit has come to.
    fn issue(&mut self, c: usize, next: Option<Box<Issued<'p>>>) -> Result<()> {
        let program = self.program;
        let Some(issued) = next else {
            // The block is done when its pipes are.
            self.cores[c].issuer = None;
            self.drain(c, Held::Drain);
            return Ok(());
        };
        let Issued { instr, stmt } = *issued;
        match &*instr {
            Instr::Barrier(Barrier::All) => self.drain(c, Held::Drain),
            Instr::Barrier(Barrier::Cores) | Instr::SyncSoft(_) => self.drain(c, Held::Cores),
            Instr::CrossSet(x) => self.queue(c, x.pipe, Queued::CrossSet((x.mode, x.id.as_int())))?,
            Instr::CrossWait(x) => self.queue(c, x.pipe, Queued::CrossWait((x.mode, x.id.as_int())))?,
            Instr::SetFlag(x) => self.queue(c, x.from, Queued::Set((x.from, x.to, x.id.as_int())))?,
            Instr::WaitFlag(x) => self.queue(c, x.to, Queued::Wait((x.from, x.to, x.id.as_int())))?,
            Instr::Load(x) => {
                let block = self.cores[c].issuer.as_ref().map_or(0, |issuer| issuer.place().block);
                let value = (self.loads)(block, &x.src);
                let value = value.ok_or_else(|| {
                    let message =
                        "a value that the scalar unit loads decides what runs: give the launch its data";
                    Finding::new(Rule::Arguments, program, message).at(program, "", stmt.source)
                })?;
                if let Some(issuer) = &mut self.cores[c].issuer {
                    issuer.set(x.into, value);
                }
                self.own(c, &instr)?;
            }
            Instr::Store(_) | Instr::CacheFlush(_) => self.own(c, &instr)?,
            _ => {
                let pipe = instr.pipe(program).unwrap_or(Pipe::S);
                let op = match cost(program, self.at, self.banks, &instr) {
                    Cost::Fixed { busy, tail } => Queued::Busy { busy, tail },
                    Cost::Transfer(t) => Queued::Move(t),
                };
                self.queue(c, pipe, op)?;
            }
        }
        Ok(())
    }

    /// An instruction of the scalar unit itself: it goes on when that is done.
    fn own(&mut self, c: usize, instr: &Instr<Value>) -> Result<()> {
        if let Cost::Fixed { busy, .. } = cost(self.program, self.at, self.banks, instr) {
            let core = &mut self.cores[c];
            core.time += busy as f64;
            core.scalar += busy as f64;
        }
        Ok(())
    }

    fn queue(&mut self, c: usize, pipe: Pipe, op: Queued) -> Result<()> {
        if pipe == Pipe::S {
            // The scalar unit is a pipe of its own: it sets at once, and stalls while it waits.
            let core = &mut self.cores[c];
            match op {
                Queued::Set(flag) => {
                    let time = core.time;
                    core.flags.entry(flag).or_default().push_back(time);
                    self.serve_all(c, time)?;
                }
                Queued::CrossSet(flag) => {
                    let time = core.time;
                    self.tell(c, flag, time, time)?;
                }
                Queued::Wait(_) | Queued::CrossWait(_) => {
                    let queued = core.lanes[0].queue.len();
                    core.lanes[0].queue.push_back(op);
                    core.lanes[0].queue.push_back(Queued::Resume);
                    core.held = Held::Own;
                    let time = core.time;
                    if queued == 0 {
                        self.serve(c, 0, time)?;
                    }
                }
                Queued::Busy { busy, .. } => core.time += busy as f64,
                Queued::Move(_) | Queued::Resume => {}
            }
            return Ok(());
        }
        let lane = pipe as usize;
        if self.cores[c].lanes[lane].queue.len() >= QUEUE {
            self.cores[c].held = Held::Room(lane);
            self.cores[c].pending = Some((lane, op));
            return Ok(());
        }
        self.enqueue(c, lane, op)
    }

    fn enqueue(&mut self, c: usize, lane: usize, op: Queued) -> Result<()> {
        let time = self.cores[c].time;
        self.cores[c].lanes[lane].queue.push_back(op);
        self.serve(c, lane, time)
    }

    /// The scalar unit waits until all pipes are done, and then, optionally, for all cores.
    fn drain(&mut self, c: usize, held: Held) {
        self.cores[c].held = held;
        self.drained(c);
    }

    fn drained(&mut self, c: usize) {
        let core = &mut self.cores[c];
        if !matches!(core.held, Held::Drain | Held::Cores) {
            return;
        }
        if core.lanes.iter().any(|l| l.working || !l.queue.is_empty()) {
            return;
        }
        let settled = core.lanes.iter().map(|l| l.settled).fold(core.time, f64::max);
        core.time = settled;
        if core.held == Held::Drain {
            self.wake(c, SCALAR, settled);
            self.cores[c].held = Held::Own;
            return;
        }
        self.waiting += 1;
        self.cores[c].held = Held::Own;
        // Cores that are done or have not begun a further block would wait for ever in hardware: a deadlock
        // here too.
        if self.waiting == self.cores.len() {
            self.waiting = 0;
            let last = self.cores.iter().map(|c| c.time).fold(0.0, f64::max) + CORES;
            for i in 0..self.cores.len() {
                self.wake(i, SCALAR, last);
            }
        }
    }

    /// Takes what a pipe can take at time `now`.
    fn serve(&mut self, c: usize, lane: usize, now: f64) -> Result<()> {
        loop {
            let core = &mut self.cores[c];
            let l = &mut core.lanes[lane];
            if l.working {
                return Ok(());
            }
            let Some(op) = l.queue.front() else {
                self.drained(c);
                return Ok(());
            };
            match op {
                Queued::Wait(flag) => {
                    let Some(set) = core.flags.get(flag).and_then(|f| f.front()).copied() else {
                        return Ok(());
                    };
                    if let Some(times) = core.flags.get_mut(flag) {
                        times.pop_front();
                    }
                    l.queue.pop_front();
                    l.working = true;
                    self.wake(c, lane, now.max(set) + 1.0);
                }
                Queued::Set(flag) => {
                    let (flag, time) = (*flag, now.max(l.settled) + 1.0);
                    core.flags.entry(flag).or_default().push_back(time);
                    l.queue.pop_front();
                    l.working = true;
                    // Setting takes a cycle; the flag comes when what was before it is done.
                    self.wake(c, lane, now + 1.0);
                    let to = flag.1 as usize;
                    if to != lane {
                        self.serve(c, to, now)?;
                    }
                }
                Queued::CrossSet(flag) => {
                    let (flag, time) = (*flag, now.max(l.settled));
                    l.queue.pop_front();
                    l.working = true;
                    self.wake(c, lane, now + 1.0);
                    self.tell(c, flag, time, now)?;
                }
                Queued::CrossWait(flag) => {
                    let flag = *flag;
                    let Some(set) = self.heard(c, flag) else { return Ok(()) };
                    let l = &mut self.cores[c].lanes[lane];
                    l.queue.pop_front();
                    l.working = true;
                    self.wake(c, lane, now.max(set) + 1.0);
                }
                Queued::Busy { busy, tail } => {
                    let end = now + *busy as f64;
                    l.busy += *busy as f64;
                    l.settled = l.settled.max(end + *tail as f64);
                    l.queue.pop_front();
                    l.working = true;
                    self.wake(c, lane, end);
                }
                Queued::Move(_) => {
                    self.begin(c, lane, now);
                }
                Queued::Resume => {
                    l.queue.pop_front();
                    core.held = Held::Own;
                    self.wake(c, SCALAR, now);
                }
            }
            self.room(c, lane, now);
        }
    }

    /// The part that a core runs, and its block.
    fn seat(&self, c: usize) -> Seat {
        let core = &self.cores[c];
        (core.part, core.block)
    }

    /// Cores that a flag of a core goes to in a mode, and that its own flags come from.
    fn peers(&self, c: usize, mode: u32) -> Vec<Seat> {
        let program = self.program;
        let each = |part: usize| sub_blocks(program, &program.parts[part]);
        let (own, block) = self.seat(c);
        let group = block / each(own);
        let members = |part: usize| (group * each(part)..(group + 1) * each(part)).map(move |b| (part, b));
        match mode {
            0 => (0..self.issue.blocks * each(own)).map(|b| (own, b)).collect(),
            1 => members(own).collect(),
            _ => (0..program.parts.len()).filter(|&part| part != own).flat_map(members).collect(),
        }
    }

    /// Sets a flag of other cores at a time, and lets those go on that wait for it.
    fn tell(&mut self, c: usize, flag: Cross, time: f64, now: f64) -> Result<()> {
        let from = self.seat(c);
        for to in self.peers(c, flag.0) {
            self.cross.entry((flag, to, from)).or_default().push_back(time + CROSS);
            if let Some(other) = (0..self.cores.len()).find(|&i| self.seat(i) == to) {
                (0..7).try_for_each(|lane| self.serve(other, lane, now))?;
            }
        }
        Ok(())
    }

    /// When a flag of other cores has come from all of them; counts it down.
    fn heard(&mut self, c: usize, flag: Cross) -> Option<f64> {
        let (to, peers) = (self.seat(c), self.peers(c, flag.0));
        let first = |from: &Seat| self.cross.get(&(flag, to, *from)).and_then(|q| q.front()).copied();
        let times = peers.iter().map(first).collect::<Option<Vec<f64>>>()?;
        for from in peers {
            self.cross.get_mut(&(flag, to, from)).and_then(VecDeque::pop_front);
        }
        Some(times.into_iter().fold(0.0, f64::max))
    }

    fn serve_all(&mut self, c: usize, now: f64) -> Result<()> {
        (1..7).try_for_each(|lane| self.serve(c, lane, now))
    }

    /// Begins the transfer at the head of a pipe's queue.
    fn begin(&mut self, c: usize, lane: usize, now: f64) {
        let Some(Queued::Move(t)) = self.cores[c].lanes[lane].queue.pop_front() else { return };
        let (mut bytes, mut missed, mut hbm) = (0, 0, 0);
        for &(address, length) in &t.runs {
            let traffic = self.l2.access(address, length, t.write, t.streamed);
            bytes += length;
            missed += traffic.missed;
            hbm += traffic.hbm;
        }
        (self.hbm, self.moved) = (self.hbm + hbm as f64, self.moved + bytes as f64);
        let l = &mut self.cores[c].lanes[lane];
        l.working = true;
        l.transfer = Some((now + t.port.least, now, tail(&t.port, bytes as f64)));
        if bytes == 0 {
            l.transfer = None;
            self.wake(c, lane, now);
            return;
        }
        let share = missed as f64 / bytes as f64;
        let port = 1.0 / (share / t.port.miss + (1.0 - share) / t.port.hit);
        self.memory.begin(now, c * 8 + lane, bytes as f64, port, hbm as f64 / bytes as f64);
    }

    /// The last byte of a transfer has come.
    fn arrived(&mut self, c: usize, lane: usize, now: f64) {
        let l = &mut self.cores[c].lanes[lane];
        let Some((least, begun, tail)) = l.transfer.take() else { return };
        let end = now.max(least);
        l.busy += end - begun;
        l.settled = l.settled.max(end + tail);
        self.wake(c, lane, end);
    }

    /// A pipe is free at time `now`.
    fn finished(&mut self, c: usize, lane: usize, now: f64) -> Result<()> {
        let l = &mut self.cores[c].lanes[lane];
        l.working = false;
        l.transfer = None;
        self.serve(c, lane, now)?;
        self.room(c, lane, now);
        Ok(())
    }

    /// Lets the scalar unit go on if it waits for a free slot in this queue.
    fn room(&mut self, c: usize, lane: usize, now: f64) {
        let core = &mut self.cores[c];
        if core.held == Held::Room(lane) && core.lanes[lane].queue.len() < QUEUE {
            core.held = Held::Own;
            self.wake(c, SCALAR, now);
        }
    }
}

/// Bytes a second of a chip's memory and of its L2, summed over all cores.
pub fn bandwidth(chip: &Chip) -> Rates {
    match chip.arch {
        // Memory as measured with 48 cores. L2 at the lower end of what asc-devkit's guide states as a peak,
        // 5 to 7 TB/s. Published copies that make fractals sustain 3.4 to 3.75 TB/s; `docs/ascend-timing.md`
        // has what times become then.
        Arch::A2 => [1.49e12, 5e12],
        // Bytes a cycle and core by its platform table: not calibrated.
        Arch::P310 => [17.0, 114.0].map(|rate| rate * f64::from(chip.cube_cores) * f64::from(chip.mhz) * 1e6),
    }
}

/// Cycles from a transfer's last byte at full rate to its end, where nothing else runs: the latency, less
/// what the first buffer gains on the steady rate.
fn tail(port: &Port, bytes: f64) -> f64 {
    let (buffer, rate) = port.burst;
    let first = bytes.min(buffer);
    (port.latency + first / rate - first / port.hit).max(0.0)
}
