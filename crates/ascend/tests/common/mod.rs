//! Plans whose row programs run as kernels in the simulator, every step in several ways; the rest runs through the
//! reference.

use headwater_ascend::lower::{Arg, Lowered, rows};
use headwater_ascend::sim::{Arg as Pointer, Launch, Mode, launch};
use headwater_ascend::{Chip, kernel::Source};
use headwater_core::plan::{Plan, Step, TensorView, Work};
use headwater_core::reference::memory as interpreter;
use headwater_core::target::{AnyOperator, Target};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Alignment of segments.
const ALIGN: usize = 512;

/// Row programs of plans: lowered, and refused by reason.
#[derive(Default, Debug)]
pub struct Tally {
    pub lowered: usize,
    pub refused: BTreeMap<String, usize>,
}

/// A target whose plans a chip's memory suits.
pub fn target() -> Target {
    let mut target = Target::generic(Arc::new(AnyOperator));
    target.memory.alignment = ALIGN;
    target
}

/// The kernels of a step that is a row program.
pub fn lower(chip: &Chip, plan: &Plan, step: &Step) -> Option<Result<Lowered, String>> {
    let Work::Rows(program) = &step.work else { return None };
    let reads: Vec<&TensorView> = step.reads.iter().flatten().collect();
    let writes: Vec<&TensorView> = step.writes.iter().collect();
    let origin = plan.origins.get(step.origin.0 as usize).cloned().unwrap_or_default();
    let source = Source { op: step.op.into(), origin };
    Some(rows(chip, program, &reads, &writes, &source).map_err(|r| r.0))
}

/// Segments one behind the other in a memory, with room between them that nobody may write.
pub struct Memory {
    pub bytes: Vec<u8>,
    pub starts: Vec<usize>,
    pub sizes: Vec<usize>,
}

impl Memory {
    pub fn new(plan: &Plan) -> Memory {
        let (mut starts, mut sizes, mut end) = (Vec::new(), Vec::new(), ALIGN);
        for s in &plan.segments {
            starts.push(end);
            sizes.push(s.bytes);
            end = (end + s.bytes).next_multiple_of(ALIGN) + ALIGN;
        }
        // Nothing is what it is by chance: as f32, f16 and bf16 a number that stands out.
        Memory { bytes: vec![0x5b; end], starts, sizes }
    }

    pub fn segments(&self) -> Vec<Vec<u8>> {
        self.starts.iter().zip(&self.sizes).map(|(&at, &n)| self.bytes[at..at + n].to_vec()).collect()
    }

    pub fn put(&mut self, segments: &[Vec<u8>]) {
        for (&at, s) in self.starts.iter().zip(segments) {
            self.bytes[at..at + s.len()].copy_from_slice(s);
        }
    }

    /// Runs the launches of a step.
    fn launches(
        &mut self,
        chip: &Chip,
        lowered: &Lowered,
        step: &Step,
        mode: Mode,
        most: u32,
    ) -> Result<(), String> {
        let scratch = self.bytes.len();
        self.bytes.resize(scratch + lowered.scratch as usize, 0x77);
        let reads: Vec<&TensorView> = step.reads.iter().flatten().collect();
        for l in &lowered.launches {
            let address = |v: &TensorView, bytes: u64| {
                let first = v.layout.offset * v.dtype.size() as isize;
                let start = self.starts[v.place.segment.0 as usize] + v.place.offset;
                Pointer::Pointer(start.checked_add_signed(first).unwrap() as u64 + bytes)
            };
            let args: Vec<Pointer> = (l.args.iter())
                .map(|a| match *a {
                    Arg::Read { operand, bytes } => address(reads[operand], bytes),
                    Arg::Write { operand, bytes } => address(&step.writes[operand], bytes),
                    Arg::Scratch { bytes } => Pointer::Pointer(scratch as u64 + bytes),
                    Arg::Fault { .. } => panic!("row programs check no indices"),
                    Arg::Int(x) => Pointer::Int(x),
                    Arg::Float(x) => Pointer::Float(x),
                })
                .collect();
            let blocks = l.blocks.min(most);
            launch(&Launch::new(&l.program, chip, blocks, &args, mode), &mut self.bytes)
                .map_err(|f| format!("{mode:?}, {blocks} blocks: {}\n{}", f[0], l.program))?;
        }
        self.bytes.truncate(scratch);
        Ok(())
    }
}

/// Ways to run a kernel, all to the same bits: at most so many blocks.
pub const WAYS: [(Mode, u32); 4] =
    [(Mode::Fast, 1), (Mode::Fast, 48), (Mode::Checked { seed: 0 }, 3), (Mode::Checked { seed: 5 }, 7)];

/// Runs a plan's steps over a memory.
///
/// # Errors
/// Anything that is wrong, with the step.
pub fn run(
    chip: &Chip,
    plan: &Plan,
    memory: &mut Memory,
    ways: &[(Mode, u32)],
    tally: &mut Tally,
) -> Result<(), String> {
    for step in &plan.steps {
        let name = |e: String| {
            let what = match &step.work {
                Work::Rows(p) => format!("{p}"),
                Work::Kernel { op, .. } => op.name.to_string(),
            };
            let views =
                step.reads.iter().flatten().chain(&step.writes).map(|v| format!("{v}")).collect::<Vec<_>>();
            format!("{} on {chip}: {e}\n{what} {views:?}", step.op)
        };
        match lower(chip, plan, step) {
            None => {}
            Some(Err(reason)) => *tally.refused.entry(reason).or_default() += 1,
            Some(Ok(lowered)) => {
                tally.lowered += 1;
                let before = memory.bytes.clone();
                let mut first: Option<Vec<u8>> = None;
                for &(mode, most) in ways {
                    memory.bytes.clone_from(&before);
                    memory.launches(chip, &lowered, step, mode, most).map_err(name)?;
                    let now = memory.bytes.clone();
                    if let Some(first) = &first
                        && *first != now
                    {
                        return Err(name(format!("{mode:?} with {most} blocks gives other bits")));
                    }
                    first.get_or_insert(now);
                }
                untouched(step, memory, &before).map_err(name)?;
                continue;
            }
        }
        let mut segments = memory.segments();
        interpreter::step(step, &mut segments).map_err(|e| name(e.to_string()))?;
        memory.put(&segments);
    }
    Ok(())
}

/// Checks that a step has written its results alone.
fn untouched(step: &Step, memory: &Memory, before: &[u8]) -> Result<(), String> {
    let mut own = vec![false; before.len()];
    for v in &step.writes {
        let segment = v.place.segment.0 as usize;
        let places = interpreter::places(v, memory.sizes[segment]).map_err(|e| e.to_string())?;
        for at in places {
            own[memory.starts[segment] + at..][..v.dtype.size()].fill(true);
        }
    }
    let other = (0..before.len()).find(|&i| !own[i] && before[i] != memory.bytes[i]);
    other.map_or(Ok(()), |i| Err(format!("byte {i}, which is no result, is written")))
}
