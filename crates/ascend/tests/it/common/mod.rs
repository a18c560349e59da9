//! Plans whose row programs run as kernels in the simulator, every step in several ways; the rest runs
//! through the reference.
#![allow(dead_code)]

use headwater_ascend::lower::{Lowered, LoweredArg, rows};
use headwater_ascend::sim::{Arg, Launch, Mode, launch};
use headwater_ascend::{Chip, kernel::Source};
use headwater_core::plan::{Plan, Step, TensorView, Work};
use headwater_core::reference::memory as interpreter;
use headwater_core::row::{Instr, Reduce, RowProgram};
use headwater_core::target::{AnyOperator, Target};
use headwater_core::{Class, DType, Tensor};
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

/// A target whose plans a chip's memory suits, without i64. Row programs in f64 have no kernel and run
/// through the reference.
pub fn target() -> Target {
    let mut target = Target::generic(Arc::new(AnyOperator));
    target.memory.alignment = ALIGN;
    target.dtypes.arithmetic = target.dtypes.arithmetic.without(&[DType::I64]);
    target
}

/// The kernels of a step that is a row program.
pub fn lower(chip: &Chip, plan: &Plan, step: &Step) -> Option<Result<Lowered, String>> {
    let Work::Rows(program) = &step.work else { return None };
    let reads: Vec<&TensorView> = step.reads.iter().flatten().collect();
    let writes: Vec<&TensorView> = step.writes.iter().collect();
    let origin = plan.origin(step);
    let source = Source { op: step.op.into(), origin };
    Some(rows(chip, program, &reads, &writes, &source).map_err(|r| r.0))
}

/// Consecutive segments of a memory, with guard bytes between them that nobody may write.
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
        // No content is right by chance: the filler is a conspicuous number as f32, f16 and bf16.
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
        let constants = self.bytes.len();
        self.bytes.extend(&lowered.constants);
        self.bytes.resize(self.bytes.len() + 64, 0x77);
        let reads: Vec<&TensorView> = step.reads.iter().flatten().collect();
        for l in &lowered.launches {
            let address = |v: &TensorView, bytes: u64| {
                let first = v.layout.offset * v.dtype.size() as isize;
                let start = self.starts[v.place.segment.0 as usize] + v.place.offset;
                Arg::Pointer(start.checked_add_signed(first).unwrap() as u64 + bytes)
            };
            let args: Vec<Arg> = (l.args.iter())
                .map(|a| match *a {
                    LoweredArg::Read { operand, bytes } => address(reads[operand], bytes),
                    LoweredArg::Write { operand, bytes } => address(&step.writes[operand], bytes),
                    LoweredArg::Scratch { bytes } => Arg::Pointer(scratch as u64 + bytes),
                    LoweredArg::Constant { bytes } => Arg::Pointer(constants as u64 + bytes),
                    LoweredArg::Fault { .. } => panic!("row programs check no indices"),
                    LoweredArg::Int(x) => Arg::Int(x),
                    LoweredArg::Float(x) => Arg::Float(x),
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

/// Numbers from 0.05 to 0.95, and integers 0 and 1.
pub fn drawn(v: &TensorView, state: &mut u64) -> Tensor {
    let (shape, n) = (v.layout.shape.clone(), v.layout.shape.numel());
    let mut next = || {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as f64 / 2f64.powi(31)
    };
    match v.dtype.class() {
        Class::Float => Tensor::float(v.dtype, shape, (0..n).map(|_| next() * 0.9 + 0.05).collect()),
        _ => Tensor::int(v.dtype, shape, (0..n).map(|_| (next() * 2.0) as i64).collect()),
    }
}

/// A program's results through the reference, in f64 from inputs that `change` has changed.
pub fn exact(
    p: &RowProgram,
    step: &Step,
    inputs: &[Tensor],
    mut change: impl FnMut(f64) -> f64,
) -> Vec<Tensor> {
    let wide = |d: DType| if d.is_float() { DType::F64 } else { d };
    let mut p = p.clone();
    p.reads.iter_mut().chain(&mut p.writes).for_each(|o| o.dtype = wide(o.dtype));
    let inputs: Vec<Tensor> = (inputs.iter())
        .map(|t| match t.dtype().is_float() {
            true => {
                Tensor::float(DType::F64, t.shape().clone(), t.floats().iter().map(|&x| change(x)).collect())
            }
            false => t.clone(),
        })
        .collect();
    let mut types: Vec<_> = step.writes.iter().map(TensorView::ty).collect();
    types.iter_mut().for_each(|t| t.dtype = wide(t.dtype));
    headwater_core::reference::rows::run(&p, &inputs.iter().collect::<Vec<_>>(), &types).unwrap()
}

/// Relative error bound of a program: standard deviations of as many roundings as it has instructions and
/// terms of sums, as of `core::pass::bound`, times the factor that none of its operations exceeds but with a
/// chance of 1e-9.
pub fn bound(p: &RowProgram, dtype: DType) -> f64 {
    let has = |f: fn(&Instr) -> bool| p.body.iter().any(f);
    let sum = if has(|i| matches!(i, Instr::Reduce(Reduce::Sum, _))) { p.cols() } else { 0 };
    let columns = if has(|i| matches!(i, Instr::Columns(..))) { p.rows() } else { 0 };
    let unit = |d: DType| d.epsilon() / 2.0;
    let casts = p.body.iter().filter_map(|i| if let Instr::Cast(d, _) = i { Some(*d) } else { None });
    let rounded: f64 = casts.filter(|d| d.is_float()).map(|d| unit(d).powi(2)).sum();
    let computed = (p.body.len() + sum + columns) as f64 * unit(DType::F32).powi(2);
    let operations = (p.body.len() * p.rows() * p.cols()) as f64;
    let confidence = (2.0 * (2.0 * (1.0 + operations) / 1e-9).ln()).sqrt();
    confidence * (computed + rounded + unit(dtype).powi(2)).sqrt()
}

/// Compares a step's results with f64, relative to the largest number and to the sensitivity of each element
/// to the inputs and to roundings within.
pub fn judge(p: &RowProgram, step: &Step, inputs: &[Tensor], got: &[Tensor]) -> Result<(), String> {
    const STEP: f64 = 1e-6;
    let want = exact(p, step, inputs, |x| x);
    let mut bits = 0x9E37_79B9_7F4A_7C15u64;
    let mut slopes: Vec<Vec<f64>> = want.iter().map(|t| vec![0.0; t.shape().numel()]).collect();
    for _ in 0..8 {
        let moved = exact(p, step, inputs, |x| {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            x * if bits >> 63 == 0 { 1.0 + STEP } else { 1.0 - STEP }
        });
        for ((slope, m), w) in slopes.iter_mut().zip(&moved).zip(&want).filter(|(_, w)| w.dtype().is_float())
        {
            for ((s, m), w) in slope.iter_mut().zip(m.floats()).zip(w.floats()) {
                *s = s.max((m - w).abs() / STEP);
            }
        }
    }
    for (((v, got), want), slopes) in step.writes.iter().zip(got).zip(&want).zip(&slopes) {
        if !v.dtype.is_float() {
            if got != want {
                return Err(format!("{:?} are not {:?}", got.ints(), want.ints()));
            }
            continue;
        }
        let bound = bound(p, v.dtype);
        let norm = want.floats().iter().fold(0.0f64, |m, x| m.max(x.abs()));
        for ((g, w), slope) in got.floats().iter().zip(want.floats()).zip(slopes) {
            // A comparison or a rounding to whole numbers may fall on the other side.
            if (g - w).abs() > bound * (norm + slope) {
                return Err(format!("{g} is not {w}: bound {bound:e}, sensitivity {slope:e}, norm {norm:e}"));
            }
        }
    }
    Ok(())
}
