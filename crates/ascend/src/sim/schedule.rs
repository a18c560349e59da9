//! Launches: assignment of blocks to cores, and the order in which cores go on.

use super::core::{Core, Peers, State, World};
use super::issue::{Code, Issuer, Place, sub_blocks};
use super::memory::{Bytes, Global, Local, Region, Spots, holder};
use super::order::{Clock, CoreOrder, GlobalOrder};
use super::{Arg, Mode, Report};
use crate::chip::{Arch, Chip};
use crate::kernel::finding::{Finding, Rule};
use crate::kernel::*;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// A kernel, and how it is launched.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    /// The kernel.
    pub program: &'a Program,
    /// The chip; of the program's architecture.
    pub chip: &'a Chip,
    /// Blocks: of cores, or of groups of a cube core and two vector cores.
    pub blocks: u32,
    /// Arguments, one for each parameter.
    pub args: &'a [Arg],
    /// Mode of the run.
    pub mode: Mode,
    /// Steps that each core's scalar unit may take before a loop is taken for endless.
    pub fuel: u64,
}

impl<'a> Launch<'a> {
    /// A launch with as much fuel as any kernel needs.
    pub const fn new(
        program: &'a Program,
        chip: &'a Chip,
        blocks: u32,
        args: &'a [Arg],
        mode: Mode,
    ) -> Launch<'a> {
        Launch { program, chip, blocks, args, mode, fuel: 1 << 32 }
    }
}

/// Runs a kernel over `memory`, which stands for GM from address 0 on.
///
/// # Errors
/// Findings, the first thing first. The memory is then as the run left it.
pub fn launch(launch: &Launch, memory: &mut [u8]) -> Result<Report, Vec<Finding>> {
    verify(launch.program)?;
    launch_verified(launch, vec![Region { start: 0, bytes: Bytes::Write(memory) }], 1)
}

/// Runs a kernel that [`verify`] has passed over pieces of GM that do not overlap. Each pointer's memory is
/// in one of them. A fast run divides blocks that do not wait for each other among threads, to the same bits.
///
/// # Errors
/// Findings, the first thing first. The memory is then as the run left it.
pub fn launch_verified(
    launch: &Launch,
    mut regions: Vec<Region>,
    threads: usize,
) -> Result<Report, Vec<Finding>> {
    let one = |finding: Box<Finding>| vec![*finding];
    let (params, holders) = arguments(launch, &regions).map_err(one)?;
    let codes: Vec<Code> = launch.program.parts.iter().map(Code::new).collect();
    let values: Vec<Option<Value>> = launch.args.iter().map(|a| a.value()).collect();
    let threads = if divides(launch, &regions) { threads.clamp(1, launch.blocks as usize) } else { 1 };
    let run =
        |regions, blocks, note| run(launch, &codes, &values, regions, (&params, &holders), blocks, note);
    if threads == 1 {
        return run(regions, 0..launch.blocks, Note::Nothing).map(|noted| noted.report);
    }
    // This thread works on the memory itself; each of the others on a copy of what the kernel writes, and
    // notes what it wrote there: no two blocks write the same bytes.
    let mut copies: Vec<Vec<Vec<u8>>> = Vec::new();
    for _ in 1..threads {
        let written = |region: &Region| match &region.bytes {
            Bytes::Read(_) => Vec::new(),
            Bytes::Write(bytes) => bytes.to_vec(),
        };
        copies.push(regions.iter().map(written).collect());
    }
    let share = |t: usize| (launch.blocks as usize * t / threads) as u32;
    let lost = |_| Err(vec![*Finding::new(Rule::Deadlock, launch.program, "a thread was lost")]);
    let (first, others): (Outcome, Vec<Outcome>) = std::thread::scope(|scope| {
        let mut handles = Vec::new();
        for (t, copy) in copies.iter_mut().enumerate() {
            let own = regions.iter().zip(copy).map(|(region, copy)| region.over(copy)).collect();
            let run = &run;
            handles.push(scope.spawn(move || run(own, share(t + 1)..share(t + 2), Note::Written)));
        }
        let own = regions.iter_mut().map(Region::again).collect();
        let first = run(own, 0..share(1), Note::Nothing);
        (first, handles.into_iter().map(|handle| handle.join().unwrap_or_else(lost)).collect())
    });
    let mut all = first?.report;
    for (outcome, copy) in others.into_iter().zip(&copies) {
        let noted = outcome?;
        all.instructions += noted.report.instructions;
        for (region, range) in noted.written {
            if let Bytes::Write(bytes) = &mut regions[region].bytes {
                bytes[range.clone()].copy_from_slice(&copy[region][range]);
            }
        }
    }
    Ok(all)
}

/// Runs a kernel that [`verify`] has passed, as [`launch_verified`] on one thread; gives for each block what
/// its scalar unit has loaded, in order.
///
/// # Errors
/// Findings, the first thing first.
pub fn loads(launch: &Launch, regions: Vec<Region>) -> Result<Vec<Vec<Value>>, Vec<Finding>> {
    let (params, holders) = arguments(launch, &regions).map_err(|finding| vec![*finding])?;
    let codes: Vec<Code> = launch.program.parts.iter().map(Code::new).collect();
    let values: Vec<Option<Value>> = launch.args.iter().map(|a| a.value()).collect();
    let places = (&params[..], &holders[..]);
    run(launch, &codes, &values, regions, places, 0..launch.blocks, Note::Loads).map(|noted| noted.loads)
}

/// A run of some blocks, or its findings.
type Outcome = Result<Noted, Vec<Finding>>;

/// Bytes from which on threads are worth their start.
const LARGE: usize = 64 << 10;

/// True if blocks may run on several threads: the run is fast, no block waits for another, and none adds to
/// what others have written.
fn divides(launch: &Launch, regions: &[Region]) -> bool {
    let large = regions.iter().map(|r| r.bytes.get().len()).sum::<usize>() >= LARGE;
    let mut alone = launch.mode == Mode::Fast && large && !launch.program.cores_meet();
    for part in &launch.program.parts {
        Program::walk(&part.body, &mut |stmt| {
            alone &= match &stmt.kind {
                StmtKind::Instr(Instr::DataCopy(x)) => x.atomic.is_none(),
                StmtKind::Instr(Instr::DataCopyPad(x)) => x.atomic.is_none(),
                StmtKind::Instr(Instr::Fixpipe(x)) => x.atomic.is_none(),
                _ => true,
            };
        });
    }
    alone
}

/// Notes that a run makes beside its report.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Note {
    Nothing,
    /// Bytes that are written.
    Written,
    /// Values that scalar units load.
    Loads,
}

/// A run, and what was noted of it.
struct Noted {
    report: Report,
    /// Pieces of memory and byte ranges in them.
    written: Vec<(usize, Range<usize>)>,
    /// By block.
    loads: Vec<Vec<Value>>,
}

/// Runs some blocks of a kernel.
fn run(
    launch: &Launch,
    codes: &[Code],
    values: &[Option<Value>],
    regions: Vec<Region>,
    (params, holders): (&[u64], &[usize]),
    blocks: Range<u32>,
    note: Note,
) -> Outcome {
    let program = launch.program;
    let checked = launch.mode != Mode::Fast;
    let seed = match launch.mode {
        Mode::Checked { seed } => seed,
        Mode::Fast => 0,
    };
    let spots = Spots::new(program, &regions, params, holders);
    let mut global = Global::new(regions, params.to_vec());
    global.written = (note == Note::Written).then(Vec::new);
    if checked {
        global.defined = defined(launch, &global.regions, params, holders);
    }
    let world = World {
        program,
        order: GlobalOrder::new(tracked(program, params), params.to_vec()),
        global,
        spots,
        caches: Default::default(),
        cross: HashMap::new(),
        checked,
        findings: Vec::new(),
        instructions: 0,
        loads: (note == Note::Loads).then(Vec::new),
        cores: 0,
    };
    let mut run = Run { launch, world, codes, values, blocks, seed, random: seed, spare: Vec::new() };
    let result = run.all();
    let mut findings = std::mem::take(&mut run.world.findings);
    if let Err(finding) = result {
        findings.push(*finding);
    }
    match findings.is_empty() {
        true => {
            let report = Report { instructions: run.world.instructions };
            let written = run.world.global.written.take().unwrap_or_default();
            Ok(Noted { report, written, loads: run.world.loads.take().unwrap_or_default() })
        }
        false => Err(findings),
    }
}

/// Runs a kernel in `orders` orders of its cores and pipes, each checked and over the same contents of
/// `memory`, which is then as the first left it.
///
/// # Errors
/// All findings; `Order` where two orders leave different bytes, as atomic sums of floats do.
pub fn launch_in_orders(one: &Launch, memory: &mut [u8], orders: u64) -> Result<Report, Vec<Finding>> {
    let before = memory.to_vec();
    let report = launch(&Launch { mode: Mode::Checked { seed: 0 }, ..*one }, memory)?;
    for seed in 1..orders {
        let mut again = before.clone();
        launch(&Launch { mode: Mode::Checked { seed }, ..*one }, &mut again)?;
        if let Some(byte) = memory.iter().zip(&again).position(|(a, b)| a != b) {
            return Err(vec![*differs(one, byte as u64)]);
        }
    }
    Ok(report)
}

/// A finding about a byte of GM that depends on the order of cores.
fn differs(launch: &Launch, byte: u64) -> Box<Finding> {
    let program = launch.program;
    let message = "the result depends on the order in which cores come; sum partial results in a fixed tree";
    let finding = Finding::new(Rule::Order, program, message);
    let mut params = program.params.iter().zip(launch.args).enumerate();
    let holder = params.find(|(_, (param, arg))| {
        matches!(**arg, Arg::Pointer(start) if (start..start + param.bytes()).contains(&byte))
    });
    let Some((index, (param, _))) = holder else { return finding };
    // The atomic write that is to blame, if there is one.
    let mut blamed = None;
    for part in &program.parts {
        Program::walk(&part.body, &mut |stmt| {
            let StmtKind::Instr(instr) = &stmt.kind else { return };
            let (base, atomic) = match instr {
                Instr::DataCopy(x) => (x.dst.base, x.atomic),
                Instr::DataCopyPad(x) => (x.dst.base, x.atomic),
                Instr::Fixpipe(x) => (x.dst.base, x.atomic),
                _ => return,
            };
            if atomic.is_some() && base == Base::Param(ParamId(index as u32)) {
                blamed = blamed.or(Some(stmt));
            }
        });
    }
    let finding = finding.of(&param.name);
    match blamed {
        Some(stmt) => finding.at(program, &head(program, stmt), stmt.source),
        None => finding,
    }
}

/// Checks the arguments; where each parameter's memory begins, and in which piece.
fn arguments(launch: &Launch, regions: &[Region]) -> Result<(Vec<u64>, Vec<usize>), Box<Finding>> {
    let program = launch.program;
    let fail = |message: String| Finding::new(Rule::Arguments, program, message);
    if launch.chip.arch != program.arch {
        return Err(fail(format!("the kernel is for architecture {}, {} is not", program.arch, launch.chip)));
    }
    if launch.blocks == 0 || launch.blocks > 65535 {
        return Err(fail(format!("{} blocks; there are 1 to 65535", launch.blocks)));
    }
    if launch.args.len() != program.params.len() {
        return Err(fail(format!("{} arguments for {} parameters", launch.args.len(), program.params.len())));
    }
    let (mut starts, mut holders) = (Vec::new(), Vec::new());
    for (param, arg) in program.params.iter().zip(launch.args) {
        let fits = matches!(
            (&param.kind, arg),
            (ParamKind::Pointer { .. } | ParamKind::Sync, Arg::Pointer(_))
                | (ParamKind::Int, Arg::Int(_))
                | (ParamKind::Float, Arg::Float(_))
        );
        if !fits {
            return Err(fail(format!("{arg:?} is no argument for it")).of(&param.name));
        }
        let Arg::Pointer(start) = *arg else {
            starts.push(0);
            holders.push(0);
            continue;
        };
        starts.push(start);
        let holder = holder(regions, start, param.bytes());
        holders.push(holder.unwrap_or(0));
        if let ParamKind::Pointer { elem, .. } = param.kind {
            if holder.is_none() {
                let message = format!("it needs {} bytes at {start}, which are not memory", param.bytes());
                return Err(fail(message).of(&param.name));
            }
            if start % elem.size() != 0 {
                return Err(fail(format!("address {start} is not aligned to {elem}")).of(&param.name));
            }
        }
    }
    Ok((starts, holders))
}

/// Bytes of GM that hold something, by piece: all but what is only written and not lent to a reader too.
fn defined(launch: &Launch, regions: &[Region], params: &[u64], holders: &[usize]) -> Vec<Vec<u8>> {
    let mut defined: Vec<Vec<u8>> = regions.iter().map(|r| vec![1; r.bytes.get().len()]).collect();
    for undefined in [true, false] {
        for ((param, &start), &holder) in launch.program.params.iter().zip(params).zip(holders) {
            let ParamKind::Pointer { access, elem, len, .. } = param.kind else { continue };
            let writes_only = matches!(access, Access::Out | Access::Workspace);
            if writes_only == undefined {
                let bytes = if undefined { param.bytes() } else { len * elem.size() };
                let first = (start - regions[holder].start) as usize;
                defined[holder][first..first + bytes as usize].fill(u8::from(!undefined));
            }
        }
    }
    defined
}

/// Parameters whose memory a parameter that is written reaches.
fn tracked(program: &Program, params: &[u64]) -> Vec<bool> {
    let range = |i: usize| (params[i], params[i] + program.params[i].bytes());
    let written = |i: usize| matches!(program.params[i].kind, ParamKind::Pointer { access, .. } if access != Access::In);
    let all = 0..params.len();
    let meets = |i: usize, j: usize| range(i).0 < range(j).1 && range(j).0 < range(i).1;
    all.clone().map(|i| all.clone().any(|j| written(j) && meets(i, j))).collect()
}

struct Run<'a, 'm> {
    launch: &'a Launch<'a>,
    world: World<'a, 'm>,
    codes: &'a [Code<'a>],
    values: &'a [Option<Value>],
    /// The blocks that run here.
    blocks: Range<u32>,
    seed: u64,
    random: u64,
    spare: Vec<(CoreOrder<'a>, Local)>,
}

/// A core to come: its part, place and number.
struct Seat {
    part: usize,
    place: Place,
    number: usize,
    peers: Peers,
}

impl<'a> Run<'a, '_> {
    /// A number below `n`, from the seed.
    fn below(&mut self, n: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.random >> 33) as usize) % n.max(1)
    }

    fn shuffled<T>(&mut self, mut items: Vec<T>) -> Vec<T> {
        if self.seed != 0 {
            for i in (1..items.len()).rev() {
                let j = self.below(i + 1);
                items.swap(i, j);
            }
        }
        items
    }

    fn all(&mut self) -> Result<(), Box<Finding>> {
        let program = self.launch.program;
        let groups = self.seats();
        let groups = self.shuffled(groups);
        let at_a_time = match (program.arch, &program.parts[..]) {
            (Arch::A2, [part]) if part.unit == Unit::Vector => self.launch.chip.vector_cores,
            _ => self.launch.chip.cube_cores,
        };
        let at_a_time = if program.cores_meet() { at_a_time as usize } else { 1 };
        let mut waiting: VecDeque<Vec<Seat>> = groups.into();
        let mut running: Vec<Vec<Core<'a>>> = Vec::new();
        loop {
            while running.len() < at_a_time
                && let Some(seats) = waiting.pop_front()
            {
                running.push(seats.into_iter().map(|seat| self.start(seat)).collect());
            }
            if running.is_empty() {
                break;
            }
            let mut moved = false;
            for group in &mut running {
                for core in group.iter_mut() {
                    moved |= self.turn(core)?;
                }
            }
            moved |= self.meeting(&mut running);
            let mut still = Vec::new();
            for group in running {
                if !group.iter().all(Core::done) {
                    still.push(group);
                    continue;
                }
                moved = true;
                for core in group {
                    if self.world.checked {
                        core.end(&mut self.world)?;
                    }
                    self.spare.push(core.into_parts());
                }
            }
            running = still;
            if !moved {
                let stuck = running.iter().flatten().find_map(|core| core.stuck(program));
                let nothing = || Finding::new(Rule::Deadlock, program, "nothing goes on");
                return Err(stuck.unwrap_or_else(nothing));
            }
        }
        let mut left: Vec<_> =
            self.world.cross.iter().filter(|(_, q)| !q.is_empty()).map(|(k, _)| *k).collect();
        left.sort_unstable();
        match left.first() {
            Some((mode, id, _, _)) if self.world.checked => {
                let message =
                    format!("flag {id} between cores, mode {mode}, is set more often than waited for");
                Err(Finding::new(Rule::Flag, program, message))
            }
            _ => Ok(()),
        }
    }

    /// All cores of the launch, by group.
    fn seats(&mut self) -> Vec<Vec<Seat>> {
        let program = self.launch.program;
        let per_group: usize = program.parts.iter().map(|p| sub_blocks(program, p) as usize).sum();
        self.world.cores = per_group * self.launch.blocks as usize;
        let mut groups = Vec::new();
        // Numbers of the cores of each part.
        let mut kinds: Vec<Vec<usize>> = vec![Vec::new(); program.parts.len()];
        for block in self.blocks.clone() {
            let mut group: Vec<Seat> = Vec::new();
            for (part, p) in program.parts.iter().enumerate() {
                let subs = sub_blocks(program, p);
                for sub_block in 0..subs {
                    let number = block as usize * per_group + group.len();
                    kinds[part].push(number);
                    let place =
                        Place { block: block * subs + sub_block, blocks: self.launch.blocks, sub_block };
                    group.push(Seat { part, place, number, peers: Peers::default() });
                }
            }
            let members: Vec<(usize, usize)> = group.iter().map(|s| (s.part, s.number)).collect();
            let pick = |wanted: bool, part: usize| {
                members.iter().filter(|m| (m.0 == part) == wanted).map(|m| m.1).collect::<Vec<_>>()
            };
            for seat in &mut group {
                seat.peers.pair = pick(true, seat.part);
                seat.peers.other = pick(false, seat.part);
            }
            groups.push(group);
        }
        // Lists of all cores are needed only where cores meet.
        if program.cores_meet() {
            for seat in groups.iter_mut().flatten() {
                seat.peers.kind = kinds[seat.part].clone();
            }
        }
        groups
    }

    fn start(&mut self, seat: Seat) -> Core<'a> {
        let program = self.launch.program;
        let (order, local) = match self.spare.pop() {
            Some((mut order, mut local)) => {
                order.reset(seat.number);
                local.reset();
                (order, local)
            }
            None => {
                let checked = self.world.checked;
                (CoreOrder::new(program, seat.number, checked), Local::new(program, checked))
            }
        };
        let issuer = Issuer::new(program, &self.codes[seat.part], seat.place, self.values, self.launch.fuel);
        Core::new(issuer, program.parts[seat.part].unit, order, local, seat.peers)
    }

    /// Lets a core go on until it cannot, or, in an order of the seed's, for a while; says whether it moved.
    fn turn(&mut self, core: &mut Core<'a>) -> Result<bool, Box<Finding>> {
        let mut moved = false;
        loop {
            // Statements that the scalar unit runs ahead of its pipes.
            let ahead = if self.seed == 0 { 1 } else { 1 + self.below(8) };
            let mut stepped = false;
            for _ in 0..ahead {
                if !core.scalar_step(&mut self.world)? {
                    break;
                }
                stepped = true;
            }
            stepped |= self.drain(core)?;
            moved |= stepped;
            if !stepped || core.state == State::Meeting {
                return Ok(moved);
            }
        }
    }

    /// Lets the pipes of a core go on.
    fn drain(&mut self, core: &mut Core<'a>) -> Result<bool, Box<Finding>> {
        let mut moved = false;
        if core.idle() {
            return Ok(false);
        }
        loop {
            let mut ready: Vec<Pipe> =
                Pipe::ALL.iter().copied().filter(|&pipe| core.ready(&self.world, pipe)).collect();
            if ready.is_empty() {
                return Ok(moved);
            }
            if self.seed != 0 {
                // Some are delayed, as slower pipes would.
                let i = self.below(ready.len() + 1);
                match ready.get(i).copied() {
                    Some(pipe) => ready = vec![pipe],
                    None if moved => return Ok(true),
                    None => {}
                }
            }
            for pipe in ready {
                if core.ready(&self.world, pipe) {
                    core.pipe_step(&mut self.world, pipe)?;
                    moved = true;
                }
            }
        }
    }

    /// Lets cores go on that have met; says whether they have.
    fn meeting(&mut self, running: &mut [Vec<Core<'a>>]) -> bool {
        let program = self.launch.program;
        let come = running.iter().flatten().filter(|c| c.state == State::Meeting).count();
        if come == 0 || come < self.world.cores || program.mixed() {
            return false;
        }
        let clocks: Vec<(usize, Clock)> =
            running.iter().flatten().map(|c| (c.order.core(), c.order.message(Pipe::S))).collect();
        let cores = self.world.cores;
        running.iter_mut().flatten().for_each(|c| c.leave(&clocks, cores));
        true
    }
}
