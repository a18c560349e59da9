//! Predicted times of a step's launches, with the data that decide what runs.

use crate::chip::Chip;
use crate::kernel::finding::{Finding, Rule};
use crate::kernel::{Access, Elem, Param, ParamKind, Program, Value};
use crate::lower::{Lowered, LoweredArg, LoweredLaunch};
use crate::sim::{self, Bytes, Mode, Region};
use crate::timing::{self, Timing, control, predict_loaded};
use std::collections::BTreeMap;

/// Memory that a parameter of a launch is given: an operand that is read or written, reports, constants, or
/// scratch memory from a byte on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Read(usize),
    Write(usize),
    /// Reports of a launch.
    Fault(usize),
    Constant,
    Scratch,
}

/// The place of an argument, and its byte there; `None` for a number.
fn place(launch: usize, arg: &LoweredArg) -> Option<(Place, u64)> {
    Some(match *arg {
        LoweredArg::Read { operand, bytes } => (Place::Read(operand), bytes),
        LoweredArg::Write { operand, bytes } => (Place::Write(operand), bytes),
        LoweredArg::Fault { .. } => (Place::Fault(launch), 0),
        LoweredArg::Constant { bytes } => (Place::Constant, bytes),
        LoweredArg::Scratch { bytes } => (Place::Scratch, bytes),
        LoweredArg::Int(_) | LoweredArg::Float(_) => return None,
    })
}

/// Predicts the times of a step's launches on a chip. `fill` gives an operand that is read its contents where
/// they decide what runs, such as indices; its bytes are zeros before.
///
/// # Errors
/// Findings about a kernel, the first one.
pub fn predict(
    chip: &'static Chip,
    lowered: &Lowered,
    fill: &mut dyn FnMut(usize, Elem, &mut [u8]),
) -> Result<Vec<Timing>, Box<Finding>> {
    let slices = slices(lowered);
    // Buffers are consecutive in one memory; operands are filled.
    let (mut sizes, mut types) = (BTreeMap::new(), BTreeMap::new());
    for (i, (launch, slice)) in lowered.launches.iter().zip(&slices).enumerate() {
        for (param, arg) in arguments(slice, launch) {
            let (Some((place, byte)), ParamKind::Pointer { elem, .. }) = (place(i, arg), &param.kind) else {
                continue;
            };
            let size = if param.bytes() == 0 { 0 } else { byte + param.bytes() };
            let held: &mut u64 = sizes.entry(place).or_default();
            *held = size.max(*held);
            types.entry(place).or_insert(*elem);
        }
    }
    let mut end = 0;
    let starts: BTreeMap<Place, u64> = sizes
        .iter()
        .map(|(place, size)| {
            let start = end;
            end = (start + size).next_multiple_of(512);
            (*place, start)
        })
        .collect();
    let too_large = |program: &Program| Finding::new(Rule::Arguments, program, "indices beyond memory");
    let Some(first) = lowered.launches.first() else { return Ok(Vec::new()) };
    let mut memory = vec![0; usize::try_from(end).map_err(|_| too_large(&first.program))?];
    for (place, size) in &sizes {
        let start = starts[place] as usize;
        let own = &mut memory[start..start + *size as usize];
        match place {
            Place::Read(operand) => fill(*operand, types[place], own),
            Place::Constant => own.iter_mut().zip(&lowered.constants).for_each(|(to, from)| *to = *from),
            _ => {}
        }
    }
    let mut times = Vec::new();
    for (i, (launch, slice)) in lowered.launches.iter().zip(&slices).enumerate() {
        let number = |arg: &LoweredArg| match *arg {
            LoweredArg::Int(x) => sim::Arg::Int(x),
            LoweredArg::Float(x) => sim::Arg::Float(x),
            _ => sim::Arg::Pointer(0),
        };
        let mut args = Vec::new();
        for param in &slice.params {
            let given = arguments(slice, launch).find(|(p, _)| p.name == param.name).map(|(_, arg)| arg);
            args.push(match given.and_then(|arg| place(i, arg)) {
                // A parameter that the slice does not touch is empty, and anywhere.
                Some((place, byte)) if param.bytes() > 0 => sim::Arg::Pointer(starts[&place] + byte),
                _ => given.map_or(sim::Arg::Pointer(0), number),
            });
        }
        let mut loaded = Vec::new();
        if sizes.values().any(|size| *size > 0) {
            let run = sim::Launch::new(slice, chip, launch.blocks, &args, Mode::Fast);
            let regions = vec![Region { start: 0, bytes: Bytes::Write(&mut memory) }];
            loaded = sim::loads(&run, regions).map_err(|mut found| Box::new(found.swap_remove(0)))?;
        }
        let args = args.iter().map(|arg| match arg {
            sim::Arg::Int(x) => Value::Int(*x),
            sim::Arg::Float(x) => Value::Float(*x),
            sim::Arg::Pointer(_) => Value::Int(0),
        });
        let timed = timing::Launch { blocks: launch.blocks, args: args.collect() };
        times.push(predict_loaded(&launch.program, chip, &timed, &loaded)?);
    }
    Ok(times)
}

/// Parameters with their arguments: all but the synchronisation address.
fn arguments<'a>(
    program: &'a Program,
    launch: &'a LoweredLaunch,
) -> impl Iterator<Item = (&'a Param, &'a LoweredArg)> {
    program.params.iter().filter(|p| p.kind != ParamKind::Sync).zip(&launch.args)
}

/// The slices that decide how launches run, with what later launches need of earlier ones.
fn slices(lowered: &Lowered) -> Vec<Program> {
    // Bytes that later launches read.
    let mut needed: Vec<(Place, u64, u64)> = Vec::new();
    let mut slices = Vec::new();
    for (i, launch) in lowered.launches.iter().enumerate().rev() {
        let program = &*launch.program;
        let sync = program.params.len() - arguments(program, launch).count();
        let mut wanted = vec![false; program.params.len()];
        for (w, (param, arg)) in wanted.iter_mut().skip(sync).zip(arguments(program, launch)) {
            let Some((at, byte)) = place(i, arg) else { continue };
            let meets = |n: &(Place, u64, u64)| n.0 == at && n.1 < byte + param.bytes() && byte < n.2;
            let writes = matches!(param.kind, ParamKind::Pointer { access, .. } if access != Access::In);
            *w = writes && needed.iter().any(meets);
        }
        let (slice, touched) = control(program, &wanted);
        for (touched, (param, arg)) in touched.iter().skip(sync).zip(arguments(program, launch)) {
            if let (true, Some((at, byte))) = (touched, place(i, arg)) {
                needed.push((at, byte, byte + param.bytes()));
            }
        }
        slices.push(slice);
    }
    slices.reverse();
    slices
}
