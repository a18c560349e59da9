//! Predicted times of a step: what bounds it, in a sentence, and its modules' parts.

use super::{DEPTH, StepTime, StepsUse};
use crate::core::device::StepUse;
use crate::core::plan::Plan;
use crate::report::text;
use std::collections::BTreeMap;

/// Share of the kernels' time from which on a unit or the memory is called busy.
const BUSY: f64 = 0.5;

impl StepTime {
    /// In a sentence, what bounds the step, and what would help. `steps` are those by operator.
    pub fn said(&self, steps: &[StepsUse]) -> String {
        let time = text::seconds;
        let StepTime { seconds, kernels, replayed, launching, memory, .. } = *self;
        let host = match self.host {
            0 => String::new(),
            n => format!("; {n} steps on the host are not counted, and would take longest"),
        };
        if kernels == 0.0 {
            return format!("nothing is predicted: no step runs as a kernel{host}");
        }
        if launching > kernels {
            return format!(
                "launch-bound: of {} a step the host launches for {}, and kernels run for {}; record the launches and replay \
                 them (predicted: {}), or raise the batch{host}",
                time(seconds),
                time(launching),
                time(kernels),
                time(replayed)
            );
        }
        let slowest =
            steps.iter().max_by(|a, b| a.kernels.unwrap_or(0.0).total_cmp(&b.kernels.unwrap_or(0.0)));
        let slowest = slowest.map_or(String::new(), |s| {
            let own = s.kernels.unwrap_or(0.0);
            format!("; `{}` takes {:.0} % of it", s.name, 100.0 * own / kernels.max(f64::MIN_POSITIVE))
        });
        let busiest = busiest(steps).filter(|(_, busy)| *busy >= BUSY * kernels);
        let why = if memory >= BUSY * kernels {
            format!(
                "memory-bound: memory is busy for {} of the {} that kernels run",
                time(memory),
                time(kernels)
            )
        } else if let Some((unit, busy)) = busiest {
            format!("bound by unit {unit}, busy for {} of the {} that kernels run", time(busy), time(kernels))
        } else {
            format!(
                "kernel-bound: kernels run for {} of {} a step, and no unit is busy for half of that: a larger batch may fill them",
                time(kernels),
                time(seconds)
            )
        };
        format!("{why}{slowest}{host}")
    }
}

/// The unit of the device that is busy for longest, beside its memory.
fn busiest(steps: &[StepsUse]) -> Option<(&'static str, f64)> {
    let mut units: BTreeMap<&'static str, f64> = BTreeMap::new();
    for (unit, seconds) in steps.iter().flat_map(|s| &s.busy).filter(|(unit, _)| **unit != "memory") {
        *units.entry(unit).or_default() += seconds;
    }
    units.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))
}

/// Predicted seconds of the kernels of each module's steps, by its path as far as modules are distinguished.
pub(super) fn by_module(plan: &Plan, used: &[StepUse]) -> BTreeMap<String, f64> {
    let mut found = BTreeMap::new();
    for (step, used) in plan.steps.iter().zip(used) {
        let Some(predicted) = &used.predicted else { continue };
        let path = plan.origins.get(step.origin.0 as usize).map_or("", |o| &o.module[..]);
        let end = path.match_indices('.').nth(DEPTH - 1).map_or(path.len(), |(at, _)| at);
        *found.entry(path[..end].to_string()).or_insert(0.0) += predicted.kernels.iter().sum::<f64>();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, kernels: f64, busy: &[(&'static str, f64)]) -> StepsUse {
        let busy = busy.iter().copied().collect();
        StepsUse { name: name.into(), kernels: Some(kernels), busy, ..StepsUse::default() }
    }

    #[test]
    fn a_sentence_says_what_bounds_a_step() {
        let time = |kernels, launching, memory| StepTime {
            seconds: f64::max(kernels, launching) + 1e-4,
            kernels,
            replayed: kernels + 2e-5,
            launching,
            memory,
            ..StepTime::default()
        };
        let steps = [step("matmul", 1e-3, &[("cube", 9e-4)]), step("fused", 1e-3, &[("v", 2e-4)])];
        let said = time(2e-3, 6e-3, 0.0).said(&steps);
        assert!(
            said.starts_with(
                "launch-bound: of 6.1 ms a step the host launches for 6.0 ms, and kernels run for 2.0 ms"
            ),
            "{said}"
        );
        assert!(said.contains("replay them (predicted: 2.0 ms), or raise the batch"), "{said}");
        let said = time(2e-3, 1e-3, 1.5e-3).said(&steps);
        assert!(said.starts_with("memory-bound: memory is busy for 1.5 ms of the 2.0 ms"), "{said}");
        let said = time(2e-3, 1e-3, 0.0).said(&steps);
        assert!(
            said.starts_with("kernel-bound: kernels run for 2.0 ms of 2.1 ms")
                && said.contains("no unit is busy"),
            "{said}"
        );
        let cube = [step("matmul", 2e-3, &[("cube", 1.5e-3)])];
        let said = StepTime { host: 3, ..time(2e-3, 1e-3, 0.0) }.said(&cube);
        assert!(
            said.starts_with("bound by unit cube, busy for 1.5 ms")
                && said.contains("`matmul` takes 100 % of it"),
            "{said}"
        );
        assert!(said.contains("3 steps on the host are not counted"), "{said}");
    }
}
