//! Operands of steps in the segments of their plan, and launches whose arguments are found there.

use crate::{IndexFault, LibraryOperand, LoweredArg, LoweredLaunch, Parameter, ParameterKind, Program, Site};
use headwater_core::diagnostic::Result;
use headwater_core::plan::{Plan, SegmentId, SegmentKind, Step, TensorView};
use headwater_core::{ensure, fail};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of its segment that a view covers; empty for a view without elements.
///
/// # Errors
/// `Plan` if it leaves its segment.
pub(super) fn hull(plan: &Plan, view: &TensorView) -> Result<Range<usize>> {
    let id = view.place.segment.0;
    let segment = plan.segments.get(id as usize).ok_or_else(|| fail!(Plan, "there is no segment {id}"))?;
    let bytes = segment.bytes;
    let outside = || fail!(Plan, "the view {view:?} lies outside its segment of {bytes} bytes");
    if view.layout.shape.contains(&0) {
        return Ok(0..0);
    }
    let (mut low, mut high) = (view.layout.offset, view.layout.offset);
    for (&size, &stride) in view.layout.shape.iter().zip(&view.layout.strides) {
        let span = isize::try_from(size - 1).ok().and_then(|last| last.checked_mul(stride));
        let span = span.ok_or_else(outside)?;
        let end = if span < 0 { &mut low } else { &mut high };
        *end = end.checked_add(span).ok_or_else(outside)?;
    }
    let byte = |element: isize| {
        let offset = element.checked_mul(view.dtype.size() as isize)?;
        view.place.offset.checked_add_signed(offset)
    };
    let start = byte(low).ok_or_else(outside)?;
    let end = high.checked_add(1).and_then(byte).filter(|&end| end <= bytes).ok_or_else(outside)?;
    Ok(start..end)
}

/// Refuses a step whose operands leave their segments, or that writes what is only read.
///
/// # Errors
/// `Plan`
pub(super) fn check(plan: &Plan, step: &Step) -> Result<()> {
    for view in step.reads.iter().flatten().chain(&step.writes) {
        hull(plan, view)?;
    }
    for view in &step.writes {
        let kind = plan.segments[view.place.segment.0 as usize].kind;
        let read_only = matches!(kind, SegmentKind::Input | SegmentKind::Constant);
        ensure!(!read_only, Plan, "a step writes {view:?}, which is only read");
    }
    Ok(())
}

/// A launch of a loaded kernel, its arguments in segments.
#[derive(Clone, Debug)]
pub(super) struct PlacedLaunch {
    /// Number of the kernel in its executable.
    pub kernel: usize,
    /// Blocks.
    pub blocks: u32,
    /// Arguments, without the synchronisation address.
    pub args: Vec<Where>,
    /// Kernel, operator and line.
    pub site: Arc<Site>,
    /// Byte at which the kernel reports indices out of range, and their bound.
    pub fault: Option<(usize, IndexFault)>,
}

/// The place of an argument.
#[derive(Clone, Copy, Debug)]
pub(super) enum Where {
    /// A byte of a segment.
    Segment(SegmentId, usize),
    /// A byte of the executable's scratch memory.
    Scratch(usize),
    /// A byte of the executable's constants.
    Constant(usize),
    /// A byte of the executable's memory for reports of kernels.
    Fault(usize),
    /// An integer.
    Int(i64),
    /// A float.
    Float(f32),
}

impl PlacedLaunch {
    /// The places of a launch's arguments, in a plan, with `scratch` bytes of scratch memory. Reports of
    /// kernels begin at byte `faults`, the step's constants are at `constants`, memory is aligned to `align`
    /// bytes.
    ///
    /// # Errors
    /// `Plan` where an argument does not fit its parameter: a bug of the lowering, which must not become an
    /// access to memory of others.
    pub fn new<P: Program>(
        plan: &Plan,
        step: &Step,
        launch: &LoweredLaunch<P>,
        scratch: u64,
        (kernel, site): (usize, Arc<Site>),
        (faults, align): (usize, usize),
        constants: &Range<usize>,
    ) -> Result<PlacedLaunch> {
        let program = &*launch.program;
        let wrong = |what: &str| fail!(Plan, "kernel `{}`: {what}", program.name());
        let params = program.parameters();
        ensure!(
            params.len() == launch.args.len(),
            Plan,
            "kernel `{}`: arguments are missing",
            program.name()
        );
        let mut fault = None;
        let mut args = Vec::new();
        for (param, arg) in params.iter().zip(&launch.args) {
            let view = match *arg {
                LoweredArg::Read { operand, bytes } => {
                    step.reads.get(operand).and_then(Option::as_ref).map(|v| (v, bytes))
                }
                LoweredArg::Write { operand, bytes } => step.writes.get(operand).map(|v| (v, bytes)),
                _ => None,
            };
            let writes = matches!(param.kind, ParameterKind::Pointer { writes: true, .. });
            let place = match *arg {
                LoweredArg::Read { .. } | LoweredArg::Write { .. } => {
                    let (view, bytes) = view.ok_or_else(|| wrong("there is no such operand"))?;
                    ensure!(
                        !writes || matches!(arg, LoweredArg::Write { .. }),
                        Plan,
                        "kernel `{}` writes an operand that is only read",
                        program.name()
                    );
                    Where::Segment(view.place.segment, address(plan, view, bytes, param, align)?)
                }
                LoweredArg::Scratch { bytes } => {
                    let start =
                        usize::try_from(bytes).map_err(|_| wrong("its scratch memory is too large"))?;
                    let held = usize::try_from(scratch).unwrap_or(usize::MAX);
                    ensure!(
                        reaches(param, start).is_some_and(|ends| inside(ends, held, align)),
                        Plan,
                        "kernel `{}` leaves its scratch memory",
                        program.name()
                    );
                    Where::Scratch(start)
                }
                LoweredArg::Constant { bytes } => {
                    let start = usize::try_from(bytes).ok().and_then(|b| b.checked_add(constants.start));
                    let start = start.ok_or_else(|| wrong("its constants are too large"))?;
                    let held = |ends| !writes && inside(ends, constants.end, align);
                    let fits = reaches(param, start).is_some_and(held);
                    ensure!(fits, Plan, "kernel `{}` leaves its constants", program.name());
                    Where::Constant(start)
                }
                LoweredArg::Fault { limit } => {
                    ensure!(fault.is_none(), Plan, "kernel `{}` has more than one report", program.name());
                    fault = Some((
                        faults,
                        IndexFault { limit, bytes: param.touched() as usize, site: site.clone() },
                    ));
                    Where::Fault(faults)
                }
                LoweredArg::Int(x) => Where::Int(x),
                LoweredArg::Float(x) => Where::Float(x),
            };
            let fits = matches!(
                (&param.kind, place),
                (ParameterKind::Int, Where::Int(_))
                    | (ParameterKind::Float, Where::Float(_))
                    | (
                        ParameterKind::Pointer { .. },
                        Where::Segment(..) | Where::Scratch(_) | Where::Constant(_) | Where::Fault(_)
                    )
            );
            ensure!(fits, Plan, "kernel `{}`: no argument for `{}`", program.name(), param.name);
            args.push(place);
        }
        Ok(PlacedLaunch { kernel, blocks: launch.blocks, args, site, fault })
    }
}

/// The place of an operand of a library's function, in a plan, with `scratch` bytes of scratch memory and the
/// step's constants at `constants`.
///
/// # Errors
/// `Plan` where it leaves its memory, or is written there where it is only read: a bug of the lowering.
pub(super) fn operand(
    plan: &Plan,
    step: &Step,
    &LibraryOperand { arg, bytes, written }: &LibraryOperand,
    scratch: u64,
    constants: &Range<usize>,
) -> Result<Where> {
    let wrong = || fail!(Plan, "an operand of {bytes} bytes of `{}` leaves its memory", step.op);
    let behind = |start: u64, more: u64| usize::try_from(start.checked_add(more)?).ok();
    let ends = |start: usize, end: usize| start.checked_add(bytes).is_some_and(|e| e <= end).then_some(start);
    let in_view = |view: Option<&TensorView>, more: u64| {
        let view = view?;
        let first = view.layout.offset.checked_mul(view.dtype.size() as isize)?;
        let start = view.place.offset.checked_add_signed(first)?;
        let end = plan.segments.get(view.place.segment.0 as usize)?.bytes;
        Some(Where::Segment(view.place.segment, ends(behind(start as u64, more)?, end)?))
    };
    let place = match arg {
        LoweredArg::Read { operand, bytes } if !written => {
            in_view(step.reads.get(operand).and_then(Option::as_ref), bytes)
        }
        LoweredArg::Write { operand, bytes } => in_view(step.writes.get(operand), bytes),
        LoweredArg::Scratch { bytes } => behind(bytes, 0)
            .and_then(|start| ends(start, usize::try_from(scratch).unwrap_or(usize::MAX)))
            .map(Where::Scratch),
        LoweredArg::Constant { bytes } if !written => behind(constants.start as u64, bytes)
            .and_then(|start| ends(start, constants.end))
            .map(Where::Constant),
        _ => None,
    };
    place.ok_or_else(wrong)
}

/// The byte of its segment at which a parameter begins, `bytes` after a view's first element.
fn address(plan: &Plan, view: &TensorView, bytes: u64, param: &Parameter, align: usize) -> Result<usize> {
    let outside = || fail!(Plan, "parameter `{}` leaves the segment of {view:?}", param.name);
    let size = view.dtype.size() as isize;
    let first = view.layout.offset.checked_mul(size).and_then(|o| view.place.offset.checked_add_signed(o));
    let start =
        first.and_then(|first| first.checked_add(usize::try_from(bytes).ok()?)).ok_or_else(outside)?;
    let segment = plan.segments[view.place.segment.0 as usize].bytes;
    let fits = reaches(param, start).is_some_and(|ends| inside(ends, segment, align));
    ensure!(fits, Plan, "parameter `{}` leaves the segment of {view:?}", param.name);
    Ok(start)
}

/// Ends of the bytes that belong to a parameter, and of those that its kernel writes or reads: whole blocks
/// reach beyond the operand.
struct Ends {
    own: usize,
    written: usize,
    read: usize,
}

fn reaches(param: &Parameter, start: usize) -> Option<Ends> {
    let end = |bytes: u64| start.checked_add(usize::try_from(bytes).ok()?);
    let ParameterKind::Pointer { writes, own, touched } = param.kind else {
        return Some(Ends { own: start, written: start, read: start });
    };
    let (own, read) = (end(own)?, end(touched)?);
    // All that a kernel may touch counts as written, if anything is.
    Some(Ends { own, written: if writes { read } else { own }, read })
}

/// True if a parameter's bytes are inside of a memory, and what its kernel touches beside is nobody else's.
fn inside(ends: Ends, bytes: usize, align: usize) -> bool {
    let aligned = bytes.checked_next_multiple_of(align);
    aligned
        .is_some_and(|end| ends.own <= bytes && ends.written <= end && ends.read <= end.saturating_add(align))
}
