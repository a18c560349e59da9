//! One core: its scalar unit, its pipes with what they were given, its flags and memories.

use super::Fault;
use super::cache::Caches;
use super::issue::{Issued, Issuer};
use super::memory::{Global, Local, Reach, Spots};
use super::numbers::{read_int, read_number, write_int, write_number};
use super::order::{Clock, CoreOrder, GlobalOrder};
use crate::kernel::finding::{Finding, Rule};
use crate::kernel::*;
use std::collections::{HashMap, VecDeque};

/// Names of pipes for a flag.
type Flag = (Pipe, Pipe, i64);

/// An instruction that a pipe was given.
struct Task<'a> {
    issued: Issued<'a>,
    /// The scalar unit's knowledge at its issue; `None` in fast runs.
    clock: Option<Clock>,
}

/// State of a flag.
#[derive(Default)]
struct FlagState {
    /// Work that was done when it was set; `None` while it is not.
    set: Option<Clock>,
    /// When it was last waited for, on the pipe that waits.
    waited: u32,
}

/// State that all cores share.
pub struct World<'x, 'm> {
    /// The program.
    pub program: &'x Program,
    /// GM.
    pub global: Global<'m>,
    /// Places of parameters and buffers.
    pub spots: Spots,
    /// Order of accesses to GM.
    pub order: GlobalOrder,
    /// Caches of the scalar units.
    pub caches: Caches,
    /// Flags between cores: by mode, number, waiting core and setting core, what was done at each.
    pub cross: HashMap<(u32, i64, usize, usize), VecDeque<Clock>>,
    /// True if everything is checked.
    pub checked: bool,
    /// Findings that do not end the run.
    pub findings: Vec<Finding>,
    /// Instructions so far.
    pub instructions: u64,
    /// For each block what its scalar unit has loaded, in order; `None` where nobody asks.
    pub loads: Option<Vec<Vec<Value>>>,
    /// Number of cores in the launch.
    pub cores: usize,
}

/// Who a core's flags go to and come from.
#[derive(Clone, Default)]
pub struct Peers {
    /// Cores of its kind, itself among them.
    pub kind: Vec<usize>,
    /// Cores of its kind in its group, itself among them.
    pub pair: Vec<usize>,
    /// Cores of the other kind in its group.
    pub other: Vec<usize>,
}

/// States of the scalar unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It goes on.
    Running,
    /// It waits for a flag or for its pipes.
    Waiting,
    /// It waits for all cores.
    Meeting,
    /// It has no more statements; pipes may have.
    Ended,
}

/// One core that runs a block.
pub struct Core<'a> {
    issuer: Issuer<'a>,
    unit: Unit,
    queues: [VecDeque<Task<'a>>; Pipe::ALL.len()],
    /// Instructions in all queues.
    queued: usize,
    flags: HashMap<Flag, FlagState>,
    /// The same in fast runs: by pipes, a bit for each number that is set.
    set: [[u64; Pipe::ALL.len()]; Pipe::ALL.len()],
    /// The instruction at which the scalar unit waits.
    held: Option<Issued<'a>>,
    /// State of the scalar unit.
    pub state: State,
    /// Order of its accesses.
    pub order: CoreOrder<'a>,
    local: Local,
    peers: Peers,
}

impl<'a> Core<'a> {
    /// A core at the beginning of a block.
    pub fn new(issuer: Issuer<'a>, unit: Unit, order: CoreOrder<'a>, local: Local, peers: Peers) -> Core<'a> {
        Core {
            issuer,
            unit,
            queues: std::array::from_fn(|_| VecDeque::new()),
            queued: 0,
            flags: HashMap::new(),
            set: Default::default(),
            held: None,
            state: State::Running,
            order,
            local,
            peers,
        }
    }

    /// Parts that another block can use again.
    pub fn into_parts(self) -> (CoreOrder<'a>, Local) {
        (self.order, self.local)
    }

    fn id(&self) -> usize {
        self.order.core()
    }

    /// True if all is done.
    pub fn done(&self) -> bool {
        self.state == State::Ended && self.idle()
    }

    /// True if pipes have nothing to do.
    pub const fn idle(&self) -> bool {
        self.queued == 0
    }

    fn fail(&self, program: &Program, stmt: &Stmt, fault: Fault) -> Box<Finding> {
        fault.finding(program, stmt, self.issuer.place().block)
    }

    /// Lets the scalar unit do one instruction; says whether it did.
    ///
    /// # Errors
    /// The finding that ends the run.
    pub fn scalar_step(&mut self, world: &mut World) -> Result<bool, Box<Finding>> {
        if matches!(self.state, State::Ended | State::Meeting) {
            return Ok(false);
        }
        let issued = match self.held.take() {
            Some(issued) => issued,
            None => match self.issuer.next()? {
                Some(issued) => {
                    world.instructions += 1;
                    if world.checked {
                        check(world.program, self.unit, &issued.instr).map_err(|b| {
                            let fault = Fault::new(b.rule, b.message).of(&b.buffer);
                            self.fail(world.program, issued.stmt, fault)
                        })?;
                    }
                    issued
                }
                None => {
                    self.state = State::Ended;
                    return Ok(true);
                }
            },
        };
        self.state = State::Running;
        match &*issued.instr {
            Instr::Barrier(Barrier::All) => {
                if !self.idle() {
                    return Ok(self.hold(issued, State::Waiting));
                }
                self.order.barrier_all();
                Ok(true)
            }
            Instr::Barrier(Barrier::Cores) | Instr::SyncSoft(_) => {
                if !self.idle() {
                    return Ok(self.hold(issued, State::Waiting));
                }
                self.order.barrier_all();
                self.arrive(world, &issued)?;
                self.hold(issued, State::Meeting);
                Ok(true)
            }
            Instr::WaitFlag(x) if x.to == Pipe::S && !self.is_set(world, (x.from, x.to, x.id.as_int())) => {
                Ok(self.hold(issued, State::Waiting))
            }
            instr => {
                let pipe = instr.pipe(world.program).unwrap_or(Pipe::S);
                // Whatever a pipe can do at once, it does at once in a fast run.
                let at_once = pipe == Pipe::S
                    || !world.checked && self.queues[pipe as usize].is_empty() && self.can(world, instr);
                if at_once {
                    self.execute(world, pipe, &Task { issued, clock: None })?;
                    return Ok(true);
                }
                let clock = world.checked.then(|| self.order.issue_clock());
                self.queues[pipe as usize].push_back(Task { issued, clock });
                self.queued += 1;
                Ok(true)
            }
        }
    }

    fn hold(&mut self, issued: Issued<'a>, state: State) -> bool {
        self.held = Some(issued);
        self.state = state;
        false
    }

    /// This core's part in a meeting of all cores.
    fn arrive(&mut self, world: &mut World, issued: &Issued<'a>) -> Result<(), Box<Finding>> {
        let Instr::SyncSoft(x) = &*issued.instr else { return Ok(()) };
        let fail = |core: &Self, rule, message: String| {
            Err(core.fail(
                world.program,
                issued.stmt,
                Fault::new(rule, message).of(world.program.base_name(x.gm.base)),
            ))
        };
        let cores = x.cores.as_int();
        if cores != self.peers.kind.len() as i64 {
            let message = format!("{cores} cores are to meet, {} run", self.peers.kind.len());
            return fail(self, Rule::Deadlock, message);
        }
        let at = x.gm.byte() + i64::from(self.issuer.place().block) * 32;
        let reach = self.reach(world);
        let room = reach.read(x.gm.base, x.gm.byte(), cores as usize * 32).and(reach.read(
            x.ub.base,
            x.ub.byte(),
            cores as usize * 32,
        ));
        if let Err(fault) = room {
            return Err(self.fail(world.program, issued.stmt, fault));
        }
        let counter = reach.read(x.gm.base, at, 4).map_or(0, |b| read_int(Elem::I32, b));
        let known = reach.defined(x.gm.base, at, 4).is_none_or(|d| d.iter().all(|&d| d == 1));
        if world.checked && !known {
            return fail(self, Rule::Uninitialised, "the counters are not zero before the launch".into());
        }
        let mut reach = self.reach(world);
        if let Ok(b) = reach.write(x.gm.base, at, 4) {
            write_int(Elem::I32, counter + 1, b);
        }
        Ok(())
    }

    /// Goes on after a barrier of all cores, whose clocks are given.
    pub fn leave(&mut self, clocks: &[(usize, Clock)], cores: usize) {
        let me = self.id();
        for (core, clock) in clocks.iter().filter(|(core, _)| *core != me) {
            self.order.learn_core(Pipe::S, clock, *core, cores);
        }
        self.held = None;
        self.state = State::Running;
    }

    fn is_set(&self, world: &World, flag: Flag) -> bool {
        match world.checked {
            true => self.flags.get(&flag).is_some_and(|f| f.set.is_some()),
            false => self.set[flag.0 as usize][flag.1 as usize] & bit(flag.2) != 0,
        }
    }

    /// True if a pipe could do its next instruction now.
    pub fn ready(&self, world: &World, pipe: Pipe) -> bool {
        self.queues[pipe as usize].front().is_some_and(|task| self.can(world, &task.issued.instr))
    }

    /// True if nothing that an instruction waits for is missing.
    fn can(&self, world: &World, instr: &Instr<Value>) -> bool {
        match instr {
            Instr::WaitFlag(x) => self.is_set(world, (x.from, x.to, x.id.as_int())),
            Instr::CrossWait(x) => {
                let sources = self.sources(x.mode);
                let waiting = |from: &usize| world.cross.get(&(x.mode, x.id.as_int(), self.id(), *from));
                sources.iter().all(|from| waiting(from).is_some_and(|q| !q.is_empty()))
            }
            _ => true,
        }
    }

    fn sources(&self, mode: u32) -> &[usize] {
        match mode {
            0 => &self.peers.kind,
            1 => &self.peers.pair,
            _ => &self.peers.other,
        }
    }

    /// Lets a pipe do its next instruction, which is ready.
    ///
    /// # Errors
    /// The finding that ends the run.
    pub fn pipe_step(&mut self, world: &mut World, pipe: Pipe) -> Result<(), Box<Finding>> {
        match self.queues[pipe as usize].pop_front() {
            Some(task) => {
                self.queued -= 1;
                self.execute(world, pipe, &task)
            }
            None => Ok(()),
        }
    }

    fn reach<'y, 'x, 'm>(&'y mut self, world: &'y mut World<'x, 'm>) -> Reach<'y, 'm>
    where
        'x: 'y,
    {
        Reach {
            program: world.program,
            local: &mut self.local,
            global: &mut world.global,
            spots: &world.spots,
            checked: world.checked,
        }
    }

    fn execute(&mut self, world: &mut World, pipe: Pipe, task: &Task<'a>) -> Result<(), Box<Finding>> {
        let stmt = task.issued.stmt;
        let instr = &*task.issued.instr;
        if world.checked {
            self.order.begin(pipe, stmt, task.clock.as_ref());
            self.note_accesses(world, pipe, instr, stmt)?;
        }
        let program = world.program;
        let done = match instr {
            Instr::SetFlag(x) => self.set_flag(world.checked, (x.from, x.to, x.id.as_int())),
            Instr::WaitFlag(x) => {
                self.wait_flag(world.checked, (x.from, x.to, x.id.as_int()));
                Ok(())
            }
            Instr::CrossSet(x) => self.cross_set(world, pipe, x.mode, x.id.as_int()),
            Instr::CrossWait(x) => {
                self.cross_wait(world, pipe, x.mode, x.id.as_int());
                Ok(())
            }
            Instr::Barrier(_) => {
                self.order.barrier(pipe);
                Ok(())
            }
            Instr::Load(x) => self.load(world, x),
            Instr::Store(x) => self.store(world, x),
            Instr::CacheFlush(x) => {
                let start = world.global.params[param_index(x.line.base)];
                world.caches.flush(self.id(), start.saturating_add_signed(x.line.byte()));
                Ok(())
            }
            Instr::Mmad(x) => self.reach(world).mmad(x),
            Instr::DataCopy(_)
            | Instr::DataCopyPad(_)
            | Instr::CopyNdToNz(_)
            | Instr::LoadData2d(_)
            | Instr::LoadDataTransposed(_)
            | Instr::LoadData3d(_)
            | Instr::InitConst(_)
            | Instr::Fixpipe(_)
            | Instr::CopyL0c(_) => self.reach(world).transfer(instr),
            _ => self.reach(world).vector(instr),
        };
        done.map_err(|fault| self.fail(program, stmt, fault))
    }

    /// Checks bounds, overlap of operands and order of all that an instruction accesses.
    fn note_accesses(
        &mut self,
        world: &mut World,
        pipe: Pipe,
        instr: &Instr<Value>,
        stmt: &'a Stmt,
    ) -> Result<(), Box<Finding>> {
        let program = world.program;
        let touches = footprint(instr, &|base| program.space(base));
        for touch in &touches {
            let size = program.size(touch.base);
            let (from, to) = touch.runs.span();
            if from < 0 || to as u64 > size {
                let message = format!("{} covers bytes {from} to {to} of {size}", touch.operand);
                let fault = Fault::new(Rule::Bounds, message).of(program.base_name(touch.base));
                return Err(self.fail(program, stmt, fault));
            }
        }
        if let Err(fault) = overlaps(program, instr, &touches) {
            return Err(self.fail(program, stmt, fault));
        }
        let atomic = match instr {
            Instr::DataCopy(x) => x.atomic.is_some(),
            Instr::DataCopyPad(x) => x.atomic.is_some(),
            Instr::Fixpipe(x) => x.atomic.is_some(),
            _ => false,
        };
        // Large products wait for each other's results by themselves.
        let lenient = match instr {
            Instr::Mmad(x) => {
                let [m, n] = [&x.m, &x.n].map(|v| v.as_int().max(0) as u64 / 16);
                m * n >= 10
            }
            _ => false,
        };
        for touch in &touches {
            let result = match touch.base {
                Base::Param(p) => {
                    let start = world.global.params[p.0 as usize];
                    let cached = touch.runs.starts().try_for_each(|run| {
                        let from = start.saturating_add_signed(run);
                        match pipe {
                            Pipe::S => {
                                world.caches.scalar(self.order.core(), from, touch.runs.len, touch.write)
                            }
                            _ => world.caches.copy(from, touch.runs.len, touch.write),
                        }
                    });
                    cached.and(world.order.access(&self.order, program, pipe, touch, atomic))
                }
                Base::Buffer(b) => {
                    let start = program.buffers[b.0 as usize].address.unwrap_or(0);
                    self.order.access(program, pipe, touch, start, lenient && touch.operand == "c")
                }
            };
            if let Err(fault) = result {
                let finding = *self.fail(program, stmt, fault);
                let known = world.findings.iter().any(|f| {
                    (f.rule, &f.statement, &f.buffer) == (finding.rule, &finding.statement, &finding.buffer)
                });
                if !known && world.findings.len() < 20 {
                    world.findings.push(finding);
                }
            }
        }
        Ok(())
    }

    fn set_flag(&mut self, checked: bool, flag: Flag) -> Result<(), Fault> {
        let (from, to, id) = flag;
        if !checked {
            self.set[from as usize][to as usize] |= bit(id);
            return Ok(());
        }
        let message = self.order.message(from);
        let state = self.flags.entry(flag).or_default();
        let name = || format!("flag {id} from {from} to {to}");
        if state.set.is_some() {
            let message = format!("{} is set twice without a wait between", name());
            return Err(Fault::new(Rule::Flag, message));
        }
        if !self.order.knows(from, to, state.waited) {
            let message = format!("{} may be set before {to} has waited for it the last time", name());
            return Err(Fault::new(Rule::Flag, format!("{message}; let {from} wait for {to} first")));
        }
        state.set = Some(message);
        Ok(())
    }

    fn wait_flag(&mut self, checked: bool, flag: Flag) {
        if !checked {
            self.set[flag.0 as usize][flag.1 as usize] &= !bit(flag.2);
            return;
        }
        let time = self.order.time(flag.1);
        let state = self.flags.entry(flag).or_default();
        state.waited = time;
        if let Some(message) = state.set.take() {
            self.order.learn(flag.1, &message);
        }
    }

    fn cross_set(&mut self, world: &mut World, pipe: Pipe, mode: u32, id: i64) -> Result<(), Fault> {
        let message = self.order.message(pipe);
        for &to in self.sources(mode) {
            let queue = world.cross.entry((mode, id, to, self.id())).or_default();
            queue.push_back(message.clone());
            if queue.len() > 15 {
                return Err(Fault::new(Rule::Flag, format!("flag {id} between cores counts beyond 15")));
            }
        }
        Ok(())
    }

    fn cross_wait(&mut self, world: &mut World, pipe: Pipe, mode: u32, id: i64) {
        for from in self.sources(mode).to_vec() {
            let queue = world.cross.get_mut(&(mode, id, self.id(), from));
            if let Some(message) = queue.and_then(VecDeque::pop_front) {
                match from == self.id() {
                    true => self.order.learn(pipe, &message),
                    false => self.order.learn_core(pipe, &message, from, world.cores),
                }
            }
        }
    }

    fn load(&mut self, world: &mut World, x: &Load<Value>) -> Result<(), Fault> {
        let size = x.src.elem.size() as usize;
        let reach = self.reach(world);
        reach.must_be_defined("src", x.src.base, x.src.byte(), size)?;
        let bytes = reach.read(x.src.base, x.src.byte(), size)?;
        let value = match x.src.elem.is_float() {
            true => Value::Float(read_number(x.src.elem, bytes) as f32),
            false => Value::Int(read_int(x.src.elem, bytes)),
        };
        if let Some(loads) = &mut world.loads {
            let block = self.issuer.place().block as usize;
            loads.resize_with(loads.len().max(block + 1), Vec::new);
            loads[block].push(value);
        }
        self.issuer.set(x.into, value);
        Ok(())
    }

    fn store(&mut self, world: &mut World, x: &Store<Value>) -> Result<(), Fault> {
        let (elem, size) = (x.dst.elem, x.dst.elem.size() as usize);
        let mut reach = self.reach(world);
        let to = reach.write(x.dst.base, x.dst.byte(), size)?;
        match elem.is_float() {
            true => write_number(elem, x.value.to_f64(), Round::Rint, to),
            false => write_int(elem, x.value.as_int(), to),
        }
        reach.define(x.dst.base, x.dst.byte(), size, true);
        Ok(())
    }

    /// Violations of a core that is done: flags that are left.
    ///
    /// # Errors
    /// `Flag`, or `Hazard` for scalars that GM does not have.
    pub fn end(&self, world: &mut World) -> Result<(), Box<Finding>> {
        let block = self.issuer.place().block;
        let mut left: Vec<_> =
            self.flags.iter().filter(|(_, f)| f.set.is_some()).map(|(flag, _)| *flag).collect();
        left.sort_unstable();
        if let Some((from, to, id)) = left.first() {
            let message = format!(
                "flag {id} from {from} to {to} is set and never waited for: the next kernel finds it"
            );
            return Err(Finding::new(Rule::Flag, world.program, message).in_block(block));
        }
        world
            .caches
            .end(self.id())
            .map_err(|fault| Finding::new(fault.rule, world.program, fault.message).in_block(block))
    }

    /// Why nothing goes on here, if something does not: the statement that waits.
    pub fn stuck(&self, program: &Program) -> Option<Box<Finding>> {
        let block = self.issuer.place().block;
        let name = |issued: &Issued, rule, message: &str| {
            Finding::new(rule, program, message)
                .at(program, &head(program, issued.stmt), issued.stmt.source)
                .in_block(block)
        };
        if let Some(issued) = self.held.as_ref().filter(|i| matches!(*i.instr, Instr::WaitFlag(_))) {
            return Some(name(issued, Rule::Flag, "the core waits for a flag that nobody sets"));
        }
        if self.state == State::Meeting {
            let issued = self.held.as_ref()?;
            let message = "the core waits for cores that never come; blocks beyond the chip's cores start only when \
                           others have ended";
            return Some(name(issued, Rule::Deadlock, message));
        }
        let task = self.queues.iter().find_map(VecDeque::front)?;
        Some(match *task.issued.instr {
            Instr::CrossWait(_) => {
                name(&task.issued, Rule::Deadlock, "the pipe waits for other cores for ever")
            }
            _ => name(&task.issued, Rule::Flag, "the pipe waits for a flag that nobody sets"),
        })
    }
}

/// The bit of a flag's number; numbers that no chip has share one.
fn bit(id: i64) -> u64 {
    1 << id.clamp(0, 63)
}

fn param_index(base: Base) -> usize {
    match base {
        Base::Param(p) => p.0 as usize,
        Base::Buffer(_) => 0,
    }
}

/// Overlap of what an instruction writes with what it reads: only operands that are the same to the byte may.
fn overlaps(program: &Program, instr: &Instr<Value>, touches: &[Touch]) -> Result<(), Fault> {
    let vectors: Vec<(&str, &Vector<Value>)> = match instr {
        Instr::UnaryOp(x) => vec![("dst", &x.dst), ("src", &x.src)],
        Instr::BinaryOp(x) => vec![("dst", &x.dst), ("src0", &x.src0), ("src1", &x.src1)],
        Instr::ScaledOp(x) => vec![("dst", &x.dst), ("src", &x.src)],
        Instr::Cast(x) => vec![("dst", &x.dst), ("src", &x.src)],
        Instr::Select(x) => vec![("dst", &x.dst), ("src0", &x.src0), ("src1", &x.src1)],
        Instr::SelectScalar(x) => vec![("dst", &x.dst), ("src", &x.src)],
        _ => Vec::new(),
    };
    let place = |v: &Vector<Value>| {
        let start = match v.view.base {
            Base::Buffer(b) => program.buffers[b.0 as usize].address.unwrap_or(0) as i64,
            Base::Param(_) => 0,
        };
        (start + v.view.byte(), v.block, v.repeat, v.view.elem.size())
    };
    let same = |a: &str, b: &str| {
        let find = |name: &str| vectors.iter().find(|(n, _)| *n == name).map(|(_, v)| place(v));
        a == b || (find(a).is_some() && find(a) == find(b))
    };
    for (i, write) in touches.iter().enumerate().filter(|(_, t)| t.write) {
        for (j, other) in touches.iter().enumerate() {
            let both_written_once = other.write && j <= i;
            if i == j || both_written_once || other.base != write.base || same(write.operand, other.operand) {
                continue;
            }
            if write.runs.meets(&other.runs) {
                let message =
                    format!("{} and {} overlap without being the same", write.operand, other.operand);
                return Err(Fault::new(Rule::Overlap, message).of(program.base_name(write.base)));
            }
        }
    }
    // A result whose repeats or blocks meet each other.
    if let Some((_, dst)) = vectors.first() {
        let folds = touches.iter().filter(|t| t.write && t.operand == "dst").any(|t| {
            let r = t.runs;
            (r.count[1] > 1 && r.stride[1] < r.len) || (r.count[0] > 1 && r.stride[0] == 0)
        });
        if folds {
            let message =
                format!("repeats of dst meet each other: strides are {} and {}", dst.block, dst.repeat);
            return Err(Fault::new(Rule::Overlap, message).of(program.base_name(dst.view.base)));
        }
    }
    Ok(())
}
