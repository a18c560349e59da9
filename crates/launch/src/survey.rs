//! A plan as it would run: steps by kernels, by a vendor's library or on the host, and their predicted times.

use crate::{Driver, LibraryStep, Program, Refusal};
use headwater_core::device::{Predicted, StepUse};
use headwater_core::plan::Plan;
use std::collections::HashMap;

/// The way each step of a plan would run on a device, with the times that it predicts. A part of the plan
/// without a step on the host can be recorded and replayed: what that costs counts at its first step. Nothing
/// is predicted of the vendor's operators, which divide recordings too.
pub fn survey<D: Driver>(driver: &D, plan: &Plan) -> Vec<StepUse> {
    let mut known: HashMap<String, Option<Predicted>> = HashMap::new();
    let mut begins = true;
    let used = plan.steps.iter().map(|step| {
        let origin = plan.origins.get(step.origin.0 as usize).cloned().unwrap_or_default();
        let mut vendor = None;
        match driver.library(step, &origin) {
            Some(Ok(LibraryStep { operator, function, lowered, .. })) => {
                begins = true;
                return StepUse {
                    launches: lowered.launches.len(),
                    vendor: Some(Ok(function)),
                    workspace: driver.needs(&operator),
                    ..StepUse::default()
                };
            }
            Some(Err(Refusal(why))) => vendor = Some(Err(why)),
            None => {}
        }
        let lowered = match driver.lower(step, &origin) {
            Ok(lowered) => lowered,
            Err(Refusal(why)) => {
                begins = true;
                return StepUse { host: Some(why), vendor, ..StepUse::default() };
            }
        };
        let key = lowered.launches.iter().map(|l| format!("{:?} {}\n{}", l.args, l.blocks, l.program.text()));
        let predicted = known.entry(key.collect()).or_insert_with(|| driver.predict(step, &lowered));
        let launches = lowered.launches.len();
        let first = begins && launches > 0;
        begins &= launches == 0;
        let predicted =
            predicted.clone().map(|p| Predicted { replay: if first { p.replay } else { 0.0 }, ..p });
        StepUse { launches, vendor, predicted, ..StepUse::default() }
    });
    used.collect()
}
