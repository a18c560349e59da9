//! Order of accesses: vector clocks of every pipe, and for every byte who accessed it last.
//!
//! An access must be ordered after each earlier one that it conflicts with by flags, barriers or the scalar
//! unit's own waiting, not by luck. So a missing flag is found whatever order the simulator happened to run
//! in. Within a pipe instructions start in order, but are done in order only after a barrier or a flag's
//! round trip; the scalar unit alone sees its own accesses in order.

use super::Fault;
use crate::kernel::finding::Rule;
use crate::kernel::{Base, Pipe, Program, Space, Stmt, Touch, head};
use std::collections::HashMap;
use std::rc::Rc;

const PIPES: usize = Pipe::ALL.len();

/// Work that is known to be done: of each pipe of the own core, and of the others.
#[derive(Clone, Default)]
pub struct Clock {
    own: [u32; PIPES],
    others: Rc<Vec<u32>>,
}

impl Clock {
    /// Learns all that `other`, of the same core, knows.
    pub fn join(&mut self, other: &Clock) {
        for (a, b) in self.own.iter_mut().zip(other.own) {
            *a = (*a).max(b);
        }
        self.join_others(&other.others);
    }

    fn join_others(&mut self, others: &Rc<Vec<u32>>) {
        if others.is_empty() || Rc::ptr_eq(&self.others, others) {
            return;
        }
        let mine = Rc::make_mut(&mut self.others);
        if mine.len() < others.len() {
            mine.resize(others.len(), 0);
        }
        for (a, b) in mine.iter_mut().zip(others.iter()) {
            *a = (*a).max(*b);
        }
    }

    /// Learns what the clock of another core, `core` of `cores`, knows.
    pub fn join_core(&mut self, other: &Clock, core: usize, cores: usize) {
        self.join_others(&other.others);
        let mine = Rc::make_mut(&mut self.others);
        mine.resize(cores * PIPES, 0);
        for (a, b) in mine[core * PIPES..].iter_mut().zip(other.own) {
            *a = (*a).max(b);
        }
    }

    fn knows(&self, me: usize, who: Agent) -> bool {
        match who.core as usize == me {
            true => self.own[who.pipe as usize] >= who.time,
            false => {
                let at = who.core as usize * PIPES + who.pipe as usize;
                self.others.get(at).is_some_and(|&t| t >= who.time)
            }
        }
    }
}

/// An access that was made: by which pipe of which core, and its how many-eth instruction. Time 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Agent {
    core: u32,
    pipe: u8,
    atomic: bool,
    time: u32,
}

/// Last accesses of a stretch of a core's memory.
#[derive(Clone, Copy, Default)]
struct Cell {
    write: (u8, u32),
    reads: [u32; PIPES],
}

/// Last accesses of a byte of GM; of several readers the others are elsewhere.
#[derive(Clone, Copy, Default)]
struct GlobalCell {
    write: Agent,
    read: Agent,
}

/// Bytes of a core's memory that share a cell.
const GRAIN: usize = 4;
/// Bytes of GM that share a page of cells.
const PAGE: usize = 1024;

/// Order within one core.
pub struct CoreOrder<'a> {
    /// Number of the core among all of the launch.
    core: usize,
    clocks: [Clock; PIPES],
    times: [u32; PIPES],
    cells: [Vec<Cell>; Space::ALL.len()],
    /// Statement of each instruction of each pipe.
    log: [Vec<&'a Stmt>; PIPES],
}

/// Order among cores: accesses to GM.
#[derive(Default)]
pub struct GlobalOrder {
    pages: HashMap<u64, Box<[GlobalCell; PAGE]>>,
    readers: HashMap<u64, Vec<Agent>>,
    /// For each parameter, whether someone writes what it points to.
    tracked: Vec<bool>,
    /// Address of each parameter.
    params: Vec<u64>,
}

impl<'a> CoreOrder<'a> {
    /// A core that has done nothing. Accesses are followed in checked runs alone.
    pub fn new(program: &Program, core: usize, checked: bool) -> CoreOrder<'a> {
        let cells = std::array::from_fn(|i| {
            let space = Space::ALL[i];
            let bytes = match space {
                Space::Gm => 0,
                _ if !checked => 0,
                _ => program.peak(space).min(program.arch.capacity(space)),
            };
            vec![Cell::default(); (bytes as usize).div_ceil(GRAIN)]
        });
        CoreOrder {
            core,
            clocks: Default::default(),
            times: [0; PIPES],
            cells,
            log: std::array::from_fn(|_| Vec::new()),
        }
    }

    /// The same memories for another core.
    pub fn reset(&mut self, core: usize) {
        self.core = core;
        self.clocks = Default::default();
        self.times = [0; PIPES];
        self.cells.iter_mut().for_each(|c| c.fill(Cell::default()));
        self.log.iter_mut().for_each(Vec::clear);
    }

    /// Number of the core.
    pub const fn core(&self) -> usize {
        self.core
    }

    /// Work that the scalar unit knows to be done: goes along with the instructions that it issues.
    pub fn issue_clock(&self) -> Clock {
        self.clocks[Pipe::S as usize].clone()
    }

    /// Begins an instruction on a pipe.
    pub fn begin(&mut self, pipe: Pipe, stmt: &'a Stmt, issued: Option<&Clock>) {
        let p = pipe as usize;
        if let Some(clock) = issued {
            self.clocks[p].join(clock);
        }
        self.times[p] += 1;
        self.log[p].push(stmt);
    }

    /// All that a pipe was given before is done for it.
    pub fn barrier(&mut self, pipe: Pipe) {
        self.clocks[pipe as usize].own[pipe as usize] = self.times[pipe as usize];
    }

    /// All pipes are done, and the scalar unit knows.
    pub fn barrier_all(&mut self) {
        for pipe in Pipe::ALL {
            self.barrier(*pipe);
            let clock = self.clocks[*pipe as usize].clone();
            self.clocks[Pipe::S as usize].join(&clock);
        }
    }

    /// Work that is done when a pipe sets a flag now.
    pub fn message(&self, pipe: Pipe) -> Clock {
        let mut clock = self.clocks[pipe as usize].clone();
        clock.own[pipe as usize] = self.times[pipe as usize];
        clock
    }

    /// A pipe learns what came with a flag.
    pub fn learn(&mut self, pipe: Pipe, message: &Clock) {
        self.clocks[pipe as usize].join(message);
    }

    /// A pipe learns what came from another core.
    pub fn learn_core(&mut self, pipe: Pipe, message: &Clock, core: usize, cores: usize) {
        self.clocks[pipe as usize].join_core(message, core, cores);
    }

    /// Number of instructions that a pipe has begun.
    pub const fn time(&self, pipe: Pipe) -> u32 {
        self.times[pipe as usize]
    }

    /// True if `pipe` knows that `other` has done so many.
    pub const fn knows(&self, pipe: Pipe, other: Pipe, time: u32) -> bool {
        self.clocks[pipe as usize].own[other as usize] >= time
    }

    /// Notes an access to the core's own memory; `lenient` where accesses of the same pipe need no order.
    pub fn access(
        &mut self,
        program: &Program,
        pipe: Pipe,
        touch: &Touch,
        start: u64,
        lenient: bool,
    ) -> Result<(), Fault> {
        let space = program.space(touch.base) as usize;
        let (me, now) = (pipe as usize, self.times[pipe as usize]);
        let clock = &self.clocks[me];
        let same = |other: usize| other == me && (lenient || pipe == Pipe::S);
        let mut conflict = None;
        for run in touch.runs.starts() {
            let from = (start as i64 + run).max(0) as usize;
            let end = (from + touch.runs.len as usize).div_ceil(GRAIN).min(self.cells[space].len());
            for cell in &mut self.cells[space][(from / GRAIN).min(end)..end] {
                let (writer, time) = (cell.write.0 as usize, cell.write.1);
                let itself = |other: usize, time: u32| other == me && time == now;
                if time > clock.own[writer] && !itself(writer, time) && !same(writer) {
                    conflict = conflict.or(Some((writer, time, "written")));
                }
                if touch.write {
                    for (reader, &time) in cell.reads.iter().enumerate() {
                        if time > clock.own[reader] && !itself(reader, time) && !same(reader) {
                            conflict = conflict.or(Some((reader, time, "read")));
                        }
                    }
                    cell.write = (me as u8, now);
                } else {
                    cell.reads[me] = now;
                }
            }
        }
        match conflict {
            None => Ok(()),
            Some((other, time, what)) => Err(self.hazard(program, pipe, touch, other, time, what)),
        }
    }

    fn hazard(
        &self,
        program: &Program,
        pipe: Pipe,
        touch: &Touch,
        other: usize,
        time: u32,
        what: &str,
    ) -> Fault {
        let other_pipe = Pipe::ALL[other];
        let statement =
            self.log[other].get((time as usize).wrapping_sub(1)).map_or(String::new(), |s| head(program, s));
        let verb = if touch.write { "writes" } else { "reads" };
        let missing = match other_pipe == pipe {
            true => format!("a barrier of pipe {pipe}"),
            false => format!("a flag from {other_pipe} to {pipe}"),
        };
        let message = format!(
            "pipe {pipe} {verb} {} that pipe {other_pipe} has {what} in `{statement}`, without {missing} between them",
            touch.operand
        );
        Fault::new(Rule::Hazard, message).of(program.base_name(touch.base))
    }
}

impl GlobalOrder {
    /// Nothing is accessed yet. For each parameter: whether someone writes what it points to, and where it
    /// begins.
    pub fn new(tracked: Vec<bool>, params: Vec<u64>) -> GlobalOrder {
        GlobalOrder { tracked, params, ..GlobalOrder::default() }
    }

    /// Notes an access to GM.
    pub fn access(
        &mut self,
        core: &CoreOrder,
        program: &Program,
        pipe: Pipe,
        touch: &Touch,
        atomic: bool,
    ) -> Result<(), Fault> {
        let Base::Param(param) = touch.base else { return Ok(()) };
        if !self.tracked.get(param.0 as usize).copied().unwrap_or(false) {
            return Ok(());
        }
        let start = self.params[param.0 as usize] as i64;
        let me = Agent { core: core.core as u32, pipe: pipe as u8, atomic, time: core.time(pipe) };
        let clock = &core.clocks[pipe as usize];
        let ordered = |who: Agent| {
            who.time == 0
                || clock.knows(core.core, who)
                || (who.core, who.pipe, who.time) == (me.core, me.pipe, me.time)
                || (who.core, who.pipe) == (me.core, me.pipe) && pipe == Pipe::S
        };
        let mut conflict = None;
        for run in touch.runs.starts() {
            let (from, end) = ((start + run).max(0) as u64, (start + run).max(0) as u64 + touch.runs.len);
            let mut byte = from;
            while byte < end {
                let page = self.pages.entry(byte / PAGE as u64);
                let cells = page.or_insert_with(|| Box::new([GlobalCell::default(); PAGE]));
                let stop = end.min((byte / PAGE as u64 + 1) * PAGE as u64);
                for b in byte..stop {
                    let cell = &mut cells[(b % PAGE as u64) as usize];
                    if !(ordered(cell.write) || atomic && cell.write.atomic) {
                        conflict = conflict.or(Some((cell.write, "written")));
                    }
                    if !touch.write {
                        if !ordered(cell.read) {
                            self.readers.entry(b).or_default().push(cell.read);
                        }
                        cell.read = me;
                        continue;
                    }
                    if !ordered(cell.read) {
                        conflict = conflict.or(Some((cell.read, "read")));
                    }
                    if !self.readers.is_empty()
                        && let Some(readers) = self.readers.remove(&b)
                        && let Some(who) = readers.into_iter().find(|who| !ordered(*who))
                    {
                        conflict = conflict.or(Some((who, "read")));
                    }
                    cell.write = me;
                    cell.read = Agent::default();
                }
                byte = stop;
            }
        }
        let Some((who, what)) = conflict else { return Ok(()) };
        if who.core as usize == core.core {
            return Err(core.hazard(program, pipe, touch, who.pipe as usize, who.time, what));
        }
        let verb = if touch.write { "writes" } else { "reads" };
        let message = format!(
            "the core {verb} {} that another core has {what}, with nothing that orders them; give each core bytes of \
             its own, or meet in between",
            touch.operand
        );
        Err(Fault::new(Rule::Race, message).of(program.base_name(touch.base)))
    }
}
