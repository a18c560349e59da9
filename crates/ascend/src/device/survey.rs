//! A plan as it would run: steps by kernels or on the host, and their predicted times.

use crate::chip::Chip;
use crate::kernel::{ParamKind, Value};
use crate::lower::{self, Arg, Launch, Refusal};
use crate::timing;
use headwater_core::device::StepUse;
use headwater_core::plan::Plan;
use std::collections::HashMap;

/// Seconds from one launch of a stream to the next that the host needs, where no graph is replayed: what users of both
/// generations report, about 20 µs.
pub const LAUNCH: f64 = 20e-6;

/// The way each step of a plan would run on a chip. Its kernels' times are predicted by the timing model, as if every number
/// that decides what runs, such as an index, were 0; each launch costs [`LAUNCH`] beside.
pub(super) fn survey(chip: Result<&'static Chip, Refusal>, plan: &Plan) -> Vec<StepUse> {
    let mut known: HashMap<String, Option<f64>> = HashMap::new();
    let used = plan.steps.iter().map(|step| {
        let origin = plan.origins.get(step.origin.0 as usize).cloned().unwrap_or_default();
        let lowered = chip.clone().and_then(|chip| Ok((chip, lower::step(chip, step, &origin)?)));
        let (chip, lowered) = match lowered {
            Ok(both) => both,
            Err(Refusal(why)) => return StepUse { host: Some(why), ..StepUse::default() },
        };
        let times = lowered.launches.iter().map(|launch| {
            let key = format!("{:?} {}\n{}", launch.args, launch.blocks, launch.program.plain());
            *known.entry(key).or_insert_with(|| seconds(chip, launch))
        });
        let seconds = times.map(|time| time.map(|s| s + LAUNCH)).sum();
        StepUse { host: None, launches: lowered.launches.len(), seconds }
    });
    used.collect()
}

/// Predicted seconds of a launch.
fn seconds(chip: &'static Chip, launch: &Launch) -> Option<f64> {
    let args = launch.args.iter().map(|arg| match arg {
        Arg::Int(x) => Value::Int(*x),
        Arg::Float(x) => Value::Float(*x),
        _ => Value::Int(0),
    });
    let sync = launch.program.params.first().is_some_and(|p| p.kind == ParamKind::Sync);
    let args = sync.then_some(Value::Int(0)).into_iter().chain(args).collect();
    let times = timing::predict(
        &launch.program,
        chip,
        &timing::Launch { blocks: launch.blocks, args },
        &mut |view| Some(if view.elem.is_float() { Value::Float(0.0) } else { Value::Int(0) }),
    );
    times.ok().map(|t| t.task * 1e-6)
}
