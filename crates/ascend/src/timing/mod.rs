//! Predicts the duration of a kernel without running it on data: cycles of instructions, queues of pipes,
//! flags, and memory that all cores share.
//!
//! The model is calibrated on published measurements of single instructions and copies (sections "vector
//! rule", "cube" and "copies" of `docs/ascend-timing.md`), and judged on published times of whole kernels.
//! Two of those also gave it a constant, and two its scheduling; that page names them. For 310P no
//! measurement is public: its figures are scaled from its platform table.

mod address;
mod bank;
mod control;
mod cost;
mod engine;
mod gm;

use crate::chip::{Arch, Chip};
use crate::kernel::finding::{Finding, Result, Rule};
use crate::kernel::{Param, Pipe, Program, Unit, Value, View};
use crate::sim::Code;
use address::Addresses;
use bank::Banks;
use engine::{CoreTime, Engine, Issue};
use gm::L2;
use std::fmt;

pub use control::control;
pub use engine::bandwidth;

/// Microseconds of scheduling that a task takes beside its cores, with one core and for each further one: the
/// difference of task and core times that asc-devkit's `add` example publishes.
const SCHEDULE: (f64, f64) = (0.45, 0.043);

/// Bytes a second of memory and of L2, summed over all cores.
pub type Rates = [f64; 2];

/// A launch to be timed.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Number of blocks.
    pub blocks: u32,
    /// A value for each parameter; pointers' are not looked at.
    pub args: Vec<Value>,
}

/// Values that the scalar unit loads from memory, where they decide what runs; `None` where there is none.
pub type Loads<'a> = dyn FnMut(&View<Value>) -> Option<Value> + 'a;

/// The same, of a block.
type BlockLoads<'a> = dyn FnMut(u32, &View<Value>) -> Option<Value> + 'a;

/// Predicted times of a launch, in the columns of msprof: means over the cores that took part, in
/// microseconds.
#[derive(Clone, PartialEq, Debug)]
pub struct Timing {
    /// The chip.
    pub chip: &'static str,
    /// From the first core's start to the last one's end, with scheduling.
    pub task: f64,
    /// A core's time.
    pub core: f64,
    /// Busy times of pipes, in the order of [`Pipe::ALL`]: scalar, vector, cube, MTE1, MTE2, MTE3, Fixpipe.
    pub pipes: [f64; 7],
    /// Bytes over the interface of HBM, and bytes moved by all copies from and to GM.
    pub bytes: [f64; 2],
    /// True if the model is calibrated for the chip.
    pub calibrated: bool,
}

/// Predicts the time of a launch. L2 holds what an earlier launch of the same kernel left there.
///
/// # Errors
/// `Arguments` where arguments do not fit or loaded values are missing; `Deadlock` and `Endless`; `Scalar`.
pub fn predict(program: &Program, chip: &'static Chip, launch: &Launch, loads: &mut Loads) -> Result<Timing> {
    predict_blocks(program, chip, bandwidth(chip), launch, &mut |_, view| loads(view))
}

/// The same at other rates than the chip's own, [`bandwidth`]: what a time becomes if a constant is wrong.
///
/// # Errors
/// As [`predict`].
pub fn predict_at(
    program: &Program,
    chip: &'static Chip,
    rates: Rates,
    launch: &Launch,
    loads: &mut Loads,
) -> Result<Timing> {
    predict_blocks(program, chip, rates, launch, &mut |_, view| loads(view))
}

/// The same, where each block loads its values in order, as [`crate::sim::loads`] gives them.
///
/// # Errors
/// As [`predict`].
pub fn predict_loaded(
    program: &Program,
    chip: &'static Chip,
    launch: &Launch,
    loaded: &[Vec<Value>],
) -> Result<Timing> {
    let mut next = vec![0; loaded.len()];
    predict_blocks(program, chip, bandwidth(chip), launch, &mut |block, _| {
        let (own, next) = (loaded.get(block as usize)?, next.get_mut(block as usize)?);
        // The launch is timed twice.
        let value = own.get(*next % own.len().max(1)).copied();
        *next += 1;
        value
    })
}

fn predict_blocks(
    program: &Program,
    chip: &'static Chip,
    rates: Rates,
    launch: &Launch,
    loads: &mut BlockLoads,
) -> Result<Timing> {
    if program.arch != chip.arch || launch.args.len() != program.params.len() || launch.blocks == 0 {
        let message = format!(
            "{} arguments and {} blocks on {chip} for {} parameters on {}",
            launch.args.len(),
            launch.blocks,
            program.params.len(),
            program.arch
        );
        return Err(Finding::new(Rule::Arguments, program, message));
    }
    let at = Addresses::new(program);
    let codes: Vec<Code> = program.parts.iter().map(Code::new).collect();
    let scalar = |(p, &v): (&Param, &Value)| p.scalar().map(|_| v);
    let args: Vec<Option<Value>> = program.params.iter().zip(&launch.args).map(scalar).collect();
    let (mut l2, mut banks) = (L2::new(chip.l2, at.gm), Banks::default());
    let mut last = None;
    // Twice: the first launch leaves L2 as a training step finds it.
    for _ in 0..2 {
        let issue = Issue { codes: &codes, args: &args, blocks: launch.blocks };
        let mut engine = Engine::new(program, (chip, rates), issue, &at, &mut l2, &mut banks, loads);
        let cores = engine.run()?;
        last = Some((cores, [engine.hbm, engine.moved]));
    }
    let (cores, bytes) = last.unwrap_or_default();
    let us = |cycles: f64| cycles / f64::from(chip.mhz);
    let mean =
        |f: &dyn Fn(&CoreTime) -> f64| us(cores.iter().map(f).sum::<f64>() / cores.len().max(1) as f64);
    let longest = cores.iter().map(|c| c.cycles).fold(0.0, f64::max);
    // Pipes of one kind of core are averaged over the cores of that kind.
    let pipe = |i: usize| {
        let with =
            |c: &&CoreTime| i == Pipe::S as usize || !program.mixed() || (c.unit == Unit::Cube) == cube(i);
        let used: Vec<&CoreTime> = cores.iter().filter(with).collect();
        us(used.iter().map(|c| c.busy[i]).sum::<f64>() / used.len().max(1) as f64)
    };
    Ok(Timing {
        chip: chip.name,
        task: us(longest) + SCHEDULE.0 + SCHEDULE.1 * (cores.len().max(1) - 1) as f64,
        core: mean(&|c| c.cycles),
        pipes: std::array::from_fn(pipe),
        bytes,
        calibrated: chip.arch == Arch::A2,
    })
}

/// True if a pipe belongs to cube cores.
fn cube(pipe: usize) -> bool {
    [Pipe::M, Pipe::Mte1, Pipe::Fix].iter().any(|p| *p as usize == pipe)
}

impl Timing {
    /// Busy time of a pipe in microseconds.
    pub fn pipe(&self, pipe: Pipe) -> f64 {
        self.pipes[pipe as usize]
    }

    /// A remark on how far the figures can be trusted, to be printed beside them.
    pub fn label(&self) -> &'static str {
        match self.calibrated {
            true => "predicted by the timing model, not measured on hardware",
            false => {
                "predicted, scaled from the chip's table, not calibrated: no measurement of this chip is public"
            }
        }
    }
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({})", self.chip, self.label())?;
        write!(f, "task {:.2} µs, core {:.2} µs", self.task, self.core)?;
        for (pipe, busy) in Pipe::ALL.iter().zip(self.pipes) {
            write!(f, ", {pipe} {busy:.2}")?;
        }
        Ok(())
    }
}
