//! Row programs as kernels of the vector unit.
//!
//! A program's axes are merged over the operands' layouts (`space`). Where rows are short, a tile has all
//! columns of several rows; where they are long, columns of one row. Operands are loaded into UB in their
//! layout or through a gather (`route`), 16-bit floats are widened, and everything is computed in f32 and i32
//! (`eval`, `math`, `fold`) and rounded once at the store. Row values are stored in a vector, a lane for each
//! row. A row that is longer than a tile is read again for each reduction that others depend on.
//!
//! Tiles depend on sizes and the chip alone, sums are fixed trees, and sums over rows are taken in ranges of
//! rows, whose partial sums are added when all cores have met, or by a second launch. So results have the
//! same bits for any number of cores.

mod body;
mod build;
mod eval;
mod fold;
mod halves;
mod ints;
mod kernel;
mod loops;
mod math;
mod register;
mod rewrite;
mod route;
mod schedule;
mod space;
mod table;
mod transfer;
mod value;
mod writer;

use super::launch::{Lowered, LoweredArg, LoweredLaunch, Refusal};
use super::source::attributed;
use crate::chip::{Arch, Chip};
use crate::kernel::{Elem, Program, Source};
use crate::kernels::sum_rows;
use headwater_core::dtype::DType;
use headwater_core::plan::{Place, SegmentId, TensorView};
use headwater_core::row::{Access, Instr, Operand, RowProgram};
use headwater_core::shape::Layout;
use kernel::{Kernel, Split};
use std::sync::Arc;

/// The launches of a row program on a chip. `reads` and `writes` are the operands in order; `source` is the
/// operator and the model's line that the kernel names. On 310P reads may reach up to 31 bytes past an
/// operand's last element.
///
/// # Errors
/// The construct that has no kernel yet.
pub fn rows(
    chip: &Chip,
    program: &RowProgram,
    reads: &[&TensorView],
    writes: &[&TensorView],
    source: &Source,
) -> Result<Lowered, Refusal> {
    if reads.len() != program.reads.len() || writes.len() != program.writes.len() {
        return Err(Refusal::new("other operands than the program's"));
    }
    program.classes().map_err(Refusal::new)?;
    if writes.iter().all(|v| v.layout.shape.numel() == 0) {
        return Ok(Lowered::default());
    }
    if program.rows() == 0 || program.cols() == 0 {
        return Err(Refusal::new("a reduction of nothing"));
    }
    if program.computes_in_f64() {
        return Err(Refusal::new("f64"));
    }
    if program.computes_in_i64() {
        return Err(Refusal::new("i64 arithmetic"));
    }
    let mut operands = program.reads.iter().chain(&program.writes);
    if chip.arch == Arch::P310 && operands.any(|o| o.dtype == DType::I16) {
        return Err(Refusal::new("i16"));
    }
    let program = &rewrite::rewritten(program);
    let views: Vec<&TensorView> = reads.iter().chain(writes).copied().collect();
    // Sums over rows that are contiguous are added by a kernel for it, others by a row program.
    let columns: Vec<(usize, usize)> = (program.body.iter())
        .filter_map(|i| if let Instr::Columns(w, r) = i { Some((*w, *r)) } else { None })
        .collect();
    let contiguous = |&(w, _): &(usize, usize)| {
        let own = &program.writes[w].access.0[program.outer.len()..];
        let along = own.iter().enumerate().all(|(d, &way)| way == Some((d, 1)));
        let layout = &writes[w].layout;
        let elem = Elem::of(writes[w].dtype).filter(|e| matches!(e, Elem::F32 | Elem::F16 | Elem::BF16));
        elem.filter(|_| along && layout.is_contiguous() && layout.shape[..] == program.inner[..])
    };
    let outs: Option<Vec<Elem>> = columns.iter().map(contiguous).collect();
    let kernel = Kernel { chip, p: program, views: &views, source, split: Split::Ranges, sums: outs };
    let first = kernel.build()?;
    let mut args: Vec<LoweredArg> =
        (0..reads.len()).map(|operand| LoweredArg::Read { operand, bytes: 0 }).collect();
    let Some(partial) = first.partial else {
        args.extend((0..writes.len()).map(|operand| LoweredArg::Write { operand, bytes: 0 }));
        let launch = LoweredLaunch { program: Arc::new(first.program), args, blocks: first.blocks };
        return Ok(Lowered { launches: vec![launch], ..Lowered::default() });
    };
    // Column sums: partial sums of ranges of rows, which the same kernel adds, or another one.
    let size = (partial.ranges * partial.pitch * 4) as u64;
    let scratch = |i: usize| LoweredArg::Scratch { bytes: i as u64 * size.next_multiple_of(512) };
    let place_of = |w: usize| columns.iter().position(|c| c.0 == w);
    args.extend((0..writes.len()).map(|operand| match place_of(operand) {
        Some(i) => scratch(i),
        None => LoweredArg::Write { operand, bytes: 0 },
    }));
    let scratch_bytes = columns.len() as u64 * size.next_multiple_of(512);
    let results = || columns.iter().map(|&(operand, _)| LoweredArg::Write { operand, bytes: 0 });
    if first.added {
        args.extend(results());
        let launch = LoweredLaunch { program: Arc::new(first.program), args, blocks: first.blocks };
        return Ok(Lowered { launches: vec![launch], scratch: scratch_bytes, ..Lowered::default() });
    }
    let finish = |first: build::Built, second: Program, sum_args: Vec<LoweredArg>, blocks: u32| {
        let first = LoweredLaunch { program: Arc::new(first.program), args, blocks: first.blocks };
        let second = LoweredLaunch { program: Arc::new(second), args: sum_args, blocks };
        Lowered { launches: vec![first, second], scratch: scratch_bytes, ..Lowered::default() }
    };
    let mut sum_args: Vec<LoweredArg> = (0..columns.len()).map(scratch).collect();
    sum_args.extend(results());
    if let Some(outs) = &kernel.sums {
        let name = format!("{}_sums", first.program.name);
        let shape = partial.added(program.cols(), outs);
        if let Ok(second) = sum_rows(chip.arch, &name, &shape) {
            let blocks = shape.tasks().min(u64::from(chip.vector_cores)) as u32;
            return Ok(finish(first, attributed(second, source), sum_args, blocks));
        }
    }
    let mut sum =
        RowProgram { outer: vec![partial.ranges], inner: program.inner.clone(), ..RowProgram::default() };
    let inner = program.outer.len();
    let mut layout = Layout::contiguous(&[&[partial.ranges], &program.inner[..]].concat().into());
    layout.strides[0] = partial.pitch as isize;
    let place = Place { segment: SegmentId(0), offset: 0 };
    let from = TensorView { place, dtype: DType::F32, layout };
    let rank = 1 + program.inner.len();
    let (mut sum_views, mut to) = (Vec::new(), Vec::new());
    for (i, &(w, _)) in columns.iter().enumerate() {
        let Operand { dtype, access } = &program.writes[w];
        sum.reads.push(Operand { dtype: DType::F32, access: Access::identity(rank) });
        let own = std::iter::once(None).chain(access.0[inner..].iter().copied());
        sum.writes.push(Operand { dtype: *dtype, access: Access(own.collect()) });
        sum.body.extend([Instr::Load(i), Instr::Columns(i, 2 * i)]);
        sum_views.push(&from);
        to.push(writes[w]);
    }
    sum_views.extend(to);
    let second =
        Kernel { chip, p: &sum, views: &sum_views, source, split: Split::Whole, sums: None }.build()?;
    Ok(finish(first, second.program, sum_args, second.blocks))
}
