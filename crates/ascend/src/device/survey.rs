//! Predicted times of a step.

use super::predict::predict;
use crate::chip::Chip;
use crate::kernel::{Pipe, Unit};
use crate::lower::{Lowered, LoweredArg, LoweredLaunch};
use crate::timing::{self, Timing};
use headwater_core::device::Predicted;
use headwater_core::plan::{Step, Work};

/// Seconds from one launch of a stream to the next that the host needs, where no graph is replayed: what
/// users of both generations report, about 20 µs.
pub const LAUNCH: f64 = 20e-6;

/// Seconds of the host for a recording of launches that is replayed. An assumption: one launch's, since it is
/// one call, and the kernels' own times include what the device needs to start them. No measurement is
/// published.
pub const REPLAY: f64 = LAUNCH;

/// Predicted times of a step's launches by the timing model, as if indices went through their range in turn,
/// groups of rows were even, and every other number that decides what runs were 0.
pub(super) fn predicted(chip: &'static Chip, step: &Step, lowered: &Lowered) -> Option<Predicted> {
    let groups = matches!(&step.work, Work::Kernel { op, .. } if op.name.contains("grouped_mm"));
    let limit = lowered.launches.iter().flat_map(|l| &l.args).find_map(|arg| match arg {
        LoweredArg::Fault { limit } => Some((*limit).max(1)),
        _ => None,
    });
    let times = predict(chip, lowered, &mut |operand, elem, bytes| {
        let Some(limit) = limit.filter(|_| !elem.is_float()) else { return };
        let view = step.reads.get(operand).and_then(Option::as_ref);
        let size = view.map_or(elem.size() as usize, |view| view.dtype.size());
        let count = (bytes.len() / size) as u64;
        for (i, to) in (0..).zip(bytes.chunks_exact_mut(size)) {
            let number = if groups { (i + 1) * (limit - 1) / count } else { i % limit };
            to.copy_from_slice(&number.to_le_bytes()[..size]);
        }
    });
    let times = times.ok()?;
    let mut busy: Vec<(&'static str, f64)> = Vec::new();
    for (launch, time) in lowered.launches.iter().zip(&times) {
        for (unit, seconds) in units(chip, launch, time) {
            match busy.iter_mut().find(|(name, _)| *name == unit) {
                Some((_, sum)) => *sum += seconds,
                None => busy.push((unit, seconds)),
            }
        }
    }
    Some(Predicted {
        kernels: times.iter().map(|t| t.task * 1e-6).collect(),
        launch: LAUNCH,
        replay: REPLAY,
        busy,
    })
}

/// Seconds for which the units of a chip are busy in a launch: each pipe, as a mean over all cores that have
/// it and that such a kernel runs on, and the memory at its full bandwidth.
fn units<'a>(
    chip: &Chip,
    launch: &LoweredLaunch,
    time: &'a Timing,
) -> impl Iterator<Item = (&'static str, f64)> + use<'a> {
    let vector = launch.program.parts.iter().all(|part| part.unit == Unit::Vector);
    let cores = if vector { chip.vector_cores } else { chip.cube_cores };
    let share = f64::from(launch.blocks.min(cores)) / f64::from(cores);
    let [bandwidth, _] = timing::bandwidth(chip);
    let pipes = Pipe::ALL.iter().map(move |pipe| (pipe.name(), time.pipe(*pipe) * 1e-6 * share));
    pipes.chain([("memory", time.bytes[0] / bandwidth)]).filter(|(_, seconds)| *seconds > 0.0)
}
