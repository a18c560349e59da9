//! Steps of a plan by type of module: those of one module of a type, and those of all.

use crate::core::device::StepUse;
use crate::core::plan::Plan;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// Steps of the modules of a type, with those of all modules inside them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ModuleTypeUse {
    /// Class of the modules, such as `LlamaDecoderLayer`.
    pub class: String,
    /// Modules that have steps.
    pub modules: usize,
    /// Steps of one of them, and kernels that these launch: the median.
    pub one: (usize, usize),
    /// Steps of all of them, and kernels that these launch.
    pub all: (usize, usize),
}

/// Types of modules, those with most steps first. A module is known by its class where an operator is in it
/// directly, as the sums of residuals do in a layer.
pub(super) fn module_types(plan: &Plan, used: &[StepUse]) -> Vec<ModuleTypeUse> {
    let named = plan.origins.iter().filter(|o| !o.module.is_empty() && !o.class.is_empty());
    let classes: HashMap<&str, &str> = named.map(|o| (&o.module[..], &o.class[..])).collect();
    let mut by_path: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (step, used) in plan.steps.iter().zip(used) {
        let Some(origin) = plan.origins.get(step.origin.0 as usize) else { continue };
        let path = &origin.module[..];
        let ends = path.match_indices('.').map(|(at, _)| at).chain([path.len()]);
        for module in ends.map(|end| &path[..end]).filter(|m| classes.contains_key(m)) {
            let (steps, launches) = by_path.entry(module).or_default();
            *steps += 1;
            *launches += used.launches;
        }
    }
    let mut by_class: BTreeMap<&str, Vec<(usize, usize)>> = BTreeMap::new();
    for (path, used) in by_path {
        by_class.entry(classes[path]).or_default().push(used);
    }
    let of = |(class, mut each): (&str, Vec<(usize, usize)>)| {
        each.sort_unstable();
        let all = each.iter().fold((0, 0), |sum, own| (sum.0 + own.0, sum.1 + own.1));
        ModuleTypeUse { class: class.into(), modules: each.len(), one: each[each.len() / 2], all }
    };
    let mut types: Vec<ModuleTypeUse> = by_class.into_iter().map(of).collect();
    types.sort_by(|a, b| (b.all, &a.class).cmp(&(a.all, &b.class)));
    types
}
