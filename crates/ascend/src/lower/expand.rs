//! Operators whose expansions run here: as steps of a plan, where each has a kernel, or as the launches of
//! one step.

use super::launch::Refusal;
use super::sequence::{Sequence, Tensor, after};
use super::step;
use crate::chip::Chip;
use headwater_core::expand::{self, ExpandedStep, Expansion, Memory, View, find};
use headwater_core::graph::{Origin, OriginId, Phase};
use headwater_core::ops::linear::matmul::MATMUL;
use headwater_core::ops::random::philox::{self, PHILOX_UNIFORM};
use headwater_core::ops::{OpCx, OpDef};
use headwater_core::plan::{Place, SegmentId, Step, TensorView, Work};
use headwater_core::{DType, TensorType};

/// True if an operator has an expansion whose steps all have kernels, for contiguous operands of these types.
pub fn expands(chip: &Chip, op: &OpDef, cx: &OpCx, outs: &[TensorType]) -> bool {
    let sequence = find(op).and_then(|expansion| expansion.contiguous(cx, outs).ok());
    let runs = |own: &ExpandedStep| step(chip, false, &alone(op.name, own), &Origin::default()).is_ok();
    sequence.is_some_and(|sequence| sequence.steps.iter().all(runs))
}

/// The reason why a step of a plan is an operator as a whole that has an expansion.
pub(super) fn whole(expansion: &Expansion, cx: &OpCx, outs: &[TensorType]) -> Refusal {
    match expansion.contiguous(cx, outs) {
        Err(e) => Refusal(e.message),
        Ok(_) => Refusal::new("a step of its expansion has no kernel"),
    }
}

/// Most bytes of an expansion's temporaries for a block of its work. Few in unit tests, which cut it.
const BUDGET: usize = if cfg!(test) { 4 << 10 } else { expand::BUDGET };

/// The launches of an operator's expansion, with its temporaries in scratch memory.
///
/// # Errors
/// Types and shapes that the expansion or the kernels do not take.
pub(super) fn launches(s: &mut Sequence, op: &OpDef, cx: &OpCx) -> Result<(), Refusal> {
    let expansion = find(op).ok_or_else(|| Refusal(format!("`{}` has no expansion", op.name)))?;
    let seen = |memory, t: &Tensor| View { memory, dtype: t.dtype(), layout: t.view.layout.clone() };
    let inputs = (0..cx.inputs.len()).map(|i| s.optional(i).map(|t| seen(Memory::Read(i), &t))).collect();
    let outputs = s.outputs().iter().enumerate().map(|(i, t)| seen(Memory::Write(i), t)).collect();
    let sequence = expansion.steps(cx, inputs, outputs, BUDGET)?;
    let used = |step: &ExpandedStep| {
        let views = step.reads.iter().flatten().chain(&step.writes);
        let number = |v: &View| if let Memory::Temporary(i) = v.memory { Some(i) } else { None };
        views.filter_map(number).collect::<Vec<usize>>()
    };
    let groups = groups(&sequence.steps);
    let mut last = vec![0; sequence.temporaries.len()];
    for (at, steps) in groups.iter().enumerate() {
        steps.iter().flat_map(used).for_each(|i| last[i] = at);
    }
    let mut temporaries: Vec<Option<Tensor>> = vec![None; last.len()];
    // Temporaries in the order in which memory was taken for them, with the mark before each.
    let mut taken: Vec<(usize, u64)> = Vec::new();
    for (at, steps) in groups.iter().enumerate() {
        for i in steps.iter().flat_map(used) {
            if temporaries[i].is_none() {
                taken.push((i, s.mark()));
                temporaries[i] = Some(s.scratch(DType::U8, &[sequence.temporaries[i]])?);
            }
        }
        let tensor = |s: &Sequence, v: &View| -> Result<Tensor, Refusal> {
            let whole = match v.memory {
                Memory::Read(i) => s.input(i)?,
                Memory::Write(i) => s.output(i)?,
                Memory::Temporary(i) => temporaries[i].clone().ok_or_else(|| Refusal::new("no temporary"))?,
            };
            let bytes = |dtype: DType, offset: isize| offset * dtype.size() as isize;
            let begin = bytes(v.dtype, v.layout.offset) - bytes(whole.dtype(), whole.view.layout.offset);
            let begin = u64::try_from(begin).map_err(|_| Refusal::new("an operand with negative strides"))?;
            let view = TensorView { place: whole.view.place, dtype: v.dtype, layout: v.layout.clone() };
            Ok(Tensor { arg: after(whole.arg, begin), view })
        };
        let mut products = Vec::new();
        for step in *steps {
            let reads: Vec<Tensor> =
                step.reads.iter().flatten().map(|v| tensor(s, v)).collect::<Result<_, _>>()?;
            let writes: Vec<Tensor> = step.writes.iter().map(|v| tensor(s, v)).collect::<Result<_, _>>()?;
            match (&step.work, &reads[..], &writes[..]) {
                (Work::Rows(program), reads, writes) => {
                    s.rows(program, &reads.iter().collect::<Vec<_>>(), &writes.iter().collect::<Vec<_>>())?;
                }
                (Work::Kernel { op, .. }, [a, b], [c]) if **op == MATMUL => {
                    products.push([a, b, c].map(Tensor::clone));
                }
                (Work::Kernel { op, attrs }, [key], [to]) if **op == PHILOX_UNIFORM => {
                    let cx = OpCx { inputs: Vec::new(), attrs };
                    s.uniform(key, philox::number(&cx)?, philox::first(&cx)? / 4, to)?;
                }
                _ => return Err(Refusal::new("a step of an expansion without a launch")),
            }
        }
        s.products(&products)?;
        while let Some((_, mark)) = taken.pop_if(|(i, _)| last[*i] <= at) {
            s.release(mark);
        }
    }
    Ok(())
}

/// Steps in groups, each of one step or of several products that do not depend on each other.
fn groups(steps: &[ExpandedStep]) -> Vec<&[ExpandedStep]> {
    let is_product = |step: &ExpandedStep| matches!(step.work, Work::Kernel { op, .. } if *op == MATMUL);
    let meets = |one: &ExpandedStep, other: &ExpandedStep| {
        let views = || other.reads.iter().flatten().chain(&other.writes);
        one.writes.iter().any(|w| views().any(|v| v.memory == w.memory))
    };
    let (mut groups, mut first) = (Vec::new(), 0);
    for (at, step) in steps.iter().enumerate() {
        let own = &steps[first..at];
        let joins =
            is_product(step) && own.iter().all(|o| is_product(o) && !meets(o, step) && !meets(step, o));
        if !joins && at > first {
            groups.push(own);
            first = at;
        }
    }
    groups.extend((first < steps.len()).then(|| &steps[first..]));
    groups
}

/// A step of an expansion by itself: each operand in memory of its own.
fn alone(op: &'static str, own: &ExpandedStep) -> Step {
    let view = |v: &View| {
        let segment = match v.memory {
            Memory::Read(i) => 3 * i,
            Memory::Write(i) => 3 * i + 1,
            Memory::Temporary(i) => 3 * i + 2,
        };
        let place = Place { segment: SegmentId(segment as u32), offset: 0 };
        TensorView { place, dtype: v.dtype, layout: v.layout.clone() }
    };
    Step {
        work: own.work.clone(),
        reads: own.reads.iter().map(|v| v.as_ref().map(view)).collect(),
        writes: own.writes.iter().map(view).collect(),
        workspace: None,
        op,
        origin: OriginId(0),
        phase: Phase::Forward,
        flops: 0.0,
        stream: 0,
    }
}
